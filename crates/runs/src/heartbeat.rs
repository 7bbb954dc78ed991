//! A run's sign of life: a small file that says what its process is doing, and within how many seconds it means to have done more.
//!
//! Whoever watches a process looks whether [`Beat::count`] moves; whoever asks how a run is reads the rest. It is rewritten in place, is
//! never flushed and nothing is resumed from it, so it costs a system call and no promise depends on it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bounded::read_bounded;
use crate::store::StoreError;

/// Most bytes of such a file.
const LONGEST: u64 = 1 << 16;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// By itself, with this code.
    Code(i32),
    /// By a signal that whoever watched it has not sent.
    Signal(i32),
    /// It gave no sign of life for so many seconds.
    Hung(f64),
}

/// What a run tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Beat {
    /// Signs of life so far.
    pub count: u64,
    /// When this one was written, in seconds since 1970.
    pub time: u64,
    /// The process.
    pub pid: u32,
    /// The process that supervises it, if one does.
    pub supervisor: Option<u32>,
    /// What tells that process from another of its number, where that is known (see [`began`](crate::began)).
    pub supervisor_began: Option<String>,
    /// How often it has started the run again.
    pub restarts: u32,
    /// What the process is busy with.
    pub phase: String,
    /// Seconds within which the next sign comes.
    pub within_s: f64,
    /// How it ended; nothing while it goes on.
    pub ended: Option<String>,
    /// The run directory, once there is one.
    pub run: Option<PathBuf>,
    /// The rank that was lost, if the process ended of that.
    pub lost: Option<usize>,
    /// How that rank ended, where it was seen.
    pub lost_end: Option<End>,
    /// Another process goes on with this one's work by the same command, not by resuming `run`.
    pub same_command: bool,
    /// Where it computes.
    pub device: Option<String>,
    /// Whether that is anything but the processor.
    pub accelerator: bool,
    /// Why that is the processor, where something else was to be.
    pub fallback: Option<String>,
    /// Epoch in progress, from 1.
    pub epoch: usize,
    /// Epochs planned.
    pub epochs: usize,
    /// Batches done of this epoch.
    pub done: usize,
    /// Batches that it has.
    pub total: usize,
    /// Samples done of the evaluation in progress, or of the last one.
    pub evaluated: usize,
    /// Samples that it has.
    pub to_evaluate: usize,
    /// Checkpoints that were made while this process took part.
    pub saves: u64,
    /// Whether one of them is beyond where the process began.
    pub progressed: bool,
    /// Batches since the run began.
    pub step: u64,
    /// Mean loss items of this epoch so far.
    pub losses: BTreeMap<String, f64>,
    /// Units a second.
    pub speed: f64,
    /// What the units are: images, tokens.
    pub unit: String,
    /// Readings of the card: memory, temperature, power.
    pub gauges: BTreeMap<String, f64>,
}

/// The file as its process writes it.
#[derive(Debug)]
pub struct Heartbeat {
    path: PathBuf,
    file: File,
    longest: usize,
}

impl Heartbeat {
    /// Begins the file, or begins it anew.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
        Ok(Self { file: file.map_err(|e| StoreError::new("write", &path, e))?, path, longest: 0 })
    }

    /// Replaces what it says, in one write of at least as many bytes as before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, beat: &Beat) -> Result<(), StoreError> {
        let failed = |e| StoreError::new("write", &self.path, e);
        let mut text = serde_json::to_vec(beat).map_err(|e| failed(e.into()))?;
        self.longest = self.longest.max(text.len());
        text.resize(self.longest, b' ');
        text.push(b'\n');
        self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(&text)).map_err(failed)
    }
}

/// What the file at `path` says; `None` where there is none, and for the instant in which it is being written.
pub fn read_beat(path: &Path) -> Option<Beat> {
    serde_json::from_slice(&read_bounded(path, LONGEST).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_beat_is_read_also_if_it_is_shorter() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("heartbeat.json");
        assert_eq!(read_beat(&path), None);
        let mut file = Heartbeat::create(&path).unwrap();
        assert_eq!(read_beat(&path), None, "nothing was said yet");
        let long = Beat { count: 1, phase: "evaluation".into(), losses: [("box_loss".into(), 1.5)].into(), ..Beat::default() };
        let short = Beat { count: 2, phase: "step".into(), ..Beat::default() };
        for beat in [long, short] {
            file.write(&beat).unwrap();
            assert_eq!(read_beat(&path), Some(beat));
        }
        std::fs::write(&path, "{\"count\": 3, \"phase\": \"st").unwrap();
        assert_eq!(read_beat(&path), None);
        std::fs::write(&path, "{\"count\": 3, \"of a newer program\": 1}").unwrap();
        assert_eq!(read_beat(&path).unwrap().count, 3);
    }
}
