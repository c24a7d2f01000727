//! Hostile and broken policies: each holds still with a sentence, within its budgets.

use std::cell::Cell;
use std::time::{Duration, Instant};

use espalier_balancer::{HoldReason, SCRIPT_BYTES_MAX, SavedState, ScriptError};

use crate::situation::{decide, engine, failure, half_to_next, one_busy};

/// The hook that fails, and its error.
fn fails(text: &str) -> (String, ScriptError) {
    let mut snapshot = one_busy(2);
    snapshot.state = SavedState::Number(7.0);
    let begin = Instant::now();
    let plan = decide(&engine(text), &snapshot);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert_eq!(plan.state, SavedState::Number(7.0));
    let (hook, error) = failure(&plan);
    (hook.to_owned(), error.clone())
}

fn fails_in(hook: &str, body: &str) -> ScriptError {
    let (failed, error) = fails(&half_to_next(&format!("function {hook}(i) {body} end")));
    assert_eq!(failed, hook, "{body}: {error}");
    error
}

const HOOKS: [&str; 5] = ["metaload", "mdsload", "when", "where", "howmuch"];

#[test]
fn endless_loop_ends_in_every_hook() {
    for hook in HOOKS {
        let error = fails_in(hook, "while true do end");
        assert!(matches!(error, ScriptError::Steps(1_000_000)), "{hook}: {error}");
    }
    assert!(matches!(fails("while true do end").1, ScriptError::Steps(_)));
    assert!(matches!(fails("repeat until false").1, ScriptError::Steps(_)));
}

#[test]
fn memory_bomb_ends_the_script_only() {
    for body in [
        "local t = {} while true do t[#t + 1] = { 1 } end",
        "local s = 'xxxxxxxx' while true do s = s .. s end",
        "local t = {} while true do local x = 1 t[#t + 1] = function() x = x + 1 return x end end",
        "for n = 1, 1e9 do targets[n] = n end",
    ] {
        assert_eq!(fails_in("where", body), ScriptError::Memory(8 << 20), "{body}");
    }
}

#[test]
fn deep_recursion_ends_the_script_only() {
    for body in
        ["local function f(n) return f(n) end f(1)", "local function f(n) return 1 + f(n + 1) end f(1)"]
    {
        let error = fails_in("when", body);
        assert!(error.to_string().ends_with("stack overflow"), "{error}");
    }
    // Too little memory for the stack of the recursion.
    let mut small = engine(&half_to_next("function when() local function f(n) return 1 + f(n) end f(1) end"));
    small.budget.memory_bytes = 100 << 10;
    assert_eq!(failure(&decide(&small, &one_busy(2))).1, &ScriptError::Memory(100 << 10));
    let nested = format!("x = {}{}", "{".repeat(20_000), "}".repeat(20_000));
    assert!(matches!(fails(&nested).1, ScriptError::Syntax(_)));
}

#[test]
fn policy_that_never_returns_is_stopped_by_the_drivers_clock() {
    let mut endless = engine(&half_to_next("function when() while true do end end"));
    endless.budget.steps = u64::MAX;
    let begin = Instant::now();
    let plan = endless.decide(&one_busy(2), move || begin.elapsed() > Duration::from_millis(50));
    assert_eq!(failure(&plan), ("when", &ScriptError::Time));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    // It stays out of time although the clock says otherwise later.
    let readings = Cell::new(0);
    let plan = endless.decide(&one_busy(2), move || readings.replace(readings.get() + 1) == 0);
    assert_eq!(failure(&plan).1, &ScriptError::Time);
}

#[test]
fn loads_that_are_no_numbers_are_refused() {
    for hook in ["metaload", "mdsload"] {
        for (value, shown) in [
            ("0 / 0", "NaN is no load"),
            ("math.huge", "inf is no load"),
            ("-math.huge", "-inf is no load"),
            ("1e308 * 10", "inf is no load"),
            ("-1", "-1 is no load"),
            ("nil", "nil is no load"),
            ("true", "boolean is no load"),
            ("'12'", "string is no load"),
            ("{}", "table is no load"),
        ] {
            let error = fails_in(hook, &format!("return {value}"));
            assert_eq!(error, ScriptError::Invalid(shown.into()), "{hook} {value}");
        }
    }
    let error = fails_in("mdsload", "return 1.7e308");
    assert_eq!(error.to_string(), "the sum of the loads is not finite");
}

#[test]
fn targets_that_are_no_loads_are_refused() {
    for value in ["0 / 0", "math.huge", "-1", "'1'", "{}", "true"] {
        let error = fails_in("where", &format!("targets[2] = {value}"));
        assert!(error.to_string().contains("which is no load"), "{value}: {error}");
    }
    assert_eq!(fails_in("where", "targets = 5").to_string(), "targets is no table");
    assert_eq!(fails_in("where", "targets[0 / 0] = 1").to_string().split(": ").count(), 2);
}

#[test]
fn results_of_wrong_types_are_refused() {
    for value in ["nil", "1", "'true'", "{}"] {
        let error = fails_in("when", &format!("return {value}"));
        assert!(error.to_string().ends_with("instead of true or false"), "{error}");
    }
    for (value, shown) in [
        ("nil", "it is nil instead of a list"),
        ("5", "it is 5 instead of a list"),
        ("{}", "it lists 1 to 16 selectors"),
        (
            "{ 'biggest' }",
            "there is no selector `biggest`: there are big_first, small_first, big_small, half",
        ),
        ("{ 1 }", "there is no selector `1`: there are big_first, small_first, big_small, half"),
    ] {
        assert_eq!(fails_in("howmuch", &format!("return {value}")).to_string(), shown);
    }
    let error = fails_in("howmuch", "local t = {} for n = 1, 17 do t[n] = 'half' end return t");
    assert_eq!(error.to_string(), "it lists 1 to 16 selectors");
    assert_eq!(fails(&half_to_next("when = 5")).1.to_string(), "`when` is 5 instead of a function");
    assert_eq!(fails(&half_to_next("when = nil")).1.to_string(), "there is no function `when`");
    assert_eq!(fails("x = 1").0, "when");
}

#[test]
fn state_that_is_not_finite_is_refused() {
    for value in ["0 / 0", "math.huge", "nil", "'x'", "{}"] {
        let error = fails_in("when", &format!("WRstate({value}) return true"));
        assert_eq!(error.to_string(), "test.lua:6: WRstate saves a finite number or a boolean");
    }
}

#[test]
fn scripts_reach_no_io_clock_or_foreign_code() {
    for name in [
        "io",
        "os",
        "print",
        "require",
        "load",
        "loadstring",
        "dofile",
        "debug",
        "string",
        "buffer",
        "coroutine",
        "pcall",
        "xpcall",
        "getmetatable",
        "setmetatable",
        "getfenv",
        "setfenv",
        "rawset",
        "newproxy",
        "collectgarbage",
        "tostring",
        "_G",
        "shared",
        "vector",
    ] {
        let (hook, error) = fails(&half_to_next(&format!("local x = {name}")));
        let expected = format!("test.lua:6: there is no variable `{name}`");
        assert_eq!((hook.as_str(), error.to_string()), ("script", expected));
    }
    let (_, error) = fails(&half_to_next("local x = ('x'):rep(1e9)"));
    assert!(error.to_string().contains("attempt to index string"), "{error}");
    assert!(matches!(fails("\u{1b}Lua").1, ScriptError::Syntax(_)));
    assert!(matches!(fails("function when( return").1, ScriptError::Syntax(_)));
    let long = fails(&"-".repeat(SCRIPT_BYTES_MAX + 1)).1;
    assert_eq!(long.to_string(), "test.lua: longer than 65536 bytes");
}

#[test]
fn misspelt_variable_is_named() {
    let error = fails_in("where", "targets[2] = alload / 2");
    assert_eq!(error.to_string(), "test.lua:6: there is no variable `alload`");
}

/// Replacing the library's functions affects one decision of the policy itself only.
#[test]
fn scripts_cannot_change_the_engine() {
    let text = half_to_next(
        "math.max = nil math.huge = -1 max = nil type = nil error = nil next = nil\n\
         MDSs[1].load = 1e300 MDSs[2] = nil",
    );
    let plan = decide(&engine(&text), &one_busy(2));
    let (hook, error) = failure(&plan);
    assert_eq!((hook, error.to_string()), ("mdsload", "nil where table is needed".into()));
    assert_eq!(decide(&engine(&half_to_next("")), &one_busy(2)).moves.len(), 4);
}

#[test]
fn random_numbers_depend_on_the_seed_only() {
    let text = half_to_next("function when() WRstate(math.random()) return false end");
    let state = |seed: u64| {
        let mut snapshot = one_busy(2);
        snapshot.seed = seed;
        let plan = decide(&engine(&text), &snapshot);
        assert_eq!(plan.holds_still, Some(HoldReason::When));
        plan.state
    };
    assert_eq!(state(1), state(1));
    assert_ne!(state(1), state(2));
}

#[test]
fn nothing_is_left_over_from_the_last_decision() {
    let text = half_to_next(
        "function when() if counter then counter = counter + 1 end counter = 1 return false end",
    );
    let error = failure(&decide(&engine(&text), &one_busy(2))).1.to_string();
    assert_eq!(error, "test.lua:6: there is no variable `counter`");
}
