//! Where the names of boxes stand so that they can be read: at their boxes, and not on one another.

/// Two corners in pixels of a picture.
pub(super) type Area = [f64; 4];

/// What is taken of a picture, or of a part of one.
pub(super) struct Tags {
    bounds: Area,
    taken: Vec<Area>,
}

impl Tags {
    /// Nothing is taken of `bounds` yet.
    pub(super) fn within(bounds: Area) -> Self {
        Self { bounds, taken: Vec::new() }
    }

    /// The top left corner of a tag of `width` and `height` for the box `of`: above it, inside its top, below it or inside its bottom, along its left
    /// edge or else along its right one, moved inside the bounds. The first of these that covers no other tag; if there is none, the one that covers the least.
    pub(super) fn place(&mut self, of: Area, (width, height): (f64, f64)) -> (f64, f64) {
        let [x1, y1, x2, y2] = of;
        let [left, top, right, bottom] = self.bounds;
        let inside = |x: f64, y: f64| (x.min(right - width).max(left), y.min(bottom - height).max(top));
        let rows = [y1 - height, y1, y2, y2 - height];
        let places = [x1, x2 - width].into_iter().flat_map(|x| rows.map(|y| inside(x, y)));
        let area = |(x, y): (f64, f64)| [x, y, x + width, y + height];
        let (mut at, mut least) = ((left, top), f64::INFINITY);
        for place in places {
            let covered = self.covered(area(place));
            if covered < least {
                (at, least) = (place, covered);
            }
            if covered == 0.0 {
                break;
            }
        }
        self.taken.push(area(at));
        at
    }

    /// Whole pixels of other tags: those that only touch differ in their last bits.
    fn covered(&self, area: Area) -> f64 {
        self.taken.iter().map(|&other| shared(area, other)).sum::<f64>().round()
    }
}

/// Pixels that both have.
fn shared(a: Area, b: Area) -> f64 {
    let side = |low: usize| (a[low + 2].min(b[low + 2]) - a[low].max(b[low])).max(0.0);
    side(0) * side(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: (f64, f64) = (40.0, 10.0);

    #[test]
    fn a_tag_takes_the_first_free_place_at_its_box() {
        let mut tags = Tags::within([0.0, 0.0, 200.0, 200.0]);
        let of = [50.0, 60.0, 110.0, 120.0];
        for (place, y) in [("above", 50.0), ("inside", 60.0), ("below", 120.0), ("inside the bottom", 110.0)] {
            assert_eq!(tags.place(of, SIZE), (50.0, y), "{place}");
        }
        let wide = [50.0, 60.0, 150.0, 120.0];
        assert_eq!(tags.place(wide, SIZE), (110.0, 50.0), "along its right edge");
    }

    #[test]
    fn near_boxes_have_tags_apart_and_all_lie_inside() {
        let bounds = [100.0, 0.0, 300.0, 150.0];
        let along = |i: f64| [105.0 + 14.0 * i, 3.0 + 9.0 * i, 150.0 + 14.0 * i, 60.0 + 9.0 * i];
        let boxes: Vec<Area> = (0..10).map(|i| along(f64::from(i))).collect();
        let placed = |boxes: &[Area]| {
            let mut tags = Tags::within(bounds);
            boxes.iter().map(|&of| tags.place(of, SIZE)).map(|(x, y)| [x, y, x + SIZE.0, y + SIZE.1]).collect::<Vec<Area>>()
        };
        let tags = placed(&boxes);
        for (i, a) in tags.iter().enumerate() {
            assert!(a[0] >= bounds[0] && a[1] >= bounds[1] && a[2] <= bounds[2] && a[3] <= bounds[3], "{a:?}");
            assert!(tags[..i].iter().all(|&b| shared(*a, b) == 0.0), "{i}: {tags:?}");
        }
        assert_eq!(placed(&boxes), tags, "the same every time");
        // At a corner there are as many places as fit, then the one that covers the least is taken.
        let crowd = placed(&[[100.0, 0.0, 130.0, 12.0]; 9]);
        assert!(crowd.iter().all(|a| a[0] >= bounds[0] && a[1] >= bounds[1]), "{crowd:?}");
        assert_eq!(crowd[0], [100.0, 0.0, 140.0, 10.0], "inside the box where above it is outside");
        assert_eq!(crowd[1], [100.0, 12.0, 140.0, 22.0], "then below it");
        // What is wider than the picture begins at its edge.
        assert_eq!(Tags::within([0.0, 0.0, 30.0, 30.0]).place([5.0, 20.0, 9.0, 25.0], SIZE), (0.0, 10.0));
    }
}
