//! `by_month.png` and its kin: AP of each group of images, with how sure it is.

use super::{PlotError, ink};
use crate::metrics::Grouped;
use bellows_plots::{Align, Axes, BLACK, Canvas, Captions, Style};
use std::path::Path;

/// Groups that have room.
pub const MOST_GROUPS: usize = 40;
const SIZE: f64 = 26.0;
const LINE: [u8; 3] = [31, 100, 190];
const WHOLE: [u8; 3] = [120; 3];

/// Draws mAP50 (a dot with a bar of 95 %) and mAP50-95 (a small dot) of each group, 1200 to 2400 px wide and 800 high; `whole` is mAP50 of all
/// images, a line. The title has the numbers that the console has.
///
/// # Errors
/// When the picture cannot be encoded.
pub fn groups_chart(by: &Grouped, whole: Option<f64>, path: &Path) -> Result<Vec<u8>, PlotError> {
    let count = by.groups.len().max(1);
    let width = (300 + 110 * count).clamp(1200, 2400);
    let mut canvas = Canvas::paper(width as u32, 800);
    let highs = by.groups.iter().flat_map(|g| [g.coco.map50, g.interval.map(|[_, high]| high)]).flatten();
    let top = highs.fold(whole.unwrap_or(0.0), f64::max).max(0.05) * 1.1;
    let frame = ((130.0, 130.0), (width as f64 - 40.0, 640.0));
    let axes = Axes { frame, x: 0.0..count as f64, y: 0.0..top.min(1.05) };
    axes.draw(&mut canvas, &Captions { title: "", x: "", y: "AP", size: SIZE }, 0, 6);
    let middle = (frame.0.0 + frame.1.0) / 2.0;
    canvas.text(&title(by, whole), (middle, 40.0), Style::new(SIZE * 1.1, Align::Middle).color(BLACK));
    key(&mut canvas, middle);
    if let Some(whole) = whole {
        axes.line(&mut canvas, [(0.0, whole), (count as f64, whole)], WHOLE, 2.0);
    }
    let slot = (frame.1.0 - frame.0.0) / count as f64;
    for (i, group) in by.groups.iter().enumerate() {
        let x = i as f64 + 0.5;
        if let Some([low, high]) = group.interval {
            axes.line(&mut canvas, [(x, low), (x, high)], LINE, 4.0);
            for end in [low, high] {
                axes.line(&mut canvas, [(x - 0.08, end), (x + 0.08, end)], LINE, 3.0);
            }
        }
        group.coco.map50.iter().for_each(|&v| canvas.dot(axes.at(x, v), 9.0, LINE));
        group.coco.map50_95.iter().for_each(|&v| canvas.dot(axes.at(x, v), 6.0, ink(1)));
        let at = axes.at(x, 0.0).0;
        let name = canvas.fit(&group.name, SIZE * 0.85, 130.0);
        if canvas.text_width(&name, SIZE * 0.85) < slot * 0.95 {
            canvas.text(&name, (at, frame.1.1 + 26.0), Style::new(SIZE * 0.85, Align::Middle));
        } else {
            canvas.text(&name, (at, frame.1.1 + 12.0), Style::new((SIZE * 0.85).min(slot), Align::End).upward());
        }
    }
    canvas.encode(path)
}

fn title(by: &Grouped, whole: Option<f64>) -> String {
    let alone = || whole.map_or_else(|| "no objects".into(), |v| format!("mAP50 {v:.3}"));
    let stable = by.stability.map(|s| s.numbers().map(|(name, value, _)| format!("{name} {value:.3}")).join(", "));
    format!("by {}: {}", by.key, stable.unwrap_or_else(alone))
}

fn key(canvas: &mut Canvas, middle: f64) {
    let small = |text: &str, x: f64, canvas: &mut Canvas| canvas.text(text, (x, 88.0), Style::new(SIZE * 0.85, Align::Start));
    canvas.dot((middle - 420.0, 88.0), 9.0, LINE);
    small("mAP50, 95 % by clips", middle - 400.0, canvas);
    canvas.dot((middle - 90.0, 88.0), 6.0, ink(1));
    small("mAP50-95", middle - 72.0, canvas);
    canvas.line(&[(middle + 120.0, 88.0), (middle + 170.0, 88.0)], WHOLE, 2.0);
    small("mAP50 of all images", middle + 182.0, canvas);
}
