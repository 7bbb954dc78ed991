//! A file that only grows (`events.jsonl`, TensorBoard's), whose length a checkpoint can remember and a resumed run can return to.
//!
//! Every append is written at once: a kill loses nothing that was appended. What cannot be written waits, in order, and is tried again with
//! the next append; a failed write leaves no half line behind. Durable only after `sync`, which belongs before the checkpoint that records
//! `len`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::store::{Store, StoreError, parent_of};

/// Most bytes that wait for a disk with room; a run of days on a full disk must not fill the memory too.
const MOST_WAITING: usize = 1 << 20;
/// Bytes looked at at once for the end of a line.
const STRIDE: u64 = 4096;
/// The length to go back to that keeps every whole line.
pub(crate) const ALL: u64 = u64::MAX;

/// An open log.
pub(crate) struct AppendLog {
    store: Rc<dyn Store>,
    path: PathBuf,
    len: u64,
    waiting: Vec<u8>,
    /// Appends that had no room to wait.
    lost: u64,
    /// A failed append may have left a part of itself past `len`.
    torn: bool,
    /// The length that it still has to go back to: nothing is appended before.
    returning: Option<u64>,
    /// The file's name is in its directory for good.
    named: bool,
}

impl AppendLog {
    /// The log at `path`, to be appended to; nothing is read or written yet.
    pub(crate) fn new(store: Rc<dyn Store>, path: PathBuf) -> Self {
        Self { store, path, len: 0, waiting: Vec::new(), lost: 0, torn: false, returning: Some(ALL), named: false }
    }

    /// Goes back to the first `len` bytes, as a checkpoint recorded them, or to [`ALL`]. A log that is shorter, or that ends no line there, goes
    /// back to its last whole line before, and a sentence says so. A missing file counts as empty. What fails is tried again before anything is
    /// appended.
    pub(crate) fn return_to(&mut self, len: u64) -> Result<Option<String>, StoreError> {
        self.waiting.clear();
        (self.lost, self.returning) = (0, Some(len));
        self.go_back(len)
    }

    fn go_back(&mut self, len: u64) -> Result<Option<String>, StoreError> {
        let found = match self.store.len(&self.path) {
            Err(e) if e.is_not_found() => 0,
            found => found?,
        };
        let kept = self.last_line_end(len.min(found))?;
        if found > kept {
            self.store.truncate(&self.path, kept)?;
        }
        (self.len, self.torn, self.returning) = (kept, false, None);
        let lost = format!("{} had {found} bytes where {len} were recorded: it goes on after its first {kept}", self.path.display());
        Ok((kept < len && len != ALL).then_some(lost))
    }

    /// The end of the last line within the first `len` bytes.
    fn last_line_end(&self, len: u64) -> Result<u64, StoreError> {
        let mut end = len;
        while end > 0 {
            let start = end.saturating_sub(STRIDE);
            let part = self.store.read_part(&self.path, start, (end - start) as usize)?;
            if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
                return Ok(start + at as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }

    /// Appends `bytes`, after what is still waiting. On error they wait too, if there is room; else they are lost.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.waiting.extend_from_slice(bytes);
        let flushed = self.flush();
        if self.waiting.len() > MOST_WAITING {
            self.waiting.truncate(self.waiting.len() - bytes.len());
            self.lost += 1;
        }
        flushed
    }

    /// Whether the file lacks anything that was appended.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty() || self.returning.is_some_and(|len| len != ALL) || self.lost > 0
    }

    /// What it will never have, in a sentence.
    pub(crate) fn loss(&self) -> Option<String> {
        let told = format!("{} lacks {} entries, which had no room while the disk was full", self.path.display(), self.lost);
        (self.lost > 0).then_some(told)
    }

    /// Tries again to write what waits.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        if let Some(len) = self.returning {
            self.go_back(len)?;
        }
        if self.torn {
            self.mend()?;
        }
        if self.waiting.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.store.append(&self.path, &self.waiting) {
            self.torn = true;
            // If this fails too, the next attempt begins with it.
            return self.mend().and(Err(e));
        }
        self.len += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Removes what a failed append wrote.
    fn mend(&mut self) -> Result<(), StoreError> {
        match self.store.len(&self.path) {
            Ok(len) if len > self.len => self.store.truncate(&self.path, self.len)?,
            Err(e) if !e.is_not_found() => return Err(e),
            _ => {}
        }
        self.torn = false;
        Ok(())
    }

    /// Length of what is in the file, or will be when it is back where it belongs, in bytes: what a checkpoint records.
    pub(crate) fn len(&self) -> u64 {
        self.returning.unwrap_or(self.len)
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes all that was appended durable.
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        match self.store.sync_file(&self.path) {
            Err(e) if self.len == 0 && e.error.kind() == ErrorKind::NotFound => return Ok(()),
            synced => synced?,
        }
        if !self.named {
            self.store.sync_dir(parent_of(&self.path))?;
            self.named = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::DiskStore;
    use std::fs;

    fn log(path: &Path) -> AppendLog {
        AppendLog::new(Rc::new(DiskStore), path.to_owned())
    }

    #[test]
    fn returns_to_a_recorded_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut first = log(&path);
        first.append(b"{\"step\":1}\n").unwrap();
        let recorded = first.len();
        first.append(b"{\"step\":2}\n").unwrap();
        first.sync().unwrap();

        let mut second = log(&path);
        assert_eq!(second.return_to(recorded).unwrap(), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n");
        second.append(b"{\"step\":3}\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":3}\n");
        assert_eq!(second.len(), fs::metadata(&path).unwrap().len());
        assert_eq!(second.return_to(0).unwrap(), None);
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(log(&dir.path().join("new")).return_to(0).unwrap(), None);
    }

    #[test]
    fn what_is_there_stays_unless_it_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut log = log(&path);
        log.append(b"four\n").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), log.len()), ("one\ntwo\nfour\n", 13));
        assert_eq!(log.return_to(ALL).unwrap(), None);
        assert_eq!(log.len(), 13);
    }

    #[test]
    fn a_shorter_or_foreign_log_goes_on_after_its_last_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        for (text, recorded, kept) in [("one\ntwo\n", 9, "one\ntwo\n"), ("one\ntw", 8, "one\n"), ("one\ntwo!\n", 8, "one\n"), ("", 8, "")] {
            fs::write(&path, text).unwrap();
            let told = log(&path).return_to(recorded).unwrap().unwrap();
            assert!(told.contains("events.jsonl") && told.contains(&format!("{} bytes", text.len())), "{told}");
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
        }
        fs::remove_file(&path).unwrap();
        assert!(log(&path).return_to(8).unwrap().is_some());
        let long = "x".repeat(3 * STRIDE as usize);
        fs::write(&path, format!("one\n{long}")).unwrap();
        assert!(log(&path).return_to(10_000).unwrap().is_some());
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
    }

    #[test]
    fn what_cannot_be_written_waits_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not yet/events.jsonl");
        let mut log = log(&path);
        assert!(log.append(b"1\n").is_err() && log.append(b"2\n").is_err() && log.sync().is_err());
        assert_eq!(log.len(), 0);
        fs::create_dir(dir.path().join("not yet")).unwrap();
        log.append(b"3\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"1\n2\n3\n");
        assert!(!log.is_behind() && log.loss().is_none());
    }

    #[test]
    fn what_has_no_room_to_wait_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not yet/events.jsonl");
        let mut log = log(&path);
        let line = [vec![b'x'; MOST_WAITING / 4], b"\n".to_vec()].concat();
        (0..6).for_each(|_| assert!(log.append(&line).is_err()));
        fs::create_dir(dir.path().join("not yet")).unwrap();
        log.sync().unwrap();
        assert_eq!(fs::read(&path).unwrap(), line.repeat(3));
        assert!(log.is_behind() && log.loss().unwrap().contains("lacks 3 entries"), "{:?}", log.loss());
    }
}
