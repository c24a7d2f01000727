//! Mechanisms of consistency and durability, and their compositions (sevilla 6.2.1, 6.2.2).

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::policy::quoted;
use crate::value::{Value, Values, WordList, words};

words! {
    /// A building block of guarantees. The texts are the names in sevilla's Table 6.1.
    Mechanism:
    /// The client appends changes to a journal of its own.
    AppendClientJournal = "append client journal";
    /// The client sends each change to the server.
    Rpcs = "RPCs" | "rpcs";
    /// The server applies a client's journal in memory.
    VolatileApply = "volatile apply";
    /// A client's journal is applied to the stored metadata, without the server.
    NonvolatileApply = "nonvolatile apply";
    /// The server journals what it applies.
    Stream = "stream";
    /// The client's journal is written to the client's disk.
    LocalPersist = "local persist";
    /// The client's journal is written to the servers.
    GlobalPersist = "global persist";
}

/// Steps that follow each other (`+`), each of mechanisms that run in parallel (`||`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Composition(Vec<Vec<Mechanism>>);

/// The reason why mechanisms are no composition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompositionError {
    #[error("a mechanism is missing before or after `+` or `||`, or there is none")]
    Missing,
    #[error("there is no mechanism `{0}`: there are {all}", all = mechanisms())]
    Unknown(String),
    #[error("`{0}` is there twice")]
    Twice(Mechanism),
    #[error("`{0}` and `{1}` do not go together: {2}")]
    Conflict(Mechanism, Mechanism, &'static str),
    #[error("nothing makes changes: begin with `append client journal` or `RPCs`")]
    NoChanges,
    #[error("`{0}` needs `{1}` before it: {2}")]
    Order(Mechanism, Mechanism, &'static str),
}

fn mechanisms() -> String {
    let Values::Words(words) = Mechanism::VALUES else { return String::new() };
    alloc::format!("{}", WordList(words, "and"))
}

/// Mechanisms that exclude each other.
const CONFLICTS: [(Mechanism, Mechanism, &str); 5] = {
    use Mechanism::{
        AppendClientJournal, GlobalPersist, LocalPersist, NonvolatileApply, Rpcs, Stream, VolatileApply,
    };
    [
        (AppendClientJournal, Rpcs, "both make the changes"),
        (VolatileApply, NonvolatileApply, "both apply the client's journal"),
        (Stream, LocalPersist, "the server's journal is more durable than the client's disk, and costs more"),
        (Stream, GlobalPersist, "both make the changes durable at the servers"),
        (LocalPersist, GlobalPersist, "the servers are more durable than the client's disk"),
    ]
};

/// Mechanisms that need an earlier step.
const NEEDS: [(Mechanism, Mechanism, &str); 3] = {
    use Mechanism::{AppendClientJournal, NonvolatileApply, Rpcs, Stream, VolatileApply};
    let applied = "it applies the client's journal";
    [
        (VolatileApply, AppendClientJournal, applied),
        (NonvolatileApply, AppendClientJournal, applied),
        (Stream, Rpcs, "the server journals what it receives"),
    ]
};

impl Composition {
    /// Parses `a+b`, `a||b`, where `||` binds more strongly.
    ///
    /// # Errors
    /// [`CompositionError`].
    pub fn parse(text: &str) -> Result<Self, CompositionError> {
        let mechanism = |word: &str| match word.trim() {
            "" => Err(CompositionError::Missing),
            word => Mechanism::parse(word).ok_or_else(|| CompositionError::Unknown(quoted(word))),
        };
        let step = |text: &str| text.split("||").map(mechanism).collect();
        let composition = Self(text.split('+').map(step).collect::<Result<_, _>>()?);
        composition.check()?;
        Ok(composition)
    }

    pub(crate) fn serial(mechanisms: &[Mechanism]) -> Self {
        Self(mechanisms.iter().map(|mechanism| alloc::vec![*mechanism]).collect())
    }

    /// The steps, each with the mechanisms that run in parallel.
    pub fn steps(&self) -> &[Vec<Mechanism>] {
        &self.0
    }

    pub fn has(&self, mechanism: Mechanism) -> bool {
        self.step_of(mechanism).is_some()
    }

    fn step_of(&self, mechanism: Mechanism) -> Option<usize> {
        self.0.iter().position(|step| step.contains(&mechanism))
    }

    fn check(&self) -> Result<(), CompositionError> {
        let all: Vec<Mechanism> = self.0.iter().flatten().copied().collect();
        if let Some(twice) = (1..all.len()).find(|at| all[..*at].contains(&all[*at])) {
            return Err(CompositionError::Twice(all[twice]));
        }
        for (one, other, why) in CONFLICTS {
            if self.has(one) && self.has(other) {
                return Err(CompositionError::Conflict(one, other, why));
            }
        }
        let append = self.step_of(Mechanism::AppendClientJournal);
        if append.is_none() && !self.has(Mechanism::Rpcs) {
            return Err(CompositionError::NoChanges);
        }
        for (later, earlier, why) in NEEDS {
            let is_first = later != Mechanism::Stream && self.step_of(earlier) >= self.step_of(later);
            if self.has(later) && (!self.has(earlier) || is_first) {
                return Err(CompositionError::Order(later, earlier, why));
            }
        }
        self.check_persist(append)
    }

    /// A journal is written after or while changes are appended. Without one, `RPCs+local persist`
    /// logs them at the client.
    fn check_persist(&self, append: Option<usize>) -> Result<(), CompositionError> {
        for persist in [Mechanism::LocalPersist, Mechanism::GlobalPersist] {
            let is_log = persist == Mechanism::LocalPersist && append.is_none();
            if !is_log && self.step_of(persist).is_some_and(|step| append.is_none_or(|append| step < append))
            {
                let (append, why) = (Mechanism::AppendClientJournal, "it writes the client's journal");
                return Err(CompositionError::Order(persist, append, why));
            }
        }
        Ok(())
    }
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            for (place, mechanism) in step.iter().enumerate() {
                let separator = match (number, place) {
                    (0, 0) => "",
                    (_, 0) => "+",
                    _ => "||",
                };
                write!(f, "{separator}{mechanism}")?;
            }
        }
        Ok(())
    }
}
