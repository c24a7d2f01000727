//! `espalier dump` and `espalier load`.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{DumpArgs, LoadArgs};

fn progress_bar() -> Result<ProgressBar> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {human_pos} records ({per_sec})")?);
    Ok(bar)
}

pub(crate) fn dump(args: &DumpArgs) -> Result<ExitCode> {
    let mut out: Box<dyn Write> = match &args.file {
        Some(path) => Box::new(BufWriter::new(
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
        )),
        None if std::io::stdout().is_terminal() => {
            bail!("a dump is not for a terminal: name a file, or redirect it")
        }
        None => Box::new(BufWriter::new(std::io::stdout())),
    };
    let bar = progress_bar()?;
    let dumped = espalier_runtime::dump(&args.source, &mut out, |count| bar.set_position(count))?;
    bar.finish_and_clear();
    eprintln!("dumped {} records and {} big files", dumped.records, dumped.streams);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn load(args: &LoadArgs) -> Result<ExitCode> {
    let mut dump: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let file = File::open(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
        Box::new(BufReader::new(file))
    };
    let bar = progress_bar()?;
    let loaded = espalier_runtime::load(&mut dump, &args.dir, args.force, |count| bar.set_position(count))?;
    bar.finish_and_clear();
    println!(
        "loaded {} records and {} big files into {}",
        loaded.records,
        loaded.streams,
        args.dir.display()
    );
    Ok(ExitCode::SUCCESS)
}
