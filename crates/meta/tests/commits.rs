//! Changes that share a commit, with durable acknowledgement.

use crate::harness::{Harness, ROOT_CALLER, config, name};
use espalier_meta::{Acknowledge, Config};
use espalier_policy::{Key, Policy};
use espalier_proto::*;

const CHANGES: u64 = 6;

/// Number of syncs for changes that arrive while the first sync is in progress: creations in a
/// directory, writes, and removals.
fn syncs(fs: &mut Harness, dir: Ino) -> [u64; 3] {
    let count = |fs: &mut Harness, requests: Vec<Request>| {
        let before = fs.meta.figures().syncs;
        fs.lazy = true;
        let sent: Vec<u64> = requests.into_iter().map(|request| fs.send(&ROOT_CALLER, request)).collect();
        assert!(sent.iter().all(|id| !fs.answers.contains_key(id)), "it must be durable first");
        fs.lazy = false;
        fs.run_until_idle();
        let answers = sent.iter().map(|id| fs.answers.remove(id).unwrap().unwrap()).collect::<Vec<_>>();
        (fs.meta.figures().syncs - before, answers)
    };
    let names = || (0..CHANGES).map(|file| name(&file.to_string()));
    let make = |name| Request::Create {
        dir,
        name,
        node: NewNode::Regular,
        perm: 0o644,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    };
    let (made, files) = count(fs, names().map(make).collect());
    let write = |reply: &Reply| {
        let Reply::Entry(entry) = reply else { panic!("{reply:?}") };
        Request::SetAttr { ino: entry.attr.ino, set: SetAttr { size: Some(10), ..SetAttr::default() } }
    };
    let (changed, _) = count(fs, files.iter().map(write).collect());
    let (removed, _) = count(fs, names().map(|name| Request::Unlink { dir, name, time: None }).collect());
    [made, changed, removed]
}

fn policy(coalescing: &str) -> Policy {
    let mut policy = Policy::NONE;
    policy.set(Key::Coalescing, coalescing).unwrap();
    policy
}

#[test]
fn a_directory_says_whether_its_changes_share_commits() {
    const TOGETHER: [u64; 3] = [2; 3];
    const EXCLUSIVE_DIR: [u64; 3] = [CHANGES; 3];
    let durable = || Config { acknowledge: Acknowledge::Durable, ..config() };
    for (config, by_itself) in [
        (durable(), TOGETHER),
        (Config { watermarks: (1, 1), ..durable() }, EXCLUSIVE_DIR),
        (Config { policy: policy("false"), ..durable() }, EXCLUSIVE_DIR),
        (Config { watermarks: (1, 1), policy: policy("true"), ..durable() }, TOGETHER),
    ] {
        let mut fs = Harness::with(config);
        let dirs = ["some", "alone", "together"].map(|dir| fs.mkdir(dir));
        for (dir, coalescing) in [(dirs[1], "false"), (dirs[2], "true")] {
            let name = Key::Coalescing.attribute().into_bytes().into();
            let value = coalescing.as_bytes().into();
            fs.ask(Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false })
                .unwrap();
        }
        assert_eq!(dirs.map(|dir| syncs(&mut fs, dir)), [by_itself, EXCLUSIVE_DIR, TOGETHER]);
        let below = fs.mkdir("alone/below");
        assert_eq!(syncs(&mut fs, below), EXCLUSIVE_DIR, "new directories have it");
    }
}
