//! Fragments that split because of requests, and merge only when they get few.

use super::show::fragments_of;
use super::*;

const FILES: usize = 24;

/// A directory of some files with policy settings.
fn with_settings(settings: &[(&str, &[u8])]) -> (Routed, Ino, Vec<String>) {
    let (mut fs, dir) = Routed::with_dir();
    let files = names("file", FILES);
    fs.make_files(dir, &files);
    for (setting, value) in settings {
        fs.ask(set_xattr(dir, &format!("user.espalier.{setting}"), value)).unwrap();
    }
    (fs, dir, files)
}

/// Seconds with this number of lookups in each, in all files alike.
fn seconds_pass(fs: &mut Routed, seconds: usize, lookups: usize, (dir, files): (Ino, &[String])) {
    for second in 0..seconds {
        for at in 0..lookups {
            fs.lookup(dir, &files[(second * lookups + at) % files.len()]).unwrap();
        }
        for host in &mut fs.fs.0 {
            host.uptime_ms += 1000;
            host.now.secs += 1;
        }
        fs.fs.tick();
    }
}

fn fragments(fs: &mut Routed, dir: Ino) -> usize {
    fs.map(dir).fragments().count()
}

#[test]
fn popular_fragments_split_until_each_gets_few_requests_and_show_why() {
    let (mut fs, dir, files) = with_settings(&[("dir_split_rate", b"40")]);
    seconds_pass(&mut fs, 4, 50, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 1, "it has not been popular for long enough");
    seconds_pass(&mut fs, 60, 50, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 2, "each of them gets fewer requests");
    let shown = fragments_of(&mut fs, dir).unwrap();
    assert_eq!(shown.matches("split_by = ").count(), 1, "{shown}");
    assert!(shown.contains(" requests/s, dir_split_rate 40\""), "{shown}");
    let counts = fs.fs.0[usize::from(HOME)].meta.figures().fragment_counts;
    assert_eq!((counts.splits, counts.splits_by_rate), (1, 1));
    fs.assert_names(dir, &files);
    fs.ask(set_xattr(dir, "user.espalier.dir_split_rate", b"10")).unwrap();
    seconds_pass(&mut fs, 60, 60, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 4);
    let moved = fs.map(dir).ino(1).unwrap();
    fs.ask(set_xattr(dir, "user.espalier.fragments", format!("{moved} 0").as_bytes())).unwrap();
    seconds_pass(&mut fs, 2, 0, (dir, &files));
    assert_eq!(fragments_of(&mut fs, dir).unwrap().matches("dir_split_rate ").count(), 3);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn requests_of_one_moment_split_nothing() {
    let (mut fs, dir, files) = with_settings(&[("dir_split_rate", b"40")]);
    seconds_pass(&mut fs, 1, 500, (dir, &files));
    seconds_pass(&mut fs, 60, 10, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 1);
}

/// A directory with two fragments, which may merge when they get few requests. Returns the names in
/// the first one, too.
fn with_two_fragments() -> (Routed, Ino, Vec<String>, Vec<String>) {
    let settings: [(&str, &[u8]); 3] =
        [("dir_split_rate", b"100"), ("dir_merge", b"50"), ("dir_servers", b"2")];
    let (mut fs, dir, files) = with_settings(&settings);
    let map = fs.map(dir);
    assert_eq!(map.fragments().count(), 2);
    let first = files.iter().filter(|file| map.number(hash(file)) == 0).cloned().collect();
    (fs, dir, files, first)
}

/// Has no fragment stay because of its number.
fn unset_servers(fs: &mut Routed, dir: Ino) {
    fs.ask(Request::RemoveXattr { ino: dir, name: (*b"user.espalier.dir_servers").into() }).unwrap();
}

#[test]
fn small_fragments_merge_only_when_they_get_few_requests() {
    let (mut fs, dir, files, _) = with_two_fragments();
    // A quarter of `dir_split_rate` is the limit for each.
    seconds_pass(&mut fs, 30, 80, (dir, &files));
    unset_servers(&mut fs, dir);
    seconds_pass(&mut fs, 30, 80, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 2);
    seconds_pass(&mut fs, 60, 20, (dir, &files));
    assert_eq!(fragments(&mut fs, dir), 1);
    fs.assert_names(dir, &files);
    fs.fs.fsck();
}

#[test]
fn fragment_does_not_merge_into_one_that_gets_many_requests() {
    let (mut fs, dir, _, first) = with_two_fragments();
    seconds_pass(&mut fs, 30, 70, (dir, &first));
    unset_servers(&mut fs, dir);
    seconds_pass(&mut fs, 30, 70, (dir, &first));
    assert_eq!(fragments(&mut fs, dir), 2);
    fs.fs.fsck();
}
