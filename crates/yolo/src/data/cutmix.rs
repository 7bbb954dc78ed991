//! Two samples in one: blended (mixup, Zhang et al. 2018) or with a rectangle of one pasted into the other (cutmix, Yun et al. 2019).

use super::rng::Draw;
use super::scene::Scene;

/// How many rectangles are tried before cutmix gives up.
const TRIES: usize = 3;

/// `ratio` of `a` and the rest of `b`; all boxes of both.
pub(crate) fn mixup(a: Scene, b: Scene, ratio: f64) -> Scene {
    let (mut a, b) = a.align(b);
    let weight = (ratio * 256.0) as u32;
    for (p, &q) in a.frame.pixels.iter_mut().zip(&b.frame.pixels) {
        *p = ((u32::from(*p) * weight + u32::from(q) * (256 - weight)) >> 8) as u8;
    }
    a.boxes.extend(b.boxes);
    a
}

/// Pastes a rectangle of `b`, of area 1 - Beta(1, 1), where it touches no box of `a`; boxes of `b` that it shows at least a tenth of come
/// along, clipped. Without such a place or such a box, `a` stays as it is.
pub(crate) fn cutmix(a: Scene, b: Scene, draw: &mut Draw) -> Scene {
    let (mut a, b) = a.align(b);
    let (width, height) = (a.frame.width, a.frame.height);
    let free = (0..TRIES).map(|_| rectangle(width, height, draw)).find(|r| a.boxes.iter().all(|(_, own)| overlap(r, own) <= 0.0));
    let Some(area) = free else { return a };
    let shown = |&(class, other): &(u32, [f32; 4])| {
        let size = (other[2] - other[0]) * (other[3] - other[1]);
        (overlap(&area, &other) >= 0.1 * size).then(|| (class, intersect(&area, &other)))
    };
    let pasted: Vec<_> = b.boxes.iter().filter_map(shown).collect();
    if !pasted.is_empty() {
        let [x1, y1, x2, y2] = area.map(|v| v as usize);
        a.frame.paste(&b.frame, (x1, y1), (x1, y1), x2 - x1, y2 - y1);
        a.boxes.extend(pasted);
    }
    a
}

/// Whole pixels, `xyxy`, centred anywhere and clipped.
fn rectangle(width: usize, height: usize, draw: &mut Draw) -> [f32; 4] {
    let part = (1.0 - draw.beta(1.0, 1.0)).sqrt();
    let mut axis = |size: usize| {
        let (centre, half) = (draw.below(size) as f64, (size as f64 * part / 2.0).floor());
        ((centre - half).max(0.0) as f32, (centre + half).min(size as f64) as f32)
    };
    let ((x1, x2), (y1, y2)) = (axis(width), axis(height));
    [x1, y1, x2, y2]
}

fn intersect(a: &[f32; 4], b: &[f32; 4]) -> [f32; 4] {
    [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]
}

fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let [x1, y1, x2, y2] = intersect(a, b);
    (x2 - x1).max(0.0) * (y2 - y1).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Frame;

    fn scene(value: u8, boxes: &[[f32; 4]]) -> Scene {
        Scene {
            frame: Frame::filled(1, 64, 48, value),
            boxes: boxes.iter().map(|&b| (u32::from(value), b)).collect(),
            outlines: Vec::new(),
        }
    }

    #[test]
    fn mixup_blends_and_keeps_all_boxes() {
        let mixed = mixup(scene(100, &[[0.0, 0.0, 9.0, 9.0]]), scene(200, &[[5.0, 5.0, 20.0, 20.0]]), 0.5);
        assert_eq!((mixed.frame.pixels[0], mixed.boxes.len()), (150, 2));
    }

    #[test]
    fn cutmix_pastes_beside_own_boxes() {
        let mut pasted = 0;
        for index in 0..60 {
            let own = [0.0, 0.0, 12.0, 12.0];
            let out = cutmix(scene(10, &[own]), scene(90, &[[30.0, 20.0, 50.0, 40.0]]), &mut Draw::new(3, "c", 0, index));
            let changed = out.frame.pixels.iter().filter(|&&p| p == 90).count();
            assert_eq!(changed > 0, out.boxes.len() == 2);
            assert!((0..12).all(|y| out.frame.pixels[y * 64..y * 64 + 12].iter().all(|&p| p == 10)), "own object untouched");
            for (_, b) in &out.boxes[1..] {
                pasted += 1;
                let (x, y) = ((b[0] + b[2]) as usize / 2, (b[1] + b[3]) as usize / 2);
                assert_eq!(out.frame.pixels[y * 64 + x], 90, "a pasted box lies on pasted pixels");
            }
        }
        assert!(pasted > 5, "{pasted}");
    }
}
