//! One directory on real servers. With all servers and clients on the processors of one machine,
//! throughput cannot grow with the servers.

use espalier_sim::source::OpKind;

use super::grid::{CREATES, Costs, CreateRun, Division};
use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Claim, ExperimentResult, Table};
use crate::trial::medians;

const SERVERS: [u32; 4] = [1, 2, 4, 8];
const CLIENTS: [u32; 2] = [4, 16];

/// Figs. 5.2 and 5.4.
pub(super) fn creates(setting: &Setting<'_>, division: Division) -> Result<ExperimentResult, PaperError> {
    let (trials, entries) = if setting.quick { (1, 8_000) } else { (3, 40_000) };
    let runs: Vec<CreateRun> = CLIENTS
        .into_iter()
        .flat_map(|clients| {
            let run = move |servers| CreateRun {
                division,
                costs: Costs::Calibrated,
                servers,
                clients,
                processes: 1,
                files: entries / clients,
            };
            SERVERS.map(run)
        })
        .collect();
    let rates = medians(trials, runs.len(), |at| {
        let summary = runs[at].trial()?.run(setting)?;
        let creates = summary.phase(CREATES, OpKind::Create)?;
        Ok(vec![creates.rate(), creates.latencies.mean() / 1e6])
    })?;
    let row = |(run, figures): (&CreateRun, &Vec<f64>)| {
        let (clients, servers) = (run.clients.to_string(), run.servers.to_string());
        vec![clients, servers, format!("{:.0}", figures[0]), format!("{:.3}", figures[1])]
    };
    let ratio = |clients: usize| {
        let of = &rates[clients * SERVERS.len()..][..SERVERS.len()];
        of[SERVERS.len() - 1][0] / of[0][0]
    };
    let claims = vec![Claim {
        text: "eight servers keep at least a third of the throughput of one, on the same processors".into(),
        paper: String::new(),
        ours: format!("{:.2} with {} clients, {:.2} with {}", ratio(0), CLIENTS[0], ratio(1), CLIENTS[1]),
        holds: ratio(0) > 1.0 / 3.0 && ratio(1) > 1.0 / 3.0,
    }];
    Ok(ExperimentResult {
        setup: format!(
            "Real servers and clients, which share the processors; {entries} entries are created in one directory."
        ),
        claims,
        tables: vec![Table {
            name: "creates",
            columns: vec!["clients", "servers", "creates a second", "ms"],
            rows: runs.iter().zip(&rates).map(row).collect(),
        }],
        ..ExperimentResult::default()
    })
}
