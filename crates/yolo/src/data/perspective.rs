//! Random rotation, scale, shear, translation and perspective of a picture and its boxes.
//!
//! The matrix is T S R P C: the picture's centre goes to the origin, is seen in perspective, rotated and scaled, sheared, and put at a random
//! place near the centre of the result. Pixels are sampled bilinearly; outside is padding. Points are continuous (pixel i covers i to i + 1), for
//! boxes and pixels alike, so a box stays on its object to a fraction of a pixel: thermal objects are small.

use super::frame::{Frame, Size};
use super::outline::{Outline, clipped_box};
use super::rng::Draw;
use super::scene::Scene;
use super::strength::AugmentConfig;

/// Share of its area that must be left of a box, and of one that is taken from a clipped outline.
const LEAST: f32 = 0.1;
const LEAST_OUTLINED: f32 = 0.01;

/// What a point is divided by at the least: what is nearer to the eye is as good as behind it.
const NEAR: f64 = 1e-3;

type Matrix = [[f64; 3]; 3];

/// Warps `scene` to `shape`. Boxes become the hull of their four corners, or of the outline where there is one, are clipped, and kept if more than
/// 2 pixels wide and high, more than a tenth (with an outline, a hundredth) of what the scale alone would have left, and not flatter than 1:100.
pub(crate) fn random_perspective(scene: Scene, shape: Size, config: &AugmentConfig, draw: &mut Draw) -> Scene {
    let (width, height) = (f64::from(shape.width), f64::from(shape.height));
    let centred = |x: f64, y: f64| [[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]];
    let mut symmetric = |limit: f64| draw.uniform(-limit, limit);
    let p = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [symmetric(config.perspective), symmetric(config.perspective), 1.0]];
    let (sin, cos) = symmetric(config.degrees).to_radians().sin_cos();
    let s = 1.0 + symmetric(config.scale);
    let r = [[s * cos, s * sin, 0.0], [-s * sin, s * cos, 0.0], [0.0, 0.0, 1.0]];
    let shear =
        [[1.0, symmetric(config.shear).to_radians().tan(), 0.0], [symmetric(config.shear).to_radians().tan(), 1.0, 0.0], [0.0, 0.0, 1.0]];
    let t = centred((0.5 + symmetric(config.translate)) * width, (0.5 + symmetric(config.translate)) * height);
    let c = centred(-(scene.frame.width as f64) / 2.0, -(scene.frame.height as f64) / 2.0);
    let m = [shear, r, p, c].iter().fold(t, |m, next| multiply(&m, next));
    let Some(inverse) = invert(&m) else {
        return Scene {
            frame: scene.frame.blank(scene.frame.channels, width as usize, height as usize),
            boxes: Vec::new(),
            outlines: Vec::new(),
        };
    };
    let frame = warp(&scene.frame, &inverse, shape.width as usize, shape.height as usize);
    let boxes = scene.boxes.iter().enumerate().filter_map(|(k, &(class, before))| {
        let (after, least) = seen(&m, before, scene.outlines.get(k).map(Vec::as_slice), shape)?;
        keep(before.map(|v| v * s as f32), after, least).then_some((class, after))
    });
    Scene { frame, boxes: boxes.collect(), outlines: Vec::new() }
}

fn multiply(a: &Matrix, b: &Matrix) -> Matrix {
    std::array::from_fn(|i| std::array::from_fn(|j| (0..3).map(|k| a[i][k] * b[k][j]).sum()))
}

/// By cofactors; `None` if the picture would be seen edge-on.
fn invert(m: &Matrix) -> Option<Matrix> {
    let cofactor = |i: usize, j: usize| {
        let (a, b, c, d) = ((i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3);
        m[a][c] * m[b][d] - m[a][d] * m[b][c]
    };
    let determinant: f64 = (0..3).map(|j| m[0][j] * cofactor(0, j)).sum();
    (determinant.abs() > 1e-12).then(|| std::array::from_fn(|i| std::array::from_fn(|j| cofactor(j, i) / determinant)))
}

/// The box of an object in the result, from its outline where there is one and all of it lies before the eye, and the share of it that must be left.
fn seen(m: &Matrix, before: [f32; 4], outline: Option<&[[f32; 2]]>, shape: Size) -> Option<([f32; 4], f32)> {
    let (width, height) = (shape.width as f32, shape.height as f32);
    let whole = |outline: &&[[f32; 2]]| !outline.is_empty() && !outline.iter().any(|&[x, y]| project(m, x, y)[2] < NEAR);
    let Some(outline) = outline.filter(whole) else { return Some((hull(m, before, width.into(), height.into())?, LEAST)) };
    let warped = outline.iter().map(|&[x, y]| project(m, x, y)).map(|[x, y, w]| [(x / w) as f32, (y / w) as f32]);
    Some((clipped_box(&warped.collect::<Outline>(), width, height)?, LEAST_OUTLINED))
}

/// A point's place in the result, both times the third number, which falls below 0 behind the eye.
fn project(m: &Matrix, x: f32, y: f32) -> [f64; 3] {
    m.map(|r| r[0] * f64::from(x) + r[1] * f64::from(y) + r[2])
}

/// The smallest box around what lies before the eye; `None` if nothing does.
fn hull(m: &Matrix, [x1, y1, x2, y2]: [f32; 4], width: f64, height: f64) -> Option<[f32; 4]> {
    let corners = [(x1, y1), (x2, y1), (x2, y2), (x1, y2)].map(|(x, y)| project(m, x, y));
    let mut points = Vec::with_capacity(2 * corners.len());
    for (a, b) in corners.iter().zip(corners.iter().cycle().skip(1)) {
        if a[2] >= NEAR {
            points.push([a[0] / a[2], a[1] / a[2]]);
        }
        if (a[2] >= NEAR) != (b[2] >= NEAR) {
            let t = (NEAR - a[2]) / (b[2] - a[2]);
            points.push([0, 1].map(|k: usize| (a[k] + t * (b[k] - a[k])) / NEAR));
        }
    }
    let low = |k: usize, limit: f64| points.iter().map(|p| p[k]).fold(f64::INFINITY, f64::min).clamp(0.0, limit) as f32;
    let high = |k: usize, limit: f64| points.iter().map(|p| p[k]).fold(f64::NEG_INFINITY, f64::max).clamp(0.0, limit) as f32;
    (!points.is_empty()).then(|| [low(0, width), low(1, height), high(0, width), high(1, height)])
}

fn keep(before: [f32; 4], after: [f32; 4], least: f32) -> bool {
    let area = (before[2] - before[0]) * (before[3] - before[1]);
    let (w, h) = (after[2] - after[0], after[3] - after[1]);
    w > 2.0 && h > 2.0 && w * h / (area + 1e-16) > least && (w / (h + 1e-16)).max(h / (w + 1e-16)) < 100.0
}

/// `source` seen through `inverse`, which takes points of the result to points of the source.
pub(crate) fn warp(source: &Frame, inverse: &Matrix, width: usize, height: usize) -> Frame {
    let mut out = source.blank(source.channels, width, height);
    let affine = inverse[2][0] == 0.0 && inverse[2][1] == 0.0;
    let mut blended = vec![0u16; source.width];
    for c in 0..source.channels {
        let plane = Plane { pixels: source.plane(c), width: source.width, height: source.height, fill: source.fill(c) };
        for (y, row) in out.plane_mut(c).chunks_exact_mut(width).enumerate() {
            if affine { affine_row(&plane, inverse, y, row, &mut blended) } else { perspective_row(&plane, inverse, y, row) }
        }
    }
    out
}

struct Plane<'a> {
    pixels: &'a [u8],
    width: usize,
    height: usize,
    /// What stands outside.
    fill: u8,
}

/// Source coordinates are fixed-point with this many fractional bits; over 16,384 steps the error stays below a hundredth of a pixel.
const BITS: u32 = 20;
const ONE: f64 = (1u64 << BITS) as f64;

/// Along a row the source point moves by a constant step. Where all four taps lie inside, which is nearly everywhere, no tap is tested.
fn affine_row(plane: &Plane, m: &Matrix, y: usize, row: &mut [u8], blended: &mut [u16]) {
    let scale = 1.0 / m[2][2];
    let start = |r: &[f64; 3]| ((r[0] * 0.5 + r[1] * (y as f64 + 0.5) + r[2]) * scale - 0.5) * ONE;
    let (sx, sy) = (start(&m[0]) as i64, start(&m[1]) as i64);
    let (dx, dy) = ((m[0][0] * scale * ONE) as i64, (m[1][0] * scale * ONE) as i64);
    let n = row.len() as i64;
    let within = |low: i64, w: usize, h: usize| {
        let (a, b) = steps_within(sx, dx, low, (w as i64) << BITS, n);
        let (c, d) = steps_within(sy, dy, low, (h as i64) << BITS, n);
        (a.max(c), b.min(d).max(a.max(c)))
    };
    let (inner, inner_end) = within(0, plane.width - 1, plane.height - 1);
    let (outer, outer_end) = within(-(1 << BITS) + 1, plane.width, plane.height);
    let point = |x: i64| (sx + dx * x, sy + dy * x);
    if inner < inner_end {
        for x in (outer..inner).chain(inner_end..outer_end) {
            row[x as usize] = plane.tap_checked(point(x));
        }
        let row = &mut row[inner as usize..inner_end as usize];
        let (mut px, mut py) = point(inner);
        if dy == 0 {
            plane.level_row(px, dx, py, row, blended);
        } else {
            for out in row {
                *out = plane.tap(px, py);
                px += dx;
                py += dy;
            }
        }
    } else {
        for x in outer..outer_end {
            row[x as usize] = plane.tap_checked(point(x));
        }
    }
}

/// The x in 0..n with `low <= start + step * x < high`, as a half-open range.
fn steps_within(start: i64, step: i64, low: i64, high: i64, n: i64) -> (i64, i64) {
    if step == 0 {
        return if (low..high).contains(&start) { (0, n) } else { (0, 0) };
    }
    // For a falling line, mirror it.
    let (start, step, low, high) = if step > 0 { (start, step, low, high) } else { (-start, -step, 1 - high, 1 - low) };
    let first_at_least = |v: i64| (v - start + step - 1).div_euclid(step);
    (first_at_least(low).clamp(0, n), first_at_least(high).clamp(0, n))
}

/// With perspective every pixel needs its own division.
fn perspective_row(plane: &Plane, m: &Matrix, y: usize, row: &mut [u8]) {
    for (x, out) in row.iter_mut().enumerate() {
        let at = |r: &[f64; 3]| r[0] * (x as f64 + 0.5) + r[1] * (y as f64 + 0.5) + r[2];
        let w = at(&m[2]);
        let point = |r: &[f64; 3]| ((at(r) / w - 0.5) * ONE).clamp(-1e15, 1e15) as i64;
        *out = if w > 0.0 { plane.tap_checked((point(&m[0]), point(&m[1]))) } else { plane.fill };
    }
}

impl Plane<'_> {
    /// Bilinear at a point whose four taps lie inside.
    #[inline(always)]
    fn tap(&self, x: i64, y: i64) -> u8 {
        let at = (y >> BITS) as usize * self.width + (x >> BITS) as usize;
        let (top, bottom) = (&self.pixels[at..at + 2], &self.pixels[at + self.width..at + self.width + 2]);
        blend([top[0], top[1], bottom[0], bottom[1]], x, y)
    }

    /// The same taps where the source line is level, as it is without rotation and shear: two source rows are blended at once (the compiler
    /// vectorises that), then every pixel needs two taps instead of four. Same bits as [`Self::tap`].
    fn level_row(&self, x: i64, dx: i64, y: i64, row: &mut [u8], blended: &mut [u16]) {
        let last = x + dx * (row.len() as i64 - 1);
        let (from, to) = ((x.min(last) >> BITS) as usize, (x.max(last) >> BITS) as usize + 2);
        let at = (y >> BITS) as usize * self.width;
        let fy = fraction(y) as u16;
        let (top, bottom) = (&self.pixels[at + from..at + to], &self.pixels[at + self.width + from..at + self.width + to]);
        let blended = &mut blended[..to - from];
        for ((out, &a), &b) in blended.iter_mut().zip(top).zip(bottom) {
            *out = u16::from(a) * (256 - fy) + u16::from(b) * fy;
        }
        let mut px = x - ((from as i64) << BITS);
        for out in row {
            let ix = (px >> BITS) as usize;
            let taps = &blended[ix..ix + 2];
            *out = ((u32::from(taps[0]) * (256 - fraction(px)) + u32::from(taps[1]) * fraction(px) + 32_768) >> 16) as u8;
            px += dx;
        }
    }

    /// Bilinear with padding outside.
    fn tap_checked(&self, (x, y): (i64, i64)) -> u8 {
        let (ix, iy) = (x >> BITS, y >> BITS);
        let get = |ix: i64, iy: i64| {
            let inside = (0..self.width as i64).contains(&ix) && (0..self.height as i64).contains(&iy);
            if inside { self.pixels[iy as usize * self.width + ix as usize] } else { self.fill }
        };
        blend([get(ix, iy), get(ix + 1, iy), get(ix, iy + 1), get(ix + 1, iy + 1)], x, y)
    }
}

/// The upper 8 fractional bits.
#[inline(always)]
fn fraction(v: i64) -> u32 {
    ((v >> (BITS - 8)) & 255) as u32
}

#[inline(always)]
fn blend(taps: [u8; 4], x: i64, y: i64) -> u8 {
    let (fx, fy) = (fraction(x), fraction(y));
    let [a, b, c, d] = taps.map(u32::from);
    (((a * (256 - fx) + b * fx) * (256 - fy) + (c * (256 - fx) + d * fx) * fy + 32_768) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverse_undoes() {
        let m = [[1.2, 0.3, -40.0], [-0.2, 0.9, 12.0], [1e-4, -2e-4, 1.0]];
        let unit = multiply(&m, &invert(&m).unwrap());
        (0..9).for_each(|k| assert!((unit[k / 3][k % 3] - f64::from(u8::from(k % 4 == 0))).abs() < 1e-9));
        assert!(invert(&[[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]]).is_none());
    }

    #[test]
    fn ranges_by_brute_force() {
        for (start, step, low, high) in
            [(0, 1, 0, 5), (-7, 3, 0, 9), (20, -3, 0, 9), (20, -7, -3, 20), (5, 0, 0, 9), (-1, 0, 0, 9), (100, 2, 0, 9), (9, -1, 0, 9)]
        {
            let (a, b) = steps_within(start, step, low, high, 12);
            let inside: Vec<i64> = (0..12).filter(|x| (low..high).contains(&(start + step * x))).collect();
            assert_eq!((a..b).collect::<Vec<_>>(), inside, "{start} {step} {low} {high}");
        }
    }

    #[test]
    fn the_quick_row_equals_the_definition() {
        let pixels = (0..40 * 30u32).map(|i| (i * 7919 % 251) as u8).collect();
        let source = Frame { pixels, channels: 1, width: 40, height: 30, difference: false };
        for m in [
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            [[0.7, 0.0, -3.3], [0.0, 0.7, -2.2], [0.0, 0.0, 1.0]],
            [[0.9, 0.4, -10.0], [-0.4, 0.9, 6.0], [0.0, 0.0, 1.0]],
            [[-1.1, 0.2, 44.0], [0.1, -0.8, 27.0], [0.0, 0.0, 1.0]],
        ] {
            let quick = warp(&source, &m, 50, 44);
            for (i, &got) in quick.pixels.iter().enumerate() {
                let at = |r: &[f64; 3]| r[0] * ((i % 50) as f64 + 0.5) + r[1] * ((i / 50) as f64 + 0.5) + r[2] - 0.5;
                let (x, y) = (at(&m[0]), at(&m[1]));
                let get = |ix: f64, iy: f64| {
                    if (0.0..40.0).contains(&ix) && (0.0..30.0).contains(&iy) {
                        f64::from(source.pixels[iy as usize * 40 + ix as usize])
                    } else {
                        114.0
                    }
                };
                let (fx, fy) = (x - x.floor(), y - y.floor());
                let line = |iy: f64| get(x.floor(), iy) * (1.0 - fx) + get(x.floor() + 1.0, iy) * fx;
                let expected = line(y.floor()) * (1.0 - fy) + line(y.floor() + 1.0) * fy;
                assert!((f64::from(got) - expected).abs() < 2.6, "{i}: {got} {expected}");
            }
        }
    }

    #[test]
    fn a_level_row_is_the_same_bits() {
        let pixels: Vec<u8> = (0..64 * 3u32).map(|i| (i * 7919 % 251) as u8).collect();
        let plane = Plane { pixels: &pixels, width: 64, height: 3, fill: 114 };
        for (x, dx) in [(0.0, 1.0), (3.3, 0.61), (60.9, -1.37), (5.0, 0.0)] {
            let (x, dx, y) = ((x * ONE) as i64, (dx * ONE) as i64, (1.0 / 3.0 * ONE) as i64);
            let mut row = [0; 40];
            plane.level_row(x, dx, y, &mut row, &mut [0; 64]);
            let taps: Vec<u8> = (0..40).map(|i| plane.tap(x + dx * i, y)).collect();
            assert_eq!(row[..], taps);
        }
    }

    #[test]
    fn the_identity_changes_nothing() {
        let pixels: Vec<u8> = (0..255).collect();
        let source = Frame { pixels, channels: 1, width: 17, height: 15, difference: false };
        let same = warp(&source, &[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], 17, 15);
        assert_eq!(same, source);
    }

    #[test]
    fn what_is_behind_the_eye_has_no_label() {
        // A canvas of four images of 640 pixels, of which the upper left corner lies behind the eye.
        let centred = |x: f64| [[1.0, 0.0, x], [0.0, 1.0, x], [0.0, 0.0, 1.0]];
        let p = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [9e-4, 9e-4, 1.0]];
        let m = multiply(&centred(320.0), &multiply(&p, &centred(-640.0)));
        assert_eq!(hull(&m, [0.0, 0.0, 20.0, 20.0], 640.0, 640.0), None);
        let aside = [10.0, 10.0, 120.0, 120.0];
        assert!(hull(&m, aside, 640.0, 640.0).is_none_or(|after| !keep(aside, after, LEAST)), "a corner before the eye, and far outside");
        // One that reaches behind it: of its four corners two are seen to the right, x - 640 = 60 by 0.487, and the others nowhere.
        let (across, outline) = ([10.0, 10.0, 700.0, 700.0], [[10.0, 10.0], [700.0, 10.0], [700.0, 700.0], [10.0, 700.0]]);
        let after = hull(&m, across, 640.0, 640.0).unwrap();
        assert!(after[..2] == [0.0; 2] && after[2..].iter().all(|x| (x - 443.203).abs() < 0.01), "{after:?}");
        let shape = Size { width: 640, height: 640 };
        assert_eq!(seen(&m, across, Some(&outline), shape), Some((after, LEAST)), "an outline would turn over there");
        // Rings and the break between them.
        let rings = [[600.0, 600.0], [700.0, 600.0], [700.0, 700.0], [f32::NAN; 2], [600.0, 600.0], [700.0, 700.0], [600.0, 700.0]];
        assert_eq!(seen(&m, [600.0, 600.0, 700.0, 700.0], Some(&rings), shape).map(|(_, least)| least), Some(LEAST_OUTLINED));
    }

    #[test]
    fn box_filter() {
        let wide = [0.0, 0.0, 100.0, 100.0];
        for (after, kept) in [
            ([0.0, 0.0, 40.0, 40.0], true),
            ([0.0, 0.0, 10.0, 99.0], false),
            ([0.0, 0.0, 11.0, 99.0], true),
            ([5.0, 0.0, 7.0, 90.0], false),
            ([0.0, 0.0, 640.0, 6.0], false),
        ] {
            assert_eq!(keep(wide, after, LEAST), kept, "{after:?}");
        }
    }
}
