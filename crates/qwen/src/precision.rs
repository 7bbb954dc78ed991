//! How exactly a run computes, and by whose products: `--precision` and `--products`.

use bellows_kernels::{Lowering, Precision, processor_level};
use bellows_learner::LossScaling;
use bellows_learner::memory::Place;
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::model::CausalLm;
use crate::named::{Change, map};
use crate::storage::BaseDtype;

/// How exactly a run computes. Sums are f32 in each, and tensors too, but in `fp16` by our own products on a card for gate and up, and for queries, keys and values
/// without a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunPrecision {
    /// Everything in f32.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// Factors of products with the model's own weights rounded to bf16, where the processor multiplies it.
    #[serde(rename = "bf16")]
    Bf16,
    /// The model's own weights in bf16 as they are on disk, the other factors in two bf16 parts, where the processor has AMX; elsewhere f32.
    #[serde(rename = "bf16x2")]
    Bf16x2,
    /// Those factors rounded to f16, the loss scaled; adapters are f32. (A detector's precision of f16 has that name.)
    #[serde(rename = "fp16", alias = "f16")]
    Fp16,
    /// Native f16, as cards without bf16 are used: the base, adapters, their gradients and factors are f16 too, the loss is not scaled, Adam's ε is 1e-4.
    #[serde(rename = "fp16-pure")]
    Fp16Pure,
}

/// Adam's ε where what is trained is f16, which rounds 1e-8 to 0.
const EPSILON: f64 = 1e-4;

impl RunPrecision {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::Bf16, Self::Bf16x2, Self::Fp16, Self::Fp16Pure];

    /// That of products with the model's own weights.
    pub fn of_products(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::Bf16x2 => Precision::Bf16x2,
            Self::Fp16 => Precision::F16,
            Self::Fp16Pure => Precision::PureF16,
        }
    }

    /// What `--precision` calls it.
    pub fn name(self) -> &'static str {
        self.of_products().name()
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|precision| precision.name() == name)
    }

    /// What the products are computed in on `device` where it has none of this precision: bf16 is multiplied by some processors alone, in two parts by
    /// those with AMX.
    pub fn instead(self, device: &Device) -> Option<&'static str> {
        let [own, f32] = [self, Self::F32].map(|precision| processor_level(precision.of_products()));
        let multiplies = Place::of(device) == Place::Processor && own != f32;
        (matches!(self, Self::Bf16 | Self::Bf16x2) && !multiplies).then_some("f32")
    }

    /// How a frozen base is stored where `asked` is what the settings say: pure f16 is of the weights too, and on a card `fp16` is, where each product would
    /// round them to the same numbers beside a copy of twice the size; unless something else is asked for. A GGUF keeps its blocks.
    pub fn base_dtype(self, asked: BaseDtype, model: &str, place: Place) -> BaseDtype {
        let in_f16 = self == Self::Fp16Pure || (self == Self::Fp16 && place == Place::Card);
        if in_f16 && asked == BaseDtype::Auto && !model.ends_with(".gguf") { BaseDtype::F16 } else { asked }
    }

    /// Whether gradients pass through f16.
    pub fn is_f16(self) -> bool {
        matches!(self, Self::Fp16 | Self::Fp16Pure)
    }

    /// How the loss is scaled, where `scale` (`dynamic`, or a number) applies.
    pub fn loss_scaling(self, scale: &str) -> Option<LossScaling> {
        match (self, scale) {
            (Self::Fp16, "dynamic") => Some(LossScaling::DYNAMIC),
            (Self::Fp16, number) => number.parse().ok().map(LossScaling::Static),
            _ => None,
        }
    }

    /// Adam's ε, `given` unless that is the default and would be 0 in f16.
    pub(crate) fn epsilon(self, given: f64, default: f64) -> f64 {
        if self == Self::Fp16Pure && given == default { EPSILON } else { given }
    }
}

/// Whose products of matrices run on a GPU. (On a processor they are ours.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// Burn's; ours where those fail the probe, and on cards without matrix units.
    #[default]
    Auto,
    /// Burn's, chosen by timing candidates on the card.
    Burn,
    /// Ours: nothing is tuned, a layer is few launches, results repeat bit for bit.
    Own,
}

impl Products {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Burn, Self::Own];

    /// What `--products` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Burn => "burn",
            Self::Own => "own",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|products| products.name() == name)
    }

    /// What a device is asked for.
    pub fn lowering(self) -> Lowering {
        match self {
            Self::Auto => Lowering::Auto,
            Self::Burn => Lowering::Direct,
            Self::Own => Lowering::Gemm,
        }
    }
}

/// To the nearest f16s, in f32.
pub(crate) fn rounded<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.cast(DType::F16).cast(DType::F32)
}

/// The model with the parameters that `which` picks by name rounded to f16.
pub(crate) fn in_f16(model: CausalLm, which: impl Fn(&str) -> bool) -> CausalLm {
    struct Round<F>(F);
    impl<F: Fn(&str) -> bool> Change for Round<F> {
        fn change<const D: usize>(&mut self, name: &str, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !(self.0)(name) {
                return param;
            }
            param.map(|value| {
                let wanted = value.is_require_grad();
                rounded(value.detach()).set_require_grad(wanted)
            })
        }
    }
    map(model, &mut Round(which))
}
