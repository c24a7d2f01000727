#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use espalier_client::Answer;
use espalier_meta::{DECOUPLE, Decouple, Decoupled};
use espalier_proto::{Errno, FileType, Ino, Name, NewNode, Rank, Request, SetAttr, SetTime, Time};
use tempfile::TempDir;

use super::offline::OfflineClient;
use super::*;
use crate::dump::ClusterStores;
use crate::journal_events::{erase_events, read_events};
use crate::volume::{MkfsOptions, mkfs_ranks};
use crate::{fsck, fsck_cluster};

const ID: u128 = 77;
const BIG: usize = 300_000;

/// Stores of two metadata servers, the directory `job` at rank 0 decoupled, and its namespace.
pub struct Decoupling {
    pub dir: TempDir,
    pub ranks: Vec<PathBuf>,
    pub directory: Ino,
    pub decoupled: Decoupled,
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn open(dir: &Path) -> OfflineClient {
    OfflineClient::new(vec![Volume::open(dir, OpenOptions::default()).unwrap()], Rank(0)).unwrap()
}

pub fn make(client: &mut OfflineClient, dir: Ino, file: &str, node: NewNode) -> Result<Ino, Errno> {
    let (name, perm, umask) = (name(file), 0o755, 0);
    let request =
        Request::Create { dir, name, node, perm, umask, open: None, exclusive: true, writeback: None };
    match client.ask(request)? {
        Answer::Created(entry, _) | Answer::Entry(entry) => Ok(entry.attr.ino),
        answer => panic!("{answer:?}"),
    }
}

pub fn find(client: &mut OfflineClient, dir: Ino, file: &str) -> Result<Attr, Errno> {
    match client.ask(Request::Lookup { dir, name: name(file) })? {
        Answer::Entry(entry) => Ok(entry.attr),
        Answer::Absent { .. } => Err(Errno::ENOENT),
        answer => panic!("{answer:?}"),
    }
}

fn options() -> MkfsOptions {
    MkfsOptions {
        journal_bytes: Some(4 << 20),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        ..MkfsOptions::default()
    }
}

impl Decoupling {
    pub fn new(inodes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ranks: Vec<PathBuf> = [0, 1].map(|rank| dir.path().join(format!("rank-{rank}"))).into();
        mkfs_ranks(&ranks, &options()).unwrap();
        let mut made = Self { dir, ranks, directory: Ino::ROOT, decoupled: empty() };
        let mut client = made.client();
        // New directories would take turns at the ranks.
        client.set_xattr(Ino::ROOT, b"user.espalier.pin", b"parent").unwrap();
        made.directory = make(&mut client, Ino::ROOT, "job", NewNode::Directory).unwrap();
        let value = encode(&Decouple { id: ID, inodes });
        client.set_xattr(made.directory, DECOUPLE.as_bytes(), &value).unwrap();
        made.decoupled = client.decoupled(made.directory).unwrap().unwrap();
        client.close().unwrap();
        let root = RootAttributes { uid: options().uid, gid: options().gid, perm: 0o750 };
        std::fs::create_dir(made.store()).unwrap();
        mkfs_namespace(&made.store(), &made.origin(), root).unwrap();
        made
    }

    pub fn origin(&self) -> NamespaceOrigin {
        NamespaceOrigin { directory: self.directory, decoupled: self.decoupled.clone() }
    }

    pub fn store(&self) -> PathBuf {
        self.dir.path().join("namespace")
    }

    pub fn client(&self) -> OfflineClient {
        let volumes = crate::ranks::open_ranks(&self.ranks, &OpenOptions::read_once()).unwrap();
        OfflineClient::new(volumes, Rank(0)).unwrap()
    }

    fn stores(&self) -> OfflineStores {
        OfflineStores::Cluster(ClusterStores { ranks: self.ranks.clone(), data: Vec::new() })
    }

    /// Makes entries of several types in the namespace.
    pub fn fill(&self) {
        let mut client = open(&self.store());
        let sub = make(&mut client, Ino::ROOT, "sub", NewNode::Directory).unwrap();
        make(&mut client, sub, "link", NewNode::Symlink(b"target".as_slice().into())).unwrap();
        let file = make(&mut client, sub, "file", NewNode::Regular).unwrap();
        write(&mut client, file, 0, b"bytes");
        client.set_xattr(file, b"user.a", b"value").unwrap();
        client.ask(Request::Link { ino: file, dir: Ino::ROOT, name: name("second") }).unwrap();
        let big = make(&mut client, sub, "big", NewNode::Regular).unwrap();
        write(&mut client, big, 100_000, &vec![7; BIG - 100_000]);
        // Renamed into a directory that is newer than itself.
        let moved = make(&mut client, sub, "moves", NewNode::Regular).unwrap();
        let new = make(&mut client, Ino::ROOT, "new", NewNode::Directory).unwrap();
        let (from, to, flags) = (name("moves"), name("moved"), espalier_proto::RenameFlags::empty());
        client.ask(Request::Rename { from_dir: sub, from, to_dir: new, to, flags, time: None }).unwrap();
        let mtime = Some(SetTime::To(Time::new(500, 6)));
        client.ask(Request::SetAttr { ino: moved, set: SetAttr { mtime, ..SetAttr::default() } }).unwrap();
        client.close().unwrap();
    }

    fn export(&self) -> PathBuf {
        let path = self.dir.path().join("exported");
        let mut bytes = Vec::new();
        export_journal(&Namespace::open(&self.store()).unwrap(), &mut bytes, |_| ()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn apply(&self, journal: &Path) -> Result<(), Error> {
        apply_nonvolatile(&*open_client_journal(journal)?, journal, &self.stores(), |_| ())
    }

    /// Checks that the merged tree is that of [`Self::fill`].
    fn assert_merged(&self) {
        let mut client = self.client();
        assert_eq!(client.decoupled(self.directory).unwrap(), None);
        let top = self.directory;
        assert_filled(&mut client, top);
        assert_eq!(find(&mut client, Ino::ROOT, "job").unwrap().perm, 0o750);
        client.close().unwrap();
        assert_eq!(fsck_cluster(&self.ranks, &[], |_| ()).unwrap().findings, []);
    }

    fn assert_untouched(&self) {
        let mut client = self.client();
        let state = client.decoupled(self.directory).unwrap().unwrap();
        assert_eq!((state.id, state.merged), (ID, 0));
        assert_eq!(find(&mut client, self.directory, "sub").err(), Some(Errno::ENOENT));
        client.close().unwrap();
    }
}

fn empty() -> Decoupled {
    Decoupled {
        id: ID,
        mtime: Time::new(0, 0),
        ctime: Time::new(0, 0),
        strip_bytes: 0,
        first: Ino(2),
        inodes: 0,
        next: Ino(2),
        next_spare: Ino(2),
        merged: 0,
        digest: 0,
        shows: false,
        interfere: espalier_policy::Interference::Block,
        redirected: BTreeMap::new(),
    }
}

pub fn write(client: &mut OfflineClient, ino: Ino, offset: u64, bytes: &[u8]) {
    let how = espalier_proto::OpenHow {
        access: espalier_proto::Access::WRITE,
        ..espalier_proto::OpenHow::default()
    };
    client.ask(Request::Open { ino, how }).unwrap();
    client.write(ino, offset, bytes).unwrap();
    client.release(ino).unwrap();
}

pub fn read(client: &mut OfflineClient, ino: Ino, size: u32) -> Vec<u8> {
    let how = espalier_proto::OpenHow {
        access: espalier_proto::Access::READ,
        ..espalier_proto::OpenHow::default()
    };
    client.ask(Request::Open { ino, how }).unwrap();
    let bytes = client.read(ino, 0, size).unwrap();
    client.release(ino).unwrap();
    bytes
}

fn assert_filled(client: &mut OfflineClient, top: Ino) {
    let sub = find(client, top, "sub").unwrap();
    assert_eq!((sub.kind, sub.size), (FileType::Directory, 3));
    let file = find(client, sub.ino, "file").unwrap();
    assert_eq!((file.nlink, file.size), (2, 5));
    assert_eq!(find(client, top, "second").unwrap().ino, file.ino);
    assert_eq!(read(client, file.ino, 100), b"bytes");
    let value = client.ask(Request::GetXattr { ino: file.ino, name: b"user.a".as_slice().into() });
    assert!(matches!(value, Ok(Answer::Bytes(value)) if *value == *b"value"));
    let link = find(client, sub.ino, "link").unwrap();
    assert!(
        matches!(client.ask(Request::ReadLink { ino: link.ino }), Ok(Answer::Bytes(to)) if *to == *b"target")
    );
    let big = find(client, sub.ino, "big").unwrap();
    let mut expected = vec![0; 100_000];
    expected.resize(BIG, 7);
    assert!(read(client, big.ino, BIG as u32 + 10) == expected, "the big file differs");
    let new = find(client, top, "new").unwrap().ino;
    assert_eq!(find(client, new, "moved").unwrap().mtime, Time::new(500, 6));
    assert_eq!(find(client, sub.ino, "moves").err(), Some(Errno::ENOENT));
}

#[test]
fn nonvolatile_apply_merges_a_namespace_into_stopped_servers() {
    let made = Decoupling::new(64);
    made.fill();
    made.apply(&made.store()).unwrap();
    made.assert_merged();
    let again = made.apply(&made.store());
    assert!(matches!(again, Err(Error::NotDecoupled(ino)) if ino == made.directory), "{again:?}");
    made.assert_merged();
}

#[test]
fn exported_journal_merges_as_the_namespace_does() {
    let made = Decoupling::new(64);
    made.fill();
    let (exported, store) = (made.export(), made.store());
    let (file, namespace) = (JournalFile::open(&exported).unwrap(), Namespace::open(&store).unwrap());
    assert_eq!((file.len(), file.digest()), (namespace.len(), namespace.digest()));
    for number in 0..file.len() {
        assert_eq!(file.path_of(number), namespace.path_of(number), "{number}");
        let encoded = |merged| match merged {
            Merged::Record(record) => encode(&record),
            Merged::Big(big) => encode(&(&big.inode, &big.xattrs, &big.names, &big.attr)),
        };
        assert!(encoded(file.record(number).unwrap()) == encoded(namespace.record(number).unwrap()));
    }
    drop((file, namespace));
    made.apply(&exported).unwrap();
    made.assert_merged();
}

#[test]
fn merge_begun_from_a_store_continues_from_an_exported_journal() {
    let made = Decoupling::new(64);
    made.fill();
    let exported = made.export();
    let mut client = made.client();
    assert!(client.decoupled(made.directory).unwrap().is_some());
    let journal = Namespace::open(&made.store()).unwrap();
    let first = OutgoingPart { journal: &journal, len: 2 };
    client.merge(&first, made.directory, 0, |_| ()).unwrap_err();
    assert_eq!(client.decoupled(made.directory).unwrap().unwrap().merged, 2);
    client.close().unwrap();
    drop(journal);
    made.apply(&exported).unwrap();
    made.assert_merged();
}

/// The first records of a journal: a merge that stops.
struct OutgoingPart<'a> {
    journal: &'a Namespace,
    len: u64,
}

impl ClientJournal for OutgoingPart<'_> {
    fn origin(&self) -> &NamespaceOrigin {
        self.journal.origin()
    }

    fn root(&self) -> &Inode {
        self.journal.root()
    }

    fn root_xattrs(&self) -> Result<Xattrs, Error> {
        self.journal.root_xattrs()
    }

    fn len(&self) -> u64 {
        self.journal.len()
    }

    fn digest(&self) -> u64 {
        self.journal.digest()
    }

    fn record(&self, number: u64) -> Result<Merged, Error> {
        let invalid = MergeRecord::Link { ino: Ino::ROOT, names: Vec::new(), time: Time::new(0, 0) };
        if number < self.len {
            self.journal.record(number)
        } else {
            Ok(Merged::Record(invalid_link(invalid)))
        }
    }

    fn read_big(&self, file: &BigFile, write: &mut WriteBytes<'_>) -> Result<(), Error> {
        self.journal.read_big(file, write)
    }

    fn path_of(&self, number: u64) -> Vec<u8> {
        self.journal.path_of(number)
    }
}

/// A link that no server accepts.
fn invalid_link(mut link: MergeRecord) -> MergeRecord {
    if let MergeRecord::Link { names, .. } = &mut link {
        names.push((Ino::ROOT, name("bad")));
    }
    link
}

#[test]
fn damaged_journals_merge_nothing() {
    let made = Decoupling::new(64);
    made.fill();
    let exported = made.export();
    let bytes = std::fs::read(&exported).unwrap();
    let damaged = made.dir.path().join("damaged");
    for at in (0..bytes.len()).step_by(1999) {
        for change in ["flip", "cut"] {
            let mut copy = bytes.clone();
            if change == "flip" {
                copy[at] ^= 1
            } else {
                copy.truncate(at)
            }
            std::fs::write(&damaged, copy).unwrap();
            let outcome = JournalFile::open(&damaged).map(drop);
            let is_expected =
                matches!(outcome, Err(Error::DamagedJournal { .. } | Error::NoJournalFile { .. }));
            assert!(is_expected, "{change} {at}: {outcome:?}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    let mut newer = bytes.clone();
    let digit = newer.iter().position(|byte| *byte == b'\n').unwrap() - 1;
    newer[digit] = b'2';
    for (bytes, why) in [(longer, "something follows its end"), (newer, "it has another format")] {
        std::fs::write(&damaged, bytes).unwrap();
        let outcome = made.apply(&damaged).unwrap_err().to_string();
        assert!(outcome.contains(why), "{outcome}");
    }
    made.assert_untouched();
}

#[test]
fn journals_of_other_directories_merge_nothing() {
    let (made, other) = (Decoupling::new(64), Decoupling::new(64));
    made.fill();
    let exported = made.export();
    // The other cluster has a directory with this number, of another namespace.
    let mut client = other.client();
    assert!(client.decoupled(other.directory).unwrap().is_some());
    client.ask(Request::RemoveXattr { ino: other.directory, name: DECOUPLE.as_bytes().into() }).unwrap();
    let value = encode(&Decouple { id: ID + 1, inodes: 64 });
    client.set_xattr(other.directory, DECOUPLE.as_bytes(), &value).unwrap();
    client.close().unwrap();
    let outcome = other.apply(&exported);
    assert!(matches!(outcome, Err(Error::OtherNamespace(_))), "{outcome:?}");
    // Aborted, and then removed.
    for removes in [false, true] {
        let mut client = made.client();
        client.decoupled(made.directory).unwrap();
        let abort = Request::RemoveXattr { ino: made.directory, name: DECOUPLE.as_bytes().into() };
        let remove = Request::RmDir { dir: Ino::ROOT, name: name("job"), time: None };
        client.ask(if removes { remove } else { abort }).unwrap();
        client.close().unwrap();
        let outcome = made.apply(&exported);
        assert!(matches!(outcome, Err(Error::NotDecoupled(_))), "{outcome:?}");
    }
}

#[test]
fn more_inodes_than_provisioned_are_refused() {
    let made = Decoupling::new(64);
    made.fill();
    let mut small = made.origin();
    small.decoupled.inodes = 4;
    small.write(&made.store()).unwrap();
    let outcome = Namespace::open(&made.store()).map(drop);
    assert!(matches!(outcome, Err(Error::Unmergeable(..))), "{outcome:?}");
    made.origin().write(&made.store()).unwrap();
    let namespace = Namespace::open(&made.store()).unwrap();
    let MergeRecord::Create { dir, name, mut inode, bytes, xattrs } = (match namespace.record(0).unwrap() {
        Merged::Record(record) => record,
        Merged::Big(_) => panic!("a directory is first"),
    }) else {
        panic!("a directory is first")
    };
    inode.ino = Ino(made.decoupled.first.0 + made.decoupled.inodes);
    let record = MergeRecord::Create { dir, name, inode, bytes, xattrs };
    assert!(matches!(file::check_number(&made.decoupled, &record), Err(Error::Unmergeable(..))));
}

#[test]
fn clients_with_sessions_prevent_nonvolatile_apply() {
    let made = Decoupling::new(64);
    made.fill();
    let mut volumes = crate::ranks::open_ranks(&made.ranks, &OpenOptions::read_once()).unwrap();
    let client = espalier_proto::ClientId(5);
    let connect = espalier_meta::Input::Connect { client, leases: true, resumes: false };
    crate::ranks::run(&mut volumes, [(Rank(0), connect)].into());
    for volume in volumes {
        checkpoint(volume).unwrap();
    }
    let outcome = made.apply(&made.store());
    assert!(matches!(outcome, Err(Error::Clients(1))), "{outcome:?}");
}

#[test]
fn files_of_data_servers_need_a_server() {
    let made = Decoupling::new(64);
    made.fill();
    let data = vec![(espalier_proto::ServerId(1), made.dir.path().join("data"))];
    let stores = OfflineStores::Cluster(ClusterStores { ranks: made.ranks.clone(), data });
    let journal = Namespace::open(&made.store()).unwrap();
    let outcome = apply_nonvolatile(&journal, &made.store(), &stores, |_| ());
    assert!(matches!(outcome, Err(Error::Unmergeable(..))), "{outcome:?}");
    made.assert_untouched();
}

#[test]
fn imported_namespace_can_be_changed_and_merged() {
    let made = Decoupling::new(64);
    made.fill();
    let exported = made.export();
    std::fs::remove_dir_all(made.store()).unwrap();
    std::fs::create_dir(made.store()).unwrap();
    import_journal(&JournalFile::open(&exported).unwrap(), &made.store(), |_| ()).unwrap();
    assert_eq!(fsck(&made.store(), |_| ()).unwrap().findings, []);
    let mut client = open(&made.store());
    assert_filled(&mut client, Ino::ROOT);
    make(&mut client, Ino::ROOT, "more", NewNode::Regular).unwrap();
    client.close().unwrap();
    made.apply(&made.store()).unwrap();
    made.assert_merged();
    let mut client = made.client();
    assert!(find(&mut client, made.directory, "more").is_ok());
}

#[test]
fn failed_import_leaves_no_namespace() {
    let made = Decoupling::new(64);
    made.fill();
    let exported = made.export();
    let taken = made.dir.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("file"), "").unwrap();
    assert!(import_journal(&JournalFile::open(&exported).unwrap(), &taken, |_| ()).is_err());
    assert!(taken.join("file").exists());
}

#[test]
fn last_events_of_a_namespace_are_erased() {
    let made = Decoupling::new(64);
    let mut client = open(&made.store());
    make(&mut client, Ino::ROOT, "first", NewNode::Regular).unwrap();
    let location = StoreLocation::Directory(made.store());
    // As after a crash: the journal has the events, the tables have none.
    drop(client);
    let mut sequences = Vec::new();
    let summary = read_events(&location, |event| sequences.push(event.sequence)).unwrap();
    assert_eq!((summary.damage, summary.events), (None, sequences.len() as u64));
    assert_eq!(summary.origin, Some(made.origin()));
    let last = *sequences.last().unwrap();
    let mut client = open(&made.store());
    make(&mut client, Ino::ROOT, "second", NewNode::Regular).unwrap();
    drop(client);
    assert!(erase_events(&made.store(), last).unwrap() > 0);
    let summary = read_events(&location, |event| assert!(event.in_tables)).unwrap();
    assert!(summary.in_tables >= last);
    let mut client = open(&made.store());
    assert!(find(&mut client, Ino::ROOT, "first").is_ok());
    assert_eq!(find(&mut client, Ino::ROOT, "second").err(), Some(Errno::ENOENT));
    client.close().unwrap();
    let early = erase_events(&made.store(), 0);
    assert!(matches!(early, Err(Error::Checkpointed(_))), "{early:?}");
    let foreign = erase_events(&made.ranks[0], last);
    assert!(matches!(foreign, Err(Error::NoNamespace(_))), "{foreign:?}");
}

#[test]
fn damage_in_a_journal_is_located() {
    let made = Decoupling::new(64);
    let mut client = open(&made.store());
    for number in 0..20 {
        make(&mut client, Ino::ROOT, &number.to_string(), NewNode::Regular).unwrap();
        client.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
    }
    drop(client);
    let location = StoreLocation::Directory(made.store());
    let mut places = Vec::new();
    let whole = read_events(&location, |event| places.push(event.position)).unwrap();
    assert!(whole.damage.is_none() && whole.frames > 10);
    let path = made.store().join("journal");
    let mut bytes = std::fs::read(&path).unwrap();
    let position = places[places.len() / 2].0;
    bytes[(4096 + position + 20) as usize] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut events = 0;
    let damaged = read_events(&location, |_| events += 1).unwrap();
    assert_eq!(damaged.damage.map(|damage| damage.position.0), Some(position));
    assert!(events > 0 && events < whole.events);
    assert!(Namespace::open(&made.store()).is_err(), "a merge refuses it");
}
