//! `segmentation` of an annotation: polygons, whose points are kept, or a mask in run lengths, of which it is only known that it is there.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::scalar::Number;
use crate::data::outline::{BREAK, Outline};

/// Polygons, or a mask.
#[derive(Default)]
pub(super) struct Segmentation {
    pub(super) mask: bool,
    pub(super) points: Outline,
    /// Polygons left out, for a point of theirs is unknown.
    pub(super) unknown: u64,
}

impl Segmentation {
    /// Left, top, width, height, if there is a point.
    pub(super) fn hull(&self) -> Option<[f64; 4]> {
        let range = |axis: usize| {
            let values = self.points.iter().map(|p| f64::from(p[axis])).filter(|v| !v.is_nan());
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let ((x1, x2), (y1, y2)) = (range(0), range(1));
        (x2 >= x1 && y2 >= y1).then_some([x1, y1, x2 - x1, y2 - y1])
    }
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut segmentation = Self::default();
        deserializer.deserialize_any(Shape(&mut segmentation)).map(|()| segmentation)
    }
}

/// Adds a list of polygons, a polygon or a mask. What is none of these is passed over: a detector needs the box.
struct Shape<'a>(&'a mut Segmentation);

impl<'de> DeserializeSeed<'de> for Shape<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Shape<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("polygons or a mask")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Ring(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.0.mask = true;
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// One polygon: x, y, x, y, ...
struct Ring<'a>(&'a mut Segmentation);

impl<'de> DeserializeSeed<'de> for Ring<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ring<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a polygon: x, y, x, y, ...")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let points = &mut self.0.points;
        let before = points.len();
        if before > 0 {
            points.push(BREAK);
        }
        while let (Some(x), Some(y)) = (seq.next_element::<Number>()?, seq.next_element::<Number>()?) {
            points.push([x, y].map(|Number(v)| v.map_or(f32::NAN, |v| v as f32)));
        }
        // Less than a triangle covers nothing; what is no number of 32 bits is no pixel.
        let ring = &points[(before + usize::from(before > 0)).min(points.len())..];
        let unknown = !ring.as_flattened().iter().all(|v| v.is_finite());
        if unknown || ring.len() < 3 {
            points.truncate(before);
        }
        self.0.unknown += u64::from(unknown);
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.0.mask = true;
        Ok(())
    }
}
