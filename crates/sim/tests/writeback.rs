//! Metadata and data write-back.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_proto::Caller;
use espalier_sim::process::{Frontend, Identity, Process};
use espalier_sim::source::{Done, Op, OpKind, OpenFlags, Script, ScriptStep};
use espalier_sim::{Nanos, Observer, Report, Scenario, World};

const FILE: u32 = 3;

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
    let report = world.run().unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed));
    assert_eq!(world.fsck().unwrap(), [], "seed {}", scenario.seed);
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    report
}

/// Mean time of an operation in microseconds.
fn mean(report: &Report, name: &str) -> f64 {
    report.operations.iter().find(|kind| kind.kind == name).unwrap().mean_us
}

#[test]
fn exclusive_holder_does_not_wait() {
    let run = |shared: bool| {
        run(&format!(
            "[cluster]\nclients = 2\n[model]\npreset = \"wu\"\n[[workload]]\nkind = \"create\"\nprocesses = 2\n\
             shared = {shared}\nfiles = 60\nremove = true\n"
        ))
    };
    let (own, shared) = (run(false), run(true));
    // Removals keep the server busy in both cases.
    for (kind, ratio) in [("create", 0.5), ("unlink", 1.0)] {
        let (individually, together) = (mean(&own, kind), mean(&shared, kind));
        assert!(
            individually < together * ratio,
            "{kind}: {individually} us separately, {together} us together"
        );
    }
}

#[derive(Default)]
struct AllDone(Vec<Done>);

impl AllDone {
    fn of(&self, kind: OpKind) -> impl Iterator<Item = &Done> {
        self.0.iter().filter(move |done| done.kind == kind)
    }
}

impl Observer for AllDone {
    fn finished(&mut self, _: u32, _: u32, done: &Done) {
        assert!(done.result.is_ok(), "{done:?}");
        self.0.push(*done);
    }
}

/// Writes to several places of a big file and reads at an offset. Returns the operations and the
/// number of messages.
fn writes_to_a_big_file(
    (seed, settings, faults): (u64, &str, &str),
    offset: u64,
    places: impl Iterator<Item = ScriptStep> + 'static,
) -> (AllDone, u64) {
    let text = format!(
        "seed = {seed}\n[cluster]\n{settings}\n[network]\npreset = \"gigabit\"\n[faults]\n{faults}\n"
    );
    let scenario = Scenario::parse(&text, Path::new("it.toml")).unwrap();
    let (mut done, mut mutator) = (AllDone::default(), ());
    let mut world = World::empty(&scenario, &mut done, &mut mutator).unwrap();
    // Time for the client to get inode numbers and for the file to grow.
    let soon = || ScriptStep::Pause(Nanos(300_000_000));
    let begin = [ScriptStep::Do(Op::mkdir("/dir")), soon(), ScriptStep::Do(Op::create(FILE, "/dir/file"))];
    let grows = [ScriptStep::Do(write(0, 1 << 20)), soon()];
    let read = Op::Read { file: FILE + 1, offset: Some(offset), size: 4096 };
    let end = [Op::Sync { file: FILE }, Op::open(FILE + 1, "/dir/file", OpenFlags::READ), read];
    let steps = begin.into_iter().chain(grows).chain(places).chain(end.map(ScriptStep::Do));
    let caller = Caller { uid: 0, gid: 0, pid: 1, groups: Some([].into()) };
    let identity = Identity { number: 0, caller, umask: 0, frontend: Frontend::Mount };
    world.add_processes(vec![(0, Box::new(Process::new(identity, Box::new(Script::new(steps)))))]);
    let report = world.run().unwrap();
    assert_eq!(world.fsck().unwrap(), [], "seed {seed}");
    drop(world);
    assert_eq!(done.of(OpKind::Read).map(|read| read.result).collect::<Vec<_>>(), [Ok(4096)], "seed {seed}");
    let messages = ["stream", "to_data"].map(|kind| report.messages.get(kind).copied().unwrap_or(0));
    (done, messages.into_iter().sum())
}

fn write(offset: u64, size: u64) -> Op {
    Op::Write { file: FILE, offset: Some(offset), size }
}

/// 300 writes.
fn writes_in_many_places(seed: u64, settings: &str, faults: &str) -> u64 {
    let places = (0..300).map(|number| ScriptStep::Do(write(number * 7919 % 300 * 8192, 4096)));
    writes_to_a_big_file((seed, settings, faults), 1 << 21, places).1
}

#[test]
fn short_writes_to_unshared_file_share_a_message() {
    for data_servers in 0..3 {
        let count = |writeback: bool| {
            writes_in_many_places(0, &format!("writeback = {writeback}\ndata = {data_servers}"), "")
        };
        let (gathered, each) = (count(true), count(false));
        assert!(each >= 300 && gathered < 50, "{data_servers}: {gathered} instead of {each}");
    }
}

#[test]
fn writes_to_such_a_file_do_not_wait_either_when_the_first_lease_is_over() {
    // For half a minute, without other operations in the directory.
    let places = (0..60).flat_map(|number| {
        let write = ScriptStep::Do(write(number * 8192, 4096));
        [ScriptStep::Pause(Nanos(500_000_000)), write]
    });
    let (done, messages) = writes_to_a_big_file((0, "", ""), 0, places);
    let took = |done: &Done| done.ended.0 - done.begun.0;
    let times: Vec<u64> = done.of(OpKind::Write).skip(1).map(took).collect();
    assert!(messages >= 60 && times.iter().all(|time| *time < 50_000), "{messages}: {times:?} ns");
}

#[test]
fn gathered_writes_survive_server_crash() {
    let crashes = "until = \"2 s\"\ncrash = { every = { exponential = \"20 ms\" }, for = \"10 ms\" }";
    for (seed, data_servers) in (1..10).flat_map(|seed| [(seed, 0), (seed, 2)]) {
        writes_in_many_places(seed, &format!("data = {data_servers}"), crashes);
    }
}
