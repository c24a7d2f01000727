use std::time::{SystemTime, UNIX_EPOCH};

use espalier_proto::Time;

/// The wall clock.
pub fn now() -> Time {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Time::new(since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => Time::new(-(before.duration().as_secs() as i64), 0),
    }
}
