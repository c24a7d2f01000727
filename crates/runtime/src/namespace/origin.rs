//! The directory that a namespace was decoupled from, recorded in the namespace's store.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use espalier_meta::{Decoupled, decode, encode};
use espalier_proto::Ino;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::framed::{FrameError, FrameReader, FrameWriter};

/// The file in the namespace's directory.
const FILE: &str = "namespace";
const TITLE: &[u8] = b"Espalier namespace, format 1\n";

/// The origin of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceOrigin {
    /// The decoupled directory.
    pub directory: Ino,
    /// Its state when it was decoupled.
    pub decoupled: Decoupled,
}

impl NamespaceOrigin {
    /// Records the origin durably in the namespace's directory.
    pub(super) fn write(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(FILE);
        let failed = |source| Error::Io { context: format!("cannot write {}", path.display()), source };
        let mut file = File::create(&path).map_err(failed)?;
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        writer.write(TITLE).and_then(|()| writer.frame(&encode(self))).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }

    /// Reads the origin from the namespace's directory.
    ///
    /// # Errors
    /// [`Error::NoNamespace`] if it is no namespace; [`Error::DamagedOrigin`]; [`Error::Io`].
    pub fn read(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(FILE);
        let failed = |source| Error::Io { context: format!("cannot read {}", path.display()), source };
        let file = match File::open(&path) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NoNamespace(dir.into()));
            }
            opened => opened.map_err(failed)?,
        };
        let damaged = || Error::DamagedOrigin(path.clone());
        let (mut input, mut title) = (BufReader::new(file), [0; TITLE.len()]);
        input.read_exact(&mut title).map_err(|_| damaged())?;
        if title != TITLE {
            return Err(damaged());
        }
        let mut reader = FrameReader::new(&mut input, TITLE.len());
        reader.read().map_err(|error| match error {
            FrameError::Damaged(_) => damaged(),
            FrameError::Io(cause) => failed(cause),
        })?;
        decode(&reader.body).map_err(|_| damaged())
    }
}
