//! More data requested at once than a server queues for a client.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use espalier_library::{Credentials, FileSystem, OpenOptions};
use tokio::task::JoinSet;
use tokio::time::timeout;

const PIECE: usize = 1 << 20;
const PIECES: u8 = 100;

fn offset(piece: u8) -> u64 {
    u64::from(piece) * PIECE as u64
}

async fn all(mut tasks: JoinSet<()>) {
    let ends = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    timeout(Duration::from_secs(120), ends).await.expect("the reads finish");
}

async fn many_pieces_at_once(url: &str) {
    let fs = FileSystem::connect(url, &Credentials::Insecure).await.unwrap();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&fs, "/big").await.unwrap();
    let (file, mut tasks) = (Arc::new(file), JoinSet::new());
    for piece in 0..PIECES {
        let file = Arc::clone(&file);
        tasks.spawn(async move { file.write_all_at(&vec![piece; PIECE], offset(piece)).await.unwrap() });
    }
    all(tasks).await;
    let mut tasks = JoinSet::new();
    for piece in 0..PIECES {
        let file = Arc::clone(&file);
        tasks.spawn(async move {
            let mut read = vec![0; PIECE];
            assert_eq!(file.read_at(&mut read, offset(piece)).await.unwrap(), PIECE);
            assert!(read.iter().all(|byte| *byte == piece));
        });
    }
    all(tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_metadata_server() {
    many_pieces_at_once(&common::servers(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_data_servers() {
    many_pieces_at_once(&common::with_data_servers(1)).await;
}
