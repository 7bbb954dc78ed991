//! Ultralytics' way to write a command line, `yolo detect train data=d.yaml imgsz=640`, in the words that this program has.
//!
//! A pure function from words to words: which flags a verb has is read off its [`Command`], so nothing here has to know a setting but `freeze`. `key=value`
//! becomes `--key=value` under the verb's own name for it, and `key=None` of training the setting's default where that takes something back; what the
//! verb has no flag for is told or refused as [`peer`](crate::peer) says.
//! Words that are no habit of there are left as they are.

use bellows_settings::{Layer, unknown};
use bellows_yolo::config::{OF_AUTO, SETTINGS, TrainConfig};
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};

use crate::peer::{ARGUMENTS, Argument, Instead, instead};

const TRAIN: &str = "train";

/// What of the modes there is here, where it is.
const MODES: [&str; 4] = [TRAIN, "val", "predict", "export"];

/// Tasks and modes that are not, and what they are.
const NOT_HERE: &[(&str, &str)] = &[
    ("segment", "segmentation is not there: this program has YOLOv8 for detection"),
    ("pose", "pose estimation is not there: this program has YOLOv8 for detection"),
    ("obb", "oriented boxes are not there: this program has YOLOv8 for detection"),
    ("classify", "classification is not there: this program has YOLOv8 for detection"),
    ("track", "following objects from frame to frame is not there: predict finds them in each"),
    ("tune", "a search for settings by evolution is not there"),
    ("solutions", "ready-made applications (counting, heat maps) are not there: predict writes what they are made of"),
    ("checks", "is `yolo-train doctor`"),
    ("version", "is `yolo-train --version`"),
    ("cfg", "is `yolo-train --help`, which tells every setting with its default"),
    ("copy-cfg", "is not needed: a run writes its settings to config.yaml, which works as --config"),
    ("settings", "there are none beside those of a run: `yolo-train --help` tells them"),
];

/// A command line in this program's words.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Words {
    /// The arguments, without the program's name.
    pub(crate) words: Vec<String>,
    /// What was taken and is done in another way: one line each.
    pub(crate) notes: Vec<String>,
}

/// One argument as it is meant.
enum Word {
    /// A flag of ours, or its value.
    Ours(String),
    /// An argument of there.
    Pair(String, String),
}

/// `typed`, without the program's name, in the words of `command`.
///
/// # Errors
/// A task or mode that is not there, or a key that no flag is for, as a sentence.
pub(crate) fn translated(typed: &[String], command: &Command) -> Result<Words, String> {
    let typed = joined(typed);
    let is_ours = |first: &&String| *first == "help" || command.find_subcommand(first).is_some() && !MODES.contains(&first.as_str());
    if let Some(first) = typed.first().filter(is_ours) {
        if first == "benchmark" && typed.iter().any(|word| pair(word).is_some()) {
            return Err("benchmark: comparing export formats is not there; `yolo-train benchmark --imgsz 640` times training steps".into());
        }
        return Ok(Words { words: typed, notes: Vec::new() });
    }
    let (mode, words) = sorted(&typed, command)?;
    let (verb, named) = match command.find_subcommand(mode) {
        Some(verb) => (verb, vec![mode.to_string()]),
        None => (command, Vec::new()),
    };
    let mut result = Words { words: named, notes: Vec::new() };
    let words = resumed(words);
    let goes_on = words.iter().any(|word| match word {
        Word::Ours(word) => word.starts_with("--resume"),
        Word::Pair(key, value) => key == "resume" && !value.eq_ignore_ascii_case("none"),
    });
    // The settings of a run that goes on stay.
    let usual = |key: &str| usual(key).filter(|_| mode == TRAIN && !goes_on);
    for word in words {
        match word {
            Word::Ours(word) => result.words.push(word),
            Word::Pair(key, value) => match flag(verb, mode, &key, &value, &usual)? {
                Flag::Word(word) => result.words.push(word),
                Flag::Told(note) => result.notes.push(note),
                Flag::Nothing => {}
            },
        }
    }
    Ok(result)
}

/// Words around a lone `=`, or beside one, as one word.
fn joined(typed: &[String]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut open = false;
    for word in typed {
        let opens = open && !word.contains('=');
        match words.last_mut() {
            Some(last) if opens || word.starts_with('=') && !last.starts_with('-') => last.push_str(word),
            _ => words.push(word.clone()),
        }
        open = words.last().is_some_and(|last| last.ends_with('=') && pair(last).is_some());
    }
    words
}

/// `key=value`, with the key as a setting is written.
fn pair(word: &str) -> Option<(String, &str)> {
    let (key, value) = word.split_once('=')?;
    let is_name = key.starts_with(|c: char| c.is_ascii_alphabetic()) && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    is_name.then(|| (key.replace('-', "_"), value))
}

/// The mode, and the other words in their order.
fn sorted<'a>(typed: &'a [String], command: &Command) -> Result<(&'a str, Vec<Word>), String> {
    let mut mode = None;
    let mut words = Vec::new();
    let mut before = Takes::Nothing;
    for word in typed {
        let pair = pair(word);
        let bare = match &pair {
            None => Some(word.as_str()),
            Some((key, value)) => ["task", "mode"].contains(&key.as_str()).then_some(*value),
        };
        let is_value = before == Takes::Value || before == Takes::Perhaps && pair.is_none() && !word.starts_with('-');
        before = if is_value { Takes::Nothing } else { takes(word, command) };
        if is_value || word.starts_with('-') {
            words.push(Word::Ours(word.clone()));
        } else if let Some(bare) = bare {
            if let Some((_, why)) = NOT_HERE.iter().find(|(name, _)| *name == bare) {
                return Err(format!("{bare}: {why}"));
            } else if bare == TRAIN || MODES.contains(&bare) && command.find_subcommand(bare).is_some() {
                if let Some(other) = mode.replace(bare).filter(|other| *other != bare) {
                    return Err(format!("{other} and {bare} are two modes: one at a time"));
                }
            } else if bare != "detect" {
                words.push(Word::Pair(alone(bare, command)?, "true".into()));
            }
        } else if let Some((key, value)) = pair {
            words.push(Word::Pair(key, value.into()));
        }
    }
    Ok((mode.unwrap_or(TRAIN), words))
}

/// A word that stands alone: the name of a switch.
fn alone(word: &str, command: &Command) -> Result<String, String> {
    let key = word.replace('-', "_");
    let ours = switches(command);
    if ours.contains(&key) || ARGUMENTS.iter().any(|a| a.name == key && ["true", "false"].contains(&a.default)) {
        return Ok(key);
    }
    if ARGUMENTS.iter().any(|a| a.name == key) {
        return Err(format!("`{word}` needs a value: {word}=..."));
    }
    let modes = MODES.into_iter().filter(|mode| *mode == TRAIN || command.find_subcommand(mode).is_some());
    let others = command.get_subcommands().map(Command::get_name).filter(|name| !MODES.contains(name));
    let names = ARGUMENTS.iter().map(|a| a.name).chain(ours.iter().map(String::as_str));
    Err(unknown("word", word, modes.chain(others).chain(names)))
}

/// The flags of all modes that may stand alone, by the names of settings. Whether the mode at hand has one is seen when it is known.
fn switches(command: &Command) -> Vec<String> {
    let modes = command.get_subcommands().filter(|verb| MODES.contains(&verb.get_name()));
    let args = std::iter::once(command).chain(modes).flat_map(|verb| verb.get_arguments()).filter(|arg| !arg.is_hide_set());
    let alone = args.filter(|arg| !arg.get_action().takes_values() || arg.get_num_args().is_some_and(|n| n.min_values() == 0));
    alone.filter_map(Arg::get_long).map(|long| long.replace('-', "_")).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Takes {
    Nothing,
    Perhaps,
    Value,
}

/// What a word of ours expects after it.
fn takes(word: &str, command: &Command) -> Takes {
    let Some(key) = word.strip_prefix("--").filter(|rest| !rest.contains('=')) else { return Takes::Nothing };
    let key = key.replace('-', "_");
    let arg = std::iter::once(command).chain(command.get_subcommands()).find_map(|verb| find(verb, &key));
    match arg {
        Some(arg) if !arg.get_action().takes_values() => Takes::Nothing,
        Some(arg) if arg.get_num_args().is_some_and(|n| n.min_values() == 0) => Takes::Perhaps,
        Some(_) => Takes::Value,
        // A mistake, which is better told by its name than by what stands after it.
        None => Takes::Perhaps,
    }
}

/// A verb's argument of this name.
fn find<'a>(verb: &'a Command, key: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|arg| arg.get_long().is_some_and(|long| long.replace('-', "_") == key))
}

/// The names that differ: there, and here where the first is none of the verb's.
const RENAMED: [(&str, &str); 2] = [("model", "weights"), ("cfg", "config")];

/// The flag of `verb` for an argument of there.
pub(crate) fn flag_for<'a>(verb: &'a Command, key: &str) -> Option<&'a Arg> {
    let renamed = || RENAMED.iter().find(|(there, _)| *there == key).and_then(|(_, here)| find(verb, here));
    find(verb, key).filter(|arg| key != "cfg" || !arg.is_hide_set()).or_else(renamed)
}

enum Flag {
    Word(String),
    Told(String),
    Nothing,
}

/// `usual` is what `None` stands for, by the setting, where it is not as good as nothing.
fn flag(verb: &Command, mode: &str, key: &str, value: &str, usual: &dyn Fn(&str) -> Option<String>) -> Result<Flag, String> {
    let list = value.strip_prefix(['[', '(']).and_then(|v| v.strip_suffix([']', ')'])).map(|list| list.replace(' ', ""));
    let value = match list {
        // Without brackets it is a number of layers.
        Some(layer) if key == "freeze" && !layer.contains(',') => format!("[{layer}]"),
        Some(list) => list,
        None => value.into(),
    };
    let none = value.eq_ignore_ascii_case("none");
    if let Some(arg) = flag_for(verb, key) {
        let long = arg.get_long().unwrap_or(key);
        if none {
            return Ok(usual(key).map_or(Flag::Nothing, |text| Flag::Word(format!("--{long}={text}"))));
        }
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            // A flag that may stand alone does so.
            let alone = value.is_empty() && arg.get_num_args().is_some_and(|n| n.min_values() == 0);
            return Ok(Flag::Word(if alone { format!("--{long}") } else { format!("--{long}={value}") }));
        }
        return match value.to_lowercase().as_str() {
            "true" => Ok(Flag::Word(format!("--{long}"))),
            "false" => Ok(Flag::Nothing),
            _ => Err(format!("`{key}` is true or false, and not {value}")),
        };
    }
    let Some(argument) = ARGUMENTS.iter().find(|a| a.name == key) else {
        let flags = verb.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long).map(|long| long.replace('-', "_"));
        let known: Vec<String> = flags.chain(ARGUMENTS.iter().map(|a| a.name.to_string())).collect();
        return Err(unknown("argument", key, known.iter().map(String::as_str)));
    };
    if none || is_default(argument, &value) {
        return Ok(Flag::Nothing);
    }
    match instead(argument, mode) {
        Instead::Told(why) => Ok(Flag::Told(format!("{key}={value}: {why}"))),
        Instead::Refused(why) => Err(format!("`{key}` cannot be {value} in {mode}: {why}")),
    }
}

/// What the flag of a training setting says to take back what a file says: its default, or `none` where that is no value or `optimizer: auto` has its
/// own; nothing where neither is one.
fn usual(key: &str) -> Option<String> {
    let setting = SETTINGS.iter().find(|setting| setting.key() == key)?;
    let usual = TrainConfig::default();
    let text = match &serde_json::to_value(&usual).ok()?[setting.name] {
        Value::Null => "none".to_string(),
        _ if OF_AUTO.contains(&key) => "none".to_string(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(Value::to_string).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    // A list of names would have one that is called none.
    let values = Map::from_iter([(key.to_string(), (setting.read)(&text))]);
    let read = TrainConfig::from_layers(&[Layer { origin: String::new(), values }]);
    (!text.is_empty() && read.is_ok_and(|read| read == usual)).then_some(text)
}

fn is_default(argument: &Argument, value: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    let default = argument.default.trim_matches('"');
    default.eq_ignore_ascii_case(value) || number(default).is_some_and(|default| number(value) == Some(default))
}

/// `resume`, and where it says nothing else `model=RUN/weights/last.pt`, as `--resume`.
fn resumed(words: Vec<Word>) -> Vec<Word> {
    let is = |word: &Word, name: &str| matches!(word, Word::Pair(key, _) if key == name);
    let on = words.iter().any(|word| is(word, "resume") && matches!(word, Word::Pair(_, value) if value.eq_ignore_ascii_case("true")));
    let file = |word: &Word| match word {
        Word::Pair(key, value) if key == "model" && [".pt", ".safetensors"].iter().any(|end| value.ends_with(end)) => Some(value.clone()),
        _ => None,
    };
    let checkpoint = words.iter().find_map(file).filter(|_| on);
    let kept = words.into_iter().filter(|word| checkpoint.is_none() || file(word).is_none());
    kept.filter_map(|word| match word {
        Word::Pair(key, value) if key == "resume" => match value.to_lowercase().as_str() {
            "false" | "none" => None,
            "true" => Some(Word::Pair(key, checkpoint.clone().unwrap_or_default())),
            _ => Some(Word::Pair(key, value)),
        },
        other => Some(other),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of the same make, with the verbs and flags that the cases need.
    fn command() -> Command {
        let value = |name: &'static str| Arg::new(name).long(name);
        let switch = |name: &'static str| Arg::new(name).long(name).num_args(0..=1);
        let verb = |name: &'static str| Command::new(name).arg(value("weights")).arg(value("imgsz")).arg(value("device"));
        Command::new("x")
            .args(["data", "model", "imgsz", "epochs", "name", "freeze", "device", "config", "close-mosaic", "lr0"].map(value))
            .args(["plots", "resume", "amp", "save-pt"].map(switch))
            .subcommand(verb("val").arg(value("data")))
            .subcommand(verb("predict").arg(value("source")).arg(Arg::new("save-txt").long("save-txt").action(ArgAction::SetTrue)))
            .subcommand(verb("export").arg(value("format")))
            .subcommand(Command::new("benchmark").arg(value("batch")))
            .subcommand(Command::new("data").subcommand(Command::new("check").arg(Arg::new("files"))))
    }

    fn words(line: &str) -> Result<Words, String> {
        translated(&line.split(' ').filter(|w| !w.is_empty()).map(String::from).collect::<Vec<_>>(), &command())
    }

    fn line(typed: &str) -> String {
        let Words { words, notes } = words(typed).unwrap();
        assert_eq!(notes, Vec::<String>::new(), "{typed}");
        words.join(" ")
    }

    fn refused(typed: &str) -> String {
        words(typed).unwrap_err()
    }

    #[test]
    fn pairs_become_flags() {
        let flags = "--data=d.yaml --imgsz=640 --epochs=3";
        for typed in ["", "train ", "detect train ", "train detect ", "mode=train task=detect "] {
            assert_eq!(line(&format!("{typed}data=d.yaml imgsz=640 epochs=3")), flags);
        }
        assert_eq!(line("data=d.yaml train imgsz = 640 epochs= 3"), flags);
        assert_eq!(line("data = d.yaml imgsz =640 --epochs=3"), flags);
        assert_eq!(line("close_mosaic=-1 device=0,1 name= epochs=3"), "--close-mosaic=-1 --device=0,1 --name= --epochs=3");
        assert_eq!(
            line("freeze=[1,2] plots plots=False amp=True cfg=my.yaml"),
            "--freeze=1,2 --plots=true --plots=False --amp=True --config=my.yaml"
        );
        assert_eq!(line("data=d.yaml save_pt save-pt"), "--data=d.yaml --save-pt=true --save-pt=true", "our own may stand alone, too");
        assert_eq!(line("freeze=10 freeze=[10] freeze=(10) device=[0]"), "--freeze=10 --freeze=[10] --freeze=[10] --device=0");
    }

    #[test]
    fn none_takes_back_what_a_file_says() {
        assert_eq!(line("name=None freeze=none cfg=None data=None plots=None"), "--name=train --freeze=0 --plots=true");
        for typed in ["resume=True model=r/last.pt name=None lr0=None cfg=a.yaml", "--resume=r/last.pt name=None --config=a.yaml"] {
            assert_eq!(line(typed), "--resume=r/last.pt --config=a.yaml", "a run that goes on keeps its own");
        }
        assert_eq!(line("resume=None name=None"), "--name=train");
        assert_eq!(line("lr0=None name=None cfg=None"), "--lr0=none --name=train", "the data set may say a rate");
        assert_eq!(line("--config a.yaml lr0=None"), "--config a.yaml --lr0=none");
        let said = ["time", "classes", "range", "sampler", "memory_limit", "percentile", "box", "cache"].map(usual).map(Option::unwrap);
        assert_eq!(said, ["none", "none", "none", "none", "none", "0.5,99.5", "7.5", "false"]);
        assert_eq!(OF_AUTO.map(usual).map(Option::unwrap), ["none"; 3], "as if nobody had said it");
        let without: Vec<&str> = SETTINGS.iter().map(|setting| setting.key()).filter(|key| usual(key).is_none()).collect();
        assert_eq!(without, ["data", "allow_outside", "heartbeat", "group_by"], "a name, or what must be given");
        assert_eq!(line("val model=b.pt data=None device=None conf=None"), "val --weights=b.pt");
        for typed in ["epoks=None", "val epoks=None"] {
            assert!(refused(typed).starts_with("unknown argument `epoks`"), "{typed}");
        }
    }

    #[test]
    fn our_own_words_stay() {
        for typed in [
            "--data a=b.yaml --name train --plots --imgsz 640",
            "--data d.yaml --resume",
            "--resume runs/train",
            "benchmark --batch 4",
            "data check a=b",
            "--help",
            "help val",
            "--data d.yaml --epoks 3",
            "val --data d.yaml --weights val",
        ] {
            assert_eq!(line(typed), typed);
        }
        assert_eq!(line("--plots data=d.yaml"), "--plots --data=d.yaml");
        assert_eq!(line("--device cpu val"), "val --device cpu");
    }

    #[test]
    fn verbs_have_their_own_names_for_things() {
        assert_eq!(line("val model=best.pt data=d.yaml"), "val --weights=best.pt --data=d.yaml");
        assert_eq!(line("detect predict model=b.pt source=a.jpg save_txt=True"), "predict --weights=b.pt --source=a.jpg --save-txt");
        assert_eq!(line("predict save_txt save_txt=False half=False conf=None batch=16"), "predict --save-txt");
        assert_eq!(line("export model=b.pt format=onnx opset=None iou=.7"), "export --weights=b.pt --format=onnx");
        let told = words("predict model=b.pt half=True lr0=1").unwrap();
        assert_eq!(told.words, ["predict", "--weights=b.pt"]);
        assert!(told.notes[0].starts_with("half=True: f32") && told.notes[1].starts_with("lr0=1: does nothing"), "{:?}", told.notes);
    }

    #[test]
    fn resuming_knows_the_run_by_its_weights() {
        assert_eq!(line("train resume model=r/weights/last.pt"), "--resume=r/weights/last.pt");
        assert_eq!(line("model=r/weights/last.pt resume=True epochs=5"), "--resume=r/weights/last.pt --epochs=5");
        assert_eq!(line("resume=r/weights/last.pt"), "--resume=r/weights/last.pt");
        assert_eq!(line("resume=True"), "--resume");
        assert_eq!(line("resume=False model=yolov8n.pt"), "--model=yolov8n.pt");
    }

    #[test]
    fn what_is_not_there_is_named() {
        for (name, _) in NOT_HERE.iter().take(7) {
            assert!(refused(&format!("{name} train data=d.yaml")).starts_with(&format!("{name}: ")));
        }
        assert!(refused("task=obb data=d.yaml").contains("oriented"));
        assert!(refused("benchmark model=yolov8n.pt").contains("times training steps"));
        assert!(refused("train val data=d.yaml").contains("two modes"));
        assert_eq!(refused("epoks=3"), "unknown argument `epoks`; did you mean `epochs`?");
        assert_eq!(refused("val weihgts=b.pt"), "unknown argument `weihgts`; did you mean `weights`?");
        assert_eq!(refused("trian data=d.yaml"), "unknown word `trian`; did you mean `train`?");
        assert_eq!(refused("data=d.yaml save_ptt"), "unknown word `save_ptt`; did you mean `save_pt`?");
        assert!(refused("val save_pt").starts_with("unknown argument `save_pt`"), "it is training's");
        assert_eq!(refused("epochs"), "`epochs` needs a value: epochs=...");
        assert!(refused("export model=b.pt int8=True").contains("`int8` cannot be True in export: quantisation"));
        assert!(refused("predict save_txt=maybe").contains("true or false"));
    }
}
