//! Two pictures: how well each layer separates the sets, and what each candidate does to what the model is about to say.

use std::path::Path;

use bellows_plots::{Align, Axes, Canvas, Captions, PlotError, Rgb, Style, padded};

use super::direction::{Place, Separation};
use super::score::{MOST_DIVERGENCE, Scores};

const SIZE: (u32, u32) = (1600, 1030);
const TEXT: f64 = 22.0;
const BLUE: Rgb = [24, 90, 175];
const ORANGE: Rgb = [225, 95, 10];
const GREEN: Rgb = [40, 140, 80];
const PALE: Rgb = [190, 205, 222];
const LIMIT: Rgb = [190, 60, 60];

/// A frame with a title, its x axis the layers.
fn panel(canvas: &mut Canvas, title: &str, top: f64, height: f64, layers: usize, y: std::ops::Range<f64>) -> Axes {
    let axes = Axes { frame: ((110.0, top), (f64::from(SIZE.0) - 30.0, top + height)), x: -0.5..layers as f64 - 0.5, y };
    axes.draw(canvas, &Captions { title, x: "layer whose input it is", y: "", size: TEXT }, layers.min(16), 5);
    axes
}

/// Probability of the right order above, distance of the means below; every place pale, the best of a layer in colour.
pub(super) fn separation(concept: &str, all: &[Separation], chosen: Place, path: &Path) -> Result<Vec<u8>, PlotError> {
    let mut canvas = Canvas::paper(SIZE.0, SIZE.1);
    let layers = all.iter().map(|s| s.place.layer + 1).max().unwrap_or(1);
    let positions = all.iter().map(|s| s.place.position).max().unwrap_or(1);
    let of = |value: fn(&Separation) -> f64| move |s: &Separation| (s.place.layer as f64, value(s));
    let panels = [
        ("probability that a target prompt projects further (AUC)", 90.0, 0.0..1.05, of(|s| s.auc)),
        ("distance of the means in standard deviations", 590.0, padded(all.iter().map(|s| s.effect).chain([0.0])), of(|s| s.effect)),
    ];
    for (title, top, range, point) in panels {
        let axes = panel(&mut canvas, title, top, 330.0, layers, range);
        for position in 1..=positions {
            let at: Vec<_> = all.iter().filter(|s| s.place.position == position).map(point).collect();
            axes.line(&mut canvas, at.iter().copied(), PALE, 1.5);
            at.iter().for_each(|&(x, y)| canvas.dot(axes.at(x, y), 3.0, PALE));
        }
        let best = |layer: usize| all.iter().filter(|s| s.place.layer == layer).max_by(|a, b| a.effect.total_cmp(&b.effect)).map(point);
        let best: Vec<_> = (0..layers).filter_map(best).collect();
        axes.line(&mut canvas, best.iter().copied(), BLUE, 3.0);
        best.iter().for_each(|&(x, y)| canvas.dot(axes.at(x, y), 4.5, BLUE));
        if let Some((x, y)) = all.iter().find(|s| s.place == chosen).map(point) {
            canvas.dot(axes.at(x, y), 8.0, ORANGE);
        }
    }
    let note = format!("{concept}: held-out prompts; pale: each of the last {positions} tokens; orange: chosen");
    canvas.text(&note, (110.0, 20.0), Style::new(TEXT, Align::Start));
    canvas.encode(path)
}

/// Log-odds of the markers above, with the model's own as level lines; the change of everything else below, with its limit.
pub(super) fn scores(scores: &Scores, path: &Path) -> Result<Vec<u8>, PlotError> {
    let mut canvas = Canvas::paper(SIZE.0, SIZE.1);
    let all = &scores.candidates;
    let layers = all.iter().map(|s| s.place.layer + 1).max().unwrap_or(1);
    let odds = all.iter().flat_map(|s| [s.ablation, s.induction]).chain([scores.target, scores.baseline]);
    let axes = panel(&mut canvas, "log-odds of a marker coming next", 90.0, 420.0, layers, padded(odds));
    let series = [
        ("target, direction taken out", ORANGE, scores.target, all.iter().map(|s| (s.place.layer as f64, s.ablation)).collect::<Vec<_>>()),
        ("baseline, direction added", GREEN, scores.baseline, all.iter().map(|s| (s.place.layer as f64, s.induction)).collect()),
    ];
    for (row, (label, color, own, points)) in series.into_iter().enumerate() {
        axes.line(&mut canvas, [(-0.5, own), (layers as f64 - 0.5, own)], color, 1.0);
        axes.line(&mut canvas, points.iter().copied(), color, 3.0);
        points.iter().for_each(|&(x, y)| canvas.dot(axes.at(x, y), 4.5, color));
        let x = 110.0 + 480.0 * row as f64;
        canvas.line(&[(x, 20.0), (x + 45.0, 20.0)], color, 3.0);
        canvas.text(label, (x + 60.0, 20.0), Style::new(TEXT, Align::Start));
    }
    canvas.text("thin: the model as it is", (1070.0, 20.0), Style::new(TEXT, Align::Start));
    let changes = all.iter().map(|s| s.divergence).chain([0.0, MOST_DIVERGENCE]);
    let axes = panel(&mut canvas, "change of the next token on the baseline (KL, nats)", 670.0, 250.0, layers, padded(changes));
    axes.line(&mut canvas, [(-0.5, MOST_DIVERGENCE), (layers as f64 - 0.5, MOST_DIVERGENCE)], LIMIT, 1.5);
    axes.line(&mut canvas, all.iter().map(|s| (s.place.layer as f64, s.divergence)), BLUE, 3.0);
    for s in all {
        let color = if s.place == scores.chosen { ORANGE } else { BLUE };
        canvas.dot(axes.at(s.place.layer as f64, s.divergence), if s.place == scores.chosen { 8.0 } else { 4.5 }, color);
    }
    canvas.encode(path)
}
