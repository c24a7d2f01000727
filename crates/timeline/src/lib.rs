//! Spans: the parts of an operation's time, and their places (kuhn, chapter 6). Drivers write them
//! into a [`Log`], the runtime with the system's clock and the simulator with its own; both are
//! drawn alike.
//!
//! An operation is named by its sender, its receiver and the sender's request number ([`Id`]). Both
//! sides have a span of that name; everything done for it names it as a cause.
#![forbid(unsafe_code)]

mod align;
mod chrome;
mod log;
mod picture;
mod text;
mod tree;

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use align::align;
pub use chrome::{TraceError, read_chrome, write_chrome};
pub use log::{Log, Traced};
pub use picture::{Panel, PictureError, picture};
pub use text::{draw, length};
pub use tree::{Operation, Step, operations};

/// The process that records a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeId {
    /// A mount, or a program that uses the library. The number only distinguishes it from others.
    Client(u32),
    /// The metadata server of this rank.
    Rank(u16),
    /// The data server of this number.
    Data(u16),
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(number) => write!(f, "client {number}"),
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Data(number) => write!(f, "data server {number}"),
        }
    }
}

/// The part of a place that is busy or waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The process: it serves an operation, or waits for another one.
    Process,
    /// Tables and byte streams.
    Store,
    /// Making changes durable.
    Disk,
}

/// The name of an operation. A frontend's calls are from the client to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id {
    pub from: NodeId,
    pub to: NodeId,
    /// The sender's request number.
    pub number: u64,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub place: NodeId,
    pub layer: Layer,
    /// The span's name, such as `create` or `journal sync`.
    pub kind: Cow<'static, str>,
    /// For an operation: served at `id.to`, waited for at `id.from`.
    pub id: Option<Id>,
    /// The operations of the same place that it was done for; several share a commit.
    pub causes: Vec<Id>,
    /// Nanoseconds of one clock.
    pub begin: u64,
    pub end: u64,
}
