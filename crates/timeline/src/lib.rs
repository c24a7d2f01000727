//! Spans: what took time on behalf of an operation, and where (kuhn, chapter 6). Drivers write them into a [`Log`], the runtime with the
//! clock's time and the simulator with its own; what is drawn of them is the same.
//!
//! An operation is named by who asks, who is asked, and the asker's number of it ([`Id`]). Both sides have a span of that name; whatever
//! one of them does for it has that name as a cause.
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
pub use log::{Log, Told};
pub use picture::{Panel, PictureError, picture};
pub use text::{draw, length};
pub use tree::{Operation, Step, operations};

/// Where something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A mount, or a program that uses the library. The number tells it from others, and nothing more.
    Client(u32),
    /// The metadata server of that rank.
    Rank(u16),
    /// The data server of that number.
    Data(u16),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(number) => write!(f, "client {number}"),
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::Data(number) => write!(f, "data server {number}"),
        }
    }
}

/// What of a place is busy, or is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The process: it serves an operation, or waits for another one.
    Process,
    /// Tables and byte streams.
    Store,
    /// What is to be durable.
    Disk,
}

/// The name of an operation. What a client's door calls the client asks itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Id {
    pub from: Place,
    pub to: Place,
    /// The asker's.
    pub number: u64,
}

/// Something that took time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub place: Place,
    pub layer: Layer,
    /// What it is, as `create` or `journal sync`.
    pub kind: Cow<'static, str>,
    /// Of an operation: at `id.to` it was served, at `id.from` it was waited for.
    pub id: Option<Id>,
    /// For which operations of the same place it was done; several share a commit.
    pub causes: Vec<Id>,
    /// Nanoseconds of one clock.
    pub begin: u64,
    pub end: u64,
}
