//! Convolution in two dimensions on the processor's vector units, of f32 tensors in NCHW: forward, gradient of the input, gradient of the weights.
//!
//! The channels of an input are those of one tensor or of several side by side ([`takes_parts`]); each is NCHW, and has a gradient of its own. Two algorithms
//! share one vector layer ([`simd`]). `implicit` multiplies matrices whose right-hand side is never built: a table of offsets says where each row of the im2col
//! matrix lies in a packed strip of the input. It takes any kernel, stride and padding. `winograd` does 3x3 kernels of stride 1 with a quarter of the
//! multiplications. Work is divided over rayon's current pool; each output of the forward pass and of the input's gradient is computed by one task in an order
//! that does not depend on the number of threads, and the weights' gradient is reduced in a fixed order, so results repeat to the bit.

mod implicit;
pub mod machine;
#[cfg(test)]
pub(crate) mod reference;
pub(crate) mod scratch;
mod shape;
pub mod simd;
mod winograd;

pub use crate::policy::{Lowering, Precision};
pub use implicit::weight_grad_precision;
pub use shape::{ConvShape, Epilogue};

/// Whether Winograd's method is to be used: a fourth of the multiplications, in f32. A unit for matrices does all of them in bf16 in less time.
fn is_winograd(lowering: Lowering, precision: Precision, shape: &ConvShape) -> bool {
    let applies = winograd::applies(shape);
    match lowering {
        Lowering::Winograd => applies,
        Lowering::Implicit => false,
        _ => applies && shape.in_channels >= 8 && shape.out_channels >= 8 && simd::level().of(precision).form().group == 1,
    }
}

/// Whether an input in several tensors gives, to the bit, what the one gives that they make together: several are never Winograd's.
pub fn takes_parts(lowering: Lowering, precision: Precision, shape: &ConvShape) -> bool {
    !is_winograd(lowering, precision, shape)
}

/// `out[n,co,i,j] = epilogue(sum x[n, ci, i*sh + kh - ph, j*sw + kw - pw] * w[co,ci,kh,kw])`.
///
/// `x` is `[n,ci,h,w]`, `w` `[co,ci,kh,kw]`, `out` `[n,co,oh,ow]`, overwritten whatever it held. Panics if a length does not fit.
pub fn forward(
    shape: &ConvShape,
    lowering: Lowering,
    precision: Precision,
    x: &[&[f32]],
    w: &[f32],
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    let winograd = x.len() == 1 && is_winograd(lowering, precision, shape);
    Prepared::of(shape, winograd, precision, w, scratch::take).forward(shape, x, epilogue, out);
}

/// Weights of a forward pass as its kernel reads them, transformed or packed once for any batch and any size of image.
pub struct Prepared {
    level: simd::Level,
    winograd: bool,
    values: scratch::Buffer,
}

impl Prepared {
    /// Of weights `[co,ci,kh,kw]`; of `shape` batch, height and width are not asked.
    pub fn new(shape: &ConvShape, lowering: Lowering, precision: Precision, w: &[f32]) -> Self {
        Self::of(shape, is_winograd(lowering, precision, shape), precision, w, scratch::keep)
    }

    /// In memory from the pool, or of their own.
    fn of(shape: &ConvShape, winograd: bool, precision: Precision, w: &[f32], room: fn(usize) -> scratch::Buffer) -> Self {
        assert_eq!(w.len(), shape.weight_len(), "length of the weights of {shape:?}");
        let level = if winograd { simd::level() } else { simd::level().of(precision) };
        let prepare = if winograd { winograd::prepare } else { implicit::prepare };
        Self { level, winograd, values: prepare(level, shape, w, room) }
    }

    /// [`forward`] with these weights, prepared for `shape` but for its batch, height and width: the same bits.
    pub fn forward(&self, shape: &ConvShape, x: &[&[f32]], epilogue: Epilogue<'_>, out: &mut [f32]) {
        shape.check(x.iter().map(|x| x.len()), shape.weight_len(), out.len());
        let bias = epilogue.bias.map_or(shape.out_channels, <[f32]>::len);
        assert_eq!(bias, shape.out_channels, "length of the bias of {shape:?}");
        assert!(x.len() == 1 || !self.winograd, "Winograd's weights read one image, not {}", x.len());
        match x {
            _ if out.is_empty() => {}
            [x] if self.winograd => winograd::forward(self.level, shape, &self.values, x, epilogue, out),
            _ => implicit::forward(self.level, shape, &self.values, x, epilogue, out),
        }
    }
}

/// The gradient of [`forward`] (without its epilogue) with respect to `x`, given `dy`, that with respect to `out`.
///
/// `dx` is `[n,ci,h,w]`, overwritten whatever it held. Panics if a length does not fit.
pub fn data_grad(shape: &ConvShape, lowering: Lowering, precision: Precision, dy: &[f32], w: &[f32], dx: &mut [&mut [f32]]) {
    shape.check(dx.iter().map(|dx| dx.len()), w.len(), dy.len());
    match dx {
        _ if dy.is_empty() => dx.iter_mut().for_each(|dx| dx.fill(0.0)),
        [dx] if is_winograd(lowering, precision, shape) => winograd::data_grad(shape, dy, w, dx),
        _ => implicit::data_grad(shape, precision, dy, w, dx),
    }
}

/// The gradient of [`forward`] (without its epilogue) with respect to `w`, given `dy`, that with respect to `out`.
///
/// `dw` is `[co,ci,kh,kw]`, overwritten whatever it held. Panics if a length does not fit.
pub fn weight_grad(shape: &ConvShape, lowering: Lowering, precision: Precision, x: &[&[f32]], dy: &[f32], dw: &mut [f32]) {
    shape.check(x.iter().map(|x| x.len()), dw.len(), dy.len());
    let precision = weight_grad_precision(shape, precision);
    match x {
        _ if dy.is_empty() => dw.fill(0.0),
        [x] if is_winograd(lowering, precision, shape) => winograd::weight_grad(shape, x, dy, dw),
        _ => implicit::weight_grad(simd::level().of(precision), shape, x, dy, dw),
    }
}

#[test]
fn a_unit_for_matrices_needs_no_winograd() {
    let s = ConvShape { batch: 1, in_channels: 8, out_channels: 8, height: 8, width: 8, kernel: [3; 2], stride: [1; 2], padding: [1; 2] };
    for level in simd::Level::all() {
        simd::with_level(level, || assert!(is_winograd(Lowering::Auto, Precision::F32, &s)));
    }
    simd::with_level(simd::Level::AmxModel, || assert!(!is_winograd(Lowering::Auto, Precision::Bf16, &s)));
    // Of one image there is no second term: its weights' gradient is Winograd's as before.
    assert_eq!(weight_grad_precision(&s, Precision::Bf16), Precision::F32);
    assert_eq!(weight_grad_precision(&ConvShape { batch: 2, ..s }, Precision::Bf16), Precision::Bf16);
}
