//! The maps one by one: their definition, and the way of devices and types without a kernel.

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;

use super::operands::Maps;
use crate::cpu::Precision;
use crate::operands::Maybe;
use crate::planes::{Parts, PlaneOps};
use crate::products::{Branch, ProductOps, StoredBranch, StoredMap};

/// `[.., width]` as `[N, width]`.
pub(super) fn flat<B: Backend>(x: Float<B>) -> Float<B> {
    let shape = x.shape();
    let width = shape[shape.num_dims() - 1];
    B::float_reshape(x, Shape::new([shape.num_elements() / width.max(1), width]))
}

/// `[N, width]` with the leading axes of `like`.
pub(super) fn shaped<B: Backend>(y: Float<B>, like: &Shape) -> Float<B> {
    let mut shape = like.clone();
    let last = shape.num_dims() - 1;
    shape[last] = y.shape()[1];
    B::float_reshape(y, shape)
}

pub(super) fn maps<B: ProductOps + PlaneOps>(x: Float<B>, maps: Maps<B>, onto: Maybe<B>, precision: Precision) -> Parts<B> {
    let (mut onto, shape) = (onto.into_option(), x.shape());
    let x = flat::<B>(x);
    let one = |map: StoredMap<B>| {
        let y = shaped::<B>(B::linear_forward(x.clone(), map, precision), &shape);
        if let Some(onto) = onto.take() { B::add(y, onto) } else { y }
    };
    Parts(maps.all.into_iter().map(one).collect())
}

pub(super) fn maps_grad<B: ProductOps + PlaneOps>(
    kept: Parts<B>,
    maps: Maps<B>,
    dys: Parts<B>,
    order: Vec<usize>,
    held: Maybe<B>,
    wants: bool,
    precision: Precision,
) -> Parts<B> {
    let mut dx = held.into_option();
    let mut of_branches: Vec<_> = maps.all.iter().map(|_| None).collect();
    for (map, dy) in order.into_iter().zip(dys.0) {
        let StoredMap { weight, branch, .. } = maps.all[map].clone();
        let shape = dy.shape();
        let dy = flat::<B>(dy);
        if let (Some(x), Branch::LowRank(StoredBranch { a, b, scaling })) = (kept.0.first(), &branch) {
            of_branches[map] = Some(B::lora_grads(flat::<B>(x.clone()), dy.clone(), a.clone(), b.clone(), *scaling));
        }
        if wants {
            let own = shaped::<B>(B::linear_data_grad(dy, weight, branch, precision), &shape);
            dx = Some(if let Some(others) = dx { B::add(others, own) } else { own });
        }
    }
    let of_branches = of_branches.into_iter().flatten().flat_map(|(da, db)| [da, db]);
    Parts(dx.filter(|_| wants).into_iter().chain(of_branches).collect())
}
