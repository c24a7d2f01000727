//! A cluster's own certificate authority, and the certificates that it issues.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use thiserror::Error;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};

use crate::identity::{DOMAIN, Identity};

/// Files of an authority in its directory.
pub const AUTHORITY: &str = "ca.pem";
/// Files of one member, in a directory of its own beside the authority's certificate.
pub const CERTIFICATE: &str = "certificate.pem";
pub const KEY: &str = "key.pem";
pub const AUTHORITY_KEY: &str = "ca.key";

/// Clocks of other machines may be this far behind at a certificate's first use.
const BEHIND: Duration = Duration::from_secs(86_400);

const YEAR: Duration = Duration::from_secs(31_557_600);

/// Signs certificates. Its key can impersonate any member of the cluster.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM form.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

/// Validity of a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    pub from: SystemTime,
    pub until: SystemTime,
}

/// Why there is no authority or no certificate.
#[derive(Debug, Error)]
pub enum PkiError {
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{} is there already: remove it only if no server or client uses it", path.display())]
    Exists { path: PathBuf },
    #[error("{} is no private key in PEM form: {cause}", path.display())]
    Key { path: PathBuf, cause: rcgen::Error },
    #[error("{} and {} do not belong together, or no `espalier cluster init` has made them", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf },
    #[error("{0:?} is no DNS name or IP address, or it ends in {DOMAIN}, which stands for identities")]
    Host(String),
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl Validity {
    /// From yesterday, for `years` years.
    pub fn years(years: u32) -> Self {
        let now = SystemTime::now();
        Self { from: now - BEHIND, until: now + YEAR * years }
    }
}

impl Authority {
    /// Creates an authority in `dir`: `ca.pem` for all members of the cluster, and `ca.key`,
    /// readable by its owner only.
    pub fn create(dir: &Path, validity: Validity) -> Result<Self, PkiError> {
        let key = KeyPair::generate()?;
        let mut params = authority(&key);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set(&mut params, validity);
        let issued = Issued { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() };
        issued.write(&dir.join(AUTHORITY), &dir.join(AUTHORITY_KEY))?;
        Ok(Self { issuer: Issuer::new(params, key) })
    }

    /// Loads an authority that was created in `dir`.
    pub fn load(dir: &Path) -> Result<Self, PkiError> {
        let (certificate, path) = (dir.join(AUTHORITY), dir.join(AUTHORITY_KEY));
        let pem = fs::read_to_string(&path);
        let pem = pem.map_err(|cause| PkiError::File { path: path.clone(), cause })?;
        let key = KeyPair::from_pem(&pem);
        let key = key.map_err(|cause| PkiError::Key { path: path.clone(), cause })?;
        let params = authority(&key);
        // The name of an authority is derived from its key, so the certificate need not be parsed.
        let expected = params.self_signed(&key)?;
        let subject = |der: &CertificateDer<'_>| {
            let anchor = webpki::anchor_from_trusted_cert(der).ok()?;
            Some((anchor.subject.to_vec(), anchor.subject_public_key_info.to_vec()))
        };
        let found = CertificateDer::from_pem_file(&certificate);
        if found.ok().and_then(|der| subject(&der)) != subject(expected.der()) {
            return Err(PkiError::Pair { certificate, key: path });
        }
        Ok(Self { issuer: Issuer::new(params, key) })
    }

    /// A server's certificate, valid for the names and addresses in `hosts`.
    pub fn issue_server(
        &self,
        identity: &Identity,
        hosts: &[String],
        validity: Validity,
    ) -> Result<Issued, PkiError> {
        for host in hosts {
            if ServerName::try_from(host.as_str()).is_err() || host.ends_with(DOMAIN) {
                return Err(PkiError::Host(host.clone()));
            }
        }
        // A server is also a client of other servers.
        let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(identity, hosts, purposes, validity)
    }

    /// A client's certificate, which is not valid for a server.
    pub fn issue_client(&self, identity: &Identity, validity: Validity) -> Result<Issued, PkiError> {
        self.issue(identity, &[], vec![ExtendedKeyUsagePurpose::ClientAuth], validity)
    }

    fn issue(
        &self,
        identity: &Identity,
        hosts: &[String],
        purposes: Vec<ExtendedKeyUsagePurpose>,
        validity: Validity,
    ) -> Result<Issued, PkiError> {
        let key = KeyPair::generate()?;
        let mut names = vec![identity.dns_name()];
        names.extend_from_slice(hosts);
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, identity.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes;
        params.use_authority_key_identifier_extension = true;
        set(&mut params, validity);
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}

/// The authority's name differs from that of any other cluster.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let id: String = params.key_identifier(key).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name.push(DnType::CommonName, format!("Espalier authority {id}"));
    params
}

fn set(params: &mut CertificateParams, validity: Validity) {
    params.not_before = validity.from.into();
    params.not_after = validity.until.into();
}

impl Issued {
    /// Writes both to new files; the key is readable by its owner only.
    pub fn write(&self, certificate: &Path, key: &Path) -> Result<(), PkiError> {
        // The key first: the certificate is worthless without it.
        for (path, mode, text) in [(key, 0o600, &self.key), (certificate, 0o644, &self.certificate)] {
            let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
            let written = file.and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            });
            written.map_err(|cause| match cause.kind() {
                io::ErrorKind::AlreadyExists => PkiError::Exists { path: path.to_path_buf() },
                _ => PkiError::File { path: path.to_path_buf(), cause },
            })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").finish_non_exhaustive()
    }
}
