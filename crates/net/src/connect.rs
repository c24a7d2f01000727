//! The client's side of the handshake.

use std::io;
use std::net::SocketAddr;

use espalier_proto::{Hello, Welcome};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, AlertDescription, CertificateError, InvalidMessage};

use crate::accept::Stream;
use crate::clock;
use crate::connection::Connection;
use crate::error::ConnectError;
use crate::handshake::{ANSWER_BYTES_MAX, Greeting, Prelude, Taken, Unread};
use crate::identity::Identity;
use crate::limits::{Limits, Terms};
use crate::message::Message;
use crate::security::{Security, Tls};

/// Connects to the server at `address`, `HOST:PORT`, and sends the greeting. Tries each address of
/// a host in turn, within the handshake limit for all of them.
pub async fn connect<In: Message, Out: Message>(
    address: &str,
    security: &Security,
    limits: &Limits,
    hello: Hello,
) -> Result<(Welcome, Connection<In, Out>), ConnectError> {
    let (host, port) = split(address).ok_or_else(|| ConnectError::Address(address.to_owned()))?;
    let limit = limits.handshake;
    let owned = || address.to_owned();
    let agreed = async {
        let found = lookup_host((host, port)).await;
        let found = found.map_err(|cause| ConnectError::UnknownHost { address: owned(), cause })?;
        let socket = reach(address, found.collect()).await?;
        let greeting = Greeting { terms: Terms::of(limits), hello };
        agree(address, host, socket, security, &greeting).await
    };
    let agreed = timeout(limit, agreed).await;
    let (stream, taken) = agreed.map_err(|_| ConnectError::TimedOut { address: owned(), limit })??;
    if let Some(wrong) = clock::differs(address, taken.time.saturating_sub(clock::now())) {
        tracing::warn!("{wrong}");
    }
    let (socket, tls) = stream.into_parts();
    let connection = Connection::new(socket, tls, limits, taken.terms)
        .map_err(|error| ConnectError::Io { address: owned(), cause: io::Error::other(error) })?;
    Ok((taken.welcome, connection))
}

/// The brackets of an IPv6 address are not part of the host.
fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let unbracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = unbracketed.or((!host.contains(':')).then_some(host))?;
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

async fn reach(address: &str, found: Vec<SocketAddr>) -> Result<TcpStream, ConnectError> {
    let mut failed = io::ErrorKind::NotFound.into();
    for one in found {
        match TcpStream::connect(one).await {
            Ok(socket) => {
                let io = |cause| ConnectError::Io { address: address.to_owned(), cause };
                socket.set_nodelay(true).map_err(io)?;
                return Ok(socket);
            }
            Err(error) => failed = error,
        }
    }
    let address = address.to_owned();
    Err(match failed.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::NoServer { address },
        _ => ConnectError::Unreachable { address, cause: failed },
    })
}

async fn agree(
    address: &str,
    host: &str,
    socket: TcpStream,
    security: &Security,
    greeting: &Greeting,
) -> Result<(Stream, Taken), ConnectError> {
    let failed = |error| tls_error(address, error);
    let (stream, answer) = match security {
        Security::Insecure => {
            let mut socket = socket;
            Prelude::greet(&mut socket, greeting).await.map_err(failed)?;
            let answer = Prelude::read(&mut socket, ANSWER_BYTES_MAX).await;
            (Stream::Plain(socket), answer)
        }
        Security::Tls(tls) => {
            let mut stream = secure(address, host, socket, tls).await?;
            Prelude::greet(&mut stream, greeting).await.map_err(failed)?;
            let answer = Prelude::read(&mut stream, ANSWER_BYTES_MAX).await;
            (Stream::Tls(Box::new(stream.into())), answer)
        }
    };
    let foreign = || ConnectError::Foreign { address: address.to_owned() };
    let prelude = answer.map_err(|error| match error {
        Unread::Io(error) => failed(error),
        Unread::Foreign | Unread::TooLong => foreign(),
    })?;
    match prelude.answer() {
        Some(Ok(taken)) => Ok((stream, taken)),
        Some(Err(refusal)) => Err(ConnectError::Refused { address: address.to_owned(), refusal }),
        None => Err(foreign()),
    }
}

async fn secure(
    address: &str,
    host: &str,
    socket: TcpStream,
    tls: &Tls,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ConnectError> {
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|_| ConnectError::Address(address.to_owned()))?;
    let stream = TlsConnector::from(tls.client.clone()).connect(name, socket).await;
    let stream = stream.map_err(|error| tls_error(address, error))?;
    let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(Identity::of);
    match peer {
        Some(Ok(Identity::Server(_))) => Ok(stream),
        _ => Err(ConnectError::NotAServer { address: address.to_owned() }),
    }
}

/// rustls reports its errors inside an I/O error.
fn tls_error(address: &str, cause: io::Error) -> ConnectError {
    use CertificateError as Bad;
    let address = address.to_owned();
    let Some(error) = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return ConnectError::Io { address, cause };
    };
    match error {
        rustls::Error::InvalidCertificate(bad) => match bad {
            Bad::UnknownIssuer | Bad::BadSignature => ConnectError::UnknownAuthority { address },
            Bad::Expired | Bad::NotValidYet | Bad::ExpiredContext { .. } | Bad::NotValidYetContext { .. } => {
                ConnectError::CertificateTime { address, detail: bad.to_string() }
            }
            Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
                ConnectError::CertificateName { address, detail: bad.to_string() }
            }
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => ConnectError::NotAServer { address },
            _ => ConnectError::Tls { address, cause: error.clone() },
        },
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            ConnectError::OwnAuthority { address }
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateExpired) => {
            ConnectError::OwnTime { address }
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => ConnectError::NoTls { address },
        _ => ConnectError::Tls { address, cause: error.clone() },
    }
}
