//! Read-after-write consistency: one process writes a file and others follow it by several paths,
//! such as two mounts of one file system. A read that begins after a write has returned must return
//! the written data, by any path.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{CaseResult, Failure};

/// Bytes of a record, which is filled with its number.
const RECORD: usize = 800;
const RECORDS: u64 = 250;
/// Bytes of the header, which contains the number of records.
const HEADER: u64 = 4096;
const BIG: usize = 100_000;
const UPDATES: u64 = 200;

/// Executes every case once per round.
///
/// # Errors
/// A read returned old data or zeros, or a call failed.
pub fn run(ways: &[PathBuf], seed: u64, rounds: u64) -> CaseResult {
    let cases: [(&str, Case); 5] = [
        ("a growing file, opened after its writer", |round| round.grows(true)),
        ("a growing file, opened before its writer", |round| round.grows(false)),
        ("a header written after its records", |round| round.header(true)),
        ("a header, opened before its writer", |round| round.header(false)),
        ("an overwritten big file", |round| round.overwritten()),
    ];
    for seed in seed..seed + rounds {
        for (number, (case_name, case)) in cases.iter().enumerate() {
            let name = format!("follow.{}.{seed}.{number}", std::process::id());
            let round = FollowRound { ways, name };
            let outcome = case(&round);
            rustix::fs::unlink(ways[0].join(&round.name))?;
            outcome
                .map_err(|failure| Failure::at(format!("{case_name}: seed {seed}: {}", failure.message)))?;
        }
    }
    Ok(())
}

type Case = fn(&FollowRound<'_>) -> CaseResult;

struct FollowRound<'a> {
    ways: &'a [PathBuf],
    name: String,
}

impl FollowRound<'_> {
    /// The path of the writer.
    fn writes(&self) -> &PathBuf {
        &self.ways[0]
    }

    /// The paths of the readers.
    fn reads(&self) -> &[PathBuf] {
        if self.ways.len() > 1 { &self.ways[1..] } else { self.ways }
    }

    fn make(&self, bytes: &[u8]) -> CaseResult {
        Ok(std::fs::write(self.writes().join(&self.name), bytes)?)
    }

    fn writer(&self) -> Result<File, Failure> {
        Ok(OpenOptions::new().read(true).write(true).open(self.writes().join(&self.name))?)
    }

    fn readers(&self) -> Result<Vec<File>, Failure> {
        self.reads().iter().map(|way| Ok(File::open(way.join(&self.name))?)).collect()
    }

    /// Opens the file by all paths, before or after the writer, and reads it once.
    fn open(&self, writer_first: bool) -> Result<(File, Vec<File>), Failure> {
        let first = if writer_first { Some(self.writer()?) } else { None };
        let readers = self.readers()?;
        for reader in &readers {
            reader.read_at(&mut vec![0; BIG], 0)?;
        }
        Ok((first.map_or_else(|| self.writer(), Ok)?, readers))
    }

    /// Runs `write` while threads check the file repeatedly.
    fn while_watched(
        &self,
        readers: &[File],
        check: impl Fn(&[u8], u64) -> CaseResult + Copy + Send + Sync,
        write: impl FnOnce() -> CaseResult,
    ) -> CaseResult {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut watchers = Vec::new();
            for reader in readers {
                watchers.push(scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let end = reader.metadata()?.len();
                        let from = end.saturating_sub(3 * RECORD as u64);
                        let mut bytes = vec![0; 8 * RECORD];
                        let read = reader.read_at(&mut bytes, from)?;
                        check(&bytes[..read], from)?;
                    }
                    Ok(())
                }));
            }
            let written = write();
            done.store(true, Ordering::Relaxed);
            let watched = watchers.into_iter().map(|watcher| {
                watcher.join().map_err(|_| Failure::at("a thread panicked")).and_then(|watched| watched)
            });
            watched.fold(written, CaseResult::and)
        })
    }

    fn grows(&self, writer_first: bool) -> CaseResult {
        self.make(&[])?;
        let (writer, readers) = self.open(writer_first)?;
        let check = |bytes: &[u8], at: u64| {
            let wrong = bytes.iter().zip(at..).find(|(byte, at)| **byte != stamp(at / RECORD as u64));
            wrong.map_or(Ok(()), |(byte, at)| Err(Failure::at(format!("{byte} at {at}"))))
        };
        let write = || {
            for number in 0..RECORDS {
                let at = number * RECORD as u64;
                writer.write_all_at(&[stamp(number); RECORD], at)?;
                if number % 50 == 7 {
                    writer.sync_all()?;
                }
                for reader in &readers {
                    let mut bytes = [0; RECORD];
                    let read = reader.read_at(&mut bytes, at)?;
                    if bytes[..read] != [stamp(number); RECORD] {
                        return Err(Failure::at(format!(
                            "record {number} of {RECORD} has {read} bytes, {}",
                            bytes[0]
                        )));
                    }
                }
            }
            Ok(())
        };
        // Size checks of cached data may make concurrent reads short.
        if writer_first { self.while_watched(&readers, check, write) } else { write() }
    }

    fn header(&self, writer_first: bool) -> CaseResult {
        let mut header = vec![0; HEADER as usize];
        header[..8].fill(0);
        self.make(&header)?;
        let (writer, readers) = self.open(writer_first)?;
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let followers: Vec<_> = readers
                .iter()
                .map(|reader| {
                    scope.spawn(|| {
                        let mut count = 0;
                        while count < RECORDS {
                            let least = written.load(Ordering::Acquire);
                            let mut header = [0; 8];
                            reader.read_exact_at(&mut header, 0)?;
                            let now = u64::from_le_bytes(header);
                            if now < least.max(count) {
                                return Err(Failure::at(format!(
                                    "the header says {now} after {}",
                                    least.max(count)
                                )));
                            }
                            if now == count {
                                continue;
                            }
                            count = now;
                            let mut bytes = [0; RECORD];
                            let at = HEADER + (now - 1) * RECORD as u64;
                            let mut read = reader.read_at(&mut bytes, at)?;
                            // A kernel that caches the file may briefly report an old size.
                            for _ in 0..100 {
                                if writer_first || read == RECORD {
                                    break;
                                }
                                read = reader.read_at(&mut bytes, at)?;
                            }
                            if bytes[..read] != [stamp(now - 1); RECORD] {
                                let message = format!("record {now} has {read} bytes, {} and on", bytes[0]);
                                return Err(Failure::at(message));
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            for number in 0..RECORDS {
                writer.write_all_at(&[stamp(number); RECORD], HEADER + number * RECORD as u64)?;
                writer.write_all_at(&(number + 1).to_le_bytes(), 0)?;
                written.store(number + 1, Ordering::Release);
            }
            let followed = followers.into_iter().map(|follower| {
                follower.join().map_err(|_| Failure::at("a thread panicked")).and_then(|followed| followed)
            });
            followed.fold(Ok(()), CaseResult::and)
        })
    }

    fn overwritten(&self) -> CaseResult {
        self.make(&vec![0xff; BIG])?;
        let (writer, readers) = self.open(false)?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others: Vec<_> = readers
                .iter()
                .map(|reader| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            reader.read_at(&mut vec![0; BIG], 0)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let overwrite = || {
                for number in 0..UPDATES {
                    let at = number * 7919 % (BIG as u64 - 8);
                    writer.write_all_at(&number.to_le_bytes(), at)?;
                    for reader in &readers {
                        let mut bytes = vec![0; BIG];
                        reader.read_exact_at(&mut bytes, 0)?;
                        let read = &bytes[at as usize..][..8];
                        if *read != number.to_le_bytes() {
                            return Err(Failure::at(format!("update {number} at {at} reads {read:?}")));
                        }
                    }
                }
                Ok(())
            };
            let written = overwrite();
            done.store(true, Ordering::Relaxed);
            let others = others.into_iter().map(|other| {
                other.join().map_err(|_| Failure::at("a thread panicked")).and_then(|other| other)
            });
            others.fold(written, CaseResult::and)
        })
    }
}

/// The fill byte of a record; never 0.
fn stamp(record: u64) -> u8 {
    (record % 255) as u8 + 1
}
