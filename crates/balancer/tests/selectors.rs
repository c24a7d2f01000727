//! Selectors, and the worked example of the thesis (sevilla, 4.1.2.3 and 4.2.2).

use espalier_balancer::{FragmentSelector, closest};

use crate::situation::{cluster, decide, engine};

const LOADS: [f64; 8] = [12.7, 13.3, 13.3, 14.6, 15.7, 13.5, 13.7, 14.6];
const ALL: [FragmentSelector; 4] = [
    FragmentSelector::BigFirst,
    FragmentSelector::SmallFirst,
    FragmentSelector::BigSmall,
    FragmentSelector::Half,
];

fn picked(selector: FragmentSelector, target: f64) -> Vec<f64> {
    selector.select(&LOADS, target).into_iter().map(|index| LOADS[index]).collect()
}

#[test]
fn selectors_pick_until_the_target_is_reached() {
    assert_eq!(picked(FragmentSelector::BigFirst, 55.6), [15.7, 14.6, 14.6, 13.7]);
    assert_eq!(picked(FragmentSelector::SmallFirst, 55.6), [12.7, 13.3, 13.3, 13.5, 13.7]);
    assert_eq!(picked(FragmentSelector::BigSmall, 55.6), [15.7, 12.7, 14.6, 13.3]);
    assert_eq!(picked(FragmentSelector::Half, 55.6), [12.7, 13.3, 13.3, 14.6]);
}

/// The original balancer scales the target by 0.8, and ships three fragments instead of half.
#[test]
fn big_first_ships_three_fragments_for_a_scaled_target() {
    assert_eq!(picked(FragmentSelector::BigFirst, 55.6 * 0.8), [15.7, 14.6, 14.6]);
}

/// The thesis prints a distance of 0.5. Its loads are rounded to a tenth, and their sum is 56.3.
#[test]
fn big_small_is_closest_in_the_worked_example() {
    let best = closest(&ALL, &LOADS, 55.6).unwrap();
    assert_eq!(best.selector, FragmentSelector::BigSmall);
    assert!((best.distance - 0.7).abs() < 1e-9, "{best:?}");
    let distances = ALL.map(|it| closest(&[it], &LOADS, 55.6).unwrap().distance);
    let expected = [3.0, 10.9, 0.7, 1.7];
    assert!(distances.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{distances:?}");
}

#[test]
fn engine_ships_the_worked_example_with_big_small() {
    let total = LOADS.iter().sum();
    let text = "function metaload() return IWR end function mdsload(i) return MDSs[i].all end\n\
        function when() return MDSs[whoami].load > total / #MDSs end\n\
        function where() targets[2] = 55.6 end\n\
        howmuch = { 'big_first', 'small_first', 'big_small', 'half' }";
    let plan = decide(&engine(text), &cluster(&[total, 0.0], &LOADS));
    let moved: Vec<f64> = plan.moves.iter().map(|planned| planned.metaload).collect();
    assert_eq!(moved, [15.7, 14.6, 13.3, 12.7], "{plan}");
    assert!(plan.moves.iter().all(|planned| planned.selector == FragmentSelector::BigSmall));
    assert!((plan.targets[0].picked - 56.3).abs() < 1e-9);
}

#[test]
fn first_of_equally_close_selectors_wins() {
    let best = closest(&[FragmentSelector::Half, FragmentSelector::BigFirst], &[1.0, 1.0], 1.0).unwrap();
    assert_eq!(best.selector, FragmentSelector::Half);
    assert!(closest(&[], &LOADS, 1.0).is_none());
}

#[test]
fn selectors_of_nothing_pick_nothing() {
    for selector in ALL {
        assert!(selector.select(&[], 1.0).is_empty());
        assert_eq!(FragmentSelector::parse(selector.name()), Some(selector));
    }
    assert!(FragmentSelector::BigFirst.select(&LOADS, 0.0).is_empty());
}
