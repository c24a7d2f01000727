//! `espalier policy` and `espalier layout`: the storage policy of directories, and the placement of
//! a file's data. Both use extended attributes of the mounted file system.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};
use espalier_policy::{
    Composition, Consistency, Guarantee, Interference, Key, Level, Mechanism, Policy, Values,
};
use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use toml::{Table, Value};

use crate::args::{LayoutArgs, PolicyArgs};
use crate::decouple::{open_dir, state_of};
use crate::usage::print_text;

const EFFECTIVE: &str = "user.espalier.policy";
const LAYOUT: &str = "user.espalier.layout";

pub(crate) fn policy(args: &PolicyArgs) -> Result<ExitCode> {
    let path = &args.path;
    if !path.is_dir() {
        bail!(
            "{} is no directory: `espalier layout` prints the layout of a file, which is that of its directory's policy at creation",
            path.display()
        );
    }
    let effective = effective_text(path)?;
    let old = own(path)?;
    let mut new = match &args.file {
        Some(file) => with_bound_of(read(file)?, &old)?,
        None => old.clone(),
    };
    let composed = args.compose.as_ref().map(of_composition).transpose()?;
    let set = || args.set.iter().chain(composed.iter().flatten());
    for key in args.unset.iter().chain(set().map(|(key, _)| key)) {
        new.unset(*key);
    }
    for (key, text) in set() {
        new.set(*key, text)?;
    }
    if !args.changes() {
        return show(args, &old, &effective);
    }
    change(path, &old, &new)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn layout(args: &LayoutArgs) -> Result<ExitCode> {
    let path = &args.path;
    if !path.is_file() {
        bail!("{} is no file: `espalier policy` prints the policy of a directory", path.display());
    }
    let text = attribute(path, LAYOUT)?.with_context(|| not_ours(path))?;
    if args.json {
        let table: Table = toml::from_str(&text)?;
        return print_text(&serde_json::to_value(table)?);
    }
    print_text(&text.trim_end())
}

/// The settings in force for the directory, without the program's defaults.
pub(crate) fn effective(path: &Path) -> Result<Policy> {
    from_table(toml::from_str(&effective_text(path)?)?)
}

fn effective_text(path: &Path) -> Result<String> {
    attribute(path, EFFECTIVE)?.with_context(|| not_ours(path))
}

fn not_ours(path: &Path) -> String {
    format!("{} is not in a mounted Espalier file system", path.display())
}

/// The settings whose level has the guarantees of a composition.
fn of_composition(composition: &Composition) -> Result<[(Key, String); 2]> {
    if composition.has(Mechanism::NonvolatileApply) {
        bail!(
            "`nonvolatile apply` is not offered as a level, since it needs the servers stopped: use `volatile apply`, or \
             `espalier journal apply --nonvolatile`"
        );
    }
    let Level { consistency, durability } = Level::of(composition);
    Ok([(Key::Consistency, consistency.to_string()), (Key::Durability, durability.to_string())])
}

/// All settings, for help and the manual page.
pub(crate) fn settings_help() -> String {
    let row = |key: Key| {
        let (values, meaning, default) = (key.values(), key.meaning(), key.default_text());
        format!("\n  {}: {values} [default: {default}]\n          {meaning}", key.name())
    };
    Key::ALL.into_iter().fold("Settings:".into(), |text: String, key| text + &row(key))
}

/// The argument of `--unset`.
pub(crate) fn setting_name() -> impl TypedValueParser<Value = Key> {
    PossibleValuesParser::new(Key::ALL.map(Key::name)).try_map(|name| Key::parse(&name))
}

/// The argument of `--set`.
#[derive(Clone)]
pub(crate) struct Assignment;

impl TypedValueParser for Assignment {
    type Value = (Key, String);

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, Error> {
        let parse = |text: String| {
            let (name, value) = text.split_once('=').context("it is no KEY=VALUE")?;
            anyhow::Ok((Key::parse(name)?, value.to_owned()))
        };
        StringValueParser::new().try_map(parse).parse_ref(command, arg, value)
    }

    /// For completion.
    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let texts = |key: Key| {
            let words = if let Values::Words(words) = key.values() { words } else { &[""] };
            words.iter().map(move |word| PossibleValue::new(format!("{}={word}", key.name())))
        };
        Some(Box::new(Key::ALL.into_iter().flat_map(texts)))
    }
}

/// Reads a policy from a TOML file.
pub(crate) fn read(file: &Path) -> Result<Policy> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let table = toml::from_str(&text).with_context(|| format!("{} is not valid TOML", file.display()))?;
    from_table(table).with_context(|| format!("{} is not a valid policy", file.display()))
}

/// # Errors
/// A policy attribute is unknown or has an invalid value.
pub(crate) fn from_table(table: Table) -> Result<Policy> {
    let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Ok(Policy::parse(table.into_iter().map(|(name, value)| (name, text(value))))?)
}

/// Settings with the bound of others, unless they have one.
pub(crate) fn with_bound_of(mut settings: Policy, others: &Policy) -> Result<Policy> {
    if let (None, Some(bound)) = (settings.bound(), others.bound()) {
        settings.set(Key::Bound, &bound.to_string())?;
    }
    Ok(settings)
}

/// The attributes set on the directory itself.
pub(crate) fn own(dir: &Path) -> Result<Policy> {
    let mut policy = Policy::NONE;
    for key in Key::ALL {
        if let Some(text) = attribute(dir, &key.attribute())? {
            policy.set(key, &text)?;
        }
    }
    Ok(policy)
}

/// Replaces the settings of a directory.
pub(crate) fn change(dir: &Path, old: &Policy, new: &Policy) -> Result<()> {
    let refused = |errno: Errno| match (errno, old.bound()) {
        (Errno::PERM, Some(bound)) => anyhow::anyhow!(
            "you may not change the policy of {} so: the directory above allows no weaker level than {bound}",
            dir.display()
        ),
        (Errno::PERM | Errno::ACCESS, _) => anyhow::anyhow!(
            "you may not change the policy of {}: it takes the right to write there",
            dir.display()
        ),
        _ => anyhow::Error::new(errno).context(format!("cannot change the policy of {}", dir.display())),
    };
    // Settings that may conflict with new ones are unset first.
    let may_conflict = |key: &Key| matches!(key, Key::DistName | Key::DistParams);
    for key in old.changes(new).filter(|key| new.get(*key).is_none() || may_conflict(key)) {
        match removexattr(dir, key.attribute()) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    // Consistency strong goes with durability global only, so a stronger durability is set before.
    let is_first = |key: &Key| *key == Key::Durability && new.level().consistency == Consistency::Strong;
    let (first, rest): (Vec<Key>, Vec<Key>) = old.changes(new).partition(is_first);
    for key in first.into_iter().chain(rest) {
        if let Some(text) = new.get(key) {
            setxattr(dir, key.attribute(), text.as_bytes(), XattrFlags::empty()).map_err(refused)?;
        }
    }
    Ok(())
}

fn show(args: &PolicyArgs, own: &Policy, effective: &str) -> Result<ExitCode> {
    if args.json {
        let (own, effective): (Table, Table) = (toml::from_str(&own.to_toml())?, toml::from_str(effective)?);
        let merged = merged_records(&args.path)?;
        let in_force = from_table(effective.clone())?;
        let level = in_force.level();
        let Guarantee { client, server, both, .. } = level.guarantee();
        return print_text(&serde_json::json!({
            "path": args.path, "policy": own, "effective": effective, "decoupled": merged.is_some(), "merged": merged,
            "level": {
                "consistency": level.consistency.to_string(), "durability": level.durability.to_string(),
                "composition": level.composition().to_string(), "others_see_changes": visible(&in_force),
                "client_crash": client, "server_crash": server, "crash_of_both": both,
            },
        }));
    }
    let effective = from_table(toml::from_str(effective)?)?;
    let mut text = String::new();
    for key in Key::ALL {
        let (value, whose) = match (own.get(key), effective.get(key)) {
            (Some(value), _) => (value, "set here"),
            (None, Some(value)) => (value, "of the server"),
            (None, None) => continue,
        };
        writeln!(text, "{:<16} {value:<24} {whose}", key.name())?;
    }
    let of_level = [Key::Consistency, Key::Durability, Key::SyncInterval];
    if of_level.into_iter().any(|key| effective.get(key).is_some()) {
        text.push_str(&level_text(&effective));
    }
    if let Some(merged) = merged_records(&args.path)? {
        writeln!(text, "{:<16} {merged} records merged", "decoupled")?;
    }
    if text.is_empty() {
        text.push_str("no attribute is set, here or by the server");
    }
    print_text(&text.trim_end())
}

/// When others see changes.
fn visible(policy: &Policy) -> String {
    let how = match (policy.level().consistency, policy.interfere(), policy.sync_interval()) {
        (Consistency::Strong, ..) => String::new(),
        (_, _, Some(interval)) => format!(", and before it what was done {interval} and a sync ago"),
        (_, Some(Interference::Allow), None) => ", one by one".into(),
        _ => ", all at once".into(),
    };
    policy.level().guarantee().visible.to_owned() + &how
}

/// A level as sentences.
fn level_text(policy: &Policy) -> String {
    let level = policy.level();
    let Guarantee { client, server, both, .. } = level.guarantee();
    let rows = [
        ("mechanisms", level.composition().to_string()),
        ("others see", format!("changes {}", visible(policy))),
        ("client crash", client.into()),
        ("server crash", server.into()),
        ("crash of both", both.into()),
    ];
    let level = if level.is_offered() { "" } else { "not offered: use durability global\n" };
    rows.iter().fold(level.into(), |text: String, (name, value)| text + &format!("{name:<16} {value}\n"))
}

/// Number of records merged into a decoupled directory; `None` if it is not decoupled.
fn merged_records(path: &Path) -> Result<Option<u64>> {
    let is_dir = path.is_dir();
    let state = is_dir.then(|| state_of(&open_dir(path)?)).transpose()?.flatten();
    Ok(state.map(|decoupled| decoupled.merged))
}

/// Value of an extended attribute; `None` if it does not exist.
pub(crate) fn attribute(path: &Path, name: &str) -> Result<Option<String>> {
    let mut value = vec![0; 65536];
    match getxattr(path, name, &mut value) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&value[..length]).into_owned())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno).with_context(|| format!("cannot examine {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Policy> {
        from_table(toml::from_str(text)?)
    }

    #[test]
    fn printed_policy_parses_back() {
        let text = "num_dfiles = 3\ndist_name = \"varstrip\"\ndist_params = \"strips:0:64K;1:1M\"\n";
        assert_eq!(parsed(text).expect("a policy").to_toml(), text);
        assert!(parsed("").expect("an empty policy").is_empty());
    }

    #[test]
    fn invalid_policy_is_refused_with_valid_values() {
        for (text, why) in [
            ("dfiles = 3", "there is no setting `dfiles`: there are num_dfiles, "),
            ("num_dfiles = 0", "num_dfiles is a number, 1 to 1024, and not `0`"),
            ("num_dfiles = 2.5", "num_dfiles is a number, 1 to 1024, and not `2.5`"),
            ("dist_name = \"raid\"", "dist_name is basic, simple_stripe or varstrip, and not `raid`"),
        ] {
            assert!(parsed(text).expect_err(text).to_string().starts_with(why), "{text}");
        }
    }
}
