//! Tables in docs/policies.md and docs/decouple.md are those that the program has.

use espalier_policy::{Consistency, Durability, Key, Level};

#[test]
fn documented_table_is_the_table_of_settings() {
    let document = include_str!("../../../docs/policies.md");
    let row = |key: Key| {
        let (name, meaning, values) = (key.name(), key.meaning(), key.values());
        format!("| `{name}` | {meaning} | {values} | {} |\n", key.default_text())
    };
    let rows: String = Key::ALL.into_iter().map(row).collect();
    let table = format!("| setting | meaning | values | default |\n|---|---|---|---|\n{rows}\n");
    assert!(document.contains(&table), "replace the table in docs/policies.md by this one:\n\n{table}");
}

#[test]
fn documented_levels_are_those_of_the_program() {
    let (levels, cells) =
        (include_str!("../../../docs/decouple.md"), include_str!("../../../docs/policies.md"));
    for consistency in [Consistency::Invisible, Consistency::Weak, Consistency::Strong] {
        for durability in [Durability::None, Durability::Local, Durability::Global] {
            let level = Level { consistency, durability };
            if !level.is_offered() {
                continue;
            }
            let guarantee = level.guarantee();
            let crashes = format!("| {} | {} | {} |", guarantee.client, guarantee.server, guarantee.both);
            assert!(levels.contains(&crashes), "{level:?}: {crashes}");
            assert!(levels.contains(&format!("| {}", guarantee.visible)), "{level:?}");
            assert!(cells.contains(&format!("| {} |", level.composition())), "{level:?}");
        }
    }
}
