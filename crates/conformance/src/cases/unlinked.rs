//! Files and directories without a name that are in use.

use std::os::fd::AsRawFd;

use super::prelude::*;

pub(super) fn file_lives_on(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"before", 0)?;
    fs::remove_file(d.at("f"))?;
    let meta = file.metadata()?;
    same!((meta.nlink(), meta.len()), (0, 6));
    let mut back = [0; 6];
    file.read_exact_at(&mut back, 0)?;
    same!(&back, b"before");
    file.write_all_at(b"after!!", 0)?;
    same!(file.metadata()?.len(), 7);
    // A new file of the same name is a different file.
    d.file("f", b"other")?;
    check!(stat(d.at("f"))?.st_ino != meta.ino());
    same!(file.metadata()?.len(), 7);
    Ok(())
}

pub(super) fn grows_and_shrinks(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(&pattern(1, 1000), 0)?;
    fs::remove_file(d.at("f"))?;
    let mut want = pattern(1, 1000);
    for (len, offset) in [(3000, 1000), (70_000, 4000), (100, 300_000)] {
        let data = pattern(len as u64, len);
        file.write_all_at(&data, offset as u64)?;
        want.resize(want.len().max(offset), 0);
        want.truncate(offset);
        want.extend_from_slice(&data);
        let mut back = vec![0; want.len()];
        file.read_exact_at(&mut back, 0)?;
        same!(back, want);
    }
    file.set_len(10)?;
    file.set_len(66_000)?;
    let mut back = vec![1; 66_000];
    file.read_exact_at(&mut back, 0)?;
    check!(back[..10] == want[..10] && back[10..].iter().all(|b| *b == 0));
    Ok(())
}

/// Size of the file that [`space_returns`] removes.
const SPACE_BYTES: u64 = 64 << 20;

pub(super) fn space_returns(d: &Dir) -> CaseResult {
    // Retry: other programs may free and use space meanwhile.
    for _ in 0..5 {
        if space_returns_at_close(d)? {
            return Ok(());
        }
    }
    Err(Failure::at("an unlinked file's space is not freed when, and only when, it is closed"))
}

/// Unlinks an open file and closes it. False if its space seems to be freed before it is closed, or
/// not within 30 s afterwards.
fn space_returns_at_close(d: &Dir) -> Result<bool, Failure> {
    let file = d.open("f")?;
    let block = pattern(1, 1 << 20);
    for offset in (0..SPACE_BYTES).step_by(block.len()) {
        file.write_all_at(&block, offset)?;
    }
    file.sync_all()?;
    let free = || -> Result<u64, Failure> {
        let s = d.statfs()?;
        Ok(s.f_bfree * s.f_bsize as u64)
    };
    let freed = free()? + SPACE_BYTES / 2;
    fs::remove_file(d.at("f"))?;
    file.sync_all()?;
    if free()? >= freed {
        return Ok(false);
    }
    drop(file);
    // Space may be reclaimed in the background, and syncs may take seconds on a busy machine.
    for _ in 0..600 {
        if free()? >= freed {
            return Ok(true);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(false)
}

pub(super) fn directory_as_cwd(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o755)?;
    in_child(|| {
        std::env::set_current_dir(&dir)?;
        let handle = open(".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        fs::remove_dir(&dir)?;
        fails!(std::env::current_dir(), ENOENT);
        fails!(File::create("f"), ENOENT);
        fails!(fs::create_dir("sub"), ENOENT);
        fails!(rustix::fs::symlink("x", "y"), ENOENT);
        same!(rustix::fs::fstat(&handle)?.st_nlink, 0);
        let names = crate::sys::names(".").unwrap_or_default();
        same!(names.len(), 0);
        fs::create_dir(&dir)?;
        fails!(File::create("f"), ENOENT);
        Ok(())
    })
}

pub(super) fn metadata_changes(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    fs::remove_file(d.at("f"))?;
    file.set_permissions(fs::Permissions::from_mode(0o611))?;
    same!(file.metadata()?.mode() & 0o7777, 0o611);
    rustix::fs::fchown(&file, Some(rustix::process::Uid::from_raw(60_001)), None)?;
    same!(file.metadata()?.uid(), 60_001);
    rustix::fs::fsetxattr(&file, "user.a", b"b", rustix::fs::XattrFlags::empty())?;
    let mut value = [0; 4];
    same!(rustix::fs::fgetxattr(&file, "user.a", &mut value)?, 1);
    file.sync_all()?;
    Ok(())
}

pub(super) fn replaced_by_rename(d: &Dir) -> CaseResult {
    for len in [10, 90_000] {
        let old = d.open("f")?;
        old.write_all_at(&pattern(1, len), 0)?;
        for n in 0..20 {
            d.file("next", n.to_string().as_bytes())?;
            fs::rename(d.at("next"), d.at("f"))?;
        }
        old.write_all_at(b"late", len as u64)?;
        same!(old.metadata()?.len(), len as u64 + 4);
        same!(fs::read(d.at("f"))?, b"19");
        fs::remove_file(d.at("f"))?;
    }
    Ok(())
}

pub(super) fn reopened_by_proc(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"still here", 0)?;
    fs::remove_file(d.at("f"))?;
    let again = OpenOptions::new().write(true).read(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    again.write_all_at(b"STILL", 0)?;
    drop(file);
    let mut back = [0; 10];
    again.read_exact_at(&mut back, 0)?;
    same!(&back, b"STILL here");
    Ok(())
}
