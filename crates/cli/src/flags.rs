//! Flags from a table of settings, so that help, YAML keys and code cannot disagree; and the flags that are no settings.

use bellows_settings::Setting;
use clap::builder::PossibleValuesParser;
use clap::error::{Error, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

use crate::Usage;

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
        .value_name((setting.value_name)());
    let arg = if long == key { arg } else { arg.alias(key) }.long(long);
    if setting.switch {
        arg.num_args(0..=1)
            .require_equals(false)
            .default_missing_value("true")
            .value_parser(PossibleValuesParser::new(["true", "false", "True", "False"]))
    } else {
        arg
    }
}

/// What was given of these flags, by key; each comes with the way its text is read.
pub fn flag_values<'a>(flags: impl Iterator<Item = (&'a str, fn(&str) -> Value)>, matches: &ArgMatches) -> Map<String, Value> {
    flags.filter_map(|(key, read)| Some((key.to_string(), read(matches.get_one::<String>(key)?)))).collect()
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
    option("resume", "Go on with a run: this directory (or weights in it), or the newest one under the project")
        .value_name("RUN_DIR")
        .num_args(0..=1)
}

/// `--detach`.
pub fn detach() -> Arg {
    switch("detach", "Train in a process of its own that outlives this terminal; `status` tells how it is, `stop` ends it")
}

/// `doctor [--device D] [--reprobe]`.
pub fn doctor() -> Command {
    Command::new("doctor")
        .about("Shows adapters, drivers, memory, known issues and the result of the device probe")
        .arg(option("device", "Probe this device only").default_value("auto"))
        .arg(switch("reprobe", "Probe again, and forget what earlier runs found out about the device"))
}

/// What `command` makes of `words`, which begin with its name. Help and the version are printed and end the process.
///
/// # Errors
/// What is no flag, has no value or a wrong one.
pub fn matches(command: Command, words: impl IntoIterator<Item = String>) -> Result<ArgMatches, Usage> {
    command.try_get_matches_from(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => Usage(one_line(&error)),
    })
}

/// clap's error, which has a paragraph for each of what is wrong, what may be meant, and how the program is called.
fn one_line(error: &Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"));
    let mut told = String::new();
    for line in lines.filter(|line| !line.is_empty()) {
        match line.strip_prefix("tip: ") {
            Some(tip) => told = format!("{told}; {tip}"),
            None => told = format!("{told} {}", line.trim_start_matches("error: ")),
        }
    }
    // The words of `Usage: yolo-train val [OPTIONS]` before what may be given.
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or_default();
    let verb: Vec<&str> = usage.split_whitespace().take_while(|word| word.starts_with(|c: char| c.is_ascii_alphanumeric())).collect();
    format!("{} (see {})", told.trim_start(), [&verb[..], &["--help"]].concat().join(" "))
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
#[allow(unreachable_pub, reason = "a table is for others, as a rule")]
mod tests {
    use bellows_settings::settings;
    use serde_json::json;

    use super::*;

    settings! {
        /// Some settings.
        Example;
        "A" {
            /// Weight
            box_: f64 = 7.5;
            /// Cosine
            cos_lr: bool = false;
            /// Names
            names: Vec<String> = Vec::new();
        }
    }

    #[test]
    fn a_flag_is_what_the_type_of_its_setting_says() {
        let defaults = serde_json::to_value(Example::default()).unwrap();
        let command = || Command::new("x").args(SETTINGS.iter().map(|s| flag(s, &defaults)));
        let given = |args: &[&str]| {
            let matches = command().try_get_matches_from([&["x"], args].concat()).map_err(|e| e.to_string())?;
            Ok::<_, String>(Value::Object(flag_values(SETTINGS.iter().map(|s| (s.key(), s.read)), &matches)))
        };
        assert_eq!(given(&[]), Ok(json!({})));
        assert_eq!(given(&["--box", "-1", "--cos-lr", "--names", "7,b"]), Ok(json!({ "box": -1, "cos_lr": true, "names": ["7", "b"] })));
        assert_eq!(given(&["--cos_lr", "False", "--box=x"]), Ok(json!({ "box": "x", "cos_lr": false })));
        assert!(given(&["--cos-lr", "yes"]).unwrap_err().contains("possible values: true, false, True, False"));
        assert!(given(&["--names"]).is_err(), "only a switch may stand alone");
        let error = |args: &[&str]| matches(command(), ["x"].iter().chain(args).map(ToString::to_string)).unwrap_err().to_string();
        let misspelt = "unexpected argument '--nam' found; a similar argument exists: '--names' (see x --help)";
        assert_eq!(error(&["--nam", "a"]), misspelt);
        let values = "invalid value 'yes' for '--cos-lr [<true|false>]' [possible values: true, false, True, False] (see --help)";
        assert_eq!(error(&["--cos-lr", "yes"]), values);
        let help = command().render_help().to_string();
        for part in ["--box <X>", "Weight [default: 7.5]", "--cos-lr [<true|false>]", "--names <NAME,NAME,..>", "A:"] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
