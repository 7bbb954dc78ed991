//! Flags from a table of settings, so that help, YAML keys and code cannot disagree.

use bellows_settings::Setting;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Map, Value};

/// The flag of a setting; `defaults` is the settings' default as JSON.
pub fn flag(setting: &Setting, defaults: &Value) -> Arg {
    let long = setting.name.trim_end_matches('_').replace('_', "-");
    let default = match &defaults[setting.name] {
        Value::Null => String::new(),
        Value::String(s) if s.is_empty() => String::new(),
        Value::Array(a) if a.is_empty() => String::new(),
        Value::Object(o) if o.is_empty() => String::new(),
        Value::String(s) => format!(" [default: {s}]"),
        other => format!(" [default: {other}]"),
    };
    let arg = Arg::new(setting.name)
        .long(long.clone())
        .help(format!("{}{default}", setting.help.trim()))
        .help_heading(setting.group)
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
        .value_name(value_name(setting.kind));
    let arg = if long.contains('-') { arg.alias(setting.name.trim_end_matches('_')) } else { arg };
    if setting.kind == "bool" {
        arg.num_args(0..=1)
            .require_equals(false)
            .default_missing_value("true")
            .value_parser(PossibleValuesParser::new(["true", "false", "True", "False"]))
    } else {
        arg
    }
}

fn value_name(kind: &str) -> &'static str {
    match kind {
        "bool" => "true|false",
        "usize" | "u64" | "i64" | "Option<usize>" => "N",
        "f64" | "Option<f64>" => "X",
        "Freeze" => "N|N,N,..",
        "Vec<usize>" | "Option<Vec<u32>>" => "N,N,..",
        "Vec<f64>" => "X,X,..",
        "Vec<String>" | "Option<Vec<String>>" | "Targets" => "NAME,NAME,..",
        kind if kind.starts_with("BTreeMap") => "NAME=X,NAME=X,..",
        _ => "VALUE",
    }
}

/// The settings that were given as flags, by name.
pub fn flag_values<'a>(table: impl Iterator<Item = (&'a str, &'a str)>, matches: &ArgMatches) -> Map<String, Value> {
    let typed = table.filter_map(|(name, kind)| Some((name, kind, matches.get_one::<String>(name)?)));
    typed.map(|(name, kind, value)| (name.to_string(), scalar(kind, value))).collect()
}

/// A flag's text as the kind of value its setting has; what does not parse stays text and is refused, by name, later.
fn scalar(kind: &str, text: &str) -> Value {
    let number = |t: &str| {
        let t = t.trim();
        t.parse::<i64>().map(Value::from).or_else(|_| t.parse::<f64>().map(Value::from)).unwrap_or_else(|_| Value::from(t))
    };
    match kind {
        "String" | "Option<String>" => Value::from(text),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("true") => Value::from(true),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("false") => Value::from(false),
        "Vec<usize>" | "Vec<f64>" | "Option<Vec<u32>>" => text.split(',').map(number).collect(),
        "Vec<String>" | "Option<Vec<String>>" => text.split(',').map(Value::from).collect(),
        "Targets" if text.chars().all(|c| c.is_alphanumeric() || "_.,".contains(c)) => text.split(',').map(Value::from).collect(),
        "Targets" => Value::from(text),
        kind if kind.starts_with("BTreeMap") => {
            let pairs = text.split(',').map(|pair| pair.rsplit_once('=').map(|(name, value)| (name.to_string(), number(value))));
            pairs.collect::<Option<Map<_, _>>>().map_or_else(|| Value::from(text), Value::Object)
        }
        "Freeze" if text.contains(',') => text.split(',').map(number).collect(),
        _ => number(text),
    }
}
