//! IBM Blue Gene/P (IV.B): I/O nodes are the file system's clients and forward the calls of compute
//! nodes.

use super::bench::{Does, crew, rates};
use super::{WAYS, cluster};
use crate::error::PaperError;
use crate::trial::Trial;
use crate::{Setting, Testbed};

/// Fewer on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub io_nodes: u32,
    pub processes: u32,
    /// Files of each process. The paper states it for mdtest only.
    pub files: u32,
    /// Numbers of servers.
    pub servers: &'static [u32],
}

pub(super) fn size(setting: &Setting<'_>) -> Size {
    let (io_nodes, processes, files, servers): (_, _, _, &[u32]) = match (setting.place, setting.quick) {
        (Testbed::Simulator, false) => (64, 16_384, 10, &[1, 2, 4, 8, 16, 32]),
        (Testbed::Simulator, true) => (64, 256, 4, &[1, 32]),
        (Testbed::Machine, false) => (4, 64, 10, &[2, 4, 8]),
        (Testbed::Machine, true) => (4, 32, 5, &[2, 8]),
    };
    Size { io_nodes, processes, files, servers }
}

/// The paper's two configurations.
pub(super) const SERIES: [&str; 2] = ["baseline", "optimized"];

/// Servers of the Linux cluster, on a SAN. An I/O node completes 1,130 small reads or writes a
/// second (IV.B.3), each two messages with replies (Fig. 2): 442 us each. A sync takes 0.5 ms:
/// Table II's baseline creates 1,823 files a second, each with a datafile on every server, and
/// inode, layout and name on one of 32.
const MODEL: &str = "[model]\npreset = \"wu\"\nclient_message = \"442 us\"\n[disk]\nsync = \"0.5 ms\"\n";
/// Longest eager payload, in bytes.
const EAGER: [&str; 2] = ["0 B", "16 KiB"];

/// Files or directories a second in each phase of one configuration.
///
/// # Errors
/// [`PaperError`]
pub(super) fn measure(
    setting: &Setting<'_>,
    Size { io_nodes, processes, files, .. }: Size,
    (series, servers): (usize, u32),
    phases: &'static [Does],
) -> Result<Vec<f64>, PaperError> {
    let way = if series == 0 { WAYS[0] } else { WAYS[WAYS.len() - 1] };
    let servers = u16::try_from(servers).unwrap_or(u16::MAX);
    let text = format!(
        "{}{MODEL}[network]\npreset = \"myri10g\"\neager = \"{}\"\n",
        cluster(way, servers, io_nodes),
        EAGER[series]
    );
    let crews = Box::new(move || vec![crew(processes, io_nodes, files, phases)]);
    rates(&Trial { crews, ..Trial::new(&text)? }.run(setting)?, phases)
}

/// Notes for readers of the numbers.
pub(super) fn setup(Size { io_nodes, processes, files, .. }: Size) -> String {
    format!(
        "{processes} processes, whose calls go through {io_nodes} clients; each has a directory of its own, to which it has changed, with {files} \
         files. Every change is durable before it is acknowledged. Baseline: files are striped over all servers, clients make them, each change is \
         committed by itself, and payloads are announced; optimized: precreation, stuffing, coalescing and eager I/O."
    )
}
