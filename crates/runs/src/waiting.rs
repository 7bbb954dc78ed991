//! The files of a run that are not written yet.

use std::rc::Rc;

/// So many may wait before it is too much: weights of every epoch of a run of days must not fill the memory where they have no place on disk.
const MANY: usize = 16;

/// One of them.
pub(crate) struct File {
    /// Within the run.
    pub(crate) path: String,
    pub(crate) bytes: Rc<[u8]>,
    /// The step that they are of, if these are weights.
    pub(crate) step: Option<u64>,
}

/// Weights of a state that no checkpoint holds yet, and files that may be written at any time.
#[derive(Default)]
pub(crate) struct Waiting {
    held: Vec<File>,
    ready: Vec<File>,
}

impl Waiting {
    /// One that may be written, in the place of what has its name.
    pub(crate) fn add(&mut self, file: File) {
        self.ready.retain(|old| old.path != file.path);
        self.ready.push(file);
    }

    /// One that may be once a checkpoint is committed. Until then one of the same name that is ready stays: it is what is written if this one
    /// is forgotten.
    pub(crate) fn hold(&mut self, file: File) {
        self.held.retain(|old| old.path != file.path);
        self.held.push(file);
    }

    /// A checkpoint was committed.
    pub(crate) fn commit(&mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(|file| self.add(file));
    }

    /// The run has gone back to before what the held ones were made of.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
    }

    /// Those that will be ready once a checkpoint is committed.
    pub(crate) fn after_commit(&self) -> impl Iterator<Item = &File> {
        let stays = |file: &&File| !self.held.iter().any(|newer| newer.path == file.path);
        self.ready.iter().filter(stays).chain(&self.held)
    }

    /// Those that may be written.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &File> {
        self.ready.iter()
    }

    /// Those of these paths that may be written.
    pub(crate) fn take(&mut self, chosen: impl Fn(&str) -> bool) -> Vec<File> {
        self.ready.extract_if(.., |file| chosen(&file.path)).collect()
    }

    /// Whether many that may be written are not.
    pub(crate) fn are_many(&self) -> bool {
        self.ready.len() >= MANY
    }

    /// Whether one that may be written is not.
    pub(crate) fn is_behind(&self) -> bool {
        !self.ready.is_empty()
    }
}
