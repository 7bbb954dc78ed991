//! `data.yaml` as detector users have it: `path`, `train`, `val`, `test`, `names` or `nc`, `channels`.
//!
//! Two keys are ours: `sample:` says that the data is generated (see [`super::sample`]) and `settings:` holds training settings that suit
//! this data set; the user's own flags go above them. `download:` is never executed, whatever it holds: its text is shown to the user when
//! the images are missing. The reader has budgets (1 MiB, depth 32, 100,000 nodes, no aliases), so no YAML can cost more than it weighs, and
//! an unknown key is an error that names the closest known one.
//!
//! A path from the file is used only after [`DataConfig::resolve`] has seen that it stays inside the dataset root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellows_runs::read_bounded;
use bellows_settings::unknown;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::error::DataError;
use super::sample_spec::SampleSpec;

const MAX_BYTES: u64 = 1 << 20;
const KNOWN: [&str; 11] = ["path", "train", "val", "validation", "test", "names", "nc", "channels", "download", "sample", "settings"];
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

/// A dataset description, its paths not yet resolved.
#[derive(Clone, Debug)]
pub struct DataConfig {
    /// The YAML file itself.
    pub yaml: PathBuf,
    /// The dataset root: `path`, absolute or relative to the YAML's folder, which is also the default.
    pub root: PathBuf,
    /// Folders or list files with training images.
    pub train: Vec<PathBuf>,
    /// The same for validation.
    pub val: Vec<PathBuf>,
    /// The same for testing; may be empty.
    pub test: Vec<PathBuf>,
    /// Class names; their number is `nc`.
    pub names: Vec<String>,
    /// 3, or 1 for a network with one input channel.
    pub channels: u32,
    /// Present when the data is generated rather than collected.
    pub generator: Option<SampleSpec>,
    /// Training settings that suit this data set, below the user's own.
    pub settings: BTreeMap<String, Value>,
    /// How to obtain the data; text for a person, never executed.
    pub download: Option<String>,
    /// Folders outside the root that may be read too.
    pub allow_outside: Vec<PathBuf>,
}

/// Which images of a data.yaml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// `train`
    Train,
    /// `val`
    Val,
    /// `test`
    Test,
}

impl Split {
    /// Its key in the data.yaml.
    pub fn key(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

type Document = BTreeMap<String, Spanned<Value>>;

impl DataConfig {
    /// Reads a data.yaml. `allow_outside` names folders beyond the root that the user allows it to use.
    ///
    /// # Errors
    /// [`DataError::File`], or [`DataError::Yaml`] with the line where the parser knows it.
    pub fn load(yaml: &Path, allow_outside: &[PathBuf]) -> Result<Self, DataError> {
        let text = String::from_utf8(read_bounded(yaml, MAX_BYTES)?).map_err(|e| fault(yaml, None, format!("not UTF-8: {e}")))?;
        let mut config = Self::parse(&text, yaml)?;
        config.allow_outside = allow_outside.to_vec();
        Ok(config)
    }

    /// Reads the text of a data.yaml that stands (or would stand) at `yaml`.
    ///
    /// # Errors
    /// [`DataError::Yaml`].
    pub fn parse(text: &str, yaml: &Path) -> Result<Self, DataError> {
        let mut document = read(text, yaml)?;
        if let Some((key, value)) = document.iter().find(|(k, _)| !KNOWN.contains(&k.as_str()) && !IGNORED.contains(&k.as_str())) {
            return Err(fault(yaml, line(value), unknown("key", key, KNOWN)));
        }
        if document.contains_key("val") && document.contains_key("validation") {
            return Err(fault(yaml, None, "both `val` and `validation`: keep one".into()));
        }
        if let Some(value) = document.remove("validation") {
            document.insert("val".into(), value);
        }
        let folder = yaml.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let root = folder.join(text_of(&document, "path", yaml)?.unwrap_or_default());
        let generator = match document.get("sample") {
            None => None,
            Some(v) => Some(SampleSpec::from_value(&v.value).map_err(|reason| fault(yaml, line(v), reason))?),
        };
        let split = |key: &str, required: bool| -> Result<Vec<PathBuf>, DataError> {
            let sources = sources(&document, key, yaml)?;
            match (sources.is_empty(), &generator) {
                (true, Some(_)) if required => Ok(vec![Path::new("images").join(key)]),
                (true, None) if required => Err(fault(yaml, None, format!("`{key}` is missing: the folder or list file of its images"))),
                _ => Ok(sources),
            }
        };
        Ok(Self {
            yaml: yaml.to_path_buf(),
            root,
            train: split("train", true)?,
            val: split("val", true)?,
            test: split("test", false)?,
            names: names(&document, yaml)?,
            channels: channels(&document, yaml)?,
            settings: settings(&document, yaml)?,
            download: text_of(&document, "download", yaml)?,
            generator,
            allow_outside: Vec::new(),
        })
    }

    /// The folders and lists of a split.
    pub fn sources(&self, split: Split) -> &[PathBuf] {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
            Split::Test => &self.test,
        }
    }

    /// Number of classes.
    pub fn nc(&self) -> u32 {
        self.names.len() as u32
    }

    /// The one way from a path in a user's file to a path that may be opened: joined to `base`, made real (links followed), and refused
    /// unless it lies in the dataset root or in a folder of `allow_outside`. A leading `../` that leads nowhere is tried without, as exported data
    /// sets expect.
    ///
    /// # Errors
    /// [`DataError::Outside`], or [`DataError::Io`] when it does not exist.
    pub fn resolve(&self, base: &Path, path: &Path) -> Result<PathBuf, DataError> {
        let joined = base.join(path);
        let real = match (joined.canonicalize(), path.strip_prefix("..")) {
            (Ok(real), _) => real,
            (Err(_), Ok(rest)) if base.join(rest).exists() => base.join(rest).canonicalize().map_err(DataError::io(base.join(rest)))?,
            (Err(source), _) => return Err(DataError::Io { path: joined, source }),
        };
        let inside = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
        if inside(&self.root) || self.allow_outside.iter().any(inside) {
            Ok(real)
        } else {
            Err(DataError::Outside { path: real, root: self.root.clone() })
        }
    }
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
    serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let place = e.location().map(|l| l.line()).filter(|&l| l > 0);
        fault(yaml, place, e.without_snippet().to_string())
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

fn sources(document: &Document, key: &str, yaml: &Path) -> Result<Vec<PathBuf>, DataError> {
    let Some(v) = document.get(key) else { return Ok(Vec::new()) };
    let list = match &v.value {
        Value::Null => Some(Vec::new()),
        Value::String(s) => Some(vec![PathBuf::from(s)]),
        Value::Array(items) => items.iter().map(|i| i.as_str().map(PathBuf::from)).collect(),
        _ => None,
    };
    list.ok_or_else(|| fault(yaml, line(v), format!("`{key}` must be a folder, a .txt list, or a list of these")))
}

fn names(document: &Document, yaml: &Path) -> Result<Vec<String>, DataError> {
    let nc = count_of(document, "nc", yaml)?;
    let Some(v) = document.get("names") else {
        let nc = nc.ok_or_else(|| fault(yaml, None, "`names` is missing: the classes, as a list or as a map from index to name".into()))?;
        return class_names_for(nc, yaml);
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
    let Some(v) = document.get("settings") else { return Ok(BTreeMap::new()) };
    let map = v.value.as_object().ok_or_else(|| fault(yaml, line(v), "`settings` must be a map from setting to value".into()))?;
    Ok(map.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(c.val, [PathBuf::from("a.txt"), PathBuf::from("images/val")]);
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
            ("train: t\nval: v\nnames: [a]\ntrian: x\n", "data.yaml:4: unknown key `trian`; did you mean `train`?"),
            ("train: t\nval: v\nnames: [a]\nxyzzy: x\n", "known: path, train"),
            ("val: v\nnames: [a]\n", "`train` is missing"),
            ("train: t\nval: v\n", "`names` is missing"),
            ("train: t\nval: v\nnc: 2\nnames: [a]\n", "`nc` says 2"),
            ("train: t\nval: v\nnames: {0: a, 2: b}\n", "keys must be 0..1"),
            ("train: t\nval: v\nnames: {0: a, 00: b}\n", "twice"),
            ("train: t\nval: v\nnc: -1\n", "positive integer"),
            ("train: t\nval: v\nnc: 4000000000\n", "at most"),
            ("train: t\nval: v\nnames: [a]\nchannels: 4\n", "1 and 3"),
            ("train: {a: b}\nval: v\nnames: [a]\n", "data.yaml:1"),
            ("train: t\ntrain: u\nval: v\nnames: [a]\n", "duplicate"),
            ("train: [t\n", "data.yaml"),
            ("train: t\nval: v\nnames: [a]\nsample: {sead: 3}\n", "did you mean `seed`"),
        ] {
            let message = refusal(text);
            assert!(message.contains(part), "{text:?}: {message}");
        }
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
