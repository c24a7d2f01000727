//! Comments, documents and scripts use the field's terms. `names.rs` checks identifiers.

use espalier_tidy::rust::{is_word, lines};
use espalier_tidy::{Source, none, sources};

/// Words and phrases, in lower case, and the words to use.
const RETIRED: &[(&str, &str)] = &[
    ("told", "the exact verb: returned, reported, notified, distinguished"),
    ("untold", "unreported"),
    ("tell", "the exact verb: return, report, notify, invalidate, revoke, distinguish"),
    ("tells", "the exact verb: returns, reports, notifies, distinguishes"),
    ("acknowledged early", "acknowledged by write-back"),
    ("answered early", "answered by write-back"),
    ("alone", "exclusive, exclusively; only; separately"),
    ("quietly", "delegated, without a message"),
    ("quiet opening", "delegated open"),
    ("keep behind", "blocked on"),
    ("keeps behind", "blocked on"),
    ("kept", "by its meaning: renewed, deferred, persisted, preserved, retained"),
    ("bare", "no-metafile, no_metafile"),
    ("door", "frontend"),
    ("doors", "frontends"),
    ("errand", "peer request, background work"),
    ("errands", "peer requests, background work"),
    ("dealings", "transaction"),
    ("elsewhere", "remote, at another rank"),
    ("sighting", "remote dentry"),
    ("sightings", "remote dentries"),
    ("heir", "dependent"),
    ("heirs", "dependents"),
    ("bequeath", "inherit"),
    ("bequeaths", "is inherited by"),
    ("bequeathed", "inherited"),
    ("promise", "guarantee; prepare a grant"),
    ("promises", "guarantees; prepares a grant"),
    ("promised", "guaranteed; granted"),
    ("settle", "finalise"),
    ("settles", "finalises"),
    ("settled", "finalised"),
    ("unsettled", "provisional"),
    ("watched", "size-dirty"),
    ("roomless", "waiting for journal space"),
    ("wish", "policy attribute"),
    ("wishes", "policy attributes"),
    ("proof", "reclaim token"),
    ("proven", "with a valid token"),
    ("tally", "usage deltas"),
    ("tallies", "usage deltas"),
    ("glance", "try-stat"),
    ("glances", "try-stats"),
    ("remarks", "warnings"),
    ("sabotage", "mutant"),
    ("saboteur", "mutant"),
    ("parked", "pending"),
    ("whoever", "the caller, the client"),
    ("he", "the caller, the client, it"),
    ("him", "the caller, the client, it"),
    ("his", "the caller's, the client's, its"),
    ("shall", "present tense"),
    ("lest", "so that ... not"),
    ("but for", "except"),
    ("as ever", "unchanged"),
    ("it is so", "the statement itself"),
    ("no longer", "present tense; history belongs in CHANGELOG.md"),
    ("any more", "present tense; history belongs in CHANGELOG.md"),
];

/// Words that Rust's strings must not contain either.
const IN_STRINGS: &[&str] = &["told", "untold", "tell", "tells", "door", "whoever"];

fn is_in(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The retired words in a text, with their replacements.
fn retired(text: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let text = text.to_lowercase();
    RETIRED.iter().copied().filter(move |(word, _)| is_in(&text, word))
}

/// Files other than Rust that are checked completely. CHANGELOG.md may describe the past.
fn is_prose(source: &Source) -> bool {
    let is_document = source.has_extension("md") && source.path != "CHANGELOG.md";
    let is_program = matches!(source.path.as_str(), "Makefile" | ".ci/run");
    is_document || is_program || source.has_extension("sh") || source.has_extension("toml")
}

fn faults_in(source: &Source) -> Vec<String> {
    let mut faults = Vec::new();
    let mut add = |n: usize, (word, instead): (&str, &str)| {
        faults.push(format!("{}:{n}: `{word}`: write {instead}", source.path));
    };
    if source.has_extension("rs") {
        for (n, line) in lines(&source.text).iter().enumerate() {
            retired(&line.comment).for_each(|found| add(n + 1, found));
            let in_strings = retired(&line.literals).filter(|(word, _)| IN_STRINGS.contains(word));
            in_strings.for_each(|found| add(n + 1, found));
        }
    } else if is_prose(source) {
        for (n, line) in source.lines() {
            retired(line).for_each(|found| add(n, found));
        }
    }
    faults
}

#[test]
fn prose_has_no_retired_words() {
    // This crate lists them.
    let checked = sources().into_iter().filter(|source| !source.path.starts_with("crates/tidy/"));
    let faults: Vec<String> = checked.flat_map(|source| faults_in(&source)).collect();
    none(&faults, "One thing has one word: the field's.");
}

#[test]
fn retired_words_are_found() {
    let faults = |path: &str, text: &str| faults_in(&Source { path: path.into(), text: text.into() }).len();
    assert_eq!(faults("x.rs", "let alone = 1; // The server is\n/// told, but for \"kept\" ones.\n"), 3);
    assert_eq!(faults("x.rs", "fail(\"alone, he tells\"); // a door_ and \"foretold\"\n"), 1);
    assert_eq!(faults("scripts/x.sh", "told() { echo \"$tell\"; }\n"), 2);
    assert_eq!(faults("docs/x.md", "Told by\n`Whoever`\n"), 2);
    assert_eq!(faults("CHANGELOG.md", "no longer\n"), 0);
}
