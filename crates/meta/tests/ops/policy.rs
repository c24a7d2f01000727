use espalier_meta::{Acknowledge, Config, DECOUPLE, Decouple, encode};
use espalier_policy::Key;
use espalier_proto::*;

use crate::harness::{Harness, ROOT_CALLER, config, everywhere, name, under_faults, user};

fn attribute(setting: &str) -> Box<[u8]> {
    format!("user.espalier.{setting}").into_bytes().into()
}

fn set_as(
    fs: &mut Harness,
    caller: &Caller,
    ino: Ino,
    (setting, value): (&str, &str),
    mode: XattrMode,
) -> Result<Reply, Errno> {
    let (name, value) = (attribute(setting), value.as_bytes().into());
    fs.ask_as(caller, Request::SetXattr { ino, name, value, mode, kill_sgid: false })
}

fn set(fs: &mut Harness, ino: Ino, setting: &str, value: &str) -> Result<Reply, Errno> {
    set_as(fs, &ROOT_CALLER, ino, (setting, value), XattrMode::Any)
}

fn unset(fs: &mut Harness, ino: Ino, setting: &str) -> Result<Reply, Errno> {
    fs.ask(Request::RemoveXattr { ino, name: attribute(setting) })
}

fn get(fs: &mut Harness, ino: Ino, setting: &str) -> Result<String, Errno> {
    match fs.ask(Request::GetXattr { ino, name: attribute(setting) })? {
        Reply::Bytes(text) => Ok(String::from_utf8(text.into()).unwrap()),
        other => panic!("{other:?}"),
    }
}

fn listed(fs: &mut Harness, ino: Ino) -> String {
    match fs.ask(Request::ListXattr { ino }) {
        Ok(Reply::Bytes(names)) => String::from_utf8(names.into()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn is_set_read_listed_and_removed() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        assert_eq!(listed(fs, dir), "");
        assert_eq!(get(fs, dir, "num_dfiles"), Err(Errno::ENODATA));
        set(fs, dir, "dist_params", "strip_size:64K").unwrap();
        set(fs, dir, "num_dfiles", "3").unwrap();
        assert_eq!(get(fs, dir, "dist_params").unwrap(), "strip_size:64K", "as it was written");
        assert_eq!(listed(fs, dir), "user.espalier.num_dfiles\0user.espalier.dist_params\0");
        let all = "num_dfiles = 3\ndist_name = \"simple_stripe\"\ndist_params = \"strip_size:64K\"\n";
        assert_eq!(get(fs, dir, "policy").unwrap(), all);
        let mut mode = |value, mode| set_as(fs, &ROOT_CALLER, dir, ("dist_name", value), mode);
        assert_eq!(mode("basic", XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(mode("simple_stripe", XattrMode::Create), Ok(Reply::Done));
        assert_eq!(mode("simple_stripe", XattrMode::Create), Err(Errno::EEXIST));
        for setting in ["num_dfiles", "dist_name", "dist_params"] {
            assert_eq!(unset(fs, dir, setting), Ok(Reply::Done));
            assert_eq!(unset(fs, dir, setting), Err(Errno::ENODATA));
        }
        assert_eq!(listed(fs, dir), "");
        // Other attributes are listed with it.
        let (name, value) = ((*b"user.other").into(), (*b"1").into());
        fs.ask(Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false }).unwrap();
        set(fs, dir, "dist_name", "basic_dist").unwrap();
        assert_eq!(listed(fs, dir), "user.espalier.dist_name\0user.other\0");
        assert_eq!(get(fs, dir, "dist_name").unwrap(), "basic");
    });
}

#[test]
fn invalid_policy_is_refused_and_logged() {
    everywhere(|fs| {
        let (dir, file) = (fs.mkdir("dir"), fs.file("file", b"bytes"));
        set(fs, dir, "dist_name", "basic").unwrap();
        for (ino, setting, value, why) in [
            (dir, "num_dfiles", "0", "1 to 1024, and not `0`"),
            (dir, "num_dfiles", "1025", "1 to 1024"),
            (dir, "num_dfiles", "+1", "1 to 1024"),
            (dir, "dist_name", "raid\n", r"basic, simple_stripe or varstrip, and not `raid\n`"),
            (dir, "dist_params", "strip_size:0", "`strip_size:SIZE` for simple_stripe"),
            (dir, "dist_params", "strips:0:64K", "do not go with dist_name basic"),
            (dir, "nom_dfiles", "1", "there is no setting `nom_dfiles`"),
            (file, "num_dfiles", "1", "only directories have policies"),
        ] {
            fs.warnings.clear();
            assert_eq!(set(fs, ino, setting, value), Err(Errno::EINVAL), "{setting} {value}");
            let [remark] = &fs.warnings[..] else { panic!("{:?}", fs.warnings) };
            assert!(remark.contains(why) && remark.contains(&format!("inode {ino}")), "{remark}");
        }
        for reported in ["policy", "layout"] {
            assert_eq!(set(fs, dir, reported, ""), Err(Errno::EPERM));
        }
        assert_eq!(get(fs, dir, "policy").unwrap(), "dist_name = \"basic\"\n");
    });
}

#[test]
fn writers_set_policy_and_readers_see_it() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        fs.chown("dir", 5, 5);
        fs.chmod("dir", 0o755);
        let mut set_by = |uid| set_as(fs, &user(uid), dir, ("num_dfiles", "2"), XattrMode::Any);
        assert_eq!((set_by(6), set_by(5)), (Err(Errno::EACCES), Ok(Reply::Done)));
        let ask = || Request::GetXattr { ino: dir, name: attribute("num_dfiles") };
        assert_eq!(fs.ask_as(&user(6), ask()), Ok(Reply::Bytes(b"2"[..].into())));
        fs.chmod("dir", 0o700);
        assert_eq!(fs.ask_as(&user(6), ask()), Err(Errno::EACCES));
    });
}

#[test]
fn directories_inherit_policy_and_files_keep_theirs() {
    let mut fs = Harness::with(Config { acknowledge: Acknowledge::Durable, ..config() });
    let dir = fs.mkdir("dir");
    let before = (fs.mkdir("dir/before"), fs.file("dir/old", b"bytes"));
    set(&mut fs, dir, "num_dfiles", "2").unwrap();
    let after = (fs.mkdir("dir/after"), fs.file("dir/new", b"bytes"));
    set(&mut fs, dir, "num_dfiles", "5").unwrap();
    let other_dir = fs.mkdir("else");
    set(&mut fs, other_dir, "num_dfiles", "9").unwrap();
    // A move or another name changes neither.
    for text in ["after", "new"] {
        let (from, to, flags) = (name(text), name(text), RenameFlags::empty());
        fs.ask(Request::Rename { from_dir: dir, from, to_dir: other_dir, to, flags, time: None }).unwrap();
    }
    fs.ask(Request::Link { ino: after.1, dir: Ino::ROOT, name: name("link") }).unwrap();
    // From memory, from the journal, from the tables.
    for _ in 0..3 {
        for path in ["dir/before", "dir/old", "else/after", "link"] {
            fs.walk(path).unwrap();
        }
        assert_eq!(get(&mut fs, before.0, "num_dfiles"), Err(Errno::ENODATA));
        assert_eq!(get(&mut fs, after.0, "num_dfiles").unwrap(), "2");
        // Files have no settings of their own, but report the effective policy.
        for (file, policy) in [(before.1, ""), (after.1, "num_dfiles = 2\n")] {
            assert_eq!(listed(&mut fs, file), "");
            assert_eq!(get(&mut fs, file, "num_dfiles"), Err(Errno::ENODATA));
            assert_eq!(get(&mut fs, file, "policy").unwrap(), policy);
            assert_eq!(get(&mut fs, file, "layout").unwrap(), "place = \"metadata\"\n");
        }
        fs = fs.crash();
        assert_eq!(fs.fsck(), []);
    }
}

#[test]
fn every_setting_is_inherited_and_outlasts_crashes() {
    let sample = |key: Key| {
        let is_set = |text: &&&str| **text != key.default_text();
        *key.values().examples().iter().rev().find(is_set).unwrap()
    };
    let mut fs = Harness::with(Config { acknowledge: Acknowledge::Durable, ..config() });
    for key in Key::ALL {
        let dir = fs.mkdir(key.name());
        set(&mut fs, dir, key.name(), sample(key)).unwrap();
        fs.mkdir(&format!("{}/sub", key.name()));
        fs.file(&format!("{}/sub/file", key.name()), b"bytes");
    }
    for _ in 0..3 {
        for key in Key::ALL {
            let (dir, file) = (format!("{}/sub", key.name()), format!("{}/sub/file", key.name()));
            let (dir, file) = (fs.walk(&dir).unwrap(), fs.walk(&file).unwrap());
            assert_eq!(get(&mut fs, dir, key.name()).as_deref(), Ok(sample(key)), "{key:?}");
            let policy = get(&mut fs, file, "policy").unwrap();
            assert!(policy.lines().any(|line| line.starts_with(key.name())), "{key:?}: {policy}");
        }
        fs = fs.crash();
    }
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
    };
    under_faults(before, |fs| {
        let dir = fs.walk("dir")?;
        set(fs, dir, "dist_params", "strips:0:64K;1:128K")
    });
}

#[test]
fn directories_below_weaken_only_what_is_allowed() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        set(fs, dir, "durability", "global").unwrap();
        set(fs, dir, "allocated_inodes", "10").unwrap();
        set(fs, dir, "relax", "consistency").unwrap();
        // The directory itself is free.
        set(fs, dir, "durability", "local").unwrap();
        set(fs, dir, "durability", "global").unwrap();
        fs.ask(Request::SetAttr { ino: dir, set: SetAttr { perm: Some(0o777), ..SetAttr::default() } })
            .unwrap();
        let owner = user(7);
        let made = fs.ask_as(
            &owner,
            Request::Create {
                dir,
                name: name("below"),
                node: NewNode::Directory,
                perm: 0o755,
                umask: 0,
                open: None,
                exclusive: true,
                writeback: None,
            },
        );
        let (Ok(Reply::Entry(entry)) | Ok(Reply::Created(entry, _))) = made else { panic!("{made:?}") };
        let below = entry.attr.ino;
        let bound = "durability:global;allocated_inodes:10;interfere:block;relax:consistency";
        assert_eq!(get(fs, below, "bound").unwrap(), bound);
        assert!(!listed(fs, below).contains("bound"), "copies do not get it");
        let set_below =
            |fs: &mut Harness, setting, value| set_as(fs, &owner, below, (setting, value), XattrMode::Any);
        assert_eq!(set_below(fs, "consistency", "invisible"), Ok(Reply::Done));
        for (setting, value) in [
            ("durability", "local"),
            ("interfere", "allow"),
            ("allocated_inodes", "11"),
            ("relax", "all"),
            ("bound", "relax:all"),
        ] {
            assert_eq!(set_below(fs, setting, value), Err(Errno::EPERM), "{setting}");
        }
        let remove = |setting| Request::RemoveXattr { ino: below, name: attribute(setting) };
        for setting in ["durability", "relax", "bound"] {
            assert_eq!(fs.ask_as(&owner, remove(setting)), Err(Errno::EPERM), "{setting}");
        }
        assert_eq!(set_below(fs, "relax", "none"), Ok(Reply::Done));
        let decouple = |fs: &mut Harness, inodes| {
            let value = encode(&Decouple { id: 5, inodes }).into();
            let name = DECOUPLE.as_bytes().into();
            fs.ask_as(
                &owner,
                Request::SetXattr { ino: below, name, value, mode: XattrMode::Any, kill_sgid: false },
            )
        };
        assert_eq!(decouple(fs, 22), Err(Errno::EPERM));
        assert_eq!(decouple(fs, 20), Ok(Reply::Done));
        // Root is not bound.
        assert_eq!(set(fs, below, "durability", "none"), Ok(Reply::Done));
        assert_eq!(set(fs, below, "bound", "relax:all"), Ok(Reply::Done));
        assert_eq!(set_below(fs, "relax", "all"), Ok(Reply::Done));
    });
}
