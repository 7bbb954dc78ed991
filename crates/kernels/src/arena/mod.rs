//! Many tensors in one, and back.
//!
//! A network of a few million parameters has hundreds of tensors, and an update that visits them one by one is hundreds of launches for each
//! thing it does. In an *arena* they lie one after the other, so that it is one. What is taken out of an arena is a view: a parameter that
//! came from there still lies there, and putting all of them together again is nothing to do. What a pass over a batch makes of such parameters may be
//! written where it belongs in an arena, too ([`in_place`]).

mod cube;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor as Float;
use burn::backend::{Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Slice, Tensor};
use burn_flex::{FlexTensor, Layout};

use crate::buffers::{all_f32, contiguous, values, written};
use crate::cube::places::with_successors;
use crate::planes::Parts;
use crate::planes::kernels::carry_out;
use crate::shapes;

/// Where tensors lie in their arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Where each begins, and how many values it has.
    pub all: Vec<(usize, usize)>,
}

/// CubeCL binds memory from a multiple of so many values on, whatever the device (512 bytes, CUDA's; WebGPU's `minStorageBufferOffsetAlignment` is 256).
const ALIGNMENT: usize = 128;

/// Where the next tensor begins behind one that begins there and has so many values.
pub(crate) fn next_place((start, len): (usize, usize)) -> usize {
    (start + len).next_multiple_of(ALIGNMENT)
}

impl Places {
    /// Of tensors of these lengths, one after the other. Each begins where memory can be bound.
    pub fn of(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut next = 0;
        let place = |len: usize| {
            let place = (next, len);
            next = next_place(place);
            place
        };
        Self { all: lengths.into_iter().map(place).collect() }
    }

    /// Values of the arena; those between tensors are zero.
    pub fn len(&self) -> usize {
        self.all.last().map_or(0, |(start, len)| start + len)
    }

    /// Whether there is no tensor, or only empty ones.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Operations on flat tensors, without gradient.
#[backend_extension(Flex, Cube)]
pub trait ArenaOps: Backend {
    /// The arena of `parts`.
    fn arena(#[extension_type] parts: Parts<Self>, places: Places) -> Float<Self>;

    /// What is made of `parts`, if they are an arena, has a place in its successor from now on; whether it has (an operation of an extension has to return something).
    fn succeed(#[extension_type] parts: Parts<Self>, places: Places) -> bool {
        drop((parts, places));
        false
    }

    /// Views of an arena.
    fn arena_parts(arena: Float<Self>, places: Places) -> Parts<Self>;
}

/// The arena `[places.len()]` of at least one tensor, each `[its length]`, without gradient. Nothing is copied if they are the parts of one already.
pub fn arena(parts: Vec<Tensor<1>>, places: &Places) -> Tensor<1> {
    assert_eq!(parts.len(), places.all.len(), "tensors for so many places");
    for (part, &(_, len)) in parts.iter().zip(&places.all) {
        shapes::expect("a part", part.dims(), [len]);
    }
    let parts = Parts(parts.into_iter().map(Tensor::into_dispatch).collect());
    Tensor::from_dispatch(Dispatch::arena(parts, places.clone()))
}

/// Does `work`, a forward and a backward pass over what lies in arenas, each the parts of one with their places. On a GPU our operations write the gradient of such a
/// part, and the running statistic that follows it, to its place in a new arena: [`arena`] has nothing to copy then.
pub fn in_place<R>(arenas: Vec<(Vec<Tensor<1>>, &Places)>, work: impl FnOnce() -> R) -> R {
    with_successors(|| {
        for (parts, places) in arenas {
            Dispatch::succeed(Parts(parts.into_iter().map(Tensor::into_dispatch).collect()), places.clone());
        }
        work()
    })
}

/// The tensors of an arena, without gradient: views, where the device can bind memory in the middle.
pub fn arena_parts(arena: Tensor<1>, places: &Places) -> Vec<Tensor<1>> {
    shapes::expect("the arena", arena.dims(), [places.len()]);
    Dispatch::arena_parts(arena.into_dispatch(), places.clone()).0.into_iter().map(Tensor::from_dispatch).collect()
}

/// An arena in Burn's own words.
fn composed<B: Backend>(parts: Parts<B>, places: &Places) -> Float<B> {
    let dtype: FloatDType = parts.0[0].dtype().into();
    let zeros = B::float_zeros(Shape::new([places.len()]), &parts.0[0].device(), dtype);
    let put =
        |arena, (part, &(start, len)): (Float<B>, &(usize, usize))| B::float_slice_assign(arena, &[Slice::from(start..start + len)], part);
    parts.0.into_iter().zip(&places.all).fold(zeros, put)
}

/// Its parts as slices.
fn slices<B: Backend>(arena: Float<B>, places: &Places) -> Parts<B> {
    let part = |&(start, len): &(usize, usize)| B::float_slice(arena.clone(), &[Slice::from(start..start + len)]);
    Parts(places.all.iter().map(part).collect())
}

/// The arena whose parts these are, if they are.
fn whole(parts: &[FlexTensor], places: &Places) -> Option<FlexTensor> {
    let first = &parts[0];
    let memory = first.data_arc();
    let all = parts
        .iter()
        .zip(&places.all)
        .all(|(part, &(start, _))| Arc::ptr_eq(&memory, &part.data_arc()) && part.is_contiguous() && part.layout().start_offset() == start);
    let fits = memory.len() == size_of::<f32>() * places.len();
    (all && fits).then(|| FlexTensor::from_arc(memory, Layout::contiguous([places.len()].into()), first.dtype()))
}

impl ArenaOps for Flex {
    fn arena(parts: Parts<Self>, places: Places) -> FlexTensor {
        let true = all_f32(&parts.0) else { return composed::<Self>(parts, &places) };
        if let Some(whole) = whole(&parts.0, &places) {
            return whole;
        }
        let parts: Vec<FlexTensor> = parts.0.into_iter().map(contiguous).collect();
        written([places.len()], |mut rest| {
            let (mut end, mut moves) = (0, Vec::new());
            for (part, &(start, len)) in parts.iter().zip(&places.all) {
                let (between, behind) = rest.split_at_mut(start - end);
                let (to, behind) = behind.split_at_mut(len);
                moves.extend([(between, None), (to, Some(values(part)))]);
                (rest, end) = (behind, start + len);
            }
            carry_out(moves);
        })
    }

    fn arena_parts(arena: FlexTensor, places: Places) -> Parts<Self> {
        slices::<Self>(contiguous(arena), &places)
    }
}
