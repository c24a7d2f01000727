//! Contents of messages and frames that mutants change.

use espalier_meta::Event;

/// Bytes of the sequence number at the start of a frame.
const SEQUENCE: usize = 8;

pub(super) fn is_limit(name: &[u8]) -> bool {
    *name == *b"user.espalier.quota.max_files"
}

/// The mask of a list in the kernel's encoding.
pub(super) fn mask(list: &[u8]) -> Option<u32> {
    let entry = list.get(4..)?.chunks_exact(8).find(|entry| entry[0] == 16)?;
    Some(entry[2].into())
}

/// Adds to a decimal number.
pub(super) fn add(value: &mut Box<[u8]>, more: i64) {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    *value = number.map_or(0, |number| number + more).to_string().into_bytes().into();
}

/// Re-encodes a frame with changed events.
pub(super) fn changed(frame: &[u8], change: impl Fn(&mut Event)) -> Vec<u8> {
    let (sequence, mut rest) = frame.split_at(frame.len().min(SEQUENCE));
    let mut changed = sequence.to_vec();
    while let Ok((mut event, later)) = Event::decode(rest) {
        change(&mut event);
        event.encode(&mut changed);
        rest = later;
    }
    changed
}
