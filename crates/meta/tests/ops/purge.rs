//! Files that clients remove themselves.

use espalier_meta::{Acknowledge, Config, Input, Io, StreamCall};
use espalier_policy::Key;
use espalier_proto::*;

use super::set_layout::{ONE, OTHER, STRIPED, ask, cluster, file};
use crate::harness::{Harness, ROOT_CALLER, config, name, open_how};

fn unlink(fs: &mut Harness, client: ClientId) -> Result<Reply, Errno> {
    ask(fs, client, Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None })
}

fn open(fs: &mut Harness, client: ClientId, ino: Ino) -> Result<Reply, Errno> {
    ask(fs, client, Request::Open { ino, how: open_how(Access::READ, false) })
}

#[test]
fn a_client_removes_name_datafiles_and_inode() {
    let fs = &mut cluster(&STRIPED);
    let ino = file(fs, ONE).ino;
    let Ok(Reply::Orphaned(of, Some(given))) = unlink(fs, ONE) else { panic!("it is the client's") };
    assert_eq!(of, ino);
    assert_eq!(open(fs, ONE, ino), Err(Errno::ESTALE), "its bytes go");
    for server in given.layout.iter().flat_map(|layout| layout.servers()) {
        let remove = DataRequest::Remove { ino };
        assert!(given.capability.permits(&remove));
        fs.data.ask(*server, &remove).unwrap();
    }
    assert_eq!(ask(fs, ONE, Request::Purge { ino, removed: true }), Ok(Reply::Done));
    assert_eq!(ask(fs, ONE, Request::GetAttr { ino }), Err(Errno::ESTALE));
    assert_eq!(ask(fs, ONE, Request::Purge { ino, removed: true }), Ok(Reply::Done), "once more");
    assert_eq!(fs.fsck(), []);
    assert_eq!(fs.data.all(), []);
}

/// Its name would come back without its bytes.
#[test]
fn datafiles_of_undurable_unlink_are_not_removed_by_client() {
    let mut fs = cluster(&STRIPED);
    file(&mut fs, ONE);
    fs.drain();
    fs.lazy = true;
    assert!(matches!(unlink(&mut fs, ONE), Ok(Reply::Orphaned(_, Some(_)))));
    let mut fs = fs.crash();
    fs.input(Input::Leave { client: ONE });
    fs.input(Input::Leave { client: OTHER });
    fs.fsck();
    assert_eq!(fs.data.all(), [], "the machine removes them, for the name is gone");
}

#[test]
fn stuffed_file_has_no_datafiles() {
    let fs = &mut cluster(&[(Key::Stuffing, "true")]);
    let ino = file(fs, ONE).ino;
    assert_eq!(unlink(fs, ONE), Ok(Reply::Orphaned(ino, None)));
    assert_eq!(ask(fs, ONE, Request::Purge { ino, removed: true }), Ok(Reply::Done));
    assert_eq!(fs.fsck(), []);
}

#[test]
fn file_used_by_others_is_left_to_the_server() {
    let uses: [fn(&mut Harness, Ino); 3] = [
        |fs, _| drop(ask(fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("file") })),
        |fs, ino| drop(open(fs, ONE, ino)),
        |fs, ino| drop(ask(fs, ONE, Request::Link { ino, dir: Ino::ROOT, name: name("second") })),
    ];
    for (number, makes_use) in uses.into_iter().enumerate() {
        let fs = &mut cluster(&STRIPED);
        let ino = file(fs, ONE).ino;
        makes_use(fs, ino);
        assert_eq!(unlink(fs, ONE), Ok(Reply::Done), "{number}");
        assert_eq!(fs.data.all().len(), 2, "{number}");
        assert_eq!(ask(fs, ONE, Request::Purge { ino, removed: true }), Ok(Reply::Done));
        assert!(
            ask(fs, ONE, Request::GetAttr { ino }).is_ok(),
            "{number}: it is not for the client to purge"
        );
        fs.input(Input::Leave { client: ONE });
        fs.input(Input::Leave { client: OTHER });
        assert_eq!(fs.fsck(), [], "{number}");
        assert_eq!(fs.data.all().len(), if number == 2 { 2 } else { 0 }, "{number}");
    }
}

/// The truncation could arrive after the client's removal, over another connection, and make the
/// datafile again.
#[test]
fn file_being_truncated_is_removed_by_the_server() {
    let fs = &mut cluster(&STRIPED);
    let ino = file(fs, ONE).ino;
    fs.shuffle = Some(fastrand::Rng::with_seed(1));
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let id = fs.send_from(ONE, &ROOT_CALLER, Request::SetAttr { ino, set });
    let is_truncation = |(_, io): &(_, Io)| matches!(io, Io::Stream(StreamCall::Truncate { .. }, _));
    while !fs.waiting.iter().any(is_truncation) {
        assert!(fs.run_one());
    }
    fs.shuffle = None;
    let request = Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None };
    let unlink = fs.send_from(ONE, &ROOT_CALLER, request);
    assert_eq!(fs.answers.remove(&unlink), Some(Ok(Reply::Done)), "at once");
    fs.run_until_idle();
    assert!(fs.answers.remove(&id).is_some());
    fs.input(Input::Leave { client: ONE });
    assert_eq!(fs.fsck(), []);
    assert_eq!(fs.data.all(), []);
}

#[test]
fn server_removes_what_client_does_not() {
    let gives_up: [fn(&mut Harness, Ino); 2] = [
        |fs, ino| drop(ask(fs, ONE, Request::Purge { ino, removed: false })),
        |fs, _| fs.input(Input::Leave { client: ONE }),
    ];
    for (give_up, crashes) in gives_up.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut fs = cluster(&STRIPED);
        let ino = file(&mut fs, ONE).ino;
        assert!(matches!(unlink(&mut fs, ONE), Ok(Reply::Orphaned(..))));
        if crashes {
            fs = fs.crash();
        } else {
            give_up(&mut fs, ino);
        }
        fs.input(Input::Leave { client: ONE });
        fs.input(Input::Leave { client: OTHER });
        assert_eq!(fs.fsck(), []);
        assert_eq!(fs.data.all(), []);
    }
}

/// Some of its datafiles are gone, so its bytes would read as zeros.
#[test]
fn file_being_removed_by_client_cannot_be_opened() {
    let fs = &mut cluster(&STRIPED);
    let ino = file(fs, ONE).ino;
    assert!(matches!(unlink(fs, ONE), Ok(Reply::Orphaned(..))));
    fs.shuffle = Some(fastrand::Rng::with_seed(1));
    let give_up = fs.send_from(ONE, &ROOT_CALLER, Request::Purge { ino, removed: false });
    while !fs.waiting.iter().any(|(_, io)| matches!(io, Io::Stream(StreamCall::Remove { .. }, _))) {
        assert!(fs.run_one(), "the machine removes it, though its client knows it");
    }
    let how = open_how(Access::READ, false);
    let open = fs.send_from(ONE, &ROOT_CALLER, Request::Open { ino, how });
    assert_eq!(fs.answers.remove(&open), Some(Err(Errno::ESTALE)), "at once");
    fs.shuffle = None;
    fs.run_until_idle();
    assert_eq!(fs.answers.remove(&give_up), Some(Ok(Reply::Done)));
    assert_eq!(ask(fs, ONE, Request::GetAttr { ino }), Err(Errno::ESTALE));
    assert_eq!(fs.fsck(), []);
    assert_eq!(fs.data.all(), []);
}

/// Both when a file is closed long after it was unlinked, and when a server had no time to remove
/// its bytes before a restart.
#[test]
fn bytes_are_removed_though_nothing_else_happens() {
    for acknowledge in [Acknowledge::Written, Acknowledge::Durable] {
        for is_anew in [false, true] {
            let mut fs = Harness::with(Config { acknowledge, ..config() });
            let ino = fs.file("file", &[1; 1000]);
            let streams = |fs: &Harness| fs.disk.store().streams().unwrap();
            fs.ask(Request::Unlink { dir: Ino::ROOT, name: name("file"), time: None }).unwrap();
            fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
            fs.checkpoint();
            assert_eq!(streams(&fs), [ino], "it is open");
            if is_anew {
                fs = fs.crash();
                fs.input(Input::Tick);
            } else {
                fs.forget(ino);
            }
            assert_eq!(streams(&fs), [], "{acknowledge:?} {is_anew}");
        }
    }
}
