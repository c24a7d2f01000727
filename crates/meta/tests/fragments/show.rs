//! Fragments as users see them: the attribute that shows them, and counts.

use super::*;
use espalier_meta::Figures;

pub fn fragments_of(fs: &mut Routed, dir: Ino) -> Result<String, Errno> {
    let name = (*b"user.espalier.fragments").into();
    let Reply::Bytes(text) = fs.ask(Request::GetXattr { ino: dir, name })? else { panic!() };
    Ok(String::from_utf8(text.to_vec()).unwrap())
}

/// The values of a key, in the order of the text.
fn numbers(text: &str, key: &str) -> Vec<u64> {
    let number = |rest: &str| rest.split([',', ' ', '\n']).next().unwrap().parse().unwrap();
    text.split(&format!("{key} = ")).skip(1).map(number).collect()
}

#[test]
fn fragments_are_shown_by_hash_with_their_ranks_and_entries() {
    let (mut fs, dir) = Routed::with_fragments();
    fs.make_files(dir, &names("file", 40));
    let shown = fragments_of(&mut fs, dir).unwrap();
    let map = fs.map(dir);
    assert_eq!(numbers(&shown, "version"), [u64::from(map.version())]);
    assert_eq!(numbers(&shown, "servers"), [4]);
    assert_eq!(numbers(&shown, "rank"), [1, 3, 2, 0]);
    let (first, last) = (numbers(&shown, "first"), numbers(&shown, "last"));
    assert_eq!((first[0], last[3]), (0, LAST_CURSOR));
    assert!((0..3).all(|at| last[at] + 1 == first[at + 1]), "{shown}");
    for (ino, entries) in numbers(&shown, "inode").into_iter().zip(numbers(&shown, "entries")) {
        assert_eq!(fs.fs.attr(Ino(ino)).size, entries);
    }
    assert_eq!(numbers(&shown, "entries").iter().sum::<u64>(), 40);
    let creates: f64 = shown.split("popularity = [").skip(1).map(second).sum();
    // Each file, and the directory's policy at its first fragment.
    assert!((40.0..=45.0).contains(&creates), "{shown}");
}

/// The second number of a list.
fn second(list: &str) -> f64 {
    list.split([',', ']']).nth(1).unwrap().trim().parse().unwrap()
}

#[test]
fn whole_directory_shows_one_fragment_and_a_file_none() {
    let (mut fs, dir) = Routed::with_dir();
    let file = fs.make(dir, "file", NewNode::Regular);
    let shown = fragments_of(&mut fs, dir).unwrap();
    assert_eq!(numbers(&shown, "inode"), [dir.0]);
    assert_eq!((numbers(&shown, "first"), numbers(&shown, "last")), (vec![0], vec![LAST_CURSOR]));
    assert_eq!(numbers(&shown, "entries"), [1]);
    assert_eq!(fragments_of(&mut fs, file), Err(Errno::ENODATA));
}

#[test]
fn fragments_are_shown_only_to_those_who_may_read_the_directory() {
    let (mut fs, dir) = Routed::with_fragments();
    fs.ask(set_perm(dir, 0o711)).unwrap();
    let name: Box<[u8]> = (*b"user.espalier.fragments").into();
    let get = Request::GetXattr { ino: dir, name: name.clone() };
    assert_eq!(fs.ask_as(&user(7), get), Err(Errno::EACCES));
    assert_eq!(fs.ask(Request::RemoveXattr { ino: dir, name }), Err(Errno::EPERM));
}

#[test]
fn splits_and_misrouted_requests_are_counted() {
    let (mut fs, dir) = Routed::with_dir();
    fs.make_files(dir, &names("file", 40));
    let sum = |fs: &Routed, count: fn(&Figures) -> u64| -> u64 {
        fs.fs.0.iter().map(|rank| count(&rank.meta.figures())).sum()
    };
    assert_eq!(sum(&fs, |figures| figures.fragments), 0);
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"4")).unwrap();
    fs.make(dir, "one-more", NewNode::Regular);
    assert_eq!(fs.map(dir).fragments().count(), 4);
    assert!(fs.fs.0.iter().all(|rank| rank.meta.figures().fragments == 1));
    assert_eq!(sum(&fs, |figures| figures.fragment_counts.splits), 3);
    assert_eq!(sum(&fs, |figures| figures.transfers_running), 0);
    let attr = fs.fs.attr(dir);
    // Each name has moved once or twice, unless it is in the first fragment.
    let moved = sum(&fs, |figures| figures.fragment_counts.names_moved);
    assert!((41 - attr.size..=2 * 41).contains(&moved), "{moved} of {attr:?}");
    let before = sum(&fs, |figures| figures.fragment_counts.misrouted);
    fs.maps.clear();
    let in_one = name_in(&fs.map(dir), 1, "misrouted");
    fs.maps.clear();
    assert_eq!(fs.lookup(dir, &in_one), Err(Errno::ENOENT));
    assert_eq!(sum(&fs, |figures| figures.fragment_counts.misrouted), before + 1);
    let files = fs.list(dir);
    for file in &files {
        fs.ask(unlink(dir, file)).unwrap();
    }
    fs.ask(rmdir(Ino::ROOT, "dir")).unwrap();
    for rank in 0..RANKS {
        fs.fs.0[usize::from(rank)].forget(dir);
    }
    fs.fs.fsck();
}

/// Kind, source and destination of the transfers that a directory shows.
fn transfers(fs: &mut Routed, dir: Ino) -> Vec<(String, u64, u64)> {
    let shown = fragments_of(fs, dir).unwrap();
    let (_, transfers) = shown.split_once("transfers = [").unwrap();
    let kinds = transfers.split("kind = \"").skip(1).map(|rest| rest.split('"').next().unwrap().into());
    let (from, to) = (numbers(transfers, "from"), numbers(transfers, "to"));
    assert!(numbers(transfers, "at").windows(2).all(|times| times[0] <= times[1]), "{shown}");
    kinds.zip(from).zip(to).map(|((kind, from), to)| (kind, from, to)).collect()
}

#[test]
fn last_transfers_of_names_are_shown_and_survive_restarts() {
    let (mut fs, dir, files) = full_dir_on_disk();
    fs.lookup(Ino::ROOT, "dir").unwrap();
    assert_eq!(transfers(&mut fs, dir), []);
    let ranks = [2, 0, 3, 1, 2, 3, 0, 2, 3, 0];
    let mut before = u64::from(HOME);
    let mut expected = Vec::new();
    for rank in ranks {
        moves::move_all(&mut fs, dir, rank);
        expected.push(("move".to_string(), before, rank.into()));
        before = rank.into();
    }
    // The last eight.
    assert_eq!(transfers(&mut fs, dir), expected[2..]);
    fs.restart();
    fs.lookup(Ino::ROOT, "dir").unwrap();
    assert_eq!(transfers(&mut fs, dir), expected[2..]);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn splits_and_merges_are_shown_among_the_transfers() {
    let (mut fs, dir) = Routed::with_dir();
    fs.ask(set_xattr(dir, "user.espalier.dir_split", b"8")).unwrap();
    let files = names("file", 9);
    fs.make_files(dir, &files);
    fs.settle();
    assert_eq!(transfers(&mut fs, dir), [("split".to_string(), 1, 2)]);
    for file in &files {
        fs.ask(unlink(dir, file)).unwrap();
    }
    fs.settle();
    assert_eq!(transfers(&mut fs, dir)[1..], [("merge".to_string(), 2, 1)]);
    fs.fs.fsck();
}
