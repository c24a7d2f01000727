//! A client's journal in a file: what `espalier journal export` writes. It is read completely
//! before a record is used, so a damaged file merges nothing.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use espalier_meta::{Decoupled, Inode, MergeRecord, decode, encode};
use espalier_proto::{Attr, Ino, Name};
use serde::{Deserialize, Serialize};

use super::{BigFile, ClientJournal, Merged, NamespaceOrigin, WriteBytes, Xattrs};
use crate::error::Error;
use crate::framed::{FrameError, FrameReader, FrameWriter, HEADER_BYTES, MAX_BODY, decode_header};

const TITLE: &[u8] = b"Espalier client journal, format 1\n";
/// The part of the line that names the kind of file.
const KIND: &[u8] = b"Espalier client journal, format ";

#[derive(Serialize, Deserialize)]
enum JournalItem {
    Head(Box<JournalHead>),
    Record(MergeRecord),
    /// A big file, followed by its bytes.
    Big {
        inode: Box<Inode>,
        xattrs: Xattrs,
        names: Vec<(Ino, Name)>,
        attr: Box<Attr>,
    },
    Extent {
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    End {
        records: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct JournalHead {
    origin: NamespaceOrigin,
    root: Inode,
    root_xattrs: Xattrs,
    /// Number of records.
    records: u64,
    digest: u64,
}

/// Writes a client's journal. `progress` receives the number of records.
///
/// # Errors
/// Those of the journal; [`Error::Io`] if it cannot be written.
pub fn export_journal(
    journal: &dyn ClientJournal,
    out: &mut dyn Write,
    progress: impl Fn(u64),
) -> Result<(), Error> {
    let mut writer = FrameWriter::new(out);
    writer.write(TITLE).map_err(write_failed)?;
    let head = JournalHead {
        origin: journal.origin().clone(),
        root: journal.root().clone(),
        root_xattrs: journal.root_xattrs()?,
        records: journal.len(),
        digest: journal.digest(),
    };
    put(&mut writer, &JournalItem::Head(Box::new(head)))?;
    for number in 0..journal.len() {
        match journal.record(number)? {
            Merged::Record(record) => put(&mut writer, &JournalItem::Record(record))?,
            Merged::Big(file) => {
                let (inode, xattrs) = (Box::new(file.inode.clone()), file.xattrs.clone());
                let (names, attr) = (file.names.clone(), Box::new(file.attr));
                put(&mut writer, &JournalItem::Big { inode, xattrs, names, attr })?;
                journal.read_big(&file, &mut |offset, bytes| {
                    put(&mut writer, &JournalItem::Extent { offset, bytes: bytes.to_vec() })
                })?;
            }
        }
        progress(number + 1);
    }
    put(&mut writer, &JournalItem::End { records: journal.len() })?;
    writer.out.flush().map_err(write_failed)
}

fn put(writer: &mut FrameWriter<'_>, item: &JournalItem) -> Result<(), Error> {
    writer.frame(&encode(item)).map_err(write_failed)
}

fn write_failed(source: std::io::Error) -> Error {
    Error::Io { context: "cannot write the journal".into(), source }
}

/// An open file with a client's journal.
pub struct JournalFile {
    path: PathBuf,
    file: File,
    head: JournalHead,
    /// Offsets of the records' frames.
    offsets: Vec<u64>,
}

impl JournalFile {
    /// Opens a file and checks all of it.
    ///
    /// # Errors
    /// - [`Error::NoJournalFile`]: it is not a client's journal, or of a newer format.
    /// - [`Error::DamagedJournal`]: it is cut off or changed.
    /// - [`Error::Unmergeable`]: an inode has a number outside the provisioned range.
    /// - [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { context: format!("cannot read {}", path.display()), source };
        let file = File::open(path).map_err(failed)?;
        let mut input = BufReader::new(&file);
        read_title(path, &mut input)?;
        let mut reader = FrameReader::new(&mut input, TITLE.len());
        let mut next = || -> Result<(u64, JournalItem), Error> {
            let offset = reader.offset;
            let damaged = |why| Error::DamagedJournal { path: path.into(), offset, why };
            let fault = |error| match error {
                FrameError::Damaged(why) => damaged(why),
                FrameError::Io(cause) => failed(cause),
            };
            reader.read().map_err(fault)?;
            let item =
                decode(&reader.body).map_err(|_| damaged("an item is none that this version knows"))?;
            if matches!(item, JournalItem::End { .. }) && !reader.is_end().map_err(fault)? {
                return Err(damaged("something follows its end"));
            }
            Ok((offset, item))
        };
        let misplaced = |offset| {
            let why = "an item is not at its place";
            Error::DamagedJournal { path: path.into(), offset, why }
        };
        let (offset, JournalItem::Head(head)) = next()? else { return Err(misplaced(TITLE.len() as u64)) };
        let (mut offsets, mut in_big, _) = (Vec::new(), false, offset);
        loop {
            match next()? {
                (offset, JournalItem::Record(record)) => {
                    check_number(&head.origin.decoupled, &record)?;
                    offsets.push(offset);
                    in_big = false;
                }
                (offset, JournalItem::Big { .. }) => {
                    offsets.push(offset);
                    in_big = true;
                }
                (_, JournalItem::Extent { .. }) if in_big => {}
                (_, JournalItem::End { records })
                    if records == head.records && records == offsets.len() as u64 =>
                {
                    break;
                }
                (offset, _) => return Err(misplaced(offset)),
            }
        }
        Ok(Self { path: path.into(), file, head: *head, offsets })
    }

    /// The item at an offset, and the offset after it.
    fn item(&self, offset: u64) -> Result<(JournalItem, u64), Error> {
        let context = || format!("cannot read {}", self.path.display());
        let failed = |source| Error::Io { context: context(), source };
        let mut header = [0; HEADER_BYTES];
        self.file.read_exact_at(&mut header, offset).map_err(failed)?;
        let (length, _) = decode_header(header);
        let changed = || {
            let why = "it has changed since it was opened";
            Error::DamagedJournal { path: self.path.clone(), offset, why }
        };
        if length > MAX_BODY {
            return Err(changed());
        }
        let mut body = vec![0; length];
        let begin = offset + HEADER_BYTES as u64;
        self.file.read_exact_at(&mut body, begin).map_err(failed)?;
        let item = decode(&body).map_err(|_| changed())?;
        Ok((item, begin + length as u64))
    }

    fn offset_of(&self, number: u64) -> Result<u64, Error> {
        self.offsets.get(number as usize).copied().ok_or_else(super::damaged)
    }
}

/// Checks the first line.
fn read_title(path: &Path, input: &mut impl Read) -> Result<(), Error> {
    let mut title = [0; TITLE.len()];
    let is_read = input.read_exact(&mut title).is_ok();
    match is_read && title == TITLE {
        true => Ok(()),
        false => Err(Error::NoJournalFile {
            path: path.into(),
            why: match title.starts_with(KIND) {
                true => "it has another format: use the version that wrote it",
                false => "it does not begin as one",
            },
        }),
    }
}

/// Checks that an inode's number is of the provisioned range.
pub(super) fn check_number(decoupled: &Decoupled, record: &MergeRecord) -> Result<(), Error> {
    let MergeRecord::Create { inode, .. } = record else { return Ok(()) };
    let Decoupled { first, inodes, .. } = *decoupled;
    match inode.ino.0.checked_sub(first.0) {
        Some(at) if at < inodes => Ok(()),
        _ => Err(Error::Unmergeable(inode.ino, "the number is outside the range of the namespace")),
    }
}

impl ClientJournal for JournalFile {
    fn origin(&self) -> &NamespaceOrigin {
        &self.head.origin
    }

    fn root(&self) -> &Inode {
        &self.head.root
    }

    fn root_xattrs(&self) -> Result<Xattrs, Error> {
        Ok(self.head.root_xattrs.clone())
    }

    fn len(&self) -> u64 {
        self.head.records
    }

    fn digest(&self) -> u64 {
        self.head.digest
    }

    fn record(&self, number: u64) -> Result<Merged, Error> {
        match self.item(self.offset_of(number)?)? {
            (JournalItem::Record(record), _) => Ok(Merged::Record(record)),
            (JournalItem::Big { inode, xattrs, names, attr }, _) => {
                let (inode, attr) = (*inode, *attr);
                Ok(Merged::Big(Box::new(BigFile { inode, xattrs, names, attr, number })))
            }
            _ => Err(super::damaged()),
        }
    }

    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error> {
        let (_, mut at) = self.item(self.offset_of(file.number)?)?;
        while let (JournalItem::Extent { offset, bytes }, next) = self.item(at)? {
            write(offset, &bytes)?;
            at = next;
        }
        Ok(())
    }

    fn path_of(&self, number: u64) -> Vec<u8> {
        let mut names = HashMap::new();
        let (mut path, mut at) = (Vec::new(), None);
        for number in 0..=number {
            at = match self.record(number) {
                Ok(Merged::Record(MergeRecord::Create { dir, name, inode, .. })) => {
                    names.insert(inode.ino, (dir, name));
                    Some(inode.ino)
                }
                Ok(Merged::Record(MergeRecord::Link { ino, .. } | MergeRecord::Finish { ino, .. })) => {
                    Some(ino)
                }
                Ok(Merged::Big(mut file)) => {
                    names.insert(Ino(0), file.names.swap_remove(0));
                    Some(Ino(0))
                }
                // Only a sync has others.
                Ok(Merged::Record(_)) | Err(_) => None,
            };
        }
        while let Some((dir, name)) = at.and_then(|at| names.get(&at)) {
            let below = std::mem::replace(&mut path, name.to_vec());
            if !below.is_empty() {
                path.push(b'/');
                path.extend(below);
            }
            at = Some(*dir);
        }
        path
    }
}
