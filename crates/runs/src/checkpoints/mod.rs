//! A directory of checkpoints: `step-000001234/` is complete or absent, and "the latest" is computed from contents.
//!
//! Names: `step-S` is a checkpoint; `step-S-R` its R-th version, when a step was saved again with other contents;
//! `step-….bad-REASON` one that was found damaged; `step-….abandoned` one that a run went back behind; `.step-….tmp-HOME-PID-N` one being
//! written or removed by process PID, as all files are that are written in parts (`atomic`). There is no pointer file: it would be a second thing to
//! corrupt. The two set-aside forms are never removed by this program.
//!
//! Relies on the caller holding the run lock while it saves, prunes or asks for the latest; refuses nothing without it, because
//! a lock is not the business of a directory.

mod load;
mod save;

use std::path::{Path, PathBuf};

pub use load::{Checkpoint, Latest, LoadError, SetAside};
pub use save::SaveError;

use crate::atomic::{is_left, sibling};
use crate::store::{DiskStore, Store, StoreError, parent_of};

/// The checkpoints of one run.
#[derive(Debug)]
pub struct Checkpoints<S: Store = DiskStore> {
    store: S,
    dir: PathBuf,
}

impl Checkpoints<DiskStore> {
    /// Opens `dir` on disk; see [`Checkpoints::open_with`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        Self::open_with(DiskStore, dir)
    }
}

impl<S: Store> Checkpoints<S> {
    /// Opens `dir`, creating it (durably) if its parent exists, and removes what dead processes of this machine left half-written in it. (Whoever
    /// takes the run lock removes what others left.)
    pub fn open_with(store: S, dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let dir = dir.into();
        let names = match store.list(&dir) {
            Err(e) if e.is_not_found() => {
                store.create_dir(&dir)?;
                Vec::new()
            }
            listed => listed?,
        };
        // Also when it exists: a process that created it may have died before this line.
        store.sync_dir(parent_of(&dir))?;
        let this = Self { store, dir };
        this.discard_left(&names);
        Ok(this)
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes all but the newest `keep` steps (at least 2, whatever is asked: the newest may turn out damaged) and the steps in
    /// `protect`, and all superseded versions of the steps that stay. Call it after a successful save, never before one.
    ///
    /// Each removal is a rename first, so that a half-removed directory never looks like a checkpoint. One failure does not
    /// stop the others; the first is returned. Returns the steps that are gone.
    pub fn prune(&self, keep: usize, protect: &[u64]) -> Result<Vec<u64>, StoreError> {
        let names = self.store.list(&self.dir)?;
        self.discard_left(&names);
        let mut kept = Vec::new();
        let mut gone = Vec::new();
        let mut failed = Ok(());
        for version in newest_first(&names) {
            let superseded = kept.contains(&version.step);
            if !superseded && (kept.len() < keep.max(2) || protect.contains(&version.step)) {
                kept.push(version.step);
                continue;
            }
            match self.retire(version) {
                Ok(()) if superseded || gone.contains(&version.step) => {}
                Ok(()) => gone.push(version.step),
                Err(e) => failed = failed.and(Err(e)),
            }
        }
        failed.map(|()| gone)
    }

    /// Sets aside (renames to `….abandoned`) every checkpoint newer than `step`, or all of them for `None`: what a run must do
    /// when it goes back to an older checkpoint or starts over in an old directory, or the next `latest` would return to the
    /// abandoned future. Returns the new paths.
    pub fn abandon_after(&self, step: Option<u64>) -> Result<Vec<PathBuf>, StoreError> {
        let names = self.store.list(&self.dir)?;
        let newer = newest_first(&names).into_iter().filter(|v| step.is_none_or(|step| v.step > step));
        let moved = newer.map(|v| self.rename_aside(&names, &v.name(), "abandoned")).collect::<Result<Vec<_>, _>>()?;
        if !moved.is_empty() {
            self.store.sync_dir(&self.dir)?;
        }
        Ok(moved)
    }

    /// Renames `name` to the first free of `name.suffix`, `name.suffix-2`, ...
    fn rename_aside(&self, names: &[String], name: &str, suffix: &str) -> Result<PathBuf, StoreError> {
        let mut target = format!("{name}.{suffix}");
        let mut number = 2;
        while names.contains(&target) {
            target = format!("{name}.{suffix}-{number}");
            number += 1;
        }
        let path = self.dir.join(target);
        self.store.rename(&self.dir.join(name), &path)?;
        Ok(path)
    }

    fn retire(&self, version: Version) -> Result<(), StoreError> {
        let path = self.dir.join(version.name());
        let trash = sibling(&path)?;
        let renamed = self.store.rename(&path, &trash);
        if renamed.is_err() {
            self.discard(&trash); // Network disks can do a thing and report that they did not.
        }
        renamed.and_then(|()| self.remove(&trash))
    }

    /// Removes what may be there, with a second try: a deletion can fail for the moment (a full copy-on-write disk, a network
    /// disk's open file).
    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.store.remove_dir_all(path).or_else(|_| match self.store.remove_dir_all(path) {
            Err(e) if e.is_not_found() => Ok(()),
            second => second,
        })
    }

    /// Removes what is left of saves that were not finished, and of removals that failed half-way.
    fn discard_left(&self, names: &[String]) {
        names.iter().filter(|name| is_left(name)).for_each(|name| self.discard(&self.dir.join(name)));
    }

    /// Removes something already useless; failing costs disk space only, and is said.
    fn discard(&self, path: &Path) {
        if let Err(e) = self.remove(path) {
            tracing::warn!("leftover stays for now: {e}");
        }
    }
}

/// `step-S` (revision 1) or `step-S-R`; ordered oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) step: u64,
    revision: u32,
}

impl Version {
    fn name(self) -> String {
        match self {
            Self { step, revision: 1 } => format!("step-{step:09}"),
            Self { step, revision } => format!("step-{step:09}-{revision}"),
        }
    }

    /// Only names this program would write: no `step-5`, no `step-000000005-1`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("step-")?;
        let (step, revision) = rest.split_once('-').unwrap_or((rest, "1"));
        let version = Self { step: step.parse().ok()?, revision: revision.parse().ok()? };
        (version.name() == name).then_some(version)
    }
}

fn newest_first(names: &[String]) -> Vec<Version> {
    let mut versions: Vec<Version> = names.iter().filter_map(|name| Version::parse(name)).collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions
}

/// Why a checkpoint of this name was set aside as damaged; `None` of any other name.
pub(crate) fn set_aside_for(name: &str) -> Option<&str> {
    name.strip_prefix("step-")?.split_once(".bad-").map(|(_, why)| why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;
    use serde_json::Map;

    fn versions(names: &[&str]) -> Vec<Option<(u64, u32)>> {
        names.iter().map(|n| Version::parse(n).map(|v| (v.step, v.revision))).collect()
    }

    fn with_steps(steps: &[u64]) -> (tempfile::TempDir, Checkpoints) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(dir.path().join("checkpoints")).unwrap();
        for &step in steps {
            save(&checkpoints, step, b"x");
        }
        (dir, checkpoints)
    }

    fn save(checkpoints: &Checkpoints, step: u64, bytes: &[u8]) -> PathBuf {
        checkpoints.save(step, &[Member { name: "state", bytes }], &Map::new()).unwrap()
    }

    #[test]
    fn names_are_read_exactly_as_written() {
        let names =
            ["step-000001234", "step-000001234-2", "step-1234567890", "step-1234", "step-000001234-1", "step-000001234.bad-checksum"];
        let expected = [Some((1234, 1)), Some((1234, 2)), Some((1_234_567_890, 1)), None, None, None];
        assert_eq!(versions(&names), expected);
        assert_eq!(versions(&["step--00000005", "step-+00000005", "step-99999999999999999999999"]), [None; 3]);
        let aside = ["step-000001234.bad-checksum", "step-000001234-2.bad-step-2", "step-000001234.abandoned", "step-000001234"];
        assert_eq!(aside.map(set_aside_for), [Some("checksum"), Some("step-2"), None, None]);
    }

    /// What has a checkpoint, oldest first.
    fn steps(checkpoints: &Checkpoints) -> Vec<u64> {
        newest_first(&DiskStore.list(checkpoints.dir()).unwrap()).into_iter().rev().map(|version| version.step).collect()
    }

    #[test]
    fn prune_keeps_the_newest_the_protected_and_at_least_two() {
        let (_dir, checkpoints) = with_steps(&[5, 10, 15, 20, 25]);
        assert_eq!(checkpoints.prune(3, &[5]).unwrap(), [10]);
        assert_eq!(steps(&checkpoints), [5, 15, 20, 25]);
        assert_eq!(checkpoints.prune(0, &[]).unwrap(), [15, 5]);
        assert_eq!(steps(&checkpoints), [20, 25]);
        assert_eq!(std::fs::read_dir(checkpoints.dir()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn saving_a_step_again_replaces_it_without_a_gap() {
        let (_dir, checkpoints) = with_steps(&[5]);
        let first = save(&checkpoints, 10, b"old");
        assert_eq!(save(&checkpoints, 10, b"old"), first, "identical: nothing is written");
        let second = save(&checkpoints, 10, b"new");
        assert_ne!(first, second);
        assert!(first.exists(), "the old version stays until the new one was reported");
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().members["state"], b"new");
        assert_eq!(checkpoints.prune(2, &[]).unwrap(), [0_u64; 0], "a superseded version is not a step");
        assert!(!first.exists() && second.exists());
        assert_eq!(checkpoints.load_step(10).unwrap().members["state"], b"new");
    }

    #[test]
    fn saving_over_a_damaged_copy_of_the_same_state_writes_it_anew() {
        let (_dir, checkpoints) = with_steps(&[5]);
        let first = save(&checkpoints, 10, b"state");
        std::fs::write(first.join("state"), b"stats").unwrap();
        assert_ne!(save(&checkpoints, 10, b"state"), first);
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().members["state"], b"state");
    }

    #[test]
    fn going_back_abandons_the_future() {
        let (_dir, checkpoints) = with_steps(&[5, 10, 15]);
        assert_eq!(checkpoints.abandon_after(Some(5)).unwrap().len(), 2);
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().step, 5);
        save(&checkpoints, 10, b"second time");
        assert_eq!(checkpoints.abandon_after(Some(5)).unwrap().len(), 1, "a second time too");
        assert_eq!(checkpoints.abandon_after(None).unwrap().len(), 1);
        let latest = checkpoints.latest().unwrap();
        assert!(latest.checkpoint.is_none() && latest.set_aside.is_empty(), "starting over was asked for");
    }

    #[cfg(unix)]
    #[test]
    fn leftovers_of_the_dead_go_and_of_the_living_stay() {
        use crate::process::home;
        let (_dir, checkpoints) = with_steps(&[5]);
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let left_by = |home: u32, pid: u32| {
            let left = checkpoints.dir().join(format!(".step-000000006.tmp-{home:08x}-{pid}-0"));
            std::fs::create_dir_all(left.join("half")).unwrap();
            left
        };
        let (living, own) = (left_by(home(), child.id()), left_by(home(), std::process::id()));
        // No process of this machine has that number, and one of another may.
        let strangers = left_by(!home(), 2_147_483_646);
        Checkpoints::open(checkpoints.dir()).unwrap();
        assert!(living.exists() && strangers.exists() && !own.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        Checkpoints::open(checkpoints.dir()).unwrap();
        assert!(!living.exists());
        assert_eq!(checkpoints.latest().unwrap().checkpoint.unwrap().step, 5);
    }
}
