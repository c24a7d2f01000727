//! Operations of the workloads of scenarios.

use std::collections::HashMap;

use espalier_proto::Errno;
use espalier_sim::source::{Done, OpKind, Workload};

use super::embedded::Embedded;

fn run(embedded: &mut Embedded, text: &str) -> Vec<Done> {
    let workload: Workload = toml::from_str(text).unwrap();
    let started = workload.start(0, 0, 1, std::path::Path::new("")).unwrap();
    let processes = started.crews.into_iter().flatten().map(|(_, process)| process).collect();
    embedded.run_all(processes).into_iter().map(|(_, done)| done).collect()
}

/// Number of operations by kind and error.
fn counts(done: &[Done]) -> HashMap<(&'static str, Option<Errno>), u64> {
    let mut counts = HashMap::new();
    for done in done {
        *counts.entry((done.kind.name(), done.result.err())).or_default() += 1;
    }
    counts
}

fn check(text: &str, expected: &[(OpKind, u64)]) {
    let counts = counts(&run(&mut Embedded::new(), text));
    let expected: HashMap<_, _> =
        expected.iter().map(|(kind, count)| ((kind.name(), None), *count)).collect();
    assert_eq!(counts, expected, "{text}");
}

#[test]
fn create() {
    use OpKind::{Close, Create, MkDir, Stat, Unlink, Write};
    check("kind = \"create\"\nprocesses = 3\nfiles = 10", &[(MkDir, 1), (Create, 30), (Close, 30)]);
    check(
        "kind = \"create\"\nprocesses = 3\nfiles = 10\nshared = false\nbytes = \"5 B\"\nstat = true\nremove = true",
        &[(MkDir, 4), (Create, 30), (Write, 30), (Close, 30), (Stat, 30), (Unlink, 30)],
    );
}

#[test]
fn mdtest() {
    use OpKind::{Close, Create, MkDir, Open, Read, RmDir, Stat, Unlink, Write};
    // A tree has 1 + 2 + 4 directories. The second read finds the end.
    check(
        "kind = \"mdtest\"\nprocesses = 2\nfiles = 10\nbranch = 2",
        &[
            (MkDir, 1 + 2 * (7 + 10)),
            (Stat, 2 * (10 + 10)),
            (RmDir, 2 * (7 + 10)),
            (Create, 2 * 10),
            (Write, 2 * 10),
            (Open, 2 * 10),
            (Read, 2 * 2 * 10),
            (Close, 2 * 2 * 10),
            (Unlink, 2 * 10),
        ],
    );
}

#[test]
fn nine_phases() {
    use OpKind::{Close, Create, List, MkDir, Open, Read, RmDir, Stat, Unlink, Write};
    // Two pages and the end; with the two listings 4 directories are opened.
    check(
        "kind = \"nine-phases\"\nprocesses = 2\nfiles = 600",
        &[
            (MkDir, 3),
            (Create, 1200),
            (Open, 4),
            (List, 4 * 3),
            (Stat, 2400),
            (Write, 1200),
            (Read, 1200),
            (Close, 1204),
            (Unlink, 1200),
            (RmDir, 2),
        ],
    );
}

#[test]
fn zipf_prefers_few() {
    let text = "kind = \"zipf\"\nprocesses = 2\nfiles = 1000\nfiles_per_directory = 30\nexponent = 1.2\nchoices = 500";
    let mut embedded = Embedded::new();
    let done = run(&mut embedded, text);
    let counts = counts(&done);
    let count = |kind: OpKind| counts.get(&(kind.name(), None)).copied().unwrap_or(0);
    assert_eq!(counts.keys().filter(|(_, error)| error.is_some()).count(), 0);
    assert_eq!((count(OpKind::MkDir), count(OpKind::Create)), (1 + 34, 1000));
    assert_eq!(count(OpKind::Stat) + count(OpKind::Open), 1000);
    assert_eq!(
        (count(OpKind::Read), count(OpKind::Close)),
        (count(OpKind::Open), 1000 + count(OpKind::Open))
    );
    assert!((150..250).contains(&count(OpKind::Open)), "{counts:?}");
}

#[test]
fn untar() {
    let text = "kind = \"untar\"\nprocesses = 2\nfiles = 150\nlinks = 0.2";
    let done = run(&mut Embedded::new(), text);
    let counts = counts(&done);
    let count = |kind: OpKind| counts.get(&(kind.name(), None)).copied().unwrap_or(0);
    assert_eq!(counts.keys().filter(|(_, error)| error.is_some()).count(), 0);
    let (files, links, dirs) = (count(OpKind::Create), count(OpKind::Symlink), count(OpKind::MkDir) - 1);
    assert_eq!((files + links, dirs), (300, 20));
    assert!((30..90).contains(&links), "{links}");
    assert_eq!((count(OpKind::UTimes), count(OpKind::ChOwn)), (320, 320));
    assert_eq!((count(OpKind::ChMod), count(OpKind::Close)), (files + dirs, files));
    // tar writes at most its buffer at once; half of the files are smaller.
    let written: Vec<u64> =
        done.iter().filter(|done| done.kind == OpKind::Write).filter_map(|done| done.result.ok()).collect();
    assert!(written.iter().all(|bytes| (1..=10_240).contains(bytes)));
    let mean = written.iter().sum::<u64>() / files;
    assert!((6_000..30_000).contains(&mean), "{mean}");

    let is_user = "kind = \"untar\"\nuid = 1000\ngid = 1000\nfiles = 20";
    let text = format!("{is_user}\ndir = \"home\"");
    let mut embedded = Embedded::new();
    let open = espalier_proto::SetAttr { perm: Some(0o777), ..Default::default() };
    let target = espalier_sim::source::Target::Path(b"/".into());
    embedded.run([espalier_sim::source::Op::SetAttr { target, set: open }]);
    assert!(run(&mut embedded, &text).iter().all(|done| done.result.is_ok()));
}

#[test]
fn compile() {
    let text =
        "kind = \"compile\"\nprocesses = 2\nsources = 3\nincludes = 10\nheaders = 16\ninclude_path = 4";
    let counts = counts(&run(&mut Embedded::new(), text));
    let count = |kind: OpKind, error| counts.get(&(kind.name(), error)).copied().unwrap_or(0);
    let includes = 2 * 3 * 10;
    assert_eq!(count(OpKind::Create, None), 16 + 6 + 6 + 2);
    assert_eq!(count(OpKind::Open, None), includes + 6 + 6);
    // Headers are in directories by number modulo 4: on average 1.5 others are searched first.
    let missed = count(OpKind::Open, Some(Errno::ENOENT));
    assert!((includes..2 * includes).contains(&missed), "{missed}");
    assert_eq!(count(OpKind::Unlink, Some(Errno::ENOENT)), 6 + 2);
    assert_eq!(counts.keys().filter(|(_, error)| error.is_some()).count(), 2, "{counts:?}");
}

#[test]
fn a_workload_is_the_same_again() {
    for kind in ["create", "zipf", "untar", "compile"] {
        let text = format!("kind = \"{kind}\"\nprocesses = 2");
        assert_eq!(run(&mut Embedded::new(), &text), run(&mut Embedded::new(), &text), "{kind}");
    }
}
