//! Settings in files: YAML as a layer, `config.yaml` of a run, and what `--resume` makes of it.

use std::path::{Path, PathBuf};

use bellows_exit::Exit;
use bellows_runs::{RunDir, find_latest_run, read_bounded, run_of, write_atomic};
use bellows_settings::{Layer, Setting, yaml_fault};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Context, Failure, Usage, note};

/// Most bytes of a file of settings.
const LONGEST: u64 = 1 << 20;
const CONFIG: &str = "config.yaml";

/// Settings from a YAML file.
///
/// # Errors
/// A file that cannot be read or is no YAML, as [`Usage`].
pub fn yaml_layer(path: &Path) -> Result<Layer, Failure> {
    yaml_text(&path.display().to_string(), &text_of(path)?)
}

fn text_of(path: &Path) -> Result<String, Usage> {
    let bytes = read_bounded(path, LONGEST).map_err(|e| Usage(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| Usage(format!("{}: {e}", path.display())))
}

/// Settings from YAML text that an error calls `origin`.
///
/// # Errors
/// Text that is no YAML, as [`Usage`].
pub fn yaml_text(origin: &str, text: &str) -> Result<Layer, Failure> {
    let values: Map<String, Value> = serde_saphyr::from_str(text).map_err(|error| {
        let (line, reason) = yaml_fault(&error);
        Usage(format!("{origin}{}: {reason}", line.map(|line| format!(":{line}")).unwrap_or_default()))
    })?;
    Ok(Layer { origin: origin.into(), values })
}

/// A run that is to go on.
#[derive(Debug)]
pub struct Resumed {
    /// Its directory.
    pub dir: PathBuf,
    /// The settings it was begun with, below what is said now.
    pub layers: Vec<Layer>,
    /// With how many ranks it goes on, where that is said.
    pub ranks: Option<usize>,
}

/// What a supervisor does: a run that is gone on with without one goes on without these.
const OF_A_SUPERVISOR: [&str; 2] = ["fallback", "elastic"];

/// `--resume`: the run's directory (`which` or what it is a part of, or the newest under `--project`) with the settings it was begun with, below those of
/// `file` (`--config`) and the flags, which are held to the same: what is as the run was begun may be said again, so that the command that began it goes on
/// with it. `read` is what layers come to, all settings by name, however they are written, and the choices that are left to the program as the first of them
/// has made them; nothing if they make no sense.
///
/// # Errors
/// No run, no `config.yaml`, or another value of a setting that is not one of `may_change`, as [`Usage`].
pub fn resumed(
    which: Option<&Path>,
    file: Option<Layer>,
    flags: &Layer,
    project: &str,
    may_change: &[&str],
    read: impl Fn(&[Layer]) -> Option<Value>,
) -> Result<Resumed, Failure> {
    let mut said: Vec<Layer> = file.into_iter().chain([flags.clone()]).collect();
    // The setting is what a batch is made of, which stays; how many processes make it may change.
    let ranks = take(&mut said, "ranks");
    let ranks =
        ranks.map(|ranks| ranks.as_u64().filter(|&ranks| ranks > 0).ok_or_else(|| Usage(format!("ranks {ranks} is no number from 1 up"))));
    let ranks = ranks.transpose()?.and_then(|ranks| usize::try_from(ranks).ok());
    let typed = take(&mut said, "project");
    let project = typed.as_ref().and_then(Value::as_str).unwrap_or(project);
    let latest = || find_latest_run(Path::new(project)).ok_or_else(|| Usage(format!("--resume: no run with checkpoints under {project}")));
    let dir = which.map_or_else(latest, |part| Ok(run_of(part).to_owned()))?;
    which.map_or(Ok(()), |part| is_newest(part, &dir))?;
    let config = dir.join(CONFIG);
    let mut begun = yaml_layer(&config)?;
    begun.values.remove("command");
    let name = |key: &str| key.replace('-', "_");
    let may_change = |key: &str| may_change.contains(&name(key).as_str());
    // What the file says of these does not count.
    let typed: Vec<String> = flags.values.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| name(key)).collect();
    let was = read(std::slice::from_ref(&begun));
    let as_begun = |key: &str, value: &Value| {
        let said = Layer { origin: String::new(), values: [(key.to_owned(), value.clone())].into_iter().collect() };
        was.is_some() && read(&[begun.clone(), said]) == was
    };
    for layer in &mut said {
        let is_file = layer.origin != flags.origin;
        let goes_on = |key: &str, value: &Value| (is_file && typed.contains(&name(key))) || as_begun(key, value);
        layer.values.retain(|key, value| value.is_null() || may_change(key) || !goes_on(key, value));
        if let Some((key, _)) = layer.values.iter().find(|(key, value)| !value.is_null() && !may_change(key)) {
            let what = if layer.origin == flags.origin { format!("--{key}") } else { format!("{}: `{key}`", layer.origin) };
            return Err(Usage(format!("{what} cannot change when a run is resumed; it stands in {}", config.display())).into());
        }
    }
    if said.iter().rev().find_map(|layer| layer.values.get("supervise")?.as_bool()) == Some(false) {
        OF_A_SUPERVISOR.iter().for_each(|setting| drop(begun.values.shift_remove(*setting)));
    }
    said.insert(0, begun);
    Ok(Resumed { dir, layers: said, ranks })
}

/// Refuses a checkpoint of the run that is not its newest, which is where a run goes on.
fn is_newest(part: &Path, run: &Path) -> Result<(), Usage> {
    // In the run's own folder the path does not begin with it.
    let in_run = part.strip_prefix(run).unwrap_or(part);
    let named = in_run.strip_prefix("checkpoints").ok().and_then(|rest| rest.components().next());
    let step = named.and_then(|name| name.as_os_str().to_str()?.strip_prefix("step-")?.split('-').next()?.parse::<u64>().ok());
    match (step, RunDir::at(run).newest_step()) {
        (Some(step), Some(newest)) if step < newest => {
            let reason = format!(
                "a run goes on from its newest checkpoint, which is of step {newest}: move the newer ones away to go back to step {step}"
            );
            Err(Usage(format!("--resume {}: {reason}", part.display())))
        }
        _ => Ok(()),
    }
}

/// Takes a setting out of all layers; its value is that of the last one that has it.
fn take(layers: &mut [Layer], setting: &str) -> Option<Value> {
    let mut last = None;
    for layer in layers {
        last = layer.values.shift_remove(setting).filter(|value| !value.is_null()).or(last);
    }
    last
}

/// Writes `config.yaml`: every resolved setting, in the order of the table, and the command line as typed.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn record_settings(dir: &Path, command: &str, table: &[Setting], config: &impl Serialize) -> Result<(), Failure> {
    let values = serde_json::to_value(config).context(Exit::Failed, CONFIG)?;
    let mut text = String::from("# Every setting of this run. The command line was:\n");
    text.push_str(&format!("command: {}\n", Value::from(command)));
    for setting in table {
        // A JSON scalar or list is YAML too.
        text.push_str(&format!("{}: {}\n", setting.key(), values[setting.name]));
    }
    write_atomic(&dir.join(CONFIG), text.as_bytes())?;
    Ok(())
}

/// Where a run's files may come to lie while it is not trained.
const PLACES: [&str; 3] = ["data", "model", "adapter"];

/// Has `config.yaml` of a run that goes on say where its data, model and adapter lie now: whoever resumes it next need not say so again. All else of it stays
/// as it was begun. Somebody may have edited it: where a value cannot be replaced as it stands there, that is said, and the file stays as it is.
///
/// # Errors
/// When the file cannot be read or written, or is no YAML.
pub(crate) fn record_places(dir: &Path, config: &impl Serialize) -> Result<(), Failure> {
    let (path, values) = (dir.join(CONFIG), serde_json::to_value(config).context(Exit::Failed, CONFIG)?);
    let before = text_of(&path)?;
    let mut meant = yaml_text(CONFIG, &before)?.values;
    let mut moved = Vec::new();
    for key in PLACES {
        if let (Some(was), Some(now)) = (meant.get_mut(key), values.get(key))
            && was != now
        {
            *was = now.clone();
            moved.push((key, now));
        }
    }
    if moved.is_empty() {
        return Ok(());
    }
    let after = with_values(&before, &moved);
    if yaml_text(CONFIG, &after).is_ok_and(|layer| layer.values == meant) {
        write_atomic(&path, after.as_bytes())?;
    } else {
        let flags: Vec<String> = moved.iter().map(|(key, _)| format!("--{key}")).collect();
        let again = format!("the next --resume needs {} again", flags.join(" and "));
        note(&format!("warning: {} is not as a run writes it, and cannot be told what lies elsewhere by now: {again}", path.display()));
    }
    Ok(())
}

/// The text of settings with other values of these keys, each on the line of its key, over however many lines it went. Comments between lines stay.
fn with_values(text: &str, others: &[(&str, &Value)]) -> String {
    let (mut written, mut in_value) = (String::new(), false);
    for line in text.lines() {
        let is_comment = matches!(line.trim_start().chars().next(), None | Some('#'));
        // Whatever begins otherwise at the margin is a key: the items and the end of a list may stand there.
        if !is_comment && !line.starts_with([' ', '\t', '-', ']']) {
            let key = line.split_once(':').map(|(key, _)| key);
            let other = others.iter().find(|(name, _)| key == Some(*name));
            in_value = other.is_some();
            written.extend(other.map(|(name, value)| format!("{name}: {value}\n")));
        }
        if is_comment || !in_value {
            written.push_str(line);
            written.push('\n');
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    /// The folder of a run that was begun with these settings.
    fn run(settings: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), format!("command: yolo-train\n{settings}")).unwrap();
        dir
    }

    fn go_on(run: &Path, file: Option<&str>, flags: Value) -> Result<Resumed, Failure> {
        let file = file.map(|text| yaml_text("a.yaml", text)).transpose()?;
        let flags = Layer { origin: "command line".into(), values: flags.as_object().cloned().unwrap_or_default() };
        resumed(Some(run), file, &flags, "runs", &["supervise", "fallback", "elastic", "workers", "save_period"], read)
    }

    /// All values by name, numbers however they are written; `auto` is what the first layer has.
    fn read(layers: &[Layer]) -> Option<Value> {
        let mut all = Map::new();
        for (key, value) in layers.iter().flat_map(|layer| &layer.values).filter(|(_, value)| **value != "auto") {
            all.insert(key.replace('-', "_"), value.as_f64().map_or_else(|| value.clone(), Value::from));
        }
        Some(all.into())
    }

    #[test]
    fn where_things_lie_now_is_written_and_nothing_else() {
        let begun = "data: [\"a.jsonl\"]\nmodel: tiny\nadapter: null\nseed: 7\n";
        let run = run(begun);
        let text = || fs::read_to_string(run.path().join(CONFIG)).unwrap();
        record_places(run.path(), &json!({ "data": ["b/a.jsonl"], "model": "tiny", "adapter": null, "seed": 8 })).unwrap();
        assert_eq!(text(), format!("command: yolo-train\n{}", begun.replace("a.jsonl", "b/a.jsonl")));
        // By hand, over several lines.
        let by_hand = [
            "data: [\"c.jsonl\",   # moved\n       \"d.jsonl\"]\n",
            "data: # these two\n  - c.jsonl\n  - d.jsonl\n",
            "data:\n- c.jsonl\n- d.jsonl\n",
            "data: [\n  c.jsonl,\n  d.jsonl\n]\n",
        ];
        let edited = |settings: &str| fs::write(run.path().join(CONFIG), settings).unwrap();
        let lie_in = |folder: &str| {
            let data = ["c.jsonl", "d.jsonl"].map(|file| format!("{folder}{file}"));
            record_places(run.path(), &json!({ "data": data, "model": "tiny" })).unwrap();
        };
        for data in by_hand {
            let begun = format!("model: tiny\n{data}# A word.\nseed: 7\n");
            edited(&begun);
            lie_in("");
            assert_eq!(text(), begun, "nothing has moved");
            lie_in("e/");
            assert_eq!(text(), "model: tiny\ndata: [\"e/c.jsonl\",\"e/d.jsonl\"]\n# A word.\nseed: 7\n");
        }
        // What it would come to would be no YAML, or say something else: it stays as it is.
        for odd in ["{data: [c.jsonl, d.jsonl], model: tiny}\n", "data: &these [c.jsonl, d.jsonl]\nvalid: *these\n"] {
            edited(odd);
            lie_in("e/");
            assert_eq!(text(), odd);
        }
    }

    fn values(resumed: &Resumed) -> Vec<Value> {
        resumed.layers.iter().map(|layer| layer.values.clone().into()).collect()
    }

    #[test]
    fn a_file_beside_resume_is_held_to_what_flags_are() {
        let run = run("lr0: 0.01\nworkers: 8\n");
        let on = go_on(run.path(), Some("workers: 4\nsave-period: 2\nranks: 3\nlr0: null\n"), json!({ "workers": 2 })).unwrap();
        let begun = json!({ "lr0": 0.01, "workers": 8 });
        assert_eq!(values(&on), [begun, json!({ "workers": 4, "save-period": 2, "lr0": null }), json!({ "workers": 2 })]);
        assert_eq!(on.ranks, Some(3));
        assert_eq!(go_on(run.path(), Some("ranks: 3"), json!({ "ranks": 2 })).unwrap().ranks, Some(2), "flags win");
        let stands = format!("cannot change when a run is resumed; it stands in {}", run.path().join(CONFIG).display());
        let refused = |file, flags| go_on(run.path(), file, flags).unwrap_err().to_string();
        assert_eq!(refused(Some("workers: 4\nlr0: 0.02\n"), json!({})), format!("a.yaml: `lr0` {stands}"));
        assert_eq!(refused(None, json!({ "lr0": 0.02 })), format!("--lr0 {stands}"));
        assert_eq!(refused(None, json!({ "close-mosaic": 3 })), format!("--close-mosaic {stands}"), "nothing is known of it");
    }

    #[test]
    fn an_older_checkpoint_is_not_taken_for_the_newest() {
        let run = run("lr0: 0.01\n");
        for name in ["step-000000003", "step-000000006", "step-000000006-2"] {
            std::fs::create_dir_all(run.path().join("checkpoints").join(name)).unwrap();
        }
        let flags = Layer { origin: "command line".into(), values: Map::new() };
        let go_on = |part: &str| resumed(Some(&run.path().join(part)), None, &flags, "runs", &[], |_| None).map(|on| on.dir);
        let refused = go_on("checkpoints/step-000000003").unwrap_err().to_string();
        assert!(refused.contains("newest checkpoint, which is of step 6") && refused.contains("to step 3"), "{refused}");
        assert!(is_newest(Path::new("checkpoints/step-000000003"), run.path()).is_err(), "as it is called in the run's folder");
        for part in ["checkpoints/step-000000006", "checkpoints/step-000000006-2", "checkpoints", "weights/last.safetensors", ""] {
            assert_eq!(go_on(part).unwrap().components().as_path(), run.path(), "{part}");
        }
    }

    #[test]
    fn what_is_as_it_was_may_be_said_again() {
        let run = run("lr0: 1.0\nclose_mosaic: 3\nworkers: 8\noptimizer: SGD\n");
        let on = go_on(run.path(), Some("lr0: 1\nworkers: 4\n"), json!({ "close-mosaic": 3, "workers": 8, "optimizer": "auto" })).unwrap();
        let begun = json!({ "lr0": 1.0, "close_mosaic": 3, "workers": 8, "optimizer": "SGD" });
        assert_eq!(values(&on), [begun.clone(), json!({ "workers": 4 }), json!({ "workers": 8 })], "the flag still wins over the file");
        let on = go_on(run.path(), Some("close_mosaic: 10\n"), json!({ "close-mosaic": 3 })).unwrap();
        assert_eq!(values(&on), [begun, json!({}), json!({})], "what a flag says the file need not");
    }

    #[test]
    fn a_run_goes_on_without_its_supervisor_and_what_that_does() {
        let run = run("supervise: true\nfallback: cpu\nelastic: true\n");
        let without = json!({ "supervise": false });
        assert_eq!(values(&go_on(run.path(), None, without.clone()).unwrap()), [json!({ "supervise": true }), without.clone()]);
        let of_file = go_on(run.path(), Some("supervise: false"), json!({})).unwrap();
        assert_eq!(values(&of_file), [json!({ "supervise": true }), without.clone(), json!({})]);
        let with = go_on(run.path(), Some("supervise: false"), json!({ "supervise": true })).unwrap();
        assert_eq!(values(&with)[0], json!({ "supervise": true, "fallback": "cpu", "elastic": true }));
    }

    #[test]
    fn a_file_that_is_no_yaml_is_named_with_its_line_once() {
        let told = yaml_text("a.yaml", "epochs: 1\nepochs: 2\n").unwrap_err().to_string();
        assert!(told.starts_with("a.yaml:2: duplicate") && !told.contains(" line ") && !told.contains('\n'), "{told}");
        let told = yaml_text("a.yaml", "\n- epochs\n").unwrap_err().to_string();
        assert_eq!(told, "a.yaml:2: it must be keys with values");
    }
}
