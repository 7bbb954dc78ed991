//! Detections as COCO's results format (`predictions.json`), which pycocotools and its kin read.

use std::collections::HashSet;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::boxes::Detection;
use crate::data::CocoIds;
use crate::validate::{Kept, ValSet, Validation};

/// What was found in the images of a set that kept its detections, as one list. It is made while it is serialised: all of it as values
/// takes ten times what the detections do. `val` writes it so, and a run makes its bytes first.
pub struct Predictions<'a> {
    /// The set.
    pub set: &'a ValSet,
    /// What was found in it.
    pub validation: &'a Validation,
    /// Whether all classes were one.
    pub single_cls: bool,
}

impl Predictions<'_> {
    /// What there is to say of images that have one id, as those of two folders with one name: whoever reads the list takes them for one.
    pub fn shared_ids(&self) -> Option<String> {
        let Self { set, validation: Validation { kept, .. }, .. } = self;
        let id = |kept: &Kept| set.ids().image(kept.index).unwrap_or_else(|| of_name(&kept.name)).to_string();
        let mut seen = HashSet::new();
        let again: Vec<String> = kept.iter().map(id).filter(|id| !seen.insert(id.clone())).collect();
        let (first, all) = (again.first()?, kept.len());
        Some(format!(
            "predictions.json: {} of {all} images have the id of another, as {first}: COCO's tools take them for one",
            again.len()
        ))
    }
}

/// The id of an image that is in no COCO file.
fn of_name(name: &str) -> Value {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    stem.parse::<u64>().map_or_else(|_| Value::from(stem), Value::from)
}

impl Serialize for Predictions<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { set, validation, single_cls } = *self;
        let of_image = |kept| Prediction::of_image(kept, set.ids(), single_cls);
        serializer.collect_seq(validation.kept.iter().flat_map(of_image))
    }
}

/// One detection.
#[derive(Serialize)]
struct Prediction<'a> {
    /// The id that the image has in its COCO file; else the file's name without extension, as a number where it is one.
    image_id: Value,
    /// The file's name.
    file_name: &'a str,
    /// The id that the class has in the image's COCO file; else its index, counted from 1.
    category_id: Value,
    /// x, y of the upper left corner, width, height, in pixels of the image file, three decimals.
    bbox: [f64; 4],
    /// Confidence, five decimals.
    score: f64,
}

impl<'a> Prediction<'a> {
    /// Those that were found in an image.
    fn of_image(kept: &'a Kept, ids: &'a CocoIds, single_cls: bool) -> impl Iterator<Item = Self> {
        kept.found.iter().filter_map(move |found| Self::new(kept, found, ids, single_cls))
    }

    /// None if the image's COCO file has no such category: nothing there could be compared with it. One class for all is no category of any file, and has
    /// the id 1.
    fn new(kept: &'a Kept, found: &Detection, ids: &CocoIds, single_cls: bool) -> Option<Self> {
        let counted = Value::from(found.class + 1);
        let (image_id, category_id) = match ids.image(kept.index) {
            None => (of_name(&kept.name), counted),
            Some(id) if single_cls => (id, counted),
            Some(id) => (id, ids.category(kept.index, found.class)?),
        };
        let [x1, y1, x2, y2] = found.xyxy.map(f64::from);
        let round = |x: f64, unit: f64| (x * unit).round() / unit;
        Some(Self {
            image_id,
            file_name: &kept.name,
            category_id,
            bbox: [x1, y1, x2 - x1, y2 - y1].map(|v| round(v, 1e3)),
            score: round(f64::from(found.score), 1e5),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::data::dataset::InMemDataset;

    use super::*;
    use crate::data::{Id, Size};
    use crate::verdict::tests::validation;

    /// Of two images with an object of the first class and one of the third.
    fn written(ids: CocoIds, single_cls: bool) -> String {
        let found = [0, 2].map(|class| Detection { xyxy: [10.0, 10.5, 20.0, 30.25], score: 0.123_456_7, class }).to_vec();
        let kept = [(1, "000042.jpg"), (0, "frame_7.png")].map(|(index, name)| Kept { index, name: name.into(), found: found.clone() });
        let validation = Validation { kept: kept.into(), ..validation() };
        let set = ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), vec![Size::square(64); 2]).with_ids(ids);
        serde_json::to_string(&Predictions { set: &set, validation: &validation, single_cls }).unwrap()
    }

    /// These images and categories of those files.
    fn list(rows: &[(&str, &str, u64)]) -> String {
        let row = |(id, name, category): &(&str, &str, u64)| {
            format!(r#"{{"image_id":{id},"file_name":"{name}","category_id":{category},"bbox":[10.0,10.5,10.0,19.75],"score":0.12346}}"#)
        };
        format!("[{}]", rows.iter().map(row).collect::<Vec<_>>().join(","))
    }

    #[test]
    fn images_and_classes_are_called_as_in_their_files() {
        let (number, text) = (("42", "000042.jpg"), ("\"frame_7\"", "frame_7.png"));
        let by_name = [(number.0, number.1, 1), (number.0, number.1, 3), (text.0, text.1, 1), (text.0, text.1, 3)];
        assert_eq!(written(CocoIds::default(), false), list(&by_name));
        // A file of two of the classes.
        let ids = || {
            let mut ids = CocoIds::new(vec![vec![Some(Id::Number(7)), Some(Id::Number(9))]]);
            [20_200_514_000_000_001, 5].into_iter().enumerate().for_each(|(i, id)| ids.push(i, Some((0, Id::Number(id)))));
            ids
        };
        let [second, first] = [("5", "000042.jpg"), ("20200514000000001", "frame_7.png")];
        assert_eq!(written(ids(), false), list(&[(second.0, second.1, 7), (first.0, first.1, 7)]));
        // What is one class has been called 0 by whoever judged it.
        let one = [(second.0, second.1, 1), (second.0, second.1, 3), (first.0, first.1, 1), (first.0, first.1, 3)];
        assert_eq!(written(ids(), true), list(&one));
    }

    #[test]
    fn images_of_one_id_are_told() {
        let told = |names: [&str; 3], ids: CocoIds| {
            let kept = names.into_iter().enumerate().map(|(index, name)| Kept { index, name: name.into(), found: Vec::new() }).collect();
            let validation = Validation { kept, ..validation() };
            let set = ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), vec![Size::square(64); 3]).with_ids(ids);
            Predictions { set: &set, validation: &validation, single_cls: false }.shared_ids()
        };
        assert_eq!(told(["a.jpg", "b.jpg", "1.png"], CocoIds::default()), None);
        let line = told(["0001.jpg", "b.jpg", "1.png"], CocoIds::default()).unwrap();
        assert!(line.contains("1 of 3 images have the id of another, as 1:"), "{line}");
        let mut ids = CocoIds::new(vec![Vec::new()]);
        [3, 4, 5].into_iter().enumerate().for_each(|(i, id)| ids.push(i, Some((0, Id::Number(id)))));
        assert_eq!(told(["a.jpg", "a.jpg", "a.jpg"], ids), None, "their files tell them apart");
    }
}
