//! A build as of the Linux kernel, by each process in a tree of its own: unpack the sources,
//! configure, compile part of them, link (sevilla 2.1.4, 4.3.3). Few directories are hot at a time,
//! others in each phase. Processes meet between the phases.

use std::rc::Rc;

use rand::Rng;
use serde::Deserialize;

use super::create::begin;
use super::script::{FILE, ScriptStep, list, make_file, read_file, script, write};
use super::workload::{Member, range, sizes};
use super::{Op, OpenFlags, Target};
use crate::{Bytes, Nanos, Random, Seed};

/// Buffer size of all programs in bytes.
const PIECE: u64 = 1 << 16;

/// Top-level directories in the order of compilation, with the shares of the sources in percent,
/// and of these the part that is compiled.
const PARTS: [(&str, u32, f64); 7] = [
    ("arch", 14, 0.5),
    ("kernel", 8, 1.0),
    ("mm", 5, 1.0),
    ("fs", 15, 0.5),
    ("lib", 6, 0.5),
    ("net", 12, 0.3),
    ("drivers", 40, 0.1),
];

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Build {
    /// Number of sources in each process's tree.
    sources: u32,
    /// Number of headers in each process's tree.
    headers: u32,
    files_per_directory: u32,
    source_bytes: Bytes,
    header_bytes: Bytes,
    object_bytes: Bytes,
    /// Number of headers included by each source.
    includes: u32,
    /// Computing time for each compiled source.
    time: Nanos,
    /// Trees with the same number include the same headers.
    tree: u64,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            sources: 1000,
            headers: 200,
            files_per_directory: 20,
            source_bytes: Bytes(12_000),
            header_bytes: Bytes(6_000),
            object_bytes: Bytes(40_000),
            includes: 10,
            time: Nanos::from_millis(20),
            tree: 1,
        }
    }
}

/// A directory with sources.
struct SourceDir {
    path: String,
    sources: u32,
    /// Number of sources that are compiled.
    compiled: u32,
}

/// Directories of a process's tree.
struct BuildTree {
    settings: Build,
    own: String,
    dirs: Vec<SourceDir>,
    includes: Vec<String>,
}

impl Build {
    pub(super) fn check(&self) -> Result<(), String> {
        range("sources", u64::from(self.sources), 1, 1 << 20)?;
        range("headers", u64::from(self.headers), 1, 1 << 20)?;
        range("files_per_directory", u64::from(self.files_per_directory), 1, 1 << 20)?;
        range("includes", u64::from(self.includes), 0, 1 << 10)?;
        sizes([
            ("source_bytes", self.source_bytes),
            ("header_bytes", self.header_bytes),
            ("object_bytes", self.object_bytes),
        ])
    }

    pub(super) fn script(&self, member: &Member) -> impl Iterator<Item = ScriptStep> + use<> {
        let tree = Rc::new(self.tree(member.own()));
        let random = Seed(self.tree).random("build", member.number.into());
        let dirs = 0..tree.dirs.len();
        let [unpacked, configured, compiled, linked] = [(); 4].map(|()| Rc::clone(&tree));
        let compile = dirs.clone().scan(random, move |random, dir| Some(compiled.compile(dir, random)));
        begin(member)
            .chain(unpacked.made())
            .chain(dirs.clone().flat_map(move |dir| unpacked.unpack(dir)))
            .chain(script([ScriptStep::Barrier]))
            .chain(dirs.clone().flat_map(move |dir| configured.configure(dir)))
            .chain(script([ScriptStep::Barrier]))
            .chain(compile.flatten())
            .chain(script([ScriptStep::Barrier]))
            .chain(dirs.flat_map(move |dir| linked.link(dir)))
            .chain(output(&format!("{}/image", tree.own), 20 * self.object_bytes.0))
    }

    fn tree(&self, own: String) -> BuildTree {
        let mut dirs = Vec::new();
        for (name, share, part) in PARTS {
            let mut left = (self.sources * share).div_ceil(100);
            for number in 0..left.div_ceil(self.files_per_directory) {
                let top = format!("{own}/{name}");
                let path = if number == 0 { top } else { format!("{top}/d{number}") };
                let sources = left.min(self.files_per_directory);
                let compiled = (f64::from(sources) * part).ceil() as u32;
                dirs.push(SourceDir { path, sources, compiled });
                left -= sources;
            }
        }
        let count = self.headers.div_ceil(self.files_per_directory);
        let include = |number| match number {
            0 => format!("{own}/include"),
            number => format!("{own}/include/d{number}"),
        };
        BuildTree { settings: self.clone(), includes: (0..count).map(include).collect(), own, dirs }
    }
}

impl BuildTree {
    /// The tree's directory with its headers.
    fn made(&self) -> impl Iterator<Item = ScriptStep> + use<> {
        let dirs = std::iter::once(&self.own).chain(&self.includes);
        let dirs: Vec<ScriptStep> = dirs.map(|dir| Op::mkdir(dir.clone()).into()).collect();
        let bytes = self.settings.header_bytes.0;
        let headers: Vec<String> = (0..self.settings.headers).map(|number| self.header(number)).collect();
        dirs.into_iter().chain(headers.into_iter().flat_map(move |path| make_file(path, bytes, PIECE)))
    }

    fn header(&self, number: u32) -> String {
        let dir = number / self.settings.files_per_directory;
        format!("{}/{number}.h", self.includes[dir as usize % self.includes.len()])
    }

    fn unpack(&self, dir: usize) -> Vec<ScriptStep> {
        let SourceDir { path, sources, .. } = &self.dirs[dir];
        let bytes = self.settings.source_bytes.0;
        let files = (0..*sources).map(|number| format!("{path}/{number}.c"));
        let makefile = make_file(format!("{path}/Makefile"), 500, PIECE);
        let made = files.flat_map(|path| make_file(path, bytes, PIECE));
        std::iter::once(Op::mkdir(path.clone()).into()).chain(makefile).chain(made).collect()
    }

    /// Looks for sources and reads how they are compiled.
    fn configure(&self, dir: usize) -> Vec<ScriptStep> {
        let SourceDir { path, .. } = &self.dirs[dir];
        list(path.clone(), false).chain(read_file(format!("{path}/Makefile"), PIECE)).collect()
    }

    fn compile(&self, dir: usize, random: &mut Random) -> Vec<ScriptStep> {
        let SourceDir { path, compiled, .. } = &self.dirs[dir];
        let mut steps: Vec<ScriptStep> = read_file(format!("{path}/Makefile"), PIECE).collect();
        for number in 0..*compiled {
            let source = format!("{path}/{number}.c");
            steps.push(Op::stat(source.clone()).into());
            steps.extend(read_file(source, PIECE));
            for _ in 0..self.settings.includes {
                // Few headers are included by most sources.
                let part = random.random::<f64>();
                let header = (part * part * f64::from(self.settings.headers)) as u32;
                steps.push(Op::stat(self.header(header)).into());
                steps.extend(read_file(self.header(header), PIECE));
            }
            steps.push(ScriptStep::Pause(self.settings.time));
            steps.extend(output(&format!("{path}/{number}.o"), self.settings.object_bytes.0));
        }
        steps
    }

    /// Looks for objects and reads them.
    fn link(&self, dir: usize) -> Vec<ScriptStep> {
        let SourceDir { path, compiled, .. } = &self.dirs[dir];
        let objects = (0..*compiled).map(|number| format!("{path}/{number}.o"));
        let read = objects.flat_map(|object| {
            std::iter::once(Op::stat(object.clone()).into()).chain(read_file(object, PIECE))
        });
        list(path.clone(), true).chain(read).collect()
    }
}

/// Writes a new file under another name and renames it, as compilers and linkers do.
fn output(path: &str, bytes: u64) -> impl Iterator<Item = ScriptStep> + use<> {
    let temporary = format!("{path}.tmp");
    let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let (from, to) = (temporary.clone().into(), path.into());
    [Op::open(FILE, temporary, flags)]
        .into_iter()
        .chain(write(FILE, bytes, PIECE))
        .chain([
            Op::Stat { target: Target::File(FILE) },
            Op::Close { file: FILE },
            Op::Rename { from, to, flags: espalier_proto::RenameFlags::empty() },
        ])
        .map(ScriptStep::Do)
}
