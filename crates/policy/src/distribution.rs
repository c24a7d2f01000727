//! Parameters of the distributions of PVFS, and their texts.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use serde::{Deserialize, Serialize};

use crate::value::{DistName, Value, Values, parse_number};

/// The parameters of a distribution in their original spelling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DistParams {
    text: Box<str>,
    params: Params,
}

/// The parsed [`DistParams`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Params {
    /// Of simple_stripe: bytes of a strip, 1 byte to 1 GiB.
    StripSize(u64),
    /// Of varstrip: at least one strip.
    Strips(Vec<Strip>),
}

/// One of the strips of varstrip. After the last the first follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip {
    /// The number of the data server, counted from 0.
    pub server: u16,
    /// Bytes, 1 to 1 GiB.
    pub size: u64,
}

impl DistParams {
    const MAX_LENGTH: usize = 1024;
    const MAX_SIZE: u64 = 1 << 30;

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The distribution that they are of.
    pub fn of(&self) -> DistName {
        match self.params {
            Params::StripSize(_) => DistName::SimpleStripe,
            Params::Strips(_) => DistName::Varstrip,
        }
    }
}

impl Value for DistParams {
    const VALUES: Values = Values::DistParams;

    fn parse(text: &str) -> Option<Self> {
        let params = parse(text).filter(|_| text.len() <= Self::MAX_LENGTH)?;
        Some(Self { text: text.into(), params })
    }
}

impl fmt::Display for DistParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Params> for DistParams {
    fn from(params: Params) -> Self {
        Self { text: params_text(&params).into(), params }
    }
}

impl TryFrom<String> for DistParams {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("no parameters of a distribution")
    }
}

impl From<DistParams> for String {
    fn from(params: DistParams) -> Self {
        params.text.into()
    }
}

fn params_text(params: &Params) -> String {
    let mut text = String::new();
    // Nothing that is written to memory fails.
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
            // The last may be followed by a semicolon, as in PVFS.
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

/// Parses a size such as `65536`, `64K`, `1M` or `1G`.
fn parse_size(text: &str) -> Option<u64> {
    let units = [(['k', 'K'], 10), (['m', 'M'], 20), (['g', 'G'], 30)];
    let unit = units.into_iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
    let (number, bits) = unit.unwrap_or((text, 0));
    let size = parse_number(number)?.checked_mul(1 << bits)?;
    Some(size).filter(|size| (1..=DistParams::MAX_SIZE).contains(size))
}
