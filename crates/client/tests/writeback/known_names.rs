//! Names of a directory that are listed in the background.

use espalier_proto::{Dirent, FromServer, Lease, RevocationId};

use super::*;

/// A client with an exclusive lease on a directory that it has not listed.
fn unlisted(entries: u64) -> ClientWorld {
    let mut world = ClientWorld::new();
    world.revoke_inode(1, DIR);
    world.call(Request::Lookup { dir: Ino::ROOT, name: name("dir") });
    let dir = attr(DIR, FileType::Directory, entries);
    world.reply(world.last().0, Touched::default(), Ok(Reply::Entry(entry(dir, true))));
    world.call(make("pipe", NewNode::Fifo));
    let pipe = entry(attr(Ino(13), FileType::Fifo, 0), true);
    let touched = Touched { exclusive: Some(DIR), attrs: vec![dir], ..Touched::default() };
    world.reply(world.last().0, touched, Ok(Reply::Entry(pipe)));
    world
}

/// Looks absent names up that the server has to be asked for.
fn miss(world: &mut ClientWorld, count: u32) {
    for _ in 0..count {
        let call = world.call(lookup(&format!("absent{}", world.calls)));
        let (id, ..) = world.last();
        let is_lookup = |(_, _, request): &&(_, _, Request)| matches!(request, Request::Lookup { .. });
        let id = world.sent.iter().rev().find(is_lookup).map_or(id, |sent| sent.0);
        world.reply(id, Touched::default(), Ok(Reply::Absent { cacheable: true }));
        assert!(world.answer(call).is_some());
    }
}

/// The requested pages: the cursors that they begin after.
fn pages(world: &ClientWorld) -> Vec<(RequestId, u64)> {
    let page = |(id, _, request): &(RequestId, Caller, Request)| match request {
        Request::ReadDir { dir: DIR, after, plus: false, .. } => Some((*id, *after)),
        _ => None,
    };
    world.sent.iter().filter_map(page).collect()
}

fn reply_page(world: &mut ClientWorld, after: u64, file: &str, end: bool) {
    let (id, from) = pages(world).pop().expect("a page is requested");
    assert_eq!(from, after);
    let (ino, kind, cursor) = (Ino(1), FileType::Regular, after + 100);
    let dirent = Dirent { name: name(file), ino, kind, cursor, entry: None, remote: None };
    let (entries, parent, until) = (vec![dirent], Ino::ROOT, u64::MAX);
    world.reply(id, Touched::default(), Ok(Reply::Listing { entries, parent, end, until }));
}

#[test]
fn absent_names_have_the_directory_listed_page_by_page() {
    let mut world = unlisted(300);
    miss(&mut world, 20);
    assert_eq!(pages(&world).len(), 1, "one page at a time");
    reply_page(&mut world, 0, "first", false);
    assert!(pages(&world).is_empty());
    miss(&mut world, 8);
    reply_page(&mut world, 100, "second", true);
    assert!(world.is_answered(lookup("new")));
    assert!(world.is_answered(create("new", true)));
    for listed in ["first", "second"] {
        assert!(!world.is_answered(lookup(listed)), "it exists");
    }
}

#[test]
fn background_listing_begins_again_after_a_change_by_others() {
    let mut world = unlisted(300);
    miss(&mut world, 8);
    reply_page(&mut world, 0, "first", false);
    miss(&mut world, 8);
    let mut actions = Actions::default();
    let revoke = FromServer::Revoke { number: RevocationId(2), lease: Lease::Contents { dir: DIR } };
    world.sessions.received(world.now, RANK, revoke, &mut actions);
    world.take(actions);
    reply_page(&mut world, 100, "second", true);
    assert!(!world.is_answered(lookup("new")));
}

#[test]
fn names_that_would_not_fit_into_the_cache_are_not_listed() {
    let mut world = unlisted(1001);
    miss(&mut world, 50);
    assert_eq!(pages(&world), []);
}
