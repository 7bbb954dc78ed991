//! Which anchors learn the objects of made-up outputs, as a device finds it by itself, and by the definition where it does not. Not of a network's outputs: in f16 those
//! are rounded, and an anchor that is the tenth of its object here would be the eleventh there.

use crate::made::{numbers, tensor};
use bellows_kernels::foreground::BINS;
use bellows_kernels::{Foreground, Object, Objects, Positive, assigned_terms, assigns, ciou, detection_terms, predictions};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::sync::Arc;

const IMAGES: usize = 2;
/// Cells to a row of an image, and pixels to a cell.
const SIDE: usize = 16;
const STRIDE: f32 = 2.0;
const ANCHORS: usize = SIDE * SIDE;
const CLASSES: usize = 2;
const OUTPUTS: usize = 4 * BINS + CLASSES;
const GAINS: [f32; 3] = [7.5, 0.5, 1.5];

/// Two objects of an image, which want some anchors both, and one of another.
fn objects() -> Objects {
    let object = |image, class, xyxy| Object { image, class, xyxy };
    let boxes = [[3.5, 1.5, 23.5, 21.5], [7.5, 5.5, 29.5, 23.5], [4.5, 8.5, 26.5, 31.5]];
    let all = vec![object(0, 1, boxes[0]), object(0, 0, boxes[1]), object(1, 1, boxes[2])];
    let centres = (0..ANCHORS).map(|a| [a % SIDE, a / SIDE].map(|cell| cell as f32 + 0.5)).collect();
    Objects { all, centres, strides: vec![STRIDE; ANCHORS], gains: GAINS }
}

fn outputs(device: &Device) -> Tensor<3> {
    tensor(41, [IMAGES, OUTPUTS, ANCHORS], device)
}

/// The terms of the loss, and their gradient for all outputs.
pub(crate) fn learnt(device: &Device) -> Vec<Vec<f32>> {
    let x = outputs(&device.clone().autodiff()).require_grad();
    let terms = if assigns(device) {
        assigned_terms(x.clone(), objects())
    } else {
        detection_terms(x.clone(), chosen(x.clone().without_autodiff(), &objects()))
    };
    let gradients = terms.clone().sum().backward();
    vec![numbers(terms), x.grad(&gradients).map(numbers).unwrap_or_default()]
}

/// The anchors that learn these objects, by the definition.
fn chosen(x: Tensor<3>, objects: &Objects) -> Foreground {
    let device = x.device();
    let planes: Vec<f32> = (0..2).flat_map(|axis| objects.centres.iter().map(move |centre| centre[axis])).collect();
    let centres = Tensor::<3>::from_data(TensorData::new(planes, [1, 2, ANCHORS]), &device);
    let strides = Tensor::<3>::from_data(TensorData::new(objects.strides.clone(), [1, 1, ANCHORS]), &device);
    let rows = (0..IMAGES * CLASSES).map(|i| (i / CLASSES * OUTPUTS + 4 * BINS + i % CLASSES) as i32).collect();
    let asked = numbers(predictions(x, centres, strides, rows, BINS));
    let number = |row: usize, a: usize| asked[row * ANCHORS + a];
    // Overlap and alignment of an object and an anchor: none where its centre is outside.
    let pair = |object: &Object, a: usize| {
        let ([x1, y1, x2, y2], [x, y]) = (object.xyxy, objects.centres[a].map(|v| v * STRIDE));
        if x <= x1 || y <= y1 || x >= x2 || y >= y2 {
            return (0.0, 0.0);
        }
        let image = object.image as usize;
        let overlap = ciou(object.xyxy, [0, 1, 2, 3].map(|k| number(4 * image + k, a))).max(0.0);
        let score = number(4 * IMAGES + image * CLASSES + object.class as usize, a);
        (overlap, score.sqrt() * overlap.powi(6))
    };
    let ten = |object: &Object| {
        let mut order: Vec<usize> = (0..ANCHORS).filter(|&a| pair(object, a).1 > 0.0).collect();
        order.sort_by(|&a, &b| pair(object, b).1.total_cmp(&pair(object, a).1));
        order.truncate(10);
        order
    };
    let all = &objects.all;
    let wants: Vec<Vec<usize>> = all.iter().map(ten).collect();
    let mut owners = BTreeMap::new();
    for (i, a) in wants.iter().enumerate().flat_map(|(i, want)| want.iter().map(move |&a| (i, a))) {
        let of_image = || (0..all.len()).filter(move |&j| all[j].image == all[i].image);
        let most = of_image().max_by(|&j, &k| pair(&all[j], a).0.total_cmp(&pair(&all[k], a).0));
        let contested = of_image().filter(|&j| wants[j].contains(&a)).count() > 1;
        owners.insert((all[i].image, a), most.filter(|_| contested).unwrap_or(i));
    }
    let best = |owner: usize| {
        let pairs = owners.iter().filter(|(_, other)| **other == owner).map(|((_, a), _)| pair(&all[owner], *a));
        pairs.fold((0.0f32, 0.0f32), |best, (overlap, align)| (best.0.max(overlap), best.1.max(align)))
    };
    let positive = |(&(image, a), &owner): (&(u32, usize), &usize)| {
        let (object, (overlap, align)) = (all[owner], best(owner));
        let weight = pair(&object, a).1 * overlap / (align + 1e-9);
        let target = object.xyxy.map(|v| v / STRIDE);
        Positive { image, anchor: a as u32, class: object.class, centre: objects.centres[a], target, weight }
    };
    let mut positives: Vec<Positive> = owners.iter().map(positive).collect();
    let norm = positives.iter().map(|p| p.weight).sum::<f32>().max(1.0);
    positives.iter_mut().for_each(|p| p.weight /= norm);
    Foreground { positives: Arc::new(positives), gains: GAINS, norm }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_anchors_and_two_want_one() {
        let chosen = chosen(outputs(&Device::flex()), &objects());
        assert_eq!(chosen.positives.len(), 29);
        let learners = |image, class| chosen.positives.iter().filter(|p| p.image == image && p.class == class).count();
        assert_eq!([learners(0, 1), learners(0, 0), learners(1, 1)], [10, 9, 10]);
        assert!(chosen.positives.iter().all(|p| p.weight > 0.0) && chosen.norm > 5.0);
    }
}
