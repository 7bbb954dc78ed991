//! The file of a challenge whose truth is not given out: what was found in every image of a COCO file, by the ids of that file.
//!
//! Of the long-term thermal drift challenge (its starting kit, RTIOD): one object, a key an image, `boxes` as x1, y1, x2, y2 in pixels of the file,
//! `scores`, and `labels` as the file's category ids. Every image that a COCO file of the split lists has its key, also one in which nothing was found, that
//! cannot be read, or that is not there; unless a template says which keys there are to be.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use bellows_runs::write_atomic_with;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::Value;

use crate::boxes::Detection;
use crate::data::DataError;
use crate::template::Template;
use crate::validate::{ValSet, Validation};

/// What was found in an image. Boxes are rounded to thousandths of a pixel; scores are as they are, for rounded ones would be equal that are not.
#[derive(Default, Serialize)]
struct Entry {
    boxes: Vec<[f32; 4]>,
    scores: Vec<f32>,
    labels: Vec<Value>,
}

impl Entry {
    /// Adds a detection, unless nothing of it is left within the image.
    fn push(&mut self, found: &Detection, label: Value) {
        // Adding 0 makes 0 of -0, which no reader of JSON expects.
        let corners = found.xyxy.map(|v| (v * 1e3).round() / 1e3 + 0.0);
        if corners[0] < corners[2] && corners[1] < corners[3] {
            self.boxes.push(corners);
            self.scores.push(found.score);
            self.labels.push(label);
        }
    }
}

fn refuse(reason: String) -> DataError {
    DataError::Invalid(format!("a submission {reason}"))
}

/// What an image of this id is called in the file.
fn name(id: Value) -> String {
    if let Value::String(text) = id { text } else { id.to_string() }
}

/// What image `index` is called in the file.
fn key(set: &ValSet, index: usize) -> Result<String, DataError> {
    let absent = || refuse("names images by the ids of a COCO file, and some of these are in none".into());
    set.ids().image(index).map(name).ok_or_else(absent)
}

/// The images that the COCO files list by what they are called, in the order of the file; none for one that `set` has not.
type Images = BTreeMap<String, Option<usize>>;

/// How many images a submission names, and how the data differ from its template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submitted {
    /// All that it names.
    pub images: usize,
    /// Those of them that are in the template alone: nothing is in their entries.
    pub added: usize,
    /// Images of the data that the template has not: they have no entry.
    pub dropped: usize,
}

/// Keeps the images that `template` has, and adds those that only it has.
fn by_template(images: &mut Images, template: &Template) -> Result<Submitted, DataError> {
    let all = images.len();
    images.retain(|key, _| template.ids.contains(key));
    let known = images.len();
    if known == 0 {
        let (path, count) = (template.path.display(), template.ids.len());
        return Err(DataError::Invalid(format!(
            "{path}: none of its {count} ids is that of an image here: is it the template of another split?"
        )));
    }
    let absent: Vec<String> = template.ids.iter().filter(|id| !images.contains_key(*id)).cloned().collect();
    images.extend(absent.into_iter().map(|id| (id, None)));
    Ok(Submitted { images: images.len(), added: images.len() - known, dropped: all - known })
}

fn images(set: &ValSet, template: Option<&Template>) -> Result<(Images, Submitted), DataError> {
    let own = (0..set.len()).map(|index| key(set, index).map(|key| (key, Some(index))));
    let left_out = set.ids().left_out().map(|id| Ok((name(id), None)));
    let mut images = Images::new();
    for image in own.chain(left_out) {
        let (key, index) = image?;
        if images.insert(key.clone(), index).is_some() {
            return Err(refuse(format!("has one entry an id, and {key} is the id of two images")));
        }
    }
    let submitted = match template {
        Some(template) => by_template(&mut images, template)?,
        None => Submitted { images: images.len(), ..Submitted::default() },
    };
    Ok((images, submitted))
}

/// That the images of `set` and their classes, of which `classes` are looked for (or all), have names to be handed in under: to be asked before they are looked
/// at. `names` are those of the classes. Says which entries there will be, by the template if there is one.
///
/// # Errors
/// [`DataError::Invalid`] for an image that no COCO file lists, an id of two images, a class that neither the image's COCO file nor the data set's others list
/// as a category, or a template of other images.
pub fn can_submit(set: &ValSet, names: &[String], classes: Option<&[u32]>, template: Option<&Template>) -> Result<Submitted, DataError> {
    let (_, submitted) = images(set, template)?;
    let wanted = |class: &u32| classes.is_none_or(|classes| classes.contains(class));
    for index in 0..set.len() {
        let unnamed: Vec<u32> =
            (0..names.len() as u32).filter(wanted).filter(|&class| set.ids().category(index, class).is_none()).collect();
        let Some(&first) = unnamed.first() else { continue };
        let key = key(set, index)?;
        return Err(refuse(if unnamed.len() == names.len() {
            format!("labels by the ids of categories, and no COCO file of the data set has any for image {key}")
        } else {
            let class = &names[first as usize];
            format!(
                "labels by the ids of categories, and the COCO file of image {key} has none for class `{class}`: leave it out with --classes"
            )
        }));
    }
    Ok(submitted)
}

/// Writes the file for a validation of `set`, which kept its detections, and says which entries it has.
///
/// # Errors
/// As [`can_submit`]; a file that cannot be written.
pub fn write_submission(file: &Path, set: &ValSet, validation: &Validation, template: Option<&Template>) -> Result<Submitted, DataError> {
    let (images, submitted) = images(set, template)?;
    write_atomic_with(file, |out| write(out, set, &images, validation))?;
    Ok(submitted)
}

/// An image at a time: as JSON all of them take several times what their detections do, gigabytes of a split of the challenge.
fn write(out: impl Write, set: &ValSet, images: &Images, validation: &Validation) -> io::Result<()> {
    let mut found = vec![<&[Detection]>::default(); set.len()];
    for kept in &validation.kept {
        found[kept.index] = &kept.found;
    }
    let mut json = serde_json::Serializer::new(out);
    let mut file = json.serialize_map(Some(images.len()))?;
    for (key, index) in images {
        let made = index.map(|index| entry(set, index, found[index])).transpose().map_err(io::Error::other)?;
        file.serialize_entry(key, &made.unwrap_or_default())?;
    }
    Ok(file.end()?)
}

/// The entry of image `index`, in which this was found.
fn entry(set: &ValSet, index: usize, found: &[Detection]) -> Result<Entry, DataError> {
    let mut entry = Entry::default();
    for found in found {
        let absent = || refuse(format!("labels by the ids of categories, and there is none for class {}", found.class));
        entry.push(found, set.ids().category(index, found.class).ok_or_else(absent)?);
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::data::dataset::InMemDataset;
    use serde_json::json;

    use super::*;
    use crate::data::{CocoIds, Id, Size};
    use crate::validate::Kept;
    use crate::verdict::tests::validation;

    /// Images with these ids, of one file with categories 7 and, if `both`, 17 digits for two classes; and one that was left out.
    fn set(ids: &[Id], both: bool, left_out: &[Id]) -> ValSet {
        let second = both.then_some(Id::Number(20_200_514_000_000_001));
        let mut known = CocoIds::new(vec![vec![Some(Id::Number(7)), second]]);
        ids.iter().enumerate().for_each(|(i, id)| known.push(i, Some((0, id.clone()))));
        left_out.iter().for_each(|id| known.leave_out(id.clone()));
        ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), vec![Size::square(64); ids.len()]).with_ids(known)
    }

    fn validation_of(kept: Vec<(usize, Vec<Detection>)>) -> Validation {
        let kept = kept.into_iter().map(|(index, found)| Kept { index, name: String::new(), found }).collect();
        Validation { kept, ..validation() }
    }

    fn names() -> [String; 2] {
        ["person", "boat"].map(String::from)
    }

    #[test]
    fn an_entry_has_whole_boxes_and_scores_in_their_order() {
        let found = |score: f32, class, xyxy| Detection { xyxy, score, class };
        let all = vec![
            found(0.900_001, 0, [-0.0, 1.234_56, 10.0, 64.0]),
            found(0.900_000_5, 1, [0.1, 0.2, 0.3, 0.4]),
            found(1e-7, 0, [3.0, 3.0, 4.0, 4.0]),
            // Nothing of it is in the image.
            found(0.5, 0, [64.0, 3.0, 64.0, 4.0]),
        ];
        let ids = [Id::Number(20_200_514_230_715_001), "day/1".into()];
        let set = set(&ids, true, &[Id::Number(3)]);
        can_submit(&set, &names(), None, None).unwrap();
        let validation = validation_of(vec![(0, all)]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        assert_eq!(write_submission(&file, &set, &validation, None).unwrap(), Submitted { images: 3, added: 0, dropped: 0 });
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            r#"{"20200514230715001":{"boxes":[[0.0,1.235,10.0,64.0],[0.1,0.2,0.3,0.4],[3.0,3.0,4.0,4.0]],"scores":[0.900001,0.9000005,1e-7],"labels":[7,20200514000000001,7]},"3":{"boxes":[],"scores":[],"labels":[]},"day/1":{"boxes":[],"scores":[],"labels":[]}}"#
        );
    }

    #[test]
    fn a_template_says_which_ids_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("template.json");
        let template = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Template::read(&file).unwrap()
        };
        let one = |score| vec![Detection { xyxy: [0.0, 0.0, 1.0, 1.0], score, class: 0 }];
        let set = set(&[Id::Number(1), Id::Number(2)], true, &[Id::Number(3)]);
        let validation = validation_of(vec![(0, one(0.5)), (1, one(0.25))]);
        // Image 1 is not asked for; image 3 cannot be read, and image 9 nobody has.
        let asked = template(r#"{"9": {}, "3": {"boxes": []}, "2": {}}"#);
        let expected = Submitted { images: 3, added: 1, dropped: 1 };
        assert_eq!(can_submit(&set, &names(), None, Some(&asked)).unwrap(), expected);
        let out = dir.path().join("out.json");
        assert_eq!(write_submission(&out, &set, &validation, Some(&asked)).unwrap(), expected);
        let empty = r#"{"boxes":[],"scores":[],"labels":[]}"#;
        assert_eq!(
            std::fs::read_to_string(&out).unwrap(),
            format!(r#"{{"2":{{"boxes":[[0.0,0.0,1.0,1.0]],"scores":[0.25],"labels":[7]}},"3":{empty},"9":{empty}}}"#)
        );
        let other = template(r#"{"8": {}, "9": {}}"#);
        let refused = can_submit(&set, &names(), None, Some(&other)).unwrap_err().to_string();
        assert!(refused.contains("template.json: none of its 2 ids is that of an image here"), "{refused}");
    }

    /// The whole file as one value, as it was once made.
    fn at_once(set: &ValSet, validation: &Validation) -> Vec<u8> {
        let mut entries: BTreeMap<String, Entry> = images(set, None).unwrap().0.into_keys().map(|key| (key, Entry::default())).collect();
        for kept in &validation.kept {
            entries.insert(key(set, kept.index).unwrap(), entry(set, kept.index, &kept.found).unwrap());
        }
        serde_json::to_vec(&entries).unwrap()
    }

    fn written(set: &ValSet, validation: &Validation) -> (io::Result<()>, Vec<u8>) {
        let mut bytes = Vec::new();
        let done = write(&mut bytes, set, &images(set, None).unwrap().0, validation);
        (done, bytes)
    }

    #[test]
    fn image_by_image_it_is_the_file_that_it_is_at_once() {
        let ids: Vec<Id> =
            (0..40).map(|i| if i % 7 == 0 { Id::from(format!("a\"{i}/ø").as_str()) } else { Id::Number(i * i * i) }).collect();
        let set = set(&ids, true, &[Id::Number(-5), "a\\b".into()]);
        // Judged in another order than that of their names, and some not at all.
        let found = |i: usize, k: usize| {
            let corner = (i * 31 + k * 7) as f32 / 3.0;
            Detection {
                xyxy: [corner, corner, corner + 9.0, corner + (k % 3) as f32],
                score: 1.0 / (1 + i + k) as f32,
                class: (k % 2) as u32,
            }
        };
        let kept = (0..40_usize).rev().filter(|i| i % 5 != 0).map(|i| (i, (0..i).map(|k| found(i, k)).collect())).collect();
        let validation = validation_of(kept);
        let (done, bytes) = written(&set, &validation);
        done.unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), String::from_utf8(at_once(&set, &validation)).unwrap());
        let nothing = ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), Vec::new());
        assert_eq!(written(&nothing, &validation_of(Vec::new())).1, b"{}");
    }

    #[test]
    fn an_entry_is_written_before_the_next_one_is_made() {
        let one = |class| vec![Detection { xyxy: [0.0, 0.0, 1.0, 1.0], score: 0.5, class }];
        // The second class of the second image has no name.
        let set = set(&[Id::Number(1), Id::Number(2)], false, &[]);
        let validation = validation_of(vec![(1, one(1)), (0, one(0))]);
        let (done, bytes) = written(&set, &validation);
        let first = r#"{"1":{"boxes":[[0.0,0.0,1.0,1.0]],"scores":[0.5],"labels":[7]}"#;
        assert!(done.is_err() && bytes == first.as_bytes(), "{}", String::from_utf8_lossy(&bytes));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.json");
        std::fs::write(&file, "before").unwrap();
        assert!(write_submission(&file, &set, &validation, None).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "what was begun is gone");
    }

    #[test]
    fn what_has_no_name_of_its_own_is_refused_by_what_it_is() {
        let one = [Id::Number(1)];
        let refusal = |set: &ValSet, classes: Option<&[u32]>| can_submit(set, &names(), classes, None).unwrap_err().to_string();
        assert!(refusal(&set(&one, false, &[]), None).contains("image 1 has none for class `boat`"));
        assert!(can_submit(&set(&one, false, &[]), &names(), Some(&[0]), None).is_ok(), "it is not looked for");
        for (ids, left_out) in [(&[Id::Number(1), Id::Number(1)][..], &[][..]), (&one, &one)] {
            assert!(refusal(&set(ids, true, left_out), None).ends_with("1 is the id of two images"));
        }
        let kept = vec![(0, vec![Detection { xyxy: [0.0, 0.0, 1.0, 1.0], score: 0.5, class: 1 }])];
        let error = written(&set(&one, false, &[]), &validation_of(kept)).0.unwrap_err().to_string();
        assert!(error.contains("none for class 1"), "nothing is left out silently: {error}");
        let bare = ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), vec![Size::square(64)]);
        assert!(refusal(&bare, None).contains("some of these are in none"));
        assert_eq!(json!(Entry::default()), json!({ "boxes": [], "scores": [], "labels": [] }));
    }
}
