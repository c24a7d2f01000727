//! Fig. 3: files made and removed by up to 14 clients. Of its four lines these are the last two: without and with coalescing. They have one
//! server instead of eight: a file costs it one request, and 14 clients that wait for one each do not queue up at eight of them.

use espalier_sim::source::OpKind;

use super::curves::{Counted, Curves};
use super::{CLUSTER, percent, sizes};
use crate::error::PaperError;
use crate::outcome::{Claim, Outcome};
use crate::{Experiment, Setting};

pub(crate) const FIG3: Experiment =
    Experiment { id: "carns-fig3", title: "Linux cluster: file creation and removal rates", run };

const PHASES: &[Counted] = &[("create", 2, OpKind::Create), ("remove", 8, OpKind::Unlink)];
/// High watermarks: with 1 each operation is committed by itself.
const HIGH: [u32; 2] = [1, 8];

fn run(setting: &Setting<'_>) -> Result<Outcome, PaperError> {
    let (clients, files) = sizes(setting);
    let names = ["no coalescing", "coalescing"];
    let curves = Curves::measure(setting, clients, PHASES, &names, |series, clients| {
        format!(
            "[cluster]\nclients = {clients}\ndurability = \"durable\"\nhigh_watermark = {}\n{CLUSTER}\
             [[workload]]\nkind = \"nine-phases\"\nfiles = {files}\n",
            HIGH[series]
        )
    })?;
    let most = clients.last().copied().unwrap_or(1);
    let claim = |text: String, paper: &str, gain: f64, least: f64| Claim {
        text,
        paper: paper.into(),
        ours: percent(gain),
        holds: gain > least,
    };
    let claims = vec![
        claim(
            format!("{most} clients make files faster with coalescing"),
            "a further jump",
            curves.gain(0, true),
            1.1,
        ),
        claim(
            format!("{most} clients remove files faster with it"),
            "beyond 150/s a server",
            curves.gain(1, true),
            1.1,
        ),
        claim(
            "one client makes files as fast with it, within 5 %".into(),
            "faster",
            curves.gain(0, false),
            0.95,
        ),
    ];
    let setup = format!(
        "One server; each client makes {files} files in a directory of its own; every change is durable \
         before it is acknowledged. Files are stuffed, and are made with their names in one request; low watermark 1, high watermark 8."
    );
    Ok(Outcome { setup, claims, tables: vec![curves.table()], charts: curves.charts(), ..Outcome::default() })
}
