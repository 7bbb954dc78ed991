//! What a pass makes of what lies in arenas lies in arenas.

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::{ArenaOps, Places};
use crate::cube::places::with_successors;
use crate::planes::Parts;

/// Does `work`, a forward and a backward pass over what lies in arenas, each the parts of one with their places. On a GPU our operations write the gradient of such a
/// part, and the running statistic that follows it, to its place in a new arena: [`arena`](super::arena) has nothing to copy then.
pub fn in_place<R>(arenas: Vec<(Vec<Tensor<1>>, &Places)>, work: impl FnOnce() -> R) -> R {
    with_successors(|| {
        for (parts, places) in arenas {
            Dispatch::succeed(Parts(parts.into_iter().map(Tensor::into_dispatch).collect()), places.clone());
        }
        work()
    })
}
