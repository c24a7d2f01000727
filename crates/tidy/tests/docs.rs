//! The documents have no dead links.

use std::path::{Component, Path, PathBuf};

use espalier_tidy::{Source, none, root, sources};

fn documents() -> Vec<Source> {
    sources().into_iter().filter(|s| s.has_extension("md")).collect()
}

/// Lines outside code blocks.
fn prose(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    source.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of `[text](target)` within the repository, without their anchors.
fn links(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
        .collect()
}

/// `target` of a link in the document, relative to the top.
fn resolve(document: &str, target: &str) -> PathBuf {
    let mut path = Path::new(document).parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[test]
fn links_lead_to_files() {
    let mut faults = Vec::new();
    for document in documents() {
        for (n, line) in prose(&document) {
            for target in links(line) {
                if !root().join(resolve(&document.path, target)).exists() {
                    faults.push(format!("{}:{n}: {target}", document.path));
                }
            }
        }
    }
    none(&faults, "The file was moved or never written: correct the link.");
}

/// Paths in backticks, such as `crates/meta/src/ops/create.rs`, name existing files.
#[test]
fn paths_in_backticks_exist() {
    let mut faults = Vec::new();
    for document in documents().iter().filter(|d| d.path == "ARCHITECTURE.md" || d.path.starts_with("docs/"))
    {
        for (n, line) in prose(document) {
            for span in line.split('`').skip(1).step_by(2) {
                let ours = ["crates/", "scripts/", "docs/"].iter().any(|top| span.starts_with(top));
                // `{a,b}`, `*`, `<name>`, `NAME.rs` and `...` stand for several files.
                let pattern = span.contains(['{', '*', '<', ' ', '|']) || span.contains("...");
                let name = span.split([':', '#']).next().unwrap_or_default();
                if ours && !pattern && !span.contains("NAME") && !root().join(name).exists() {
                    faults.push(format!("{}:{n}: {span}", document.path));
                }
            }
        }
    }
    none(&faults, "The file does not exist: correct its name.");
}

#[test]
fn every_document_is_linked() {
    let documents = documents();
    let mut linked = Vec::new();
    for document in &documents {
        for (_, line) in prose(document) {
            let targets = links(line).into_iter().map(|target| resolve(&document.path, target));
            linked.extend(targets.filter(|target| *target != Path::new(&document.path)));
        }
    }
    let starts = ["README.md", "ARCHITECTURE.md"];
    if !documents.iter().any(|d| starts.contains(&d.path.as_str())) {
        return; // no documents
    }
    let faults: Vec<String> = documents
        .iter()
        .filter(|d| d.path.starts_with("docs/") && !linked.iter().any(|l| l == Path::new(&d.path)))
        .map(|d| d.path.clone())
        .collect();
    none(&faults, "Link it from README.md, ARCHITECTURE.md or another document.");
}

#[test]
fn links_are_found() {
    assert_eq!(links("a [b](c.md#d) and [e](https://f) and [g](#h) [i](../j/)"), ["c.md", "../j/"]);
    assert_eq!(resolve("docs/a.md", "../crates/x"), Path::new("crates/x"));
}
