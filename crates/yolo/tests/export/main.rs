//! Exported files: what the graphs compute, what the files hold, and what other programs make of them where those are installed.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod onnx;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod pt;

use bellows_yolo::Preprocessing;
use bellows_yolo::data::{Normalisation, Stack};
use bellows_yolo::export::About;
use bellows_yolo::model::names::{load_tensors, to_tensors};
use bellows_yolo::model::{Yolo, YoloConfig};
use burn::tensor::{Device, Tensor, TensorData};

/// A model that finds things: statistics that are not the identity's, and classes that are not rare.
fn model(config: YoloConfig) -> Yolo {
    let device = Device::flex();
    let model = config.init(3, &device);
    let mut tensors = to_tensors(&model, 0).unwrap();
    for (name, (_, values)) in &mut tensors {
        let (low, span) = match name.rsplit('.').next() {
            Some("running_var") => (0.5, 1.0),
            Some("running_mean") => (-0.1, 0.2),
            Some("weight") if name.contains(".bn.") => (0.8, 0.6),
            Some("bias") if name.contains(".bn.") => (-0.1, 0.3),
            Some("bias") if name.contains(".cv3.") => (-1.0, 1.0),
            _ => continue,
        };
        values.iter_mut().enumerate().for_each(|(i, v)| *v = low + span * ((i * 7 + name.len()) % 11) as f32 / 10.0);
    }
    load_tensors(model, &tensors).unwrap().0
}

/// Of 16-bit images; of a network with three channels two frames and a background.
fn preprocessing(config: YoloConfig) -> Preprocessing {
    let stack = if config.channels == 3 { Stack { frames: 2, stride: 4, background: 6 } } else { Stack::default() };
    Preprocessing { stack, levels: Some(Normalisation::Range { low: 100.0, high: 9000.0 }) }
}

fn about(config: YoloConfig) -> About {
    About {
        config,
        names: (0..config.nc).map(|i| format!("class '{i}'")).collect(),
        imgsz: 96,
        date: "2026-11-22T08:00:00".into(),
        license: Some("CC0".into()),
        settings: serde_json::Map::new(),
        preprocessing: preprocessing(config),
    }
}

/// Pixels in 0..1, smooth enough for boxes to differ.
fn pixels(shape: [usize; 4]) -> Vec<f32> {
    let [_, _, h, w] = shape;
    let value = |i: usize| {
        let (x, y, plane) = ((i % w) as f32, (i / w % h) as f32, (i / w / h) as f32);
        0.5 + 0.3 * (x * 0.21 + plane).sin() * (y * 0.13).cos() + 0.2 * ((x * y) * 0.01 + plane).sin()
    };
    (0..shape.iter().product()).map(value).collect()
}

fn images(shape: [usize; 4]) -> Tensor<4> {
    Tensor::from_data(TensorData::new(pixels(shape), shape), &Device::flex())
}
