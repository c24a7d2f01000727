//! The reference: the simplest correct implementation of each operation.

use std::collections::{BTreeMap, HashMap};

use libc::{EEXIST, EINVAL, EISDIR, ELOOP, ENODATA, ENOENT, ENOTDIR, ENOTEMPTY, EPERM, ESTALE};

use super::op::{
    By, CAPABILITY, HANDLES, How, ModelAttr, ModelOp, NET_RAW, OpResult, Out, Seen, Space, bytes,
};

type Id = u64;
const ROOT: Id = 1;

#[derive(Clone, Debug)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Id>),
    Symlink(String),
}

#[derive(Clone, Debug)]
struct ReferenceNode {
    body: Body,
    mode: u32,
    /// Number of names; 1 for a directory.
    names: u64,
    xattrs: BTreeMap<String, Vec<u8>>,
    /// Index of the last operation that may have changed the node; identifies its state.
    changed: u64,
    /// Explicitly set mtime, if the contents have not changed since.
    mtime: Option<i64>,
}

/// Known times of a node.
pub(super) struct Times {
    /// Id and state of the node; the times are constant in one state.
    pub(super) state: (u64, u64),
    pub(super) mtime: Option<i64>,
}

pub(super) struct Reference {
    nodes: HashMap<Id, ReferenceNode>,
    next: Id,
    changes: u64,
    handles: [Option<Id>; HANDLES],
}

impl Reference {
    pub(super) fn new() -> Self {
        let mut this = Self { nodes: HashMap::new(), next: ROOT, changes: 0, handles: [None; HANDLES] };
        this.add(Body::Dir(BTreeMap::new()), 0o755);
        this
    }

    pub(super) fn apply(&mut self, op: &ModelOp) -> OpResult {
        match op {
            ModelOp::Create { path, exclusive } => self.create(path, *exclusive),
            ModelOp::Mkdir { path, mode } => self.make(path, Body::Dir(BTreeMap::new()), mode & !0o022),
            ModelOp::Symlink { path, target } => self.make(path, Body::Symlink(target.clone()), 0o777),
            ModelOp::Unlink { path } => self.unlink(path),
            ModelOp::Rmdir { path } => self.rmdir(path),
            ModelOp::Rename { from, to, how } => self.rename(from, to, *how),
            ModelOp::Link { from, to } => self.link(from, to),
            ModelOp::Write { path, at, len, fill, by } => {
                self.write(path, *at as usize, &bytes(*fill, *len), *by)
            }
            ModelOp::Truncate { path, len, by } => {
                self.written(path, EISDIR)?.resize(*len as usize, 0);
                self.remove_privileges(path, *by)
            }
            ModelOp::SetTime { path, secs } => {
                let id = self.lookup(path)?;
                self.node_mut(id).mtime = Some(*secs);
                Ok(Out::Done)
            }
            ModelOp::Map { path, at, len, fill } => {
                let file = self.written(path, EISDIR)?;
                let at = file.len().min(*at as usize);
                let len = (*len).min(file.len() - at);
                file[at..at + len].copy_from_slice(&bytes(*fill, len));
                let all = file.clone();
                self.remove_privileges(path, By::Privileged)?;
                Ok(Out::Bytes(all))
            }
            ModelOp::Allocate { path, at, len, how } => {
                let file = self.written(path, EISDIR)?;
                let (at, end) = (*at as usize, (*at + *len) as usize);
                match how {
                    Space::Plain => file.resize(file.len().max(end), 0),
                    Space::KeepSize => {}
                    Space::Punch => {
                        let size = file.len();
                        file[at.min(size)..end.min(size)].fill(0);
                    }
                }
                self.remove_privileges(path, By::Privileged)
            }
            ModelOp::Read { path } => Ok(Out::Bytes(self.file(path, EISDIR)?.clone())),
            ModelOp::Stat { path } => Ok(Out::Attr(self.attr(self.lookup(path)?))),
            ModelOp::List { path } => match &self.node(self.lookup(path)?).body {
                Body::Dir(entries) => Ok(Out::Names(entries.keys().cloned().collect())),
                _ => Err(ENOTDIR),
            },
            ModelOp::Chmod { path, mode } => {
                let id = self.lookup(path)?;
                if matches!(self.node(id).body, Body::Symlink(_)) {
                    return Err(ENOENT); // chmod follows, and all targets dangle
                }
                self.node_mut(id).mode = *mode;
                Ok(Out::Done)
            }
            ModelOp::SetXattr { path, name, len, fill } => {
                let id = self.lookup(path)?;
                if matches!(self.node(id).body, Body::Symlink(_)) {
                    return Err(EPERM);
                }
                self.node_mut(id).xattrs.insert(name.clone(), bytes(*fill, *len));
                Ok(Out::Done)
            }
            ModelOp::SetCapability { path } => {
                let id = self.lookup(path)?;
                // Linux permits them on directories and links too.
                self.node_mut(id).xattrs.insert(CAPABILITY.into(), NET_RAW.into());
                Ok(Out::Done)
            }
            ModelOp::RemoveXattr { path, name } => {
                let id = self.lookup(path)?;
                if matches!(self.node(id).body, Body::Symlink(_)) {
                    return Err(EPERM);
                }
                self.node_mut(id).xattrs.remove(name).map(|_| Out::Done).ok_or(ENODATA)
            }
            ModelOp::KeepHandle { path, place } => {
                self.handles[*place] = Some(self.lookup(path)?);
                Ok(Out::Done)
            }
            ModelOp::StatHandle { place, .. } => match self.handles[*place] {
                None => Ok(Out::Done),
                Some(id) if !self.nodes.contains_key(&id) => Err(ESTALE),
                Some(id) => Ok(Out::Attr(self.attr(id))),
            },
        }
    }

    /// All paths with their visible state.
    pub(super) fn tree(&self) -> BTreeMap<String, Seen> {
        let mut all = BTreeMap::new();
        let mut stack = vec![(String::new(), ROOT)];
        while let Some((path, id)) = stack.pop() {
            let node = self.node(id);
            let content = match &node.body {
                Body::File(data) => data.clone(),
                Body::Symlink(target) => target.clone().into_bytes(),
                Body::Dir(entries) => {
                    stack.extend(entries.iter().map(|(name, id)| (format!("{path}/{name}"), *id)));
                    Vec::new()
                }
            };
            let xattrs = node.xattrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            if id != ROOT {
                all.insert(path, Seen { attr: self.attr(id), content, xattrs });
            }
        }
        all
    }

    /// Known times by path.
    pub(super) fn times(&self) -> BTreeMap<String, Times> {
        let mut all = BTreeMap::new();
        let mut stack = vec![(String::new(), ROOT)];
        while let Some((path, id)) = stack.pop() {
            let node = self.node(id);
            if let Body::Dir(entries) = &node.body {
                stack.extend(entries.iter().map(|(name, id)| (format!("{path}/{name}"), *id)));
            }
            if id != ROOT {
                all.insert(path, Times { state: (id, node.changed), mtime: node.mtime });
            }
        }
        all
    }

    fn add(&mut self, body: Body, mode: u32) -> Id {
        let id = self.next;
        self.next += 1;
        let xattrs = BTreeMap::new();
        self.nodes.insert(id, ReferenceNode { body, mode, names: 1, xattrs, changed: 0, mtime: None });
        id
    }

    fn node(&self, id: Id) -> &ReferenceNode {
        &self.nodes[&id]
    }

    /// A node to be changed.
    fn node_mut(&mut self, id: Id) -> &mut ReferenceNode {
        self.changes += 1;
        let node = self.nodes.get_mut(&id).expect("ids in directories are of nodes");
        node.changed = self.changes;
        node
    }

    fn entries(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        let node = self.node_mut(dir);
        node.mtime = None;
        match &mut node.body {
            Body::Dir(entries) => entries,
            _ => unreachable!("`parent` returns directories only"),
        }
    }

    /// The parent directory and last name of a path.
    fn parent(&self, path: &str) -> Result<(Id, String), i32> {
        let mut names: Vec<&str> = path.split('/').skip(1).collect();
        let last = names.pop().unwrap_or_default();
        let mut at = ROOT;
        for name in names {
            at = self.child(at, name)?;
        }
        // The directory decides whether the last name may be looked up.
        match &self.node(at).body {
            Body::Dir(_) => Ok((at, last.to_owned())),
            Body::File(_) => Err(ENOTDIR),
            Body::Symlink(_) => Err(ENOENT),
        }
    }

    fn child(&self, dir: Id, name: &str) -> Result<Id, i32> {
        match &self.node(dir).body {
            Body::Dir(entries) => entries.get(name).copied().ok_or(ENOENT),
            Body::File(_) => Err(ENOTDIR),
            Body::Symlink(_) => Err(ENOENT),
        }
    }

    fn lookup(&self, path: &str) -> Result<Id, i32> {
        let (dir, name) = self.parent(path)?;
        self.child(dir, &name)
    }

    fn attr(&self, id: Id) -> ModelAttr {
        let node = self.node(id);
        let (kind, nlink, size) = match &node.body {
            Body::File(data) => ('f', node.names, data.len() as u64),
            Body::Symlink(target) => ('l', node.names, target.len() as u64),
            Body::Dir(entries) => {
                let subdirectories = entries.values().filter(|id| self.is_dir(**id)).count();
                ('d', 2 + subdirectories as u64, 0)
            }
        };
        ModelAttr { kind, mode: node.mode, nlink, size }
    }

    fn is_dir(&self, id: Id) -> bool {
        matches!(self.node(id).body, Body::Dir(_))
    }

    /// A file's data, without following links.
    fn file(&self, path: &str, directory: i32) -> Result<&Vec<u8>, i32> {
        match &self.node(self.lookup(path)?).body {
            Body::File(data) => Ok(data),
            Body::Dir(_) => Err(directory),
            Body::Symlink(_) => Err(ELOOP),
        }
    }

    /// As [`Self::file`], for writing.
    fn written(&mut self, path: &str, directory: i32) -> Result<&mut Vec<u8>, i32> {
        self.file(path, directory)?;
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        node.mtime = None;
        match &mut node.body {
            Body::File(data) => Ok(data),
            _ => Err(directory),
        }
    }

    fn create(&mut self, path: &str, exclusive: bool) -> OpResult {
        match self.lookup(path) {
            Ok(_) if exclusive => Err(EEXIST),
            Ok(_) => self.file(path, EISDIR).map(|_| Out::Done),
            Err(_) => self.make(path, Body::File(Vec::new()), 0o644),
        }
    }

    fn make(&mut self, path: &str, body: Body, mode: u32) -> OpResult {
        let (dir, name) = self.parent(path)?;
        if self.child(dir, &name).is_ok() {
            return Err(EEXIST);
        }
        let inherited = if matches!(body, Body::Dir(_)) { self.node(dir).mode & 0o2000 } else { 0 };
        let id = self.add(body, mode | inherited);
        self.entries(dir).insert(name, id);
        Ok(Out::Done)
    }

    fn drop_name(&mut self, id: Id) {
        let node = self.node_mut(id);
        node.names -= 1;
        if node.names == 0 {
            self.nodes.remove(&id);
        }
    }

    fn unlink(&mut self, path: &str) -> OpResult {
        let (dir, name) = self.parent(path)?;
        let id = self.child(dir, &name)?;
        if self.is_dir(id) {
            return Err(EISDIR);
        }
        self.entries(dir).remove(&name);
        self.drop_name(id);
        Ok(Out::Done)
    }

    fn rmdir(&mut self, path: &str) -> OpResult {
        let (dir, name) = self.parent(path)?;
        let id = self.child(dir, &name)?;
        self.must_be_empty(id)?;
        self.entries(dir).remove(&name);
        self.drop_name(id);
        Ok(Out::Done)
    }

    fn must_be_empty(&self, id: Id) -> Result<(), i32> {
        match &self.node(id).body {
            Body::Dir(entries) if entries.is_empty() => Ok(()),
            Body::Dir(_) => Err(ENOTEMPTY),
            _ => Err(ENOTDIR),
        }
    }

    fn link(&mut self, from: &str, to: &str) -> OpResult {
        let id = self.lookup(from)?;
        let (dir, name) = self.parent(to)?;
        if self.child(dir, &name).is_ok() {
            return Err(EEXIST);
        }
        if self.is_dir(id) {
            return Err(EPERM);
        }
        self.node_mut(id).names += 1;
        self.entries(dir).insert(name, id);
        Ok(Out::Done)
    }

    fn rename(&mut self, from: &str, to: &str, how: How) -> OpResult {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let id = self.child(from_dir, &from_name)?;
        let target = self.child(to_dir, &to_name).ok();
        match (how, target) {
            (How::NoReplace, Some(_)) => return Err(EEXIST),
            (How::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(EINVAL);
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(if how == How::Exchange { EINVAL } else { ENOTEMPTY });
        }
        if target == Some(id) {
            return Ok(Out::Done);
        }
        match (how, target) {
            (How::Exchange, Some(target)) => {
                self.node_mut(id);
                self.node_mut(target);
                self.entries(from_dir).insert(from_name, target);
                self.entries(to_dir).insert(to_name, id);
                return Ok(Out::Done);
            }
            (_, Some(target)) if self.is_dir(id) => self.must_be_empty(target)?,
            (_, Some(target)) if self.is_dir(target) => return Err(EISDIR),
            _ => {}
        }
        self.node_mut(id);
        self.entries(from_dir).remove(&from_name);
        self.entries(to_dir).insert(to_name, id);
        if let Some(target) = target {
            self.drop_name(target);
        }
        Ok(Out::Done)
    }

    fn write(&mut self, path: &str, at: usize, data: &[u8], by: By) -> OpResult {
        self.file(path, EISDIR)?;
        if !data.is_empty() {
            let file = self.written(path, EISDIR)?;
            let end = at + data.len();
            file.resize(file.len().max(end), 0);
            file[at..end].copy_from_slice(data);
            self.remove_privileges(path, by)?;
        }
        Ok(Out::Done)
    }

    /// Removes set-id bits and capabilities, as a write does.
    fn remove_privileges(&mut self, path: &str, by: By) -> OpResult {
        let id = self.lookup(path)?;
        let node = self.node_mut(id);
        node.xattrs.remove(CAPABILITY);
        if by == By::Unprivileged {
            node.mode &= if node.mode & 0o010 != 0 { 0o1777 } else { 0o3777 };
        }
        Ok(Out::Done)
    }
}
