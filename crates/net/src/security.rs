//! Security of connections: TLS with mutual authentication, or none.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};

use crate::identity::{Identity, IdentityError};
use crate::pki;

/// The protection of a side's connections.
#[derive(Clone, Debug)]
pub enum Security {
    /// No encryption and no authentication: any peer is trusted. For trials on one machine.
    Insecure,
    /// TLS 1.3; both sides present certificates of the cluster's authority.
    Tls(Tls),
}

/// Key material for TLS.
#[derive(Clone)]
pub struct Tls {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    identity: Identity,
}

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum SecurityError {
    #[error("{}: {cause}; `espalier cluster init` makes such files", path.display())]
    File { path: PathBuf, cause: std::io::Error },
    #[error("{} has no {expected} in PEM form: {detail}", path.display())]
    Pem { path: PathBuf, expected: &'static str, detail: String },
    #[error("{} is no certificate of an authority: give the cluster's ca.pem ({detail})", path.display())]
    Authority { path: PathBuf, detail: String },
    #[error("{}: {cause}", path.display())]
    Identity { path: PathBuf, cause: IdentityError },
    #[error(
        "{} and {} do not belong together, or cannot be used: give the certificate and the key that were made with it ({cause})",
        certificate.display(), key.display()
    )]
    Pair { certificate: PathBuf, key: PathBuf, cause: rustls::Error },
}

impl Security {
    /// As [`Self::load`], from a directory that `espalier cluster` made for one side.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(dir: &Path) -> Result<Self, SecurityError> {
        Self::load(&dir.join(pki::AUTHORITY), &dir.join(pki::CERTIFICATE), &dir.join(pki::KEY))
    }

    /// Loads PEM files: the certificate of the cluster's authority, this side's certificate with
    /// any intermediates, and its key.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, SecurityError> {
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            let path = authority.to_path_buf();
            roots.add(root).map_err(|e| SecurityError::Authority { path, detail: e.to_string() })?;
        }
        let chain = certificates(certificate)?;
        let own = chain.first().map_or(Err(IdentityError::Unreadable), Identity::of);
        let identity =
            own.map_err(|cause| SecurityError::Identity { path: certificate.to_path_buf(), cause })?;
        let expected = "private key";
        let secret =
            PrivateKeyDer::from_pem_file(key).map_err(|error| SecurityError::pem(key, expected, error))?;
        let (server, client) = configurations(roots, chain, secret).map_err(|cause| SecurityError::Pair {
            certificate: certificate.to_path_buf(),
            key: key.to_path_buf(),
            cause,
        })?;
        Ok(Self::Tls(Tls { server: Arc::new(server), client: Arc::new(client), identity }))
    }

    /// This side's identity; `None` without TLS.
    pub fn identity(&self) -> Option<&Identity> {
        match self {
            Self::Insecure => None,
            Self::Tls(tls) => Some(&tls.identity),
        }
    }
}

fn configurations(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(ServerConfig, ClientConfig), rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots);
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.clone(), key.clone_key())?;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    // No resumption: connections are few and long, and each authenticates anew.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    client.resumption = Resumption::disabled();
    Ok((server, client))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let expected = "certificate";
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| SecurityError::pem(path, expected, error))?;
    if read.is_empty() {
        return Err(SecurityError::pem(path, expected, pem::Error::NoItemsFound));
    }
    Ok(read)
}

impl SecurityError {
    fn pem(path: &Path, expected: &'static str, error: pem::Error) -> Self {
        let path = path.to_path_buf();
        match error {
            pem::Error::Io(cause) => Self::File { path, cause },
            other => Self::Pem { path, expected, detail: other.to_string() },
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("identity", &self.identity).finish_non_exhaustive()
    }
}
