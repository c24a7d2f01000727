//! Changes to a server's configuration that keep the rest of its text, comments included.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use espalier_proto::Rank;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, value};

use super::CONFIG;
use crate::serve::{Config, MetaEntry};

pub(super) struct ConfigText {
    file: PathBuf,
    document: DocumentMut,
}

impl ConfigText {
    /// Reads the configuration of the server in a directory.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let file = dir.join(CONFIG);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let document = text.parse().with_context(|| format!("{} is no TOML", file.display()))?;
        Ok(Self { file, document })
    }

    fn ranks(&mut self) -> Result<&mut ArrayOfTables> {
        let ranks = self.document.entry("meta").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        ranks
            .as_array_of_tables_mut()
            .with_context(|| format!("write each rank as a table [[meta]] in {}", self.file.display()))
    }

    /// Appends a rank to `[[meta]]`.
    pub(super) fn add_rank(&mut self, entry: &MetaEntry) -> Result<()> {
        let mut table = Table::new();
        table.insert("rank", value(i64::from(entry.rank)));
        table.insert("address", value(&entry.address));
        self.ranks()?.push(table);
        Ok(())
    }

    /// Changes the address of a rank in `[[meta]]`.
    pub(super) fn set_address(&mut self, rank: Rank, address: &str) -> Result<()> {
        let is_of = |table: &&mut Table| table.get("rank").and_then(Item::as_integer) == Some(rank.0.into());
        let file = self.file.clone();
        let table = self.ranks()?.iter_mut().find(is_of);
        let table = table.with_context(|| format!("[[meta]] in {} lacks rank {rank}", file.display()))?;
        table.insert("address", value(address));
        Ok(())
    }

    /// Appends a store to `store`.
    pub(super) fn add_store(&mut self, path: &str) {
        let before = self.document.get("store");
        let mut stores = before.and_then(Item::as_array).cloned().unwrap_or_else(|| {
            let only = before.and_then(Item::as_str).unwrap_or(Config::STORE);
            Array::from_iter([only])
        });
        stores.push(path);
        self.document.insert("store", value(stores));
    }

    /// Removes the role of a metadata server.
    pub(super) fn make_data_server(&mut self) {
        self.document.insert("roles", value(Array::from_iter(["data"])));
        for of_metadata in ["store", "meta", "data"] {
            self.document.remove(of_metadata);
        }
    }

    /// Replaces the file, if the result is a valid configuration.
    pub(super) fn write(&self) -> Result<()> {
        let new = self.file.with_extension("toml.new");
        write_durably(&new, &self.document.to_string())?;
        if let Err(error) = Config::read(&new) {
            fs::remove_file(&new)?;
            return Err(error.context(format!("{} is unchanged", self.file.display())));
        }
        fs::rename(&new, &self.file).with_context(|| format!("cannot replace {}", self.file.display()))?;
        self.file.parent().map_or(Ok(()), sync_directory)
    }
}

pub(super) fn write_durably(path: &Path, text: &str) -> Result<()> {
    let written = fs::File::create(path).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.with_context(|| format!("cannot write {}", path.display()))?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Makes new names in a directory durable.
pub(super) fn sync_directory(dir: &Path) -> Result<()> {
    let synced = fs::File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("cannot write {}", dir.display()))
}
