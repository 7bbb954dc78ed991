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
            let mut batches = batches(order.into_iter().map(|index| vec![index]).collect(), rows);
            let places = shuffled(batches.len(), |index| draw(count + index));
            places.into_iter().map(|place| std::mem::take(&mut batches[place])).collect()
        }
        Mode::Pack { capacity } => {
            let mut bins = pack(lengths, &order, capacity);
            let places = shuffled(bins.len(), |index| draw(count + index));
            batches(places.into_iter().map(|place| std::mem::take(&mut bins[place])).collect(), rows)
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
    let count = all.len().div_ceil(rows);
    let mut all = all.into_iter();
    (0..count).map(|_| all.by_ref().take(rows).collect()).collect()
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

/// When an epoch of [`interleave`]d data sets ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// With the last row of the set that is used up first: no row is there twice.
    FirstExhausted,
    /// Once every set was used up: rows of small sets are there several times.
    AllExhausted,
}

/// An epoch over several data sets in which the set of every row is drawn with these `probabilities` (of any sum), as
/// `datasets.interleave_datasets` mixes: each set in a random order of its own, from its beginning again where it is used up. Returns (set, row)
/// in order; [`plan`] shuffles. None at all if a set is empty or a probability not above 0.
pub fn interleave(sizes: &[usize], probabilities: &[f64], stop: Stop, draw: impl Fn(u64) -> u64) -> Vec<(usize, usize)> {
    let total: f64 = probabilities.iter().sum();
    if sizes.contains(&0) || !probabilities.iter().all(|p| *p > 0.0 && total.is_finite()) {
        return Vec::new();
    }
    let starts = sizes.iter().scan(0, |end, &size| Some(std::mem::replace(end, *end + size as u64)));
    let orders: Vec<Vec<usize>> = starts.zip(sizes).map(|(start, &size)| shuffled(size, |index| draw(start + index))).collect();
    let rows: u64 = sizes.iter().map(|&size| size as u64).sum();
    let (mut used, mut out) = (vec![0; sizes.len()], Vec::new());
    let done = |used: &[usize]| {
        let mut up = used.iter().zip(sizes).map(|(used, size)| used >= size);
        if stop == Stop::FirstExhausted { up.any(|up| up) } else { up.all(|up| up) }
    };
    while !done(&used) {
        // 53 bits fill a double.
        let mut left = (draw(rows + out.len() as u64) >> 11) as f64 / (1u64 << 53) as f64 * total;
        let mut set = 0;
        while set + 1 < sizes.len() && left >= probabilities[set] {
            left -= probabilities[set];
            set += 1;
        }
        out.push((set, orders[set][used[set] % sizes[set]]));
        used[set] += 1;
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
