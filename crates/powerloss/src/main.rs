//! `espalier-powerloss`: the tools that scripts/powerloss-test.sh combines.

#![allow(clippy::print_stdout)] // its output is its purpose

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use espalier_powerloss::marks::{self, Mark};
use espalier_powerloss::record::{self, LogEntry};
use espalier_powerloss::{crash, disk, workload};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve IMAGE as MOUNTPOINT/disk until unmounted; its writes and flushes go to RECORD
    Record { image: PathBuf, record: PathBuf, mountpoint: PathBuf },
    /// Run a workload in DIR; its marks go to MARKS
    Work { name: String, dir: PathBuf, marks: PathBuf, seed: u64 },
    /// List the workloads
    List,
    /// Choose points of a record, by a seed
    Points { record: PathBuf, count: usize, seed: u64 },
    /// Lose power at a point of a record: IMAGE is the disk at its start; the marks so far are
    /// added to MARKS
    Crash { record: PathBuf, point: usize, seed: u64, image: PathBuf, marks: PathBuf },
    /// Check DIR against MARKS
    Check { dir: PathBuf, marks: PathBuf },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Record { image, record, mountpoint } => disk::serve(&image, &record, &mountpoint),
        Command::Work { name, dir, marks, seed } => workload::run(&name, &dir, &marks, seed),
        Command::List => {
            let names: String = workload::ALL.iter().map(|(name, _)| format!("{name}\n")).collect();
            Ok(std::io::stdout().write_all(names.as_bytes())?)
        }
        Command::Points { record, count, seed } => {
            let entries = record::read(&record)?;
            ensure!(entries.len() > 1, "nothing was recorded");
            let mut rng = fastrand::Rng::with_seed(seed);
            (0..count).for_each(|_| println!("{}", rng.usize(1..=entries.len())));
            Ok(())
        }
        Command::Crash { record, point, seed, image, marks } => {
            let entries = record::read(&record)?;
            let entries = entries.get(..point).context("the record has no such point")?;
            crash::lose_power(&image, entries, seed)?;
            let mut text = std::fs::read_to_string(&marks).unwrap_or_default();
            text.extend(entries.iter().filter_map(|entry| match entry {
                LogEntry::Mark(text) => Some(text.as_str()),
                LogEntry::Write { .. } | LogEntry::Flush => None,
            }));
            std::fs::write(&marks, text).with_context(|| format!("cannot write {}", marks.display()))
        }
        Command::Check { dir, marks } => {
            let text = std::fs::read_to_string(&marks)?;
            let said: Vec<Mark> = text.lines().map(str::parse).collect::<Result<_>>()?;
            let checked = marks::check(&dir, &said)?;
            println!("{checked:?}");
            Ok(())
        }
    }
}
