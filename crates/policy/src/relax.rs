//! Limits on the levels of directories below (sevilla 6.2.3). A directory's `relax` names the
//! settings that directories made in it may weaken. Those that it does not name are bounds of the
//! new directory, and of all directories below it.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::level::{Consistency, Durability, Interference};
use crate::settings::{DEFAULT_INODES, Key, Policy};
use crate::value::{Value, Values};

/// The settings that make a level.
const LEVEL: [Key; 4] = [Key::Consistency, Key::Durability, Key::AllocatedInodes, Key::Interfere];

/// A set of settings that make a level, one bit for each in the order of [`LEVEL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relax(u8);

impl Relax {
    pub const ALL: Self = Self((1 << LEVEL.len()) - 1);

    fn bit(key: Key) -> u8 {
        LEVEL.iter().position(|one| *one == key).map_or(0, |at| 1 << at)
    }

    /// True if directories below may weaken a setting.
    pub fn allows(self, key: Key) -> bool {
        self.0 & Self::bit(key) != 0
    }

    fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Value for Relax {
    const VALUES: Values = Values::Relax;

    /// Also accepts a list as in TOML: `["durability"]`.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "all" => return Some(Self::ALL),
            "none" | "[]" => return Some(Self(0)),
            _ => {}
        }
        let list = text.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(text);
        let mut relax = 0;
        for name in list.split(',') {
            let name = name.trim().trim_matches('"');
            relax |= Self::bit(*LEVEL.iter().find(|key| key.name() == name)?);
        }
        Some(Self(relax))
    }
}

impl fmt::Display for Relax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("all"),
            Self(0) => f.write_str("none"),
            relax => {
                let names: Vec<_> =
                    LEVEL.iter().filter(|key| relax.allows(**key)).map(|key| key.name()).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// The weakest level that a directory may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    consistency: Option<Consistency>,
    durability: Option<Durability>,
    /// The most inode numbers of a namespace.
    allocated_inodes: Option<NonZeroU32>,
    interfere: Option<Interference>,
    /// The settings that the directory's own `relax` may name.
    relax: Relax,
}

impl Bound {
    const NONE: Self = Self {
        consistency: None,
        durability: None,
        allocated_inodes: None,
        interfere: None,
        relax: Relax::ALL,
    };

    pub fn allocated_inodes(&self) -> Option<NonZeroU32> {
        self.allocated_inodes
    }

    fn get(&self, key: Key) -> Option<String> {
        match key {
            Key::Consistency => self.consistency.map(|value| value.to_string()),
            Key::Durability => self.durability.map(|value| value.to_string()),
            Key::AllocatedInodes => self.allocated_inodes.map(|value| value.to_string()),
            Key::Interfere => self.interfere.map(|value| value.to_string()),
            Key::Relax => Some(self.relax.to_string()),
            _ => None,
        }
    }
}

impl Value for Bound {
    const VALUES: Values = Values::Bound;

    fn parse(text: &str) -> Option<Self> {
        let mut bound = Self::NONE;
        for part in text.split(';') {
            let (name, value) = part.split_once(':')?;
            match Key::parse(name).ok()? {
                Key::Consistency => bound.consistency = Some(Value::parse(value)?),
                Key::Durability => bound.durability = Some(Value::parse(value)?),
                Key::AllocatedInodes => bound.allocated_inodes = Some(Value::parse(value)?),
                Key::Interfere => bound.interfere = Some(Value::parse(value)?),
                Key::Relax => bound.relax = Value::parse(value)?,
                _ => return None,
            }
        }
        Some(bound)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = LEVEL.into_iter().chain([Key::Relax]);
        let parts: Vec<_> =
            keys.filter_map(|key| Some([key.name(), ":", &self.get(key)?].concat())).collect();
        f.write_str(&parts.join(";"))
    }
}

impl Policy {
    /// The policy of a new directory in one with this policy. `effective`: this policy, with the
    /// server's settings where it has none.
    #[must_use]
    pub fn inherited(&self, effective: &Self) -> Self {
        let relax = self.relax.unwrap_or(Relax::ALL);
        let (old, level) = (self.bound.unwrap_or(Bound::NONE), effective.level());
        let inodes = effective.allocated_inodes.unwrap_or(DEFAULT_INODES);
        let interfere = effective.interfere.unwrap_or(Interference::Block);
        let bound = Bound {
            consistency: if relax.allows(Key::Consistency) {
                old.consistency
            } else {
                Some(level.consistency)
            },
            durability: if relax.allows(Key::Durability) { old.durability } else { Some(level.durability) },
            allocated_inodes: if relax.allows(Key::AllocatedInodes) {
                old.allocated_inodes
            } else {
                Some(inodes)
            },
            interfere: if relax.allows(Key::Interfere) { old.interfere } else { Some(interfere) },
            relax,
        };
        Self { bound: Some(bound).filter(|bound| *bound != Bound::NONE), ..self.clone() }
    }

    /// This policy for a directory that is made with `inherited`, whose bound it gets.
    #[must_use]
    pub fn within(&self, inherited: &Self) -> Self {
        Self { bound: inherited.bound, ..self.or(inherited) }
    }

    /// The setting that is weaker than the bound, and the bound's text for it. `self` must include
    /// the server's settings.
    pub fn exceeded(&self) -> Option<(Key, String)> {
        let (bound, level) = (self.bound?, self.level());
        let inodes = self.allocated_inodes.unwrap_or(DEFAULT_INODES);
        let interfere = self.interfere.unwrap_or(Interference::Block);
        let is_exceeded = |key: &Key| match key {
            Key::Consistency => {
                bound.consistency.is_some_and(|least| (level.consistency as u8) < least as u8)
            }
            Key::Durability => bound.durability.is_some_and(|least| (level.durability as u8) < least as u8),
            Key::AllocatedInodes => bound.allocated_inodes.is_some_and(|most| inodes > most),
            Key::Interfere => bound.interfere.is_some_and(|least| (interfere as u8) < least as u8),
            _ => !bound.relax.contains(self.relax.unwrap_or(Relax::ALL)),
        };
        let key = LEVEL.into_iter().chain([Key::Relax]).find(is_exceeded)?;
        Some((key, bound.get(key)?))
    }
}
