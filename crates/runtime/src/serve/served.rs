//! Answers queries about the status of a server's services.

use std::sync::Arc;

use espalier_meta::LoadReport;
use espalier_proto::{Errno, Ino, Rank};

use super::connection::Metadata;
use super::ranks::RankTable;
use crate::control::{self, Status, StatusSource};
use crate::data::DataServer;
use crate::tracer::Tracer;
use crate::watch::{MachineFigures, MetricsServer, Watch};

/// Serves the metrics of the process's services until stopped.
pub fn expose(metrics: &MetricsServer, table: Option<&RankTable>, data: Option<&DataServer>) {
    let of_rank = |rank| table?.get(rank).map(|metadata| metadata.server.exposition());
    let of_data = || data.map(DataServer::exposition);
    metrics.serve(|path| match path {
        "/metrics" => of_rank(None).or_else(of_data),
        "/metrics/data" => of_data(),
        path => of_rank(Some(Rank(path.strip_prefix("/metrics/rank/")?.parse().ok()?))),
    });
}

/// Answers a query about a rank, by default the smallest that the server has; a query about the
/// load is about all its ranks.
pub fn answer_of_ranks(
    table: &RankTable,
    rank: Option<Rank>,
    url: &str,
    words: &[&str],
) -> serde_json::Result<String> {
    if let ["load", most] = *words {
        let report = |most| {
            let reports = table.all().into_iter().filter_map(|metadata| metadata.server.load(most));
            Some(LoadReport::join(reports, most))
        };
        return control::answer_load(report, most);
    }
    // Each rank has spans of its own.
    let (rank, words) = match words {
        ["trace", since, millis, of] => match of.parse() {
            Ok(of) => (Some(Rank(of)), &["trace", *since, *millis][..]),
            Err(_) => return control::refused("malformed question"),
        },
        words => (rank, words),
    };
    match table.get(rank) {
        Some(metadata) => {
            let served = Served { metadata: Arc::clone(&metadata), url: url.into() };
            control::answer(&metadata.superblock, &served, words)
        }
        None => control::refused("this server is a standby"),
    }
}

/// Answers status queries of a rank.
pub struct Served {
    pub metadata: Arc<Metadata>,
    pub url: String,
}

impl StatusSource for Served {
    fn state(&self) -> (u64, Option<Errno>) {
        self.metadata.server.state()
    }

    fn figures(&self) -> MachineFigures {
        self.metadata.server.figures()
    }

    fn load(&self, most: usize) -> Option<LoadReport> {
        self.metadata.server.load(most)
    }

    fn watch(&self) -> &Watch {
        &self.metadata.server.background_work.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.metadata.server.background_work.tracer
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.metadata.server.path_of(ino)
    }

    fn complete(&self, status: &mut Status) {
        status.url = Some(self.url.clone());
        status.clients = Some(self.metadata.server.connections());
        status.pools = self.metadata.server.background_work.disk.pools();
        status.ranks = self.metadata.server.ranks_status();
    }
}

/// Answers status queries of a data server.
pub struct DataServed {
    pub server: Arc<DataServer>,
    pub url: String,
}

impl StatusSource for DataServed {
    fn state(&self) -> (u64, Option<Errno>) {
        (0, None)
    }

    fn figures(&self) -> MachineFigures {
        self.server.figures()
    }

    fn watch(&self) -> &Watch {
        &self.server.watch
    }

    fn tracer(&self) -> &Tracer {
        &self.server.tracer
    }

    fn path_of(&self, _: Ino) -> Option<String> {
        None
    }

    fn complete(&self, status: &mut Status) {
        status.url = Some(self.url.clone());
        status.clients = Some(self.server.connections());
    }
}
