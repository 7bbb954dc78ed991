//! `results.png` of a fine-tuning run: loss, learning rate and gradient norm over the batches, read from `events.jsonl`, which holds the whole
//! run however often it was resumed.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellows_learner::{EpochReport, Observer, RunFile};
use bellows_plots::{Align, Axes, Canvas, Captions, PlotError, Rgb, Style, gaussian, padded};
use bellows_runs::RunDir;
use serde_json::Value;

const PICTURE: &str = "results.png";
const SIZE: (u32, u32) = (1600, 1050);
const RAW: Rgb = [178, 203, 232];
const SMOOTH: Rgb = [24, 90, 175];
const JUDGED: Rgb = [225, 95, 10];
/// Points of a curve that are drawn at most; of more, neighbours are put together.
const DRAWN: usize = 700;

/// Draws the picture at the end, and after an evaluation if that does not take a thirtieth of the time.
pub(crate) struct Curves {
    events: PathBuf,
    picture: Option<RunFile>,
    drawn: Instant,
    cost: Duration,
}

impl Curves {
    pub(crate) fn of(dir: &RunDir) -> Self {
        Self { events: dir.events(), picture: None, drawn: Instant::now(), cost: Duration::ZERO }
    }

    fn draw(&mut self) {
        let started = Instant::now();
        match Series::read(&self.events) {
            Ok(series) => match series.draw(Path::new(PICTURE)) {
                Ok(bytes) => self.picture = Some(RunFile { path: PICTURE.into(), bytes }),
                Err(error) => tracing::warn!("{error}"),
            },
            Err(error) => tracing::warn!("{}: {error}", self.events.display()),
        }
        (self.drawn, self.cost) = (Instant::now(), started.elapsed());
    }
}

impl Observer for Curves {
    fn on_epoch_end(&mut self, report: &EpochReport) {
        if report.evaluation.is_some() && self.drawn.elapsed() > 30 * self.cost {
            self.draw();
        }
    }

    fn on_end(&mut self) {
        self.draw();
    }

    fn files(&mut self) -> Vec<RunFile> {
        self.picture.take().into_iter().collect()
    }
}

/// Values by batch.
#[derive(Debug, Default, PartialEq)]
struct Series {
    loss: Vec<(f64, f64)>,
    judged: Vec<(f64, f64)>,
    lr: Vec<(f64, f64)>,
    grad_norm: Vec<(f64, f64)>,
}

impl Series {
    /// What the events tell; a line that is none is left out.
    fn read(events: &Path) -> io::Result<Self> {
        let mut series = Self::default();
        for line in BufReader::new(File::open(events)?).lines() {
            let Ok(event) = serde_json::from_str::<Value>(&line?) else { continue };
            let Some(step) = event["step"].as_f64() else { continue };
            let push = |to: &mut Vec<(f64, f64)>, value: &Value| to.extend(value.as_f64().map(|v| (step, v)));
            match event["event"].as_str() {
                Some("step") => {
                    push(&mut series.loss, &event["items"]["loss"]);
                    push(&mut series.lr, &event["lr"][0]);
                    push(&mut series.grad_norm, &event["grad_norm"]);
                }
                Some("epoch" | "evaluation") => push(&mut series.judged, &event["metrics"]["val/loss"]),
                _ => {}
            }
        }
        Ok(series)
    }

    /// A wide panel for the loss, two below it for learning rate and gradient norm.
    fn draw(&self, path: &Path) -> Result<Vec<u8>, PlotError> {
        let mut canvas = Canvas::paper(SIZE.0, SIZE.1);
        let (width, steps) = (f64::from(SIZE.0), self.loss.iter().chain(&self.judged).map(|p| p.0));
        let x = 0.0..steps.fold(1.0, f64::max) * 1.01;
        let mut panel = |title: &str, frame, of: [&[(f64, f64)]; 2]| {
            let axes = Axes { frame, x: x.clone(), y: shown(of) };
            axes.draw(&mut canvas, &Captions { title, x: "batch", y: "", size: 22.0 }, 8.min(x.end as usize), 6);
            if of.iter().all(|points| points.is_empty()) {
                axes.note(&mut canvas, "no data", 22.0);
            }
            axes
        };
        let loss = panel("loss", ((110.0, 50.0), (width - 30.0, 570.0)), [&self.loss, &self.judged]);
        let middle = width / 2.0;
        let lr = panel("learning rate", ((110.0, 690.0), (middle - 30.0, 970.0)), [&self.lr, &[]]);
        let norm = panel("gradient norm", ((middle + 90.0, 690.0), (width - 30.0, 970.0)), [&self.grad_norm, &[]]);

        curve(&mut canvas, &loss, &self.loss);
        loss.line(&mut canvas, self.judged.iter().copied(), JUDGED, 1.5);
        for &(step, value) in &self.judged {
            canvas.dot(loss.at(step, value), 4.5, JUDGED);
        }
        line(&mut canvas, &lr, thin(&self.lr).map(|b| (b.x, b.mean)).collect(), 2.5);
        curve(&mut canvas, &norm, &self.grad_norm);
        legend(&mut canvas, (width - 230.0, 80.0));
        canvas.encode(path)
    }
}

/// The range to show: all values, but of the first series, which is noisy, not at the price of flattening it for a few that are far above the others. The
/// second is shown whole: where it rises far above what is trained, that is what it is drawn for.
fn shown([noisy, judged]: [&[(f64, f64)]; 2]) -> Range<f64> {
    let mut values: Vec<f64> = noisy.iter().map(|p| p.1).collect();
    values.sort_by(f64::total_cmp);
    let most = values.get(values.len() * 49 / 50).map_or(f64::MAX, |v| v.abs() * 3.0);
    padded(values.into_iter().map(|v| v.min(most)).chain(judged.iter().map(|p| p.1)))
}

/// Neighbouring points put together.
struct Bucket {
    x: f64,
    low: f64,
    mean: f64,
    high: f64,
}

/// At most [`DRAWN`] buckets of the finite points.
fn thin(points: &[(f64, f64)]) -> impl Iterator<Item = Bucket> {
    points.chunks(points.len().div_ceil(DRAWN).max(1)).map(|chunk| {
        let mean = |of: fn(&(f64, f64)) -> f64| chunk.iter().map(of).sum::<f64>() / chunk.len() as f64;
        let values = || chunk.iter().map(|p| p.1);
        Bucket { x: mean(|p| p.0), low: values().fold(f64::MAX, f64::min), mean: mean(|p| p.1), high: values().fold(f64::MIN, f64::max) }
    })
}

/// A noisy series: itself, pale, and smoothed by a Gaussian of a hundredth of its length.
fn curve(canvas: &mut Canvas, axes: &Axes, points: &[(f64, f64)]) {
    let buckets: Vec<Bucket> = thin(points).collect();
    axes.line(canvas, buckets.iter().flat_map(|b| [(b.x, b.low), (b.x, b.high)]), RAW, 1.5);
    let means: Vec<f64> = buckets.iter().map(|b| b.mean).collect();
    let smooth = gaussian(&means, (means.len() as f64 / 100.0).max(1.0));
    line(canvas, axes, buckets.iter().map(|b| b.x).zip(smooth).collect(), 3.0);
}

/// A line, or a dot where there is one point: a line of one would not be seen.
fn line(canvas: &mut Canvas, axes: &Axes, points: Vec<(f64, f64)>, width: f64) {
    if let &[(x, y)] = points.as_slice() {
        canvas.dot(axes.at(x, y), 4.5, SMOOTH);
    }
    axes.line(canvas, points, SMOOTH, width);
}

fn legend(canvas: &mut Canvas, (x, y): (f64, f64)) {
    for (row, (text, color)) in [("each batch", RAW), ("smoothed", SMOOTH), ("validation", JUDGED)].into_iter().enumerate() {
        let y = y + 30.0 * row as f64;
        canvas.line(&[(x, y), (x + 45.0, y)], color, 3.0);
        canvas.text(text, (x + 60.0, y), Style::new(22.0, Align::Start));
    }
    canvas.dot((x + 22.0, y + 60.0), 4.5, JUDGED);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_series_and_a_picture() {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join("events.jsonl");
        let mut text = String::from("{\"event\":\"start\",\"step\":0}\nnot json\n");
        for step in 1..=3000 {
            let norm = if step % 2 == 0 { "0.5" } else { "null" };
            text += &format!(
                "{{\"event\":\"step\",\"step\":{step},\"items\":{{\"loss\":{}}},\"lr\":[1e-4],\"grad_norm\":{norm}}}\n",
                9.0 / f64::from(step)
            );
        }
        text += "{\"event\":\"evaluation\",\"step\":3000,\"metrics\":{\"val/loss\":2.5}}\n";
        text += "{\"event\":\"epoch\",\"step\":3000,\"metrics\":{}}\n";
        std::fs::write(&events, text).unwrap();
        let series = Series::read(&events).unwrap();
        assert_eq!((series.loss.len(), series.lr.len(), series.grad_norm.len()), (3000, 3000, 1500));
        assert_eq!((series.loss[2], series.judged.as_slice()), ((3.0, 3.0), &[(3000.0, 2.5)][..]));
        let buckets: Vec<Bucket> = thin(&series.loss).collect();
        assert!(buckets.len() <= DRAWN && buckets[0].high == 9.0 && buckets[599].low == 0.003, "{}", buckets.len());
        let noisy: Vec<(f64, f64)> = (0..200).map(f64::from).chain([1e6]).map(|value| (0.0, value)).collect();
        let range = shown([&noisy, &[]]);
        assert!((199.0..700.0).contains(&range.end), "{range:?}");
        let range = shown([&noisy, &[(0.0, 1.0), (200.0, 5000.0)]]);
        assert!((5000.0..6000.0).contains(&range.end) && range.start < 0.0, "{range:?}");
        for series in [series, Series::default()] {
            assert!(series.draw(Path::new(PICTURE)).unwrap().starts_with(b"\x89PNG"));
        }
    }

    #[test]
    fn a_single_point_is_seen() {
        let drawn = |points: &[(f64, f64)]| {
            let mut canvas = Canvas::paper(60, 60);
            curve(&mut canvas, &Axes { frame: ((0.0, 0.0), (60.0, 60.0)), x: 0.0..2.0, y: 0.0..2.0 }, points);
            canvas.finish(Path::new(PICTURE)).unwrap().pixels().any(|pixel| pixel.0 == SMOOTH)
        };
        assert!(drawn(&[(1.0, 1.0)]) && !drawn(&[]));
    }
}
