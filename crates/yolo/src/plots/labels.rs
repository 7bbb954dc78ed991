//! `labels.jpg`: what the training labels look like before anything is learnt from them.

use super::{PlotError, class_name, heat, ink};
use crate::boxes::Label;
use bellows_plots::{Align, Axes, Canvas, Captions, FILL, Style};
use std::path::Path;

const SIDE: u32 = 1600;
const BINS: usize = 50;
const SIZE: f64 = 26.0;

/// Draws a 2×2 chart of 1600×1600 px: objects per class, the first 500 boxes laid over one another (as large as the largest of them allows), and where the centres and the
/// sizes of all boxes lie. Class names beyond the list appear as `class_i`.
///
/// # Errors
/// When the picture cannot be written.
pub fn labels_chart(labels: &[Label], names: &[String], path: &Path) -> Result<Vec<u8>, PlotError> {
    let mut canvas = Canvas::paper(SIDE, SIDE);
    histogram(&mut canvas, labels, names);
    shapes(&mut canvas, labels);

    let unit = || 0.0..1.0;
    let centres = Axes { frame: frame(0, 1), x: unit(), y: 1.0..0.0 };
    let captions = Captions { title: "centres", x: "x (share of width)", y: "y (share of height)", size: SIZE };
    density(&mut canvas, &centres, &captions, labels.iter().map(|l| (l.xywh[0], l.xywh[1])));

    let most = |i: usize| labels.iter().map(|l| f64::from(l.xywh[i])).fold(0.0, f64::max);
    let range = |most: f64| 0.0..if most > 0.0 { most * 1.02 } else { 1.0 };
    let sizes = Axes { frame: frame(1, 1), x: range(most(2)), y: range(most(3)) };
    let captions = Captions { title: "sizes", x: "width (share of image)", y: "height (share of image)", size: SIZE };
    density(&mut canvas, &sizes, &captions, labels.iter().map(|l| (l.xywh[2], l.xywh[3])));
    canvas.encode(path)
}

fn frame(col: u32, row: u32) -> ((f64, f64), (f64, f64)) {
    let (x, y, half) = (f64::from(col * SIDE / 2), f64::from(row * SIDE / 2), f64::from(SIDE / 2));
    ((x + 120.0, y + 60.0), (x + half - 30.0, y + half - 90.0))
}

fn histogram(canvas: &mut Canvas, labels: &[Label], names: &[String]) {
    let classes = labels.iter().map(|l| l.class as usize + 1).max().unwrap_or(0).max(names.len());
    let mut counts = vec![0u64; classes];
    for label in labels {
        counts[label.class as usize] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let mut axes = Axes { frame: frame(0, 0), x: 0.0..classes.max(1) as f64, y: 0.0..most * 1.1 };
    let ((left, _), (right, bottom)) = axes.frame;
    let slot = (right - left) / classes.max(1) as f64;

    // Names lie flat if they fit, else stand upright in a frame made shorter for them, and are left out where even that is too tight.
    let widest = names.iter().map(|n| canvas.text_width(n, SIZE)).fold(0.0, f64::max);
    let upright = widest > slot * 0.92;
    let named = slot >= 18.0;
    if upright && named {
        axes.frame.1.1 = bottom - (widest.min(220.0) - 60.0).max(0.0);
    }
    let ((_, _), (_, bottom)) = axes.frame;
    let captions = Captions { title: "objects per class", x: "", y: "", size: SIZE };
    axes.draw(canvas, &captions, 0, 6);
    for (class, &count) in counts.iter().enumerate() {
        let middle = class as f64 + 0.5;
        canvas.rect(axes.at(middle - 0.4, 0.0), axes.at(middle + 0.4, count as f64), ink(class as u32), FILL);
        let (x, y) = axes.at(middle, count as f64);
        if canvas.text_width(&count.to_string(), SIZE * 0.8) < slot {
            canvas.text(&count.to_string(), (x, y - 16.0), Style::new(SIZE * 0.8, Align::Middle));
        }
        let name = canvas.fit(&class_name(names, class), SIZE, 220.0);
        match (named, upright) {
            (false, _) => {}
            (true, false) => canvas.text(&name, (x, bottom + 24.0), Style::new(SIZE, Align::Middle)),
            (true, true) => canvas.text(&name, (x, bottom + 12.0), Style::new(SIZE.min(slot), Align::End).upward()),
        }
    }
    if labels.is_empty() {
        axes.note(canvas, "no labels", SIZE);
    }
}

fn shapes(canvas: &mut Canvas, labels: &[Label]) {
    let first = &labels[..labels.len().min(500)];
    let reach = reach(first);
    let axes = Axes { frame: frame(1, 0), x: -reach..reach, y: -reach..reach };
    let title = if labels.len() > 500 { "shapes of the first 500 boxes" } else { "shapes of the boxes" };
    axes.draw(canvas, &Captions { title, x: "share of the image, from the boxes' centres", y: "", size: SIZE }, 5, 5);
    // Large boxes first, so that small ones stay visible.
    let mut order: Vec<&Label> = first.iter().collect();
    order.sort_by(|a, b| (b.xywh[2] * b.xywh[3]).total_cmp(&(a.xywh[2] * a.xywh[3])));
    for label in order {
        let (w, h) = (f64::from(label.xywh[2]) / 2.0, f64::from(label.xywh[3]) / 2.0);
        canvas.rect(axes.at(-w, -h), axes.at(w, h), ink(label.class), 1.0);
    }
    if labels.is_empty() {
        axes.note(canvas, "no labels", SIZE);
    }
}

/// How far the largest of the boxes reaches from its centre, and a little room: of small objects nothing could be told apart at the size of an image.
fn reach(labels: &[Label]) -> f64 {
    let longest = labels.iter().map(|label| f64::from(label.xywh[2].max(label.xywh[3]))).fold(0.0, f64::max);
    if longest > 0.0 { longest * 0.525 } else { 0.5 }
}

/// A 50×50 histogram over the axes. Colour grows with the square root of the count, so that rare places show beside common ones.
fn density(canvas: &mut Canvas, axes: &Axes, captions: &Captions, points: impl Iterator<Item = (f32, f32)>) {
    axes.draw(canvas, captions, 5, 5);
    let bin = |v: f32, range: &std::ops::Range<f64>| {
        let share = (f64::from(v) - range.start.min(range.end)) / (range.end - range.start).abs();
        ((share * BINS as f64) as usize).min(BINS - 1)
    };
    let mut counts = vec![0u32; BINS * BINS];
    for (x, y) in points {
        counts[bin(y, &axes.y) * BINS + bin(x, &axes.x)] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return axes.note(canvas, "no labels", captions.size);
    }
    let edge =
        |k: usize, range: &std::ops::Range<f64>| range.start.min(range.end) + k as f64 / BINS as f64 * (range.end - range.start).abs();
    for (i, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
        let (row, col) = (i / BINS, i % BINS);
        let corner = |r: usize, c: usize| axes.at(edge(c, &axes.x), edge(r, &axes.y));
        let share = (f64::from(count) / f64::from(most)).sqrt();
        canvas.rect(corner(row, col), corner(row + 1, col + 1), heat(0.15 + 0.85 * share), FILL);
    }
    axes.draw_frame(canvas, &Captions { title: "", x: "", y: "", size: captions.size });
}
