//! Listings 1 to 4 of the thesis, as printed.

use espalier_balancer::{BalancerEngine, BalancerPolicy, HoldReason, SavedState};

use crate::situation::{cluster, decide, destinations, engine, failure, one_busy, seen_by};

const GREEDY_SPILL: &str = r#"
-- Metadata load
metaload = IWR

-- Metadata server load
mdsload = MDSs[i]["all"]

-- When policy
if MDSs[whoami]["load"] > .01 and MDSs[whoami+1]["load"] < .01 then

-- Where policy
targets[whoami+1] = allmetaload/2

-- Howmuch policy
{"half"}
"#;

/// The other listings use the loads of Listing 1 where they print none.
const LOADS: &str = r#"
-- Metadata load
metaload = IWR
-- Metadata server load
mdsload = MDSs[i]["all"]
"#;

const GREEDY_SPILL_EVENLY: &str = r#"
-- When policy
t=( (#MDSs-whoami+1)/2)+whoami
if t>#MDSs then
    t=whoami
end
while t~=whoami and MDSs[t]<.01 do
    t=t-1
end
if MDSs[whoami]["load"]>.01 and MDSs[t]["load"]<.01 then

-- Where policy
targets[t]=MDSs[whoami]["load"]/2
"#;

const FILL_AND_SPILL: &str = r#"
-- When policy
wait=RDState(); go = 0;
if MDSs[whoami]["cpu"]>48 then
    if wait>0 then WRState(wait-1)
    else WRState(2); go=1; end
else WRState(2) end
if go==1 then

-- Where policy
targets[whoami+1] = MDSs[whoami]["load"]/4
"#;

const ADAPTABLE: &str = r#"
-- Metadata load
metaload = IWR + IRD

-- When policy
max=0
for i=1,#MDSs do
    max = max(MDSs[i]["load"], max)
end
myLoad = MDSs[whoami]["load"]
if myLoad>total/2 and myLoad>=max then

-- Balancer where policy
targetLoad=total/#MDSs
for i=1,#MDSs do
    if MDSs[i]["load"]<targetLoad then
        targets[i]=targetLoad-MDSs[i]["load"]
    end
end

-- Howmuch policy
{"half","small","big","big_small"}
"#;

fn with_loads(listing: &str) -> BalancerEngine {
    engine(&format!("{LOADS}{listing}"))
}

#[test]
fn listing_1_spills_half_to_an_idle_neighbour() {
    let greedy = engine(GREEDY_SPILL);
    let plan = decide(&greedy, &one_busy(4));
    assert_eq!(destinations(&plan), [(1, 4)], "{plan}");
    assert_eq!(plan.targets[0].amount, 400.0);

    let busy_neighbour = decide(&greedy, &seen_by(0, &[800.0, 1.0, 0.0]));
    assert_eq!(busy_neighbour.holds_still, Some(HoldReason::When));
}

/// The listing has no guard for the last rank.
#[test]
fn listing_1_names_the_missing_neighbour_of_the_last_rank() {
    let plan = decide(&engine(GREEDY_SPILL), &seen_by(1, &[0.0, 800.0]));
    let (hook, error) = failure(&plan);
    assert_eq!((hook, error.to_string().contains("test.lua:9:")), ("when", true), "{error}");
}

/// As printed it compares a table with a number, which is an error in every Lua.
#[test]
fn listing_2_fails_at_its_comparison() {
    let plan = decide(&with_loads(GREEDY_SPILL_EVENLY), &one_busy(4));
    let (hook, error) = failure(&plan);
    assert_eq!(hook, "when");
    assert_eq!(error.to_string(), "test.lua:12: attempt to compare table < number");
}

/// With the comparison that the text describes, the rest of the listing runs as printed.
#[test]
fn listing_2_with_its_comparison_corrected_finds_an_idle_rank() {
    let corrected = GREEDY_SPILL_EVENLY.replace("MDSs[t]<.01", "MDSs[t][\"load\"]>=.01");
    let evenly = with_loads(&corrected);
    assert_eq!(destinations(&decide(&evenly, &one_busy(4))), [(2, 4)]);
    let second = decide(&evenly, &seen_by(0, &[400.0, 0.0, 400.0, 0.0]));
    assert_eq!(destinations(&second)[0].0, 1, "{second}");
}

#[test]
fn listing_3_spills_a_quarter_in_the_third_busy_tick() {
    let fill = with_loads(FILL_AND_SPILL);
    let mut snapshot = one_busy(2);
    snapshot.ranks[0].cpu = 48.0;
    let idle = decide(&fill, &snapshot);
    assert_eq!((idle.holds_still, idle.state), (Some(HoldReason::When), SavedState::Number(2.0)));
    snapshot.ranks[0].cpu = 49.0;
    snapshot.state = idle.state;
    let moves: Vec<usize> = (0..6)
        .map(|_| {
            let plan = decide(&fill, &snapshot);
            snapshot.state = plan.state;
            plan.moves.len()
        })
        .collect();
    assert_eq!(moves, [0, 0, 2, 0, 0, 2]);
}

#[test]
fn listing_4_fills_all_others_up_to_the_mean() {
    let adaptable = with_loads(ADAPTABLE);
    let plan = decide(&adaptable, &one_busy(4));
    assert_eq!(destinations(&plan), [(1, 2), (2, 2), (3, 2)], "{plan}");
    assert!(plan.targets.iter().all(|target| target.amount == plan.loads[0].load / 4.0));

    let without_majority = decide(&adaptable, &seen_by(0, &[400.0, 300.0, 300.0]));
    assert_eq!(without_majority.holds_still, Some(HoldReason::When));
}

/// Sections keep their lines, and names of Table 4.2 stay functions although a variable hides them.
#[test]
fn listings_become_functions_line_by_line() {
    let policy = BalancerPolicy::new("x", ADAPTABLE);
    assert_eq!(policy.text().lines().nth(7), Some("    max = math.max(MDSs[i][\"load\"], max)"));
    assert_eq!(policy.text().lines().count(), ADAPTABLE.lines().count());
    let functions = "-- When policy\nfunction when() return true end\n-- Where policy\n";
    assert_eq!(BalancerPolicy::new("x", functions).text(), functions);
}

#[test]
fn policies_may_leave_out_all_but_when_and_where() {
    let text = "function when() return true end function where() targets[2] = authmetaload / 2 end";
    let plan = decide(&engine(text), &cluster(&[100.0, 0.0], &[50.0, 30.0, 20.0]));
    // Table 4.1: 2 * IWR as metadata load, and requests as load of a rank.
    assert_eq!((plan.metaload, plan.loads[0].load, plan.loads[1].load), (200.0, 1200.0, 1000.0));
}
