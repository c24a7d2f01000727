//! Translation of inode numbers between frontends and servers. Frontends use [`Ino::ROOT`] for the
//! root of the mount, which may be any directory, and a directory's own number for its fragments.

use alloc::vec::Vec;

use espalier_proto::{Attr, Entry, Ino};

use super::Sessions;
use crate::Answer;

impl<T> Sessions<T> {
    pub(super) fn real(&self, ino: Ino) -> Ino {
        if ino == Ino::ROOT { self.root } else { ino }
    }

    pub(super) fn shown_as(&self, ino: Ino) -> Ino {
        let ino = self.fragments.whole(ino);
        if ino == self.root { Ino::ROOT } else { ino }
    }

    pub(super) fn shown_all(&self, mut inos: Vec<Ino>) -> Vec<Ino> {
        inos.iter_mut().for_each(|ino| *ino = self.shown_as(*ino));
        inos
    }

    pub(super) fn shown(&mut self, now: u64, mut answer: Answer) -> Answer {
        self.complete_attrs(now, &mut answer);
        if let Answer::Attr(Attr { ino, .. })
        | Answer::Entry(Entry { attr: Attr { ino, .. }, .. })
        | Answer::Listing { parent: ino, .. }
        | Answer::Removed { dir: ino, .. } = &mut answer
        {
            *ino = self.shown_as(*ino);
        }
        answer
    }
}
