//! The server's side of the handshake.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use espalier_proto::{Hello, Welcome};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsStream, rustls};

use crate::clock;
use crate::connection::Connection;
use crate::error::{AcceptError, NetError};
use crate::handshake::{
    GREETING_BYTES_MAX, Greeting, MAGIC, Prelude, Reason, Refusal, Taken, Unread, VERSION,
};
use crate::identity::{Identity, IdentityError};
use crate::limits::{Limits, SILENCES_MAX, Terms};
use crate::message::Message;
use crate::security::Security;

/// After a refusal the server waits for this long, and discards up to this many bytes: unread data
/// would make the kernel reset the connection before the refusal is read.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 << 10;

/// First byte of TLS: a record of type "handshake".
const TLS_HANDSHAKE: u8 = 22;

/// Turns incoming TCP connections into [`Connection`]s.
#[derive(Clone, Debug)]
pub struct Acceptor {
    security: Security,
    limits: Limits,
    /// Overrides the limit of [`Limits`]; may change at run time.
    eager_bytes: Arc<AtomicU32>,
}

/// A client that has sent its greeting and waits for an answer.
#[derive(Debug)]
pub struct Incoming {
    stream: Stream,
    identity: Option<Identity>,
    greeting: Greeting,
    limits: Limits,
}

#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub(crate) fn into_parts(self) -> (TcpStream, Option<rustls::Connection>) {
        match self {
            Self::Plain(socket) => (socket, None),
            Self::Tls(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (socket, tls) = stream.into_inner();
                    (socket, Some(tls.into()))
                }
                TlsStream::Server(stream) => {
                    let (socket, tls) = stream.into_inner();
                    (socket, Some(tls.into()))
                }
            },
        }
    }
}

impl Acceptor {
    pub fn new(security: Security, limits: Limits) -> Self {
        let eager_bytes = Arc::new(limits.eager_bytes.into());
        Self { security, limits, eager_bytes }
    }

    /// Applies to later connections.
    pub fn set_eager_bytes(&self, bytes: u32) {
        self.eager_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Encrypts, and reads the greeting. Takes as long as the client does, within the handshake
    /// limit and a second: run it in a task of its own.
    ///
    /// # Errors
    /// The client has been notified where possible.
    pub async fn accept(&self, socket: TcpStream) -> Result<Incoming, AcceptError> {
        let limit = self.limits.handshake;
        let deadline = tokio::time::Instant::now() + limit;
        socket.set_nodelay(true)?;
        // Otherwise the kernel keeps a connection whose peer is up but does not read.
        let patience = (self.limits.silence * SILENCES_MAX).as_millis();
        let patience = u32::try_from(patience).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, patience).map_err(io::Error::from)?;
        let secured = timeout_at(deadline, self.secure(socket)).await;
        let (mut stream, identity) = secured.map_err(|_| AcceptError::TimedOut(limit))??;
        let read = timeout_at(deadline, stream.read()).await.map_err(|_| AcceptError::TimedOut(limit))?;
        let (error, refusal) = match (read, identity) {
            (Ok(greeting), Ok(identity)) => {
                let eager_bytes = self.eager_bytes.load(Ordering::Relaxed);
                let limits = Limits { eager_bytes, ..self.limits.clone() };
                return Ok(Incoming { stream, identity, greeting, limits });
            }
            (Ok(_), Err(error)) => {
                let refusal = Refusal::new(Reason::Identity, error.to_string());
                (error.into(), refusal)
            }
            (Err(error), _) => {
                let refusal = match &error {
                    AcceptError::Version(theirs) => Refusal::version(*theirs),
                    AcceptError::Io(_) => return Err(error),
                    other => Refusal::new(Reason::Malformed, other.to_string()),
                };
                (error, refusal)
            }
        };
        stream.refuse(&refusal).await;
        Err(error)
    }

    /// Checks the first byte, so that a mismatch of TLS and plain is answered with the reason.
    async fn secure(
        &self,
        socket: TcpStream,
    ) -> Result<(Stream, Result<Option<Identity>, IdentityError>), AcceptError> {
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Err(AcceptError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let (error, refusal) = match (&self.security, first[0]) {
            (Security::Insecure, TLS_HANDSHAKE) => {
                let text = "this server runs without TLS: mount with --insecure";
                (AcceptError::Tls, Refusal::new(Reason::Tls, text))
            }
            (Security::Insecure, _) => return Ok((Stream::Plain(socket), Ok(None))),
            (Security::Tls(tls), TLS_HANDSHAKE) => {
                let accepted = TlsAcceptor::from(tls.server.clone()).accept(socket).into_fallible().await;
                match accepted {
                    Ok(stream) => {
                        let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                        let identity = peer.map_or(Err(IdentityError::None), Identity::of).map(Some);
                        return Ok((Stream::Tls(Box::new(stream.into())), identity));
                    }
                    Err((error, mut socket)) => {
                        // TLS has sent an alert.
                        linger(&mut socket).await;
                        return Err(tls_error(error));
                    }
                }
            }
            (Security::Tls(_), first) if first == MAGIC[0] => {
                let text = "this server requires TLS: give the cluster's authority, a certificate and its key, and do not use --insecure";
                (AcceptError::NoTls, Refusal::new(Reason::NoTls, text))
            }
            (Security::Tls(_), _) => {
                let text = "this is a server of Espalier, which requires TLS";
                (AcceptError::Foreign, Refusal::new(Reason::NoTls, text))
            }
        };
        Stream::Plain(socket).refuse(&refusal).await;
        Err(error)
    }
}

impl Incoming {
    pub fn hello(&self) -> &Hello {
        &self.greeting.hello
    }

    /// The client's identity; `None` without TLS.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// As [`Limits::unsent_bytes`], for this connection.
    pub fn set_unsent_bytes(&mut self, bytes: usize) {
        self.limits.unsent_bytes = bytes;
    }

    /// Accepts the client.
    ///
    /// # Errors
    /// The reason of the connection's end.
    pub async fn welcome<In: Message, Out: Message>(
        mut self,
        welcome: Welcome,
    ) -> Result<Connection<In, Out>, NetError> {
        let taken = Taken { terms: Terms::of(&self.limits), time: clock::now(), welcome };
        let limit = self.limits.handshake;
        match timeout(limit, self.stream.welcome(&taken)).await {
            Ok(written) => written?,
            Err(_) => return Err(NetError::Silent(limit)),
        }
        let (socket, tls) = self.stream.into_parts();
        Connection::new(socket, tls, &self.limits, self.greeting.terms)
    }

    /// Refuses the client, with the reason.
    pub async fn refuse(mut self, refusal: Refusal) {
        self.stream.refuse(&refusal).await;
    }
}

impl Stream {
    async fn read(&mut self) -> Result<Greeting, AcceptError> {
        let prelude = match self {
            Self::Plain(socket) => Prelude::read(socket, GREETING_BYTES_MAX).await,
            Self::Tls(stream) => Prelude::read(stream, GREETING_BYTES_MAX).await,
        };
        let prelude = prelude.map_err(|error| match error {
            Unread::Foreign => AcceptError::Foreign,
            Unread::TooLong => AcceptError::Malformed,
            Unread::Io(error) => tls_error(error),
        })?;
        if prelude.version != VERSION {
            return Err(AcceptError::Version(prelude.version));
        }
        prelude.greeting().ok_or(AcceptError::Malformed)
    }

    async fn welcome(&mut self, taken: &Taken) -> io::Result<()> {
        match self {
            Self::Plain(socket) => Prelude::welcome(socket, taken).await,
            Self::Tls(stream) => Prelude::welcome(stream, taken).await,
        }
    }

    /// Bounded in time: a peer that does not read must not block.
    async fn refuse(&mut self, refusal: &Refusal) {
        let refused = async {
            match self {
                Self::Plain(socket) => {
                    Prelude::refuse(socket, refusal).await?;
                    linger(socket).await;
                }
                Self::Tls(stream) => {
                    Prelude::refuse(stream, refusal).await?;
                    stream.shutdown().await?;
                    linger(stream.get_mut().0).await;
                }
            }
            Ok::<(), io::Error>(())
        };
        // The peer may be gone already.
        let _ = timeout(LINGER, refused).await;
    }
}

/// Waits until the peer has read what was sent.
async fn linger(socket: &mut TcpStream) {
    let read = async {
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(LINGER_BYTES), &mut tokio::io::sink()).await
    };
    // The outcome does not matter.
    let _ = timeout(LINGER, read).await;
}

/// rustls reports its errors inside an I/O error.
fn tls_error(error: io::Error) -> AcceptError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(
            error @ (rustls::Error::InvalidCertificate(_)
            | rustls::Error::NoCertificatesPresented
            | rustls::Error::AlertReceived(_)),
        ) => AcceptError::Certificate(error.clone()),
        _ => AcceptError::Io(error),
    }
}
