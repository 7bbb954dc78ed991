//! The task-aligned assigner (Feng et al., 2021) on CubeCL devices: nothing is read back, so a step does not wait for it.
//!
//! The alignment of an object and an anchor whose centre is in its box is `score^0.5 CIoU^6`. An object wants the ten anchors it is aligned with best, the first of
//! equals; an anchor that several want is learnt by the object that overlaps it most, of all that contain it; a target score is the alignment, so scaled that an
//! object's best is the largest overlap among the anchors it was left with. What may differ from the host's choices is in docs/decisions/0002.
//!
//! Each launch has a thread for whatever it writes, so that nothing is added by two at once: lists of ten by [`LANES`] threads to an object, each of which sees a
//! part of the anchors; the best ten of those lists; who learns each of them; the positives. Numbers of any kind lie in f32, which has all the whole ones
//! that there are here. What one launch says, the next reads in memory, so the device checks the indices.

use std::sync::Arc;

use burn::backend::ops::FloatTensorOps;
use burn::backend::{DType, Dispatch, TensorMetadata};
use burn::tensor::TensorData;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_objects::{Object, Objects, assigns};
use super::formula::{BINS, Corners, ciou};
use super::{ForegroundOps, Learning, SIDES};
use crate::cube::launch::launch_checked;
use crate::cube::pixels::empty;
use crate::logits::LogitOps;
use crate::shapes;

/// Anchors to an object, at most.
pub(super) const TEN: usize = 10;

/// Numbers of a positive: centre, target, weight, one more than its image (0 where there is no positive), anchor and class.
pub(super) const NUMBERS: usize = 10;

/// Threads that look for an object's anchors. The list of each takes 80 bytes, so that an object takes 2.5 KB.
const LANES: usize = 32;

/// Numbers of an object: its corners, image and class, the first object of that image and the one behind its last.
const ROW: usize = 8;

/// As in the host's assigner: how far inside a centre is, and what keeps a score from being divided by zero.
const EPSILON: f32 = 1e-9;

/// How much there is.
#[derive(CubeLaunch, CubeType)]
struct Extent {
    objects: usize,
    channels: usize,
    anchors: usize,
}

#[cube]
fn corners_of(objects: &Tensor<f32>, o: usize) -> Corners {
    let at = o * comptime!(ROW);
    Corners { x1: objects[at], y1: objects[at + 1], x2: objects[at + 2], y2: objects[at + 3] }
}

/// One of the whole numbers of an object, by its place.
#[cube]
fn whole(objects: &Tensor<f32>, o: usize, place: usize) -> usize {
    u32::cast_from(objects[o * comptime!(ROW) + place]) as usize
}

/// Whether a point is inside the box of an object that is no padding.
#[cube]
fn contains(objects: &Tensor<f32>, o: usize, x: f32, y: f32) -> bool {
    let b = corners_of(objects, o);
    let low = x - b.x1 > EPSILON && y - b.y1 > EPSILON;
    let high = b.x2 - x > EPSILON && b.y2 - y > EPSILON;
    b.x1 + b.y1 + b.x2 + b.y2 > 0.0f32 && low && high
}

/// CIoU of an object and of what an anchor of its image predicts, 0 where it is less, or no number.
#[cube]
fn overlap_of(objects: &Tensor<f32>, o: usize, corners: &Tensor<f32>, a: usize, extent: &Extent) -> f32 {
    let step = extent.anchors;
    let at = whole(objects, o, 4usize) * 4usize * step + a;
    let predicted = Corners { x1: corners[at], y1: corners[at + step], x2: corners[at + 2 * step], y2: corners[at + 3 * step] };
    let overlap = ciou(corners_of(objects, o), predicted);
    let mut value = 0.0f32;
    if overlap.value > 0.0f32 {
        value = overlap.value;
    }
    value
}

/// Alignment of an object and an anchor of its image that it overlaps so much.
#[cube]
fn alignment(x: &Tensor<f32>, objects: &Tensor<f32>, o: usize, a: usize, overlap: f32, extent: &Extent) -> f32 {
    let row = whole(objects, o, 4usize) * extent.channels + comptime!(SIDES) + whole(objects, o, 5usize);
    let score = 1.0f32 / (1.0f32 + (-x[row * extent.anchors + a]).exp());
    let square = overlap * overlap;
    score.sqrt() * (square * square * square)
}

/// Of each thread's anchors the ten that its object is aligned with best: alignment and anchor of each, in order, and alignments of zero behind them.
#[cube(launch, address_type = "dynamic")]
fn candidates_kernel(
    x: &Tensor<f32>,
    corners: &Tensor<f32>,
    centres: &Tensor<f32>,
    strides: &Tensor<f32>,
    objects: &Tensor<f32>,
    listed: &mut Tensor<f32>,
    extent: &Extent,
) {
    let o = ABSOLUTE_POS / comptime!(LANES);
    if o >= extent.objects {
        terminate!();
    }
    let list = ABSOLUTE_POS * comptime!(2 * TEN);
    let end = list + comptime!(2 * TEN);
    let mut i = list;
    while i < end {
        listed[i] = 0.0f32;
        i += 1usize;
    }
    let mut a = ABSOLUTE_POS % comptime!(LANES);
    while a < extent.anchors {
        let stride = strides[a];
        let x_of = centres[a] * stride;
        let y_of = centres[extent.anchors + a] * stride;
        if contains(objects, o, x_of, y_of) {
            let overlap = overlap_of(objects, o, corners, a, extent);
            let align = alignment(x, objects, o, a, overlap, extent);
            // Anchors come in order, so one that is no better than the last has no place.
            if align > listed[end - 2] {
                let mut value = align;
                let mut anchor = f32::cast_from(a as u32);
                let mut at = list;
                while at < end {
                    let held = listed[at];
                    let its = listed[at + 1];
                    if value > held || (value == held && anchor < its) {
                        listed[at] = value;
                        listed[at + 1] = anchor;
                        value = held;
                        anchor = its;
                    }
                    at += 2usize;
                }
            }
        }
        a += comptime!(LANES);
    }
}

/// One more than each of the ten best of each object's lists, a thread to an entry, which finds its place by counting those before it; 0 behind the last.
#[cube(launch, address_type = "dynamic")]
fn tens_kernel(listed: &Tensor<f32>, tens: &mut Tensor<f32>, objects: u32) {
    let o = ABSOLUTE_POS / comptime!(LANES * TEN);
    if o >= objects as usize {
        terminate!();
    }
    let entry = ABSOLUTE_POS % comptime!(LANES * TEN);
    let own = ABSOLUTE_POS * 2usize;
    let align = listed[own];
    let anchor = listed[own + 1];
    // The first ten have something to say even so: they clear what is left over.
    let ten = comptime!(TEN);
    if align == 0.0f32 && entry >= ten {
        terminate!();
    }
    let mut i = o * comptime!(2 * LANES * TEN);
    let end = i + comptime!(2 * LANES * TEN);
    let mut all = 0usize;
    let mut before = 0usize;
    while i < end {
        let other = listed[i];
        let its = listed[i + 1];
        if other > 0.0f32 {
            all += 1usize;
            if other > align || (other == align && its < anchor) {
                before += 1usize;
            }
        }
        i += 2usize;
    }
    if align > 0.0f32 && before < ten {
        tens[o * ten + before] = anchor + 1.0f32;
    }
    if entry >= all && entry < ten {
        tens[o * ten + entry] = 0.0f32;
    }
}

/// Who learns the anchor of each slot, with alignment and overlap: its object, or, where several of the image want it, the first of those that overlap it most. Of
/// several slots of one anchor the first has it. One more than the object; 0 where nobody learns it.
#[cube(launch, address_type = "dynamic")]
fn owners_kernel(
    x: &Tensor<f32>,
    corners: &Tensor<f32>,
    centres: &Tensor<f32>,
    strides: &Tensor<f32>,
    objects: &Tensor<f32>,
    tens: &Tensor<f32>,
    owners: &mut Tensor<f32>,
    extent: &Extent,
) {
    let slot = ABSOLUTE_POS;
    let o = slot / comptime!(TEN);
    if o >= extent.objects {
        terminate!();
    }
    let anchor = tens[slot];
    let mut owner = 0.0f32;
    let mut align = 0.0f32;
    let mut most = 0.0f32;
    if anchor > 0.0f32 {
        let first = whole(objects, o, 6usize);
        let last = whole(objects, o, 7usize);
        let mut others = 0usize;
        let mut earlier = 0usize;
        let mut i = first * comptime!(TEN);
        while i < last * comptime!(TEN) {
            let its = tens[i];
            if i != slot && its == anchor {
                others += 1usize;
                if i < slot {
                    earlier += 1usize;
                }
            }
            i += 1usize;
        }
        if earlier == 0usize {
            let a = u32::cast_from(anchor - 1.0f32) as usize;
            let stride = strides[a];
            let x_of = centres[a] * stride;
            let y_of = centres[extent.anchors + a] * stride;
            let mut best = o;
            let mut p = o;
            let mut end = o + 1usize;
            if others > 0usize {
                p = first;
                end = last;
            }
            while p < end {
                if contains(objects, p, x_of, y_of) {
                    let overlap = overlap_of(objects, p, corners, a, extent);
                    if overlap > most {
                        most = overlap;
                        best = p;
                    }
                }
                p += 1usize;
            }
            if most > 0.0f32 {
                owner = f32::cast_from(best as u32 + 1u32);
                align = alignment(x, objects, best, a, most, extent);
            }
        }
    }
    owners[3 * slot] = owner;
    owners[3 * slot + 1] = align;
    owners[3 * slot + 2] = most;
}

/// The positives, their target scores for weights; lengths in cells.
#[cube(launch, address_type = "dynamic")]
fn positives_kernel(
    owners: &Tensor<f32>,
    tens: &Tensor<f32>,
    centres: &Tensor<f32>,
    strides: &Tensor<f32>,
    objects: &Tensor<f32>,
    positives: &mut Tensor<f32>,
    extent: &Extent,
) {
    let slot = ABSOLUTE_POS;
    if slot >= extent.objects * comptime!(TEN) {
        terminate!();
    }
    let to = slot * comptime!(NUMBERS);
    let owner = owners[3 * slot];
    let mut score = 0.0f32;
    let mut image = 0.0f32;
    if owner > 0.0f32 {
        let o = u32::cast_from(owner - 1.0f32) as usize;
        // Its best alignment and overlap, over the anchors it was left with.
        let mut most = 0.0f32;
        let mut overlap = 0.0f32;
        let mut i = whole(objects, o, 6usize) * comptime!(TEN);
        let end = whole(objects, o, 7usize) * comptime!(TEN);
        while i < end {
            if owners[3 * i] == owner {
                if owners[3 * i + 1] > most {
                    most = owners[3 * i + 1];
                }
                if owners[3 * i + 2] > overlap {
                    overlap = owners[3 * i + 2];
                }
            }
            i += 1usize;
        }
        score = owners[3 * slot + 1] * overlap / (most + EPSILON);
        let anchor = tens[slot] - 1.0f32;
        let a = u32::cast_from(anchor) as usize;
        let stride = strides[a];
        let b = corners_of(objects, o);
        positives[to] = centres[a];
        positives[to + 1] = centres[extent.anchors + a];
        positives[to + 2] = b.x1 / stride;
        positives[to + 3] = b.y1 / stride;
        positives[to + 4] = b.x2 / stride;
        positives[to + 5] = b.y2 / stride;
        positives[to + 8] = anchor;
        positives[to + 9] = objects[o * comptime!(ROW) + 5];
        image = objects[o * comptime!(ROW) + 4] + 1.0f32;
    }
    positives[to + 6] = score;
    positives[to + 7] = image;
}

/// [`ROW`] numbers of each object.
fn rows(all: &[Object]) -> Vec<f32> {
    let before = |image: u32| all.partition_point(|object| object.image < image) as f32;
    let row = |object: &Object| {
        let [x1, y1, x2, y2] = object.xyxy;
        let Object { image, class, .. } = *object;
        [x1, y1, x2, y2, image as f32, class as f32, before(image), before(image + 1)]
    };
    all.iter().flat_map(row).collect()
}

/// The positives of these objects, of which there are some, among the contiguous outputs x: [`TEN`] slots to an object.
pub(super) fn assign(x: &CubeTensor, objects: &Objects) -> CubeTensor {
    let [_, channels, anchors] = x.shape().dims::<3>();
    let n = objects.all.len();
    let upload = |values: Vec<f32>, shape: [usize; 3]| CubeBackend::float_from_data(TensorData::new(values, shape), &x.device);
    let planes = (0..2).flat_map(|axis| objects.centres.iter().map(move |centre| centre[axis])).collect();
    let centres = upload(planes, [1, 2, anchors]);
    let strides = upload(objects.strides.clone(), [1, 1, anchors]);
    let corners = CubeBackend::predictions(x.clone(), centres.clone(), strides.clone(), Vec::new(), BINS);
    let rows = upload(rows(&objects.all), [1, n, ROW]);
    let extent = || ExtentLaunch::new(n, channels, anchors);
    let listed = empty(x, [2 * n * LANES * TEN], DType::F32);
    launch_checked!(candidates_kernel, n * LANES, [x, corners, centres, strides, rows, listed], extent());
    let tens = empty(x, [n * TEN], DType::F32);
    launch_checked!(tens_kernel, n * LANES * TEN, [listed, tens], n as u32);
    let owners = empty(x, [3 * n * TEN], DType::F32);
    launch_checked!(owners_kernel, n * TEN, [x, corners, centres, strides, rows, tens, owners], extent());
    let positives = empty(x, [n * TEN * NUMBERS], DType::F32);
    launch_checked!(positives_kernel, n * TEN, [owners, tens, centres, strides, rows, positives], extent());
    positives
}

/// The terms of [`detection_terms`](super::detection_terms) where the device itself finds the anchors that learn these objects, and what weights are divided by:
/// the sum of all target scores, or 1 if that is less.
///
/// # Panics
/// If x is of another type, has other anchors, or not an object's image or class; if objects are not in the order of their images, or not to be assigned
/// [there](assigns).
pub fn assigned_terms(x: burn::tensor::Tensor<3>, objects: Objects) -> burn::tensor::Tensor<1> {
    let [images, channels, anchors] = x.dims();
    shapes::within("side logits", &(0..SIDES), channels);
    let given = [objects.centres.len(), objects.strides.len()];
    assert!(given == [anchors; 2], "centres and strides of {given:?} anchors, and outputs of {anchors}");
    let inside = |object: &Object| (object.image as usize) < images && SIDES + (object.class as usize) < channels;
    assert!(objects.all.len() < 1 << 24, "{} objects, which f32 does not tell apart", objects.all.len());
    assert!(objects.all.iter().all(inside), "an object that is not among outputs of {:?}", [images, channels, anchors]);
    assert!(objects.all.is_sorted_by_key(|object| object.image), "objects that are not in the order of their images");
    assert!(x.dtype() == DType::F32, "a loss in {:?}", x.dtype());
    assert!(assigns(&x.device()), "objects on a processor, or of a part of a batch");
    burn::tensor::Tensor::from_dispatch(Dispatch::detection_terms(x.into_dispatch(), Learning::Assigned(Arc::new(objects))))
}
