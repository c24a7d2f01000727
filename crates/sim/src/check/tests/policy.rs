//! Policies of directories: inheritance, and the effect on files.

use espalier_proto::XattrMode;

use super::*;

/// A cluster with data servers: a directory with a file.
fn live() -> Run {
    let rules = Rules { scattered: true, live: true, ..RULES };
    let mut run = Run { checker: Checker::new(rules), ..Run::new() };
    assert!(run.did(mkdir(1, "d"), Ok(dir(3))));
    run
}

fn set(ino: u64, key: &str, value: &str) -> Call<'static> {
    let (name, value) = (attribute(key), value.as_bytes().into());
    Call::Request(Request::SetXattr { ino: Ino(ino), name, value, mode: XattrMode::Any, kill_sgid: false })
}

fn unset(ino: u64, key: &str) -> Call<'static> {
    Call::Request(Request::RemoveXattr { ino: Ino(ino), name: attribute(key) })
}

fn get(ino: u64, key: &str) -> Call<'static> {
    Call::Request(Request::GetXattr { ino: Ino(ino), name: attribute(key) })
}

fn attribute(key: &str) -> Box<[u8]> {
    format!("user.espalier.{key}").into_bytes().into()
}

fn text(text: Option<&str>) -> Result<Answer, Errno> {
    text.map(|text| bytes(text.as_bytes())).ok_or(Errno::ENODATA)
}

#[test]
fn new_directory_inherits_policy_of_parent() {
    for (replied, is_so) in [(Some("false"), true), (Some("true"), false), (None, false)] {
        let mut run = live();
        assert!(run.did(set(3, "stuffing", "false"), Ok(Answer::Done)));
        assert!(run.did(mkdir(3, "e"), Ok(dir(4))));
        // Later changes above do not affect it.
        assert!(run.did(unset(3, "stuffing"), Ok(Answer::Done)));
        assert!(run.did(get(3, "stuffing"), Err(Errno::ENODATA)));
        assert_eq!(run.did(get(4, "stuffing"), text(replied)), is_so, "{replied:?}");
    }
    // Either value if the policy changes meanwhile; the value is permanent.
    for (replied, other) in [(Some("4"), None), (None, Some("4"))] {
        let mut run = live();
        let (setting, making) = (run.asks(set(3, "num_dfiles", "4")), run.asks(mkdir(3, "e")));
        assert!(run.ends(making, Ok(dir(4))) && run.ends(setting, Ok(Answer::Done)));
        assert!(run.did(get(4, "num_dfiles"), text(replied)));
        assert!(!run.did(get(4, "num_dfiles"), text(other)));
    }
}

#[test]
fn only_valid_settings_are_set_and_only_on_directories() {
    let refused = [
        (set(3, "stuffing", "perhaps"), Errno::EINVAL),
        (set(3, "stuffed", "true"), Errno::EINVAL),
        (set(3, "layout", "here"), Errno::EPERM),
        (unset(3, "stuffing"), Errno::ENODATA),
    ];
    for (call, errno) in refused {
        assert!(live().did(call.clone(), Err(errno)));
        assert!(!live().did(call, Ok(Answer::Done)));
    }
    let mut run = live();
    assert!(run.did(create("f"), Ok(file(2))));
    assert!(run.did(set(2, "stuffing", "true"), Err(Errno::EINVAL)));
    assert!(run.did(get(2, "stuffing"), Err(Errno::ENODATA)));
    assert!(!run.did(set(2, "stuffing", "true"), Ok(Answer::Done)));
}

#[test]
fn file_follows_policy_of_its_creation() {
    let striped = "place = \"data servers\"\nservers = [1]\ndist_name = \"basic\"\n";
    let stuffed = "place = \"metadata\"\n";
    let cases = [
        ("stuffing", "false", striped, true),
        ("stuffing", "false", stuffed, false),
        ("stuffing", "true", stuffed, true),
        ("no_metafile", "true", striped, false),
    ];
    for (key, value, replied, is_so) in cases {
        let mut run = live();
        assert!(run.did(set(1, "dist_name", "basic"), Ok(Answer::Done)));
        assert!(run.did(set(1, key, value), Ok(Answer::Done)));
        let made = attr(2, FileType::Regular, 1, 0);
        let perm = if key == "no_metafile" { 0o666 } else { 0o755 };
        assert!(run.did(create("f"), Ok(entry(Attr { perm, ..made }))));
        assert!(run.did(unset(1, key), Ok(Answer::Done)));
        assert_eq!(run.did(get(2, "layout"), text(Some(replied))), is_so, "{key} {value}");
    }
}
