//! Settings from one table: the struct, its defaults, the flags of a command line and the keys of a YAML file.
//!
//! [`settings!`] expands a table to the struct. Layers (a file, the flags) are plain maps merged by name, weakest first; a key that does
//! not exist is an error that names the closest one that does. What a setting looks like on a command line is said by its type ([`Kind`]).

mod kind;

use bellows_exit::{Coded, Exit};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use kind::{Kind, number};

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
            let mut all = serde_json::to_value(&config).map_err(|e| fail(e.to_string()))?;
            all[setting.name] = value.clone();
            config = serde_json::from_value(all).map_err(|e| fail(format!("`{key}` cannot be {value}: {}", plain(&e))))?;
        }
    }
    Ok(config)
}

/// What serde expects, without the names of Rust's types.
fn plain(error: &serde_json::Error) -> String {
    let counts = ["usize", "u64", "u32"].map(|of_rust| (of_rust, "a whole number from 0 up"));
    let others = [
        ("i64", "a whole number"),
        ("f64", "a number"),
        ("a sequence", "a list"),
        ("a map", "keys with values"),
        ("a boolean", "true or false"),
    ];
    counts
        .into_iter()
        .chain(others)
        .fold(error.to_string(), |text, (of_rust, word)| text.replace(&format!("expected {of_rust}"), &format!("expected {word}")))
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
