//! Fig. 5: up to 14 clients list their directory and stat each file, before and after 8 KiB are
//! written to it.

use super::bench::{Does, crew, rates};
use super::curves::Curves;
use super::{CLUSTER, WAYS, cluster, servers, sizes};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::trial::Trial;
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const FIG5: Experiment = Experiment {
    id: "carns-fig5",
    title: "Linux cluster: readdir and stat with stuffing",
    places: EVERYWHERE,
    run,
};

const PHASES: &[Does] = &[Does::Create, Does::List, Does::Write, Does::List];
/// Difference that the text calls significant.
const LEAST: f64 = 1.2;

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let ((clients, files), servers) = (sizes(setting), servers(setting));
    let ways = [WAYS[0], WAYS[2]];
    let curves =
        Curves::of("clients", clients, vec!["empty", "8-KiB"], &["baseline", "stuffing"], |way, clients| {
            let text = format!("{}{CLUSTER}", cluster(ways[way], servers, clients));
            let crews = Box::new(move || vec![crew(clients, clients, files, PHASES)]);
            let rates = rates(&Trial { crews, ..Trial::new(&text)? }.run(setting)?, PHASES)?;
            Ok(vec![rates[1], rates[3]])
        })?;
    let most = clients.last().copied().unwrap_or(1);
    let claim = |(phase, operation): (usize, &str)| Claim {
        text: format!(
            "with stuffing {most} clients look at {operation} files at least {LEAST} times as fast"
        ),
        paper: "significant".into(),
        ours: format!("{:.1} times", curves.gain(phase, true)),
        holds: curves.gain(phase, true) >= LEAST,
    };
    let claims = [(0, "empty"), (1, "8 KiB")].map(claim).to_vec();
    let setup = format!(
        "{servers} servers; each client has {files} files of its own, which it has made as PVFS's clients do, and lists and looks at them as a kernel \
         does: without stuffing each file's size is asked for at all data servers. Files per second."
    );
    Ok(ExperimentResult {
        setup,
        claims,
        tables: vec![curves.table()],
        charts: curves.charts(),
        ..ExperimentResult::default()
    })
}
