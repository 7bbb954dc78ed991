//! Convolution in two dimensions on the processor's vector units, of f32 tensors in NCHW: forward, gradient of the input, gradient of the
//! weights.
//!
//! Two algorithms share one vector layer ([`simd`]). `implicit` multiplies matrices whose right-hand side is never built: a table
//! of offsets says where each row of the im2col matrix lies in a packed strip of the input. It takes any kernel, stride and padding.
//! `winograd` does 3x3 kernels of stride 1 with a quarter of the multiplications. Work is divided over rayon's current pool; each
//! output of the forward pass and of the input's gradient is computed by one task in an order that does not depend on the number of
//! threads, and the weights' gradient is reduced in a fixed order, so results repeat to the bit.

mod implicit;
#[cfg(test)]
pub(crate) mod reference;
mod scratch;
pub mod simd;
mod winograd;

/// A 2-D convolution, groups 1, dilation 1, contiguous NCHW f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Steps between outputs along rows and columns.
    pub stride: [usize; 2],
    /// Zeros added on each side along rows and columns.
    pub padding: [usize; 2],
}

impl ConvShape {
    /// Rows of the output.
    pub fn out_height(&self) -> usize {
        out_size(self.height, self.kernel[0], self.stride[0], self.padding[0])
    }

    /// Columns of the output.
    pub fn out_width(&self) -> usize {
        out_size(self.width, self.kernel[1], self.stride[1], self.padding[1])
    }

    /// Multiply-adds of one pass, those with padding included.
    #[cfg(test)]
    pub fn macs(&self) -> u64 {
        let per_output = self.in_channels * self.kernel[0] * self.kernel[1];
        (self.batch * self.out_channels * self.out_height() * self.out_width()) as u64 * per_output as u64
    }

    /// Values of the input.
    fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.height * self.width
    }

    /// Values of the output.
    fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_height() * self.out_width()
    }

    /// Values of the weights.
    fn weight_len(&self) -> usize {
        self.out_channels * self.in_channels * self.kernel[0] * self.kernel[1]
    }

    /// Panics unless the three tensors have this shape.
    fn check(&self, input: usize, weights: usize, output: usize) {
        let sizes = [self.in_channels, self.out_channels, self.height, self.width];
        assert!(
            sizes.iter().chain(&self.kernel).chain(&self.stride).all(|&n| n > 0),
            "a size of zero (only the batch may be empty): {self:?}"
        );
        assert_eq!(input, self.input_len(), "length of the input of {self:?}");
        assert_eq!(weights, self.weight_len(), "length of the weights of {self:?}");
        assert_eq!(output, self.output_len(), "length of the output of {self:?}");
    }
}

/// Outputs along one axis; none if the kernel does not fit even once.
fn out_size(size: usize, kernel: usize, stride: usize, padding: usize) -> usize {
    (size + 2 * padding).checked_sub(kernel).map_or(0, |room| room / stride + 1)
}

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// Whichever is the faster for the shape.
    #[default]
    Auto,
    /// Implicit matrix multiplication: any shape, the more accurate.
    Implicit,
    /// Winograd's F(4x4, 3x3) where it applies (3x3, stride 1, padding up to 2), else implicit.
    Winograd,
}

/// How exactly the implicit algorithm multiplies. Tensors and sums are f32 in either case, and so is Winograd's method, whose transforms
/// would make five times as much of the rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// Factors rounded to bf16 where the processor has an instruction for that (AVX-512-BF16), an error of about 0.2 % of the results'
    /// root mean square; elsewhere f32.
    Bf16,
}

/// What is done to an output tile before it is stored: + `bias[co]`, then SiLU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per output channel.
    pub bias: Option<&'a [f32]>,
    /// Whether `x * sigmoid(x)` follows.
    pub silu: bool,
}

impl Algorithm {
    /// Whether Winograd's method is to be used.
    fn is_winograd(self, shape: &ConvShape) -> bool {
        let applies = winograd::applies(shape);
        match self {
            Algorithm::Auto => applies && shape.in_channels >= 8 && shape.out_channels >= 8,
            Algorithm::Implicit => false,
            Algorithm::Winograd => applies,
        }
    }
}

/// `out[n,co,i,j] = epilogue(sum x[n, ci, i*sh + kh - ph, j*sw + kw - pw] * w[co,ci,kh,kw])`.
///
/// `x` is `[n,ci,h,w]`, `w` `[co,ci,kh,kw]`, `out` `[n,co,oh,ow]`, overwritten whatever it held. Panics if a length does not fit.
pub fn forward(
    shape: &ConvShape,
    algorithm: Algorithm,
    precision: Precision,
    x: &[f32],
    w: &[f32],
    epilogue: Epilogue<'_>,
    out: &mut [f32],
) {
    shape.check(x.len(), w.len(), out.len());
    if let Some(bias) = epilogue.bias {
        assert_eq!(bias.len(), shape.out_channels, "length of the bias of {shape:?}");
    }
    if out.is_empty() {
        return;
    }
    if algorithm.is_winograd(shape) {
        winograd::forward(shape, x, w, epilogue, out);
    } else {
        implicit::forward(shape, precision, x, w, epilogue, out);
    }
}

/// The gradient of [`forward`] (without its epilogue) with respect to `x`, given `dy`, that with respect to `out`.
///
/// `dx` is `[n,ci,h,w]`, overwritten whatever it held. Panics if a length does not fit.
pub fn data_grad(shape: &ConvShape, algorithm: Algorithm, precision: Precision, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    shape.check(dx.len(), w.len(), dy.len());
    if dy.is_empty() {
        dx.fill(0.0);
        return;
    }
    if algorithm.is_winograd(shape) {
        winograd::data_grad(shape, dy, w, dx);
    } else {
        implicit::data_grad(shape, precision, dy, w, dx);
    }
}

/// The gradient of [`forward`] (without its epilogue) with respect to `w`, given `dy`, that with respect to `out`.
///
/// `dw` is `[co,ci,kh,kw]`, overwritten whatever it held. Panics if a length does not fit.
pub fn weight_grad(shape: &ConvShape, algorithm: Algorithm, precision: Precision, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    shape.check(x.len(), dw.len(), dy.len());
    if dy.is_empty() {
        dw.fill(0.0);
        return;
    }
    if algorithm.is_winograd(shape) {
        winograd::weight_grad(shape, x, dy, dw);
    } else {
        implicit::weight_grad(shape, precision, x, dy, dw);
    }
}
