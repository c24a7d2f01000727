//! `espalier dump` and `espalier load`, also for clusters.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use espalier_runtime::{ClusterStores, Dumped, Error, FsckReport, LoadOptions, SharedStore, StoreLocation};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::args::{DumpArgs, LoadArgs};
use crate::fsck;

/// Exit status if a dump or file system is damaged.
const DAMAGED: u8 = 1;

pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode> {
    // Argument parsing guarantees that one of them is present.
    let source = match (&args.verify, &args.source) {
        (Some(file), _) => return verify(file),
        (None, Some(source)) => source,
        (None, None) => bail!("name a file system"),
    };
    let source = &args.rados.locate(source)?;
    if let Some(shared) = SharedStore::find(source)? {
        let to = args.file.as_deref().filter(|file| !is_standard(file));
        let to =
            to.context("servers share this store: name a directory for the dump, with a file for each rank")?;
        return dump_shared(&shared, to, args.resume);
    }
    let bar = progress_bar(None)?;
    let progress = |bytes| bar.set_position(bytes);
    let file = args.file.as_deref().filter(|file| !is_standard(file));
    let dumped = match file {
        None if args.resume => bail!("only a dump in a file can be resumed"),
        None if std::io::stdout().is_terminal() => {
            bail!("a dump cannot go to a terminal: name a file, or redirect the output")
        }
        None => espalier_runtime::dump(source, &mut BufWriter::new(std::io::stdout()), progress)?,
        Some(path) => {
            let cannot = || format!("cannot write {}", path.display());
            let mut options = File::options();
            options.write(true).create(true).read(args.resume).truncate(!args.resume);
            let file = options.open(path).with_context(cannot)?;
            let dumped = match args.resume {
                true => espalier_runtime::resume_dump(source, &file, progress)?,
                false => espalier_runtime::dump(source, &mut BufWriter::new(&file), progress)?,
            };
            if file.metadata().with_context(cannot)?.is_file() {
                file.sync_all().with_context(cannot)?;
            }
            dumped
        }
    };
    bar.finish_and_clear();
    eprintln!("dumped {}{}", reported(&dumped), resumed(&dumped));
    Ok(ExitCode::SUCCESS)
}

fn verify(path: &Path) -> Result<ExitCode> {
    let (mut dump, bar) = open(path)?;
    let verified = espalier_runtime::verify_dump(&mut *dump, |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    match verified {
        Ok(verified) => {
            println!("the dump is whole: {}", reported(&verified));
            Ok(ExitCode::SUCCESS)
        }
        Err(error @ (Error::DamagedDump { .. } | Error::ForeignDump)) => {
            println!("{error}");
            Ok(ExitCode::from(DAMAGED))
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let (mut dump, bar) = open(&args.file)?;
    let location = args.rados.locate(&args.dir)?;
    let LoadArgs { force, resume, interval, .. } = *args;
    let options = LoadOptions { force, resume, interval, data_pool: args.data_pool.clone() };
    let loaded = espalier_runtime::load(&mut *dump, &location, &options, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("loaded {} into {}{}", reported(&loaded), args.dir.display(), resumed(&loaded));
    if !args.verify {
        return Ok(ExitCode::SUCCESS);
    }
    let bar = fsck::progress()?;
    let report = espalier_runtime::fsck(&location, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    Ok(verified(&report))
}

pub(crate) fn dump_cluster(stores: &ClusterStores, to: &Path, resume: bool) -> Result<ExitCode> {
    let bar = progress_bar(None)?;
    let dumped = espalier_runtime::dump_cluster(stores, to, resume, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("dumped {}{}", reported(&dumped), resumed(&dumped));
    Ok(ExitCode::SUCCESS)
}

/// Dumps the stores of all ranks that servers share.
pub(crate) fn dump_shared(shared: &SharedStore, to: &Path, resume: bool) -> Result<ExitCode> {
    let bar = progress_bar(None)?;
    let dumped = espalier_runtime::dump_shared(shared, to, resume, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("dumped {}{}", reported(&dumped), resumed(&dumped));
    Ok(ExitCode::SUCCESS)
}

/// Loads a dump of a cluster into a store that servers share.
pub(crate) fn load_shared(
    from: &Path,
    location: &StoreLocation,
    options: &LoadOptions,
    verify: bool,
) -> Result<ExitCode> {
    let bar = progress_bar(None)?;
    let loaded = espalier_runtime::load_shared(from, location, options, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("loaded {}", reported(&loaded));
    if !verify {
        return Ok(ExitCode::SUCCESS);
    }
    let bar = fsck::progress()?;
    let shared = SharedStore::connect(location)?;
    let report = espalier_runtime::fsck_shared(&shared, |records| bar.set_position(records))?;
    bar.finish_and_clear();
    Ok(verified(&report))
}

pub(crate) fn load_cluster(
    from: &Path,
    stores: &ClusterStores,
    options: &LoadOptions,
    verify: bool,
) -> Result<ExitCode> {
    let bar = progress_bar(None)?;
    let loaded = espalier_runtime::load_cluster(from, stores, options, |bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    println!("loaded {}{}", reported(&loaded), resumed(&loaded));
    if !verify {
        return Ok(ExitCode::SUCCESS);
    }
    let bar = fsck::progress()?;
    let progress = |records| bar.set_position(records);
    let report = espalier_runtime::fsck_cluster(&stores.ranks, &stores.data, progress)?;
    bar.finish_and_clear();
    Ok(verified(&report))
}

fn verified(report: &FsckReport) -> ExitCode {
    fsck::show(&report.findings);
    fsck::summary(report, "clean");
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) }
}

fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a dump, with a progress bar of the bytes read.
fn open(path: &Path) -> Result<(Box<dyn Read>, ProgressBar)> {
    if is_standard(path) {
        return Ok((Box::new(BufReader::new(std::io::stdin())), progress_bar(None)?));
    }
    let cannot = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(cannot)?;
    let metadata = file.metadata().with_context(cannot)?;
    let bar = progress_bar(metadata.is_file().then_some(metadata.len()))?;
    Ok((Box::new(BufReader::new(file)), bar))
}

/// A progress bar for bytes; `bytes` is the total, if known.
fn progress_bar(bytes: Option<u64>) -> Result<ProgressBar> {
    let (bar, template) = match bytes {
        Some(bytes) => {
            (ProgressBar::new(bytes), "{bar:30} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} ({bytes_per_sec})"),
    };
    bar.set_style(ProgressStyle::with_template(template)?);
    Ok(bar)
}

fn reported(dumped: &Dumped) -> String {
    format!("{} records and {} big files", dumped.records, dumped.streams)
}

fn resumed(dumped: &Dumped) -> String {
    match dumped.resumed_at {
        0 => String::new(),
        bytes => format!("; resumed after {} of the dump", HumanBytes(bytes)),
    }
}
