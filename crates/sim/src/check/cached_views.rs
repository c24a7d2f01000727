//! Names and attributes that clients may cache for a fixed term: a reply from the cache is right if
//! it was right at some instant within that term.

use std::collections::{BTreeMap, VecDeque};

use espalier_client::Answer;
use espalier_proto::{Attr, ClientId, Errno, Ino, Name, XattrPresence};

use super::acl;
use super::action::Action;
use crate::Nanos;

/// See the module description.
pub struct CachedViews {
    term: Nanos,
    /// Latest first; `None`: the name does not exist.
    names: BTreeMap<(ClientId, Ino, Name), Heard<Option<Ino>>>,
    attrs: BTreeMap<(ClientId, Ino), Heard<Attr>>,
}

/// Values with the times of their replies.
type Heard<T> = VecDeque<(Nanos, T)>;

impl CachedViews {
    pub fn new(term: Nanos) -> Self {
        // The client's clock may be slow.
        let term = term + Nanos(term.0 / 1000);
        Self { term, names: BTreeMap::new(), attrs: BTreeMap::new() }
    }

    /// Records a correct reply to a client.
    pub fn learn(&mut self, now: Nanos, client: ClientId, action: &Action, result: &Result<Answer, Errno>) {
        let since = now - self.term;
        let name = match action {
            Action::Lookup { dir, name }
            | Action::Create { dir, name, .. }
            | Action::Link { dir, name, .. } => Some((client, *dir, name.clone())),
            _ => None,
        };
        let mut attrs = Vec::new();
        let mut names = Vec::new();
        match (result, name) {
            (Ok(Answer::Attr(attr)), _) => attrs.push(*attr),
            (Ok(Answer::Entry(entry) | Answer::Created(entry, _)), Some(name)) => {
                attrs.push(entry.attr);
                names.push((name, Some(entry.attr.ino)));
            }
            (Ok(Answer::Absent { .. }), Some(name)) => names.push((name, None)),
            (Ok(Answer::Listing { entries, .. }), _) => {
                let Action::List { dir } = action else { return };
                for (name, entry) in entries.iter().filter_map(|it| Some((&it.name, it.entry?))) {
                    attrs.push(entry.attr);
                    names.push(((client, *dir, name.clone()), Some(entry.attr.ino)));
                }
            }
            _ => {}
        }
        for (name, ino) in names {
            remember(self.names.entry(name).or_default(), since, now, ino);
        }
        for attr in attrs {
            remember(self.attrs.entry((client, attr.ino)).or_default(), since, now, attr);
        }
    }

    /// True if a cached reply explains the result.
    pub fn explains(
        &self,
        now: Nanos,
        client: ClientId,
        action: &Action,
        result: &Result<Answer, Errno>,
    ) -> bool {
        let since = now - self.term;
        let was_named = |dir: &Ino, name: &Name, ino: Option<Ino>| {
            let observed = self.names.get(&(client, *dir, name.clone()));
            observed.into_iter().flatten().any(|(at, was)| *at >= since && *was == ino)
        };
        let was = |attr: &Attr| {
            let observed = self.attrs.get(&(client, attr.ino));
            observed.into_iter().flatten().any(|(at, was)| *at >= since && was == attr)
        };
        match (action, result) {
            (Action::Lookup { dir, name }, Ok(Answer::Absent { .. })) => was_named(dir, name, None),
            (Action::Lookup { dir, name }, Ok(Answer::Entry(entry))) => {
                was_named(dir, name, Some(entry.attr.ino)) && was(&entry.attr)
            }
            (Action::Attr { .. }, Ok(Answer::Attr(attr))) => was(attr),
            // The attributes show that there are no lists.
            (Action::GetXattr { ino, name, .. }, Err(Errno::ENODATA)) if acl::is_list(name) => {
                let observed = self.attrs.get(&(client, *ino));
                observed
                    .into_iter()
                    .flatten()
                    .any(|(at, attr)| *at >= since && attr.xattrs == XattrPresence::None)
            }
            _ => false,
        }
    }
}

fn remember<T>(all: &mut VecDeque<(Nanos, T)>, since: Nanos, now: Nanos, view: T) {
    all.push_front((now, view));
    while all.back().is_some_and(|(at, _)| *at < since) {
        all.pop_back();
    }
}
