//! Calls to servers in this process.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use espalier_library::{
    ConnectError, ConnectOptions, Credentials, FileSystem, FileType, Messages, OpenOptions, User, blocking,
};

use crate::RANKS;
use crate::common::servers;

fn server() -> String {
    servers(RANKS)
}

async fn connect(url: &str) -> FileSystem {
    FileSystem::connect(url, &Credentials::Insecure).await.unwrap()
}

fn errno<T: std::fmt::Debug>(outcome: io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

const ENOENT: i32 = 2;
const EBADF: i32 = 9;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ENAMETOOLONG: i32 = 36;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;
const ENODATA: i32 = 61;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_made_read_written_and_removed() {
    let fs = connect(&server()).await;
    fs.create_dir("/dir").await.unwrap();
    assert_eq!(errno(fs.create_dir("/dir/").await), EEXIST);
    fs.write("/dir/file", b"some bytes").await.unwrap();
    assert_eq!(fs.read("dir/file").await.unwrap(), b"some bytes");
    let file = OpenOptions::new().read(true).write(true).open(&fs, "/dir/file").await.unwrap();
    file.write_all_at(b"SOME", 0).await.unwrap();
    file.append(b"!").await.unwrap();
    file.sync_all().await.unwrap();
    let mut bytes = [0; 20];
    assert_eq!(file.read_at(&mut bytes, 5).await.unwrap(), 6);
    assert_eq!(&bytes[..6], b"bytes!");
    file.set_len(3).await.unwrap();
    assert_eq!(file.metadata().await.unwrap().len(), 3);
    assert_eq!(fs.read("/dir/file").await.unwrap(), b"SOM");
    fs.remove_file("/dir/file").await.unwrap();
    assert_eq!(errno(fs.metadata("/dir/file").await), ENOENT);
    assert_eq!(file.read_at(&mut bytes, 0).await.unwrap(), 3, "the open file can be read");
    drop(file);

    let read_only = fs.create("/dir/other").await.unwrap();
    assert_eq!(errno(read_only.read_at(&mut bytes, 0).await), EBADF);
    assert_eq!(errno(fs.open("/dir/other").await.unwrap().append(b"x").await), EBADF);
    assert_eq!(errno(OpenOptions::new().open(&fs, "/dir/other").await), EINVAL);
    let mut new = OpenOptions::new();
    assert_eq!(errno(new.write(true).create_new(true).open(&fs, "/dir/other").await), EEXIST);
    assert_eq!(errno(fs.open("/dir").await), EISDIR);
    assert_eq!(errno(fs.create("/dir").await), EISDIR);
    assert_eq!(errno(fs.metadata("/dir/other/x").await), ENOTDIR);
    assert_eq!(errno(fs.metadata("/dir/other/").await), ENOTDIR);
    assert_eq!(errno(fs.metadata("").await), ENOENT);
    assert_eq!(errno(fs.metadata("x".repeat(256)).await), ENAMETOOLONG);
    assert_eq!(errno(fs.remove_dir("/dir").await), ENOTEMPTY);
    fs.remove_file("/dir/other").await.unwrap();
    fs.remove_dir("/dir").await.unwrap();
    assert_eq!(errno(fs.metadata("/dir").await), ENOENT);
    fs.close().await;
}

/// Revocations and recalls are sent only to clients that have cached the inode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_inode_gets_no_recall() {
    let url = server();
    let (one, other, third) = (connect(&url).await, connect(&url).await, connect(&url).await);
    one.write("/file", b"1").await.unwrap();
    other.metadata("/file").await.unwrap();
    third.metadata("/").await.unwrap();
    one.remove_file("/file").await.unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while other.messages().notices == 0 {
        assert!(std::time::Instant::now() < deadline, "{:?}", other.messages());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Messages that precede this answer have arrived by then.
    assert_eq!(errno(third.metadata("/file").await), ENOENT);
    assert_eq!(third.messages().notices, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn big_files_are_streams() {
    let fs = connect(&server()).await;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs.write("/big", &bytes).await.unwrap();
    assert_eq!(fs.metadata("/big").await.unwrap().len(), 3_000_000);
    assert!(fs.read("/big").await.unwrap() == bytes);
    let file = OpenOptions::new().write(true).open(&fs, "/big").await.unwrap();
    file.append(b"end").await.unwrap();
    assert_eq!(fs.metadata("/big").await.unwrap().len(), 3_000_003);
    assert!(fs.read("/big").await.unwrap().ends_with(b"end"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_links_and_file_attributes() {
    let fs = connect(&server()).await;
    fs.create_dir("/a").await.unwrap();
    fs.create_dir("/a/b").await.unwrap();
    fs.write("/a/b/file", b"1").await.unwrap();
    fs.symlink("b/../b/file", "/a/link").await.unwrap();
    fs.symlink("/a", "/a/b/up").await.unwrap();
    fs.symlink("loop", "/loop").await.unwrap();
    assert_eq!(fs.read("/a/b/up/b/up/link").await.unwrap(), b"1");
    assert_eq!(fs.read("/a/b/../../a/./link").await.unwrap(), b"1");
    assert_eq!(fs.read_link("/a/link").await.unwrap().to_str(), Some("b/../b/file"));
    assert!(fs.symlink_metadata("/a/link").await.unwrap().is_symlink());
    assert!(fs.metadata("/a/link").await.unwrap().is_file());
    assert!(fs.symlink_metadata("/a/b/up/").await.unwrap().is_dir());
    assert_eq!(errno(fs.metadata("/loop").await), ELOOP);
    assert_eq!(errno(fs.read_link("/a").await), EINVAL);
    fs.write("/a/link", b"through").await.unwrap();
    assert_eq!(fs.read("/a/b/file").await.unwrap(), b"through");

    fs.hard_link("/a/b/file", "/twin").await.unwrap();
    assert_eq!(fs.metadata("/a/b/file").await.unwrap().nlink(), 2);
    fs.rename("/twin", "/a/renamed").await.unwrap();
    assert_eq!(errno(fs.metadata("/twin").await), ENOENT);
    assert_eq!(fs.read("/a/renamed").await.unwrap(), b"through");
    fs.write("/over", b"gone").await.unwrap();
    fs.rename("/over", "/a/renamed").await.unwrap();
    assert_eq!(fs.read("/a/renamed").await.unwrap(), b"gone");
    assert_eq!(fs.metadata("/a/b/file").await.unwrap().nlink(), 1);

    fs.set_permissions("/over/../a/b/file", 0o600).await.unwrap_err();
    fs.set_permissions("/a/b/file", 0o640).await.unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000, 5);
    fs.set_times("/a/b/file", None, Some(time)).await.unwrap();
    let reported = fs.metadata("/a/b/file").await.unwrap();
    assert_eq!((reported.permissions(), reported.modified(), reported.len()), (0o640, time, 7));
    assert!(reported.created() > SystemTime::now() - Duration::from_secs(3600));

    fs.set_xattr("/a/b/file", "user.colour", b"green").await.unwrap();
    assert_eq!(fs.get_xattr("/a/b/file", "user.colour").await.unwrap(), b"green");
    assert_eq!(fs.list_xattrs("/a/b/file").await.unwrap(), ["user.colour"]);
    fs.remove_xattr("/a/b/file", "user.colour").await.unwrap();
    assert_eq!(errno(fs.get_xattr("/a/b/file", "user.colour").await), ENODATA);
    // One server reports the figures.
    assert!(fs.capacity("/").await.unwrap().files >= if RANKS == 1 { 8 } else { 1 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_directory_is_listed_whole() {
    let fs = connect(&server()).await;
    fs.create_dir("/dir").await.unwrap();
    let names: BTreeSet<String> = (0..1500).map(|number| format!("file{number}")).collect();
    for name in &names {
        fs.create_file(format!("/dir/{name}"), 0o644).await.unwrap();
    }
    fs.create_dir("/dir/sub").await.unwrap();
    let mut dir = fs.read_dir("/dir").await.unwrap();
    let mut listed = BTreeSet::new();
    while let Some(entry) = dir.next_entry().await.unwrap() {
        let name = entry.file_name().to_str().unwrap().to_string();
        let kind = if name == "sub" { FileType::Directory } else { FileType::Regular };
        assert_eq!(entry.file_type(), kind);
        assert!(listed.insert(name));
    }
    assert!(listed.remove("sub"));
    assert_eq!(listed, names);
    assert_eq!(errno(fs.read_dir("/dir/file1").await), ENOTDIR);
}

/// Requests sent and revocations received since `before`.
fn since(fs: &FileSystem, before: Messages) -> (u64, u64) {
    let now = fs.messages();
    assert_eq!(now.streams, before.streams);
    (now.requests - before.requests, now.revocations - before.revocations)
}

/// Clients that contend for a directory get no leases on its contents for a while; those on names
/// and permissions stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contended_directory_costs_one_message() {
    let url = server();
    let (one, other) = (connect(&url).await, connect(&url).await);
    one.create_dir("/top").await.unwrap();
    one.create_dir("/top/sub").await.unwrap();
    let mut most = 0;
    for round in 0..20 {
        for (number, fs) in [&one, &other].into_iter().enumerate() {
            for dir in ["/top", "/top/sub"] {
                fs.create_file(format!("{dir}/{round}-{number}"), 0o644).await.unwrap();
                fs.metadata(dir).await.unwrap();
            }
        }
        let before = one.messages();
        assert!(one.metadata("/top/sub").await.unwrap().is_dir());
        most = most.max(since(&one, before).0);
    }
    assert_eq!(most, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_stat_and_unlink_cost_one_message_and_leased_entries_none() {
    let url = server();
    let fs = connect(&url).await;
    fs.create_dir("/a").await.unwrap();
    fs.create_dir("/a/dir").await.unwrap();
    fs.write("/a/dir/theirs", b"1234").await.unwrap();
    let mut before = fs.messages();
    let mut cost = |what: &str, requests: u64| {
        assert_eq!(since(&fs, before).0, requests, "{what}");
        before = fs.messages();
    };
    fs.create_file("/a/dir/new", 0o644).await.unwrap();
    cost("create", 1);
    fs.metadata("/a/dir/new").await.unwrap();
    cost("stat of what it has made", 0);
    fs.remove_file("/a/dir/new").await.unwrap();
    cost("unlink", 1);
    fs.metadata("/a/dir/new").await.unwrap_err();
    cost("stat of what it has removed", 0);
    fs.metadata("/a/dir/new").await.unwrap_err();
    cost("stat of what is not there", 0);
    fs.metadata("/a/dir/theirs").await.unwrap();
    cost("stat of what was written", 0);
    fs.metadata("/a/dir/theirs").await.unwrap();
    cost("stat of what is leased", 0);

    let other = connect(&url).await;
    let begun = other.messages();
    other.metadata("/a/dir/theirs").await.unwrap();
    // One request per directory, and one more at the other rank for a remote one, perhaps with its
    // greeting.
    let sent_count = since(&other, begun).0;
    assert!(if RANKS == 1 { sent_count == 3 } else { (5..=7).contains(&sent_count) }, "{sent_count}");
    let begun = other.messages();
    other.metadata("/a/dir/none").await.unwrap_err();
    assert_eq!(since(&other, begun).0, 1);
    let begun = other.messages();
    other.metadata("/a/dir/theirs").await.unwrap();
    assert_eq!(since(&other, begun), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_changes_of_each_other_immediately() {
    let url = server();
    let (a, b) = (connect(&url).await, connect(&url).await);
    a.create_dir("/dir").await.unwrap();
    for round in 0..30_usize {
        let (one, two) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let path = format!("/dir/{}", round / 2 % 3);
        assert_eq!(errno(two.metadata(&path).await), ENOENT);
        one.write(&path, &vec![b'x'; round]).await.unwrap();
        assert_eq!(two.metadata(&path).await.unwrap().len(), round as u64);
        one.set_permissions(&path, 0o600).await.unwrap();
        assert_eq!(two.metadata(&path).await.unwrap().permissions(), 0o600);
        two.rename(&path, "/dir/moved").await.unwrap();
        assert_eq!(errno(one.metadata(&path).await), ENOENT);
        assert!(one.metadata("/dir/moved").await.unwrap().is_file());
        one.remove_file("/dir/moved").await.unwrap();
        assert_eq!(errno(two.metadata("/dir/moved").await), ENOENT);
    }
    assert!(a.messages().revocations > 0 && b.messages().revocations > 0);
}

/// Creates files until one is acknowledged by write-back: the server must have created the
/// directory durably and allocated inode numbers, which may take a while.
async fn first_writeback(fs: &FileSystem, dir: &str) -> String {
    for file in 0..1_000 {
        let (before, path) = (fs.messages(), format!("{dir}/early {file}"));
        fs.create_file(&path, 0o644).await.unwrap();
        if fs.messages().replies == before.replies {
            return path;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    panic!("no create is acknowledged by write-back");
}

/// A single-threaded runtime receives nothing while the test does not wait.
#[tokio::test]
async fn writeback_option_acknowledges_before_server() {
    let url = server();
    for uses_writeback in [true, false] {
        let mut options = ConnectOptions::new();
        let fs = options.writeback(uses_writeback).connect(&url, &Credentials::Insecure).await.unwrap();
        let dir = format!("/{uses_writeback}");
        fs.create_dir(&dir).await.unwrap();
        let mut first = format!("{dir}/first");
        fs.create_file(&first, 0o644).await.unwrap();
        if uses_writeback {
            first = first_writeback(&fs, &dir).await;
            fs.sync_all(&dir).await.unwrap();
        }
        let before = fs.messages();
        for file in 0..10 {
            fs.write(format!("{dir}/{file}"), b"bytes").await.unwrap();
        }
        fs.remove_file(&first).await.unwrap();
        let (requests, replies) = (since(&fs, before).0, fs.messages().replies - before.replies);
        // Operations that no call waits for are collected until the first reply, up to 16.
        assert_eq!((requests > 17, replies == 0), (!uses_writeback, uses_writeback), "{requests} {replies}");
        if uses_writeback {
            fs.sync_all(&dir).await.unwrap();
        }
        let other = connect(&url).await;
        assert_eq!(errno(other.metadata(&first).await), ENOENT);
        assert_eq!(other.read(format!("{dir}/9")).await.unwrap(), b"bytes");
        fs.create_file(format!("{dir}/last"), 0o644).await.unwrap();
        fs.close().await;
        other.metadata(format!("{dir}/last")).await.unwrap();
    }
}

/// Leases are longer than this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departed_client_blocks_nothing() {
    let url = server();
    let fs = connect(&url).await;
    for is_closed in [true, false] {
        fs.write("/file", b"x").await.unwrap();
        let gone = connect(&url).await;
        gone.metadata("/file").await.unwrap();
        if is_closed {
            gone.close().await;
        } else {
            drop(gone);
        }
        tokio::time::timeout(Duration::from_secs(120), fs.remove_file("/file")).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_permission_change_applies_to_cached_entries() {
    let url = server();
    let user = User { uid: 1000, gid: 1000, groups: Vec::new(), umask: 0o022 };
    let root = User { uid: 0, gid: 0, ..user.clone() };
    let fs = FileSystem::connect_as(&url, &Credentials::Insecure, user).await.unwrap();
    let root = FileSystem::connect_as(&url, &Credentials::Insecure, root).await.unwrap();
    root.create_dir("/dir").await.unwrap();
    root.write("/dir/file", b"x").await.unwrap();
    fs.metadata("/dir/file").await.unwrap();
    root.set_permissions("/dir", 0o700).await.unwrap();
    assert_eq!(errno(fs.metadata("/dir/file").await), EACCES);
    assert_eq!(errno(fs.read_dir("/dir").await), EACCES);
    assert_eq!(errno(fs.create_file("/dir/x", 0o644).await), EACCES);
    root.set_permissions("/dir", 0o755).await.unwrap();
    fs.metadata("/dir/file").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_and_some_given_up() {
    let fs = connect(&server()).await;
    fs.create_dir("/dir").await.unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let fs = fs.clone();
            tokio::spawn(async move {
                for number in 0..20 {
                    let path = format!("/dir/{task}-{number}");
                    fs.write(&path, path.as_bytes()).await.unwrap();
                    assert_eq!(fs.read(&path).await.unwrap(), path.as_bytes());
                    // The answer is not awaited; the file that the call opens is closed.
                    let _ = tokio::time::timeout(Duration::ZERO, fs.open(&path)).await;
                    fs.remove_file(&path).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(fs.read_dir("/dir").await.unwrap().next_entry().await.unwrap().is_none());
}

#[test]
fn blocking_client_needs_no_runtime() {
    let url = server();
    let fs = blocking::FileSystem::connect(&url, &Credentials::Insecure).unwrap();
    fs.create_dir("/dir").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                let path = format!("/dir/{thread}");
                let file = fs.create(&path).unwrap();
                file.write_all_at(b"bytes", 0).unwrap();
                assert_eq!(file.metadata().unwrap().len(), 5);
                assert_eq!(fs.read(&path).unwrap(), b"bytes");
            });
        }
    });
    assert_eq!(fs.read_dir("/dir").unwrap().len(), 4);
    assert_eq!(fs.metadata("/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    let file = fs.open("/dir/1").unwrap();
    drop(fs);
    assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 5);
}

#[tokio::test]
async fn connect_error_names_its_cause() {
    let connect =
        async |url: &str, credentials: &Credentials| FileSystem::connect(url, credentials).await.unwrap_err();
    let error = connect("nfs://here", &Credentials::Insecure).await;
    assert!(matches!(error, ConnectError::Url(_)), "{error}");
    let error = connect("espalier://127.0.0.1:1/", &Credentials::Insecure).await;
    assert!(matches!(error, ConnectError::Server(_)), "{error}");
    let error = connect("espalier://127.0.0.1:1/", &Credentials::Directory("/none".into())).await;
    assert!(matches!(error, ConnectError::Credentials(_)), "{error}");
    assert!(error.to_string().contains("/none/ca.pem"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_with_attributes_takes_two_rounds() {
    let url = server();
    let (fs, other) = (connect(&url).await, connect(&url).await);
    fs.create_dir("/dir").await.unwrap();
    for number in 0..40 {
        fs.write(format!("/dir/file-{number}"), &vec![0; number]).await.unwrap();
    }
    for number in 0..4 {
        fs.create_dir(format!("/dir/dir-{number}")).await.unwrap();
        fs.symlink(format!("file-{number}"), format!("/dir/link-{number}")).await.unwrap();
    }
    let before = other.messages();
    let listed = other.read_dir_plus("/dir").await.unwrap();
    let sent = other.messages().requests - before.requests;
    // Messages for the name, the listing, the links, and remote directories.
    let remote_messages = if RANKS > 1 { 4 } else { 0 };
    assert!((6..=7 + remote_messages).contains(&sent), "{sent}");
    assert_eq!(listed.len(), 48);
    for entry in listed {
        let name = entry.entry.file_name().to_str().unwrap();
        let (kind, number) = name.split_once('-').unwrap();
        let number: usize = number.parse().unwrap();
        let reported = fs.symlink_metadata(format!("/dir/{name}")).await.unwrap();
        assert_eq!((entry.metadata.ino(), entry.metadata.len()), (reported.ino(), reported.len()), "{name}");
        assert_eq!(entry.metadata.permissions(), reported.permissions());
        match kind {
            "file" => assert_eq!(entry.metadata.len(), number as u64),
            "dir" => assert!(entry.metadata.is_dir()),
            _ => assert_eq!(entry.target.unwrap().to_str().unwrap(), format!("file-{number}")),
        }
    }
    assert_eq!(errno(other.read_dir_plus("/dir/file-1").await), ENOTDIR);
    assert_eq!(errno(other.read_dir_plus("/none").await), ENOENT);
}
