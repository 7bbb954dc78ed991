//! Areas of objects that are not those of their boxes: a mask's, or an object's that reaches beyond the image. A COCO file gives them beside the boxes, and
//! pycocotools calls objects small or large by them. Of the other objects nothing is kept, but of those at an edge between small and large.

use crate::metrics::EDGES;

/// Part of an area by which that of a box may differ from it and be the same, rounded.
const ROUNDING: f32 = 1e-3;

/// The same of an edge and a box of which nothing else is known: labels are written with some six digits.
const WRITTEN: f32 = 1e-4;

/// Areas in px², each with the index of the image and the number of the object among those of the image; sorted by these.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Areas(pub(crate) Vec<([u32; 2], f32)>);

impl Areas {
    /// `area` if it is known and not that of a box so wide and high. At an edge between small, medium and large objects it is kept all the same, and where none
    /// is known the edge is: a box that was in the network's pixels meanwhile is a little above or below it.
    pub(crate) fn own(area: Option<f32>, [width, height]: [f32; 2]) -> Option<f32> {
        let same = |a: f32, b: f32, part: f32| (a - b).abs() <= part * b;
        let edge = |area: f32, part: f32| EDGES.into_iter().map(|edge| edge as f32).find(|&edge| same(area, edge, part));
        match area.filter(|&area| area > 0.0 && area.is_finite()) {
            Some(area) => (!same(width * height, area, ROUNDING) || edge(area, ROUNDING).is_some()).then_some(area),
            None => edge(width * height, WRITTEN),
        }
    }

    /// That of an object; none where it is that of its box.
    pub(crate) fn get(&self, image: usize, object: usize) -> Option<f32> {
        let at = [image as u32, object as u32];
        self.0.binary_search_by_key(&at, |(of, _)| *of).ok().map(|found| self.0[found].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_box_does_not_say_is_kept() {
        for area in [None, Some(200.0), Some(200.1), Some(199.9), Some(0.0), Some(-5.0), Some(f32::NAN), Some(f32::INFINITY)] {
            assert_eq!(Areas::own(area, [20.0, 10.0]), None, "{area:?}");
        }
        assert_eq!([150.0, 201.0].map(|area| Areas::own(Some(area), [20.0, 10.0])), [Some(150.0), Some(201.0)]);
        // What lies at an edge stays there, whatever becomes of its box.
        for (area, side) in [(1024.0, 32.0), (1024.5, 32.0), (9216.0, 96.0)] {
            assert_eq!(Areas::own(Some(area), [side; 2]), Some(area));
        }
        assert_eq!([32.0001, 32.01].map(|width| Areas::own(None, [width, 32.0])), [Some(1024.0), None]);
        assert_eq!(Areas::own(Some(-5.0), [96.0; 2]), Some(9216.0), "as if none were given");
        let areas = Areas(vec![([0, 7], 1.0), ([3, 0], 2.0), ([3, 2], 3.0)]);
        assert_eq!([[0, 7], [3, 0], [3, 1], [3, 2], [4, 0]].map(|[i, k]| areas.get(i, k)), [Some(1.0), Some(2.0), None, Some(3.0), None]);
    }
}
