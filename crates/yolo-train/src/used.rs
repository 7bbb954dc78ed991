//! What the verbs share that use weights and train nothing: which weights, which settings, how images are tiled, where results go.

use std::path::{Path, PathBuf};

use bellows_cli::{Context, Exit, Failure, Usage, flag, flag_values, note, option, text};
use bellows_learner::RunFile;
use bellows_runs::{RunDir, write_atomic};
use bellows_settings::{Layer, Setting};
use bellows_yolo::config::{SETTINGS, STRIDE, TrainConfig};
use bellows_yolo::predict::tiles::{Merge, MergeBy, Tiling};
use bellows_yolo::{Chosen, WeightFile, weight_file};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, value_parser};
use serde_json::{Map, Value, json};

use crate::run::{JUDGED, of_dataset};

/// Settings of training that a verb has too, with defaults of its own.
pub(crate) struct Share {
    names: &'static [&'static str],
    defaults: Map<String, Value>,
    words: &'static [(&'static str, &'static str)],
}

impl Share {
    /// These settings; `defaults` are those that differ from training's.
    pub(crate) fn new(names: &'static [&'static str], defaults: Value) -> Self {
        Self { names, defaults: defaults.as_object().cloned().unwrap_or_default(), words: &[] }
    }

    /// With help of its own for some of them, defaults and all: training's would be wrong.
    pub(crate) fn worded(self, words: &'static [(&'static str, &'static str)]) -> Self {
        Self { words, ..self }
    }

    fn table(&self) -> impl Iterator<Item = &'static Setting> {
        SETTINGS.iter().filter(|s| self.names.contains(&s.key()))
    }

    /// Their flags.
    pub(crate) fn flags(&self) -> Vec<Arg> {
        let mut defaults = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
        self.defaults.iter().for_each(|(name, value)| defaults[name] = value.clone());
        let own = |s: &Setting| self.words.iter().find(|(name, _)| *name == s.key());
        let flag = |s: &Setting| match own(s) {
            Some((_, help)) => flag(&Setting { help, ..*s }, &Value::Null),
            None => flag(s, &defaults),
        };
        self.table().map(flag).collect()
    }

    /// Their values: defaults, what the weights say (`imgsz`, what becomes of image files), flags. Of weights that saw no 16-bit images the data set says what
    /// becomes of these.
    ///
    /// # Errors
    /// A value of the wrong kind, a rule that is broken, a description of data that cannot be read.
    pub(crate) fn settle(&self, matches: &ArgMatches, weights: &WeightFile) -> Result<TrainConfig, Failure> {
        let layer = |origin: &str, values| Layer { origin: origin.into(), values };
        let imgsz = weights.imgsz().map(|n| ("imgsz".to_string(), json!(n.next_multiple_of(STRIDE as u32))));
        let flags = flag_values(self.table().map(|s| (s.key(), s.read)), matches);
        let trained = without_range(weights.preprocessing().settings(), &flags);
        let data = flags.get("data").and_then(Value::as_str).filter(|_| weights.preprocessing().levels.is_none());
        let layers = [
            layer("defaults", self.defaults.clone()),
            data.map(|data| levels_of(data, &flags)).transpose()?.unwrap_or_default(),
            layer("the weights' metadata", imgsz.into_iter().chain(trained).collect()),
            layer("command line", flags),
        ];
        let (config, notes) = TrainConfig::with_notes(&layers)?;
        notes.iter().for_each(|line| note(line));
        Ok(config)
    }
}

/// Settings without the range of 16-bit images where `flags` ask for percentiles, which a range would make void.
fn without_range(mut settings: Map<String, Value>, flags: &Map<String, Value>) -> Map<String, Value> {
    if ["percentile", "percentile_of"].iter().any(|&key| flags.contains_key(key)) {
        settings.remove("range");
    }
    settings
}

/// What the data set says of 16-bit images.
fn levels_of(data: &str, flags: &Map<String, Value>) -> Result<Layer, Failure> {
    let typed = Layer { origin: "command line".into(), values: flags.clone() };
    let Layer { origin, mut values } = of_dataset(data, None, &typed)?;
    values.retain(|key, _| ["range", "percentile", "percentile_of"].contains(&key.replace('-', "_").as_str()));
    Ok(Layer { origin, values: without_range(values, flags) })
}

impl Share {
    /// Their values as text.
    pub(crate) fn told(&self, config: &TrainConfig) -> Vec<(String, String)> {
        let all = serde_json::to_value(config).unwrap_or_default();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        self.table().map(|s| (s.key().to_string(), text(&all[s.name]))).collect()
    }
}

/// `--weights FILE`.
pub(crate) fn weights_flag() -> Arg {
    let help =
        "Weights to use: a .pt or .safetensors file of a YOLOv8 detector, an .onnx file that export wrote, or a folder that has only one";
    option("weights", help).value_name("FILE").visible_alias("model")
}

/// What `--weights` names.
///
/// # Errors
/// Nothing named, or a folder with several.
pub(crate) fn weights_path(matches: &ArgMatches) -> Result<PathBuf, Failure> {
    let path = text(matches, "weights").ok_or_else(|| Usage("--weights FILE is required: the detector to use (see --help)".into()))?;
    let Chosen { path, note: passed_over } = weight_file(Path::new(&path))?;
    passed_over.iter().for_each(|line| note(line));
    Ok(path)
}

/// `640` or `480,640` (height, width) after `--imgsz`, rounded up to what the network takes.
///
/// # Errors
/// What is neither, or no size of an image.
pub(crate) fn sides(text: &str) -> Result<[usize; 2], Failure> {
    let sides: Result<Vec<usize>, _> = text.trim_matches(['[', ']']).split([',', 'x']).map(|side| side.trim().parse()).collect();
    let typed = match sides.as_deref() {
        Ok(&[side]) => [side, side],
        Ok(&[height, width]) => [height, width],
        _ => return Err(Usage(format!("--imgsz {text}: a number, or height and width as H,W")).into()),
    };
    if typed.iter().any(|side| !(1..=16_384).contains(side)) {
        return Err(Usage(format!("--imgsz {text}: sides are between 1 and 16384 pixels")).into());
    }
    let size = typed.map(|side| side.next_multiple_of(STRIDE));
    if size != typed {
        note(&format!("warning: --imgsz {text} is rounded up to {},{}, multiples of {STRIDE}", size[0], size[1]));
    }
    Ok(size)
}

/// `--tile`, `--overlap`, `--merge`, `--merge-threshold`.
pub(crate) fn tiling_flags() -> [Arg; 4] {
    let heading = "Tiles";
    [
        option("tile", "Look at images also in tiles of this side in pixels, for small objects")
            .value_name("N")
            .value_parser(value_parser!(u32)),
        option("overlap", "Part of a tile that the next one shows too")
            .value_name("X")
            .default_value("0.2")
            .value_parser(value_parser!(f64)),
        option("merge", "When boxes of tiles are one object: by intersection over the smaller box, or over the union (NMS)")
            .default_value("ios")
            .value_parser(PossibleValuesParser::new(["ios", "nms"])),
        option("merge-threshold", "Above which they are").value_name("X").default_value("0.5").value_parser(value_parser!(f64)),
    ]
    .map(|arg| arg.help_heading(heading))
}

/// What they say; none without `--tile`.
///
/// # Errors
/// Numbers out of range.
pub(crate) fn tiling(matches: &ArgMatches) -> Result<Option<Tiling>, Failure> {
    let Some(&side) = matches.get_one::<u32>("tile") else { return Ok(None) };
    let number = |name: &str| matches.get_one::<f64>(name).copied().unwrap_or_default();
    let (overlap, threshold) = (number("overlap"), number("merge-threshold"));
    if side < 32 || !(0.0..=0.9).contains(&overlap) || !(0.0..=1.0).contains(&threshold) {
        return Err(Usage("--tile is at least 32, --overlap 0 to 0.9, --merge-threshold 0 to 1".into()).into());
    }
    let by = if text(matches, "merge").as_deref() == Some("nms") { MergeBy::Nms } else { MergeBy::Ios };
    // How many boxes are kept and whether across classes, NMS says.
    let merge = Merge { by, threshold, agnostic: false, max_det: usize::MAX };
    Ok(Some(Tiling { side: side as usize, overlap, merge }))
}

/// Sets aside what a validation before this one has left in its folder: what this one does not write would be taken for its own. Returns how many files and
/// folders there were; some may be the user's, and have such a name.
///
/// # Errors
/// One that cannot be renamed.
pub(crate) fn set_aside(folder: &Path) -> Result<usize, Failure> {
    // A run that has trained there, ours or Ultralytics', has written these, and more than a validation can write again.
    if ["config.yaml", "args.yaml"].iter().any(|name| folder.join(name).exists()) {
        return Ok(0);
    }
    Ok(RunDir::at(folder).set_aside(&JUDGED, &[])?)
}

/// Writes results into their folder.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn keep(folder: &Path, files: &[RunFile]) -> Result<(), Failure> {
    for file in files {
        let path = folder.join(&file.path);
        write_atomic(&path, &file.bytes).context(Exit::Failed, path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_that_are_typed_are_stronger_than_the_range_of_the_weights() {
        let share = Share::new(&["range", "percentile", "percentile_of"], json!({}));
        let command = || clap::Command::new("x").args(share.flags());
        let trained = json!({ "range": [2900.0, 3400.5], "frames": 2 }).as_object().cloned().unwrap();
        let levels = |typed: &[&str]| {
            let matches = command().try_get_matches_from([&["x"], typed].concat()).unwrap();
            let flags = flag_values(share.table().map(|s| (s.key(), s.read)), &matches);
            let layer = |values| Layer { origin: String::new(), values };
            let layers = [layer(without_range(trained.clone(), &flags)), layer(flags)];
            let config = TrainConfig::from_layers(&layers).unwrap();
            assert_eq!(config.frames, 2, "of the rest nothing is forgotten");
            config.levels()
        };
        assert_eq!(levels(&[]).range, Some([2900.0, 3400.5]));
        let typed = levels(&["--percentile", "1,99"]);
        assert_eq!((typed.range, typed.percentile, typed.per_frame), (None, [1.0, 99.0], false));
        assert_eq!((levels(&["--percentile-of", "frame"]).range, levels(&["--percentile-of", "frame"]).per_frame), (None, true));
        assert_eq!(levels(&["--percentile", "1,99", "--range", "5,6"]).range, Some([5.0, 6.0]));
    }

    #[test]
    fn what_a_validation_has_left_is_set_aside_but_in_the_folder_of_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for settings in ["config.yaml", "args.yaml"] {
            [settings, "by_hand.png", "predictions.json"].iter().for_each(|name| std::fs::write(at(name), name).unwrap());
            assert_eq!(set_aside(dir.path()).unwrap(), 0, "{settings}");
            std::fs::remove_file(at(settings)).unwrap();
        }
        assert_eq!(set_aside(dir.path()).unwrap(), 2);
        assert_eq!(std::fs::read_to_string(at("by_hand.png.abandoned")).unwrap(), "by_hand.png");
        assert!(!at("by_hand.png").exists());
        // Of the validation after that, too.
        std::fs::write(at("by_hand.png"), "later").unwrap();
        assert_eq!(set_aside(dir.path()).unwrap(), 1);
        let kept = ["by_hand.png.abandoned", "by_hand.png.abandoned-2"].map(|name| std::fs::read_to_string(at(name)).unwrap());
        assert_eq!(kept, ["by_hand.png", "later"]);
    }

    /// Files that other programs have folded are refused.
    #[test]
    fn the_help_of_weights_promises_no_onnx_file_of_others() {
        let help = weights_flag().get_help().unwrap().to_string();
        assert!(help.contains("an .onnx file that export wrote") && help.matches("onnx").count() == 1, "{help}");
    }

    #[test]
    fn sizes_in_every_form() {
        for (text, expected) in [("640", [640, 640]), ("480,640", [480, 640]), ("[480, 640]", [480, 640]), ("100x33", [128, 64])] {
            assert_eq!(sides(text).unwrap(), expected, "{text}");
        }
        for text in ["", "a", "1,2,3", "0", "-32", "99999"] {
            assert!(sides(text).is_err(), "{text}");
        }
    }
}
