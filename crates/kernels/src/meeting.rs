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

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor as Float;
use burn_autodiff::NodeId;
use burn_autodiff::grads::Gradients;

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

/// Registers a gradient of the tensor `id`, which is a leaf if its `order` is 0: what `make` makes of the gradient that `taken` takes out, or of
/// nothing.
pub(crate) fn hand_in<B: Backend>(
    grads: &mut Gradients,
    (id, order): (NodeId, usize),
    taken: impl FnOnce(&mut Gradients) -> Float<B>,
    make: impl FnOnce(Option<Float<B>>) -> Float<B>,
) {
    let held = (order > 0 && meets(id)).then(|| taken(grads));
    grads.register::<B>(id, make(held));
}

/// [`hand_in`] for a parent in a backward step, whose type has no public name: a value to be added, or a function of what is there.
macro_rules! register {
    ($backend:ty, $grads:expr, $node:expr, |$held:ident| $make:expr) => {{
        let node = $node;
        let at = (node.id, node.order);
        $crate::meeting::hand_in::<$backend>($grads, at, |grads| grads.consume::<$backend>(&node), |$held| $make);
    }};
    ($backend:ty, $grads:expr, $node:expr, $value:expr) => {{
        let value = $value;
        $crate::meeting::register!($backend, $grads, $node, |held| match held {
            Some(held) => <$backend>::add(value, held),
            None => value,
        });
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
