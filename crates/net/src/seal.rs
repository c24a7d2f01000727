//! Seals: a secret that the servers of a cluster share and clients do not know.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};
use thiserror::Error;

/// An HMAC-SHA-256 key.
#[derive(Clone)]
pub struct SealKey(hmac::Key);

/// Why there is no key.
#[derive(Debug, Error)]
pub enum SealError {
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("{} holds no key: it is to be 64 hexadecimal digits, the same on all servers of a cluster", path.display())]
    Key { path: PathBuf },
    #[error("no random bytes can be had")]
    Random,
}

impl SealKey {
    pub const BYTES: usize = digest::SHA256_OUTPUT_LEN;

    /// The text form of a new key, for [`Self::write`].
    ///
    /// # Errors
    /// [`SealError::Random`].
    pub fn generate() -> Result<String, SealError> {
        let mut bytes = [0; Self::BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| SealError::Random)?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Writes the text form of a key to a new file that only its owner may read.
    ///
    /// # Errors
    /// [`SealError::File`], also if the file exists.
    pub fn write(text: &str, path: &Path) -> Result<(), SealError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let written = file.and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.sync_all()
        });
        written.map_err(|cause| SealError::File { path: path.to_path_buf(), cause })
    }

    /// # Errors
    /// [`SealError::File`], [`SealError::Key`].
    pub fn load(path: &Path) -> Result<Self, SealError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| SealError::File { path: path.to_path_buf(), cause })?;
        Self::of(text.trim()).ok_or_else(|| SealError::Key { path: path.to_path_buf() })
    }

    fn of(text: &str) -> Option<Self> {
        if text.len() != 2 * Self::BYTES || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Vec<u8> = (0..Self::BYTES).map(byte).collect::<Option<_>>()?;
        Some(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    pub fn seal(&self, bytes: &[u8]) -> [u8; Self::BYTES] {
        let mut seal = [0; Self::BYTES];
        seal.copy_from_slice(hmac::sign(&self.0, bytes).as_ref());
        seal
    }

    /// True if `seal` was made of these bytes with this key.
    pub fn is_sealed(&self, bytes: &[u8], seal: &[u8; Self::BYTES]) -> bool {
        hmac::verify(&self.0, bytes, seal).is_ok()
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn seals_are_of_their_bytes_and_their_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("key");
        let key = |text: &str| {
            SealKey::write(text, &path)?;
            SealKey::load(&path)
        };
        let one = key(&SealKey::generate().expect("random bytes")).expect("a key");
        assert_eq!(std::fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        assert!(matches!(key(""), Err(SealError::File { .. })), "nothing is written over");
        let other = SealKey::of(&SealKey::generate().expect("random bytes")).expect("a key");
        let seal = one.seal(b"bytes");
        assert!(SealKey::load(&path).expect("a key").is_sealed(b"bytes", &seal));
        assert!(!one.is_sealed(b"byte", &seal) && !other.is_sealed(b"bytes", &seal));
        for bad in ["12", &"g".repeat(64), &"é".repeat(32)] {
            assert!(SealKey::of(bad).is_none(), "{bad}");
        }
    }

    /// RFC 4231's test case 1 uses another key length; this is the HMAC-SHA-256 of nothing with 32
    /// zero bytes.
    #[test]
    fn seals_are_hmac_sha_256() {
        let key = SealKey::of(&"00".repeat(32)).expect("a key");
        let hex: String = key.seal(b"").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
    }
}
