//! `data.yaml` as detector users have it: `path`, `train`, `val`, `test`, `names` or `nc`, `channels`.
//!
//! A split is a folder, a `.txt` list, a COCO `.json` (or `{annotations: .., images: ..}`), or a list of these; `images:` is the folder of all
//! COCO files that do not say their own. Keys of ours: `sample:` says that the data is generated (see [`super::sample`]), `settings:` holds
//! training settings that suit this data set, `range`, `percentile` and `percentile_of` are such settings written at the top. `download:` is
//! never executed, whatever it holds: its text is shown to the user when the images are missing.
//!
//! The reader has budgets (1 MiB, depth 32, 100,000 nodes, no aliases), so no YAML can cost more than it weighs. An unknown key is a note that
//! names the closest known one, and the reason given where a required key is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellows_runs::read_bounded;
use bellows_settings::{unknown, yaml_fault};
use serde_json::Value;
use serde_saphyr::Spanned;

use super::description::{DataConfig, Source};
use super::error::DataError;
use super::sample_spec::SampleSpec;

const MAX_BYTES: u64 = 1 << 20;
const KNOWN: [&str; 15] = [
    "path",
    "train",
    "val",
    "validation",
    "test",
    "images",
    "names",
    "nc",
    "channels",
    "range",
    "percentile",
    "percentile_of",
    "download",
    "sample",
    "settings",
];
/// Settings that may stand at the top, because they are about the data.
const OF_THE_DATA: [&str; 3] = ["range", "percentile", "percentile_of"];
/// Keys of other tasks or of the curious: read by nobody here, and no mistake.
const IGNORED: [&str; 15] = [
    "minival",
    "kpt_shape",
    "flip_idx",
    "kpt_names",
    "author",
    "date",
    "description",
    "homepage",
    "license",
    "source",
    "task",
    "url",
    "version",
    "roboflow",
    "yaml_file",
];

type Document = BTreeMap<String, Spanned<Value>>;

impl DataConfig {
    /// Reads the data.yaml at `yaml`; class names that only a COCO file knows are still missing.
    ///
    /// # Errors
    /// [`DataError::File`], or [`DataError::Yaml`] with the line where the parser knows it.
    pub(crate) fn from_yaml(yaml: &Path) -> Result<Self, DataError> {
        let text = String::from_utf8(read_bounded(yaml, MAX_BYTES)?).map_err(|e| fault(yaml, None, format!("not UTF-8: {e}")))?;
        Self::parse(&text, yaml)
    }

    /// Reads the text of a data.yaml that stands (or would stand) at `yaml`.
    ///
    /// # Errors
    /// [`DataError::Yaml`].
    pub fn parse(text: &str, yaml: &Path) -> Result<Self, DataError> {
        let mut document = read(text, yaml)?;
        if document.contains_key("val") && document.contains_key("validation") {
            return Err(fault(yaml, None, "both `val` and `validation`: keep one".into()));
        }
        if let Some(value) = document.remove("validation") {
            document.insert("val".into(), value);
        }
        let generator = match document.get("sample") {
            None => None,
            Some(v) => Some(SampleSpec::from_value(&v.value).map_err(|reason| fault(yaml, line(v), reason))?),
        };
        let images = text_of(&document, "images", yaml)?.map(PathBuf::from);
        let split = |key: &str| -> Result<Vec<Source>, DataError> {
            let sources = sources(&document, key, images.as_deref(), yaml)?;
            let drawn = generator.as_ref().filter(|_| key != "test" && sources.is_empty());
            Ok(drawn.map_or(sources, |spec| vec![spec.source(key).into()]))
        };
        let (train, val, test) = (split("train")?, split("val")?, split("test")?);
        if train.is_empty() {
            return Err(missing(&document, "train", "the folder, list or COCO file of its images", yaml));
        }
        if val.is_empty() && meant_for(&document, "val").is_some() {
            return Err(missing(&document, "val", "the folder, list or COCO file of its images", yaml));
        }
        let mut notes: Vec<String> = strangers(&document).map(|(key, v)| said(yaml, line(v), &stranger(key))).collect();
        let written = text_of(&document, "path", yaml)?.unwrap_or_default();
        let root = root(yaml, Path::new(&written), &train, generator.is_some(), &mut notes);
        let coco = [&train, &val, &test].into_iter().flatten().any(Source::is_coco);
        Ok(Self {
            yaml: yaml.to_path_buf(),
            root,
            hold_out: val.is_empty(),
            train,
            val,
            test,
            names: names(&document, coco, yaml)?,
            channels: channels(&document, yaml)?,
            settings: settings(&document, yaml)?,
            download: text_of(&document, "download", yaml)?,
            generator,
            notes,
            allow_outside: Vec::new(),
        })
    }
}

/// The dataset root: `path`, absolute or beside the YAML, whose folder is the default; then in the current directory; and, where a tool wrote an
/// absolute path of another machine, the YAML's folder if the training images are there.
fn root(yaml: &Path, written: &Path, train: &[Source], generated: bool, notes: &mut Vec<String>) -> PathBuf {
    let folder = yaml.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let root = folder.join(written);
    if generated || root.is_dir() {
        return root;
    }
    if written.is_relative() && written.is_dir() {
        return written.to_path_buf();
    }
    if written.is_absolute() && train.iter().all(|source| folder.join(&source.path).exists()) {
        notes.push(format!("{}: `path` {} is not here; its own folder is the root", yaml.display(), written.display()));
        return folder.to_path_buf();
    }
    root
}

/// Keys that nobody knows.
fn strangers(document: &Document) -> impl Iterator<Item = (&String, &Spanned<Value>)> {
    document.iter().filter(|(key, _)| !KNOWN.contains(&key.as_str()) && !IGNORED.contains(&key.as_str()))
}

fn stranger(key: &str) -> String {
    let text = unknown("key", key, KNOWN);
    if text.contains("did you mean") { text } else { format!("unknown key `{key}` is ignored") }
}

/// The unknown key that may have been meant for `key`.
fn meant_for<'a>(document: &'a Document, key: &str) -> Option<(&'a String, &'a Spanned<Value>)> {
    strangers(document).find(|(stranger, _)| unknown("key", stranger, KNOWN).ends_with(&format!("did you mean `{key}`?")))
}

fn missing(document: &Document, key: &str, what: &str, yaml: &Path) -> DataError {
    match meant_for(document, key) {
        Some((stranger, v)) => fault(yaml, line(v), format!("`{key}` is missing; is it meant by `{stranger}`?")),
        None => fault(yaml, None, format!("`{key}` is missing: {what}")),
    }
}

fn said(yaml: &Path, line: Option<u64>, text: &str) -> String {
    format!("{}{}: {text}", yaml.display(), line.map(|l| format!(":{l}")).unwrap_or_default())
}

fn fault(yaml: &Path, line: Option<u64>, reason: String) -> DataError {
    DataError::Yaml { path: yaml.to_path_buf(), line, reason }
}

fn line<T>(value: &Spanned<T>) -> Option<u64> {
    Some(value.defined.line()).filter(|&l| l > 0)
}

fn read(text: &str, yaml: &Path) -> Result<Document, DataError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 32, max_nodes: 100_000, max_aliases: 0, max_anchors: 0, max_documents: 1, max_merge_keys: 0, max_total_scalar_bytes: MAX_BYTES as usize },
        strict_booleans: true
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, reason) = yaml_fault(&error);
        fault(yaml, line, reason)
    })
}

/// A scalar as the text a user would have written; `None` for lists and maps.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        Value::Bool(b) => Some(b.to_string()),
        _ => None,
    }
}

fn text_of(document: &Document, key: &str, yaml: &Path) -> Result<Option<String>, DataError> {
    match document.get(key) {
        None => Ok(None),
        Some(v) if v.value.is_null() => Ok(None),
        Some(v) => scalar(&v.value).map(Some).ok_or_else(|| fault(yaml, line(v), format!("`{key}` must be text"))),
    }
}

fn count_of(document: &Document, key: &str, yaml: &Path) -> Result<Option<u32>, DataError> {
    let Some(v) = document.get(key) else { return Ok(None) };
    let count = v.value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    count.map(Some).ok_or_else(|| fault(yaml, line(v), format!("`{key}` must be a positive integer, not {}", v.value)))
}

fn sources(document: &Document, key: &str, images: Option<&Path>, yaml: &Path) -> Result<Vec<Source>, DataError> {
    let Some(v) = document.get(key) else { return Ok(Vec::new()) };
    let list = match &v.value {
        Value::Null => Some(Vec::new()),
        Value::Array(items) => items.iter().map(|item| source(item, images)).collect(),
        one => source(one, images).map(|source| vec![source]),
    };
    let forms = "a folder, a .txt list, a COCO .json, {annotations: FILE, images: FOLDER}, or a list of these";
    list.ok_or_else(|| fault(yaml, line(v), format!("`{key}` must be {forms}")))
}

/// One source, if `value` is a form of it; `images` is the folder of COCO files that do not say theirs.
fn source(value: &Value, images: Option<&Path>) -> Option<Source> {
    let source = match value {
        Value::String(path) => Source::from(path),
        Value::Object(map) if map.keys().all(|k| k == "annotations" || k == "images") => {
            let images = map.get("images").map(|v| v.as_str().ok_or(())).transpose().ok()?;
            let source = Source { path: map.get("annotations")?.as_str()?.into(), images: images.map(PathBuf::from) };
            source.is_coco().then_some(source)?
        }
        _ => return None,
    };
    let images = source.images.clone().or_else(|| images.map(Path::to_path_buf)).filter(|_| source.is_coco());
    Some(Source { images, ..source })
}

/// The classes; none when COCO files (`coco`) have to say them.
fn names(document: &Document, coco: bool, yaml: &Path) -> Result<Vec<String>, DataError> {
    let nc = count_of(document, "nc", yaml)?;
    let Some(v) = document.get("names") else {
        return match nc {
            _ if coco => Ok(Vec::new()),
            Some(nc) => class_names_for(nc, yaml),
            None => Err(missing(document, "names", "the classes, as a list or as a map from index to name", yaml)),
        };
    };
    let at = |reason: String| fault(yaml, line(v), reason);
    let names = match &v.value {
        Value::Array(items) => {
            items.iter().map(scalar).collect::<Option<Vec<_>>>().ok_or_else(|| at("`names` must hold text only".into()))?
        }
        Value::Object(map) => {
            let mut names: Vec<Option<String>> = vec![None; map.len()];
            for (key, name) in map {
                let slot = key.trim().parse::<usize>().ok().and_then(|i| names.get_mut(i));
                let slot = slot.ok_or_else(|| at(format!("`names` has the key `{key}`; the keys must be 0..{}", map.len() - 1)))?;
                *slot = Some(scalar(name).ok_or_else(|| at(format!("the name of class {key} must be text")))?);
            }
            names.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| at("`names` gives an index twice".into()))?
        }
        _ => return Err(at("`names` must be a list or a map from index to name".into())),
    };
    match nc {
        _ if names.is_empty() => Err(at("`names` is empty".into())),
        Some(nc) if nc as usize != names.len() => Err(at(format!("`names` has {} classes and `nc` says {nc}", names.len()))),
        _ => Ok(names),
    }
}

/// `class_0`, `class_1` ... for a file that gives only their number.
fn class_names_for(nc: u32, yaml: &Path) -> Result<Vec<String>, DataError> {
    if nc > 100_000 {
        return Err(fault(yaml, None, format!("`nc` is {nc}; at most 100000 classes")));
    }
    Ok((0..nc).map(|i| format!("class_{i}")).collect())
}

fn channels(document: &Document, yaml: &Path) -> Result<u32, DataError> {
    match count_of(document, "channels", yaml)? {
        None => Ok(3),
        Some(c @ (1 | 3)) => Ok(c),
        Some(c) => Err(fault(yaml, document.get("channels").and_then(line), format!("`channels` is {c}; 1 and 3 are possible"))),
    }
}

fn settings(document: &Document, yaml: &Path) -> Result<BTreeMap<String, Value>, DataError> {
    let mut settings = BTreeMap::new();
    if let Some(v) = document.get("settings") {
        let map = v.value.as_object().ok_or_else(|| fault(yaml, line(v), "`settings` must be a map from setting to value".into()))?;
        settings.extend(map.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    for key in OF_THE_DATA {
        if let Some(v) = document.get(key)
            && settings.insert(key.into(), v.value.clone()).is_some()
        {
            return Err(fault(yaml, line(v), format!("`{key}` stands here and in `settings`: keep one")));
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Split;

    fn parse(text: &str) -> Result<DataConfig, DataError> {
        DataConfig::parse(text, Path::new("/data/set/data.yaml"))
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn the_forms_users_have() {
        let c = parse("train: images/train\nval: [a.txt, images/val]\nnames:\n  1: car\n  0: person\n").unwrap();
        assert_eq!(c.root, Path::new("/data/set/"));
        assert_eq!((c.names.join(","), c.channels, c.nc()), ("person,car".into(), 3, 2));
        assert_eq!(c.val, ["a.txt", "images/val"].map(Source::from));
        let c = parse("path: ../other\ntrain: t\nvalidation: v\ntest:\nnc: 2\nchannels: 1\n").unwrap();
        assert_eq!((c.names.join(","), c.channels), ("class_0,class_1".into(), 1));
        assert_eq!(c.root, Path::new("/data/set/../other"));
        assert!(c.test.is_empty());
        let c = parse("path: /abs\ntrain: t\nval: v\nnc: 3\nnames: [no, 1, x]\nkpt_shape: [17, 3]\nlicense: x\nsettings: {imgsz: 192, cos_lr: true}\n").unwrap();
        assert_eq!((c.names.join(","), c.root.as_path()), ("no,1,x".into(), Path::new("/abs")));
        assert_eq!(c.settings["imgsz"], 192);
    }

    #[test]
    fn refusals_name_line_and_remedy() {
        for (text, part) in [
            ("trian: t\nval: v\nnames: [a]\n", "data.yaml:1: `train` is missing; is it meant by `trian`?"),
            ("train: t\nvall: v\nnames: [a]\n", "data.yaml:2: `val` is missing; is it meant by `vall`?"),
            ("train: t\nval: v\nnmaes: [a]\n", "data.yaml:3: `names` is missing; is it meant by `nmaes`?"),
            ("val: v\nnames: [a]\n", "`train` is missing"),
            ("train: t\nval: {annotations: v.json, image: x}\nnames: [a]\n", "data.yaml:2: `val` must be a folder"),
            ("train: t\nval: {annotations: v.txt}\nnames: [a]\n", "`val` must be a folder"),
            ("train: t\nval: v\nnames: [a]\nrange: [1, 2]\nsettings: {range: [1, 2]}\n", "data.yaml:4: `range` stands here and"),
            ("train: t\nval: v\n", "`names` is missing"),
            ("train: t\nval: v\nnc: 2\nnames: [a]\n", "`nc` says 2"),
            ("train: t\nval: v\nnames: {0: a, 2: b}\n", "keys must be 0..1"),
            ("train: t\nval: v\nnames: {0: a, 00: b}\n", "twice"),
            ("train: t\nval: v\nnc: -1\n", "positive integer"),
            ("train: t\nval: v\nnc: 4000000000\n", "at most"),
            ("train: t\nval: v\nnames: [a]\nchannels: 4\n", "1 and 3"),
            ("train: {a: b}\nval: v\nnames: [a]\n", "data.yaml:1"),
            ("train: t\ntrain: u\nval: v\nnames: [a]\n", "duplicate"),
            ("train: &a t\nval: *a\nnames: [a]\n", "it has more anchors, aliases (`&name`, `*name`) and merges"),
            ("train: [t\n", "data.yaml"),
            ("train: t\nval: v\nnames: [a]\nsample: {sead: 3}\n", "did you mean `seed`"),
            ("train: t\nval: v\nnames: [a]\nsample: {seed: x}\n", "data.yaml:4: sample: \"x\" must be a whole number from 0 up"),
            ("train: t\nval: v\nnames: [a]\nsample: {clips: 3}\n", "sample: 3 must be keys with values"),
            ("train: t\nval: v\nnames: [a]\nsample: {clips: {hard: 2}}\n", "sample: clips: `hard` must be 0 to 1"),
        ] {
            let message = refusal(text);
            assert!(message.contains(part), "{text:?}: {message}");
        }
    }

    #[test]
    fn a_line_is_told_once() {
        let message = refusal("train: t\ntrain: u\nval: v\nnames: [a]\n");
        assert!(message.contains("data.yaml:2: duplicate") && !message.contains(" line "), "{message}");
    }

    #[test]
    fn unknown_keys_are_noted() {
        let c = parse("train: t\nval: v\nnames: [a]\ntset: x\nxyzzy: y\nauthor: z\n").unwrap();
        assert_eq!(
            c.notes,
            ["/data/set/data.yaml:4: unknown key `tset`; did you mean `test`?", "/data/set/data.yaml:5: unknown key `xyzzy` is ignored"]
        );
    }

    #[test]
    fn coco_in_its_forms() {
        let c = parse("train: a.json\nval: [b.json, images/val]\ntest: {annotations: c.JSON, images: t}\nimages: frames\n").unwrap();
        let of = |path: &str, images: &str| Source { path: path.into(), images: Some(images.into()) };
        assert_eq!((c.train, c.test), (vec![of("a.json", "frames")], vec![of("c.JSON", "t")]));
        assert_eq!(c.val, [of("b.json", "frames"), "images/val".into()]);
        assert!(c.names.is_empty(), "the files say them");
        let c = parse("train: a.json\nnames: [x]\npercentile: [1, 99]\n").unwrap();
        assert_eq!((c.train[0].images.clone(), c.hold_out, c.settings["percentile"][1].as_i64()), (None, true, Some(99)));
        assert_eq!(c.splits(), [Split::Train, Split::Val]);
    }

    #[test]
    fn hostile_yaml_is_refused_cheaply() {
        let row = |anchor: &str| [format!("*{anchor}").as_str(); 9].join(",");
        let bomb = format!("train: &a [x,x,x,x,x,x,x,x,x]\nval: &b [{}]\ntest: &c [{}]\nnames: [{}]\n", row("a"), row("b"), row("c"));
        let deep = format!("train: {}{}\nval: v\nnames: [a]\n", "[".repeat(500), "]".repeat(500));
        for hostile in [bomb.as_str(), "train: &a t\nval: *a\nnames: [a]\n", &deep] {
            let message = refusal(hostile);
            assert!(
                !message.contains("must be") && !message.contains("must hold"),
                "refused by budget, before its meaning is looked at: {message}"
            );
        }
        let wide = format!("train: t\nval: v\nnames: [{}]\n", "a,".repeat(200_000));
        assert!(refusal(&wide).contains("data.yaml"));
        let dir = tempfile::tempdir().unwrap();
        let big = dir.path().join("big.yaml");
        std::fs::write(&big, " ".repeat(MAX_BYTES as usize + 1)).unwrap();
        assert!(DataConfig::load(&big, &[]).unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn paths_stay_inside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("set"), dir.path().join("outside"));
        std::fs::create_dir_all(root.join("images")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        let yaml = root.join("data.yaml");
        std::fs::write(&yaml, "train: images\nval: ../outside\nnames: [a]\n").unwrap();
        let config = DataConfig::load(&yaml, &[]).unwrap();
        assert!(config.resolve(&config.root, Path::new("images")).is_ok());
        assert!(config.resolve(&config.root, Path::new("../images")).is_ok(), "a leading ../ that leads nowhere is tried without");
        for escape in [PathBuf::from("../outside"), outside.clone(), PathBuf::from("images/../../outside"), PathBuf::from("/etc")] {
            assert!(matches!(config.resolve(&config.root, &escape), Err(DataError::Outside { .. })), "{escape:?}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
            assert!(matches!(config.resolve(&config.root, Path::new("link")), Err(DataError::Outside { .. })));
        }
        let config = DataConfig::load(&yaml, std::slice::from_ref(&outside)).unwrap();
        assert!(config.resolve(&config.root, Path::new("../outside")).is_ok());
    }
}
