//! Commands of the user that run between phases.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// Counters by name.
pub(crate) type Counts = BTreeMap<String, f64>;

/// Runs a shell command with a directory as its last argument; returns its output.
pub(crate) fn run(command: &str, dir: &Path) -> Result<String, Error> {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{command} \"$@\""), "sh"]).arg(dir);
    let output = shell.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(Error::doing(format!("run `{command}`")))?;
    if !output.status.success() {
        return Err(Error::Command { command: command.into(), status: output.status });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that prints counters.
pub(crate) fn count(command: &str, dir: &Path) -> Result<Counts, Error> {
    let output = run(command, dir)?;
    let counter = |line: &str| {
        let parsed =
            line.split_once(' ').and_then(|(name, value)| Some((name.to_string(), value.parse().ok()?)));
        parsed.ok_or_else(|| Error::Counter { command: command.into(), line: line.into() })
    };
    output.lines().map(counter).collect()
}

/// The difference of each counter; one that was absent before began at 0.
pub(crate) fn increases(before: &Counts, after: Counts) -> Counts {
    let increase = |(name, value)| {
        let begun = before.get(&name).copied().unwrap_or(0.0);
        (name, value - begun)
    };
    after.into_iter().map(increase).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_printed_for_a_directory() {
        let dir = Path::new("/a b");
        let counts = count("printf 'requests 3\nlength %d\n' 4; echo", dir);
        assert!(counts.is_err(), "the directory is no counter");
        let counts = count("f() { echo requests 3; echo length ${#1}; }; f", dir).unwrap();
        assert_eq!(counts, [("requests".to_string(), 3.0), ("length".to_string(), 4.0)].into());
        let before = [("requests".to_string(), 1.0)].into();
        assert_eq!(increases(&before, counts)["requests"], 2.0);
    }

    #[test]
    fn failing_command_is_reported() {
        assert!(matches!(run("exit 3;", Path::new("/")), Err(Error::Command { .. })));
    }
}
