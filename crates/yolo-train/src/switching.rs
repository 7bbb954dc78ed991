//! The tables of `docs/switching.md`: made here from the tables of arguments, settings and flags, so that none of them can say what another denies.
//!
//! With `BELLOWS_PEERS_PYTHON` naming a Python that has ultralytics, its own defaults are compared with ours of it.

use std::path::Path;

use bellows_settings::Layer;
use bellows_yolo::config::{ABSENT, Absent, SETTINGS, Taken, TrainConfig};
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};

use crate::args::command;
use crate::peer::{ARGUMENTS, Argument, INSTEAD, Instead, instead};
use crate::words::flag_for;

const RENEW: &str = "BELLOWS_BLESS=1 cargo test --release -p yolo-train switching";

/// What is worth knowing of a setting that has the same name here.
const DIFFERS: &[(&str, &str)] = &[
    ("model", "`yolov8n` is a size and starts from random weights, as `yolov8n.yaml` there; a .pt or .safetensors file is started from"),
    ("imgsz", "one number for training; rounded up to a multiple of 32, with a line"),
    ("device", "`cpu`; `0` is the strongest card of the machine, whoever made it; `mps` is `metal`; several are refused"),
    ("cache", "`disk` keeps images in the user's cache folder, not beside them"),
    ("batch", "-1 is planned for the device's memory"),
    (
        "fraction",
        "spread evenly over the list of images, where Ultralytics takes its beginning, by their names perhaps one camera or some days",
    ),
    ("profile", "tells where the time of each epoch goes; there it times exports"),
    ("copy_paste", "does nothing for boxes, as there, and says so"),
    ("workers", "changes no number"),
    ("single_cls", "the class is `item`"),
];

/// The same of the flags of a verb: (mode, name, what).
const OF_VERBS: &[(&str, &str, &str)] = &[
    ("export", "batch", FOR_ONNX),
    ("val", "batch", "a number of images; -1 and parts of the memory are refused"),
    ("export", "imgsz", FOR_ONNX),
    ("export", "conf", FOR_NMS),
    ("export", "iou", FOR_NMS),
    ("export", "max_det", FOR_NMS),
    ("export", "half", "for `format=pt`, refused with the others"),
    ("export", "format", "or `pt` or `safetensors`; the others are refused"),
    ("export", "dynamic", FOR_ONNX),
    ("export", "opset", "no other; for `format=onnx`, refused with the others"),
    ("export", "nms", FOR_ONNX),
];

const FOR_ONNX: &str = "for `format=onnx`, refused with the others";
const FOR_NMS: &str = "with `nms=True`, refused without";

fn argument(name: &str) -> &'static Argument {
    ARGUMENTS.iter().find(|a| a.name == name).unwrap_or_else(|| panic!("no argument {name}"))
}

fn absent(name: &str) -> Option<&'static Absent> {
    ABSENT.iter().find(|a| a.name == name)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A default as a person would write it.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) if text.is_empty() => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn same(a: &Value, b: &Value) -> bool {
    plain(a) == plain(b) || a.as_f64().is_some() && a.as_f64() == b.as_f64()
}

/// Of a default what there is to say beside theirs.
fn unlike(ours: &Value, theirs: &Value) -> String {
    if same(ours, theirs) { String::new() } else { format!(", default {}", plain(ours)) }
}

/// The default of a verb's flag, as clap has it or, of a setting, as its help tells it.
fn default_of(flag: &Arg) -> Value {
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let parsed = flag.get_default_values().first().and_then(|value| value.to_str());
    let told = help.rsplit_once(" [default: ").and_then(|(_, rest)| rest.strip_suffix(']'));
    let unset = matches!(flag.get_action(), ArgAction::SetTrue).then_some("false");
    parsed.or(told).or(unset).map_or(Value::Null, Value::from)
}

/// What `train` makes of an argument.
fn in_training(argument: &Argument, defaults: &Value) -> String {
    let list = |values: &[&str]| values.iter().map(|v| format!("`{}`", plain(&json(v)))).collect::<Vec<_>>().join(" or ");
    match argument.name {
        "task" => return "a word: `detect`; other tasks are refused".into(),
        "mode" => return "a word: `train`, or the name of a verb".into(),
        "cfg" => return "`--config FILE`".into(),
        "resume" => return "`--resume [RUN_DIR]`; `resume model=RUN/weights/last.pt` is understood".into(),
        _ => {}
    }
    if let Some(absent) = absent(argument.name) {
        return match absent.taken {
            Taken::Any => format!("taken: {}", absent.reason),
            Taken::Told(_) => format!("taken with a line: {}", absent.reason),
            Taken::Only(values) => format!("only {}: {}", list(values), absent.reason),
        };
    }
    let setting = SETTINGS.iter().find(|s| s.key() == argument.name).unwrap_or_else(|| panic!("{} is nowhere", argument.name));
    let default = unlike(&defaults[setting.name], &json(argument.default));
    let more = DIFFERS.iter().find(|(name, _)| *name == argument.name).map_or(String::new(), |(_, more)| format!(": {more}"));
    format!("same{default}{more}")
}

/// What another verb makes of it.
fn in_verb(argument: &Argument, mode: &str, verb: &Command) -> String {
    let more = OF_VERBS.iter().find(|(of, name, _)| (*of, *name) == (mode, argument.name));
    let more = more.map_or(String::new(), |(.., more)| format!(": {more}"));
    match (argument.name, flag_for(verb, argument.name).and_then(|flag| Some((flag, flag.get_long()?)))) {
        ("task" | "mode", _) => "a word".into(),
        ("imgsz", Some(_)) if mode == "val" => "one number, default what the weights were trained with".into(),
        ("imgsz", Some(_)) => format!("same, default what the weights were trained with{more}"),
        (name, Some((flag, long))) if long.replace('-', "_") == name => {
            format!("same{}{more}", unlike(&default_of(flag), &json(argument.default)))
        }
        (_, Some((_, long))) => format!("`--{long}`"),
        (_, None) => match instead(argument, mode) {
            Instead::Told(why) => format!("taken with a line: {why}"),
            Instead::Refused(why) => format!("refused: {why}"),
        },
    }
}

/// A section of the page, between its marks.
fn section(mode: &str) -> String {
    let (command, defaults) = (command(), serde_json::to_value(TrainConfig::default()).unwrap());
    let verb = command.find_subcommand(mode);
    if mode != "train" && verb.is_none() {
        return format!("`yolo-train {mode}` is not there yet.\n");
    }
    let mut text = String::from("| argument | default there | here |\n| --- | --- | --- |\n");
    for argument in ARGUMENTS.iter().filter(|a| mode == "train" || a.is_for(mode)) {
        let here = match verb {
            Some(verb) if mode != "train" => in_verb(argument, mode, verb),
            _ => in_training(argument, &defaults),
        };
        text.push_str(&format!("| `{}` | {} | {} |\n", argument.name, plain(&json(argument.default)), here.replace('|', "\\|")));
    }
    text
}

fn renewed(page: &str, mode: &str) -> String {
    let begin = format!("<!-- generated: {mode} -->\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    format!("{before}{begin}{}<!-- end -->{after}", section(mode))
}

#[test]
fn the_page_for_switchers_is_that_of_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/switching.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let fresh = ["train", "val", "predict", "export"].iter().fold(page.clone(), |page, mode| renewed(&page, mode));
    if std::env::var_os("BELLOWS_BLESS").is_some() {
        std::fs::write(&path, fresh).unwrap();
        return;
    }
    let stale = page.lines().zip(fresh.lines()).find(|(old, new)| old != new);
    assert!(page == fresh, "docs/switching.md is stale ({stale:?}): renew it with\n{RENEW}");
}

#[test]
fn every_argument_is_a_setting_or_absent_with_a_reason() {
    for argument in ARGUMENTS {
        let is_setting = SETTINGS.iter().any(|s| s.key() == argument.name);
        assert!(is_setting != absent(argument.name).is_some(), "{}", argument.name);
    }
    // What a run of there adds to its args.yaml, or added once.
    let unknown: Vec<_> = ABSENT.iter().map(|a| a.name).filter(|name| ARGUMENTS.iter().all(|a| a.name != *name)).collect();
    let of_old = ["boxes", "hide_labels", "hide_conf", "line_thickness", "label_smoothing", "save_hybrid", "crop_fraction"];
    assert_eq!(unknown, [&["save_dir"][..], &of_old].concat());
    assert!(DIFFERS.iter().all(|(name, _)| SETTINGS.iter().any(|s| s.key() == argument(name).name)));
}

#[test]
fn what_is_called_the_same_and_is_not_says_so() {
    let command = command();
    let row = |mode: &str, name: &str| in_verb(argument(name), mode, command.find_subcommand(mode).unwrap());
    for &(mode, name, more) in OF_VERBS {
        assert!(argument(name).is_for(mode) && row(mode, name).ends_with(&format!(": {more}")), "{mode} {name}: {}", row(mode, name));
    }
    for (mode, name, default) in [
        ("export", "format", "onnx"),
        ("export", "opset", "17"),
        ("predict", "batch", "1"),
        ("predict", "conf", "0.25"),
        ("val", "conf", "0.001"),
        ("val", "name", "val"),
    ] {
        assert!(row(mode, name).starts_with(&format!("same, default {default}")), "{mode} {name}: {}", row(mode, name));
    }
    for (mode, name) in [("val", "split"), ("val", "iou"), ("predict", "save"), ("predict", "save_txt"), ("predict", "line_width")] {
        assert_eq!(row(mode, name), "same", "{mode} {name}");
    }
}

#[test]
fn no_reason_is_kept_for_what_every_verb_has() {
    let command = command();
    for (name, _) in INSTEAD {
        let lacks = |mode: &&str| command.find_subcommand(mode).is_none_or(|verb| flag_for(verb, name).is_none());
        assert!(["val", "predict", "export"].iter().filter(|mode| argument(name).is_for(mode)).any(lacks), "{name} is a flag by now");
    }
}

#[test]
fn a_default_args_yaml_is_taken_with_one_line() {
    let values: Map<String, Value> = ARGUMENTS.iter().map(|a| (a.name.to_string(), json(a.default))).collect();
    assert_eq!(values.len(), ARGUMENTS.len(), "a name twice");
    let (config, notes) = TrainConfig::with_notes(&[Layer { origin: "args.yaml".into(), values }]).unwrap();
    assert_eq!(config, TrainConfig::default());
    assert!(notes.len() == 1 && notes[0].starts_with("amp true: "), "{notes:?}");
}

/// What a run that was gone on with leaves, of one class, by a release that had other names for what is drawn.
#[test]
fn an_args_yaml_of_an_older_or_resumed_run_is_taken() {
    let values = json(
        r#"{"model": "/u/x/last.pt", "resume": "/u/x/last.pt", "classes": 0, "boxes": true, "hide_labels": false, "hide_conf": false,
            "line_thickness": 3, "label_smoothing": 0.0, "save_hybrid": false, "crop_fraction": 1.0}"#,
    );
    let values = values.as_object().cloned().unwrap();
    let (config, notes) = TrainConfig::with_notes(&[Layer { origin: "args.yaml".into(), values }]).unwrap();
    assert_eq!((config.model.as_str(), config.classes), ("/u/x/last.pt", Some(vec![0])));
    assert!(notes.len() == 1 && notes[0].starts_with("resume /u/x/last.pt: the run that it went on with"), "{notes:?}");
}

#[test]
fn the_peers_own_defaults_are_these() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        eprintln!("skipped: BELLOWS_PEERS_PYTHON names no Python that has ultralytics");
        return;
    };
    let program = "import json; from ultralytics.cfg import DEFAULT_CFG_DICT; print(json.dumps(DEFAULT_CFG_DICT))";
    let output = std::process::Command::new(python).args(["-c", program]).env("YOLO_OFFLINE", "true").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Map<String, Value> = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    for (name, default) in &theirs {
        let ours = ARGUMENTS.iter().find(|a| a.name == name).unwrap_or_else(|| panic!("{name}, whose default is {default}, has no row"));
        assert!(same(&json(ours.default), default), "{name}: {default} there, and {} in the table", ours.default);
    }
    assert_eq!(theirs.len(), ARGUMENTS.len());
}
