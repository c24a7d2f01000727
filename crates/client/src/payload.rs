//! The data of a write, from the caller to the servers. It is copied once, when the call must wait.

use alloc::vec::Vec;
use core::ops::Deref;

use bytes::Bytes;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Borrowed from the caller, which waits.
    Borrowed(&'a [u8]),
    Shared(Bytes),
}

impl Payload<'_> {
    /// No data.
    pub const EMPTY: Self = Self::Borrowed(&[]);

    /// A copy that outlives the caller's buffer.
    pub fn into_owned(self) -> Payload<'static> {
        Payload::Shared(self.to_bytes())
    }

    /// Bytes to store and send.
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Self::Shared(bytes) => bytes.clone(),
        }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload<'_> {}

impl<'a> From<&'a [u8]> for Payload<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl From<Vec<u8>> for Payload<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Shared(bytes.into())
    }
}

impl From<Bytes> for Payload<'_> {
    fn from(bytes: Bytes) -> Self {
        Self::Shared(bytes)
    }
}
