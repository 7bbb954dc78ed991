//! `results.csv`: all of it in memory, and the file, which may lag behind.

use std::path::PathBuf;
use std::rc::Rc;

use crate::append_log::AppendLog;
use crate::atomic::replace;
use crate::store::{Store, StoreError};

/// What the file has of the text.
#[derive(Clone, Copy)]
enum Held {
    /// It begins as the text does, and the rest is on its way.
    Whole,
    /// Perhaps nothing: it has to be written anew.
    Behind,
    /// What comes before the text, in its first so many bytes: it could not be read yet.
    Unread(u64),
}

/// The rows: those that an older program wrote stay as they are.
pub(crate) struct Rows {
    log: AppendLog,
    store: Rc<dyn Store>,
    text: Vec<u8>,
    held: Held,
}

impl Rows {
    /// None, of the file at `path`; nothing is read or written yet.
    pub(crate) fn new(store: Rc<dyn Store>, path: PathBuf) -> Self {
        Self { log: AppendLog::new(Rc::clone(&store), path), store, text: Vec::new(), held: Held::Whole }
    }

    /// Makes the file hold `text`. A sentence tells of rows that were not there.
    pub(crate) fn return_to(&mut self, text: Vec<u8>) -> Result<Option<String>, StoreError> {
        (self.text, self.held) = (text, Held::Behind);
        self.catch_up()
    }

    /// Takes the first `len` bytes of the file for the text, for a checkpoint of format 1 holds no rows.
    pub(crate) fn adopt(&mut self, len: u64) -> Result<Option<String>, StoreError> {
        (self.text, self.held) = (Vec::new(), Held::Unread(len));
        self.catch_up()
    }

    fn catch_up(&mut self) -> Result<Option<String>, StoreError> {
        match self.held {
            Held::Whole => Ok(None),
            Held::Behind => self.write_anew(),
            Held::Unread(len) => self.read(len),
        }
    }

    fn write_anew(&mut self) -> Result<Option<String>, StoreError> {
        let path = self.log.path();
        let found = match self.store.read_part(path, 0, self.text.len()) {
            Err(e) if e.is_not_found() => Vec::new(),
            found => found?,
        };
        let as_recorded = found == self.text;
        let told = format!("{} was not as recorded: its rows are written anew", path.display());
        if !as_recorded {
            replace(&*self.store, path, &self.text)?;
        }
        self.log.return_to(self.text.len() as u64)?;
        self.held = Held::Whole;
        Ok((!as_recorded).then_some(told))
    }

    fn read(&mut self, len: u64) -> Result<Option<String>, StoreError> {
        let told = self.log.return_to(len)?;
        let before = if self.log.len() == 0 { Vec::new() } else { self.store.read(self.log.path(), u64::MAX)? };
        let since = std::mem::replace(&mut self.text, before);
        self.text.extend_from_slice(&since);
        self.held = Held::Whole;
        self.log.append(&since)?;
        Ok(told)
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: &str) -> Result<(), StoreError> {
        let line = format!("{row}\n").into_bytes();
        self.text.extend_from_slice(&line);
        if !matches!(self.held, Held::Whole) {
            return self.catch_up().map(drop);
        }
        let appended = self.log.append(&line);
        if self.log.loss().is_some() {
            self.held = Held::Behind;
        }
        appended
    }

    /// Makes them durable.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        self.catch_up()?;
        self.log.sync()
    }

    /// All of them; `None` where those of the file could not be read, and only the file has them.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        (!matches!(self.held, Held::Unread(_))).then_some(&self.text)
    }

    /// Whether the file lacks some.
    pub(crate) fn is_behind(&self) -> bool {
        !matches!(self.held, Held::Whole) || self.log.is_behind()
    }
}
