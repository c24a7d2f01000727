use espalier_proto::Ino;

use super::*;

/// An operation with these times, in milliseconds, in the state machines and waiting for the
/// journal.
fn span(kind: Kind, pid: u32, dir: u64, (work, journal): (u64, u64)) -> Span {
    let began = Instant::now();
    let mut span = Span::start(kind, pid, Ino(dir), CriticalSection { requested: began, began });
    span.dir = Some(Ino(dir));
    span.enter_stage(Stage::Journal, began + Duration::from_millis(work));
    span.enter_stage(Stage::Work, began + Duration::from_millis(work + journal));
    span
}

fn figures(watch: &Watch) -> Figures {
    watch.figures(&watch.totals(), MachineFigures::default())
}

#[test]
fn operations_are_counted_by_kind_and_time_by_stage() {
    let watch = Watch::new(1, None);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    watch.record(&span(Kind::Create, 1, 1, (1, 3)), false);
                }
            });
        }
    });
    watch.record(&span(Kind::Lookup, 1, 1, (2, 0)), true);
    let figures = figures(&watch);
    let [lookup, create] = &figures.operations[..] else { panic!("{figures:?}") };
    assert_eq!((lookup.name.as_str(), lookup.count, lookup.errors), ("lookup", 1, 1));
    assert_eq!(lookup.seconds, Split { work: 0.002, ..Split::default() });
    assert_eq!((create.name.as_str(), create.count, create.errors), ("create", 100, 0));
    assert_eq!(create.seconds, Split { work: 0.1, journal: 0.3, ..Split::default() });
    assert!((4000..=5000).contains(&create.p50_us) && create.p50_us == create.p99_us);
}

#[test]
fn slow_operations_are_logged_at_a_bounded_rate() {
    let watch = Watch::new(1, Some(Duration::from_millis(10)));
    assert!(!watch.record(&span(Kind::Fsync, 1, 1, (1, 8)), false));
    let slow = || watch.record(&span(Kind::Fsync, 1, 1, (1, 9)), false);
    assert_eq!((0..100).filter(|_| slow()).count(), SLOW_LOGGED as usize);
    for _ in 0..SLOW_PERIOD {
        watch.tick();
    }
    assert!(slow(), "another period has begun");
    assert_eq!(figures(&watch).slow_operations, 101);
    let never = Watch::new(1, None);
    assert!(!never.record(&span(Kind::Fsync, 1, 1, (1, 100_000)), false));
}

#[test]
fn each_watcher_sees_counts_since_its_last_report() {
    let watch = Watch::new(1, None);
    let top = |viewer| {
        let request = (viewer, Duration::from_secs(600), 2);
        watch.top(request, MachineFigures::default(), |ino| Some(format!("/{ino}"))).expect("room to watch")
    };
    let pid = std::process::id();
    watch.record(&span(Kind::Create, pid, 5, (1, 0)), false);
    assert!(!watch.has_viewers());
    assert_eq!((top(1).figures.operations.len(), watch.has_viewers()), (0, true));
    for dir in [5, 6, 6, 7, 7, 7] {
        watch.record(&span(Kind::Create, pid, dir, (1, 0)), dir == 6);
    }
    top(2);
    watch.record(&span(Kind::Create, 0, 7, (1, 0)), false);
    let (first, second) = (top(1), top(2));
    assert_eq!(first.figures.operations[0].count, 7);
    let directories: Vec<_> =
        first.directories.iter().map(|dir| (dir.path.as_deref(), dir.count, dir.errors)).collect();
    assert_eq!(directories, [(Some("/7"), 4, 0), (Some("/6"), 2, 2)]);
    let processes: Vec<_> = first.processes.iter().map(|process| (process.pid, process.count)).collect();
    assert_eq!(processes, [(pid, 6), (0, 1)]);
    assert!(!first.processes[0].command.is_empty());
    assert_eq!(second.figures.operations[0].count, 1);
    assert_eq!(top(1).figures.operations.len(), 0);
}

#[test]
fn inactive_viewer_is_dropped() {
    let watch = Watch::new(1, None);
    let top = |viewer, lasting| watch.top((viewer, lasting, 1), MachineFigures::default(), |_| None);
    for viewer in 0..VIEWERS as u64 {
        assert!(top(viewer, Duration::from_secs(600)).is_some());
    }
    assert!(top(100, Duration::ZERO).is_none(), "too many");
    for viewer in 0..VIEWERS as u64 {
        assert!(top(viewer, Duration::ZERO).is_some());
    }
    watch.record(&span(Kind::Create, 1, 1, (1, 0)), false);
    assert!(!watch.has_viewers());
}

#[test]
fn exposition_has_prometheus_format() {
    let watch = Watch::new(3, None);
    watch.record(&span(Kind::Create, 1, 1, (1, 3)), true);
    watch.record_io(IoKind::JournalSync, Duration::from_millis(2));
    watch.record_checkpoint(Duration::from_millis(500), 40, true);
    let text = exposition(watch.totals(), figures(&watch), 12, false);
    for line in [
        "# TYPE espalier_operation_duration_seconds histogram",
        "espalier_operation_duration_seconds_count{operation=\"create\"} 1",
        "espalier_operation_duration_seconds_bucket{le=\"+Inf\",operation=\"create\"} 1",
        "espalier_operation_duration_seconds_count{operation=\"rename\"} 0",
        "espalier_operation_stage_seconds_total{operation=\"create\",stage=\"journal\"} 0.003",
        "espalier_operation_errors_total{operation=\"create\"} 1",
        "espalier_io_duration_seconds_sum{io=\"journal_sync\"} 0.002",
        "espalier_inodes 12",
        "espalier_threads 3",
        "espalier_checkpoint_records_total 40",
        "espalier_checkpoint_last_duration_seconds 0.5",
        "espalier_fragments 0",
        "espalier_fragment_splits_total 0",
        "espalier_fragment_names_moved_total 0",
        "espalier_misrouted_requests_total 0",
        "espalier_files_pulled_total 0",
        "espalier_redirected_requests_total 0",
        "espalier_forwarded_requests_total 0",
    ] {
        assert!(text.lines().any(|each| each == line), "no {line} in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}
