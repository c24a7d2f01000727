//! The statistics in the OpenMetrics text format of Prometheus.

use std::fmt::Result;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType::{Counter, Gauge, Histogram};
use prometheus_client::registry::{Registry, Unit};

use super::histogram::HistogramCounts;
use super::{Figures, RankFigures, Stage, Totals};

const SECONDS: Option<&Unit> = Some(&Unit::Seconds);
const BYTES: Option<&Unit> = Some(&Unit::Bytes);

/// The data of one scrape.
#[derive(Debug)]
struct Scrape {
    totals: Totals,
    figures: Figures,
    /// Inodes in use.
    files: u64,
    failed: bool,
}

/// `files`: inodes in use; `failed`: the file system is read-only after a failure.
pub(crate) fn exposition(totals: Totals, figures: Figures, files: u64, failed: bool) -> String {
    let mut registry = Registry::with_prefix("espalier");
    registry.register_collector(Box::new(Scrape { totals, figures, files, failed }));
    let mut out = String::new();
    // Writing to a string does not fail.
    let _: Result = text::encode(&mut out, &registry);
    out
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result {
        self.encode_operations(&mut encoder)?;
        let help = "Time that an I/O of the store took";
        let mut family = encoder.encode_descriptor("io_duration", help, SECONDS, Histogram)?;
        for (kind, all) in self.totals.io() {
            encode_histogram(&mut family.encode_family(&[("io", kind.name())])?, all)?;
        }
        self.encode_state(&mut encoder)?;
        self.encode_fragments(&mut encoder)?;
        self.encode_load(&mut encoder)
    }
}

impl Scrape {
    fn encode_operations(&self, encoder: &mut DescriptorEncoder<'_>) -> Result {
        let help = "Time from reading a request until its reply was ready";
        let mut family = encoder.encode_descriptor("operation_duration", help, SECONDS, Histogram)?;
        for (kind, totals) in self.totals.kinds() {
            encode_histogram(&mut family.encode_family(&[("operation", kind.name())])?, &totals.latency)?;
        }
        let help = "The same time, by stage";
        let mut family = encoder.encode_descriptor("operation_stage", help, SECONDS, Counter)?;
        for (kind, totals) in self.totals.kinds() {
            for (stage, seconds) in Stage::ALL.into_iter().zip(totals.seconds()) {
                let labels = [("operation", kind.name()), ("stage", stage.name())];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&seconds, None)?;
            }
        }
        let help = "Operations that were answered with an error";
        let mut family = encoder.encode_descriptor("operation_errors", help, None, Counter)?;
        for (kind, totals) in self.totals.kinds() {
            let labels = [("operation", kind.name())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&totals.errors, None)?;
        }
        let help = "Operations that took longer than the option slow";
        counter(encoder, "slow_operations", help, self.figures.slow_operations)
    }

    fn encode_state(&self, encoder: &mut DescriptorEncoder<'_>) -> Result {
        let Figures {
            cache,
            journal,
            checkpoint,
            trash,
            clients,
            data,
            threads,
            waiting,
            longest_wait_seconds,
            ..
        } = &self.figures;
        let failed = u64::from(self.failed);
        gauge(encoder, "failed", "1 if the file system is read-only after a failure", None, failed)?;
        gauge(encoder, "threads", "Threads that serve requests", None, *threads as u64)?;
        let help = "Operations that wait for the journal or the disk";
        gauge(encoder, "waiting_operations", help, None, *waiting as u64)?;
        let help = "Longest wait of these operations";
        gauge(encoder, "longest_wait", help, SECONDS, *longest_wait_seconds)?;
        gauge(encoder, "inodes", "Inodes in use", None, self.files)?;
        gauge(encoder, "cache_inodes", "Inodes in memory", None, cache.inodes)?;
        gauge(encoder, "cache_dentries", "Dentries in memory", None, cache.dentries)?;
        let help = "Directories with entries in memory";
        gauge(encoder, "cache_directories", help, None, cache.directories)?;
        let help = "Small files with bytes in memory";
        gauge(encoder, "cache_small_files", help, None, cache.small_files)?;
        let help = "Memory of the metadata cache";
        gauge(encoder, "cache", help, BYTES, cache.bytes)?;
        gauge(encoder, "cache_limit", "Limit of the metadata cache", BYTES, cache.limit_bytes)?;
        let help = "Changed records in memory that wait for a checkpoint";
        gauge(encoder, "cache_dirty", help, BYTES, cache.dirty_bytes)?;
        let help = "Used space in the journal";
        gauge(encoder, "journal_used", help, BYTES, journal.used_bytes)?;
        gauge(encoder, "journal_capacity", "Size of the journal", BYTES, journal.bytes)?;
        counter(encoder, "changes", "Changes since the file system was created", journal.changes)?;
        counter(encoder, "journal_syncs", "Syncs of the journal", journal.syncs)?;
        let help = "Operations that waited for a sync of the journal";
        counter(encoder, "journal_synced_operations", help, journal.synced_operations)?;
        let running = u64::from(checkpoint.running);
        gauge(encoder, "checkpoint_running", "1 while a checkpoint is running", None, running)?;
        counter(encoder, "checkpoints", "Checkpoints done", checkpoint.done)?;
        counter(encoder, "checkpoint_failures", "Checkpoints that failed", checkpoint.failed)?;
        counter(encoder, "checkpoint_records", "Records written by checkpoints", checkpoint.records)?;
        let help = "Time that the last checkpoint took";
        gauge(encoder, "checkpoint_last_duration", help, SECONDS, checkpoint.last_seconds)?;
        let help = "Entries of removed trees that remain to be freed";
        gauge(encoder, "trash_entries", help, None, trash.entries)?;
        let help = "Bytes of removed trees that remain to be freed";
        gauge(encoder, "trash", help, BYTES, trash.bytes)?;
        gauge(encoder, "sessions", "Clients with sessions", None, clients.sessions)?;
        let help = "Sessions that have not reclaimed their state since the server's start";
        gauge(encoder, "awaited_sessions", help, None, clients.awaited)?;
        gauge(encoder, "leases", "Leases held by clients", None, clients.leases)?;
        counter(encoder, "leases_given", "Leases granted or renewed", clients.leases_given)?;
        counter(encoder, "leases_revoked", "Leases revoked", clients.leases_revoked)?;
        let help = "Revocations that were not acknowledged in time";
        counter(encoder, "leases_unanswered", help, clients.leases_unanswered)?;
        let help = "Times that an operation waited for a revocation";
        counter(encoder, "lease_waits", help, clients.lease_waits)?;
        counter(encoder, "data_read_bytes", "Bytes sent by the data server", data.read_bytes)?;
        counter(encoder, "data_written_bytes", "Bytes received by the data server", data.written_bytes)
    }

    fn encode_fragments(&self, encoder: &mut DescriptorEncoder<'_>) -> Result {
        let fragments = &self.figures.fragments;
        gauge(encoder, "fragments", "Fragments of partitioned directories", None, fragments.held)?;
        let help = "Fragments that are splitting, merging or moving, or about to";
        gauge(encoder, "fragments_changing", help, None, fragments.changing)?;
        counter(encoder, "fragment_splits", "Fragments split off", fragments.splits)?;
        let help = "Fragments split off because of requests";
        counter(encoder, "fragment_splits_by_rate", help, fragments.splits_by_rate)?;
        counter(encoder, "fragment_merges", "Fragments merged into others", fragments.merges)?;
        counter(encoder, "fragment_moves", "Fragments moved to other servers", fragments.moves)?;
        let help = "Steps of splits, merges and moves that failed, and are tried again";
        counter(encoder, "fragment_step_failures", help, fragments.failed_steps)?;
        let help = "Names moved to other fragments or servers";
        counter(encoder, "fragment_names_moved", help, fragments.names_moved)?;
        let help = "Requests of clients without the current fragment map";
        counter(encoder, "misrouted_requests", help, fragments.misrouted)?;
        let help = "Requests forwarded to the server that has the name";
        counter(encoder, "forwarded_requests", help, fragments.forwarded)?;
        let help = "Directory records with names of files that may still come to this server";
        gauge(encoder, "directories_pulling", help, None, fragments.pulling)?;
        let help = "Files that followed their names to this server";
        counter(encoder, "files_pulled", help, fragments.files_pulled)?;
        let help = "Files that followed their names to other servers";
        counter(encoder, "files_given", help, fragments.files_given)?;
        let help = "Files that could not follow their names yet, counted in each attempt";
        counter(encoder, "files_deferred", help, fragments.files_deferred)?;
        let help = "Requests of clients for files that are at another server";
        counter(encoder, "redirected_requests", help, fragments.redirected)
    }

    /// The load of the rank, as heartbeats carry it.
    fn encode_load(&self, encoder: &mut DescriptorEncoder<'_>) -> Result {
        let Some(RankFigures { auth, all, cpu, mem, q, req, .. }) = self.figures.load else { return Ok(()) };
        let help = "Metadata load of the directories at this rank";
        gauge(encoder, "load_auth", help, None, auth)?;
        gauge(encoder, "load_all", "Metadata load of everything that this rank does", None, all)?;
        gauge(encoder, "load_cpu_percent", "Use of the machine's processors", None, cpu)?;
        gauge(encoder, "load_memory_percent", "Use of the machine's memory", None, mem)?;
        let help = "Mean number of requests that an arriving one finds waiting";
        gauge(encoder, "load_queue", help, None, q)?;
        gauge(encoder, "load_requests_per_second", "Requests of clients", None, req)?;
        let silent = self.figures.heartbeats.iter().filter(|rank| rank.silent).count() as u64;
        gauge(encoder, "ranks_silent", "Other ranks without a heartbeat for seconds", None, silent)
    }
}

fn encode_histogram(metric: &mut MetricEncoder<'_>, all: &HistogramCounts) -> Result {
    let seconds = all.nanos as f64 / 1e9;
    metric.encode_histogram::<NoLabelSet>(seconds, all.count(), &all.coarse(), None)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result {
    let mut metric = encoder.encode_descriptor(name, help, None, Counter)?;
    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    value: impl EncodeGaugeValue,
) -> Result {
    encoder.encode_descriptor(name, help, unit, Gauge)?.encode_gauge(&value)
}
