//! Optimizers against those of the field: steps that are Burn's, and the rarer rules of `torch.optim`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::toy::{BATCH, StopAfter, config, data, learner, no_poison};
use bellows_learner::{Entry, GradBuffer, Group, Hyper, Layout, LearnerConfig, Optimizer, OptimizerKind, Schedule, UpdateSchedule};
use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::Deserialize;

type Values = Vec<Vec<f32>>;

#[derive(Deserialize)]
struct Golden {
    shapes: Vec<Vec<usize>>,
    weight_decay: f64,
    rates: Vec<f64>,
    start: Values,
    grads: Vec<Values>,
    #[serde(rename = "Adafactor")]
    adafactor: Vec<Values>,
    #[serde(rename = "Lion")]
    lion: Vec<Values>,
}

#[derive(Deserialize)]
struct Torch {
    momentum: f64,
    after: BTreeMap<String, Vec<Values>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/optimizers.json")).unwrap()
}

/// Ten updates under weight decay and a falling rate, compared one by one.
fn expect_updates(golden: &Golden, kind: OptimizerKind, momentum: f64, expected: &[Values]) {
    let device = Device::flex();
    let entry =
        |(i, shape): (usize, &Vec<usize>)| Entry { name: format!("w{i}"), shape: shape.clone(), group: Some(i % 2), dtype: DType::F32 };
    // Two groups, which are not the same, so that each is a range.
    let groups = [false, true].map(|bias| Group { lr_scale: 1.0, weight_decay: golden.weight_decay, bias });
    let layout = kind.arrange(Layout::from_entries(golden.shapes.iter().enumerate().map(entry).collect()), &groups);
    let up = |values: &[Vec<f32>]| {
        values.iter().map(|v| Some(Tensor::<1>::from_data(TensorData::new(v.clone(), [v.len()]), &device))).collect::<Vec<_>>()
    };
    assert_eq!(expected.len(), golden.grads.len());
    let (mut weights, mut optimizer) = (layout.gather(up(&golden.start)), Optimizer::new(kind, kind.constants(), &layout));
    for (step, (grads, &lr)) in golden.grads.iter().zip(&golden.rates).enumerate() {
        let hyper = Hyper { lr: vec![lr; 2], momentum, accumulate: 1 };
        (weights, optimizer) = optimizer.step(&layout, &groups, &hyper, step as u64 + 1, &weights, GradBuffer::of(&layout, up(grads)));
        for (ours, theirs) in layout.scatter(&weights).into_iter().flatten().zip(&expected[step]) {
            let ours = ours.try_to_vec_as::<f32>().unwrap();
            assert_eq!(ours.len(), theirs.len());
            for (a, b) in ours.iter().zip(theirs) {
                assert!((a - b).abs() < 1e-5, "{kind:?}, update {}: {ours:?} for {theirs:?}", step + 1);
            }
        }
    }
}

/// The values are transformers' Adafactor and the Lion of the paper (golden/optimizers.py).
#[test]
fn adafactor_and_lion_are_the_fields() {
    let golden = golden();
    expect_updates(&golden, OptimizerKind::Adafactor, 0.9, &golden.adafactor);
    expect_updates(&golden, OptimizerKind::Lion, 0.9, &golden.lion);
}

/// The values are torch.optim's (golden/torch_optim.py). RAdam begins to rectify at the sixth update.
#[test]
fn the_rarer_rules_are_pytorchs() {
    let golden = golden();
    let torch: Torch = serde_json::from_str(include_str!("golden/torch_optim.json")).unwrap();
    let kinds = [OptimizerKind::NAdam, OptimizerKind::RAdam, OptimizerKind::Adamax, OptimizerKind::RmsProp];
    assert_eq!(torch.after.len(), kinds.len());
    for kind in kinds {
        let name = serde_json::to_value(kind).unwrap();
        expect_updates(&golden, kind, torch.momentum, &torch.after[name.as_str().unwrap()]);
    }
}

/// Numbers alone, without names, rows and counters. After three batches a window of two is open.
#[test]
fn the_size_of_a_checkpoint_is_known_before_there_are_moments() {
    use OptimizerKind::{Adafactor, AdamW, Adamax, Lion, NAdam, RmsProp, Sgd};
    let kinds = [Sgd, AdamW, NAdam, Adamax, RmsProp, Adafactor, Lion];
    for (optimizer, accumulate) in kinds.into_iter().flat_map(|kind| [(kind, 1), (kind, 2)]) {
        let dir = tempfile::tempdir().unwrap();
        let schedule = Schedule::Updates(UpdateSchedule { batch: BATCH, accumulate, ..UpdateSchedule::default() });
        let mut session = learner(dir.path(), LearnerConfig { optimizer, schedule, ..config() }, no_poison);
        let expected = session.state().full_size(session.layout(), accumulate > 1);
        let flag = Arc::new(AtomicBool::new(false));
        session.observe(StopAfter { after: 3, seen: 0, flag: flag.clone() }).stop_when(flag);
        session.fit(&data()).unwrap();
        let members = session.state().encode(session.layout()).unwrap();
        let files = members.iter().filter(|(name, _)| name.ends_with(".safetensors"));
        // A file begins with the length of its header.
        let numbers = |bytes: &[u8]| bytes.len() as u64 - 8 - u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(files.map(|(_, bytes)| numbers(bytes)).sum::<u64>(), expected, "{optimizer:?}, {accumulate}");
    }
}

/// The values of four tensors of two groups after an update at these rates.
fn after_an_update(kind: OptimizerKind, lr: [f64; 2]) -> Vec<Vec<f32>> {
    let entry = |i: usize| Entry { name: format!("w{i}"), shape: vec![3], group: Some(i % 2), dtype: DType::F32 };
    let groups = [0.05, 0.0].map(|weight_decay| Group { lr_scale: 1.0, weight_decay, bias: false });
    let layout = kind.arrange(Layout::from_entries((0..4).map(entry).collect()), &groups);
    let up = |scale: f32| (0..4).map(|i| Some(Tensor::<1>::from_floats([scale, i as f32, -2.0], &Device::flex()))).collect::<Vec<_>>();
    let hyper = Hyper { lr: lr.to_vec(), momentum: 0.9, accumulate: 1 };
    let optimizer = Optimizer::new(kind, kind.constants(), &layout);
    let (weights, _) = optimizer.step(&layout, &groups, &hyper, 1, &layout.gather(up(0.5)), GradBuffer::of(&layout, up(0.3)));
    layout.scatter(&weights).into_iter().map(|value| value.unwrap().try_to_vec_as().unwrap()).collect()
}

/// A group whose rate is 0 stays as it is, and the other moves as it would beside any.
#[test]
fn each_group_has_its_own_rate() {
    for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW, OptimizerKind::NAdam, OptimizerKind::Lion, OptimizerKind::Adafactor] {
        let [both, first, second] = [[0.1, 0.1], [0.1, 0.0], [0.0, 0.1]].map(|lr| after_an_update(kind, lr));
        for i in 0..4 {
            let stays = vec![0.5, i as f32, -2.0];
            let (moved, other) = if i % 2 == 0 { (&first, &second) } else { (&second, &first) };
            assert_eq!((&moved[i], &other[i]), (&both[i], &stays), "{kind:?}, tensor {i}");
            assert_ne!(both[i], stays, "{kind:?}, tensor {i}");
        }
        // The decay is the first group's alone; Adam's kin divide what they add to a first gradient by itself.
        let shows = matches!(kind, OptimizerKind::Sgd | OptimizerKind::AdamW);
        assert!(!shows || both[0][0] != both[1][0], "{kind:?}: {both:?}");
    }
}

/// A matrix of more numbers than Burn sums on one thread, whose updates from the second on are clipped.
#[test]
fn adafactors_bits_do_not_hang_on_threads() {
    const SHAPE: [usize; 2] = [2048, 2064];
    let entry = Entry { name: "w".into(), shape: SHAPE.to_vec(), group: Some(0), dtype: DType::F32 };
    let groups = [Group { lr_scale: 1.0, weight_decay: 0.05, bias: false }];
    let layout = OptimizerKind::Adafactor.arrange(Layout::from_entries(vec![entry]), &groups);
    let hyper = Hyper { lr: vec![0.02], momentum: 0.9, accumulate: 1 };
    let numbers: Vec<f32> =
        (0..(SHAPE[0] * SHAPE[1]) as u32).map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 * 1e-7 - 0.8).powi(3)).collect();
    let updates = || {
        let up = || Tensor::<1>::from_data(TensorData::from(numbers.as_slice()), &Device::flex());
        let kind = OptimizerKind::Adafactor;
        let (mut weights, mut optimizer) = (vec![Some(up())], Optimizer::new(kind, kind.constants(), &layout));
        for number in 1..9 {
            let grads = GradBuffer::of(&layout, vec![Some(up().powi_scalar(number as i32).mul_scalar(7_u32.pow(number as u32)))]);
            (weights, optimizer) = optimizer.step(&layout, &groups, &hyper, number, &weights, grads);
        }
        weights.remove(0).unwrap().try_to_vec_as::<f32>().unwrap()
    };
    let in_pool = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(updates);
    let one = in_pool(1);
    assert!([2, 3, 5].into_iter().all(|threads| in_pool(threads) == one));
}
