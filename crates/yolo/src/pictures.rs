//! Which picture is drawn from what; how they look is in [`crate::plots`].

use std::path::Path;

use crate::boxes::Label;
use crate::data::Batch;
use crate::plots::{self, CurveKind, GridBox, GridImage, PlotError};
use crate::validate::{Shown, Validation, truths_of};

/// Confidence from which a detection is drawn.
const DRAWN: f32 = 0.25;

/// `labels.jpg`: what the training labels look like.
pub(crate) fn labels(labels: &[Label], names: &[String], dir: &Path) -> Result<(), PlotError> {
    plots::labels_chart(labels, names, &dir.join("labels.jpg"))
}

/// `train_batchN.jpg`: a batch as the network sees it.
pub(crate) fn train_batch(batch: &Batch, names: &[String], path: &Path) -> Result<(), PlotError> {
    plots::image_grid(&with_labels(batch), names, path)
}

/// `results.png`: the columns of `results.csv` over the epochs.
pub(crate) fn results(csv: &str, dir: &Path) -> Result<(), PlotError> {
    plots::results_chart(csv, &dir.join("results.png"))
}

/// Everything drawn of the best weights.
pub(crate) fn closing(validation: &Validation, names: &[String], dir: &Path) -> Result<(), PlotError> {
    for kind in CurveKind::ALL {
        kind.draw(&validation.metrics.curves, names, &dir.join(kind.file_name()))?;
    }
    for (normalized, file) in [(false, "confusion_matrix.png"), (true, "confusion_matrix_normalized.png")] {
        plots::confusion_matrix(&validation.confusion, names, normalized, &dir.join(file))?;
    }
    for (i, Shown { batch, detections }) in validation.shown.iter().enumerate() {
        plots::image_grid(&with_labels(batch), names, &dir.join(format!("val_batch{i}_labels.jpg")))?;
        let predicted = |image: usize| {
            let drawn = detections[image].iter().filter(|d| d.score > DRAWN);
            drawn.map(|d| GridBox { xyxy: d.xyxy, class: d.class, score: Some(d.score) }).collect()
        };
        plots::image_grid(&grid(batch, predicted), names, &dir.join(format!("val_batch{i}_pred.jpg")))?;
    }
    Ok(())
}

fn with_labels(batch: &Batch) -> Vec<GridImage<'_>> {
    let [_, _, height, width] = batch.shape;
    grid(batch, |image| {
        let truths = truths_of(batch, image as u32, width as f32, height as f32);
        truths.into_iter().map(|t| GridBox { xyxy: t.xyxy, class: t.class, score: None }).collect()
    })
}

fn grid(batch: &Batch, boxes: impl Fn(usize) -> Vec<GridBox>) -> Vec<GridImage<'_>> {
    let [_, channels, height, width] = batch.shape;
    let images = batch.images.chunks_exact(channels * height * width).zip(&batch.names).enumerate();
    images.map(|(i, (pixels, name))| GridImage { pixels, channels, width, height, name, boxes: boxes(i) }).collect()
}
