//! How the bytes of a file are distributed over data servers. Each server of a layout holds a *datafile*: the bytes that fall to it,
//! one after the other.

use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

/// A data server of the cluster, by its number, which it keeps for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerId(pub u16);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// By which rule bytes fall to servers. Another rule is another variant, and what the matches in this file then ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Distribution {
    /// Strips of so many bytes, in turn.
    SimpleStripe { strip: u64 },
}

/// Where the bytes of a file lie. It has at least one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Layout {
    distribution: Distribution,
    /// In the order in which the distribution counts them.
    servers: Vec<ServerId>,
}

/// A layout that may make no sense.
#[derive(Deserialize)]
struct Unchecked {
    distribution: Distribution,
    servers: Vec<ServerId>,
}

/// A layout has no servers, or too many, or strips without bytes or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutError;

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a layout has 1 to 1024 servers, each once, and strips of 1 byte to 1 GiB")
    }
}

impl core::error::Error for LayoutError {}

impl TryFrom<Unchecked> for Layout {
    type Error = LayoutError;
    fn try_from(Unchecked { distribution, servers }: Unchecked) -> Result<Self, LayoutError> {
        Self::new(distribution, servers)
    }
}

/// Bytes that are together in a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The server's place in the layout.
    pub place: usize,
    /// In the datafile.
    pub local: u64,
    pub length: u64,
}

impl Layout {
    const MAX_SERVERS: usize = 1024;
    const MAX_STRIP: u64 = 1 << 30;

    /// # Errors
    /// It makes no sense.
    pub fn new(distribution: Distribution, servers: Vec<ServerId>) -> Result<Self, LayoutError> {
        let Distribution::SimpleStripe { strip } = distribution;
        let mut sorted = servers.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let counted = (1..=Self::MAX_SERVERS).contains(&servers.len()) && sorted.len() == servers.len();
        if counted && (1..=Self::MAX_STRIP).contains(&strip) {
            Ok(Self { distribution, servers })
        } else {
            Err(LayoutError)
        }
    }

    pub fn servers(&self) -> &[ServerId] {
        &self.servers
    }

    fn width(&self) -> u64 {
        self.servers.len() as u64
    }

    /// Where a byte of the file lies, with those that follow it there: at most `length`, at least one.
    fn segment(&self, offset: u64, length: u64) -> Segment {
        match self.distribution {
            Distribution::SimpleStripe { strip } => {
                let (number, within) = (offset / strip, offset % strip);
                let place = (number % self.width()) as usize;
                let local = number / self.width() * strip + within;
                Segment { place, local, length: length.min(strip - within) }
            }
        }
    }

    /// The pieces of a range, in the order of the file.
    pub fn segments(&self, offset: u64, length: u64) -> impl Iterator<Item = Segment> + '_ {
        let (mut at, end) = (offset, offset.saturating_add(length));
        core::iter::from_fn(move || {
            let segment = (at < end).then(|| self.segment(at, end - at))?;
            at += segment.length;
            Some(segment)
        })
    }

    /// How many of a file's first `size` bytes lie in a datafile. That is also where in it bytes from `size` on begin.
    pub fn local_size(&self, place: usize, size: u64) -> u64 {
        match self.distribution {
            Distribution::SimpleStripe { strip } => {
                let (full, rest) = (size / strip, size % strip);
                let (rounds, turn) = (full / self.width(), full % self.width());
                let place = place as u64;
                rounds * strip
                    + match place.cmp(&turn) {
                        core::cmp::Ordering::Less => strip,
                        core::cmp::Ordering::Equal => rest,
                        core::cmp::Ordering::Greater => 0,
                    }
            }
        }
    }

    /// Where in the file a byte of a datafile is.
    pub fn logical(&self, place: usize, local: u64) -> u64 {
        match self.distribution {
            Distribution::SimpleStripe { strip } => {
                let number = (local / strip).saturating_mul(self.width()).saturating_add(place as u64);
                number.saturating_mul(strip).saturating_add(local % strip)
            }
        }
    }

    /// The size of a file whose datafiles have these sizes.
    pub fn size(&self, sizes: impl IntoIterator<Item = u64>) -> u64 {
        let end = |(place, size): (usize, u64)| {
            size.checked_sub(1).map_or(0, |last| self.logical(place, last).saturating_add(1))
        };
        sizes.into_iter().enumerate().map(end).max().unwrap_or(0)
    }

    /// What of some bytes of a file goes to each place.
    pub fn scatter(&self, offset: u64, data: &[u8]) -> Vec<Vec<u8>> {
        let mut scattered = alloc::vec![Vec::new(); self.servers.len()];
        for part in self.parts(offset, data.len() as u64) {
            scattered[part.place].reserve_exact(part.length as usize);
        }
        let mut rest = data;
        for segment in self.segments(offset, data.len() as u64) {
            let (piece, after) = rest.split_at(segment.length as usize);
            scattered[segment.place].extend_from_slice(piece);
            rest = after;
        }
        scattered
    }

    /// What of a range lies in each datafile that has something of it: there, too, it is one range.
    pub fn parts(&self, offset: u64, length: u64) -> Vec<Segment> {
        let end = offset.saturating_add(length);
        let part = |place| {
            let local = self.local_size(place, offset);
            Segment { place, local, length: self.local_size(place, end) - local }
        };
        (0..self.servers.len()).map(part).filter(|part| part.length > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn layout(servers: u16, strip: u64) -> Layout {
        Layout::new(Distribution::SimpleStripe { strip }, (0..servers).map(ServerId).collect())
            .expect("a layout")
    }

    #[test]
    fn every_byte_has_one_place_and_is_found_from_there() {
        for (servers, strip) in [(1, 7), (2, 1), (3, 4), (5, 13)] {
            let layout = layout(servers, strip);
            let mut next = vec![0; usize::from(servers)];
            for offset in 0..500 {
                let Segment { place, local, length } = layout.segment(offset, u64::MAX - offset);
                assert_eq!(local, next[place], "datafiles have no gaps");
                assert!(length >= 1 && length <= strip);
                assert_eq!(layout.logical(place, local), offset);
                next[place] += 1;
                for (place, size) in next.iter().enumerate() {
                    assert_eq!(layout.local_size(place, offset + 1), *size);
                }
                assert_eq!(layout.size(next.iter().copied()), offset + 1);
            }
        }
    }

    #[test]
    fn a_range_is_one_range_in_each_datafile() {
        let layout = layout(3, 4);
        for offset in 0..40 {
            for length in 0..40 {
                let mut lengths = [0; 3];
                for segment in layout.segments(offset, length) {
                    lengths[segment.place] += segment.length;
                }
                let parts = layout.parts(offset, length);
                assert!(parts.iter().all(|part| lengths[part.place] == part.length));
                assert_eq!(parts.iter().map(|part| part.length).sum::<u64>(), length);
            }
        }
    }

    #[test]
    fn layouts_that_make_no_sense_are_refused() {
        let stripe = |strip| Distribution::SimpleStripe { strip };
        for (strip, servers) in [(0, vec![ServerId(1)]), (1, vec![]), (1, vec![ServerId(1), ServerId(1)])] {
            assert_eq!(Layout::new(stripe(strip), servers.clone()), Err(LayoutError), "{strip} {servers:?}");
        }
        assert_eq!(layout(2, 1 << 30).logical(1, u64::MAX), u64::MAX, "a size that is no size");
    }
}
