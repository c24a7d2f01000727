//! Shared by these tests.

use std::path::Path;

use espalier_net::pki::{AUTHORITY, CERTIFICATE, Issued, KEY};
use espalier_net::{Message, Security};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A message without payload, as sent over the network.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plain<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + 'static> Message for Plain<T> {
    fn payload(&mut self) -> Option<&mut bytes::Bytes> {
        None
    }

    fn request(&self) -> Option<u64> {
        None
    }
}

/// Writes credentials to a directory below that of the authority, and loads them.
pub fn credentials(dir: &Path, name: &str, issued: &Issued) -> Security {
    let own = dir.join(name);
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(dir.join(AUTHORITY), own.join(AUTHORITY)).unwrap();
    issued.write(&own.join(CERTIFICATE), &own.join(KEY)).unwrap();
    Security::load_from(&own).unwrap()
}
