//! Policies: attributes of directories that new inodes inherit, and their effect on files.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use espalier_policy::{Creator, DistName, Key, PREFIX, Policy};
use espalier_proto::{Errno, FileType, Ino, NewNode, XattrMode};

use super::action::Action;
use super::outcome::ExpectedOutcome;
use super::permit::CallerCreds;
use super::quota;
use super::tree::{ModelInode, ModelNode, Tree};

/// Extended attribute with the effective policy of an inode, including the server's defaults.
pub const EFFECTIVE: &[u8] = b"user.espalier.policy";
/// Extended attribute with the placement of a file's data.
pub const LAYOUT: &[u8] = b"user.espalier.layout";

pub fn is_policy(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes()) && !quota::is_limit(name)
}

/// True for an attribute that reports the effect of policies.
pub fn is_known(name: &[u8]) -> bool {
    matches!(name, EFFECTIVE | LAYOUT)
}

/// The name of an attribute that is independent of all others.
pub fn independent_setting(name: &[u8]) -> Option<&[u8]> {
    let is_level =
        |key| matches!(key, Key::Consistency | Key::Durability | Key::AllocatedInodes | Key::Interfere);
    let is_of_level = |key| is_level(key) || matches!(key, Key::Relax | Key::Bound);
    let is_of_others = is_known(name)
        || key(name).is_some_and(|key| is_of_level(key) || matches!(key, Key::DistName | Key::DistParams));
    Some(name).filter(|_| !is_of_others)
}

fn key(name: &[u8]) -> Option<Key> {
    Key::parse(std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?).ok()
}

/// Policy attributes in their text form.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Settings(BTreeMap<Key, Box<str>>);

impl From<&Policy> for Settings {
    fn from(policy: &Policy) -> Self {
        Self(Key::ALL.into_iter().filter_map(|key| Some((key, policy.get(key)?.into()))).collect())
    }
}

impl Settings {
    fn policy(&self) -> Policy {
        let mut policy = Policy::NONE;
        for (key, text) in &self.0 {
            // Cannot fail: they were set one by one before.
            let _ = policy.set(*key, text);
        }
        policy
    }

    pub fn get(&self, name: &[u8]) -> Option<&str> {
        Some(self.0.get(&key(name)?)?)
    }

    /// Names of the extended attributes, as in `listxattr`. A bound is not listed.
    pub fn names(&self) -> impl Iterator<Item = u8> {
        let listed = self.0.keys().filter(|key| **key != Key::Bound);
        listed.flat_map(|key| key.attribute().into_bytes().into_iter().chain([0]))
    }
}

/// The server's defaults.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerDefaults {
    settings: Settings,
    /// There are data servers.
    pub scattered: bool,
}

impl ServerDefaults {
    pub fn new(settings: &Policy, scattered: bool) -> Self {
        Self { settings: settings.into(), scattered }
    }

    fn effective(&self, own: &Settings) -> Policy {
        own.policy().or(&self.settings.policy())
    }
}

/// Placement of a new file's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Born {
    /// With the inode.
    #[default]
    Stuffed,
    Striped,
    /// On one data server, without a metafile.
    NoMetafile,
}

/// Guarantees for the placement of a file's data.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layout {
    born: Born,
    no_metafile: bool,
    scattered: bool,
    /// Distribution, number of servers at most, and parameters if known, once the file is on data
    /// servers.
    dist: String,
    most: u16,
    params: Option<String>,
}

impl Layout {
    pub fn is(&self, observed: &str) -> bool {
        let value = |key: &str| {
            let of = |line: &str| Some(line.split_once(" = ").filter(|(name, _)| *name == key)?.1.to_owned());
            observed.lines().find_map(of)
        };
        let quoted = |text: &str| format!("\"{text}\"");
        let servers = value("servers").map_or(0, |list| list.split(',').count());
        match value("place").as_deref() {
            Some("\"metadata\"") => self.born == Born::Stuffed,
            Some("\"store\"") => !self.scattered,
            Some("\"data servers\"") => {
                let params = self.params.as_deref().map(quoted);
                self.scattered
                    && value("dist_name") == Some(quoted(&self.dist))
                    && (1..=usize::from(self.most)).contains(&servers)
                    && (params.is_none() || value("dist_params") == params)
                    && value("no_metafile").is_some() == self.no_metafile
            }
            _ => false,
        }
    }
}

impl Tree<'_> {
    /// Policy that a new inode inherits from its directory, and placement of its data.
    pub fn inherited(&self, dir: ModelNode, node: &NewNode) -> (Settings, Born) {
        let settings = self.inode(dir).map_or(Settings::default(), |dir| dir.settings.clone());
        let server = self.server();
        let policy = server.effective(&settings).or(&Policy::DEFAULT);
        let born = match node {
            NewNode::Regular if !server.scattered => Born::Stuffed,
            NewNode::Regular if policy.no_metafile() == Some(true) => Born::NoMetafile,
            NewNode::Regular if policy.stuffing() == Some(false) => Born::Striped,
            _ => Born::Stuffed,
        };
        let settings = match node {
            NewNode::Directory => (&settings.policy().inherited(&server.effective(&settings))).into(),
            _ => settings,
        };
        (settings, born)
    }

    /// True if clients may make the files of the directory.
    pub fn is_by_client(&self, dir: Ino) -> bool {
        let creator = |dir: &ModelInode| self.server().effective(&dir.settings).or(&Policy::DEFAULT).create();
        let inode = self.numbered(dir).and_then(|node| self.inode(node));
        inode.is_none_or(|dir| creator(dir) == Some(Creator::Client))
    }

    /// True if the directory may have no-metafile files.
    pub fn may_have_no_metafile_entries(&self, dir: Ino) -> bool {
        self.numbered(dir).is_none_or(|dir| {
            self.inode(dir).is_some_and(ModelInode::is_dir)
                && (self.inherited(dir, &NewNode::Regular).1 == Born::NoMetafile
                    || self.names(dir).into_values().any(|node| self.has_no_metafile(node)))
        })
    }

    /// A policy attribute, the effective policy, or the layout of an inode.
    pub fn policy(&mut self, ino: Ino, name: &[u8]) -> ExpectedOutcome {
        self.of(ino, |tree, node| {
            let Some(inode) = tree.inode(node) else { return ExpectedOutcome::Gone };
            if name == EFFECTIVE && inode.born == Born::NoMetafile && !inode.no_metafile {
                // The file took its directory's policy when it left the directory; that moment is
                // not recorded.
                return ExpectedOutcome::Unknown;
            }
            let is_file = inode.kind == FileType::Regular.bits();
            let text = match name {
                EFFECTIVE if is_file || inode.is_dir() => {
                    Some(tree.server().effective(&inode.settings).explicit().to_toml())
                }
                LAYOUT if is_file => return ExpectedOutcome::Layout(Box::new(tree.layout(inode))),
                _ if inode.is_dir() => inode.settings.get(name).map(str::to_owned),
                _ => None,
            };
            text.map_or(ExpectedOutcome::fails([Errno::ENODATA]), |text| {
                ExpectedOutcome::Bytes(text.into_bytes())
            })
        })
    }

    fn layout(&self, inode: &ModelInode) -> Layout {
        let server = self.server();
        let policy = server.effective(&inode.settings).explicit();
        let (dist, most, params) = match policy.distribution() {
            _ if inode.born == Born::NoMetafile => (DistName::Basic, 1, None),
            Some(DistName::Basic) => (DistName::Basic, 1, None),
            Some(DistName::Varstrip) if policy.dist_params().is_some() => {
                (DistName::Varstrip, u16::MAX, None)
            }
            // Without shares, the server's default of equal shares applies.
            Some(DistName::Varstrip) => (DistName::SimpleStripe, u16::MAX, None),
            _ => {
                let params = policy.dist_params().map(|params| params.to_string());
                (DistName::SimpleStripe, policy.num_dfiles().map_or(u16::MAX, NonZeroU16::get), params)
            }
        };
        let ModelInode { born, no_metafile, .. } = *inode;
        Layout { born, no_metafile, scattered: server.scattered, dist: dist.to_string(), most, params }
    }

    /// Sets or removes an attribute whose name has the prefix of policy attributes.
    pub fn set_policy(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
        creds: &CallerCreds,
    ) -> ExpectedOutcome {
        let key = key(name);
        self.of(ino, |tree, node| {
            let Some(inode) = tree.inode(node) else { return ExpectedOutcome::Gone };
            if is_known(name) {
                return ExpectedOutcome::fails([Errno::EPERM]);
            }
            let (Some(key), true) = (key, inode.is_dir()) else {
                // A name without a policy attribute cannot be set, so its removal fails.
                let is_removal = key.is_none() && value.is_none();
                return ExpectedOutcome::fails([if is_removal { Errno::ENODATA } else { Errno::EINVAL }]);
            };
            let mut policy = inode.settings.policy();
            let is_there = policy.get(key).is_some();
            let is_set = match value {
                Some(value) => policy.set(key, &String::from_utf8_lossy(value)).map_err(|_| Errno::EINVAL),
                None => {
                    policy.unset(key);
                    Ok(())
                }
            };
            let of_mode = match mode {
                XattrMode::Create if is_there => Some(Errno::EEXIST),
                XattrMode::Replace if !is_there => Some(Errno::ENODATA),
                _ => None,
            };
            let errnos: Vec<Errno> = of_mode.into_iter().chain(is_set.err()).collect();
            if !errnos.is_empty() {
                return ExpectedOutcome::fails(errnos);
            }
            let old = inode.settings.policy().bound();
            let is_weaker = || tree.server().effective(&(&policy).into()).exceeded().is_some();
            if creds.uid != 0 && (policy.bound() != old || is_weaker()) {
                return ExpectedOutcome::fails([Errno::EPERM]);
            }
            tree.change(node, |inode| inode.settings = (&policy).into());
            tree.update_dependents(node);
            ExpectedOutcome::Done
        })
    }
}

impl Action {
    /// The directory whose policy the action changes.
    pub fn policy_of(&self) -> Option<Ino> {
        match self {
            Self::SetXattr { ino, name, .. } | Self::RemoveXattr { ino, name } if is_policy(name) => {
                Some(*ino)
            }
            _ => None,
        }
    }

    /// True if the action changes whether files of the directory have metafiles.
    pub fn strips(&self, dir: Ino) -> bool {
        self.changed(dir) == Some(Key::NoMetafile)
    }

    /// Sets `spreads`: no-metafile files in the directory inherit the changed permissions.
    pub fn spread(&mut self, is_so: impl FnOnce(Ino) -> bool) {
        if let Self::SetAttr { ino, perm: Some(_), spreads }
        | Self::ChangeOwner { ino, spreads, .. }
        | Self::SetList { ino, default: false, spreads, .. } = self
        {
            *spreads |= is_so(*ino);
        }
    }

    /// The policy attribute of a directory that the action changes.
    fn changed(&self, dir: Ino) -> Option<Key> {
        match self {
            Self::SetXattr { ino, name, .. } | Self::RemoveXattr { ino, name } if *ino == dir => key(name),
            _ => None,
        }
    }

    /// The directory in which the action makes a file.
    fn made_in(&self) -> Option<Ino> {
        match self {
            Self::Create { dir, node: NewNode::Regular, .. } => Some(*dir),
            _ => None,
        }
    }

    /// True if the action changes attributes that `other` inherits or reports. The directory of a
    /// no-metafile file is unknown.
    pub fn shapes(&self, other: &Self) -> bool {
        let is_known =
            matches!(other, Self::GetXattr { name, may_lack_metafile: true, .. } if is_known(name));
        match self {
            Self::Unlink { .. } | Self::Rename { .. } => is_known,
            Self::SetList { .. } => {
                matches!(other, Self::Create { dir, .. } if self.wills() == Some(*dir))
            }
            _ => self.policy_of().is_some_and(|changed| match other {
                Self::Create { dir, .. } => *dir == changed,
                _ => is_known,
            }),
        }
    }
}

/// Files that clients make inherit policy and default list when their creation begins, and get
/// their names later. If these attributes change meanwhile, it is unknown which version a file has.
#[derive(Default)]
pub struct Vague {
    /// Calls that may make files in this way, and the subset with unknown attributes.
    makers: BTreeSet<u64>,
    calls: BTreeSet<u64>,
}

impl Vague {
    /// A call begins; `under_way`: all pending calls including this one. `is_by_client`: true if
    /// clients may make the directory's files. Returns false if it is unknown whether one of the
    /// files has a metafile, or who may access it.
    #[must_use]
    pub fn begin(
        &mut self,
        action: &Action,
        under_way: &[(u64, &Action)],
        is_by_client: impl Fn(Ino) -> bool,
    ) -> bool {
        let Some(dir) = action.policy_of().or(action.wills()).or(action.made_in()) else { return true };
        let changed: Vec<Key> = under_way.iter().filter_map(|(_, action)| action.changed(dir)).collect();
        let is_by_client = changed.contains(&Key::Create) || is_by_client(dir);
        let making = under_way.iter().filter(|(_, action)| action.made_in() == Some(dir));
        let making: Vec<u64> = making.map(|(call, _)| *call).collect();
        self.makers.extend(making.iter().filter(|_| is_by_client));
        let vague: Vec<u64> = making.into_iter().filter(|call| self.makers.contains(call)).collect();
        let is_willed = under_way.iter().any(|(_, action)| action.wills() == Some(dir));
        if changed.is_empty() {
            return vague.is_empty() || !is_willed;
        }
        self.calls.extend(&vague);
        vague.is_empty() || !(is_willed || changed.contains(&Key::NoMetafile))
    }

    pub fn is(&self, node: ModelNode) -> bool {
        self.calls.contains(&node.call)
    }
}

/// The server's settings, completed by the defaults that depend on the number of data servers.
pub fn of_server(settings: &Policy, data_servers: u16, strip: u64) -> Policy {
    let mut policy = Policy::NONE;
    let (number, strip) = (data_servers.to_string(), format!("strip_size:{}", strip.max(64)));
    if data_servers > 0 {
        let own = [(Key::NumDfiles, &*number), (Key::DistName, "simple_stripe"), (Key::DistParams, &*strip)];
        for (key, text) in own {
            let _ = policy.set(key, text);
        }
    }
    settings.or(&policy)
}
