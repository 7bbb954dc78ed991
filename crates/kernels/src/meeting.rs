//! Gradients that meet: what has several readers gets one of each, and they are added on all threads.
//!
//! Burn adds them on one, and for a detector that is a third of a gigabyte a step. Its container takes a gradient out only if there is one, and does not say
//! whether there is. So we remember for which tensors we have put one in: the next that comes takes it out, adds, and puts the sum in.
//! `a + b` is `b + a`, so no bit changes.
//!
//! Nothing needs to be forgotten: a tensor's number is never given again, and its gradient stays until the last reader's has come. (A leaf's stays
//! for good and is left to Burn, as is a gradient that Burn's own operations put in first.)

use std::cell::RefCell;
use std::collections::VecDeque;

use burn::backend::tensor::FloatTensor;
use burn_autodiff::NodeId;
use burn_autodiff::grads::Gradients;

use crate::planes::PlaneOps;

/// Gradients remembered: more than a detector's backward pass registers between the readers of one tensor.
const REMEMBERED: usize = 1024;

thread_local! {
    /// The tensors whose gradients were put in last; a backward pass stays on its thread.
    static HELD: RefCell<VecDeque<u64>> = const { RefCell::new(VecDeque::new()) };
}

/// Whether we have put in a gradient of this tensor; it is remembered from now on.
fn meets(id: NodeId) -> bool {
    HELD.with_borrow_mut(|held| {
        let known = held.contains(&id.value);
        if !known {
            held.push_back(id.value);
            held.drain(..held.len().saturating_sub(REMEMBERED));
        }
        known
    })
}

/// Registers a gradient of the tensor `id`, which is a leaf if its `order` is 0; `taken` takes out what there is.
pub(crate) fn hand_in<B: PlaneOps>(
    grads: &mut Gradients,
    (id, order): (NodeId, usize),
    value: FloatTensor<B>,
    taken: impl FnOnce(&mut Gradients) -> FloatTensor<B>,
) {
    let value = if order > 0 && meets(id) { B::add(value, taken(grads)) } else { value };
    grads.register::<B>(id, value);
}

/// [`hand_in`] for a parent in a backward step, whose type has no public name.
macro_rules! register {
    ($backend:ty, $grads:expr, $node:expr, $value:expr) => {{
        let node = $node;
        let value = $value;
        $crate::meeting::hand_in::<$backend>($grads, (node.id, node.order), value, |grads| grads.consume::<$backend>(&node));
    }};
}
pub(crate) use register;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_gradient_meets_the_first() {
        let [a, b] = [NodeId::new(), NodeId::new()];
        assert_eq!([meets(a), meets(b), meets(a), meets(a)], [false, false, true, true]);
        (0..REMEMBERED).for_each(|_| assert!(!meets(NodeId::new())));
        assert!(!meets(b), "long ago");
    }
}
