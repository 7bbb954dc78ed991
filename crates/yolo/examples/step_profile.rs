//! Times one training step of YOLOv8n by part: forward, loss, backward, update; and inference. Arguments: batch, image size, repeats.

use std::time::Instant;

use bellows_learner::{Ema, Group, Hyper, Layout, Optimizer, OptimizerKind, clip_to_norm, sum_of_squares};
use bellows_yolo::boxes::Label;
use bellows_yolo::loss::DetectionLoss;
use bellows_yolo::model::YoloConfig;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

#[expect(clippy::print_stdout, reason = "a measuring tool")]
fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().unwrap_or(0));
    let (batch, imgsz, repeats) = (args.next().unwrap_or(4), args.next().unwrap_or(640), args.next().unwrap_or(4));
    let device = Device::flex().autodiff();
    let mut model = YoloConfig::new(4).init(0, &device);
    let layout = Layout::of(&model, |_| Some(0));
    let groups = [Group { lr_scale: 1.0, weight_decay: 5e-4, bias: false }];
    let hyper = Hyper { lr: vec![1e-5], momentum: 0.937, accumulate: 1 };
    let mut optimizer = Optimizer::new(OptimizerKind::AdamW, &layout);
    let mut ema = Ema::new(layout.values(&model.valid()), 0.9999, 2000.0);
    let loss = DetectionLoss::new(4);
    let pixels: Vec<f32> = (0..batch * 3 * imgsz * imgsz).map(|i| (i * 7919 % 255) as f32 / 255.0).collect();
    let targets: Vec<(u32, Label)> =
        (0..batch as u32 * 8).map(|i| (i / 8, Label { class: i % 4, xywh: [0.1 + 0.1 * (i % 8) as f32, 0.5, 0.08, 0.15] })).collect();
    let shape = [batch, 3, imgsz, imgsz];
    for step in 1..=repeats {
        let x = Tensor::<4>::from_data(TensorData::new(pixels.clone(), shape), &device);
        let start = Instant::now();
        let feats = model.forward(x);
        let forward = start.elapsed();
        let out = loss.forward(&feats, &targets);
        let total = start.elapsed();
        let mut grads = out.total.backward();
        let back = start.elapsed();
        let mut grads = layout.take_gradients(&model, &mut grads);
        let norm = sum_of_squares(grads.iter().flatten()).map_or(0.0, |s| f64::from(s.into_scalar::<f32>().sqrt()));
        clip_to_norm(&mut grads, norm, 10.0);
        let weights = layout.values(&model.valid());
        let (updated, next) = optimizer.step(&layout, &groups, &hyper, step as u64, &weights, grads);
        optimizer = next;
        let after = weights.into_iter().zip(&updated).map(|(old, new)| new.clone().unwrap_or(old)).collect();
        model = layout.assign(model, updated);
        ema.update(after);
        let all = start.elapsed();
        let plain = model.valid();
        let x = Tensor::<4>::from_data(TensorData::new(pixels.clone(), shape), &Device::flex());
        let start = Instant::now();
        let _y = plain.decode(&plain.forward(x)).into_data();
        println!(
            "batch {batch} imgsz {imgsz}: forward {:.3} s, loss {:.3} s, backward {:.3} s, update {:.3} s, step {:.3} s ({:.2} images/s); \
             inference {:.3} s",
            forward.as_secs_f64(),
            (total - forward).as_secs_f64(),
            (back - total).as_secs_f64(),
            (all - back).as_secs_f64(),
            all.as_secs_f64(),
            batch as f64 / all.as_secs_f64(),
            start.elapsed().as_secs_f64(),
        );
    }
}
