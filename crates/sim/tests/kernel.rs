//! Page cache of a client's kernel while another client changes the files.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_proto::{Caller, Errno};
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Done, Op, OpKind, OpenFlags, Script, ScriptStep};
use espalier_sim::{Nanos, Observer, Scenario, World};

/// Results of the first client's reads.
#[derive(Default)]
struct Reads(Vec<Result<u64, Errno>>);

impl Observer for Reads {
    fn finished(&mut self, client: u32, _: u32, done: &Done) {
        if client == 0 && done.kind == OpKind::Read {
            self.0.push(done.result);
        }
    }
}

const FILE: u32 = 3;

fn run(reader: Vec<ScriptStep>, writer: Vec<ScriptStep>) -> Vec<Result<u64, Errno>> {
    let text = "[cluster]\nclients = 2\nlease = \"3 s\"\n[network]\npreset = \"free\"\n";
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut reads, mut mutator) = (Reads::default(), ());
    let mut world = World::empty(&scenario, &mut reads, &mut mutator).unwrap();
    world.keep_lookups();
    let process = |steps: Vec<ScriptStep>| -> Box<dyn espalier_sim::process::Program> {
        let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
        let identity = Identity { number: 0, caller, umask: 0, frontend: Frontend::Mount };
        Box::new(Process::new(identity, Box::new(Script::new(steps.into_iter()))))
    };
    world.add_processes(vec![(0, process(reader)), (1, process(writer))]);
    world.run().unwrap();
    drop(world);
    reads.0
}

fn pause(seconds: u64) -> ScriptStep {
    ScriptStep::Pause(Nanos(seconds * 1_000_000_000))
}

fn make() -> Vec<ScriptStep> {
    let write = Op::Write { file: FILE, offset: Some(0), size: 100 };
    [Op::create(FILE, "/file"), write, Op::Close { file: FILE }].map(ScriptStep::Do).to_vec()
}

fn open() -> ScriptStep {
    ScriptStep::Do(Op::open(FILE, "/file", OpenFlags::READ))
}

fn read() -> ScriptStep {
    ScriptStep::Do(Op::Read { file: FILE, offset: Some(0), size: 1000 })
}

fn close() -> ScriptStep {
    ScriptStep::Do(Op::Close { file: FILE })
}

/// Writes after this number of seconds.
fn write_more(after: u64) -> Vec<ScriptStep> {
    let write = Op::Write { file: FILE, offset: Some(100), size: 100 };
    let ops = [Op::open(FILE, "/file", OpenFlags::WRITE), write, Op::Close { file: FILE }];
    [pause(after)].into_iter().chain(ops.map(ScriptStep::Do)).collect()
}

#[test]
fn stale_pages_are_dropped_when_file_changed() {
    let steps = [vec![open(), read(), close(), open(), read(), close(), pause(10), open(), read()]];
    let reads = run([make(), steps.concat()].concat(), write_more(7));
    assert_eq!(reads, [Ok(100), Ok(100), Ok(200)]);
}

#[test]
fn open_file_reads_writes_of_other_clients() {
    let steps = vec![open(), read(), pause(10), read(), pause(5), read()];
    let reads = run([make(), steps].concat(), write_more(12));
    assert_eq!(reads, [Ok(100), Ok(100), Ok(200)]);
}

/// The second open is not reported to any server before the removal.
#[test]
fn a_file_that_is_open_stays_when_another_removes_its_name() {
    // Time for the client to get inode numbers.
    let soon = ScriptStep::Pause(Nanos(300_000_000));
    let steps = vec![open(), read(), close(), soon, open(), pause(5), ScriptStep::Forget, read()];
    let remove = vec![pause(1), ScriptStep::Do(Op::unlink("/file"))];
    assert_eq!(run([make(), steps].concat(), remove), [Ok(100), Ok(100)]);
}
