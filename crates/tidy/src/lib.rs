//! Shared code of the lints in `tests/`: the repository's files, and reports of several faults at
//! once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub mod rust;

/// The repository's top directory.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(|p| p.join("rustfmt.toml").is_file()).unwrap_or(here).to_path_buf()
}

/// A text file of the repository.
pub struct Source {
    /// Path relative to the top, with `/`.
    pub path: String,
    pub text: String,
}

impl Source {
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|e| e == extension)
    }

    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.contains("/benches/") || self.path.ends_with("tests.rs")
    }

    /// Line numbers and lines.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, line)| (n + 1, line))
    }

    /// Lines of Rust code outside tests: no comments, nothing after `#[cfg(test)]`, which comes
    /// last in a file.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines()
            .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// Every text file that git tracks or would add.
pub fn sources() -> Vec<Source> {
    let root = root();
    let listed = Command::new("git")
        .arg("-C")
        .arg(&root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output();
    let paths: Vec<String> = match listed {
        Ok(output) if output.status.success() => {
            output.stdout.split(|b| *b == 0).map(|p| String::from_utf8_lossy(p).into_owned()).collect()
        }
        _ => walk(&root, &root), // unpacked releases are not git repositories
    };
    let mut sources: Vec<Source> = paths
        .into_iter()
        .filter(|path| !path.is_empty() && !path.ends_with(".lock"))
        .filter_map(|path| Some(Source { text: fs::read_to_string(root.join(&path)).ok()?, path }))
        .collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path);
    sources
}

fn walk(root: &Path, at: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if path.is_dir() && !path.is_symlink() {
            if !hidden && entry.file_name() != "target" {
                paths.extend(walk(root, &path));
            }
        } else if let Ok(relative) = path.strip_prefix(root) {
            paths.push(relative.to_string_lossy().into_owned());
        }
    }
    paths
}

/// Fails with all faults and a sentence on how to correct them.
///
/// # Panics
/// If there are faults, since tests call it.
pub fn none(faults: &[String], advice: &str) {
    assert!(faults.is_empty(), "{} faults:\n  {}\n{advice}", faults.len(), faults.join("\n  "));
}
