//! Distributions of times.

use std::fmt;

use rand::Rng;
use rand_distr::{Distribution as _, Exp1, StandardNormal};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::quantity::parse_time;
use crate::random::Random;
use crate::time::Nanos;

/// A distribution of times. In a scenario: `"50 us"`, `{ normal = ["0.378 ms", "0.025 ms"] }` and
/// so on.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shape {
    Constant(Nanos),
    /// Mean and standard deviation; negative values become 0.
    Normal(Nanos, Nanos),
    /// Lower and upper bound.
    Uniform(Nanos, Nanos),
    /// Mean.
    Exponential(Nanos),
    /// Measured quantiles, ascending at equal steps of probability, from minimum to maximum.
    Quantiles(Vec<Nanos>),
}

/// A distribution of times.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution(Shape);

impl Distribution {
    /// Always zero.
    pub const ZERO: Self = Self::constant(Nanos::ZERO);

    pub const fn constant(time: Nanos) -> Self {
        Self(Shape::Constant(time))
    }

    /// Normal distribution; negative values become 0.
    pub const fn normal(mean: Nanos, deviation: Nanos) -> Self {
        Self(Shape::Normal(mean, deviation))
    }

    pub const fn uniform(low: Nanos, high: Nanos) -> Self {
        Self(Shape::Uniform(low, high))
    }

    pub const fn exponential(mean: Nanos) -> Self {
        Self(Shape::Exponential(mean))
    }

    pub fn sample(&self, random: &mut Random) -> Nanos {
        let scaled = |time: Nanos, factor: f64| time.0 as f64 * factor;
        let nanos = match &self.0 {
            Shape::Constant(time) => return *time,
            Shape::Normal(mean, deviation) => {
                let standard: f64 = StandardNormal.sample(random);
                mean.0 as f64 + scaled(*deviation, standard)
            }
            Shape::Uniform(low, high) => return Nanos(random.random_range(low.0..=high.0)),
            Shape::Exponential(mean) => scaled(*mean, Exp1.sample(random)),
            Shape::Quantiles(times) => {
                let place = random.random::<f64>() * (times.len() - 1) as f64;
                let (low, high) = (times[place as usize], times[(place as usize + 1).min(times.len() - 1)]);
                low.0 as f64 + scaled(high - low, place.fract())
            }
        };
        // The cast maps negative values to 0.
        Nanos(nanos.round() as u64)
    }

    pub fn mean(&self) -> Nanos {
        match &self.0 {
            Shape::Constant(time) | Shape::Normal(time, _) | Shape::Exponential(time) => *time,
            Shape::Uniform(low, high) => Nanos(low.0 / 2 + high.0 / 2),
            Shape::Quantiles(times) => {
                let pairs = times.windows(2).map(|pair| (pair[0].0 + pair[1].0) as f64 / 2.0);
                Nanos((pairs.sum::<f64>() / (times.len() - 1) as f64).round() as u64)
            }
        }
    }

    fn check(shape: Shape) -> Result<Self, &'static str> {
        match &shape {
            Shape::Uniform(low, high) if low > high => {
                Err("a uniform distribution goes from the less to the more")
            }
            Shape::Quantiles(times) if times.len() < 2 => Err("quantiles are two times at least"),
            Shape::Quantiles(times) if !times.is_sorted() => Err("quantiles are ascending"),
            _ => Ok(Self(shape)),
        }
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeOrShape;

        impl<'de> Visitor<'de> for TimeOrShape {
            type Value = Distribution;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a time such as \"50 us\", or a table such as { normal = [\"0.378 ms\", \"0.025 ms\"] }, \
                     { uniform = [..] }, { exponential = .. } or { quantiles = [..] }",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Distribution, E> {
                let time = parse_time(text)
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))?;
                Ok(Distribution::constant(time))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Distribution, A::Error> {
                let shape = Shape::deserialize(MapAccessDeserializer::new(map))?;
                Distribution::check(shape).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(TimeOrShape)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Seed;

    #[derive(Debug, serde::Deserialize)]
    struct One {
        it: Distribution,
    }

    fn parse(text: &str) -> Result<Distribution, String> {
        toml::from_str::<One>(&format!("it = {text}")).map(|one| one.it).map_err(|error| error.to_string())
    }

    #[test]
    fn samples_have_configured_mean() {
        for text in [
            "\"0.3 ms\"",
            "{ constant = \"0.3 ms\" }",
            "{ normal = [\"0.378 ms\", \"0.025 ms\"] }",
            "{ uniform = [\"0.06 ms\", \"0.09 ms\"] }",
            "{ exponential = \"1 ms\" }",
            "{ quantiles = [\"1 ms\", \"2 ms\", \"9 ms\"] }",
        ] {
            let distribution = parse(text).unwrap();
            let mut random = Seed(1).random("test", 0);
            let count = 20_000;
            let sum: u64 = (0..count).map(|_| distribution.sample(&mut random).0).sum();
            let (mean, expected) = (sum as f64 / count as f64, distribution.mean().0 as f64);
            assert!((mean / expected - 1.0).abs() < 0.03, "{text}: {mean} and not {expected}");
        }
    }

    #[test]
    fn a_normal_distribution_has_its_deviation_and_nothing_below_0() {
        let distribution = Distribution::normal(Nanos(378_000), Nanos(25_000));
        let mut random = Seed(2).random("test", 0);
        let within =
            (0..10_000).filter(|_| distribution.sample(&mut random).0.abs_diff(378_000) < 25_000).count();
        assert!((6600..7050).contains(&within), "{within}");
        let wide = Distribution::normal(Nanos(1), Nanos(1_000_000));
        assert!((0..100).any(|_| wide.sample(&mut random) == Nanos::ZERO));
    }

    #[test]
    fn invalid_distribution_is_refused() {
        for (text, word) in [
            ("5", "a time such as"),
            ("\"5\"", "a time such as"),
            ("{ gaussian = \"1 s\" }", "gaussian"),
            ("{ uniform = [\"2 s\", \"1 s\"] }", "from the less"),
            ("{ quantiles = [\"2 s\"] }", "two times"),
            ("{ quantiles = [\"2 s\", \"1 s\"] }", "ascending"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
