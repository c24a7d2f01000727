//! Possible trees: a common base, and for each tree the records that differ.

use std::collections::BTreeMap;
use std::rc::Rc;

use espalier_policy::Policy;
use espalier_proto::{FileType, Ino, Name};

use super::acl::List;
use super::policy::{Born, ServerDefaults, Settings};
use super::quota::Quota;

/// An inode, identified by the call that makes it; its number may be learnt later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelNode {
    pub call: u64,
    /// Number of earlier inodes of the same call that were lost in power failures.
    lost: u32,
}

impl ModelNode {
    pub const ROOT: Self = Self::of(0);

    pub const fn of(call: u64) -> Self {
        Self { call, lost: 0 }
    }

    /// The inode that the call makes if this one is lost.
    pub fn again(self) -> Self {
        Self { lost: self.lost + 1, ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeKey {
    /// The server's defaults.
    Server,
    Inode(ModelNode),
    Name(ModelNode, Name),
    Number(Ino),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeRecord {
    Server(Rc<ServerDefaults>),
    Inode(Rc<ModelInode>),
    /// The node of a name or a number.
    Node(ModelNode),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelInode {
    /// `None`: no reply has named it.
    pub ino: Option<Ino>,
    /// Type bits of `st_mode`.
    pub kind: u32,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    /// Number of names; 1 for an existing directory.
    pub names: u32,
    /// Directories: the parent, and the numbers of entries and of subdirectories.
    pub parent: ModelNode,
    pub entries: u64,
    pub subdirs: u32,
    /// Symbolic links: the target.
    pub target: Box<[u8]>,
    /// Files: no metafile, so owner and permissions are the directory's.
    pub no_metafile: bool,
    pub born: Born,
    /// Policy of a directory, or the policy that a file inherited.
    pub settings: Settings,
    /// Files: data of each strip, from its start to the last written byte.
    pub strips: Strips,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Access control list, if it differs from the mode; consistent with the mode.
    pub access_list: Option<List>,
    /// Directories: default list for new inodes.
    pub default_list: Option<List>,
    pub quota: Quota,
}

pub type Strips = BTreeMap<u64, Rc<[u8]>>;

impl ModelInode {
    pub fn new(kind: FileType, perm: u32, parent: ModelNode) -> Self {
        Self {
            ino: None,
            kind: kind.bits(),
            perm,
            uid: 0,
            gid: 0,
            names: 1,
            parent,
            entries: 0,
            subdirs: 0,
            target: Box::default(),
            no_metafile: false,
            born: Born::Stuffed,
            settings: Settings::default(),
            strips: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            access_list: None,
            default_list: None,
            quota: Quota::default(),
        }
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory.bits()
    }

    /// Link count as `stat` returns it.
    pub fn nlink(&self) -> u32 {
        match self.is_dir() {
            true if self.names > 0 => 2 + self.subdirs,
            true => 0,
            false => self.names,
        }
    }

    /// Size as `stat` returns it. `strip`: strip size in bytes.
    pub fn size(&self, strip: u64) -> u64 {
        if self.is_dir() {
            return self.entries;
        }
        let end = self.strips.iter().rev().find(|(_, bytes)| !bytes.is_empty());
        end.map_or(self.target.len() as u64, |(at, bytes)| at * strip + bytes.len() as u64)
    }

    /// Truncates a strip or extends it by zeros.
    pub fn resize_strip(&mut self, at: u64, length: usize) {
        let mut bytes = self.strips.get(&at).map_or(Vec::new(), |bytes| bytes.to_vec());
        bytes.resize(length, 0);
        if bytes.is_empty() {
            self.strips.remove(&at);
        } else {
            self.strips.insert(at, bytes.into());
        }
    }

    pub fn write_strip(&mut self, at: u64, from: usize, data: &[u8]) {
        let mut bytes = self.strips.get(&at).map_or(Vec::new(), |bytes| bytes.to_vec());
        bytes.resize(bytes.len().max(from + data.len()), 0);
        bytes[from..from + data.len()].copy_from_slice(data);
        self.strips.insert(at, bytes.into());
    }
}

/// The records that all trees have in common.
pub type Base = BTreeMap<TreeKey, TreeRecord>;

/// Records of a tree that differ from the base; `None`: removed. Contains no record equal to the
/// base.
pub type Changes = BTreeMap<TreeKey, Option<TreeRecord>>;

/// Permissions of the root in runs.
const ROOT_PERM: u32 = 0o777;

/// A tree with an empty root.
pub fn empty(server: ServerDefaults) -> Base {
    let mut root = ModelInode::new(FileType::Directory, ROOT_PERM, ModelNode::ROOT);
    root.ino = Some(Ino::ROOT);
    let number = (TreeKey::Number(Ino::ROOT), TreeRecord::Node(ModelNode::ROOT));
    let server = (TreeKey::Server, TreeRecord::Server(Rc::new(server)));
    [server, (TreeKey::Inode(ModelNode::ROOT), TreeRecord::Inode(Rc::new(root))), number].into()
}

/// One tree.
#[derive(Clone)]
pub struct Tree<'a> {
    pub base: &'a Base,
    pub changes: Changes,
}

impl<'a> Tree<'a> {
    /// The tree that equals the base.
    pub fn like(base: &'a Base) -> Self {
        Self { base, changes: Changes::new() }
    }

    /// All known numbers with their nodes.
    pub fn numbers(&self) -> Vec<(Ino, ModelNode)> {
        let of = |(key, record): (&TreeKey, &TreeRecord)| match (key, record) {
            (TreeKey::Number(ino), TreeRecord::Node(node)) => Some((*ino, *node)),
            _ => None,
        };
        let first = TreeKey::Number(Ino(0));
        let changed =
            self.changes.range(first.clone()..).filter_map(|(key, record)| of((key, record.as_ref()?)));
        self.base.range(first..).filter_map(of).chain(changed).collect()
    }

    fn get(&self, key: &TreeKey) -> Option<&TreeRecord> {
        match self.changes.get(key) {
            Some(change) => change.as_ref(),
            None => self.base.get(key),
        }
    }

    fn set(&mut self, key: TreeKey, record: Option<TreeRecord>) {
        if self.base.get(&key) == record.as_ref() {
            self.changes.remove(&key);
        } else {
            self.changes.insert(key, record);
        }
    }

    pub fn server(&self) -> Rc<ServerDefaults> {
        match self.base.get(&TreeKey::Server) {
            Some(TreeRecord::Server(server)) => Rc::clone(server),
            _ => Rc::new(ServerDefaults::new(&Policy::NONE, false)),
        }
    }

    /// The node of a number; `None`: no reply has named the number.
    pub fn numbered(&self, ino: Ino) -> Option<ModelNode> {
        match self.get(&TreeKey::Number(ino)) {
            Some(TreeRecord::Node(node)) => Some(*node),
            _ => None,
        }
    }

    /// Binds a number to a node. Returns false if either is bound differently.
    #[must_use]
    pub fn bind(&mut self, ino: Ino, node: ModelNode) -> bool {
        match (self.numbered(ino), self.inode(node).and_then(|inode| inode.ino)) {
            (Some(known), _) => known == node,
            (None, Some(_)) => false,
            (None, None) => {
                self.set(TreeKey::Number(ino), Some(TreeRecord::Node(node)));
                self.change(node, |inode| inode.ino = Some(ino));
                true
            }
        }
    }

    pub fn inode(&self, node: ModelNode) -> Option<&ModelInode> {
        match self.get(&TreeKey::Inode(node)) {
            Some(TreeRecord::Inode(inode)) => Some(inode),
            _ => None,
        }
    }

    pub fn name(&self, dir: ModelNode, name: &Name) -> Option<ModelNode> {
        match self.get(&TreeKey::Name(dir, name.clone())) {
            Some(TreeRecord::Node(node)) => Some(*node),
            _ => None,
        }
    }

    pub fn names(&self, dir: ModelNode) -> BTreeMap<Name, ModelNode> {
        fn of(dir: ModelNode, key: &TreeKey) -> Option<&Name> {
            match key {
                TreeKey::Name(at, name) if *at == dir => Some(name),
                _ => None,
            }
        }
        let first = TreeKey::Name(dir, Name::lowest());
        let mut names = BTreeMap::new();
        for (key, record) in self.base.range(first.clone()..) {
            let (Some(name), TreeRecord::Node(node)) = (of(dir, key), record) else { break };
            names.insert(name.clone(), *node);
        }
        for (key, record) in self.changes.range(first..) {
            let Some(name) = of(dir, key) else { break };
            match record {
                Some(TreeRecord::Node(node)) => drop(names.insert(name.clone(), *node)),
                _ => drop(names.remove(name)),
            }
        }
        names
    }

    pub fn change(&mut self, node: ModelNode, change: impl FnOnce(&mut ModelInode)) {
        if let Some(inode) = self.inode(node) {
            let mut inode = inode.clone();
            change(&mut inode);
            self.insert(node, inode);
        }
    }

    /// The node that a call makes next.
    pub fn new_node(&self, call: u64) -> ModelNode {
        let mut node = ModelNode::of(call);
        while self.inode(node).is_some() {
            node = node.again();
        }
        node
    }

    pub fn insert(&mut self, node: ModelNode, inode: ModelInode) {
        self.set(TreeKey::Inode(node), Some(TreeRecord::Inode(Rc::new(inode))));
    }

    /// Adds a free name. Does not change the node's count of names.
    pub fn put(&mut self, dir: ModelNode, name: &Name, node: ModelNode) {
        self.set(TreeKey::Name(dir, name.clone()), Some(TreeRecord::Node(node)));
        let is_dir = self.inode(node).is_some_and(ModelInode::is_dir);
        self.change(dir, |dir| {
            dir.entries += 1;
            dir.subdirs += u32::from(is_dir);
        });
        if is_dir {
            self.change(node, |inode| inode.parent = dir);
        }
    }

    /// Removes a name. Does not change the node's count of names.
    pub fn take(&mut self, dir: ModelNode, name: &Name) {
        let Some(node) = self.name(dir, name) else { return };
        self.set(TreeKey::Name(dir, name.clone()), None);
        let is_dir = self.inode(node).is_some_and(ModelInode::is_dir);
        self.change(dir, |dir| {
            dir.entries -= 1;
            dir.subdirs -= u32::from(is_dir);
        });
    }

    /// True if `dir` is `top` or below it.
    pub fn is_below(&self, mut dir: ModelNode, top: ModelNode) -> bool {
        while dir != top {
            match self.inode(dir) {
                Some(inode) if dir != ModelNode::ROOT => dir = inode.parent,
                _ => return false,
            }
        }
        true
    }
}

/// Moves the nodes that are equal in all trees to the base.
pub fn fold_into_base<'a>(base: &mut Base, trees: impl Iterator<Item = &'a mut Changes>) {
    let mut trees: Vec<&mut Changes> = trees.collect();
    let Some((first, others)) = trees.split_first() else { return };
    let is_common = |(key, record): &(&TreeKey, &Option<TreeRecord>)| {
        others.iter().all(|changes| changes.get(*key) == Some(record))
    };
    let common: Vec<(TreeKey, Option<TreeRecord>)> =
        first.iter().filter(is_common).map(|(key, record)| (key.clone(), record.clone())).collect();
    for (key, record) in common {
        trees.iter_mut().for_each(|changes| drop(changes.remove(&key)));
        match record {
            Some(record) => drop(base.insert(key, record)),
            None => drop(base.remove(&key)),
        }
    }
}
