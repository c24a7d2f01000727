//! Errors of connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio_rustls::rustls;

use crate::handshake::{Refusal, VERSION};
use crate::identity::IdentityError;

/// Why a connection has ended, or why a message was not sent.
#[derive(Clone, Debug, Error)]
pub enum NetError {
    #[error("the peer has closed the connection")]
    Closed,
    #[error("this side has closed the connection")]
    Dropped,
    #[error("the peer has closed the connection in the middle of a message")]
    Truncated,
    #[error("the connection broke: {0}")]
    Io(Arc<io::Error>),
    #[error("TLS failed: {0}")]
    Tls(rustls::Error),
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    #[error("the peer has not been heard of for {} s", .0.as_secs_f32())]
    Silent(Duration),
    #[error("the peer does not read: {0} bytes wait for it")]
    SlowPeer(usize),
    #[error(
        "the peer has taken nothing of what was sent to it for too long: it does not read, or cannot be reached"
    )]
    Unread,
    /// The message was not sent; the connection stays usable.
    #[error("a message of {bytes} bytes is too long; the peer takes {max}")]
    TooLong { bytes: usize, max: usize },
}

impl From<io::Error> for NetError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Unread,
            _ => Self::Io(Arc::new(error)),
        }
    }
}

/// Why a server could not accept a client. The client has been notified where possible.
#[derive(Debug, Error)]
pub enum AcceptError {
    #[error("the client does not use TLS, which this server requires")]
    NoTls,
    #[error("the client uses TLS, which this server runs without (--insecure)")]
    Tls,
    #[error("what connected is no client of Espalier")]
    Foreign,
    #[error("the client speaks version {0} of the protocol, this server version {VERSION}")]
    Version(u32),
    #[error("the client's greeting is malformed or too long")]
    Malformed,
    #[error("the client's certificate is not accepted: {0}")]
    Certificate(#[source] rustls::Error),
    #[error("the client's certificate does not say who it is: {0}")]
    Identity(#[from] IdentityError),
    #[error("the client did not greet within {} s", .0.as_secs_f32())]
    TimedOut(Duration),
    #[error("the connection broke during the handshake: {0}")]
    Io(#[from] io::Error),
}

/// Why a client has no connection to a server.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("{0} is not HOST:PORT")]
    Address(String),
    #[error("the host of {address} is unknown: {cause}")]
    UnknownHost { address: String, cause: io::Error },
    #[error("nothing listens at {address}: is the server running, and is this its port?")]
    NoServer { address: String },
    #[error("{address} cannot be reached: {cause}")]
    Unreachable { address: String, cause: io::Error },
    #[error("{address} did not answer within {} s", limit.as_secs_f32())]
    TimedOut { address: String, limit: Duration },
    #[error("the connection to {address} broke during the handshake: {cause}")]
    Io { address: String, cause: io::Error },
    #[error("{address} does not use TLS: its server runs with --insecure, or it is no server of Espalier")]
    NoTls { address: String },
    #[error("{address} is no server of Espalier")]
    Foreign { address: String },
    #[error(
        "the certificate of {address} is of another cluster's authority: use the ca.pem of that server's cluster"
    )]
    UnknownAuthority { address: String },
    #[error(
        "the certificate of {address} has expired or is not yet valid: compare the clocks of both machines, or issue a new one ({detail})"
    )]
    CertificateTime { address: String, detail: String },
    #[error(
        "the certificate of {address} is not for that name: use a name that the server's certificate has ({detail})"
    )]
    CertificateName { address: String, detail: String },
    #[error("the certificate of {address} is not a server's")]
    NotAServer { address: String },
    #[error(
        "{address} does not know the authority of this client's certificate: use one that its cluster has issued"
    )]
    OwnAuthority { address: String },
    #[error(
        "{address} says that this client's certificate has expired or is not yet valid: compare the clocks of both machines, or issue a new one"
    )]
    OwnTime { address: String },
    #[error("TLS with {address} failed: {cause}")]
    Tls { address: String, cause: rustls::Error },
    #[error("{address} refuses: {refusal}")]
    Refused { address: String, refusal: Refusal },
}
