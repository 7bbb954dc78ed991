//! The pictures of a run directory: training curves, label statistics, metric curves, confusion matrices, batches with their boxes.
//!
//! Needs no fonts on the machine: one is embedded (Latin, Greek and Cyrillic; other scripts show as empty boxes). Nothing to draw is no
//! error: the picture is then an empty, labelled chart. The file extension chooses PNG or JPEG.

mod annotate;
mod confusion;
mod curves;
mod data;
mod grid;
mod groups;
mod labels;
mod results;
mod tags;

pub use annotate::{Annotator, Ink};
pub use bellows_plots::{PlotError, encode};
pub use confusion::confusion_matrix;
pub use curves::CurveKind;
pub use data::data_chart;
pub use grid::{GridBox, GridImage, image_grid};
pub use groups::{MOST_GROUPS, groups_chart};
pub use labels::labels_chart;
pub use results::results_chart;

use bellows_plots::Rgb;

/// The colours of classes 0..20, then again from the start.
const PALETTE: [u32; 20] = [
    0x042AFF, 0x0BDBEB, 0xF3F3F3, 0x00DFB7, 0x111F68, 0xFF6FDD, 0xFF444F, 0xCCED00, 0x00F344, 0xBD00FF, 0x00B4FF, 0xDD00BA, 0x00FFFF,
    0x26C000, 0x01FFB3, 0x7D24FF, 0x7B0068, 0xFF1B6C, 0xFC6D2F, 0xA2FF0B,
];

/// Colour of a class on a photograph.
fn class_color(class: u32) -> Rgb {
    let [_, r, g, b] = PALETTE[class as usize % PALETTE.len()].to_be_bytes();
    [r, g, b]
}

/// Ten colours that stay apart as thin lines on white paper, where much of [`PALETTE`] is too pale or too alike.
const INKS: [u32; 10] = [0x1F77B4, 0xFF7F0E, 0x2CA02C, 0xD62728, 0x9467BD, 0x8C564B, 0xE377C2, 0x7F7F7F, 0xBCBD22, 0x17BECF];

/// Colour of a class in a chart; the second ten are darker than the first.
fn ink(class: u32) -> Rgb {
    let class = class as usize % (2 * INKS.len());
    let [_, r, g, b] = INKS[class % INKS.len()].to_be_bytes();
    if class < INKS.len() { [r, g, b] } else { [r, g, b].map(|v| (f32::from(v) * 0.6) as u8) }
}

/// Perceived brightness, 0..1 (ITU-R BT.601 luma).
fn luminance([r, g, b]: Rgb) -> f32 {
    (0.299 * f32::from(r) + 0.587 * f32::from(g) + 0.114 * f32::from(b)) / 255.0
}

/// Black or white, whichever can be read on `background`.
fn readable_on(background: Rgb) -> Rgb {
    if luminance(background) > 0.5 { [0; 3] } else { [255; 3] }
}

/// White for 0 through blue to navy for 1.
fn heat(value: f64) -> Rgb {
    let stops = [[255.0, 255.0, 255.0], [158.0, 202.0, 240.0], [49.0, 120.0, 200.0], [8.0, 40.0, 110.0]];
    let at = value.clamp(0.0, 1.0) * 3.0;
    let low = (at as usize).min(2);
    std::array::from_fn(|c| (stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low as f64)) as u8)
}

/// Name of a class, or its number where the list is too short.
fn class_name(names: &[String], class: usize) -> String {
    names.get(class).cloned().unwrap_or_else(|| format!("class_{class}"))
}
