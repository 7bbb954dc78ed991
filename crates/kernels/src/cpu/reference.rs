//! What the tests compare with: a convolution's definition in f64, its gradients checked by finite differences, and the shapes to try.

use super::ConvShape;
use proptest::prelude::*;

/// Reproducible values in [-1, 1), from a linear congruential generator.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(step).collect()
}

/// The same values in f64.
pub(crate) fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// `d f / d at[i]` by a central difference of step `h`.
pub(crate) fn slope(f: impl Fn(&[f64]) -> f64, at: &[f64], i: usize, h: f64) -> f64 {
    let mut moved = at.to_vec();
    moved[i] = at[i] + h;
    let above = f(&moved);
    moved[i] = at[i] - h;
    (above - f(&moved)) / (2.0 * h)
}

/// About `count` indices below `len`, the last among them.
pub(crate) fn spread(len: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..len).rev().step_by(len.div_ceil(count).max(1))
}

/// The greatest of these errors; one that is no number counts as infinite.
pub(crate) fn greatest(errors: impl Iterator<Item = f64>) -> f64 {
    errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max)
}

#[test]
fn no_number_is_infinitely_wrong() {
    assert_eq!([greatest([1.0, 3.0, 2.0].into_iter()), greatest([1.0, f64::NAN, 2.0].into_iter())], [3.0, f64::INFINITY]);
}

fn rms(values: &[f64]) -> f64 {
    (values.iter().map(|v| v * v).sum::<f64>() / values.len().max(1) as f64).sqrt()
}

/// Sums of products.
pub struct Sums {
    pub values: Vec<f64>,
    /// The root mean square they have if the products' signs are random; unlike their own it does not vanish when a few sums cancel.
    pub scale: f64,
}

impl Sums {
    /// The sums over all products in the convolution: `index` puts the positions in x, w and y in the order sum, factor in `a`, in `b`.
    fn new(s: &ConvShape, len: usize, a: &[f64], b: &[f64], index: impl Fn([usize; 3]) -> [usize; 3]) -> Self {
        let (mut values, mut products) = (vec![0.0; len], 0);
        each(s, |positions| {
            let [sum, i, j] = index(positions);
            values[sum] += a[i] * b[j];
            products += 1;
        });
        Self { values, scale: rms(a) * rms(b) * (f64::from(products) / len.max(1) as f64).sqrt() }
    }

    /// `y + bias`, then SiLU.
    pub fn finish(&self, s: &ConvShape, bias: &[f64], silu: bool) -> Self {
        let plane = s.out_height() * s.out_width();
        let finish = |(i, y): (usize, &f64)| {
            let z = y + bias[i / plane % s.out_channels];
            if silu { z / (1.0 + (-z).exp()) } else { z }
        };
        Self { values: self.values.iter().enumerate().map(finish).collect(), scale: self.scale.hypot(rms(bias)) }
    }

    /// The greatest error over the scale; infinite if anything is not finite.
    pub fn error(&self, got: &[f32]) -> f64 {
        assert_eq!(got.len(), self.values.len());
        let error = |(&got, expected): (&f32, &f64)| match (f64::from(got) - expected).abs() {
            0.0 => 0.0,
            error => error / self.scale,
        };
        greatest(got.iter().zip(&self.values).map(error))
    }
}

/// Calls `f` with the positions in x, w and y of every product in the convolution.
fn each(s: &ConvShape, mut f: impl FnMut([usize; 3])) {
    let (oh, ow) = (s.out_height(), s.out_width());
    let [kernel, stride, padding] = [s.kernel, s.stride, s.padding];
    for (n, co, ci) in cells([s.batch, s.out_channels, s.in_channels]) {
        for (kh, kw, i) in cells([kernel[0], kernel[1], oh]) {
            let Some(row) = (i * stride[0] + kh).checked_sub(padding[0]).filter(|&row| row < s.height) else { continue };
            for j in 0..ow {
                let Some(col) = (j * stride[1] + kw).checked_sub(padding[1]).filter(|&col| col < s.width) else { continue };
                let x = ((n * s.in_channels + ci) * s.height + row) * s.width + col;
                let w = ((co * s.in_channels + ci) * kernel[0] + kh) * kernel[1] + kw;
                f([x, w, ((n * s.out_channels + co) * oh + i) * ow + j]);
            }
        }
    }
}

fn cells([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

pub fn forward(s: &ConvShape, x: &[f64], w: &[f64]) -> Sums {
    Sums::new(s, s.output_len(), x, w, |[x, w, y]| [y, x, w])
}

pub fn data_grad(s: &ConvShape, dy: &[f64], w: &[f64]) -> Sums {
    Sums::new(s, s.input_len(), dy, w, |[x, w, y]| [x, y, w])
}

pub fn weight_grad(s: &ConvShape, x: &[f64], dy: &[f64]) -> Sums {
    Sums::new(s, s.weight_len(), x, dy, |[x, w, y]| [w, x, y])
}

/// A convolution and the values of its tensors.
pub struct Case {
    pub shape: ConvShape,
    pub x: Vec<f32>,
    pub w: Vec<f32>,
    pub dy: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Case {
    pub fn new(shape: ConvShape, seed: u64) -> Self {
        let [x, w, dy, bias] = [shape.input_len(), shape.weight_len(), shape.output_len(), shape.out_channels];
        Self { shape, x: noise(seed, x), w: noise(seed + 1, w), dy: noise(seed + 2, dy), bias: noise(seed + 3, bias) }
    }

    /// The same with the factors of all products rounded to bf16, to nearest even.
    pub fn rounded(&self) -> Self {
        let round = |v: &f32| f32::from_bits((v.to_bits() + 0x7fff + (v.to_bits() >> 16 & 1)) & 0xffff_0000);
        let [x, w, dy] = [&self.x, &self.w, &self.dy].map(|t| t.iter().map(round).collect());
        Self { shape: self.shape, x, w, dy, bias: self.bias.clone() }
    }

    /// Forward without epilogue, gradient of x, gradient of w.
    pub fn reference(&self) -> [Sums; 3] {
        let [x, w, dy] = [&self.x, &self.w, &self.dy].map(|t| widen(t));
        [forward(&self.shape, &x, &w), data_grad(&self.shape, &dy, &w), weight_grad(&self.shape, &x, &dy)]
    }
}

/// `1..=limit`, the ends more often than the rest. Miri, which runs some thousand times slower, gets at most 9.
pub(crate) fn size(limit: usize) -> impl Strategy<Value = usize> {
    let limit = if cfg!(miri) { limit.min(9) } else { limit };
    prop_oneof![4 => 1..=limit, 1 => Just(1), 1 => Just(limit)]
}

/// Kernel, stride and padding along both axes.
pub type Geometry = [[usize; 2]; 3];

/// The geometries of the networks, and any others as often.
pub fn any_geometry() -> impl Strategy<Value = Geometry> {
    let used = prop_oneof![Just([[1; 2], [1; 2], [0; 2]]), Just([[3; 2], [1; 2], [1; 2]]), Just([[3; 2], [2; 2], [1; 2]])];
    let any = (1usize..5, 1usize..5, 1usize..4, 1usize..4, 0usize..4, 0usize..4);
    prop_oneof![used, any.prop_map(|(kh, kw, sh, sw, ph, pw)| [[kh, kw], [sh, sw], [ph, pw]])]
}

/// Up to 3 images, 130 channels and 70 pixels, but not all at once: the reference is slow. One of the sizes stays as drawn, the largest of
/// the others are halved until there are at most `macs` products.
pub fn shapes(macs: u64, geometry: impl Strategy<Value = Geometry>) -> impl Strategy<Value = ConvShape> {
    let macs = if cfg!(miri) { macs / 200 } else { macs };
    let sizes = [size(130), size(130), size(70), size(70)];
    (1usize..4, sizes, 0usize..4, geometry).prop_map(move |(batch, mut sizes, kept, [kernel, stride, padding])| {
        loop {
            let [in_channels, out_channels, height, width] = sizes;
            let shape = ConvShape { batch, in_channels, out_channels, height, width, kernel, stride, padding };
            let largest = (0..4).filter(|&i| i != kept).max_by_key(|&i| sizes[i]).unwrap();
            if shape.macs() <= macs || sizes[largest] == 1 {
                return shape;
            }
            sizes[largest] = sizes[largest].div_ceil(2);
        }
    })
}

proptest! {
    #![proptest_config(crate::test_cases(100))]
    #[test]
    fn gradients_are_the_slopes_of_the_forward_pass(s in shapes(20_000, any_geometry()), seed in 0u64..1000) {
        let case = Case::new(s, seed);
        let [x, w, dy] = [&case.x, &case.w, &case.dy].map(|t| widen(t));
        let [_, dx, dw] = case.reference();
        let loss = |y: Sums| y.values.iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>();
        // The pass is linear in each argument: any step will do, and a large one loses no digits.
        for i in spread(x.len(), 20) {
            let slope = slope(|x| loss(forward(&s, x, &w)), &x, i, 0.5);
            prop_assert!((slope - dx.values[i]).abs() <= 1e-10 * dx.scale, "dx[{i}] {} for {slope}, {s:?}", dx.values[i]);
        }
        for i in spread(w.len(), 20) {
            let slope = slope(|w| loss(forward(&s, &x, w)), &w, i, 0.5);
            prop_assert!((slope - dw.values[i]).abs() <= 1e-10 * dw.scale, "dw[{i}] {} for {slope}, {s:?}", dw.values[i]);
        }
    }
}

/// How many tasks rayon makes of `len` things, at least `least` to a task, while threads are idle: it halves what is long enough.
pub(crate) fn tasks(len: usize, least: usize) -> usize {
    let half = len / 2;
    if half < least.max(1) { 1 } else { tasks(half, least) + tasks(len - half, least) }
}
