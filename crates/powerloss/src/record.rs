//! The record of a disk: its writes and flushes, in order.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// A request to the disk, or a workload's mark at this point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// All writes before it survive a loss of power.
    Flush,
    Mark(String),
}

/// A record being written.
pub struct Recorder(BufWriter<File>);

const WRITE: u8 = b'w';
const FLUSH: u8 = b'f';
const MARK: u8 = b'm';

impl Recorder {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(BufWriter::with_capacity(1 << 20, file)))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all(&[WRITE])?;
        self.0.write_all(&offset.to_le_bytes())?;
        self.bytes(data)
    }

    pub fn flush(&mut self) -> io::Result<()> {
        self.0.write_all(&[FLUSH])
    }

    pub fn mark(&mut self, text: &[u8]) -> io::Result<()> {
        self.0.write_all(&[MARK])?;
        self.bytes(text)
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(&(bytes.len() as u64).to_le_bytes())?;
        self.0.write_all(bytes)
    }
}

/// Reads a whole record.
pub fn read(path: &Path) -> Result<Vec<LogEntry>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut from = BufReader::with_capacity(1 << 20, file);
    let mut entries = Vec::new();
    let mut tag = [0];
    loop {
        match from.read_exact(&mut tag) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(entries),
            outcome => outcome?,
        }
        entries.push(match tag[0] {
            WRITE => LogEntry::Write { offset: number(&mut from)?, data: bytes(&mut from)? },
            FLUSH => LogEntry::Flush,
            MARK => LogEntry::Mark(String::from_utf8(bytes(&mut from)?)?),
            other => bail!("a record has no entries of kind {other}"),
        });
    }
}

fn number(from: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn bytes(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = number(from)?;
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { bail!("the record was cut off") }
}
