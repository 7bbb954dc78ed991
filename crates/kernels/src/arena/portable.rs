//! The operations in Burn's own words: their definition, and the way of types other than f32.

use burn::backend::Backend;
use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor as Float;
use burn::tensor::{FloatDType, Shape, Slice};

use super::Places;
use crate::planes::Parts;

pub(super) fn arena<B: Backend>(parts: Parts<B>, places: &Places) -> Float<B> {
    let dtype: FloatDType = parts.0[0].dtype().into();
    let zeros = B::float_zeros(Shape::new([places.len()]), &parts.0[0].device(), dtype);
    let put =
        |arena, (part, &(start, len)): (Float<B>, &(usize, usize))| B::float_slice_assign(arena, &[Slice::from(start..start + len)], part);
    parts.0.into_iter().zip(&places.all).fold(zeros, put)
}

pub(super) fn parts<B: Backend>(arena: Float<B>, places: &Places) -> Parts<B> {
    let part = |&(start, len): &(usize, usize)| B::float_slice(arena.clone(), &[Slice::from(start..start + len)]);
    Parts(places.all.iter().map(part).collect())
}
