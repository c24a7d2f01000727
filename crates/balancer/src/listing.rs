//! The layout of the thesis' listings: sections of code to inject, each below a heading.
//!
//! `when` is an open `if`, `howmuch` a list and no statement. The translation to functions puts
//! them into the headings' lines, so that errors name the lines of the original.

use std::borrow::Cow;

/// A heading: the words after `--`, the text before its section, and the text after it.
struct Heading {
    words: &'static [&'static str],
    opens: &'static str,
    closes: &'static str,
}

const HEADINGS: [Heading; 5] = [
    Heading {
        words: &["metadata load"],
        opens: "function metaload() local metaload",
        closes: "return metaload end",
    },
    Heading {
        words: &["metadata server load"],
        opens: "function mdsload(i) local mdsload",
        closes: "return mdsload end",
    },
    Heading { words: &["when policy"], opens: "function when()", closes: "return true end return false end" },
    Heading { words: &["where policy", "balancer where policy"], opens: "function where()", closes: "end" },
    Heading { words: &["howmuch policy"], opens: "howmuch =", closes: "" },
];

fn heading(line: &str) -> Option<&'static Heading> {
    let words = line.trim().strip_prefix("--")?.trim().to_lowercase();
    HEADINGS.iter().find(|heading| heading.words.contains(&words.as_str()))
}

/// True if the section below `-- When policy` ends with the open `if`, as in the thesis only.
fn is_listing(text: &str) -> bool {
    let when = |line: &&str| heading(line).is_some_and(|heading| heading.opens == "function when()");
    let section = text.lines().skip_while(|line| !when(line)).skip(1);
    let code = section.take_while(|line| heading(line).is_none()).filter(|line| !line.trim().is_empty());
    code.last().is_some_and(|line| line.trim_end().ends_with("then"))
}

/// The policy as Lua functions: unchanged if it is not laid out as a listing.
pub(crate) fn to_functions(text: &str) -> Cow<'_, str> {
    if !is_listing(text) {
        return Cow::Borrowed(text);
    }
    let (mut lines, mut closes) = (Vec::new(), "");
    for line in text.lines() {
        if let Some(heading) = heading(line) {
            lines.push(format!("{closes} {}", heading.opens));
            closes = heading.closes;
        } else {
            lines.push(call_functions(line));
        }
    }
    lines.push(closes.to_owned());
    Cow::Owned(lines.join("\n"))
}

/// Lets `max(` and `min(` be calls although a variable has the same name, as in Listing 4.
fn call_functions(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for (at, c) in line.char_indices() {
        let is_call = line[at..].starts_with("max(") || line[at..].starts_with("min(");
        let is_word = line[..at].ends_with(|before: char| before.is_alphanumeric() || "_.:".contains(before));
        if is_call && !is_word {
            text.push_str("math.");
        }
        text.push(c);
    }
    text
}
