//! Policies of directories as extended attributes, one per setting.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use espalier_policy::{Key, PREFIX, Policy};
use espalier_proto::{Access, Distribution, Errno, Ino, Layout, Reply, XattrMode};

use super::xattr::check_namespace;
use crate::event::Event;
use crate::machine::{Cx, Final, Meta};
use crate::record::{Body, Inode};
use crate::step::Step;

/// An attribute that sets a policy or reports its effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyAttribute {
    Setting(Key),
    /// All settings, the server's included, as TOML.
    Effective,
    /// The location of a file's bytes, as TOML.
    Layout,
}

impl PolicyAttribute {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        match core::str::from_utf8(name).ok()?.strip_prefix(PREFIX)? {
            "policy" => Some(Self::Effective),
            "layout" => Some(Self::Layout),
            name => Key::parse(name).ok().map(Self::Setting),
        }
    }
}

/// The names of the attributes for a directory's settings.
pub(super) fn attributes(inode: &Inode) -> impl Iterator<Item = String> {
    // Copies of a directory do not get its bound.
    let of_dir = Key::ALL.into_iter().filter(|key| inode.is_dir() && *key != Key::Bound);
    of_dir.filter(|key| inode.policy().get(*key).is_some()).map(Key::attribute)
}

impl Meta {
    pub(super) fn get_policy_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
        which: PolicyAttribute,
    ) -> Step<Reply> {
        let inode = self.state.inode(ino)?;
        check_namespace(cx, inode, PREFIX.as_bytes(), Access::READ)?;
        let text = match which {
            PolicyAttribute::Setting(key) if inode.is_dir() => inode.policy().get(key),
            PolicyAttribute::Setting(_) => None,
            PolicyAttribute::Effective => Some(self.effective_policy(inode).to_toml()),
            PolicyAttribute::Layout => layout_toml(inode),
        };
        self.note_inode(cx, ino);
        Ok(Reply::Bytes(text.ok_or(Errno::ENODATA)?.into()))
    }

    /// Sets a policy attribute, or removes it if there is no value. Logs why a setting is refused.
    pub(super) fn set_policy_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        dir: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        how: XattrMode,
    ) -> Step<Final<'_>> {
        let inode = self.state.inode(dir)?;
        check_namespace(cx, inode, name, Access::WRITE)?;
        if matches!(PolicyAttribute::of(name), Some(PolicyAttribute::Effective | PolicyAttribute::Layout)) {
            return Err(Errno::EPERM.into());
        }
        if !inode.is_dir() {
            return self.refuse_policy_attribute(dir, "only directories have policies");
        }
        let name = String::from_utf8_lossy(name);
        let key = match Key::parse(name.strip_prefix(PREFIX).unwrap_or_default()) {
            Ok(key) => key,
            Err(error) => return self.refuse_policy_attribute(dir, error),
        };
        let mut policy = inode.policy().clone();
        match how {
            XattrMode::Create if policy.get(key).is_some() => return Err(Errno::EEXIST.into()),
            XattrMode::Replace if policy.get(key).is_none() => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        match value {
            Some(value) => {
                if let Err(error) = policy.set(key, &String::from_utf8_lossy(value)) {
                    return self.refuse_policy_attribute(dir, error);
                }
            }
            None => policy.unset(key),
        }
        if !cx.caller.is_superuser() {
            self.check_bound(dir, &policy)?;
        }
        let policy = Some(policy).filter(|policy| !policy.is_empty()).map(Arc::new);
        self.commit_rights(cx, &Event::SetPolicy { dir, policy, time: cx.now }, |_, _| Reply::Done)
    }

    /// Checks that a caller other than root may give a directory a policy.
    ///
    /// # Errors
    /// `EPERM`: it changes the bound, or is weaker than that.
    fn check_bound(&mut self, dir: Ino, policy: &Policy) -> Step<()> {
        let why = match self.state.inode(dir)?.policy().bound() == policy.bound() {
            true => self.exceeded_bound(policy),
            false => Some("only root can change its bound".into()),
        };
        let Some(why) = why else { return Ok(()) };
        self.warnings.push(format!("the policy of inode {dir} is not changed: {why}"));
        Err(Errno::EPERM.into())
    }

    /// The reason why a policy is weaker than its bound.
    pub(super) fn exceeded_bound(&self, policy: &Policy) -> Option<String> {
        let (key, least) = policy.or(&self.config.policy).exceeded()?;
        Some(format!("the directory above allows no weaker {} than {least}", key.name()))
    }

    /// The policy of a new directory in this one.
    pub(crate) fn inherited_policy(&self, parent: &Inode) -> Option<Arc<Policy>> {
        let policy = parent.rare.policy.as_ref()?;
        // Most directories have no bound to pass on.
        if policy.relax().is_none() && policy.bound().is_none() {
            return Some(Arc::clone(policy));
        }
        Some(Arc::new(policy.inherited(&policy.or(&self.config.policy))))
    }

    fn refuse_policy_attribute(&mut self, ino: Ino, why: impl core::fmt::Display) -> Step<Final<'_>> {
        self.warnings.push(format!("the policy of inode {ino} is not changed: {why}"));
        Err(Errno::EINVAL.into())
    }
}

fn layout_toml(inode: &Inode) -> Option<String> {
    match &inode.body {
        Body::Striped { layout, .. } if inode.has_no_metafile() => {
            Some(striped_toml(layout) + "no_metafile = true\n")
        }
        Body::Stuffed { .. } => Some("place = \"metadata\"\n".into()),
        Body::Streamed { .. } => Some("place = \"store\"\n".into()),
        Body::Striped { layout, .. } => Some(striped_toml(layout)),
        _ => None,
    }
}

fn striped_toml(layout: &Layout) -> String {
    let servers: Vec<String> = layout.servers().iter().map(|server| format!("{server}")).collect();
    let (name, params) = match layout.distribution() {
        Distribution::Basic => ("basic", String::new()),
        Distribution::SimpleStripe { strip } => {
            ("simple_stripe", format!("dist_params = \"strip_size:{strip}\"\n"))
        }
        Distribution::Varstrip { strips } => {
            let strip = |strip: &espalier_proto::Strip| format!("{}:{}", strip.place, strip.length);
            let strips: Vec<String> = strips.iter().map(strip).collect();
            ("varstrip", format!("dist_params = \"strips:{}\"\n", strips.join(";")))
        }
    };
    format!("place = \"data servers\"\nservers = [{}]\ndist_name = \"{name}\"\n{params}", servers.join(", "))
}
