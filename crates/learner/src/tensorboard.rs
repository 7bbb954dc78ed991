//! TensorBoard's event files: scalars of every batch and every evaluation.
//!
//! A file is a row of TFRecords (length, its CRC, data, its CRC; little-endian, CRC-32C rotated and offset), each the protocol buffer `Event`.
//! The few fields that scalars need are encoded by hand; field numbers are those of tensorflow/core/util/event.proto and
//! framework/summary.proto. Every session has a file of its own, which begins with a mark that makes TensorBoard drop what an
//! earlier session wrote after the checkpoint this one goes on from.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::observe::{BatchReport, EpochReport, RunInfo};

/// The name of a session's file: it sorts by time, as TensorBoard reads the files of a directory in order.
pub(crate) fn file_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    format!("tensorboard/events.out.tfevents.{:017.6}.{host}.{}", now(), std::process::id())
}

/// What a session's file begins with.
pub(crate) fn of_start(info: &RunInfo) -> Vec<u8> {
    [record(&event(now(), 0, &What::Version)), record(&event(now(), info.step + 1, &What::SessionStart))].concat()
}

/// The scalars of a batch.
pub(crate) fn of_batch(items: &[&'static str], unit: &str, report: &BatchReport) -> Vec<u8> {
    let items = items.iter().zip(&report.items).map(|(name, &value)| (format!("train/{name}"), value));
    let rates = report.lr.iter().enumerate().map(|(group, &lr)| (format!("lr/pg{group}"), lr));
    let norm = report.grad_norm.map(|norm| ("train/grad_norm".to_string(), norm));
    let speed = [(format!("speed/{unit}_per_s"), report.rate())];
    let gauges = report.gauges.iter().map(|(name, value, _)| (name.to_string(), *value));
    let values: Vec<_> = items.chain(rates).chain(norm).chain(speed).chain(gauges).collect();
    record(&event(now(), report.step, &What::Scalars(&values)))
}

/// The scalars of an evaluation; nothing without one.
pub(crate) fn of_epoch(report: &EpochReport) -> Vec<u8> {
    let scalars = |metrics: &[(String, f64)]| record(&event(now(), report.step, &What::Scalars(metrics)));
    report.evaluation.as_ref().map(|e| scalars(&e.metrics)).unwrap_or_default()
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
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
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
