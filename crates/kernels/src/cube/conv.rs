//! The three passes of a convolution as one matrix product each.
//!
//! With W seen as `[co/g, depth]` (depth = ci/g * kh*kw), X^ the columns of x and P the output pixels, for each image and group:
//!
//! ```text
//! forward          Y  [co/g, P]     = W X^                       (+ bias) (SiLU)
//! data gradient    dX [ci/g, P']    = W^T dY^,   by the residues of the stride
//! weight gradient  dW [co/g, depth] = sum over images of  dY X^^T
//! ```
//!
//! No columns are written: the product reads the image in their places ([`Gather`]). The gradient of the input gathers too: the pixels of x with the same
//! residue modulo the stride are reached by the same taps, so that for each residue dX is an ordinary convolution of dY with those taps turned round;
//! those of stride 2 are one launch. The weight gradient of a 1x1 convolution of stride 1 is a product of x itself. Groups are batches of the product.
//! Where x is several maps side by side, the forward pass adds up what each gives, and their gradients, or what each has of dW, are products of one
//! launch: nothing is joined or cut. Tensors of any strides are read in place where rows and columns of an image step evenly (which covers NCHW and
//! NHWC); results are contiguous NCHW. The pixels of all images are one axis of the product.
//! The parts of a weight gradient are the only extra memory.

use super::block::Gather;
use super::geometry::{Geometry, Residue, dims4};
use super::group::{Member, run_group};
use super::launch::true_gradients;
use super::matmul::{Layout, Product, Splits, Window};
use super::pixels::{Pixels, empty, zeros};
use super::places::place_of_result;
use super::sizes::Class;
use super::workspace::workspace_bytes;
use crate::autodiff::MOST_PARTS;
use crate::operands::ConvConfig;
use crate::planes::{PlaneOps, cut, join};
use crate::shapes::expect;
use burn::backend::DType;
use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

/// A pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Its result.
    Forward,
    /// The gradient of its input.
    Input,
    /// The gradient of its weight.
    Weight,
}

/// Channels of maps side by side, zeros behind the last.
pub type Maps = [usize; 5];
const _: () = assert!(size_of::<Maps>() == MOST_PARTS * size_of::<usize>());

/// Maps as a convolution reads them in training: of more than have a place the last ones are joined.
pub fn side_by_side(channels: &[usize]) -> Maps {
    let mut maps = Maps::default();
    for (i, channels) in channels.iter().enumerate() {
        maps[i.min(MOST_PARTS - 1)] += channels;
    }
    maps
}

/// In which classes of blocks our product computes a pass of the convolution of x `[n, ci, h, w]` with w `[co, ci/g, kh, kw]`, where x is maps of so many
/// channels side by side.
///
/// # Panics
/// If the shapes do not fit each other, or several maps are to be read in groups.
pub fn classes_of(pass: Pass, x: [usize; 4], channels: &[usize], w: [usize; 4], config: &ConvConfig) -> Vec<Class> {
    let g = Geometry::new(x, w, &config.to_burn());
    assert!(channels.iter().sum::<usize>() == x[1] && (g.groups == 1 || channels.len() == 1), "maps of {channels:?} channels for {x:?}");
    let each = |class: &dyn Fn(usize) -> Class| channels.iter().map(|channels| class(channels / g.groups)).collect();
    match pass {
        Pass::Forward => vec![Class::of(g.group_out(), g.images * g.pixels_out(), g.groups)],
        // All residues have the size of block of the first.
        Pass::Input => {
            let pixels: usize = [0, 1].into_iter().filter_map(|axis| g.residues(axis).next()).map(|residue| residue.count).product();
            each(&|channels| Class::of(channels, g.images * pixels, g.groups))
        }
        Pass::Weight => {
            let product = weight_product(&g);
            let splits = if g.empty() { Splits::ONE } else { product.cut(most_of_parts(&g, workspace_bytes())) };
            each(&|channels| Class::of(product.m, channels * g.taps(), product.batches * splits.count()))
        }
    }
}

/// Neighbouring channels of x, a map of their own.
struct Map {
    pixels: Pixels,
    /// Their first one among those of x.
    first: usize,
    channels: usize,
}

impl Map {
    /// All of x.
    fn alone(x: CubeTensor) -> Self {
        Self { channels: dims4(&x)[1], pixels: Pixels::new(x), first: 0 }
    }

    /// Those of x that have a channel; they are joined if groups may reach over several.
    fn all(x: Vec<CubeTensor>, groups: usize) -> Vec<Self> {
        let x = if groups == 1 { x } else { vec![join::<CubeBackend>(x)] };
        let mut end = 0;
        let map = |x: CubeTensor| {
            let map = Self { first: end, ..Self::alone(x) };
            end += map.channels;
            map
        };
        x.into_iter().map(map).filter(|map| map.channels > 0).collect()
    }

    fn tensor(&self) -> &CubeTensor {
        &self.pixels.tensor
    }
}

/// The shape that maps side by side have together.
fn joined(x: &[CubeTensor]) -> [usize; 4] {
    let [n, _, h, w] = dims4(&x[0]);
    [n, x.iter().map(|x| dims4(x)[1]).sum(), h, w]
}

impl Pixels {
    /// Images, channels, rows, pixels.
    fn steps(&self) -> [usize; 4] {
        [self.image, self.channel, self.row, self.pixel]
    }

    /// As an operand whose lines are channels and whose k are pixels, in groups of `channels`.
    fn channels(&self, channels: usize) -> Layout {
        Layout { batch: channels * self.channel, outer: self.image, line: self.channel, k: self.pixel, ..Layout::default() }
    }
}

/// The window of the output pixels of a convolution over `x`.
fn window(g: &Geometry, x: &Pixels, taps_are_lines: bool) -> Window {
    let pair = |of: [usize; 2]| (of[0] as i32, of[1] as i32);
    let taps = (g.kernel[0] as u32, g.kernel[1] as u32);
    Window {
        gather: Gather { taps, step: pair(g.stride), tap: pair(g.dilation), taps_are_lines },
        map: g.output,
        size: g.input,
        first: g.pad.map(|pad| -(pad as i32)),
        steps: x.steps(),
        a_taps: [g.kernel[1], 1],
        c_image: g.channels_out * g.pixels_out(),
        spread: None,
    }
}

/// `y [n, co, oh, ow]` of `x [n, ci, h, w]` and `w [co, ci/g, kh, kw]`, plus `bias [co]`, through SiLU if asked.
pub(crate) fn forward(x: CubeTensor, w: CubeTensor, bias: Option<CubeTensor>, silu: bool, options: &ConvOptions<2>) -> CubeTensor {
    let g = Geometry::new(dims4(&x), dims4(&w), options);
    let shape = g.result();
    if let Some(bias) = &bias {
        expect("bias", bias.shape().dims(), [g.channels_out]);
    }
    if g.empty() {
        return zeros(&x, shape, x.dtype);
    }
    let y = empty(&x, shape, x.dtype);
    let (x, w, bias) = (Map::alone(x), into_contiguous(w), bias.map(into_contiguous));
    Product { silu, ..forward_product(&g, &x) }.run(&w, x.tensor(), bias.as_ref(), &y);
    y
}

/// [`forward`] without bias and SiLU, of maps side by side, and the moments of y where the product tells them. Where it does not, the maps are joined.
pub(crate) fn forward_moments(x: Vec<CubeTensor>, w: CubeTensor, options: &ConvOptions<2>) -> (CubeTensor, Option<CubeTensor>) {
    let g = Geometry::new(joined(&x), dims4(&w), options);
    if g.empty() {
        return (zeros(&x[0], g.result(), x[0].dtype), None);
    }
    let (y, w) = (empty(&x[0], g.result(), x[0].dtype), into_contiguous(w));
    let maps = Map::all(x, g.groups);
    let products: Vec<Product> = maps.iter().map(|map| forward_product(&g, map)).collect();
    let images: Vec<&CubeTensor> = maps.iter().map(Map::tensor).collect();
    let moments = Product::run_moments(&products, &w, &images, &y);
    if moments.is_none() {
        let x = Map::alone(join::<CubeBackend>(maps.into_iter().map(|map| map.pixels.tensor).collect()));
        forward_product(&g, &x).run(&w, x.tensor(), None, &y);
    }
    (y, moments)
}

/// Of the sums those terms that a map of x has.
fn forward_product(g: &Geometry, x: &Map) -> Product {
    Product {
        name: "convolution, forward",
        m: g.group_out(),
        n: g.images * g.pixels_out(),
        k: x.channels / g.groups,
        outer: 1,
        batches: g.groups,
        period: g.groups,
        a: Layout { offset: x.first * g.taps(), batch: g.group_out() * g.depth(), line: g.depth(), k: g.taps(), ..Layout::default() },
        b: x.pixels.channels(x.channels / g.groups),
        c: Layout { batch: g.group_out() * g.pixels_out(), line: g.pixels_out(), ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        onto: false,
        window: Some(window(g, &x.pixels, false)),
    }
}

/// `dx [n, c, h, w]` of each of the maps that are x, which have so many channels, from `dy [n, co, oh, ow]` and `w [co, ci/g, kh, kw]`; `input` is (h, w).
/// It is added to what is `held` of it, in that memory if it is nobody else's.
pub(crate) fn data_grad(
    dy: CubeTensor,
    w: CubeTensor,
    channels: &[usize],
    input: [usize; 2],
    options: &ConvOptions<2>,
    held: Vec<Option<CubeTensor>>,
) -> Vec<CubeTensor> {
    let ([images, ..], w_dims, all) = (dims4(&dy), dims4(&w), channels.iter().sum());
    if options.groups > 1 && channels.len() > 1 {
        let whole = data_grad(dy, w, &[all], input, options, vec![None]).remove(0);
        return cut::<CubeBackend>(whole, channels).into_iter().zip(held).map(|(dx, held)| sum(dx, held)).collect();
    }
    let of_map = |channels: usize| [images, channels, input[0], input[1]];
    let g = Geometry::new(of_map(all), w_dims, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        let zeros = channels.iter().map(|&channels| zeros(&dy, of_map(channels), dy.dtype));
        return zeros.zip(held).map(|(dx, held)| sum(dx, held)).collect();
    }
    // What others read too, or lies in another order, is added behind.
    let own = |held: &CubeTensor| held.can_mut() && held.is_contiguous() && !held.meta.is_tiled() && held.dtype == dy.dtype;
    let (onto, behind): (Vec<_>, Vec<_>) =
        held.into_iter().map(|held| if held.as_ref().is_some_and(own) { (held, None) } else { (None, held) }).unzip();
    let dx = |(&channels, onto): (&usize, &Option<CubeTensor>)| onto.clone().unwrap_or_else(|| empty(&dy, of_map(channels), dy.dtype));
    let dx: Vec<CubeTensor> = channels.iter().zip(&onto).map(dx).collect();
    let (w, dy) = (into_contiguous(w), Pixels::new(dy));
    let (mut members, mut end) = (Vec::new(), 0);
    for ((&channels, dx), onto) in channels.iter().zip(&dx).zip(&onto).filter(|((channels, _), _)| **channels > 0) {
        end += channels;
        expect("what a gradient is added to", dims4(dx), of_map(channels));
        let products = input_products(&g, &dy, end - channels, channels, onto.is_some());
        let residues: Vec<Member<'_>> = products.into_iter().map(|product| Member::new(product, &w, &dy.tensor, dx)).collect();
        members.extend(residues.iter().map(|residue| residue.sized_as(&residues[0])));
    }
    run_by_fours(&members);
    dx.into_iter().zip(behind).map(|(dx, behind)| sum(dx, behind)).collect()
}

/// With what is held added.
fn sum(dx: CubeTensor, held: Option<CubeTensor>) -> CubeTensor {
    match held {
        Some(held) => CubeBackend::add(dx, held),
        None => dx,
    }
}

/// Four in a launch, as the residues of stride 2 and most maps are: more make a kernel that takes a driver long to compile.
fn run_by_fours(members: &[Member<'_>]) {
    for members in members.chunks(4) {
        match members {
            [alone] => alone.run(),
            _ => run_group(members[0].product.name, members),
        }
    }
}

/// The products of the gradient of some channels of x, one for each residue of the stride.
fn input_products(g: &Geometry, dy: &Pixels, first: usize, channels: usize, onto: bool) -> Vec<Product> {
    let (group_in, [height, width]) = (channels / g.groups, g.input);
    let product = Product {
        name: "convolution, gradient of the input",
        onto,
        m: group_in,
        n: 0,
        k: g.group_out(),
        outer: 1,
        batches: g.groups,
        period: g.groups,
        a: Layout { offset: first * g.taps(), batch: g.group_out() * g.depth(), line: g.taps(), k: g.depth(), ..Layout::default() },
        b: dy.channels(g.group_out()),
        c: Layout { batch: group_in * height * width, line: height * width, ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        window: None,
    };
    let residues = g.residues(0).flat_map(|down| g.residues(1).map(move |across| (down, across)));
    let of_residue = |(down, across): (Residue, Residue)| {
        // A residue that no tap reaches has sums of nothing.
        let taps = (down.taps.max(1) as u32, across.taps.max(1) as u32);
        let window = Window {
            gather: Gather { taps, step: (1, 1), tap: (down.tap, across.tap), taps_are_lines: false },
            map: [down.count, across.count],
            size: g.output,
            first: [down.first, across.first],
            steps: dy.steps(),
            a_taps: [down.tap_step * g.kernel[1], across.tap_step],
            c_image: channels * height * width,
            spread: (g.stride != [1, 1]).then_some([g.stride[0] * width, g.stride[1]]),
        };
        Product {
            n: g.images * down.count * across.count,
            k: if down.taps * across.taps == 0 { 0 } else { product.k },
            a: Layout { offset: product.a.offset + down.first_tap * g.kernel[1] + across.first_tap, ..product.a },
            c: Layout { offset: down.residue * width + across.residue, ..product.c },
            window: Some(window),
            ..product
        }
    };
    residues.map(of_residue).collect()
}

/// `dw [co, ci/g, kh, kw]` from the maps that are `x [n, ci, h, w]` and `dy [n, co, oh, ow]`; `kernel` is (kh, kw). `workspace` bounds the bytes of parts of it.
/// A weight and its gradient are f32, whatever images are. It is written to the place of the gradient of the weight `of`, if that has one.
pub(crate) fn weight_grad(
    x: Vec<CubeTensor>,
    dy: CubeTensor,
    of: Option<CubeTensor>,
    kernel: [usize; 2],
    options: &ConvOptions<2>,
    workspace: usize,
) -> CubeTensor {
    let (x_dims, [_, channels_out, ..]) = (joined(&x), dims4(&dy));
    let shape = [channels_out, x_dims[1] / options.groups, kernel[0], kernel[1]];
    let g = Geometry::new(x_dims, shape, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        return zeros(&dy, shape, DType::F32);
    }
    let (maps, dy) = (Map::all(x, g.groups), Pixels::new(dy));
    let whole = Product { a: dy.channels(g.group_out()), scale: true_gradients(dy.tensor.dtype), ..weight_product(&g) };
    let whole = Product { splits: whole.cut(most_of_parts(&g, workspace)), ..whole };
    let of_map = |map: &Map| Product {
        n: map.channels / g.groups * g.taps(),
        b: map.pixels.channels(map.channels / g.groups),
        c: Layout { offset: map.first * g.taps(), ..whole.c },
        window: (!g.pointwise()).then(|| window(&g, &map.pixels, true)),
        ..whole
    };
    let dw = of.map_or_else(|| empty(&dy.tensor, shape, DType::F32), |weight| place_of_result(&weight, shape));
    whole.in_parts(&dw, |parts| {
        let members: Vec<Member<'_>> = maps.iter().map(|map| Member::new(of_map(map), &dy.tensor, map.tensor(), parts)).collect();
        run_by_fours(&members);
    });
    dw
}

/// Numbers of all parts of a weight gradient: an eighth of those of x and dy, so that writing and adding them up is little beside reading these, and no more than
/// fit the workspace.
fn most_of_parts(g: &Geometry, workspace: usize) -> usize {
    let read = g.images * (g.channels_in * g.input[0] * g.input[1] + g.channels_out * g.pixels_out());
    (workspace / size_of::<f32>()).min(read / 8)
}

/// The sums of a weight gradient, in one part, whatever they are of.
fn weight_product(g: &Geometry) -> Product {
    Product {
        name: "convolution, gradient of the weight",
        m: g.group_out(),
        n: g.depth(),
        k: g.pixels_out(),
        outer: g.images,
        batches: g.groups,
        period: g.groups,
        a: Layout::default(),
        b: Layout::default(),
        c: Layout { batch: g.group_out() * g.depth(), outer: g.channels_out * g.depth(), line: g.depth(), ..Layout::default() },
        splits: Splits::ONE,
        silu: false,
        scale: 1.0,
        onto: false,
        window: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Lowering;

    #[test]
    fn the_class_of_a_pass_follows_from_its_shape_and_its_images() {
        let of = |pass, images, [c_in, c_out]: [usize; 2], [kernel, stride]: [usize; 2], side| {
            let config = ConvConfig::new(stride, kernel / 2, Lowering::Gemm);
            classes_of(pass, [images, c_in, side, side], &[c_in], [c_out, c_in, kernel, kernel], &config)[0]
        };
        // 50 blocks of 64 x 128 an image,
        assert_eq!([2, 3].map(|images| of(Pass::Forward, images, [64, 64], [3, 1], 80)), [Class::Tall, Class::TallMany]);
        // of a quarter of the pixels 12.5,
        assert_eq!([11, 12].map(|images| of(Pass::Input, images, [64, 64], [3, 2], 80)), [Class::Tall, Class::TallMany]);
        // and sums of 25,600 pixels in 100 parts of 256.
        assert_eq!([1, 2].map(|images| of(Pass::Weight, images, [32, 32], [1, 1], 160)), [Class::Medium, Class::MediumMany]);
        // Gradients of maps side by side have a block each; the forward pass adds them up in one.
        let config = ConvConfig::new(1, 0, Lowering::Gemm);
        let of = |pass| classes_of(pass, [2, 48, 160, 160], &[32, 16], [64, 48, 1, 1], &config);
        assert_eq!([Pass::Forward, Pass::Input].map(of), [vec![Class::TallMany], vec![Class::MediumMany, Class::ThinMany]]);
    }
}
