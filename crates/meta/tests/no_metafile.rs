//! No-metafile files (kuhn 4): what is stored of them, their attributes, and that crashes leave
//! nothing behind.

use std::collections::BTreeMap;

use crate::harness::{DataServers, Fault, Harness, ROOT_CALLER, config, name, open_how, user};
use espalier_meta::{
    Acknowledge, Check, Config, DataLocation, Dentry, Finding, Input, NoMetafile, Striping, decode, relayout,
};
use espalier_policy::{Key, Policy};
use espalier_proto::*;

const SERVERS: u16 = 3;

fn striped(acknowledge: Acknowledge) -> Config {
    let servers = (0..SERVERS).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, 2).unwrap();
    Config { striping: Some(striping), acknowledge, ..config() }
}

fn cluster(config: Config) -> Harness {
    let mut fs = Harness::with(config);
    fs.data = DataServers::new(SERVERS);
    fs
}

fn set(fs: &mut Harness, ino: Ino, setting: &str, value: &str) -> Result<Reply, Errno> {
    let name = format!("user.espalier.{setting}").into_bytes().into();
    let (value, mode, kill_sgid) = (value.as_bytes().into(), XattrMode::Any, false);
    fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid })
}

fn get(fs: &mut Harness, ino: Ino, setting: &str) -> Result<String, Errno> {
    let name = format!("user.espalier.{setting}").into_bytes().into();
    match fs.ask(Request::GetXattr { ino, name })? {
        Reply::Bytes(text) => Ok(String::from_utf8(text.into()).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// A cluster whose directory `dir` makes no-metafile files, belongs to a user, and is forgotten.
fn with_dir(config: Config) -> (Harness, Ino) {
    let mut fs = cluster(config);
    let dir = fs.mkdir("dir");
    set(&mut fs, dir, "no_metafile", "1").unwrap();
    fs.chown("dir", 5, 6);
    fs.chmod("dir", 0o2775);
    (fs, dir)
}

fn create(fs: &mut Harness, dir: Ino, text: &str) -> Result<Ino, Errno> {
    let open = Some(open_how(Access::WRITE, false));
    let (name, node, exclusive) = (name(text), NewNode::Regular, true);
    match fs.ask(Request::Create {
        dir,
        name,
        node,
        perm: 0o755,
        umask: 0o77,
        open,
        exclusive,
        writeback: None,
    })? {
        Reply::Created(entry, opened) => {
            assert!(opened.streamed);
            Ok(entry.attr.ino)
        }
        other => panic!("{other:?}"),
    }
}

fn close(fs: &mut Harness, ino: Ino) {
    fs.send(&ROOT_CALLER, Request::Release { ino });
    fs.forget(ino);
}

/// Makes a file of `size` bytes, and closes it.
fn file(fs: &mut Harness, dir: Ino, text: &str, size: u64) -> Result<Ino, Errno> {
    let ino = create(fs, dir, text)?;
    if size > 0 {
        write(fs, ino, size)?;
    }
    close(fs, ino);
    Ok(ino)
}

/// Writes the last byte of a file of `size` bytes, as a client.
fn write(fs: &mut Harness, ino: Ino, size: u64) -> Result<(), Errno> {
    assert_eq!(
        fs.ask(Request::Extend {
            ino,
            offset: size - 1,
            length: 1,
            from: None,
            discards: false,
            acknowledged: false
        })?,
        Reply::Granted
    );
    let layout = fs.meta.place_of(&StreamIo::write(ino, 0, 1));
    let DataLocation::Servers(layout) = layout else { panic!("{layout:?}") };
    let end = layout.segments(size - 1, 1).next().unwrap();
    let write = DataRequest::write(ino, end.local, vec![1].into());
    fs.data.ask(layout.servers()[end.place], &write).map(drop)
}

/// User 9 has no permission, the group 8 may read, and its members more, bounded by the mask.
fn set_acl(ino: Ino) -> Request {
    let entry = |tag: u16, right: u16, id: u32| {
        [&tag.to_le_bytes()[..], &right.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [entry(1, 7, none), entry(2, 1, 9), entry(4, 7, none), entry(8, 4, 10)];
    let acl = [2u32.to_le_bytes().to_vec(), list.concat(), entry(16, 5, none), entry(32, 7, none)].concat();
    let (name, value) = ((*b"system.posix_acl_access").into(), acl.into());
    Request::SetXattr { ino, name, value, mode: XattrMode::Any, kill_sgid: false }
}

fn set_attr(fs: &mut Harness, ino: Ino, set: SetAttr) -> Result<Attr, Errno> {
    match fs.ask(Request::SetAttr { ino, set })? {
        Reply::Attr(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

fn rename(fs: &mut Harness, from: (Ino, &str), to: (Ino, &str), flags: RenameFlags) -> Result<Reply, Errno> {
    let ((from_dir, from), (to_dir, to)) = ((from.0, name(from.1)), (to.0, name(to.1)));
    fs.ask(Request::Rename { from_dir, from, to_dir, to, flags, time: None })
}

fn unlink(fs: &mut Harness, dir: Ino, text: &str) -> Result<Reply, Errno> {
    fs.ask(Request::Unlink { dir, name: name(text), time: None })
}

/// The dentry in a checkpoint; `None` unless it is a no-metafile file.
fn stored(fs: &mut Harness, dir: Ino, text: &str) -> Option<NoMetafile> {
    fs.checkpoint();
    let mut found = None;
    for record in fs.disk.store().records() {
        let (object, key, value) = record.unwrap();
        if object == ObjectId::fragment(dir, 0) && key.ends_with(text.as_bytes()) {
            // The tag of the third kind of dentry.
            found = value.strip_prefix(&[2]).map(|rest| decode::<NoMetafile>(rest).unwrap());
            assert!(value.len() < 24 || found.is_none(), "{value:?}");
        }
    }
    found
}

/// Reports all data servers as reached, after a restart.
fn reach(fs: &mut Harness) {
    for server in (0..SERVERS).map(ServerId) {
        let Ok(DataReply::Inos(inos)) = fs.data.ask(server, &DataRequest::New) else { panic!("no list") };
        fs.input(Input::NewDatafiles { server, inos });
    }
    fs.checkpoint();
    fs.drain();
}

/// Syncs the journal and restarts the machine.
fn restart(mut fs: Harness) -> Harness {
    fs.ask(Request::Fsync { ino: Ino::ROOT }).unwrap();
    let mut fs = fs.crash();
    reach(&mut fs);
    fs
}

fn fsck(fs: &mut Harness) -> Vec<Finding> {
    fs.drain();
    let mut check = fs.disk.checked(&fs.config);
    for (server, ino, size) in fs.data.all() {
        check.datafile(server, ino, size);
    }
    check.datafiles_end();
    check.finish()
}

/// Runs a test with everything in memory, with nothing in memory, and after a replay.
fn anyhow(test: impl Fn(Config)) {
    for acknowledge in [Acknowledge::Volatile, Acknowledge::Durable] {
        for cache_bytes in [usize::MAX, 0] {
            test(Config { cache_bytes, ..striped(acknowledge) });
        }
    }
}

#[test]
fn of_a_file_there_is_a_name_with_a_number_and_a_place() {
    anyhow(|config| {
        let (mut fs, dir) = with_dir(config);
        assert_eq!(get(&mut fs, dir, "no_metafile").as_deref(), Ok("true"));
        let ino = create(&mut fs, dir, "file").unwrap();
        assert_eq!(fs.data.files(), BTreeMap::new(), "one message to the metadata server suffices");
        let made = fs.attr_of(ino);
        let is = (made.size, made.nlink, made.perm, made.uid, made.gid, made.kind);
        assert_eq!(is, (0, 1, 0o664, 5, 6, FileType::Regular), "the directory's, whatever the caller asks");
        assert_eq!((made.atime, made.ctime, made.btime), (made.mtime, made.mtime, made.mtime));
        write(&mut fs, ino, 25).unwrap();
        close(&mut fs, ino);
        assert_eq!(fs.data.files(), BTreeMap::from([(ino, 1)]), "num_dfiles or not");
        let server = ServerId((ino.0 % u64::from(SERVERS)) as u16);
        let no_metafile = stored(&mut fs, dir, "file").unwrap();
        assert_eq!(no_metafile, NoMetafile { ino, server, counted: 25, time: made.mtime, mtime: None });
        fs.walk("dir/file").unwrap();
        let layout = format!(
            "place = \"data servers\"\nservers = [{server}]\ndist_name = \"basic\"\nno_metafile = true\n"
        );
        assert_eq!(get(&mut fs, ino, "layout"), Ok(layout));
        let policy = "num_dfiles = 1\ndist_name = \"basic\"\nno_metafile = true\n";
        assert_eq!(get(&mut fs, ino, "policy").as_deref(), Ok(policy));
        let mut fs = restart(fs);
        let attr = fs.attr("dir/file");
        assert_eq!((attr.ino, attr.size, attr.perm, attr.uid, attr.gid), (ino, 25, 0o664, 5, 6));
        assert_eq!(fs.figure(dir, "rbytes"), Ok(25));
        assert_eq!(get(&mut fs, ino, "policy").as_deref(), Ok(policy));
        unlink(&mut fs, dir, "file").unwrap();
        fs.forget(ino);
        assert_eq!(fsck(&mut fs), []);
        assert_eq!(fs.data.files(), BTreeMap::new());
    });
}

#[test]
fn without_data_servers_the_setting_waits() {
    let mut fs = Harness::new();
    set(&mut fs, Ino::ROOT, "no_metafile", "true").unwrap();
    let ino = fs.file("file", b"bytes");
    assert!(!fs.is_streamed(ino));
    assert_eq!(stored(&mut fs, Ino::ROOT, "file"), None);
    assert_eq!(set(&mut fs, Ino::ROOT, "no_metafile", "2"), Err(Errno::EINVAL));
    assert_eq!(set(&mut fs, ino, "no_metafile", "1"), Err(Errno::EINVAL));
}

#[test]
fn the_setting_is_of_files_made_from_then_on_and_the_number_of_datafiles_is_one_whatever_else_is_said() {
    let policy = || {
        let mut policy = Policy::NONE;
        policy.set(Key::NoMetafile, "true").unwrap();
        policy
    };
    let mut fs = cluster(Config { policy: policy(), ..striped(Acknowledge::Volatile) });
    for (setting, value) in [("num_dfiles", "3"), ("dist_params", "strip_size:1"), ("stuffing", "true")] {
        set(&mut fs, Ino::ROOT, setting, value).unwrap();
    }
    let no_metafile = file(&mut fs, Ino::ROOT, "bare", 100).unwrap();
    assert_eq!(fs.data.files(), BTreeMap::from([(no_metafile, 1)]));
    let below = fs.mkdir("below");
    let inherited = file(&mut fs, below, "bare", 1).unwrap();
    assert!(stored(&mut fs, below, "bare").is_some_and(|no_metafile| no_metafile.ino == inherited));
    let Ok(Reply::Created(entry, _)) = fs.ask(Request::TmpFile { dir: below, perm: 0o604, umask: 0 }) else {
        panic!("no file");
    };
    let Attr { ino, perm, .. } = entry.attr;
    assert_eq!(perm, 0o604, "it has an inode of its own");
    fs.ask(Request::Link { ino, dir: below, name: name("whole") }).unwrap();
    assert_eq!(stored(&mut fs, below, "whole"), None);
    set(&mut fs, Ino::ROOT, "no_metafile", "false").unwrap();
    assert!(!fs.is_streamed_file("stuffed"));
    assert!(stored(&mut fs, Ino::ROOT, "bare").is_some());
    assert_eq!(fsck(&mut fs), []);
}

impl Harness {
    fn is_streamed_file(&mut self, path: &str) -> bool {
        let ino = self.make(path, NewNode::Regular);
        self.is_streamed(ino)
    }
}

#[test]
fn directory_decides_permissions_of_its_files() {
    anyhow(|config| {
        let (mut fs, dir) = with_dir(config);
        let ino = file(&mut fs, dir, "file", 1).unwrap();
        fs.checkpoint();
        let may = |fs: &mut Harness, uid: u32, access: Access| {
            let found = fs.ask_as(&user(uid), Request::Lookup { dir, name: name("file") });
            assert!(found.is_ok(), "{found:?}");
            fs.ask_as(&user(uid), Request::Access { ino, want: access }).is_ok()
        };
        assert!(may(&mut fs, 5, Access::WRITE) && may(&mut fs, 7, Access::READ));
        assert!(!may(&mut fs, 7, Access::WRITE) && !may(&mut fs, 5, Access::EXEC));
        fs.chmod("dir", 0o1731);
        assert_eq!(fs.attr("dir/file").perm, 0o620, "only read and write bits");
        assert!(!may(&mut fs, 7, Access::READ) && may(&mut fs, 6, Access::WRITE));
        fs.chown("dir", 7, 8);
        let attr = fs.attr("dir/file");
        assert_eq!((attr.uid, attr.gid), (7, 8));
        assert!(may(&mut fs, 7, Access::READ) && !may(&mut fs, 5, Access::READ));
        fs.ask(set_acl(dir)).unwrap();
        assert_eq!(fs.attr("dir/file").perm, 0o600, "whatever class an entry may be of");
        let mut fs = restart(fs);
        let attr = fs.attr("dir/file");
        assert_eq!((attr.perm, attr.uid, attr.gid), (0o600, 7, 8));
        assert_eq!(fsck(&mut fs), []);
    });
}

#[test]
fn only_changes_that_need_metafile_are_refused() {
    anyhow(|config| {
        let (mut fs, dir) = with_dir(config);
        let ino = file(&mut fs, dir, "file", 1).unwrap();
        fs.walk("dir/file").unwrap();
        let of = |perm, uid, gid| SetAttr { perm, uid, gid, ..SetAttr::default() };
        for set in [of(Some(0o644), None, None), of(None, Some(1), None), of(Some(0o664), None, Some(1))] {
            assert_eq!(set_attr(&mut fs, ino, set), Err(Errno::EPERM));
        }
        let same = set_attr(&mut fs, ino, of(Some(0o664), Some(5), Some(6))).unwrap();
        assert_eq!((same.perm, same.uid, same.gid), (0o664, 5, 6));
        assert_eq!(fs.ask(Request::Link { ino, dir, name: name("link") }), Err(Errno::EPERM));
        let mut set_xattr = |name: &[u8], value: &[u8]| {
            let (name, value, mode) = (name.into(), value.into(), XattrMode::Any);
            fs.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false })
        };
        for name in [&b"user.x"[..], b"trusted.x", b"security.x"] {
            assert_eq!(set_xattr(name, b"value"), Err(Errno::EPERM));
        }
        let acl = |group: u8| {
            let entry = |tag: u8, right: u8| [tag, 0, right, 0, 255, 255, 255, 255];
            [&[2, 0, 0, 0][..], &entry(1, 6), &entry(4, group), &entry(32, 4)].concat()
        };
        assert_eq!(set_xattr(b"system.posix_acl_access", &acl(6)), Ok(Reply::Done));
        assert_eq!(set_xattr(b"system.posix_acl_access", &acl(4)), Err(Errno::EPERM));
        let gone = Request::RemoveXattr { ino, name: (*b"user.x").into() };
        assert_eq!(fs.ask(gone), Err(Errno::ENODATA));
        assert!(stored(&mut fs, dir, "file").is_some());
        assert_eq!(fsck(&mut fs), []);
    });
}

#[test]
fn times_are_the_datafiles_once_there_is_one() {
    anyhow(|config| {
        let (mut fs, dir) = with_dir(config);
        let ino = create(&mut fs, dir, "file").unwrap();
        let times = |secs| SetAttr {
            mtime: Some(SetTime::To(Time::new(secs, 5))),
            atime: Some(SetTime::To(Time::new(7, 7))),
            ..SetAttr::default()
        };
        for secs in [50, 60] {
            let attr = set_attr(&mut fs, ino, times(secs)).unwrap();
            assert_eq!((attr.mtime, attr.atime), (Time::new(secs, 5), Time::new(secs, 5)));
            assert!(attr.ctime > attr.mtime, "its ctime is the time of that change");
            fs.checkpoint();
            assert_eq!(fs.attr_of(ino).ctime, attr.ctime);
        }
        fs.data.set_now(Time::new(1065, 0));
        write(&mut fs, ino, 1).unwrap();
        let Attr { mtime, atime, ctime, btime, .. } = fs.attr_of(ino);
        let written = Time::new(1065, 0);
        assert_eq!((mtime, atime, ctime, btime), (written, Time::new(60, 5), written, Time::new(60, 5)));
        let attr = set_attr(&mut fs, ino, times(70)).unwrap();
        assert_eq!(attr.mtime, Time::new(70, 5));
        let atime = SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() };
        assert_eq!(set_attr(&mut fs, ino, atime).unwrap().atime, Time::new(70, 5), "it is not stored");
        close(&mut fs, ino);
        let mut fs = restart(fs);
        assert_eq!(fs.attr("dir/file").mtime, Time::new(70, 5));
    });
}

#[test]
fn file_leaving_directory_gets_inode_with_reported_attributes() {
    anyhow(|config| {
        let (mut fs, dir) = with_dir(config);
        let other = fs.mkdir("other");
        set(&mut fs, other, "no_metafile", "true").unwrap();
        let names = ["kept", "moved", "swapped", "linked", "open", "replaced"];
        let inos = names.map(|text| file(&mut fs, dir, text, 3).unwrap());
        let [retained, moved, swapped, ..] = inos;
        let full = fs.make("full", NewNode::Regular);
        let attrs = |attr: Attr| (attr.ino, attr.perm, attr.uid, attr.gid, attr.size, attr.nlink, attr.mtime);
        let reported = names.map(|text| attrs(fs.attr(&format!("dir/{text}"))));
        let none = RenameFlags::empty();
        rename(&mut fs, (dir, "kept"), (dir, "renamed"), none).unwrap();
        assert_eq!(stored(&mut fs, dir, "renamed").map(|no_metafile| no_metafile.ino), Some(retained));
        rename(&mut fs, (dir, "renamed"), (dir, "linked"), none).unwrap();
        assert_eq!(stored(&mut fs, dir, "linked").map(|no_metafile| no_metafile.ino), Some(retained));
        rename(&mut fs, (dir, "linked"), (dir, "replaced"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(stored(&mut fs, dir, "replaced").map(|no_metafile| no_metafile.ino), Some(retained));
        assert_eq!(attrs(fs.attr("dir/replaced")), reported[0]);
        rename(&mut fs, (dir, "moved"), (other, "moved"), none).unwrap();
        assert_eq!(stored(&mut fs, other, "moved"), None, "with an inode");
        rename(&mut fs, (dir, "swapped"), (Ino::ROOT, "full"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs.attr("dir/swapped").ino, full, "an inode is kept");
        let held = fs.open("dir/open");
        unlink(&mut fs, dir, "open").unwrap();
        // From here on the directory does not determine their attributes.
        fs.chmod("dir", 0o700);
        fs.chown("dir", 99, 99);
        for (path, was) in [("other/moved", reported[1]), ("full", reported[2])] {
            assert_eq!(attrs(fs.attr(path)), was, "{path}");
        }
        let open = fs.attr_of(held);
        assert_eq!((open.perm, open.uid, open.gid, open.nlink), (0o664, 5, 6, 0));
        let chmod = SetAttr { perm: Some(0o4711), ..SetAttr::default() };
        assert_eq!(set_attr(&mut fs, moved, chmod).unwrap().perm, 0o4711);
        fs.ask(Request::Link { ino: swapped, dir, name: name("second") }).unwrap();
        fs.forget(held);
        close(&mut fs, held);
        let mut fs = restart(fs);
        assert_eq!((fs.attr("other/moved").perm, fs.attr("dir/replaced").uid), (0o4711, 99));
        assert_eq!(fs.attr("full").nlink, 2);
        assert_eq!(fsck(&mut fs), []);
    });
}

/// Makes, writes, renames and removes files.
fn work(fs: &mut Harness, dir: Ino) -> Result<(), Errno> {
    file(fs, dir, "written", 25)?;
    file(fs, dir, "empty", 0)?;
    file(fs, dir, "removed", 5)?;
    let none = RenameFlags::empty();
    fs.chmod_if_alive(dir, 0o750)?;
    rename(fs, (dir, "written"), (dir, "renamed"), none)?;
    rename(fs, (dir, "renamed"), (Ino::ROOT, "out"), none)?;
    rename(fs, (Ino::ROOT, "out"), (dir, "empty"), none)?;
    unlink(fs, dir, "removed")?;
    fs.checkpoint();
    file(fs, dir, "late", 15)?;
    rename(fs, (dir, "late"), (Ino::ROOT, "out"), RenameFlags::NOREPLACE).map(drop)
}

impl Harness {
    fn chmod_if_alive(&mut self, ino: Ino, perm: u32) -> Result<(), Errno> {
        self.ask(Request::SetAttr { ino, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }).map(drop)
    }
}

#[test]
fn crash_at_any_io_keeps_files_whole() {
    for acknowledge in [Acknowledge::Volatile, Acknowledge::Durable] {
        for cache_bytes in [usize::MAX, 0] {
            let mut crashes = 0;
            for at in 0.. {
                let (mut fs, dir) = with_dir(Config { cache_bytes, ..striped(acknowledge) });
                fs.checkpoint();
                fs.fault = Some((fs.count + at, Fault::Crash));
                let _ = work(&mut fs, dir);
                let crashed = fs.is_dead();
                fs = fs.crash();
                reach(&mut fs);
                let paths =
                    ["written", "empty", "removed", "renamed", "late"].map(|text| format!("dir/{text}"));
                let mut bytes = 0;
                for path in paths.iter().map(String::as_str).chain(["out"]) {
                    let Ok(ino) = fs.walk(path) else { continue };
                    let attr = fs.attr_of(ino);
                    bytes += attr.size;
                    let text = path.trim_start_matches("dir/");
                    let has_no_metafile = stored(&mut fs, dir, text).is_some();
                    // It has left the directory, and is back under that name.
                    let was_out = path == "out" || (path == "dir/empty" && !has_no_metafile);
                    assert_eq!(has_no_metafile, !was_out, "{path}, crash at {at}");
                    assert!([0o664, 0o640].contains(&attr.perm) && attr.uid == 5, "{path}: {attr:?}");
                }
                assert_eq!(fs.figure(Ino::ROOT, "rbytes"), Ok(bytes), "crash at {at}");
                assert_eq!(fsck(&mut fs), [], "crash at {at}");
                if !crashed {
                    break;
                }
                crashes += 1;
            }
            assert!(crashes > 10, "{crashes}");
        }
    }
}

#[test]
fn quotas_bound_them_as_any_other_files() {
    let (mut fs, dir) = with_dir(striped(Acknowledge::Volatile));
    fs.set_limit(dir, "max_files", 2).unwrap();
    fs.set_limit(dir, "max_bytes", 10).unwrap();
    file(&mut fs, dir, "a", 4).unwrap();
    let ino = create(&mut fs, dir, "b").unwrap();
    assert_eq!(create(&mut fs, dir, "c"), Err(Errno::EDQUOT));
    assert_eq!(write(&mut fs, ino, 7), Err(Errno::EDQUOT));
    write(&mut fs, ino, 6).unwrap();
    close(&mut fs, ino);
    assert_eq!([fs.figure(dir, "rfiles"), fs.figure(dir, "rbytes")], [Ok(2), Ok(10)]);
    rename(&mut fs, (dir, "b"), (Ino::ROOT, "b"), RenameFlags::empty()).unwrap();
    assert_eq!([fs.figure(dir, "rfiles"), fs.figure(dir, "rbytes")], [Ok(1), Ok(4)]);
    fs.ask(Request::RemoveTree { dir }).ok();
    assert_eq!(fsck(&mut fs), []);
}

const TERM: u32 = 10_000;
const A: ClientId = ClientId(8);
const B: ClientId = ClientId(9);

/// The attributes that a lookup returns, and whether they may be cached.
fn look_up(fs: &mut Harness, client: ClientId, dir: Ino, text: &str) -> (Attr, bool) {
    let id = fs.send_from(client, &ROOT_CALLER, Request::Lookup { dir, name: name(text) });
    match fs.answers.remove(&id).unwrap() {
        Ok(Reply::Entry(entry)) => (entry.attr, entry.attr_leased && fs.leases[&id].0 == TERM),
        other => panic!("{other:?}"),
    }
}

/// Acknowledges all revocations, and returns the clients that had a lease on a file.
fn requested(fs: &mut Harness, ino: Ino) -> Vec<ClientId> {
    let mut clients = Vec::new();
    for revocation in std::mem::take(&mut fs.revocations) {
        fs.input(Input::Revoked { client: revocation.client, number: revocation.number });
        clients.extend((revocation.lease == Lease::Inode { ino }).then_some(revocation.client));
    }
    clients.sort_unstable();
    clients
}

#[test]
fn inherited_attributes_are_cached_until_directory_changes() {
    let mut fs = cluster(Config { lease_ms: Some(TERM), ..striped(Acknowledge::Volatile) });
    let dir = fs.mkdir("dir");
    set(&mut fs, dir, "no_metafile", "true").unwrap();
    let (ino, _) = (file(&mut fs, dir, "file", 1).unwrap(), file(&mut fs, dir, "other", 1).unwrap());
    let (xattr, value, mode) = ((*b"user.espalier.eager").into(), (*b"false").into(), XattrMode::Any);
    let changes = [
        (Request::SetAttr { ino: dir, set: SetAttr { perm: Some(0o750), ..SetAttr::default() } }, 0o640),
        (Request::SetAttr { ino: dir, set: SetAttr { uid: Some(4), ..SetAttr::default() } }, 0o640),
        (Request::SetXattr { ino: dir, name: xattr, value, mode, kill_sgid: false }, 0o640),
        (set_acl(dir), 0o600),
    ];
    for (change, perm) in changes {
        for client in [A, B] {
            assert!(look_up(&mut fs, client, dir, "file").1, "{change:?}");
        }
        let id = fs.send_from(A, &ROOT_CALLER, change.clone());
        assert!(!fs.answers.contains_key(&id), "other clients have leases on what it changes");
        let (attr, is_leased) = look_up(&mut fs, B, dir, "other");
        assert!(!is_leased, "{attr:?}");
        assert!(requested(&mut fs, ino).ends_with(&[A, B]), "{change:?}");
        assert_eq!(fs.answers.remove(&id).unwrap().err(), None);
        assert_eq!(look_up(&mut fs, B, dir, "file").0.perm, perm);
    }
    assert_eq!(look_up(&mut fs, B, dir, "file").0.uid, 4);
    // Changes nothing that files derive from the directory.
    let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let id = fs.send_from(A, &ROOT_CALLER, Request::SetAttr { ino: dir, set: times });
    assert_eq!(requested(&mut fs, ino), []);
    assert!(fs.answers.remove(&id).unwrap().is_ok());
}

/// Repairs the records of a store. Returns true if there was nothing to repair.
fn repaired(fs: &Harness) -> bool {
    let mut plans = crate::repair::plan_all(&[fs.disk.store()]);
    let plan = plans.remove(0);
    let is_clean = plan.done.is_empty() && plan.empty.is_empty();
    fs.disk.store().stage(plan.writes).unwrap();
    fs.disk.store().publish().unwrap();
    is_clean
}

#[test]
fn a_record_that_is_damaged_is_found_and_taken_out_and_the_others_stay() {
    for (text, damage) in [
        ("other kind", (|value| value[0] = 3) as fn(&mut Vec<u8>)),
        ("cut off", |value| value.truncate(2)),
        ("too long", |value| value.push(0)),
    ] {
        let (mut fs, dir) = with_dir(striped(Acknowledge::Volatile));
        for at in 0..5 {
            file(&mut fs, dir, &format!("file {at}"), 0).unwrap();
        }
        fs.drain();
        assert!(repaired(&fs), "nothing is wrong yet");
        let records: Vec<_> = fs.disk.store().records().map(Result::unwrap).collect();
        let is_third = |(object, key, _): &&(ObjectId, Vec<u8>, Vec<u8>)| {
            *object == ObjectId::fragment(dir, 0) && key.ends_with(b"file 3")
        };
        let (object, key, mut value) = records.iter().find(is_third).unwrap().clone();
        damage(&mut value);
        assert!(decode::<Dentry>(&value).is_err(), "{text}");
        fs.disk.store().stage([TableWrite { object, key, value: Some(value) }].into()).unwrap();
        fs.disk.store().publish().unwrap();
        assert!(!fs.disk.checked(&fs.config).finish().is_empty(), "{text}");
        assert!(!repaired(&fs), "{text}");
        assert_eq!(fs.disk.checked(&fs.config).finish(), [], "{text}");
        let mut fs = fs.crash();
        assert_eq!(fs.list(dir, false).len(), 4, "{text}");
        assert!(stored(&mut fs, dir, "file 2").is_some());
        assert_eq!(fs.attr("dir/file 2").uid, 5);
    }
}

#[test]
fn a_datafile_can_be_moved_to_another_server() {
    let (mut fs, dir) = with_dir(striped(Acknowledge::Volatile));
    let ino = file(&mut fs, dir, "file", 25).unwrap();
    let from = stored(&mut fs, dir, "file").unwrap().server;
    let to = ServerId((from.0 + 1) % SERVERS);
    fs.drain();
    fs.data.copy(ino, from, to);
    let mut writes = Vec::new();
    for record in fs.disk.store().records() {
        let (object, key, value) = record.unwrap();
        writes.extend(relayout(object, &key, &value, |of, layout| {
            assert_eq!((of, layout.servers()), (ino, &[from][..]));
            Layout::new(layout.distribution().clone(), vec![to]).ok()
        }));
    }
    assert_eq!(writes.len(), 1);
    fs.disk.store().stage(writes).unwrap();
    fs.disk.store().publish().unwrap();
    fs.data.ask(from, &DataRequest::Remove { ino }).unwrap();
    let mut fs = fs.crash();
    assert_eq!(stored(&mut fs, dir, "file").map(|no_metafile| no_metafile.server), Some(to));
    assert_eq!(fs.attr("dir/file").size, 25);
    assert_eq!(fsck(&mut fs), []);
}

/// Two ranks whose messages arrive at once.
struct Ranks([Harness; 2]);

impl Ranks {
    fn ask(&mut self, request: Request) -> Result<Reply, Errno> {
        let at = request.rank().0 as usize;
        let id = self.0[at].send(&ROOT_CALLER, request);
        while self.0.iter().any(|host| !host.peers.is_empty()) {
            for from in 0..2 {
                for (to, message) in std::mem::take(&mut self.0[from].peers) {
                    self.0[to.0 as usize].input(Input::Peer { from: Rank(from as u16), message });
                }
            }
        }
        self.0[at].answers.remove(&id).expect("an answer")
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Result<Reply, Errno> {
        let ((from_dir, from), (to_dir, to)) = ((from.0, name(from.1)), (to.0, name(to.1)));
        self.ask(Request::Rename { from_dir, from, to_dir, to, flags: RenameFlags::empty(), time: None })
    }
}

#[test]
fn file_moved_to_other_rank_gets_inode_unless_it_replaces_one() {
    let host = |rank| cluster(Config { rank: Rank(rank), ranks: 2, ..striped(Acknowledge::Volatile) });
    let fs = &mut Ranks([host(0), host(1)]);
    let (perm, umask, open, exclusive) = (0o755, 0, None, true);
    let mut far = None;
    for at in 0..4 {
        let (name, node) = (name(&at.to_string()), NewNode::Directory);
        let reply = fs.ask(Request::Create {
            dir: Ino::ROOT,
            name,
            node,
            perm,
            umask,
            open,
            exclusive,
            writeback: None,
        });
        far = far.or(match reply {
            Ok(Reply::Remote { ino, .. }) => Some(ino),
            _ => None,
        });
    }
    let (far, dir) = (far.unwrap(), Ino::ROOT);
    set(&mut fs.0[0], dir, "no_metafile", "1").unwrap();
    let ino = file(&mut fs.0[0], dir, "file", 3).unwrap();
    assert_eq!(fs.ask(Request::Link { ino, dir: far, name: name("link") }), Err(Errno::EPERM));
    // Replaces a name of a file at another rank, within the directory.
    let other = fs.0[1].create(far, "other", NewNode::Regular).unwrap();
    assert_eq!(fs.rename((far, "other"), (dir, "other")), Ok(Reply::Done));
    assert_eq!(fs.rename((dir, "file"), (dir, "other")), Ok(Reply::Done));
    assert_eq!(stored(&mut fs.0[0], dir, "other").map(|no_metafile| no_metafile.ino), Some(ino));
    fs.0[1].forget(other);
    assert_eq!(fs.rename((dir, "other"), (far, "moved")), Ok(Reply::Done));
    let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    assert_eq!(set_attr(&mut fs.0[0], ino, chmod).unwrap().perm, 0o600);
    for _ in 0..10 {
        for at in 0..2 {
            fs.0[at].input(Input::Tick);
            fs.ask(Request::GetAttr { ino: [dir, far][at] }).unwrap();
        }
    }
    fs.0.iter_mut().for_each(Harness::drain);
    let checks = fs.0.iter().map(|host| host.disk.checked(&host.config)).collect();
    assert_eq!(Check::finish_all(checks), []);
}
