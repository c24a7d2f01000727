//! The order of items in a dump.

use espalier_meta::Super;
use espalier_proto::{Ino, ObjectId, ObjectKind};

use super::frame::{Item, StoreRole};

/// The state after the items read so far.
#[derive(Default)]
pub(super) struct Order {
    begun: bool,
    /// The last record.
    record: Option<([u8; 13], Vec<u8>)>,
    stream: Option<StreamOrder>,
    records: u64,
    streams: u64,
    has_super: bool,
    part: Option<StoreRole>,
}

#[derive(Clone, Copy)]
struct StreamOrder {
    ino: Ino,
    size: u64,
    /// The end of the last extent.
    end: u64,
}

impl Order {
    /// Accepts the next item.
    ///
    /// # Errors
    /// Why the item cannot follow the previous ones.
    pub(super) fn accept(&mut self, item: &Item) -> Result<(), &'static str> {
        if matches!(item, Item::Head(_)) == self.begun {
            return Err("its head is not where it belongs");
        }
        self.begun = true;
        match item {
            Item::Head(_) => Ok(()),
            Item::Part(_) if self.part.is_some() || self.records + self.streams > 0 => {
                Err("what it is a part of is not where it belongs")
            }
            Item::Part(part) => {
                self.part = Some(*part);
                Ok(())
            }
            Item::Record { object, key, value } => self.record(*object, key, value),
            Item::Stream { ino, size, .. } => {
                if self.stream.is_some_and(|before| before.ino >= *ino) {
                    return Err("a big file is not where it belongs");
                }
                self.streams += 1;
                self.stream = Some(StreamOrder { ino: *ino, size: *size, end: 0 });
                Ok(())
            }
            Item::Extent { offset, bytes } => {
                let stream = self.stream.as_mut().ok_or("bytes belong to no file")?;
                let end = offset.checked_add(bytes.len() as u64);
                let end = end.filter(|&end| *offset >= stream.end && end <= stream.size);
                stream.end = end.ok_or("bytes of a big file are not where they belong")?;
                Ok(())
            }
            Item::End { records, streams } => {
                if (*records, *streams) != (self.records, self.streams) {
                    return Err("its last item counts more or fewer items than there are");
                }
                // A data server has no superblock record.
                if self.has_super || matches!(self.part, Some(StoreRole::Data(_))) {
                    Ok(())
                } else {
                    Err("the record about the whole file system is missing")
                }
            }
        }
    }

    fn record(&mut self, object: [u8; 13], key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let unknown = "a record is of no kind that this version knows";
        let id = ObjectId::from_bytes(object).ok_or(unknown)?;
        if id.kind == ObjectKind::Super {
            let known = id == ObjectId::SUPER && key.is_empty() && Super::parse(value).is_some();
            self.has_super = known.then_some(true).ok_or(unknown)?;
        }
        let before = self.record.as_ref().map(|(object, key)| (object, key.as_slice()));
        if self.stream.is_some() || before >= Some((&object, key)) {
            return Err("a record is not where it belongs");
        }
        self.records += 1;
        self.record = Some((object, key.to_vec()));
        Ok(())
    }
}
