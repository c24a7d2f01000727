//! Fig. 5.18: the cache's policy finds groups of accesses among a file system's metadata reads. The
//! trace of the thesis is not public; this one is generated in its shape.

use espalier_cache_manager::{ManagedCache, policies};
use espalier_sim::Line;

use crate::Setting;
use crate::error::PaperError;
use crate::outcome::{Chart, Claim, ExperimentResult, Table};

/// Length of the window in seconds. Quick runs divide all times by four.
const WINDOW_S: u64 = 3600;
const QUICK: u64 = 4;
/// The largest group, in seconds, as in the thesis.
const LARGEST: (u64, u64) = (1000, 2200);
/// Keys of directories near the root: path traversal reads them all the time.
const TOP_KEYS: u64 = 2000;

/// Begins of the groups, in seconds.
const BEGINS: [u64; 8] = [0, 240, 520, 760, LARGEST.0, LARGEST.1, 2700, 3100];

struct DetectedGroups {
    /// Seconds at which the policy reports a new group.
    found: Vec<u64>,
    /// Second and key of one access a second.
    points: Vec<(f64, f64)>,
}

fn detect(reads_per_s: u64, divisor: u64) -> Result<DetectedGroups, PaperError> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut cache = ManagedCache::new("fans", policies::FANS);
    let (mut found, mut points) = (Vec::new(), Vec::new());
    let (mut first, mut written) = (TOP_KEYS, 0);
    for second in 0..WINDOW_S / divisor {
        if BEGINS.iter().any(|begin| begin / divisor == second) {
            (first, written) = (first + written, 0);
        }
        for read in 0..reads_per_s {
            let now_ms = second * 1000 + read * 1000 / reads_per_s;
            // One read in four is of a directory on the way, and filtered as in the thesis.
            let key = match random.u64(..4) {
                0 => random.u64(..TOP_KEYS),
                _ if written == 0 || random.u64(..20) == 0 => {
                    written += 1;
                    first + written - 1
                }
                _ => first + random.u64(..written).min(random.u64(..written)),
            };
            if read == 0 {
                points.push((second as f64, key as f64));
            }
            if key >= TOP_KEYS && cache.get(now_ms, key).is_none() {
                cache.insert(now_ms, key, ());
            }
        }
        let now_ms = second * 1000 + 999;
        let evicted = cache.manage(now_ms, || false);
        if evicted.map_err(|error| PaperError::Policy { name: "fans".into(), error })? > 0 {
            found.push(second);
        }
    }
    Ok(DetectedGroups { found, points })
}

pub(super) fn fig5_18(setting: &Setting<'_>) -> Result<ExperimentResult, PaperError> {
    let reads_per_s = if setting.quick { 50 } else { 500 };
    let divisor = if setting.quick { QUICK } else { 1 };
    let DetectedGroups { found, points } = detect(reads_per_s, divisor)?;
    let begins: Vec<u64> = BEGINS.iter().skip(1).map(|begin| begin / divisor).collect();
    let largest = (LARGEST.0 / divisor, LARGEST.1 / divisor);
    // The first report after a begin is of that group.
    let report = |begin: u64| found.iter().copied().find(|second| *second >= begin);
    let rows = begins.iter().map(|begin| {
        let found = report(*begin).map_or("never".into(), |second| second.to_string());
        vec![begin.to_string(), found]
    });
    let table = Table { name: "groups", columns: vec!["group begins, s", "found, s"], rows: rows.collect() };
    let is_found = |begin: u64| report(begin).is_some_and(|second| second <= begin + 10);
    let within = found.iter().filter(|second| **second > largest.0 + 10 && **second < largest.1).count();
    let all = begins.iter().filter(|begin| is_found(**begin)).count();
    let shown = |begin: u64| report(begin).map_or("none".into(), |second| second.to_string());
    let claims = vec![
        Claim {
            text: "the policy finds the largest group: its begin, its end, and none within".into(),
            paper: "1,000 to 2,200 s".into(),
            ours: format!("{} to {} s, {within} within", shown(largest.0), shown(largest.1)),
            holds: is_found(largest.0) && is_found(largest.1) && within == 0,
        },
        Claim {
            text: "it finds every group within ten seconds, unmodified".into(),
            paper: String::new(),
            ours: format!("{all} of {}", begins.len()),
            holds: all == begins.len(),
        },
    ];
    let top = points.iter().map(|(_, key)| *key).fold(0.0, f64::max);
    let marks = found.iter().map(|second| (*second as f64, top)).collect();
    let lines = vec![
        Line { name: "file read".into(), points, dots: true },
        Line { name: "group found".into(), points: marks, dots: true },
    ];
    let charts = vec![Chart { name: "reads", over: "seconds", quantity: "file", lines }];
    let setup = format!(
        "{} s of generated metadata reads, {reads_per_s} a second: groups of files that are left for good, and directories near the root, whose {TOP_KEYS} \
         keys are filtered. The Lustre trace of the thesis is not public. The policy is the cache's, unmodified, once a second of virtual time.",
        WINDOW_S / divisor
    );
    Ok(ExperimentResult { setup, claims, tables: vec![table], charts, ..ExperimentResult::default() })
}
