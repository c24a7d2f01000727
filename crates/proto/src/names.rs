//! Visits the names in a request, to inspect or to replace their directories.

use crate::{Ino, Name, Request};

impl Request {
    /// Calls `see` for each name of the request, with the directory that has it.
    pub fn each_name(&mut self, see: &mut dyn FnMut(&mut Ino, &Name)) {
        match self {
            Self::Lookup { dir, name }
            | Self::Create { dir, name, .. }
            | Self::Link { dir, name, .. }
            | Self::Unlink { dir, name, .. }
            | Self::RmDir { dir, name, .. } => see(dir, name),
            Self::Rename { from_dir, from, to_dir, to, .. } => {
                see(from_dir, from);
                see(to_dir, to);
            }
            _ => {}
        }
    }

    /// The name of a request that servers may forward to the fragment that has it, with the
    /// directory. Changes that are already acknowledged are not forwarded: they have an order.
    pub fn forwarded_name(&mut self) -> Option<(&mut Ino, &Name)> {
        if self.is_acknowledged() {
            return None;
        }
        match self {
            Self::Lookup { dir, name }
            | Self::Create { dir, name, .. }
            | Self::Unlink { dir, name, .. }
            | Self::RmDir { dir, name, .. } => Some((dir, name)),
            _ => None,
        }
    }
}
