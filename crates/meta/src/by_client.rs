//! Files that their clients make, measure and remove themselves, message for message, as PVFS's do: the baseline that carns III.A
//! improves on. What a client does not finish the machine does: what it is making is an inode without a name, which goes with the
//! client's session, and what it is removing an orphan.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

use espalier_policy::Creator;
use espalier_proto::{
    Access, Attr, Capability, Delegation, FileType, Ino, Layout, Made, Opened, Reply, ServerId,
};

use crate::event::Event;
use crate::io::Purpose;
use crate::machine::{Cx, Meta};
use crate::record::Inode;
use crate::session::Proven;
use crate::step::Step;
use crate::trash::ITSELF;

impl Meta {
    /// Whether clients do all of this with a file themselves. It is theirs only where they can ask data servers.
    fn is_by_client(&self, inode: &Inode) -> bool {
        inode.kind == FileType::Regular && self.wants_clients_to_make(inode)
    }

    /// As [`Self::is_by_client`], of files that are made in a directory, too.
    pub(crate) fn wants_clients_to_make(&self, inode: &Inode) -> bool {
        let can_ask = self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated());
        can_ask && inode.policy().create().or(self.config.policy.create()) == Some(Creator::Client)
    }

    /// Lets a client have a file's datafiles.
    pub(crate) fn grant(
        &mut self,
        cx: &Cx<'_>,
        ino: Ino,
        layout: Arc<Layout>,
        access: Access,
        limited: bool,
    ) -> Step<Delegation> {
        let session = self.data_session(cx.client)?;
        // Who seals it says who has given it, and when.
        let (server, incarnation, since, seal) = (ServerId(0), 0, 0, [0; 32]);
        let capability =
            Capability { ino, access, server, incarnation, session, since, announced: false, seal };
        Ok(Delegation { layout, capability, limited })
    }

    /// Makes a file as far as its client does not: `None` if that is all of it. `limited`: a quota bounds its size.
    pub(crate) fn make(&mut self, cx: &mut Cx<'_>, inode: &Inode, limited: bool) -> Step<Option<Reply>> {
        if cx.client == ITSELF || !self.is_by_client(inode) {
            return Ok(None);
        }
        let inode = Inode { nlink: 0, ..inode.clone() };
        let ino = inode.ino;
        let delegation = self.grant_making(cx, &inode)?;
        // No datafile is to outlive it.
        cx.durable |= delegation.is_some();
        let (streamed, announced) = (inode.is_streamed(), self.announces(&inode));
        self.draw(&inode);
        self.commit(cx, &Event::TmpFile { inode })?;
        if let Some(cached) = self.state.inodes.get_mut(&ino) {
            cached.nameless = true;
        }
        if streamed {
            self.sessions.making.insert(ino);
        }
        self.opened(ino);
        let proof = self.proof(cx.client, ino, Proven::OpenedToWrite);
        let opened = Opened { streamed, accessed: false, limited, shared: false, announced, proof };
        Ok(Some(Reply::Made(Box::new(Made { ino, opened, delegation }))))
    }

    /// For the client that makes the datafile of a file without a metafile, which has its name by then, and is open until that is done.
    /// What is lost in between was never written to, and needs no datafile.
    pub(crate) fn grant_datafile(&mut self, cx: &mut Cx<'_>, inode: &Inode) -> Step<Option<Box<Delegation>>> {
        if cx.client == ITSELF || !self.is_by_client(inode) {
            return Ok(None);
        }
        let delegation = self.grant_making(cx, inode)?;
        if delegation.is_some() {
            cx.durable = true;
            // The client takes the answer in later.
            cx.told.refuse();
        }
        Ok(delegation.map(Box::new))
    }

    /// For the client that makes a file's datafiles; `None`: it has, or needs, none.
    pub(crate) fn grant_making(&mut self, cx: &Cx<'_>, inode: &Inode) -> Step<Option<Delegation>> {
        match inode.layout() {
            Some(layout) if self.effective_policy(inode).precreation() != Some(true) => {
                self.grant(cx, inode.ino, Arc::clone(layout), Access::EXEC, false).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// An inode as `stat` shows it, or else what its client needs to find out the rest itself.
    pub(crate) fn attr_or_grant(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
    ) -> Step<(Attr, Option<Box<Delegation>>)> {
        let inode = self.state.inode(ino)?;
        match inode.layout().filter(|_| cx.client != ITSELF && self.is_by_client(inode)) {
            Some(layout) => self.leave_measuring(cx, inode.attr(None), Arc::clone(layout)),
            None => Ok((self.attr(cx, inode)?, None)),
        }
    }

    /// The same, and who asks does not wait here for a data server that cannot be reached: clients that can ask these wait themselves.
    pub(crate) fn attr_at_once(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
    ) -> Step<(Attr, Option<Box<Delegation>>)> {
        let inode = self.state.inode(ino)?;
        let can_ask = self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated());
        let is_left = cx.client != ITSELF && can_ask && !self.is_by_client(inode);
        let Some(layout) = inode.layout().filter(|_| is_left) else { return self.attr_or_grant(cx, ino) };
        match cx.glance(vec![ino])? {
            Some(stats) => Ok((inode.attr(stats.first()), None)),
            None => self.leave_measuring(cx, inode.attr(None), Arc::clone(layout)),
        }
    }

    fn leave_measuring(
        &mut self,
        cx: &mut Cx<'_>,
        attr: Attr,
        layout: Arc<Layout>,
    ) -> Step<(Attr, Option<Box<Delegation>>)> {
        // What the client finds out later may not be what is so now.
        cx.told.refuse();
        Ok((attr, Some(Box::new(self.grant(cx, attr.ino, layout, Access::empty(), false)?))))
    }

    /// A client has taken a file's last name: leaves the rest to it, if nobody else uses the file.
    pub(crate) fn leave_to_client(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Option<Reply> {
        let cached = self.state.cached(ino).ok()?;
        let own = self.sessions.lookups_of(cx.client, ino)?;
        // What is on its way to a data server could come there after the removal by another connection, and make the datafile anew.
        let makes = |purpose: &Purpose| matches!(purpose, Purpose::Stream(_, call) if call.makes(ino));
        let is_used = cached.inode.nlink > 0 || cached.opens > 0 || cached.lookups > own;
        if is_used
            || self.io.values().any(makes)
            || self.sessions.in_grace()
            || !self.is_by_client(&cached.inode)
        {
            return None;
        }
        let layout = cached.inode.layout().map(Arc::clone);
        let grant = layout.map(|layout| self.grant(cx, ino, layout, Access::EXEC, false));
        let delegation = grant.transpose().ok()?;
        // The client removes datafiles at once: a loss of power is not to bring back a name without them.
        cx.durable |= delegation.is_some();
        self.sessions.removing.insert(ino, cx.client);
        Some(Reply::Orphaned(ino, delegation.map(Box::new)))
    }
}
