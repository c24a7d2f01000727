//! Permissions, also when the kernel has cached data for another user.

use rustix::fs::Access;

use super::prelude::*;

pub(super) fn sticky_unlink(d: &Dir) -> CaseResult {
    let shared = d.mkdir("shared", 0o1777)?;
    let f = shared.join("f");
    fs::write(&f, b"")?;
    chown(&f, ALICE.uid, ALICE.gid)?;
    chmod(&f, 0o666)?;
    fs::create_dir(shared.join("sub"))?;
    chown(shared.join("sub"), ALICE.uid, ALICE.gid)?;
    BOB.run(|| {
        fails!(fs::remove_file(&f), EPERM | EACCES);
        fails!(fs::remove_dir(shared.join("sub")), EPERM | EACCES);
        fs::write(shared.join("own"), b"")?;
        fs::remove_file(shared.join("own"))?;
        Ok(())
    })?;
    ALICE.run(|| Ok(fs::remove_file(&f)?))?;
    chown(&shared, BOB.uid, BOB.gid)?;
    BOB.run(|| Ok(fs::remove_dir(shared.join("sub"))?))
}

pub(super) fn supplementary_groups(d: &Dir) -> CaseResult {
    let f = d.file("f", b"for the staff")?;
    chown(&f, 0, STAFF)?;
    chmod(&f, 0o060)?;
    ALICE.run(|| {
        fails!(File::open(&f), EACCES);
        Ok(())
    })?;
    // Many groups, with the relevant one last.
    let mut groups: Vec<u32> = (70_000..70_040).collect();
    groups.push(STAFF);
    ALICE.run_in(&groups, || {
        OpenOptions::new().read(true).write(true).open(&f)?;
        Ok(())
    })?;
    let dir = d.mkdir("dir", 0o755)?;
    chown(&dir, 0, STAFF)?;
    chmod(&dir, 0o770)?;
    ALICE.run_in(&[STAFF], || Ok(fs::write(dir.join("f"), b"")?))?;
    // A user can change the group only to one of the user's own groups.
    let own = d.file("own", b"")?;
    chown(&own, ALICE.uid, ALICE.gid)?;
    ALICE.run(|| {
        fails!(chown(&own, ALICE.uid, STAFF).map_err(|_| rustix::io::Errno::PERM), EPERM);
        Ok(())
    })?;
    ALICE.run_in(&[STAFF], || chown(&own, ALICE.uid, STAFF))?;
    same!(stat(&own)?.st_gid, STAFF);
    Ok(())
}

pub(super) fn search_after_cached(d: &Dir) -> CaseResult {
    let home = d.home("home", ALICE, 0o700)?;
    ALICE.run(|| {
        fs::create_dir(home.at("sub"))?;
        fs::write(home.at("sub/f"), b"secret")?;
        chmod(home.at("sub"), 0o755)?;
        // Fill the kernel's caches with names, attributes and pages.
        same!(fs::read(home.at("sub/f"))?, b"secret");
        fs::metadata(home.at("sub/f"))?;
        fails!(fs::metadata(home.at("sub/none")), ENOENT);
        Ok(())
    })?;
    BOB.run(|| {
        for name in ["sub", "sub/f", "sub/none", "none"] {
            fails!(fs::metadata(home.at(name)), EACCES);
        }
        fails!(fs::read(home.at("sub/f")), EACCES);
        fails!(fs::read_dir(home.path()), EACCES);
        fails!(fs::write(home.at("g"), b""), EACCES);
        fs::metadata(home.path())?;
        Ok(())
    })
}

pub(super) fn chmod_seen_at_once(d: &Dir) -> CaseResult {
    let home = d.home("home", ALICE, 0o755)?;
    let f = home.at("f");
    fs::write(&f, b"x")?;
    let (closed, tried) = (Bell::new()?, Bell::new()?);
    let bob = Child::start(|| {
        BOB.become_in(&[])?;
        for _ in 0..10 {
            same!(fs::read(&f)?, b"x");
            fs::read_dir(home.path())?;
            tried.ring()?;
            closed.wait()?;
            fails!(fs::metadata(&f), EACCES);
            fails!(File::open(&f), EACCES);
            fails!(fs::read_dir(home.path()), EACCES);
            tried.ring()?;
            closed.wait()?;
        }
        Ok(())
    })?;
    for _ in 0..10 {
        tried.wait()?;
        chmod(home.path(), 0o700)?;
        closed.ring()?;
        tried.wait()?;
        chmod(home.path(), 0o755)?;
        closed.ring()?;
    }
    bob.wait()
}

pub(super) fn write_needs_write(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o555)?;
    let f = dir.join("f");
    fs::write(&f, b"x")?;
    chmod(&f, 0o444)?;
    BOB.run(|| {
        fails!(File::create(dir.join("new")), EACCES);
        fails!(fs::create_dir(dir.join("new")), EACCES);
        fails!(rustix::fs::symlink("x", dir.join("new")), EACCES);
        fails!(fs::remove_file(&f), EACCES);
        fails!(fs::rename(&f, dir.join("g")), EACCES);
        fails!(OpenOptions::new().write(true).open(&f), EACCES);
        fails!(rustix::fs::open(&f, OFlags::RDONLY | OFlags::TRUNC, Mode::empty()), EACCES);
        same!(fs::read(&f)?, b"x");
        // An open handle keeps its access.
        Ok(())
    })?;
    chmod(&f, 0o666)?;
    let (open_now, proceed) = (Bell::new()?, Bell::new()?);
    let bob = Child::start(|| {
        BOB.become_in(&[])?;
        let file = OpenOptions::new().read(true).write(true).open(&f)?;
        open_now.ring()?;
        proceed.wait()?;
        file.write_all_at(b"late", 0)?;
        fails!(File::open(&f), EACCES);
        Ok(())
    })?;
    open_now.wait()?;
    chmod(&f, 0)?;
    proceed.ring()?;
    bob.wait()
}

pub(super) fn access_calls(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    chmod(&f, 0o640)?;
    chown(&f, ALICE.uid, STAFF)?;
    let access = |what: Access| rustix::fs::accessat(CWD, &f, what, AtFlags::empty());
    ALICE.run(|| {
        access(Access::READ_OK | Access::WRITE_OK)?;
        fails!(access(Access::EXEC_OK), EACCES);
        Ok(())
    })?;
    BOB.run(|| {
        access(Access::EXISTS)?;
        fails!(access(Access::READ_OK), EACCES);
        Ok(())
    })?;
    BOB.run_in(&[STAFF], || {
        access(Access::READ_OK)?;
        fails!(access(Access::WRITE_OK), EACCES);
        Ok(())
    })?;
    // Root may read and write everything, but execute only if some execute bit is set.
    access(Access::READ_OK | Access::WRITE_OK)?;
    fails!(access(Access::EXEC_OK), EACCES);
    chmod(&f, 0o641)?;
    access(Access::EXEC_OK)?;
    // access(2) checks the real user, faccessat(AT_EACCESS) the effective one.
    in_child(|| {
        let bob = rustix::process::Uid::from_raw(BOB.uid);
        chmod(&f, 0o600)?;
        rustix::thread::set_thread_res_uid(bob, rustix::process::Uid::ROOT, bob)?;
        fails!(access(Access::READ_OK), EACCES);
        rustix::fs::accessat(CWD, &f, Access::READ_OK, AtFlags::EACCESS)?;
        Ok(())
    })
}

pub(super) fn owner_only_calls(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    chmod(&f, 0o666)?;
    chown(&f, ALICE.uid, ALICE.gid)?;
    BOB.run(|| {
        fails!(fs::set_permissions(&f, fs::Permissions::from_mode(0o600)), EPERM);
        let bob = Some(rustix::process::Uid::from_raw(BOB.uid));
        fails!(rustix::fs::chown(&f, bob, None), EPERM);
        let file = OpenOptions::new().write(true).open(&f)?;
        // With write permission, both times may be set to now, but to no other value.
        let now = crate::dir::timespec(0, rustix::fs::UTIME_NOW);
        let both = rustix::fs::Timestamps { last_access: now, last_modification: now };
        rustix::fs::futimens(&file, &both)?;
        let past = rustix::fs::Timestamps { last_access: now, last_modification: crate::dir::timespec(1, 0) };
        fails!(rustix::fs::futimens(&file, &past), EPERM);
        Ok(())
    })?;
    ALICE.run(|| {
        let bob = Some(rustix::process::Uid::from_raw(BOB.uid));
        fails!(rustix::fs::chown(&f, bob, None), EPERM);
        chmod(&f, 0o600)
    })
}

pub(super) fn traverse_only(d: &Dir) -> CaseResult {
    let dir = d.mkdir("dir", 0o711)?;
    fs::write(dir.join("known"), b"x")?;
    BOB.run(|| {
        same!(fs::read(dir.join("known"))?, b"x");
        fails!(fs::read_dir(&dir), EACCES);
        fails!(fs::metadata(dir.join("unknown")), ENOENT);
        Ok(())
    })?;
    // Read permission without search permission gives names only.
    chmod(&dir, 0o744)?;
    BOB.run(|| {
        same!(crate::sys::names(&dir)?, ["known"]);
        fails!(fs::metadata(dir.join("known")), EACCES);
        Ok(())
    })
}

pub(super) fn group_before_other(d: &Dir) -> CaseResult {
    let f = d.file("f", b"")?;
    chown(&f, ALICE.uid, STAFF)?;
    // The first matching class applies, even if a later one grants more.
    chmod(&f, 0o077)?;
    ALICE.run(|| {
        fails!(File::open(&f), EACCES);
        Ok(())
    })?;
    chmod(&f, 0o707)?;
    BOB.run_in(&[STAFF], || {
        fails!(File::open(&f), EACCES);
        Ok(())
    })?;
    BOB.run(|| Ok(File::open(&f).map(drop)?))
}

pub(super) fn root_overrides(d: &Dir) -> CaseResult {
    let home = d.home("home", ALICE, 0)?;
    fs::write(home.at("f"), b"x")?;
    chmod(home.at("f"), 0)?;
    same!(fs::read(home.at("f"))?, b"x");
    fs::write(home.at("f"), b"y")?;
    same!(crate::sys::names(home.path())?, ["f"]);
    Ok(())
}

pub(super) fn execute(d: &Dir) -> CaseResult {
    let program = d.at("true");
    fs::copy("/bin/true", &program)?;
    chmod(&program, 0o755)?;
    let run = || std::process::Command::new(&program).status();
    BOB.run(|| {
        check!(run()?.success());
        Ok(())
    })?;
    chmod(&program, 0o744)?;
    BOB.run(|| {
        fails!(run(), EACCES);
        Ok(())
    })?;
    let script = d.file("script", b"#!/bin/sh\nexit 7\n")?;
    chmod(&script, 0o755)?;
    same!(std::process::Command::new(&script).status()?.code(), Some(7));
    // A running program cannot be opened for writing.
    let sleeper = d.at("sleep");
    fs::copy("/bin/sleep", &sleeper)?;
    let mut child = std::process::Command::new(&sleeper).arg("5").spawn()?;
    let busy = OpenOptions::new().write(true).open(&sleeper);
    child.kill()?;
    child.wait()?;
    fails!(busy, ETXTBSY);
    Ok(())
}
