//! Measures the cost of a listing on a server, for a model.

use std::io;
use std::time::Duration;

use espalier_library::FileSystem;

use crate::error::Error;
use crate::native::{NativeOptions, Processors, runtime};

/// Directory that is listed repeatedly until the server has worked long enough: a single listing
/// takes less than a clock tick.
const DIR: &str = "/espalier-bench-listing";
const ENOUGH: Duration = Duration::from_secs(1);

/// Server processor time per listed entry, including its share of the requests.
#[derive(Clone, Copy, Debug)]
pub struct ListingCost {
    /// An entry without attributes.
    pub entry: Duration,
    pub with_attributes: Duration,
}

/// Lists a directory with the number of files in `options`, and removes it again.
///
/// # Errors
/// The client cannot connect, or a call fails.
pub fn sample_listing(
    options: &NativeOptions,
    processors: &dyn Fn() -> Processors,
) -> Result<ListingCost, Error> {
    let (runtime, files) = (runtime()?, options.files);
    let fs =
        runtime.block_on(FileSystem::connect(&options.url, &options.credentials)).map_err(Error::Connect)?;
    let measured = runtime.block_on(measure(&fs, files, processors));
    let removed = runtime.block_on(remove(&fs, files));
    runtime.block_on(fs.close());
    let measured = measured.map_err(Error::doing(format!("list {DIR}")))?;
    removed.map_err(Error::doing(format!("remove {DIR}")))?;
    Ok(measured)
}

async fn measure(
    fs: &FileSystem,
    files: u64,
    processors: &dyn Fn() -> Processors,
) -> io::Result<ListingCost> {
    fs.create_dir(DIR).await?;
    for file in 0..files {
        fs.create_file(path(file), 0o644).await?;
    }
    Ok(ListingCost {
        entry: each(fs, false, processors).await?,
        with_attributes: each(fs, true, processors).await?,
    })
}

async fn each(fs: &FileSystem, plus: bool, processors: &dyn Fn() -> Processors) -> io::Result<Duration> {
    let (before, mut entries) = (processors().servers, 0_u32);
    loop {
        if plus {
            entries += fs.read_dir_plus(DIR).await?.len() as u32;
        } else {
            let mut listing = fs.read_dir(DIR).await?;
            while listing.next_entry().await?.is_some() {
                entries += 1;
            }
        }
        let took = processors().servers.saturating_sub(before);
        if took >= ENOUGH {
            return Ok(took / entries.max(1));
        }
    }
}

async fn remove(fs: &FileSystem, files: u64) -> io::Result<()> {
    for file in 0..files {
        match fs.remove_file(path(file)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs.remove_dir(DIR).await
}

fn path(file: u64) -> String {
    format!("{DIR}/{file}")
}
