//! The order of an epoch over shards: a function of a hash and of how many samples each shard has, so that nothing of it has to be kept, sent or saved.

/// Shards in a random order, read from their beginnings to their ends, and a window that is filled with what is read, emptied in a random order, and filled again.
#[derive(Clone, Debug)]
pub struct Order {
    /// The first sample of each shard.
    starts: Vec<usize>,
    /// The shards in the order they are read in.
    turns: Vec<usize>,
    /// How many samples are read before each of these.
    begins: Vec<usize>,
    /// How many are read before each shard, by its number.
    places: Vec<usize>,
    samples: usize,
    window: usize,
}

impl Order {
    /// Of shards of these sizes and a window of so many samples; of 0 or 1 everything stays in the order it was written in. `draw` must give well-mixed bits of
    /// (seed, epoch, its argument).
    pub fn new(sizes: &[usize], window: usize, draw: impl Fn(u64) -> u64) -> Self {
        let mut turns: Vec<usize> = (0..sizes.len()).collect();
        if window > 1 {
            turns.sort_by_cached_key(|&shard| (draw(shard as u64), shard));
        }
        let begins = before(turns.iter().map(|&shard| sizes[shard]));
        let mut places = vec![0; sizes.len()];
        turns.iter().zip(&begins).for_each(|(&shard, &begin)| places[shard] = begin);
        Self { starts: before(sizes.iter().copied()), turns, begins, places, samples: sizes.iter().sum(), window: window.max(1) }
    }

    /// All samples, in the order they are trained on. The same `draw` as for [`new`](Self::new).
    pub fn samples(&self, draw: impl Fn(u64) -> u64) -> Vec<usize> {
        // Samples take their draws from other numbers than shards.
        let shards = self.starts.len() as u64;
        let mut read: Vec<usize> = (0..self.samples).collect();
        for window in read.chunks_mut(self.window).filter(|window| window.len() > 1) {
            window.sort_by_cached_key(|&place| (draw(shards + place as u64), place));
        }
        read.into_iter().map(|place| self.at(place)).collect()
    }

    /// A sample of the window that `sample` is in, or, where that has fewer than `least`, of that many about it; `pick(n)` is below n.
    pub fn near(&self, sample: usize, least: usize, pick: impl FnOnce(usize) -> usize) -> usize {
        let width = self.window.max(least).min(self.samples);
        // The last window is as wide as the others.
        let begin = (self.place(sample) / width * width).min(self.samples - width);
        self.at(begin + pick(width))
    }

    /// When a sample is read.
    fn place(&self, sample: usize) -> usize {
        let shard = last_at_most(&self.starts, sample);
        self.places[shard] + sample - self.starts[shard]
    }

    /// The sample that is read then.
    fn at(&self, place: usize) -> usize {
        let turn = last_at_most(&self.begins, place);
        self.starts[self.turns[turn]] + place - self.begins[turn]
    }
}

/// The sum of what comes before each.
fn before(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    sizes.scan(0, |sum, size| Some(std::mem::replace(sum, *sum + size))).collect()
}

/// Of equals the last: the others are empty.
fn last_at_most(sorted: &[usize], value: usize) -> usize {
    sorted.partition_point(|&begin| begin <= value).saturating_sub(1)
}
