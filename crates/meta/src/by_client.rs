//! Files that clients make, measure and remove step by step, as PVFS clients do: the baseline that
//! carns III.A improves on. The machine completes what a client does not finish: a file in the
//! making is an inode without a name, which is freed with the client's session, and a file being
//! removed is an orphan.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;

use espalier_policy::{Creator, Policy};
use espalier_proto::{
    Access, Attr, Capability, Delegation, FileType, Ino, Layout, Made, Opened, Reply, ServerId,
};

use crate::event::Event;
use crate::io::Purpose;
use crate::machine::{Cx, Final, Meta};
use crate::record::Inode;
use crate::session::TokenKind;
use crate::step::Step;
use crate::trash::INTERNAL_CLIENT;

impl Meta {
    /// True if clients make and remove this file step by step. Requires that clients can ask data
    /// servers.
    fn is_by_client(&self, inode: &Inode) -> bool {
        inode.kind == FileType::Regular && self.wants_clients_to_make(inode)
    }

    /// True if the caller's client makes this file step by step.
    pub(crate) fn is_made_by_client(&self, cx: &Cx<'_>, inode: &Inode) -> bool {
        cx.client != INTERNAL_CLIENT && self.is_by_client(inode)
    }

    /// As [`Self::is_by_client`], also for files made in a directory.
    pub(crate) fn wants_clients_to_make(&self, inode: &Inode) -> bool {
        let can_ask = self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated());
        can_ask && self.setting(inode, Policy::create) == Some(Creator::Client)
    }

    /// Grants a client a capability for a file's datafiles, or without a layout for its stream.
    pub(crate) fn grant(
        &mut self,
        cx: &Cx<'_>,
        ino: Ino,
        layout: Option<Arc<Layout>>,
        access: Access,
        limited: bool,
    ) -> Step<Delegation> {
        let session = self.data_session(cx.client)?;
        // The driver that seals the capability fills these in.
        let (server, incarnation, since, seal) = (ServerId(0), 0, 0, [0; 32]);
        let capability =
            Capability { ino, access, server, incarnation, session, since, announced: false, seal };
        Ok(Delegation { layout, capability, limited })
    }

    /// Makes the server's part of a file that its client makes step by step. `limited`: a quota
    /// bounds the file's size.
    pub(crate) fn make(&mut self, cx: &mut Cx<'_>, inode: Inode, limited: bool) -> Step<Final<'_>> {
        let inode = Inode { nlink: 0, ..inode };
        let ino = inode.ino;
        let delegation = self.grant_making(cx, &inode)?;
        let (streamed, announced) = (inode.is_streamed(), self.announces(&inode));
        self.note_pool_use(&inode);
        self.commit(cx, &Event::TmpFile { inode }, |meta, cx| {
            // No datafile may outlive the file.
            cx.durable |= delegation.is_some();
            if let Some(cached) = meta.state.inodes.untracked(&ino) {
                cached.nameless = true;
            }
            if streamed {
                meta.sessions.making.insert(ino);
            }
            meta.opened(ino);
            let reclaim_token = meta.reclaim_token(cx.client, ino, TokenKind::OpenedToWrite);
            let (accessed, shared) = (false, false);
            let opened = Opened { streamed, accessed, limited, shared, announced, reclaim_token };
            Reply::Made(Box::new(Made { ino, opened, delegation }))
        })
    }

    /// Grants the client the right to make the datafile of a no-metafile file, which already has
    /// its name and stays open until then. A file lost in between was never written to, and needs
    /// no datafile.
    pub(crate) fn grant_datafile(&mut self, cx: &mut Cx<'_>, inode: &Inode) -> Step<Option<Box<Delegation>>> {
        if !self.is_made_by_client(cx, inode) {
            return Ok(None);
        }
        let delegation = self.grant_making(cx, inode)?;
        if delegation.is_some() {
            cx.durable = true;
            // The client uses the answer only later.
            cx.read_set.refuse();
        }
        Ok(delegation.map(Box::new))
    }

    /// Grants a client the right to make a file's datafiles; `None`: the file has them, or needs
    /// none.
    pub(crate) fn grant_making(&mut self, cx: &Cx<'_>, inode: &Inode) -> Step<Option<Delegation>> {
        match inode.layout() {
            Some(layout) if self.setting(inode, Policy::precreation) != Some(true) => {
                self.grant(cx, inode.ino, Some(Arc::clone(layout)), Access::EXEC, false).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The attributes of an inode, or what its client needs to query the rest itself.
    pub(crate) fn attr_or_grant(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
    ) -> Step<(Attr, Option<Box<Delegation>>)> {
        let inode = self.state.inode(ino)?;
        match inode.layout().filter(|_| self.is_made_by_client(cx, inode)) {
            Some(layout) => self.leave_measuring(cx, inode.attr(None), Arc::clone(layout)),
            None => Ok((self.attr(cx, inode)?, None)),
        }
    }

    /// As [`Self::attr_or_grant`], but does not wait for an unreachable data server: clients that
    /// can ask data servers wait themselves.
    pub(crate) fn attr_at_once(
        &mut self,
        cx: &mut Cx<'_>,
        ino: Ino,
    ) -> Step<(Attr, Option<Box<Delegation>>)> {
        let inode = self.state.inode(ino)?;
        let can_ask = self.config.striping.as_ref().is_some_and(|striping| striping.is_delegated());
        let is_left = cx.client != INTERNAL_CLIENT && can_ask && !self.is_by_client(inode);
        let Some(layout) = inode.layout().filter(|_| is_left) else { return self.attr_or_grant(cx, ino) };
        match cx.try_stat(vec![ino])? {
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
        // Later queries of the client may differ from the current state.
        cx.read_set.refuse();
        let delegation = self.grant(cx, attr.ino, Some(layout), Access::empty(), false)?;
        Ok((attr, Some(Box::new(delegation))))
    }

    /// Leaves the removal of a file whose last name a client has removed to that client, if nobody
    /// else uses the file.
    pub(crate) fn leave_to_client(&mut self, cx: &mut Cx<'_>, ino: Ino) -> Option<Reply> {
        let cached = self.state.cached(ino).ok()?;
        let own = self.sessions.lookups_of(cx.client, ino)?;
        // A call in progress could reach a data server after the removal, over another connection,
        // and make the datafile again.
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
        let grant = layout.map(|layout| self.grant(cx, ino, Some(layout), Access::EXEC, false));
        let delegation = grant.transpose().ok()?;
        // The client removes datafiles at once: a power failure must not restore a name without
        // them.
        cx.durable |= delegation.is_some();
        self.sessions.removing.insert(ino, cx.client);
        Some(Reply::Orphaned(ino, delegation.map(Box::new)))
    }
}
