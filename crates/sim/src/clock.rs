//! The clocks of nodes, which are not quite right.

use espalier_proto::Time;
use rand::Rng;
use serde::Deserialize;

use crate::random::Random;
use crate::time::Nanos;

/// How wrong clocks are: each by an amount of its own.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockSettings {
    /// The time of day is wrong by at most so much, either way.
    pub skew: Option<Nanos>,
    /// A clock is too fast or too slow by at most so many millionths.
    pub drift_ppm: f64,
}

/// A node's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time of day when the run begins, in nanoseconds since 1970.
    start: u64,
    /// Nanoseconds that it shows in one.
    speed: f64,
}

/// When runs begin, about: in 2020.
const BEGINNING: u64 = 1_577_836_800_000_000_000;

impl Clock {
    pub fn new(settings: &ClockSettings, random: &mut Random) -> Self {
        let skew = settings.skew.unwrap_or_default().0;
        let start = BEGINNING - skew + random.random_range(0..=2 * skew);
        let speed = 1.0 + random.random_range(-1.0..=1.0) * settings.drift_ppm / 1e6;
        Self { start, speed }
    }

    /// The time of day that it shows.
    pub fn time(&self, now: Nanos) -> Time {
        let nanos = self.start + self.shown(now).0;
        Time::new((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as u32)
    }

    /// What has passed by it since the run began.
    pub fn shown(&self, now: Nanos) -> Nanos {
        Nanos((now.0 as f64 * self.speed) as u64)
    }

    /// How long it really takes until it has shown so much.
    pub fn real(&self, shown: Nanos) -> Nanos {
        Nanos((shown.0 as f64 / self.speed).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Seed;

    #[test]
    fn clocks_are_wrong_within_bounds() {
        let settings = ClockSettings { skew: Some(Nanos::from_millis(2000)), drift_ppm: 1000.0 };
        let mut random = Seed(3).random("clocks", 0);
        let clocks: Vec<Clock> = (0..50).map(|_| Clock::new(&settings, &mut random)).collect();
        let hour = Nanos::from_millis(3_600_000);
        for clock in &clocks {
            let seconds = clock.time(Nanos::ZERO).secs - 1_577_836_800;
            assert!((-2..=2).contains(&seconds), "{seconds}");
            assert!(clock.shown(hour).0.abs_diff(hour.0) <= 3_600_000_001);
            assert!(clock.shown(clock.real(hour)).0.abs_diff(hour.0) <= 2);
        }
        assert!(clocks.iter().any(|clock| clock.shown(hour) > hour));
        assert!(clocks.iter().any(|clock| clock.shown(hour) < hour));
        let right = Clock::new(&ClockSettings::default(), &mut random);
        assert_eq!(right.time(hour), Time::new(1_577_836_800 + 3600, 0));
    }
}
