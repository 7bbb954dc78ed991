//! Settings from one table: the struct, its defaults, the flags of a command line and the keys of a YAML file.
//!
//! [`settings!`] expands a table to the struct. Layers (a file, the flags) are plain maps merged by name, weakest first; a key that does
//! not exist is an error that names the closest one that does. What a setting looks like on a command line is said by its type ([`Kind`]).

mod kind;
mod yaml;

use bellows_exit::{Coded, Exit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use kind::{Kind, number};
pub use yaml::yaml_fault;

/// One setting, for `--help` and documentation.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The field of the struct.
    pub name: &'static str,
    /// Heading it stands under.
    pub group: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// What else is worth knowing, for documentation; may be empty.
    pub more: &'static str,
    /// [`Kind::value_name`] of its type.
    pub value_name: fn() -> String,
    /// [`Kind::SWITCH`] of its type.
    pub switch: bool,
    /// [`Kind::read`] of its type.
    pub read: fn(&str) -> Value,
}

impl Setting {
    /// What a user writes in YAML: the field without the underscore that avoids a word of Rust (`box_`).
    pub fn key(&self) -> &'static str {
        self.name.trim_end_matches('_')
    }

    /// What a user writes on the command line, without the dashes before it: `close-mosaic` for `close_mosaic`.
    pub fn flag(&self) -> String {
        self.key().replace('_', "-")
    }
}

/// Settings from one place: a file, a dataset, the command line.
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

impl Coded for SettingsError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// Expands a table of settings to a struct, its `Default` and a constant `SETTINGS` of all of them.
///
/// A setting is `name: Type = default;`, or `name: Type as Other = default;` where flags are read as [`Kind`] `Other` reads them. The first
/// line of its comment is the help, the lines after it are for documentation.
#[macro_export]
macro_rules! settings {
    (@kind $kind:ty) => { $kind };
    (@kind $kind:ty, $other:ty) => { $other };
    ($(#[$meta:meta])* $config:ident; $($group:literal {
        $(#[doc = $help:literal] $(#[doc = $more:literal])* $name:ident: $kind:ty $(as $other:ty)? = $default:expr;)+
    })+) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $config { $($(#[doc = $help] #[doc = ""] $(#[doc = $more])* pub $name: $kind,)+)+ }

        impl Default for $config {
            fn default() -> Self {
                Self { $($($name: $default,)+)+ }
            }
        }

        /// Every setting in the order of the struct.
        pub const SETTINGS: &[$crate::Setting] = &[$($(
            $crate::Setting {
                name: stringify!($name),
                group: $group,
                help: $help,
                more: concat!($($more),*),
                value_name: <$crate::settings!(@kind $kind $(, $other)?) as $crate::Kind>::value_name,
                switch: <$crate::settings!(@kind $kind $(, $other)?) as $crate::Kind>::SWITCH,
                read: <$crate::settings!(@kind $kind $(, $other)?) as $crate::Kind>::read,
            },
        )+)+];
    };
}

/// `start` overlaid by `layers`, the last one winning. Hyphens in keys are underscores. `taken` looks at each key first, for what is no
/// setting and yet no mistake: `Ok(true)` says that it is dealt with.
///
/// # Errors
/// A key that is not a setting (with the closest one), a value of the wrong kind, or what `taken` refuses, and where it was written.
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
            let Some(setting) = table.iter().find(|s| s.key() == name || s.name == name) else {
                return Err(fail(unknown("setting", key, table.iter().map(Setting::key))));
            };
            let all = serde_json::to_value(&config).map_err(|e| fail(e.to_string()))?;
            let with = |value: Value| {
                let mut all = all.clone();
                all[setting.name] = value;
                serde_json::from_value::<C>(all)
            };
            let read = with(value.clone()).or_else(|error| match value {
                none if says_none(none) => with(Value::Null).map_err(|_| error),
                // A list of one, as on a command line.
                Value::Number(_) => with(vec![value.clone()].into()).map_err(|_| error),
                _ => Err(error),
            });
            config = read.map_err(|error| {
                // Which words there are is said of a word alone.
                let word = Some(value).filter(|value| (value.is_number() || value.is_boolean()) && wants_text(&error));
                let of_word = word.and_then(|value| with(value.to_string().into()).err());
                fail(format!("`{key}` cannot be {value}: {}", plain(value, &of_word.unwrap_or(error))))
            })?;
        }
    }
    Ok(config)
}

/// The layer with numbers under these names as text: what a setting takes that has words, too, of which YAML makes a number.
pub fn with_text(layer: &Layer, names: &[&str]) -> Layer {
    let mut layer = layer.clone();
    for (key, value) in &mut layer.values {
        if value.is_number() && names.contains(&key.replace('-', "_").as_str()) {
            *value = value.to_string().into();
        }
    }
    layer
}

/// What takes the value of a layer below back where a setting may have none, and is text where it may be text.
fn says_none(value: &Value) -> bool {
    value == "none" || value.as_array().is_some_and(|list| matches!(&list[..], [one] if one == "none"))
}

/// What serde calls a text, and one of some words.
const TEXTS: [&str; 3] = ["a string", "string or map", "map with a single key"];

fn wants_text(error: &serde_json::Error) -> bool {
    let text = error.to_string();
    text.rsplit_once("expected ").is_some_and(|(_, expected)| TEXTS.contains(&expected))
}

/// What `value`, or the part of it that serde did not take, must be: `it must be a number`, `"x" must be a number`. What a type of ours has said is
/// left as it is.
pub fn plain(value: &Value, error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((found, expected)) = text.rsplit_once("expected ") else { return text };
    let kinds = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some(found) = kinds.iter().find_map(|kind| found.strip_prefix(kind)).or(found.is_empty().then_some("")) else { return text };
    let found = found.trim_end_matches(", ");
    let whole = match value {
        Value::Array(_) => ["", "sequence"].contains(&found),
        Value::Object(_) => ["", "map"].contains(&found),
        _ => true,
    };
    // `string "x"`, `integer `5``
    let part = || found.strip_prefix("string ").or(found.split('`').nth(1)).unwrap_or(found);
    format!("{} must be {}", if whole { "it" } else { part() }, in_words(expected))
}

/// What serde expects, without the names of Rust's types.
fn in_words(expected: &str) -> String {
    match expected {
        "usize" | "u64" => "a whole number from 0 up".into(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "i64" => "a whole number".into(),
        "f64" => "a number".into(),
        "a sequence" => "a list".into(),
        "a map" => "keys with values".into(),
        "a boolean" => "true or false".into(),
        "path string" => "a path".into(),
        text if TEXTS.contains(&text) => "text".into(),
        of_rust if of_rust.starts_with("struct ") => "keys with values".into(),
        words => words.replace('`', ""),
    }
}

/// What to say of a `key` (or another `what`) that is none of `known`: the one that is near, which it may have been meant for, or all of them.
pub fn unknown<'a>(what: &str, key: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let written = key.replace('-', "_");
    let near = known.iter().map(|k| (strsim::damerau_levenshtein(&written, k), *k)).min().filter(|(d, k)| *d <= 1 + k.len() / 4);
    if let Some((_, near)) = near {
        return format!("unknown {what} `{key}`; did you mean `{near}`?");
    }
    format!("unknown {what} `{key}`; known: {}", known.join(", "))
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "a table is for others, as a rule")]
mod tests {
    use serde_json::json;

    use super::*;

    settings! {
        /// Some settings.
        Example;
        "A" {
            /// Times
            /// that it is done
            max_epochs: usize = 3;
            /// Weight
            box_: f64 as String = 7.5;
            /// Name
            name: Option<String> = None;
        }
    }

    fn merged(layers: &[Value]) -> Result<Example, String> {
        let layer =
            |(i, values): (usize, &Value)| Layer { origin: format!("{i}.yaml"), values: values.as_object().cloned().unwrap_or_default() };
        let layers: Vec<Layer> = layers.iter().enumerate().map(layer).collect();
        let taken = |name: &str, value: &Value| match name {
            "other_tools" if value == 1 => Ok(true),
            "other_tools" => Err("1 is what is done".into()),
            _ => Ok(false),
        };
        merge(Example::default(), SETTINGS, &layers, taken).map_err(|e| e.to_string())
    }

    #[test]
    fn later_layers_win_by_the_names_users_write() {
        assert_eq!(SETTINGS.iter().map(Setting::flag).collect::<Vec<_>>(), ["max-epochs", "box", "name"]);
        let example = merged(&[
            json!({ "box": 1, "max_epochs": 2, "name": "n" }),
            json!({ "box": 2, "max-epochs": 5, "name": null, "other-tools": 1 }),
        ]);
        assert_eq!(example, Ok(Example { max_epochs: 5, box_: 2.0, name: Some("n".into()) }));
    }

    #[test]
    fn none_takes_back_what_a_setting_may_be_without() {
        settings! {
            /// Settings that may have no value.
            Loose;
            "A" {
                /// Limit
                limit: Option<f64> = None;
                /// List
                list: Option<Vec<u32>> = None;
                /// Name
                name: Option<String> = None;
                /// Times
                times: usize = 3;
            }
        }
        let layer = |values: Value| Layer { origin: "flags".into(), values: values.as_object().cloned().unwrap_or_default() };
        let read = |values: Value| {
            let below = layer(json!({ "limit": 2, "list": [1], "name": "n" }));
            merge(Loose::default(), SETTINGS, &[below, layer(values)], |_, _| Ok(false)).map_err(|e| e.to_string())
        };
        let flags: Vec<Value> = SETTINGS.iter().map(|setting| (setting.read)("none")).collect();
        let Loose { limit, list, name, .. } = read(json!({ "limit": flags[0], "list": flags[1], "name": flags[2] })).unwrap();
        assert_eq!((limit, list, name.as_deref()), (None, None, Some("none")), "a name is what was typed");
        assert_eq!(read(json!({ "limit": null })).map(|loose| loose.limit), Ok(Some(2.0)), "another tool's null says nothing");
        assert_eq!(read(json!({ "list": 0 })).map(|loose| loose.list), Ok(Some(vec![0])), "of a file, too, a lone number is a list");
        assert!(read(json!({ "times": flags[3] })).is_err_and(|e| e.contains("`times` cannot be \"none\"")), "it cannot be without");
        assert!(read(json!({ "limit": "nope" })).is_err());
    }

    #[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Word {
        Fast,
        Exact,
        Both,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
    #[serde(untagged, expecting = "expected a number of layers, or a list of them")]
    pub enum Layers {
        First(usize),
        List(Vec<usize>),
    }

    /// Said of flags as they are typed, and of the values of files.
    #[test]
    fn every_kind_of_value_is_told_in_words() {
        settings! {
            /// One setting of each kind.
            Kinds;
            "A" {
                /// Count
                count: usize = 1;
                /// Seed
                seed: u64 = 1;
                /// Period
                period: i64 = 1;
                /// Weight
                weight: f64 = 1.0;
                /// Switch
                switch: bool = true;
                /// Name
                name: String = "n".into();
                /// Limit
                limit: Option<f64> = None;
                /// Classes
                classes: Option<Vec<u32>> = None;
                /// Names
                names: Vec<String> = Vec::new();
                /// Folders
                folders: Option<Vec<std::path::PathBuf>> = None;
                /// Limits
                limits: std::collections::BTreeMap<String, f64> = std::collections::BTreeMap::new();
                /// Word
                word: Word as String = Word::Both;
                /// Layers
                layers: Layers as String = Layers::First(0);
            }
        }
        let refused = |key: &str, value: Value| {
            let layer = Layer { origin: "flags".into(), values: [(key.to_string(), value)].into_iter().collect() };
            merge(Kinds::default(), SETTINGS, &[layer], |_, _| Ok(false)).unwrap_err().to_string()
        };
        let read = |key: &str, text: &str| (SETTINGS.iter().find(|setting| setting.name == key).unwrap().read)(text);
        for (key, typed, reason) in [
            ("count", "x", "it must be a whole number from 0 up"),
            ("count", "-1", "it must be a whole number from 0 up"),
            ("count", "1.5", "it must be a whole number from 0 up"),
            ("seed", "expected x", "it must be a whole number from 0 up"),
            ("period", "x", "it must be a whole number"),
            ("weight", "nan", "it must be a number"),
            ("switch", "perhaps", "it must be true or false"),
            ("limit", "x", "it must be a number"),
            ("classes", "1,x", "\"x\" must be a whole number from 0 to 4294967295"),
            ("classes", "1,4294967296", "4294967296 must be a whole number from 0 to 4294967295"),
            ("limits", "a=1,b=x", "\"x\" must be a number"),
            ("limits", "a", "it must be keys with values"),
            ("word", "slow", "it must be one of fast, exact, both"),
            ("layers", "x", "it must be a number of layers, or a list of them"),
        ] {
            let value = read(key, typed);
            assert_eq!(refused(key, value.clone()), format!("flags: `{key}` cannot be {value}: {reason}"));
        }
        for (key, value, reason) in [
            ("count", json!([1]), "it must be a whole number from 0 up"),
            ("switch", json!(1), "it must be true or false"),
            ("name", json!(1), "it must be text"),
            ("name", json!(["n"]), "it must be text"),
            ("classes", json!(-1), "it must be a list"),
            ("names", json!("n"), "it must be a list"),
            ("names", json!(["n", 1.5]), "1.5 must be text"),
            ("folders", json!([true]), "true must be a path"),
            ("limits", json!(1), "it must be keys with values"),
            ("word", json!(1), "it must be one of fast, exact, both"),
            ("word", json!(["fast"]), "it must be text"),
            ("layers", json!([1, "x"]), "it must be a number of layers, or a list of them"),
        ] {
            assert_eq!(refused(key, value.clone()), format!("flags: `{key}` cannot be {value}: {reason}"));
        }
    }

    #[test]
    fn a_setting_knows_how_its_flag_is_read() {
        let [epochs, weight, name] = SETTINGS else { panic!("{SETTINGS:?}") };
        assert_eq!([epochs.read, weight.read, name.read].map(|read| read("7")), [json!(7), json!("7"), json!("7")]);
        assert_eq!([epochs.value_name, weight.value_name].map(|name| name()), ["N", "VALUE"]);
        assert_eq!((epochs.help, epochs.more, weight.more), (" Times", " that it is done", ""));
    }

    #[test]
    fn errors_say_where_and_what() {
        let unknown = merged(&[json!({}), json!({ "max_epoch": 1 })]);
        assert_eq!(unknown, Err("1.yaml: unknown setting `max_epoch`; did you mean `max_epochs`?".into()));
        assert_eq!(merged(&[json!({ "boxx": 1 })]), Err("0.yaml: unknown setting `boxx`; did you mean `box`?".into()));
        assert_eq!(merged(&[json!({ "lr": 1 })]), Err("0.yaml: unknown setting `lr`; known: max_epochs, box, name".into()));
        let wrong = merged(&[json!({ "max_epochs": "many" })]);
        let told = "0.yaml: `max_epochs` cannot be \"many\": it must be a whole number from 0 up";
        assert_eq!(wrong, Err(told.into()));
        assert_eq!(merged(&[json!({ "other_tools": 2 })]), Err("0.yaml: 1 is what is done".into()));
    }
}
