//! `espalier ls`: lists a directory of a server, through the library, or of a mounted file system.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use espalier_library::{FileType, Listed, blocking::FileSystem};
use espalier_runtime::Servers;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::usage::print_text;
use crate::{cluster, options};

#[derive(Debug, Args)]
pub struct LsArgs {
    /// A directory or file: a path, or espalier://HOST:PORT/PATH.
    #[arg(value_hint = ValueHint::AnyPath, value_name = "DIR|URL")]
    pub path: PathBuf,
    /// Show type and permissions, links, owner, group, size and mtime, as ls(1) does.
    #[arg(short)]
    pub long: bool,
    /// Show names that begin with a dot too.
    #[arg(short)]
    pub all: bool,
    /// Authentication: credentials=DIR, or insecure for a server without TLS.
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',')]
    pub options: Vec<String>,
    #[arg(long)]
    pub json: bool,
}

/// Attributes shown for a file.
struct Row {
    name: OsString,
    kind: FileType,
    perm: u32,
    nlink: u64,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    /// Seconds and nanoseconds since 1970.
    mtime: (i64, u32),
    ino: u64,
    target: Option<PathBuf>,
}

pub(crate) fn ls(args: &LsArgs) -> Result<ExitCode> {
    let (mut rows, is_dir) = match args.path.to_str().filter(|path| cluster::is_url(path)) {
        Some(url) => of_server(url, args)?,
        None if args.options.is_empty() => of_mount(&args.path)?,
        None => bail!("-o is for servers: name one as espalier://HOST:PORT/PATH"),
    };
    rows.retain(|row| args.all || !is_dir || !row.name.as_bytes().starts_with(b"."));
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    if args.json {
        return print_text(&serde_json::Value::from_iter(rows.iter().map(json)));
    }
    let text = if args.long {
        long(&rows, is_dir)?
    } else {
        rows.iter().map(|row| shown(&row.name) + "\n").collect()
    };
    if text.is_empty() { Ok(ExitCode::SUCCESS) } else { print_text(&text.trim_end_matches('\n')) }
}

/// The rows, and true if they are entries of a directory.
fn of_server(url: &str, args: &LsArgs) -> Result<(Vec<Row>, bool)> {
    let rest = &url[Servers::SCHEME.len()..];
    let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (server, path) = (format!("{}{server}/", Servers::SCHEME), format!("/{path}"));
    if let Some(other) = args.options.iter().find(|o| *o != "insecure" && !o.starts_with("credentials=")) {
        bail!("ls takes -o credentials=DIR or -o insecure, and not {other}");
    }
    let (_, _, reach) = options::parse(&args.options, false)?;
    let fs = FileSystem::connect(&server, &reach.credentials(&server)?)?;
    let named = || format!("cannot list {url}");
    match fs.read_dir_plus(&path) {
        Ok(listed) => Ok((listed.into_iter().map(Row::from).collect(), true)),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            let metadata = fs.symlink_metadata(&path).with_context(named)?;
            let target =
                metadata.is_symlink().then(|| fs.read_link(&path)).transpose().with_context(named)?;
            Ok((vec![Row { target, ..Row::of(OsStr::new(&path), &metadata) }], false))
        }
        Err(error) => Err(error).with_context(named),
    }
}

fn of_mount(path: &Path) -> Result<(Vec<Row>, bool)> {
    let named = || format!("cannot list {}", path.display());
    let metadata = fs::symlink_metadata(path).with_context(named)?;
    if !metadata.is_dir() {
        return Ok((vec![Row::at(path, path.as_os_str(), &metadata).with_context(named)?], false));
    }
    let mut rows = Vec::new();
    for entry in fs::read_dir(path).with_context(named)? {
        let entry = entry.with_context(named)?;
        match entry.metadata() {
            // Removed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            metadata => rows.push(
                Row::at(&entry.path(), &entry.file_name(), &metadata.with_context(named)?)
                    .with_context(named)?,
            ),
        }
    }
    Ok((rows, true))
}

impl From<Listed> for Row {
    fn from(Listed { entry, metadata, target }: Listed) -> Self {
        Self { target, ..Self::of(entry.file_name(), &metadata) }
    }
}

impl Row {
    fn of(name: &OsStr, metadata: &espalier_library::Metadata) -> Self {
        Self {
            name: name.into(),
            kind: metadata.file_type(),
            perm: metadata.permissions(),
            nlink: metadata.nlink().into(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.len(),
            blocks: metadata.blocks(),
            mtime: seconds(metadata.modified()),
            ino: metadata.ino(),
            target: None,
        }
    }

    /// Row of a file in a mounted file system.
    fn at(path: &Path, name: &OsStr, metadata: &fs::Metadata) -> std::io::Result<Self> {
        let kind = rustix::fs::FileType::from_raw_mode(metadata.mode());
        Ok(Self {
            name: name.into(),
            kind: match kind {
                rustix::fs::FileType::Directory => FileType::Directory,
                rustix::fs::FileType::Symlink => FileType::Symlink,
                rustix::fs::FileType::Fifo => FileType::Fifo,
                rustix::fs::FileType::Socket => FileType::Socket,
                rustix::fs::FileType::CharacterDevice => FileType::CharDevice,
                rustix::fs::FileType::BlockDevice => FileType::BlockDevice,
                _ => FileType::Regular,
            },
            perm: metadata.mode() & 0o7777,
            nlink: metadata.nlink(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.size(),
            blocks: metadata.blocks(),
            mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
            ino: metadata.ino(),
            target: if metadata.is_symlink() { Some(fs::read_link(path)?) } else { None },
        })
    }
}

fn seconds(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => (-(before.duration().as_secs() as i64), 0),
    }
}

fn letter(kind: FileType) -> char {
    match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
    }
}

/// Type and permissions, such as `drwxr-xr-x`.
fn mode(kind: FileType, perm: u32) -> String {
    let mut mode = String::from(letter(kind));
    // Per class: shift of its permission bits, its special bit, and the letter shown for that.
    for (shift, special, shown) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = perm >> shift;
        mode.push(if bits & 4 > 0 { 'r' } else { '-' });
        mode.push(if bits & 2 > 0 { 'w' } else { '-' });
        mode.push(match (bits & 1 > 0, perm & special > 0) {
            (true, true) => shown,
            (false, true) => shown.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    mode
}

/// Escapes control characters: names come from any user and must not control the terminal.
fn shown(name: &OsStr) -> String {
    name.to_string_lossy().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn long(rows: &[Row], is_dir: bool) -> Result<String> {
    let (users, groups) = (names("/etc/passwd"), names("/etc/group"));
    let name = |names: &[(u32, String)], id: u32| {
        let found = names.iter().find(|(known, _)| *known == id);
        found.map_or_else(|| id.to_string(), |(_, name)| name.clone())
    };
    let zone = TimeZone::system();
    let now = Timestamp::now();
    let cells = rows.iter().map(|row| {
        Ok([
            row.nlink.to_string(),
            name(&users, row.uid),
            name(&groups, row.gid),
            row.size.to_string(),
            time(row.mtime, now, &zone)?,
        ])
    });
    let cells = cells.collect::<Result<Vec<_>>>()?;
    let width = |at: usize| cells.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
    let [links, user, group, size, _] = std::array::from_fn(width);
    let mut text = String::new();
    if is_dir {
        let _ = writeln!(text, "total {}", rows.iter().map(|row| row.blocks).sum::<u64>().div_ceil(2));
    }
    for (row, cells) in rows.iter().zip(&cells) {
        let target = row.target.as_ref().map(|target| format!(" -> {}", shown(target.as_os_str())));
        let _ = writeln!(
            text,
            "{} {:>links$} {:user$} {:group$} {:>size$} {} {}{}",
            mode(row.kind, row.perm),
            cells[0],
            cells[1],
            cells[2],
            cells[3],
            cells[4],
            shown(&row.name),
            target.unwrap_or_default(),
        );
    }
    Ok(text)
}

/// Time in the format of ls(1): with the year if it is in the future or more than half a year ago.
fn time((seconds, nanos): (i64, u32), now: Timestamp, zone: &TimeZone) -> Result<String> {
    // Clamp times outside the supported range.
    let seconds = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    let time = Timestamp::new(seconds, i32::try_from(nanos)?).unwrap_or(Timestamp::MAX);
    let half_a_year = (365 * 12).hours();
    let is_recent = time <= now && now.checked_sub(half_a_year).is_ok_and(|since| time > since);
    let zoned = time.to_zoned(zone.clone());
    Ok(zoned.strftime(if is_recent { "%b %e %H:%M" } else { "%b %e  %Y" }).to_string())
}

/// Names by number from a file such as `/etc/passwd`. Unknown numbers are shown as such.
fn names(file: &str) -> Vec<(u32, String)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        Some((fields.nth(1)?.parse().ok()?, name.to_string()))
    };
    text.lines().filter_map(entry).collect()
}

fn json(row: &Row) -> serde_json::Value {
    let (seconds, nanos) = row.mtime;
    let text = |name: &OsStr| name.to_string_lossy().into_owned();
    serde_json::json!({
        "name": text(&row.name), "type": letter(row.kind).to_string(), "mode": row.perm, "links": row.nlink,
        "uid": row.uid, "gid": row.gid, "size": row.size, "blocks": row.blocks, "inode": row.ino,
        "mtime": { "seconds": seconds, "nanoseconds": nanos },
        "target": row.target.as_ref().map(|target| text(target.as_os_str())),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn modes_are_shown_as_ls_shows_them() {
        for (kind, perm, text) in [
            (FileType::Directory, 0o755, "drwxr-xr-x"),
            (FileType::Regular, 0o4750, "-rwsr-x---"),
            (FileType::Regular, 0o6044, "---Sr-Sr--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Symlink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode(kind, perm), text);
        }
    }

    #[test]
    fn times_long_ago_have_a_year() {
        let now = Timestamp::new(1_800_000_000, 0).expect("a time");
        let shown = |seconds| time((seconds, 0), now, &TimeZone::UTC).expect("a time");
        assert_eq!(shown(1_799_999_999), "Jan 15 07:59");
        assert_eq!(shown(1_700_000_000), "Nov 14  2023");
        assert_eq!(shown(1_800_000_100), "Jan 15  2027");
        assert!(shown(i64::MAX).ends_with(" 9999") && shown(i64::MIN).ends_with("-9999"));
    }

    #[test]
    fn names_do_not_command_terminals() {
        assert_eq!(shown(&OsString::from_vec(b"a\x1b[2Jb\n\xff".to_vec())), "a?[2Jb?\u{fffd}");
    }
}
