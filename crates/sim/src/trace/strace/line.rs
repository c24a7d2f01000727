//! Parser for lines of strace logs.

use std::collections::BTreeMap;

use crate::Nanos;
use crate::trace::{BadLine, lines};

/// A system call that has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) line: u64,
    pub(super) pid: u32,
    pub(super) begun: Nanos,
    pub(super) ended: Nanos,
    pub(super) name: String,
    /// The text from the first argument on.
    rest: String,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StraceEvent {
    Call(Call),
    Exit { pid: u32 },
}

/// Return value of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    Value(i64),
    Errno(String),
    /// The call did not return.
    Nothing,
}

/// Splits a line into process, time since 1970, and rest. Without `-f` the process is 0.
fn split(line: &str) -> Option<(u32, Nanos, &str)> {
    let line = line.strip_prefix("[pid").map_or(line, |rest| rest.trim_start());
    let (first, rest) = line.split_once([' ', ']'])?;
    if let Some(time) = time(first) {
        return Some((0, time, rest.trim_start()));
    }
    let (second, rest) = rest.trim_start().split_once(' ')?;
    Some((first.parse().ok()?, time(second)?, rest.trim_start()))
}

/// Parses seconds with a fraction, without rounding.
fn time(text: &str) -> Option<Nanos> {
    let (secs, fraction) = text.split_once('.')?;
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(secs) || !is_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos = fraction.parse::<u64>().ok()? * 10u64.pow(9 - fraction.len() as u32);
    Some(Nanos(secs.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanos)?))
}

pub(in crate::trace) fn is_line(line: &str) -> bool {
    split(line).is_some()
}

/// Parses a log. Calls are in the order of their start; calls that never returned are omitted.
pub(super) fn events(text: &str) -> Result<Vec<StraceEvent>, BadLine> {
    let mut events = Vec::new();
    // Calls that have not returned: their indices in the events.
    let mut unfinished: BTreeMap<u32, usize> = BTreeMap::new();
    for (line, text) in lines(text) {
        let bad = |message: &str| BadLine::new(line, message);
        let (pid, now, rest) = split(text).ok_or_else(|| {
            bad("it does not begin with a process and a time: use `strace -f -ttt -T -y -o FILE`")
        })?;
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let (_, tail) = resumed.split_once(" resumed>").ok_or_else(|| bad("no call is resumed"))?;
            let at = unfinished.remove(&pid).ok_or_else(|| bad("the call that is resumed has not begun"))?;
            if let Some(StraceEvent::Call(call)) = events.get_mut(at) {
                call.rest.push_str(tail);
                call.ended = now;
            }
        } else if rest.starts_with("+++") {
            events.push(StraceEvent::Exit { pid });
        } else if !rest.starts_with("---") {
            let (name, rest) = rest.split_once('(').ok_or_else(|| bad("no call is named"))?;
            let head = rest.strip_suffix("<unfinished ...>");
            let (name, rest) = (name.to_string(), head.unwrap_or(rest).to_string());
            let mut call = Call { line, pid, begun: now, ended: now, name, rest };
            match head {
                Some(_) => drop(unfinished.insert(pid, events.len())),
                None => call.ended = now + call.took(),
            }
            events.push(StraceEvent::Call(call));
        }
    }
    let never: Vec<usize> = unfinished.into_values().collect();
    let mut at = 0;
    events.retain(|_| {
        at += 1;
        !never.contains(&(at - 1))
    });
    Ok(events)
}

impl Call {
    pub(super) fn bad(&self, message: impl std::fmt::Display) -> BadLine {
        BadLine::new(self.line, format!("{}: {message}", self.name))
    }

    /// Duration by `-T`; 0 without it.
    fn took(&self) -> Nanos {
        let took = self.rest.trim_end().strip_suffix('>').and_then(|rest| rest.rsplit_once('<'));
        took.and_then(|(_, took)| time(took)).unwrap_or_default()
    }

    /// The arguments and the return value.
    pub(super) fn parse(&self) -> Result<(Vec<&str>, Returned), BadLine> {
        let (arguments, end) = arguments(&self.rest).ok_or_else(|| self.bad("its arguments do not end"))?;
        let returned = self.rest[end..].trim_start().strip_prefix('=');
        let returned = returned.ok_or_else(|| self.bad("it does not say what it returned"))?.trim_start();
        let mut words = returned.split_whitespace();
        let value = words.next().unwrap_or_default();
        let value = value.split('<').next().unwrap_or_default();
        if value == "?" {
            return Ok((arguments, Returned::Nothing));
        }
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|number| number as i64),
            None => value.parse::<i64>().ok(),
        };
        let number = number.ok_or_else(|| self.bad(format!("it returned `{value}`, which is no number")))?;
        if number != -1 {
            return Ok((arguments, Returned::Value(number)));
        }
        let errno = words.next().filter(|word| word.starts_with('E'));
        Ok((arguments, Returned::Errno(errno.ok_or_else(|| self.bad("it does not say which error"))?.into())))
    }
}

/// Arguments up to the closing parenthesis, and the index after it.
fn arguments(text: &str) -> Option<(Vec<&str>, usize)> {
    let bytes = text.as_bytes();
    let (mut all, mut begin, mut depth, mut at) = (Vec::new(), 0, 0, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at += 1;
                while *bytes.get(at)? != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => at += text[at..].find("*/")? + 1,
            // Annotation of a descriptor.
            b'<' if at > 0 && (bytes[at - 1].is_ascii_digit() || text[..at].ends_with("AT_FDCWD")) => {
                at += text[at..].find('>')?;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' if depth == 0 => {
                let last = text[begin..at].trim();
                if !last.is_empty() || !all.is_empty() {
                    all.push(last);
                }
                return Some((all, at + 1));
            }
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                all.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The contents of quotes. Shortened strings end with three dots.
pub(super) fn unquote(text: &str) -> Option<Vec<u8>> {
    unescape(text.strip_prefix('"')?.strip_suffix('"')?)
}

/// Decodes C escapes.
pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes().peekable();
    let mut all = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            all.push(byte);
            continue;
        }
        all.push(match bytes.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 0x0b,
            b'f' => 0x0c,
            b'x' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            digit @ b'0'..=b'7' => {
                let mut number = u32::from(digit - b'0');
                for _ in 0..2 {
                    if let Some(digit) = bytes.next_if(|byte| (b'0'..=b'7').contains(byte)) {
                        number = number * 8 + u32::from(digit - b'0');
                    }
                }
                u8::try_from(number).ok()?
            }
            other => other,
        });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> (Vec<String>, Returned) {
        let events = events(line).expect("a good line");
        let [StraceEvent::Call(call)] = events.as_slice() else { panic!("{events:?}") };
        let (arguments, returned) = call.parse().expect("a good call");
        (arguments.into_iter().map(String::from).collect(), returned)
    }

    #[test]
    fn arguments_may_hold_anything() {
        let (arguments, returned) = parse(
            r#"7 1.5 utimensat(5</a,b>, "x\")\\", [UTIME_OMIT, {tv_sec=1, tv_nsec=0} /* (2026, it is */], 0) = 0 <0.1>"#,
        );
        assert_eq!(
            arguments,
            ["5</a,b>", r#""x\")\\""#, "[UTIME_OMIT, {tv_sec=1, tv_nsec=0} /* (2026, it is */]", "0"]
        );
        assert_eq!(returned, Returned::Value(0));
        assert_eq!(unquote(&arguments[1]), Some(br#"x")\"#.to_vec()));
        assert_eq!(unquote(r#""\303\251\x41\n""#), Some("éA\n".into()));
        assert_eq!(unquote(r#""cut"..."#), None);
    }

    #[test]
    fn calls_go_on_on_later_lines() {
        let log = "7 1.000001 openat(AT_FDCWD</>, \"a\", O_RDONLY <unfinished ...>\n\
                   8 1.5 exit_group(0) = ?\n8 1.5 +++ exited with 0 +++\n7 1.6 --- SIGCHLD {si_signo=SIGCHLD} ---\n\
                   7 2.0 <... openat resumed>) = -1 ENOENT (No such file or directory) <0.9>\n7 2.5 read(3, <unfinished ...>\n";
        let events = events(log).expect("a good log");
        assert_eq!(events.len(), 3);
        let StraceEvent::Call(call) = &events[0] else { panic!("{events:?}") };
        assert_eq!((call.begun, call.ended), (Nanos(1_000_001_000), Nanos(2_000_000_000)));
        let (arguments, returned) = call.parse().expect("a good call");
        assert_eq!((arguments.len(), returned), (3, Returned::Errno("ENOENT".into())));
        assert_eq!(events[2], StraceEvent::Exit { pid: 8 });
    }

    #[test]
    fn bad_lines_are_named() {
        for (log, words) in [
            ("7 1.5 read(3) = 0\nnonsense\n", "line 2 it does not begin"),
            ("7 1.5 nonsense", "line 1 no call"),
            ("7 1.5 <... read resumed>) = 0", "line 1 the call that is resumed"),
        ] {
            let error = events(log).expect_err("a bad line");
            let error = format!("line {} {}", error.line, error.message);
            assert!(error.contains(words), "{error}");
        }
        for (line, words) in [
            ("7 1.5 read(3, \"x", "do not end"),
            ("7 1.5 read(3)", "returned"),
            ("7 1.5 read(3) = many", "`many`"),
            ("7 1.5 read(3) = -1", "which error"),
        ] {
            let events = events(line).expect("lines as calls have them");
            let [StraceEvent::Call(call)] = events.as_slice() else { panic!("{events:?}") };
            let error = call.parse().expect_err("a bad call");
            assert!(error.message.contains(words), "{error:?}");
        }
    }
}
