//! Settings in files: YAML as a layer, `config.yaml` of a run, and what `--resume` makes of it.

use std::path::{Path, PathBuf};

use bellows_exit::Exit;
use bellows_runs::{find_latest_run, read_bounded, run_of, write_atomic};
use bellows_settings::{Layer, Setting, yaml_fault};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Context, Failure, Usage};

/// Most bytes of a file of settings.
const LONGEST: u64 = 1 << 20;
const CONFIG: &str = "config.yaml";

/// Settings from a YAML file.
///
/// # Errors
/// A file that cannot be read or is no YAML, as [`Usage`].
pub fn yaml_layer(path: &Path) -> Result<Layer, Failure> {
    let bytes = read_bounded(path, LONGEST).map_err(|e| Usage(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|e| Usage(format!("{}: {e}", path.display())))?;
    yaml_text(&path.display().to_string(), &text)
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
pub struct Resumed {
    /// Its directory.
    pub dir: PathBuf,
    /// The settings it was begun with, and the flags.
    pub layers: [Layer; 2],
    /// With how many ranks it goes on, where a flag says so.
    pub ranks: Option<usize>,
}

/// `--resume`: the run's directory (`which` or what it is a part of, or the newest under `--project`) with the settings it was begun with, below the flags.
///
/// # Errors
/// No run, no `config.yaml`, or a flag that is not one of `may_change`, as [`Usage`].
pub fn resumed(which: Option<&Path>, flags: &Layer, project: &str, may_change: &[&str]) -> Result<Resumed, Failure> {
    let mut flags = flags.clone();
    // The setting is what a batch is made of, which stays; how many processes make it may change.
    let ranks = flags.values.shift_remove("ranks");
    let ranks =
        ranks.map(|ranks| ranks.as_u64().filter(|&ranks| ranks > 0).ok_or_else(|| Usage(format!("ranks {ranks} is no number from 1 up"))));
    let ranks = ranks.transpose()?.and_then(|ranks| usize::try_from(ranks).ok());
    let typed = flags.values.shift_remove("project");
    let project = typed.as_ref().and_then(Value::as_str).unwrap_or(project);
    let latest = || find_latest_run(Path::new(project)).ok_or_else(|| Usage(format!("--resume: no run with checkpoints under {project}")));
    let dir = which.map_or_else(latest, |part| Ok(run_of(part).to_owned()))?;
    let file = dir.join(CONFIG);
    if let Some(key) = flags.values.keys().find(|key| !may_change.contains(&key.as_str())) {
        return Err(Usage(format!("--{key} cannot change when a run is resumed; it stands in {}", file.display())).into());
    }
    let mut begun = yaml_layer(&file)?;
    begun.values.remove("command");
    Ok(Resumed { dir, layers: [begun, flags], ranks })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_yaml_is_named_with_its_line_once() {
        let told = yaml_text("a.yaml", "epochs: 1\nepochs: 2\n").unwrap_err().to_string();
        assert!(told.starts_with("a.yaml:2: duplicate") && !told.contains(" line ") && !told.contains('\n'), "{told}");
        let told = yaml_text("a.yaml", "\n- epochs\n").unwrap_err().to_string();
        assert_eq!(told, "a.yaml:2: it must be keys with values");
    }
}
