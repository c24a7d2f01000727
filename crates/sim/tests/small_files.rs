//! Cost in messages of each way to make small files, and no leftovers after server crashes.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use espalier_sim::{Report, Scenario, World};

const DATA_SERVERS: u64 = 4;

fn run(text: &str) -> Report {
    let scenario = Scenario::parse(text, Path::new("it.toml")).unwrap();
    let (mut observer, mut mutator) = ((), ());
    let mut world = World::new(&scenario, &mut observer, &mut mutator).unwrap();
    let report = world.run().unwrap_or_else(|error| panic!("seed {}: {error}", scenario.seed));
    assert_eq!(world.fsck().unwrap(), [], "seed {}", scenario.seed);
    assert_eq!(report.operations.iter().map(|kind| kind.errors).sum::<u64>(), 0);
    report
}

/// Additional client requests, and messages to data servers, for `files` more files. The files stay
/// empty.
fn creates(policy: &str, files: u64) -> (u64, u64) {
    let sent = |files: u64| {
        let report = run(&format!(
            "[cluster]\ndata = {DATA_SERVERS}\n[policy]\n{policy}\n[model]\npreset = \"wu\"\n\
             [[workload]]\nkind = \"create\"\nfiles = {files}\n"
        ));
        let count = |kind: &str| report.messages.get(kind).copied().unwrap_or_default();
        (count("request"), count("to_data"))
    };
    let (few, many) = (sent(100), sent(100 + files));
    (many.0 - few.0, many.1 - few.1)
}

#[test]
fn a_create_costs_the_client_one_message_whatever_becomes_of_the_file() {
    let files = 1000;
    let (stuffed, none) = creates("", files);
    assert_eq!(none, 0);
    assert!(
        (files..files + files / 50).contains(&stuffed),
        "a create each, and what is closed at once: {stuffed}"
    );
    let (striped, none) = creates("stuffing = false", files);
    assert_eq!(none, 0, "unwritten datafiles cost nothing");
    let (precreated, batches) = creates("stuffing = false\nprecreation = true", files);
    // The release of a file with a stream is sent at once, since other clients may wait for it.
    assert_eq!((striped, precreated), (2 * files, 2 * files));
    assert!((DATA_SERVERS..=files * DATA_SERVERS / 32).contains(&batches), "{batches}");
}

/// Client requests, and messages to data servers, per file: for creation, `stat` and removal,
/// without path lookups. `[policy]` is for a cluster without client caches.
fn costs(policy: &str) -> [(u64, u64); 3] {
    let sent = |what: &str, files: u64| {
        let report = run(&format!(
            "[cluster]\ndata = {DATA_SERVERS}\ncache = \"none\"\n[policy]\n{policy}\n[model]\npreset = \"wu\"\n\
             [[workload]]\nkind = \"create\"\nopen = false\nfrontend = \"library\"\nfiles = {files}\n{what}\n"
        ));
        let count = |kind: &str| report.messages.get(kind).copied().unwrap_or_default();
        (count("request"), count("to_data"))
    };
    let each = |what: &str| {
        let (few, many) = (sent(what, 500), sent(what, 1500));
        (many.0 - few.0, many.1 - few.1)
    };
    let create = each("");
    let less = |whole: (u64, u64)| (whole.0 - create.0, whole.1 - create.1);
    // Forgets are sent in batches of hundreds.
    [create, less(each("stat = true")), less(each("remove = true"))]
        .map(|(requests, data)| (requests / 1000, data / 1000))
}

#[test]
fn baseline_of_paper_has_its_stated_cost() {
    let walk = costs("")[0].0 - 1;
    let messages = |policy: &str| {
        costs(policy).map(|(requests, data)| {
            assert!(requests > walk, "{policy}: {requests}");
            requests - walk + data
        })
    };
    assert_eq!(messages(""), [1, 1, 1]);
    let by_client = "create = \"client\"\n";
    for n in 1..=DATA_SERVERS {
        let policy = format!("{by_client}stuffing = false\nnum_dfiles = {n}");
        assert_eq!(messages(&policy), [n + 3, n + 1, n + 2], "carns III.A");
    }
    // A batch of datafiles costs almost nothing per file.
    let precreated = messages(&format!("{by_client}stuffing = false\nprecreation = true"));
    assert_eq!(precreated, [2, DATA_SERVERS + 1, DATA_SERVERS + 2], "carns III.A");
    assert_eq!(messages(by_client), [2, 1, 2], "carns III.B");
    // No object and no attributes are made (kuhn 4.4); the server removes the datafile after its
    // reply.
    let no_metafile = "no_metafile = true\n";
    assert_eq!(messages(&format!("{by_client}{no_metafile}")), [2, 2, 2]);
    assert_eq!(messages(no_metafile), [1, 2, 2]);
}

#[test]
fn payloads_cost_a_handshake_where_their_files_are_not_eager() {
    const FILES: u64 = 100;
    let handshakes = |policy: &str, network: &str| {
        let report = run(&format!(
            "[cluster]\ndata = {DATA_SERVERS}\nclients = 2\ncache = \"none\"\n[policy]\n{policy}\n[network]\n{network}\n[model]\npreset = \"wu\"\n\
             [[workload]]\nkind = \"nine-phases\"\nprocesses = 2\nfiles = {FILES}\nbytes = \"1000 B\"\n"
        ));
        report.messages.get("handshake").copied().unwrap_or_default()
    };
    for place in ["", "stuffing = false\n"] {
        let [eager, announced] =
            ["true", "false"].map(|eager| handshakes(&format!("{place}eager = {eager}"), ""));
        // Two processes write and read each of their files once; a handshake is two messages.
        assert_eq!((eager, announced), (0, 2 * 2 * 2 * FILES), "{place}");
        assert_eq!(
            handshakes(&format!("{place}eager = true"), "eager = \"0 B\""),
            announced,
            "the network's limit holds"
        );
        assert_eq!(handshakes(place, ""), 0);
    }
}

#[test]
fn faults_leave_no_orphan_datafile() {
    for seed in 0..12 {
        let creator = if seed < 6 { "server" } else { "client" };
        let (durability, kind) = if seed % 2 == 0 { ("written", "crash") } else { ("durable", "power") };
        let report = run(&format!(
            "seed = {seed}\n[cluster]\nranks = 2\ndata = 3\nclients = 4\ndurability = \"{durability}\"\n\
             [policy]\nstuffing = false\nprecreation = {}\ncreate = \"{creator}\"\n[model]\npreset = \"wu\"\nclient = \"2 ms\"\n\
             [faults]\n{kind} = {{ every = {{ exponential = \"300 ms\" }}, for = \"200 ms\" }}\ncut = {{ every = \"100 ms\" }}\n\
             [[workload]]\nkind = \"create\"\nprocesses = 8\nfiles = 50\nbytes = \"10 KiB\"\nremove = true\n",
            seed % 6 != 0
        ));
        assert!(report.faults.contains_key(kind), "{:?}", report.faults);
    }
}
