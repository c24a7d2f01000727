//! Convenience methods: requests by path, with plain results.

use std::collections::BTreeMap;

use espalier_proto::*;

use super::{Harness, ROOT_CALLER, name};

pub fn open_how(access: Access, truncate: bool) -> OpenHow {
    OpenHow { access, kill_suid_gid: truncate, truncate, ..OpenHow::default() }
}

impl Harness {
    /// The inode at a path. The empty path is the root.
    pub fn walk(&mut self, path: &str) -> Result<Ino, Errno> {
        let mut ino = Ino::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match self.ask(Request::Lookup { dir: ino, name: name(part) })? {
                Reply::Entry(entry) => ino = entry.attr.ino,
                _ => return Err(Errno::ENOENT),
            }
        }
        Ok(ino)
    }

    /// The directory of a path, and its last name.
    pub fn place(&mut self, path: &str) -> Result<(Ino, Name), Errno> {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(dir)?, name(last)))
    }

    pub fn make(&mut self, path: &str, node: NewNode) -> Ino {
        let (dir, name) = self.place(path).unwrap();
        self.create(dir, std::str::from_utf8(&name).unwrap(), node).unwrap()
    }

    pub fn mkdir(&mut self, path: &str) -> Ino {
        self.make(path, NewNode::Directory)
    }

    /// A file with these bytes; in a stream if they exceed a strip.
    pub fn file(&mut self, path: &str, bytes: &[u8]) -> Ino {
        let ino = self.make(path, NewNode::Regular);
        self.ask(Request::Open { ino, how: open_how(Access::WRITE, false) }).unwrap();
        if self.write(ino, 0, bytes).unwrap() == Reply::Streamed {
            // The client writes there, and an fsync makes it durable.
            self.disk.store().stream_write(ino, 0, bytes).unwrap();
            self.ask(Request::Fsync { ino }).unwrap();
        }
        self.ask(Request::Release { ino }).unwrap();
        ino
    }

    pub fn attr(&mut self, path: &str) -> Attr {
        let ino = self.walk(path).unwrap();
        self.attr_of(ino)
    }

    pub fn attr_of(&mut self, ino: Ino) -> Attr {
        match self.ask(Request::GetAttr { ino }).unwrap() {
            Reply::Attr(attr) => attr,
            other => panic!("{other:?}"),
        }
    }

    pub fn chmod(&mut self, path: &str, perm: u32) {
        let ino = self.walk(path).unwrap();
        self.ask(Request::SetAttr { ino, set: SetAttr { perm: Some(perm), ..SetAttr::default() } }).unwrap();
    }

    pub fn chown(&mut self, path: &str, uid: u32, gid: u32) {
        let ino = self.walk(path).unwrap();
        let set = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        self.ask(Request::SetAttr { ino, set }).unwrap();
    }

    /// Opens a file, so that it exists until its release.
    pub fn open(&mut self, path: &str) -> Ino {
        let ino = self.walk(path).unwrap();
        self.ask(Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
        ino
    }

    /// The number in one of the attributes `user.espalier.*`.
    pub fn figure(&mut self, ino: Ino, name: &str) -> Result<u64, Errno> {
        let name = format!("user.espalier.{name}").into_bytes().into();
        match self.ask(Request::GetXattr { ino, name })? {
            Reply::Bytes(text) => Ok(String::from_utf8(text.into()).unwrap().parse().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Sets an extended attribute whose value is its name.
    pub fn set_xattr(&mut self, ino: Ino, name: &str) {
        let name: Box<[u8]> = format!("user.{name}").into_bytes().into();
        let (value, mode) = (name.clone(), XattrMode::Any);
        self.ask(Request::SetXattr { ino, name, value, mode, kill_sgid: false }).unwrap();
    }

    pub fn set_limit(&mut self, dir: Ino, name: &str, max: u64) -> Result<Reply, Errno> {
        let name = format!("user.espalier.quota.{name}").into_bytes().into();
        let value = max.to_string().into_bytes().into();
        self.ask(Request::SetXattr { ino: dir, name, value, mode: XattrMode::Any, kill_sgid: false })
    }

    /// Forgets an inode, whatever its lookups.
    pub fn forget(&mut self, ino: Ino) {
        self.send(&ROOT_CALLER, Request::Forget { ino, lookups: u64::MAX });
    }

    pub fn create(&mut self, dir: Ino, file: &str, node: NewNode) -> Result<Ino, Errno> {
        let request = Request::Create {
            dir,
            name: name(file),
            node,
            perm: 0o755,
            umask: 0,
            open: None,
            exclusive: true,
            writeback: None,
        };
        match self.ask(request)? {
            Reply::Entry(entry) => Ok(entry.attr.ino),
            other => panic!("{other:?}"),
        }
    }

    pub fn lookup(&mut self, dir: Ino, file: &str) -> Option<Attr> {
        match self.ask(Request::Lookup { dir, name: name(file) }).unwrap() {
            Reply::Entry(entry) => Some(entry.attr),
            Reply::Absent { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<Reply, Errno> {
        self.ask(Request::Write { ino, offset, data: data.to_vec().into(), kill_suid_gid: false, time: None })
    }

    pub fn read(&mut self, ino: Ino) -> Vec<u8> {
        let read = Request::Read { ino, offset: 0, size: 1 << 20, noatime: false };
        let mut reply = self.ask(read.clone());
        if reply == Err(Errno::EBADF) {
            // A client with a session must have the file open.
            self.ask(Request::Open { ino, how: open_how(Access::READ, false) }).unwrap();
            reply = self.ask(read);
            self.ask(Request::Release { ino }).unwrap();
        }
        match reply.unwrap() {
            Reply::Bytes(bytes) => bytes.into(),
            Reply::Streamed => {
                let store = self.disk.store();
                let mut bytes = vec![0; store.stream_stat(ino).unwrap().size as usize];
                store.stream_read(ino, 0, &mut bytes).unwrap();
                bytes
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn is_streamed(&mut self, ino: Ino) -> bool {
        self.ask(Request::Read { ino, offset: 0, size: 0, noatime: false }) == Ok(Reply::Streamed)
    }

    pub fn list(&mut self, dir: Ino, plus: bool) -> Vec<Dirent> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.ask(Request::ReadDir { dir, after, limit: 3, plus });
            match page.unwrap_or_else(|errno| panic!("listing of {dir} after {after}: {errno}")) {
                Reply::Listing { entries, end, .. } => {
                    after = entries.last().map_or(after, |entry| entry.cursor);
                    all.extend(entries);
                    if end {
                        return all;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The visible tree, one line per name.
    pub fn dump(&mut self) -> BTreeMap<String, String> {
        let mut lines = BTreeMap::new();
        self.dump_into(Ino::ROOT, String::new(), &mut lines);
        lines
    }

    fn dump_into(&mut self, dir: Ino, path: String, lines: &mut BTreeMap<String, String>) {
        for entry in self.list(dir, true) {
            let path = format!("{path}/{}", entry.name.escape_ascii());
            let attr = entry.entry.unwrap().attr;
            let xattrs = self.ask(Request::ListXattr { ino: attr.ino });
            let Attr { ino, kind, perm, nlink, uid, gid, rdev, btime, .. } = attr;
            // The store has a stream's size and times, and the bytes are not journaled: see
            // `contents`.
            let rest = if attr.streamed {
                String::from("streamed")
            } else {
                let bytes = if kind == FileType::Regular { self.read(ino) } else { Vec::new() };
                let Attr { size, atime, mtime, ctime, .. } = attr;
                format!("{size} {atime:?} {mtime:?} {ctime:?} {bytes:?}")
            };
            let shown =
                format!("{ino} {kind:?} {perm:o} {nlink} {uid} {gid} {rdev} {btime:?} {xattrs:?} | {rest}");
            lines.insert(path.clone(), shown);
            if attr.kind == FileType::Directory {
                self.dump_into(attr.ino, path, lines);
            }
            self.send(&ROOT_CALLER, Request::Forget { ino: attr.ino, lookups: 1 });
        }
    }

    /// The contents of files, by path.
    pub fn contents(&mut self) -> BTreeMap<String, Vec<u8>> {
        let paths = self.dump().into_keys();
        paths.filter_map(|path| self.content(&path).map(|bytes| (path, bytes))).collect()
    }

    fn content(&mut self, path: &str) -> Option<Vec<u8>> {
        let attr = self.attr(path);
        let bytes = (attr.kind == FileType::Regular).then(|| self.read(attr.ino));
        for ancestor in path.match_indices('/').skip(1).map(|(end, _)| &path[..end]).chain([path]) {
            let ino = self.walk(ancestor).unwrap();
            self.send(&ROOT_CALLER, Request::Forget { ino, lookups: 2 });
        }
        bytes
    }
}
