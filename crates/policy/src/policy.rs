use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::distribution::{DistName, DistParams, parse_number};

/// Prefix of the extended attributes that represent policy attributes.
pub const PREFIX: &str = "user.espalier.";
/// Most data servers of a file.
pub const MAX_DFILES: u16 = 1024;

/// Name of a policy attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    NumDfiles,
    DistName,
    DistParams,
    Stuffing,
    Precreation,
    NoMetafile,
    Create,
    Coalescing,
    Eager,
}

impl Key {
    /// All attributes, in an order in which they can be set one by one.
    pub const ALL: [Self; 9] = [
        Self::NumDfiles,
        Self::DistName,
        Self::DistParams,
        Self::Stuffing,
        Self::Precreation,
        Self::NoMetafile,
        Self::Create,
        Self::Coalescing,
        Self::Eager,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::NumDfiles => "num_dfiles",
            Self::DistName => "dist_name",
            Self::DistParams => "dist_params",
            Self::Stuffing => "stuffing",
            Self::Precreation => "precreation",
            Self::NoMetafile => "no_metafile",
            Self::Create => "create",
            Self::Coalescing => "coalescing",
            Self::Eager => "eager",
        }
    }

    /// # Errors
    /// The name is unknown.
    pub fn parse(name: &str) -> Result<Self, PolicyError> {
        Self::ALL.into_iter().find(|key| key.name() == name).ok_or_else(|| PolicyError::Unknown(quoted(name)))
    }

    /// Name of the extended attribute.
    pub fn attribute(self) -> String {
        [PREFIX, self.name()].concat()
    }
}

/// A policy attribute with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    NumDfiles(NonZeroU16),
    DistName(DistName),
    DistParams(DistParams),
    Stuffing(bool),
    Precreation(bool),
    NoMetafile(bool),
    Create(Creator),
    Coalescing(bool),
    Eager(bool),
}

/// Which side makes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Creator {
    /// A metadata server, in one request.
    Server,
    /// The client, as in PVFS (carns III.A): inode, datafiles, layout and name.
    Client,
}

impl Creator {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Server, Self::Client].into_iter().find(|creator| creator.name() == text)
    }
}

/// The policy of a directory. It is encoded as the list of its attributes, so records of versions
/// without an attribute stay valid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Setting>", into = "Vec<Setting>")]
pub struct Policy {
    num_dfiles: Option<NonZeroU16>,
    dist_name: Option<DistName>,
    dist_params: Option<DistParams>,
    stuffing: Option<bool>,
    precreation: Option<bool>,
    no_metafile: Option<bool>,
    create: Option<Creator>,
    coalescing: Option<bool>,
    eager: Option<bool>,
}

/// Why a policy attribute is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "there is no setting `{0}`: there are num_dfiles, dist_name, dist_params, stuffing, precreation, no_metafile, create, coalescing and eager"
    )]
    Unknown(String),
    #[error("num_dfiles is a number of data servers, 1 to {MAX_DFILES}, and not `{0}`")]
    NumDfiles(String),
    #[error("dist_name is basic, simple_stripe or varstrip, and not `{0}`")]
    DistName(String),
    #[error(
        "dist_params are `strip_size:SIZE` for simple_stripe, or `strips:SERVER:SIZE;SERVER:SIZE...` for varstrip, at most 1024 \
         bytes, each SIZE 1 to 1G as in 65536 or 64K, and not `{0}`"
    )]
    DistParams(String),
    #[error("stuffing, precreation, coalescing and eager are true or false, and not `{0}`")]
    Switch(String),
    #[error("no_metafile is true or false, or 1 or 0, and not `{0}`")]
    NoMetafile(String),
    #[error("create is server or client, and not `{0}`")]
    Create(String),
    #[error("dist_params `{params}` do not go with dist_name {name}: remove one of them first")]
    Mismatch { name: DistName, params: String },
}

/// Shortens a user's text for messages and logs.
pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}

impl Policy {
    /// The empty policy.
    pub const NONE: Self = Self {
        num_dfiles: None,
        dist_name: None,
        dist_params: None,
        stuffing: None,
        precreation: None,
        no_metafile: None,
        create: None,
        coalescing: None,
        eager: None,
    };

    pub fn is_empty(&self) -> bool {
        *self == Self::NONE
    }

    /// The value in the text form of the extended attribute.
    pub fn get(&self, key: Key) -> Option<String> {
        match key {
            Key::NumDfiles => self.num_dfiles.map(|number| number.to_string()),
            Key::DistName => self.dist_name.map(|name| name.to_string()),
            Key::DistParams => self.dist_params.as_ref().map(|params| params.text().into()),
            Key::Stuffing => self.stuffing.map(|on| on.to_string()),
            Key::Precreation => self.precreation.map(|on| on.to_string()),
            Key::NoMetafile => self.no_metafile.map(|on| on.to_string()),
            Key::Create => self.create.map(|creator| creator.name().into()),
            Key::Coalescing => self.coalescing.map(|on| on.to_string()),
            Key::Eager => self.eager.map(|on| on.to_string()),
        }
    }

    /// # Errors
    /// The value is invalid, or conflicts with the other attributes. The policy is unchanged then.
    pub fn set(&mut self, key: Key, text: &str) -> Result<(), PolicyError> {
        let setting = match key {
            Key::NumDfiles => {
                let number = parse_number(text).and_then(|number| u16::try_from(number).ok());
                let number = number.and_then(NonZeroU16::new).filter(|number| number.get() <= MAX_DFILES);
                Setting::NumDfiles(number.ok_or_else(|| PolicyError::NumDfiles(quoted(text)))?)
            }
            Key::DistName => {
                Setting::DistName(DistName::parse(text).ok_or_else(|| PolicyError::DistName(quoted(text)))?)
            }
            Key::DistParams => Setting::DistParams(DistParams::parse(text)?),
            Key::Stuffing => Setting::Stuffing(parse_switch(text)?),
            Key::Precreation => Setting::Precreation(parse_switch(text)?),
            Key::NoMetafile => Setting::NoMetafile(match text {
                // The values of PVFS.
                "1" => true,
                "0" => false,
                text => text.parse().map_err(|_| PolicyError::NoMetafile(quoted(text)))?,
            }),
            Key::Create => {
                Setting::Create(Creator::parse(text).ok_or_else(|| PolicyError::Create(quoted(text)))?)
            }
            Key::Coalescing => Setting::Coalescing(parse_switch(text)?),
            Key::Eager => Setting::Eager(parse_switch(text)?),
        };
        self.put(setting)
    }

    fn put(&mut self, setting: Setting) -> Result<(), PolicyError> {
        let mut new = self.clone();
        match setting {
            Setting::NumDfiles(number) => new.num_dfiles = Some(number),
            Setting::DistName(name) => new.dist_name = Some(name),
            Setting::DistParams(params) => new.dist_params = Some(params),
            Setting::Stuffing(on) => new.stuffing = Some(on),
            Setting::Precreation(on) => new.precreation = Some(on),
            Setting::NoMetafile(on) => new.no_metafile = Some(on),
            Setting::Create(creator) => new.create = Some(creator),
            Setting::Coalescing(on) => new.coalescing = Some(on),
            Setting::Eager(on) => new.eager = Some(on),
        }
        if let (Some(name), Some(params)) = (new.dist_name, &new.dist_params)
            && params.of() != name
        {
            return Err(PolicyError::Mismatch { name, params: params.text().into() });
        }
        *self = new;
        Ok(())
    }

    pub fn unset(&mut self, key: Key) {
        match key {
            Key::NumDfiles => self.num_dfiles = None,
            Key::DistName => self.dist_name = None,
            Key::DistParams => self.dist_params = None,
            Key::Stuffing => self.stuffing = None,
            Key::Precreation => self.precreation = None,
            Key::NoMetafile => self.no_metafile = None,
            Key::Create => self.create = None,
            Key::Coalescing => self.coalescing = None,
            Key::Eager => self.eager = None,
        }
    }

    /// Adds the attributes of `other` that this policy lacks. A distribution and its parameters are
    /// taken together or not at all.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut policy = self.clone();
        policy.num_dfiles = self.num_dfiles.or(other.num_dfiles);
        policy.stuffing = self.stuffing.or(other.stuffing);
        policy.precreation = self.precreation.or(other.precreation);
        policy.no_metafile = self.no_metafile.or(other.no_metafile);
        policy.create = self.create.or(other.create);
        policy.coalescing = self.coalescing.or(other.coalescing);
        policy.eager = self.eager.or(other.eager);
        match (self.distribution(), other.distribution()) {
            (None, _) => {
                (policy.dist_name, policy.dist_params) = (other.dist_name, other.dist_params.clone())
            }
            (Some(own), Some(theirs)) if own == theirs && self.dist_params.is_none() => {
                policy.dist_params.clone_from(&other.dist_params);
            }
            _ => {}
        }
        policy
    }

    /// Names the distribution that the parameters imply. A no-metafile file has one datafile
    /// regardless of other attributes.
    #[must_use]
    pub fn explicit(mut self) -> Self {
        if self.no_metafile == Some(true) {
            self.num_dfiles = Some(NonZeroU16::MIN);
            (self.dist_name, self.dist_params) = (Some(DistName::Basic), None);
        }
        self.dist_name = self.distribution();
        self
    }

    pub fn num_dfiles(&self) -> Option<u16> {
        self.num_dfiles.map(NonZeroU16::get)
    }

    /// The distribution, possibly implied by its parameters.
    pub fn distribution(&self) -> Option<DistName> {
        self.dist_name.or(self.dist_params.as_ref().map(DistParams::of))
    }

    pub fn dist_params(&self) -> Option<&DistParams> {
        self.dist_params.as_ref()
    }

    /// Stores small files with their inodes (carns III.B). Default: true.
    pub fn stuffing(&self) -> Option<bool> {
        self.stuffing
    }

    /// Data servers make datafiles of unstuffed files in advance, in batches (carns III.A).
    pub fn precreation(&self) -> Option<bool> {
        self.precreation
    }

    /// Files have a dentry and a datafile, but no metadata of their own (kuhn 4.2).
    pub fn no_metafile(&self) -> Option<bool> {
        self.no_metafile
    }

    /// Which side makes files. Default: the metadata server.
    pub fn create(&self) -> Option<Creator> {
        self.create
    }

    /// Changes of the directory and its files share commits (carns III.C); otherwise each is
    /// committed by itself.
    pub fn coalescing(&self) -> Option<bool> {
        self.coalescing
    }

    /// Short payloads are sent with their requests and replies (carns III.D); otherwise all are
    /// announced.
    pub fn eager(&self) -> Option<bool> {
        self.eager
    }

    /// The policy as TOML.
    pub fn to_toml(&self) -> String {
        let line = |key: Key| {
            let text = self.get(key)?;
            // No value needs escapes.
            let quote = if matches!(key, Key::DistName | Key::DistParams | Key::Create) { "\"" } else { "" };
            Some([key.name(), " = ", quote, &text, quote, "\n"].concat())
        };
        Key::ALL.into_iter().filter_map(line).collect()
    }
}

fn parse_switch(text: &str) -> Result<bool, PolicyError> {
    text.parse().map_err(|_| PolicyError::Switch(quoted(text)))
}

impl From<Policy> for Vec<Setting> {
    fn from(policy: Policy) -> Self {
        let Policy {
            num_dfiles,
            dist_name,
            dist_params,
            stuffing,
            precreation,
            no_metafile,
            create,
            coalescing,
            eager,
        } = policy;
        let settings = [
            num_dfiles.map(Setting::NumDfiles),
            dist_name.map(Setting::DistName),
            dist_params.map(Setting::DistParams),
            stuffing.map(Setting::Stuffing),
            precreation.map(Setting::Precreation),
            no_metafile.map(Setting::NoMetafile),
            create.map(Setting::Create),
            coalescing.map(Setting::Coalescing),
            eager.map(Setting::Eager),
        ];
        settings.into_iter().flatten().collect()
    }
}

impl TryFrom<Vec<Setting>> for Policy {
    type Error = PolicyError;
    fn try_from(settings: Vec<Setting>) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        for setting in settings {
            policy.put(setting)?;
        }
        Ok(policy)
    }
}
