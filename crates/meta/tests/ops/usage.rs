use espalier_proto::*;

use crate::harness::{Harness, everywhere, under_faults, user};

fn set(
    fs: &mut Harness,
    caller: &Caller,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<Reply, Errno> {
    let ino = fs.walk("dir")?;
    let (name, value) = (name.into(), value.into());
    fs.ask_as(caller, Request::SetXattr { ino, name, value, mode, kill_sgid: false })
}

const ROOT: Caller = crate::harness::ROOT_CALLER;
const MAX_FILES: &[u8] = b"user.espalier.quota.max_files";

#[test]
fn only_superuser_sets_limits_and_usage_is_read_only() {
    everywhere(|fs| {
        let dir = fs.mkdir("dir");
        fs.chown("dir", 5, 5);
        assert_eq!(set(fs, &user(5), MAX_FILES, b"7", XattrMode::Any), Err(Errno::EPERM));
        assert_eq!(set(fs, &ROOT, b"user.espalier.rbytes", b"7", XattrMode::Any), Err(Errno::EPERM));
        for wrong in [b"seven".as_slice(), b"", b"-1", b"99999999999999999999"] {
            assert_eq!(set(fs, &ROOT, MAX_FILES, wrong, XattrMode::Any), Err(Errno::EINVAL));
        }
        assert_eq!(set(fs, &ROOT, MAX_FILES, b"7", XattrMode::Replace), Err(Errno::ENODATA));
        assert_eq!(set(fs, &ROOT, MAX_FILES, b"7", XattrMode::Create), Ok(Reply::Done));
        assert_eq!(set(fs, &ROOT, MAX_FILES, b"8", XattrMode::Create), Err(Errno::EEXIST));
        assert_eq!(
            (fs.figure(dir, "quota.max_files"), fs.figure(dir, "quota.max_bytes")),
            (Ok(7), Err(Errno::ENODATA))
        );
        assert_eq!(fs.ask(Request::ListXattr { ino: dir }), Ok(Reply::Bytes(vec![].into())));
        assert_eq!(set(fs, &ROOT, MAX_FILES, b"0", XattrMode::Any), Ok(Reply::Done));
        assert_eq!(fs.figure(dir, "quota.max_files"), Err(Errno::ENODATA));
        let remove = Request::RemoveXattr { ino: dir, name: MAX_FILES.into() };
        assert_eq!(fs.ask(remove), Err(Errno::ENODATA));
    });
}

#[test]
fn usage_attributes_exist_on_directories_for_readers() {
    everywhere(|fs| {
        let (dir, file) = (fs.mkdir("dir"), fs.file("file", b"bytes"));
        assert_eq!(fs.figure(file, "rbytes"), Err(Errno::ENODATA));
        let name = b"user.espalier.rbytes";
        let ask = Request::GetXattr { ino: dir, name: name.as_slice().into() };
        assert_eq!(fs.ask_as(&user(5), ask.clone()), Ok(Reply::Bytes(b"0"[..].into())));
        fs.chmod("dir", 0o700);
        assert_eq!(fs.ask_as(&user(5), ask), Err(Errno::EACCES));
    });
}

#[test]
fn is_whole_under_faults() {
    let before = |fs: &mut Harness| {
        fs.mkdir("dir");
        fs.file("dir/file", b"bytes");
    };
    under_faults(before, |fs| set(fs, &ROOT, MAX_FILES, b"7", XattrMode::Any));
}
