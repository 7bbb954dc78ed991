//! A disk in memory that loses what was not flushed: an inode's contents and a directory's entries become durable only when that file or that
//! directory is flushed; of the rest, any subset may have reached the disk, in any order, a file's contents may be torn, and the place of
//! appended data may hold zeros.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bellows_runs::{Store, StoreError};

/// The next of a fixed sequence of 64-bit numbers (splitmix64).
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
}

/// A change that is visible to everybody and not durable yet.
#[derive(Debug, Clone)]
enum Change {
    Data { file: usize, bytes: Vec<u8> },
    Append { file: usize, at: usize, bytes: Vec<u8> },
    Cut { file: usize, len: usize },
    Link { dir: usize, name: String, node: usize },
    Unlink { dir: usize, name: String },
    Rename { dir: usize, from: String, to: String, node: usize },
}

impl Change {
    /// The node whose flush makes it durable.
    fn of(&self) -> usize {
        match self {
            Self::Data { file, .. } | Self::Append { file, .. } | Self::Cut { file, .. } => *file,
            Self::Link { dir, .. } | Self::Unlink { dir, .. } | Self::Rename { dir, .. } => *dir,
        }
    }

    /// In how many states a crash may leave it: not there, there, for data also half there, and for what was appended also zeros in its place.
    fn outcomes(&self) -> u64 {
        match self {
            Self::Data { .. } => 3,
            Self::Append { .. } => 4,
            _ => 2,
        }
    }

    fn apply(&self, nodes: &mut [Node], outcome: u64) {
        match (self, &mut nodes[self.of()]) {
            _ if outcome == 0 => {}
            (Self::Data { bytes, .. }, Node::File(file)) => *file = bytes[..bytes.len() / (3 - outcome as usize)].to_vec(),
            (Self::Append { at, bytes, .. }, Node::File(file)) => {
                file.resize(*at, 0);
                file.extend_from_slice(if outcome == 1 { &bytes[..bytes.len() / 2] } else { bytes });
                if outcome == 3 {
                    file[*at..].fill(0);
                }
            }
            (Self::Cut { len, .. }, Node::File(file)) => file.truncate(*len),
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
pub(crate) type Forget = fn(&str, &Path) -> bool;

struct Disk {
    /// The directory that node 0 is.
    root: PathBuf,
    /// As programs see it.
    seen: Vec<Node>,
    durable: Vec<Node>,
    pending: Vec<Change>,
    free: u64,
    operations_left: usize,
    forget: Forget,
}

#[derive(Clone)]
pub(crate) struct MemoryStore(Rc<RefCell<Disk>>);

impl Disk {
    fn operation(&mut self, path: &Path) -> Result<(), StoreError> {
        if self.operations_left == 0 {
            return Err(StoreError::new("(no power)", path, ErrorKind::Other.into()));
        }
        self.operations_left -= 1;
        Ok(())
    }

    fn find(&self, path: &Path) -> Option<usize> {
        path.strip_prefix(&self.root).unwrap().iter().try_fold(0, |node, name| match &self.seen[node] {
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

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

impl MemoryStore {
    /// An empty directory `root` on a machine whose power goes after so many operations.
    pub(crate) fn new(root: &Path, operations_left: usize, forget: Forget) -> Self {
        Self::of(root, vec![Node::Dir(BTreeMap::new())], operations_left, forget)
    }

    fn of(root: &Path, seen: Vec<Node>, operations_left: usize, forget: Forget) -> Self {
        let (durable, pending) = (seen.clone(), Vec::new());
        Self(Rc::new(RefCell::new(Disk { root: root.into(), seen, durable, pending, free: u64::MAX, operations_left, forget })))
    }

    /// The same with so many bytes free, whatever is written.
    #[allow(dead_code, reason = "a test of the Learner's")]
    pub(crate) fn with_room(self, free: u64) -> Self {
        self.0.borrow_mut().free = free;
        self
    }

    /// What may be found on the disk when the power is back: every subset of the pending changes, or a fixed sample of `most` of them.
    pub(crate) fn after_power_loss(&self, most: u64) -> impl Iterator<Item = Self> {
        let disk = self.0.borrow();
        let (root, durable, pending) = (disk.root.clone(), disk.durable.clone(), disk.pending.clone());
        let all = pending.iter().fold(1_u64, |product, change| product.saturating_mul(change.outcomes()));
        let mut seed = 7;
        (0..all.min(most)).map(move |number| {
            let mut choice = if all <= most { number } else { draw(&mut seed) };
            let mut nodes = durable.clone();
            for change in &pending {
                change.apply(&mut nodes, choice % change.outcomes() * if change.outcomes() == 2 { 2 } else { 1 });
                choice /= change.outcomes();
            }
            Self::of(&root, nodes, usize::MAX, |_, _| false)
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

    fn append(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let file = match disk.find(path) {
            Some(file) => file,
            None => disk.create(path, Node::File(Vec::new()))?,
        };
        let Node::File(old) = &disk.seen[file] else { panic!("{} is a directory", path.display()) };
        let at = old.len();
        disk.change(Change::Append { file, at, bytes: bytes.to_vec() });
        Ok(())
    }

    fn truncate(&self, path: &Path, len: u64) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        let file = disk.get(path)?;
        disk.change(Change::Cut { file, len: len as usize });
        Ok(())
    }

    fn len(&self, path: &Path) -> Result<u64, StoreError> {
        self.read(path, u64::MAX).map(|bytes| bytes.len() as u64)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(from)?;
        let replaces_a_file = disk.find(to).is_none_or(|node| matches!(disk.seen[node], Node::File(_)));
        assert!(from.parent() == to.parent() && replaces_a_file, "the protocol renames within a directory, to a free name or over a file");
        let (node, dir) = (disk.get(from)?, disk.get(from.parent().unwrap())?);
        disk.change(Change::Rename { dir, from: name_of(from), to: name_of(to), node });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        disk.get(path)?;
        let dir = disk.get(path.parent().unwrap())?;
        disk.change(Change::Unlink { dir, name: name_of(path) });
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

    fn read_part(&self, path: &Path, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
        let bytes = self.read(path, u64::MAX)?;
        Ok(bytes.into_iter().skip(at as usize).take(len).collect())
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
        let mut disk = self.0.borrow_mut();
        disk.operation(path)?;
        Ok(disk.free)
    }
}
