//! The identity of a peer, from its certificate.

use std::fmt;

use thiserror::Error;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// The subject of a certificate: its one DNS name below `client.espalier.internal` or
/// `server.espalier.internal`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    Client(String),
    Server(String),
}

/// Why a certificate or a name is no identity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    #[error("the certificate cannot be read")]
    Unreadable,
    #[error("the certificate has no name NAME.client.espalier.internal or NAME.server.espalier.internal")]
    None,
    #[error("the certificate has more than one name below espalier.internal")]
    Several,
    #[error("{0:?} is no name of a client or a server: use 1 to 63 of a-z, 0-9 and -, with no - at its ends")]
    Name(String),
}

/// ICANN has reserved `internal` for private use.
pub(crate) const DOMAIN: &str = ".espalier.internal";

const CLIENT: &str = ".client";
const SERVER: &str = ".server";

impl Identity {
    /// # Errors
    /// [`IdentityError::Name`].
    pub fn client(name: &str) -> Result<Self, IdentityError> {
        checked(name).map(Self::Client)
    }

    /// # Errors
    /// [`IdentityError::Name`].
    pub fn server(name: &str) -> Result<Self, IdentityError> {
        checked(name).map(Self::Server)
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Client(name) | Self::Server(name) => name,
        }
    }

    /// The DNS name in a certificate.
    pub fn dns_name(&self) -> String {
        match self {
            Self::Client(name) => format!("{name}{CLIENT}{DOMAIN}"),
            Self::Server(name) => format!("{name}{SERVER}{DOMAIN}"),
        }
    }

    /// Identity of a verified certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let certificate =
            webpki::EndEntityCert::try_from(certificate).map_err(|_| IdentityError::Unreadable)?;
        let mut names = certificate.valid_dns_names().filter_map(|name| name.strip_suffix(DOMAIN));
        let name = names.next().ok_or(IdentityError::None)?;
        if names.next().is_some() {
            return Err(IdentityError::Several);
        }
        match (name.strip_suffix(CLIENT), name.strip_suffix(SERVER)) {
            (Some(name), _) => Self::client(name),
            (_, Some(name)) => Self::server(name),
            _ => Err(IdentityError::None),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(name) => write!(f, "client {name}"),
            Self::Server(name) => write!(f, "server {name}"),
        }
    }
}

/// A name that is one DNS label, in canonical form.
fn checked(name: &str) -> Result<String, IdentityError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let dashed = name.starts_with('-') || name.ends_with('-');
    if name.is_empty() || name.len() > 63 || dashed || !name.chars().all(plain) {
        return Err(IdentityError::Name(name.to_owned()));
    }
    Ok(name.to_owned())
}
