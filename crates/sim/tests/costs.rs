//! The simulator charges the costs of the model.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_proto::{Caller, Errno};
use espalier_sim::process::{Frontend, Identity, Process, WORKING_DIR};
use espalier_sim::source::{Done, Op, OpKind, OpenFlags, Script, ScriptStep};
use espalier_sim::{Nanos, Observer, Scenario, World};

#[derive(Default)]
struct Times(Vec<Done>);

impl Observer for Times {
    fn finished(&mut self, _: u32, _: u32, done: &Done) {
        self.0.push(*done);
    }
}

const FREE: &str = "[cluster]\ncache = \"none\"\n[network]\npreset = \"free\"\neager = \"0 B\"\n[disk]\nlatency = \"0 s\"\nsync = \"0 s\"\n";
const MICRO: u64 = 1000;

/// Results of the last operations of a kind, of a process in directory `/dir` with a hundred files.
fn run(model: &str, kind: OpKind, ops: Vec<Op>) -> Vec<Done> {
    let scenario = Scenario::parse(&format!("{FREE}[model]\n{model}"), Path::new("it.toml")).unwrap();
    let (mut times, mut mutator) = (Times::default(), ());
    let mut world = World::empty(&scenario, &mut times, &mut mutator).unwrap();
    let begin = [Op::mkdir("/dir"), Op::open(WORKING_DIR, "/dir", OpenFlags::READ | OpenFlags::DIRECTORY)];
    let make = (0..100).map(|file| Op::mknod(format!("file{file}")));
    let steps = begin.into_iter().chain(make).chain(ops).map(ScriptStep::Do);
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0, frontend: Frontend::Mount };
    world.add_processes(vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]);
    world.run().unwrap();
    drop(world);
    times.0.into_iter().filter(|done| done.kind == kind).collect()
}

fn took(done: &Done) -> Nanos {
    done.ended - done.begun
}

#[test]
fn listing_cost_grows_with_entries() {
    let list = |plus, limit| {
        let from = Op::Seek { file: WORKING_DIR, offset: 0 };
        vec![from, Op::List { file: WORKING_DIR, limit, plus }]
    };
    let ops = [list(false, 1000), list(true, 1000), list(true, 10)].concat();
    let done = run("readdir = \"5 us\"\nentry = \"10 us\"\nattributes = \"20 us\"", OpKind::List, ops);
    let taken: Vec<_> = done.iter().map(|done| (done.result, took(done))).collect();
    let expected = [(100, 1005), (100, 3005), (10, 305)];
    assert_eq!(taken, expected.map(|(entries, micros)| (Ok(entries), Nanos(micros * MICRO))));
}

#[test]
fn received_messages_cost_client_time() {
    let done =
        run("client_message = \"7 us\"", OpKind::Stat, vec![Op::stat("file1"), Op::stat("/dir/file1")]);
    // The working directory needs one lookup; the root needs its attributes and two lookups.
    assert_eq!(done.iter().map(took).collect::<Vec<_>>(), [Nanos(7 * MICRO), Nanos(14 * MICRO)]);
    let write =
        vec![Op::open(3, "file1", OpenFlags::WRITE), Op::Write { file: 3, offset: Some(0), size: 100 }];
    // The payload is announced.
    let done = run("client_message = \"7 us\"", OpKind::Write, write);
    assert_eq!(took(&done[0]), Nanos(14 * MICRO));
}

#[test]
fn working_directory_needs_no_ancestors() {
    let done = run("", OpKind::Stat, vec![Op::stat("../dir"), Op::stat("./file1")]);
    assert_eq!(done.iter().map(|done| done.result).collect::<Vec<_>>(), [Err(Errno::EOPNOTSUPP), Ok(0)]);
}
