//! TensorBoard's event files: scalars of every batch and every evaluation.
//!
//! A file is a row of TFRecords (length, its CRC, data, its CRC; little-endian, CRC-32C rotated and offset), each the protocol buffer `Event`.
//! The few fields that scalars need are written by hand; field numbers are those of tensorflow/core/util/event.proto and
//! framework/summary.proto. Every session has a file of its own, which begins with a mark that makes TensorBoard drop what an
//! earlier session wrote after the checkpoint this one goes on from.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::observe::{BatchReport, EpochReport, Observer, RunInfo};

/// Writes a run's scalars for TensorBoard. A file that cannot be written costs a warning, not the run.
pub struct TensorBoard {
    dir: PathBuf,
    file: Option<File>,
    info: Option<RunInfo>,
}

impl TensorBoard {
    /// Event files go into `dir`, which is made when training starts.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), file: None, info: None }
    }

    fn write(&mut self, step: u64, what: &What<'_>) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(&record(&event(now(), step, what))) {
            tracing::warn!("{}: {error}; no more is written for TensorBoard", self.dir.display());
            self.file = None;
        }
    }

    fn scalars(&mut self, step: u64, values: &[(String, f64)]) {
        self.write(step, &What::Scalars(values));
    }
}

impl Observer for TensorBoard {
    fn on_start(&mut self, info: &RunInfo) {
        match create(&self.dir) {
            Ok(file) => self.file = Some(file),
            Err(error) => tracing::warn!("{}: {error}; nothing is written for TensorBoard", self.dir.display()),
        }
        self.write(0, &What::Version);
        self.write(info.step + 1, &What::SessionStart);
        self.info = Some(info.clone());
    }

    fn on_batch(&mut self, report: &BatchReport) {
        let Some(info) = &self.info else { return };
        let items = info.item_names.iter().zip(&report.items).map(|(name, &value)| (format!("train/{name}"), value));
        let rates = report.lr.iter().enumerate().map(|(group, &lr)| (format!("lr/pg{group}"), lr));
        let norm = report.grad_norm.map(|norm| ("train/grad_norm".to_string(), norm));
        let speed = [(format!("speed/{}_per_s", info.unit), report.rate())];
        let gauges = report.gauges.iter().map(|(name, value, _)| (name.to_string(), *value));
        let values: Vec<_> = items.chain(rates).chain(norm).chain(speed).chain(gauges).collect();
        self.scalars(report.step, &values);
    }

    fn on_epoch_end(&mut self, report: &EpochReport) {
        let Some(evaluation) = &report.evaluation else { return };
        self.scalars(report.step, &evaluation.metrics);
    }
}

/// What an `Event` says.
enum What<'a> {
    Version,
    SessionStart,
    Scalars(&'a [(String, f64)]),
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// A new file with a name that sorts by time, as TensorBoard reads the files of a directory in order.
fn create(dir: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    File::create_new(dir.join(format!("events.out.tfevents.{:017.6}.{host}.{}", now(), std::process::id())))
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of wire type 2: bytes, text or a message.
fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// `Event`: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. `Summary`: 1 value. `Summary.Value`: 1 tag, 2 simple_value.
/// `SessionLog`: 1 status, which is START = 1.
fn event(wall_time: f64, step: u64, what: &What<'_>) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(wall_time.to_le_bytes());
    if step > 0 {
        out.push(2 << 3);
        varint(&mut out, step);
    }
    match what {
        What::Version => bytes(&mut out, 3, b"brain.Event:2"),
        What::SessionStart => bytes(&mut out, 7, &[1 << 3, 1]),
        What::Scalars(values) => {
            let mut summary = Vec::new();
            for (tag, value) in *values {
                let mut scalar = Vec::new();
                bytes(&mut scalar, 1, tag.as_bytes());
                scalar.push(2 << 3 | 5);
                scalar.extend((*value as f32).to_le_bytes());
                bytes(&mut summary, 1, &scalar);
            }
            bytes(&mut out, 5, &summary);
        }
    }
    out
}

/// A TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u64).to_le_bytes();
    [&len[..], &masked_crc(&len), data, &masked_crc(data)].concat()
}

fn masked_crc(data: &[u8]) -> [u8; 4] {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// CRC-32C (Castagnoli), bit by bit: there are some hundred bytes a batch.
fn crc32c(data: &[u8]) -> u32 {
    !data
        .iter()
        .fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of tests/golden/tensorboard_events.tfevents, which TensorBoard's own writer made.
    #[test]
    fn records_are_tensorboards() {
        let scalars = [("train/loss".to_string(), 1.25), ("val/perplexity".to_string(), f64::INFINITY), ("lr/pg0".to_string(), 2e-4)];
        let ours = [(0, What::Version), (301, What::SessionStart), (300, What::Scalars(&scalars)), (70_000, What::Scalars(&[]))];
        let ours: Vec<u8> = ours.iter().flat_map(|(step, what)| record(&event(1_700_000_000.5, *step, what))).collect();
        assert_eq!(ours, include_bytes!("../tests/golden/tensorboard_events.tfevents"));
    }
}
