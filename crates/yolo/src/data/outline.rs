//! The polygon of an object, for as long as it says more than its box: until the warp.
//!
//! A turned box has to hold the turned corners of the old one, which are mostly not the object's; a turned polygon is still the object's outline.
//! So where labels are polygons, the polygon is warped and clipped, and its box taken then.

/// Points of an object's outline, `[x, y]`: rings one after the other, each closed by itself, a [`BREAK`] between two. Without points where the
/// object is known by its box only.
pub type Outline = Vec<[f32; 2]>;

/// Stands between two rings.
pub const BREAK: [f32; 2] = [f32::NAN; 2];

/// The smallest box (`xyxy`) around what of `outline` lies in the `width` x `height` rectangle at the origin; `None` if nothing does.
///
/// Exact: the extremes of that region are ends of clipped edges, or corners of the rectangle that lie inside the polygon.
pub(crate) fn clipped_box(outline: &[[f32; 2]], width: f32, height: f32) -> Option<[f32; 4]> {
    let mut hull = [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let mut add = |[x, y]: [f32; 2]| hull = [hull[0].min(x), hull[1].min(y), hull[2].max(x), hull[3].max(y)];
    let corners = [[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]];
    let mut inside = [false; 4];
    for (a, b) in edges(outline) {
        if let Some((from, to)) = clip(a, b, width, height) {
            add(from);
            add(to);
        }
        for (inside, &corner) in inside.iter_mut().zip(&corners) {
            *inside ^= crosses_right_of(corner, a, b);
        }
    }
    corners.into_iter().zip(inside).filter(|(_, inside)| *inside).for_each(|(corner, _)| add(corner));
    (hull[2] > hull[0] && hull[3] > hull[1]).then_some(hull)
}

/// Every edge of every ring.
fn edges(outline: &[[f32; 2]]) -> impl Iterator<Item = ([f32; 2], [f32; 2])> {
    let rings = outline.split(|point| point[0].is_nan());
    rings.flat_map(|ring| ring.iter().zip(ring.iter().cycle().skip(1)).map(|(a, b)| (*a, *b)))
}

/// The part of the edge from `a` to `b` inside the rectangle (Liang and Barsky 1984).
fn clip(a: [f32; 2], b: [f32; 2], width: f32, height: f32) -> Option<([f32; 2], [f32; 2])> {
    let d = [b[0] - a[0], b[1] - a[1]];
    let (mut enter, mut leave) = (0.0f32, 1.0f32);
    for (step, room) in [(-d[0], a[0]), (d[0], width - a[0]), (-d[1], a[1]), (d[1], height - a[1])] {
        if step == 0.0 {
            if room < 0.0 {
                return None;
            }
        } else if step < 0.0 {
            enter = enter.max(room / step);
        } else {
            leave = leave.min(room / step);
        }
    }
    let at = |t: f32| [(a[0] + t * d[0]).clamp(0.0, width), (a[1] + t * d[1]).clamp(0.0, height)];
    (enter <= leave).then(|| (at(enter), at(leave)))
}

/// Whether a ray from `p` to the right crosses the edge: an odd number of edges says that `p` is inside.
fn crosses_right_of(p: [f32; 2], a: [f32; 2], b: [f32; 2]) -> bool {
    (a[1] > p[1]) != (b[1] > p[1]) && p[0] < (b[0] - a[0]) * (p[1] - a[1]) / (b[1] - a[1]) + a[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_of_clipped_outlines() {
        type Case<'a> = (&'a [[f32; 2]], Option<[f32; 4]>);
        let cases: [Case<'_>; 8] = [
            (&[[10., 10.], [20., 10.], [15., 30.]], Some([10., 10., 20., 30.])),
            // A diamond around a corner: the corner is inside, though no point of it is.
            (&[[-30., 0.], [0., -30.], [30., 0.], [0., 30.]], Some([0., 0., 30., 30.])),
            // All around the rectangle.
            (&[[-500., -500.], [500., -500.], [500., 500.], [-500., 500.]], Some([0., 0., 100., 50.])),
            // Beside it, though the box of all points is not.
            (&[[-10., 40.], [20., 70.], [-10., 70.]], None),
            // A prong comes in, the other stays above: a clipped polygon's bridge is no part of it.
            (
                &[[120., -10.], [90., -10.], [90., -20.], [160., -20.], [160., 45.], [80., 45.], [80., 40.], [120., 40.]],
                Some([80., 40., 100., 45.]),
            ),
            (&[], None),
            (&[[5., 5.], [5., 5.], [5., 5.]], None),
            // Two rings that stay outside; the line between them is no edge.
            (&[[-20., 10.], [-10., 10.], [-10., 20.], BREAK, [110., 10.], [120., 10.], [120., 20.]], None),
        ];
        for (outline, expected) in cases {
            assert_eq!(clipped_box(outline, 100.0, 50.0), expected, "{outline:?}");
        }
    }

    /// What Ultralytics 8.3.227 makes of these, from 1000 points along each outline.
    #[test]
    fn as_by_the_points_that_lie_inside() {
        let cases = [
            ([[80., 20.], [140., 35.], [60., 80.]], [70.05, 20.0, 99.899, 49.849]),
            ([[-40., 25.], [30., 5.], [45., 70.]], [0.1005, 5.0, 40.372, 49.965]),
            ([[90., -20.], [130., 30.], [70., 20.]], [70.0, 0.0201, 99.91, 24.985]),
        ];
        for (outline, expected) in cases {
            let exact = clipped_box(&outline, 100.0, 50.0).unwrap();
            assert!(exact.iter().zip(expected).all(|(a, b): (&f32, f32)| (a - b).abs() < 0.25), "{exact:?} {expected:?}");
        }
    }

    #[test]
    fn as_by_painting() {
        // A seeded zoo of triangles, compared with every cell of a fine grid.
        let mut draw = crate::data::rng::Draw::new(5, "outline", 0, 0);
        for _ in 0..60 {
            let ring: Vec<[f32; 2]> = (0..3).map(|_| [draw.uniform(-60.0, 160.0) as f32, draw.uniform(-40.0, 90.0) as f32]).collect();
            let mut painted = [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
            for (x, y) in (0..400).flat_map(|x| (0..200).map(move |y| (x, y))) {
                let p = [(x as f32 + 0.5) / 4.0, (y as f32 + 0.5) / 4.0];
                if edges(&ring).filter(|&(a, b)| crosses_right_of(p, a, b)).count() % 2 == 1 {
                    painted = [painted[0].min(p[0]), painted[1].min(p[1]), painted[2].max(p[0]), painted[3].max(p[1])];
                }
            }
            let exact = clipped_box(&ring, 100.0, 50.0);
            if painted[2] - painted[0] > 1.0 {
                let exact = exact.unwrap();
                // Slender tips fall between the cells.
                assert!((0..2).all(|i| exact[i] <= painted[i] && painted[i] - exact[i] < 8.0), "{ring:?} {exact:?} {painted:?}");
                assert!((2..4).all(|i| exact[i] >= painted[i] && exact[i] - painted[i] < 8.0), "{ring:?} {exact:?} {painted:?}");
            }
        }
    }
}
