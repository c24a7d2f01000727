//! How both sides agree to talk: a greeting and an answer, each behind a prelude whose form never changes.

use std::fmt;
use std::io;

use espalier_proto::{Hello, Welcome};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::limits::Terms;

/// The version of the protocol that this program speaks. Others are refused.
pub const VERSION: u32 = 1;

pub(crate) const MAGIC: [u8; 8] = *b"ESPALIER";

/// The longest body of a client's prelude.
pub(crate) const GREETING_BYTES_MAX: usize = 4096;

/// The longest body of a server's, which names all servers.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The longest text of a refusal.
const TEXT_BYTES_MAX: usize = 1024;

/// What a client begins with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) terms: Terms,
    pub(crate) hello: Hello,
}

/// A server's answer, if it takes the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) terms: Terms,
    /// By the server's clock, in seconds since 1970.
    pub(crate) time: i64,
    pub(crate) welcome: Welcome,
}

/// Why a server does not take a client. The numbers and the form are the same in all versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// For people: says what to do. At most 1,024 bytes are sent.
    pub text: String,
}

/// What a client's program may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The server speaks another version of the protocol.
    Version,
    /// The server is one of another cluster.
    Cluster,
    /// The server has as many clients as it takes. Later there may be room.
    Full,
    /// Who the client is may not connect so.
    Identity,
    /// The server is starting or stopping. Later it may take the client.
    Unready,
    /// The greeting could not be read.
    Malformed,
    /// The server requires TLS.
    NoTls,
    /// The server runs without TLS.
    Tls,
    /// The server does not serve what is asked for.
    Service,
    /// The session that the client had has ended. It may have a new one, if it does not ask for the old one.
    Ended,
    /// One that a later version has.
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

    /// 0 is no reason: the client is taken.
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

/// A prelude, and the body that it announces.
#[derive(Debug)]
pub(crate) struct Prelude {
    pub(crate) version: u32,
    pub(crate) body: Vec<u8>,
}

/// Why a prelude could not be read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// These are no bytes of Espalier's.
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
    /// `peer` is not read further than the prelude says. `limit`: of the body.
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

    /// A client's.
    pub(crate) async fn greet(peer: &mut (impl AsyncWrite + Unpin), greeting: &Greeting) -> io::Result<()> {
        let body = postcard::to_extend(greeting, Vec::new()).map_err(io::Error::other)?;
        write(peer, &body).await
    }

    /// A server's, to a client that it takes.
    pub(crate) async fn welcome(peer: &mut (impl AsyncWrite + Unpin), taken: &Taken) -> io::Result<()> {
        let body = postcard::to_extend(taken, vec![TAKEN]).map_err(io::Error::other)?;
        write(peer, &body).await
    }

    /// A server's, to a client that it does not take.
    pub(crate) async fn refuse(peer: &mut (impl AsyncWrite + Unpin), refusal: &Refusal) -> io::Result<()> {
        let mut body = vec![refusal.reason.number()];
        let text = &refusal.text;
        body.extend_from_slice(&text.as_bytes()[..text.floor_char_boundary(TEXT_BYTES_MAX)]);
        write(peer, &body).await
    }

    /// What a client has said; `None` if it cannot be read.
    pub(crate) fn greeting(&self) -> Option<Greeting> {
        let (greeting, rest) = postcard::take_from_bytes(&self.body).ok()?;
        rest.is_empty().then_some(greeting)
    }

    /// What a server has answered; `None` if it cannot be read.
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

/// The first byte of an answer, if it is no refusal's number.
const TAKEN: u8 = 0;

async fn write(peer: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(body);
    peer.write_all(&bytes).await?;
    peer.flush().await
}
