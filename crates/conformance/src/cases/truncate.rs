//! `truncate(2)` and `ftruncate(2)`.

use super::prelude::*;

pub(super) fn down_and_up(d: &Dir) -> CaseResult {
    for len in [100usize, 5000, 70_000, 1_100_000] {
        let file = d.open(format!("f{len}"))?;
        let mut want = pattern(1, len);
        file.write_all_at(&want, 0)?;
        for to in [len / 2, len / 2 + 7, len, len / 3, len + 3000, 1, 0, 10] {
            file.set_len(to as u64)?;
            // The removed range reads as zeros afterwards.
            want.resize(to, 0);
            same!(file.metadata()?.len(), to as u64);
            same!(fs::read(d.at(format!("f{len}")))?, want, "{len} to {to}");
        }
    }
    Ok(())
}

pub(super) fn around_the_strip(d: &Dir) -> CaseResult {
    const STRIP: usize = 64 * 1024;
    for from in [STRIP - 1, STRIP, STRIP + 1, 2 * STRIP] {
        for to in [STRIP - 1, STRIP, STRIP + 1, STRIP - 4096, STRIP + 4096, 0] {
            let path = d.file("f", &pattern(9, from))?;
            let file = d.open("f")?;
            file.set_len(to as u64)?;
            file.set_len(3 * STRIP as u64)?;
            let mut want = pattern(9, from);
            want.resize(to, 0);
            want.resize(3 * STRIP, 0);
            same!(fs::read(&path)?, want, "{from} to {to}");
            file.write_all_at(b"tail", STRIP as u64 - 2)?;
            want[STRIP - 2..STRIP + 2].copy_from_slice(b"tail");
            same!(fs::read(&path)?, want, "{from} to {to}, written");
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

pub(super) fn by_path(d: &Dir) -> CaseResult {
    use std::os::unix::ffi::OsStrExt;
    let f = d.file("f", b"0123456789")?;
    let name = std::ffi::CString::new(f.as_os_str().as_bytes())?;
    let reader = File::open(&f)?;
    // SAFETY: `name` is a C string that outlives the call.
    same!(unsafe { libc::truncate(name.as_ptr(), 4) }, 0);
    same!(reader.metadata()?.len(), 4);
    let mut back = [0; 10];
    same!(reader.read_at(&mut back, 0)?, 4);
    // SAFETY: as above.
    same!(unsafe { libc::truncate(name.as_ptr(), 8) }, 0);
    same!(fs::read(&f)?, b"0123\0\0\0\0");
    BOB.run(|| {
        // SAFETY: as above.
        same!(unsafe { libc::truncate(name.as_ptr(), 1) }, -1);
        Ok(())
    })?;
    same!(reader.metadata()?.len(), 8);
    Ok(())
}

pub(super) fn huge(d: &Dir) -> CaseResult {
    let file = d.open("f")?;
    file.write_all_at(b"x", 0)?;
    for shift in [31, 32, 40, 43] {
        file.set_len(1 << shift)?;
        same!(file.metadata()?.len(), 1 << shift);
        let mut byte = [1];
        file.read_exact_at(&mut byte, (1 << shift) - 1)?;
        same!(byte, [0]);
    }
    file.set_len(1)?;
    same!(fs::read(d.at("f"))?, b"x");
    Ok(())
}

pub(super) fn errors(d: &Dir) -> CaseResult {
    let f = d.file("f", b"abc")?;
    fails!(File::open(&f)?.set_len(1), EINVAL);
    let directory = open(d.path(), OFlags::RDONLY)?;
    fails!(directory.set_len(0), EINVAL | EISDIR | EBADF);
    let file = d.open("f")?;
    if file.set_len(i64::MAX as u64).is_ok() {
        check!(d.kind() == "tmpfs", "a size that no offset reaches");
        file.set_len(3)?;
    }
    same!(fs::read(&f)?, b"abc");
    Ok(())
}
