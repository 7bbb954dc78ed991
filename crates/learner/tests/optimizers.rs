//! Optimizers whose steps are Burn's, against those of the field.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bellows_learner::{Entry, Group, Hyper, Layout, Optimizer, OptimizerKind};
use burn::tensor::{Device, Tensor, TensorData};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    shapes: Vec<Vec<usize>>,
    weight_decay: f64,
    rates: Vec<f64>,
    start: Vec<Vec<f32>>,
    grads: Vec<Vec<Vec<f32>>>,
    #[serde(rename = "Adafactor")]
    adafactor: Vec<Vec<Vec<f32>>>,
    #[serde(rename = "Lion")]
    lion: Vec<Vec<Vec<f32>>>,
}

/// Ten updates under weight decay; the values are transformers' Adafactor and the Lion of the paper (golden/optimizers.py).
#[test]
fn adafactor_and_lion_are_the_fields() {
    let golden: Golden = serde_json::from_str(include_str!("golden/optimizers.json")).unwrap();
    let device = Device::flex();
    let entry = |(i, shape): (usize, &Vec<usize>)| Entry { name: format!("w{i}"), shape: shape.clone(), group: Some(0) };
    let layout = Layout::from_entries(golden.shapes.iter().enumerate().map(entry).collect());
    let groups = [Group { lr_scale: 1.0, weight_decay: golden.weight_decay, bias: false }];
    let up = |values: &[Vec<f32>]| {
        values.iter().map(|v| Tensor::<1>::from_data(TensorData::new(v.clone(), [v.len()]), &device)).collect::<Vec<_>>()
    };
    for (kind, expected) in [(OptimizerKind::Adafactor, &golden.adafactor), (OptimizerKind::Lion, &golden.lion)] {
        let (mut weights, mut optimizer) = (up(&golden.start), Optimizer::new(kind, kind.constants(), &layout));
        for (step, (grads, &lr)) in golden.grads.iter().zip(&golden.rates).enumerate() {
            let hyper = Hyper { lr: vec![lr], momentum: 0.9, accumulate: 1 };
            let grads = up(grads).into_iter().map(Some).collect();
            let (new, next) = optimizer.step(&layout, &groups, &hyper, step as u64 + 1, &weights, grads);
            (weights, optimizer) = (new.into_iter().flatten().collect(), next);
            for (ours, theirs) in weights.iter().zip(&expected[step]) {
                let ours = ours.try_to_vec_as::<f32>().unwrap();
                assert_eq!(ours.len(), theirs.len());
                for (a, b) in ours.iter().zip(theirs) {
                    assert!((a - b).abs() < 1e-5, "{kind:?}, update {}: {ours:?} for {theirs:?}", step + 1);
                }
            }
        }
    }
}
