//! A client that is connected and asks for nothing.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use espalier_library::{Credentials, OpenOptions, blocking};

mod common;

const SESSION_MS: u32 = 4000;

#[test]
fn keeps_its_session_and_what_it_has_open() {
    let url = common::with_sessions(1, SESSION_MS);
    let fs = blocking::FileSystem::connect(&url, &Credentials::Insecure).unwrap();
    let file = fs.open_with(OpenOptions::new().read(true).write(true).create(true), "/file").unwrap();
    file.write_all_at(b"bytes", 0).unwrap();
    fs.remove_file("/file").unwrap();
    std::thread::sleep(Duration::from_millis(u64::from(SESSION_MS) * 5 / 2));
    let mut bytes = [0; 9];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 5);
    assert_eq!(&bytes[..5], b"bytes");
}
