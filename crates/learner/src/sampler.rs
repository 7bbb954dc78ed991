//! The order of samples: a permutation that depends on (seed, epoch) and on nothing else, so that a resumed run continues the epoch
//! it was in instead of replaying the first one.

use crate::rng::Rng;

/// The samples of an epoch in the order they are trained on; `0..len` when `shuffle` is off.
pub fn epoch_order(len: usize, seed: u64, epoch: usize, shuffle: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    if shuffle {
        let mut rng = Rng::new(seed, "order", epoch as u64, 0);
        for i in (1..len).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_is_a_different_permutation() {
        let (a, b) = (epoch_order(100, 0, 0, true), epoch_order(100, 0, 1, true));
        assert_ne!(a, b);
        assert_eq!(a, epoch_order(100, 0, 0, true));
        for mut order in [a, b] {
            order.sort_unstable();
            assert_eq!(order, (0..100).collect::<Vec<_>>());
        }
        assert_eq!(epoch_order(3, 0, 5, false), [0, 1, 2]);
    }

    #[test]
    fn every_position_is_reached() {
        let mut counts = [0; 8];
        for epoch in 0..4000 {
            counts[epoch_order(8, 7, epoch, true)[0]] += 1;
        }
        assert!(counts.iter().all(|&c| (400..600).contains(&c)), "{counts:?}");
    }
}
