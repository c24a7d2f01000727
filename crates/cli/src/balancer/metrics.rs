//! `espalier balancer metrics`: the loads of metadata servers and directories.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use espalier_meta::{DirectoryLoad, LoadReport, decode};
use espalier_runtime::{RankFigures, load_of};
use serde::Serialize;

use super::root::ClusterRoot;
use crate::table::{heartbeat, printable};
use crate::usage::print_text;
use crate::{cluster, report};

/// The attribute of a mount's root with the load of its servers.
const LOAD: &str = "user.espalier.load";

#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// A cluster's directory, a store, or a mount point.
    #[arg(value_hint = ValueHint::DirPath)]
    source: PathBuf,
    /// Number of directories; of a mount of servers at most 64.
    #[arg(long, default_value_t = 16, value_name = "NUMBER")]
    directories: usize,
    #[arg(long)]
    json: bool,
}

/// A directory in the output for programs.
#[derive(Debug, Serialize)]
struct JsonDirectory<'a> {
    rank: u16,
    /// Of the directory, and of its record at the rank.
    ino: u64,
    fragment: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    entries: u64,
    ird: f64,
    iwr: f64,
    readdir: f64,
    fetch: f64,
    store: f64,
    /// Metadata loads of the directory and of its subtree at the rank.
    load: f64,
    subtree_load: f64,
}

impl<'a> From<&'a DirectoryLoad> for JsonDirectory<'a> {
    fn from(of: &'a DirectoryLoad) -> Self {
        let [ird, iwr, readdir, fetch, store] = of.own.counts();
        Self {
            rank: of.rank.0,
            ino: of.dir.0,
            fragment: of.ino.0,
            path: of.path.as_deref(),
            entries: of.entries,
            ird,
            iwr,
            readdir,
            fetch,
            store,
            load: of.own.load(),
            subtree_load: of.subtree.load(),
        }
    }
}

pub(crate) fn metrics(args: &MetricsArgs) -> Result<ExitCode> {
    let shown = LoadReport::join(read(&args.source, args.directories)?, args.directories);
    if args.json { print_text(&to_json(&shown)) } else { print_text(&to_text(&shown).trim_end()) }
}

fn read(source: &Path, most: usize) -> Result<Vec<LoadReport>> {
    // Looking into a mount would wait for a server that is down.
    match report::store_of(source)? {
        Some(store) if store.to_str().is_some_and(cluster::is_url) => {
            Ok(vec![read_attribute(&ClusterRoot::Mount(source.to_owned()))?])
        }
        Some(store) => Ok(vec![load_of(&store, most)?]),
        None if cluster::is_cluster(source) => cluster::loads(source, most),
        None => Ok(vec![load_of(source, most)?]),
    }
}

pub(super) fn read_attribute(root: &ClusterRoot) -> Result<LoadReport> {
    let value = root.get(Path::new("/"), LOAD).with_context(|| {
        format!("cannot read {LOAD} of {}: only the superuser may, at the root", root.shown())
    })?;
    decode(&value).ok().with_context(|| format!("cannot decode {LOAD} of {}", root.shown()))
}

fn to_json(shown: &LoadReport) -> serde_json::Value {
    let ranks: Vec<_> = shown.ranks.iter().map(RankFigures::from).collect();
    let directories: Vec<_> = shown.directories.iter().map(JsonDirectory::from).collect();
    serde_json::json!({ "ranks": ranks, "directories": directories })
}

fn to_text(shown: &LoadReport) -> String {
    let mut text = format!(
        "{:>4}{:>10}{:>10}{:>7}{:>7}{:>9}{:>10}  HEARTBEAT\n",
        "RANK", "AUTH", "ALL", "CPU %", "MEM %", "QUEUE", "REQ/S"
    );
    for figures in shown.ranks.iter().map(RankFigures::from) {
        let heartbeat = heartbeat(&figures);
        let RankFigures { rank, auth, all, cpu, mem, q, req, .. } = figures;
        let _ = writeln!(
            text,
            "{rank:>4}{auth:>10.1}{all:>10.1}{cpu:>7.1}{mem:>7.1}{q:>9.1}{req:>10.1}  {heartbeat}"
        );
    }
    let _ = writeln!(
        text,
        "\n{:>4}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>10}  DIRECTORY",
        "RANK", "IRD", "IWR", "READDIR", "FETCH", "STORE", "SUBTREE", "ENTRIES"
    );
    for DirectoryLoad { rank, dir, path, entries, own, subtree, .. } in &shown.directories {
        let _ = write!(text, "{:>4}", rank.0);
        for count in own.counts() {
            let _ = write!(text, "{count:>9.1}");
        }
        let path = path.clone().unwrap_or_else(|| format!("(inode {dir})"));
        let _ = writeln!(text, "{:>10.1}{entries:>10}  {}", subtree.load(), printable(&path));
    }
    text
}

#[cfg(test)]
mod tests {
    use espalier_meta::{KnownLoad, Milli, Popularity, RankLoad};
    use espalier_proto::{Ino, Rank};

    use super::*;

    fn example() -> LoadReport {
        let own = Popularity { ird: Milli(1500), iwr: Milli(2000), ..Popularity::default() };
        let subtree = Popularity { ird: Milli(9500), ..own };
        let dir = |ino, path: Option<&str>| {
            let (rank, dir, path, entries) = (Rank(1), Ino(ino), path.map(String::from), 7);
            DirectoryLoad { rank, ino: Ino(ino + 100), dir, path, entries, own, subtree }
        };
        let load = RankLoad { auth: own, all: subtree, cpu: Milli(48_000), ..RankLoad::default() };
        let ranks = vec![
            KnownLoad { rank: Rank(0), load, age_ms: Some(400) },
            KnownLoad { rank: Rank(1), load, age_ms: Some(9000) },
            KnownLoad { rank: Rank(2), load: RankLoad::default(), age_ms: None },
        ];
        LoadReport { ranks, directories: vec![dir(12, Some("/a\nb")), dir(13, None)] }
    }

    #[test]
    fn json_has_the_fields_that_balancers_read() {
        let json = to_json(&example());
        let rank = &json["ranks"][0];
        assert_eq!((&rank["auth"], &rank["all"], &rank["cpu"]), (&5.5.into(), &13.5.into(), &48.0.into()));
        assert_eq!((&rank["age_ms"], &rank["silent"]), (&400.into(), &false.into()));
        assert_eq!((&json["ranks"][1]["silent"], &json["ranks"][2]["age_ms"]), (&true.into(), &().into()));
        let dir = &json["directories"][0];
        assert_eq!((&dir["rank"], &dir["ino"], &dir["path"]), (&1.into(), &12.into(), &"/a\nb".into()));
        assert_eq!(dir["fragment"], 112);
        assert_eq!((&dir["ird"], &dir["iwr"], &dir["entries"]), (&1.5.into(), &2.0.into(), &7.into()));
        assert_eq!((&dir["load"], &dir["subtree_load"]), (&5.5.into(), &13.5.into()));
        assert!(json["directories"][1].get("path").is_none());
    }

    #[test]
    fn table_shows_silent_ranks_and_unknown_paths() {
        let text = to_text(&example());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].ends_with("  0.4 s ago"), "{text}");
        assert!(lines[2].ends_with("  SILENT: 9.0 s ago"), "{text}");
        assert!(lines[3].ends_with("  SILENT: none"), "{text}");
        assert!(lines[6].ends_with("13.5         7  /a?b"), "{text}");
        assert!(lines[7].ends_with("  (inode 13)"), "{text}");
    }
}
