//! Levels of consistency and durability: the cells of sevilla's Table 6.1, and their meaning here.

use alloc::vec::Vec;

use crate::mechanism::{Composition, Mechanism};
use crate::settings::Policy;
use crate::value::words;

words! {
    /// When others see the changes in a directory.
    Consistency:
    /// When a user merges them.
    Invisible = "invisible";
    /// When the program that makes them has ended.
    Weak = "weak";
    /// Immediately.
    Strong = "strong";
}

words! {
    /// Where the changes in a directory are, until others see them.
    Durability:
    /// In the client's memory.
    None = "none";
    /// On the client's disk.
    Local = "local";
    /// At the servers.
    Global = "global";
}

words! {
    /// Whether others may change a directory while it is decoupled (sevilla 6.2.3).
    Interference:
    /// They may; the decoupled namespace takes priority when it is merged.
    Allow = "allow";
    /// Their changes fail with `EBUSY`.
    Block = "block";
}

/// A cell of Table 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub consistency: Consistency,
    pub durability: Durability,
}

/// A level as sentences for users: when others see changes, and what crashes lose of those that
/// others do not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantee {
    pub visible: &'static str,
    pub client: &'static str,
    pub server: &'static str,
    pub both: &'static str,
}

impl Level {
    /// The composition of mechanisms in Table 6.1.
    pub fn composition(self) -> Composition {
        use Mechanism::{AppendClientJournal, GlobalPersist, LocalPersist, Rpcs, Stream, VolatileApply};
        let persist = match self.durability {
            Durability::None => None,
            Durability::Global if self.consistency == Consistency::Strong => Some(Stream),
            Durability::Global => Some(GlobalPersist),
            Durability::Local => Some(LocalPersist),
        };
        let (first, last) = match self.consistency {
            Consistency::Invisible => (AppendClientJournal, None),
            Consistency::Weak => (AppendClientJournal, Some(VolatileApply)),
            Consistency::Strong => (Rpcs, None),
        };
        let steps: Vec<_> = [Some(first), persist, last].into_iter().flatten().collect();
        Composition::serial(&steps)
    }

    /// The cell whose guarantees a composition has when all of its mechanisms are complete.
    pub fn of(composition: &Composition) -> Self {
        use Mechanism::{GlobalPersist, LocalPersist, NonvolatileApply, Rpcs, Stream, VolatileApply};
        let has_any = |mechanisms: [Mechanism; 2]| mechanisms.into_iter().any(|one| composition.has(one));
        let consistency = match composition {
            _ if composition.has(Rpcs) => Consistency::Strong,
            _ if has_any([VolatileApply, NonvolatileApply]) => Consistency::Weak,
            _ => Consistency::Invisible,
        };
        let durability = match composition {
            _ if has_any([Stream, GlobalPersist]) => Durability::Global,
            _ if composition.has(LocalPersist) => Durability::Local,
            _ => Durability::None,
        };
        Self { consistency, durability }
    }

    /// True if the program has the level: a server journals every change that it applies, so strong
    /// consistency has global durability.
    pub fn is_offered(self) -> bool {
        self.consistency != Consistency::Strong || self.durability == Durability::Global
    }

    pub fn guarantee(self) -> Guarantee {
        let visible = match self.consistency {
            Consistency::Invisible => "by `espalier merge`",
            Consistency::Weak => "by the merge when the command has ended",
            Consistency::Strong => "immediately",
        };
        let (client, server, both) = match (self.consistency, self.durability) {
            (Consistency::Strong, _) => (
                "loses changes that were pending, at most 64, and bytes that were not synced",
                "loses nothing; a power failure loses the last second, except what was synced",
                "loses the last second and what was pending, except what was synced",
            ),
            (_, Durability::None) => (
                "loses all changes since the directory was decoupled",
                "loses nothing",
                "loses all changes since the directory was decoupled",
            ),
            (_, Durability::Local) => (
                "loses the last second, except what was synced; the loss of its disk loses all changes",
                "loses nothing",
                "loses the last second, except what was synced, if the client's disk survives",
            ),
            (_, Durability::Global) => (
                "loses the last second, except what was synced, even if its disk is lost",
                "loses nothing; programs wait until it is back",
                "loses the last second, except what was synced; if a server lost power, all since the \
                 namespace's last checkpoint",
            ),
        };
        Guarantee { visible, client, server, both }
    }
}

impl Policy {
    /// The level of a decoupled namespace.
    pub fn level(&self) -> Level {
        let consistency = self.consistency.unwrap_or(Consistency::Weak);
        let unset = if consistency == Consistency::Strong { Durability::Global } else { Durability::Local };
        Level { consistency, durability: self.durability.unwrap_or(unset) }
    }
}
