//! No-metafile files inherit attributes from their directory until they leave it.

use espalier_policy::Key;

use super::*;

/// With a file in the root and a directory.
fn no_metafile() -> Run {
    let mut server = Policy::NONE;
    server.set(Key::NoMetafile, "true").unwrap();
    let rules = Rules { scattered: true, server, ..RULES };
    let mut run = Run { checker: Checker::new(rules), ..Run::new() };
    assert!(run.did(create("f"), Ok(replied(0o666))) && run.did(mkdir(1, "d"), Ok(dir(3))));
    run
}

fn with_perm(ino: u64, kind: FileType, perm: u32) -> Attr {
    let (nlink, size) = if kind == FileType::Directory { (3, 2) } else { (1, 0) };
    Attr { perm, ..attr(ino, kind, nlink, size) }
}

/// The file's attributes.
fn replied(perm: u32) -> Answer {
    entry(with_perm(2, FileType::Regular, perm))
}

fn stat(perm: u32) -> Answer {
    Answer::Attr(with_perm(2, FileType::Regular, perm))
}

fn chmod(ino: u64, perm: u32) -> Call<'static> {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    Call::Request(Request::SetAttr { ino: Ino(ino), set })
}

#[test]
fn directory_permissions_apply_to_no_metafile_files() {
    let root = |perm| Ok(Answer::Attr(with_perm(1, FileType::Directory, perm)));
    for (perm, is_so) in [(0o640, true), (0o666, false), (0o750, false)] {
        let mut run = no_metafile();
        assert!(run.did(chmod(1, 0o1750), root(0o1750)));
        assert_eq!(run.did(getattr(2), Ok(stat(perm))), is_so, "{perm:o}");
    }
    // Both values are possible during the change, also if the reply is late.
    for perm in [0o640, 0o666] {
        let mut run = no_metafile();
        let (changing, looking) = (run.asks(chmod(1, 0o750)), run.asks(getattr(2)));
        assert!(run.ends(changing, root(0o750)));
        assert!(run.ends(looking, Ok(stat(perm))), "{perm:o}");
    }
    for (perm, is_so) in [(0o666, true), (0o600, false)] {
        let mut run = no_metafile();
        assert!(run.did(rename((1, "f"), (3, "f"), RenameFlags::empty()), Ok(Answer::Done)));
        assert!(run.did(
            chmod(1, 0o700),
            Ok(Answer::Attr(Attr { size: 1, ..with_perm(1, FileType::Directory, 0o700) }))
        ));
        assert_eq!(run.did(getattr(2), Ok(stat(perm))), is_so, "{perm:o}");
    }
}

#[test]
fn change_that_needs_metafile_is_refused() {
    let link = || Call::Request(Request::Link { ino: Ino(2), dir: Ino(3), name: name("g") });
    for (call, done) in [(chmod(2, 0o600), stat(0o600)), (link(), replied(0o666))] {
        assert!(no_metafile().did(call.clone(), Err(Errno::EPERM)));
        assert!(!no_metafile().did(call, Ok(done)));
    }
}
