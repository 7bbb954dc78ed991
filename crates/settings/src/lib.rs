//! Settings from one table: the struct, its defaults, the flags of a command line and the keys of a YAML file.
//!
//! [`settings!`] expands a table to the struct. Layers (a file, the flags) are plain maps merged by name, the last one winning; a key that does
//! not exist is an error that names the closest one that does.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// One setting, for `--help` and documentation.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Name: `--close-mosaic` on the command line, `close_mosaic` in YAML. An underscore at the end only avoids a word of Rust.
    pub name: &'static str,
    /// Heading it stands under.
    pub group: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Its Rust type, `bool` for a flag.
    pub kind: &'static str,
}

/// Settings from one place: a file, the command line.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// What an error calls it.
    pub origin: String,
    /// Names and values.
    pub values: Map<String, Value>,
}

/// A setting that does not exist, or does not take the value it was given.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("{origin}: {reason}")]
pub struct SettingsError {
    /// Where it was written.
    pub origin: String,
    /// What is wrong.
    pub reason: String,
}

/// Expands a table of settings to a struct, its `Default` and a constant `SETTINGS` of all of them.
#[macro_export]
macro_rules! settings {
    ($(#[$meta:meta])* $config:ident; $($group:literal { $($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr;)+ })+) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $config { $($($(#[doc = $doc])+ pub $name: $kind,)+)+ }

        impl Default for $config {
            fn default() -> Self {
                Self { $($($name: $default,)+)+ }
            }
        }

        /// Every setting in the order of the struct.
        pub const SETTINGS: &[$crate::Setting] = &[$($(
            $crate::Setting { name: stringify!($name), group: $group, help: concat!($($doc),+), kind: stringify!($kind) },
        )+)+];
    };
}

/// `start` overlaid by `layers`, the last one winning. `taken` looks at each key first: `Ok(true)` says that it is dealt with.
///
/// # Errors
/// A key that is not a setting (with the closest one) or a value of the wrong kind, and where it was written.
pub fn merge<C: Serialize + DeserializeOwned>(
    start: C,
    table: &[Setting],
    layers: &[Layer],
    taken: impl Fn(&str, &Value) -> Result<bool, String>,
) -> Result<C, SettingsError> {
    let mut config = start;
    for layer in layers {
        for (key, value) in &layer.values {
            let fail = |reason: String| SettingsError { origin: layer.origin.clone(), reason };
            let name = key.replace('-', "_");
            // A null is what another tool wrote for "not given".
            if taken(&name, value).map_err(fail)? || value.is_null() {
                continue;
            }
            let Some(setting) = table.iter().find(|s| s.name.trim_end_matches('_') == name) else {
                let likeness = |s: &Setting| strsim::jaro_winkler(s.name, &name);
                let closest = table.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
                let closest = closest.map_or("", |s| s.name).trim_end_matches('_');
                return Err(fail(format!("unknown setting `{key}`; did you mean `{closest}`?")));
            };
            let mut all = serde_json::to_value(&config).map_err(|e| fail(e.to_string()))?;
            all[setting.name] = value.clone();
            config = serde_json::from_value(all).map_err(|e| fail(format!("`{key}` cannot be {value}: {e}")))?;
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    settings! {
        /// Some settings.
        Some;
        "A" {
            /// Times
            epochs: usize = 3;
            /// Weight
            box_: f64 = 7.5;
            /// Name
            name: Option<String> = None;
        }
    }

    fn merged(values: Value) -> Result<Some, SettingsError> {
        let layer = Layer { origin: "x.yaml".into(), values: values.as_object().cloned().unwrap_or_default() };
        merge(Some::default(), SETTINGS, &[layer], |name, _| Ok(name == "other_tools"))
    }

    #[test]
    fn layers_win_and_errors_say_where_and_what() {
        assert_eq!(SETTINGS.len(), 3);
        let some = merged(serde_json::json!({ "box": 2, "name": "n", "epochs": null, "other-tools": 1 }));
        assert_eq!(some, Ok(Some { epochs: 3, box_: 2.0, name: Option::Some("n".into()) }));
        let unknown = merged(serde_json::json!({ "epoch": 1 })).map_err(|e| e.to_string());
        assert_eq!(unknown, Err("x.yaml: unknown setting `epoch`; did you mean `epochs`?".into()));
        let wrong = merged(serde_json::json!({ "epochs": "many" })).map_err(|e| e.to_string());
        assert!(wrong.is_err_and(|e| e.starts_with("x.yaml: `epochs` cannot be \"many\"")));
    }
}
