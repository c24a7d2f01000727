//! Renewal of leases.

use espalier_meta::{Config, Input};
use espalier_proto::*;

use super::set_layout::{ONE, OTHER};
use crate::harness::{Harness, ROOT_CALLER, config, name};

const TERM: u32 = 10_000;

/// The reply to a request, and for how many milliseconds it may be cached.
fn ask(fs: &mut Harness, client: ClientId, request: Request) -> (Reply, u32) {
    let id = fs.send_from(client, &ROOT_CALLER, request);
    (fs.answers.remove(&id).unwrap().unwrap(), fs.leases[&id].0)
}

fn make(fs: &mut Harness, file: &str) -> Ino {
    let (name, node) = (name(file), NewNode::Regular);
    let (perm, umask, open, exclusive, writeback) = (0o644, 0, None, true, None);
    let dir = Ino::ROOT;
    let create = Request::Create { dir, name, node, perm, umask, open, exclusive, writeback };
    match ask(fs, ONE, create).0 {
        Reply::Entry(entry) => entry.attr.ino,
        other => panic!("{other:?}"),
    }
}

/// Acknowledges all revocations, and returns them.
fn give_up(fs: &mut Harness) -> Vec<(ClientId, Lease)> {
    let revocations = std::mem::take(&mut fs.revocations);
    for revocation in &revocations {
        fs.input(Input::Revoked { client: revocation.client, number: revocation.number });
    }
    revocations.into_iter().map(|revocation| (revocation.client, revocation.lease)).collect()
}

fn pass(fs: &mut Harness, ms: u32) {
    fs.uptime_ms += u64::from(ms);
    fs.input(Input::Tick);
}

#[test]
fn leases_are_renewed_for_holders_unless_revoked() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
    for client in [ONE, OTHER] {
        fs.input(Input::Connect { client, leases: true, resumes: false });
    }
    let made = ["one", "two"].map(|file| make(&mut fs, file));
    let renew = || Request::Renew { inodes: vec![made[0], Ino(1234), made[1]], exclusive_dir: None };
    assert_eq!(ask(&mut fs, OTHER, renew()), (Reply::Renewed(vec![]), 0), "a client must know them");
    pass(&mut fs, TERM / 2);
    assert_eq!(ask(&mut fs, ONE, renew()), (Reply::Renewed(made.to_vec()), TERM));
    // Past the end of the first leases.
    pass(&mut fs, TERM);
    ask(&mut fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("one") });
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let changed = fs.send_from(OTHER, &ROOT_CALLER, Request::SetAttr { ino: made[0], set });
    assert!(!fs.answers.contains_key(&changed));
    assert_eq!(ask(&mut fs, ONE, renew()), (Reply::Renewed(vec![made[1]]), TERM));
    assert_eq!(give_up(&mut fs), [(ONE, Lease::Inode { ino: made[0] })]);
    assert!(fs.answers.contains_key(&changed));
}

#[test]
fn held_data_is_leased_despite_contention() {
    let mut fs = Harness::with(Config { lease_ms: Some(TERM), session_ms: Some(60_000), ..config() });
    for client in [ONE, OTHER] {
        fs.input(Input::Connect { client, leases: true, resumes: false });
    }
    let ino = make(&mut fs, "file");
    ask(&mut fs, OTHER, Request::Lookup { dir: Ino::ROOT, name: name("file") });
    let how = OpenHow { access: Access::READ, ..OpenHow::default() };
    ask(&mut fs, OTHER, Request::Open { ino, how });
    let read = || Request::Read { ino, offset: 0, size: 10, noatime: true };
    for round in 0..8 {
        assert_eq!(ask(&mut fs, OTHER, read()).1, TERM, "{round}");
        let set = SetAttr { perm: Some(0o600 + round), ..SetAttr::default() };
        fs.send_from(ONE, &ROOT_CALLER, Request::SetAttr { ino, set });
        assert_eq!(give_up(&mut fs), [(OTHER, Lease::Inode { ino })]);
    }
    assert_eq!(ask(&mut fs, OTHER, Request::GetAttr { ino }).1, 0, "it is contended");
}
