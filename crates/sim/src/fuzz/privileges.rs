//! Random set-id bits, capabilities, owners and groups of files, and operations that remove
//! privileges, between a process's other calls. They use a separate random generator.

use std::collections::BTreeMap;

use espalier_client::Call;
use espalier_proto::{AllocateMode, Caller, Ino, RangeOp, Request, SetAttr, XattrMode};
use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};

use crate::check::CAPABILITY;
use crate::random::{Random, Seed};
use crate::scenario::Cluster;
use crate::storage::StoreKind;

/// One in this many runs has privileges.
const EVERY: u32 = 3;
/// One in this many calls affects privileges.
const SELDOM: u32 = 4;

/// With and without group execution, on which the set-group-id bit depends.
const OF_FILES: [u32; 6] = [0o4755, 0o2775, 0o6777, 0o2766, 0o6747, 0o777];
const OF_DIRS: [u32; 3] = [0o2777, 0o2777, 0o777];
const USERS: [u32; 3] = [0, 1001, 1002];
const GROUPS: [u32; 3] = [0, 100, 101];

/// A run has privileges.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    seed: u64,
    /// Stores in objects cannot reserve space.
    allocates: bool,
}

impl Habit {
    pub fn of(seed: u64, cluster: &Cluster) -> Option<Self> {
        let is_so = Seed(seed).random("fuzz privileges", 0).random_range(0..EVERY) == 0;
        let has_objects = cluster.migrations.iter().any(|migration| migration.to == StoreKind::Objects);
        is_so.then_some(Self { seed, allocates: cluster.servers == 0 && !has_objects })
    }
}

/// One process's calls about privileges.
#[derive(Debug)]
pub struct Privileges {
    random: Random,
    strip: u64,
    allocates: bool,
}

impl Privileges {
    pub fn new(habit: Habit, process: u32, strip: u64) -> Self {
        let random = Seed(habit.seed).random("fuzz privileges of a process", process.into());
        Self { random, strip, allocates: habit.allocates }
    }

    /// A call about a file or directory that is known, before the next other one. `open`: files
    /// that may be written to.
    pub fn next(
        &mut self,
        caller: &Caller,
        dirs: &[Ino],
        files: &[Ino],
        open: &BTreeMap<Ino, u32>,
    ) -> Option<Call<'static>> {
        let random = &mut self.random;
        if random.random_range(0..SELDOM) > 0 {
            return None;
        }
        let newest = |all: &[Ino], random: &mut Random| {
            all[all.len().saturating_sub(4)..].choose(random).copied().filter(|ino| *ino != Ino::ROOT)
        };
        let (file, dir) = (newest(files, random), newest(dirs, random));
        let any = file.filter(|_| random.random()).or(dir);
        let is_root = caller.is_superuser();
        let set = |ino: Option<Ino>, set: SetAttr| Some(Request::SetAttr { ino: ino?, set });
        let name: Box<[u8]> = CAPABILITY.into();
        let request = match random.random_range(0..100) {
            0..30 => set(file, SetAttr { perm: OF_FILES.choose(random).copied(), ..SetAttr::default() }),
            30..38 => set(dir, SetAttr { perm: OF_DIRS.choose(random).copied(), ..SetAttr::default() }),
            38..44 if is_root => {
                set(any, SetAttr { uid: USERS.choose(random).copied(), ..SetAttr::default() })
            }
            38..50 => set(any, SetAttr { gid: GROUPS.choose(random).copied(), ..SetAttr::default() }),
            50..65 if is_root => {
                let value = random.random::<u32>().to_le_bytes().into();
                Some(Request::SetXattr { ino: file?, name, value, mode: XattrMode::Any, kill_sgid: false })
            }
            65..68 if is_root => Some(Request::RemoveXattr { ino: file?, name }),
            50..72 => Some(Request::GetXattr { ino: file?, name }),
            80..85 => {
                let size = Some(random.random_range(0..self.strip));
                set(file, SetAttr { size, ..SetAttr::default() })
            }
            // The request of kernels that pass writes through.
            85..90 if !is_root => set(file, SetAttr { kill_suid_gid: true, ..SetAttr::default() }),
            72..80 | 85..90 => Some(Request::GetAttr { ino: file? }),
            _ if !self.allocates => None,
            _ => {
                let ino = open.keys().choose(random).copied()?;
                let (offset, mode) = (0, AllocateMode::KEEP_SIZE);
                let length = random.random_range(1..=self.strip);
                return Some(Call::range(ino, RangeOp::Allocate { offset, length, mode }, false));
            }
        };
        request.map(Call::Request)
    }
}

/// Has a call say that its caller lacks `CAP_FSETID`.
pub fn lack(call: &mut Call<'_>) {
    match call {
        Call::Range(range) => range.kill_suid_gid = range.op.is_change(),
        Call::Request(Request::SetAttr { set, .. }) => set.kill_suid_gid |= set.size.is_some(),
        Call::Request(Request::Open { how, .. } | Request::Create { open: Some(how), .. }) => {
            how.kill_suid_gid = how.truncate;
        }
        _ => {}
    }
}
