//! Compilation, by each process: each source includes headers, which are searched for in several
//! directories and exist in one; its object is written; at the end the objects are linked.

use serde::Deserialize;

use super::create::begin;
use super::script::{FILE, ScriptStep, make_file, only_if, read_file, script, write};
use super::workload::{Member, range, sizes};
use super::{Op, OpenFlags, Target};
use crate::{Bytes, Nanos};

/// Buffer size of linker and assembler in bytes.
const PIECE: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Compile {
    /// Number of sources per process.
    sources: u32,
    source_bytes: Bytes,
    /// Number of headers of all processes together.
    headers: u32,
    header_bytes: Bytes,
    /// Number of headers included by each source.
    includes: u32,
    /// Number of directories searched for headers; the headers are distributed over them.
    include_path: u32,
    object_bytes: Bytes,
    /// Computing time for each source.
    time: Nanos,
}

impl Default for Compile {
    fn default() -> Self {
        Self {
            sources: 20,
            source_bytes: Bytes(12_000),
            headers: 200,
            header_bytes: Bytes(6_000),
            includes: 40,
            include_path: 8,
            object_bytes: Bytes(60_000),
            time: Nanos::from_millis(100),
        }
    }
}

impl Compile {
    pub(super) fn check(&self) -> Result<(), String> {
        range("sources", u64::from(self.sources), 1, 1 << 20)?;
        range("headers", u64::from(self.headers), 1, 1 << 20)?;
        range("includes", u64::from(self.includes), 0, 1 << 20)?;
        range("include_path", u64::from(self.include_path), 1, 1 << 10)?;
        sizes([
            ("source_bytes", self.source_bytes),
            ("header_bytes", self.header_bytes),
            ("object_bytes", self.object_bytes),
        ])
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let (own, sources, settings) = (member.own(), self.sources, self.clone());
        let source = {
            let own = own.clone();
            move |number| format!("{own}/{number}.c")
        };
        let object = {
            let own = own.clone();
            move |number| format!("{own}/{number}.o")
        };
        let include_dirs = {
            let path = member.path("include");
            (0..self.include_path).map(move |dir| Op::mkdir(format!("{path}{dir}")).into())
        };
        let headers = {
            let (member, settings) = (member.clone(), self.clone());
            member.share(u64::from(self.headers)).flat_map(move |header| {
                let path = settings.header(&member, header as u32);
                make_file(path, settings.header_bytes.0, PIECE)
            })
        };
        let (source_bytes, program) = (self.source_bytes.0, format!("{own}/program"));
        let sources_made = {
            let source = source.clone();
            (0..sources).flat_map(move |number| make_file(source(number), source_bytes, PIECE))
        };
        let (member, objects) = (member.clone(), object.clone());
        begin(&member)
            .chain(only_if(member.is_first(), include_dirs))
            .chain(script([ScriptStep::Barrier, Op::mkdir(own).into()]))
            .chain(headers)
            .chain(sources_made)
            .chain(script([ScriptStep::Barrier]))
            .chain(
                (0..sources).flat_map(move |number| {
                    settings.compile(&member, number, source(number), object(number))
                }),
            )
            .chain((0..sources).flat_map(move |number| read_file(objects(number), PIECE)))
            .chain(output(&program, u64::from(sources) * self.object_bytes.0))
            .chain(script([Op::stat(program).into()]))
    }

    fn header(&self, member: &Member, number: u32) -> String {
        member.path(format_args!("include{}/{number}.h", number % self.include_path))
    }

    fn compile(&self, member: &Member, number: u32, source: String, object: String) -> Vec<ScriptStep> {
        let mut steps = vec![Op::stat(source.clone()).into()];
        steps.extend(read_file(source, PIECE));
        // Sources include different headers.
        for include in 0..self.includes {
            let header = number.wrapping_mul(7).wrapping_add(include) % self.headers;
            let missed = (0..header % self.include_path).map(|dir| {
                Op::open(FILE, member.path(format_args!("include{dir}/{header}.h")), OpenFlags::READ)
            });
            steps.extend(missed.map(ScriptStep::Do));
            let path = self.header(member, header);
            steps.push(Op::open(FILE, path, OpenFlags::READ).into());
            steps.push(Op::Stat { target: Target::File(FILE) }.into());
            steps.push(Op::Read { file: FILE, offset: None, size: self.header_bytes.0 }.into());
            steps.push(Op::Close { file: FILE }.into());
        }
        steps.push(ScriptStep::Pause(self.time));
        steps.extend(output(&object, self.object_bytes.0));
        steps
    }
}

/// Writes the output of a compiler or linker, replacing an existing file.
fn output(path: &str, bytes: u64) -> impl Iterator<Item = ScriptStep> + use<> {
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    [Op::unlink(path), Op::open(FILE, path, flags)]
        .into_iter()
        .chain(write(FILE, bytes, PIECE))
        .chain([Op::Close { file: FILE }])
        .map(ScriptStep::Do)
}
