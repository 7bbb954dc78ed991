//! `rect` training: batches of images of similar shape, in rectangles that just hold them, in an order that is drawn anew for every epoch.
//!
//! The samples of an epoch come shuffled, or drawn by the sampler. They are sorted by aspect ratio, which leaves those of one ratio shuffled, cut into batches, and
//! the batches are shuffled. All of that is a function of (seed, epoch): what is kept of the epoch at hand is remembered only because every batch asks for it.

use std::sync::{Mutex, PoisonError};

use bellows_learner::Draw;
use bellows_learner::rng::Rng;

use crate::config::STRIDE;
use crate::data::{RectBatch, Size, rect_batches};

/// The images of a training set by their sizes.
pub struct Rect {
    sizes: Vec<Size>,
    /// Images of a batch, and ranks that have one each at a time.
    batch: [usize; 2],
    imgsz: u32,
    /// Of the epoch that was asked for last.
    known: Mutex<Shapes>,
}

/// The shapes of the batches of an epoch of a seed; of none before any is asked for.
#[derive(Default)]
struct Shapes {
    seed: u64,
    epoch: usize,
    of: Vec<Size>,
}

impl Rect {
    /// Of images of these sizes, in batches of `batch` images for each of `ranks`, whose long side becomes `imgsz`.
    pub fn new(sizes: Vec<Size>, batch: usize, ranks: usize, imgsz: u32) -> Self {
        Self { sizes, batch: [batch, ranks], imgsz, known: Mutex::default() }
    }

    /// Images of the training set.
    pub(crate) fn images(&self) -> usize {
        self.sizes.len()
    }

    /// The batches of the epoch of `draw`, which has these samples, numbered as [`augment`](crate::data::augment()) has them: those of all ranks one after the other.
    pub(crate) fn plan(&self, draw: Draw, samples: &[usize]) -> Vec<Vec<usize>> {
        let batches = self.batches(draw, samples);
        batches.iter().flat_map(|together| together.indices.chunks(self.batch[0])).map(<[usize]>::to_vec).collect()
    }

    /// The shape of the batch of `draw`, and of every part of it, in the epoch that has the samples that `samples` gives.
    pub(crate) fn shape(&self, draw: Draw, samples: impl FnOnce() -> Vec<usize>) -> Size {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Draw { seed, epoch, .. } = draw;
        if known.of.is_empty() || (known.seed, known.epoch) != (seed, epoch) {
            *known = Shapes { seed, epoch, of: self.batches(draw, &samples()).iter().map(|batch| batch.shape).collect() };
        }
        let position = draw.step as usize % known.of.len().max(1);
        known.of.get(position).copied().unwrap_or(Size::square(self.imgsz))
    }

    /// What all ranks train on together, batch by batch. The last one, which may have fewer images, stays the last.
    fn batches(&self, draw: Draw, samples: &[usize]) -> Vec<RectBatch> {
        let sizes: Vec<Size> = samples.iter().map(|&i| self.sizes[i % self.sizes.len()]).collect();
        let together = self.batch[0] * self.batch[1];
        let mut batches = rect_batches(&sizes, together, self.imgsz, STRIDE as u32, 0.0);
        batches.iter_mut().flat_map(|batch| &mut batch.indices).for_each(|i| *i = samples[*i]);
        let mut order = Rng::new(draw.seed, "rect order", draw.epoch as u64, 0);
        for i in (1..samples.len() / together.max(1)).rev() {
            batches.swap(i, order.below(i as u64 + 1) as usize);
        }
        batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(epoch: usize, step: u64) -> Draw {
        Draw { seed: 3, epoch, epochs: 9, step, first: 0 }
    }

    /// 35 landscapes, 35 portraits and 7 squares, mixed.
    fn sizes() -> Vec<Size> {
        let size = |width, height| Size { width, height };
        (0..77).map(|i| if i % 11 == 0 { Size::square(64) } else { [size(64, 32), size(32, 64)][i * 7 % 11 % 2] }).collect()
    }

    #[test]
    fn an_epoch_is_all_samples_in_rectangles_that_hold_them() {
        let (sizes, rect) = (sizes(), Rect::new(sizes(), 4, 1, 64));
        let samples: Vec<usize> = (0..77).rev().collect();
        for epoch in 0..3 {
            let batches = rect.batches(draw(epoch, 0), &samples);
            let mut all: Vec<usize> = batches.iter().flat_map(|b| b.indices.clone()).collect();
            assert!(batches[..19].iter().all(|b| b.indices.len() == 4) && batches[19].indices.len() == 1);
            for batch in &batches {
                assert!(batch.indices.iter().all(|&i| sizes[i].width <= batch.shape.width && sizes[i].height <= batch.shape.height));
            }
            let upright = batches.iter().position(|b| b.shape.width == 64 && b.shape.height == 64).unwrap();
            assert!(batches[upright..].iter().any(|b| b.shape.height < 64), "shapes are mixed over the epoch: {batches:?}");
            all.sort_unstable();
            assert_eq!(all, (0..77).collect::<Vec<_>>());
            // Whichever batch is asked for first, and for whichever epoch before.
            for (step, batch) in batches.iter().enumerate().rev() {
                let of = |epoch| rect.shape(draw(epoch, (epoch * 20 + step) as u64), || samples.clone());
                of(epoch + 1);
                assert_eq!(of(epoch), batch.shape, "{epoch} {step}");
            }
        }
    }

    #[test]
    fn images_of_one_aspect_are_shuffled_as_they_come() {
        let rect = Rect::new(vec![Size { width: 384, height: 288 }; 12], 4, 1, 64);
        let samples = [7, 3, 11, 0, 5, 5, 5, 1, 2, 9, 10, 4];
        let sorted = |epoch| {
            let mut plan = rect.plan(draw(epoch, 0), &samples);
            let order = plan.clone();
            plan.sort();
            (order, plan)
        };
        let (first, batches) = sorted(0);
        assert_eq!(
            batches,
            [vec![2, 9, 10, 4], vec![5, 5, 5, 1], vec![7, 3, 11, 0]],
            "the samples' own order, and as often as they were drawn"
        );
        assert!((1..9).all(|epoch| sorted(epoch).1 == batches) && (1..9).any(|epoch| sorted(epoch).0 != first));
        assert_eq!(sorted(0).0, first, "a function of seed and epoch");
        // Takes after the first have numbers beyond those of the images.
        let again = rect.plan(draw(0, 0), &samples.map(|i| i + 12));
        assert_eq!(again.iter().map(|batch| batch.iter().map(|i| i - 12).collect()).collect::<Vec<Vec<usize>>>(), first);
    }

    #[test]
    fn ranks_have_one_shape_at_a_time() {
        let (rect, samples) = (Rect::new(sizes(), 4, 2, 64), (0..77).collect::<Vec<_>>());
        let plan = rect.plan(draw(1, 0), &samples);
        assert_eq!(plan.iter().map(Vec::len).collect::<Vec<_>>(), [vec![4; 19], vec![1]].concat());
        for (position, lists) in plan.chunks(2).enumerate() {
            let shape = rect.shape(draw(1, 10 + position as u64), || samples.clone());
            let both = lists.concat().into_iter().map(|i| sizes()[i]);
            assert!(both.clone().all(|size| size.width <= shape.width && size.height <= shape.height), "{position}");
        }
    }
}
