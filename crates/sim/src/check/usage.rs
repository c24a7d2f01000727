//! Usage below a directory, counted entry by entry.

use super::tree::{ModelNode, Tree};

/// The figures of `espalier du` and of the extended attributes with these names.
#[derive(Default)]
pub struct Usage {
    files: u64,
    dirs: u64,
    bytes: u64,
}

const FILES: &[u8] = b"user.espalier.rfiles";
const DIRS: &[u8] = b"user.espalier.rsubdirs";
pub const BYTES: &[u8] = b"user.espalier.rbytes";
pub const ALL: [&[u8]; 3] = [FILES, DIRS, BYTES];

pub fn is_known(name: &[u8]) -> bool {
    ALL.contains(&name)
}

impl Usage {
    pub fn encoded(&self, name: &[u8]) -> Option<String> {
        match name {
            FILES => Some(self.files.to_string()),
            DIRS => Some(self.dirs.to_string()),
            BYTES => Some(self.bytes.to_string()),
            _ => None,
        }
    }
}

impl Tree<'_> {
    /// Usage below a directory. A file with several names counts once per name.
    pub fn usage(&self, dir: ModelNode, strip: u64) -> Usage {
        let (mut usage, mut left) = (Usage::default(), vec![dir]);
        while let Some(dir) = left.pop() {
            for node in self.names(dir).into_values() {
                let Some(inode) = self.inode(node) else { continue };
                if inode.is_dir() {
                    usage.dirs += 1;
                    left.push(node);
                } else {
                    usage.files += 1;
                    usage.bytes += inode.size(strip);
                }
            }
        }
        usage
    }
}
