//! `espalier trace`: errors for unusable input; its output can be read again.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn espalier(args: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_espalier")).args(args).current_dir(dir).output().unwrap()
}

fn error(place: &str, dir: &Path) -> String {
    let output = espalier(&["trace", place, "--seconds", "0.1"], dir);
    assert_eq!(output.status.code(), Some(2), "{place}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn trace_reports_untraceable_source() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert!(error("nothing", dir).contains("there is no nothing"));
    std::fs::create_dir(dir.join("empty")).unwrap();
    assert!(error("empty", dir).contains("is it mounted or served"));
    std::fs::create_dir_all(dir.join("cluster/server-0")).unwrap();
    std::fs::write(dir.join("cluster/server-0/server.toml"), "nonsense").unwrap();
    assert!(error("cluster", dir).contains("server.toml"));
    for (text, why) in
        [("nonsense", "no JSON"), ("{}", "no trace of"), ("{\"traceEvents\":[]}", "no operation")]
    {
        std::fs::write(dir.join("file.json"), text).unwrap();
        let error = error("file.json", dir);
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn a_run_of_the_simulator_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let scenario = "[cluster]\ndurability = \"durable\"\n[[workload]]\nkind = \"create\"\nfiles = 3\n";
    std::fs::write(dir.join("it.toml"), scenario).unwrap();
    let run = espalier(&["sim", "it.toml", "--spans", "spans.json"], dir);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let drawn = espalier(&["trace", "spans.json", "--op", "create", "--out", "again.json"], dir);
    let text = String::from_utf8(drawn.stdout).unwrap();
    for step in ["ask rank 0: create", "rank 0, disk", "journal sync"] {
        assert!(text.contains(step), "{text}");
    }
    // The output is read again and compared with its source.
    let both = ["trace", "again.json", "--op", "create", "--compare", "spans.json", "--out", "both.svg"];
    let compared = espalier(&both, dir);
    let text = String::from_utf8(compared.stdout).unwrap();
    let (first, second) = text.split_once("create, spans.json\n").unwrap();
    assert!(first.ends_with(&format!("create, again.json\n{second}\n")), "{text}");
    let svg = std::fs::read_to_string(dir.join("both.svg")).unwrap();
    assert!(svg.contains("create, again.json") && svg.contains("create, spans.json"), "{svg}");
    let other = espalier(&["trace", "spans.json", "--op", "chmod"], dir);
    assert!(String::from_utf8(other.stderr).unwrap().contains("no chmod has ended"));
}
