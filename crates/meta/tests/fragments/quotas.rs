//! Quotas on directories whose fragments are at several ranks (docs/usage.md).

use super::*;

const LIMIT: usize = 40;
/// Creations in a fragment between two exchanges of figures.
const BETWEEN: usize = 3;

/// Creates up to [`BETWEEN`] files in each fragment. Returns those that were made.
fn create_some(fs: &mut Routed, dir: Ino, round: usize) -> Vec<String> {
    let map = fs.map(dir);
    let mut made = Vec::new();
    for (number, at) in (0..usize::from(RANKS)).flat_map(|number| (0..BETWEEN).map(move |at| (number, at))) {
        let file = name_in(&map, number, &format!("{round}-{at}"));
        match fs.ask(create(dir, &file, NewNode::Regular)) {
            Ok(_) => made.push(file),
            Err(errno) => assert_eq!(errno, Errno::EDQUOT),
        }
    }
    made
}

#[test]
fn fragments_exceed_a_quota_by_the_creations_of_one_exchange_at_most() {
    let (mut fs, dir) = Routed::with_fragments();
    fs.ask(set_xattr(dir, "user.espalier.quota.max_files", b"40")).unwrap();
    let mut made = Vec::new();
    for round in 0..LIMIT {
        let new = create_some(&mut fs, dir, round);
        let is_full = made.len() >= LIMIT;
        assert!(!is_full || new.is_empty(), "{} files, and {new:?}", made.len());
        made.extend(new);
        fs.fs.send_usage();
        // The figures of the others come with the next report.
        fs.fs.tick();
    }
    let most = LIMIT + BETWEEN * usize::from(RANKS);
    assert!((LIMIT..most).contains(&made.len()), "{} files", made.len());
    assert_eq!(fs.fs.usage(dir)[0], made.len() as u64);
    // A removal makes room for a file of any fragment.
    while made.len() >= LIMIT {
        assert_eq!(fs.ask(unlink(dir, &made.pop().unwrap())), Ok(Reply::Done));
    }
    fs.fs.send_usage();
    for _ in 0..2 {
        fs.fs.tick();
        let map = fs.map(dir);
        let refused = (0..4).filter(|number| {
            let file = name_in(&map, *number, "last");
            let is_made = fs.ask(create(dir, &file, NewNode::Regular)).is_ok();
            if is_made {
                assert_eq!(fs.ask(unlink(dir, &file)), Ok(Reply::Done));
            }
            fs.fs.send_usage();
            !is_made
        });
        let refused: Vec<usize> = refused.collect();
        if refused.is_empty() {
            return fs.fs.fsck();
        }
    }
    panic!("a fragment refuses files below the limit");
}
