//! Which examples make up which micro-batch of an epoch: pure functions of lengths and of a hash. `draw` must give well-mixed bits of
//! (seed, epoch, its argument); nothing else is random.

use std::collections::BTreeMap;

/// How an epoch is cut into micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In random order.
    Shuffle,
    /// In random order, with examples of like length together: sorted within stretches of 50 batches, and the batches in random order.
    GroupByLength,
    /// Several examples in a row of at most `capacity` tokens.
    Pack {
        /// Tokens of a row; at least the longest example, or that one gets a longer row to itself.
        capacity: usize,
    },
}

/// A micro-batch: rows of one example, or of several that are packed.
pub type MicroBatch = Vec<Vec<usize>>;

/// Batches that examples of like length are sought in (as `group_by_length` of `transformers`).
const STRETCH: usize = 50;

/// The micro-batches of an epoch over examples of these `lengths`, `rows` rows each, the last one perhaps fewer. Every example is in
/// exactly one.
pub fn plan(lengths: &[usize], rows: usize, mode: Mode, draw: impl Fn(u64) -> u64) -> Vec<MicroBatch> {
    let rows = rows.max(1);
    // Orders within an epoch take their draws from different numbers.
    let count = lengths.len() as u64;
    let mut order = shuffled(lengths.len(), &draw);
    match mode {
        Mode::Shuffle => batches(order.into_iter().map(|index| vec![index]).collect(), rows),
        Mode::GroupByLength => {
            for stretch in order.chunks_mut(rows.saturating_mul(STRETCH)) {
                stretch.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
            }
            let batches = batches(order.into_iter().map(|index| vec![index]).collect(), rows);
            let places = shuffled(batches.len(), |index| draw(count + index));
            places.into_iter().map(|place| batches[place].clone()).collect()
        }
        Mode::Pack { capacity } => {
            let bins = pack(lengths, &order, capacity);
            let places = shuffled(bins.len(), |index| draw(count + index));
            batches(places.into_iter().map(|place| bins[place].clone()).collect(), rows)
        }
    }
}

/// Puts the longest row into the first micro-batch, in exchange for that one's first row: what a device has no memory for shows at the first
/// step then, not hours later. (`group_by_length` of `transformers` does the same.)
pub fn longest_first(batches: &mut [MicroBatch], lengths: &[usize]) {
    // Grouped by length, the one with fewer rows may be the first.
    let rows = batches.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(full) = batches.iter().position(|batch| batch.len() == rows) {
        batches.swap(0, full);
    }
    let length = |&(batch, row): &(usize, usize)| batches[batch][row].iter().map(|&index| lengths[index]).sum::<usize>();
    let places = batches.iter().enumerate().flat_map(|(batch, rows)| (0..rows.len()).map(move |row| (batch, row)));
    // Of equals the first.
    if let Some((batch, row)) = places.min_by_key(|place| std::cmp::Reverse(length(place))) {
        let longest = batches[batch][row].clone();
        batches[batch][row] = std::mem::replace(&mut batches[0][0], longest.clone());
        batches[0][0] = longest;
    }
}

/// 0..count in the order of their draws.
fn shuffled(count: usize, draw: impl Fn(u64) -> u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_cached_key(|&index| (draw(index as u64), index));
    order
}

fn batches(all: Vec<Vec<usize>>, rows: usize) -> Vec<MicroBatch> {
    all.chunks(rows).map(<[Vec<usize>]>::to_vec).collect()
}

/// Best-fit decreasing: the longest example first, each into the fullest bin that still has room. Never worse than 11/9 of the fewest bins
/// (and 4 more; Johnson 1974). `order` decides between equal lengths.
fn pack(lengths: &[usize], order: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut longest_first = order.to_vec();
    longest_first.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in longest_first {
        let length = lengths[index];
        let room = by_room.range(length..).next().map(|(&room, _)| room);
        let (bin, room) = match room.and_then(|room| Some((by_room.get_mut(&room)?.pop()?, room))) {
            Some((bin, room)) => (bin, room),
            None => {
                bins.push(Vec::new());
                (bins.len() - 1, capacity)
            }
        };
        if by_room.get(&room).is_some_and(Vec::is_empty) {
            by_room.remove(&room);
        }
        bins[bin].push(index);
        by_room.entry(room.saturating_sub(length)).or_default().push(bin);
    }
    bins
}

/// An epoch over several data sets: of set `d` each row is there `weights[d]` times on average; the fraction of a weight is a random choice
/// of its rows. Returns (set, row) in order; [`plan`] shuffles.
pub fn mix(sizes: &[usize], weights: &[f64], draw: impl Fn(u64) -> u64) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut before = 0;
    for (set, (&size, &weight)) in sizes.iter().zip(weights).enumerate() {
        let weight = if weight.is_finite() { weight.max(0.0) } else { 0.0 };
        let wanted = (weight * size as f64).round() as usize;
        let mut chosen: Vec<usize> = shuffled(size, |index| draw(before + index)).into_iter().cycle().take(wanted).collect();
        chosen.sort_unstable();
        out.extend(chosen.into_iter().map(|row| (set, row)));
        before += size as u64;
    }
    out
}

/// 0..count in two: all but `held_out` of them, and `held_out` chosen at random, both in order.
pub fn split(count: usize, held_out: usize, draw: impl Fn(u64) -> u64) -> (Vec<usize>, Vec<usize>) {
    let mut order = shuffled(count, draw);
    let mut held = order.split_off(count.saturating_sub(held_out));
    order.sort_unstable();
    held.sort_unstable();
    (order, held)
}
