//! What shows a server that was started anew that a client has been told of an inode, or has opened it, without anybody remembering it:
//! a number that only who has the file system's key can make. It is good for as long as the inode is. A client gains nothing by
//! keeping it: it might have kept the file open.

use core::hash::Hasher;

use espalier_proto::{Access, ClientId, Ino};
use siphasher::sip::SipHasher24;

use crate::machine::Meta;

/// What a client can prove of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proven {
    /// It has been told of it by name, or made it.
    Told,
    /// It has opened it.
    Opened,
    /// It has opened it for writing.
    OpenedToWrite,
}

impl Proven {
    pub(crate) fn opened(access: Access) -> Self {
        if access.contains(Access::WRITE) { Self::OpenedToWrite } else { Self::Opened }
    }
}

impl Meta {
    /// For a client that may have to prove it.
    pub(crate) fn proof(&self, client: ClientId, ino: Ino, what: Proven) -> u64 {
        if self.config.session_ms.is_none() {
            return 0;
        }
        prove(&self.state.hash_key, client, ino, what)
    }
}

/// The key also hashes names, of which clients learn the hashes: no name begins with NUL.
pub(super) fn prove(key: &[u8; 16], client: ClientId, ino: Ino, what: Proven) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&[0, what as u8]);
    hasher.write(&client.0.to_be_bytes());
    hasher.write(&ino.0.to_be_bytes());
    hasher.finish()
}
