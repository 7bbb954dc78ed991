//! The run directory: where it is, how it is named, which files are in it.
//!
//! `project/name`, or `name2`, `name3`, ... when that is taken; two processes starting at once get two directories, because
//! creating a directory is the test for its existence. Refused: names that are not one path component.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bellows_exit::{Coded, Exit};

use crate::atomic::sweep_siblings;
use crate::checkpoints::{Version, set_aside_for};
use crate::lock::{LOCK, LockError, RunLock, holder_of};
use crate::manifest::MANIFEST;
use crate::store::{DiskStore, Store, StoreError, create_dir_all_synced, parent_of};

const CHECKPOINTS: &str = "checkpoints";
const WEIGHTS: &str = "weights";
const HEARTBEAT: &str = "heartbeat.json";

/// A run directory that exists.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDir {
    path: PathBuf,
}

/// Why there is no run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The run's name is not one plain path component.
    #[error("run name {name:?} must be one directory name, without separators")]
    Name {
        /// The name in question.
        name: String,
    },
    /// Nothing there, or not a directory.
    #[error("{} is not a run directory", path.display())]
    NotARun {
        /// The path in question.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where a run lies is the user's to say, so also what the disk does not allow there is.
impl Coded for RunDirError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl RunDir {
    /// Creates `project/name` with its sub-directories; if it exists, `name2`, `name3`, ..., or with `exist_ok` uses it as it is
    /// (a caller that then starts from step 0 must `abandon_after(None)` the old checkpoints, and [`RunDir::set_aside`] what else is of that run).
    pub fn create(project: &Path, name: &str, exist_ok: bool) -> Result<Self, RunDirError> {
        let run = Self { path: results_dir(project, name, exist_ok)? };
        run.make_folders()?;
        Ok(run)
    }

    /// Makes those of its sub-directories that are not there, as in a run of which somebody has deleted the weights.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn make_folders(&self) -> Result<(), RunDirError> {
        create_dir_all_synced(&self.checkpoints())?;
        Ok(create_dir_all_synced(&self.weights())?)
    }

    /// A run directory made earlier.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, RunDirError> {
        let path = path.into();
        if path.is_dir() { Ok(Self { path }) } else { Err(RunDirError::NotARun { path }) }
    }

    /// Takes the run for this process, and removes the half-written files that killed ones left in it and in its directories. Hold it for as long as
    /// anything in the directory may change.
    ///
    /// # Errors
    /// Another process has it; something in it is a link, a pipe or a device; the lock cannot be opened, locked or written.
    pub fn lock(&self) -> Result<RunLock, LockError> {
        let lock = RunLock::acquire(&self.path)?;
        sweep_siblings(&self.path);
        Ok(lock)
    }

    /// Takes back a directory in which nothing happened: one that holds anything stays as it is.
    pub fn withdraw(&self, lock: RunLock) {
        let (checkpoints, weights) = (self.checkpoints(), self.weights());
        let no_more_than = |dir: &Path, names: &[&str]| {
            fs::read_dir(dir).is_ok_and(|mut found| found.all(|e| e.is_ok_and(|e| names.iter().any(|name| e.file_name() == *name))))
        };
        if no_more_than(&self.path, &[LOCK, HEARTBEAT, CHECKPOINTS, WEIGHTS])
            && no_more_than(&checkpoints, &[])
            && no_more_than(&weights, &[])
        {
            // Each call removes a directory that is empty, or does nothing.
            fs::remove_dir(checkpoints).ok();
            fs::remove_dir(weights).ok();
            fs::remove_file(self.heartbeat()).ok();
            fs::remove_file(self.path.join(LOCK)).ok();
            fs::remove_dir(&self.path).ok();
        }
        drop(lock);
    }

    /// Renames to `NAME.abandoned` what a run before this one has left here, or (`weights/best.pt`) in one of its folders, under these names, in each of
    /// which one `*` may stand for anything; to `NAME.abandoned-2` and so on where an earlier one has been set aside. What is read (`reads`, paths without
    /// links) stays, and what that is a part of. Returns how many files and folders there were.
    ///
    /// # Errors
    /// One that cannot be renamed.
    pub fn set_aside(&self, names: &[&str], reads: &[PathBuf]) -> Result<usize, StoreError> {
        let own = self.path.canonicalize().map_err(|e| StoreError::new("look at", &self.path, e))?;
        let reads: Vec<&PathBuf> = reads.iter().filter(|read| read.starts_with(&own) && **read != own).collect();
        let mut found = found_in(&own, names)?;
        found.retain(|path| !reads.iter().any(|read| read.starts_with(path) || path.starts_with(read)));
        for path in &found {
            DiskStore.rename(path, &name_aside(path))?;
        }
        let folders: BTreeSet<&Path> = found.iter().map(|path| parent_of(path)).collect();
        folders.into_iter().try_for_each(|folder| DiskStore.sync_dir(folder))?;
        Ok(found.len())
    }

    /// A run directory that a store of your own holds.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// None: of a process that takes part in a run and writes nothing of it.
    pub fn nowhere() -> Self {
        Self::at("")
    }

    /// Whether it is none.
    pub fn is_nowhere(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `checkpoints/`, for [`crate::Checkpoints::open`].
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// `weights/`, for `best.safetensors` and `last.safetensors`.
    pub fn weights(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// `config.yaml`: every resolved setting.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yaml")
    }

    /// `events.jsonl`: one line per event.
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// `results.csv`: one row per epoch.
    pub fn results(&self) -> PathBuf {
        self.path.join("results.csv")
    }

    /// `heartbeat.json`: the last sign of life, for [`crate::read_beat`].
    pub fn heartbeat(&self) -> PathBuf {
        self.path.join(HEARTBEAT)
    }

    /// `supervision.jsonl`: what a supervisor saw, one line an end.
    pub fn supervision(&self) -> PathBuf {
        self.path.join("supervision.jsonl")
    }

    /// Whether a process has the run, and which one, where that can be read and it is of this machine or container.
    pub fn holder(&self) -> Option<Option<u32>> {
        holder_of(&self.path)
    }

    /// The number of the newest checkpoint, by its name: nothing is verified.
    pub fn newest_step(&self) -> Option<u64> {
        let names = DiskStore.list(&self.checkpoints()).ok()?;
        names.iter().filter_map(|name| Version::parse(name)).map(|version| version.step).max()
    }
}

/// A folder for results that are made at one go: `project/name`, numbered as [`RunDir::create`] does it.
///
/// # Errors
/// A name that is not one path component, or a folder that cannot be made.
pub fn results_dir(project: &Path, name: &str, exist_ok: bool) -> Result<PathBuf, RunDirError> {
    let plain = Path::new(name).file_name() == Some(OsStr::new(name)) && !name.contains(['/', '\\', '\0']);
    if !plain {
        return Err(RunDirError::Name { name: name.into() });
    }
    create_dir_all_synced(project)?;
    let path = if exist_ok { project.join(name) } else { first_free(project, name)? };
    create_dir_all_synced(&path)?;
    DiskStore.sync_dir(project)?;
    Ok(path)
}

/// What stands in `dir`, or (`weights/best.pt`) in one of its folders, under these names, in each of which one `*` may stand for anything.
fn found_in(dir: &Path, names: &[&str]) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for name in names {
        let (folder, name) = name.rsplit_once('/').map_or((dir.to_owned(), *name), |(folder, name)| (dir.join(folder), name));
        let listed = match DiskStore.list(&folder) {
            Err(e) if e.is_not_found() => Vec::new(),
            listed => listed?,
        };
        found.extend(listed.iter().filter(|there| is_called(there, name)).map(|there| folder.join(there)));
    }
    Ok(found)
}

/// The first free of `NAME.abandoned`, `NAME.abandoned-2`, ..., as checkpoints are numbered.
fn name_aside(path: &Path) -> PathBuf {
    let mut aside = path.with_added_extension("abandoned");
    let mut number = 2_u64;
    while fs::symlink_metadata(&aside).is_ok() {
        aside = path.with_added_extension(format!("abandoned-{number}"));
        number += 1;
    }
    aside
}

fn is_called(there: &str, name: &str) -> bool {
    match name.split_once('*') {
        Some((begin, end)) => there.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end)),
        None => there == name,
    }
}

/// Creates the first of `name`, `name2`, `name3`, ... that nobody else has.
fn first_free(project: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let mut path = project.join(name);
    let mut number = 2_u64;
    loop {
        match DiskStore.create_dir(&path) {
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => {
                path = project.join(format!("{name}{number}"));
                number += 1;
            }
            created => return created.map(|()| path),
        }
    }
}

/// The run that `path` belongs to: itself, or that of its `weights/`, its `checkpoints/`, or of what is named in one of them. Looks at names
/// only, since the file that is named (`weights/last.pt`) need not exist.
pub fn run_of(path: &Path) -> &Path {
    let is_part = |path: &Path| path.file_name().is_some_and(|name| name == WEIGHTS || name == CHECKPOINTS);
    let part = path.ancestors().take(2).find(|path| is_part(path));
    match part.and_then(Path::parent) {
        Some(run) if run.as_os_str().is_empty() => Path::new("."),
        Some(run) => run,
        None => path,
    }
}

/// The run under `project` that saved a checkpoint last: what `--resume` without a path means. Runs that were
/// stopped before their first checkpoint do not count; a run whose checkpoints are all damaged does, so that the damage is seen.
pub fn find_latest_run(project: &Path) -> Option<PathBuf> {
    let runs = fs::read_dir(project).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    runs.filter_map(|run| Some((last_saved(&run)?, run))).max().map(|(_, run)| run)
}

/// When the newest of the run's checkpoints was written, those that were found damaged included. The directory's own time is no answer: deleting an old one
/// changes it, too.
fn last_saved(run: &Path) -> Option<SystemTime> {
    let checkpoints = run.join(CHECKPOINTS);
    let names = DiskStore.list(&checkpoints).ok()?;
    let written = names.iter().filter(|name| Version::parse(name).is_some() || set_aside_for(name).is_some()).filter_map(|name| {
        let checkpoint = checkpoints.join(name);
        // A damaged one may lack its manifest.
        let found = fs::metadata(checkpoint.join(MANIFEST)).or_else(|_| fs::metadata(&checkpoint));
        found.ok()?.modified().ok()
    });
    written.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_count_up_and_exist_ok_reuses() {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("runs/detect");
        let name = |run: RunDir| run.path().file_name().unwrap().to_str().unwrap().to_owned();
        let create = |exist_ok| name(RunDir::create(&project, "train", exist_ok).unwrap());
        assert_eq!([create(false), create(false), create(false)], ["train", "train2", "train3"]);
        assert_eq!(create(true), "train");
        assert!(project.join("train3/checkpoints").is_dir() && project.join("train3/weights").is_dir());
    }

    #[test]
    fn processes_starting_at_once_get_different_directories() {
        let dir = tempfile::tempdir().unwrap();
        let start = |_| {
            std::thread::spawn({
                let project = dir.path().to_path_buf();
                move || RunDir::create(&project, "train", false).unwrap().path().to_path_buf()
            })
        };
        let threads: Vec<_> = (0..16).map(start).collect();
        let mut paths: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 16);
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["", ".", "..", "a/b", "/abs", "a\\b", "a/"] {
            assert!(matches!(RunDir::create(dir.path(), name, false), Err(RunDirError::Name { .. })), "{name:?}");
        }
        assert!(matches!(RunDir::open(dir.path().join("none")), Err(RunDirError::NotARun { .. })));
    }

    #[test]
    fn the_latest_run_is_the_one_that_saved_last() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(find_latest_run(&dir.path().join("none")), None);
        let [old, new, never] = [(); 3].map(|()| RunDir::create(dir.path(), "train", false).unwrap());
        assert_eq!(find_latest_run(dir.path()), None);
        let save = |run: &RunDir, name: &str, hour: u64| {
            let checkpoint = run.checkpoints().join(name);
            fs::create_dir_all(&checkpoint).unwrap();
            let manifest = fs::File::create(checkpoint.join(MANIFEST)).unwrap();
            manifest.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hour)).unwrap();
        };
        save(&new, "step-000000005", 1);
        save(&old, "step-000000004", 1);
        save(&old, "step-000000005", 2);
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(old.path()));
        save(&new, "step-000000005", 3);
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(new.path()));
        // Making room in the older one saves nothing there.
        fs::remove_dir_all(old.checkpoints().join("step-000000004")).unwrap();
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(new.path()));
        // One that was begun anew, and has not saved since.
        fs::rename(new.checkpoints().join("step-000000005"), new.checkpoints().join("step-000000005.abandoned")).unwrap();
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(old.path()));
        assert!(never.path().is_dir());
        // One whose checkpoints were all found damaged: it is refused again, and not passed over for another.
        let damaged = old.checkpoints().join("step-000000005.bad-no-manifest");
        fs::rename(old.checkpoints().join("step-000000005"), &damaged).unwrap();
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(old.path()));
        fs::remove_file(damaged.join(MANIFEST)).unwrap();
        assert_eq!(find_latest_run(dir.path()).as_deref(), Some(old.path()));
    }

    #[test]
    fn what_is_of_another_run_is_set_aside_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        let put = |name: &str, text: &str| {
            fs::create_dir_all(run.path().join(name).parent().unwrap()).unwrap();
            fs::write(run.path().join(name), text).unwrap();
        };
        let text = |name: &str| fs::read_to_string(run.path().join(name)).ok();
        let names = ["weights/best.pt", "weights/epoch*.safetensors", "adapter", "merged", "model-*.gguf", "gone/x"];
        let made = ["weights/best.pt", "weights/epoch0.safetensors", "merged/model.safetensors", "model-q8_0.gguf"];
        let stays = ["weights/mine.pt", "weights/epoch.txt", "best.pt", "model.gguf", "merged.txt", "adapter/adapter_config.json"];
        made.iter().chain(&stays).for_each(|name| put(name, "first"));
        let reads = [run.path().join("adapter"), dir.path().to_owned(), run.path().to_owned()].map(|path| path.canonicalize().unwrap());
        assert_eq!(run.set_aside(&names, &reads).unwrap(), 4);
        assert!(made.iter().all(|name| text(name).is_none()) && stays.iter().all(|name| text(name).is_some()));
        let aside = ["weights/best.pt.abandoned", "merged.abandoned/model.safetensors", "model-q8_0.gguf.abandoned"];
        assert!(aside.iter().all(|name| text(name).as_deref() == Some("first")));
        // What was set aside before stays, whatever comes after it, a folder too.
        for (number, whose) in [(2, "second"), (3, "third")] {
            ["merged/config.json", "weights/best.pt"].iter().for_each(|name| put(name, whose));
            assert_eq!(run.set_aside(&names, &reads).unwrap(), 2);
            let aside = [format!("weights/best.pt.abandoned-{number}"), format!("merged.abandoned-{number}/config.json")];
            assert!(aside.iter().all(|name| text(name).as_deref() == Some(whose)), "{whose}");
        }
        assert!(aside.iter().all(|name| text(name).as_deref() == Some("first")));
        // A file that is read, and the folder that it lies in.
        put("weights/best.pt", "fourth");
        let file = run.path().join("adapter/adapter_config.json").canonicalize().unwrap();
        assert_eq!(run.set_aside(&names, &[file, run.weights().canonicalize().unwrap()]).unwrap(), 0);
    }

    #[test]
    fn folders_that_were_deleted_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        fs::remove_dir(run.weights()).unwrap();
        fs::write(run.checkpoints().join("kept"), b"").unwrap();
        run.make_folders().unwrap();
        assert!(run.weights().is_dir() && run.checkpoints().join("kept").exists());
    }

    /// A run directory may be a stranger's: nothing in it leads a write elsewhere.
    #[cfg(unix)]
    #[test]
    fn a_run_with_a_link_in_it_is_refused_and_nothing_behind_it_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (outside, mine) = (dir.path().join("outside"), dir.path().join("mine.txt"));
        fs::create_dir(&outside).unwrap();
        fs::write(&mine, b"of years").unwrap();
        let gone = dir.path().join("gone");
        let links =
            [("run.lock", &mine), ("heartbeat.json", &mine), ("events.jsonl", &mine), ("results.csv", &gone), ("tensorboard", &outside)];
        for (name, target) in links {
            let run = RunDir::create(dir.path(), "train", false).unwrap();
            std::os::unix::fs::symlink(target, run.path().join(name)).unwrap();
            let error = run.lock().unwrap_err();
            assert!(matches!(&error, LockError::Link { path } if *path == run.path().join(name)), "{error:?}");
            assert!(error.to_string().contains(&format!("{name} is a link")), "{error}");
        }
        let weights = RunDir::create(dir.path(), "train", false).unwrap().weights();
        fs::remove_dir(&weights).unwrap();
        std::os::unix::fs::symlink(&outside, &weights).unwrap();
        assert!(matches!(RunDir::at(weights.parent().unwrap()).lock(), Err(LockError::Link { .. })));
        assert!(fs::read(&mine).unwrap() == b"of years" && !gone.exists());
    }

    /// Whoever opens a pipe for reading waits for one who writes.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_run_with_a_pipe_in_it_is_refused_and_its_holder_can_be_asked_for() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let dir = tempfile::tempdir().unwrap();
        for name in ["run.lock", "events.jsonl", "results.csv"] {
            let run = RunDir::create(dir.path(), "train", false).unwrap();
            mkfifoat(CWD, run.path().join(name), Mode::RUSR | Mode::WUSR).unwrap();
            let (told, answers) = std::sync::mpsc::channel();
            std::thread::spawn(move || told.send((run.lock().unwrap_err().to_string(), run.holder())));
            let (error, holder) = answers.recv_timeout(Duration::from_secs(20)).unwrap();
            assert!(error.contains(&format!("{name} is neither a file nor a folder")) && holder.is_none(), "{error}");
        }
    }

    #[test]
    fn a_run_is_known_by_its_parts() {
        let parts = ["", "/weights", "/weights/last.pt", "/weights/best.safetensors", "/checkpoints", "/checkpoints/step-000000005"];
        for part in parts {
            assert_eq!(run_of(Path::new(&format!("runs/detect/train2{part}"))), Path::new("runs/detect/train2"), "{part}");
        }
        assert_eq!(run_of(Path::new("weights/last.pt")), Path::new("."));
        assert_eq!(run_of(Path::new("weights/last/more")), Path::new("weights/last/more"));
    }

    #[test]
    fn a_run_is_withdrawn_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let [empty, begun] = [(); 2].map(|()| RunDir::create(dir.path(), "train", false).unwrap());
        fs::write(begun.config(), b"epochs: 3").unwrap();
        fs::write(empty.heartbeat(), b"{}").unwrap();
        for run in [&empty, &begun] {
            run.withdraw(run.lock().unwrap());
        }
        assert!(!empty.path().exists());
        assert!(begun.config().exists() && begun.checkpoints().is_dir() && begun.weights().is_dir());
    }

    #[test]
    fn a_run_tells_its_holder_and_its_newest_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        assert_eq!((run.holder(), run.newest_step()), (None, None));
        for name in ["step-000000007", "step-000000012-2", "step-000000099.abandoned", ".step-000000100.tmp-0-1-0"] {
            fs::create_dir(run.checkpoints().join(name)).unwrap();
        }
        let lock = run.lock().unwrap();
        assert_eq!((run.holder(), run.newest_step()), (Some(Some(std::process::id())), Some(12)));
        drop(lock);
        // A process that another test starts has this one's files until it is another program.
        let is_free = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            run.holder().is_none()
        };
        assert!((0..1000).any(|_| is_free()), "the file stays, and says nothing any more");
        if !cfg!(target_os = "linux") {
            return;
        }
        let lock = run.lock().unwrap();
        let text = std::fs::read_to_string(run.path().join(LOCK)).unwrap();
        for (text, holder) in [(format!("{}\n", std::process::id()), Some(std::process::id())), (text.replace('-', "+"), None)] {
            // Whoever has it wrote less, once; or is of another start of this machine.
            std::fs::write(run.path().join(LOCK), text).unwrap();
            assert_eq!(run.holder(), Some(holder));
        }
        drop(lock);
        run.lock().unwrap();
    }

    #[test]
    fn locking_sweeps_half_written_files() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        let adapter = run.path().join("adapter");
        fs::create_dir(&adapter).unwrap();
        let folders = [run.path(), &run.weights(), &run.checkpoints(), &adapter];
        for folder in folders {
            fs::write(folder.join(".best.safetensors.tmp-0-1-0"), b"half").unwrap();
            fs::write(folder.join("best.safetensors"), b"whole").unwrap();
        }
        // Of a run that is in a run nothing is touched.
        let inner = adapter.join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join(".other.tmp-0-1-0"), b"half").unwrap();
        let _lock = run.lock().unwrap();
        for folder in folders {
            assert!(!folder.join(".best.safetensors.tmp-0-1-0").exists(), "{}", folder.display());
            assert!(folder.join("best.safetensors").exists(), "{}", folder.display());
        }
        assert!(inner.join(".other.tmp-0-1-0").exists());
    }
}
