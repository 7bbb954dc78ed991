//! `confusion_matrix.png` and `confusion_matrix_normalized.png`: predicted classes down, true classes across.

use super::{PlotError, class_name, heat, readable_on};
use crate::metrics::ConfusionMatrix;
use bellows_plots::{Align, BLACK, Canvas, FILL, Style};
use std::path::Path;

const SIZE: f64 = 28.0;
/// Larger tables show colours only: numbers would not be legible.
const ANNOTATED: usize = 31;
/// Above so many rows the cells are small and without names: a picture of 1,203 classes with legible ones takes 5 GB to draw.
const NAMED: usize = 150;
/// Above so many rows neighbouring classes share a cell: the memory of a picture grows with the square of its cells.
const MOST: usize = 1500;
/// Longest name beside an axis, in pixels.
const NAME: f64 = 260.0;

/// Draws the table; the picture grows with the number of classes (about 1300 px square for four).
///
/// Normalised columns say what became of each true class. Cells below .005 are left blank, as are counts of 0. A cell of several classes has the largest
/// of their values.
///
/// # Errors
/// When the picture cannot be written.
pub fn confusion_matrix(matrix: &ConfusionMatrix, names: &[String], normalized: bool, path: &Path) -> Result<Vec<u8>, PlotError> {
    let classes = matrix.nc() + 1;
    let a_cell = classes.div_ceil(MOST);
    let n = classes.div_ceil(a_cell);
    let shares = matrix.shares();
    let value = |row, column| if normalized { shares(row, column) } else { matrix.get(row, column) as f64 };
    let of = |cell: usize| cell * a_cell..((cell + 1) * a_cell).min(classes);
    let largest = |i: usize| {
        let block = of(i / n).flat_map(|row| of(i % n).map(move |column| (row, column)));
        block.map(|(row, column)| value(row, column)).fold(0.0, f64::max)
    };
    let values: Vec<f64> = (0..n * n).map(largest).collect();
    let shown = |v: f64| match normalized {
        true if v < 0.005 => String::new(),
        true => format!("{v:.2}"),
        false if v == 0.0 => String::new(),
        false => format!("{v:.0}"),
    };
    let named = n <= NAMED;
    let cell = (900.0 / n as f64).clamp(if named { 17.0 } else { 2.0 }, 180.0);
    let name_size = SIZE.min(cell * 0.9);
    let ruler = Canvas::paper(1, 1);
    let labels: Vec<String> = (0..n)
        .filter(|_| named)
        .map(|c| if c < n - 1 { class_name(names, c) } else { "background".into() })
        .map(|l| ruler.fit(&l, name_size, NAME))
        .collect();
    let widest = labels.iter().map(|l| ruler.text_width(l, name_size)).fold(0.0, f64::max);
    let upright = widest > cell * 0.94;

    let (left, top, side) = (widest + 100.0, 90.0, cell * n as f64);
    let below = if upright { widest + 80.0 } else { 110.0 };
    let (width, height) = ((left + side + 190.0) as u32, (top + side + below) as u32);
    let mut canvas = Canvas::paper(width.max(700), height);
    let title = if normalized { "Confusion matrix, normalised by true class" } else { "Confusion matrix" };
    let several = if a_cell > 1 { format!(" ({a_cell} classes a cell)") } else { String::new() };
    canvas.text(&format!("{title}{several}"), (left + side / 2.0, 45.0), Style::new(SIZE, Align::Middle));

    let most = if normalized { 1.0 } else { values.iter().copied().fold(1.0, f64::max) };
    let longest = values.iter().filter(|_| n <= ANNOTATED).map(|&v| ruler.text_width(&shown(v), 100.0)).fold(1.0, f64::max);
    let value_size = (cell * 0.84 / longest * 100.0).min(cell * 0.42).min(34.0);
    // Paper is white, as a cell of nothing is.
    for (i, &value) in values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
        let (x, y) = (left + (i % n) as f64 * cell, top + (i / n) as f64 * cell);
        let color = heat(value / most);
        canvas.rect((x, y), (x + cell, y + cell), color, FILL);
        if n <= ANNOTATED {
            canvas.text(&shown(value), (x + cell / 2.0, y + cell / 2.0), Style::new(value_size, Align::Middle).color(readable_on(color)));
        }
    }
    for k in (0..=n).filter(|&k| n <= ANNOTATED || k == 0 || k == n) {
        let at = k as f64 * cell;
        let shade = if k == 0 || k == n { [120; 3] } else { [215; 3] };
        canvas.line(&[(left + at, top), (left + at, top + side)], shade, 1.0);
        canvas.line(&[(left, top + at), (left + side, top + at)], shade, 1.0);
    }

    for (k, label) in labels.iter().enumerate() {
        let middle = (k as f64 + 0.5) * cell;
        canvas.text(label, (left - 14.0, top + middle), Style::new(name_size, Align::End));
        if upright {
            canvas.text(label, (left + middle, top + side + 14.0), Style::new(name_size, Align::End).upward());
        } else {
            canvas.text(label, (left + middle, top + side + 28.0), Style::new(name_size, Align::Middle));
        }
    }
    canvas.text("True", (left + side / 2.0, top + side + below - 36.0), Style::new(SIZE, Align::Middle));
    canvas.text("Predicted", (36.0, top + side / 2.0), Style::new(SIZE, Align::Middle).upward());
    scale_bar(&mut canvas, (left + side + 40.0, top), side, |share| shown(share * most));
    canvas.encode(path)
}

/// What the colours mean: from 0 at the bottom to the largest value at the top.
fn scale_bar(canvas: &mut Canvas, (x, top): (f64, f64), side: f64, label: impl Fn(f64) -> String) {
    for k in 0..side as usize {
        let y = top + side - k as f64;
        canvas.rect((x, y - 1.0), (x + 34.0, y), heat(k as f64 / side), FILL);
    }
    canvas.rect((x, top), (x + 34.0, top + side), [120; 3], 1.0);
    for k in 0..=4 {
        let share = f64::from(k) / 4.0;
        let text = if k == 0 { "0".into() } else { label(share) };
        canvas.text(&text, (x + 44.0, top + side * (1.0 - share)), Style::new(SIZE * 0.88, Align::Start).color(BLACK));
    }
}
