//! Arenas on CubeCL devices: a dozen tensors to a launch, as many as a device binds at a time; views of what lies in one already.

use burn::backend::DType;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{ArenaOps, Places, portable};
use crate::cube::launch::{UNITS, address_type, covers, grid};
use crate::cube::pixels::empty;
use crate::planes::Parts;

/// Most tensors to a launch: 16 with the arena and the launch's numbers are what a device of no great age binds.
const MOST: usize = 14;

/// `out[i]` is what lies at `i`: part p from `starts[p]` on, zeros between.
#[cube(launch, address_type = "dynamic")]
fn arena_kernel(parts: &Sequence<OwnedTensor<f32>>, starts: &Sequence<u32>, out: &mut Tensor<f32>) {
    let i = ABSOLUTE_POS;
    if i >= out.len() {
        terminate!();
    }
    let mut value = 0.0f32;
    #[unroll]
    for p in 0..comptime![parts.len()] {
        let part = parts.index(p).as_slice();
        let start = *starts.index(p) as usize;
        if i >= start && i < start + part.len() {
            value = part[i - start];
        }
    }
    out[i] = value;
}

/// The values `start .. start + len` of a contiguous tensor, in its memory.
pub(crate) fn view(whole: &CubeTensor, start: usize, len: usize) -> CubeTensor {
    let (size, all) = (whole.dtype.size() as u64, whole.meta.shape().num_elements());
    let handle = whole.handle.clone().offset_start(start as u64 * size).offset_end((all - start - len) as u64 * size);
    CubeTensor::new_contiguous(whole.client.clone(), whole.device.clone(), Shape::new([len]), handle, whole.dtype)
}

/// The arena whose parts these are, if they are.
fn whole(parts: &[CubeTensor], places: &Places) -> Option<CubeTensor> {
    let memory = |part: &CubeTensor| part.handle.clone().binding().memory.id();
    let first = parts.first()?;
    let (id, size) = (memory(first), first.dtype.size() as u64);
    let at = |part: &CubeTensor, (start, len): (usize, usize)| {
        let begin = part.handle.offset_start.unwrap_or(0);
        memory(part) == id && begin == start as u64 * size && part.handle.size_in_used() == len as u64 * size
    };
    let mut handle = first.handle.clone();
    (handle.offset_start, handle.offset_end) = (None, None);
    let fits = handle.size() == places.len() as u64 * size && parts.iter().zip(&places.all).all(|(part, &place)| at(part, place));
    let shape = Shape::new([places.len()]);
    fits.then(|| CubeTensor::new_contiguous(first.client.clone(), first.device.clone(), shape, handle, first.dtype))
}

impl ArenaOps for CubeBackend {
    fn arena(parts: Parts<Self>, places: Places) -> CubeTensor {
        if !covers(&parts.0) {
            return portable::arena::<Self>(parts, &places);
        }
        let parts: Vec<CubeTensor> = parts.0.into_iter().map(into_contiguous).collect();
        if let Some(whole) = whole(&parts, &places) {
            return whole;
        }
        let out = empty(&parts[0], [places.len()], DType::F32);
        let bound = parts[0].client.properties().hardware.max_bindings as usize;
        let most = MOST.min(bound.saturating_sub(2)).max(1);
        for (parts, at) in parts.chunks(most).zip(places.all.chunks(most)) {
            let first = at[0].0;
            // With the gap behind them, which is theirs to clear. Of its own range: an allocation that failed is told of the memory it was to fill.
            let end = places.all.iter().map(|place| place.0).find(|&start| start > at[at.len() - 1].0).unwrap_or(places.len());
            let out = view(&out, first, end - first);
            let tensors: Vec<&CubeTensor> = parts.iter().collect();
            let address = tensors.iter().map(|t| t.required_address_type()).max().unwrap_or_default().max(address_type([&out]));
            arena_kernel::launch(
                &out.client.clone(),
                grid(end - first),
                CubeDim::new_1d(UNITS),
                address,
                parts.iter().map(|part| part.clone().into_tensor_arg()).collect(),
                at.iter().map(|(start, _)| (start - first) as u32).collect(),
                out.into_tensor_arg(),
            );
        }
        out
    }

    fn arena_parts(arena: CubeTensor, places: Places) -> Parts<Self> {
        let alignment = arena.client.properties().memory.alignment;
        let bound = |&(start, _): &(usize, usize)| (start as u64 * arena.dtype.size() as u64).is_multiple_of(alignment);
        if !places.all.iter().all(bound) {
            return portable::parts::<Self>(arena, &places);
        }
        let arena = into_contiguous(arena);
        Parts(places.all.iter().map(|&(start, len)| view(&arena, start, len)).collect())
    }
}
