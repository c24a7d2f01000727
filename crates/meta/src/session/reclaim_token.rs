//! Reclaim tokens: a keyed hash that proves, without server state, that a client has looked up or
//! opened an inode. Only the holder of the file system's key can compute one. It stays valid as
//! long as the inode exists: keeping one is worth no more than keeping the file open.

use core::hash::Hasher;

use espalier_proto::{Access, ClientId, Ino};
use siphasher::sip::SipHasher24;

use crate::machine::Meta;

/// The statement that a reclaim token proves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TokenKind {
    /// The client has looked up the inode by name, or made it.
    LookedUp,
    /// The client has opened it.
    Opened,
    /// The client has opened it for writing.
    OpenedToWrite,
}

impl TokenKind {
    pub(crate) fn opened(access: Access) -> Self {
        if access.contains(Access::WRITE) { Self::OpenedToWrite } else { Self::Opened }
    }
}

impl Meta {
    /// The reclaim token for a client; 0 if the machine has no sessions.
    pub(crate) fn reclaim_token(&self, client: ClientId, ino: Ino, token_kind: TokenKind) -> u64 {
        if self.config.session_ms.is_none() {
            return 0;
        }
        prove(&self.state.secret, client, ino, token_kind)
    }
}

/// The secret also makes the key of name hashes, from a text that is longer than a kind.
pub(super) fn prove(secret: &[u8; 16], client: ClientId, ino: Ino, token_kind: TokenKind) -> u64 {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&[0, token_kind as u8]);
    hasher.write(&client.0.to_be_bytes());
    hasher.write(&ino.0.to_be_bytes());
    hasher.finish()
}
