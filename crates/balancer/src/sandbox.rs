//! Lua sandbox: runs scripts that may be hostile, within budgets of steps, memory and time.
//!
//! A script sees the names that its host defines and the part of Lua that does no I/O, reads no
//! clock and depends on no address: the same inputs give the same results. A sandbox is made for
//! one decision, so that nothing is left over from the last one.

use std::cell::Cell;
use std::rc::Rc;

use mlua::chunk::{ChunkMode, Compiler};
use mlua::{Error, FromLuaMulti, Function, IntoLuaMulti, Lua, LuaOptions, StdLib, Table, Value, VmState};
use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

/// Longest script, in bytes.
pub const SCRIPT_BYTES_MAX: usize = 64 << 10;

/// The driver's clock is read once in so many steps.
const STEPS_PER_CLOCK: u64 = 256;

/// Lua's own functions that scripts may call.
const BASE: [&str; 8] = ["assert", "error", "ipairs", "next", "pairs", "select", "tonumber", "type"];

/// Limits of one decision. Time is limited by the driver, which has the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScriptBudget {
    /// Calls and iterations of loops. Hosts may add to it in proportion to their inputs.
    pub steps: u64,
    /// Bytes that the script may allocate.
    pub memory_bytes: usize,
}

impl Default for ScriptBudget {
    fn default() -> Self {
        Self { steps: 1_000_000, memory_bytes: 8 << 20 }
    }
}

/// Why a script's result cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, ThisError, Serialize, Deserialize)]
pub enum ScriptError {
    /// The text is not valid, or longer than [`SCRIPT_BYTES_MAX`].
    #[error("{0}")]
    Syntax(String),
    /// The script failed, with its line.
    #[error("{0}")]
    Runtime(String),
    /// The script returned or set something that is not usable.
    #[error("{0}")]
    Invalid(String),
    #[error("it takes more than {0} calls and iterations: an endless loop?")]
    Steps(u64),
    #[error("it needs more than {0} bytes of memory")]
    Memory(usize),
    #[error("it is out of time")]
    Time,
}

/// Counts a script's steps, and stops it.
struct StepMeter {
    left: Cell<u64>,
    /// The budget, without what the host has added.
    allowed: u64,
    is_late: Cell<bool>,
    out_of_time: Box<dyn Fn() -> bool>,
}

impl StepMeter {
    fn step(&self) -> Result<VmState, Error> {
        let left = self.left.get();
        if left == 0 {
            return Err(Error::runtime("steps"));
        }
        self.left.set(left - 1);
        if left.is_multiple_of(STEPS_PER_CLOCK) && (self.out_of_time)() {
            self.is_late.set(true);
        }
        if self.is_late.get() { Err(Error::runtime("time")) } else { Ok(VmState::Continue) }
    }
}

/// The value that `WRstate` saves and `RDstate` returns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SavedState {
    Flag(bool),
    Number(f64),
}

impl Default for SavedState {
    /// State of a policy that has not saved any.
    fn default() -> Self {
        Self::Number(0.0)
    }
}

/// A Lua state for one decision.
pub struct Sandbox {
    lua: Lua,
    environment: Table,
    meter: Rc<StepMeter>,
    memory_bytes: usize,
    saved_state: Function,
    set_time_series: Function,
}

impl Sandbox {
    /// `state` is what the script's last decision saved. `seed` starts `math.random`. `out_of_time`
    /// is the driver's clock: from the first `true` on, scripts fail with [`ScriptError::Time`].
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(
        budget: &ScriptBudget,
        state: SavedState,
        seed: u64,
        out_of_time: impl Fn() -> bool + 'static,
    ) -> Result<Self, ScriptError> {
        let meter = Rc::new(StepMeter {
            left: Cell::new(budget.steps),
            allowed: budget.steps,
            is_late: Cell::new(false),
            out_of_time: Box::new(out_of_time),
        });
        Self::create(budget, state, seed, meter).map_err(|error| ScriptError::Runtime(error.to_string()))
    }

    fn create(
        budget: &ScriptBudget,
        state: SavedState,
        seed: u64,
        meter: Rc<StepMeter>,
    ) -> Result<Self, Error> {
        let lua = Lua::new_with(StdLib::MATH | StdLib::TABLE | StdLib::BUFFER, LuaOptions::new())?;
        // Level 1: level 2 inlines and unrolls, which lets a short script become a long one.
        lua.set_compiler(Compiler::new().set_optimization_level(1));
        let environment = base_environment(&lua, seed)?;
        let state = match state {
            SavedState::Flag(flag) => Value::Boolean(flag),
            SavedState::Number(number) => Value::Number(number),
        };
        // Inlines functions of the library in the host's code. Scripts cannot reach the globals.
        lua.globals().set_safeenv(true);
        let prelude = lua.load(include_str!("sandbox.lua")).set_name("=sandbox");
        let (saved_state, set_time_series) = prelude.call((&environment, state))?;
        lua.set_memory_limit(lua.used_memory() + budget.memory_bytes)?;
        let of_interrupt = meter.clone();
        lua.set_interrupt(move |_| of_interrupt.step());
        Ok(Self { lua, environment, meter, memory_bytes: budget.memory_bytes, saved_state, set_time_series })
    }

    /// Defines `timeseries()`, which returns these pairs of timestamp and value (Table 5.1):
    /// `series:size()`, and `series:get(i)` with `i` from 1. Its memory counts as the script's.
    ///
    /// # Errors
    /// It is larger than the script's memory.
    pub fn set_time_series(&self, points: &[(f64, f64)]) -> Result<(), ScriptError> {
        let numbers = points.iter().flat_map(|(at, value)| [*at, *value]);
        let bytes: Vec<u8> = numbers.flat_map(f64::to_le_bytes).collect();
        let buffer = self.lua.create_buffer(bytes).map_err(|error| self.explain(error))?;
        self.call(&self.set_time_series, (points.len(), buffer))
    }

    /// The state that the script has saved so far.
    ///
    /// # Errors
    /// A budget is used up.
    pub fn state(&self) -> Result<SavedState, ScriptError> {
        let state: Value = self.call(&self.saved_state, ())?;
        Ok(match state {
            Value::Boolean(flag) => SavedState::Flag(flag),
            other => SavedState::Number(number_of(&other).unwrap_or_default()),
        })
    }

    /// The names that the script sees.
    pub fn environment(&self) -> &Table {
        &self.environment
    }

    /// For values of the environment.
    pub fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Allows more steps.
    pub fn add_steps(&self, steps: u64) {
        self.meter.left.set(self.meter.left.get().saturating_add(steps));
    }

    /// Runs a script's top level, which defines its functions. `name` begins its errors.
    ///
    /// # Errors
    /// The text is no Lua, is too long, or fails.
    pub fn run(&self, name: &str, text: &str) -> Result<(), ScriptError> {
        if text.len() > SCRIPT_BYTES_MAX {
            return Err(ScriptError::Syntax(format!("{name}: longer than {SCRIPT_BYTES_MAX} bytes")));
        }
        let chunk = self.lua.load(text).set_name(format!("={name}")).set_mode(ChunkMode::Text);
        let function = chunk.set_environment(self.environment.clone()).into_function();
        self.call(&function.map_err(|error| self.explain(error))?, ())
    }

    /// A function that the script defines.
    ///
    /// # Errors
    /// There is none, or it is something else.
    pub fn hook(&self, name: &str) -> Result<Function, ScriptError> {
        match self.environment.raw_get(name).map_err(|error| self.explain(error))? {
            Value::Function(function) => Ok(function),
            Value::Nil => Err(ScriptError::Invalid(format!("there is no function `{name}`"))),
            other => {
                Err(ScriptError::Invalid(format!("`{name}` is {} instead of a function", shown(&other))))
            }
        }
    }

    /// Calls the script's `when`, which says whether the policy applies now.
    ///
    /// # Errors
    /// It fails, or returns neither true nor false.
    pub fn when(&self) -> Result<bool, ScriptError> {
        match self.call(&self.hook("when")?, ())? {
            Value::Boolean(is_due) => Ok(is_due),
            other => {
                let shown = shown(&other);
                Err(ScriptError::Invalid(format!("`when` returns {shown} instead of true or false")))
            }
        }
    }

    /// # Errors
    /// The function fails, uses up a budget, or returns another type.
    pub fn call<R: FromLuaMulti>(
        &self,
        function: &Function,
        arguments: impl IntoLuaMulti,
    ) -> Result<R, ScriptError> {
        function.call(arguments).map_err(|error| self.explain(error))
    }

    /// The meaning of an error of Lua, without the stack.
    pub fn explain(&self, error: Error) -> ScriptError {
        if self.meter.is_late.get() {
            return ScriptError::Time;
        }
        if self.meter.left.get() == 0 {
            return ScriptError::Steps(self.meter.allowed);
        }
        match error {
            Error::MemoryError(_) => ScriptError::Memory(self.memory_bytes),
            Error::SyntaxError { message, .. } => ScriptError::Syntax(first_line(&message)),
            Error::RuntimeError(message) => ScriptError::Runtime(first_line(&message)),
            Error::CallbackError { cause, .. } => self.explain((*cause).clone()),
            Error::FromLuaConversionError { from, to, .. } => {
                ScriptError::Invalid(format!("{from} where {to} is needed"))
            }
            other => ScriptError::Runtime(first_line(&other.to_string())),
        }
    }
}

/// Lua's own names that scripts see.
fn base_environment(lua: &Lua, seed: u64) -> Result<Table, Error> {
    let (globals, environment) = (lua.globals(), lua.create_table()?);
    for name in BASE {
        environment.raw_set(name, globals.get::<Value>(name)?)?;
    }
    let math: Table = globals.get("math")?;
    // A seed of Lua has 32 bits.
    math.get::<Function>("randomseed")?.call::<()>((seed ^ (seed >> 32)) as u32)?;
    environment.raw_set("math", math)?;
    // The others of `table` loop over lengths that a script can choose, and cannot be stopped.
    let sort: Function = globals.get::<Table>("table")?.get("sort")?;
    environment.raw_set("table", lua.create_table_from([("sort", sort)])?)?;
    Ok(environment)
}

/// Lua's numbers arrive as integers where they are integral.
pub(crate) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// A value in a message.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Integer(integer) => integer.to_string(),
        Value::Number(number) => number.to_string(),
        other => other.type_name().to_owned(),
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}
