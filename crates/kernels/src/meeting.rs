//! Gradients that meet: what has several readers gets one of each, and they are added on all threads.
//!
//! Burn adds them on one, and for a detector that is a third of a gigabyte a step. Its container takes a gradient out only if there is one, and does not say
//! whether there is. So we remember for which tensors we have put one in: the next that comes takes it out, adds, and puts the sum in.
//! `a + b` is `b + a`, so no bit changes.
//!
//! Nothing needs to be forgotten in one backward pass, and a graph has no more: a tensor's number is never given again, and its gradient stays until the last reader's has come. (A leaf's stays
//! for good and is left to Burn, as is a gradient that Burn's own operations put in first.)

use std::cell::RefCell;
use std::collections::VecDeque;

use burn_autodiff::NodeId;

/// Gradients remembered: more than a detector's backward pass registers between the readers of one tensor.
const REMEMBERED: usize = 1024;

thread_local! {
    /// The tensors whose gradients were put in last; a backward pass stays on its thread.
    static HELD: RefCell<VecDeque<u64>> = const { RefCell::new(VecDeque::new()) };
}

/// Whether we have put in a gradient of this tensor; it is remembered from now on.
pub(crate) fn meets(id: NodeId) -> bool {
    HELD.with_borrow_mut(|held| {
        let known = held.contains(&id.value);
        if !known {
            held.push_back(id.value);
            held.drain(..held.len().saturating_sub(REMEMBERED));
        }
        known
    })
}

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
