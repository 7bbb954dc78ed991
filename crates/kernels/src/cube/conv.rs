//! The three passes of a convolution as matrix products, tile by tile.
//!
//! With W seen as `[co/g, depth]` (depth = ci/g * kh*kw), X^ the columns of x and P the output pixels, for each image and group:
//!
//! ```text
//! forward          Y  [co/g, P]     = W X^                       (+ bias) (SiLU)
//! data gradient    dX^[depth, P]    = W^T dY,    dx = col2im(dX^)
//! weight gradient  dW [co/g, depth] = sum over images of  dY X^^T
//! ```
//!
//! A 1x1 convolution of stride 1 has X^ = x and needs no columns at all. Groups are batches of the product, dilation is a number in the
//! gather. Tensors of any strides are read in place where rows and columns of an image step evenly (which covers NCHW and NHWC); results
//! are contiguous NCHW. The product writes its tile straight into y: the columns are the only extra memory, and the parts of a weight
//! gradient, which stay under the same limit.

use super::geometry::{Geometry, Tile, dims4};
use super::im2col::{col2im, im2col};
use super::matmul::{Layout, Product, Splits, add_parts};
use super::pixels::{Pixels, empty, zeros};
use crate::shapes::expect;
use burn::backend::DType;
use burn::backend::TensorMetadata;
use burn::backend::ops::ConvOptions;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

impl Pixels {
    /// As an operand whose lines are channels and whose k are pixels, or the other way round (`swap`), in groups of `channels`.
    fn layout(&self, tile: &Tile, groups: usize, channels: usize) -> Layout {
        let offset = tile.images.start * self.image + tile.rows.start * self.row;
        let batch = if groups == 1 { self.image } else { channels * self.channel };
        Layout { offset, batch, outer: self.image, line: self.channel, k: self.pixel }
    }
}

/// A layout with lines and k exchanged.
fn transposed(layout: Layout) -> Layout {
    Layout { line: layout.k, k: layout.line, ..layout }
}

/// The columns of `tile` as an operand with lines along depth and k along pixels.
fn column_layout(g: &Geometry, tile: &Tile) -> Layout {
    let pixels = g.pixels(tile);
    Layout { offset: 0, batch: g.depth() * pixels, outer: g.groups * g.depth() * pixels, line: pixels, k: 1 }
}

/// The whole tile a pointwise convolution is: nothing is copied, so nothing needs cutting.
fn whole(g: &Geometry) -> Tile {
    Tile { images: 0..g.images, rows: 0..g.output[0] }
}

/// The tiles, and room for the columns of the largest.
fn plan(like: &CubeTensor, g: &Geometry, workspace: usize) -> (Vec<Tile>, CubeTensor) {
    let tiles = g.tiles(workspace, like.dtype.size());
    let most = tiles.iter().map(|tile| g.columns(tile)).max().unwrap_or(0);
    let columns = empty(like, [most], like.dtype);
    (tiles, columns)
}

/// `y [n, co, oh, ow]` of `x [n, ci, h, w]` and `w [co, ci/g, kh, kw]`, plus `bias [co]`, through SiLU if asked; `workspace` in bytes.
pub(crate) fn forward(
    x: CubeTensor,
    w: CubeTensor,
    bias: Option<CubeTensor>,
    silu: bool,
    options: &ConvOptions<2>,
    workspace: usize,
) -> CubeTensor {
    let g = Geometry::new(dims4(&x), dims4(&w), options);
    let shape = g.result();
    if let Some(bias) = &bias {
        expect("bias", bias.shape().dims(), [g.channels_out]);
    }
    if g.empty() {
        return zeros(&x, shape);
    }
    let y = empty(&x, shape, x.dtype);
    let (w, bias) = (into_contiguous(w), bias.map(into_contiguous));
    let product = |tile: &Tile, b: Layout| Product {
        m: g.group_out(),
        n: g.pixels(tile),
        k: g.depth(),
        outer: 1,
        batches: tile.images.len() * g.groups,
        period: g.groups,
        a: Layout { batch: g.group_out() * g.depth(), line: g.depth(), k: 1, ..Layout::default() },
        b,
        c: Layout {
            offset: tile.images.start * g.channels_out * g.pixels_out() + tile.rows.start * g.output[1],
            batch: g.group_out() * g.pixels_out(),
            line: g.pixels_out(),
            ..Layout::default()
        },
        splits: Splits::ONE,
        add: false,
        silu,
    };
    if g.pointwise() {
        let (x, tile) = (Pixels::new(x, g.groups), whole(&g));
        let b = transposed(x.layout(&tile, g.groups, g.channels_in / g.groups));
        product(&tile, b).run(&w, &x.tensor, bias.as_ref(), &y);
        return y;
    }
    let (tiles, columns) = plan(&x, &g, workspace);
    for tile in tiles {
        im2col(&x, &columns, &g, &tile);
        product(&tile, transposed(column_layout(&g, &tile))).run(&w, &columns, bias.as_ref(), &y);
    }
    y
}

/// `dx [n, ci, h, w]` from `dy [n, co, oh, ow]` and `w [co, ci/g, kh, kw]`; `input` is (h, w).
pub(crate) fn data_grad(dy: CubeTensor, w: CubeTensor, input: [usize; 2], options: &ConvOptions<2>, workspace: usize) -> CubeTensor {
    let ([images, ..], w_dims) = (dims4(&dy), dims4(&w));
    let shape = [images, w_dims[1] * options.groups, input[0], input[1]];
    let g = Geometry::new(shape, w_dims, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        return zeros(&dy, shape);
    }
    let (w, dy) = (into_contiguous(w), Pixels::new(dy, g.groups));
    let product = |tile: &Tile| Product {
        m: g.depth(),
        n: g.pixels(tile),
        k: g.group_out(),
        outer: 1,
        batches: tile.images.len() * g.groups,
        period: g.groups,
        a: Layout { batch: g.group_out() * g.depth(), line: 1, k: g.depth(), ..Layout::default() },
        b: transposed(dy.layout(tile, g.groups, g.group_out())),
        c: Layout { batch: g.depth() * g.pixels(tile), line: g.pixels(tile), ..Layout::default() },
        splits: Splits::ONE,
        add: false,
        silu: false,
    };
    if g.pointwise() {
        let dx = empty(&dy.tensor, shape, dy.tensor.dtype);
        product(&whole(&g)).run(&w, &dy.tensor, None, &dx);
        return dx;
    }
    let (tiles, columns) = plan(&dy.tensor, &g, workspace);
    // Bands of one image overlap in x, so they are added up; whole images are written once.
    let add = tiles.iter().any(|tile| tile.rows.len() < g.output[0]);
    let dx = if add { zeros(&dy.tensor, shape) } else { empty(&dy.tensor, shape, dy.tensor.dtype) };
    for tile in tiles {
        product(&tile).run(&w, &dy.tensor, None, &columns);
        col2im(&columns, &dx, &g, &tile, add);
    }
    dx
}

/// `dw [co, ci/g, kh, kw]` from `x [n, ci, h, w]` and `dy [n, co, oh, ow]`; `kernel` is (kh, kw).
pub(crate) fn weight_grad(x: CubeTensor, dy: CubeTensor, kernel: [usize; 2], options: &ConvOptions<2>, workspace: usize) -> CubeTensor {
    let (x_dims, [_, channels_out, ..]) = (dims4(&x), dims4(&dy));
    let shape = [channels_out, x_dims[1] / options.groups, kernel[0], kernel[1]];
    let g = Geometry::new(x_dims, shape, options);
    expect("dy", dims4(&dy), g.result());
    if g.empty() {
        return zeros(&dy, shape);
    }
    let dy = Pixels::new(dy, 1);
    let product = |tile: &Tile, b: Layout| Product {
        m: g.group_out(),
        n: g.depth(),
        k: g.pixels(tile),
        outer: tile.images.len(),
        batches: g.groups,
        period: g.groups,
        a: Layout { batch: g.group_out() * dy.channel, ..dy.layout(tile, 1, 0) },
        b,
        c: Layout { batch: g.group_out() * g.depth(), outer: g.channels_out * g.depth(), line: g.depth(), ..Layout::default() },
        splits: Splits::ONE,
        add: false,
        silu: false,
    };
    let numbers = g.channels_out * g.depth();
    // Sums go to dw itself where they are in one part and in its own precision, else to parts of f32.
    let sums = |splits: Splits| match splits.count() {
        1 if dy.tensor.dtype == DType::F32 => empty(&dy.tensor, shape, DType::F32),
        parts => empty(&dy.tensor, [parts * numbers], DType::F32),
    };
    let finish = |parts: CubeTensor, splits: Splits| {
        if splits == Splits::ONE && dy.tensor.dtype == DType::F32 {
            return parts;
        }
        let dw = empty(&dy.tensor, shape, dy.tensor.dtype);
        add_parts(&parts, &dw, splits.count());
        dw
    };
    if g.pointwise() {
        let (x, tile) = (Pixels::new(x, 1), whole(&g));
        let batch = g.channels_in / g.groups * x.channel;
        let mut product = product(&tile, Layout { batch, ..x.layout(&tile, 1, 0) });
        product.splits = product.cut(workspace / 4);
        let parts = sums(product.splits);
        product.run(&dy.tensor, &x.tensor, None, &parts);
        return finish(parts, product.splits);
    }
    let (tiles, columns) = plan(&x, &g, workspace);
    let mut parts = None;
    for tile in tiles {
        im2col(&x, &columns, &g, &tile);
        let mut product = product(&tile, column_layout(&g, &tile));
        // The first tile is the largest; the others are cut like it, so that their parts meet.
        let (sums, splits) = parts.get_or_insert_with(|| {
            let splits = product.cut(workspace / 4);
            (sums(splits), splits)
        });
        product.splits = *splits;
        product.add = tile.images.start > 0 || tile.rows.start > 0;
        product.run(&dy.tensor, &columns, None, sums);
    }
    match parts {
        Some((parts, splits)) => finish(parts, splits),
        None => zeros(&dy.tensor, shape),
    }
}
