//! What training a detector holds in memory, from its convolutions alone: asked before anything is allocated.
//!
//! Of each convolution with its normalisation the output is kept for the backward pass, and nothing else is (`kernels::autodiff`): what normalisation and
//! SiLU make of it is made again, unless it is kept too (`gradient_checkpointing`). Beside that come, for a moment, normalised outputs on their way to
//! the next layer and gradients on their way back, and on a processor blocks of every size that was ever needed at once wait in a pool. All of it grows with the sum of
//! the convolutions' outputs; how many bytes an output takes was measured (docs/memory.md). An update is made when the outputs are gone.

use bellows_learner::memory::Place;

use crate::data::Size;
use crate::data::letterbox::fitted;
use crate::model::summary::Summary;

/// Bytes of a value.
const F32: f64 = 4.0;
const F16: f64 = 2.0;
/// Values that are kept of an output, and those that need not be made again then. Measured: what nothing reads in the backward pass is not there.
const KEPT: [f64; 2] = [1.0, 0.82];
/// Copies of the parameters beside the weights: their average, the gradients, momentum, what an update is made in before the old goes, and a checkpoint on
/// its way to the disk; values that come and go for an output; bytes of the program: its code, its threads, its tables. Measured.
const PROCESSOR: [f64; 3] = [7.2, 0.34, 53e6];
/// Copies beside the weights while a batch is computed (average, gradients, momentum, and gradients in more than one place) and what an update holds besides (it makes
/// weights and momentum); values that come and go for an output. Measured of what an allocator had given out.
const CARD: [f64; 3] = [3.6, 1.4, 0.1];
/// How much more allocators reserve than they give out, by half-empty pages, and what a driver takes, bytes: of the latter nobody has measured a card.
const RESERVED: f64 = 1.1;
const CONTEXT: f64 = 400e6;
/// Batches that a worker may have ready or in hand (`learner::Loader`).
const AHEAD: usize = 3;

/// What a run holds beside its weights and the outputs of its convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Moments of each parameter.
    pub moments: usize,
    /// The sum of gradients, for an update is of those of several batches.
    pub accumulates: bool,
    /// What could be made again in the backward pass.
    pub keeps: bool,
    /// Images between layers in f16, on a card.
    pub half: bool,
}

/// The memory of a run, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The parameters.
    pub weights: f64,
    /// Averages, gradients and their sum, moments, and an update in the making.
    pub optimizer: f64,
    /// Outputs of convolutions, kept for the backward pass, and what is made of them, if that is too.
    pub activations: f64,
    /// What comes and goes.
    pub workspace: f64,
    /// Images in memory (`cache: ram`).
    pub cache: f64,
}

impl Plan {
    /// Batches of so many images of `channels` x `imgsz` x `imgsz`, through a network of this summary at that size; made by so many workers; `cache` is
    /// what `cache: ram` holds.
    pub fn new(
        summary: &Summary,
        place: Place,
        batch: usize,
        [channels, imgsz]: [usize; 2],
        held: Held,
        workers: usize,
        cache: f64,
    ) -> Self {
        // What was measured has one moment and one batch an update. No moment is changed in place, for an update may be refused.
        let (second, summed) = (held.moments as f64 - 1.0, f64::from(u8::from(held.accumulates)));
        let outputs: usize = summary.convolutions.iter().map(|convolution| convolution.outputs()).sum();
        let (outputs, parameters) = ((batch * outputs) as f64, summary.parameters as f64);
        let images = (batch * channels * imgsz * imgsz) as f64;
        let value = if held.half && place == Place::Card { F16 } else { F32 };
        // Bytes of the batches ahead and of the one that is trained on, and its floats.
        let of_images = (AHEAD * workers + 1) as f64 * images + F32 * images;
        let weights = F32 * parameters;
        let activations = value * (KEPT[0] + if held.keeps { KEPT[1] } else { 0.0 }) * outputs;
        let (copies, workspace) = match place {
            Place::Processor => {
                let [copies, moving, program] = PROCESSOR;
                (copies + 2.0 * second + summed, program + value * moving * outputs + of_images)
            }
            Place::Card => {
                let [copies, made, moving] = CARD;
                let (copies, update) = (copies + second + summed, weights * (made + second));
                let comes_and_goes = (value * moving * outputs + of_images).max(update - activations);
                let given_out = weights * (1.0 + copies) + activations + comes_and_goes;
                (copies, comes_and_goes + (RESERVED - 1.0) * given_out + CONTEXT)
            }
        };
        Self { weights, optimizer: weights * copies, activations, workspace, cache }
    }

    /// Of a card what its allocator gives out at most.
    pub fn given_out(&self) -> f64 {
        (self.peak() - self.cache - CONTEXT) / RESERVED
    }

    /// The most that is held at once.
    pub fn peak(&self) -> f64 {
        let Self { weights, optimizer, activations, workspace, cache } = *self;
        weights + optimizer + activations + workspace + cache
    }
}

/// Bytes of images of these sizes and channels in memory, with their long side at `imgsz`.
pub(crate) fn cached_bytes(images: impl Iterator<Item = (Size, u8)>, imgsz: usize) -> f64 {
    let bytes = |(size, channels): (Size, u8)| {
        let Size { width, height } = fitted(size, imgsz as u32);
        (width as usize * height as usize * usize::from(channels)) as f64
    };
    images.map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::model::{Scale, YoloConfig};

    const LEAST: Held = Held { moments: 1, accumulates: false, keeps: false, half: false };

    fn plan(scale: Scale, batch: usize, imgsz: usize) -> Plan {
        let model = YoloConfig { scale, ..YoloConfig::new(4) }.init(0, &Device::flex());
        Plan::new(&model.summary(imgsz, imgsz), Place::Processor, batch, [3, imgsz], LEAST, 1, 0.0)
    }

    #[test]
    fn more_images_larger_ones_and_larger_models_take_more() {
        let peak = |scale, batch, imgsz| plan(scale, batch, imgsz).peak();
        let small = peak(Scale::N, 4, 320);
        assert!(peak(Scale::N, 8, 320) > small && peak(Scale::N, 4, 640) > small && peak(Scale::S, 4, 320) > small);
        // Four times the pixels are four times what a convolution puts out.
        assert_eq!(plan(Scale::N, 4, 640).activations, 4.0 * plan(Scale::N, 4, 320).activations);
        assert_eq!(plan(Scale::N, 4, 320).weights, 4.0 * 3_011_628.0);
    }

    #[test]
    fn moments_and_the_sum_of_a_window_are_held_beside_the_parameters() {
        let summary = YoloConfig::new(4).init(0, &Device::flex()).summary(320, 320);
        let more = |place, images| {
            let held = |moments, accumulates| {
                let plan = Plan::new(&summary, place, images, [3, 320], Held { moments, accumulates, ..LEAST }, 0, 0.0);
                if place == Place::Card { plan.given_out() } else { plan.peak() }
            };
            [held(2, false), held(1, true), held(2, true)].map(|peak| ((peak - held(1, false)) / summary.parameters as f64).round())
        };
        assert_eq!(more(Place::Processor, 4), [8.0, 4.0, 12.0], "bytes a parameter");
        // On a card the most is held in an update, or, of more images, before it.
        assert_eq!([more(Place::Card, 1), more(Place::Card, 8)], [[8.0, 4.0, 12.0], [4.0, 4.0, 8.0]]);
    }

    #[test]
    fn what_need_not_be_made_again_is_held_beside_the_outputs() {
        let summary = YoloConfig::new(4).init(0, &Device::flex()).summary(320, 320);
        let [less, more] = [false, true].map(|keeps| Plan::new(&summary, Place::Card, 4, [3, 320], Held { keeps, ..LEAST }, 1, 0.0));
        let [of_outputs, of_all] = [more.activations - less.activations, more.peak() - less.peak()];
        assert!((more.activations / less.activations - 1.82).abs() < 1e-9 && (of_outputs * RESERVED - of_all).abs() < 1.0);
    }

    #[test]
    fn cached_images_have_their_long_side_at_imgsz() {
        let images = [(Size { width: 640, height: 512 }, 1), (Size { width: 100, height: 200 }, 3)];
        assert_eq!(cached_bytes(images.into_iter(), 320), 320.0 * 256.0 + 3.0 * 160.0 * 320.0);
    }
}
