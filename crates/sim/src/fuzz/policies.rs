//! Changes of directories' policies between the other calls of a process, while files are made
//! concurrently.

use espalier_policy::{Creator, Key, Policy, Values};
use espalier_proto::{Ino, Request, XattrMode};
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::check::{EFFECTIVE, LAYOUT};
use crate::random::{Random, Seed};

/// Policy attributes that change in a run, and possible distributions.
#[derive(Clone, Debug)]
pub struct Live {
    seed: Seed,
    pub keys: Vec<Key>,
    strip: u64,
}

/// In one in this many runs policies change.
const EVERY: u32 = 3;

impl Live {
    /// `server`: the policy by default.
    pub fn of(seed: u64, strip: u64, server: &Policy) -> Option<Self> {
        let by_client = server.create() == Some(Creator::Client);
        let mut random = Seed(seed).random("fuzz policies", 0);
        if random.random_range(0..EVERY) > 0 {
            return None;
        }
        // The check gives up if it is unknown whether a file that a client makes has a metafile, so
        // this case is rare.
        let splits = server.dir_split().is_some();
        let own = match random.random_range(0..6) {
            // See the scenarios' default policies.
            _ if splits => [Key::DirSplit, Key::DirServers, Key::DirMerge, Key::Pin],
            0 => [Key::Create, Key::NoMetafile, Key::Create, Key::NoMetafile],
            1..4 if !by_client => [Key::NoMetafile; 4],
            _ => [Key::Create; 4],
        };
        let is_any = |key: &Key| {
            let is_of_splits = matches!(key, Key::DirSplit | Key::DirServers | Key::DirMerge | Key::Pin);
            let is_of_rates = matches!(key, Key::DirSplitRate | Key::DirMergeRate);
            !is_of_splits && !is_of_rates && !matches!(key, Key::Create | Key::NoMetafile)
        };
        let rates = [Key::DirSplitRate, Key::DirMergeRate].into_iter().filter(|_| splits);
        let any = Key::ALL.into_iter().filter(is_any);
        let often = own.into_iter().chain([Key::Stuffing]);
        Some(Self { seed: Seed(seed), keys: often.chain(any).chain(rates).collect(), strip })
    }

    fn text(&self, random: &mut Random, key: Key) -> String {
        match key.values() {
            _ if random.random_range(0..30) == 0 => "perhaps".into(),
            Values::UpTo(most) => random.random_range(1..=most.min(4)).to_string(),
            // Shares are whole strips, since a strip is written atomically.
            Values::DistParams if random.random() => {
                format!("strip_size:{}", self.strip * random.random_range(1..=3))
            }
            Values::DistParams => {
                let share = |random: &mut Random| self.strip * random.random_range(1..=2);
                format!("strips:0:{};1:{};0:{}", share(random), share(random), share(random))
            }
            values => values.examples().choose(random).map_or("", |text| *text).into(),
        }
    }
}

/// The policy changes of one process. They use a separate random generator, so that other calls do
/// not depend on them.
#[derive(Debug)]
pub struct Policies {
    live: Live,
    random: Random,
    /// The last call was one of these.
    was_one: bool,
}

impl Policies {
    pub fn new(live: Live, process: u32) -> Self {
        let random = live.seed.random("fuzz policies of a process", process.into());
        Self { live, random, was_one: false }
    }

    /// A call on the policy of a known inode, if one precedes the next other call.
    pub fn next(&mut self, dirs: &[Ino], files: &[Ino]) -> Option<Request> {
        let random = &mut self.random;
        if self.was_one || random.random_range(0..10) > 0 {
            self.was_one = false;
            return None;
        }
        self.was_one = true;
        let newest =
            |all: &[Ino], random: &mut Random| all[all.len().saturating_sub(4)..].choose(random).copied();
        // The root is busy: frequent changes there would make all policies uncertain.
        let dir = newest(dirs, random).filter(|dir| *dir != Ino::ROOT || random.random_range(0..3) == 0)?;
        let any = newest(files, random).filter(|_| random.random()).unwrap_or(dir);
        let key = *self.live.keys.choose(random)?;
        let name = key.attribute().into_bytes().into_boxed_slice();
        Some(match random.random_range(0..100) {
            0..55 => {
                let value = self.live.text(random, key).into_bytes().into();
                let mode = match random.random_range(0..6) {
                    0 => XattrMode::Create,
                    1 => XattrMode::Replace,
                    _ => XattrMode::Any,
                };
                Request::SetXattr { ino: dir, name, value, mode, kill_sgid: false }
            }
            55..68 => Request::RemoveXattr { ino: dir, name },
            68..74 => Request::GetXattr { ino: any, name },
            74..82 => Request::GetXattr { ino: any, name: EFFECTIVE.into() },
            82..90 => Request::GetXattr { ino: any, name: LAYOUT.into() },
            90..95 => Request::ListXattr { ino: any },
            // Attributes that files cannot have, or that no one can set.
            95..97 => Request::RemoveXattr { ino: any, name },
            97 => {
                let (name, value, mode) = (LAYOUT.into(), name, XattrMode::Any);
                Request::SetXattr { ino: any, name, value, mode, kill_sgid: false }
            }
            98 => {
                let (name, value) = (b"user.espalier.stuffed".as_slice().into(), b"true".as_slice().into());
                Request::SetXattr { ino: any, name, value, mode: XattrMode::Any, kill_sgid: false }
            }
            _ => {
                let (value, mode) = (self.live.text(random, key).into_bytes().into(), XattrMode::Any);
                Request::SetXattr { ino: any, name, value, mode, kill_sgid: false }
            }
        })
    }
}
