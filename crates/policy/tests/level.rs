//! Mechanisms, their compositions, and the levels of Table 6.1.
#![allow(clippy::unwrap_used)]

use espalier_policy::{
    Composition, CompositionError, Consistency, Durability, Key, Level, Mechanism, Policy, PolicyError,
};

fn refused(text: &str) -> String {
    Composition::parse(text).unwrap_err().to_string()
}

fn levels() -> impl Iterator<Item = Level> {
    let consistencies = [Consistency::Invisible, Consistency::Weak, Consistency::Strong];
    let durabilities = [Durability::None, Durability::Local, Durability::Global];
    durabilities.into_iter().flat_map(move |durability| {
        consistencies.into_iter().map(move |consistency| Level { consistency, durability })
    })
}

#[test]
fn cells_have_the_compositions_of_the_table() {
    let cells: Vec<String> = levels().map(|level| level.composition().to_string()).collect();
    assert_eq!(
        cells,
        [
            "append client journal",
            "append client journal+volatile apply",
            "RPCs",
            "append client journal+local persist",
            "append client journal+local persist+volatile apply",
            "RPCs+local persist",
            "append client journal+global persist",
            "append client journal+global persist+volatile apply",
            "RPCs+stream",
        ]
    );
    for level in levels() {
        let composition = level.composition();
        assert_eq!(Composition::parse(&composition.to_string()), Ok(composition.clone()), "{level:?}");
        assert_eq!(Level::of(&composition), level);
    }
}

#[test]
fn compositions_are_printed_as_they_are_parsed() {
    for (text, printed) in [
        (
            " append client journal || local persist + volatile apply",
            "append client journal||local persist+volatile apply",
        ),
        ("rpcs||stream", "RPCs||stream"),
        ("append client journal+nonvolatile apply", "append client journal+nonvolatile apply"),
        (
            "append client journal+global persist||volatile apply",
            "append client journal+global persist||volatile apply",
        ),
    ] {
        assert_eq!(Composition::parse(text).unwrap().to_string(), printed);
    }
}

#[test]
fn nonsense_is_refused_with_its_reason() {
    for (text, reason) in [
        ("", "a mechanism is missing"),
        ("append client journal+", "a mechanism is missing"),
        ("append client journal|||volatile apply", "there is no mechanism `|volatile apply`"),
        ("append", "there is no mechanism `append`: there are append client journal, RPCs, volatile apply, "),
        ("RPCs+RPCs", "`RPCs` is there twice"),
        ("append client journal+RPCs", "`append client journal` and `RPCs` do not go together: both make"),
        ("RPCs+stream+local persist", "`stream` and `local persist` do not go together: the server's"),
        ("volatile apply+append client journal", "`volatile apply` needs `append client journal` before it"),
        ("volatile apply||append client journal", "`volatile apply` needs `append client journal` before it"),
        ("RPCs+volatile apply", "`volatile apply` needs `append client journal` before it"),
        ("local persist", "nothing makes changes"),
        ("append client journal+stream", "`stream` needs `RPCs` before it"),
        ("local persist+append client journal", "`local persist` needs `append client journal` before it"),
        ("RPCs+global persist", "`global persist` needs `append client journal` before it"),
    ] {
        assert!(refused(text).starts_with(reason), "{text}: {}", refused(text));
    }
    let name = format!("{}\n", "x".repeat(100));
    assert_eq!(Composition::parse(&name), Err(CompositionError::Unknown("x".repeat(80))));
}

#[test]
fn composition_knows_its_mechanisms() {
    let composition = Composition::parse("append client journal||local persist").unwrap();
    assert!(composition.has(Mechanism::LocalPersist) && !composition.has(Mechanism::VolatileApply));
}

#[test]
fn policy_resolves_to_a_level() {
    let mut policy = Policy::NONE;
    let level = |consistency, durability| Level { consistency, durability };
    assert_eq!(policy.level(), level(Consistency::Weak, Durability::Local));
    policy.set(Key::Consistency, "strong").unwrap();
    assert_eq!(policy.level(), level(Consistency::Strong, Durability::Global));
    for durability in ["none", "local"] {
        let refused = policy.set(Key::Durability, durability).unwrap_err();
        assert!(matches!(refused, PolicyError::Level(_)), "{refused}");
        assert_eq!(policy.level(), level(Consistency::Strong, Durability::Global));
    }
    policy.set(Key::Consistency, "invisible").unwrap();
    policy.set(Key::Durability, "none").unwrap();
    assert_eq!(policy.level(), level(Consistency::Invisible, Durability::None));
    assert!(policy.set(Key::Consistency, "strong").is_err());
}

fn parsed(settings: &[(&str, &str)]) -> Policy {
    Policy::parse(settings.iter().copied()).unwrap()
}

#[test]
fn relax_names_settings() {
    let shown = |text: &str| parsed(&[("relax", text)]).get(Key::Relax).unwrap();
    for (text, expected) in [
        ("all", "all"),
        ("none", "none"),
        ("[]", "none"),
        ("durability", "durability"),
        ("[\"interfere\", \"consistency\"]", "consistency,interfere"),
        ("consistency,durability,allocated_inodes,interfere", "all"),
    ] {
        assert_eq!(shown(text), expected);
        assert_eq!(shown(expected), expected);
    }
    for text in ["", "relax", "num_dfiles", "durability,", "[durability", "durability;interfere"] {
        assert!(Policy::parse([("relax", text)]).is_err(), "{text}");
    }
}

#[test]
fn settings_that_relax_does_not_name_bound_directories_below() {
    let above = parsed(&[("consistency", "weak"), ("durability", "global"), ("relax", "consistency")]);
    let child = above.inherited(&above);
    let bound = "durability:global;allocated_inodes:16777216;interfere:block;relax:consistency";
    assert_eq!(child.get(Key::Bound).as_deref(), Some(bound));
    assert_eq!(parsed(&[("bound", bound)]).bound(), child.bound());
    assert_eq!(child.exceeded(), None);
    let changed = |settings: &[(&str, &str)]| {
        let mut policy = child.clone();
        for (name, value) in settings {
            let key = Key::parse(name).unwrap();
            policy.unset(key);
            if !value.is_empty() {
                policy.set(key, value).unwrap();
            }
        }
        policy.exceeded().map(|(key, _)| key)
    };
    for (settings, exceeded) in [
        (vec![("consistency", "invisible")], None),
        (vec![("consistency", "strong")], None),
        (vec![("durability", "local")], Some(Key::Durability)),
        (vec![("durability", "")], Some(Key::Durability)),
        (vec![("durability", ""), ("consistency", "strong")], None),
        (vec![("interfere", "allow")], Some(Key::Interfere)),
        (vec![("allocated_inodes", "16777217")], Some(Key::AllocatedInodes)),
        (vec![("allocated_inodes", "1")], None),
        (vec![("relax", "all")], Some(Key::Relax)),
        (vec![("relax", "")], Some(Key::Relax)),
        (vec![("relax", "none")], None),
    ] {
        assert_eq!(changed(&settings), exceeded, "{settings:?}");
    }
    // A directory that is stricter than its bound bounds those below it.
    let stricter =
        parsed(&[("bound", bound), ("consistency", "weak"), ("relax", "none"), ("durability", "global")]);
    let below = stricter.inherited(&stricter);
    assert_eq!(
        below.get(Key::Bound).unwrap(),
        "consistency:weak;durability:global;allocated_inodes:16777216;interfere:block;relax:none"
    );
    // One that allows everything passes its own bound on.
    let free = parsed(&[("bound", "durability:local;relax:all"), ("durability", "global")]);
    assert_eq!(free.inherited(&free).get(Key::Bound).unwrap(), "durability:local;relax:all");
    assert_eq!(parsed(&[("durability", "global")]).inherited(&parsed(&[])).bound(), None);
    let copied = parsed(&[("durability", "none")]).within(&child);
    assert_eq!(copied.exceeded().map(|(key, _)| key), Some(Key::Durability));
}
