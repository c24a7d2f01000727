//! Operations on policies that hold for all settings alike, and those on distributions.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::num::NonZeroU16;

use crate::distribution::DistParams;
use crate::level::Durability;
use crate::settings::{Key, Policy, Setting};
use crate::value::{DistName, WordList};

/// The beginning of the names of settings as extended attributes.
pub const PREFIX: &str = "user.espalier.";

/// A setting that no policy can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("there is no setting `{0}`: there are {all}", all = WordList(&Key::ALL.map(Key::name), "and"))]
    Unknown(String),
    #[error("{name} is {values}, and not `{text}`", name = key.name(), values = key.values())]
    Value { key: Key, text: String },
    #[error("dist_params `{params}` do not go with dist_name {name}: remove one of them first")]
    Mismatch { name: DistName, params: String },
    #[error(
        "consistency strong goes with durability global, and not with {0}: servers journal every change; unset \
         one of them first"
    )]
    Level(Durability),
}

/// The beginning of an untrusted text, short enough for a log line.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

impl Key {
    /// # Errors
    /// There is no such setting.
    pub fn parse(name: &str) -> Result<Self, PolicyError> {
        Self::ALL.into_iter().find(|key| key.name() == name).ok_or_else(|| PolicyError::Unknown(quoted(name)))
    }

    /// The name of the extended attribute.
    pub fn attribute(self) -> String {
        [PREFIX, self.name()].concat()
    }
}

impl Policy {
    /// A policy of names and texts.
    ///
    /// # Errors
    /// One of them is no setting, or does not go with the others.
    pub fn parse(
        settings: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    ) -> Result<Self, PolicyError> {
        let mut policy = Self::NONE;
        for (name, text) in settings {
            policy.set(Key::parse(name.as_ref())?, text.as_ref())?;
        }
        Ok(policy)
    }

    /// The settings that differ between two policies.
    pub fn changes(&self, other: &Self) -> impl Iterator<Item = Key> {
        Key::ALL.into_iter().filter(|key| self.setting(*key) != other.setting(*key))
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    fn settings(&self) -> impl Iterator<Item = Setting> {
        Key::ALL.into_iter().filter_map(|key| self.setting(key))
    }

    /// The text of a setting, as an extended attribute has it.
    pub fn get(&self, key: Key) -> Option<String> {
        self.setting(key).map(|setting| setting.text())
    }

    /// # Errors
    /// The setting cannot have this value, or not with the others. The policy is unchanged then.
    pub fn set(&mut self, key: Key, text: &str) -> Result<(), PolicyError> {
        let wrong = || PolicyError::Value { key, text: quoted(text) };
        self.put(Setting::parse(key, text).ok_or_else(wrong)?)
    }

    fn put(&mut self, setting: Setting) -> Result<(), PolicyError> {
        let mut new = self.clone();
        new.assign(setting);
        if let (Some(name), Some(params)) = (new.dist_name, &new.dist_params)
            && params.of() != name
        {
            return Err(PolicyError::Mismatch { name, params: params.to_string() });
        }
        let level = new.level();
        if !level.is_offered() {
            return Err(PolicyError::Level(level.durability));
        }
        *self = new;
        Ok(())
    }

    /// Takes settings that are not set from another policy. Parameters are taken only for the same
    /// distribution.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut policy = other.clone();
        self.settings().for_each(|setting| policy.assign(setting));
        if let Some(own) = self.distribution() {
            policy.dist_name = self.dist_name;
            if other.distribution() != Some(own) {
                policy.dist_params.clone_from(&self.dist_params);
            }
        }
        policy
    }

    /// Sets the distribution of the parameters explicitly. A no-metafile file has one datafile,
    /// regardless of other settings.
    #[must_use]
    pub fn explicit(mut self) -> Self {
        if self.no_metafile == Some(true) {
            self.num_dfiles = Some(NonZeroU16::MIN);
            (self.dist_name, self.dist_params) = (Some(DistName::Basic), None);
        }
        self.dist_name = self.distribution();
        self
    }

    /// Parameters imply their distribution.
    pub fn distribution(&self) -> Option<DistName> {
        self.dist_name.or(self.dist_params.as_ref().map(DistParams::of))
    }

    /// Formats the policy as TOML.
    pub fn to_toml(&self) -> String {
        let line = |key: Key| {
            let text = self.get(key)?;
            let is_literal = text.parse::<bool>().is_ok() || text.parse::<u64>().is_ok();
            // No text needs escapes.
            let quote = if is_literal { "" } else { "\"" };
            Some([key.name(), " = ", quote, &text, quote, "\n"].concat())
        };
        Key::ALL.into_iter().filter_map(line).collect()
    }
}

impl From<Policy> for Vec<Setting> {
    fn from(policy: Policy) -> Self {
        policy.settings().collect()
    }
}

impl TryFrom<Vec<Setting>> for Policy {
    type Error = PolicyError;
    fn try_from(settings: Vec<Setting>) -> Result<Self, PolicyError> {
        let mut policy = Self::NONE;
        settings.into_iter().try_for_each(|setting| policy.put(setting))?;
        Ok(policy)
    }
}
