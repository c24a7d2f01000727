//! Fig. 4: 8 KiB written to and read from each of many files, with payloads in the requests and replies, and announced first.

use espalier_sim::source::OpKind;

use super::curves::{Counted, Curves};
use super::{CLUSTER, percent, servers, sizes};
use crate::error::PaperError;
use crate::outcome::{Claim, Outcome};
use crate::{Experiment, Setting};

pub(crate) const FIG4: Experiment = Experiment { id: "carns-fig4", title: "Linux cluster: eager I/O", run };

const PHASES: &[Counted] = &[("write", 4, OpKind::Write), ("read", 5, OpKind::Read)];
/// The longest payload that is not announced.
const EAGER: [&str; 2] = ["0 B", "16 KiB"];

fn run(setting: &Setting<'_>) -> Result<Outcome, PaperError> {
    let ((clients, files), servers) = (sizes(setting), servers(setting));
    let curves = Curves::measure(setting, clients, PHASES, &["rendezvous", "eager"], |series, clients| {
        // Servers are not the limit yet with 14 clients (IV.A.2).
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
         and durable within a second. Clients believe for 100 ms what they are told, as PVFS's do: with leases nobody would wait for a small new file to be written."
    );
    Ok(Outcome { setup, claims, tables: vec![curves.table()], charts: curves.charts(), ..Outcome::default() })
}
