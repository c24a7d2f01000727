//! Encoding of keys for librados, whose listings begin after a string without NUL bytes.
//!
//! The bytes 0 to 2 become 2 and 1 to 3; byte 1 ends the key. The order of keys is preserved, and
//! no key is empty or a prefix of another one, so a listing can also begin *at* a key: after the
//! key without its end.

const END: u8 = 1;
const ESCAPE: u8 = 2;

/// The encoded key without its end.
pub fn start(key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(key.len() + 8);
    for &byte in key {
        match byte {
            0..=ESCAPE => encoded.extend([ESCAPE, byte + 1]),
            byte => encoded.push(byte),
        }
    }
    encoded
}

pub fn encode(key: &[u8]) -> Vec<u8> {
    let mut encoded = start(key);
    encoded.push(END);
    encoded
}

/// Inverse of [`encode`]; `None` for other bytes.
pub fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    let (&END, encoded) = encoded.split_last()? else { return None };
    let mut key = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.iter();
    while let Some(&byte) = bytes.next() {
        key.push(match byte {
            ESCAPE => bytes.next()?.checked_sub(1).filter(|byte| *byte <= ESCAPE)?,
            0 | END => return None,
            byte => byte,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_preserves_keys_and_their_order() {
        let mut keys = vec![vec![]];
        for _ in 0..4 {
            for key in keys.clone() {
                keys.extend([0, 1, 2, 3, 4, 255].map(|byte| [&key[..], &[byte]].concat()));
            }
            keys.sort();
            keys.dedup();
        }
        for key in &keys {
            assert_eq!(decode(&encode(key)).as_ref(), Some(key));
            assert!(!encode(key).contains(&0) && start(key) < encode(key));
        }
        for pair in keys.windows(2) {
            assert!(encode(&pair[0]) < start(&pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn other_bytes_are_no_key() {
        for bytes in [&b""[..], b"a", b"\x02\x01", b"\x02\x05\x01", b"\x02\x00\x01", b"\x01\x01", b"\0\x01"] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }
}
