//! Detections as COCO's results format (`predictions.json`), which pycocotools and its kin read.

use serde::Serialize;
use serde_json::Value;

use crate::boxes::Detection;
use crate::data::{CocoIds, Letterbox};

/// One detection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The id that the image has in its COCO file; else the file's name without extension, as a number where it is one.
    pub image_id: Value,
    /// The file's name.
    pub file_name: String,
    /// The id that the class has in the image's COCO file; else its index, counted from 1.
    pub category_id: Value,
    /// x, y of the upper left corner, width, height, in pixels of the image file, three decimals.
    pub bbox: [f64; 4],
    /// Confidence, five decimals.
    pub score: f64,
}

impl Prediction {
    /// `detection` is in network pixels, `place` says how the image came there.
    pub fn new(file_name: &str, detection: &Detection, place: &Letterbox) -> Self {
        let stem = file_name.rsplit_once('.').map_or(file_name, |(stem, _)| stem);
        let [x1, y1, x2, y2] = place.to_original(detection.xyxy).map(f64::from);
        let round = |x: f64, unit: f64| (x * unit).round() / unit;
        Self {
            image_id: stem.parse::<u64>().map_or_else(|_| Value::from(stem), Value::from),
            file_name: file_name.to_string(),
            category_id: (detection.class + 1).into(),
            bbox: [x1, y1, x2 - x1, y2 - y1].map(|v| round(v, 1e3)),
            score: round(f64::from(detection.score), 1e5),
        }
    }
}

impl Prediction {
    /// With what the COCO file of the image, which is number `index` of its set, calls image and class. None if the file has no such category:
    /// nothing there could be compared with it. One class for all is no category of any file, and has the id 1.
    pub(crate) fn called_as_in(self, ids: &CocoIds, index: usize, class: Option<u32>) -> Option<Self> {
        let Some(image_id) = ids.image(index) else { return Some(self) };
        let category_id = match class {
            Some(class) => ids.category(index, class)?,
            None => self.category_id,
        };
        Some(Self { image_id, category_id, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Size;

    #[test]
    fn boxes_return_to_the_pixels_of_the_file() {
        let place = Letterbox { ratio: [2.0, 2.0], pad: [10.0, 20.0], original: Size { width: 100, height: 50 } };
        let detection = Detection { xyxy: [30.0, 40.0, 50.0, 80.0], score: 0.123_456_7, class: 2 };
        let p = Prediction::new("000042.jpg", &detection, &place);
        assert_eq!((p.image_id, p.category_id, p.bbox, p.score), (Value::from(42), Value::from(3), [10.0, 10.0, 10.0, 20.0], 0.12346));
        assert_eq!(Prediction::new("frame_7.png", &detection, &place).image_id, "frame_7");
    }
}
