//! A detector's forward pass on the processor with everything planned beforehand: weights as the kernels read them, and where each map lies.
//!
//! Images go through by themselves, so that a range of a block's channels is a slice. A concatenation is a block whose parts are written by those who make
//! them; blocks whose last reader is through serve others. Maps are as large as the image over a power of two up to 32, so one plan serves every size.
//! The results are to the bit those of the layers, one image of which does not know of the others either.

use std::mem;
use std::sync::{Mutex, PoisonError};

use bellows_kernels::Lowering;
use bellows_kernels::inference::{Convolution, add, double, image_by_image, max_pool};
use burn::tensor::Tensor;

use super::head::{Branch, REG_MAX, strides};
use super::layers::{C2f, Conv, Conv2d, Sppf};
use super::{Layer, Yolo, side_lengths};

/// The largest stride of a map: sides of images are multiples of it.
const COARSEST: usize = 32;

/// Channels of a block.
#[derive(Clone, Copy, Debug)]
struct Place {
    block: usize,
    first: usize,
    channels: usize,
    /// Pixels of the image per cell.
    stride: usize,
}

impl Place {
    fn part(self, first: usize, channels: usize) -> Self {
        Self { first: self.first + first, channels, ..self }
    }

    /// Values of an image of 32 x 32 pixels: those of a larger one are so many for every such square.
    fn unit(self) -> usize {
        self.channels * (COARSEST / self.stride).pow(2)
    }

    fn size(self, image: [usize; 2]) -> [usize; 2] {
        image.map(|side| side / self.stride)
    }

    fn range(self, image: [usize; 2]) -> std::ops::Range<usize> {
        let plane: usize = self.size(image).iter().product();
        self.first * plane..(self.first + self.channels) * plane
    }
}

#[derive(Debug)]
enum Work {
    Conv(Convolution),
    Pool,
    Double,
    Add,
}

/// Makes `to` of `from`, in another block or before it in the same.
#[derive(Debug)]
struct Step {
    work: Work,
    from: Place,
    to: Place,
}

impl Step {
    /// `blocks` hold the maps of an image of so many rows and columns.
    fn run(&self, image: [usize; 2], blocks: &mut [&mut [f32]]) {
        let Self { work, from, to } = self;
        let target = to.range(image);
        let block = mem::take(&mut blocks[to.block]);
        let (before, behind) = block.split_at_mut(target.start);
        let source = if from.block == to.block { &*before } else { &*blocks[from.block] };
        let (x, out) = (&source[from.range(image)], &mut behind[..target.len()]);
        match work {
            Work::Conv(conv) => conv.run(from.size(image), x, out),
            Work::Pool => max_pool(from.size(image), 5, x, out),
            Work::Double => double(from.size(image), x, out),
            Work::Add => add(x, out),
        }
        blocks[to.block] = block;
    }
}

/// A pass that is planned.
#[derive(Debug)]
pub(super) struct Plan {
    steps: Vec<Step>,
    /// The raw outputs of each level, blocks 1 and on. (The image is block 0.)
    outputs: Vec<Place>,
    /// Values of each other block for every 32 x 32 pixels.
    units: Vec<usize>,
    /// The blocks of images that are through.
    free: Mutex<Vec<Vec<Vec<f32>>>>,
}

impl Plan {
    /// None where the convolutions are not our kernels': on other devices and for Burn's lowerings.
    pub(super) fn new(model: &Yolo, lowering: Lowering) -> Option<Self> {
        let mut planner = Planner { lowering, steps: Vec::new(), units: Vec::new() };
        let outputs = planner.network(model)?;
        let Planner { mut steps, units, .. } = planner;
        let units = share(&mut steps, &units, 1 + outputs.len());
        Some(Self { steps, outputs, units, free: Mutex::default() })
    }

    /// See [`Yolo::forward`].
    pub(super) fn run(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        let image @ [height, width] = side_lengths(&images);
        let squares = height * width / COARSEST.pow(2);
        let free = || self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let dims: Vec<_> = self.outputs.iter().map(|place| [place.channels, height / place.stride, width / place.stride]).collect();
        image_by_image(images, &dims, |maps| {
            let mut own = free().pop().unwrap_or_default();
            own.resize_with(self.units.len(), Vec::new);
            for (block, unit) in own.iter_mut().zip(&self.units) {
                block.resize(unit * squares, 0.0);
                if cfg!(test) {
                    block.fill(f32::NAN);
                }
            }
            let mut blocks: Vec<&mut [f32]> = maps.into_iter().chain(own.iter_mut().map(Vec::as_mut_slice)).collect();
            self.steps.iter().for_each(|step| step.run(image, &mut blocks));
            free().push(own);
        })
    }
}

/// Channels and stride of the output of each layer before the head, where the image has these.
pub(super) fn sizes(layers: &[Layer], image: [usize; 2]) -> Vec<[usize; 2]> {
    let mut sizes: Vec<[usize; 2]> = Vec::new();
    for layer in layers {
        let [channels, stride] = sizes.last().copied().unwrap_or(image);
        sizes.push(match layer {
            Layer::Conv(m) => [m.out_channels(), stride * m.conv.stride()],
            Layer::C2f(C2f { cv2, .. }) | Layer::Sppf(Sppf { cv2, .. }) => [cv2.out_channels(), stride],
            Layer::Upsample(_) => [channels, stride / 2],
            Layer::Concat(m) => [channels + sizes[m.with()][0], stride],
            Layer::Detect(_) => break,
        });
    }
    sizes
}

/// Steps over blocks of which each map, and each concatenation, has one of its own.
struct Planner {
    lowering: Lowering,
    steps: Vec<Step>,
    /// Values of each block for every 32 x 32 pixels.
    units: Vec<usize>,
}

impl Planner {
    fn block(&mut self, channels: usize, stride: usize) -> Place {
        let place = Place { block: self.units.len(), first: 0, channels, stride };
        self.units.push(place.unit());
        place
    }

    /// The raw outputs.
    fn network(&mut self, model: &Yolo) -> Option<Vec<Place>> {
        let mut x = self.block(model.channels, 1);
        let outputs: Vec<Place> =
            strides(model.head_inputs().len()).iter().map(|&stride| self.block(4 * REG_MAX + model.nc, stride)).collect();
        let maps = self.maps(&model.model, x);
        for (layer, &to) in model.model.iter().zip(&maps) {
            match layer {
                Layer::Conv(m) => self.conv(m, x, to)?,
                Layer::C2f(m) => self.c2f(m, x, to)?,
                Layer::Sppf(m) => self.sppf(m, x, to)?,
                Layer::Upsample(_) => self.step(Work::Double, x, to),
                // Both parts are there.
                Layer::Concat(_) | Layer::Detect(_) => {}
            }
            x = to;
        }
        if let Some(Layer::Detect(head)) = model.model.last() {
            for (((&from, &to), boxes), classes) in model.head_inputs().iter().zip(&outputs).zip(&head.cv2).zip(&head.cv3) {
                self.branch(boxes, maps[from], to.part(0, 4 * REG_MAX))?;
                self.branch(classes, maps[from], to.part(4 * REG_MAX, model.nc))?;
            }
        }
        Some(outputs)
    }

    /// Where the output of each layer before the head goes: to a block, or a part of the concatenation that reads it.
    fn maps(&mut self, layers: &[Layer], image: Place) -> Vec<Place> {
        let sizes = sizes(layers, [image.channels, image.stride]);
        let mut places: Vec<Option<Place>> = vec![None; sizes.len()];
        for (i, layer) in layers.iter().enumerate() {
            if let Layer::Concat(m) = layer {
                let whole = self.block(sizes[i][0], sizes[i][1]);
                let last = sizes[i - 1][0];
                for (part, place) in [(i, whole), (i - 1, whole.part(0, last)), (m.with(), whole.part(last, whole.channels - last))] {
                    assert!(places[part].replace(place).is_none(), "layer {part} is concatenated twice");
                }
            }
        }
        places.into_iter().zip(sizes).map(|(place, [channels, stride])| place.unwrap_or_else(|| self.block(channels, stride))).collect()
    }

    fn step(&mut self, work: Work, from: Place, to: Place) {
        self.steps.push(Step { work, from, to });
    }

    fn conv2d(&mut self, conv: &Conv2d, silu: bool, from: Place, to: Place) -> Option<()> {
        let work = Work::Conv(conv.prepare(self.lowering, silu)?);
        self.step(work, from, to);
        Some(())
    }

    fn conv(&mut self, m: &Conv, from: Place, to: Place) -> Option<()> {
        self.conv2d(&m.conv, m.act(), from, to)
    }

    fn c2f(&mut self, m: &C2f, from: Place, to: Place) -> Option<()> {
        let c = m.hidden();
        let all = self.block((2 + m.m.len()) * c, to.stride);
        self.conv(&m.cv1, from, all.part(0, 2 * c))?;
        for (i, bottleneck) in m.m.iter().enumerate() {
            let (x, between, y) = (all.part((1 + i) * c, c), self.block(c, to.stride), all.part((2 + i) * c, c));
            self.conv(&bottleneck.cv1, x, between)?;
            self.conv(&bottleneck.cv2, between, y)?;
            if bottleneck.shortcut() {
                self.step(Work::Add, x, y);
            }
        }
        self.conv(&m.cv2, all, to)
    }

    fn sppf(&mut self, m: &Sppf, from: Place, to: Place) -> Option<()> {
        let c = m.cv1.out_channels();
        let all = self.block(4 * c, to.stride);
        self.conv(&m.cv1, from, all.part(0, c))?;
        (0..3).for_each(|i| self.step(Work::Pool, all.part(i * c, c), all.part((i + 1) * c, c)));
        self.conv(&m.cv2, all, to)
    }

    fn branch(&mut self, (first, second, last): &Branch, from: Place, to: Place) -> Option<()> {
        let [x, y] = [first, second].map(|conv| self.block(conv.out_channels(), to.stride));
        self.conv(first, from, x)?;
        self.conv(second, x, y)?;
        self.conv2d(last, false, y, to)
    }
}

/// Lets blocks that are not needed at the same time share memory, but for the first `fixed`; returns how large the others become.
fn share(steps: &mut [Step], units: &[usize], fixed: usize) -> Vec<usize> {
    let mut ends = vec![0; units.len()];
    for (i, step) in steps.iter().enumerate() {
        [step.from, step.to].iter().for_each(|place| ends[place.block] = i);
    }
    let (mut shared, mut free): (Vec<usize>, Vec<usize>) = Default::default();
    let mut names: Vec<Option<usize>> = (0..units.len()).map(|block| (block < fixed).then_some(block)).collect();
    for (i, step) in steps.iter_mut().enumerate() {
        let used = [step.from.block, step.to.block];
        for place in [&mut step.from, &mut step.to] {
            place.block = *names[place.block].get_or_insert_with(|| {
                let unit = units[place.block];
                // The smallest that is large enough, else the largest.
                let best = (0..free.len()).min_by_key(|&at| (shared[free[at]] < unit, shared[free[at]].abs_diff(unit)));
                let chosen = best.map(|at| free.swap_remove(at)).unwrap_or_else(|| {
                    shared.push(0);
                    shared.len() - 1
                });
                shared[chosen] = unit.max(shared[chosen]);
                fixed + chosen
            });
        }
        let over = |block: usize| block >= fixed && ends[block] == i;
        free.extend(used.into_iter().filter(|&block| over(block)).filter_map(|block| names[block].take()).map(|name| name - fixed));
    }
    shared
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::super::YoloConfig;
    use super::*;

    fn model() -> Yolo {
        let device = Device::flex();
        YoloConfig::new(3).init(1, &device).fuse(&device).into_inner()
    }

    #[test]
    fn memory_is_taken_once() {
        let plan = Plan::new(&model(), Lowering::Auto).unwrap();
        let blocks = |batch, size: [usize; 2]| {
            plan.run(Tensor::ones([batch, 3, size[0], size[1]], &Device::flex()));
            let free = plan.free.lock().unwrap();
            assert!(free.len() <= batch, "blocks for {} of {batch} images", free.len());
            free[0].iter().map(|block| block.as_ptr()).collect::<Vec<_>>()
        };
        let first = blocks(1, [96, 64]);
        // Of another image as large, and of a smaller one.
        assert_eq!([blocks(1, [96, 64]), blocks(1, [32, 64])], [&first; 2].map(Vec::clone));
        blocks(3, [96, 64]);
    }

    #[test]
    fn blocks_share_memory() {
        let mut planner = Planner { lowering: Lowering::Auto, steps: Vec::new(), units: Vec::new() };
        let outputs = planner.network(&model()).unwrap().len();
        let all: usize = planner.units.iter().skip(1 + outputs).sum();
        let shared = Plan::new(&model(), Lowering::Auto).unwrap().units;
        assert!(3 * shared.iter().sum::<usize>() < all, "{shared:?} of {all}");
    }

    #[test]
    fn burns_own_convolutions_are_not_planned() {
        assert!(Plan::new(&model(), Lowering::Direct).is_none());
    }
}
