//! Test of the tests: on tmpfs every case must pass.

use std::path::Path;
use std::process::Command;

/// Runs the program on tmpfs; skipped without a tmpfs or without root.
fn run(args: &[&str]) {
    let tmpfs = Path::new("/dev/shm");
    let root = rustix::process::geteuid().is_root();
    if !root || rustix::fs::statfs(tmpfs).is_ok_and(|s| s.f_type != 0x0102_1994) {
        eprintln!("left out: needs root and a tmpfs at {}", tmpfs.display());
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_espalier-conformance")).arg(tmpfs).args(args).output();
    let output = output.expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let faults: Vec<&str> = text.lines().filter(|l| l.contains("FAILED") || l.contains("seed")).collect();
    assert!(output.status.success(), "{}", faults.join("\n"));
}

#[test]
fn cases() {
    run(&["--timeout", "120"]);
}

#[test]
fn model() {
    run(&["--model", "1", "--runs", "50", "--steps", "500"]);
}

#[test]
fn model_with_threads() {
    run(&["--model", "1", "--runs", "5", "--steps", "500", "--threads", "4"]);
}

#[test]
fn pieces() {
    run(&["--pieces", "1", "--rounds", "4"]);
}
