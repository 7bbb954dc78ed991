//! Four images around one random point of a canvas twice the network's size (the mosaic of YOLOv4, Bochkovskiy et al. 2020).

use super::error::DataError;
use super::item::Item;
use super::letterbox::fit;
use super::rng::Draw;
use super::scene::Scene;
use crate::boxes::xywh_to_xyxy;

/// Places four items with their corners at a point drawn from the middle half of a `2 imgsz` canvas, clips what lies outside, and drops
/// boxes of which nothing is left.
pub(crate) fn mosaic4(items: &[Item], imgsz: u32, draw: &mut Draw) -> Result<Scene, DataError> {
    let side = 2 * imgsz as usize;
    let mut centre = || draw.uniform(f64::from(imgsz) * 0.5, f64::from(imgsz) * 1.5) as usize;
    let (cx, cy) = (centre(), centre());
    let channels = items.iter().map(|i| i.frame.channels).max().unwrap_or(1);
    let mut canvas = items[0].frame.blank(channels, side, side);
    let (mut boxes, mut outlines) = (Vec::new(), Vec::new());
    let outlined = items.iter().any(|item| !item.outlines.is_empty());
    for (item, (left, above)) in items.iter().zip([(true, true), (false, true), (true, false), (false, false)]) {
        let frame = fit(&item.frame, imgsz)?.with_channels(channels);
        // Each image touches the centre with the corner that faces it.
        let (x, from_x, width) = place(cx, frame.width, side, left);
        let (y, from_y, height) = place(cy, frame.height, side, above);
        canvas.paste(&frame, (from_x, from_y), (x, y), width, height);
        let (dx, dy) = (x as f32 - from_x as f32, y as f32 - from_y as f32);
        for (k, label) in item.labels.iter().enumerate() {
            let [x1, y1, x2, y2] = xywh_to_xyxy(label.xywh);
            let (w, h) = (frame.width as f32, frame.height as f32);
            let clip = |v: f32| v.clamp(0.0, side as f32);
            let b = [clip(x1 * w + dx), clip(y1 * h + dy), clip(x2 * w + dx), clip(y2 * h + dy)];
            if b[2] > b[0] && b[3] > b[1] {
                boxes.push((label.class, b));
                if outlined {
                    let outline = item.outlines.get(k).map(Vec::as_slice).unwrap_or_default();
                    outlines.push(outline.iter().map(|&[x, y]| [clip(x * w + dx), clip(y * h + dy)]).collect());
                }
            }
        }
    }
    Ok(Scene { frame: canvas, boxes, outlines })
}

/// On one axis: where an image of `size` lands when it ends (`before`) or begins at `centre`, which of its pixels is the first, how many fit.
fn place(centre: usize, size: usize, side: usize, before: bool) -> (usize, usize, usize) {
    if before {
        let visible = size.min(centre);
        (centre - visible, size - visible, visible)
    } else {
        (centre, 0, size.min(side - centre))
    }
}
