//! Metadata servers that leave a cluster.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Left, Loss, Nanos, Node, Observer, Scenario, World};

/// The ends of servers' processes, in order.
#[derive(Default)]
struct Ends(Vec<(Nanos, u32)>);

impl Observer for Ends {
    fn crashed(&mut self, now: Nanos, node: Node, _loss: Loss, _left: Option<Left>) {
        self.0.push((now, node.0));
    }
}

fn scenario(leaves: &str) -> String {
    format!(
        "[cluster]\nranks = 3\nclients = 6\nleaves = [{leaves}]\n[model]\npreset = \"wu\"\nclient = \"5 ms\"\n\
         [faults]\ncrash = {{ at = [\"4 s\"], for = \"300 ms\", nodes = [2] }}\n\
         [[workload]]\nkind = \"create\"\nprocesses = 12\nfiles = 600\n"
    )
}

#[test]
fn ranks_of_server_that_leaves_run_and_fail_with_those_of_its_successor() {
    let text = scenario("{ at = \"300 ms\", server = 2, to = 0 }");
    let scenario = Scenario::parse(&text, Path::new("it.toml")).unwrap();
    let (mut ends, mut mutator) = (Ends::default(), ());
    let mut world = World::new(&scenario, &mut ends, &mut mutator).unwrap();
    let report = world.run().unwrap();
    assert_eq!(world.fsck().unwrap(), []);
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    let nodes: Vec<u32> = ends.0.iter().map(|(_, node)| *node).collect();
    assert_eq!(nodes, [2, 0, 0, 2]);
    let times: Vec<Nanos> = ends.0.iter().map(|(time, _)| *time).collect();
    assert!(times[1] < Nanos::from_millis(2000), "{times:?}");
    assert_eq!(times[2..], [Nanos::from_millis(4000); 2]);
}

#[test]
fn servers_leave_and_take_over_only_while_they_are_there() {
    let leave = |at: &str, server: u16, to: u16| format!("{{ at = \"{at}\", server = {server}, to = {to} }}");
    let is_valid =
        |leaves: &[String]| Scenario::parse(&scenario(&leaves.join(", ")), Path::new("it.toml")).is_ok();
    assert!(is_valid(&[leave("1 s", 2, 1), leave("1 s", 1, 0)]));
    for wrong in [
        &[leave("1 s", 1, 1)][..],
        &[leave("1 s", 3, 0)],
        &[leave("1 s", 0, 3)],
        &[leave("2 s", 1, 0), leave("1 s", 2, 0)],
        &[leave("1 s", 1, 0), leave("2 s", 1, 2)],
        &[leave("1 s", 1, 0), leave("2 s", 2, 1)],
    ] {
        assert!(!is_valid(wrong), "{wrong:?}");
    }
}
