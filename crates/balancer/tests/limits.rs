//! Limits that the engine keeps whatever the policy says.

use espalier_balancer::{HoldReason, MetricsSnapshot, SavedState};

use crate::situation::{
    cluster, decide, destinations, engine, failure, half_to_next, one_busy, shipped, writes,
};

fn names(snapshot: &MetricsSnapshot) -> Vec<String> {
    decide(&engine(&half_to_next("")), snapshot).moves.into_iter().map(|planned| planned.name).collect()
}

#[test]
fn moves_of_a_window_are_limited() {
    let mut greedy = shipped("greedy-spill");
    greedy.limits.moves_per_window = 3;
    let mut snapshot = one_busy(2);
    let plan = decide(&greedy, &snapshot);
    assert_eq!((plan.moves.len(), plan.passed_over.over_budget), (3, 1), "{plan}");
    // The window ends 60 s after a move began.
    snapshot.recent_moves_ms = vec![10_000, 40_000, 40_001, 99_000];
    assert_eq!(decide(&greedy, &snapshot).moves.len(), 1);
    snapshot.recent_moves_ms = vec![99_000; 3];
    let plan = decide(&greedy, &snapshot);
    assert_eq!(plan.holds_still, Some(HoldReason::NoMoves), "{plan}");
}

#[test]
fn fragment_stays_for_its_dwell_time() {
    let mut snapshot = one_busy(2);
    snapshot.fragments[1].moved_ms = Some(40_001);
    snapshot.fragments[2].moved_ms = Some(40_000);
    assert_eq!(names(&snapshot), ["/d#1", "/d#2", "/d#3", "/d#4"]);
    snapshot.fragments.iter_mut().for_each(|fragment| fragment.moved_ms = Some(99_000));
    let plan = decide(&engine(&half_to_next("")), &snapshot);
    assert_eq!((plan.moves.len(), plan.passed_over.dwelling), (0, 9), "{plan}");
}

/// A subtree moves with all in it, so one recent move inside holds it, too.
#[test]
fn dwell_time_covers_fragments_above_and_below() {
    let mut snapshot = cluster(&[100.0, 0.0], &[40.0, 60.0]);
    snapshot.fragments.push(snapshot.fragments[1].clone());
    snapshot.fragments[3].parent = Some(1);
    snapshot.fragments[3].name = "/d#0/below".into();
    snapshot.fragments[3].counters = writes(10.0);
    snapshot.fragments[3].moved_ms = Some(99_000);
    assert_eq!(names(&snapshot), ["/d#1"]);
    snapshot.fragments[3].moved_ms = None;
    assert_eq!(names(&snapshot), ["/d#0"]);
    snapshot.fragments[1].moved_ms = Some(99_000);
    assert_eq!(names(&snapshot), ["/d#1"]);
}

/// A policy that sends everything at each tick moves a fragment once in its dwell time.
#[test]
fn policy_that_moves_everything_each_tick_is_slowed_down() {
    let engine = engine(&half_to_next(
        "howmuch = { 'big_first' } function where() targets[whoami % #MDSs + 1] = 1e9 end",
    ));
    let mut at_rank = [0_u16; 8];
    let mut moved_ms = [None; 8];
    let mut moves: Vec<(usize, u64)> = Vec::new();
    for tick in 0..60_u64 {
        let now_ms = 10_000 * tick;
        for whoami in 0..2 {
            let load = |rank| 100.0 * at_rank.iter().filter(|at| **at == rank).count() as f64;
            let mut snapshot = cluster(&[load(0), load(1)], &[]);
            snapshot.ranks.iter_mut().for_each(|metrics| metrics.at_ms = now_ms);
            (snapshot.now_ms, snapshot.whoami) = (now_ms, whoami);
            let own: Vec<usize> = (0..8).filter(|fragment| at_rank[*fragment] == whoami).collect();
            let part = cluster(&[0.0], &[100.0]).fragments.remove(1);
            snapshot.fragments = own.iter().map(|_| part.clone()).collect();
            for (fragment, index) in snapshot.fragments.iter_mut().zip(&own) {
                (fragment.parent, fragment.moved_ms) = (None, moved_ms[*index]);
            }
            for planned in decide(&engine, &snapshot).moves {
                let index = own[planned.fragment];
                assert!(moved_ms[index].is_none_or(|last| now_ms >= last + 60_000), "{index} at {now_ms}");
                (at_rank[index], moved_ms[index]) = (planned.to, Some(now_ms));
                moves.push((index, now_ms));
            }
        }
    }
    // Half of the fragments moved; then no move made the busier rank less busy.
    assert_eq!(moves.len(), 4, "{moves:?}");
}

#[test]
fn move_has_to_gain_more_than_it_costs() {
    let mut snapshot = one_busy(2);
    // In 60 s at 0.5 requests/s, all of the load is less than the cost of a move, 40.
    snapshot.ranks[0].req = 0.5;
    let plan = decide(&shipped("greedy-spill"), &snapshot);
    assert_eq!((plan.moves.len(), plan.passed_over.unprofitable), (0, 1), "{plan}");
    snapshot.ranks[0].req = 5.0;
    let plan = decide(&shipped("greedy-spill"), &snapshot);
    assert_eq!((plan.moves.len(), plan.passed_over.unprofitable), (0, 8), "{plan}");
    snapshot.ranks[0].req = 13.0;
    let plan = decide(&shipped("greedy-spill"), &snapshot);
    assert_eq!(plan.moves.len(), 4, "{plan}");
    assert_eq!((plan.moves[0].gain, plan.moves[0].cost), (97.5, 90.0));
    snapshot.fragments[1].entries = 1_000_000;
    assert_eq!(decide(&shipped("greedy-spill"), &snapshot).moves.len(), 3);
}

#[test]
fn load_is_not_sent_to_a_busier_rank() {
    let plan = decide(&engine(&half_to_next("")), &cluster(&[100.0, 150.0], &[50.0, 50.0]));
    assert_eq!((plan.moves.len(), plan.passed_over.unprofitable), (0, 1), "{plan}");
}

#[test]
fn only_ranks_with_recent_heartbeats_receive_load() {
    let mut snapshot = one_busy(3);
    snapshot.ranks[1].at_ms = 70_000;
    assert_eq!(decide(&engine(&half_to_next("")), &snapshot).moves.len(), 4);
    snapshot.ranks[1].at_ms = 69_999;
    let plan = decide(&engine(&half_to_next("")), &snapshot);
    assert_eq!((plan.moves.len(), plan.passed_over.unreachable), (0, 1), "{plan}");
}

#[test]
fn ranks_that_do_not_exist_are_refused() {
    for (key, message) in [
        ("5", "targets[5]: ranks are 1 to 2"),
        ("0", "targets[0]: ranks are 1 to 2"),
        ("-1", "targets[-1]: ranks are 1 to 2"),
        ("1.5", "targets[1.5]: ranks are 1 to 2"),
        ("'x'", "targets[string]: ranks are 1 to 2"),
        ("1", "targets[1] is the rank that decides"),
    ] {
        let text = half_to_next(&format!("function where() targets[{key}] = 10 end"));
        let plan = decide(&engine(&text), &one_busy(2));
        assert_eq!(failure(&plan), ("where", &espalier_balancer::ScriptError::Invalid(message.into())));
    }
}

/// Ranks may have gaps: `MDSs` has none.
#[test]
fn policies_count_ranks_from_one_without_gaps() {
    let mut snapshot = one_busy(3);
    (snapshot.ranks[1].rank, snapshot.ranks[2].rank) = (9, 4);
    assert_eq!(destinations(&decide(&engine(&half_to_next("")), &snapshot)), [(4, 4)]);
}

#[test]
fn failed_policy_keeps_the_state_from_before() {
    let text = half_to_next("WRstate(5) function where() error('no') end");
    let mut snapshot = one_busy(2);
    snapshot.state = SavedState::Flag(true);
    let plan = decide(&engine(&text), &snapshot);
    assert!(plan.is_failure());
    assert_eq!(plan.state, SavedState::Flag(true));
    assert_eq!(plan.holds_still.unwrap().to_string(), "the policy fails in where: test.lua:6: no");
}

#[test]
fn saved_state_is_kept_when_nothing_moves() {
    let text = half_to_next("function when() WRstate(RDstate() + 1) return false end");
    let mut snapshot = one_busy(2);
    for count in 1..4 {
        let plan = decide(&engine(&text), &snapshot);
        assert_eq!((plan.is_failure(), plan.state), (false, SavedState::Number(f64::from(count))));
        snapshot.state = plan.state;
    }
}

/// Only what is too popular to move whole is divided.
#[test]
fn walk_divides_hot_subtrees_only() {
    let mut snapshot = cluster(&[100.0, 0.0], &[30.0, 70.0]);
    let part = snapshot.fragments[1].clone();
    for (n, load) in [(0, 20.0), (1, 50.0)] {
        let mut child = part.clone();
        (child.name, child.parent, child.counters) = (format!("/d#1/{n}"), Some(2), writes(load));
        snapshot.fragments.push(child);
    }
    let big = half_to_next("howmuch = { 'big_first' }");
    let plan = decide(&engine(&big), &snapshot);
    let moved: Vec<&str> = plan.moves.iter().map(|planned| planned.name.as_str()).collect();
    assert_eq!(moved, ["/d#0", "/d#1/0"], "{plan}");
}

#[test]
fn fragment_that_is_too_hot_to_move_is_counted() {
    let plan = decide(&engine(&half_to_next("")), &cluster(&[100.0, 0.0], &[100.0]));
    assert_eq!((plan.moves.len(), plan.passed_over.too_hot), (0, 1), "{plan}");
}
