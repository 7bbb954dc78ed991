//! `results.png`: ten training curves over the epochs, read from the text of `results.csv`.

use super::PlotError;
use bellows_plots::{Align, Axes, Canvas, Captions, Style, padded};
use std::path::Path;

/// First row, then second row.
const PANELS: [[&str; 5]; 2] = [
    ["train/box_loss", "train/cls_loss", "train/dfl_loss", "metrics/precision(B)", "metrics/recall(B)"],
    ["val/box_loss", "val/cls_loss", "val/dfl_loss", "metrics/mAP50(B)", "metrics/mAP50-95(B)"],
];
const LINE: [u8; 3] = [31, 100, 190];
const SMOOTH: [u8; 3] = [235, 120, 20];
/// Epochs that the smooth curve reaches out by.
const SIGMA: f64 = 3.0;
/// Pixels left of a panel: a loss that hardly changes any more has tick labels of eight characters.
const LEFT: f64 = 110.0;

/// Draws a 2×5 grid of 2250×1000 px: losses, precision and recall, mAP over epochs, with a Gaussian smooth (σ = 3 epochs).
///
/// `csv` is the whole file with its header. A column that is missing, and a cell that is not a number, is simply not drawn.
///
/// # Errors
/// When the picture cannot be written.
pub fn results_chart(csv: &str, path: &Path) -> Result<Vec<u8>, PlotError> {
    let epochs = column(csv, "epoch");
    let mut canvas = Canvas::paper(2250, 1000);
    let (cell_w, cell_h) = (2250.0 / 5.0, 470.0);
    for (row, panels) in PANELS.iter().enumerate() {
        for (col, name) in panels.iter().enumerate() {
            let (x, y) = (col as f64 * cell_w, row as f64 * cell_h);
            let values = column(csv, name);
            let frame = ((x + LEFT, y + 55.0), (x + cell_w - 20.0, y + cell_h - 65.0));
            let axes = Axes { frame, x: padded(epochs.iter().copied()), y: padded(values.iter().copied()) };
            let below = if row == 1 { "epoch" } else { "" };
            let whole_epochs = ((axes.x.end - axes.x.start).ceil() as usize).min(6);
            axes.draw(&mut canvas, &Captions { title: name, x: below, y: "", size: 24.0 }, whole_epochs, 6);
            let points: Vec<_> = epochs.iter().copied().zip(values).filter(|(e, v)| e.is_finite() && v.is_finite()).collect();
            series(&mut canvas, &axes, &points);
        }
    }
    legend(&mut canvas, 2250.0 / 2.0, 972.0);
    canvas.encode(path)
}

fn series(canvas: &mut Canvas, axes: &Axes, points: &[(f64, f64)]) {
    if points.is_empty() {
        return axes.note(canvas, "no data", 22.0);
    }
    axes.line(canvas, points.iter().copied(), LINE, 2.5);
    let radius = if points.len() > 60 { 2.0 } else { 4.5 };
    for &(x, y) in points {
        canvas.dot(axes.at(x, y), radius, LINE);
    }
    let track: Vec<_> = points.iter().map(|&(x, _)| axes.at(x, smoothed(points, x))).collect();
    for at in along(&track, 9.0) {
        canvas.dot(at, 2.2, SMOOTH);
    }
}

/// The mean of all values, weighed by how many epochs they are from `epoch`: of epochs that are validated now and then few are near.
fn smoothed(points: &[(f64, f64)], epoch: f64) -> f64 {
    let weighed = points.iter().map(|&(x, y)| ((-0.5 * ((x - epoch) / SIGMA).powi(2)).exp(), y));
    let (sum, total) = weighed.fold((0.0, 0.0), |(sum, total), (weight, y)| (sum + weight * y, total + weight));
    sum / total
}

fn legend(canvas: &mut Canvas, x: f64, y: f64) {
    canvas.line(&[(x - 190.0, y), (x - 140.0, y)], LINE, 2.5);
    canvas.dot((x - 165.0, y), 4.5, LINE);
    canvas.text("results", (x - 125.0, y), Style::new(24.0, Align::Start));
    for k in 0..6 {
        canvas.dot((x + 40.0 + 9.0 * f64::from(k), y), 2.2, SMOOTH);
    }
    canvas.text("smooth", (x + 100.0, y), Style::new(24.0, Align::Start));
}

/// The values under a header name, NaN where a cell is no number; empty when there is no such column.
fn column(csv: &str, name: &str) -> Vec<f64> {
    // Names of groups hold commas, and are quoted then. A line that broke off has fewer cells.
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(csv.as_bytes());
    let index = reader.headers().ok().and_then(|headers| headers.iter().position(|header| header == name));
    let Some(index) = index else { return Vec::new() };
    reader.records().flatten().map(|row| row.get(index).and_then(|cell| cell.parse().ok()).unwrap_or(f64::NAN)).collect()
}

/// Points every `gap` pixels along a track.
fn along(track: &[(f64, f64)], gap: f64) -> Vec<(f64, f64)> {
    let (mut dots, mut until_next) = (track[..1.min(track.len())].to_vec(), gap);
    for pair in track.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let length = (x1 - x0).hypot(y1 - y0);
        while until_next <= length {
            dots.push((x0 + (x1 - x0) * until_next / length, y0 + (y1 - y0) * until_next / length));
            until_next += gap;
        }
        until_next -= length;
    }
    dots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let csv = "epoch, a ,b\n1,2,x\n\n2,4\n";
        assert_eq!(column(csv, "a"), [2.0, 4.0]);
        assert!(column(csv, "b").iter().all(|v| v.is_nan()) && column(csv, "c").is_empty() && column("", "a").is_empty());
    }

    #[test]
    fn a_name_with_a_comma_is_one_column() {
        let csv = "epoch,\"metrics/rain, light/mAP50\",val/box_loss\n1,0.5,2\n2,0.6,3\n";
        assert_eq!((column(csv, "val/box_loss"), column(csv, "metrics/rain, light/mAP50")), (vec![2.0, 3.0], vec![0.5, 0.6]));
    }

    #[test]
    fn the_smooth_curve_is_of_epochs_and_not_of_points() {
        let apart = |epochs: f64| smoothed(&[(epochs, 0.0), (2.0 * epochs, 1.0), (3.0 * epochs, 0.0)], 2.0 * epochs);
        let weight = |epochs: f64| (-0.5 * (epochs / 3.0).powi(2)).exp();
        for epochs in [1.0, 5.0, 20.0] {
            assert!((apart(epochs) - 1.0 / (1.0 + 2.0 * weight(epochs))).abs() < 1e-12, "{epochs}");
        }
        assert!(apart(20.0) > 0.999 && (smoothed(&[(1.0, 2.0), (7.0, 2.0)], 1.0) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn dots_are_evenly_spaced_round_corners() {
        assert_eq!(along(&[(0.0, 0.0), (3.0, 0.0), (3.0, 5.0)], 2.0), [(0.0, 0.0), (2.0, 0.0), (3.0, 1.0), (3.0, 3.0), (3.0, 5.0)]);
        assert!(along(&[], 2.0).is_empty());
    }
}
