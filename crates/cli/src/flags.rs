//! Flags from a table of settings, so that help, YAML keys and code cannot disagree; and the flags that are no settings.

use bellows_settings::Setting;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

/// The flag of a setting; `defaults` is the settings' default as JSON.
pub fn flag(setting: &Setting, defaults: &Value) -> Arg {
    let default = match &defaults[setting.name] {
        Value::Null => String::new(),
        Value::String(s) if s.is_empty() => String::new(),
        Value::Array(a) if a.is_empty() => String::new(),
        Value::Object(o) if o.is_empty() => String::new(),
        Value::String(s) => format!(" [default: {s}]"),
        other => format!(" [default: {other}]"),
    };
    let (key, long) = (setting.key(), setting.flag());
    let arg = Arg::new(key)
        .help(format!("{}{default}", setting.help.trim()))
        .help_heading(setting.group)
        .action(ArgAction::Set)
        .allow_negative_numbers(true)
        .value_name(value_name(setting.kind));
    let arg = if long == key { arg } else { arg.alias(key) }.long(long);
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
        "Vec<String>" | "Targets" => "NAME,NAME,..",
        "Option<Vec<String>>" => "DIR,DIR,..",
        kind if kind.starts_with("BTreeMap") => "NAME=X,NAME=X,..",
        _ => "VALUE",
    }
}

/// What was given of these flags, (key, kind) each, by key.
pub fn flag_values<'a>(flags: impl Iterator<Item = (&'a str, &'a str)>, matches: &ArgMatches) -> Map<String, Value> {
    let typed = flags.filter_map(|(key, kind)| Some((key, kind, matches.get_one::<String>(key)?)));
    typed.map(|(key, kind, value)| (key.to_string(), scalar(kind, value))).collect()
}

/// A flag's text as the kind of value its setting has; what does not parse stays text and is refused, by name, later.
fn scalar(kind: &str, text: &str) -> Value {
    match kind {
        "String" | "Option<String>" | "Targets" => Value::from(text),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("true") => Value::from(true),
        "bool" | "Toggle" | "Cache" if text.eq_ignore_ascii_case("false") => Value::from(false),
        "Vec<usize>" | "Vec<f64>" | "Option<Vec<u32>>" => text.split(',').map(number).collect(),
        "Vec<String>" | "Option<Vec<String>>" => text.split(',').map(Value::from).collect(),
        kind if kind.starts_with("BTreeMap") => {
            let pairs = text.split(',').map(|pair| pair.rsplit_once('=').map(|(name, value)| (name.to_string(), number(value))));
            pairs.collect::<Option<Map<_, _>>>().map_or_else(|| Value::from(text), Value::Object)
        }
        "Freeze" if text.contains(',') => text.split(',').map(number).collect(),
        _ => number(text),
    }
}

/// A number if it is a finite one: JSON has no other, and would take them for "not given".
fn number(text: &str) -> Value {
    let whole = text.trim().parse::<i64>().ok().map(Value::from);
    let real = || text.trim().parse::<f64>().ok().filter(|x| x.is_finite()).map(Value::from);
    whole.or_else(real).unwrap_or_else(|| Value::from(text))
}

/// `--NAME N`.
pub fn count(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("N").default_value(default).value_parser(clap::value_parser!(u32)).help(help)
}

/// `--NAME VALUE`.
pub fn option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help)
}

/// `--NAME`.
pub fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// `--resume [RUN_DIR]`.
pub fn resume() -> Arg {
    option("resume", "Go on with a run: this directory, or the newest one under the project").value_name("RUN_DIR").num_args(0..=1)
}

/// `doctor [--device D] [--reprobe]`.
pub fn doctor() -> Command {
    Command::new("doctor")
        .about("Shows adapters, drivers, memory, known issues and the result of the device probe")
        .arg(option("device", "Probe this device only").default_value("auto"))
        .arg(switch("reprobe", "Do not use the cached verdict"))
}

/// The text of an [`option`].
pub fn text(matches: &ArgMatches, name: &str) -> Option<String> {
    matches.get_one::<String>(name).cloned()
}

/// The number of a [`count`].
pub fn whole(matches: &ArgMatches, name: &str) -> usize {
    matches.get_one::<u32>(name).copied().unwrap_or_default() as usize
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_becomes_the_kind_of_its_setting_or_stays_text() {
        assert_eq!(scalar("String", "7"), json!("7"));
        assert_eq!((scalar("usize", "7"), scalar("f64", "1e-3"), scalar("f64", "x")), (json!(7), json!(0.001), json!("x")));
        assert_eq!((scalar("f64", "nan"), scalar("f64", "inf")), (json!("nan"), json!("inf")));
        assert_eq!((scalar("bool", "False"), scalar("Cache", "ram")), (json!(false), json!("ram")));
        assert_eq!((scalar("Freeze", "3"), scalar("Freeze", "3,b")), (json!(3), json!([3, "b"])));
        assert_eq!((scalar("Targets", "7"), scalar("Vec<String>", "a,b")), (json!("7"), json!(["a", "b"])));
    }
}
