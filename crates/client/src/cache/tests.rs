use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;

use espalier_proto::{Lease, Location, NewNode, Rank, SetAttr, Time};

use super::*;
use crate::locations::Locations;

const DIR: Ino = Ino(2);

pub(super) fn attr(ino: u64, kind: FileType, size: u64) -> Attr {
    Attr { size, nlink: 1, ..Attr::new(Ino(ino), kind, 0o644, Time::new(0, 0)) }
}

fn entry(ino: u64, size: u64) -> Answer {
    let attr = attr(ino, FileType::Regular, size);
    Answer::Entry(Entry {
        attr,
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        sole_holder: false,
        location: Location::Table,
        reclaim_token: 0,
    })
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn lookup(text: &str) -> Call<'static> {
    Call::Request(Request::Lookup { dir: DIR, name: name(text) })
}

fn file(ino: u64) -> Option<Binding> {
    Some(Binding::Inode(Ino(ino), FileType::Regular))
}

fn answered(cache: &mut Cache, call: &Call<'_>, answer: Option<&Answer>, left: u64, now: u64) {
    cache.answered(call, answer, Term { requested_at: now, left }, now);
}

/// A cache with a lease on the directory.
fn cache(capacity: usize, lease: u64) -> Cache {
    let mut cache = Cache::new(capacity, Users::AtOnce);
    let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
    answered(&mut cache, &Call::Request(Request::GetAttr { ino: DIR }), Some(&dir), lease, 0);
    cache
}

#[test]
fn reply_is_cached_for_its_lease() {
    let mut cache = cache(10, 100);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
    answered(&mut cache, &lookup("b"), Some(&Answer::Absent { cacheable: true }), 50, 10);
    assert_eq!(cache.name(DIR, &name("a"), 59), file(7));
    assert_eq!(cache.name(DIR, &name("b"), 59), Some(Binding::Absent));
    assert_eq!(cache.attr(Ino(7), 59).map(|attr| attr.size), Some(1));
    assert_eq!((cache.name(DIR, &name("a"), 60), cache.attr(Ino(7), 60)), (None, None));
    assert_eq!(cache.name(DIR, &name("c"), 10), None);
    // Without a lease, nothing is cached.
    answered(&mut cache, &lookup("c"), Some(&entry(8, 1)), 0, 10);
    assert_eq!((cache.name(DIR, &name("c"), 10), cache.attr(Ino(8), 10)), (None, None));
}

#[test]
fn a_name_is_trusted_while_its_directory_is_leased_without_a_break() {
    let mut cache = cache(10, 100);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 1000, 10);
    assert_eq!(cache.name(DIR, &name("a"), 100), None);
    let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
    let ask = Call::Request(Request::GetAttr { ino: DIR });
    answered(&mut cache, &ask, Some(&dir), 100, 200);
    assert_eq!(cache.name(DIR, &name("a"), 200), None);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 1000, 210);
    answered(&mut cache, &ask, Some(&dir), 100, 250);
    assert_eq!(cache.name(DIR, &name("a"), 349), file(7));
    cache.revoke(&Lease::Inode { ino: DIR });
    assert_eq!((cache.name(DIR, &name("a"), 260), cache.names), (None, 0));
}

#[test]
fn names_and_permissions_outlast_the_contents_of_a_directory() {
    let mut cache = cache(10, 100);
    let list = Call::Request(Request::ReadDir { dir: DIR, after: 0, limit: 10, plus: false });
    let listing = Answer::Listing { entries: Vec::new(), parent: Ino::ROOT, end: true };
    answered(&mut cache, &list, Some(&listing), 100, 10);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
    assert_eq!(cache.name(DIR, &name("b"), 10), Some(Binding::Absent), "all names are known");
    assert!(matches!(cache.look_up(DIR, &name("c"), 10), Some((Answer::Absent { .. }, 0))));
    cache.revoke(&Lease::Contents { dir: DIR });
    assert_eq!(cache.name(DIR, &name("a"), 10), file(7));
    assert_eq!((cache.name(DIR, &name("b"), 10), cache.name(DIR, &name("c"), 10)), (None, None));
    assert_eq!((cache.attr(DIR, 10), cache.rights(DIR, 10).map(|attr| attr.perm)), (None, Some(0o644)));
    // A reply whose lease does not cover the contents.
    let ask = Call::Request(Request::GetAttr { ino: DIR });
    let partly = Attr { perm: 0o700, contents_leased: false, ..attr(DIR.0, FileType::Directory, 5) };
    answered(&mut cache, &ask, Some(&Answer::Attr(partly)), 100, 20);
    assert_eq!((cache.attr(DIR, 20), cache.rights(DIR, 20).map(|attr| attr.perm)), (None, Some(0o700)));
    // A new listing does not make names absent that were so in an older one.
    let dirent = Dirent {
        name: name("c"),
        ino: Ino(8),
        kind: FileType::Regular,
        cursor: 9,
        entry: None,
        remote: None,
    };
    let listing = Answer::Listing { entries: vec![dirent], parent: Ino::ROOT, end: true };
    answered(&mut cache, &list, Some(&listing), 100, 30);
    assert_eq!(
        (cache.name(DIR, &name("b"), 30), cache.name(DIR, &name("c"), 30)),
        (Some(Binding::Absent), None)
    );
    cache.revoke(&Lease::Inode { ino: DIR });
    assert_eq!((cache.name(DIR, &name("a"), 30), cache.rights(DIR, 30)), (None, None));
}

#[test]
fn directory_whose_names_change_is_walked_through_without_its_contents() {
    let mut cache = cache(10, 100);
    let found = |contents_leased| {
        let attr = Attr { contents_leased, ..attr(7, FileType::Directory, 3) };
        let Answer::Entry(entry) = entry(7, 3) else { unreachable!() };
        Answer::Entry(Entry { attr, ..entry })
    };
    answered(&mut cache, &lookup("sub"), Some(&found(true)), 90, 0);
    assert!(matches!(cache.look_up(DIR, &name("sub"), 10), Some((Answer::Entry(_), 80))));
    cache.revoke(&Lease::Contents { dir: Ino(7) });
    let Some((Answer::Unmeasured(entry), 80)) = cache.look_up(DIR, &name("sub"), 10) else { panic!() };
    assert!(entry.name_leased && !entry.attr_leased && !entry.attr.contents_leased);
    cache.revoke(&Lease::Inode { ino: Ino(7) });
    assert!(cache.look_up(DIR, &name("sub"), 10).is_none());
}

#[test]
fn own_changes_of_names_keep_permissions_and_those_of_rights_do_not() {
    let mut cache = cache(10, 100);
    let create = Call::Request(Request::Unlink { dir: DIR, name: name("a"), time: None });
    let chmod = Call::Request(Request::SetAttr { ino: DIR, set: SetAttr::default() });
    let pending = cache.sent(&create, 10);
    assert!(cache.attr(DIR, 10).is_none() && cache.rights(DIR, 10).is_some());
    answered(&mut cache, &create, Some(&Answer::Done), 0, 10);
    drop(pending);
    assert!(cache.attr(DIR, 10).is_none() && cache.rights(DIR, 10).is_some());
    let pending = cache.sent(&chmod, 10);
    assert!(cache.rights(DIR, 10).is_none());
    let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
    answered(&mut cache, &Call::Request(Request::GetAttr { ino: DIR }), Some(&dir), 100, 10);
    assert!(cache.rights(DIR, 10).is_none(), "the reply may be older than the change");
    drop(pending);
}

#[test]
fn own_changes_of_extended_attributes_keep_names_unless_they_are_lists() {
    for (attribute, is_acl) in [("user.espalier.dir_split", false), ("system.posix_acl_access", true)] {
        let mut cache = with_new_directory(10);
        cache.grant_exclusive(&Touched { exclusive: Some(NEW), ..Touched::default() }, &[], 100, 0);
        let xattr = attribute.as_bytes().into();
        let set = Call::Request(Request::SetXattr {
            ino: NEW,
            name: xattr,
            value: Vec::new().into(),
            mode: espalier_proto::XattrMode::Any,
            kill_sgid: false,
        });
        let pending = cache.sent(&set, 10);
        assert!(cache.rights(NEW, 10).is_none(), "the change is pending");
        answered(&mut cache, &set, Some(&Answer::Done), 0, 10);
        drop(pending);
        assert_eq!(cache.name(NEW, &name("a"), 20), (!is_acl).then_some(Binding::Absent));
        assert_eq!(cache.rights(NEW, 20).is_some(), !is_acl);
        assert!(!cache.has_no_xattrs(NEW, 20) && cache.exclusive_dir(NEW, 20).is_none());
    }
}

#[test]
fn revocations_and_own_changes_empty_cache() {
    let mut cache = cache(10, 100);
    let fill = |cache: &mut Cache| {
        answered(cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
        assert_eq!(cache.name(DIR, &name("a"), 10), file(7));
        assert!(cache.attr(Ino(7), 10).is_some());
    };
    fill(&mut cache);
    cache.revoke(&Lease::Name { dir: DIR, name: name("a") });
    assert_eq!(cache.name(DIR, &name("a"), 10), None);
    fill(&mut cache);
    cache.revoke(&Lease::Inode { ino: Ino(7) });
    assert_eq!(cache.attr(Ino(7), 10), None);
    fill(&mut cache);
    answered(
        &mut cache,
        &Call::Request(Request::Unlink { dir: DIR, name: name("a"), time: None }),
        Some(&Answer::Done),
        0,
        10,
    );
    assert_eq!((cache.name(DIR, &name("a"), 10), cache.attr(DIR, 10)), (None, None));
    assert!(cache.is_leased(DIR, 10), "a client's own changes do not end its leases");
    fill(&mut cache);
    let write = Call::write(Ino(7), 0, b""[..].into(), false);
    answered(&mut cache, &write, Some(&Answer::Written(1)), 0, 10);
    assert_eq!(cache.attr(Ino(7), 10), None);
    fill(&mut cache);
    drop(cache.sent(&Call::Request(Request::SetAttr { ino: DIR, set: SetAttr::default() }), 10));
    assert_eq!(cache.name(DIR, &name("a"), 10), None);
}

#[test]
fn lost_session_clears_cache_but_keeps_forgets() {
    let mut cache = cache(10, 100);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
    cache.distrust();
    assert_eq!((cache.name(DIR, &name("a"), 10), cache.attr(Ino(7), 10)), (None, None));
    cache.expire(10_000);
    assert_eq!(cache.forgotten(), [(Ino(7), 2)]);
    assert!(cache.records.is_empty() && cache.order.is_empty() && cache.names == 0);
}

/// Random inputs against a plain model of all valid entries and their times.
#[test]
fn cache_matches_model_within_its_bounds() {
    let mut random = fastrand::Rng::with_seed(4);
    let capacity = 12;
    let mut cache = Cache::new(capacity, Users::AtOnce);
    let mut names: BTreeMap<Name, (Binding, u64)> = BTreeMap::new();
    let mut attrs: BTreeMap<Ino, u64> = BTreeMap::new();
    let mut leases: BTreeMap<Ino, u64> = BTreeMap::new();
    let (mut dir_until, mut now, mut reported, mut forgotten) = (0, 0, 0, 0);
    let mut hits = 0;
    for step in 0..50_000 {
        now += random.u64(0..20);
        let text = name(&format!("name{}", random.u32(0..20)));
        let ino = random.u64(10..40);
        let lease = random.u64(0..4) * 200;
        match random.u32(0..12) {
            0..5 => {
                let subject = Call::Request(Request::Lookup { dir: DIR, name: text.clone() });
                answered(&mut cache, &subject, Some(&entry(ino, step)), lease, now);
                reported += 1;
                if lease > 0 {
                    names.insert(text, (Binding::Inode(Ino(ino), FileType::Regular), now + lease));
                    attrs.insert(Ino(ino), step);
                    let until = leases.entry(Ino(ino)).or_default();
                    *until = (*until).max(now + lease);
                }
            }
            5 => {
                let subject = Call::Request(Request::Lookup { dir: DIR, name: text.clone() });
                answered(&mut cache, &subject, Some(&Answer::Absent { cacheable: true }), lease, now);
                if lease > 0 {
                    names.insert(text, (Binding::Absent, now + lease));
                }
            }
            6 => {
                let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
                answered(&mut cache, &Call::Request(Request::GetAttr { ino: DIR }), Some(&dir), lease, now);
                if dir_until <= now {
                    names.clear();
                }
                if lease > 0 {
                    dir_until = dir_until.max(now + lease);
                }
            }
            7 => {
                cache.revoke(&Lease::Name { dir: DIR, name: text.clone() });
                names.remove(&text);
            }
            8 => {
                cache.revoke(&Lease::Inode { ino: Ino(ino) });
                attrs.remove(&Ino(ino));
                leases.remove(&Ino(ino));
            }
            9 => {
                let subject = Call::Request(Request::Unlink { dir: DIR, name: text.clone(), time: None });
                answered(&mut cache, &subject, Some(&Answer::Done), 0, now);
                names.remove(&text);
                cache.touched(Ino(ino));
                attrs.remove(&Ino(ino));
            }
            10 if random.u32(0..20) == 0 => {
                cache.revoke(&Lease::Inode { ino: DIR });
                names.clear();
                dir_until = 0;
            }
            _ => cache.expire(now),
        }
        for at in 0..20 {
            let text = name(&format!("name{at}"));
            if let Some(binding) = cache.name(DIR, &text, now) {
                hits += 1;
                assert!(dir_until > now, "step {step}");
                assert!(
                    names.get(&text).is_some_and(|known| known.0 == binding && known.1 > now),
                    "step {step}"
                );
            }
        }
        for at in 10..40 {
            if let Some(attr) = cache.attr(Ino(at), now) {
                hits += 1;
                assert_eq!(attrs.get(&Ino(at)), Some(&attr.size), "step {step}");
                assert!(leases.get(&Ino(at)).is_some_and(|until| *until > now), "step {step}");
            }
        }
        forgotten += cache.forgotten().iter().map(|(_, lookups)| lookups).sum::<u64>();
        let held: u64 = cache.records.values().map(|record| record.lookups).sum();
        assert_eq!(reported, held + forgotten, "step {step}");
        assert!(cache.records.len() <= capacity && cache.order.len() == cache.records.len());
        assert_eq!(cache.names, cache.records.values().map(|record| record.names.len()).sum::<usize>());
        assert!(cache.names <= capacity);
    }
    assert!(hits > 50_000, "only {hits}");
}

fn made(ino: u64, kind: FileType) -> Answer {
    let attr = attr(ino, kind, 0);
    Answer::Entry(Entry {
        attr,
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        sole_holder: false,
        location: Location::Table,
        reclaim_token: 0,
    })
}

fn create(dir: Ino, text: &str, node: NewNode) -> Call<'static> {
    let (name, open) = (name(text), None);
    Call::Request(Request::Create {
        dir,
        name,
        node,
        perm: 0o644,
        umask: 0,
        open,
        exclusive: true,
        writeback: None,
    })
}

/// A cache with directory 7, which was just created.
fn with_new_directory(capacity: usize) -> Cache {
    let mut cache = Cache::new(capacity, Users::Report);
    let make = create(Ino::ROOT, "dir", NewNode::Directory);
    answered(&mut cache, &make, Some(&made(7, FileType::Directory)), 100, 0);
    cache
}

const NEW: Ino = Ino(7);

#[test]
fn creator_knows_directory_is_empty() {
    let mut cache = with_new_directory(10);
    assert_eq!(cache.name(NEW, &name("a"), 0), Some(Binding::Absent));
    // Users may not cache this, since they are not notified when it ends; the next lookup gets a
    // lease on the name itself.
    assert!(matches!(cache.look_up(NEW, &name("a"), 0), Some((Answer::Absent { .. }, 0))));
    assert!(cache.look_up(NEW, &name("a"), 0).is_none());

    let make = create(NEW, "a", NewNode::Regular);
    drop(cache.sent(&make, 10));
    assert_eq!(cache.name(NEW, &name("a"), 0), None, "the outcome is unknown");
    answered(&mut cache, &make, Some(&made(8, FileType::Regular)), 50, 0);
    assert_eq!(cache.name(NEW, &name("a"), 0), file(8));
    let Some((Answer::Entry(found), 50)) = cache.look_up(NEW, &name("a"), 0) else { panic!() };
    assert_eq!(found.attr.ino, Ino(8));
    // The name's own lease has ended, but the name is not absent.
    assert_eq!(cache.name(NEW, &name("a"), 60), None);
    let remove = Call::Request(Request::Unlink { dir: NEW, name: name("a"), time: None });
    answered(&mut cache, &remove, None, 0, 60);
    assert_eq!(cache.name(NEW, &name("a"), 60), None, "the create has failed");
    answered(&mut cache, &remove, Some(&Answer::Done), 0, 60);
    assert_eq!(cache.name(NEW, &name("a"), 60), None, "the name may have been created again");
    answered(&mut cache, &remove, Some(&Answer::Done), 50, 60);
    assert_eq!(cache.name(NEW, &name("a"), 60), Some(Binding::Absent));

    cache.revoke(&Lease::Inode { ino: NEW });
    assert_eq!(cache.name(NEW, &name("b"), 60), None);
}

/// The reply was delayed; meanwhile another client has found the directory and created a file in
/// it.
#[test]
fn a_new_directory_is_not_known_by_another_answers_lease() {
    let mut cache = Cache::new(10, Users::Report);
    let find = Call::Request(Request::Lookup { dir: Ino::ROOT, name: name("dir") });
    let Answer::Entry(mut found) = made(7, FileType::Directory) else { panic!() };
    found.attr.size = 1;
    answered(&mut cache, &find, Some(&Answer::Entry(found)), 100, 0);
    let make = create(Ino::ROOT, "dir", NewNode::Directory);
    answered(&mut cache, &make, Some(&made(7, FileType::Directory)), 0, 0);
    assert_eq!(cache.name(NEW, &name("a"), 0), None);
}

/// One rank returns the name, then another the inode.
#[test]
fn a_name_at_another_rank_is_known_as_long_as_nothing_of_it_is_revoked() {
    const FAR: Ino = Ino(1 << 48 | 7);
    let make = create(DIR, "far", NewNode::Directory);
    let remote_entry =
        RemoteEntry { dir: DIR, ino: FAR, kind: FileType::Directory, cacheable: true, leased: true };
    let far = Binding::Inode(FAR, FileType::Directory);
    let mut cache = cache(10, 100);
    drop(cache.sent(&make, 10));
    cache.remote_found(&make, &remote_entry, 100, 0);
    assert_eq!(cache.name(DIR, &name("far"), 0), Some(far));
    // The second reply arrives after a revocation of the name.
    cache.revoke(&Lease::Name { dir: DIR, name: name("far") });
    cache.found(&make, Some(&made(FAR.0, FileType::Directory)), Term { requested_at: 0, left: 100 }, 0);
    assert_eq!(cache.name(DIR, &name("far"), 0), None);
    assert_eq!(cache.name(FAR, &name("a"), 0), Some(Binding::Absent), "the directory is empty");

    cache.remote_found(&make, &remote_entry, 60, 0);
    cache.distrust_rank(Rank(1), &Locations::default());
    assert_eq!((cache.name(DIR, &name("far"), 0), cache.attr(FAR, 0)), (Some(far), None));
    assert!(cache.look_up(DIR, &name("far"), 0).is_none(), "the inode is not cached");
    let known = RemoteEntry { cacheable: false, ..remote_entry };
    assert_eq!(cache.remote_entry(DIR, &name("far"), 10), Some((known, 50)));
    assert_eq!(cache.remote_entry(DIR, &name("far"), 60), None);
    cache.distrust_rank(Rank(0), &Locations::default());
    assert_eq!(cache.name(DIR, &name("far"), 0), None);
}

#[test]
fn a_name_at_another_rank_is_not_answered_while_an_own_call_may_remove_it() {
    const FAR: Ino = Ino(1 << 48 | 7);
    let look = lookup("far");
    let remote_entry =
        RemoteEntry { dir: DIR, ino: FAR, kind: FileType::Directory, cacheable: true, leased: true };
    let mut cache = cache(10, 100);
    // Another call returns the name while it is being removed.
    let changes = cache.sent(&Call::Request(Request::RmDir { dir: DIR, name: name("far"), time: None }), 10);
    cache.remote_found(&look, &remote_entry, 100, 10);
    assert_eq!(cache.remote_entry(DIR, &name("far"), 20), None);
    drop(changes);
    assert!(cache.remote_entry(DIR, &name("far"), 20).is_some());
}

#[test]
fn a_directory_is_known_when_it_has_been_listed_to_its_end_without_a_break() {
    let page = |names: &[(&str, u64)], end| {
        let dirent = |(text, cursor): &(&str, u64)| {
            let (name, ino, kind) = (name(text), Ino(*cursor), FileType::Regular);
            Dirent { name, ino, kind, cursor: *cursor, entry: None, remote: None }
        };
        Answer::Listing { entries: names.iter().map(dirent).collect(), parent: Ino::ROOT, end }
    };
    let list = |after| Call::Request(Request::ReadDir { dir: DIR, after, limit: 2, plus: false });
    let is_known = |cache: &Cache| cache.name(DIR, &name("none"), 0) == Some(Binding::Absent);

    let mut cache = cache(10, 100);
    answered(&mut cache, &list(0), Some(&page(&[("a", 10), ("b", 20)], false)), 100, 0);
    assert!(!is_known(&cache));
    answered(&mut cache, &list(20), Some(&page(&[("c", 30)], true)), 100, 0);
    assert!(is_known(&cache));
    assert_eq!(["a", "b", "c"].map(|text| cache.name(DIR, &name(text), 0)), [None; 3]);

    // A part from the middle, a lost lease or a revocation in between leaves it incomplete.
    for break_it in [
        |cache: &mut Cache, _: &Call<'_>, _: &Answer| cache.revoke(&Lease::Inode { ino: DIR }),
        |cache: &mut Cache, first: &Call<'_>, page: &Answer| {
            cache.revoke(&Lease::Inode { ino: DIR });
            answered(cache, first, Some(page), 0, 0);
        },
    ] {
        let first = page(&[("a", 10), ("b", 20)], false);
        answered(&mut cache, &list(0), Some(&first), 100, 0);
        break_it(&mut cache, &list(0), &first);
        answered(&mut cache, &list(20), Some(&page(&[("c", 30)], true)), 100, 0);
        assert!(!is_known(&cache));
    }
    // A directory with more names than the capacity is not known completely.
    let many: Vec<(String, u64)> = (0..20).map(|number| (format!("{number}"), 3 + number)).collect();
    let many: Vec<(&str, u64)> = many.iter().map(|(text, cursor)| (text.as_str(), *cursor)).collect();
    answered(&mut cache, &list(0), Some(&page(&many, true)), 100, 0);
    assert!(!is_known(&cache) && cache.names == 0);
}

#[test]
fn change_reply_replaces_cached_state() {
    let mut cache = with_new_directory(10);
    let attrs = |size, nlink| {
        let attr = Attr { nlink, ..attr(NEW.0, FileType::Directory, size) };
        Touched { attrs: vec![attr], ..Touched::default() }
    };
    cache.changed(&attrs(5, 2), 100, 0);
    assert_eq!(cache.attr(NEW, 0).map(|attr| attr.size), Some(5));
    cache.changed(&attrs(6, 2), 0, 0);
    assert_eq!(cache.attr(NEW, 0), None, "attributes without a lease are not cached");
    cache.changed(&attrs(6, 2), 100, 0);
    cache.changed(&Touched { others: vec![NEW], ..Touched::default() }, 100, 0);
    assert_eq!(cache.attr(NEW, 0), None);
    assert!(cache.name(NEW, &name("a"), 0).is_some(), "the names stay cached");
    cache.changed(&attrs(0, 0), 100, 0);
    assert_eq!(cache.name(NEW, &name("a"), 0), None, "the directory is removed");
    cache.forget(NEW, 1);
    assert_eq!(cache.forgotten(), [(NEW, 1)], "immediately, since the server may wait for it");
}

#[test]
fn inodes_known_to_users_stay_and_forgotten_ones_last_their_lease() {
    let mut cache = cache(10, 100);
    cache.users = Users::Report;
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 0);
    assert!(cache.look_up(DIR, &name("a"), 10).is_some());
    cache.forget(Ino(7), 2);
    assert_eq!(cache.forgotten(), []);
    assert!(matches!(cache.look_up(DIR, &name("a"), 20), Some((Answer::Entry(_), 30))));
    cache.expire(1_000);
    assert_eq!(cache.forgotten(), [], "users hold it");
    cache.forget(Ino(7), 1);
    assert_eq!(cache.forgotten(), [(Ino(7), 1)], "with the server's lookup count");
    // On a revocation, unused inodes are forgotten at once.
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 1_000);
    cache.forget(Ino(7), 1);
    cache.recall(Ino(7));
    assert_eq!(cache.forgotten(), [(Ino(7), 1)]);
    assert_eq!(cache.names, cache.records.values().map(|record| record.names.len()).sum::<usize>());
}

#[test]
fn cache_does_not_answer_what_pending_calls_may_change() {
    let mut cache = cache(10, 100);
    let ask = |ino| Call::Request(Request::GetAttr { ino: Ino(ino) });
    let reported = |ino| Answer::Attr(attr(ino, FileType::Regular, 1));
    answered(&mut cache, &lookup("a"), Some(&entry(7, 1)), 50, 10);
    answered(&mut cache, &ask(8), Some(&reported(8)), 50, 10);
    let unlink = |text| Call::Request(Request::Unlink { dir: DIR, name: name(text), time: None });
    let changes = cache.sent(&unlink("a"), 10);
    // It was requested before the change, and the reply arrives afterwards.
    answered(&mut cache, &ask(7), Some(&reported(7)), 50, 10);
    assert!(cache.attr(Ino(7), 10).is_none() && cache.attr(Ino(8), 10).is_some());
    drop(changes);
    assert!(cache.attr(Ino(7), 10).is_some());
    // The name's binding is unknown.
    let changes = cache.sent(&unlink("b"), 10);
    assert!(cache.attr(Ino(7), 10).is_none() && cache.attr(Ino(8), 10).is_none());
    drop(changes);
    assert!(cache.attr(Ino(8), 10).is_some());
}

/// Server replies about a stream may predate this client's writes, which the server does not see.
#[test]
fn stream_attributes_are_trusted_only_after_last_write() {
    let mut cache = cache(10, 1_000);
    let ask = Call::Request(Request::GetAttr { ino: Ino(7) });
    let streamed = |size| Answer::Attr(Attr { streamed: true, ..attr(7, FileType::Regular, size) });
    let reported = |cache: &mut Cache, size: u64, requested_at: u64, now: u64| {
        cache.answered(&ask, Some(&streamed(size)), Term { requested_at, left: 500 }, now);
        assert!(cache.has_no_xattrs(Ino(7), now), "independent of its contents");
        cache.attr(Ino(7), now).map(|attr| attr.size)
    };
    assert_eq!(reported(&mut cache, 1, 10, 20), Some(1));
    cache.opened_to_write(Ino(7));
    assert_eq!(cache.attr(Ino(7), 30), None);
    assert_eq!(reported(&mut cache, 2, 30, 40), None);
    cache.closed(Ino(7), 50);
    assert!(cache.attr(Ino(7), 60).is_none());
    for requested_at in [40, 50] {
        assert_eq!(reported(&mut cache, 2, requested_at, 60), None);
    }
    assert_eq!(reported(&mut cache, 3, 51, 60), Some(3));
    // The same holds after the time of the close is forgotten.
    cache.expire(20_000);
    assert_eq!(reported(&mut cache, 2, 50, 20_000), None);
    assert_eq!(reported(&mut cache, 3, 51, 20_000), Some(3));
}
