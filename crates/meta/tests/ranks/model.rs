//! Possible answers: a tree in memory, and all orders in which overlapping operations may have been
//! executed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use espalier_proto::*;

/// A node of the tree, identified by the operation that made it.
type ModelNode = u64;
const ROOT: ModelNode = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ModelInode {
    is_dir: bool,
    /// Number of names; 1 for directories.
    names: u32,
    parent: ModelNode,
}

/// A possible tree, with the executed operations that are not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PossibleTree {
    nodes: BTreeMap<ModelNode, ModelInode>,
    names: BTreeMap<(ModelNode, Name), ModelNode>,
    inos: BTreeMap<Ino, ModelNode>,
    done: BTreeMap<u64, CompletedOutcome>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CompletedOutcome {
    Done,
    /// With any of these errors.
    Fails(BTreeSet<i32>),
    /// It concerned something that has been removed.
    Gone,
    Absent,
    Named(ModelNode),
    Attr(ModelNode, u32, u64),
    Listing(BTreeMap<Name, ModelNode>),
}

pub struct TreeModel {
    worlds: HashSet<PossibleTree>,
    pending: BTreeMap<u64, Request>,
}

impl TreeModel {
    pub fn new() -> Self {
        let root = ModelInode { is_dir: true, names: 1, parent: ROOT };
        let world = PossibleTree {
            nodes: [(ROOT, root)].into(),
            names: BTreeMap::new(),
            inos: [(Ino::ROOT, ROOT)].into(),
            done: BTreeMap::new(),
        };
        Self { worlds: [world].into(), pending: BTreeMap::new() }
    }

    pub fn begins(&mut self, id: u64, request: Request) {
        self.pending.insert(id, request);
    }

    /// True if an operation may have this answer.
    #[must_use]
    pub fn ends(&mut self, id: u64, answer: &Result<Reply, Errno>) -> bool {
        let mut found = HashSet::new();
        let mut seen: HashSet<PossibleTree> = self.worlds.clone();
        let mut left: Vec<PossibleTree> = self.worlds.drain().collect();
        while let Some(mut world) = left.pop() {
            if let Some(outcome) = world.done.remove(&id) {
                if world.explains(&outcome, answer) {
                    found.insert(world);
                }
                continue;
            }
            for (other, request) in &self.pending {
                if !world.done.contains_key(other) {
                    let mut after = world.clone();
                    let outcome = after.perform(*other, request);
                    after.done.insert(*other, outcome);
                    if seen.insert(after.clone()) {
                        left.push(after);
                    }
                }
            }
        }
        self.pending.remove(&id);
        self.worlds = found;
        !self.worlds.is_empty()
    }
}

fn fails(errnos: impl IntoIterator<Item = Errno>) -> CompletedOutcome {
    CompletedOutcome::Fails(errnos.into_iter().map(Errno::raw).collect())
}

impl PossibleTree {
    /// True if the predicted outcome matches the answer. Learns the numbers of inodes.
    fn explains(&mut self, outcome: &CompletedOutcome, answer: &Result<Reply, Errno>) -> bool {
        match (outcome, answer) {
            (CompletedOutcome::Done, Ok(Reply::Done))
            | (CompletedOutcome::Absent, Ok(Reply::Absent { .. })) => true,
            (CompletedOutcome::Fails(errnos), Err(errno)) => errnos.contains(&errno.raw()),
            (CompletedOutcome::Gone, Err(Errno::ESTALE | Errno::ENOENT) | Ok(Reply::Absent { .. })) => true,
            (CompletedOutcome::Gone, Ok(Reply::Attr(attr))) => attr.nlink == 0,
            (CompletedOutcome::Gone, Ok(Reply::Entry(entry))) => entry.attr.nlink == 0,
            (CompletedOutcome::Gone, Ok(Reply::Listing { entries, .. })) => entries.is_empty(),
            (CompletedOutcome::Named(node), Ok(Reply::Entry(entry))) => self.bind(entry.attr.ino, *node),
            (CompletedOutcome::Named(node), Ok(Reply::Remote { ino, kind, .. })) => {
                (*kind == FileType::Directory) == self.nodes[node].is_dir && self.bind(*ino, *node)
            }
            (CompletedOutcome::Attr(node, nlink, entries), Ok(Reply::Attr(attr))) => {
                self.bind(attr.ino, *node) && (attr.nlink, attr.size) == (*nlink, *entries)
            }
            (CompletedOutcome::Attr(node, nlink, entries), Ok(Reply::Entry(Entry { attr, .. }))) => {
                self.bind(attr.ino, *node) && (attr.nlink, attr.size) == (*nlink, *entries)
            }
            (CompletedOutcome::Listing(names), Ok(Reply::Listing { entries, .. })) => {
                let bind =
                    |entry: &Dirent| names.get(&entry.name).is_some_and(|node| self.bind(entry.ino, *node));
                entries.len() == names.len() && entries.iter().all(bind)
            }
            _ => false,
        }
    }

    fn bind(&mut self, ino: Ino, node: ModelNode) -> bool {
        *self.inos.entry(ino).or_insert(node) == node
            && self.inos.values().filter(|it| **it == node).count() == 1
    }

    fn node(&self, ino: Ino) -> Option<ModelNode> {
        let node = *self.inos.get(&ino).unwrap_or_else(|| panic!("no reply has reported {ino}"));
        (self.nodes[&node].names > 0).then_some(node)
    }

    fn children(&self, dir: ModelNode) -> impl Iterator<Item = (&Name, ModelNode)> {
        self.names.iter().filter(move |((at, _), _)| *at == dir).map(|((_, name), node)| (name, *node))
    }

    fn is_empty(&self, dir: ModelNode) -> bool {
        self.children(dir).next().is_none()
    }

    fn is_below(&self, dir: ModelNode, top: ModelNode) -> bool {
        dir == top || (dir != ROOT && self.is_below(self.nodes[&dir].parent, top))
    }

    fn lose(&mut self, node: ModelNode) {
        self.nodes.get_mut(&node).unwrap().names -= 1;
    }

    fn put(&mut self, dir: ModelNode, name: &Name, node: ModelNode) {
        self.names.insert((dir, name.clone()), node);
        let inode = self.nodes.get_mut(&node).unwrap();
        if inode.is_dir {
            inode.parent = dir;
        }
    }

    fn perform(&mut self, id: u64, request: &Request) -> CompletedOutcome {
        match request {
            Request::Lookup { dir, name } => {
                let Some(dir) = self.node(*dir) else { return CompletedOutcome::Gone };
                self.names
                    .get(&(dir, name.clone()))
                    .map_or(CompletedOutcome::Absent, |node| CompletedOutcome::Named(*node))
            }
            Request::GetAttr { ino } | Request::Find { ino, .. } => {
                let Some(node) = self.node(*ino) else { return CompletedOutcome::Gone };
                let inode = &self.nodes[&node];
                let children: Vec<ModelNode> = self.children(node).map(|(_, node)| node).collect();
                let subdirs = children.iter().filter(|node| self.nodes[node].is_dir).count() as u32;
                let nlink = if inode.is_dir { 2 + subdirs } else { inode.names };
                CompletedOutcome::Attr(node, nlink, children.len() as u64)
            }
            Request::ReadDir { dir, .. } => {
                let Some(dir) = self.node(*dir) else { return CompletedOutcome::Gone };
                CompletedOutcome::Listing(
                    self.children(dir).map(|(name, node)| (name.clone(), node)).collect(),
                )
            }
            Request::Create { dir, name, node, .. } => {
                let Some(dir) = self.node(*dir) else { return CompletedOutcome::Gone };
                if self.names.contains_key(&(dir, name.clone())) {
                    return fails([Errno::EEXIST]);
                }
                let is_dir = *node == NewNode::Directory;
                self.nodes.insert(id, ModelInode { is_dir, names: 1, parent: dir });
                self.put(dir, name, id);
                CompletedOutcome::Named(id)
            }
            Request::Link { ino, dir, name } => {
                let (Some(node), Some(dir)) = (self.node(*ino), self.node(*dir)) else {
                    return fails([Errno::ESTALE, Errno::ENOENT, Errno::EEXIST, Errno::EPERM]);
                };
                let (is_dir, is_taken) =
                    (self.nodes[&node].is_dir, self.names.contains_key(&(dir, name.clone())));
                if is_dir || is_taken {
                    let errors = [is_dir.then_some(Errno::EPERM), is_taken.then_some(Errno::EEXIST)];
                    return fails(errors.into_iter().flatten());
                }
                self.nodes.get_mut(&node).unwrap().names += 1;
                self.put(dir, name, node);
                CompletedOutcome::Named(node)
            }
            Request::Unlink { dir, name, .. } | Request::RmDir { dir, name, .. } => {
                let Some(dir) = self.node(*dir) else { return CompletedOutcome::Gone };
                let Some(node) = self.names.get(&(dir, name.clone())).copied() else {
                    return fails([Errno::ENOENT]);
                };
                match (self.nodes[&node].is_dir, matches!(request, Request::RmDir { .. })) {
                    (true, false) => return fails([Errno::EISDIR]),
                    (false, true) => return fails([Errno::ENOTDIR]),
                    (true, true) if !self.is_empty(node) => return fails([Errno::ENOTEMPTY]),
                    _ => {}
                }
                self.names.remove(&(dir, name.clone()));
                self.lose(node);
                CompletedOutcome::Done
            }
            Request::Rename { from_dir, from, to_dir, to, flags, .. } => {
                self.rename((*from_dir, from), (*to_dir, to), *flags)
            }
            _ => unreachable!(),
        }
    }

    fn rename(&mut self, from: (Ino, &Name), to: (Ino, &Name), flags: RenameFlags) -> CompletedOutcome {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let (from_dir, to_dir) = (self.node(from.0), self.node(to.0));
        let find = |dir: Option<ModelNode>, name: &Name| self.names.get(&(dir?, name.clone())).copied();
        let (moved, target) = (find(from_dir, from.1), find(to_dir, to.1));
        let mut errors = BTreeSet::new();
        if from_dir.is_none() || to_dir.is_none() || moved.is_none() || (exchange && target.is_none()) {
            errors.extend([Errno::ENOENT.raw(), Errno::ESTALE.raw()]);
        }
        let is_dir = |node: Option<ModelNode>| node.is_some_and(|node| self.nodes[&node].is_dir);
        if flags.contains(RenameFlags::NOREPLACE) && target.is_some() {
            errors.insert(Errno::EEXIST.raw());
        } else if moved.is_some() && moved == target {
            return CompletedOutcome::Done;
        }
        let mut into_itself = |node: Option<ModelNode>, dir: Option<ModelNode>| {
            if let (true, Some(node), Some(dir)) = (is_dir(node), node, dir)
                && self.is_below(dir, node)
            {
                errors.insert(Errno::EINVAL.raw());
            }
        };
        into_itself(moved, to_dir);
        if exchange {
            into_itself(target, from_dir);
        } else if let (Some(moved), Some(target)) = (moved, target) {
            match (is_dir(Some(moved)), is_dir(Some(target))) {
                (true, false) => drop(errors.insert(Errno::ENOTDIR.raw())),
                (false, true) => drop(errors.insert(Errno::EISDIR.raw())),
                (true, true) if !self.is_empty(target) => drop(errors.insert(Errno::ENOTEMPTY.raw())),
                _ => {}
            }
        }
        let (true, Some(from_dir), Some(to_dir), Some(moved)) = (errors.is_empty(), from_dir, to_dir, moved)
        else {
            return CompletedOutcome::Fails(errors);
        };
        self.names.remove(&(from_dir, from.1.clone()));
        if let Some(target) = target {
            if exchange {
                self.put(from_dir, from.1, target);
            } else {
                self.lose(target);
            }
        }
        self.put(to_dir, to.1, moved);
        CompletedOutcome::Done
    }
}
