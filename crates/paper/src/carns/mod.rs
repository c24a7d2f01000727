//! Carns et al., "Small-File Access in Parallel File Systems": eight servers, each for metadata and
//! data, and up to 14 clients; and Blue Gene/P.

mod bench;
mod blue_gene;
mod curves;
mod fig3;
mod fig4;
mod fig5;
mod fig7;
mod fig8;
mod fig9;
mod table1;
mod table2;
mod unstuff;

pub(crate) use fig3::FIG3;
pub(crate) use fig4::FIG4;
pub(crate) use fig5::FIG5;
pub(crate) use fig7::FIG7;
pub(crate) use fig8::FIG8;
pub(crate) use fig9::FIG9;
pub(crate) use table1::TABLE1;
pub(crate) use table2::TABLE2;
pub(crate) use unstuff::UNSTUFF;

use crate::{Setting, Testbed};

/// Numbers of clients, and files of each. In the simulator the clients are the paper's.
fn sizes(setting: &Setting<'_>) -> (&'static [u32], u32) {
    match (setting.place, setting.quick) {
        (Testbed::Simulator, false) => (&[1, 2, 4, 6, 8, 10, 12, 14], 2000),
        (Testbed::Simulator, true) => (&[1, 4, 8, 14], 200),
        (Testbed::Machine, false) => (&[1, 2, 4, 8, 14], 1000),
        (Testbed::Machine, true) => (&[1, 14], 200),
    }
}

/// Servers: eight, or fewer on this machine with its few processors.
fn servers(setting: &Setting<'_>) -> u16 {
    match setting.place {
        Testbed::Simulator => 8,
        Testbed::Machine => 4,
    }
}

/// The paper's Linux cluster: PVFS's service times from wu 4.3, Myrinet, and a disk whose sync lets
/// a server create 188 files a second (IV.A.1).
const CLUSTER: &str =
    "[model]\npreset = \"wu\"\n[network]\npreset = \"myri10g\"\n[disk]\nsync = \"4.9 ms\"\n";

/// The techniques, each with those before it, as settings of a cluster whose clients create files:
/// the policy and the high watermark.
const WAYS: [(&str, &str, u32); 4] = [
    ("baseline", "stuffing = false", 1),
    ("precreation", "stuffing = false\nprecreation = true", 1),
    ("and stuffing", "", 1),
    ("and coalescing", "", 8),
];

/// Such a cluster; clients trust attributes for 100 ms (II.B).
fn cluster((_, policy, high): (&str, &str, u32), servers: u16, clients: u32) -> String {
    format!(
        "[policy]\ncreate = \"client\"\n{policy}\n[cluster]\nranks = {servers}\ndata = {servers}\nclients = {clients}\n\
         cache = \"ttl 100 ms\"\ndurability = \"durable\"\nhigh_watermark = {high}\n"
    )
}

fn percent(more: f64) -> String {
    // Avoids "-0".
    format!("{:+.0} %", ((more - 1.0) * 100.0).round() + 0.0)
}
