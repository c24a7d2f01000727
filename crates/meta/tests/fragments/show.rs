//! The attribute that shows a directory's fragments.

use super::*;

fn fragments_of(fs: &mut Routed, dir: Ino) -> Result<String, Errno> {
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
    assert_eq!(fs.ask(set_xattr(dir, "user.espalier.fragments", b"")), Err(Errno::EPERM));
    assert_eq!(fs.ask(Request::RemoveXattr { ino: dir, name }), Err(Errno::EPERM));
}
