//! A scanner for Rust that separates code, comments and literals. It does not check the syntax.

/// A line's parts; each has a space where others were.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub code: String,
    pub comment: String,
    /// Contents of strings and characters.
    pub literals: String,
}

/// Splits a file into lines and these into their parts.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let mut rest = text;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let is_comment = rest.starts_with("//") || rest.starts_with("/*");
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |at| at + 2),
            'r' if !is_word(before) && raw_string(rest).is_some() => raw_string(rest).unwrap_or(rest.len()),
            '"' => quoted(rest, '"'),
            '\'' if is_character(rest) => quoted(rest, '\''),
            _ => 0,
        };
        if skipped == 0 {
            match (c, lines.last_mut()) {
                ('\n', _) => lines.push(Line::default()),
                (_, Some(line)) => line.code.push(c),
                (_, None) => {}
            }
            (before, rest) = (c, &rest[c.len_utf8()..]);
            continue;
        }
        for (n, part) in rest[..skipped].split('\n').enumerate() {
            if n > 0 {
                lines.push(Line::default());
            }
            if let Some(line) = lines.last_mut() {
                let (to, other) = match is_comment {
                    true => (&mut line.comment, &mut line.literals),
                    false => (&mut line.literals, &mut line.comment),
                };
                to.push_str(part);
                other.push(' ');
                line.code.push(' ');
            }
        }
        (before, rest) = (' ', &rest[skipped..]);
    }
    lines
}

pub fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The length of a raw string.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text[1..].chars().take_while(|c| *c == '#').count();
    let end = format!("\"{}", "#".repeat(hashes));
    let body = text[1 + hashes..].strip_prefix('"')?;
    body.find(&end).map(|at| 2 + hashes + at + end.len())
}

/// The length of a literal that begins with a quote.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// True for a character, false for a lifetime.
fn is_character(text: &str) -> bool {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => true,
        (_, second) => second == Some('\''),
    }
}
