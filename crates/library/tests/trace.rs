//! Tracing: the spans of an operation on all servers form one tree, in which each part lies within
//! its parent.

use crate::common;

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use espalier_library::{Credentials, FileSystem, Traced};
use espalier_runtime::trace_of;
use espalier_timeline::{Id, NodeId, Operation, Span, operations};

/// Longer than the test runs.
const LASTING: Duration = Duration::from_secs(600);

/// A recorder of spans, and the first number to read.
struct Traces<'a> {
    client: &'a FileSystem,
    stores: Vec<PathBuf>,
    from: Vec<u64>,
}

impl<'a> Traces<'a> {
    fn begin(client: &'a FileSystem, stores: Vec<PathBuf>) -> Self {
        let reported = stores.iter().map(|store| trace_of(store, None, LASTING).unwrap());
        let from =
            [client.trace(None, LASTING)].into_iter().chain(reported).map(|reported| reported.next).collect();
        Self { client, stores, from }
    }

    fn spans(&self) -> Vec<Span> {
        let of_client = self.client.trace(Some(self.from[0]), LASTING);
        let reported = self.stores.iter().zip(&self.from[1..]);
        let reported = reported.map(|(store, from)| trace_of(store, Some(*from), LASTING).unwrap());
        let check = |Traced { lost, spans, .. }: Traced| {
            assert_eq!(lost, 0);
            spans
        };
        [of_client].into_iter().chain(reported).flat_map(check).collect()
    }
}

/// The tree of an operation by depth, place and kind; checks that each part lies within its parent.
fn shape(operation: &Operation<'_>) -> Vec<(usize, String)> {
    let mut above: Vec<&Span> = Vec::new();
    let mut shape = Vec::new();
    for step in &operation.steps {
        above.truncate(step.depth);
        if let Some(whole) = above.last() {
            let lies_within = whole.begin <= step.span.begin && step.span.end <= whole.end;
            assert!(lies_within, "{:?}\nis not within\n{whole:?}", step.span);
        }
        above.push(step.span);
        let place = match step.span.place {
            NodeId::Client(_) => "client".to_string(),
            place => place.to_string(),
        };
        shape.push((step.depth, format!("{place}: {}", step.span.kind)));
    }
    shape
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_spans_of_an_operation_are_one_tree() {
    let (url, stores) = common::cluster(2);
    let fs = FileSystem::connect(&url, &Credentials::Insecure).await.unwrap();
    fs.create_dir("/untraced").await.unwrap();
    let traces = Traces::begin(&fs, stores);
    fs.create_file("/small", 0o644).await.unwrap();
    // Each data server has a strip of the file.
    fs.write("/big", &vec![1; 200_000]).await.unwrap();
    assert_eq!(fs.read("/big").await.unwrap().len(), 200_000);

    let spans = traces.spans();
    let operations = operations(&spans);
    let shapes: Vec<_> = operations.iter().map(shape).collect();
    let of = |kind: &str| shapes.iter().filter(|shape| shape[0].1 == kind).collect::<Vec<_>>();
    let expected =
        [(0, "client: mknod"), (1, "client: mknod"), (2, "rank 0: mknod"), (3, "rank 0: journal append")];
    let expected: Vec<_> = expected.iter().map(|(depth, text)| (*depth, text.to_string())).collect();
    assert_eq!(of("client: mknod"), [&expected]);
    assert!(of("client: mkdir").is_empty(), "it precedes the requested numbers");
    // The client itself sends requests to data servers.
    let reads: Vec<_> = of("client: read").into_iter().flatten().collect();
    for number in 0..2 {
        let step = (2, format!("data server {number}: read"));
        assert!(reads.contains(&&step), "{reads:?}");
        assert!(reads.contains(&&(3, step.1)), "{reads:?}");
    }
    // Each span of a data server has a parent at the client.
    let is_exclusive = |id: &Id| matches!((id.from, id.to), (NodeId::Client(_), NodeId::Data(_)));
    assert_eq!(operations.iter().filter_map(|operation| operation.root().id).find(is_exclusive), None);
    fs.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_address_or_path_is_an_error() {
    let (_, stores) = common::cluster(1);
    for question in ["trace x 1", "trace - x", "trace -1 1", "trace 99999999999999999999 1", "trace"] {
        let mut stream = UnixStream::connect(stores[0].join("control")).unwrap();
        writeln!(stream, "{question}").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        assert!(answer.contains("error"), "{question}: {answer}");
    }
    let nobody = tempfile::tempdir().unwrap();
    let error = trace_of(nobody.path(), None, LASTING).unwrap_err().to_string();
    assert!(error.contains("is it mounted or served"), "{error}");
    // The socket of another program.
    let listener = std::os::unix::net::UnixListener::bind(nobody.path().join("control")).unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
    });
    assert!(trace_of(nobody.path(), None, LASTING).is_err());
    other.join().unwrap();
}
