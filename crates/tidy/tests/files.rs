//! Limits and conventions for files.

use std::collections::BTreeSet;
use std::fs;

use espalier_tidy::{none, root, sources};

const LINES_MAX: usize = 700;

#[test]
fn files_are_short() {
    let faults: Vec<String> = sources()
        .iter()
        .filter(|s| s.has_extension("rs") && !s.is_test())
        .map(|s| (s, s.text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(s, lines)| format!("{}: {lines} lines", s.path))
        .collect();
    none(&faults, "Split the file by concept: one file should be readable in one sitting.");
}

#[test]
fn nothing_is_left_over() {
    // Split, so that this file passes.
    let marks = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("db", "g!("),
    ];
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.has_extension("rs") || s.path.starts_with("scripts/")) {
        for (n, line) in source.lines() {
            // A template of mktemp repeats one letter.
            let line = line.replace(&"X".repeat(6), "");
            if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
                faults.push(format!("{}:{n}: {mark}", source.path));
            }
        }
    }
    none(&faults, "Finish it, or document in docs/ what is missing and why.");
}

#[test]
fn pipes_are_read_to_their_end() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| s.path.starts_with("scripts/")) {
        for (n, line) in source.lines().filter(|(_, line)| line.contains("| grep -q")) {
            faults.push(format!("{}:{n}: {line}", source.path));
        }
    }
    none(
        &faults,
        "`grep -q` exits at the first match, which may kill the writer: use grep -q WHAT <<< \"$(COMMAND)\".",
    );
}

#[test]
fn all_tests_are_built() {
    let mut faults = Vec::new();
    for main in sources().iter().filter(|s| s.path.ends_with("/tests/main.rs")) {
        let dir = main.path.trim_end_matches("main.rs");
        let manifest = root().join(dir).join("../Cargo.toml");
        let manifest = fs::read_to_string(&manifest).unwrap_or_default();
        for source in sources().iter().filter(|s| s.path != main.path) {
            let Some(name) = source.path.strip_prefix(dir).and_then(|name| name.strip_suffix(".rs")) else {
                continue;
            };
            let is_built = main.text.contains(&format!("mod {name};"))
                || manifest.contains(&format!("name = \"{name}\""));
            if !name.contains('/') && !is_built {
                faults.push(source.path.clone());
            }
        }
    }
    none(&faults, "With `autotests = false`, declare each file in main.rs as a module or in Cargo.toml.");
}

#[test]
fn no_trailing_whitespace() {
    let mut faults = Vec::new();
    for source in sources() {
        for (n, line) in source.lines() {
            if line.ends_with([' ', '\t']) {
                faults.push(format!("{}:{n}", source.path));
            }
        }
        if !source.text.is_empty() && !source.text.ends_with('\n') {
            faults.push(format!("{}: no newline at the end", source.path));
        }
    }
    none(&faults, "Remove it: sed -i 's/[ \\t]*$//' FILE");
}

#[test]
fn no_path_of_one_machine() {
    let marks = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut faults = Vec::new();
    for source in sources() {
        for (n, line) in source.lines() {
            if let Some(mark) = marks.iter().find(|mark| names_directory(line, mark)) {
                faults.push(format!("{}:{n}: {mark}", source.path));
            }
        }
    }
    none(&faults, "A clone has no such directory: make the path relative or a parameter.");
}

/// True if an absolute path starts with `mark`; false for `a/home/b`.
fn names_directory(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}*)".contains(c))
    })
}

/// Every operation of the metadata machine has a test file of the same name.
#[test]
fn operations_have_test_files() {
    let names = |path: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(root().join(path)).into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.strip_suffix(".rs").map(str::to_owned)).collect()
    };
    let mut operations = names("crates/meta/src/ops");
    operations.remove("mod");
    assert!(!operations.is_empty());
    let tests = names("crates/meta/tests/ops");
    let faults: Vec<String> = operations
        .difference(&tests)
        .map(|name| format!("crates/meta/src/ops/{name}.rs has no crates/meta/tests/ops/{name}.rs"))
        .collect();
    none(&faults, "Add the test file: an operation and its tests have the same name.");
}
