//! What a supervisor tells the process that it starts, and where that answers: two files in a folder whose name is the command line's last word.
//!
//! The command line itself stays as it was typed. What differs from start to start (the run to go on with, the processor in place of a
//! device that was lost) is in the orders, and put into the arguments once they have been read.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bellows_exit::Exit;
use bellows_runs::{RunDir, began, read_beat, read_bounded, write_atomic};
use bellows_settings::Layer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::words::{BACKGROUND, RANK, SUPERVISED, last_words};
use crate::{Context, Failure};

/// Most bytes of them.
const LONGEST: u64 = 1 << 16;

/// The orders of one start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// The folder.
    pub(crate) folder: PathBuf,
    /// The supervisor's process.
    pub(crate) supervisor: u32,
    /// Starts before this one.
    pub(crate) restarts: u32,
    /// Why the last of them ended.
    pub(crate) reason: Option<String>,
    /// The run that it left.
    pub(crate) run: Option<PathBuf>,
    /// Whether that has a checkpoint to go on from.
    pub(crate) resume: bool,
    /// How often batches are to be cut in two, besides what the checkpoint says.
    pub(crate) cuts: u32,
    /// Why the processor is to be used.
    pub(crate) processor: Option<String>,
    /// Ranks that were lost and are left out, by their numbers at the first start.
    pub(crate) without: Vec<usize>,
}

impl Orders {
    /// Where the answer comes.
    pub(crate) fn heartbeat(&self) -> PathBuf {
        self.folder.join("heartbeat.json")
    }

    fn file(folder: &Path) -> PathBuf {
        folder.join("orders.json")
    }

    /// Leaves them for the process that is started next, without an answer of the last one.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        std::fs::remove_file(self.heartbeat()).ok();
        let text = serde_json::to_vec(self).context(Exit::Failed, "orders")?;
        Ok(write_atomic(&Self::file(&self.folder), &text)?)
    }

    /// Whether the directory is still that of this supervisor's run: one in which nothing was yet is given back, and another run may have its name since.
    fn has(&self, run: &Path) -> bool {
        let beat = read_beat(&RunDir::at(run).heartbeat());
        beat.is_some_and(|beat| beat.supervisor == Some(self.supervisor) && beat.supervisor_began == began(self.supervisor))
    }

    /// Puts them into what was typed: `resume`, the file or preset of settings, and the flags.
    fn put_into<C>(&self, resume: &mut Option<Option<PathBuf>>, config: &mut Option<C>, flags: &mut Layer) {
        let was_resumed = resume.is_some();
        let mut set = |key: &str, value: Value| drop(flags.values.insert(key.into(), value));
        match &self.run {
            Some(run) if self.resume || was_resumed => {
                *resume = Some(Some(run.clone()));
                // Those of a new run stand in its config.yaml.
                if !was_resumed {
                    flags.values.clear();
                    *config = None;
                }
            }
            // It died before its first checkpoint: its directory is used again.
            Some(run) if self.has(run) => {
                let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
                set("project", text(run.parent().map(Path::as_os_str)).into());
                set("name", text(run.file_name()).into());
                set("exist_ok", true.into());
            }
            // It has given its directory back, or never had one.
            _ => {}
        }
        if self.processor.is_some() {
            flags.values.insert("device".into(), "cpu".into());
        }
    }
}

/// The last words of a process that is supervised.
pub(crate) fn supervised(folder: &Path) -> [std::ffi::OsString; 2] {
    [SUPERVISED.into(), folder.into()]
}

/// The last words of a process in the background.
pub(crate) fn in_background(log: &Path) -> [std::ffi::OsString; 2] {
    [BACKGROUND.into(), log.into()]
}

/// The last words of a rank that another one starts.
pub(crate) fn rank_words(place: &str) -> [std::ffi::OsString; 2] {
    [RANK.into(), place.into()]
}

/// Where this process's words go, if it is one in the background.
pub(crate) fn background() -> Option<PathBuf> {
    last_words(BACKGROUND).map(PathBuf::from)
}

/// The orders of this process, if it is supervised.
pub(crate) fn orders() -> Option<&'static Orders> {
    static ORDERS: OnceLock<Option<Orders>> = OnceLock::new();
    let read = || serde_json::from_slice(&read_bounded(&Orders::file(Path::new(&last_words(SUPERVISED)?)), LONGEST).ok()?).ok();
    ORDERS.get_or_init(read).as_ref()
}

/// The ranks that this process is to do without, by their numbers at the first start.
pub(crate) fn left_out() -> &'static [usize] {
    orders().map_or(&[], |orders| orders.without.as_slice())
}

/// Of these ranks those that are left `without` others.
pub(crate) fn left(ranks: impl IntoIterator<Item = usize>, without: &[usize]) -> impl Iterator<Item = usize> {
    ranks.into_iter().filter(|rank| !without.contains(rank))
}

/// Puts a supervisor's orders into what was typed, if this process is supervised.
pub fn obey<C>(resume: &mut Option<Option<PathBuf>>, config: &mut Option<C>, flags: &mut Layer) {
    if let Some(orders) = orders() {
        orders.put_into(resume, config, flags);
    }
}

#[cfg(test)]
mod tests {
    use bellows_runs::{Beat, Heartbeat};
    use serde_json::json;

    use super::*;

    fn typed(orders: &Orders, resume: Option<Option<PathBuf>>) -> (Option<Option<PathBuf>>, Value) {
        let values = json!({ "epochs": 3, "name": "a" }).as_object().unwrap().clone();
        let (mut resume, mut config, mut flags) = (resume, Some("a.yaml"), Layer { origin: "command line".into(), values });
        orders.put_into(&mut resume, &mut config, &mut flags);
        assert_eq!(config.is_some(), flags.values.contains_key("epochs"), "a file is as the flags are");
        (resume, flags.values.into())
    }

    #[test]
    fn orders_name_the_run_and_leave_the_rest_as_it_was_typed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a3");
        std::fs::create_dir(&path).unwrap();
        let run = Orders { run: Some(path.clone()), supervisor: std::process::id(), ..Orders::default() };
        let saved = Orders { resume: true, ..run.clone() };
        let here: Option<Option<PathBuf>> = Some(Some(path.clone()));
        // Whose name has another run, of nobody or of another supervisor, is not taken from it.
        let mut heartbeat = Heartbeat::create(RunDir::at(&path).heartbeat()).unwrap();
        let own = Beat { supervisor: Some(run.supervisor), supervisor_began: began(run.supervisor), ..Beat::default() };
        let others = [None, Some(run.supervisor + 1)].map(|supervisor| Beat { supervisor, ..own.clone() });
        for beat in others.into_iter().chain([Beat { supervisor_began: Some("elsewhere".into()), ..own.clone() }]) {
            heartbeat.write(&beat).unwrap();
            assert_eq!(typed(&run, None), (None, json!({ "epochs": 3, "name": "a" })), "{beat:?}");
        }
        heartbeat.write(&own).unwrap();
        assert_eq!(typed(&Orders::default(), None), (None, json!({ "epochs": 3, "name": "a" })));
        assert_eq!(typed(&run, None), (None, json!({ "epochs": 3, "name": "a3", "project": dir.path(), "exist_ok": true })));
        assert_eq!(typed(&saved, None), (here.clone(), json!({})), "its settings are in the run");
        for orders in [&saved, &run] {
            assert_eq!(typed(orders, Some(None)), (here.clone(), json!({ "epochs": 3, "name": "a" })), "those of --resume are not");
        }
        let lost = Orders { processor: Some("the card is gone".into()), ..saved };
        assert_eq!(typed(&lost, None), (here, json!({ "device": "cpu" })));
    }
}
