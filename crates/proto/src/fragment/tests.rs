//! Tests of fragment maps, with the tables of wu 3.

use alloc::format;

use super::*;

fn ino(rank: u16, number: u64) -> Ino {
    Ino(Ino::none_of(Rank(rank)).0 + number)
}

/// A map of a directory on rank 0 of `ranks`, with these fragments besides the first.
fn map(ranks: u16, numbers: &[usize]) -> FragmentMap {
    let mut map = FragmentMap::new(ino(0, 9), ranks);
    for number in numbers {
        let fragment = ino(map.rank(*number).expect("a server").0, 100);
        let first = *map.to_cede(*number).start();
        map.cede(*number, fragment, first);
    }
    map
}

fn hash_of(id: u64, bits: u32) -> u64 {
    reverse(id, bits) << (HASH_BITS - bits)
}

#[test]
fn server_lists_go_clockwise_from_the_home_server() {
    // Tables 3.1 and 3.2: the metadata servers 0, 1, 4, 5 and 7 are ranks 0 to 4 here.
    let servers = [0, 1, 4, 5, 7];
    let list = |home: u16| {
        let map = FragmentMap::new(ino(home, 9), 5);
        let ranks = (0..map.servers()).filter_map(|at| map.rank(at));
        ranks.map(|rank| servers[usize::from(rank.0)]).collect::<Vec<_>>()
    };
    assert_eq!(list(0), [0, 1, 4, 5, 7]);
    assert_eq!(list(1), [1, 4, 5, 7, 0]);
    assert_eq!(list(3), [5, 7, 0, 1, 4]);
}

#[test]
fn lookup_clears_the_highest_set_bit() {
    // Table 3.3: the rounds for the virtual server ids 1 to 7, each with one more fragment
    // missing.
    let rounds: [&[usize]; 7] =
        [&[1, 0], &[2, 0], &[3, 1, 0], &[4, 0], &[5, 1, 0], &[6, 2, 0], &[7, 3, 1, 0]];
    for (id, rounds) in (1..).zip(rounds) {
        for at in 0..rounds.len() {
            let map = map(8, &rounds[at..rounds.len() - 1]);
            assert_eq!(map.number(hash_of(id, 3)), rounds[at], "virtual server id {id}");
        }
    }
}

#[test]
fn fragments_are_ranges_that_cover_all_hashes() {
    for ranks in 1..=17_u16 {
        // Half of the servers join when the others have fragments.
        let at_first = ranks.div_ceil(2);
        let mut map = FragmentMap::new(ino(2 % at_first, 9), at_first);
        // As fragments split in any order that their servers choose.
        for step in 1..usize::from(ranks) {
            if step == at_first.into() {
                map.grow(ranks);
                check_ranges(&map);
            }
            let splits: Vec<_> = map.fragments().filter_map(|(number, _)| map.next_split(number)).collect();
            let Some(next) = splits.get(step * 7 % splits.len().max(1)) else { break };
            let (next, to_cede) = (*next, map.to_cede(*next));
            let fragment = ino(map.rank(next).expect("a server").0, 100);
            if step % 3 == 0 {
                // In two steps.
                let half = to_cede.start() + (to_cede.end() - to_cede.start()) / 2;
                map.cede(next, fragment, half);
                check_ranges(&map);
                assert_eq!((map.to_cede(next).end() + 1, map.next_split(next)), (half, None));
                let parent = map.ino(next & !(1 << next.ilog2())).expect("a fragment");
                let kind = map.cession(parent).map(|cession| cession.kind);
                assert_eq!(kind, Some(CessionKind::Split(next)));
            }
            map.cede(next, fragment, *to_cede.start());
            check_ranges(&map);
        }
        assert_eq!(map.fragments().count(), usize::from(ranks), "every server gets a fragment");
        assert!(map.fragments().all(|(number, _)| map.next_split(number).is_none()));
    }
}

#[test]
fn fragments_move_and_merge_in_steps() {
    let mut map = map(4, &[1, 2, 3]);
    let half = |range: &RangeInclusive<u64>| range.start() + (range.end() - range.start()) / 2;
    // The first fragment moves away from the directory, and back.
    for (from, to) in [(ino(0, 9), ino(3, 7)), (ino(3, 7), ino(0, 9))] {
        let all = map.hashes(from);
        assert!(map.is_at_rest(0));
        map.move_to(0, to, half(&all));
        assert_eq!(
            (map.hashes(from), map.hashes(to)),
            (*all.start()..=half(&all) - 1, half(&all)..=*all.end())
        );
        let cession = map.cession(from).expect("a move");
        assert_eq!((cession.kind, cession.hashes), (CessionKind::Move(to), map.hashes(from)));
        assert!(map.cession(to).is_none() && !map.is_at_rest(0));
        assert_eq!((map.fragment(half(&all)), map.fragment(*all.start())), (to, from));
        assert!(map.is_sound(ino(0, 9), 4), "{map:?}");
        map.move_to(0, to, *all.start());
        assert_eq!((map.hashes(from), map.hashes(to)), (NO_HASHES, all));
        assert!(map.is_sound(ino(0, 9), 4) && map.is_at_rest(0), "{map:?}");
    }
    assert_eq!([0, 1, 2, 3].map(|number| map.merge_target(number)), [None, None, Some(0), Some(1)]);
    for (child, parent) in [(3, 1), (2, 0), (1, 0)] {
        assert_eq!(map.merge_target(child), Some(parent));
        let (record, into) = (map.ino(child).expect("a record"), map.ino(parent).expect("a record"));
        let (all, before) = (map.hashes(record), map.hashes(into));
        map.give_back(child, half(&all));
        assert_eq!(
            (map.hashes(record), map.hashes(into)),
            (half(&all) + 1..=*all.end(), *before.start()..=half(&all))
        );
        assert_eq!(map.cession(record).map(|cession| cession.kind), Some(CessionKind::Merge));
        assert!(map.cession(into).is_none() && map.next_split(parent).is_none());
        assert!(map.is_sound(ino(0, 9), 4), "{map:?}");
        map.give_back(child, *all.end());
        assert_eq!((map.ino(child), map.hashes(into)), (None, *before.start()..=*all.end()));
        assert!(map.is_sound(ino(0, 9), 4), "{map:?}");
    }
    assert_eq!(map.others().count(), 0);
}

/// Checks that the ranges of the fragments cover all hashes, and that hashes are found in them.
fn check_ranges(map: &FragmentMap) {
    let mut ranges: Vec<_> = map.fragments().map(|(number, _)| (map.hashes_of(number), number)).collect();
    ranges.sort_unstable_by_key(|(range, _)| *range.start());
    let mut expected = 0;
    for (range, number) in ranges {
        assert_eq!(*range.start(), expected, "{map:?}");
        assert_eq!((map.number(*range.start()), map.number(*range.end())), (number, number));
        assert_eq!(is_split_off(number, &range), !map.is_partial(number));
        if is_split_off(number, &range) && map.unfinished_split(number).is_none() {
            let next = next_number(number, &range).filter(|next| *next < map.servers());
            assert_eq!(next, map.next_split(number), "{map:?}");
        } else {
            assert_eq!(next_number(number, &range), None);
        }
        expected = range.end() + 1;
    }
    assert_eq!(expected, 1 << HASH_BITS);
    let ranks = u16::try_from(map.servers()).expect("ranks");
    assert!(map.is_sound(map.dir(), ranks), "{map:?}");
}

#[test]
fn maps_with_missing_or_overlapping_ranges_are_not_sound() {
    let good = map(4, &[1, 2, 3]);
    assert!(good.is_sound(ino(0, 9), 4));
    assert!(!good.is_sound(ino(0, 8), 4), "another directory's map");
    assert!(good.is_sound(ino(0, 9), 5), "a rank has joined since");
    assert!(!good.is_sound(ino(0, 9), 3), "another cluster's map");
    let damaged = |change: fn(&mut FragmentMap)| {
        let mut map = good.clone();
        change(&mut map);
        map.is_sound(ino(0, 9), 4)
    };
    assert!(!damaged(|map| map.servers[1].fragment = None), "3 has split off from nothing");
    assert!(!damaged(|map| map.servers[3].fragment = Some(ino(2, 100))), "one record twice");
    assert!(!damaged(|map| map.servers[3].fragment = Some(ino(4, 100))), "at no server");
    assert!(!damaged(|map| map.servers[3].rank = Rank(2)), "one server twice");
    assert!(!damaged(|map| map.servers[2].first = 1), "overlap");
    assert!(!damaged(|map| map.servers[0].first = 1), "a gap");
    assert!(!damaged(|map| map.servers.swap(1, 2)));
    assert!(damaged(|map| map.servers[3].fragment = None), "1 has not split");
}

#[test]
fn map_is_rebuilt_from_fragments_that_can_split_off() {
    let fragments = |numbers: &[usize]| {
        let map = FragmentMap::new(ino(0, 9), 8);
        numbers.iter().map(|at| (*at, ino(map.rank(*at).expect("a server").0, 100))).collect()
    };
    let rebuilt = |numbers: &[usize]| {
        let map = FragmentMap::with_fragments(ino(0, 9), 8, &fragments(numbers));
        assert!(map.is_sound(ino(0, 9), 8), "{map:?}");
        map.fragments().map(|(number, _)| number).collect::<Vec<_>>()
    };
    assert_eq!(rebuilt(&[1, 2, 3, 4]), [0, 1, 2, 3, 4]);
    assert_eq!(rebuilt(&[2, 3]), [0], "1 is missing, so that 2 and 3 cannot exist");
    assert_eq!(rebuilt(&[1, 3, 6]), [0, 1, 3]);
    assert_eq!(rebuilt(&[]), [0]);
    assert_eq!(FragmentMap::with_fragments(ino(0, 9), 8, &[(1, ino(8, 1))].into()).version(), 0);
}

#[test]
fn hashes_of_a_fragment_share_a_prefix() {
    let map = map(5, &[1, 2, 3, 4]);
    let prefixes: Vec<_> = map.fragments().map(|(number, _)| common_prefix(&map.hashes_of(number))).collect();
    assert_eq!(prefixes, [(0b000, 3), (0b10, 2), (0b01, 2), (0b11, 2), (0b001, 3)]);
    assert_eq!(common_prefix(&(0..=LAST_CURSOR)), (0, 0));
    assert_eq!(common_prefix(&(9..=9)), (9, HASH_BITS));
    assert_eq!(common_prefix(&(0..=u64::MAX)), (0, 0));
}

#[test]
fn a_fragment_whose_next_server_does_not_exist_is_inseparable() {
    let map = map(5, &[1, 2, 3]);
    assert_eq!(map.next_split(0), Some(4));
    for number in [1, 2, 3] {
        assert_eq!(map.next_split(number), None);
    }
}

#[test]
fn a_map_without_a_home_server_is_refused() {
    let encode = |map: &FragmentMap| postcard::to_allocvec(map).expect("encodes");
    let good = map(4, &[1]);
    assert_eq!(postcard::from_bytes::<FragmentMap>(&encode(&good)), Ok(good));
    let no_home = FragmentServer { rank: Rank(0), fragment: None, first: 0, merges: false, moves: None };
    for servers in [Vec::new(), [no_home].into()] {
        let bytes = encode(&FragmentMap { version: 1, dir: ino(0, 9), servers });
        assert!(postcard::from_bytes::<FragmentMap>(&bytes).is_err());
    }
}

#[test]
fn names_spread_evenly_over_fragments() {
    // Names as programs make them; the counts of eight fragments differ from the mean by less
    // than five standard deviations.
    let sets: [fn(u32) -> alloc::string::String; 5] = [
        |n| format!("{n}"),
        |n| format!("file.mdtest.{}.{}", n % 8, n / 8),
        |n| format!("IMG_{n:05}.JPG"),
        |n| format!("{:016x}.o", u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        |n| format!("sample_{:03}_chr{}.bam.bai", n / 24, n % 24),
    ];
    let map = map(8, &[1, 2, 3, 4, 5, 6, 7]);
    for (set, name) in sets.iter().enumerate() {
        let mut counts = [0_i64; 8];
        for n in 0..8000 {
            let name = Name::new(name(n).as_bytes()).expect("a name");
            counts[map.number(name_hash(&[7; 16], &name))] += 1;
        }
        assert!(counts.iter().all(|count| (count - 1000).abs() < 150), "set {set}: {counts:?}");
    }
}

/// Names on disk and in cursors depend on these values: they never change. They were computed by
/// another implementation of SipHash.
#[test]
fn hashes_of_names_are_stable_for_ever() {
    let counting: [u8; 16] = core::array::from_fn(|at| at as u8);
    let zero = *b"\xbe\x8f\x0a\xc8\x49\x30\x41\x41\x8b\x32\xe0\x29\x99\x70\xb8\xa9";
    assert_eq!(name_key(&[0; 16]), zero);
    let expected: [(&[u8], u64, u64); 6] = [
        (b"a", 0x0626_fea2_f5f4_3769, 0x6627_2bf0_da26_873b),
        (b"README.md", 0x0a69_6d74_bfa4_e27b, 0x72a3_9427_2d9e_9967),
        (b"file0000001", 0x5529_91a4_16eb_0ee4, 0x43df_2e3e_a803_6ee4),
        (b".git", 0x0380_1313_449f_6310, 0x5cfd_b362_63b2_e101),
        ("Z\u{fc}rich".as_bytes(), 0x702f_1731_0c7f_3dad, 0x1d07_6d55_d8e1_652e),
        (&[b'x'; 255], 0x14b3_ec8e_3b7c_417b, 0x64f9_1d38_e24c_0f23),
    ];
    for (name, by_zero, by_counting) in expected {
        let name = Name::new(name).expect("a name");
        assert_eq!(name_hash(&zero, &name), by_zero, "{name:?}");
        assert_eq!(name_hash(&name_key(&counting), &name), by_counting, "{name:?}");
    }
}
