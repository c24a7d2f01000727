//! A log in a directory, a host of its sequencer, and two clients: `cargo run -p
//! espalier-shared-log --example append -- DIRECTORY`.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use espalier_shared_log::{HostOptions, LogError, LogOptions, NumberSource, SequencerHost, SharedLog};

fn main() -> Result<(), LogError> {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let path = dir.join("tour-log");
    // A client that takes numbers itself.
    let mut log = SharedLog::open(&path, true, LogOptions::default())?;
    println!("{} is the position of the first entry", log.append(b"by lease")?);
    log.release()?;
    // One that asks a host.
    let options = HostOptions {
        name: "tour".into(),
        listen: "127.0.0.1:0".into(),
        balancer: None,
        on_plan: Box::new(|_| {}),
    };
    let _host = SequencerHost::start(&dir, options)?;
    let options = LogOptions { source: NumberSource::Direct, ..LogOptions::default() };
    let mut other = SharedLog::open(&path, false, options)?;
    println!("{} is the position of the second entry", other.append(b"by request")?);
    for position in log.directory().trim_mark()?..other.tail()? {
        println!("{position}: {:?}", other.read(position)?);
    }
    let tail = other.tail()?;
    other.trim(tail)
}
