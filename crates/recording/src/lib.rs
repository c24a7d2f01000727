//! The lines of a recording of a mount, one for each call: the call, its time, its caller and its
//! outcome. Of bytes read and written only the number is recorded.
#![forbid(unsafe_code)]

use std::io;

use espalier_client::{Answer, Call, RangeCall};
use espalier_proto::{Attr, Errno, FileType, Ino, Name, RangeOp, Request};
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;

/// A completed call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time of arrival, in nanoseconds since the start of the recording.
    pub at: u64,
    /// Duration in nanoseconds.
    pub took: u64,
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    #[serde(rename = "asked")]
    pub recorded: RecordedRequest,
    #[serde(flatten)]
    pub observed: Observed,
    /// Earlier calls that are missing from the recording, since the disk was too slow.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost: u64,
}

fn is_none(lost: &u64) -> bool {
    *lost == 0
}

/// As [`Call`], without bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedRequest {
    Request(Request),
    Range { ino: Ino, op: RangeOp, noatime: bool, kill_suid_gid: bool },
    Release { ino: Ino },
}

/// The part of a reply that is needed to replay later calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Errno>,
    /// The inode of a name, or the inode itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
    /// Entries of a listing with attributes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<(Name, Inode)>,
    /// Bytes read or written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_bytes")]
    pub target: Option<Vec<u8>>,
}

/// An inode, as far as needed to create one like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    pub ino: Ino,
    pub kind: FileType,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
}

impl From<&Attr> for Inode {
    fn from(attr: &Attr) -> Self {
        let Attr { ino, kind, perm, uid, gid, size, .. } = *attr;
        Self { ino, kind, perm, uid, gid, size }
    }
}

impl From<&Call<'_>> for RecordedRequest {
    fn from(call: &Call<'_>) -> Self {
        match *call {
            Call::Request(ref request) => Self::Request(request.clone()),
            Call::Range(RangeCall { ino, op, noatime, kill_suid_gid, .. }) => {
                Self::Range { ino, op, noatime, kill_suid_gid }
            }
            Call::Release { ino } => Self::Release { ino },
        }
    }
}

impl RecordedRequest {
    /// The call; `bytes` makes the contents of a write from its length.
    pub fn call(&self, bytes: impl FnOnce(usize) -> Vec<u8>) -> Call<'static> {
        match *self {
            Self::Request(ref request) => Call::Request(request.clone()),
            Self::Range { ino, op, noatime, kill_suid_gid } => {
                let length = if let RangeOp::Write { length, .. } = op { length } else { 0 };
                let data = bytes(length as usize).into();
                Call::Range(RangeCall { ino, op, data, noatime, kill_suid_gid })
            }
            Self::Release { ino } => Call::Release { ino },
        }
    }

    /// The inodes that the call refers to.
    pub fn each_inode(&mut self, see: &mut dyn FnMut(&mut Ino)) {
        match self {
            Self::Request(request) => request.each_inode(see),
            Self::Range { ino, op, .. } => {
                if let RangeOp::Copy { from, .. } = op {
                    see(from);
                }
                see(ino);
            }
            Self::Release { ino } => see(ino),
        }
    }
}

impl Observed {
    pub fn new(result: Result<&Answer, Errno>) -> Self {
        let answer = match result {
            Ok(answer) => answer,
            Err(errno) => return Self { error: Some(errno), ..Self::default() },
        };
        match answer {
            Answer::Absent { .. } => Self { error: Some(Errno::ENOENT), ..Self::default() },
            Answer::Entry(entry) | Answer::Unmeasured(entry) | Answer::Created(entry, _) => {
                Self { inode: Some((&entry.attr).into()), ..Self::default() }
            }
            Answer::Attr(attr) => Self { inode: Some(attr.into()), ..Self::default() },
            Answer::Written(bytes) => Self { bytes: Some(u64::from(*bytes)), ..Self::default() },
            Answer::Listing { entries, .. } => {
                let inode = |dirent: &espalier_proto::Dirent| {
                    Some((dirent.name.clone(), Inode::from(&dirent.entry.as_ref()?.attr)))
                };
                Self { entries: entries.iter().filter_map(inode).collect(), ..Self::default() }
            }
            Answer::Bytes(_)
            | Answer::Done
            | Answer::Offset(_)
            | Answer::Opened(_)
            | Answer::StatFs(_)
            | Answer::Removed { .. }
            | Answer::Copied(_)
            | Answer::InTheWay(_) => Self::default(),
        }
    }

    /// The result of a read: the length for a file, the target for a link.
    pub fn data(recorded: &RecordedRequest, data: &[u8]) -> Self {
        match recorded {
            RecordedRequest::Request(Request::ReadLink { .. }) => {
                Self { target: Some(data.into()), ..Self::default() }
            }
            _ => Self { bytes: Some(data.len() as u64), ..Self::default() },
        }
    }
}

impl Line {
    /// Writes the line with its newline.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, writer: &mut impl io::Write) -> io::Result<()> {
        self.serialize(&mut serde_json::Serializer::with_formatter(&mut *writer, JsonNames))?;
        writer.write_all(b"\n")
    }

    /// # Errors
    /// The line is malformed.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

/// JSON with names as strings if they are UTF-8, otherwise as arrays of bytes.
struct JsonNames;

impl Formatter for JsonNames {
    fn write_byte_array<W: ?Sized + io::Write>(&mut self, writer: &mut W, bytes: &[u8]) -> io::Result<()> {
        let written = match std::str::from_utf8(bytes) {
            Ok(text) => serde_json::to_writer(writer, text),
            Err(_) => serde_json::to_writer(writer, &bytes),
        };
        written.map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use espalier_proto::NewNode;

    use super::*;

    fn line(name: &[u8]) -> Line {
        let name = Name::new(name).expect("a name");
        let node = NewNode::Symlink(b"there".as_slice().into());
        let request = Request::Create {
            dir: Ino(1),
            name,
            node,
            perm: 0o777,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        };
        let kind = FileType::Symlink;
        let inode = Some(Inode { ino: Ino(9), kind, perm: 0o777, uid: 0, gid: 0, size: 5 });
        let observed = Observed { inode, ..Observed::default() };
        Line {
            at: 1,
            took: 2,
            pid: 3,
            uid: 0,
            gid: 0,
            recorded: RecordedRequest::Request(request),
            observed,
            lost: 0,
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        for name in [b"a \"name\"\n".as_slice(), b"\xff\x00".strip_suffix(b"\x00").expect("it ends so")] {
            let mut text = Vec::new();
            line(name).write(&mut text).expect("memory");
            let text = String::from_utf8(text).expect("JSON");
            assert_eq!(text.lines().count(), 1);
            assert_eq!(Line::parse(&text).expect("a line"), line(name));
        }
    }

    #[test]
    fn names_can_be_read() {
        let mut text = Vec::new();
        line("né".as_bytes()).write(&mut text).expect("memory");
        let text = String::from_utf8(text).expect("JSON");
        assert!(text.contains("\"name\":\"né\"") && text.contains("\"Symlink\":\"there\""), "{text}");
    }
}
