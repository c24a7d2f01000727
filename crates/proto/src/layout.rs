//! Distribution of a file's data over data servers. Each server of a layout holds a *datafile*: the
//! bytes assigned to it, stored contiguously.

use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::StreamStat;

/// Number of a data server in the cluster; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerId(pub u16);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Rule that assigns bytes to servers. A new rule is a new variant plus an arm in each match of
/// this file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distribution {
    /// Round robin over the servers in strips of `strip` bytes.
    SimpleStripe { strip: u64 },
    /// All bytes on a single server.
    Basic,
    /// A repeating sequence of strips of different lengths and servers.
    Varstrip { strips: Vec<Strip> },
}

/// A strip of [`Distribution::Varstrip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strip {
    /// Index of the server in the layout.
    pub place: u16,
    /// Length in bytes.
    pub length: u64,
}

/// Placement of a file's data on at least one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Layout {
    distribution: Distribution,
    /// Servers in the order that the distribution refers to.
    servers: Vec<ServerId>,
}

/// A decoded layout before validation.
#[derive(Deserialize)]
struct Unchecked {
    distribution: Distribution,
    servers: Vec<ServerId>,
}

/// The layout is invalid: no servers or too many, a server without a share, or a strip that is
/// empty or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError;

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a layout has 1 to 1024 servers, each once and with a share, and strips of 1 byte to 1 GiB",
        )
    }
}

impl core::error::Error for LayoutError {}

impl TryFrom<Unchecked> for Layout {
    type Error = LayoutError;
    fn try_from(Unchecked { distribution, servers }: Unchecked) -> Result<Self, LayoutError> {
        Self::new(distribution, servers)
    }
}

/// A contiguous range within one datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the server in the layout.
    pub place: usize,
    /// Offset in the datafile.
    pub local: u64,
    pub length: u64,
}

impl Layout {
    const MAX_SERVERS: usize = 1024;
    const MAX_STRIP: u64 = 1 << 30;
    /// Most strips of [`Distribution::Varstrip`].
    const MAX_STRIPS: usize = 1024;

    /// # Errors
    /// [`LayoutError`] if the layout is invalid.
    pub fn new(distribution: Distribution, servers: Vec<ServerId>) -> Result<Self, LayoutError> {
        let mut sorted = servers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let counted = (1..=Self::MAX_SERVERS).contains(&servers.len()) && sorted.len() == servers.len();
        let is_length = |length: u64| (1..=Self::MAX_STRIP).contains(&length);
        let fits = match &distribution {
            Distribution::SimpleStripe { strip } => is_length(*strip),
            Distribution::Basic => servers.len() == 1,
            Distribution::Varstrip { strips } => {
                let mut places: Vec<_> = strips.iter().map(|strip| usize::from(strip.place)).collect();
                places.sort_unstable();
                places.dedup();
                strips.len() <= Self::MAX_STRIPS
                    && strips.iter().all(|strip| is_length(strip.length))
                    && places.into_iter().eq(0..servers.len())
            }
        };
        if counted && fits { Ok(Self { distribution, servers }) } else { Err(LayoutError) }
    }

    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    pub fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    /// A copy with `server` replaced by `other`.
    ///
    /// # Errors
    /// [`LayoutError`] if `other` is already in the layout.
    pub fn replace(&self, server: ServerId, other: ServerId) -> Result<Self, LayoutError> {
        let replaced = |one: &ServerId| if *one == server { other } else { *one };
        Self::new(self.distribution.clone(), self.servers.iter().map(replaced).collect())
    }

    fn width(&self) -> u64 {
        self.servers.len() as u64
    }

    /// The segment that starts at a byte of the file: 1 to `length` bytes.
    fn segment(&self, offset: u64, length: u64) -> Segment {
        match &self.distribution {
            Distribution::Basic => Segment { place: 0, local: offset, length },
            Distribution::Varstrip { strips } => {
                let (rounds, mut within) = (offset / sum(strips), offset % sum(strips));
                let mut number = 0;
                // Terminates: `within` is less than the sum of all strips.
                while within >= strips[number].length {
                    within -= strips[number].length;
                    number += 1;
                }
                let Strip { place, length: strip } = strips[number];
                let place = usize::from(place);
                let local = rounds * share(strips, place) + share(&strips[..number], place) + within;
                Segment { place, local, length: length.min(strip - within) }
            }
            &Distribution::SimpleStripe { strip } => {
                let (number, within) = (offset / strip, offset % strip);
                let place = (number % self.width()) as usize;
                let local = number / self.width() * strip + within;
                Segment { place, local, length: length.min(strip - within) }
            }
        }
    }

    /// The segments of a range in file order.
    pub fn segments(&self, offset: u64, length: u64) -> impl Iterator<Item = Segment> + '_ {
        let (mut at, end) = (offset, offset.saturating_add(length));
        core::iter::from_fn(move || {
            let segment = (at < end).then(|| self.segment(at, end - at))?;
            at += segment.length;
            Some(segment)
        })
    }

    /// Number of bytes of a datafile that belong to the first `size` bytes of the file; also the
    /// offset in the datafile where bytes from `size` on begin.
    pub fn local_size(&self, place: usize, size: u64) -> u64 {
        match &self.distribution {
            Distribution::Basic => size,
            Distribution::Varstrip { strips } => {
                let (rounds, mut rest) = (size / sum(strips), size % sum(strips));
                let mut local = rounds * share(strips, place);
                for strip in strips {
                    let taken = rest.min(strip.length);
                    rest -= taken;
                    local += if usize::from(strip.place) == place { taken } else { 0 };
                }
                local
            }
            &Distribution::SimpleStripe { strip } => {
                let (full, rest) = (size / strip, size % strip);
                let (rounds, partial) = (full / self.width(), full % self.width());
                let place = place as u64;
                rounds * strip
                    + match place.cmp(&partial) {
                        core::cmp::Ordering::Less => strip,
                        core::cmp::Ordering::Equal => rest,
                        core::cmp::Ordering::Greater => 0,
                    }
            }
        }
    }

    /// Offset in the file of a byte of a datafile.
    pub fn logical(&self, place: usize, local: u64) -> u64 {
        match &self.distribution {
            Distribution::Basic => local,
            Distribution::Varstrip { strips } => {
                // Not 0: each server has a share.
                let (rounds, mut rest) = (local / share(strips, place), local % share(strips, place));
                let mut before = 0;
                for strip in strips {
                    if usize::from(strip.place) == place {
                        if rest < strip.length {
                            break;
                        }
                        rest -= strip.length;
                    }
                    before += strip.length;
                }
                rounds.saturating_mul(sum(strips)).saturating_add(before + rest)
            }
            &Distribution::SimpleStripe { strip } => {
                let number = (local / strip).saturating_mul(self.width()).saturating_add(place as u64);
                number.saturating_mul(strip).saturating_add(local % strip)
            }
        }
    }

    /// Size of a file whose datafiles have these sizes.
    pub fn size(&self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let end = |(place, size): (usize, u64)| {
            size.checked_sub(1).map_or(0, |last| self.logical(place, last).saturating_add(1))
        };
        sizes.into_iter().enumerate().map(end).max().unwrap_or(0)
    }

    /// Combines the attributes of the datafiles into those of the file's stream.
    pub fn whole(&self, datafiles: &[StreamStat]) -> StreamStat {
        let mtime = datafiles.iter().map(|stat| stat.mtime).max().unwrap_or_default();
        let others = datafiles.iter().map(|stat| stat.mtime).filter(|time| *time != mtime);
        StreamStat {
            exists: datafiles.iter().any(|stat| stat.exists),
            size: self.size(datafiles.iter().map(|stat| stat.size)),
            blocks: datafiles.iter().map(|stat| stat.blocks).sum(),
            mtime,
            other_mtime: others.max().unwrap_or_default(),
        }
    }

    /// Splits data into one buffer per server. Copies only where a server gets several segments.
    pub fn scatter(&self, offset: u64, mut data: Bytes) -> Vec<Bytes> {
        let mut pieces = alloc::vec![Vec::new(); self.servers.len()];
        for segment in self.segments(offset, data.len() as u64) {
            pieces[segment.place].push(data.split_to(segment.length as usize));
        }
        let whole = |pieces: Vec<Bytes>| match &pieces[..] {
            [one] => one.clone(),
            pieces => pieces.concat().into(),
        };
        pieces.into_iter().map(whole).collect()
    }

    /// The part of a range in each datafile that overlaps it. Each part is contiguous in its
    /// datafile.
    pub fn parts(&self, offset: u64, length: u64) -> Vec<Segment> {
        let end = offset.saturating_add(length);
        let part = |place| {
            let local = self.local_size(place, offset);
            Segment { place, local, length: self.local_size(place, end) - local }
        };
        (0..self.servers.len()).map(part).filter(|part| part.length > 0).collect()
    }
}

/// Total length of strips.
fn sum(strips: &[Strip]) -> u64 {
    strips.iter().map(|strip| strip.length).sum()
}

/// Total length of a server's strips.
fn share(strips: &[Strip], place: usize) -> u64 {
    strips.iter().filter(|strip| usize::from(strip.place) == place).map(|strip| strip.length).sum()
}

#[cfg(test)]
mod tests;
