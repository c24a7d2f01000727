//! Decoupled directories, and aborting them.

use espalier_meta::{DECOUPLE, Decouple, Decoupled, decode, encode};
use espalier_proto::*;

use super::merge::{Namespace, send};
use crate::harness::{Harness, ROOT_CALLER, everywhere, name, under_faults, user};

pub const INODES: u64 = 100;
pub const ID: u128 = 7;

fn set_as(fs: &mut Harness, caller: &Caller, dir: Ino, id: u128) -> Result<Reply, Errno> {
    let value = encode(&Decouple { id, inodes: INODES }).into();
    let (name, mode) = (DECOUPLE.as_bytes().into(), XattrMode::Any);
    fs.ask_as(caller, Request::SetXattr { ino: dir, name, value, mode, kill_sgid: false })
}

pub fn decouple(fs: &mut Harness, dir: Ino) -> Decoupled {
    assert_eq!(set_as(fs, &ROOT_CALLER, dir, ID), Ok(Reply::Done));
    state(fs, dir).unwrap()
}

pub fn state(fs: &mut Harness, dir: Ino) -> Result<Decoupled, Errno> {
    match fs.ask(Request::GetXattr { ino: dir, name: DECOUPLE.as_bytes().into() })? {
        Reply::Bytes(bytes) => Ok(decode(&bytes).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Decouples a directory in which others may work.
pub fn share(fs: &mut Harness, dir: Ino) -> Decoupled {
    let (name, value) = (b"user.espalier.interfere".as_slice().into(), b"allow".as_slice().into());
    let set = Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false };
    assert_eq!(fs.ask(set), Ok(Reply::Done));
    decouple(fs, dir)
}

pub fn abort(fs: &mut Harness, caller: &Caller, dir: Ino) -> Result<Reply, Errno> {
    fs.ask_as(caller, Request::RemoveXattr { ino: dir, name: DECOUPLE.as_bytes().into() })
}

#[test]
fn nobody_changes_a_decoupled_directory() {
    everywhere(|fs| {
        fs.mkdir("above");
        let dir = fs.mkdir("above/job");
        let other = fs.file("other", b"bytes");
        let decoupled = decouple(fs, dir);
        assert_eq!((decoupled.inodes, decoupled.merged), (INODES, 0));
        let busy = Err(Errno::EBUSY);
        assert_eq!(fs.create(dir, "new", NewNode::Regular), Err(Errno::EBUSY));
        assert_eq!(fs.ask(Request::Link { ino: other, dir, name: name("new") }), busy);
        let rename = |from_dir, from, to_dir, to| {
            let (from, to, flags) = (name(from), name(to), RenameFlags::empty());
            Request::Rename { from_dir, from, to_dir, to, flags, time: None }
        };
        let above = fs.walk("above").unwrap();
        assert_eq!(fs.ask(rename(Ino::ROOT, "other", dir, "new")), busy);
        assert_eq!(fs.ask(rename(above, "job", Ino::ROOT, "moved")), busy);
        let remove = Request::RmDir { dir: above, name: name("job"), time: None };
        assert_eq!(fs.ask(remove), busy);
        for dir in [dir, above] {
            assert_eq!(fs.ask(Request::RemoveTree { dir }), busy, "it is in the tree");
        }
        assert_eq!(set_as(fs, &ROOT_CALLER, dir, ID), Ok(Reply::Done), "the request may come twice");
        assert_eq!(set_as(fs, &ROOT_CALLER, dir, ID + 1), busy);
        let later = fs.mkdir("later");
        assert!(later.0 >= decoupled.first.0 + INODES, "the numbers are provisioned");
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
        assert_eq!(state(fs, dir), Err(Errno::ENODATA));
        assert!(fs.create(dir, "new", NewNode::Regular).is_ok());
    });
}

#[test]
fn others_work_in_a_decoupled_directory_that_allows_it() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        share(fs, dir);
        let other = fs.file("job/other", b"bytes");
        assert_eq!((fs.walk("job/other"), fs.attr("job").size), (Ok(other), 1));
        let linked = fs.ask(Request::Link { ino: other, dir, name: name("linked") });
        assert!(linked.is_ok(), "{linked:?}");
        assert_eq!(fs.list(dir, false).len(), 2);
        for file in ["other", "linked"] {
            fs.ask(Request::Unlink { dir, name: name(file), time: None }).unwrap();
        }
        let remove = Request::RmDir { dir: Ino::ROOT, name: name("job"), time: None };
        assert_eq!(fs.ask(remove), Err(Errno::EBUSY), "it keeps its name");
        fs.file("job/stays", b"");
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
        assert_eq!(fs.list(dir, false).len(), 1);
    });
}

#[test]
fn only_the_owner_decouples_an_empty_directory() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        fs.chmod("job", 0o777);
        let caller = user(5);
        assert_eq!(set_as(fs, &caller, dir, ID), Err(Errno::EPERM));
        fs.chown("job", 5, 5);
        fs.mkdir("job/sub");
        assert_eq!(set_as(fs, &caller, dir, ID), Err(Errno::ENOTEMPTY));
        fs.ask(Request::RmDir { dir, name: name("sub"), time: None }).unwrap();
        assert_eq!(set_as(fs, &caller, dir, Decoupled::ABORTED), Err(Errno::EINVAL));
        assert_eq!(set_as(fs, &caller, dir, ID), Ok(Reply::Done));
        assert_eq!(abort(fs, &user(6), dir), Err(Errno::EPERM));
        assert_eq!(abort(fs, &caller, dir), Ok(Reply::Done));
        assert_eq!(abort(fs, &caller, dir), Err(Errno::ENODATA));
        let file = fs.file("file", b"");
        assert_eq!(set_as(fs, &ROOT_CALLER, file, ID), Err(Errno::ENOTDIR));
    });
}

#[test]
fn abort_discards_what_is_merged() {
    everywhere(|fs| {
        let dir = fs.mkdir("job");
        let before = fs.figure(Ino::ROOT, "rfiles");
        let decoupled = decouple(fs, dir);
        let namespace = Namespace::of(&decoupled);
        assert_eq!(send(fs, dir, &namespace.batch(0..5)), Ok(Reply::Done));
        assert_ne!(fs.figure(Ino::ROOT, "rfiles"), before);
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
        assert_eq!((fs.list(dir, false), fs.figure(Ino::ROOT, "rfiles")), (vec![], before));
        assert_eq!(send(fs, dir, &namespace.batch(5..6)), Err(Errno::ESTALE));
        let again = decouple(fs, dir);
        assert!(again.first.0 >= decoupled.first.0 + INODES, "no number is used twice");
        assert_eq!(abort(fs, &ROOT_CALLER, dir), Ok(Reply::Done));
    });
}

#[test]
fn decouple_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("job");
    };
    under_faults(before, |fs| {
        let dir = fs.walk("job")?;
        let reply = set_as(fs, &ROOT_CALLER, dir, ID);
        fs.forget(dir);
        reply
    });
}

#[test]
fn abort_under_faults() {
    let before = |fs: &mut Harness| {
        let dir = fs.mkdir("job");
        let decoupled = decouple(fs, dir);
        let namespace = Namespace::of(&decoupled);
        send(fs, dir, &namespace.batch(0..5)).unwrap();
        fs.forget(dir);
    };
    under_faults(before, |fs| {
        let dir = fs.walk("job")?;
        let reply = match abort(fs, &ROOT_CALLER, dir) {
            // An earlier attempt was complete.
            Err(Errno::ENODATA) => Ok(Reply::Done),
            reply => reply,
        };
        fs.forget(dir);
        reply
    });
}
