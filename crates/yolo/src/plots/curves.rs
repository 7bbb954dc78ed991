//! `BoxPR_curve.png`, `BoxF1_curve.png`, `BoxP_curve.png`, `BoxR_curve.png`: one line per class and the mean of all.

use super::{PlotError, class_name, ink};
use crate::metrics::{Curves, box_filter};
use bellows_plots::{Align, Axes, Canvas, Captions, Rgb, Style};
use std::path::Path;

const MEAN: Rgb = [10, 30, 150];
const SIZE: f64 = 28.0;
/// More classes than this are drawn in gray, with no legend of their own.
const NAMED: usize = 20;

/// Which of the four curves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurveKind {
    /// Precision over recall.
    Pr,
    /// F1 over confidence.
    F1,
    /// Precision over confidence.
    Precision,
    /// Recall over confidence.
    Recall,
}

impl CurveKind {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Pr, Self::F1, Self::Precision, Self::Recall];

    /// The name of the picture in a run directory.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Pr => "BoxPR_curve.png",
            Self::F1 => "BoxF1_curve.png",
            Self::Precision => "BoxP_curve.png",
            Self::Recall => "BoxR_curve.png",
        }
    }

    /// Draws the curve, 1800×1200 px, with the legend beside the frame.
    ///
    /// # Errors
    /// When the picture cannot be written.
    pub fn draw(self, curves: &Curves, names: &[String], path: &Path) -> Result<Vec<u8>, PlotError> {
        let (title, x, y, rows) = match self {
            Self::Pr => ("Precision-recall curve", "Recall", "Precision", &curves.pr),
            Self::F1 => ("F1-confidence curve", "Confidence", "F1", &curves.f1),
            Self::Precision => ("Precision-confidence curve", "Confidence", "Precision", &curves.precision),
            Self::Recall => ("Recall-confidence curve", "Confidence", "Recall", &curves.recall),
        };
        let mut canvas = Canvas::paper(1800, 1200);
        let axes = Axes { frame: ((120.0, 80.0), (1330.0, 1080.0)), x: 0.0..1.0, y: 0.0..1.0 };
        axes.draw(&mut canvas, &Captions { title, x, y, size: SIZE }, 10, 10);

        let named = rows.len() <= NAMED;
        for (row, &class) in rows.iter().zip(&curves.classes) {
            let (color, width) = if named { (ink(class), 2.0) } else { ([190; 3], 1.0) };
            axes.line(&mut canvas, curves.x.iter().copied().zip(row.iter().copied()), color, width);
        }
        let mean: Vec<f64> = (0..curves.x.len()).map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len().max(1) as f64).collect();
        if rows.is_empty() {
            axes.note(&mut canvas, "no objects", SIZE);
        } else {
            axes.line(&mut canvas, curves.x.iter().copied().zip(mean.iter().copied()), MEAN, 6.0);
        }

        let mut entries = vec![(self.mean_entry(curves, &mean), MEAN, 6.0)];
        if named {
            entries.extend(curves.classes.iter().zip(&curves.ap50).map(|(&class, ap)| {
                let name = class_name(names, class as usize);
                (if self == Self::Pr { (name, format!("{ap:.3}")) } else { (name, String::new()) }, ink(class), 2.0)
            }));
        }
        for (i, ((name, value), color, width)) in entries.iter().enumerate() {
            let y = 100.0 + 44.0 * i as f64;
            canvas.line(&[(1350.0, y), (1400.0, y)], *color, *width);
            let room = 370.0 - canvas.text_width(value, SIZE);
            let shown = canvas.fit(name, SIZE, room - 15.0);
            let end = 1415.0 + canvas.text_width(&format!("{shown} "), SIZE);
            canvas.text(&shown, (1415.0, y), Style::new(SIZE, Align::Start));
            canvas.text(value, (end, y), Style::new(SIZE, Align::Start));
        }
        canvas.encode(path)
    }

    /// Legend of the mean: mAP for the precision-recall curve, else the highest value and its confidence. For F1 it is the confidence that precision and
    /// recall are told at, which a smoothed curve chose.
    fn mean_entry(self, curves: &Curves, mean: &[f64]) -> (String, String) {
        let name = "all classes".to_owned();
        if curves.classes.is_empty() {
            return (name, String::new());
        }
        if self == Self::Pr {
            let map = curves.ap50.iter().sum::<f64>() / curves.ap50.len() as f64;
            return (name, format!("{map:.3} mAP@0.5"));
        }
        let judged = if self == Self::F1 { box_filter(mean) } else { mean.to_vec() };
        let best = (0..judged.len()).rev().max_by(|&i, &j| judged[i].total_cmp(&judged[j])).unwrap_or(0);
        (name, format!("{:.2} at {:.3}", mean[best], curves.x[best]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_tells_a_value_of_the_curve() {
        let x: Vec<f64> = (0..1000).map(|i| f64::from(i) / 999.0).collect();
        let curves = Curves { classes: vec![0], x, ..Curves::default() };
        // A broad hill, and a spike that smoothing makes nothing of.
        let mut mean: Vec<f64> = (0..1000).map(|i: i32| (0.65 - 0.001 * f64::from((i - 400).abs())).max(0.1)).collect();
        mean[800] = 0.9;
        let legend = |kind: CurveKind| kind.mean_entry(&curves, &mean).1;
        assert_eq!([legend(CurveKind::Precision), legend(CurveKind::Recall)], ["0.90 at 0.801", "0.90 at 0.801"]);
        assert_eq!(legend(CurveKind::F1), "0.65 at 0.400", "where the smoothed curve is highest, what the curve is there");
    }
}
