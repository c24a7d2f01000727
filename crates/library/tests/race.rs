//! Racing clients that cache under leases: some order of their operations explains all results,
//! without the exceptions that Linux needs for races of several mounts.

use std::io;

use crate::common::servers;
use espalier_conformance::race::{DIRS, How, REGISTER, RaceOp, Rules, Seen, Way, round};
use espalier_library::{Credentials, OpenOptions, blocking};

struct Native {
    fs: blocking::FileSystem,
    root: String,
    register: blocking::File,
}

impl Way for Native {
    const RENAMES: &'static [How] = &[How::Plain];

    fn perform(&self, op: RaceOp) -> io::Result<Seen> {
        let (fs, at) = (&self.fs, |place: espalier_conformance::race::PathIndex| {
            format!("{}/{}", self.root, place.path())
        });
        match op {
            RaceOp::Symlink(place, token) => fs.symlink(token.to_string(), at(place))?,
            RaceOp::ReadLink(place) => return fs.read_link(at(place)).map(|target| Seen::target(&target)),
            RaceOp::MkDir(place) => fs.create_dir(at(place))?,
            RaceOp::RmDir(place) => fs.remove_dir(at(place))?,
            RaceOp::Unlink(place) => fs.remove_file(at(place))?,
            RaceOp::Rename(from, to, _) => fs.rename(at(from), at(to))?,
            RaceOp::Read => {
                let mut bytes = [0; 4];
                self.register.read_at(&mut bytes, 0)?;
                return Ok(Seen::Number(u32::from_le_bytes(bytes)));
            }
            RaceOp::Write(value) => self.register.write_all_at(&value.to_le_bytes(), 0)?,
        }
        Ok(Seen::Done)
    }
}

#[test]
fn racing_clients_are_serialisable() {
    race(1);
}

#[test]
fn and_where_servers_share_the_tree() {
    race(3);
}

/// `RACE_SEEDS` seeds from `RACE_SEED` on; `RACE_SEED` without `RACE_SEEDS` selects that seed.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, count) = (number("RACE_SEED"), number("RACE_SEEDS"));
    let count = count.unwrap_or(if first.is_some() { 1 } else { 300 });
    let first = first.unwrap_or(0);
    first..first + count
}

fn race(ranks: u16) {
    let url = servers(ranks);
    let clients = [(); 3].map(|()| blocking::FileSystem::connect(&url, &Credentials::Insecure).unwrap());
    for seed in seeds() {
        let root = format!("/{seed}");
        clients[0].create_dir(&root).unwrap();
        DIRS.iter().for_each(|dir| clients[0].create_dir(format!("{root}/{dir}")).unwrap());
        clients[0].write(format!("{root}/{REGISTER}"), &0_u32.to_le_bytes()).unwrap();
        let ways = clients.each_ref().map(|fs| {
            let path = format!("{root}/{REGISTER}");
            let register = fs.open_with(OpenOptions::new().read(true).write(true), path).unwrap();
            Native { fs: fs.clone(), root: root.clone(), register }
        });
        if let Err(failure) = round(&ways, seed, Rules::Strict) {
            panic!("{}", failure.message);
        }
    }
}
