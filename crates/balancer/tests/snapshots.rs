//! Snapshots and plans as JSON, and snapshots that are refused.

use espalier_balancer::{FragmentMetrics, MetricsSnapshot, MovePlan, PassedOver, RankMetrics, SavedState};

use crate::situation::{decide, engine, failure, half_to_next, one_busy, shipped};

/// The reason to refuse a snapshot that was changed.
fn refused(change: impl Fn(&mut MetricsSnapshot)) -> String {
    let mut snapshot = one_busy(2);
    change(&mut snapshot);
    let plan = decide(&engine(&half_to_next("")), &snapshot);
    assert!(plan.is_failure(), "{plan}");
    plan.holds_still.unwrap().to_string()
}

#[test]
fn invalid_snapshots_are_refused() {
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1.1e15] {
        let rank = refused(|snapshot| snapshot.ranks[1].cpu = bad);
        assert_eq!(rank, "the metrics are invalid: a metric of rank 1 is negative or too large");
        let rank = refused(|snapshot| snapshot.ranks[1].all.stores = bad);
        assert!(rank.ends_with("rank 1 is negative or too large"));
        let fragment = refused(|snapshot| snapshot.fragments[3].counters.readdirs = bad);
        assert!(fragment.ends_with("fragment 3 is negative or too large"));
        assert!(refused(|snapshot| snapshot.foreign.fetches = bad).contains("other ranks' subtrees"));
    }
    assert!(refused(|snapshot| snapshot.state = SavedState::Number(f64::NAN)).contains("saved state"));
    assert!(refused(|snapshot| snapshot.whoami = 5).ends_with("rank 5 decides and has no metrics"));
    assert!(refused(|snapshot| snapshot.ranks[1].rank = 0).ends_with("rank 0 is there twice"));
    for parent in [3, 4, 400] {
        let error = refused(|snapshot| snapshot.fragments[3].parent = Some(parent));
        assert!(error.ends_with("the parent of fragment 3 does not come before it"), "{error}");
    }
}

/// Loads at the ends of the range of numbers lead to no plan with infinite numbers.
#[test]
fn extreme_loads_do_not_overflow() {
    for [rank, fragment] in [["1e308", "1e-300"], ["1e-300", "1e308"], ["1e-308", "1e-308"], ["0", "1"]] {
        let text = format!(
            "function metaload() return {fragment} end function when() return true end\n\
             function mdsload(i) return whoami == i and {rank} or 0 end\n\
             function where() targets[2] = 1e308 end"
        );
        let mut snapshot = one_busy(2);
        snapshot.ranks.iter_mut().for_each(|metrics| metrics.req = 1e15);
        let plan = decide(&engine(&text), &snapshot);
        let copy: MovePlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!((copy, plan.is_failure()), (plan.clone(), false), "{plan}");
    }
}

#[test]
fn sum_of_loads_has_to_be_finite() {
    let mut snapshot = one_busy(2);
    snapshot.fragments.iter_mut().for_each(|fragment| fragment.parent = None);
    let text = half_to_next("function metaload() return 1e308 end function mdsload(i) return 1 end");
    let plan = decide(&engine(&text), &snapshot);
    assert_eq!(plan.metaload, 0.0);
    assert_eq!(failure(&plan).1.to_string(), "the sum of the loads is not finite");
}

#[test]
fn snapshots_and_plans_survive_json() {
    let mut snapshot = one_busy(3);
    (snapshot.state, snapshot.seed) = (SavedState::Flag(true), u64::MAX);
    let copy: MetricsSnapshot = serde_json::from_str(&serde_json::to_string(&snapshot).unwrap()).unwrap();
    assert_eq!(copy, snapshot);
    let failing = engine(&half_to_next("function when() return 1 end"));
    for plan in [decide(&shipped("adaptable"), &snapshot), decide(&failing, &snapshot)] {
        let copy: MovePlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(copy, plan);
    }
}

#[test]
fn same_snapshot_leads_to_the_same_plan() {
    let snapshot = one_busy(4);
    let first = decide(&shipped("adaptable"), &snapshot);
    assert!((0..5).all(|_| decide(&shipped("adaptable"), &snapshot) == first));
}

#[test]
fn unknown_fields_are_refused() {
    let text =
        r#"{"now_ms": 0, "whoami": 0, "ranks": [{"rank": 0, "at_ms": 0, "cpus": 3}], "fragments": []}"#;
    let error = serde_json::from_str::<MetricsSnapshot>(text).unwrap_err();
    assert!(error.to_string().contains("unknown field `cpus`"), "{error}");
}

#[test]
fn plan_explains_itself() {
    let text = decide(&shipped("greedy-spill"), &one_busy(2)).to_string();
    let first_move = text.lines().find(|line| line.contains("move fragment")).unwrap();
    assert_eq!(
        first_move.trim(),
        "move fragment 1 /d#0 to rank 1: metadata load 100.0, picked by half; \
         loads 800.0 -> 700.0 here and 0.0 -> 100.0 there; saves 7500 requests for 90",
    );
    assert!(text.starts_with("greedy-spill: rank 0 moves 4\n  load of rank 0: 800.0\n"), "{text}");
    let idle = decide(
        &shipped("greedy-spill"),
        &MetricsSnapshot {
            ranks: vec![RankMetrics::default()],
            fragments: vec![FragmentMetrics::default()],
            ..Default::default()
        },
    );
    assert_eq!(
        idle.to_string(),
        "greedy-spill: rank 0 holds still: `when` does not apply\n  load of rank 0: 0.0"
    );
    assert_eq!(idle.passed_over, PassedOver::default());
}
