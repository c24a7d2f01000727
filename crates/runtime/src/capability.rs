//! Seals of capabilities: each is valid for one client at one data server.

use std::hash::Hasher;

use espalier_net::{Identity, SealKey};
use espalier_proto::{Capability, ClientId};
use siphasher::sip::SipHasher24;

/// A client as all servers of the cluster identify it: by its certificate and its own number.
#[derive(Clone, Debug)]
pub struct Holder {
    identity: String,
    client: ClientId,
}

impl Holder {
    /// `identity`: `None` where clients have no certificates.
    pub fn new(identity: Option<&Identity>, client: ClientId) -> Self {
        Self { identity: identity.map(ToString::to_string).unwrap_or_default(), client }
    }

    pub fn seal(&self, capability: &mut Capability, key: &SealKey) {
        capability.seal = key.seal(&self.bytes(capability));
    }

    pub fn has(&self, capability: &Capability, key: &SealKey) -> bool {
        key.is_sealed(&self.bytes(capability), &capability.seal)
    }

    /// A session number that cannot be computed without the secret.
    pub fn number(&self, secret: &[u8; 16]) -> ClientId {
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(self.identity.as_bytes());
        hasher.write_u64(self.client.0);
        ClientId(hasher.finish())
    }

    /// Only the last field has variable length, so different capabilities have different bytes.
    fn bytes(&self, capability: &Capability) -> Vec<u8> {
        let Capability { ino, access, server, incarnation, session, since, announced, seal: _ } = capability;
        let mut bytes = b"espalier capability 1".to_vec();
        bytes.extend(ino.0.to_be_bytes());
        bytes.extend(access.bits().to_be_bytes());
        bytes.extend(server.0.to_be_bytes());
        bytes.extend(incarnation.to_be_bytes());
        bytes.extend(session.to_be_bytes());
        bytes.extend(since.to_be_bytes());
        bytes.push((*announced).into());
        bytes.extend(self.client.0.to_be_bytes());
        bytes.extend(self.identity.as_bytes());
        bytes
    }
}
