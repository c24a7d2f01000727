//! Files that clients make step by step.

use std::sync::Arc;

use espalier_meta::{Acknowledge, Config, Input, Striping};
use espalier_policy::{Key, Policy};
use espalier_proto::*;

use crate::harness::{DataServers, Harness, ROOT_CALLER, config, name, open_how};

pub const ONE: ClientId = ClientId(101);
pub const OTHER: ClientId = ClientId(102);
const SERVERS: u16 = 2;

/// Data servers and two clients that make files step by step.
pub fn cluster(settings: &[(Key, &str)]) -> Harness {
    let mut policy = Policy::NONE;
    policy.set(Key::Create, "client").unwrap();
    settings.iter().for_each(|(key, text)| policy.set(*key, text).unwrap());
    let servers = (0..SERVERS).map(ServerId).collect();
    let striping = Striping::new(Distribution::SimpleStripe { strip: 10 }, servers, 2).unwrap().delegated();
    let (session_ms, acknowledge) = (Some(10_000), Acknowledge::Written);
    let striping = Some(striping);
    let mut fs = Harness::with(Config { striping, session_ms, acknowledge, policy, ..config() });
    fs.data = DataServers::new(SERVERS);
    connect(&mut fs);
    fs
}

pub fn connect(fs: &mut Harness) {
    for client in [ONE, OTHER] {
        fs.input(Input::Connect { client, leases: false, resumes: false });
    }
}

pub const STRIPED: [(Key, &str); 1] = [(Key::Stuffing, "false")];

pub fn ask(fs: &mut Harness, client: ClientId, request: Request) -> Result<Reply, Errno> {
    let id = fs.send_from(client, &ROOT_CALLER, request);
    while !fs.answers.contains_key(&id) && fs.run_one() {}
    fs.answers.remove(&id).expect("an answer")
}

fn create(fs: &mut Harness, client: ClientId, exclusive: bool) -> Result<Reply, Errno> {
    let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
    let (dir, name, perm, umask) = (Ino::ROOT, name("file"), 0o644, 0);
    ask(fs, client, Request::Create { dir, name, node, perm, umask, open, exclusive, writeback: None })
}

fn made(fs: &mut Harness, client: ClientId) -> Made {
    match create(fs, client, true) {
        Ok(Reply::Made(made)) => *made,
        other => panic!("{other:?}"),
    }
}

fn layout(made: &Made) -> Arc<Layout> {
    made.delegation.as_ref().unwrap().layout.clone().unwrap()
}

fn make_datafiles(fs: &Harness, made: &Made) {
    let layouts = made.delegation.iter().filter_map(|given| given.layout.as_ref());
    for server in layouts.flat_map(|layout| layout.servers()) {
        let request = DataRequest::Create { ino: made.ino, sync: true };
        assert!(made.delegation.as_ref().unwrap().capability.permits(&request));
        fs.data.ask(*server, &request).unwrap();
    }
}

fn set_layout(fs: &mut Harness, client: ClientId, made: &Made) -> Result<Reply, Errno> {
    ask(fs, client, Request::SetLayout { ino: made.ino, layout: layout(made) })
}

fn give_name(fs: &mut Harness, client: ClientId, ino: Ino) -> Result<Entry, Errno> {
    match ask(fs, client, Request::Link { ino, dir: Ino::ROOT, name: name("file") })? {
        Reply::Entry(entry) => Ok(entry),
        other => panic!("{other:?}"),
    }
}

/// A client's file that has been made and closed.
pub fn file(fs: &mut Harness, client: ClientId) -> Made {
    let made = made(fs, client);
    make_datafiles(fs, &made);
    if made.delegation.is_some() {
        set_layout(fs, client, &made).unwrap();
    }
    give_name(fs, client, made.ino).unwrap();
    ask(fs, client, Request::Release { ino: made.ino }).unwrap();
    made
}

#[test]
fn a_client_makes_inode_datafiles_layout_and_name() {
    let fs = &mut cluster(&STRIPED);
    let made = made(fs, ONE);
    assert_eq!(layout(&made).servers().len(), 2);
    make_datafiles(fs, &made);
    let other = Layout::new(Distribution::Basic, [ServerId(1)].into()).unwrap().into();
    assert_eq!(ask(fs, ONE, Request::SetLayout { ino: made.ino, layout: other }), Err(Errno::EINVAL));
    assert_eq!(set_layout(fs, OTHER, &made), Err(Errno::EBADF), "another client's file");
    assert_eq!(set_layout(fs, ONE, &made), Ok(Reply::Done));
    assert_eq!(ask(fs, OTHER, lookup()), Ok(Reply::Absent { cacheable: true }));
    // No data server needs to be asked.
    fs.data.down = true;
    let entry = give_name(fs, ONE, made.ino).unwrap();
    assert_eq!((entry.attr.nlink, entry.attr.size), (1, 0));
    fs.data.down = false;
    assert_eq!(create(fs, OTHER, true), Err(Errno::EEXIST));
    let Ok(Reply::Created(entry, _)) = create(fs, OTHER, false) else { panic!("it is opened") };
    assert_eq!(entry.attr.ino, made.ino);
    assert_eq!(fs.fsck(), []);
}

fn lookup() -> Request {
    Request::Lookup { dir: Ino::ROOT, name: name("file") }
}

/// The machine does not report what the client queries itself.
#[test]
fn a_client_measures_itself() {
    let fs = &mut cluster(&STRIPED);
    let made = file(fs, ONE);
    fs.data.down = true;
    for request in [lookup(), Request::GetAttr { ino: made.ino }] {
        let Ok(Reply::Unmeasured(_, given)) = ask(fs, OTHER, request) else { panic!("it is measured") };
        let measure = DataRequest::Stat { inos: vec![made.ino] };
        let read = DataRequest::read(made.ino, 0, 1);
        assert_eq!((given.capability.permits(&measure), given.capability.permits(&read)), (true, false));
    }
}

#[test]
fn file_without_datafiles_is_made_in_two_steps() {
    for settings in [&[(Key::Stuffing, "true")][..], &[STRIPED[0], (Key::Precreation, "true")]] {
        let fs = &mut cluster(settings);
        let made = made(fs, ONE);
        assert_eq!(made.delegation, None);
        give_name(fs, ONE, made.ino).unwrap();
        assert_eq!(fs.fsck(), []);
    }
}

/// After any step, and whether the machine crashes or not.
#[test]
fn unfinished_client_create_leaves_nothing() {
    for (steps, crashes) in (0..4).flat_map(|steps| [(steps, false), (steps, true)]) {
        let mut fs = cluster(&STRIPED);
        let made = made(&mut fs, ONE);
        if steps > 0 {
            make_datafiles(&fs, &made);
        }
        if steps > 1 {
            set_layout(&mut fs, ONE, &made).unwrap();
        }
        let is_named = steps > 2 && give_name(&mut fs, ONE, made.ino).is_ok();
        if crashes {
            fs = fs.crash();
        }
        fs.input(Input::Leave { client: ONE });
        fs.input(Input::Leave { client: OTHER });
        fs.drain();
        assert_eq!(fs.fsck(), [], "{steps}");
        // A power failure may have lost the name, and with it the file.
        let datafiles = if is_named && !crashes { usize::from(SERVERS) } else { 0 };
        assert_eq!(fs.data.all().len(), datafiles, "{steps} {crashes}");
    }
}

/// The answer may be lost with the machine: then the client repeats the request, and gets the same
/// inode.
#[test]
fn create_repeated_after_restart_is_completed() {
    let mut fs = cluster(&STRIPED);
    let first = made(&mut fs, ONE);
    let id = fs.answered.last().unwrap().1;
    fs.checkpoint();
    let mut fs = fs.crash();
    connect(&mut fs);
    let (node, open) = (NewNode::Regular, Some(open_how(Access::WRITE, false)));
    let (dir, file, perm, umask, exclusive) = (Ino::ROOT, name("file"), 0o644, 0, true);
    let request = Request::Create { dir, name: file, node, perm, umask, open, exclusive, writeback: None };
    let caller = ROOT_CALLER;
    let reclaim = Request::Reclaim { held: vec![], last: true, again: vec![] };
    for (from, number, request) in [(OTHER, 1, reclaim.clone()), (ONE, id + 1, reclaim), (ONE, id, request)] {
        let (id, below, caller) = (RequestId(number), RequestId(number.min(id)), caller.clone());
        fs.input(Input::Request { from, id, below, follows: Vec::new(), caller, request });
    }
    fs.next = id + 1;
    fs.run_until_idle();
    let Some(Ok(Reply::Made(again))) = fs.answers.remove(&id) else { panic!("{:?}", fs.answers) };
    assert_eq!(again.ino, first.ino);
    make_datafiles(&fs, &again);
    set_layout(&mut fs, ONE, &again).unwrap();
    give_name(&mut fs, ONE, again.ino).unwrap();
    assert_eq!(fs.fsck(), []);
}
