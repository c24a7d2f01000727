//! Names are the field's terms, one for each thing; comments keep to a readable width.

use std::collections::{BTreeMap, BTreeSet};

use espalier_tidy::rust::{is_word, lines};
use espalier_tidy::{Source, none, sources};

/// Words that no identifier is made of, and what to write instead.
const RETIRED: &[(&str, &str)] = &[
    ("told", "reply, report, notify, or `Actions`, `ReadSet`, `Observed`: by its meaning"),
    ("untold", "unreported, unsent, unanswered"),
    ("tell", "the exact verb: return, report, notify, invalidate, revoke, announce"),
    ("tells", "the exact verb: returns, reports, notifies"),
    ("alone", "exclusive, sole_holder"),
    ("door", "frontend"),
    ("errand", "peer_request, BackgroundJob"),
    ("errands", "peer_requests, background_work"),
    ("dealings", "coordinator, transaction"),
    ("sighting", "remote_entry"),
    ("heir", "dependent"),
    ("heirs", "dependents"),
    ("bequeath", "update_dependents, inherit"),
    ("bequeaths", "changes_dependents"),
    ("promise", "prepare_grant, grant"),
    ("promised", "granted, durable_bound"),
    ("roomless", "waiting_for_space"),
    ("wish", "policy_attribute"),
    ("proven", "TokenKind"),
    ("proof", "reclaim_token"),
    ("tally", "usage_deltas, Summary, TopTable"),
    ("tallies", "usage_deltas"),
    ("glance", "try_stat"),
    ("glances", "try_stat"),
    ("remarks", "warnings"),
    ("sabotage", "mutant"),
    ("saboteur", "Mutator"),
    ("parked", "pending, PendingCall"),
    ("quietly", "delegated"),
    ("bare", "no_metafile"),
    ("unsettled", "provisional"),
    ("fates", "outcomes"),
    ("wander", "random_calls"),
];

/// As above, of identifiers as a whole: their words are good in others.
const RETIRED_WHOLE: &[(&str, &str)] = &[
    ("Asked", "IncomingCall, RecordedRequest, PeerQuestion"),
    ("Came", "DataEvent, DataCallEvent"),
    ("Course", "CallState"),
    ("course", "call_state"),
    ("lead_on", "resume_call"),
    ("go_on", "advance, resume"),
    ("Heritage", "Inherited"),
    ("Home", "Location"),
    ("ITSELF", "INTERNAL_CLIENT"),
    ("Kept", "PersistedSession, Renewal, by its meaning"),
    ("Supply", "NumberPool"),
    ("Outcome", "what it is the outcome of: CallOutcome, LockOutcome, CaseResult"),
    ("Front", "SessionLayer"),
    ("is_told", "is_acknowledged"),
    ("unclaim", "lift_barriers"),
];

/// Identifiers with retired words that are left. It may only shrink.
const RETIRED_LEFT: usize = 0;

/// Type names that more than two crates define. It may only shrink: add no name, remove those that
/// are gone.
const SHARED_NAMES: &[&str] = &[];

const WIDTH: usize = 100;

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c| !is_word(c)).filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

/// A file's code without comments and literals, line by line.
fn code(source: &Source) -> Vec<String> {
    lines(&source.text).into_iter().map(|line| line.code).collect()
}

/// `SessionLayer` and `session_layer` as `session`, `layer`.
fn words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' || (was_lower && c.is_ascii_uppercase()) {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c != '_', words.last_mut()) {
            word.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
    }
    words
}

/// The word to write instead of an identifier.
fn instead_of(identifier: &str) -> Option<&'static str> {
    let whole = RETIRED_WHOLE.iter().find(|(name, _)| *name == identifier);
    let part = || {
        let words = words(identifier);
        RETIRED.iter().find(|(word, _)| words.iter().any(|it| it == word))
    };
    whole.or_else(part).map(|(_, instead)| *instead)
}

/// The Rust of the repository, without the lists above.
fn rust() -> Vec<Source> {
    sources()
        .into_iter()
        .filter(|it| it.has_extension("rs") && !it.path.starts_with("crates/tidy/"))
        .collect()
}

fn only_fewer(faults: &[String], left: usize, advice: &str) {
    if faults.len() > left {
        none(faults, &format!("{left} of these were there before. {advice}"));
    }
}

#[test]
fn retired_words_are_gone() {
    let mut faults = Vec::new();
    for source in rust() {
        for (n, line) in code(&source).iter().enumerate() {
            let names: BTreeSet<&str> = identifiers(line).collect();
            for (name, instead) in names.into_iter().filter_map(|name| Some((name, instead_of(name)?))) {
                faults.push(format!("{}:{}: {name}: write {instead}", source.path, n + 1));
            }
        }
    }
    only_fewer(&faults, RETIRED_LEFT, "One thing has one word: the field's.");
}

#[test]
fn a_type_name_says_what_it_is_of() {
    let mut places: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in rust() {
        let Some(krate) = source.path.strip_prefix("crates/").and_then(|path| path.split('/').next()) else {
            continue;
        };
        for (n, line) in code(&source).iter().enumerate() {
            let mut before = "";
            for name in identifiers(line) {
                let is_type = matches!(before, "struct" | "enum" | "trait" | "union")
                    || (before == "type" && line.starts_with(|c: char| !c.is_whitespace()));
                if is_type {
                    let crates = places.entry(name.to_owned()).or_default();
                    crates.entry(krate.to_owned()).or_insert_with(|| format!("{}:{}", source.path, n + 1));
                }
                before = name;
            }
        }
    }
    places.retain(|_, crates| crates.len() > 2);
    let faults: Vec<String> = places
        .iter()
        .filter(|(name, _)| !SHARED_NAMES.contains(&name.as_str()))
        .map(|(name, crates)| format!("{name}: {}", crates.values().cloned().collect::<Vec<_>>().join(", ")))
        .collect();
    none(&faults, "Name what it is a place, an outcome, an entry of: more than two crates define this.");
    let gone: Vec<String> =
        SHARED_NAMES.iter().filter(|name| !places.contains_key(**name)).map(ToString::to_string).collect();
    none(&gone, "These are not shared any more: take them out of SHARED_NAMES.");
}

#[test]
fn tests_are_named_by_behaviour() {
    let mut faults = Vec::new();
    for source in rust() {
        let lines = code(&source);
        for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.trim_start().starts_with("#[")) {
            let is_test = ["#[test", "#[tokio::test"].iter().any(|mark| line.trim_start().starts_with(mark));
            let below = lines.iter().enumerate().skip(n + 1).find(|(_, it)| it.contains("fn "));
            let (true, Some((at, function))) = (is_test, below) else { continue };
            let name = function.split("fn ").nth(1).unwrap_or_default();
            if name.starts_with("what_") || name.starts_with("who_") || name.starts_with("whoever_") {
                let name = identifiers(name).next().unwrap_or_default();
                faults.push(format!("{}:{}: {name}", source.path, at + 1));
            }
        }
    }
    none(&faults, "State the behaviour: `rename_over_open_file_keeps_its_bytes`.");
}

#[test]
fn comments_are_narrow() {
    let mut faults = Vec::new();
    for source in rust() {
        for (n, line) in source.lines().filter(|(_, line)| line.trim_start().starts_with("//")) {
            let width = line.chars().count();
            if width > WIDTH {
                faults.push(format!("{}:{n}: {width} columns", source.path));
            }
        }
    }
    none(&faults, "Break comment lines at 100 columns, or say less.");
}

#[test]
fn identifiers_are_found() {
    let text = "let told = r#\"door\"#; // errand\nlet c = 'a'; f::<'a>(\"x \\\" tally\", SessionLayer)\n";
    let code = code(&Source { path: "x.rs".into(), text: text.into() });
    assert_eq!(identifiers(&code[0]).collect::<Vec<_>>(), ["let", "told"]);
    assert_eq!(identifiers(&code[1]).collect::<Vec<_>>(), ["let", "c", "f", "a", "SessionLayer"]);
    assert_eq!(words("SessionLayer"), ["session", "layer"]);
    assert_eq!(words("is_told_OF"), ["is", "told", "of"]);
    assert!(instead_of("FuseDoor").is_some() && instead_of("indoors").is_none());
}
