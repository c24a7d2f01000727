//! The handshake: a greeting and an answer, each behind a prelude whose form never changes.

use std::fmt;
use std::io;

use espalier_proto::{Hello, Welcome};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::limits::Terms;

/// The protocol version of this program. Others are refused.
pub const VERSION: u32 = 1;

pub(crate) const MAGIC: [u8; 8] = *b"ESPALIER";

/// Longest body of a client's prelude, in bytes.
pub(crate) const GREETING_BYTES_MAX: usize = 4096;

/// Longest body of a server's prelude, in bytes: it names all servers.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Longest text of a refusal, in bytes.
const TEXT_BYTES_MAX: usize = 1024;

/// A client's greeting.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) terms: Terms,
    pub(crate) hello: Hello,
}

/// The answer of a server that accepts the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) terms: Terms,
    /// The server's clock, in seconds since 1970.
    pub(crate) time: i64,
    pub(crate) welcome: Welcome,
}

/// Why a server refuses a client. Numbers and form are the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// For people: says what to do. At most 1,024 bytes are sent.
    pub text: String,
}

/// Reasons that a client program may distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The server speaks another protocol version.
    Version,
    /// The server belongs to another cluster.
    Cluster,
    /// The server has its maximum of clients. Try again later.
    Full,
    /// The client's identity may not connect in this role.
    Identity,
    /// The server is starting or stopping. Try again later.
    Unready,
    /// The greeting could not be parsed.
    Malformed,
    /// The server requires TLS.
    NoTls,
    /// The server runs without TLS.
    Tls,
    /// The server does not offer the requested service.
    Service,
    /// The client's session has ended. It may ask for a new one.
    Ended,
    /// A reason of a later version.
    Other(u8),
}

impl Reason {
    const ALL: [(Self, u8); 10] = [
        (Self::Version, 1),
        (Self::Cluster, 2),
        (Self::Full, 3),
        (Self::Identity, 4),
        (Self::Unready, 5),
        (Self::Malformed, 6),
        (Self::NoTls, 7),
        (Self::Tls, 8),
        (Self::Service, 9),
        (Self::Ended, 10),
    ];

    /// 0 is no reason: it means accepted.
    fn number(self) -> u8 {
        match Self::ALL.iter().find(|(reason, _)| *reason == self) {
            Some((_, number)) => *number,
            None => {
                if let Self::Other(number) = self {
                    number.max(1)
                } else {
                    1
                }
            }
        }
    }

    fn of(number: u8) -> Self {
        Self::ALL.iter().find(|(_, n)| *n == number).map_or(Self::Other(number), |(reason, _)| *reason)
    }
}

impl Refusal {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    pub(crate) fn version(theirs: u32) -> Self {
        let (older, newer) = if theirs < VERSION { ("client", "server") } else { ("server", "client") };
        let text = format!(
            "the client speaks version {theirs} of the protocol, this server version {VERSION}: install on the {older}'s machine the release of Espalier that the {newer} has"
        );
        Self::new(Reason::Version, text)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A prelude with its body.
#[derive(Debug)]
pub(crate) struct Prelude {
    pub(crate) version: u32,
    pub(crate) body: Vec<u8>,
}

/// Why a prelude could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// The magic bytes are missing.
    Foreign,
    TooLong,
    Io(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Prelude {
    /// Reads no further than the prelude says. `limit`: of the body, in bytes.
    pub(crate) async fn read(peer: &mut (impl AsyncRead + Unpin), limit: usize) -> Result<Self, Unread> {
        let mut magic = [0; MAGIC.len()];
        peer.read_exact(&mut magic).await?;
        if magic != MAGIC {
            return Err(Unread::Foreign);
        }
        let version = peer.read_u32_le().await?;
        let length = peer.read_u32_le().await? as usize;
        if length > limit {
            return Err(Unread::TooLong);
        }
        let mut body = vec![0; length];
        peer.read_exact(&mut body).await?;
        Ok(Self { version, body })
    }

    /// A client's prelude.
    pub(crate) async fn greet(peer: &mut (impl AsyncWrite + Unpin), greeting: &Greeting) -> io::Result<()> {
        let body = postcard::to_extend(greeting, Vec::new()).map_err(io::Error::other)?;
        write(peer, &body).await
    }

    /// A server's prelude to a client that it accepts.
    pub(crate) async fn welcome(peer: &mut (impl AsyncWrite + Unpin), taken: &Taken) -> io::Result<()> {
        let body = postcard::to_extend(taken, vec![TAKEN]).map_err(io::Error::other)?;
        write(peer, &body).await
    }

    /// A server's prelude to a client that it refuses.
    pub(crate) async fn refuse(peer: &mut (impl AsyncWrite + Unpin), refusal: &Refusal) -> io::Result<()> {
        let mut body = vec![refusal.reason.number()];
        let text = &refusal.text;
        body.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES_MAX)]);
        write(peer, &body).await
    }

    /// The client's greeting; `None` if it cannot be parsed.
    pub(crate) fn greeting(&self) -> Option<Greeting> {
        let (greeting, rest) = postcard::take_from_bytes(&self.body).ok()?;
        rest.is_empty().then_some(greeting)
    }

    /// The server's answer; `None` if it cannot be parsed.
    pub(crate) fn answer(&self) -> Option<Result<Taken, Refusal>> {
        let (&number, rest) = self.body.split_first()?;
        if number != TAKEN {
            let text = String::from_utf8_lossy(rest).replace(char::is_control, " ");
            return Some(Err(Refusal::new(Reason::of(number), text)));
        }
        if self.version != VERSION {
            return None;
        }
        let (taken, rest) = postcard::take_from_bytes(rest).ok()?;
        rest.is_empty().then_some(Ok(taken))
    }
}

/// The first byte of an acceptance, which is no refusal's number.
const TAKEN: u8 = 0;

async fn write(peer: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    peer.write_all(&bytes).await?;
    peer.flush().await
}
