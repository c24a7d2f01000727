//! Wall-clock time, to detect servers whose clock differs.

use std::time::{SystemTime, UNIX_EPOCH};

/// A larger difference, in seconds, is logged.
const NOTABLE: u64 = 10;

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    }
}

/// The log line about the server at `address`, whose clock is `ahead` seconds ahead.
pub(crate) fn differs(address: &str, ahead: i64) -> Option<String> {
    let by = ahead.unsigned_abs();
    let how = if ahead > 0 { "ahead of" } else { "behind" };
    (by > NOTABLE).then(|| {
        format!(
            "the clock of {address} is {by} s {how} this machine's: files have the times of the server that made them; \
             set both clocks, by NTP for example"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_much_are_named() {
        assert_eq!([-10, 0, 10].map(|ahead| differs("s1:7440", ahead)), [const { None }; 3]);
        let said = [3600, -11].map(|ahead| differs("s1:7440", ahead).unwrap_or_default());
        assert!(said[0].contains("s1:7440 is 3600 s ahead of"), "{}", said[0]);
        assert!(said[1].contains("is 11 s behind"), "{}", said[1]);
    }
}
