//! Renames that are acknowledged before the server has applied them.

use espalier_proto::RenameFlags;

use super::*;

fn rename(from: &str, to: &str) -> Request {
    let (from, to, flags) = (name(from), name(to), RenameFlags::empty());
    Request::Rename { from_dir: DIR, from, to_dir: DIR, to, flags, time: None }
}

/// The rename that was sent last, if it was acknowledged.
fn sent_rename(world: &ClientWorld) -> Option<(RequestId, Time)> {
    world.sent.iter().rev().find_map(|(id, _, request)| match request {
        Request::Rename { time: Some(time), .. } => Some((*id, *time)),
        _ => None,
    })
}

fn renamed(world: &mut ClientWorld, entries: u64) {
    let (id, _) = sent_rename(world).expect("a rename was sent");
    let touched = Touched { attrs: vec![attr(DIR, FileType::Directory, entries)], ..Touched::default() };
    world.reply(id, Touched { exclusive: Some(DIR), ..touched }, Ok(Reply::Done));
}

/// The inode with a name, as far as it is cached.
fn bound(world: &mut ClientWorld, file: &str) -> Option<Option<Ino>> {
    let call = world.call(lookup(file));
    match world.answer(call)? {
        Ok(Answer::Entry(entry)) => Some(Some(entry.attr.ino)),
        Ok(Answer::Absent { .. }) => Some(None),
        other => panic!("{other:?}"),
    }
}

#[test]
fn new_file_gets_its_final_name_at_once() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("temporary", false)));
    let (made, ..) = world.last();
    world.now += 10;
    assert!(world.is_answered(rename("temporary", "final")));
    assert_eq!(sent_rename(&world), None, "the server does not know the file yet");
    assert_eq!((bound(&mut world, "final"), world.size_of_dir()), (Some(Some(Ino(FIRST))), Some(3)));
    world.made(made, FIRST, 3);
    assert_eq!((bound(&mut world, "final"), world.size_of_dir()), (Some(Some(Ino(FIRST))), Some(3)));
    assert_eq!(bound(&mut world, "temporary"), Some(None), "the reply does not bind it again");
    let (_, time) = sent_rename(&world).expect("a rename was sent");
    let call = world.call(Request::GetAttr { ino: Ino(FIRST) });
    assert!(matches!(world.answer(call), Some(Ok(Answer::Attr(attr))) if attr.ctime == time));
    renamed(&mut world, 3);
    assert_eq!(bound(&mut world, "final"), Some(Some(Ino(FIRST))));
    assert!(world.is_answered(unlink("final")));
}

#[test]
fn renamed_file_replaces_another_at_once() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", false)));
    let (made, ..) = world.last();
    assert!(world.is_answered(rename("new", "old")));
    assert_eq!((bound(&mut world, "old"), world.size_of_dir()), (Some(Some(Ino(FIRST))), Some(2)));
    // The names are free for other calls when the server has renamed.
    let again = world.call(create("new", false));
    assert!(world.answer(again).is_none());
    world.made(made, FIRST, 3);
    assert!(world.answer(again).is_none());
    renamed(&mut world, 2);
    assert!(world.answer(again).is_some());
}

#[test]
fn uncertain_renames_wait_for_the_server() {
    let no_replace = |from: &str, to: &str| match rename(from, to) {
        Request::Rename { from_dir, from, to_dir, to, .. } => {
            Request::Rename { from_dir, from, to_dir, to, flags: RenameFlags::NOREPLACE, time: None }
        }
        other => other,
    };
    let mut world = ClientWorld::new();
    assert!(world.is_answered(create("new", false)));
    assert!(!world.is_answered(no_replace("new", "old")), "the name exists");
    let mut world = ClientWorld::new();
    assert!(world.is_answered(no_replace("old", "newer")));
    let mut world = ClientWorld::new();
    let exchange = Request::Rename {
        from_dir: DIR,
        from: name("old"),
        to_dir: DIR,
        to: name("fifo"),
        flags: RenameFlags::EXCHANGE,
        time: None,
    };
    assert!(!world.is_answered(exchange));
    let mut world = ClientWorld::new();
    assert!(!world.is_answered(rename("old", "old")));
    assert!(!world.is_answered(rename("absent", "new")));
    let mut world = ClientWorld::new();
    let (from_dir, from, to, flags) = (DIR, name("old"), name("new"), RenameFlags::empty());
    let away = Request::Rename { from_dir, from, to_dir: Ino::ROOT, to, flags, time: None };
    assert!(!world.is_answered(away), "two directories");
    let mut world = ClientWorld::new();
    world.call(Request::Open { ino: Ino(11), how: OpenHow::default() });
    world.reply(world.last().0, Touched::default(), Ok(Reply::Opened(Opened::default())));
    assert!(world.is_answered(create("new", false)));
    assert!(!world.is_answered(rename("new", "old")), "the replaced file is open");
}

#[test]
fn stranger_may_not_rename_at_once() {
    for (uid, may) in [(0, true), (5, false)] {
        let mut world = ClientWorld::new();
        let call = world.call_as(user(uid, 0), Call::Request(rename("old", "new")));
        assert_eq!(world.answer(call).is_some(), may, "{uid}");
    }
}

#[test]
fn names_of_a_failed_rename_are_unknown() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(rename("old", "new")));
    let (id, _) = sent_rename(&world).expect("a rename was sent");
    world.reply(id, Touched::default(), Err(Errno::ENOSPC));
    assert_eq!((bound(&mut world, "old"), bound(&mut world, "new")), (None, None));
    let [FrontendEvent::Distrust { names, .. }, FrontendEvent::Failed { name: Some(failed), .. }] =
        &world.frontend[..]
    else {
        panic!("{:?}", world.frontend)
    };
    assert_eq!((&names[..], failed), (&[(DIR, name("old")), (DIR, name("new"))][..], &name("new")));
    let sync = world.call(Request::Fsync { ino: Ino(11) });
    assert!(matches!(world.answer(sync), Some(Err(Errno::ENOSPC))));
}

#[test]
fn kernel_drops_names_of_a_rename_without_lease() {
    let mut world = ClientWorld::new();
    assert!(world.is_answered(rename("old", "new")));
    let (id, _) = sent_rename(&world).expect("a rename was sent");
    world.term = 0;
    world.reply(id, Touched::default(), Ok(Reply::Done));
    assert!(matches!(&world.frontend[..], [FrontendEvent::Distrust { names, .. }] if names.len() == 2));
}
