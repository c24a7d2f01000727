//! The program is built once for all tests: tests on a mount use the same build as the others.

use std::collections::BTreeSet;
use std::process::Command;

use espalier_tidy::{none, root};

#[test]
fn tests_ask_for_no_features_that_programs_do_without() {
    let (programs, tests) = (built("normal,build"), built("normal,build,dev"));
    assert!(programs.len() > 100, "{programs:?}");
    let faults: Vec<String> = programs.difference(&tests).cloned().collect();
    none(
        &faults,
        "These packages and their dependents are built twice, with and without features of [dev-dependencies].",
    );
}

/// All packages with their features, following these kinds of dependencies.
fn built(edges: &str) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "tree",
            "--offline",
            "--workspace",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
            "--edges",
            edges,
        ])
        .output()
        .expect("cargo tells of the packages");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8_lossy(&tree.stdout);
    lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}
