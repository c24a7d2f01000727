//! `espalier fsck`, with the exit status of fsck(8).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use espalier_meta::Finding;
use espalier_proto::ServerId;
use espalier_runtime::{FsckReport, RepairReport, SharedStore, StoreLocation};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::FsckArgs;

const CLEAN: u8 = 0;
const REPAIRED: u8 = 1;
const PROBLEMS_LEFT: u8 = 4;
const FAILED: u8 = 8;

pub(crate) fn fsck(args: &FsckArgs) -> ExitCode {
    exit_code(if args.repair { repair(args) } else { check(args) })
}

pub(crate) fn exit_code(outcome: Result<u8>) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|error| {
        eprintln!("espalier: {error:#}");
        FAILED
    }))
}

fn check(args: &FsckArgs) -> Result<u8> {
    let bar = progress()?;
    let count = |records| bar.set_position(records);
    let location = args.rados.locate(&args.source)?;
    // Damage of the superblock is reported by the check.
    let report = match SharedStore::find(&location) {
        Ok(Some(shared)) => espalier_runtime::fsck_shared(&shared, count)?,
        _ => espalier_runtime::fsck(&location, count)?,
    };
    bar.finish_and_clear();
    let clean = report.findings.is_empty();
    if args.json {
        println!("{}", json(&report));
    } else {
        show(&report.findings);
        summary(&report, "clean");
    }
    Ok(if clean { CLEAN } else { PROBLEMS_LEFT })
}

/// Checks the stores of all ranks that servers share.
pub(crate) fn check_shared(shared: &SharedStore) -> Result<u8> {
    let bar = progress()?;
    let report = espalier_runtime::fsck_shared(shared, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    Ok(conclude(&report))
}

/// Checks the stores of all ranks and the datafiles of their files.
pub(crate) fn check_cluster(ranks: &[PathBuf], data: &[(ServerId, PathBuf)]) -> Result<u8> {
    let bar = progress()?;
    let report = espalier_runtime::fsck_cluster(ranks, data, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    Ok(conclude(&report))
}

fn conclude(report: &FsckReport) -> u8 {
    show(&report.findings);
    summary(report, "clean");
    if report.findings.is_empty() { CLEAN } else { PROBLEMS_LEFT }
}

fn repair(args: &FsckArgs) -> Result<u8> {
    let bar = progress()?;
    let count = |records| bar.set_position(records);
    let location = args.rados.locate(&args.source)?;
    let report = match SharedStore::find(&location) {
        Ok(Some(_)) => espalier_runtime::repair_shared(&location, count)?,
        _ => espalier_runtime::repair(&location, count)?,
    };
    bar.finish_and_clear();
    if args.json {
        let mut json = json(&report.after);
        json["repaired"] = findings(&report.done);
        json["quarantine"] = serde_json::json!(report.quarantines.first());
        json["quarantines"] = serde_json::json!(report.quarantines);
        println!("{json}");
    } else {
        show_repair(&report);
    }
    Ok(repair_code(&report))
}

/// Repairs the records of all ranks, and checks the datafiles of their files.
pub(crate) fn repair_cluster(ranks: &[PathBuf], data: &[(ServerId, PathBuf)]) -> Result<u8> {
    let bar = progress()?;
    let report = espalier_runtime::repair_cluster(ranks, data, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    show_repair(&report);
    Ok(repair_code(&report))
}

/// Repairs the stores of all ranks that servers share.
pub(crate) fn repair_shared(location: &StoreLocation) -> Result<u8> {
    let bar = progress()?;
    let report = espalier_runtime::repair_shared(location, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    show_repair(&report);
    Ok(repair_code(&report))
}

fn show_repair(report: &RepairReport) {
    show(&report.done);
    for quarantine in &report.quarantines {
        println!("replaced parts are in {}", quarantine.display());
    }
    show(&report.after.findings);
    summary(&report.after, if report.done.is_empty() { "clean" } else { "repaired" });
}

fn repair_code(report: &RepairReport) -> u8 {
    match (report.after.findings.is_empty(), report.done.is_empty()) {
        (false, _) => PROBLEMS_LEFT,
        (true, false) => REPAIRED,
        (true, true) => CLEAN,
    }
}

/// A progress bar, shown only on a terminal.
pub(crate) fn progress() -> Result<ProgressBar> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} checked {human_pos} records ({per_sec})")?);
    Ok(bar)
}

pub(crate) fn show(findings: &[Finding]) {
    for finding in findings {
        match finding.ino {
            Some(ino) => println!("inode {ino}: {}", finding.message),
            None => println!("{}", finding.message),
        }
    }
}

pub(crate) fn summary(report: &FsckReport, good: &str) {
    let problems = report.findings.len();
    let verdict = if problems == 0 { good.into() } else { format!("{problems} problems") };
    let (files, directories, replayed) = (report.files, report.directories, report.replayed);
    println!("{verdict}: {files} inodes, {directories} of them directories; {replayed} events replayed");
}

fn findings(findings: &[Finding]) -> serde_json::Value {
    let json = |finding: &Finding| serde_json::json!({ "ino": finding.ino.map(|ino| ino.0), "what": finding.message });
    findings.iter().map(json).collect()
}

fn json(report: &FsckReport) -> serde_json::Value {
    serde_json::json!({
        "clean": report.findings.is_empty(),
        "replayed": report.replayed,
        "records": report.records,
        "files": report.files,
        "directories": report.directories,
        "findings": findings(&report.findings),
    })
}
