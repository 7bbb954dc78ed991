//! A validation that ranks share has the numbers of one process, to the last bit; and gradients that are sent to other ranks early are whole.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use bellows_kernels::listen;
use bellows_learner::{EvalContext, Interrupted, Layout, Rng, Role, Shared, TaskError};
use bellows_ranks::{Exchange, threads};
use bellows_yolo::boxes::{Detection, Label};
use bellows_yolo::config::{BatchSize, TrainConfig};
use bellows_yolo::data::{Frame, Item};
use bellows_yolo::model::YoloConfig;
use bellows_yolo::{Kept, ValSet, Validation, validate};
use burn::data::dataset::InMemDataset;
use burn::tensor::{Device, Tensor, TensorData};

const IMAGES: usize = 11;

/// What was told, in its order.
type Told = Rc<RefCell<Vec<(usize, Vec<f32>)>>>;

fn size(image: usize) -> (usize, usize) {
    (192 - 8 * (image % 3), 160 + 8 * (image % 4))
}

/// Images of noise, of several shapes, with these labels.
fn set(labels: &[Vec<Label>]) -> ValSet {
    let items = labels.iter().enumerate().map(|(i, labels)| {
        let (width, height) = size(i);
        let pixels = (0..width * height).map(|p| Rng::new(5, "noise", i as u64, p as u64).bits() as u8).collect();
        Item::new(Frame { pixels, channels: 1, width, height, difference: false }, labels.clone(), format!("{i}.png"))
    });
    ValSet::new(Arc::new(InMemDataset::new(items.collect()))).unwrap().keeping_detections()
}

fn judge(set: &ValSet, others: Option<&dyn Exchange>) -> Validation {
    judge_until(set, others, &|| false, &mut |done, total| assert!(done <= total)).unwrap()
}

fn judge_until(
    set: &ValSet,
    others: Option<&dyn Exchange>,
    interrupted: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Validation, TaskError> {
    let device = Device::flex();
    let config = TrainConfig { imgsz: 192, batch: BatchSize::Images(1), conf: 1e-7, ..TrainConfig::default() };
    let model = YoloConfig::new(2).init(3, &device).fuse(&device);
    let shared = Shared::among(others);
    let mut context = EvalContext { device: &device, workers: 0, epoch: 0, progress, interrupted, shared: &shared };
    validate(&model, set, &config, &mut context)
}

#[test]
fn a_validation_can_be_ended_when_all_images_have_been_seen() {
    let seen = Cell::new(false);
    let judged = judge_until(&set(&vec![Vec::new(); 3]), None, &|| seen.get(), &mut |done, total| seen.set(done == total));
    assert!(judged.is_err_and(|error| error.is::<Interrupted>()));
}

#[test]
fn a_validation_that_ranks_share_is_that_of_one() {
    // What the network finds in every other image is there, so that it is not all wrong.
    let found = judge(&set(&vec![Vec::new(); IMAGES]), None);
    let mut labels = vec![Vec::new(); IMAGES];
    for Kept { index, found, .. } in found.kept.iter().filter(|kept| kept.index.is_multiple_of(2)) {
        let (width, height) = (size(*index).0 as f32, size(*index).1 as f32);
        // Those at an edge were cut off there.
        let inside = |d: &&Detection| d.xyxy[0] > 0.0 && d.xyxy[1] > 0.0 && d.xyxy[2] < width && d.xyxy[3] < height;
        for d in found.iter().filter(inside).take(4) {
            let [x1, y1, x2, y2] = d.xyxy;
            let xywh = [(x1 + x2) / 2.0 / width, (y1 + y2) / 2.0 / height, (x2 - x1) / width, (y2 - y1) / height];
            labels[*index].push(Label { class: d.class, xywh });
        }
    }
    let set = &set(&labels);
    let alone = judge(set, None);
    assert!(alone.metrics.map50 > 0.0 && alone.metrics.map50 < 1.0, "{}", alone.metrics.map50);
    for ranks in [2, 3, 7] {
        let all = thread::scope(|scope| {
            let ranks: Vec<_> = threads(ranks).into_iter().map(|rank| scope.spawn(move || judge(set, Some(&rank)))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        for shared in all {
            let bits = |v: &Validation| {
                let m = &v.metrics;
                let numbers =
                    [m.precision, m.recall, m.map50, m.map50_95, v.coco.map50_95.unwrap_or(-1.0), v.losses[0], v.losses[1], v.losses[2]];
                (numbers.map(f64::to_bits), m.images, m.instances, v.kept.clone())
            };
            assert!(bits(&shared) == bits(&alone), "{ranks} ranks: {:?} for {:?}", bits(&shared).0, bits(&alone).0);
        }
    }
}

/// Nothing but convolutions reads their weights, so almost all of a detector's gradients may be sent while the backward pass goes on.
#[test]
fn convolutions_tell_whole_gradients() {
    let device = Device::flex().autodiff();
    let model = YoloConfig::new(2).init(3, &device);
    let layout = Layout::of(&model, |_| Role::Trained(0));
    let pixels: Vec<f32> = (0..2 * 3 * 64 * 64).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    let outputs = model.forward(Tensor::from_data(TensorData::new(pixels, [2, 3, 64, 64]), &device));
    let told = Told::default();
    let heard = Rc::clone(&told);
    let loss = outputs.into_iter().map(|output| output.powi_scalar(2).sum()).reduce(|a, b| a + b).unwrap();
    let mut grads = listen(layout.leaves(&model), Rc::new(move |entry, grad| heard.borrow_mut().push((entry, grad))), || loss.backward());
    let grads = layout.take_gradients(&model, &mut grads);
    let told = told.borrow();
    for (entry, told) in told.iter() {
        let whole = grads[*entry].clone().unwrap().into_data().try_into_vec_as::<f32>().unwrap();
        assert!(*told == whole, "{}", layout.entries[*entry].name);
    }
    let numbers = |entries: &mut dyn Iterator<Item = usize>| entries.map(|i| layout.entries[i].numel()).sum::<usize>();
    let (early, all) = (numbers(&mut told.iter().map(|(i, _)| *i)), numbers(&mut (0..grads.len()).filter(|i| grads[*i].is_some())));
    assert!(early * 100 > all * 98, "{early} of {all}");
    assert!(layout.entries[told[told.len() - 1].0].name.contains("model.0."), "the first layer is the last");
}
