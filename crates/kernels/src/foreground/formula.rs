//! The formulas, once for processors and GPUs: a `#[cube]` function of numbers is a function of Rust too.
//!
//! CIoU (Zheng et al., 2020): `IoU - (d² / c² + alpha v)`, d the distance of the centres, c the diagonal of the smallest box around both,
//! `v = 4/pi² (atan(w2/h2) - atan(w1/h1))²`, `alpha = v / (v - IoU + 1)`, which passes no gradient. The distribution focal loss (Li et al.,
//! 2020) is the cross entropy of a side's bins against the two around the distance, weighted by how near it is to each.

use cubecl::prelude::*;

/// Bins to a side: distances 0 to 15.
pub const BINS: usize = 16;

/// Kept from dividing by zero, as the peers do.
const EPSILON: f32 = 1e-7;

/// The largest target distance: just below the last bin, so that there is one after it.
const FAR: f32 = BINS as f32 - 1.0 - 0.01;

/// 4 / pi².
const SHAPE: f32 = 0.405_284_73;

/// A box by its corners; also slopes for each of them.
#[derive(CubeType, Clone, Copy, Debug)]
pub(super) struct Corners {
    pub(super) x1: f32,
    pub(super) y1: f32,
    pub(super) x2: f32,
    pub(super) y2: f32,
}

/// CIoU of two boxes, and its slopes for the first one's corners.
#[derive(CubeType, Clone, Copy, Debug)]
pub(super) struct Overlap {
    pub(super) value: f32,
    pub(super) slopes: Corners,
}

#[cube]
fn least(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

#[cube]
fn most(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// 1 if a < b.
#[cube]
fn below(a: f32, b: f32) -> f32 {
    if a < b { 1.0f32 } else { 0.0f32 }
}

#[cube]
pub(super) fn ciou(a: Corners, b: Corners) -> Overlap {
    let w1 = a.x2 - a.x1;
    let h1 = a.y2 - a.y1 + EPSILON;
    let w2 = b.x2 - b.x1;
    let h2 = b.y2 - b.y1 + EPSILON;
    // Of the intersection: sides, and whether there is one.
    let iw = most(least(a.x2, b.x2) - most(a.x1, b.x1), 0.0f32);
    let ih = most(least(a.y2, b.y2) - most(a.y1, b.y1), 0.0f32);
    let meets = below(0.0f32, iw) * below(0.0f32, ih);
    let inter = iw * ih;
    let union = w1 * h1 + w2 * h2 - inter + EPSILON;
    let iou = inter / union;
    // Of the box around both.
    let cw = most(a.x2, b.x2) - least(a.x1, b.x1);
    let ch = most(a.y2, b.y2) - least(a.y1, b.y1);
    let diagonal = cw * cw + ch * ch + EPSILON;
    let dx = b.x1 + b.x2 - a.x1 - a.x2;
    let dy = b.y1 + b.y2 - a.y1 - a.y2;
    let far = ((dx * dx + dy * dy) / 4.0f32) / diagonal;
    let turn = (w2 / h2).atan() - (w1 / h1).atan();
    let v = SHAPE * (turn * turn);
    let alpha = v / (v - iou + (1.0f32 + EPSILON));

    // alpha dv for the width and for the height of a.
    let bend = alpha * 2.0f32 * SHAPE * turn / (w1 * w1 + h1 * h1);
    let (by_width, by_height) = (-bend * h1, bend * w1);
    // d IoU = ((1 + IoU) d inter - IoU d (w1 h1)) / union.
    let grows = (1.0f32 + iou) / union * meets;
    let shrinks = iou / union;
    let near = 2.0f32 * far / diagonal;
    let (pull_x, pull_y) = (dx / 2.0f32 / diagonal, dy / 2.0f32 / diagonal);
    let slopes = Corners {
        x1: -grows * ih * below(b.x1, a.x1) + shrinks * h1 + pull_x - near * cw * below(a.x1, b.x1) + by_width,
        y1: -grows * iw * below(b.y1, a.y1) + shrinks * w1 + pull_y - near * ch * below(a.y1, b.y1) + by_height,
        x2: grows * ih * below(a.x2, b.x2) - shrinks * h1 + pull_x + near * cw * below(b.x2, a.x2) - by_width,
        y2: grows * iw * below(a.y2, b.y2) - shrinks * w1 + pull_y + near * ch * below(b.y2, a.y2) - by_height,
    };
    Overlap { value: iou - (far + v * alpha), slopes }
}

/// The bins around a distance from the centre to a side: the lower one, and how much of the target is in the upper one.
#[cube]
pub(super) fn upper_share(distance: f32) -> f32 {
    let t = least(most(distance, 0.0f32), FAR);
    t - t.floor()
}

/// See [`upper_share`].
#[cube]
pub(super) fn lower_bin(distance: f32) -> f32 {
    least(most(distance, 0.0f32), FAR).floor()
}
