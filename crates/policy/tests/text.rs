//! Text forms of policies: valid ones survive parsing, storage and inheritance; invalid ones are
//! refused.
#![allow(clippy::unwrap_used)]

use espalier_policy::{DistName, Key, Params, Policy, PolicyError, Setting, Values};

fn policy(settings: &[(Key, &str)]) -> Policy {
    let mut policy = Policy::NONE;
    settings.iter().for_each(|(key, text)| policy.set(*key, text).unwrap());
    policy
}

/// A random text that is valid or nearly valid.
fn text(rng: &mut fastrand::Rng) -> String {
    let mut pieces: Vec<&str> =
        "strips: strip_size: 0 1 7 64 1024 65536 K M G : ; _dist".split(' ').collect();
    for key in Key::ALL {
        if let Values::Words(words) = key.values() {
            pieces.extend(words);
        }
    }
    pieces.push(" ");
    (0..rng.usize(1..7)).map(|_| pieces[rng.usize(..pieces.len())]).collect()
}

#[test]
fn valid_setting_is_stored_and_invalid_one_changes_nothing() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (mut taken, mut refused, mut policy) = (0, 0, Policy::NONE);
    for _ in 0..200_000 {
        let (key, text) = (Key::ALL[rng.usize(..Key::ALL.len())], text(&mut rng));
        let before = policy.clone();
        if rng.u8(..4) == 0 {
            policy.unset(key);
            assert_eq!(policy.get(key), None);
        }
        let others = |policy: &Policy| Key::ALL.map(|one| policy.get(one).filter(|_| one != key));
        match policy.set(key, &text) {
            Ok(()) => {
                taken += 1;
                let printed = policy.get(key).unwrap();
                let switch = printed.replace("true", "1").replace("false", "0");
                let same = printed == text.trim_start_matches('0')
                    || format!("{printed}_dist") == text
                    || switch == text;
                assert!(same || printed == text, "{text} is printed as {printed}");
                assert_eq!(others(&policy), others(&before));
            }
            Err(_) => {
                refused += 1;
                assert_eq!(others(&policy), others(&before));
            }
        }
        let bytes = postcard::to_allocvec(&policy).unwrap();
        assert_eq!(postcard::from_bytes::<Policy>(&bytes).unwrap(), policy);
        assert_eq!(policy.is_empty(), policy.to_toml().is_empty());
    }
    assert!(taken > 3_000 && refused > 5_000, "{taken} {refused}");
}

#[test]
fn parameters_have_pvfs_meaning() {
    let params = |text: &str| policy(&[(Key::DistParams, text)]).dist_params().unwrap().params().clone();
    assert_eq!(params("strip_size:65536"), Params::StripSize(65536));
    assert_eq!(params("strip_size:64K"), Params::StripSize(65536));
    let Params::Strips(strips) = params("strips:0:128K;1:64k;0:1;") else { panic!() };
    let strips: Vec<_> = strips.iter().map(|strip| (strip.server, strip.size)).collect();
    assert_eq!(strips, [(0, 131_072), (1, 65_536), (0, 1)]);
}

#[test]
fn invalid_request_is_refused() {
    let refused = |key, text: &str| Policy::NONE.clone().set(key, text).unwrap_err();
    let wrong = |key, text: &str| PolicyError::Value { key, text: text.into() };
    for number in ["", "0", "-1", "+1", " 1", "1025", "65537", "1x", "18446744073709551617"] {
        assert_eq!(refused(Key::NumDfiles, number), wrong(Key::NumDfiles, number));
    }
    for name in ["", "Basic", "twod_stripe", "_dist", "basic_dist_dist"] {
        assert_eq!(refused(Key::DistName, name), wrong(Key::DistName, name));
    }
    for params in [
        "",
        "strips",
        "strips:",
        "strips:;",
        "strips:0",
        "strips:0:",
        "strips:0:0",
        "strips:0:1;;1:1",
        "strips:65536:1",
        "strips:0:2G",
        "strip_size:",
        "strip_size:0",
        "strip_size:1025M",
        "strip_size:99999999999999999999",
        "strip_size:1T",
        "size:1",
    ] {
        assert_eq!(refused(Key::DistParams, params), wrong(Key::DistParams, params));
    }
    let long = format!("strips:{}", "0:1;".repeat(300));
    assert!(matches!(refused(Key::DistParams, &long), PolicyError::Value { text, .. } if text.len() == 80));
    assert_eq!(
        Key::parse("no\nkey"),
        Err(PolicyError::Unknown(r"no\nkey".into())),
        "logs have a line for each"
    );
    // A damaged record.
    let setting = |key, text| Vec::from(policy(&[(key, text)])).remove(0);
    let wrong: Vec<Setting> = vec![setting(Key::DistName, "basic"), setting(Key::DistParams, "strip_size:1")];
    assert!(postcard::from_bytes::<Policy>(&postcard::to_allocvec(&wrong).unwrap()).is_err());
}

#[test]
fn a_distribution_and_its_parameters_go_together() {
    let mut varstrip = policy(&[(Key::DistParams, "strips:0:64K;1:1M")]);
    assert_eq!(varstrip.distribution(), Some(DistName::Varstrip), "they name it");
    let mismatch = varstrip.set(Key::DistName, "simple_stripe").unwrap_err().to_string();
    assert_eq!(
        mismatch,
        "dist_params `strips:0:64K;1:1M` do not go with dist_name simple_stripe: remove one of them first"
    );
    varstrip.set(Key::DistName, "varstrip_dist").unwrap();
    assert!(varstrip.set(Key::DistParams, "strip_size:1").is_err());
}

#[test]
fn unset_settings_have_defaults() {
    for key in Key::ALL {
        let default = Policy::NONE.or(&Policy::DEFAULT).get(key);
        assert!(default.is_none_or(|default| default == key.default_text()), "{key:?}");
    }
}

#[test]
fn missing_setting_is_inherited() {
    let server = policy(&[
        (Key::NumDfiles, "8"),
        (Key::DistName, "simple_stripe"),
        (Key::DistParams, "strip_size:64K"),
    ]);
    let with = |settings: &[(Key, &str)]| policy(settings).or(&server).explicit().to_toml();
    let all = "num_dfiles = 8\ndist_name = \"simple_stripe\"\ndist_params = \"strip_size:64K\"\n";
    assert_eq!(with(&[]), all);
    assert_eq!(with(&[(Key::DistName, "simple_stripe")]), all);
    assert_eq!(with(&[(Key::NumDfiles, "2")]), all.replace('8', "2"));
    assert_eq!(with(&[(Key::DistParams, "strip_size:1M")]), all.replace("64K", "1M"));
    assert_eq!(with(&[(Key::DistName, "basic")]), "num_dfiles = 8\ndist_name = \"basic\"\n");
}
