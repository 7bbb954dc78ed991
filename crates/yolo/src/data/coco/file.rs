//! What is kept of a COCO file: 32 bytes a box, 8 a point of its polygons, and 12 an area that is another than the box's.

use std::sync::Arc;

use super::id::Id;
use crate::data::areas::Areas;
use crate::data::frame::Size;
use crate::data::meta::MetaTable;

/// How many of each kind of oddity are named.
pub(crate) const EXAMPLES: usize = 10;

/// An image as the file describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CocoImage {
    pub(crate) id: Id,
    /// Its file, relative to a folder that the file does not name.
    pub(crate) file: String,
    /// 0 where it is not said.
    pub(crate) size: Size,
}

/// An object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CocoBox {
    /// Index into [`CocoFile::images`].
    pub(crate) image: u32,
    /// Index into [`CocoFile::categories`].
    pub(crate) category: u32,
    /// Left, top, width, height in pixels; width and height are above 0.
    pub(crate) xywh: [f32; 4],
    /// Its polygons: how many of [`CocoFile::points`], and where they begin.
    pub(crate) outline: [u32; 2],
}

/// What was left out, and what is odd.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Annotations of crowds.
    pub(crate) crowd: u64,
    /// Boxes without width or height.
    pub(crate) zero_size: u64,
    /// Annotations with neither a box nor a polygon, and of those the ones with a mask only.
    pub(crate) boxless: u64,
    /// Masks in run lengths, beside a box.
    pub(crate) masks: u64,
    /// Polygons with a point that is unknown, which are left out.
    pub(crate) unknown_points: u64,
    /// Annotations of an image that the file does not list.
    pub(crate) unknown_image: u64,
    /// Annotations of a category that the file does not list.
    pub(crate) unknown_category: u64,
    /// Images that are listed twice.
    pub(crate) repeated_images: u64,
    /// Annotations whose id another one has; all are used.
    pub(crate) repeated_annotations: u64,
    /// Values that are no number, which Python writes as `NaN` or `Infinity`.
    pub(crate) not_numbers: u64,
    /// The first few of each of these that belong to an image or an annotation, by name.
    pub(crate) examples: Vec<String>,
}

impl Counts {
    /// Names the `nth` of a kind, counted from 1, if it is one of the first.
    pub(super) fn example(&mut self, nth: u64, text: impl FnOnce() -> String) {
        if nth <= EXAMPLES as u64 {
            self.examples.push(text());
        }
    }
}

/// A COCO file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CocoFile {
    /// Id and name, in the file's order.
    pub(crate) categories: Vec<(Id, String)>,
    /// In the file's order.
    pub(crate) images: Vec<CocoImage>,
    /// Sorted by image; those of one image in the file's order.
    pub(crate) boxes: Vec<CocoBox>,
    /// Where the boxes of each image begin, and where the last one's end.
    pub(super) begins: Vec<u32>,
    /// Points of polygons in pixels, as an [`Outline`](crate::data::Outline) each.
    pub(crate) points: Vec<[f32; 2]>,
    /// By image, and by the place of a box among those of its image.
    pub(crate) areas: Areas,
    /// `meta` and `date_captured` of each image.
    pub(crate) meta: Arc<MetaTable>,
    pub(crate) counts: Counts,
}

impl CocoFile {
    /// The outline of an object.
    pub(crate) fn outline(&self, of: &CocoBox) -> &[[f32; 2]] {
        let [count, from] = of.outline.map(|n| n as usize);
        &self.points[from..from + count]
    }

    /// With all of its images and boxes in their places.
    pub(crate) fn complete(mut self) -> Self {
        let mut begins = vec![0_u32; self.images.len() + 1];
        self.boxes.iter().for_each(|b| begins[b.image as usize + 1] += 1);
        (1..begins.len()).for_each(|i| begins[i] += begins[i - 1]);
        self.begins = begins;
        self
    }

    /// The objects of image `index`.
    pub(crate) fn boxes_of(&self, index: usize) -> &[CocoBox] {
        &self.boxes[self.begins[index] as usize..self.begins[index + 1] as usize]
    }

    /// The names of its categories, each once, in the file's order: its classes. `background` is one only where objects are called so.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut seen = std::collections::HashSet::new();
        let is_class =
            |at: usize, name: &str| !name.eq_ignore_ascii_case("background") || self.boxes.iter().any(|b| b.category as usize == at);
        let classes = self.categories.iter().enumerate().filter(|(at, (_, name))| is_class(*at, name)).map(|(_, (_, name))| name);
        classes.filter(|name| seen.insert(*name)).cloned().collect()
    }
}
