//! `stats.png`: what a data set is made of, all splits side by side.

use super::{PlotError, class_name, ink};
use crate::data::stats::SplitStats;
use bellows_plots::{Align, Axes, Canvas, Captions, FILL, Rgb, Style};
use std::path::Path;

const SIDE: u32 = 1600;
const SIZE: f64 = 26.0;
/// Classes that have room; of more, the most frequent.
const CLASSES: usize = 24;
const SIZES: [&str; 3] = ["small", "medium", "large"];

/// Draws a 2×2 chart of 1600×1600 px: objects per class by size over all splits, and for each split how many objects an image has, how bright
/// images are, and which sizes they have.
///
/// # Errors
/// When the picture cannot be encoded.
pub fn data_chart(splits: &[SplitStats], names: &[String], path: &Path) -> Result<Vec<u8>, PlotError> {
    let mut canvas = Canvas::paper(SIDE, SIDE);
    classes(&mut canvas, splits, names);
    let most = splits.iter().flat_map(|s| s.per_image.iter().copied()).max().unwrap_or(0);
    let width = most.div_ceil(30).max(1);
    let objects = |s: &SplitStats| s.per_image.iter().map(|&n| n as f64).collect::<Vec<_>>();
    let bins = Bins { from: 0.0, width: width as f64, count: most / width + 1 };
    histogram(&mut canvas, (1, 0), ["objects per image", "objects", "share of images"], splits, &bins, objects);
    let bins = Bins { from: 0.0, width: 8.0, count: 32 };
    let gray = |s: &SplitStats| s.brightness.iter().map(|&b| f64::from(b)).collect::<Vec<_>>();
    histogram(&mut canvas, (0, 1), ["brightness", "mean gray of an image", "share of images"], splits, &bins, gray);
    sizes(&mut canvas, splits);
    canvas.encode(path)
}

fn frame(col: u32, row: u32) -> ((f64, f64), (f64, f64)) {
    let (x, y, half) = (f64::from(col * SIDE / 2), f64::from(row * SIDE / 2), f64::from(SIDE / 2));
    ((x + 120.0, y + 110.0), (x + half - 30.0, y + half - 90.0))
}

/// Names with their colours, in a line above a frame.
fn key(canvas: &mut Canvas, ((left, top), _): ((f64, f64), (f64, f64)), entries: impl Iterator<Item = (String, Rgb)>) {
    let mut x = left;
    for (name, color) in entries {
        canvas.rect((x, top - 34.0), (x + 18.0, top - 16.0), color, FILL);
        canvas.text(&name, (x + 26.0, top - 25.0), Style::new(SIZE * 0.8, Align::Start));
        x += 46.0 + canvas.text_width(&name, SIZE * 0.8);
    }
}

fn classes(canvas: &mut Canvas, splits: &[SplitStats], names: &[String]) {
    let nc = splits.iter().map(|s| s.classes.len()).max().unwrap_or(0);
    let sum = |class: usize, size: usize| splits.iter().filter_map(|s| s.classes.get(class)).map(|c| c.objects[size]).sum::<u64>();
    let mut rows: Vec<(usize, [u64; 3])> = (0..nc).map(|class| (class, [0, 1, 2].map(|size| sum(class, size)))).collect();
    let title = if nc > CLASSES { format!("objects of the {CLASSES} most frequent classes") } else { "objects per class".into() };
    if nc > CLASSES {
        rows.sort_by_key(|(_, objects)| std::cmp::Reverse(objects.iter().sum::<u64>()));
        rows.truncate(CLASSES);
    }
    let most = rows.iter().map(|(_, objects)| objects.iter().sum::<u64>()).max().unwrap_or(0).max(1) as f64;
    let (mut place, slots) = (frame(0, 0), rows.len().max(1) as f64);
    let ((left, _), (right, _)) = place;
    let slot = (right - left) / slots;
    let name = |class| class_name(names, class);
    let widest = rows.iter().map(|&(class, _)| canvas.text_width(&name(class), SIZE)).fold(0.0, f64::max);
    let upright = widest > slot * 0.92;
    if upright {
        place.1.1 -= (widest.min(200.0) - 60.0).max(0.0);
    }
    let axes = Axes { frame: place, x: 0.0..slots, y: 0.0..most * 1.1 };
    axes.draw(canvas, &Captions { title: "", x: "", y: "", size: SIZE }, 0, 6);
    canvas.text(&title, ((left + right) / 2.0, place.0.1 - 66.0), Style::new(SIZE * 1.1, Align::Middle));
    key(canvas, place, SIZES.iter().enumerate().map(|(i, name)| (name.to_string(), ink(i as u32))));
    for (i, (class, objects)) in rows.iter().enumerate() {
        let (middle, mut below) = (i as f64 + 0.5, 0.0);
        for (size, &n) in objects.iter().enumerate() {
            canvas.rect(axes.at(middle - 0.4, below), axes.at(middle + 0.4, below + n as f64), ink(size as u32), FILL);
            below += n as f64;
        }
        let (x, y) = axes.at(middle, below);
        let total = below.to_string();
        if canvas.text_width(&total, SIZE * 0.8) < slot {
            canvas.text(&total, (x, y - 16.0), Style::new(SIZE * 0.8, Align::Middle));
        }
        let (text, bottom) = (canvas.fit(&name(*class), SIZE, 200.0), place.1.1);
        let (at, style) = if upright {
            ((x, bottom + 12.0), Style::new(SIZE.min(slot), Align::End).upward())
        } else {
            ((x, bottom + 24.0), Style::new(SIZE, Align::Middle))
        };
        canvas.text(&text, at, style);
    }
}

/// Equal bins from `from`.
struct Bins {
    from: f64,
    width: f64,
    count: usize,
}

/// Shares, so that splits of different sizes compare.
fn histogram(
    canvas: &mut Canvas,
    (col, row): (u32, u32),
    [title, x, y]: [&str; 3],
    splits: &[SplitStats],
    bins: &Bins,
    values: impl Fn(&SplitStats) -> Vec<f64>,
) {
    let shares = |split: &SplitStats| {
        let values = values(split);
        let mut counts = vec![0.0; bins.count];
        for v in &values {
            let bin = ((v - bins.from) / bins.width).max(0.0) as usize;
            counts[bin.min(bins.count - 1)] += 1.0 / values.len() as f64;
        }
        counts
    };
    let all: Vec<Vec<f64>> = splits.iter().map(shares).collect();
    let most = all.iter().flatten().copied().fold(0.0, f64::max);
    let place = frame(col, row);
    let end = bins.from + bins.width * bins.count as f64;
    let axes = Axes { frame: place, x: bins.from..end, y: 0.0..if most > 0.0 { most * 1.1 } else { 1.0 } };
    axes.draw(canvas, &Captions { title: "", x, y, size: SIZE }, 6, 6);
    canvas.text(title, ((place.0.0 + place.1.0) / 2.0, place.0.1 - 66.0), Style::new(SIZE * 1.1, Align::Middle));
    key(canvas, place, splits.iter().enumerate().map(|(i, s)| (s.split.key().to_string(), ink(i as u32))));
    // A step line a split: bars would hide each other.
    for (i, shares) in all.iter().enumerate() {
        let edge = |k: usize| bins.from + bins.width * k as f64;
        let steps = shares.iter().enumerate().flat_map(|(k, &share)| [(edge(k), share), (edge(k + 1), share)]);
        axes.line(canvas, std::iter::once((bins.from, 0.0)).chain(steps).chain([(end, 0.0)]), ink(i as u32), 3.0);
    }
    if most == 0.0 {
        axes.note(canvas, "no images", SIZE);
    }
}

/// The most frequent sizes of images as bars, all splits together.
fn sizes(canvas: &mut Canvas, splits: &[SplitStats]) {
    let mut counts = std::collections::BTreeMap::new();
    for (size, n) in splits.iter().flat_map(|s| &s.sizes) {
        *counts.entry((size.width, size.height)).or_insert(0usize) += n;
    }
    let (kinds, total) = (counts.len(), counts.values().sum::<usize>().max(1));
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
    rows.truncate(10);
    let place = frame(1, 1);
    let ((left, top), (right, bottom)) = place;
    let title = if kinds > rows.len() { format!("the 10 most frequent of {kinds} image sizes") } else { "image sizes".into() };
    canvas.text(&title, ((left + right) / 2.0, top - 66.0), Style::new(SIZE * 1.1, Align::Middle));
    let most = rows.first().map_or(1, |&(_, n)| n) as f64;
    let step = ((bottom - top) / rows.len().max(1) as f64).min(60.0);
    for (i, &((width, height), n)) in rows.iter().enumerate() {
        let y = top + step * (i as f64 + 0.5);
        canvas.text(&format!("{width}×{height}"), (left + 120.0, y), Style::new(SIZE * 0.9, Align::End));
        let length = (right - left - 300.0) * n as f64 / most;
        canvas.rect((left + 135.0, y - step * 0.3), (left + 135.0 + length.max(1.0), y + step * 0.3), ink(0), FILL);
        let share = format!("{n} ({:.0} %)", 100.0 * n as f64 / total as f64);
        canvas.text(&share, (left + 147.0 + length, y), Style::new(SIZE * 0.8, Align::Start));
    }
}
