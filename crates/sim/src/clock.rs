//! Clocks of nodes with limited accuracy.

use espalier_proto::Time;
use rand::Rng;
use serde::Deserialize;

use crate::random::Random;
use crate::time::Nanos;

/// Accuracy of clocks; each node draws its own error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClockSettings {
    /// Largest error of the time of day, in both directions.
    pub skew: Option<Nanos>,
    /// Largest error of the rate, in millionths.
    pub drift_ppm: f64,
}

/// A node's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Displayed time of day at the start of the run, in nanoseconds since 1970.
    start: u64,
    /// Displayed nanoseconds per real nanosecond.
    speed: f64,
}

/// True time of day at the start of a run: in 2020.
const BEGINNING: u64 = 1_577_836_800_000_000_000;

impl Clock {
    pub fn new(settings: &ClockSettings, random: &mut Random) -> Self {
        let skew = settings.skew.unwrap_or_default().0;
        let start = BEGINNING - skew + random.random_range(0..=2 * skew);
        let speed = 1.0 + random.random_range(-1.0..=1.0) * settings.drift_ppm / 1e6;
        Self { start, speed }
    }

    /// The displayed time of day.
    pub fn time(&self, now: Nanos) -> Time {
        let nanos = self.start + self.shown(now).0;
        Time::new((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as u32)
    }

    /// Displayed time since the start of the run.
    pub fn shown(&self, now: Nanos) -> Nanos {
        Nanos((now.0 as f64 * self.speed) as u64)
    }

    /// Real time until the clock has advanced by `shown`.
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
