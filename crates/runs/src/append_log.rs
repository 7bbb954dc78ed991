//! A log of lines (`events.jsonl`, `results.csv`) whose length a checkpoint can remember and a resumed run can return to.
//!
//! Every line is written whole, at once, unbuffered: a kill loses no line that was appended. A failed append leaves no half line
//! behind, so the caller may call it a warning and go on. Durable only after `sync`, which belongs before the checkpoint that
//! records `len`.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};

use crate::store::StoreError;

/// An open log.
#[derive(Debug)]
pub struct AppendLog {
    file: File,
    path: PathBuf,
    len: u64,
    /// A failed append may have left part of a line past `len`.
    torn: bool,
}

/// Why a log could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Lines that the checkpoint counts on are gone.
    #[error("{} has {found} bytes, but {expected} were recorded: lines are missing from it", path.display())]
    Shorter {
        /// The log.
        path: PathBuf,
        /// Bytes in the file.
        found: u64,
        /// Bytes recorded.
        expected: u64,
    },
    /// The recorded length is not the end of a line: this is not the log that was recorded.
    #[error("{} has no line ending at byte {expected}, which was recorded as its length: it is not the same log", path.display())]
    NotALine {
        /// The log.
        path: PathBuf,
        /// Bytes recorded.
        expected: u64,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Coded for LogError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

impl AppendLog {
    /// Opens a log: empty (`None`, dropping what was there), or as it was when it had `Some(len)` bytes, dropping later lines.
    /// A missing file counts as 0 bytes long.
    ///
    /// # Errors
    /// [`LogError::Shorter`] and [`LogError::NotALine`] leave the file untouched.
    pub fn open_at(path: impl Into<PathBuf>, len: Option<u64>) -> Result<Self, LogError> {
        let path = path.into();
        let failed = |e| StoreError::new("open", &path, e);
        let open = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let mut file = open.map_err(failed)?;
        let found = file.metadata().map_err(failed)?.len();
        let expected = len.unwrap_or(0);
        if found < expected {
            return Err(LogError::Shorter { path, found, expected });
        }
        if expected > 0 && !ends_line(&mut file, expected).map_err(failed)? {
            return Err(LogError::NotALine { path, expected });
        }
        if found > expected {
            file.set_len(expected).map_err(failed)?;
        }
        Ok(Self { file, path, len: expected, torn: false })
    }

    /// Appends `line` and a newline. On error the log is as it was before, and stays usable.
    pub fn append_line(&mut self, line: &str) -> Result<(), LogError> {
        self.try_append(line).map_err(|e| StoreError::new("append to", &self.path, e).into())
    }

    /// Length in bytes: what a checkpoint records.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when there are no lines.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes all appended lines durable.
    pub fn sync(&self) -> Result<(), LogError> {
        self.file.sync_data().map_err(|e| StoreError::new("flush", &self.path, e).into())
    }

    fn try_append(&mut self, line: &str) -> io::Result<()> {
        if line.contains('\n') {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a line cannot contain a newline"));
        }
        if self.torn {
            self.mend()?;
        }
        let bytes = format!("{line}\n");
        if let Err(e) = self.file.write_all(bytes.as_bytes()) {
            self.torn = self.mend().is_err();
            return Err(e);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Removes what a failed append wrote of its line.
    fn mend(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.len {
            self.file.set_len(self.len)?;
        }
        self.torn = false;
        Ok(())
    }
}

fn ends_line(file: &mut File, len: u64) -> io::Result<bool> {
    let mut last = [0];
    file.seek(SeekFrom::Start(len - 1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn returns_to_a_recorded_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut log = AppendLog::open_at(&path, None).unwrap();
        log.append_line("{\"step\":1}").unwrap();
        let recorded = log.len();
        log.append_line("{\"step\":2}").unwrap();
        log.sync().unwrap();
        drop(log);

        let mut log = AppendLog::open_at(&path, Some(recorded)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n");
        log.append_line("{\"step\":3}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"step\":1}\n{\"step\":3}\n");
        assert_eq!(log.len(), fs::metadata(&path).unwrap().len());
        assert!(AppendLog::open_at(&path, None).unwrap().is_empty());
        assert!(AppendLog::open_at(dir.path().join("new"), Some(0)).is_ok());
    }

    #[test]
    fn a_shorter_or_foreign_log_is_refused_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.csv");
        fs::write(&path, "epoch\n1\n").unwrap();
        let shorter = AppendLog::open_at(&path, Some(9)).unwrap_err();
        assert!(matches!(shorter, LogError::Shorter { found: 8, expected: 9, .. }));
        let text = shorter.to_string();
        assert!(text.contains("results.csv") && text.contains('8') && text.contains('9'), "{text}");
        assert!(matches!(AppendLog::open_at(&path, Some(7)), Err(LogError::NotALine { expected: 7, .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "epoch\n1\n");
    }

    #[test]
    fn one_call_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = AppendLog::open_at(dir.path().join("log"), None).unwrap();
        assert!(log.append_line("a\nb").is_err());
        assert!(log.is_empty());
    }
}
