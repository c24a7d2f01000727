//! Nonvolatile apply (sevilla 6.2.1): merges a client's journal into the stores of servers that do
//! not run. The metadata machine does it, so checks, conflicts and progress are those of a merge by
//! a server, and either can continue what the other has begun.

use std::path::Path;

use espalier_client::{Answer, Call, Client, Next, Payload};
use espalier_meta::{DECOUPLE, Decoupled, Input, MERGE, decode};
use espalier_policy::{Key, Policy};
use espalier_proto::{Caller, ClientId, Errno, Ino, Rank, Request, RequestId, SetAttr, SetTime, XattrMode};

use super::client_journal::next_batch;
use super::{BigFile, ClientJournal, Merged};
use crate::dump::ClusterStores;
use crate::error::Error;
use crate::fsck::checkpoint;
use crate::location::StoreLocation;
use crate::ranks::{finish_transactions, open_ranks, run};
use crate::volume::{OpenOptions, Volume};

/// This client. No other one has the number, which others draw at random.
const CLIENT: ClientId = ClientId(u64::MAX);
/// Bytes of a big file per write.
const PIECE: usize = 128 << 10;

/// The stores of servers that do not run.
#[derive(Clone, Debug)]
pub enum OfflineStores {
    One(StoreLocation),
    Cluster(ClusterStores),
}

/// Merges a client's journal into the stores of the cluster that it was decoupled from. `name`: of
/// the journal. `progress` receives the number of merged records.
///
/// # Errors
/// - Errors of opening a store, also because a server uses it.
/// - [`Error::Clients`]: clients may rely on what the stores have.
/// - [`Error::NotDecoupled`], [`Error::OtherNamespace`], [`Error::ChangedNamespace`]: nothing has
///   been changed.
/// - [`Error::NotMerged`]: a record cannot be merged. Nothing new is visible, unless the
///   directory was synced or allows interference; it can be repeated.
pub fn apply_nonvolatile(
    journal: &dyn ClientJournal,
    name: &Path,
    stores: &OfflineStores,
    progress: impl Fn(u64),
) -> Result<(), Error> {
    let directory = journal.origin().directory;
    let (volumes, has_data_servers) = match stores {
        OfflineStores::One(location) => (vec![Volume::open(location, OpenOptions::read_once())?], false),
        OfflineStores::Cluster(ClusterStores { ranks, data }) => {
            (open_ranks(ranks, &OpenOptions::read_once())?, !data.is_empty())
        }
    };
    if has_data_servers {
        for number in 0..journal.len() {
            if let Merged::Big(file) = journal.record(number)? {
                let why = "its bytes belong on data servers: start the cluster, and use volatile apply";
                return Err(Error::Unmergeable(file.inode.ino, why));
            }
        }
    }
    let mut client = OfflineClient::new(volumes, directory.rank())?;
    let decoupled = client.decoupled(directory)?.ok_or(Error::NotDecoupled(directory))?;
    if decoupled.id == Decoupled::ABORTED {
        return Err(Error::NotDecoupled(directory));
    }
    let rest = journal.rest(&decoupled)?;
    let journal = rest.as_deref().unwrap_or(journal);
    journal.check_origin(&decoupled, name)?;
    let outcome = client.merge(journal, directory, decoupled.merged, progress);
    client.close()?;
    outcome
}

/// A client of the machines of all ranks in this process.
pub(super) struct OfflineClient {
    pub volumes: Vec<Volume>,
    client: Client,
    caller: Caller,
    /// The rank that gets all requests.
    rank: Rank,
    last: u64,
}

impl OfflineClient {
    /// # Errors
    /// [`Error::Clients`].
    pub fn new(mut volumes: Vec<Volume>, rank: Rank) -> Result<Self, Error> {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let caller = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            pid: std::process::id(),
            groups: Some(groups.into_iter().map(rustix::process::Gid::as_raw).collect()),
        };
        // A killed process has left its session.
        let leave = |volume: &Volume| (volume.superblock.rank, Input::Leave { client: CLIENT });
        let left = volumes.iter().map(leave).collect();
        run(&mut volumes, left);
        let clients = volumes.iter().map(|volume| volume.meta.awaited().len()).max();
        if let Some(clients @ 1..) = clients {
            return Err(Error::Clients(clients));
        }
        if volumes.len() > 1 {
            finish_transactions(&mut volumes);
        }
        let connect = Input::Connect { client: CLIENT, leases: false, resumes: false };
        run(&mut volumes, [(rank, connect)].into());
        Ok(Self { volumes, client: Client::default(), caller, rank, last: 0 })
    }

    fn volume(&self) -> Result<&Volume, Errno> {
        self.volumes.iter().find(|volume| volume.superblock.rank == self.rank).ok_or(Errno::ESTALE)
    }

    /// Makes a request.
    pub fn ask(&mut self, request: Request) -> Result<Answer, Errno> {
        self.call(Call::Request(request))
    }

    fn call(&mut self, call: Call<'_>) -> Result<Answer, Errno> {
        let mut next = self.client.start(&call);
        loop {
            next = match next {
                Next::Answer(answer) => return answer,
                Next::Ask(request) | Next::Find(request, _) => {
                    let reply = self.send(request);
                    self.client.reply(&call, reply)
                }
                Next::Notify(request, answer) => {
                    self.send(request)?;
                    return Ok(answer);
                }
                Next::Release(ino) => {
                    self.send(Request::Release { ino })?;
                    return Ok(Answer::Done);
                }
                Next::Stream(io) => {
                    return self.volume()?.disk.stream_io(io, call.data()).and_then(Answer::of_stream);
                }
                Next::Data(..) | Next::Apart => return Err(Errno::EIO),
            };
        }
    }

    pub fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        for (at, piece) in bytes.chunks(PIECE).enumerate() {
            let (offset, data) = (offset + (at * PIECE) as u64, Payload::Borrowed(piece));
            self.call(Call::write(ino, offset, data, false))?;
        }
        Ok(())
    }

    /// Closes a file.
    pub fn release(&mut self, ino: Ino) -> Result<(), Errno> {
        self.call(Call::Release { ino }).map(drop)
    }

    #[cfg(test)]
    pub fn read(&mut self, ino: Ino, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        match self.call(Call::read(ino, offset, size, false))? {
            Answer::Bytes(bytes) => Ok(bytes.to_vec()),
            answer => panic!("{answer:?}"),
        }
    }

    fn send(&mut self, request: Request) -> Result<espalier_proto::Reply, Errno> {
        self.last += 1;
        let id = RequestId(self.last);
        let caller = self.caller.clone();
        let input = Input::Request { from: CLIENT, id, below: id, follows: Vec::new(), caller, request };
        let replies = run(&mut self.volumes, [(self.rank, input)].into());
        // Without a reply it waits for a server or client that does not run.
        let answered = replies.into_iter().find(|answered| answered.to == CLIENT && answered.id == id);
        answered.map_or(Err(Errno::EAGAIN), |answered| answered.result)
    }

    /// The state of a decoupled directory; `None` if it does not exist or is not decoupled.
    pub fn decoupled(&mut self, directory: Ino) -> Result<Option<Decoupled>, Error> {
        // Requests name inodes that the client has looked up.
        let found = self.ask(Request::Find { ino: directory, kind: None, open: None });
        if matches!(found, Err(Errno::ESTALE | Errno::ENOENT)) {
            return Ok(None);
        }
        match self.ask(Request::GetXattr { ino: directory, name: DECOUPLE.as_bytes().into() }) {
            Ok(Answer::Bytes(bytes)) => {
                Ok(Some(decode(&bytes).map_err(|_| Error::Option("the state of the directory is invalid"))?))
            }
            Err(Errno::ENODATA | Errno::ESTALE | Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            Ok(_) => Err(Error::NotMerged { path: String::new(), errno: Errno::EIO }),
            Err(errno) => Err(Error::NotMerged { path: String::new(), errno }),
        }
    }

    pub fn set_xattr(&mut self, ino: Ino, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        let (name, value, mode) = (name.into(), value.into(), XattrMode::Any);
        self.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).map(drop)
    }

    /// Sends the records from `merged` on to a decoupled directory.
    pub fn merge(
        &mut self,
        journal: &dyn ClientJournal,
        directory: Ino,
        merged: u64,
        progress: impl Fn(u64),
    ) -> Result<(), Error> {
        let of_root = |errno| Error::NotMerged { path: String::new(), errno };
        if !journal.is_sync() {
            for (name, value) in journal.root_xattrs()? {
                self.set_xattr(directory, &name, &value).map_err(of_root)?;
            }
            self.set_policy(directory, journal.root().policy()).map_err(of_root)?;
        }
        let mut at = merged;
        loop {
            progress(at);
            let free = self.volume().map_err(of_root)?.disk.free_space()?;
            run(&mut self.volumes, [(self.rank, Input::Space { free })].into());
            let batch = next_batch(journal, at, |file| self.upload(journal, file, directory))?;
            let sent = self.set_xattr(directory, MERGE.as_bytes(), &batch.value);
            for ino in batch.files {
                self.release(ino).map_err(of_root)?;
            }
            if let Err(errno) = sent {
                let failed = self.decoupled(directory)?.map_or(at, |decoupled| decoupled.merged);
                let path = String::from_utf8_lossy(&journal.path_of(failed)).into_owned();
                return Err(Error::NotMerged { path, errno });
            }
            at = batch.next;
            if at == journal.len() {
                progress(at);
                return Ok(());
            }
        }
    }

    /// Replaces the settings of a directory, except its bound.
    fn set_policy(&mut self, directory: Ino, policy: &Policy) -> Result<(), Errno> {
        let mut settings = Key::ALL.into_iter().filter(|key| *key != Key::Bound);
        settings.try_for_each(|key| match policy.get(key) {
            Some(_) => Ok(()),
            None => {
                let name = key.attribute().into_bytes().into();
                match self.ask(Request::RemoveXattr { ino: directory, name }) {
                    Ok(_) | Err(Errno::ENODATA) => Ok(()),
                    Err(errno) => Err(errno),
                }
            }
        })?;
        let set = Key::ALL.into_iter().filter_map(|key| Some((key.attribute(), policy.get(key)?)));
        let set: Vec<_> = set.collect();
        for (name, value) in &set {
            // A setting may conflict with an old one that follows.
            match self.set_xattr(directory, name.as_bytes(), value.as_bytes()) {
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        set.iter().try_for_each(|(name, value)| self.set_xattr(directory, name.as_bytes(), value.as_bytes()))
    }

    /// Writes a big file to a file without a name, which stays open, with all its attributes.
    fn upload(&mut self, journal: &dyn ClientJournal, file: &BigFile, dir: Ino) -> Result<(Ino, Ino), Error> {
        let failed = |errno| {
            let (_, name) = &file.names[0];
            Error::NotMerged { path: String::from_utf8_lossy(name).into_owned(), errno }
        };
        let made = self.ask(Request::TmpFile { dir, perm: 0o600, umask: 0 }).map_err(failed)?;
        let Answer::Created(entry, _) = made else { return Err(failed(Errno::EIO)) };
        let ino = entry.attr.ino;
        journal.read_big(file, &mut |offset, bytes| self.write(ino, offset, bytes).map_err(failed))?;
        let set = |set| Request::SetAttr { ino, set };
        let (uid, gid) = (Some(file.attr.uid), Some(file.attr.gid));
        let size = Some(file.attr.size);
        let sized = SetAttr { size, through_handle: true, ..SetAttr::default() };
        self.ask(set(sized)).map_err(failed)?;
        self.ask(set(SetAttr { uid, gid, ..SetAttr::default() })).map_err(failed)?;
        for (name, value) in &file.xattrs {
            self.set_xattr(ino, name, value).map_err(failed)?;
        }
        let (atime, mtime) = (Some(SetTime::To(file.attr.atime)), Some(SetTime::To(file.attr.mtime)));
        let last = SetAttr { perm: Some(file.attr.perm), atime, mtime, ..SetAttr::default() };
        self.ask(set(last)).map_err(failed)?;
        self.ask(Request::Fsync { ino }).map_err(failed)?;
        Ok((ino, ino))
    }

    /// Ends the session and writes everything to the tables.
    pub fn close(mut self) -> Result<(), Error> {
        run(&mut self.volumes, [(self.rank, Input::Leave { client: CLIENT })].into());
        if self.volumes.len() > 1 {
            finish_transactions(&mut self.volumes);
        }
        for volume in self.volumes {
            checkpoint(volume)?;
        }
        Ok(())
    }
}
