//! The power fails after any operation, and any part of what was not flushed is lost: the last reported checkpoint survives.
//!
//! The disk here is a model: an inode's contents and a directory's entries become durable only when that file or that directory
//! is flushed; of the rest, any subset may have reached the disk, in any order, and a file's contents may be torn. The tests that
//! leave out one flush at a time must fail: they show that the model can see the difference.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;

use bellows_runs::{Checkpoints, Store, StoreError};
use common::{draw, is_as_saved, save_version, version_of};

const MOST_SUBSETS: u64 = 1 << 12;

#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
}

/// A change that is visible to everybody and not durable yet.
#[derive(Debug, Clone)]
enum Change {
    Data { file: usize, bytes: Vec<u8> },
    Link { dir: usize, name: String, node: usize },
    Unlink { dir: usize, name: String },
    Rename { dir: usize, from: String, to: String, node: usize },
}

impl Change {
    /// The node whose flush makes it durable.
    fn of(&self) -> usize {
        match self {
            Self::Data { file, .. } => *file,
            Self::Link { dir, .. } | Self::Unlink { dir, .. } | Self::Rename { dir, .. } => *dir,
        }
    }

    /// In how many states a crash may leave it: not there, there, and for data also half there.
    fn outcomes(&self) -> u64 {
        if matches!(self, Self::Data { .. }) { 3 } else { 2 }
    }

    fn apply(&self, nodes: &mut [Node], outcome: u64) {
        match (self, &mut nodes[self.of()]) {
            _ if outcome == 0 => {}
            (Self::Data { bytes, .. }, Node::File(file)) => *file = bytes[..bytes.len() / (3 - outcome as usize)].to_vec(),
            (Self::Link { name, node, .. }, Node::Dir(dir)) => drop(dir.insert(name.clone(), *node)),
            (Self::Unlink { name, .. }, Node::Dir(dir)) => drop(dir.remove(name)),
            (Self::Rename { from, to, node, .. }, Node::Dir(dir)) => {
                dir.remove(from);
                dir.insert(to.clone(), *node);
            }
            wrong => panic!("{wrong:?}"),
        }
    }
}

/// Leaves out a flush: given "file" or "dir" and the path.
type Forget = fn(&str, &Path) -> bool;

struct Disk {
    /// As programs see it. Node 0 is the directory `/run`.
    seen: Vec<Node>,
    durable: Vec<Node>,
    pending: Vec<Change>,
    operations_left: usize,
    forget: Forget,
}

#[derive(Clone)]
struct MemoryStore(Rc<RefCell<Disk>>);

impl Disk {
    fn operation(&mut self, path: &Path) -> Result<(), StoreError> {
        if self.operations_left == 0 {
            return Err(StoreError::new("(no power)", path, ErrorKind::Other.into()));
        }
        self.operations_left -= 1;
        Ok(())
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.strip_prefix("/run").unwrap().iter().try_fold(0, |node, name| match &self.seen[node] {
            Node::Dir(entries) => entries.get(name.to_str().unwrap()).copied(),
            Node::File(_) => None,
        })
    }

    fn get(&self, path: &Path) -> Result<usize, StoreError> {
        self.find(path).ok_or_else(|| StoreError::new("find", path, ErrorKind::NotFound.into()))
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen, 2);
        self.pending.push(change);
    }

    fn create(&mut self, path: &Path, empty: Node) -> Result<usize, StoreError> {
        if self.find(path).is_some() {
            return Err(StoreError::new("create", path, ErrorKind::AlreadyExists.into()));
        }
        let dir = self.get(path.parent().unwrap())?;
        let node = self.seen.len();
        self.seen.push(empty.clone());
        self.durable.push(empty);
        self.change(Change::Link { dir, name: name_of(path), node });
        Ok(node)
    }

    fn flush(&mut self, node: usize) {
        let (now, later) = std::mem::take(&mut self.pending).into_iter().partition::<Vec<_>, _>(|change| change.of() == node);
        self.pending = later;
        for change in now {
            change.apply(&mut self.durable, 2);
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

impl MemoryStore {
    fn new(seen: Vec<Node>, operations_left: usize, forget: Forget) -> Self {
        Self(Rc::new(RefCell::new(Disk { durable: seen.clone(), seen, pending: Vec::new(), operations_left, forget })))
    }

    /// What may be found on the disk when the power is back: every subset of the pending changes, or a fixed sample of them.
    fn after_power_loss(&self) -> impl Iterator<Item = Self> {
        let disk = self.0.borrow();
        let (durable, pending) = (disk.durable.clone(), disk.pending.clone());
        let all = pending.iter().fold(1_u64, |product, change| product.saturating_mul(change.outcomes()));
        let mut seed = 7;
        (0..all.min(MOST_SUBSETS)).map(move |number| {
            let mut choice = if all <= MOST_SUBSETS { number } else { draw(&mut seed) };
            let mut nodes = durable.clone();
            for change in &pending {
                change.apply(&mut nodes, choice % change.outcomes() * if change.outcomes() == 2 { 2 } else { 1 });
                choice /= change.outcomes();
            }
            Self::new(nodes, usize::MAX, |_, _| false)
        })
    }
}

impl Store for MemoryStore {
    fn create_dir(&self, path: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        disk.create(path, Node::Dir(BTreeMap::new())).map(drop)
    }

    fn write_file(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let file = disk.create(path, Node::File(Vec::new()))?;
        disk.change(Change::Data { file, bytes: bytes.to_vec() });
        Ok(())
    }

    fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let node = disk.get(path)?;
        if !(disk.forget)("file", path) {
            disk.flush(node);
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let node = disk.get(path)?;
        if !(disk.forget)("dir", path) {
            disk.flush(node);
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(from)?;
        assert!(from.parent() == to.parent() && disk.find(to).is_none(), "the protocol renames within a directory, to a free name");
        let (node, dir) = (disk.get(from)?, disk.get(from.parent().unwrap())?);
        disk.change(Change::Rename { dir, from: name_of(from), to: name_of(to), node });
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let (node, parent) = (disk.get(path)?, disk.get(path.parent().unwrap())?);
        if let Node::Dir(entries) = disk.seen[node].clone() {
            for name in entries.into_keys() {
                disk.change(Change::Unlink { dir: node, name });
            }
        }
        disk.change(Change::Unlink { dir: parent, name: name_of(path) });
        Ok(())
    }

    fn read(&self, path: &Path, _limit: u64) -> Result<Vec<u8>, StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        match &disk.seen[disk.get(path)?] {
            Node::File(bytes) => Ok(bytes.clone()),
            Node::Dir(_) => Err(StoreError::new("read", path, ErrorKind::InvalidData.into())),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        match &disk.seen[disk.get(path)?] {
            Node::Dir(entries) => Ok(entries.keys().cloned().collect()),
            Node::File(_) => Err(StoreError::new("list", path, ErrorKind::NotADirectory.into())),
        }
    }

    fn free_space(&self, path: &Path) -> Result<u64, StoreError> {
        self.0.borrow_mut().operation(path)?;
        Ok(u64::MAX)
    }
}

/// Step and version: what was reported as saved.
type Reported = Option<(u64, u64)>;

/// Opens, saves and prunes, and notes each save that was reported as done. Stops when the power does.
fn train(store: MemoryStore, reported: &mut Reported) -> Result<(), String> {
    let checkpoints = Checkpoints::open_with(store, "/run/checkpoints").map_err(|e| e.to_string())?;
    for (step, version) in [(5, 1), (10, 1), (10, 2), (15, 1), (15, 1), (20, 1)] {
        save_version(&checkpoints, step, version).map_err(|e| e.to_string())?;
        *reported = Some((step, version));
        checkpoints.prune(2, &[]).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What a restarted run finds must be whole, and no older than what was reported.
fn survives(store: MemoryStore, reported: Reported) -> Result<(), String> {
    let checkpoints = Checkpoints::open_with(store, "/run/checkpoints").map_err(|e| e.to_string())?;
    let latest = checkpoints.latest().map_err(|e| e.to_string())?;
    if !latest.set_aside.is_empty() {
        return Err(format!("{reported:?} was reported, and found damaged: {:?}", latest.set_aside));
    }
    if !latest.checkpoint.as_ref().is_none_or(is_as_saved) {
        return Err("what was found is not what was saved".into());
    }
    let found = latest.checkpoint.map(|c| (c.step, version_of(&c)));
    if found < reported {
        return Err(format!("{reported:?} was reported, {found:?} was found"));
    }
    Ok(())
}

/// Cuts the power after every operation; returns the number of disks looked at, or what was lost.
fn power_cuts(forget: Forget) -> Result<usize, String> {
    let mut disks = 0;
    for operations in 0.. {
        let store = MemoryStore::new(vec![Node::Dir(BTreeMap::new())], operations, forget);
        let mut reported = None;
        let done = train(store.clone(), &mut reported).is_ok();
        for disk in store.after_power_loss() {
            survives(disk, reported).map_err(|lost| format!("after {operations} operations: {lost}"))?;
            disks += 1;
        }
        if done {
            break;
        }
    }
    Ok(disks)
}

#[test]
fn the_last_reported_checkpoint_survives_a_power_cut() {
    let disks = power_cuts(|_, _| false).unwrap();
    println!("{disks} disks after a power cut");
    assert!(disks > 5_000, "only {disks} disks were looked at");
}

#[test]
fn without_flushing_members_it_would_not() {
    power_cuts(|kind, path| kind == "file" && !path.ends_with("manifest.json")).unwrap_err();
}

#[test]
fn without_flushing_the_manifest_it_would_not() {
    power_cuts(|kind, path| kind == "file" && path.ends_with("manifest.json")).unwrap_err();
}

#[test]
fn without_flushing_the_new_directory_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && name_of(path).starts_with(".tmp-")).unwrap_err();
}

#[test]
fn without_flushing_the_rename_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && path.ends_with("checkpoints")).unwrap_err();
}

#[test]
fn without_flushing_the_creation_of_the_checkpoints_directory_it_would_not() {
    power_cuts(|kind, path| kind == "dir" && path == Path::new("/run")).unwrap_err();
}
