//! The types of settings, and the texts of their values.

use core::fmt;
use core::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

/// The largest number of data servers of a file.
pub const MAX_DFILES: u16 = 1024;
/// The largest number of entries in a setting.
const MAX_ENTRIES: u32 = 1 << 30;

/// A type of settings. [`Self::parse`] accepts the displayed form.
pub(crate) trait Value: Sized + fmt::Display {
    const VALUES: Values;
    fn parse(text: &str) -> Option<Self>;
}

/// The texts that a type of settings has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// From 1.
    UpTo(u32),
    Words(&'static [&'static str]),
    /// A number of seconds, minutes or hours.
    Interval,
    DistParams,
    Pin,
    Relax,
    Bound,
}

impl Values {
    /// Texts of the type, for tests; one at least is not a setting's default.
    pub fn examples(self) -> &'static [&'static str] {
        match self {
            Self::UpTo(_) => &["2"],
            Self::Words(words) => words,
            Self::Interval => &["10s", "2m"],
            Self::DistParams => &["strip_size:1M"],
            Self::Pin => &["0", "1", "2", "distributed", "parent", "off"],
            Self::Relax => &["all", "none", "consistency", "durability,interfere"],
            Self::Bound => &["relax:all", "interfere:block;relax:none", "durability:local;relax:all"],
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpTo(most) => write!(f, "a number, 1 to {most}"),
            Self::Words(words) => WordList(words, "or").fmt(f),
            Self::Interval => f.write_str("a time of 1s to 24h as in 10s or 5m"),
            Self::Pin => f.write_str("a rank from 0, `distributed`, `parent` or `off`"),
            Self::Relax => f.write_str(
                "`all`, `none`, or some of consistency, durability, allocated_inodes and interfere, with commas",
            ),
            Self::Bound => f.write_str("`SETTING:VALUE` of these and relax, with semicolons"),
            Self::DistParams => f.write_str(
                "`strip_size:SIZE` for simple_stripe, or `strips:SERVER:SIZE;SERVER:SIZE...` for varstrip, at most 1024 bytes, \
                 each SIZE 1 to 1G as in 65536 or 64K",
            ),
        }
    }
}

/// Words with commas, and a conjunction before the last.
pub(crate) struct WordList<'a>(pub(crate) &'a [&'a str], pub(crate) &'a str);

impl fmt::Display for WordList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([first @ .., last], conjunction) = self else { return Ok(()) };
        write!(f, "{} {conjunction} {last}", first.join(", "))
    }
}

impl Value for NonZeroU16 {
    const VALUES: Values = Values::UpTo(MAX_DFILES as u32);

    fn parse(text: &str) -> Option<Self> {
        let number = Self::new(parse_number(text)?.try_into().ok()?)?;
        Some(number).filter(|number| number.get() <= MAX_DFILES)
    }
}

impl Value for NonZeroU32 {
    const VALUES: Values = Values::UpTo(MAX_ENTRIES);

    fn parse(text: &str) -> Option<Self> {
        let number = Self::new(parse_number(text)?.try_into().ok()?)?;
        Some(number).filter(|number| number.get() <= MAX_ENTRIES)
    }
}

/// A time between two actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval(NonZeroU32);

impl Interval {
    /// The longest one, in seconds.
    const MAX: u64 = 24 * 60 * 60;
    /// Units with their seconds.
    const UNITS: [(char, u32); 3] = [('h', 60 * 60), ('m', 60), ('s', 1)];

    pub fn seconds(self) -> NonZeroU32 {
        self.0
    }
}

impl Value for Interval {
    const VALUES: Values = Values::Interval;

    fn parse(text: &str) -> Option<Self> {
        let (unit, seconds) = Self::UNITS.into_iter().find(|(unit, _)| text.ends_with(*unit))?;
        let number = parse_number(text.strip_suffix(unit)?)?;
        let time = number.checked_mul(seconds.into()).filter(|time| *time <= Self::MAX)?;
        NonZeroU32::new(time.try_into().ok()?).map(Self)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.0.get();
        let unit = Self::UNITS.into_iter().find(|(_, seconds)| time.is_multiple_of(*seconds));
        let (unit, seconds) = unit.unwrap_or(('s', 1));
        write!(f, "{}{unit}", time / seconds)
    }
}

impl Value for bool {
    const VALUES: Values = Values::Words(&["true", "false"]);

    /// Hints of PVFS are 1 and 0.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        }
    }
}

/// The rank that has the names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pin {
    /// Any.
    Off,
    Rank(u16),
    /// The one that the directory's inode number determines.
    Distributed,
    /// Any; a new directory begins where the names of its parent are.
    Parent,
}

impl Value for Pin {
    const VALUES: Values = Values::Pin;

    fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "distributed" => Some(Self::Distributed),
            "parent" => Some(Self::Parent),
            // Each rank has one text.
            _ => text.parse().ok().map(Self::Rank).filter(|_| text == "0" || !text.starts_with(['0', '+'])),
        }
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Rank(rank) => rank.fmt(f),
            Self::Distributed => f.write_str("distributed"),
            Self::Parent => f.write_str("parent"),
        }
    }
}

/// Makes an enum whose values are words. Aliases after the first word of a value are accepted, but
/// never printed.
macro_rules! words {
    ($(#[$about:meta])+ $type:ident: $($(#[$what:meta])+ $value:ident = $word:literal $(| $alias:literal)*;)+) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $type { $($(#[$what])+ $value),+ }

        impl $crate::value::Value for $type {
            const VALUES: $crate::value::Values = $crate::value::Values::Words(&[$($word),+]);

            fn parse(text: &str) -> Option<Self> {
                match text {
                    $($word $(| $alias)* => Some(Self::$value),)+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self { $(Self::$value => $word),+ })
            }
        }
    };
}

pub(crate) use words;

words! {
    /// The side that creates inode, datafiles, layout and name of a file, message by message.
    Creator:
    /// A metadata server, with one message.
    Server = "server";
    /// The client, as in PVFS (carns III.A).
    Client = "client";
}

words! {
    /// The rule by which the bytes of a file are distributed to data servers. PVFS's own names of
    /// some end in `_dist`.
    DistName:
    /// All to one.
    Basic = "basic" | "basic_dist";
    /// Strips of one length, in turn.
    SimpleStripe = "simple_stripe" | "simple_stripe_dist";
    /// Strips of different lengths, in an order that is given.
    Varstrip = "varstrip" | "varstrip_dist";
}

/// Parses a number of decimal digits, without a sign.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
