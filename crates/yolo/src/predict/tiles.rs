//! Large images with small objects: looked at tile by tile, so that an object keeps more of its pixels, and the answers put together.
//!
//! An object on a seam is seen by several tiles, by some only in part. A part has a low IoU with the whole, so boxes are compared by how much of
//! the *smaller* one is covered (IoS, as in Akyon et al. 2022, "Slicing aided hyper inference") unless plain NMS is asked for.

use crate::boxes::Detection;
use crate::data::Frame;
use crate::metrics::{iou, overlap_of_smaller};

/// When two boxes of a class are one object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// By intersection over union, or over the smaller box.
    pub by: MergeBy,
    /// The less sure one is dropped above this.
    pub threshold: f64,
    /// Across classes too.
    pub agnostic: bool,
    /// Most boxes that are kept.
    pub max_det: usize,
}

/// What is compared with the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeBy {
    /// Intersection over union.
    Nms,
    /// Intersection over the smaller box.
    Ios,
}

/// How an image is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiling {
    /// Side of a tile in pixels of the image.
    pub side: usize,
    /// Part of a tile that its neighbour shows too, 0 to 0.9.
    pub overlap: f64,
    /// How answers are put together.
    pub merge: Merge,
}

/// Where a tile lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl Tiling {
    /// The tiles of an image, row by row: all of `side`, or as long as the image where that is shorter; the last of a row ends with the image.
    pub fn places(&self, width: usize, height: usize) -> Vec<Place> {
        let step = ((self.side as f64 * (1.0 - self.overlap.clamp(0.0, 0.9))).round() as usize).max(1);
        let starts = |length: usize| -> Vec<usize> {
            let last = length.saturating_sub(self.side);
            (0..last).step_by(step).chain([last]).collect()
        };
        let (rows, columns) = (starts(height), starts(width));
        let place = |y: usize, x: usize| Place { x, y, width: self.side.min(width), height: self.side.min(height) };
        rows.iter().flat_map(|&y| columns.iter().map(move |&x| place(y, x))).collect()
    }
}

impl Place {
    /// The pixels there.
    pub fn cut(&self, frame: &Frame) -> Frame {
        let mut tile = frame.blank(frame.channels, self.width, self.height);
        tile.paste(frame, (self.x, self.y), (0, 0), self.width, self.height);
        tile
    }

    /// A detection in the tile as one in the image.
    pub fn back(&self, detection: Detection) -> Detection {
        let [x, y] = [self.x as f32, self.y as f32];
        let [x1, y1, x2, y2] = detection.xyxy;
        Detection { xyxy: [x1 + x, y1 + y, x2 + x, y2 + y], ..detection }
    }
}

/// Of the boxes that are one object, the surest.
pub fn merge(mut found: Vec<Detection>, rule: Merge) -> Vec<Detection> {
    found.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut kept: Vec<Detection> = Vec::new();
    for new in found {
        if kept.len() == rule.max_det {
            break;
        }
        let compare = match rule.by {
            MergeBy::Nms => iou,
            MergeBy::Ios => overlap_of_smaller,
        };
        let mut rivals = kept.iter().filter(|k| rule.agnostic || k.class == new.class);
        if rivals.all(|k| compare(&k.xyxy, &new.xyxy) <= rule.threshold) {
            kept.push(new);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_IOS: Merge = Merge { by: MergeBy::Ios, threshold: 0.5, agnostic: false, max_det: 300 };

    fn tiling(side: usize, overlap: f64) -> Tiling {
        Tiling { side, overlap, merge: BY_IOS }
    }

    #[test]
    fn tiles_cover_the_image_and_overlap() {
        for (width, height, side, overlap) in
            [(1000, 640, 320, 0.2), (640, 640, 640, 0.2), (200, 900, 320, 0.0), (641, 10, 320, 0.5), (5, 5, 320, 0.2)]
        {
            let places = tiling(side, overlap).places(width, height);
            let inside =
                |x: usize, y: usize| places.iter().any(|p| (p.x..p.x + p.width).contains(&x) && (p.y..p.y + p.height).contains(&y));
            assert!((0..height).step_by(3).all(|y| (0..width).all(|x| inside(x, y))), "{width}x{height}");
            assert!(places.iter().all(|p| p.x + p.width <= width && p.y + p.height <= height));
        }
        assert_eq!(tiling(640, 0.2).places(640, 512).len(), 1);
        let row = tiling(320, 0.25).places(800, 100);
        assert_eq!(row.iter().map(|p| p.x).collect::<Vec<_>>(), [0, 240, 480]);
    }

    #[test]
    fn a_tile_is_that_part_of_the_image() {
        let frame = Frame { pixels: (0..60).collect(), channels: 1, width: 10, height: 6, difference: false };
        let place = Place { x: 7, y: 2, width: 3, height: 2 };
        assert_eq!(place.cut(&frame).pixels, [27, 28, 29, 37, 38, 39]);
        let d = place.back(Detection { xyxy: [0.0, 1.0, 2.0, 2.0], score: 0.5, class: 0 });
        assert_eq!(d.xyxy, [7.0, 3.0, 9.0, 4.0]);
    }

    #[test]
    fn a_part_goes_with_the_whole() {
        let d = |xyxy, score, class| Detection { xyxy, score, class };
        let (whole, part, other) =
            (d([0.0, 0.0, 40.0, 10.0], 0.9, 0), d([0.0, 0.0, 10.0, 10.0], 0.8, 0), d([0.0, 0.0, 10.0, 10.0], 0.7, 1));
        assert_eq!(merge(vec![part, other, whole], BY_IOS), [whole, other]);
        assert_eq!(merge(vec![part, other, whole], Merge { agnostic: true, ..BY_IOS }), [whole]);
        assert_eq!(merge(vec![part, whole], Merge { by: MergeBy::Nms, ..BY_IOS }), [whole, part], "IoU is a quarter");
        assert_eq!(merge(vec![part, other, whole], Merge { max_det: 1, ..BY_IOS }), [whole]);
    }
}
