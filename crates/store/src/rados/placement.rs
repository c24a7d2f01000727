//! Names of objects, one in each placement group of a pool.

use std::collections::BTreeMap;
use std::ffi::CString;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::engine::{EngineError, EngineFailure};

#[derive(Deserialize)]
struct PoolSetting {
    pg_num: usize,
}

#[derive(Deserialize)]
struct ObjectPlace {
    pgid: String,
}

/// Names in the namespace whose objects would be in all placement groups of the pool. `command`:
/// asks the monitors.
pub(super) fn objects(
    pool: &str,
    namespace: &str,
    command: impl Fn(&CString) -> Result<Vec<u8>, EngineError>,
) -> Result<Vec<String>, EngineError> {
    let get = json!({ "prefix": "osd pool get", "pool": pool, "var": "pg_num", "format": "json" });
    let PoolSetting { pg_num } = ask(&get, &command)?;
    let mut found = BTreeMap::new();
    // Of N groups the last is found after about N ln N names.
    for number in 0..pg_num.saturating_mul(64).max(64) {
        if found.len() >= pg_num {
            break;
        }
        let object = format!("fence.{number}");
        let map = json!({
            "prefix": "osd map", "pool": pool, "object": object, "nspace": namespace, "format": "json"
        });
        let ObjectPlace { pgid } = ask(&map, &command)?;
        found.entry(pgid).or_insert(object);
    }
    if found.len() < pg_num {
        let failure = EngineFailure::Invalid("the monitors place no object in some placement groups");
        return Err(EngineError::new("settle fences in", pool, failure));
    }
    Ok(found.into_values().collect())
}

fn ask<T: DeserializeOwned>(
    question: &serde_json::Value,
    command: impl Fn(&CString) -> Result<Vec<u8>, EngineError>,
) -> Result<T, EngineError> {
    let invalid = || {
        let failure = EngineFailure::Invalid("the monitors' reply is not understood");
        EngineError::new("query", "the monitors", failure)
    };
    let text = CString::new(question.to_string()).map_err(|_| invalid())?;
    serde_json::from_slice(&command(&text)?).map_err(|_| invalid())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn all_groups_are_found() {
        let monitors = |command: &CString| {
            let question: serde_json::Value = serde_json::from_slice(command.as_bytes()).unwrap();
            assert_eq!(question["pool"], "a \"pool\"");
            let reply = match question["object"].as_str().map(|name| name.trim_start_matches("fence.")) {
                None => json!({ "pg_num": 8 }),
                Some(number) => json!({ "pgid": format!("2.{}", number.parse::<u32>().unwrap() / 3 % 8) }),
            };
            Ok(reply.to_string().into_bytes())
        };
        let names = objects("a \"pool\"", "ns", monitors).unwrap();
        assert_eq!(
            names,
            ["0", "3", "6", "9", "12", "15", "18", "21"].map(|number| format!("fence.{number}"))
        );
        assert!(objects("p", "", |_| Ok(b"nonsense".to_vec())).is_err());
    }
}
