//! The table of settings in docs/policies.md is the one that the program has.

use espalier_policy::Key;

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
