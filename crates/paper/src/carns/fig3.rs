//! Fig. 3: creation and removal by up to 14 clients, the techniques added one by one.

use espalier_sim::source::OpKind;

use super::curves::{Counted, Curves};
use super::{CLUSTER, WAYS, cluster, percent, servers, sizes};
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::{EVERYWHERE, Experiment, Setting, Testbed};

pub(crate) const FIG3: Experiment = Experiment {
    id: "carns-fig3",
    title: "Linux cluster: file creation and removal rates",
    places: EVERYWHERE,
    run,
};

const PHASES: &[Counted] = &[("create", 2, OpKind::Create), ("remove", 3, OpKind::Unlink)];

fn run(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let ((clients, files), servers) = (sizes(setting), servers(setting));
    let names = WAYS.map(|(name, ..)| name);
    let (again, trials, made) = trials(setting);
    let curves = Curves::medians(setting, again, clients, PHASES, &names, |series, clients| {
        format!(
            "{}{CLUSTER}[[workload]]\nkind = \"create\"\nfiles = {files}\nshared = false\nopen = false\nremove = true\n",
            cluster(WAYS[series], servers, clients)
        )
    })?;
    // One server, where 14 clients with one request each form a queue.
    let queueing = Curves::medians(
        setting,
        trials,
        clients,
        PHASES,
        &["no coalescing", "coalescing"],
        |series, clients| {
            format!(
                "[cluster]\nclients = {clients}\ndurability = \"durable\"\nhigh_watermark = {}\n{CLUSTER}[[workload]]\nkind = \"create\"\n\
             files = {}\nshared = false\nremove = true\n",
                [1, 8][series],
                made.map_or(files, |(all, most)| (all / clients).min(most))
            )
        },
    )?;
    let most = clients.last().copied().unwrap_or(1);
    let claim = |text: String, paper: &str, gain: f64, least: f64| Claim {
        text,
        paper: paper.into(),
        ours: percent(gain),
        holds: gain > least,
    };
    let claims = vec![
        claim(
            format!("{most} clients make files faster with all techniques"),
            "up to +139 %",
            curves.gain(0, true),
            2.39,
        ),
        claim(format!("{most} clients remove files faster with them"), "faster", curves.gain(1, true), 1.1),
        claim("one client makes files faster with them, too".into(), "faster", curves.gain(0, false), 1.1),
        claim(
            format!("{most} clients of one server make files faster with only coalescing"),
            "a further jump",
            queueing.gain(0, true),
            1.1,
        ),
        claim(
            "one client makes files as fast with it, within 5 %".into(),
            "faster",
            queueing.gain(0, false),
            0.95,
        ),
    ];
    let often = made.map_or(String::new(), |(all, most)| {
        format!(" That is done {trials} times, in turn, with {all} files of all clients and at most {most} of each. Rates are medians.")
    });
    let setup = format!(
        "{servers} servers; each client makes {files} files in a directory of its own, message for message as PVFS's clients do, and removes them; \
         every change is durable before it is acknowledged. Low watermark 1, high watermark 1, and 8 with coalescing. Only coalescing is also measured on one server, with files that are made \
         in one request: at {servers} servers there is no queue of {most} clients.{often}"
    );
    let tables = vec![curves.table(), Table { name: "one-server", ..queueing.table() }];
    Ok(ExperimentResult { setup, claims, tables, charts: curves.charts(), ..ExperimentResult::default() })
}

/// Trials of everything, trials of coalescing on one server, and its files: of all clients, and of
/// one at most. On this machine single runs differ by more than the claim about a lone client.
fn trials(setting: &Setting<'_>) -> (usize, usize, Option<(u32, u32)>) {
    match (setting.place, setting.quick) {
        (Testbed::Simulator, _) => (1, 1, None),
        (Testbed::Machine, true) => (3, 25, Some((5600, 1000))),
        (Testbed::Machine, false) => (1, 25, Some((5600, 1000))),
    }
}
