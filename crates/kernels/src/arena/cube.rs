//! Arenas on CubeCL devices: a dozen tensors to a launch, as many as a device binds at a time; views of what lies in one already.

use burn::backend::DType;
use burn::tensor::Shape;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::{ArenaOps, Places, composed, slices};
use crate::cube::join::{join, most};
use crate::cube::launch::covers;
use crate::cube::pixels::{empty, view};
use crate::cube::places::succeed;
use crate::planes::Parts;

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
    (handle.offset_start, handle.offset_end) = (None, handle.size().checked_sub(places.len() as u64 * size));
    let shape = Shape::new([places.len()]);
    let whole = || CubeTensor::new_contiguous(first.client.clone(), first.device.clone(), shape, handle.clone(), first.dtype);
    (handle.offset_end.is_some() && parts.iter().zip(&places.all).all(|(part, &place)| at(part, place))).then(whole)
}

impl ArenaOps for CubeBackend {
    fn arena(parts: Parts<Self>, places: Places) -> CubeTensor {
        if !covers(&parts.0) {
            return composed::<Self>(parts, &places);
        }
        let parts: Vec<CubeTensor> = parts.0.into_iter().map(into_contiguous).collect();
        if let Some(whole) = whole(&parts, &places) {
            return whole;
        }
        let out = empty(&parts[0], [places.len()], DType::F32);
        let most = most(&out);
        for (parts, at) in parts.chunks(most).zip(places.all.chunks(most)) {
            let first = at[0].0;
            // With the gap behind them, which is theirs to clear. Of its own range: an allocation that failed is told of the memory it was to fill.
            let end = places.all.iter().map(|place| place.0).find(|&start| start > at[at.len() - 1].0).unwrap_or(places.len());
            let starts: Vec<usize> = at.iter().map(|(start, _)| start - first).collect();
            join(parts, &starts, &view(&out, first, end - first), [0, end - first], end - first);
        }
        out
    }

    fn succeed(parts: Parts<Self>, places: Places) -> bool {
        let arena = if covers(&parts.0) { whole(&parts.0, &places) } else { None };
        arena.map(|arena| succeed(arena, places.all)).is_some()
    }

    fn arena_parts(arena: CubeTensor, places: Places) -> Parts<Self> {
        let alignment = arena.client.properties().memory.alignment;
        let bound = |&(start, _): &(usize, usize)| (start as u64 * arena.dtype.size() as u64).is_multiple_of(alignment);
        if !places.all.iter().all(bound) {
            return slices::<Self>(arena, &places);
        }
        let arena = into_contiguous(arena);
        Parts(places.all.iter().map(|&(start, len)| view(&arena, start, len)).collect())
    }
}
