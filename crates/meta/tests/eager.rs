//! Eager and rendezvous transfers: an open reports the policy of the file.

use crate::harness::{Harness, config, name, open_how};
use espalier_meta::Config;
use espalier_policy::{Key, Policy};
use espalier_proto::*;

fn set(fs: &mut Harness, dir: Ino, eager: bool) {
    let (name, value) = (Key::Eager.attribute().into_bytes().into(), eager.to_string().into_bytes().into());
    fs.ask(Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false }).unwrap();
}

/// A file that is opened, and whether its payloads are announced.
fn opened(fs: &mut Harness, request: Request) -> (Ino, bool) {
    match (request.clone(), fs.ask(request)) {
        (_, Ok(Reply::Created(entry, opened))) => (entry.attr.ino, opened.announced),
        (Request::Open { ino, .. }, Ok(Reply::Opened(opened))) => (ino, opened.announced),
        (_, other) => panic!("{other:?}"),
    }
}

fn create(dir: Ino, file: &str) -> Request {
    let (name, node, open) = (name(file), NewNode::Regular, Some(open_how(Access::WRITE, false)));
    Request::Create { dir, name, node, perm: 0o644, umask: 0, open, exclusive: true, writeback: None }
}

#[test]
fn open_reply_says_how_payloads_are_sent() {
    for by_default in [None, Some(true), Some(false)] {
        let mut policy = Policy::NONE;
        if let Some(eager) = by_default {
            policy.set(Key::Eager, &eager.to_string()).unwrap();
        }
        let mut fs = Harness::with(Config { policy, ..config() });
        let dir = fs.mkdir("dir");
        let (old, announced) = opened(&mut fs, create(dir, "old"));
        assert_eq!(announced, by_default == Some(false));
        for (round, eager) in [false, true, false].into_iter().enumerate() {
            set(&mut fs, dir, eager);
            let below = fs.mkdir(&format!("dir/{round}"));
            let (new, reported) = opened(&mut fs, create(below, "new"));
            let (_, of_nameless) = opened(&mut fs, Request::TmpFile { dir, perm: 0o644, umask: 0 });
            assert_eq!((reported, of_nameless), (!eager, !eager));
            let open = |ino| Request::Open { ino, how: open_how(Access::READ, false) };
            assert_eq!(opened(&mut fs, open(new)), (new, !eager));
            assert_eq!(opened(&mut fs, open(old)), (old, announced), "the setting is kept");
        }
    }
}
