//! What a convolution is asked to do, whichever algorithm does it.

/// A 2-D convolution, groups 1, dilation 1, contiguous NCHW f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    pub batch: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Of the input.
    pub height: usize,
    pub width: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Steps between outputs along rows and columns.
    pub stride: [usize; 2],
    /// Zeros added on each side along rows and columns.
    pub padding: [usize; 2],
}

impl ConvShape {
    /// Of x `[batch, in, height, width]` and weights `[out, in, kernel]`.
    pub fn new(x: [usize; 4], weight: [usize; 4], stride: [usize; 2], padding: [usize; 2]) -> Self {
        let ([batch, in_channels, height, width], [out_channels, _, kh, kw]) = (x, weight);
        Self { batch, in_channels, out_channels, height, width, kernel: [kh, kw], stride, padding }
    }

    pub fn out_height(&self) -> usize {
        out_size(self.height, self.kernel[0], self.stride[0], self.padding[0])
    }

    pub fn out_width(&self) -> usize {
        out_size(self.width, self.kernel[1], self.stride[1], self.padding[1])
    }

    /// Multiply-adds of one pass, those with padding included.
    #[cfg(test)]
    pub fn macs(&self) -> u64 {
        let per_output = self.in_channels * self.kernel[0] * self.kernel[1];
        (self.batch * self.out_channels * self.out_height() * self.out_width()) as u64 * per_output as u64
    }

    pub(super) fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.height * self.width
    }

    pub(super) fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_height() * self.out_width()
    }

    pub(super) fn weight_len(&self) -> usize {
        self.out_channels * self.in_channels * self.kernel[0] * self.kernel[1]
    }

    /// Panics unless the tensors have this shape, each part of the input some whole channels of every image.
    pub(super) fn check(&self, mut parts: impl Iterator<Item = usize> + Clone, weights: usize, output: usize) {
        let sizes = [self.in_channels, self.out_channels, self.height, self.width];
        let some = sizes.iter().chain(&self.kernel).chain(&self.stride).all(|&n| n > 0);
        assert!(some, "a size of zero (only the batch may be empty): {self:?}");
        assert_eq!(parts.clone().sum::<usize>(), self.input_len(), "length of the input of {self:?}");
        assert_eq!(weights, self.weight_len(), "length of the weights of {self:?}");
        assert_eq!(output, self.output_len(), "length of the output of {self:?}");
        let channel = self.batch * self.height * self.width;
        let fits = parts.all(|len| len.is_multiple_of(channel) && (len > 0 || channel == 0));
        assert!(fits, "a part of the input of {self:?} that is no number of channels");
    }
}

/// Outputs along one axis; none if the kernel does not fit even once.
fn out_size(size: usize, kernel: usize, stride: usize, padding: usize) -> usize {
    (size + 2 * padding).checked_sub(kernel).map_or(0, |room| room / stride + 1)
}

/// What is done to an output tile before it is stored: + `bias[co]`, then SiLU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per output channel.
    pub bias: Option<&'a [f32]>,
    /// Whether `x * sigmoid(x)` follows.
    pub silu: bool,
}
