//! The path of the subtree that a client is restricted to, as the configuration states it.
//! `session/subtree.rs` enforces it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use espalier_proto::Name;
use serde::{Deserialize, Serialize};

/// An absolute path in the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subtree(Box<[Name]>);

impl Subtree {
    /// The components of the path; at least one.
    pub fn path(&self) -> &[Name] {
        &self.0
    }
}

impl TryFrom<String> for Subtree {
    type Error = &'static str;

    fn try_from(path: String) -> Result<Self, Self::Error> {
        const WANTED: &str = "subtree = an absolute path of a directory below the root of the file system, without . and .., as /projects/a";
        let below = path.strip_prefix('/').ok_or(WANTED)?;
        let names = below.split('/').filter(|name| !name.is_empty());
        let names: Result<Box<[Name]>, _> = names.map(|name| Name::new(name.as_bytes())).collect();
        names.ok().filter(|names| !names.is_empty()).map(Self).ok_or(WANTED)
    }
}

impl From<Subtree> for String {
    fn from(subtree: Subtree) -> Self {
        subtree.0.iter().map(|name| format!("/{}", String::from_utf8_lossy(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_subtree_is_an_absolute_path() {
        let subtree = |path: &str| Subtree::try_from(path.to_string());
        assert_eq!(String::from(subtree("//projects/a/").expect("a path")), "/projects/a");
        for bad in ["", "/", "projects", "/a/../b", "/."] {
            assert!(subtree(bad).is_err(), "{bad}");
        }
    }
}
