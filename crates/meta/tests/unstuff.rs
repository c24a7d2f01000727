//! Unstuffing: what is durable of a file stays durable when the file outgrows the strip (64 bytes
//! here), whatever else is lost.

use crate::harness::{self, DataServers, Fault, Harness, ROOT_CALLER};
use espalier_meta::{Config, Input, Io, StreamCall, Striping};
use espalier_proto::*;

const LARGE: SetAttr = SetAttr {
    perm: None,
    uid: None,
    gid: None,
    size: Some(500),
    atime: None,
    mtime: None,
    ctime: None,
    flags: None,
    kill_suid_gid: false,
    through_handle: false,
    time: None,
};

/// Unstuffs a file, makes the event durable but not the stream, and loses power. Returns the first
/// bytes of the file.
fn outgrow(mut fs: Harness, ino: Ino) -> Vec<u8> {
    fs.ask(Request::SetAttr { ino, set: LARGE }).unwrap();
    fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
    let mut fs = fs.crash();
    assert!(fs.is_streamed(ino));
    let mut bytes = fs.read(ino);
    bytes.truncate(50);
    bytes
}

fn file(fs: &mut Harness) -> Ino {
    fs.create(Ino::ROOT, "file", NewNode::Regular).unwrap()
}

fn fsync(fs: &mut Harness) {
    fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
}

#[test]
fn durable_bytes_survive_outgrowing_the_strip() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 50]).unwrap();
    fsync(&mut fs);
    assert_eq!(outgrow(fs, ino), [7; 50]);
}

#[test]
fn durable_bytes_survive_an_undurable_change() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 50]).unwrap();
    fsync(&mut fs);
    fs.write(ino, 50, &[8; 5]).unwrap();
    assert_eq!(outgrow(fs, ino), [7; 50]);
}

#[test]
fn durable_bytes_survive_a_crash() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 50]).unwrap();
    fsync(&mut fs);
    assert_eq!(outgrow(fs.crash(), ino), [7; 50]);
}

#[test]
fn a_size_without_bytes() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.ask(Request::SetAttr { ino, set: SetAttr { size: Some(50), ..LARGE } }).unwrap();
    fsync(&mut fs);
    fs.write(ino, 0, b"x").unwrap();
    fs.ask(Request::SetAttr { ino, set: SetAttr { size: Some(50), ..LARGE } }).unwrap();
    assert_eq!(outgrow(fs, ino).len(), 50);
}

#[test]
fn bytes_that_become_durable_while_it_outgrows_the_strip() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.lazy = true;
    fs.write(ino, 0, &[7; 50]).unwrap();
    let fsync = fs.send(&ROOT_CALLER, Request::Fsync { ino });
    fs.ask(Request::SetAttr { ino, set: LARGE }).unwrap();
    fs.lazy = false;
    fs.run_until_idle();
    assert_eq!(fs.answers.remove(&fsync), Some(Ok(Reply::Done)));
    assert_eq!(outgrow(fs, ino), [7; 50]);
}

#[test]
fn a_new_file_is_not_synced() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 50]).unwrap();
    assert_ne!(outgrow(fs, ino), [7; 50], "a sync would make writing big files slow");
}

#[test]
fn removed_stream_stays_removed_after_crash() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.ask(Request::SetAttr { ino, set: LARGE }).unwrap();
    fs.ask(Request::Fsync { ino }).unwrap();
    fs.ask(Request::Unlink { dir: Ino::ROOT, name: harness::name("file"), time: None }).unwrap();
    fs.send(&ROOT_CALLER, Request::Forget { ino, lookups: 1 });
    fsync(&mut fs);
    assert!(fs.disk.store().streams().unwrap().is_empty(), "the stream is removed");
    fsync(&mut fs);
    let mut fs = fs.crash();
    assert_eq!(fs.fsck(), []);
}

#[test]
fn a_file_that_replaces_another_has_its_bytes() {
    let mut fs = Harness::new();
    let (old, new) = (file(&mut fs), fs.create(Ino::ROOT, "new", NewNode::Regular).unwrap());
    fs.write(old, 0, &[7; 50]).unwrap();
    fs.ask(Request::SetAttr { ino: new, set: LARGE }).unwrap();
    let (from, to, flags) = (harness::name("new"), harness::name("file"), RenameFlags::empty());
    fs.ask(Request::Rename { from_dir: Ino::ROOT, from, to_dir: Ino::ROOT, to, flags, time: None }).unwrap();
    fsync(&mut fs);
    let mut fs = fs.crash();
    assert_eq!(fs.lookup(Ino::ROOT, "file").unwrap().size, 500);
}

#[test]
fn open_with_dsync_makes_known_bytes_durable() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.ask(Request::SetAttr { ino, set: LARGE }).unwrap();
    let how = OpenHow { access: Access::WRITE, sync: true, ..OpenHow::default() };
    fs.ask(Request::Open { ino, how }).unwrap();
    assert_eq!(fs.crash().lookup(Ino::ROOT, "file").unwrap().size, 500);
}

/// A file of 60 bytes, and an append that unstuffs it, up to the fill of the stream.
fn append(fs: &mut Harness, ino: Ino) -> u64 {
    fs.shuffle = Some(fastrand::Rng::with_seed(0));
    let id = fs.send(
        &ROOT_CALLER,
        Request::Write {
            ino,
            offset: END,
            data: b"more than fits"[..].into(),
            kill_suid_gid: false,
            time: None,
        },
    );
    assert_eq!(fs.answers.get(&id), None);
    id
}

fn fills(fs: &Harness) -> usize {
    let is_fill = |(_, io): &&(_, Io)| matches!(io, Io::Stream(StreamCall::Fill { .. }, _));
    fs.waiting.iter().filter(is_fill).count()
}

#[test]
fn unneeded_stream_is_removed() {
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, [ServerId(0)].into(), 1).unwrap();
    for striping in [None, Some(striping)] {
        let mut fs = Harness::with(Config { striping, ..harness::config() });
        fs.data = DataServers::new(1);
        let ino = file(&mut fs);
        fs.write(ino, 0, &[7; 60]).unwrap();
        let append = append(&mut fs, ino);
        fs.send(&ROOT_CALLER, Request::SetAttr { ino, set: SetAttr { size: Some(0), ..LARGE } });
        while fs.run_one() {}
        assert_eq!(fs.answers.remove(&append), Some(Ok(Reply::Done)));
        assert_eq!(fs.read(ino), b"more than fits");
        assert!(fs.disk.store().streams().unwrap().is_empty());
        assert_eq!(fs.data.files(), [].into());
        fs.shuffle = None;
        // It may outgrow the strip again.
        fs.write(ino, 14, &[8; 60]).unwrap();
        assert_eq!(fs.ask(Request::GetAttr { ino }).map(|_| fs.is_streamed(ino)), Ok(true));
    }
}

#[test]
fn failed_removal_is_retried() {
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, [ServerId(0)].into(), 1).unwrap();
    let mut fs = Harness::with(Config { striping: Some(striping), ..harness::config() });
    fs.data = DataServers::new(1);
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 60]).unwrap();
    fs.shuffle = Some(fastrand::Rng::with_seed(0));
    let large = fs.send(&ROOT_CALLER, Request::SetAttr { ino, set: LARGE });
    fs.fault = Some((fs.count, Fault::SeemsToFail(Errno::EIO)));
    fs.run_one();
    assert_eq!(fs.answers.remove(&large), Some(Err(Errno::EIO)));
    fs.data.down = true;
    while fs.run_one() {}
    fs.data.down = false;
    assert_eq!(fs.data.files().len(), 1);
    fs.input(Input::Tick);
    while fs.run_one() {}
    assert_eq!(fs.data.files(), [].into());
}

const SERVERS: [ServerId; 3] = [ServerId(0), ServerId(1), ServerId(2)];

/// A file of 60 bytes that is about to be unstuffed to one of three data servers. `reported`: which
/// servers have reported, and whether they have a datafile of it.
fn about_to_fill(reported: &[(ServerId, bool)]) -> (Harness, Ino, u64) {
    let striping = Striping::new(Distribution::SimpleStripe { strip: 100 }, SERVERS.into(), 3).unwrap();
    let mut fs = Harness::with(Config { striping: Some(striping), ..harness::config() });
    fs.data = DataServers::new(3);
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 60]).unwrap();
    fs.shuffle = Some(fastrand::Rng::with_seed(0));
    for (server, has_it) in reported {
        let inos = has_it.then_some(ino).into_iter().collect();
        fs.input(Input::NewDatafiles { server: *server, inos });
    }
    let append = append(&mut fs, ino);
    (fs, ino, append)
}

fn fill_requests(fs: &Harness) -> usize {
    let requests = |(_, io): &(_, Io)| match io {
        Io::Stream(call @ StreamCall::Fill { .. }, layouts) => Some(call.requests(layouts).unwrap().len()),
        _ => None,
    };
    fs.waiting.iter().filter_map(requests).sum()
}

#[test]
fn unstuffing_contacts_only_servers_that_get_bytes() {
    let all = SERVERS.map(|server| (server, false));
    assert_eq!(fill_requests(&about_to_fill(&all).0), 1);
    assert_eq!(fill_requests(&about_to_fill(&all[..2]).0), 3, "one has not reported");
    // Other bytes may need fewer servers.
    let (mut fs, ino, append) = about_to_fill(&all);
    let write =
        Request::Write { ino, offset: 0, data: b"other"[..].into(), kill_suid_gid: false, time: None };
    fs.send(&ROOT_CALLER, write);
    while fill_requests(&fs) < 2 {
        assert!(fs.run_one(), "{:?}", fs.answers.get(&append));
    }
    assert_eq!(fill_requests(&fs), 3);
    fs.shuffle = None;
    fs.drain();
    assert_eq!(fs.answers.remove(&append), Some(Ok(Reply::Streamed)));
    assert_eq!(fs.attr_of(ino).size, 60);
    assert_eq!(fs.fsck(), []);
}

#[test]
fn stale_datafiles_are_removed_and_current_ones_stay() {
    let all = SERVERS.map(|server| (server, false));
    let (mut fs, ino, _) = about_to_fill(&all[1..]);
    fs.input(Input::NewDatafiles { server: SERVERS[0], inos: vec![ino] });
    fs.shuffle = None;
    fs.run_until_idle();
    fs.drain();
    assert_eq!(fs.data.all().iter().map(|(_, _, size)| size).sum::<u64>(), 60, "it is filled again");
    // A datafile that is reported earlier delays the operation until it is removed.
    let (mut fs, ino, append) = about_to_fill(&[all[0], all[1], (SERVERS[2], true)]);
    assert_eq!(fill_requests(&fs), 0);
    while fill_requests(&fs) == 0 {
        assert!(fs.run_one());
    }
    assert_eq!(fill_requests(&fs), 1);
    fs.shuffle = None;
    fs.drain();
    assert_eq!(fs.answers.remove(&append), Some(Ok(Reply::Streamed)));
    assert_eq!(fs.attr_of(ino).size, 60);
}

/// A second operation would fill the stream when clients already write to it.
#[test]
fn one_at_a_time_moves_bytes_out() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 60]).unwrap();
    let (first, second, third) = (append(&mut fs, ino), append(&mut fs, ino), append(&mut fs, ino));
    assert_eq!(fills(&fs), 1);
    fs.input(Input::Cancel { from: ClientId(1), id: RequestId(second) });
    assert_eq!(fs.answers.remove(&second), Some(Err(Errno::EINTR)));
    while fs.run_one() {
        assert_eq!(fills(&fs), 0);
    }
    for id in [first, third] {
        assert_eq!(fs.answers.remove(&id), Some(Ok(Reply::Streamed)));
    }
}

#[test]
fn waiting_writer_retries_failed_unstuffing() {
    let mut fs = Harness::new();
    let ino = file(&mut fs);
    fs.write(ino, 0, &[7; 60]).unwrap();
    let (first, second) = (append(&mut fs, ino), append(&mut fs, ino));
    fs.fault = Some((fs.count, Fault::SeemsToFail(Errno::ENOSPC)));
    while fs.run_one() {}
    assert_eq!(fs.answers.remove(&first), Some(Err(Errno::ENOSPC)));
    assert_eq!(fs.answers.remove(&second), Some(Ok(Reply::Streamed)));
    fs.shuffle = None;
    assert_eq!(fs.read(ino), [7; 60]);
    assert_eq!(fs.fsck(), []);
}
