//! The linear maps of one input, with their low-rank branches, as one operation (q, k and v of attention, gate and up of an MLP).
//!
//! One by one each reads the input again, and each of its gradients is a tensor that is added to the others'. Together the inner products of all
//! branches are one launch on a GPU, as are the gradients of all A and B, and the gradient of the input is handed from map to map, which each add
//! their own ([decision 22](../../../../docs/decisions/0022-maps-of-one-input.md)). What a result is added to is read where the result is written.

mod autodiff;
mod cube;
mod cube_kernels;
mod operands;
mod portable;
#[cfg(test)]
mod tests;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

pub use operands::Maps;

use crate::cpu::Precision;
use crate::operands::Maybe;
use crate::planes::{Parts, PlaneOps};
use crate::products::{LowRank, ProductOps, StoredBranch, StoredMap, Weight};
use crate::shapes;

/// Most maps of an input: the number of an operation's parents is part of its type.
pub const MOST_MAPS: usize = 3;

/// Maps of one input x `[.., in]` to `[.., out]`; everything else as in [`ProductOps`].
#[backend_extension(Flex, Cube, Autodiff)]
pub trait MapOps: ProductOps + PlaneOps {
    /// `x Wᵀ + b + s (x Aᵀ) Bᵀ` of each map, `onto` added to the first; behind them what [`maps_grad`](Self::maps_grad) likes to have besides.
    fn maps(x: Float<Self>, #[extension_type] maps: Maps<Self>, #[extension_type] onto: Maybe<Self>, precision: Precision) -> Parts<Self> {
        portable::maps::<Self>(x, maps, onto, precision)
    }

    /// The gradients from those of the results, `dys`, which are in the order in which they came: `dys[i]` is that of map `order[i]`. If x `wants` one,
    /// first `held + Σ (dy W + s (dy B) A)`, the gradient of x; then of each branch `s (dy B)ᵀ x` and `s dyᵀ (x Aᵀ)`, if there is anything in `kept`: x and
    /// what [`maps`](Self::maps) gave besides its results.
    #[allow(clippy::too_many_arguments)]
    fn maps_grad(
        #[extension_type] kept: Parts<Self>,
        #[extension_type] maps: Maps<Self>,
        #[extension_type] dys: Parts<Self>,
        order: Vec<usize>,
        #[extension_type] held: Maybe<Self>,
        wants: bool,
        precision: Precision,
    ) -> Parts<Self> {
        portable::maps_grad::<Self>(kept, maps, dys, order, held, wants, precision)
    }
}

/// On the processor each map is a product of its own: one pass has work for all threads, and reads its input from a cache.
impl MapOps for Flex {}

/// One of the maps of an input.
#[derive(Clone, Debug)]
pub struct Map {
    /// W, `[out, in]`.
    pub weight: Weight,
    /// b, `[out]`.
    pub bias: Option<Tensor<1>>,
    /// `s B A`.
    pub branch: Option<LowRank>,
}

/// `y = x (W + s B A)ᵀ + b` of each map, x `[.., in]` to `[.., out]`, differentiable; `onto` `[.., out]` is added to the first. With `half`, results that are added to
/// nothing are f16 where our kernels for GPUs compute them, and f32 elsewhere; x may be such a result, or made of such. Its gradient is of its type.
///
/// The gradients are made at once, when those of the results have come; one that nobody reads counts as zeros. There are [`MOST_MAPS`] maps at most.
pub fn maps<const N: usize, const D: usize>(
    x: Tensor<D>,
    maps: [Map; N],
    onto: Option<Tensor<D>>,
    half: bool,
    precision: Precision,
) -> [Tensor<D>; N] {
    assert!(N > 0 && N <= MOST_MAPS, "{N} maps of an input");
    let input = x.dims()[D - 1];
    for Map { weight, bias, branch } in &maps {
        let [out, width] = weight.dims();
        assert!(width == input, "x has {input} columns, and a weight is [{out}, {width}]");
        bias.iter().for_each(|bias| shapes::expect("a bias", bias.dims(), [out]));
        if let Some(LowRank { a, b, .. }) = branch {
            let [rank, _] = a.dims();
            shapes::expect("A", a.dims(), [rank, input]);
            shapes::expect("B", b.dims(), [out, rank]);
        }
    }
    if let Some(onto) = &onto {
        let mut shape = x.dims();
        shape[D - 1] = maps[0].weight.dims()[0];
        shapes::expect("what the first result is added to", onto.dims(), shape);
    }
    let stored = Maps { all: maps.into_iter().map(Map::into_dispatch).collect(), half };
    let onto = onto.map_or(Maybe::None, |onto| Maybe::Some(onto.into_dispatch()));
    let mut results = Dispatch::maps(x.into_dispatch(), stored, onto, precision).0.into_iter();
    std::array::from_fn(|_| Tensor::from_dispatch(results.next().unwrap_or_else(|| unreachable!("a result of each map"))))
}

impl Map {
    fn into_dispatch(self) -> StoredMap<Dispatch> {
        let Self { weight, bias, branch } = self;
        let stored = |LowRank { a, b, scaling }| StoredBranch { a: Tensor::into_dispatch(a), b: Tensor::into_dispatch(b), scaling };
        StoredMap { weight: weight.into_dispatch(), bias: bias.map(Tensor::into_dispatch).into(), branch: branch.map(stored).into() }
    }
}
