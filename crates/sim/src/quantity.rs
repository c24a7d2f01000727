//! Numbers with units in scenarios: `50 us`, `64 KiB`, `1 Gbit/s`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::time::Nanos;

const TIMES: &[(&str, f64)] =
    &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)];
const SIZES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
];
const RATES: &[(&str, f64)] = &[
    ("bit/s", 0.125),
    ("Kbit/s", 125.0),
    ("Mbit/s", 125e3),
    ("Gbit/s", 125e6),
    ("B/s", 1.0),
    ("KB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("KiB/s", 1024.0),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
];

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Bytes per second; greater than 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl Rate {
    /// Transfer time of this number of bytes.
    pub fn time(self, bytes: usize) -> Nanos {
        Nanos((bytes as f64 * 1e9 / self.0) as u64)
    }
}

/// Parses a number with a unit; 0 needs no unit.
fn parse(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (text[..end].parse::<f64>().ok()?, text[end..].trim());
    if unit.is_empty() && number == 0.0 {
        return Some(0.0);
    }
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    Some(number * factor)
}

/// Deserialises a string with a unit.
struct WithUnit {
    expected: &'static str,
    units: &'static [(&'static str, f64)],
}

impl Visitor<'_> for WithUnit {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units: Vec<_> = self.units.iter().map(|(unit, _)| *unit).collect();
        write!(f, "{} in quotes with a unit, one of {}", self.expected, units.join(", "))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        parse(text, self.units).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let nanos = deserializer.deserialize_str(WithUnit { expected: "a time", units: TIMES })?;
        Ok(Self(nanos.round() as u64))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = deserializer.deserialize_str(WithUnit { expected: "a size", units: SIZES })?;
        Ok(Self(bytes.round() as u64))
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = deserializer.deserialize_str(WithUnit { expected: "a bandwidth", units: RATES })?;
        if rate > 0.0 { Ok(Self(rate)) } else { Err(D::Error::custom("a bandwidth is more than 0")) }
    }
}

/// Parses a time with a unit, for other text formats.
pub fn parse_time(text: &str) -> Option<Nanos> {
    parse(text, TIMES).map(|nanos| Nanos(nanos.round() as u64))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct All {
        time: Nanos,
        size: Bytes,
        rate: Rate,
    }

    #[test]
    fn numbers_have_units() {
        let all: All = toml::from_str("time = \"0.378 ms\"\nsize = \"64KiB\"\nrate = \"1 Gbit/s\"").unwrap();
        assert_eq!((all.time, all.size, all.rate), (Nanos(378_000), Bytes(65_536), Rate(125e6)));
        assert_eq!(all.rate.time(125), Nanos(1000));
        assert_eq!(parse_time("0"), Some(Nanos(0)));
    }

    #[test]
    fn missing_unit_is_refused_with_line() {
        for (text, word) in
            [("\n\ntime = 5", "line 3"), ("time = \"5\"", "with a unit"), ("time = \"-1 s\"", "unit")]
        {
            let error = toml::from_str::<All>(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = toml::from_str::<All>("time = \"1 s\"\nsize = \"1 B\"\nrate = \"0 B/s\"").unwrap_err();
        assert!(error.to_string().contains("more than 0"), "{error}");
    }
}
