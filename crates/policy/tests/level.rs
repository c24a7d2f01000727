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
