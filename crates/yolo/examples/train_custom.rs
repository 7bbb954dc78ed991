//! Trains YOLOv8n on a dataset defined in code: warm squares and discs on a cold background.
//!
//! `cargo run --release --example train_custom [RUNS_DIR] [EPOCHS]`
#![allow(clippy::print_stdout, reason = "an example is a program")]

use std::sync::Arc;

use bellows_device::{DeviceRequest, ProbeOptions, answer_probe, select};
use bellows_runs::RunDir;
use bellows_yolo::boxes::Label;
use bellows_yolo::config::TrainConfig;
use bellows_yolo::data::{Frame, Item};
use bellows_yolo::{Training, TrainingData};
use burn::data::dataset::{Dataset, DatasetError};

const SIDE: usize = 96;

/// Frame `i` shows one object, a function of `i`.
struct Shapes {
    first: usize,
    len: usize,
}

impl Dataset<Item> for Shapes {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let i = self.first + index;
        let (class, size) = (i % 2, 24 + i * 7 % 16);
        let (left, top) = (i * 31 % (SIDE - size), i * 17 % (SIDE - size));
        let mut frame = Frame::filled(1, SIDE, SIDE, 60);
        let radius = size as f32 / 2.0;
        for (y, x) in (0..size).flat_map(|y| (0..size).map(move |x| (y, x))) {
            let (dx, dy) = (x as f32 + 0.5 - radius, y as f32 + 0.5 - radius);
            if class == 0 || dx.hypot(dy) < radius {
                frame.plane_mut(0)[(top + y) * SIDE + left + x] = 220;
            }
        }
        let xywh = [left as f32 + radius, top as f32 + radius, size as f32, size as f32].map(|v| v / SIDE as f32);
        Ok(Item::new(frame, vec![Label { class: class as u32, xywh }], format!("shape {i}")))
    }

    fn len(&self) -> usize {
        self.len
    }
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    answer_probe();
    let mut args = std::env::args().skip(1);
    let project = args.next().unwrap_or_else(|| "runs/custom".into());
    let epochs = args.next().map_or(Ok(10), |n| n.parse())?;
    let config =
        TrainConfig { imgsz: SIDE, batch: 8.into(), nbs: 8, epochs, workers: 1, mosaic: 0.0, plots: false, ..TrainConfig::default() };
    let data = TrainingData::new(Arc::new(Shapes { first: 0, len: 64 }), Arc::new(Shapes { first: 64, len: 16 }), &["square", "disc"])?;
    let device = select(&DeviceRequest::Cpu, &ProbeOptions::default())?;
    device.adopt();
    let mut training = Training::new(data, config, &device.device, None, RunDir::create(project.as_ref(), "shapes", false)?, None)?;
    let report = training.run()?;
    let best = training.judge_best(Vec::new(), &mut |_, _| {})?;
    training.learner().finish()?;
    println!("{} epochs, mAP50 {:.3}", report.epochs, best.map_or(f64::NAN, |v| v.metrics.map50));
    Ok(())
}
