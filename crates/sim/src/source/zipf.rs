//! Access to existing files by Zipf's law: `stat`, or open and read.

use rand::Rng;
use rand_distr::Distribution;
use serde::Deserialize;

use super::create::begin;
use super::script::{FILE, Script, ScriptStep, make_file, only_if, script};
use super::workload::{Member, range};
use super::{Done, Next, Op, OpenFlags, Source};
use crate::{Bytes, Random};

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Zipf {
    /// Number of files of all processes together.
    files: u64,
    /// Number of files per directory.
    files_per_directory: u64,
    bytes: Bytes,
    /// Exponent: the probability of a file is proportional to its rank to the power of minus this.
    exponent: f64,
    /// Number of accesses per process.
    choices: u64,
    /// Fraction of accesses that open and read the file; the others are `stat`.
    reads: f64,
}

impl Default for Zipf {
    fn default() -> Self {
        Self {
            files: 10_000,
            files_per_directory: 100,
            bytes: Bytes(4096),
            exponent: 1.0,
            choices: 1000,
            reads: 0.2,
        }
    }
}

/// A prime larger than any number of files: its multiples spread popular files over directories.
const STRIDE: u64 = 2_654_435_761;

impl Zipf {
    pub(super) fn check(&self) -> Result<(), String> {
        range("files", self.files, 1, 1 << 31)?;
        range("files_per_directory", self.files_per_directory, 1, 1 << 31)?;
        range("bytes", self.bytes.0, 0, 1 << 30)?;
        range("choices", self.choices, 0, 1 << 40)?;
        if !(0.0..=10.0).contains(&self.exponent) {
            return Err("`exponent` is 0 to 10".into());
        }
        if !(0.0..=1.0).contains(&self.reads) {
            return Err("`reads` is 0 to 1".into());
        }
        Ok(())
    }

    pub(super) fn source(&self, member: &Member) -> Box<dyn Source> {
        let (dir, is_first, bytes) = (member.crew.dir.clone(), member.is_first(), self.bytes.0);
        let dirs = self.files.div_ceil(self.files_per_directory);
        let make_dir = {
            let dir = dir.clone();
            move |number| Op::mkdir(format!("{dir}/{number}")).into()
        };
        let (zipf, files) = (self.clone(), member.share(self.files));
        let paths = {
            let dir = dir.clone();
            files.map(move |file| zipf.path(&dir, file))
        };
        let making = begin(member)
            .chain(only_if(is_first, (0..dirs).map(make_dir)))
            .chain(script([ScriptStep::Barrier]))
            .chain(paths.flat_map(move |path| make_file(path, bytes, 1 << 20)))
            .chain(script([ScriptStep::Barrier]));
        // The checked values are valid for the distribution.
        match rand_distr::Zipf::new(self.files as f64, self.exponent) {
            Ok(law) => Box::new(Choosing {
                making: Some(Script::new(making)),
                zipf: self.clone(),
                law,
                dir,
                left: self.choices,
                open: None,
            }),
            Err(_) => Box::new(Script::new(making)),
        }
    }

    fn path(&self, dir: &str, file: u64) -> String {
        format!("{dir}/{}/{file}", file / self.files_per_directory)
    }
}

/// A process that accesses files, after it has made its share of them.
#[derive(Debug)]
struct Choosing {
    making: Option<Script>,
    zipf: Zipf,
    law: rand_distr::Zipf<f64>,
    dir: String,
    left: u64,
    /// Remaining operations on the open file, last first.
    open: Option<[Option<Op>; 2]>,
}

impl Source for Choosing {
    fn next(&mut self, random: &mut Random, last: Option<&Done>) -> Next {
        if let Some(making) = &mut self.making {
            match making.next(random, last) {
                Next::End => self.making = None,
                next => return next,
            }
        }
        let rest = self.open.as_mut().and_then(|rest| rest.iter_mut().rev().find_map(Option::take));
        if let Some(op) = rest {
            return Next::Do(op);
        }
        if self.left == 0 {
            return Next::End;
        }
        self.left -= 1;
        let rank = self.law.sample(random) as u64 - 1;
        let path = self.zipf.path(&self.dir, rank.wrapping_mul(STRIDE) % self.zipf.files);
        if !random.random_bool(self.zipf.reads) {
            return Next::Do(Op::stat(path));
        }
        let read = Op::Read { file: FILE, offset: Some(0), size: self.zipf.bytes.0 };
        self.open = Some([Some(Op::Close { file: FILE }), Some(read)]);
        Next::Do(Op::open(FILE, path, OpenFlags::READ))
    }
}
