//! Which picture is drawn from what; how they look is in [`crate::plots`].

use std::path::Path;

use bellows_learner::RunFile;

use crate::boxes::Label;
use crate::data::Batch;
use crate::plots::{self, CurveKind, GridBox, GridImage, PlotError};
use crate::validate::{Shown, Validation, truths_of};

/// Confidence from which a detection is drawn.
const DRAWN: f32 = 0.25;

/// A picture, drawn with its name, which chooses the format.
fn file(name: &str, draw: impl FnOnce(&Path) -> Result<Vec<u8>, PlotError>) -> Result<RunFile, PlotError> {
    Ok(RunFile { path: name.into(), bytes: draw(Path::new(name))? })
}

/// `labels.jpg`: what the training labels look like.
pub(crate) fn labels(labels: &[Label], names: &[String]) -> Result<RunFile, PlotError> {
    file("labels.jpg", |path| plots::labels_chart(labels, names, path))
}

/// `train_batchN.jpg`: a batch as the network sees it.
pub(crate) fn train_batch(batch: &Batch, names: &[String], number: &str) -> Result<RunFile, PlotError> {
    file(&format!("train_batch{number}.jpg"), |path| plots::image_grid(&with_labels(batch), names, path))
}

/// `results.png`: the columns of `results.csv` over the epochs.
pub(crate) fn results(csv: &str) -> Result<RunFile, PlotError> {
    file("results.png", |path| plots::results_chart(csv, path))
}

/// Everything drawn of the best weights.
pub(crate) fn closing(validation: &Validation, names: &[String]) -> Result<Vec<RunFile>, PlotError> {
    let mut files = Vec::new();
    for kind in CurveKind::ALL {
        files.push(file(kind.file_name(), |path| kind.draw(&validation.metrics.curves, names, path))?);
    }
    for (normalized, name) in [(false, "confusion_matrix.png"), (true, "confusion_matrix_normalized.png")] {
        files.push(file(name, |path| plots::confusion_matrix(&validation.confusion, names, normalized, path))?);
    }
    for by in validation.groups.iter().filter(|by| by.groups.len() <= plots::MOST_GROUPS) {
        files.push(file(&format!("by_{}.png", by.key.to_lowercase().replace(|c: char| !c.is_alphanumeric(), "_")), |path| {
            plots::groups_chart(by, validation.coco.map50, path)
        })?);
    }
    for (i, Shown { batch, detections }) in validation.shown.iter().enumerate() {
        files.push(file(&format!("val_batch{i}_labels.jpg"), |path| plots::image_grid(&with_labels(batch), names, path))?);
        let predicted = |image: usize| {
            let drawn = detections[image].iter().filter(|d| d.score > DRAWN);
            drawn.map(|d| GridBox { xyxy: d.xyxy, class: d.class, score: Some(d.score) }).collect()
        };
        files.push(file(&format!("val_batch{i}_pred.jpg"), |path| plots::image_grid(&grid(batch, predicted), names, path))?);
    }
    Ok(files)
}

fn with_labels(batch: &Batch) -> Vec<GridImage<'_>> {
    let [_, _, height, width] = batch.shape;
    grid(batch, |image| {
        let truths = truths_of(batch, image as u32, width as f32, height as f32);
        truths.into_iter().map(|t| GridBox { xyxy: t.xyxy, class: t.class, score: None }).collect()
    })
}

/// Three channels are drawn as colours, also where they are moments: what moves is coloured. Of another number the last, which is the frame itself.
fn grid(batch: &Batch, boxes: impl Fn(usize) -> Vec<GridBox>) -> Vec<GridImage<'_>> {
    let [_, all, height, width] = batch.shape;
    let channels = if all == 3 { 3 } else { 1 };
    let images = batch.images.chunks_exact(all * height * width).zip(&batch.names).enumerate();
    let shown = |pixels: &'_ [u8]| pixels.len() - channels * height * width;
    images
        .map(|(i, (pixels, name))| GridImage { pixels: &pixels[shown(pixels)..], channels, width, height, name, boxes: boxes(i) })
        .collect()
}
