//! The machines' crates are pure: no I/O, no clock, no thread, no unsafe code.

use std::fs;

use espalier_tidy::{none, root, sources};

const MACHINES: [&str; 5] = ["proto", "policy", "meta", "data", "client"];

/// Crates without I/O that a machine may use. Review a crate before adding it.
const ALLOWED: [&str; 14] = [
    "bitflags",
    "bytes",
    "espalier-client",
    "espalier-meta",
    "espalier-policy",
    "espalier-proto",
    "hashbrown",
    "postcard",
    "rustc-hash",
    "serde",
    "serde_bytes",
    "siphasher",
    "smallvec",
    "thiserror",
];

#[test]
fn machines_are_no_std_and_safe() {
    let mut faults = Vec::new();
    for machine in MACHINES {
        let path = format!("crates/{machine}/src/lib.rs");
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|line| line.trim() == attribute) {
                faults.push(format!("{path}: no {attribute}"));
            }
        }
    }
    none(&faults, "Add the attribute: it makes the compiler reject I/O in a machine.");
}

#[test]
fn machines_do_not_name_std() {
    let mut faults = Vec::new();
    for source in sources() {
        let of_machine = MACHINES.iter().any(|m| source.path.starts_with(&format!("crates/{m}/src/")));
        if !of_machine || !source.has_extension("rs") || source.is_test() {
            continue;
        }
        for (n, line) in source.code() {
            if line.contains("std::") || line.contains("extern crate std") {
                faults.push(format!("{}:{n}: {}", source.path, line.trim()));
            }
        }
    }
    none(&faults, "Use core:: or alloc::, or move what needs std to a driver.");
}

#[test]
fn machines_depend_on_pure_crates_only() {
    let mut faults = Vec::new();
    for machine in MACHINES {
        let path = format!("crates/{machine}/Cargo.toml");
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for name in dependencies(&text) {
            if !ALLOWED.contains(&name.as_str()) {
                faults.push(format!("{path}: depends on {name}"));
            }
        }
    }
    none(
        &faults,
        "A crate that does no I/O may be added to ALLOWED in this file; others belong in a driver.",
    );
}

/// Names in the tables of normal dependencies, including those of single targets.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table == "dependencies" || table.ends_with(".dependencies");
            if let Some(name) = table.strip_prefix("dependencies.") {
                names.push(name.to_owned());
            }
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let end = line.find(['=', '.', ' ']).unwrap_or(line.len());
            names.push(line[..end].to_owned());
        }
    }
    names
}

#[test]
fn manifests_are_read_as_cargo_reads_them() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\n# no\nb = \"1\"\n\
        [dependencies.c]\nversion = \"1\"\n[dev-dependencies]\nd = \"1\"\n\
        [target.'cfg(unix)'.dependencies]\ne = { version = \"1\" }\n";
    assert_eq!(dependencies(manifest), ["a", "b", "c", "e"]);
}
