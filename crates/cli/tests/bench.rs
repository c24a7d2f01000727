//! `espalier bench` as a user runs it, on a directory in memory if there is one.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    tempfile::tempdir_in(base).unwrap()
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_espalier"))
}

fn bench(args: &[&str]) -> Output {
    program().arg("bench").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = bench(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn is_empty(dir: &TempDir) -> bool {
    dir.path().read_dir().unwrap().next().is_none()
}

/// Child processes, from /proc.
fn children(pid: u32) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(120), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn all_phases_run_with_two_processes_and_give_ratios() {
    let (first, second) = (scratch(), scratch());
    let [a, b] = [&first, &second].map(|dir| dir.path().to_str().unwrap());
    let groups = "paper,mdtest,small,durable,big,tree,git,growth";
    let args = [a, b, "--phases", groups, "--procs", "2", "--files", "20", "--bytes", "4K", "--runs", "2"];
    let report = json(&[&args[..], &["--json"]].concat());
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 9 + 9 + 6 + 2 + 5 + 3 + 3 + 7);
    for phase in phases {
        let number = |name: &str| phase[name].as_f64().is_some_and(|number| number > 0.0);
        let program = ["tree", "git"].iter().any(|group| phase["name"].as_str().unwrap().starts_with(group));
        assert!(number("ops_per_s") && number("ratio"), "{phase}");
        assert_eq!((number("p50_us"), number("p99_us")), (!program, !program), "{phase}");
        assert_eq!(phase["procs"], if program { 1 } else { 2 });
        assert_eq!(phase["against"][0]["ratios"].as_array().unwrap().len(), 2);
    }
    let operations =
        |name: &str| phases.iter().find(|phase| phase["name"] == name).unwrap()["operations"].as_u64();
    assert_eq!(operations("paper/mkdir"), Some(2));
    assert_eq!(operations("paper/readdir+stat full"), Some(40));
    assert_eq!(operations("tree/untar"), operations("git/clone"));
    assert!(is_empty(&first) && is_empty(&second), "the benchmark removes its files");
}

#[test]
fn a_table_and_a_picture_show_the_phases() {
    let dir = scratch();
    let (path, picture) = (dir.path().to_str().unwrap(), dir.path().join("picture.svg"));
    let args =
        [path, path, "--files", "5", "--runs", "1", "--algorithm", "2", "--phases", "paper,mdtest/file stat"];
    let output = bench(&[&args[..], &["--plot", picture.to_str().unwrap()]].concat());
    let table = String::from_utf8(output.stdout).unwrap();
    let drawn = std::fs::read_to_string(picture).unwrap();
    for name in ["paper/create", "mdtest/file stat", path] {
        assert!(table.contains(name) && drawn.contains(name), "{name}:\n{table}");
    }
    assert!(table.contains("algorithm 2") && !table.contains("mdtest/file read"), "{table}");
}

#[test]
fn a_process_that_dies_ends_the_benchmark() {
    let dir = scratch();
    let mut command = program();
    command.arg("bench").arg(dir.path()).args(["--phases", "mdtest", "--procs", "3", "--files", "100000000"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let workers = wait_for("the processes", || Some(children(child.id())).filter(|all| all.len() == 3));
    // In the middle of a phase that would take the other processes hours.
    wait_for("work", || {
        let run = dir.path().read_dir().unwrap().next()?.unwrap().path();
        run.join("process1/tree/dirfile0000000").exists().then_some(())
    });
    let rank1 = rustix::process::Pid::from_raw(workers[1]).unwrap();
    rustix::process::kill_process(rank1, rustix::process::Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && complaint.contains("process 1 of mdtest"), "{complaint}");
    assert!(is_empty(&dir), "the benchmark removes its files");
    let alive: Vec<_> = workers.iter().map(|pid| PathBuf::from(format!("/proc/{pid}"))).collect();
    assert!(alive.iter().all(|process| !process.exists()), "the other processes are killed");
}

#[test]
fn bench_refuses_with_reason() {
    let dir = scratch();
    let path = dir.path().to_str().unwrap();
    for (args, reason) in [
        (vec![path, "--phases", "nonsense"], "durable"),
        (vec![path, "--files", "0"], "--files must be at least 1"),
        (vec!["/nonexistent"], "/nonexistent"),
        (vec!["/proc/self/status"], "/proc/self/status"),
        (vec!["/proc"], "/proc"),
        (vec![path, "--phases", "paper", "--files", "100000000"], "ulimit"),
    ] {
        let output = bench(&args);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && complaint.contains(reason), "{args:?}: {complaint}");
    }
    assert!(is_empty(&dir));
}

/// A cluster that is stopped when dropped.
struct RunningCluster(PathBuf);

impl Drop for RunningCluster {
    fn drop(&mut self) {
        let _ = program().args(["cluster", "down"]).arg(&self.0).output();
    }
}

#[test]
fn a_server_is_measured_without_a_kernel_in_between() {
    let work = scratch();
    let cluster = RunningCluster(work.path().join("cluster"));
    let cluster_command = |command: &str, more: &[&str]| {
        let output = program().args(["cluster", command]).arg(&cluster.0).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    cluster_command("init", &["--listen", "127.0.0.1:0"]);
    cluster_command("up", &[]);
    let status: Value = serde_json::from_slice(&cluster_command("status", &["--json"])).unwrap();
    let url = status["servers"][0]["url"].as_str().or(status["url"].as_str()).unwrap();
    let credentials = format!("credentials={}", cluster.0.join("clients/admin").display());
    let args = ["--native", url, "-o", &credentials, "--clients", "3", "--outstanding", "4"];
    let report = json(&[&args[..], &["--files", "10", "--runs", "2", "--json"]].concat());
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    let expected = ["create", "stat", "stat leased", "unlink", "create and write", "open and read"];
    assert_eq!(names, expected.map(|name| format!("native/{name}")));
    for phase in phases {
        assert_eq!((phase["operations"].as_u64(), phase["procs"].as_u64()), (Some(30), Some(3)));
        assert!(phase["p99_us"].as_f64().unwrap() > 0.0 && phase["ops_per_s"].as_f64().unwrap() > 0.0);
    }
    let says = |args: &[&str], text: &str| {
        let output = bench(args);
        assert!(!output.status.success());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(text), "{said}");
    };
    says(&["--native", url], "credentials=DIR");
    says(&["--native", url, "-o", "insecure"], "requires TLS");
    says(&["--native", url, "-o", "sync"], "not sync");
    says(&["--native", url, "-o", &credentials, "--clients", "0"], "at least 1");
}
