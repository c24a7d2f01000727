//! Balancers that move whole subtrees.

use super::*;

/// The directories `dir`, `dir/a`, `dir/a/b` and `dir/pinned/below`, whose names are at rank 1, and
/// `dir/other` at rank 2. All have a few files.
struct Tree {
    fs: Ranks,
    dir: Ino,
    below: [Ino; 2],
    pinned: [Ino; 2],
    other: Ino,
}

impl Tree {
    fn new() -> Self {
        let (mut fs, dir) = hot();
        let a = fs.mkdir_at(1, dir, "a", 0o755);
        let b = fs.mkdir_at(1, a, "b", 0o755);
        let pinned = fs.mkdir_at(1, dir, "pinned", 0o755);
        let (name, value) = (attribute(b"user.espalier.pin"), attribute(b"1"));
        let (mode, kill_sgid) = (XattrMode::Any, false);
        fs.ask(Request::SetXattr { ino: pinned, name, value, mode, kill_sgid }).unwrap();
        let under_pin = fs.mkdir_at(1, pinned, "below", 0o755);
        let other = fs.mkdir_at(2, dir, "other", 0o755);
        let mut tree = Self { fs, dir, below: [a, b], pinned: [pinned, under_pin], other };
        tree.make_files("first");
        tree
    }

    fn make_files(&mut self, tag: &str) {
        for dir in [self.dir, self.other].into_iter().chain(self.below).chain(self.pinned) {
            let record = records(&mut self.fs, dir)[0];
            for n in 0..10 {
                let file = format!("{tag}{n}");
                self.fs.create_as(&ROOT_CALLER, record, &file, NewNode::Regular, 0o644);
            }
        }
    }

    /// The ranks of `dir`, `a`, `b`, `pinned`, `below` and `other`.
    fn ranks(&mut self) -> Vec<u16> {
        let dirs = [self.dir].into_iter().chain(self.below).chain(self.pinned).chain([self.other]);
        dirs.collect::<Vec<_>>().into_iter().flat_map(|dir| rank_of(&mut self.fs, dir)).collect()
    }
}

fn subtree(request: &DecisionRequest, ino: Ino) -> &MoveCandidate {
    let found = request.candidates.iter().find(|it| (it.ino, it.scope) == (ino, MoveScope::Subtree));
    found.unwrap_or_else(|| panic!("no subtree {ino}: {request:?}"))
}

#[test]
fn subtree_moves_with_all_below_it_but_pinned_directories_and_comes_back() {
    let mut tree = Tree::new();
    assert_eq!(tree.ranks(), [1, 1, 1, 1, 1, 2]);
    decide(&mut tree.fs, 1, moves(tree.dir, 0));
    seconds_pass(&mut tree.fs, 10);
    assert_eq!(tree.ranks(), [0, 0, 0, 1, 1, 2]);
    // Their inodes are at rank 1, which is asked for the records to move.
    tree.make_files("second");
    let record = records(&mut tree.fs, tree.dir)[0];
    decide(&mut tree.fs, 0, Verdict::Holds(String::new()));
    decide(&mut tree.fs, 0, moves(record, 2));
    seconds_pass(&mut tree.fs, 10);
    assert_eq!(tree.ranks(), [2, 2, 2, 1, 1, 2]);
    assert_eq!(undo(&mut tree.fs), Ok(Reply::Done));
    seconds_pass(&mut tree.fs, 10);
    assert_eq!(tree.ranks(), [0, 0, 0, 1, 1, 0], "what was at that rank before has become part of it");
    tree.fs.fsck();
}

#[test]
fn candidates_are_subtrees_with_all_that_moves_in_them() {
    let mut tree = Tree::new();
    let request = decide(&mut tree.fs, 1, moves(tree.dir, 0));
    let [whole, a, b] = [tree.dir, tree.below[0], tree.below[1]].map(|ino| subtree(&request, ino).clone());
    assert_eq!((whole.directories, whole.entries), (3, 50 + 3 + 10 + 11 + 10), "without the pinned ones");
    assert_eq!((a.directories, b.directories, b.entries), (2, 1, 10));
    let at =
        |wanted: &MoveCandidate| request.candidates.iter().position(|it| it == wanted).map(|at| at as u32);
    assert_eq!((a.parent, b.parent), (at(&whole), at(&a)));
    let names = request.candidates.iter().find(|it| (it.ino, it.scope) == (tree.dir, MoveScope::Names));
    let names = names.expect("the names without the subtrees");
    assert_eq!((names.parent, names.entries, names.directories), (at(&whole), 63, 1));
    let sum = names.popularity.load() + a.popularity.load();
    assert!((whole.popularity.load() - sum).abs() < 0.1, "{whole:?}");
    assert!(tree.pinned.iter().all(|pinned| request.candidates.iter().all(|it| it.ino != *pinned)));
    seconds_pass(&mut tree.fs, 10);
    // At the new rank, whose records belong to directories of rank 1, the tree is the same.
    tree.make_files("second");
    decide(&mut tree.fs, 0, Verdict::Holds(String::new()));
    let request = decide(&mut tree.fs, 0, Verdict::Holds(String::new()));
    let record = records(&mut tree.fs, tree.dir)[0];
    let moved = subtree(&request, record);
    assert_eq!((moved.directories, moved.entries), (3, 63 + 10 + 21 + 20));
    assert!(moved.moved_ms.is_some());
}
