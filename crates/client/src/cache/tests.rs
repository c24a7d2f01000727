use alloc::collections::BTreeMap;
use alloc::format;

use espalier_proto::{Home, SetAttr, Time};

use super::*;

const DIR: Ino = Ino(2);

fn attr(ino: u64, kind: FileType, size: u64) -> Attr {
    let time = Time::new(0, 0);
    let ino = Ino(ino);
    let (perm, nlink, uid, gid, rdev, blocks) = (0o644, 1, 0, 0, 0, 0);
    let (atime, mtime, ctime, btime) = (time, time, time, time);
    Attr { ino, kind, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime, btime, streamed: false }
}

fn entry(ino: u64, size: u64) -> Answer {
    let attr = attr(ino, FileType::Regular, size);
    Answer::Entry(Entry {
        attr,
        cacheable: true,
        name_leased: true,
        attr_leased: true,
        home: Home::Table,
        proof: 0,
    })
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn lookup(text: &str) -> Subject {
    Subject::of(&Request::Lookup { dir: DIR, name: name(text) })
}

fn file(ino: u64) -> Option<Binding> {
    Some(Binding::Inode(Ino(ino), FileType::Regular))
}

/// With a lease on the directory.
fn cache(capacity: usize, lease: u64) -> Cache {
    let mut cache = Cache::new(capacity);
    let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
    cache.answered(&Subject::of(&Request::GetAttr { ino: DIR }), Some(&dir), lease, 0);
    cache
}

#[test]
fn what_is_told_is_known_for_the_time_of_its_lease() {
    let mut cache = cache(10, 100);
    cache.answered(&lookup("a"), Some(&entry(7, 1)), 50, 10);
    cache.answered(&lookup("b"), Some(&Answer::Absent { cacheable: true }), 50, 10);
    assert_eq!(cache.name(DIR, &name("a"), 59), file(7));
    assert_eq!(cache.name(DIR, &name("b"), 59), Some(Binding::Absent));
    assert_eq!(cache.attr(Ino(7), 59).map(|attr| attr.size), Some(1));
    assert_eq!((cache.name(DIR, &name("a"), 60), cache.attr(Ino(7), 60)), (None, None));
    assert_eq!(cache.name(DIR, &name("c"), 10), None);
    // Without a lease nothing is.
    cache.answered(&lookup("c"), Some(&entry(8, 1)), 0, 10);
    assert_eq!((cache.name(DIR, &name("c"), 10), cache.attr(Ino(8), 10)), (None, None));
}

#[test]
fn a_name_is_trusted_while_its_directory_is_leased_without_a_break() {
    let mut cache = cache(10, 100);
    cache.answered(&lookup("a"), Some(&entry(7, 1)), 1000, 10);
    assert_eq!(cache.name(DIR, &name("a"), 100), None);
    let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
    let ask = Subject::of(&Request::GetAttr { ino: DIR });
    cache.answered(&ask, Some(&dir), 100, 200);
    assert_eq!(cache.name(DIR, &name("a"), 200), None);
    cache.answered(&lookup("a"), Some(&entry(7, 1)), 1000, 210);
    cache.answered(&ask, Some(&dir), 100, 250);
    assert_eq!(cache.name(DIR, &name("a"), 349), file(7));
    cache.revoke(&Lease::Inode { ino: DIR });
    assert_eq!((cache.name(DIR, &name("a"), 260), cache.names), (None, 0));
}

#[test]
fn revocations_and_own_changes_empty_it() {
    let mut cache = cache(10, 100);
    let fill = |cache: &mut Cache| {
        cache.answered(&lookup("a"), Some(&entry(7, 1)), 50, 10);
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
    cache.answered(&Subject::of(&Request::Unlink { dir: DIR, name: name("a") }), Some(&Answer::Done), 0, 10);
    assert_eq!((cache.name(DIR, &name("a"), 10), cache.attr(DIR, 10)), (None, None));
    assert!(cache.is_leased(DIR, 10), "its own changes do not end a client's leases");
    fill(&mut cache);
    cache.answered(&Subject::written(Ino(7)), Some(&Answer::Written(1)), 0, 10);
    assert_eq!(cache.attr(Ino(7), 10), None);
    fill(&mut cache);
    cache.sent(&Subject::of(&Request::SetAttr { ino: DIR, set: SetAttr::default() }));
    assert_eq!(cache.name(DIR, &name("a"), 10), None);
}

#[test]
fn a_session_that_is_lost_takes_everything_with_it_but_what_is_to_be_forgotten() {
    let mut cache = cache(10, 100);
    cache.answered(&lookup("a"), Some(&entry(7, 1)), 50, 10);
    cache.answered(&lookup("a"), Some(&entry(7, 1)), 50, 10);
    cache.distrust();
    assert_eq!((cache.name(DIR, &name("a"), 10), cache.attr(Ino(7), 10)), (None, None));
    cache.expire(10_000);
    assert_eq!(cache.forgotten(), [(Ino(7), 2)]);
    assert!(cache.records.is_empty() && cache.order.is_empty() && cache.names == 0);
}

/// Random inputs, and the plainest model: all that holds, with its times.
#[test]
fn it_never_knows_more_than_a_model_and_stays_within_its_bounds() {
    let mut random = fastrand::Rng::with_seed(4);
    let capacity = 12;
    let mut cache = Cache::new(capacity);
    let mut names: BTreeMap<Name, (Binding, u64)> = BTreeMap::new();
    let mut attrs: BTreeMap<Ino, u64> = BTreeMap::new();
    let mut leases: BTreeMap<Ino, u64> = BTreeMap::new();
    let (mut dir_until, mut now, mut told, mut forgotten) = (0, 0, 0, 0);
    let mut hits = 0;
    for step in 0..50_000 {
        now += random.u64(0..20);
        let text = name(&format!("name{}", random.u32(0..20)));
        let ino = random.u64(10..40);
        let lease = random.u64(0..4) * 200;
        match random.u32(0..12) {
            0..5 => {
                let subject = Subject::of(&Request::Lookup { dir: DIR, name: text.clone() });
                cache.answered(&subject, Some(&entry(ino, step)), lease, now);
                told += 1;
                if lease > 0 {
                    names.insert(text, (Binding::Inode(Ino(ino), FileType::Regular), now + lease));
                    attrs.insert(Ino(ino), step);
                    let until = leases.entry(Ino(ino)).or_default();
                    *until = (*until).max(now + lease);
                }
            }
            5 => {
                let subject = Subject::of(&Request::Lookup { dir: DIR, name: text.clone() });
                cache.answered(&subject, Some(&Answer::Absent { cacheable: true }), lease, now);
                if lease > 0 {
                    names.insert(text, (Binding::Absent, now + lease));
                }
            }
            6 => {
                let dir = Answer::Attr(attr(DIR.0, FileType::Directory, 0));
                cache.answered(&Subject::of(&Request::GetAttr { ino: DIR }), Some(&dir), lease, now);
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
                let subject = Subject::of(&Request::Unlink { dir: DIR, name: text.clone() });
                cache.answered(&subject, Some(&Answer::Done), 0, now);
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
        assert_eq!(told, held + forgotten, "step {step}");
        assert!(cache.records.len() <= capacity && cache.order.len() == cache.records.len());
        assert_eq!(cache.names, cache.records.values().map(|record| record.names.len()).sum::<usize>());
        assert!(cache.names <= capacity);
    }
    assert!(hits > 50_000, "only {hits}");
}
