//! The distributions of PVFS, with its text forms of their names and parameters.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::PolicyError;
use crate::policy::quoted;

/// Rule that assigns a file's bytes to data servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DistName {
    /// All bytes on one server.
    Basic,
    /// Strips of equal length, round robin.
    SimpleStripe,
    /// Strips of different lengths, in a given order.
    Varstrip,
}

impl DistName {
    pub const ALL: [Self; 3] = [Self::Basic, Self::SimpleStripe, Self::Varstrip];

    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::SimpleStripe => "simple_stripe",
            Self::Varstrip => "varstrip",
        }
    }

    /// Parses a name. PVFS's own names of two distributions end in `_dist`, which is accepted too.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let name = text.strip_suffix("_dist").unwrap_or(text);
        Self::ALL.into_iter().find(|dist| dist.name() == name)
    }
}

impl fmt::Display for DistName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parameters of a distribution, in the text form in which they were set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DistParams {
    text: Box<str>,
    params: Params,
}

/// Decoded [`DistParams`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Params {
    /// simple_stripe: strip size in bytes, 1 byte to 1 GiB.
    StripSize(u64),
    /// varstrip: at least one strip.
    Strips(Vec<Strip>),
}

/// A strip of varstrip. The sequence of strips repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    /// Index of the data server, from 0.
    pub server: u16,
    /// Length in bytes, 1 byte to 1 GiB.
    pub size: u64,
}

impl DistParams {
    const MAX_LENGTH: usize = 1024;
    const MAX_SIZE: u64 = 1 << 30;

    /// # Errors
    /// The text is not valid for any distribution.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let params = if text.len() > Self::MAX_LENGTH { None } else { parse(text) };
        match params {
            Some(params) => Ok(Self { text: text.into(), params }),
            None => Err(PolicyError::DistParams(quoted(text))),
        }
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The distribution to which the parameters apply.
    pub fn of(&self) -> DistName {
        match self.params {
            Params::StripSize(_) => DistName::SimpleStripe,
            Params::Strips(_) => DistName::Varstrip,
        }
    }
}

impl From<Params> for DistParams {
    fn from(params: Params) -> Self {
        Self { text: params_text(&params).into(), params }
    }
}

impl TryFrom<String> for DistParams {
    type Error = PolicyError;
    fn try_from(text: String) -> Result<Self, PolicyError> {
        Self::parse(&text)
    }
}

impl From<DistParams> for String {
    fn from(params: DistParams) -> Self {
        params.text.into()
    }
}

fn params_text(params: &Params) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match params {
        Params::StripSize(size) => write!(text, "strip_size:{size}"),
        Params::Strips(strips) => strips.iter().enumerate().try_for_each(|(at, Strip { server, size })| {
            write!(text, "{}{server}:{size}", if at == 0 { "strips:" } else { ";" })
        }),
    };
    text
}

fn parse(text: &str) -> Option<Params> {
    match text.split_once(':')? {
        ("strip_size", size) => Some(Params::StripSize(parse_size(size)?)),
        ("strips", strips) => {
            // The last strip may be followed by a semicolon, as in PVFS.
            let strips = strips.strip_suffix(';').unwrap_or(strips);
            Some(Params::Strips(strips.split(';').map(parse_strip).collect::<Option<_>>()?))
        }
        _ => None,
    }
}

fn parse_strip(text: &str) -> Option<Strip> {
    let (server, size) = text.split_once(':')?;
    let server = parse_number(server)?.try_into().ok()?;
    Some(Strip { server, size: parse_size(size)? })
}

/// Parses `65536`, `64K`, `1M` or `1G`.
fn parse_size(text: &str) -> Option<u64> {
    let units = [(['k', 'K'], 10), (['m', 'M'], 20), (['g', 'G'], 30)];
    let unit = units.into_iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    let size = parse_number(number)?.checked_mul(1 << bits)?;
    Some(size).filter(|size| (1..=DistParams::MAX_SIZE).contains(size))
}

/// Parses a decimal number without sign or spaces.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}
