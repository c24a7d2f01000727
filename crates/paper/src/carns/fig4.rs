//! Fig. 4: writing and reading 8 KiB of many files, eager and by rendezvous.

use espalier_sim::source::OpKind;

use super::curves::{Counted, Curves};
use super::{CLUSTER, percent, servers, sizes};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult};
use crate::{EVERYWHERE, Experiment, Setting};

pub(crate) const FIG4: Experiment =
    Experiment { id: "carns-fig4", title: "Linux cluster: eager I/O", places: EVERYWHERE, run };

const PHASES: &[Counted] = &[("write", 4, OpKind::Write), ("read", 5, OpKind::Read)];
/// Longest eager payload, in bytes.
const EAGER: [&str; 2] = ["0 B", "16 KiB"];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let ((clients, files), servers) = (sizes(setting), servers(setting));
    let curves = Curves::measure(setting, clients, PHASES, &["rendezvous", "eager"], |series, clients| {
        // With 14 clients servers are not the limit yet (IV.A.2).
        let cluster = CLUSTER.replace("preset = \"wu\"\n", "preset = \"wu\"\ndata = \"20 us\"\n");
        let cluster = cluster.replace("[network]\n", &format!("[network]\neager = \"{}\"\n", EAGER[series]));
        format!(
            "[cluster]\nranks = {servers}\ndata = {servers}\nclients = {clients}\ncache = \"ttl 100 ms\"\n{cluster}\
             [[workload]]\nkind = \"nine-phases\"\nfiles = {files}\nbytes = \"8 KiB\"\n"
        )
    })?;
    let most = clients.last().copied().unwrap_or(1);
    let claim = |(phase, text, paper): (usize, &str, &str)| Claim {
        text: format!("{most} clients {text} 8 KiB faster with eager I/O"),
        paper: paper.into(),
        ours: percent(curves.gain(phase, true)),
        holds: curves.gain(phase, true) > 1.05,
    };
    let claims = [(0, "write", "+22 %"), (1, "read", "+33 %")].map(claim).to_vec();
    let setup = format!(
        "{servers} servers; each client has {files} files of its own open; what is written is in the journal's file when it is acknowledged, \
         and durable within a second. Clients cache for 100 ms, as PVFS's do: with leases the writes of small new files would not be waited for."
    );
    Ok(ExperimentResult {
        setup,
        claims,
        tables: vec![curves.table()],
        charts: curves.charts(),
        ..ExperimentResult::default()
    })
}
