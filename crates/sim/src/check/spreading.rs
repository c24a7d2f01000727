//! Actions that may give metafiles to files without one, of a directory or a file.

use espalier_proto::Ino;

use super::Checker;
use super::action::Action;

impl Checker {
    /// Records which files without metafiles these actions and the pending ones may change.
    pub(super) fn note_spreading(&mut self, actions: &mut [Action]) {
        for action in actions.iter_mut() {
            match action {
                Action::SetAttr { ino, perm: Some(_), spreads }
                | Action::ChangeOwner { ino, spreads, .. }
                | Action::SetList { ino, default: false, spreads, .. } => *spreads = self.may_spread(*ino),
                Action::SetXattr { ino, may_lack_metafile, .. }
                | Action::GetXattr { ino, may_lack_metafile, .. } => {
                    *may_lack_metafile =
                        self.worlds.iter().any(|world| self.tree(world).may_have_no_metafile(*ino));
                }
                _ => {}
            }
        }
        for action in actions.iter() {
            self.pending.values_mut().for_each(|part| part.action.spread(|dir| action.strips(dir)));
        }
    }

    /// True if the directory may have files without metafiles.
    fn may_spread(&self, ino: Ino) -> bool {
        self.worlds.iter().any(|world| self.tree(world).may_have_no_metafile_entries(ino))
            || self.pending.values().any(|part| part.action.strips(ino))
    }
}
