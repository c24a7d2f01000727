//! Spans of operations in virtual time.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Scenario, Tracing, World};
use espalier_timeline::{Log, NodeId, Operation, Span, operations};

/// More spans than a run has.
const SPANS: usize = 100_000;

fn spans(text: &str) -> Vec<Span> {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut tracing, mut mutator) = (Tracing(Log::new(SPANS)), ());
    let mut world = World::new(&scenario, &mut tracing, &mut mutator).unwrap();
    world.run().unwrap();
    drop(world);
    let observed = tracing.0.since(Some(0));
    assert_eq!(observed.lost, 0);
    observed.spans
}

/// The steps of an operation by depth, place and kind. Each step lies within its parent, except
/// that a reply may wait for a commit that was already in progress.
fn shape(operation: &Operation<'_>) -> Vec<(usize, String)> {
    let (mut above, mut shape): (Vec<&Span>, _) = (Vec::new(), Vec::new());
    for step in &operation.steps {
        above.truncate(step.depth);
        if let Some(whole) = above.last() {
            let may_be_earlier = step.span.kind == "journal sync";
            assert!(
                (whole.begin <= step.span.begin || may_be_earlier) && step.span.end <= whole.end,
                "{:?} {whole:?}",
                step.span
            );
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

const DURABLE: &str = "[cluster]\nranks = 2\ndata = 2\nclients = 3\ndurability = \"durable\"\n[model]\npreset = \"wu\"\n\
     [policy]\nstuffing = false\n[[workload]]\nkind = \"create\"\nprocesses = 3\nfiles = 8\nbytes = \"100 KiB\"\n";

#[test]
fn a_run_has_the_same_spans_each_time() {
    let first = spans(DURABLE);
    assert!(first.len() > 100);
    assert_eq!(first, spans(DURABLE));
    assert_ne!(first, spans(&format!("seed = 2\n{DURABLE}")));
}

#[test]
fn a_durable_create_waits_for_a_sync_and_a_write_for_data_servers() {
    let spans = spans(DURABLE);
    let operations = operations(&spans);
    let shapes: Vec<_> = operations.iter().map(shape).collect();
    let first = |kind: &str| shapes.iter().find(|shape| shape[0].1 == kind).unwrap();
    let create =
        first("client: create").iter().map(|(depth, what)| (*depth, what.as_str())).collect::<Vec<_>>();
    let rank = if create[2].1.starts_with("rank 0") { "rank 0" } else { "rank 1" };
    let (served, synced) = (format!("{rank}: create"), format!("{rank}: journal sync"));
    assert_eq!(create, [(0, "client: create"), (1, "client: create"), (2, &served), (3, &synced)]);
    let writes = shapes.iter().filter(|shape| shape[0].1 == "client: write");
    let server_write = |number: u16| (2, format!("data server {number}: write"));
    assert!(
        writes.clone().any(|shape| shape.contains(&server_write(0)))
            && writes.clone().any(|shape| shape.contains(&server_write(1)))
    );
    // A client that leaves does not wait for replies to its releases.
    let mut roots = operations.iter().map(Operation::root).filter(|root| root.kind != "release");
    let is_exclusive = |root: &&Span| {
        root.id.is_some_and(|id| matches!(id.from, NodeId::Client(_)) && id.from != root.place)
    };
    assert_eq!(roots.find(is_exclusive), None);
}

#[test]
fn ranks_that_ask_each_other_are_part_of_the_operation() {
    let spans = spans(
        "[cluster]\nranks = 3\nclients = 2\n[model]\npreset = \"wu\"\n[[workload]]\nkind = \"create\"\nprocesses = 6\n\
         files = 3\nremove = true\n",
    );
    let operations = operations(&spans);
    let shapes: Vec<_> = operations.iter().map(shape).collect();
    let is_prepared = |shape: &&Vec<(usize, String)>| {
        shape[0].1.starts_with("client: ")
            && shape
                .iter()
                .any(|(depth, what)| *depth == 4 && what.starts_with("rank") && what.ends_with(": prepare"))
    };
    assert!(shapes.iter().any(|shape| is_prepared(&shape)), "{shapes:?}");
}
