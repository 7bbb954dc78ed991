//! A framed pair of linear axes: maps data to pixels, draws grid, ticks and labels.

use crate::canvas::{Align, BLACK, Canvas, FILL, Point, Rgb, Style, WHITE};
use std::ops::Range;

const GRID: Rgb = [228; 3];
const FRAME: Rgb = [150; 3];

/// A frame and the ranges of data it shows.
pub struct Axes {
    /// Top left and bottom right of the frame.
    pub frame: (Point, Point),
    /// From the left to the right edge.
    pub x: Range<f64>,
    /// `start` is at the bottom, so a range that runs backwards points down.
    pub y: Range<f64>,
}

/// The texts round a frame; an empty one is not drawn.
pub struct Captions<'a> {
    /// Above.
    pub title: &'a str,
    /// Below.
    pub x: &'a str,
    /// On the left, reading upward.
    pub y: &'a str,
    /// Size of the captions; tick labels are a little smaller.
    pub size: f64,
}

impl Axes {
    /// Pixels of a data point, held inside the frame.
    pub fn at(&self, x: f64, y: f64) -> Point {
        let ((x0, y0), (x1, y1)) = self.frame;
        let share = |v: f64, range: &Range<f64>| ((v - range.start) / (range.end - range.start)).clamp(0.0, 1.0);
        (x0 + share(x, &self.x) * (x1 - x0), y1 - share(y, &self.y) * (y1 - y0))
    }

    /// Paper, grid, tick labels, frame and captions; draw the data afterwards.
    pub fn draw(&self, canvas: &mut Canvas, captions: &Captions, x_ticks: usize, y_ticks: usize) {
        let (a, b) = self.frame;
        let small = captions.size * 0.88;
        canvas.rect(a, b, WHITE, FILL);
        for (value, label) in ticks(&self.x, x_ticks) {
            let (x, _) = self.at(value, self.y.start);
            canvas.line(&[(x, a.1), (x, b.1)], GRID, 1.0);
            canvas.text(&label, (x, b.1 + small * 0.75), Style::new(small, Align::Middle));
        }
        for (value, label) in ticks(&self.y, y_ticks) {
            let (_, y) = self.at(self.x.start, value);
            canvas.line(&[(a.0, y), (b.0, y)], GRID, 1.0);
            canvas.text(&label, (a.0 - small * 0.4, y), Style::new(small, Align::End));
        }
        self.draw_frame(canvas, captions);
    }

    /// Frame and captions only.
    pub fn draw_frame(&self, canvas: &mut Canvas, captions: &Captions) {
        let ((x0, y0), (x1, y1)) = self.frame;
        let (size, middle) = (captions.size, Style::new(captions.size, Align::Middle));
        canvas.rect((x0, y0), (x1, y1), FRAME, 1.0);
        canvas.text(captions.title, ((x0 + x1) / 2.0, y0 - size * 0.8), middle.color(BLACK));
        canvas.text(captions.x, ((x0 + x1) / 2.0, y1 + size * 2.0), middle);
        canvas.text(captions.y, (x0 - size * 3.0, (y0 + y1) / 2.0), middle.upward());
    }

    /// A note in the middle of a frame that has nothing to show.
    pub fn note(&self, canvas: &mut Canvas, text: &str, size: f64) {
        let ((x0, y0), (x1, y1)) = self.frame;
        canvas.text(text, ((x0 + x1) / 2.0, (y0 + y1) / 2.0), Style::new(size, Align::Middle).color([120; 3]));
    }

    /// A line through the points whose y is finite, broken where it is not.
    pub fn line(&self, canvas: &mut Canvas, points: impl IntoIterator<Item = (f64, f64)>, color: Rgb, width: f64) {
        let mut run = Vec::new();
        for (x, y) in points.into_iter().chain([(f64::NAN, f64::NAN)]) {
            if y.is_finite() {
                run.push(self.at(x, y));
            } else if run.len() > 1 {
                canvas.line(&std::mem::take(&mut run), color, width);
            } else {
                run.clear();
            }
        }
    }
}

/// About `count` round numbers inside the range (1, 2 or 5 times a power of ten apart), with labels of just enough decimals; none for 0.
fn ticks(range: &Range<f64>, count: usize) -> Vec<(f64, String)> {
    let (low, high) = (range.start.min(range.end), range.start.max(range.end));
    let rough = (high - low) / count as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|&s| s >= rough * 0.999).unwrap_or(power);
    if !(step.is_finite() && step > 0.0) {
        return Vec::new();
    }
    let decimals = (-step.log10().floor()).clamp(0.0, 8.0) as usize;
    let slack = step * 1e-6;
    let multiples = ((low - slack) / step).ceil() as i64..=((high + slack) / step).floor() as i64;
    let label = |value: f64| if high.abs() >= 1e5 { format!("{value:e}") } else { format!("{value:.decimals$}") };
    multiples.map(|k| k as f64 * step).map(|value| (value, label(value))).collect()
}

/// The finite values' range with a twentieth of room at both ends; 0..1 for none, one unit wide for a single value.
pub fn padded(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    if low > high {
        return 0.0..1.0;
    }
    let room = if high - low > f64::EPSILON * high.abs().max(1.0) { (high - low) * 0.05 } else { high.abs().max(1.0) * 0.5 };
    low - room..high + room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let labels = |range: Range<f64>| ticks(&range, 5).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(0.0..1.0), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(0.9..10.1), ["2", "4", "6", "8", "10"]);
        assert_eq!(labels(1.0..0.0), labels(0.0..1.0), "a range that runs down has the same ticks");
        assert!(labels(1.0..1.0).is_empty() && labels(f64::NAN..1.0).is_empty() && ticks(&(0.0..1.0), 0).is_empty());
    }

    #[test]
    fn padded_ranges_are_never_empty() {
        assert_eq!(padded([].into_iter()), 0.0..1.0);
        assert_eq!(padded([f64::NAN, 2.0].into_iter()), 1.0..3.0);
        assert_eq!(padded([0.0, 10.0].into_iter()), -0.5..10.5);
    }
}
