//! Output to a closed pipe.
#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_causes_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    // Closed before the program writes.
    drop(reader);
    let mut man = Command::new(env!("CARGO_BIN_EXE_espalier"));
    let man = man.arg("man").stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let ended = man.wait_with_output().unwrap();
    assert_eq!(
        (ended.status.signal(), String::from_utf8(ended.stderr).unwrap()),
        (Some(libc::SIGPIPE), String::new())
    );
}
