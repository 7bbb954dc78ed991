//! Which algorithm computes a convolution.
//!
//! The operations take a [`Lowering`] explicitly. Layers take the process's default, which `main` sets once from the
//! command line: it is a choice of speed and rounding, never of meaning, so it needs no place in a model.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU8, Ordering};

/// `FromStr` of a [`Lowering`] or a [`Precision`] was given another word: what it was to be, the word, and the names there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0} is called {1}: {2}")]
pub struct KernelError(&'static str, String, String);

/// How a convolution is turned into multiply-adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Lowering {
    /// The fastest known for the device and the shape.
    #[default]
    Auto,
    /// Burn's own convolutions, untouched.
    Direct,
    /// Image patches as columns, in one matrix product.
    Gemm,
    /// Winograd F(4x4, 3x3) for 3x3 convolutions of stride 1; everything else as [`Auto`](Self::Auto).
    Winograd,
    /// The matrix product reads the image in place: no columns are ever stored.
    Implicit,
    /// [`Auto`](Self::Auto) on a processor, but of factors rounded to bf16 where the processor has an instruction for that and it is faster (AVX-512-BF16, AMX).
    Bf16,
    /// A GPU's matrix products by the first kernel of Burn's that takes them, none timed; all else as [`Auto`](Self::Auto). Not for users to ask for: it is
    /// what a device is left with where Burn's tuning and our own kernels fail.
    Untuned,
}

impl Lowering {
    /// Those that users can ask for, in the order of [`Display`](fmt::Display)'s names in the help text.
    pub const ALL: [Self; 6] = [Self::Auto, Self::Direct, Self::Gemm, Self::Winograd, Self::Implicit, Self::Bf16];

    /// What `--conv` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Gemm => "gemm",
            Self::Winograd => "winograd",
            Self::Implicit => "implicit",
            Self::Bf16 => "bf16",
            Self::Untuned => "untuned",
        }
    }

    /// In what our kernels for processors multiply; none where the convolution is Burn's own. (There a matrix product is, but for a few channels.)
    pub(crate) fn precision(self) -> Option<Precision> {
        match self {
            Self::Direct | Self::Gemm => None,
            Self::Bf16 => Some(Precision::Bf16),
            Self::Auto | Self::Winograd | Self::Implicit | Self::Untuned => Some(Precision::F32),
        }
    }
}

/// What has a name is written as that, and read back.
macro_rules! named {
    ($type:ty, $what:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = KernelError;

            fn from_str(text: &str) -> Result<Self, KernelError> {
                let unknown = || KernelError($what, text.to_owned(), Self::ALL.map(Self::name).join(", "));
                Self::ALL.into_iter().find(|it| it.name() == text).ok_or_else(unknown)
            }
        }
    };
}

named!(Lowering, "lowering");
named!(Precision, "precision");

static DEFAULT: AtomicU8 = AtomicU8::new(Lowering::Auto as u8);

/// Sets what [`default_lowering`] answers from now on, in every thread.
pub fn set_default_lowering(lowering: Lowering) {
    DEFAULT.store(lowering as u8, Ordering::Relaxed);
}

/// The lowering of layers that were not given one.
pub fn default_lowering() -> Lowering {
    let stored = DEFAULT.load(Ordering::Relaxed);
    Lowering::ALL.into_iter().chain([Lowering::Untuned]).find(|&l| l as u8 == stored).unwrap_or_default()
}

/// How exactly products are formed. Sums are f32 in any case, and tensors but for results of [maps](crate::maps::maps) that may be f16; so are Winograd's
/// convolutions, whose transforms would make five times as much of the rounding, and all gradients of what is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32.
    #[default]
    F32,
    /// Factors rounded to bf16 where the processor has an instruction for that (AVX-512-BF16, AMX), an error of about 0.2 % of the results'
    /// root mean square; elsewhere f32.
    Bf16,
    /// Products with a language model's own weights that are stored in bf16, the other factor in two bf16 parts: an error next to that of f32, at half
    /// the speed of [`Bf16`](Self::Bf16), where the processor has AMX; elsewhere f32, which is as fast there.
    Bf16x2,
    /// Factors of products with a language model's own weights rounded to f16; convolutions are f32.
    F16,
    /// The same of its adapters too.
    PureF16,
}

impl Precision {
    /// Those that every kernel knows.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// What `--precision` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16x2 => "bf16x2",
            Self::F16 => "fp16",
            Self::PureF16 => "fp16-pure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for lowering in Lowering::ALL {
            assert_eq!(lowering.to_string().parse::<Lowering>().unwrap(), lowering);
        }
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse::<Precision>().unwrap(), precision);
        }
        assert_eq!("fp8".parse::<Precision>().unwrap_err().to_string(), "no precision is called fp8: f32, bf16");
        assert_eq!(
            "fft".parse::<Lowering>().unwrap_err().to_string(),
            "no lowering is called fft: auto, direct, gemm, winograd, implicit, bf16"
        );
    }
}
