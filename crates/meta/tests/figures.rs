//! Statistics of the machine.

use crate::harness::{Harness, ROOT_CALLER, name};
use espalier_meta::{Input, Now, Outbox, Waiting};
use espalier_proto::*;

#[test]
fn paths_and_directories_as_far_as_they_are_known() {
    let mut fs = Harness::new();
    let dir = fs.create(Ino::ROOT, "dir", NewNode::Directory).unwrap();
    let below = fs.create(dir, "below", NewNode::Directory).unwrap();
    let file = fs.create(below, "file", NewNode::Regular).unwrap();
    assert_eq!(fs.meta.path_of(Ino::ROOT).unwrap(), b"/");
    assert_eq!(fs.meta.path_of(file).unwrap(), b"/dir/below/file");
    assert_eq!((fs.meta.directory_of(below), fs.meta.directory_of(file)), (Some(below), Some(below)));
    fs.ask(Request::Link { ino: file, dir, name: name("other") }).unwrap();
    assert_eq!((fs.meta.path_of(file), fs.meta.directory_of(file)), (None, None), "it has two names");
    assert_eq!((fs.meta.path_of(Ino(999)), fs.meta.directory_of(Ino(999))), (None, None));
    let figures = fs.meta.figures();
    assert_eq!((figures.inodes, figures.directories), (4, 3));
}

#[test]
fn figures_name_what_a_request_waits_for() {
    let mut fs = Harness::new();
    fs.create(Ino::ROOT, "file", NewNode::Regular).unwrap();
    let mut ask = |id, request| {
        let input = Input::Request {
            from: ClientId(1),
            id: RequestId(id),
            below: RequestId(id),
            follows: Vec::new(),
            caller: ROOT_CALLER,
            request,
        };
        let mut out = Outbox::default();
        fs.meta.on(Now { time: fs.now, uptime_ms: 0, queued: 0 }, input, &mut out);
        out.waiting.into_iter().map(|(_, id, waiting)| (id, waiting)).collect::<Vec<_>>()
    };
    assert_eq!(ask(7, Request::GetAttr { ino: Ino::ROOT }), []);
    assert_eq!(ask(8, Request::GetAttr { ino: Ino(999) }), [(RequestId(8), Waiting::Disk)]);
    assert_eq!(ask(9, Request::Fsync { ino: Ino::ROOT }), [(RequestId(9), Waiting::Journal)]);
}
