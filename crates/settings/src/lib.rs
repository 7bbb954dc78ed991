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
            let read =
                with(value.clone()).or_else(|error| if says_none(value) { with(Value::Null).map_err(|_| error) } else { Err(error) });
            config = read.map_err(|e| fail(format!("`{key}` cannot be {value}: {}", plain(&e))))?;
        }
    }
    Ok(config)
}

/// What takes the value of a layer below back where a setting may have none, and is text where it may be text.
fn says_none(value: &Value) -> bool {
    value == "none" || value.as_array().is_some_and(|list| matches!(&list[..], [one] if one == "none"))
}

/// What is wrong with a value that serde did not take, without the names of Rust's types.
pub fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let Some((before, expected)) = text.rsplit_once("expected ") else { return text };
    let words = match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number from 0 up",
        "i64" | "i32" => "a whole number",
        "f64" | "f32" => "a number",
        "a sequence" => "a list",
        "a map" => "keys with values",
        "a boolean" => "true or false",
        "a string" => "text",
        "path string" => "a path",
        of_rust if of_rust.starts_with("struct ") => "keys with values",
        other => other,
    };
    format!("{before}expected {words}")
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
        assert!(read(json!({ "times": flags[3] })).is_err_and(|e| e.contains("`times` cannot be \"none\"")), "it cannot be without");
        assert!(read(json!({ "limit": "nope" })).is_err());
    }

    #[test]
    fn types_are_told_in_words() {
        fn told<T: DeserializeOwned>(value: Value) -> String {
            plain(&serde_json::from_value::<T>(value).map(|_| ()).unwrap_err())
        }
        let text = json!("many");
        let all = [told::<usize>(text.clone()), told::<u8>(json!(-1)), told::<i64>(json!(1.5)), told::<f64>(text.clone())];
        let ends = ["a whole number from 0 up", "a whole number from 0 up", "a whole number", "a number"];
        assert!(all.iter().zip(ends).all(|(told, end)| told.ends_with(&format!("expected {end}"))), "{all:?}");
        let all = [told::<bool>(text.clone()), told::<Vec<f64>>(text.clone()), told::<String>(json!(1)), told::<Example>(text)];
        let ends = ["true or false", "a list", "text", "keys with values"];
        assert!(all.iter().zip(ends).all(|(told, end)| told.ends_with(&format!("expected {end}"))), "{all:?}");
        assert_eq!(told::<Vec<u32>>(json!([1, "x"])), "invalid type: string \"x\", expected a whole number from 0 up");
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
        let told = "0.yaml: `max_epochs` cannot be \"many\": invalid type: string \"many\", expected a whole number from 0 up";
        assert_eq!(wrong, Err(told.into()));
        assert_eq!(merged(&[json!({ "other_tools": 2 })]), Err("0.yaml: 1 is what is done".into()));
    }
}
