//! A COCO file as a stream: element after element, so that what is not kept costs no memory.
//!
//! The keys may stand in any order. `annotation` is taken for `annotations` and `filename` for `file_name`: data sets are published so. Dropped and
//! counted: crowds, boxes without size, polygons with an unknown point, annotations of images or categories that are not listed. Counted and used:
//! annotations with the id of another, for files that were put together count from 1 twice, and nothing here is found by that id. Counted and unknown:
//! what Python calls `NaN` or `Infinity`. Refused, with line and column: what is no JSON, values of other types, a category without a name, a box that is
//! not four numbers, one id for two images or two categories. What is nested deeper than a COCO file has reason to be is refused by the JSON reader. A
//! file of images alone is one of images to be looked at.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io::Read;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::file::{CocoBox, CocoFile, CocoImage, Counts, EXAMPLES};
use super::id::Id;
use super::scalar::{Flag, Number, Pairs, Scalar, Side, misplaced, no_box};
use super::segmentation::Segmentation;
use super::tolerant::tolerant;
use crate::data::areas::Areas;
use crate::data::frame::Size;
use crate::data::meta::{MOMENT, MetaBuilder};

/// Longest path that a file may give an image, bytes.
const LONGEST: usize = 4096;

/// What is wrong with a file, and at which line and column, counted from 1.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reason: String,
    pub(super) place: Option<(usize, usize)>,
}

/// Reads a file; an error says where it is wrong.
pub(super) fn parse(reader: impl Read) -> Result<CocoFile, Fault> {
    let (mut raw, replaced) = (Raw::default(), Cell::new(0));
    let mut deserializer = serde_json::Deserializer::from_reader(tolerant(reader, &replaced));
    let root = Root(&mut raw).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    root.map_err(|e| Fault { reason: e.to_string(), place: Some((e.line(), e.column())).filter(|place| place.0 > 0) })?;
    raw.file.counts.not_numbers = replaced.get();
    raw.finish().map_err(|reason| Fault { reason, place: None })
}

/// Ids as small numbers, in the order in which they are met.
#[derive(Default)]
struct Known {
    slots: HashMap<Id, u32>,
}

impl Known {
    fn slot(&mut self, id: Id) -> u32 {
        let next = self.slots.len() as u32;
        *self.slots.entry(id).or_insert(next)
    }
}

/// What has been read: boxes with slots of ids, for what they belong to may come later.
#[derive(Default)]
struct Raw {
    file: CocoFile,
    image_ids: Known,
    category_ids: Known,
    /// Slot to index.
    image_at: HashMap<u32, u32>,
    category_at: HashMap<u32, u32>,
    meta: MetaBuilder,
    /// Of annotations, to find those of two: numbers, which mostly stand in their order, and hashes of texts.
    annotation_numbers: Vec<i64>,
    annotation_texts: HashSet<u64>,
    /// Areas that are not those of boxes, with the number of the box.
    areas: Vec<(u32, f32)>,
    seen: [bool; 3],
}

impl Raw {
    fn image(&mut self, image: RawImage) -> Result<(), String> {
        let id = image.id.ok_or("an image without `id`")?;
        let file = image.file_name.or(image.filename).ok_or_else(|| format!("image {id} without `file_name`"))?;
        if file.is_empty() || file.len() > LONGEST || file.contains('\0') {
            return Err(format!("image {id}: its file name is empty, longer than {LONGEST} bytes, or no name"));
        }
        let side = |Number(v): Number| v.filter(|v| (0.0..=1e9).contains(v)).map_or(0, |v| v.round() as u32);
        let size = Size { width: side(image.width), height: side(image.height) };
        let index = u32::try_from(self.file.images.len()).map_err(|_| "more than 4 billion images")?;
        match self.image_at.entry(self.image_ids.slot(id.clone())) {
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(index);
                let moment = image.date_captured.and_then(|Scalar(text)| text);
                moment.iter().for_each(|text| self.meta.set(index as usize, MOMENT, text));
                image.meta.unwrap_or_default().0.iter().for_each(|(key, text)| self.meta.set(index as usize, key, text));
                self.file.images.push(CocoImage { id, file, size });
            }
            std::collections::hash_map::Entry::Occupied(place) => {
                let first = &self.file.images[*place.get() as usize].file;
                if *first != file {
                    return Err(format!("image id {id} is given to {first} and to {file}"));
                }
                let counts = &mut self.file.counts;
                counts.repeated_images += 1;
                counts.example(counts.repeated_images, || format!("image id {id} is listed again"));
            }
        }
        Ok(())
    }

    fn category(&mut self, category: RawCategory) -> Result<(), String> {
        let id = category.id.ok_or("a category without `id`")?;
        let name = category.name.ok_or_else(|| format!("category {id} without `name`"))?.to_string();
        let index = u32::try_from(self.file.categories.len()).ok().filter(|&n| n < 100_000).ok_or("more than 100000 categories")?;
        if self.category_at.insert(self.category_ids.slot(id.clone()), index).is_some() {
            return Err(format!("category id {id} is given twice"));
        }
        self.file.categories.push((id, name));
        Ok(())
    }

    fn annotation(&mut self, annotation: RawAnnotation) -> Result<(), String> {
        let RawAnnotation { id, image_id, category_id, bbox, area, segmentation, iscrowd } = annotation;
        let who = || id.as_ref().map_or_else(|| "an annotation without id".into(), |id| format!("annotation {id}"));
        let image = image_id.ok_or_else(|| format!("{} has no `image_id`", who()))?;
        let of = || format!("{} of image {image}", who());
        let counts = &mut self.file.counts;
        let again = match &id {
            Some(Id::Number(number)) => {
                self.annotation_numbers.push(*number);
                false
            }
            Some(Id::Text(text)) => !self.annotation_texts.insert(BuildHasherDefault::<DefaultHasher>::default().hash_one(text)),
            None => false,
        };
        if again {
            counts.repeated_annotations += 1;
            counts.example(counts.repeated_annotations, || format!("{} has the id of another before it", of()));
        }
        if iscrowd.0 {
            counts.crowd += 1;
            return Ok(());
        }
        let unknown = segmentation.as_ref().map_or(0, |s| s.unknown);
        if unknown > 0 {
            counts.unknown_points += unknown;
            counts.example(counts.unknown_points, || format!("{} has a polygon with an unknown point", of()));
        }
        let masked = segmentation.as_ref().is_some_and(|s| s.mask);
        let hull = segmentation.as_ref().and_then(Segmentation::hull);
        let xywh = match bbox.map(|b| (b.count, b.values)) {
            Some((4, values)) => values,
            None | Some((0, _)) => match hull {
                Some(hull) => hull,
                None => {
                    counts.boxless += 1;
                    counts.example(counts.boxless, || format!("{} has no box{}", of(), if masked { ", only a mask" } else { "" }));
                    return Ok(());
                }
            },
            Some((n, _)) => return Err(format!("{}: `bbox` has {n} numbers, not 4", of())),
        };
        counts.masks += u64::from(masked);
        let xywh = xywh.map(|v| v as f32);
        if !xywh.iter().all(|v| v.is_finite()) {
            return Err(format!("{}: `bbox` is beyond all bounds", of()));
        }
        let category = category_id.ok_or_else(|| format!("{} has no `category_id`", of()))?;
        if xywh[2] <= 0.0 || xywh[3] <= 0.0 {
            counts.zero_size += 1;
            counts.example(counts.zero_size, || format!("{} has a box of {} x {} pixels", of(), xywh[2], xywh[3]));
            return Ok(());
        }
        if self.file.boxes.len() >= u32::MAX as usize {
            return Err("more than 4 billion boxes".into());
        }
        let from = self.file.points.len();
        self.file.points.extend(segmentation.map(|s| s.points).unwrap_or_default());
        let ends = u32::try_from(self.file.points.len()).map_err(|_| "more than 4 billion points of polygons")?;
        let outline = [ends - from as u32, from as u32];
        let area = area.0.and_then(|text| text.parse::<f64>().ok()).map(|area| area as f32);
        let own = Areas::own(area, [xywh[2], xywh[3]]);
        self.areas.extend(own.map(|area| (self.file.boxes.len() as u32, area)));
        self.file.boxes.push(CocoBox { image: self.image_ids.slot(image), category: self.category_ids.slot(category), xywh, outline });
        Ok(())
    }

    /// Slots become indices; what belongs to nothing is dropped.
    fn finish(mut self) -> Result<CocoFile, String> {
        let [images, annotations, categories] = self.seen;
        for (there, key) in [(images, "images"), (categories || !annotations, "categories")] {
            if !there {
                return Err(format!("no `{key}`: not a COCO file"));
            }
        }
        self.annotation_numbers.sort_unstable();
        let counts = &mut self.file.counts;
        for same in self.annotation_numbers.chunk_by(|a, b| a == b).filter(|same| same.len() > 1) {
            counts.example(counts.repeated_annotations + 1, || format!("annotation id {} is given to {} annotations", same[0], same.len()));
            counts.repeated_annotations += same.len() as u64 - 1;
        }
        self.file.meta = Arc::new(std::mem::take(&mut self.meta).finish());
        let mut boxes = std::mem::take(&mut self.file.boxes);
        let (mut lost_images, mut lost_categories) = (HashMap::new(), HashMap::new());
        let (mut number, mut areas) = (0, std::mem::take(&mut self.areas).into_iter().peekable());
        let (mut kept, mut own) = (vec![0_u32; self.file.images.len()], Vec::new());
        boxes.retain_mut(|b| {
            let area = areas.next_if(|(of, _)| *of == number).map(|(_, area)| area);
            number += 1;
            let (image, category) = (self.image_at.get(&b.image), self.category_at.get(&b.category));
            if image.is_none() {
                *lost_images.entry(b.image).or_insert(0u64) += 1;
            } else if category.is_none() {
                *lost_categories.entry(b.category).or_insert(0u64) += 1;
            }
            let (Some(&image), Some(&category)) = (image, category) else { return false };
            (b.image, b.category) = (image, category);
            let place = &mut kept[image as usize];
            own.extend(area.map(|area| ([image, *place], area)));
            *place += 1;
            true
        });
        // Those of one image keep their order.
        boxes.sort_by_key(|b| b.image);
        own.sort_by_key(|(place, _)| *place);
        self.file.areas = Areas(own);
        boxes.shrink_to_fit();
        self.file.points.shrink_to_fit();
        let counts = &mut self.file.counts;
        counts.unknown_image = lost_images.values().sum();
        counts.unknown_category = lost_categories.values().sum();
        name_lost(counts, "image", &lost_images, &self.image_ids);
        name_lost(counts, "category", &lost_categories, &self.category_ids);
        self.file.boxes = boxes;
        Ok(self.file.complete())
    }
}

/// Names the first few ids that nothing has, in their order.
fn name_lost(counts: &mut Counts, what: &str, lost: &HashMap<u32, u64>, known: &Known) {
    if lost.is_empty() {
        return;
    }
    let mut ids: Vec<(&Id, u64)> = known.slots.iter().filter_map(|(id, slot)| Some((id, *lost.get(slot)?))).collect();
    ids.sort_unstable();
    for (id, n) in ids.into_iter().take(EXAMPLES) {
        counts.examples.push(format!("{what} id {id} is not listed and has {n} annotations"));
    }
}

#[derive(Deserialize)]
struct RawImage {
    #[serde(default, deserialize_with = "given")]
    id: Option<Id>,
    file_name: Option<String>,
    filename: Option<String>,
    #[serde(default)]
    width: Number,
    #[serde(default)]
    height: Number,
    date_captured: Option<Scalar>,
    meta: Option<Pairs>,
}

#[derive(Deserialize)]
struct RawCategory {
    #[serde(default, deserialize_with = "given")]
    id: Option<Id>,
    #[serde(default, deserialize_with = "given")]
    name: Option<Id>,
}

#[derive(Deserialize)]
struct RawAnnotation {
    #[serde(default, deserialize_with = "given")]
    id: Option<Id>,
    #[serde(default, deserialize_with = "given")]
    image_id: Option<Id>,
    #[serde(default, deserialize_with = "given")]
    category_id: Option<Id>,
    bbox: Option<Numbers>,
    /// Training does without it, so one that is no number is none.
    #[serde(default)]
    area: Scalar,
    segmentation: Option<Segmentation>,
    #[serde(default)]
    iscrowd: Flag,
}

/// An id or a name, unless it is an empty text, as what is no number has become by now.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Id>, D::Error> {
    Ok(Option::<Id>::deserialize(deserializer)?.filter(|id| !id.is_empty()))
}

/// The first four numbers of a list, and how many there are.
#[derive(Default)]
struct Numbers {
    values: [f64; 4],
    count: usize,
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Four;
        impl<'de> Visitor<'de> for Four {
            type Value = Numbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a box: left, top, width, height")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Numbers, A::Error> {
                let mut numbers = Numbers::default();
                while let Some(Side(value)) = seq.next_element()? {
                    if let Some(slot) = numbers.values.get_mut(numbers.count) {
                        *slot = value;
                    }
                    numbers.count += 1;
                }
                Ok(numbers)
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Numbers, E> {
                Err(no_box())
            }
        }
        deserializer.deserialize_any(Four)
    }
}

/// The whole file.
struct Root<'a>(&'a mut Raw);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a COCO object with images, annotations and categories")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let raw = self.0;
        while let Some(key) = map.next_key::<String>()? {
            let part = match key.as_str() {
                "images" => 0,
                "annotations" | "annotation" => 1,
                "categories" => 2,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if std::mem::replace(&mut raw.seen[part], true) {
                return Err(A::Error::custom(format!("`{key}` stands here twice")));
            }
            match part {
                0 => map.next_value_seed(Each { take: |image| raw.image(image), kind: PhantomData })?,
                1 => map.next_value_seed(Each { take: |annotation| raw.annotation(annotation), kind: PhantomData })?,
                _ => map.next_value_seed(Each { take: |category| raw.category(category), kind: PhantomData })?,
            }
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        Err(misplaced(text, &self))
    }
}

/// A list, handed on element by element.
struct Each<T, F> {
    take: F,
    kind: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T) -> Result<(), String>> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut number = 0u64;
        // Where an element is no such thing, its number helps to find it in a file of one line.
        while let Some(Element(element)) =
            seq.next_element::<Element<T>>().map_err(|e| A::Error::custom(format!("element {number}: {e}")))?
        {
            (self.take)(element).map_err(|reason| A::Error::custom(format!("element {number}: {reason}")))?;
            number += 1;
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        Err(misplaced(text, &self))
    }
}

/// An object of a list.
struct Element<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Element<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Element<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Element)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Element<T>, E> {
                Err(misplaced(text, &self))
            }
        }
        deserializer.deserialize_any(Object(PhantomData))
    }
}

#[cfg(test)]
mod tests;
