//! What a run leaves on disk while it trains, in one hand: its logs, its checkpoints, the files made of it, and what becomes of each when the
//! disk fails.
//!
//! The order of a save is its promise: the logs are flushed, the checkpoint is committed, then files are written and old checkpoints removed.
//! Only the commit can fail a save; whatever else cannot be written is a warning, waits, and is tried again at the next occasion, so nothing
//! after the commit can lose the run. `results.csv` is a part of every checkpoint: what is missing from it on disk is mended when a run goes
//! on. Of `events.jsonl` a checkpoint knows the length; a shorter one is a warning. All file operations go through [`Store`].

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::append_log::AppendLog;
use crate::atomic::replace;
use crate::checkpoints::{Checkpoint, Checkpoints, SaveError};
use crate::manifest::Member;
use crate::run_dir::RunDir;
use crate::store::{DiskStore, Store, StoreError};

/// The member that holds the rows of `results.csv`.
const ROWS: &str = "results.csv";
/// The length of `events.jsonl`, in a checkpoint's `info`.
const EVENTS: &str = "events";
/// The files that waited when a checkpoint was committed, in its `info`.
const UNWRITTEN: &str = "unwritten";
/// Most bytes of a header of `results.csv`.
const LONGEST_HEADER: usize = 1 << 16;
/// Most bytes of an older run's `results.csv`.
const LONGEST_ROWS: u64 = 64 << 20;

/// The logs, checkpoints and files of one run. Needs the run lock.
pub struct Journal {
    store: Rc<dyn Store>,
    dir: RunDir,
    checkpoints: Checkpoints<Rc<dyn Store>>,
    events: AppendLog,
    rows: Rows,
    scalars: Option<AppendLog>,
    /// Not written yet: path within the run, contents.
    files: Vec<(PathBuf, Rc<[u8]>)>,
    warnings: Vec<String>,
}

/// Training is saved, but not all that was made of it could be written.
#[derive(Debug, thiserror::Error)]
#[error("training is saved, but {}", reasons.join("; "))]
pub struct Unwritten {
    /// What each write said.
    pub reasons: Vec<String>,
}

/// Which checkpoints stay when a new one was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// So many of the newest, at least two.
    pub newest: usize,
    /// And those of these steps.
    pub steps: Vec<u64>,
}

impl Journal {
    /// The journal of a run on disk; nothing is changed but what dead processes left half-written.
    ///
    /// # Errors
    /// When `checkpoints/` cannot be opened.
    pub fn open(dir: RunDir) -> Result<Self, StoreError> {
        Self::open_with(Rc::new(DiskStore), dir)
    }

    /// The same on any store.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_with(store: Rc<dyn Store>, dir: RunDir) -> Result<Self, StoreError> {
        let checkpoints = Checkpoints::open_with(Rc::clone(&store), dir.checkpoints())?;
        let events = AppendLog::new(Rc::clone(&store), dir.events());
        let rows =
            Rows { log: AppendLog::new(Rc::clone(&store), dir.results()), store: Rc::clone(&store), text: String::new(), whole: true };
        Ok(Self { store, dir, checkpoints, events, rows, scalars: None, files: Vec::new(), warnings: Vec::new() })
    }

    /// The run directory.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The checkpoints, to read.
    pub fn checkpoints(&self) -> &Checkpoints<Rc<dyn Store>> {
        &self.checkpoints
    }

    /// Whether `results.csv` has a row: something was trained here.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn has_rows(&self) -> Result<bool, StoreError> {
        let begin = match self.store.read_part(&self.dir.results(), 0, LONGEST_HEADER) {
            Err(e) if e.is_not_found() => Vec::new(),
            read => read?,
        };
        Ok(begin.split(|&byte| byte == b'\n').skip(1).any(|row| !row.is_empty()))
    }

    /// Whether the file `path` of the run may not have been written when this checkpoint's process ended.
    pub fn may_lack(checkpoint: &Checkpoint, path: &str) -> bool {
        let names = checkpoint.info.get(UNWRITTEN).and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|name| name == path))
    }

    /// Begins the logs, empty but for `header`, the first line of `results.csv`; checkpoints of an earlier run in this directory are set aside.
    ///
    /// # Errors
    /// When those cannot be set aside.
    pub fn begin(&mut self, header: &str) -> Result<(), StoreError> {
        self.checkpoints.abandon_after(None)?;
        let returned = self.events.return_to(0).map(drop);
        self.warn(returned);
        let returned = self.rows.return_to(format!("{header}\n")).map(drop);
        self.warn(returned);
        Ok(())
    }

    /// Brings the logs back to where they were at a checkpoint. What is missing from them is a warning.
    pub fn go_on(&mut self, checkpoint: &Checkpoint) {
        let recorded = checkpoint.info.get(EVENTS).and_then(Value::as_u64).or_else(|| recorded_in_state(checkpoint, "events_len"));
        let returned = self.events.return_to(recorded.unwrap_or(0));
        self.told(returned);
        self.take_back_rows(checkpoint);
    }

    /// Brings `results.csv` alone back to where it was at a checkpoint.
    pub fn take_back_rows(&mut self, checkpoint: &Checkpoint) {
        let text = checkpoint.members.get(ROWS).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let returned = match text {
            Some(text) => self.rows.return_to(text),
            None => self.rows.adopt(recorded_in_state(checkpoint, "results_len").unwrap_or(0)),
        };
        self.told(returned);
    }

    /// Appends a line to `events.jsonl`.
    pub fn event(&mut self, line: &str) {
        let appended = self.events.append(format!("{line}\n").as_bytes());
        self.warn(appended);
    }

    /// Appends a row to `results.csv`.
    pub fn row(&mut self, row: &str) {
        let appended = self.rows.push(row);
        self.warn(appended);
    }

    /// Opens a log of scalars at `path` within the run, for [`Journal::scalars`]: TensorBoard's, a new one each session.
    pub fn open_scalars(&mut self, path: &str) {
        let path = self.dir.path().join(path);
        if let Some(parent) = path.parent()
            && let Err(e) = self.store.create_dir(parent)
            && e.error.kind() != std::io::ErrorKind::AlreadyExists
        {
            self.warnings.push(e.to_string());
        }
        self.scalars = Some(AppendLog::new(Rc::clone(&self.store), path));
    }

    /// Appends a record to the log of scalars, if there is one.
    pub fn scalars(&mut self, record: &[u8]) {
        let appended = self.scalars.as_mut().map_or(Ok(()), |log| log.append(record));
        self.warn(appended);
    }

    /// A file of the run, `path` within it, replaced atomically now (pictures). What waits for a checkpoint goes on waiting.
    pub fn write(&mut self, path: &str, bytes: Vec<u8>) {
        self.write_after_save(path, &bytes.into());
        self.write_those(|waiting| waiting.as_os_str() == path);
    }

    /// The same once the next checkpoint is committed (weights, which must not be newer than the run's state).
    pub fn write_after_save(&mut self, path: &str, bytes: &Rc<[u8]>) {
        self.files.retain(|(waiting, _)| waiting.as_os_str() != path);
        self.files.push((path.into(), Rc::clone(bytes)));
    }

    /// Writes the files that wait, checkpoint or not.
    pub fn write_waiting(&mut self) {
        self.write_those(|_| true);
    }

    fn write_those(&mut self, chosen: impl Fn(&Path) -> bool) {
        let failed = self.try_files(chosen);
        failed.into_iter().for_each(|error| self.warn(Err(error)));
    }

    /// Commits a checkpoint, then writes what waits for it and removes the checkpoints that `keep` does not name.
    ///
    /// # Errors
    /// When the checkpoint is not committed: everything is as it was, and the next save tries again.
    pub fn save(&mut self, step: u64, members: &[Member<'_>], mut info: Map<String, Value>, keep: &Retention) -> Result<(), SaveError> {
        self.flush_logs();
        info.insert(EVENTS.into(), self.events.len().into());
        info.insert(UNWRITTEN.into(), self.files.iter().map(|(path, _)| Value::from(path.to_string_lossy())).collect());
        let rows = Member { name: ROWS, bytes: self.rows.text.as_bytes() };
        let members: Vec<Member<'_>> = members.iter().copied().chain([rows]).collect();
        self.checkpoints.save(step, &members, &info)?;
        self.write_waiting();
        let pruned = self.checkpoints.prune(keep.newest, &keep.steps).map(drop);
        self.warn(pruned);
        Ok(())
    }

    /// Commits a checkpoint that was read, with members changed by the caller: its rows stay, and so do all events until now.
    ///
    /// # Errors
    /// As [`Journal::save`].
    pub fn save_again(&mut self, mut checkpoint: Checkpoint) -> Result<(), SaveError> {
        self.flush_logs();
        checkpoint.info.insert(EVENTS.into(), self.events.len().into());
        let members: Vec<Member<'_>> = checkpoint.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
        self.checkpoints.save(checkpoint.step, &members, &checkpoint.info).map(drop)
    }

    /// Tries once more to write everything that waits, and makes it durable.
    ///
    /// # Errors
    /// What is still not written; the checkpoints are not touched by that.
    pub fn finish(&mut self) -> Result<(), Unwritten> {
        let mut failed: Vec<StoreError> = [self.events.sync(), self.rows.sync()].into_iter().filter_map(Result::err).collect();
        failed.extend(self.scalars.as_mut().and_then(|log| log.sync().err()));
        failed.extend(self.try_files(|_| true));
        if failed.is_empty() { Ok(()) } else { Err(Unwritten { reasons: failed.iter().map(ToString::to_string).collect() }) }
    }

    /// What could not be written since this was last asked, a sentence each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Logs that a checkpoint counts on are on disk before it is.
    fn flush_logs(&mut self) {
        let synced = [self.events.sync(), self.rows.sync(), self.scalars.as_mut().map_or(Ok(()), AppendLog::sync)];
        synced.into_iter().for_each(|synced| self.warn(synced));
    }

    /// Writes those of the files that wait; the others, and those that cannot be written, go on waiting.
    fn try_files(&mut self, chosen: impl Fn(&Path) -> bool) -> Vec<StoreError> {
        let (mut waiting, mut failed) = (Vec::new(), Vec::new());
        for (path, bytes) in std::mem::take(&mut self.files) {
            if !chosen(&path) {
                waiting.push((path, bytes));
            } else if let Err(error) = replace(&*self.store, &self.dir.path().join(&path), &bytes) {
                waiting.push((path, bytes));
                failed.push(error);
            }
        }
        self.files = waiting;
        failed
    }

    fn warn(&mut self, result: Result<(), StoreError>) {
        if let Err(error) = result {
            self.warnings.push(format!("{error}; it is tried again"));
        }
    }

    fn told(&mut self, returned: Result<Option<String>, StoreError>) {
        match returned {
            Ok(told) => self.warnings.extend(told),
            Err(error) => self.warn(Err(error)),
        }
    }
}

/// Where format 1 kept the lengths of the logs: in the Learner's counters.
fn recorded_in_state(checkpoint: &Checkpoint, key: &str) -> Option<u64> {
    let state: Value = serde_json::from_slice(checkpoint.members.get("state.json")?).ok()?;
    state.get(key)?.as_u64()
}

/// `results.csv`: all of it in memory, and the file, which may lag behind.
struct Rows {
    log: AppendLog,
    store: Rc<dyn Store>,
    text: String,
    /// The file begins as the text does.
    whole: bool,
}

impl Rows {
    /// Makes the file hold `text`. A sentence tells of rows that were not there.
    fn return_to(&mut self, text: String) -> Result<Option<String>, StoreError> {
        (self.text, self.whole) = (text, false);
        let path = self.log.path();
        let found = match self.store.read_part(path, 0, self.text.len()) {
            Err(e) if e.is_not_found() => Vec::new(),
            found => found?,
        };
        let as_recorded = found == self.text.as_bytes();
        let told = format!("{} was not as recorded: its rows are written anew", path.display());
        if !as_recorded {
            replace(&*self.store, path, self.text.as_bytes())?;
        }
        self.log.return_to(self.text.len() as u64)?;
        self.whole = true;
        Ok((!as_recorded).then_some(told))
    }

    /// Takes the first `len` bytes of the file for the text: a checkpoint of format 1 holds no rows.
    fn adopt(&mut self, len: u64) -> Result<Option<String>, StoreError> {
        let told = self.log.return_to(len)?;
        let bytes = if self.log.len() == 0 { Vec::new() } else { self.store.read(self.log.path(), LONGEST_ROWS)? };
        (self.text, self.whole) = (String::from_utf8_lossy(&bytes).into_owned(), true);
        Ok(told)
    }

    fn push(&mut self, row: &str) -> Result<(), StoreError> {
        let line = format!("{row}\n");
        self.text.push_str(&line);
        if self.whole { self.log.append(line.as_bytes()) } else { self.return_to(self.text.clone()).map(drop) }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if !self.whole {
            self.return_to(self.text.clone())?;
        }
        self.log.sync()
    }
}
