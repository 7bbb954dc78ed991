//! What a run leaves on disk while it trains, in one hand: its logs, its checkpoints, the files made of it, and what becomes of each when the
//! disk fails.
//!
//! The order of a save is its promise: the logs are flushed, the checkpoint is committed, then files are written and old checkpoints removed.
//! Only the commit can fail a save; whatever else cannot be written is a warning, waits, and is tried again at the next occasion, so nothing
//! after the commit can lose the run. `results.csv` is a part of every checkpoint: what is missing from it on disk is mended when a run goes
//! on. Of `events.jsonl` a checkpoint knows the length; a shorter one is a warning. Weights are never newer than the newest checkpoint
//! (where no checkpoints are saved, they stand alone). All file operations go through [`Store`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::append_log::{ALL, AppendLog};
use crate::atomic::replace;
use crate::checkpoints::{Checkpoint, Checkpoints, Latest, SaveError};
use crate::manifest::Member;
use crate::rows::Rows;
use crate::run_dir::RunDir;
use crate::store::{DiskStore, Store, StoreError};
use crate::waiting::{File, Waiting};

/// The member that holds the rows of `results.csv`.
const ROWS: &str = "results.csv";
/// The length of `events.jsonl`, in a checkpoint's `info`.
const EVENTS: &str = "events";
/// The files that waited when a checkpoint was committed, in its `info`: their paths, and of weights of that step the step, of others the member that
/// holds them.
const UNWRITTEN: &str = "unwritten";
/// Before the numbers of the members that hold them.
const KEPT: &str = "unwritten-";
/// Most bytes of a header of `results.csv`.
const LONGEST_HEADER: usize = 1 << 16;
/// How the line of a step begins in `events.jsonl`.
pub const STEP: &[u8] = b"{\"event\":\"step\",";
/// Among how many bytes of it the first one is.
const FIRST_EVENTS: usize = 1 << 20;

/// The logs, checkpoints and files of one run. Needs the run lock.
pub struct Journal {
    store: Rc<dyn Store>,
    dir: RunDir,
    checkpoints: Checkpoints<Rc<dyn Store>>,
    events: AppendLog,
    rows: Rows,
    scalars: Option<AppendLog>,
    waiting: Waiting,
    /// What will not be written by this process: weights by their paths, whether they can be made again, and why they are not there.
    lost: BTreeMap<String, (Again, String)>,
    warnings: Vec<String>,
    /// What each file has failed with since it was written last: told once, however many rows it concerns.
    told: BTreeSet<(PathBuf, String)>,
}

/// Training is saved, but not all that was made of it could be written.
#[derive(Debug, thiserror::Error)]
#[error("training is saved, but {}", reasons.join("; "))]
pub struct Unwritten {
    /// What each write said.
    pub reasons: Vec<String>,
}

/// Whether weights that this process gives up can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// What they are of is gone.
    Never,
    /// If the checkpoint of this step is still there.
    Perhaps(u64),
    /// The checkpoint of this step, which could not be read now, stays until it can be.
    Later(u64),
}

impl Again {
    /// The step of the checkpoint they are made of.
    fn step(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Perhaps(step) | Self::Later(step) => Some(step),
        }
    }
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
        Ok(Self {
            checkpoints: Checkpoints::open_with(Rc::clone(&store), dir.checkpoints())?,
            events: AppendLog::new(Rc::clone(&store), dir.events()),
            rows: Rows::new(Rc::clone(&store), dir.results()),
            scalars: None,
            waiting: Waiting::default(),
            lost: BTreeMap::new(),
            warnings: Vec::new(),
            told: BTreeSet::new(),
            store,
            dir,
        })
    }

    /// The run directory.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The checkpoints, to read.
    pub fn checkpoints(&self) -> &Checkpoints<Rc<dyn Store>> {
        &self.checkpoints
    }

    /// Whether something was trained here: `results.csv` has a row, or `events.jsonl` a step, of which there is none before the first checkpoint.
    ///
    /// # Errors
    /// A file that is there and cannot be read.
    pub fn has_trained(&self) -> Result<bool, StoreError> {
        let is_end = |&byte: &u8| byte == b'\n';
        if self.begin_of(&self.dir.results(), LONGEST_HEADER)?.split(is_end).skip(1).any(|row| !row.is_empty()) {
            return Ok(true);
        }
        Ok(self.begin_of(&self.dir.events(), FIRST_EVENTS)?.split(is_end).any(|line| line.starts_with(STEP)))
    }

    /// The first bytes of a file, none if it is not there.
    fn begin_of(&self, path: &Path, len: usize) -> Result<Vec<u8>, StoreError> {
        match self.store.read_part(path, 0, len) {
            Err(e) if e.is_not_found() => Ok(Vec::new()),
            read => read,
        }
    }

    /// The weights that may not have been written when this checkpoint's process ended, by the step that they are of.
    pub fn unwritten(checkpoint: &Checkpoint) -> BTreeMap<u64, Vec<String>> {
        let mut by_step: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (path, place) in recorded_files(checkpoint) {
            if let Some(step) = place.as_u64() {
                by_step.entry(step).or_default().push(path.clone());
            }
        }
        by_step
    }

    /// The files that may not have been written where an older program made this checkpoint, which recorded no steps, or nothing at all.
    pub fn unwritten_without_steps(checkpoint: &Checkpoint) -> Option<Vec<String>> {
        match checkpoint.info.get(UNWRITTEN) {
            Some(Value::Object(_)) => None,
            recorded => {
                let paths = recorded.and_then(Value::as_array).into_iter().flatten();
                Some(paths.filter_map(Value::as_str).map(str::to_owned).collect())
            }
        }
    }

    /// The first file that this checkpoint wants written and that is none of its run's: an absolute path, one that leads up and out, or further down than
    /// into one of its folders. None of our programs makes such a checkpoint, and nobody goes on from one; such a file is not written in any case.
    pub fn foreign_file(checkpoint: &Checkpoint) -> Option<&str> {
        waited(checkpoint).map(|(path, _)| path.as_str()).find(|path| !is_of_run(path))
    }

    /// Begins the logs, empty but for `header`, the first line of `results.csv`; checkpoints of an earlier run in this directory are set aside.
    ///
    /// # Errors
    /// When those cannot be set aside.
    pub fn begin(&mut self, header: &str) -> Result<(), StoreError> {
        self.checkpoints.abandon_after(None)?;
        let returned = self.events.return_to(0).map(drop);
        self.tell(self.dir.events(), returned);
        let returned = self.rows.return_to(format!("{header}\n").into_bytes()).map(drop);
        self.tell(self.dir.results(), returned);
        Ok(())
    }

    /// Brings the logs back to where they were at a checkpoint, and writes what had waited then. What is missing from the logs is a warning.
    pub fn go_on(&mut self, checkpoint: &Checkpoint) {
        let recorded = checkpoint.info.get(EVENTS).and_then(Value::as_u64).or_else(|| recorded_in_state(checkpoint, "events_len"));
        self.go_on_from(checkpoint, recorded.unwrap_or(ALL));
    }

    /// The same of a run that is over: what has happened since its last checkpoint stays in the log of events.
    pub fn reopen(&mut self, checkpoint: &Checkpoint) {
        self.go_on_from(checkpoint, ALL);
    }

    fn go_on_from(&mut self, checkpoint: &Checkpoint, events: u64) {
        let returned = self.events.return_to(events);
        self.tell_return(self.dir.events(), returned);
        self.take_back(checkpoint);
        for (path, place) in recorded_files(checkpoint) {
            if let Some(bytes) = place.as_str().and_then(|member| checkpoint.members.get(member)) {
                self.write(path, bytes.clone());
            }
        }
    }

    /// Brings `results.csv` alone back to where it was at a checkpoint, and forgets weights that wait for a later one.
    pub fn take_back(&mut self, checkpoint: &Checkpoint) {
        self.waiting.forget_held();
        let returned = match checkpoint.members.get(ROWS) {
            Some(text) => self.rows.return_to(text.clone()),
            None => self.rows.adopt(recorded_in_state(checkpoint, "results_len").unwrap_or(ALL)),
        };
        self.tell_return(self.dir.results(), returned);
    }

    /// Appends a line to `events.jsonl`.
    pub fn event(&mut self, line: &str) {
        let appended = self.events.append(format!("{line}\n").as_bytes());
        self.tell(self.dir.events(), appended);
    }

    /// Appends a row to `results.csv`.
    pub fn row(&mut self, row: &str) {
        let appended = self.rows.push(row);
        self.tell(self.dir.results(), appended);
    }

    /// All of `results.csv` so far; `None` where only the file has its first rows, and could not be read yet.
    pub fn rows(&self) -> Option<&[u8]> {
        self.rows.text()
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
        if let Some(log) = &mut self.scalars {
            let (path, appended) = (log.path().to_owned(), log.append(record));
            self.tell(path, appended);
        }
    }

    /// A file of the run, `path` within it, replaced atomically now (pictures). Where it cannot be written, checkpoints hold it until it is.
    pub fn write(&mut self, path: &str, bytes: Vec<u8>) {
        self.write_now(File { path: path.into(), bytes: bytes.into(), step: None });
    }

    /// The same for weights, which can be made again of the checkpoint of their `step` if there is one.
    pub fn write_weights(&mut self, path: &str, step: u64, bytes: &Rc<[u8]>) {
        self.write_now(File { path: path.into(), bytes: Rc::clone(bytes), step: Some(step) });
    }

    fn write_now(&mut self, file: File) {
        let path = file.path.clone();
        self.waiting.add(file);
        self.write_those(|waiting| waiting == path);
    }

    /// The same once the next checkpoint is committed: they are never newer than the state that a run would go on from.
    pub fn write_weights_after_save(&mut self, path: &str, step: u64, bytes: &Rc<[u8]>) {
        self.waiting.hold(File { path: path.into(), bytes: Rc::clone(bytes), step: Some(step) });
    }

    /// Whether so many files wait that those which are not needed had better be given up.
    pub fn is_full(&self) -> bool {
        self.waiting.are_many()
    }

    /// Weights that are not there and cannot be written by this process. [`finish`](Self::finish) tells, of what is there too: it may be older than
    /// what the run says of it. The next process tries those that can be made again.
    pub fn give_up(&mut self, path: &str, again: Again, why: &dyn Display) {
        let there = self.store.len(&self.dir.path().join(path)).is_ok();
        let what = if there { "may be older than it should be" } else { "cannot be written any more" };
        let told = format!("{path} {what}: {why}");
        self.warnings.push(told.clone());
        self.lost.insert(path.into(), (again, told));
    }

    fn write_those(&mut self, chosen: impl Fn(&str) -> bool) {
        for (path, written) in self.try_files(chosen) {
            self.tell(path, written);
        }
    }

    /// Commits a checkpoint, then writes what waits for it and removes the checkpoints that `keep` does not name.
    ///
    /// # Errors
    /// When the checkpoint is not committed: everything is as it was, and the next save tries again.
    pub fn save(&mut self, step: u64, members: &[Member<'_>], mut info: Map<String, Value>, keep: &Retention) -> Result<(), SaveError> {
        self.flush_logs();
        info.insert(EVENTS.into(), self.events.len().into());
        let rows = self.rows.text().map(|bytes| Member { name: ROWS, bytes });
        let members: Vec<Member<'_>> = members.iter().copied().chain(rows).collect();
        self.commit(step, &members, info, self.waiting.after_commit())?;
        self.waiting.commit();
        self.write_those(|_| true);
        let later = self.lost.values().filter(|(again, _)| matches!(again, Again::Later(_))).filter_map(|(again, _)| again.step());
        let steps: Vec<u64> = keep.steps.iter().copied().chain(later).collect();
        let pruned = self.checkpoints.prune(keep.newest, &steps).map(drop);
        self.tell(self.dir.checkpoints(), pruned);
        Ok(())
    }

    /// Commits a checkpoint that was read, with members changed by the caller: its rows stay, and so do all events until now. It knows what waits now.
    ///
    /// # Errors
    /// As [`Journal::save`].
    pub fn save_again(&mut self, mut checkpoint: Checkpoint) -> Result<(), SaveError> {
        self.flush_logs();
        checkpoint.info.insert(EVENTS.into(), self.events.len().into());
        checkpoint.members.retain(|name, _| !name.starts_with(KEPT));
        let members: Vec<Member<'_>> = checkpoint.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
        self.commit(checkpoint.step, &members, checkpoint.info, self.waiting.ready())
    }

    /// Notes in the last checkpoint of a run that is over that all it knew to be missing is there: nobody has to write it again.
    ///
    /// # Errors
    /// As [`Journal::save`]; then it is written again, to the same.
    pub fn settle(&mut self) -> Result<(), SaveError> {
        let Ok(Latest { checkpoint: Some(last), .. }) = self.checkpoints.latest() else { return Ok(()) };
        if self.is_behind() || recorded_files(&last).next().is_none() {
            return Ok(());
        }
        self.save_again(last)
    }

    /// Commits a checkpoint that knows of `waiting` files: of weights of this very step it has their step, for they can be made again of it; of others
    /// their bytes. Where those have no room, it does without: the state comes first.
    fn commit<'a>(
        &self,
        step: u64,
        members: &[Member<'_>],
        mut info: Map<String, Value>,
        waiting: impl Iterator<Item = &'a File>,
    ) -> Result<(), SaveError> {
        let (mut unwritten, mut kept) = (Map::new(), Vec::new());
        // Whoever goes on from this would not believe it of others.
        for file in waiting.filter(|file| is_of_run(&file.path)) {
            let name = format!("{KEPT}{}", kept.len());
            let of_this = file.step.filter(|&of| of == step);
            unwritten.insert(file.path.clone(), of_this.map_or_else(|| name.clone().into(), Value::from));
            if of_this.is_none() {
                kept.push((name, Rc::clone(&file.bytes), file));
            }
        }
        for (path, (again, _)) in &self.lost {
            if let Some(step) = again.step() {
                unwritten.entry(path.clone()).or_insert_with(|| step.into());
            }
        }
        info.insert(UNWRITTEN.into(), unwritten.clone().into());
        let with = kept.iter().map(|(name, bytes, _)| Member { name, bytes });
        let all: Vec<Member<'_>> = members.iter().copied().chain(with).collect();
        match self.checkpoints.save(step, &all, &info) {
            Err(error) if error.is_no_space() && !kept.is_empty() => {
                for (_, _, file) in &kept {
                    match file.step {
                        Some(step) => unwritten.insert(file.path.clone(), step.into()),
                        None => unwritten.remove(&file.path),
                    };
                }
                info.insert(UNWRITTEN.into(), unwritten.into());
                self.checkpoints.save(step, members, &info).map(drop)
            }
            saved => saved.map(drop),
        }
    }

    /// Tries once more to write everything that may be written, and makes it durable.
    ///
    /// # Errors
    /// What is still not written; the checkpoints are not touched by that.
    pub fn finish(&mut self) -> Result<(), Unwritten> {
        let synced = [self.events.sync(), self.rows.sync(), self.scalars.as_mut().map_or(Ok(()), AppendLog::sync)];
        let written = self.try_files(|_| true).into_iter().map(|(_, written)| written);
        let failed = synced.into_iter().chain(written).filter_map(Result::err).map(|error| error.to_string());
        let logs = self.scalars.iter().chain([&self.events]).filter_map(AppendLog::loss);
        let reasons: Vec<String> = failed.chain(logs).chain(self.lost.values().map(|(_, told)| told.clone())).collect();
        if reasons.is_empty() { Ok(()) } else { Err(Unwritten { reasons }) }
    }

    /// Whether something is not there that could be written now or by the next process.
    fn is_behind(&self) -> bool {
        let logs = self.scalars.iter().chain([&self.events]).any(AppendLog::is_behind);
        logs || self.rows.is_behind() || self.waiting.is_behind() || self.lost.values().any(|(again, _)| again.step().is_some())
    }

    /// Whether something that belongs to the run is not there.
    pub fn lacks_a_file(&self) -> bool {
        self.is_behind() || !self.lost.is_empty()
    }

    /// What could not be written since this was last asked, a sentence each.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Logs that a checkpoint counts on are on disk before it is.
    fn flush_logs(&mut self) {
        let synced = self.events.sync();
        self.tell(self.dir.events(), synced);
        let synced = self.rows.sync();
        self.tell(self.dir.results(), synced);
        if let Some(log) = &mut self.scalars {
            let (path, synced) = (log.path().to_owned(), log.sync());
            self.tell(path, synced);
        }
    }

    /// Writes those of the files that may be written now; the others, and those that cannot be written, go on waiting.
    fn try_files(&mut self, chosen: impl Fn(&str) -> bool) -> Vec<(PathBuf, Result<(), StoreError>)> {
        let mut tried = Vec::new();
        for file in self.waiting.take(chosen) {
            let path = self.dir.path().join(&file.path);
            let written = replace(&*self.store, &path, &file.bytes);
            match written {
                Ok(()) => drop(self.lost.remove(&file.path)),
                Err(_) => self.waiting.add(file),
            }
            tried.push((path, written));
        }
        tried
    }

    /// Warns of what has become of a file, unless that was said already.
    fn tell(&mut self, of: PathBuf, result: Result<(), StoreError>) {
        match result {
            Ok(()) => self.told.retain(|(path, _)| *path != of),
            Err(error) => {
                let text = error.to_string();
                if self.told.insert((of, text.clone())) {
                    self.warnings.push(format!("{text}; it is tried again"));
                }
            }
        }
    }

    fn tell_return(&mut self, of: PathBuf, returned: Result<Option<String>, StoreError>) {
        let returned = returned.map(|told| self.warnings.extend(told));
        self.tell(of, returned);
    }
}

/// The files that waited when a checkpoint was committed, and lie in its run.
fn recorded_files(checkpoint: &Checkpoint) -> impl Iterator<Item = (&String, &Value)> {
    waited(checkpoint).filter(|(path, _)| is_of_run(path))
}

/// All that it says that there were.
fn waited(checkpoint: &Checkpoint) -> impl Iterator<Item = (&String, &Value)> {
    checkpoint.info.get(UNWRITTEN).and_then(Value::as_object).into_iter().flatten()
}

/// Whether a path within a run is that of a file in it or in one of its folders, none of which is a link while it is locked.
fn is_of_run(path: &str) -> bool {
    let parts = Path::new(path).components();
    parts.clone().all(|part| matches!(part, Component::Normal(_))) && (1..=2).contains(&parts.count())
}

/// Where format 1 kept the lengths of the logs: in the Learner's counters.
fn recorded_in_state(checkpoint: &Checkpoint, key: &str) -> Option<u64> {
    let state: Value = serde_json::from_slice(checkpoint.members.get("state.json")?).ok()?;
    state.get(key)?.as_u64()
}
