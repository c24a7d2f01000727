//! Possible trees: a common base, and for each tree the records that differ.

use std::collections::BTreeMap;
use std::rc::Rc;

use espalier_policy::Policy;
use espalier_proto::{FileType, Ino, Name};

use super::acl::List;
use super::policy::{Born, Server, Settings};
use super::quota::Quota;

/// An inode, identified by the call that makes it; its number may be learnt later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub call: u64,
    /// Number of earlier inodes of the same call that were lost in power failures.
    lost: u32,
}

impl Node {
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
pub enum Key {
    /// The server's defaults.
    Server,
    Inode(Node),
    Name(Node, Name),
    Number(Ino),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    Server(Rc<Server>),
    Inode(Rc<Inode>),
    /// The node of a name or a number.
    Node(Node),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inode {
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
    pub parent: Node,
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

impl Inode {
    pub fn new(kind: FileType, perm: u32, parent: Node) -> Self {
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
pub type Base = BTreeMap<Key, Record>;

/// Records of a tree that differ from the base; `None`: removed. Contains no record equal to the
/// base.
pub type Changes = BTreeMap<Key, Option<Record>>;

/// Permissions of the root in runs.
const ROOT_PERM: u32 = 0o777;

/// A tree with an empty root.
pub fn empty(server: Server) -> Base {
    let mut root = Inode::new(FileType::Directory, ROOT_PERM, Node::ROOT);
    root.ino = Some(Ino::ROOT);
    let number = (Key::Number(Ino::ROOT), Record::Node(Node::ROOT));
    let server = (Key::Server, Record::Server(Rc::new(server)));
    [server, (Key::Inode(Node::ROOT), Record::Inode(Rc::new(root))), number].into()
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
    pub fn numbers(&self) -> Vec<(Ino, Node)> {
        let of = |(key, record): (&Key, &Record)| match (key, record) {
            (Key::Number(ino), Record::Node(node)) => Some((*ino, *node)),
            _ => None,
        };
        let first = Key::Number(Ino(0));
        let changed =
            self.changes.range(first.clone()..).filter_map(|(key, record)| of((key, record.as_ref()?)));
        self.base.range(first..).filter_map(of).chain(changed).collect()
    }

    fn get(&self, key: &Key) -> Option<&Record> {
        match self.changes.get(key) {
            Some(change) => change.as_ref(),
            None => self.base.get(key),
        }
    }

    fn set(&mut self, key: Key, record: Option<Record>) {
        if self.base.get(&key) == record.as_ref() {
            self.changes.remove(&key);
        } else {
            self.changes.insert(key, record);
        }
    }

    pub fn server(&self) -> Rc<Server> {
        match self.base.get(&Key::Server) {
            Some(Record::Server(server)) => Rc::clone(server),
            _ => Rc::new(Server::new(&Policy::NONE, false)),
        }
    }

    /// The node of a number; `None`: no reply has named the number.
    pub fn numbered(&self, ino: Ino) -> Option<Node> {
        match self.get(&Key::Number(ino)) {
            Some(Record::Node(node)) => Some(*node),
            _ => None,
        }
    }

    /// Binds a number to a node. Returns false if either is bound differently.
    #[must_use]
    pub fn bind(&mut self, ino: Ino, node: Node) -> bool {
        match (self.numbered(ino), self.inode(node).and_then(|inode| inode.ino)) {
            (Some(known), _) => known == node,
            (None, Some(_)) => false,
            (None, None) => {
                self.set(Key::Number(ino), Some(Record::Node(node)));
                self.change(node, |inode| inode.ino = Some(ino));
                true
            }
        }
    }

    pub fn inode(&self, node: Node) -> Option<&Inode> {
        match self.get(&Key::Inode(node)) {
            Some(Record::Inode(inode)) => Some(inode),
            _ => None,
        }
    }

    pub fn name(&self, dir: Node, name: &Name) -> Option<Node> {
        match self.get(&Key::Name(dir, name.clone())) {
            Some(Record::Node(node)) => Some(*node),
            _ => None,
        }
    }

    pub fn names(&self, dir: Node) -> BTreeMap<Name, Node> {
        fn of(dir: Node, key: &Key) -> Option<&Name> {
            match key {
                Key::Name(at, name) if *at == dir => Some(name),
                _ => None,
            }
        }
        let first = Key::Name(dir, Name::lowest());
        let mut names = BTreeMap::new();
        for (key, record) in self.base.range(first.clone()..) {
            let (Some(name), Record::Node(node)) = (of(dir, key), record) else { break };
            names.insert(name.clone(), *node);
        }
        for (key, record) in self.changes.range(first..) {
            let Some(name) = of(dir, key) else { break };
            match record {
                Some(Record::Node(node)) => drop(names.insert(name.clone(), *node)),
                _ => drop(names.remove(name)),
            }
        }
        names
    }

    pub fn change(&mut self, node: Node, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.inode(node) {
            let mut inode = inode.clone();
            change(&mut inode);
            self.insert(node, inode);
        }
    }

    /// The node that a call makes next.
    pub fn new_node(&self, call: u64) -> Node {
        let mut node = Node::of(call);
        while self.inode(node).is_some() {
            node = node.again();
        }
        node
    }

    pub fn insert(&mut self, node: Node, inode: Inode) {
        self.set(Key::Inode(node), Some(Record::Inode(Rc::new(inode))));
    }

    /// Adds a free name. Does not change the node's count of names.
    pub fn put(&mut self, dir: Node, name: &Name, node: Node) {
        self.set(Key::Name(dir, name.clone()), Some(Record::Node(node)));
        let is_dir = self.inode(node).is_some_and(Inode::is_dir);
        self.change(dir, |dir| {
            dir.entries += 1;
            dir.subdirs += u32::from(is_dir);
        });
        if is_dir {
            self.change(node, |inode| inode.parent = dir);
        }
    }

    /// Removes a name. Does not change the node's count of names.
    pub fn take(&mut self, dir: Node, name: &Name) {
        let Some(node) = self.name(dir, name) else { return };
        self.set(Key::Name(dir, name.clone()), None);
        let is_dir = self.inode(node).is_some_and(Inode::is_dir);
        self.change(dir, |dir| {
            dir.entries -= 1;
            dir.subdirs -= u32::from(is_dir);
        });
    }

    /// True if `dir` is `top` or below it.
    pub fn is_below(&self, mut dir: Node, top: Node) -> bool {
        while dir != top {
            match self.inode(dir) {
                Some(inode) if dir != Node::ROOT => dir = inode.parent,
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
    let is_common = |(key, record): &(&Key, &Option<Record>)| {
        others.iter().all(|changes| changes.get(*key) == Some(record))
    };
    let common: Vec<(Key, Option<Record>)> =
        first.iter().filter(is_common).map(|(key, record)| (key.clone(), record.clone())).collect();
    for (key, record) in common {
        trees.iter_mut().for_each(|changes| drop(changes.remove(&key)));
        match record {
            Some(record) => drop(base.insert(key, record)),
            None => drop(base.remove(&key)),
        }
    }
}
