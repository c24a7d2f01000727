//! Clients that may use a part of the tree only. Such a client reaches what it has been told of: its root, and what it has
//! found from there on, for a request may name no inode that its session does not hold.

use alloc::boxed::Box;

use espalier_proto::{Caller, ClientId, Errno, Ino, Name, Reply, Request, RequestId};

use super::{Hold, Session};
use crate::machine::Meta;
use crate::outbox::{Now, Outbox};
use crate::state::Target;
use crate::step::Step;
use crate::task::Task;
use crate::trash::ITSELF;

impl Meta {
    /// From now on a client may use what is below a directory only. Answered in [`Outbox::entered`].
    pub(crate) fn restrict(&mut self, now: Now, client: ClientId, path: Box<[Name]>, out: &mut Outbox) {
        let request = Request::Enter { client, path };
        self.run(now, Task::new(ITSELF, RequestId(0), Caller::SERVER, request), None, out);
    }

    pub(crate) fn enter(&mut self, client: ClientId, path: &[Name]) -> Step<Reply> {
        let mut root = Ino::ROOT;
        for name in path {
            self.state.dir(root)?;
            match self.state.target(root, &self.state.slot(name))? {
                Target::Absent => return Err(Errno::ENOENT.into()),
                Target::Primary(ino) | Target::Remote(ino, _) => root = ino,
            }
        }
        self.state.dir(root)?;
        let session = self.sessions.clients.get_mut(&client).ok_or(Errno::ESTALE)?;
        if session.root == Some(root) {
            return Ok(Reply::Done);
        }
        // As long as it is held it can be found by its number.
        let hold = Hold::LOOKUP;
        if let Some(cached) = self.state.inodes.get_mut(&root) {
            cached.lookups += 1;
            session.hold(root, hold);
        }
        if let Some(before) = session.root.replace(root) {
            let unwanted = session.let_go(before, hold);
            self.sessions.abandoned.push_back((before, unwanted));
        }
        Ok(Reply::Done)
    }

    /// The directory that is a client's root, if it is restricted to it.
    pub fn root_of(&self, client: ClientId) -> Option<Ino> {
        self.sessions.clients.get(&client)?.root
    }
}

impl Session {
    /// Whether a request keeps within what the client may reach.
    pub(super) fn permits(&self, request: &mut Request) -> Result<(), Errno> {
        let Some(root) = self.root else { return Ok(()) };
        let mut is_known = true;
        request.each_inode(&mut |ino| is_known &= self.held.contains_key(ino));
        match request {
            _ if !is_known => Err(Errno::ESTALE),
            Request::RemoveTree { dir } if *dir == root => Err(Errno::EBUSY),
            // Its steps name directories that the client has not found itself.
            Request::CopyTree(_) => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }
}
