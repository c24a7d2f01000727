//! Creates and removes a directory with a file: `cargo run -p espalier-library --example tour --
//! URL [CREDENTIALS]`.
#![allow(clippy::print_stdout)]

use std::error::Error;

use espalier_library::{Credentials, blocking::FileSystem};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("which server? espalier://HOST:PORT/")?;
    let credentials = args.next().map_or(Credentials::Insecure, |dir| Credentials::Directory(dir.into()));
    let fs = FileSystem::connect(&url, &credentials)?;
    fs.create_dir("/tour")?;
    fs.write("/tour/file", b"a few bytes")?;
    let reported = fs.metadata("/tour/file")?;
    println!("{} bytes, made {:?}", reported.len(), reported.created());
    for entry in fs.read_dir("/tour")? {
        println!("/tour has {}", entry.file_name().to_string_lossy());
    }
    fs.remove_file("/tour/file")?;
    fs.remove_dir("/tour")?;
    println!("{:?}", fs.messages());
    Ok(())
}
