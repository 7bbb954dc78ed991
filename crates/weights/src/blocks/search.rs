//! The search for scales inside a 256-block, weighted least squares over rounded candidates.
//!
//! The sub-blocks of a block stand side by side, one a lane: `x[i][lane]` is element `i` of sub-block `lane`. Every step is the
//! same arithmetic on all lanes, which is what a vector unit does best.
//!
//! A candidate is a way to round: `q = round(c (x - min))` for one of a few `c` near the one that spans the range. For its `q` the
//! best scale (and offset) has a closed form, and so has the squared error left over; the candidate with the least wins.

/// Elements of a 256-block.
pub(super) const LEN: usize = 256;

/// `N` elements of each of `L` sub-blocks.
pub(super) type Lanes<const L: usize, const N: usize> = [[f32; L]; N];

/// The block with its sub-blocks side by side.
pub(super) fn side_by_side<const L: usize, const N: usize>(block: &[f32; LEN]) -> Lanes<L, N> {
    const { assert!(L * N == LEN, "sub-blocks fill the block") };
    std::array::from_fn(|i| std::array::from_fn(|lane| block[lane * N + i]))
}

/// Candidates as tenths of a level more or less than the range spans. The plain one comes first: where all are equally good, as for a
/// constant, it has the roundest scale.
const TENTHS: [i8; 21] = [0, -1, 1, -2, 2, -3, 3, -4, 4, -5, 5, -6, 6, -7, 7, -8, 8, -9, 9, -10, 10];

/// How much more of the row's energy a candidate must explain to replace another: less is rounding noise.
const GAIN: f32 = 1.000_001;

/// Nearest integer, ties to even, for magnitudes below 2²²: the sum has no bits left for a fraction.
pub(super) fn round(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³
    (x + SHIFT) - SHIFT
}

pub(super) fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// `x ≈ scale q + min` with `q` from 0 to `top` and `min` not positive, lane by lane.
pub(super) struct Affine<const L: usize> {
    pub(super) scale: [f32; L],
    pub(super) min: [f32; L],
}

/// Fits each lane, candidates spanning `top - 1` to `top + 1` levels.
pub(super) fn affine<const L: usize, const N: usize>(x: &Lanes<L, N>, weight: &Lanes<L, N>, top: f32) -> Affine<L> {
    let (mut low, mut high) = ([0f32; L], [f32::NEG_INFINITY; L]);
    let (mut sw, mut swx) = ([0f32; L], [0f32; L]);
    for (x, w) in x.iter().zip(weight) {
        for lane in 0..L {
            low[lane] = low[lane].min(x[lane]);
            high[lane] = high[lane].max(x[lane]);
            sw[lane] += w[lane];
            swx[lane] += w[lane] * x[lane];
        }
    }
    let range: [f32; L] = std::array::from_fn(|lane| high[lane] - low[lane]);
    let mut fit = Affine { scale: range.map(|range| range / top), min: low };
    let mut best = [0f32; L];
    for tenths in TENTHS {
        let factor = range.map(|range| (top + 0.1 * f32::from(tenths)) * inverse(range));
        let (mut swq, mut swqq, mut swxq) = ([0f32; L], [0f32; L], [0f32; L]);
        for (x, w) in x.iter().zip(weight) {
            for lane in 0..L {
                let q = round((x[lane] - low[lane]) * factor[lane]).min(top);
                let wq = w[lane] * q;
                swq[lane] += wq;
                swqq[lane] += wq * q;
                swxq[lane] += wq * x[lane];
            }
        }
        for lane in 0..L {
            // The normal equations of Σ w (scale q + min - x)².
            let determinant = sw[lane] * swqq[lane] - swq[lane] * swq[lane];
            if determinant <= 1e-5 * sw[lane] * swqq[lane] {
                continue; // all q alike: scale and offset cannot be told apart
            }
            let mut scale = (sw[lane] * swxq[lane] - swx[lane] * swq[lane]) / determinant;
            let mut min = (swqq[lane] * swx[lane] - swq[lane] * swxq[lane]) / determinant;
            if min > 0.0 {
                (scale, min) = (swxq[lane] / swqq[lane], 0.0);
            }
            // Σ w x² less the squared error of the fit.
            let explained = scale * swxq[lane] + min * swx[lane];
            if explained > best[lane] * GAIN {
                best[lane] = explained;
                (fit.scale[lane], fit.min[lane]) = (scale, min);
            }
        }
    }
    fit
}

/// The scales of `x ≈ scale q` with `q` from `-zero` to `zero - 1`, lane by lane, candidates spanning `zero - 1` to `zero + 1` levels.
/// The element largest in magnitude is put at `-zero`, so a scale may be negative.
pub(super) fn symmetric<const L: usize, const N: usize>(x: &Lanes<L, N>, weight: &Lanes<L, N>, zero: f32) -> [f32; L] {
    let mut largest = [0f32; L];
    for x in x {
        for lane in 0..L {
            largest[lane] = if x[lane].abs() > largest[lane].abs() { x[lane] } else { largest[lane] };
        }
    }
    let mut fit = largest.map(|largest| -largest / zero);
    let mut best = [0f32; L];
    for tenths in TENTHS {
        let factor = largest.map(|largest| -(zero + 0.1 * f32::from(tenths)) * inverse(largest));
        let (mut swqq, mut swxq) = ([0f32; L], [0f32; L]);
        for (x, w) in x.iter().zip(weight) {
            for lane in 0..L {
                let q = round(x[lane] * factor[lane]).clamp(-zero, zero - 1.0);
                swqq[lane] += w[lane] * q * q;
                swxq[lane] += w[lane] * q * x[lane];
            }
        }
        for lane in 0..L {
            let scale = swxq[lane] * inverse(swqq[lane]);
            let explained = scale * swxq[lane];
            if explained > best[lane] * GAIN {
                best[lane] = explained;
                fit[lane] = scale;
            }
        }
    }
    fit
}
