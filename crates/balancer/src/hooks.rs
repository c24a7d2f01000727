//! A policy's hooks, in the environment of Table 4.2 (sevilla, 4.2.1).

use std::fmt;

use mlua::{Function, Table, Value};

use crate::policy::BalancerPolicy;
use crate::sandbox::{Sandbox, SavedState, ScriptBudget, ScriptError, number_of, shown};
use crate::selector::FragmentSelector;
use crate::snapshot::{MetricsSnapshot, PopularityCounters, RankMetrics};

/// Steps that are added to the budget for each fragment whose load is computed.
const STEPS_PER_METALOAD: u64 = 64;
/// Fragments in one call of Lua.
const BATCH: usize = 1024;
/// The part of a policy outside of its hooks, in errors.
pub(crate) const SCRIPT: &str = "script";
const SELECTORS_MAX: usize = 16;
/// Names of [`PopularityCounters::array`].
const COUNTERS: [&str; 5] = ["IRD", "IWR", "READDIR", "FETCH", "STORE"];

/// A failed hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookError {
    pub(crate) hook: &'static str,
    pub(crate) error: ScriptError,
}

type HookResult<T> = Result<T, HookError>;

fn failed(hook: &'static str) -> impl Fn(ScriptError) -> HookError {
    move |error| HookError { hook, error }
}

fn invalid<T>(hook: &'static str, message: impl fmt::Display) -> HookResult<T> {
    Err(HookError { hook, error: ScriptError::Invalid(message.to_string()) })
}

/// A load to send to a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TargetLoad {
    /// Index into the sorted ranks.
    pub(crate) index: usize,
    /// In the unit of `MDSs[i]["load"]`.
    pub(crate) amount: f64,
}

/// A loaded policy.
pub(crate) struct Hooks {
    sandbox: Sandbox,
    metrics: Table,
    whoami: usize,
    metaloads: Function,
}

impl Hooks {
    /// Runs the policy's top level. `ranks` are sorted; `MDSs[i]` is the one at `i - 1`.
    pub(crate) fn load(
        policy: &BalancerPolicy,
        snapshot: &MetricsSnapshot,
        ranks: &[&RankMetrics],
        budget: &ScriptBudget,
        out_of_time: impl Fn() -> bool + 'static,
    ) -> HookResult<Self> {
        let sandbox = Sandbox::new(budget, snapshot.state, snapshot.seed, out_of_time);
        let sandbox = sandbox.map_err(failed("start"))?;
        let whoami = ranks.iter().position(|metrics| metrics.rank == snapshot.whoami).unwrap_or_default();
        let build = || {
            let (lua, environment) = (sandbox.lua(), sandbox.environment());
            let prelude = lua.load(include_str!("hooks.lua")).set_name("=hooks");
            let metaloads = prelude.call::<Function>(environment)?;
            let metrics = lua.create_table_with_capacity(ranks.len(), 0)?;
            for rank in ranks {
                let row = [("cpu", rank.cpu), ("mem", rank.mem), ("q", rank.q), ("req", rank.req)];
                metrics.raw_push(lua.create_table_from(row)?)?;
            }
            environment.raw_set("whoami", whoami + 1)?;
            environment.raw_set("MDSs", &metrics)?;
            environment.raw_set("targets", lua.create_table()?)?;
            Ok((metaloads, metrics))
        };
        let built = build().map_err(|error| failed("start")(sandbox.explain(error)));
        let (metaloads, metrics) = built?;
        sandbox.set_time_series(&snapshot.time_series).map_err(failed("start"))?;
        sandbox.run(policy.name(), policy.text()).map_err(failed(SCRIPT))?;
        Ok(Self { sandbox, metrics, whoami, metaloads })
    }

    fn function(&self, hook: &'static str) -> HookResult<Function> {
        self.sandbox.hook(hook).map_err(failed(hook))
    }

    fn variable(&self, name: &'static str) -> HookResult<Value> {
        let value = self.sandbox.environment().raw_get(name);
        value.map_err(|error| failed(name)(self.sandbox.explain(error)))
    }

    fn set(&self, name: &'static str, value: f64) -> HookResult<()> {
        let set = self.sandbox.environment().raw_set(name, value);
        set.map_err(|error| failed(name)(self.sandbox.explain(error)))
    }

    /// Metadata loads. Where nothing was counted there is no load.
    pub(crate) fn metaloads<'a>(
        &self,
        counters: impl IntoIterator<Item = &'a PopularityCounters>,
    ) -> HookResult<Vec<f64>> {
        let function = self.function("metaload")?;
        let mut loads = Vec::new();
        let mut batch: Vec<(usize, [f64; 5])> = Vec::new();
        for (index, counters) in counters.into_iter().enumerate() {
            loads.push(0.0);
            if !counters.is_zero() {
                batch.push((index, counters.array()));
            }
            if batch.len() == BATCH {
                self.metaload_batch(&function, &mut batch, &mut loads)?;
            }
        }
        self.metaload_batch(&function, &mut batch, &mut loads)?;
        Ok(loads)
    }

    fn metaload_batch(
        &self,
        function: &Function,
        batch: &mut Vec<(usize, [f64; 5])>,
        loads: &mut [f64],
    ) -> HookResult<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.sandbox.add_steps(STEPS_PER_METALOAD * batch.len() as u64);
        let mut rows = Vec::with_capacity(40 * batch.len());
        for count in batch.iter().flat_map(|(_, counters)| counters) {
            rows.extend_from_slice(&count.to_le_bytes());
        }
        let zeros = vec![0; 8 * batch.len()];
        let lua = self.sandbox.lua();
        let buffers = lua.create_buffer(rows).and_then(|rows| Ok((rows, lua.create_buffer(zeros)?)));
        let (rows, results) = buffers.map_err(|error| failed("metaload")(self.sandbox.explain(error)))?;
        let arguments = (function, batch.len(), rows, &results);
        let (is_invalid, result): (bool, Value) =
            self.sandbox.call(&self.metaloads, arguments).map_err(failed("metaload"))?;
        if is_invalid {
            return invalid("metaload", format_args!("{} is no load", shown(&result)));
        }
        for (row, (index, _)) in batch.drain(..).enumerate() {
            loads[index] = f64::from_le_bytes(results.read_bytes(8 * row));
        }
        Ok(())
    }

    /// Fills in `MDSs` and `total`. Returns `MDSs[i]["load"]` of the ranks.
    pub(crate) fn rank_loads(&self, ranks: &[&RankMetrics]) -> HookResult<Vec<f64>> {
        let auth = self.metaloads(ranks.iter().map(|metrics| &metrics.auth))?;
        let all = self.metaloads(ranks.iter().map(|metrics| &metrics.all))?;
        let function = self.function("mdsload")?;
        let mut loads = Vec::with_capacity(ranks.len());
        let rows = (1..=ranks.len()).map(|i| self.metrics.raw_get::<Table>(i)).collect::<Result<Vec<_>, _>>();
        let rows = rows.map_err(|error| failed("mdsload")(self.sandbox.explain(error)))?;
        for (index, row) in rows.iter().enumerate() {
            let set = row.raw_set("auth", auth[index]).and_then(|()| row.raw_set("all", all[index]));
            set.map_err(|error| failed("mdsload")(self.sandbox.explain(error)))?;
        }
        for (index, row) in rows.iter().enumerate() {
            let result: Value = self.sandbox.call(&function, index + 1).map_err(failed("mdsload"))?;
            let Some(load) = load_of(&result) else {
                return invalid("mdsload", format_args!("{} is no load", shown(&result)));
            };
            row.raw_set("load", load).map_err(|error| failed("mdsload")(self.sandbox.explain(error)))?;
            loads.push(load);
        }
        self.set("total", finite("mdsload", loads.iter().sum())?)?;
        Ok(loads)
    }

    /// Sets the variables of this rank: its counters, and its loads now.
    pub(crate) fn set_own(&self, counters: &PopularityCounters, auth: f64, foreign: f64) -> HookResult<()> {
        for (name, count) in COUNTERS.into_iter().zip(counters.array()) {
            self.set(name, count)?;
        }
        self.set("authmetaload", auth)?;
        self.set("allmetaload", finite("metaload", auth + foreign)?)
    }

    pub(crate) fn when(&self) -> HookResult<bool> {
        self.sandbox.when().map_err(failed("when"))
    }

    /// Runs `where`. Returns the targets, the largest first.
    pub(crate) fn targets(&self, ranks: usize) -> HookResult<Vec<TargetLoad>> {
        self.sandbox.call::<()>(&self.function("where")?, ()).map_err(failed("where"))?;
        let Value::Table(table) = self.variable("targets")? else {
            return invalid("where", "targets is no table");
        };
        let mut targets = Vec::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|error| failed("where")(self.sandbox.explain(error)))?;
            let index = load_of(&key).filter(|i| i.fract() == 0.0 && *i >= 1.0 && *i <= ranks as f64);
            let Some(index) = index else {
                return invalid("where", format_args!("targets[{}]: ranks are 1 to {ranks}", shown(&key)));
            };
            let Some(amount) = load_of(&value) else {
                return invalid(
                    "where",
                    format_args!("targets[{index}] is {}, which is no load", shown(&value)),
                );
            };
            let index = index as usize - 1;
            if index == self.whoami && amount > 0.0 {
                return invalid("where", format_args!("targets[{}] is the rank that decides", index + 1));
            }
            if amount > 0.0 {
                targets.push(TargetLoad { index, amount });
            }
        }
        targets.sort_by(|a, b| b.amount.total_cmp(&a.amount).then(a.index.cmp(&b.index)));
        Ok(targets)
    }

    /// The selectors that `howmuch` lists or returns.
    pub(crate) fn selectors(&self) -> HookResult<Vec<FragmentSelector>> {
        let listed = match self.variable("howmuch")? {
            Value::Function(function) => self.sandbox.call(&function, ()).map_err(failed("howmuch"))?,
            other => other,
        };
        let Value::Table(table) = listed else {
            return invalid("howmuch", format_args!("it is {} instead of a list", shown(&listed)));
        };
        let mut selectors = Vec::new();
        for name in table.sequence_values::<Value>().take(SELECTORS_MAX + 1) {
            let name = name.map_err(|error| failed("howmuch")(self.sandbox.explain(error)))?;
            let text = name.as_string().map(|text| text.to_string_lossy());
            let Some(selector) = text.as_deref().and_then(FragmentSelector::parse) else {
                let name = text.unwrap_or_else(|| shown(&name));
                let known = "big_first, small_first, big_small, half";
                return invalid("howmuch", format_args!("there is no selector `{name}`: there are {known}"));
            };
            selectors.push(selector);
        }
        if selectors.is_empty() || selectors.len() > SELECTORS_MAX {
            return invalid("howmuch", format_args!("it lists 1 to {SELECTORS_MAX} selectors"));
        }
        Ok(selectors)
    }

    pub(crate) fn state(&self) -> HookResult<SavedState> {
        self.sandbox.state().map_err(failed("WRstate"))
    }
}

/// A value that is a finite number from 0 on.
fn load_of(value: &Value) -> Option<f64> {
    number_of(value).filter(|number| number.is_finite() && *number >= 0.0)
}

pub(crate) fn finite(hook: &'static str, sum: f64) -> HookResult<f64> {
    if sum.is_finite() { Ok(sum) } else { invalid(hook, "the sum of the loads is not finite") }
}
