//! Where an operation writes what belongs into an arena with others of its kind: the gradient of a parameter, and the running statistic that follows another. What they
//! come of lies in an [arena](mod@crate::arena); while a pass over a batch lasts that arena has a successor, and what is made of a part of the one is written to the
//! same place of the other. So putting all of it together is nothing to do.
//!
//! It is a matter of the thread that trains, as [`parts`](crate::with_parts) are.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::backend::DType;
use burn_cubecl::tensor::CubeTensor;

use super::pixels::{empty, view, zeros};
use crate::parts::with;

/// An arena, and what will be there of the next.
struct Succession {
    arena: CubeTensor,
    /// Where its tensors begin, rising, and how many numbers each has.
    places: Vec<(usize, usize)>,
    /// Zeros where nothing is written.
    successor: Option<CubeTensor>,
    /// Where places begin that were given away. A second gradient is to be added to the first, and not to be written over it.
    taken: HashSet<usize>,
}

thread_local! {
    static ALL: RefCell<Option<Vec<Succession>>> = const { RefCell::new(None) };
}

/// Does `work`, in which arenas may have successors.
pub(crate) fn with_successors<R>(work: impl FnOnce() -> R) -> R {
    with(&ALL, Vec::new(), work)
}

/// From now on `arena` has one, of tensors at these places.
pub(crate) fn succeed(arena: CubeTensor, places: Vec<(usize, usize)>) {
    let succession = Succession { arena, places, successor: None, taken: HashSet::new() };
    ALL.with_borrow_mut(|all| {
        if let Some(all) = all {
            all.push(succession);
        }
    });
}

/// Whether two tensors lie in one memory.
fn are_together(a: &CubeTensor, b: &CubeTensor) -> bool {
    let memory = |tensor: &CubeTensor| tensor.handle.clone().binding().memory.id();
    memory(a) == memory(b)
}

/// Where a tensor begins in its memory, and how many numbers it has.
fn place(tensor: &CubeTensor) -> (usize, usize) {
    let begin = tensor.handle.offset_start.unwrap_or(0) as usize / tensor.dtype.size();
    (begin, tensor.meta.shape().num_elements())
}

/// The memory for what is made of tensors that are neighbours in an arena, each once: flat, and where each begins in it. `None` if they have no place in a
/// successor, or had it before.
pub(crate) fn row(of: &[&CubeTensor]) -> Option<(CubeTensor, Vec<usize>)> {
    ALL.with_borrow_mut(|all| {
        let (first, all) = (of.first()?, all.as_mut()?);
        let succession = all.iter_mut().find(|succession| are_together(&succession.arena, first))?;
        let arena = &succession.arena;
        let fits = |tensor: &&CubeTensor| are_together(arena, tensor) && tensor.dtype == DType::F32 && tensor.is_contiguous();
        // A view of anything else may overlap with one of these.
        let number = succession.places.binary_search(&place(first)).ok()?;
        let places = succession.places.get(number..number + of.len())?;
        let free = !places.iter().any(|(begin, _)| succession.taken.contains(begin));
        if !(of.iter().all(fits) && places.iter().eq(&of.iter().map(|tensor| place(tensor)).collect::<Vec<_>>()) && free) {
            return None;
        }
        succession.taken.extend(places.iter().map(|place| place.0));
        let successor = succession.successor.get_or_insert_with(|| zeros(arena, [place(arena).1], DType::F32));
        let (begin, (last, len)) = (places[0].0, places[places.len() - 1]);
        Some((view(successor, begin, last + len - begin), places.iter().map(|place| place.0 - begin).collect()))
    })
}

/// A tensor for what is made of `of`, which has as many numbers, not yet written: in its place, if it has one.
pub(crate) fn place_of_result<const D: usize>(of: &CubeTensor, shape: [usize; D]) -> CubeTensor {
    let as_many = place(of).1 == shape.iter().product::<usize>();
    match if as_many { row(&[of]) } else { None } {
        Some((flat, _)) => shaped(flat, shape),
        None => empty(of, shape, DType::F32),
    }
}

/// All numbers of a contiguous tensor in another shape.
pub(crate) fn shaped<const D: usize>(flat: CubeTensor, shape: [usize; D]) -> CubeTensor {
    CubeTensor::new_contiguous(flat.client, flat.device, shape.into(), flat.handle, flat.dtype)
}
