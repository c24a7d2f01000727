//! Replays of traces.

use std::path::Path;
use std::rc::Rc;

use espalier_proto::{RenameFlags, SetAttr};
use espalier_sim::process::Frontend;
use espalier_sim::source::{Op, OpenFlags, Target, Workload};
use espalier_sim::trace::{Replay, Replayed, Trace};
use espalier_sim::{Scenario, World};

use super::embedded::Embedded;

fn read(text: &str, root: &str) -> Result<Trace, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Trace::read(file.path(), Path::new(root)).map_err(|error| error.to_string())
}

fn replay(trace: Trace) -> Replayed {
    let replay = Replay::new(Rc::new(trace), "/traces/first".into());
    let processes = replay.start(0, 1).into_iter().map(|(_, process)| process).collect();
    Embedded::new().run_all(processes);
    replay.replayed()
}

/// Replays a trace; all results must be equal.
fn faithful(trace: Trace) -> Replayed {
    let replayed = replay(trace);
    assert!(replayed.is_faithful(), "{replayed:#?}");
    replayed
}

/// Approximately the calls of a shell for `mkdir d; echo hi > d/a; cat d/a; ln -s a d/b; ls d; mv
/// d/a d/c; rm -r d`.
const SHELL: &str = r#"100 1700000000.000100 execve("/bin/sh", ["sh"], 0x7ffc /* 3 vars */) = 0 <0.000103>
100 1700000000.000200 mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, -1, 0) = 0x7f9b73390000 <0.000003>
100 1700000000.000300 openat(AT_FDCWD</users/me>, "/etc/passwd", O_RDONLY|O_CLOEXEC) = 3</etc/passwd> <0.000011>
100 1700000000.000400 read(3</etc/passwd>, "root:x:0:"..., 4096) = 900 <0.000005>
100 1700000000.000500 close(3</etc/passwd>) = 0 <0.000003>
100 1700000000.000600 newfstatat(AT_FDCWD</users/me>, "profile", {st_mode=S_IFREG|0644, st_size=300, ...}, 0) = 0 <0.000003>
100 1700000000.000700 openat(AT_FDCWD</users/me>, "profile", O_RDONLY) = 3</users/me/profile> <0.000011>
100 1700000000.000800 read(3</users/me/profile>, "abc"..., 200) = 200 <0.000005>
100 1700000000.000900 read(3</users/me/profile>, "abc"..., 200) = 100 <0.000005>
100 1700000000.001000 close(3</users/me/profile>) = 0 <0.000003>
100 1700000000.001100 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f9b) = 101 <0.000100>
101 1700000000.001150 mkdir("d", 0777) = 0 <0.000080>
101 1700000000.001300 +++ exited with 0 +++
100 1700000000.001350 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED, si_pid=101} ---
100 1700000000.001400 chdir("/users/me/d") = 0 <0.000003>
100 1700000000.001500 openat(AT_FDCWD</users/me/d>, "a", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3</users/me/d/a> <0.000023>
100 1700000000.001600 dup2(3</users/me/d/a>, 1</dev/null>) = 1</users/me/d/a> <0.000003>
100 1700000000.001700 close(3</users/me/d/a>) = 0 <0.000003>
100 1700000000.001800 vfork( <unfinished ...>
102 1700000000.001900 write(1</users/me/d/a>, "hi\n", 3 <unfinished ...>
100 1700000000.001950 <... vfork resumed>) = 102 <0.000100>
102 1700000000.002000 <... write resumed>) = 3 <0.000008>
102 1700000000.002100 exit_group(0) = ?
102 1700000000.002200 +++ exited with 0 +++
100 1700000000.002300 close(1</users/me/d/a>) = 0 <0.000003>
100 1700000000.002400 newfstatat(AT_FDCWD</users/me/d>, "b", 0x7fff, AT_SYMLINK_NOFOLLOW) = -1 ENOENT (No such file or directory) <0.000003>
100 1700000000.002500 symlinkat("a", AT_FDCWD</users/me/d>, "b") = 0 <0.000010>
100 1700000000.002600 openat(AT_FDCWD</users/me/d>, ".", O_RDONLY|O_NONBLOCK|O_CLOEXEC|O_DIRECTORY) = 3</users/me/d> <0.000005>
100 1700000000.002700 newfstatat(3</users/me/d>, "", {st_mode=S_IFDIR|0755, st_size=80, ...}, AT_EMPTY_PATH) = 0 <0.000003>
100 1700000000.002800 getdents64(3</users/me/d>, 0x55 /* 4 entries */, 32768) = 96 <0.000005>
100 1700000000.002900 getdents64(3</users/me/d>, 0x55 /* 0 entries */, 32768) = 0 <0.000005>
100 1700000000.003000 close(3</users/me/d>) = 0 <0.000003>
100 1700000000.003100 renameat2(AT_FDCWD</users/me/d>, "a", AT_FDCWD</users/me/d>, "c", RENAME_NOREPLACE) = 0 <0.000010>
100 1700000000.003200 rmdir("/users/me/d") = -1 ENOTEMPTY (Directory not empty) <0.000010>
100 1700000000.003300 unlinkat(AT_FDCWD</users/me/d>, "c", 0) = 0 <0.000010>
100 1700000000.003400 unlink("b") = 0 <0.000010>
100 1700000000.003500 unlinkat(AT_FDCWD</users/me/d>, "../d", AT_REMOVEDIR) = 0 <0.000010>
100 1700000000.003600 mkdir("/users/me/kept", 0777) = -1 EEXIST (File exists) <0.000010>
100 1700000000.003700 rmdir("/users/me/other") = -1 ENOTEMPTY (Directory not empty) <0.000010>
100 1700000000.003800 rename("/users/me/old/", "/users/me/new/") = 0 <0.000010>
100 1700000000.003820 newfstatat(AT_FDCWD</users/me/d>, "../new/in/it", {st_mode=S_IFREG|0644, st_size=3, ...}, 0) = 0 <0.000003>
100 1700000000.003850 mknod("/users/me/empty", S_IFREG|0644) = 0 <0.000010>
100 1700000000.003870 mknod("/users/me/fifo", S_IFIFO|0644) = 0 <0.000010>
100 1700000000.003900 readlink("/users/me/link", "target", 4096) = 6 <0.000010>
100 1700000000.004000 exit_group(0) = ?
"#;

#[test]
fn strace_replay_ends_in_same_tree() {
    let trace = read(SHELL, "/users/me").unwrap();
    assert_eq!(trace.skipped["mmap"], 1);
    assert_eq!(trace.skipped["openat outside"], 1);
    let replayed = faithful(trace);
    let counts: Vec<(&str, u64)> = replayed.kinds.iter().map(|(kind, counts)| (*kind, counts[1])).collect();
    let expected = [
        ("close", 3),
        ("create", 2),
        ("list", 2),
        ("mkdir", 2),
        ("open", 2),
        ("read", 2),
        ("readlink", 1),
        ("rename", 2),
        ("rmdir", 3),
        ("stat", 4),
        ("symlink", 1),
        ("unlink", 2),
        ("write", 1),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn different_result_is_reported() {
    let log = "1 1700000000.000100 mkdir(\"/d\", 0777) = 0 <0.000080>\n\
               1 1700000000.000300 mkdir(\"/d\", 0777) = 0 <0.000080>\n\
               1 1700000000.000500 unlink(\"/d\") = -1 EPERM (Operation not permitted) <0.000080>\n";
    let replayed = replay(read(log, "/").unwrap());
    assert!(!replayed.is_faithful());
    assert_eq!((replayed.kinds["mkdir"], replayed.kinds["unlink"]), ([2, 2, 1], [1, 1, 0]));
    let observed: Vec<_> =
        replayed.differences.iter().map(|difference| (difference.line, &*difference.subject)).collect();
    assert_eq!(observed, [(2, "/traces/first/d"), (3, "/traces/first/d")]);
}

/// A process creates files that another uses, without pauses: the replay preserves the order.
#[test]
fn processes_wait_for_each_other() {
    let mut log = String::new();
    for round in 0..50 {
        let (maker, user) = (1 + round % 3, 1 + (round + 1) % 3);
        let at = |step: u32| format!("1700000000.{:06}", 100 * round + step);
        log += &format!("{maker} {} mkdir(\"/d{round}\", 0777) = 0 <0.000001>\n", at(0));
        log += &format!("{user} {} creat(\"/d{round}/f\", 0666) = 3</d{round}/f> <0.000001>\n", at(2));
        log += &format!(
            "{maker} {} rmdir(\"/d{round}\") = -1 ENOTEMPTY (Directory not empty) <0.000001>\n",
            at(4)
        );
        log += &format!("{user} {} close(3</d{round}/f>) = 0 <0.000001>\n", at(5));
        log += &format!("{maker} {} unlink(\"/d{round}/f\") = 0 <0.000001>\n", at(6));
        log += &format!("{user} {} rmdir(\"/d{round}\") = 0 <0.000001>\n", at(8));
    }
    faithful(read(&log, "/").unwrap());
}

#[test]
fn threads_share_open_files() {
    let log = "1 1700000000.000100 openat(AT_FDCWD</>, \"f\", O_RDWR|O_CREAT, 0666) = 3</f> <0.000080>\n\
               1 1700000000.000300 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD, stack=0x7f}, 88) = 2 <0.000080>\n\
               2 1700000000.000500 pwrite64(3</f>, \"x\", 1, 0) = 1 <0.000080>\n\
               2 1700000000.000700 close(3</f>) = 0 <0.000080>\n\
               1 1700000000.000900 read(3, 0x7f, 1) = -1 EBADF (Bad file descriptor) <0.000080>\n";
    let trace = read(log, "/").unwrap();
    assert_eq!(trace.skipped["read outside"], 1);
    assert_eq!(faithful(trace).kinds["close"], [1, 1, 1]);
}

#[test]
fn malformed_lines_are_named() {
    for (log, words) in [
        ("1 1700000000.000100 mkdir(\"/d\", 0777) = 0 <0.1>\n1 17000", "line 2"),
        ("1 1700000000.000100 mkdir(\"/d\", many) = 0 <0.1>\n", "line 1: mkdir: `many` is no number"),
        ("1 1700000000.000100 mkdir(\"d\", 0777) = 0 <0.1>\n", "use `strace -y`"),
        ("1 CPU_PHASE 0.1\n", "line 1"),
        ("1 MPI_FILE_CLOSE 0.1 0.1 0 0x5\n", "line 1: the file handle is of no file"),
        ("1 CPU_PHASE 0.1 long\n", "line 1: the duration is `long`"),
        ("1 MPI_FILE_OPEN 0.1 0.1 0 91 0x80 2 0 0x99\n", "line 1: the file's name is at 0x80"),
        (
            "1 MPI_FILE_OPEN 0.1 0.1 0 91 f 9 0 5\n2 MPI_FILE_WRITE 0.1 0.1 0 5 0 0xffffffffffffffff 1\n",
            "line 2: the count",
        ),
        ("something else\n", "it is no trace"),
    ] {
        let error = read(log, "/").expect_err(log);
        assert!(error.contains(words), "{log}: {error}");
    }
}

/// The example of Table 4.4 with the rest of a program: pauses are preserved, and skipped parts are
/// counted.
#[test]
fn a_trace_of_hecios() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("fs.ini", "[Const]\nMPI_COMM_WORLD=91\nMPI_SEEK_SET=600\n[FileSystem]\n/net/input=5000\n");
    for process in 0..2 {
        write(&format!("runtime.{process}"), "[Pointer]\n0xff@3=0x77\n[String]\n0x44=/net/output\n");
        let mine = 4096 * process;
        let events = format!(
            "ID Instruction Start Time(s) Duration(s) Return Parameters\r\n\
             0 MPI_COMM_RANK 0.013379 0.000225 0 0x44000000 0xbf\r\n\
             1 CPU_PHASE 0.013604 0.005907 0\r\n\
             2 MPI_FILE_OPEN 0.019511 0.003594 0 91 0x44 9 0 0xff\r\n\
             3 CPU_PHASE 0.023105 5.2e-05 0\r\n\
             4 MPI_File_seek 0.03 0.001 0 0x77 {mine} 600\r\n\
             5 MPI_FILE_WRITE 0.03 0.001 0 0x77 0xa7 0x1000 1 0xbf\r\n\
             6 MPI_FILE_WRITE_AT 0.03 0.001 0 0x77 {mine} 0xa7 4096 1 0xbf\r\n\
             7 MPI_BARRIER 0.03 0.001 0 91\r\n\
             8 MPI_FILE_READ_AT_ALL 0.03 0.001 0 0x77 0 0xa7 8192 1 0xbf\r\n\
             9 MPI_FILE_CLOSE 0.03 0.001 0 0xff\r\n\
             10 MPI_FILE_OPEN 0.03 0.001 0 91 /net/input 2 0 0x88\r\n\
             11 MPI_FILE_GET_SIZE 0.03 0.001 0 0x88 0\r\n\
             12 MPI_FILE_SYNC 0.03 0.001 0 0x88\r\n\
             13 MPI_FILE_CLOSE 0.03 0.001 0 0x88\r\n\
             14 MPI_FILE_OPEN 0.03 0.001 7 91 /net/none 2 0 0x99\r\n"
        );
        write(&format!("event.{process}"), &events);
    }
    let trace = Trace::read(dir.path(), Path::new("/")).unwrap();
    assert_eq!((trace.operations(), trace.skipped["MPI_COMM_RANK"]), (2 * 11, 2));
    let replay = Replay::new(Rc::new(trace), "/traces/first".into());
    let processes = replay.start(0, 1).into_iter().map(|(_, process)| process).collect();
    let mut embedded = Embedded::new();
    embedded.run_all(processes);
    let replayed = replay.replayed();
    assert!(replayed.is_faithful(), "{replayed:#?}");
    assert_eq!(replayed.kinds["open"], [4, 4, 4]);
    assert!(embedded.now.0 > 2 * 5_959_000, "{}", embedded.now);
}

fn run(embedded: &mut Embedded, workload: &str) {
    let workload: Workload = toml::from_str(workload).unwrap();
    let started = workload.start(0, 0, 1, Path::new("")).unwrap();
    embedded.run_all(started.crews.into_iter().flatten().map(|(_, process)| process).collect());
}

/// A recording of workloads on a mount has the same results in a file system that contains only
/// the files that the recording refers to.
#[test]
fn recording_replay_ends_in_same_tree() {
    let mut embedded = Embedded::new();
    run(&mut embedded, "kind = \"untar\"\nprocesses = 2\nfiles = 60\nlinks = 0.1");
    // Not everything exists from the start.
    embedded.run([
        Op::mkdir("/work0/moved"),
        Op::Link { from: b"/work0/0/d1".into(), to: b"/work0/other".into() },
        Op::create(3, "/work0/0/one"),
        Op::Link { from: b"/work0/0/one".into(), to: b"/work0/1/two".into() },
        Op::mkdir("/work0/closed"),
        Op::SetAttr {
            target: Target::Path(b"/work0/closed".into()),
            set: SetAttr { perm: Some(0o700), ..SetAttr::default() },
        },
    ]);
    embedded.recording = Some(Vec::new());
    embedded.run([
        Op::stat("/work0/0/one"),
        Op::stat("/work0/1/two"),
        Op::Rename { from: b"/work0/moved".into(), to: b"/elsewhere".into(), flags: RenameFlags::empty() },
        Op::create(3, "/elsewhere/new"),
        Op::Write { file: 3, offset: None, size: 100 },
        Op::Close { file: 3 },
        Op::stat("/work0/moved"),
        Op::ReadLink { path: b"/work0/0/one".into() },
        Op::rmdir("/work0/0"),
        Op::open(4, "/work0/0", OpenFlags::READ | OpenFlags::DIRECTORY),
        Op::List { file: 4, limit: 100, plus: true },
    ]);
    embedded.run_as(
        1000,
        Frontend::Mount,
        [Op::stat("/work0/closed/in"), Op::stat("/work0/0/one"), Op::mkdir("/mine")],
    );
    run(&mut embedded, "kind = \"compile\"\nprocesses = 2\nsources = 2\ndir = \"later\"\nincludes = 3");
    run(&mut embedded, "kind = \"mdtest\"\nprocesses = 3\nfiles = 20\ndir = \"last\"");
    let text = String::from_utf8(embedded.recording.take().unwrap()).unwrap();
    let trace = read(&text, "/").unwrap();
    assert_eq!(trace.operations(), text.lines().count() as u64);
    let replayed = faithful(trace);
    assert!(replayed.kinds["create"][1] > 60, "{replayed:?}");
}

#[test]
fn recording_errors_name_the_line() {
    let mut embedded = Embedded::new();
    embedded.recording = Some(Vec::new());
    embedded.run([Op::mkdir("/d"), Op::rmdir("/d")]);
    let text = String::from_utf8(embedded.recording.take().unwrap()).unwrap();
    let error = read(&text.replace("\"pid\":", "\"pod\":"), "/").expect_err("no process");
    assert!(error.contains("line 1") && error.contains("pid"), "{error}");
    // Without the creation there is nothing to remove.
    let spoiled: String =
        text.lines().filter(|line| !line.contains("Create")).map(|line| format!("{line}\n")).collect();
    let replayed = replay(read(&spoiled, "/").unwrap());
    assert!(!replayed.is_faithful());
}

/// Traces in a scenario, two copies concurrently, beside another workload, with several servers and
/// clients.
#[test]
fn traces_are_replayed_in_scenarios() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shell"), SHELL).unwrap();
    let scenario = "[cluster]\nranks = 2\nclients = 3\n\
                    [[workload]]\nkind = \"trace\"\nfiles = [\"shell\", \"shell\"]\nroot = \"/users/me\"\ncopies = 2\n\
                    [[workload]]\nkind = \"mdtest\"\nprocesses = 4\nfiles = 10\n";
    let path = dir.path().join("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let scenario = Scenario::read(&path).unwrap();
    let (observer, mutator) = (&mut (), &mut ());
    let mut world = World::new(&scenario, observer, mutator).unwrap();
    world.run().unwrap();
    assert_eq!(world.replays().len(), 4);
    for (file, replay) in world.replays() {
        assert_eq!(file, Path::new("shell"));
        assert!(replay.replayed().is_faithful(), "{:#?}", replay.replayed());
    }
    std::fs::remove_file(dir.path().join("shell")).unwrap();
    let missing = World::new(&scenario, &mut (), &mut ()).err().expect("no trace").to_string();
    assert!(missing.contains("shell"), "{missing}");
}
