//! Calls on a remote dentry: the name is at one rank, the inode at another.

use espalier_client::{Answer, Call, Client, Next, RemoteEntry};
use espalier_proto::{
    AllocateMode, Attr, Entry, Errno, FileType, Ino, Location, Name, NewNode, Opened, RangeOp, Reply,
    Request, Time,
};

const FAR: Ino = Ino(1 << 48 | 7);

fn lookup() -> Call<'static> {
    Call::Request(Request::Lookup { dir: Ino::ROOT, name: Name::new(b"a").expect("a name") })
}

fn mkdir() -> Call<'static> {
    let (dir, name, node) = (Ino::ROOT, Name::new(b"a").expect("a name"), NewNode::Directory);
    Call::Request(Request::Create {
        dir,
        name,
        node,
        perm: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
        writeback: None,
    })
}

/// The reply of the name's rank.
fn sight(client: &mut Client, call: &Call<'_>) -> RemoteEntry {
    let (ino, kind, cacheable, name_leased) = (FAR, FileType::Directory, true, true);
    match client.reply(call, Ok(Reply::Remote { ino, kind, at: ino.rank(), cacheable, name_leased })) {
        Next::Find(Request::Find { ino: FAR, .. }, remote_entry) => remote_entry,
        next => panic!("{next:?}"),
    }
}

fn entry() -> Entry {
    let attr = Attr::new(FAR, FileType::Directory, 0o755, Time::new(1, 0));
    Entry {
        attr,
        cacheable: false,
        name_leased: false,
        attr_leased: true,
        sole_holder: false,
        location: Location::Table,
        reclaim_token: 1,
    }
}

#[test]
fn replies_of_two_ranks_form_one_answer() {
    let mut client = Client::default();
    let remote_entry = sight(&mut client, &lookup());
    let next = client.found(&lookup(), &remote_entry, false, Ok(Reply::Entry(entry())));
    let Next::Answer(Ok(Answer::Entry(found))) = next else { panic!("{next:?}") };
    assert_eq!(found, Entry { cacheable: true, name_leased: true, ..entry() });
    let revoked = RemoteEntry { leased: false, ..remote_entry };
    let next = client.found(&lookup(), &revoked, false, Ok(Reply::Entry(entry())));
    let Next::Answer(Ok(Answer::Entry(found))) = next else { panic!("{next:?}") };
    assert_eq!(found, Entry { cacheable: true, name_leased: false, ..entry() });
}

#[test]
fn stale_inode_is_looked_up_once_more() {
    let mut client = Client::default();
    let remote_entry = sight(&mut client, &lookup());
    let next = client.found(&lookup(), &remote_entry, false, Err(Errno::ESTALE));
    assert!(matches!(next, Next::Ask(Request::Lookup { .. })), "{next:?}");
    // The name is still bound to the inode: a retry would loop forever.
    let next = client.found(&lookup(), &remote_entry, true, Err(Errno::ESTALE));
    assert!(matches!(next, Next::Answer(Err(Errno::ESTALE))), "{next:?}");
    let next = client.found(&lookup(), &remote_entry, false, Err(Errno::EINTR));
    assert!(matches!(next, Next::Answer(Err(Errno::EINTR))), "{next:?}");
}

#[test]
fn mkdir_succeeds_even_if_directory_is_removed_later() {
    let mut client = Client::default();
    let remote_entry = sight(&mut client, &mkdir());
    let next = client.found(&mkdir(), &remote_entry, false, Err(Errno::ESTALE));
    let Next::Answer(Ok(Answer::Entry(made))) = next else { panic!("{next:?}") };
    assert_eq!((made.attr.ino, made.attr.kind), (FAR, FileType::Directory));
    assert!(!made.name_leased && !made.attr_leased, "it carries no lease");
}

/// The caller falls back to reading and writing.
#[test]
fn copy_between_ranks_is_left_to_the_caller() {
    let mut client = Client::default();
    let near = Ino(8);
    let how = espalier_proto::OpenHow {
        access: espalier_proto::Access::READ,
        ..espalier_proto::OpenHow::default()
    };
    for ino in [FAR, near, Ino(9)] {
        let opened = Opened { streamed: true, ..Opened::default() };
        client.reply(&Call::Request(Request::Open { ino, how }), Ok(Reply::Opened(opened)));
    }
    let kill_suid_gid = false;
    let copy = |to| {
        Call::range(to, RangeOp::Copy { from: near, from_offset: 0, offset: 0, length: 1 }, kill_suid_gid)
    };
    assert!(matches!(client.start(&copy(FAR)), Next::Answer(Err(Errno::EXDEV))));
    assert!(matches!(client.start(&copy(Ino(9))), Next::Ask(Request::Extend { .. })));
    let mode = AllocateMode::KEEP_SIZE;
    let punch = Call::range(FAR, RangeOp::Allocate { offset: 0, length: 1, mode }, kill_suid_gid);
    assert!(matches!(client.start(&punch), Next::Ask(Request::Extend { offset: 0, length: 0, .. })));
    let Next::Stream(io) = client.reply(&punch, Ok(Reply::Granted)) else { panic!() };
    assert_eq!(io.rank(), FAR.rank());
}
