//! Changes the layouts of files in an unused store, after their datafiles have been moved.

use alloc::sync::Arc;

use espalier_proto::{Ino, Layout, ObjectId, ObjectKind, TableWrite};

use crate::record::{Body, Dentry, InoRecord, Inode, decode, encode};

/// The write that gives the file in a record another layout; `None` unless it is a striped file for
/// which `change` returns one. Skips unreadable records, which are left to fsck.
pub fn relayout(
    object: ObjectId,
    key: &[u8],
    value: &[u8],
    change: impl FnOnce(Ino, &Layout) -> Option<Layout>,
) -> Option<TableWrite> {
    let changed = |mut inode: Inode| {
        let Body::Striped { layout, .. } = &mut inode.body else { return None };
        *layout = Arc::new(change(inode.ino, layout)?);
        Some(inode)
    };
    let value = match object.kind {
        ObjectKind::Fragment => match decode(value).ok()? {
            Dentry::Primary(inode) => encode(&Dentry::Primary(changed(inode)?)),
            Dentry::Remote(_) => return None,
        },
        ObjectKind::Inodes => match InoRecord::from_key(key)? {
            (InoRecord::Inode, _) => encode(&changed(decode(value).ok()?)?),
            _ => return None,
        },
        ObjectKind::Orphans => encode(&changed(decode(value).ok()?)?),
        ObjectKind::Super | ObjectKind::Sessions => return None,
    };
    Some(TableWrite { object, key: key.into(), value: Some(value) })
}
