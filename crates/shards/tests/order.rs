//! The order of an epoch: every sample once, near where it lies, by draws alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use bellows_shards::Order;

/// Well-mixed bits of an epoch and a number.
fn draw(epoch: u64) -> impl Fn(u64) -> u64 + Copy {
    move |i| {
        let mut bits = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (epoch + 1).wrapping_mul(0xd1b5_4a32_d192_ed03);
        for shift in [30, 27, 31] {
            bits = (bits ^ (bits >> shift)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        }
        bits
    }
}

const SIZES: [usize; 7] = [10, 0, 3, 17, 1, 0, 9];

fn samples(window: usize, epoch: u64) -> Vec<usize> {
    Order::new(&SIZES, window, draw(epoch)).samples(draw(epoch))
}

#[test]
fn every_sample_is_there_once_and_the_epoch_decides_when() {
    for window in [0, 1, 2, 5, 16, 39, 40, 1000] {
        for epoch in 0..5 {
            let mut all = samples(window, epoch);
            all.sort_unstable();
            assert_eq!(all, (0..40).collect::<Vec<_>>(), "window {window}, epoch {epoch}");
        }
        assert_eq!(samples(window, 3), samples(window, 3));
        assert_eq!(samples(window, 3) == samples(window, 4), window < 2, "window {window}");
    }
    assert_eq!([samples(0, 1), samples(1, 2)], [(0..40).collect::<Vec<_>>(), (0..40).collect()]);
}

/// The numbers of the shards of a stretch of the order.
fn shards_of(samples: &[usize]) -> BTreeSet<usize> {
    let shard = |sample: usize| {
        SIZES.iter().scan(0, |end, size| Some(std::mem::replace(end, *end + size) + size)).position(|end| sample < end).unwrap()
    };
    samples.iter().map(|&sample| shard(sample)).collect()
}

#[test]
fn shards_are_read_in_turn_and_no_further_ahead_than_the_window() {
    for epoch in 0..20 {
        let order = samples(5, epoch);
        // Of 40 samples in shards of up to 17, five that follow each other lie in few shards; over the whole, shards do not come back.
        let mut done = BTreeSet::new();
        let mut open = BTreeSet::new();
        for window in order.chunks(5) {
            let now = shards_of(window);
            assert!(now.is_disjoint(&done), "a shard that was read to its end");
            done.extend(open.difference(&now).copied());
            open = now;
        }
        let turns = |window: usize| shards_of(&samples(window, epoch)[..1]);
        assert!((0..20).any(|other| shards_of(&samples(5, other)[..1]) != turns(5)), "which shard is first differs");
    }
}

#[test]
fn neighbours_are_of_the_same_window() {
    for epoch in 0..4 {
        let order = Order::new(&SIZES, 8, draw(epoch));
        let all = order.samples(draw(epoch));
        for (place, &sample) in all.iter().enumerate() {
            let begin = (place / 8 * 8).min(32);
            let window: BTreeSet<usize> = all[begin..begin + 8].iter().copied().collect();
            let near: BTreeSet<usize> = (0..8).map(|k| order.near(sample, 3, |n| k.min(n - 1))).collect();
            assert_eq!(near, window, "sample {sample} at {place}");
        }
        // A narrower window is widened, and not beyond what there is.
        let narrow = Order::new(&SIZES, 2, draw(epoch));
        let near =
            |sample: usize, least: usize| (0..least).map(|k| narrow.near(sample, least, |n| k.min(n - 1))).collect::<BTreeSet<_>>().len();
        assert_eq!((near(7, 10), near(7, 40), near(39, 90)), (10, 40, 40));
    }
}
