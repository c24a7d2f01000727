use alloc::vec;

use super::*;
use crate::{Attr, Time};

fn layout(servers: u16, distribution: Distribution) -> Layout {
    Layout::new(distribution, (0..servers).map(ServerId).collect()).expect("a layout")
}

fn simple(servers: u16, strip: u64) -> Layout {
    layout(servers, Distribution::SimpleStripe { strip })
}

fn strips(strips: &[(u16, u64)]) -> Distribution {
    Distribution::Varstrip { strips: strips.iter().map(|&(place, length)| Strip { place, length }).collect() }
}

/// Sample layouts of every distribution.
fn layouts() -> Vec<Layout> {
    let mut layouts = vec![
        layout(1, Distribution::Basic),
        layout(1, strips(&[(0, 5)])),
        layout(2, strips(&[(0, 1), (1, 9)])),
        layout(3, strips(&[(2, 4), (0, 3), (2, 1), (2, 2), (1, 7), (0, 6)])),
    ];
    layouts.extend([(1, 7), (2, 1), (3, 4), (5, 13)].map(|(servers, strip)| simple(servers, strip)));
    layouts
}

/// Index of the server of each byte, computed byte by byte from the definitions of the
/// distributions.
fn places(layout: &Layout) -> impl Iterator<Item = usize> {
    let stretches: Vec<(usize, u64)> = match layout.distribution() {
        Distribution::Basic => vec![(0, 1)],
        Distribution::SimpleStripe { strip } => (0..layout.servers().len()).map(|at| (at, *strip)).collect(),
        Distribution::Varstrip { strips } => {
            strips.iter().map(|strip| (usize::from(strip.place), strip.length)).collect()
        }
    };
    stretches.into_iter().cycle().flat_map(|(place, length)| (0..length).map(move |_| place))
}

#[test]
fn every_byte_has_one_place_and_is_found_from_there() {
    for layout in layouts() {
        let mut next = vec![0; layout.servers().len()];
        for (offset, right) in (0..500).zip(places(&layout)) {
            let Segment { place, local, length } = layout.segment(offset, u64::MAX - offset);
            assert_eq!((place, local), (right, next[right]), "{layout:?}: datafiles have no gaps");
            let mut with_it = places(&layout).skip(offset as usize).take(length.min(20) as usize);
            assert!(with_it.all(|at| at == place), "{layout:?}: the segment is contiguous");
            assert!(length > 0);
            assert_eq!(layout.logical(place, local), offset);
            next[place] += 1;
            for (place, size) in next.iter().enumerate() {
                assert_eq!(layout.local_size(place, offset + 1), *size);
            }
            assert_eq!(layout.size(next.iter().copied()), offset + 1);
        }
    }
}

#[test]
fn a_range_is_one_range_in_each_datafile() {
    for layout in layouts() {
        for offset in 0..40 {
            for length in 0..40 {
                let mut lengths = vec![0; layout.servers().len()];
                for segment in layout.segments(offset, length) {
                    lengths[segment.place] += segment.length;
                }
                let parts = layout.parts(offset, length);
                assert!(parts.iter().all(|part| lengths[part.place] == part.length));
                assert_eq!(parts.iter().map(|part| part.length).sum::<u64>(), length);
            }
        }
    }
}

#[test]
fn scattered_bytes_lie_where_they_are_looked_for() {
    let bytes: Vec<u8> = (0..200).collect();
    for layout in layouts() {
        for offset in 0..30 {
            let scattered = layout.scatter(offset, Bytes::copy_from_slice(&bytes));
            for (byte, place) in bytes.iter().zip(places(&layout).skip(offset as usize)) {
                let at = offset + u64::from(*byte);
                let local = layout.local_size(place, at) - layout.local_size(place, offset);
                assert_eq!(scattered[place][local as usize], *byte);
            }
        }
    }
}

#[test]
fn invalid_layouts_are_refused() {
    let stripe = |strip| Distribution::SimpleStripe { strip };
    let wrong = [
        (stripe(0), vec![ServerId(1)]),
        (stripe(1), vec![]),
        (stripe(1), vec![ServerId(1), ServerId(1)]),
        (Distribution::Basic, vec![ServerId(1), ServerId(2)]),
        (strips(&[]), vec![]),
        (strips(&[(0, 0)]), vec![ServerId(1)]),
        (strips(&[(0, 1)]), vec![ServerId(1), ServerId(2)]),
        (strips(&[(0, 1), (1, 1)]), vec![ServerId(1)]),
        (strips(&[(0, 1 << 31)]), vec![ServerId(1)]),
        (strips(&[(0, 1); 1025]), vec![ServerId(1)]),
    ];
    for (distribution, servers) in wrong {
        assert_eq!(Layout::new(distribution.clone(), servers), Err(LayoutError), "{distribution:?}");
    }
}

#[test]
fn invalid_sizes_are_harmless() {
    for layout in [simple(2, 1 << 30), layout(2, strips(&[(0, 1 << 30), (1, 1)]))] {
        for place in 0..2 {
            assert_eq!(layout.logical(place, u64::MAX), u64::MAX);
        }
    }
}

#[test]
fn a_striped_file_has_the_times_of_its_last_write_or_those_that_were_set_since() {
    let (layout, at) = (simple(3, 4), |secs| Time::new(secs, 0));
    // The record says that `set` was set at time 30.
    let times = |set, datafiles: [i64; 3]| {
        let stat = |mtime| StreamStat { mtime: at(mtime), ..StreamStat::default() };
        let mut attr = Attr { mtime: at(set), ctime: at(30), ..attr() };
        attr.measure(&layout.whole(&datafiles.map(stat)));
        (attr.mtime.secs, attr.ctime.secs)
    };
    assert_eq!(times(30, [0, 0, 0]), (30, 30), "never written");
    assert_eq!(times(30, [0, 50, 40]), (50, 50));
    assert_eq!(times(5, [5, 5, 5]), (5, 30), "set");
    assert_eq!(times(5, [5, 40, 5]), (40, 40), "set, then written");
    assert_eq!(times(90, [90, 90, 0]), (90, 30), "set to a future time");
    assert_eq!(times(90, [90, 40, 90]), (40, 40), "set to a future time, then partly written");
    assert_eq!(times(90, [60, 40, 50]), (60, 60), "set to a future time, then all datafiles written");
    assert_eq!(times(0, [0, 0, 0]), (0, 30), "set to the zero time");
}

fn attr() -> Attr {
    let attr = Attr::new(crate::Ino(2), crate::FileType::Regular, 0o644, Time::default());
    Attr { streamed: true, ..attr }
}
