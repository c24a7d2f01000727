//! Simulator: runs the client, metadata server and data server machines in one thread and in
//! virtual time, under models of networks, processors, disks and clocks, and with faults. A run is
//! a function of its scenario and its seed.
#![forbid(unsafe_code)]

mod balancer;
mod calibrate;
mod check;
mod clock;
mod disk;
mod dist;
mod faults;
pub mod fuzz;
mod message;
mod model;
pub mod mutant;
mod network;
mod node;
mod observe;
mod output;
mod plot;
pub mod process;
mod quantity;
mod queue;
mod random;
mod report;
mod scenario;
mod series;
pub mod source;
mod station;
mod storage;
mod sweep;
mod time;
pub mod trace;
mod world;

pub use balancer::{BalancerMove, BalancerReport, BalancerSettings};
pub use calibrate::{Fitted, Measured, Sampled, Samples, Trial};
pub use check::{Checker, Violation};
pub use clock::ClockSettings;
pub use disk::DiskSettings;
pub use dist::Distribution;
pub use faults::{Fault, FaultKind, FaultSettings};
pub use message::{Message, MessageKind, work_of};
pub use model::{Model, ModelError, ModelSettings, Work};
pub use network::{NetworkPreset, NetworkSettings};
pub use observe::{Arrival, FailoverEvent, FailoverStep, Mutator, Node, Observer};
pub use output::{
    OutputError, plot_distributions, plot_sweep, write_csv, write_moves, write_plots, write_sweep,
};
pub use plot::{Line, PlotError, plot};
pub use quantity::{Bytes, Rate, parse_time};
pub use queue::Queue;
pub use random::{Random, Seed};
pub use report::{KindReport, Report, ServerReport, quantiles};
pub use scenario::{Caching, Cluster, Durability, Machine, OutputSettings, Scenario, ScenarioError};
pub use series::{ClientSample, MessageSample, Series, ServerSample, TotalSample};
pub use station::{Little, Load, Station};
pub use storage::{Left, Loss, Storage, StorageError};
pub use sweep::{Point, SweepSettings};
pub use time::Nanos;
pub use world::{Progress, RunError, Tracing, TtlCache, World};
