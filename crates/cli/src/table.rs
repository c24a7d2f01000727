//! Tables of metrics for people.

use std::fmt::Write;
use std::path::Path;

use espalier_runtime::{Figures, FragmentFigures, Messages, MountStatus, RankFigures, Top};
use espalier_store::{PoolContent, StorePool};
use indicatif::HumanBytes;

/// Table of operations by kind. The times after the quantiles are means.
pub(crate) fn operations(figures: &Figures) -> String {
    let mut operations: Vec<_> = figures.operations.iter().collect();
    operations.sort_by_key(|operation| std::cmp::Reverse(operation.count));
    let mut out = format!(
        "{:<16}{:>12}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}\n",
        "OPERATION", "COUNT", "OPS/S", "ERRORS", "P50", "P99", "QUEUE", "WORK", "JOURNAL", "DISK"
    );
    for operation in operations {
        let split = operation.seconds;
        let mean = |seconds: f64| time(seconds / operation.count.max(1) as f64);
        let _ = writeln!(
            out,
            "{:<16}{:>12}{:>10}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
            operation.name,
            operation.count,
            rate(operation.count, figures.seconds),
            operation.errors,
            time(operation.p50_us as f64 / 1e6),
            time(operation.p99_us as f64 / 1e6),
            mean(split.queue),
            mean(split.work),
            mean(split.journal),
            mean(split.disk),
        );
    }
    out
}

/// A pool of a store in a cluster.
pub(crate) fn pool(pool: &StorePool) -> String {
    let content = match pool.content {
        PoolContent::Everything => "everything",
        PoolContent::Metadata => "metadata and small files",
        PoolContent::BigFiles => "bytes of big files",
    };
    let free =
        pool.free.map_or_else(|| "free space not known".into(), |free| format!("{} free", HumanBytes(free)));
    format!("{} ({content}), {free}", pool.name)
}

/// Status of a mount of servers.
pub(crate) fn mount(status: &MountStatus) -> String {
    let mountpoint = status.mountpoint.display();
    let mut out = format!("mounted     {} on {mountpoint} by process {}\n", status.url, status.pid);
    for (rank, session) in status.ranks.iter().enumerate() {
        let title = if status.ranks.len() == 1 { "server".into() } else { format!("rank {rank}") };
        let connected =
            if session.connected { "connected" } else { "NOT CONNECTED: calls wait for the server" };
        let (waiting, Messages { requests, revocations, .. }) = (session.waiting, session.messages);
        let _ = writeln!(
            out,
            "{title:<11} {connected}; {waiting} calls wait; {requests} requests, {revocations} revocations"
        );
    }
    let _ = writeln!(out, "kernel      FUSE {}, transport {}", status.fuse, status.transport);
    let MountStatus { cache_inodes, cache_names, cache_hits, messages, .. } = status;
    let _ =
        writeln!(out, "cache       {cache_inodes} inodes, {cache_names} names; answered {cache_hits} calls");
    if status.partitioned_directories > 0 {
        let MountStatus { partitioned_directories, redirects, .. } = status;
        let _ = writeln!(
            out,
            "fragments   of {partitioned_directories} directories known; {redirects} redirects"
        );
    }
    let MountStatus { pages_ahead, pages_ahead_read, .. } = status;
    if *pages_ahead > 0 {
        let _ = writeln!(
            out,
            "walks       {pages_ahead} directories fetched ahead, of which {pages_ahead_read} were listed"
        );
    }
    let Messages { requests, forgets, streams, data, others, replies, revocations, notices } = messages;
    let _ = writeln!(
        out,
        "sent        {requests} requests, {forgets} batches of forgotten inodes, {streams} reads and writes of streams, {others} others\n\
                     {data} reads and writes to data servers\n\
         received    {replies} replies, {revocations} revocations, {notices} notices"
    );
    out
}

/// Numbers of messages between a mount and its servers, in total and by server.
pub(crate) fn counters(status: &MountStatus) -> String {
    let asked = status.asked.iter().map(|(name, count)| (format!("asked.{name}"), *count));
    let own = [
        ("cache.hits".into(), status.cache_hits),
        ("redirects".into(), status.redirects),
        ("ahead.requested".into(), status.pages_ahead),
        ("ahead.read".into(), status.pages_ahead_read),
    ];
    let mut all: Vec<(String, u64)> = asked.chain(kinds("", &status.messages)).chain(own).collect();
    if status.ranks.len() > 1 {
        for (rank, session) in status.ranks.iter().enumerate() {
            all.extend(kinds(&format!("rank{rank}."), &session.messages));
        }
    }
    all.into_iter().map(|(name, count)| format!("{name} {count}\n")).collect()
}

fn kinds(prefix: &str, messages: &Messages) -> impl Iterator<Item = (String, u64)> {
    let kinds = [
        ("sent.requests", messages.requests),
        ("sent.forgets", messages.forgets),
        ("sent.streams", messages.streams),
        ("sent.data", messages.data),
        ("sent.others", messages.others),
        ("received.replies", messages.replies),
        ("received.revocations", messages.revocations),
        ("received.notices", messages.notices),
    ];
    kinds.into_iter().map(move |(name, count)| (format!("{prefix}{name}"), count))
}

/// Cache, journal, checkpoint, and further state, one line each.
pub(crate) fn state(figures: &Figures) -> String {
    let Figures { cache, journal, checkpoint, trash, .. } = figures;
    let mut out = format!(
        "in memory   {} of {}: {} inodes, {} dentries, {} small files; {} not written\n",
        bytes(cache.bytes),
        bytes(cache.limit_bytes),
        cache.inodes,
        cache.dentries,
        cache.small_files,
        bytes(cache.dirty_bytes)
    );
    let _ = write!(out, "journal     {} of {} in use", bytes(journal.used_bytes), bytes(journal.bytes));
    let _ = write!(out, "; {} operations waited for {} syncs", journal.synced_operations, journal.syncs);
    let running = if checkpoint.running { "running" } else { "idle" };
    let _ = write!(out, "\ncheckpoint  {running}; {} done", checkpoint.done);
    if checkpoint.done > 0 {
        let took = time(checkpoint.last_seconds);
        let _ = write!(out, ", the last wrote {} records in {took}", checkpoint.last_records);
    }
    if checkpoint.failed > 0 {
        let _ = write!(out, ", {} failed", checkpoint.failed);
    }
    if trash.entries > 0 {
        let _ = write!(out, "\ntrash       {} entries, {}, to be freed", trash.entries, bytes(trash.bytes));
    }
    let clients = &figures.clients;
    if clients.sessions > 0 {
        let _ = write!(out, "\nclients     {} with {} leases", clients.sessions, clients.leases);
        let _ = write!(out, "; {} given, {} revoked", clients.leases_given, clients.leases_revoked);
        if clients.awaited > 0 {
            let _ = write!(out, "; {} have not come back yet", clients.awaited);
        }
    }
    out += &loads(figures);
    let fragments = &figures.fragments;
    if *fragments != FragmentFigures::default() {
        let FragmentFigures { held, changing, splits, splits_by_rate, merges, .. } = fragments;
        let FragmentFigures { moves, names_moved, misrouted, forwarded, .. } = fragments;
        let _ = write!(out, "\nfragments   {held}, {changing} changing; {splits} split off");
        let _ = write!(out, " ({splits_by_rate} because of requests), {merges} merged");
        let _ = write!(out, ", {moves} moved; {names_moved} names moved; {misrouted} misrouted requests");
        let _ = write!(out, " ({forwarded} forwarded)");
        if fragments.failed_steps > 0 {
            let _ = write!(out, "; {} steps failed", fragments.failed_steps);
        }
        let FragmentFigures { pulling, files_pulled, files_given, files_deferred, redirected, .. } =
            fragments;
        if pulling + files_pulled + files_given + files_deferred + redirected > 0 {
            let _ =
                write!(out, "\nfiles       {files_pulled} came to their names, {files_given} went to theirs");
            let _ = write!(out, "; {pulling} directories in progress, {files_deferred} deferred");
            let _ = write!(out, "; {redirected} redirected requests");
        }
    }
    let data = &figures.data;
    if data.read_bytes + data.written_bytes > 0 {
        let _ = write!(out, "\ndatafiles   {} read", bytes(data.read_bytes));
        let _ = write!(out, ", {} written", bytes(data.written_bytes));
    }
    let _ = write!(out, "\noperations  {} wait for the journal or the disk", figures.waiting);
    if figures.waiting > 0 {
        let _ = write!(out, ", the longest for {}", time(figures.longest_wait_seconds));
    }
    let _ = writeln!(out, "; {} have been slow", figures.slow_operations);
    out
}

/// The load of a rank, and the heartbeats of the others.
fn loads(figures: &Figures) -> String {
    let Some(RankFigures { auth, all, cpu, mem, q, req, .. }) = figures.load else { return String::new() };
    let mut out = format!("\nload        {auth:.1} of the directories here, {all:.1} in all; ");
    let _ = write!(out, "{req:.1} requests per second, {q:.1} queued; cpu {cpu:.1} %, memory {mem:.1} %");
    for (at, rank) in figures.heartbeats.iter().enumerate() {
        let title = if at == 0 { "\nheartbeats " } else { "," };
        let _ = write!(out, "{title} rank {} {}", rank.rank, heartbeat(rank));
    }
    out
}

/// The age of a rank's last heartbeat.
pub(crate) fn heartbeat(rank: &RankFigures) -> String {
    let age = rank.age_ms.map_or("none".into(), |age| format!("{:.1} s ago", age as f64 / 1000.0));
    if rank.silent { format!("SILENT: {age}") } else { age }
}

/// The screen of `top`, in lines of at most `width` characters.
pub(crate) fn top(mountpoint: &Path, top: &Top, width: usize) -> String {
    let figures = &top.figures;
    let count: u64 = figures.operations.iter().map(|operation| operation.count).sum();
    let mut out = format!(
        "{}: {} operations per second in the last {}\n{}\n{}\n",
        mountpoint.display(),
        rate(count, figures.seconds),
        time(figures.seconds),
        state(figures),
        operations(figures)
    );
    let line = |out: &mut String, who: &str, what: &str, numbers: (u64, u64, f64)| {
        let (count, errors, seconds) = numbers;
        let rate = rate(count, figures.seconds);
        let mean = time(seconds / count.max(1) as f64);
        let _ = writeln!(out, "{count:>12}{rate:>10}{errors:>8}{mean:>8}  {who}{what}");
    };
    let _ = writeln!(out, "{:>12}{:>10}{:>8}{:>8}  PROCESS", "COUNT", "OPS/S", "ERRORS", "MEAN");
    for process in &top.processes {
        let numbers = (process.count, process.errors, process.seconds);
        line(&mut out, &format!("{:<9}", process.pid), &process.command, numbers);
    }
    let _ = writeln!(out, "\n{:>12}{:>10}{:>8}{:>8}  DIRECTORY", "COUNT", "OPS/S", "ERRORS", "MEAN");
    for dir in &top.directories {
        let path = dir.path.clone().unwrap_or_else(|| format!("(inode {})", dir.ino));
        line(&mut out, "", &path, (dir.count, dir.errors, dir.seconds));
    }
    out.lines().map(|line| printable(line).chars().take(width).collect::<String>() + "\n").collect()
}

/// Escapes control characters: other users' names must not control the terminal.
pub(crate) fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn rate(count: u64, seconds: f64) -> String {
    format!("{:.0}", count as f64 / seconds.max(1e-3))
}

fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        _ if seconds < 1e-6 => "<1us".into(),
        _ if seconds < 1e-3 => format!("{:.0}us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        _ => format!("{seconds:.1}s"),
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 7.4e-6, 0.0123, 61.0].map(time), ["0", "7us", "12.3ms", "61.0s"]);
        assert_eq!([17, 2048, 3 << 20].map(bytes), ["17 B", "2.0 KiB", "3.0 MiB"]);
        assert_eq!(rate(10, 2.0), "5");
    }

    #[test]
    fn names_do_not_control_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}"), "a?[2Jb?");
    }
}
