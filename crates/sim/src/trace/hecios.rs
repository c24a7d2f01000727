//! HECIOS's traces of MPI programs: wu, Table 4.4; specified by "The Definition of PHTF (Parallel
//! Hecios Trace Format)", which HECIOS includes.
//!
//! A trace is a directory: `event.N` contains the operations of process N, `runtime.N` the values
//! at the addresses in it, and `fs.ini` the files that existed before and the values of MPI's
//! constants. A single event file has no such context.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use espalier_proto::SetAttr;

use super::{Act, BadLine, Expected, RecordedOp, Trace, TraceError, before, lines, read};
use crate::Nanos;
use crate::source::{Op, OpenFlags, Target};

/// Largest read or write in bytes.
const MOST_BYTES: u64 = 1 << 40;

/// MPI's modes of opening a file, the same in MPICH and Open MPI.
const MODES: [(u64, OpenFlags); 6] = [
    (1, OpenFlags::CREATE),
    (2, OpenFlags::READ),
    (4, OpenFlags::WRITE),
    (8, OpenFlags::READ.union(OpenFlags::WRITE)),
    (64, OpenFlags::EXCLUSIVE),
    (128, OpenFlags::APPEND),
];

/// An `.ini` file: keys and values by section.
#[derive(Default)]
struct Ini(BTreeMap<String, BTreeMap<String, String>>);

pub(super) fn is_record(line: &str) -> bool {
    let mut fields = line.split_whitespace();
    let (id, instruction) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    id.parse::<u64>().is_ok() && (instruction == "CPU_PHASE" || instruction.to_uppercase().starts_with("MPI"))
        || (id == "ID" && instruction == "Instruction")
}

pub(super) fn read_file(path: &Path, text: &str) -> Result<Trace, TraceError> {
    let mut trace = Trace::default();
    let entries = Events::new(&Ini::default(), &Ini::default()).parse(text, &mut trace.skipped);
    trace.processes.push(entries.map_err(|bad| bad.of(path))?);
    Ok(trace)
}

pub(super) fn read_directory(dir: &Path) -> Result<Trace, TraceError> {
    let cause = |cause| TraceError::Read { path: dir.into(), cause };
    let mut events: BTreeMap<u64, PathBuf> = BTreeMap::new();
    for entry in dir.read_dir().map_err(cause)? {
        let path = entry.map_err(cause)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(number) = name.strip_prefix("event.").and_then(|number| number.parse().ok()) {
            events.insert(number, path);
        }
    }
    if events.is_empty() {
        return Err(TraceError::Unknown { path: dir.into() });
    }
    let mut trace = Trace::default();
    let fs = read_ini(&dir.join("fs.ini"))?;
    let dirs: BTreeSet<&[u8]> =
        fs.section("FileSystem").flat_map(|(path, _)| before::dirs(path.as_bytes())).collect();
    // Parents come before their entries.
    trace.before = dirs.into_iter().map(Op::mkdir).collect();
    for (path, size) in fs.section("FileSystem") {
        let size = number(size).ok_or_else(|| {
            BadLine::new(0, format!("`{path}` has no size, but `{size}`")).of(&dir.join("fs.ini"))
        })?;
        before::make_file(path.as_bytes(), size, &mut trace.before);
    }
    for (number, path) in events {
        let runtime = read_ini(&dir.join(format!("runtime.{number}")))?;
        let entries = Events::new(&fs, &runtime).parse(&read(&path)?, &mut trace.skipped);
        trace.processes.push(entries.map_err(|bad| bad.of(&path))?);
    }
    Ok(trace)
}

impl Ini {
    fn section(&self, name: &str) -> impl Iterator<Item = (&String, &String)> {
        self.0.get(name).into_iter().flatten()
    }
}

/// Reads an `.ini` file; an absent one is empty.
fn read_ini(path: &Path) -> Result<Ini, TraceError> {
    if !path.exists() {
        return Ok(Ini::default());
    }
    let (mut ini, mut section) = (Ini::default(), String::new());
    for (line, text) in lines(&read(path)?) {
        let text = text.trim();
        if let Some(name) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            section = name.into();
        } else {
            let bad = || BadLine::new(line, "it is neither [SECTION] nor KEY=VALUE").of(path);
            let (key, value) = text.rsplit_once('=').ok_or_else(bad)?;
            ini.0.entry(section.clone()).or_default().insert(key.trim().into(), value.trim().into());
        }
    }
    Ok(ini)
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The events of a process.
struct Events {
    strings: BTreeMap<u64, String>,
    /// Values by address and number of the event from which they are valid.
    pointers: BTreeMap<(u64, u64), u64>,
    constants: BTreeMap<String, u64>,
    /// Number and offset of open files by their handles.
    open: BTreeMap<u64, (u32, u64)>,
    files: u32,
}

/// A line of events.
struct HeciosRecord<'a> {
    line: u64,
    id: u64,
    duration: Nanos,
    expected: Expected,
    parameters: Vec<&'a str>,
}

impl HeciosRecord<'_> {
    fn bad(&self, message: impl Into<String>) -> BadLine {
        BadLine::new(self.line, message)
    }

    fn text(&self, at: usize, message: &str) -> Result<&str, BadLine> {
        self.parameters.get(at).copied().ok_or_else(|| self.bad(format!("{message} is missing")))
    }

    fn number(&self, at: usize, message: &str) -> Result<u64, BadLine> {
        let text = self.text(at, message)?;
        number(text).ok_or_else(|| self.bad(format!("{message} is `{text}`, which is no number")))
    }
}

impl Events {
    fn new(fs: &Ini, runtime: &Ini) -> Self {
        let constants = fs.section("Const").filter_map(|(name, value)| Some((name.clone(), number(value)?)));
        let strings = runtime.section("String").filter_map(|(at, text)| Some((number(at)?, text.clone())));
        let pointers = runtime.section("Pointer").filter_map(|(at, to)| {
            let (at, since) = at.split_once('@').unwrap_or((at, "0"));
            Some(((number(at)?, number(since)?), number(to)?))
        });
        Self {
            strings: strings.collect(),
            pointers: pointers.collect(),
            constants: constants.collect(),
            open: BTreeMap::new(),
            files: 0,
        }
    }

    fn parse(mut self, text: &str, skipped: &mut BTreeMap<String, u64>) -> Result<Vec<RecordedOp>, BadLine> {
        let (mut entries, mut pause) = (Vec::new(), Nanos::ZERO);
        for (line, text) in lines(text) {
            let fields: Vec<&str> = text.split_whitespace().collect();
            // The heading of Table 4.4, and its ellipsis.
            if matches!(fields.as_slice(), ["ID", ..] | ["..."]) {
                continue;
            }
            let bad = |message: &str| BadLine::new(line, message);
            let [id, instruction, start, duration, ..] = *fields else {
                return Err(bad("it is ID, instruction, start time, duration, return value and parameters"));
            };
            let seconds = |text: &str, message: &str| {
                let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e9).contains(seconds));
                seconds.ok_or_else(|| {
                    BadLine::new(line, format!("{message} is `{text}`, which is no time in seconds"))
                })
            };
            seconds(start, "the start time")?;
            let expected = match fields.get(4).map(|text| number(text)) {
                None | Some(Some(0)) => Expected::Success,
                Some(_) => Expected::AnyError,
            };
            let record = HeciosRecord {
                line,
                id: id.parse().map_err(|_| bad("the ID is no number"))?,
                duration: Nanos::from_secs_f64(seconds(duration, "the duration")?),
                expected,
                parameters: fields.into_iter().skip(5).collect(),
            };
            let instruction = instruction.to_uppercase();
            if instruction == "CPU_PHASE" {
                pause += record.duration;
                continue;
            }
            match self.act(&instruction, &record)? {
                Some(act) => {
                    entries.push(RecordedOp { line, pause, act, after: Vec::new() });
                    pause = Nanos::ZERO;
                }
                None => *skipped.entry(instruction).or_default() += 1,
            }
        }
        Ok(entries)
    }

    fn act(&mut self, instruction: &str, record: &HeciosRecord<'_>) -> Result<Option<Act>, BadLine> {
        let call = instruction.strip_prefix("MPI_").unwrap_or(instruction);
        let op = match call.strip_prefix("FILE_").unwrap_or(call) {
            "BARRIER" if self.is_world(record)? => return Ok(Some(Act::Barrier)),
            "OPEN" => self.open(record)?,
            "CLOSE" => {
                let handle = self.handle(record.number(0, "the file handle")?, record.id);
                let (file, _) = self.open.remove(&handle).ok_or_else(|| not_open(record))?;
                Op::Close { file }
            }
            "DELETE" => Op::unlink(self.path(record, 0)?),
            "SYNC" => Op::Sync { file: self.file(record)?.0 },
            "GET_SIZE" => Op::Stat { target: Target::File(self.file(record)?.0) },
            "SET_SIZE" => {
                let size = Some(record.number(1, "the size")?);
                let target = Target::File(self.file(record)?.0);
                Op::SetAttr { target, set: SetAttr { size, ..SetAttr::default() } }
            }
            "SEEK" => self.seek(record)?,
            "READ_AT" | "READ_AT_ALL" | "IREAD_AT" => self.moves(record, true, true)?,
            "WRITE_AT" | "WRITE_AT_ALL" | "IWRITE_AT" => self.moves(record, false, true)?,
            "READ" | "READ_ALL" | "IREAD" => self.moves(record, true, false)?,
            "WRITE" | "WRITE_ALL" | "IWRITE" => self.moves(record, false, false)?,
            _ => return Ok(None),
        };
        Ok(Some(Act::Do(op, record.expected)))
    }

    /// True if the communicator contains all processes; no other communicator is supported.
    fn is_world(&self, record: &HeciosRecord<'_>) -> Result<bool, BadLine> {
        let Some(world) = self.constants.get("MPI_COMM_WORLD") else { return Ok(true) };
        Ok(record.number(0, "the communicator")? == *world)
    }

    fn open(&mut self, record: &HeciosRecord<'_>) -> Result<Op, BadLine> {
        let (path, mode) = (self.path(record, 1)?, record.number(2, "the mode")?);
        let mut flags = OpenFlags::empty();
        MODES.iter().filter(|(bit, _)| mode & bit != 0).for_each(|(_, flag)| flags |= *flag);
        self.files += 1;
        // A file that could not be opened has no handle.
        if record.expected == Expected::Success {
            // The handle is returned, so a pointer to it may be valid from the next event on.
            let at = record.number(4, "the file handle")?;
            let handle = self.handle(at, record.id.saturating_add(1));
            self.open.insert(handle, (self.files, 0));
        }
        Ok(Op::open(self.files, path, flags))
    }

    /// The handle stored at an address, or given directly.
    fn handle(&self, address: u64, id: u64) -> u64 {
        let before = self.pointers.range((address, 0)..=(address, id)).next_back();
        before.map_or(address, |(_, handle)| *handle)
    }

    /// A path, given directly or by its address.
    fn path(&self, record: &HeciosRecord<'_>, at: usize) -> Result<Vec<u8>, BadLine> {
        let text = record.text(at, "the file's name")?;
        let Some(address) = text.strip_prefix("0x").and_then(|_| number(text)) else {
            return Ok(text.as_bytes().to_vec());
        };
        let string = self.strings.get(&address);
        let missing =
            || record.bad(format!("the file's name is at {text}, where the runtime file has no string"));
        Ok(string.ok_or_else(missing)?.as_bytes().to_vec())
    }

    fn file(&mut self, record: &HeciosRecord<'_>) -> Result<&mut (u32, u64), BadLine> {
        let handle = self.handle(record.number(0, "the file handle")?, record.id);
        self.open.get_mut(&handle).ok_or_else(|| not_open(record))
    }

    fn seek(&mut self, record: &HeciosRecord<'_>) -> Result<Op, BadLine> {
        let by = record.number(1, "the offset")?;
        let whence = record.number(2, "the place to seek from")?;
        let is_from_here = self.constants.get("MPI_SEEK_CUR").map_or(whence == 602, |cur| *cur == whence);
        let is_from_start = self.constants.get("MPI_SEEK_SET").map_or(whence == 600, |set| *set == whence);
        let (file, offset) = self.file(record)?;
        *offset = match (is_from_start, is_from_here) {
            (true, _) => by,
            (_, true) => offset.saturating_add(by),
            _ => {
                return Err(record.bad("where the file ends is not known, so it cannot be sought from there"));
            }
        };
        Ok(Op::Seek { file: *file, offset: *offset })
    }

    /// A read or a write. Elements count as bytes, since the trace does not contain their type.
    fn moves(&mut self, record: &HeciosRecord<'_>, reads: bool, is_at: bool) -> Result<Op, BadLine> {
        let offset = if is_at { Some(record.number(1, "the offset")?) } else { None };
        let size = record.number(if is_at { 3 } else { 2 }, "the count")?;
        if size > MOST_BYTES {
            return Err(record.bad(format!("the count is {size}, which is more than a simulation can hold")));
        }
        let (file, place) = self.file(record)?;
        if !is_at {
            *place = place.saturating_add(size);
        }
        let file = *file;
        Ok(if reads { Op::Read { file, offset, size } } else { Op::Write { file, offset, size } })
    }
}

fn not_open(record: &HeciosRecord<'_>) -> BadLine {
    record.bad("the file handle is of no file that has been opened before")
}
