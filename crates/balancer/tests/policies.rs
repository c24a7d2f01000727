//! Decisions of the shipped policies.

use espalier_balancer::{
    BalancerEngine, BalancerPolicy, HoldReason, MetricsSnapshot, SavedState, check_policy,
};

use crate::situation::{cluster, decide, destinations, one_busy, seen_by, shipped};

#[test]
fn shipped_policies_pass_their_check() {
    for policy in BalancerPolicy::all_shipped() {
        assert!(policy.summary().len() > 40, "{}: {}", policy.name(), policy.summary());
        let name = policy.name().to_owned();
        assert_eq!(check_policy(&BalancerEngine::new(policy), &[1, 2, 3, 4, 16], || false), [], "{name}");
    }
    assert!(BalancerPolicy::shipped("none").is_none());
}

#[test]
fn shipped_policies_leave_an_idle_cluster_as_it_is() {
    for policy in BalancerPolicy::all_shipped() {
        let mut snapshot = cluster(&[0.0; 4], &[0.0; 8]);
        snapshot.ranks.iter_mut().for_each(|metrics| (metrics.cpu, metrics.req) = (1.0, 0.0));
        let plan = decide(&BalancerEngine::new(policy), &snapshot);
        assert_eq!(plan.holds_still, Some(HoldReason::When), "{plan}");
    }
}

#[test]
fn cephfs_computes_the_loads_of_table_4_1() {
    let mut snapshot = cluster(&[100.0, 0.0], &[40.0, 60.0]);
    let auth = &mut snapshot.ranks[0].auth;
    (auth.inode_reads, auth.readdirs, auth.fetches, auth.stores) = (1.0, 10.0, 20.0, 30.0);
    snapshot.ranks[0].q = 7.0;
    let plan = decide(&shipped("cephfs"), &snapshot);
    let metaload = 1.0 + 200.0 + 10.0 + 40.0 + 120.0;
    assert_eq!(plan.loads[0].load, 0.8 * metaload + 0.2 * 200.0 + 1000.0 + 70.0);
}

#[test]
fn cephfs_matches_large_surplus_with_large_gap() {
    let mut snapshot = seen_by(1, &[900.0, 600.0, 0.0, 300.0]);
    snapshot.ranks.iter_mut().for_each(|metrics| metrics.req = 100.0);
    // Loads 2 * IWR + 100: mean 1000, surplus 900 and 300, gaps 900 and 300.
    let plan = decide(&shipped("cephfs"), &snapshot);
    assert_eq!(plan.targets.len(), 1, "{plan}");
    assert_eq!((plan.targets[0].rank, plan.targets[0].amount), (3, 300.0), "{plan}");
    snapshot.whoami = 0;
    snapshot.fragments = seen_by(0, &[900.0, 600.0, 0.0, 300.0]).fragments;
    let plan = decide(&shipped("cephfs"), &snapshot);
    assert_eq!((plan.targets[0].rank, plan.targets[0].amount), (2, 900.0), "{plan}");
}

#[test]
fn greedy_spill_halves_down_the_ranks() {
    let greedy = shipped("greedy-spill");
    assert_eq!(destinations(&decide(&greedy, &one_busy(4))), [(1, 4)]);
    let second = decide(&greedy, &seen_by(1, &[400.0, 400.0, 0.0, 0.0]));
    assert_eq!(destinations(&second), [(2, 4)]);
    let last = decide(&greedy, &seen_by(3, &[400.0, 200.0, 100.0, 100.0]));
    assert_eq!(last.holds_still, Some(HoldReason::When));
}

/// Four ranks end with equal load, as in the second graph of Fig. 4.6.
#[test]
fn greedy_spill_evenly_reaches_an_even_spread() {
    let evenly = shipped("greedy-spill-evenly");
    let mut loads = [800.0, 0.0, 0.0, 0.0];
    for _ in 0..4 {
        for whoami in 0..4 {
            for planned in decide(&evenly, &seen_by(whoami, &loads)).moves {
                loads[usize::from(whoami)] -= planned.metaload;
                loads[usize::from(planned.to)] += planned.metaload;
            }
        }
    }
    assert_eq!(loads, [200.0; 4]);
}

#[test]
fn fill_and_spill_waits_for_three_busy_ticks() {
    let fill = shipped("fill-and-spill");
    let mut snapshot = one_busy(4);
    let mut tick = |cpu: f64| {
        snapshot.ranks[0].cpu = cpu;
        let plan = decide(&fill, &snapshot);
        snapshot.state = plan.state;
        plan
    };
    let moves = [90.0, 90.0, 40.0, 90.0, 90.0].map(|cpu| tick(cpu).moves.len());
    assert_eq!(moves, [0; 5]);
    let plan = tick(90.0);
    assert_eq!((destinations(&plan), plan.state), (vec![(1, 2)], SavedState::Number(0.0)), "{plan}");
    assert_eq!(plan.targets[0].amount, 200.0);
}

#[test]
fn adaptable_needs_the_majority_of_the_load() {
    let adaptable = shipped("adaptable");
    assert_eq!(destinations(&decide(&adaptable, &one_busy(4))), [(1, 2), (2, 2), (3, 2)]);
    let shared = decide(&adaptable, &seen_by(0, &[400.0, 250.0, 250.0]));
    assert_eq!(shared.holds_still, Some(HoldReason::When));
}

/// The settings of Fig. 4.9: one moves later, one earlier.
#[test]
fn aggressiveness_decides_when_adaptable_moves() {
    let moves = |name: &str, snapshot: &MetricsSnapshot| decide(&shipped(name), snapshot).moves.len();
    let (small, spike) = (one_busy(4), seen_by(0, &[8000.0, 0.0, 0.0, 0.0]));
    let uneven = seen_by(0, &[400.0, 250.0, 250.0]);
    assert_eq!(moves("adaptable-conservative", &small), 0);
    assert_eq!(moves("adaptable-conservative", &spike), 6);
    assert_eq!(moves("adaptable", &uneven), 0);
    assert!(moves("adaptable-too-aggressive", &uneven) > 0);
}

/// Requests show a hot spot before decayed counters do.
#[test]
fn adaptable_by_requests_follows_load_that_has_just_moved() {
    let mut snapshot = seen_by(0, &[300.0, 300.0, 300.0]);
    for (metrics, req) in snapshot.ranks.iter_mut().zip([5000.0, 10.0, 0.0]) {
        metrics.req = req;
    }
    let adaptable = decide(&shipped("adaptable"), &snapshot);
    assert_eq!(adaptable.holds_still, Some(HoldReason::When));
    let moves = destinations(&decide(&shipped("adaptable-requests"), &snapshot));
    // The largest target first.
    assert_eq!(moves.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [2, 1]);
    assert!(moves.iter().all(|(_, fragments)| *fragments > 0), "{moves:?}");
}

#[test]
fn policies_read_the_time_series_of_their_host() {
    let text = "function when() local sum = 0 for i = 1, timeseries():size() do \
            local seconds, value = timeseries():get(i) sum = sum + seconds * value end WRstate(sum) return false end \
        function where() end";
    let time_series = vec![(1.0, 10.0), (2.0, 100.0)];
    let plan = decide(
        &BalancerEngine::new(BalancerPolicy::new("series", text)),
        &MetricsSnapshot { time_series, ..one_busy(2) },
    );
    assert_eq!(plan.state, SavedState::Number(210.0));
}

fn faults(text: &str, sizes: &[u16]) -> Vec<String> {
    let engine = BalancerEngine::new(BalancerPolicy::new("test", text));
    check_policy(&engine, sizes, || false).iter().map(ToString::to_string).collect()
}

#[test]
fn policies_that_never_come_to_rest_are_found() {
    let all = "function when() return true end\n\
        function where() targets[whoami % #MDSs + 1] = MDSs[whoami]['load'] end";
    for ranks in [2, 4, 32] {
        let found = faults(all, &[ranks]);
        assert!(
            matches!(&found[..], [fault] if fault.contains("of the load or more at each of 8 ticks")),
            "{found:?}"
        );
    }
}

#[test]
fn endless_loop_is_found_once() {
    let text = "function when() while true do end end function where() end";
    let expected = "rank 0 of 1, all idle: the policy fails in when: it takes more than 1000000 calls and \
        iterations: an endless loop?";
    assert_eq!(faults(text, &[1, 2, 4]), [expected]);
}

#[test]
fn policies_are_checked_in_a_cluster_of_the_given_size() {
    let text = "function when() assert(#MDSs ~= 3, 'three') return false end function where() end";
    assert_eq!(faults(text, &[1, 2, 4]), [""; 0]);
    assert!(faults(text, &[3])[0].starts_with("rank 0 of 3, all idle: "), "{:?}", faults(text, &[3]));
    let large = "function when() assert(whoami ~= 500) return false end function where() end";
    assert!(faults(large, &[500])[0].starts_with("rank 499 of 500"));
    let engine = BalancerEngine::new(BalancerPolicy::new("test", "function when("));
    assert!(check_policy(&engine, &[2], || false)[0].is_of_text);
}
