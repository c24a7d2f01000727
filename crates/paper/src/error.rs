//! Why an experiment did not finish.

use std::path::PathBuf;

use espalier_balancer::ScriptError;
use espalier_library::ConnectError;
use espalier_proto::Errno;
use espalier_sim::{OutputError, PlotError, RunError, ScenarioError};

#[derive(Debug, thiserror::Error)]
pub enum PaperError {
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(transparent)]
    Run(Box<RunError>),
    #[error("cannot start servers: {0}")]
    Cluster(String),
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: std::io::Error },
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("the policy {name} fails: {error}")]
    Policy { name: String, error: ScriptError },
    /// The measurement is not the requested one.
    #[error("{kind} failed: {errno}")]
    Failed { kind: &'static str, errno: Errno },
    #[error("nothing was measured of {0}")]
    Nothing(&'static str),
}

impl From<RunError> for PaperError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}
