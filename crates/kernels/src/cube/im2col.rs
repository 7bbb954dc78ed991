//! The two gathers of a convolution by matrix product: pixels into columns, and columns' gradients back into pixels.
//!
//! Both are plain copies with bounds tests, one thread to a pixel, no shared memory, no atomics and no subgroup operations: the simplest
//! kernels a driver can be given. `im2col` writes every number of its tile; `col2im`, its transpose, *gathers* (each input pixel sums the
//! at most kh*kw columns that read it) where the usual form scatters with atomic additions, so that its result does not depend on which
//! thread came first. Kernel size, stride and dilation are compiled in: a model has a handful of them, and division by 2 becomes a shift.

use super::geometry::{Geometry, Tile};
use super::launch::{UNITS, address_type};
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// What is compiled into a gather, (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    pub(crate) kernel: (u32, u32),
    pub(crate) stride: (u32, u32),
    pub(crate) dilation: (u32, u32),
}

impl From<&Geometry> for Window {
    fn from(g: &Geometry) -> Self {
        let pair = |of: [usize; 2]| (of[0] as u32, of[1] as u32);
        Self { kernel: pair(g.kernel), stride: pair(g.stride), dilation: pair(g.dilation) }
    }
}

/// Where a tile lies.
#[derive(CubeLaunch, CubeType)]
pub(crate) struct Place {
    /// First image of the tile, in the whole batch.
    image: u32,
    /// First output row of the tile, and how many rows it has.
    row: u32,
    rows: u32,
    width_out: u32,
    /// First input row written, and how many (col2im only).
    first: u32,
    count: u32,
    pad_y: i32,
    pad_x: i32,
}

/// `columns[i, c, ky, kx, r, ox] = x[image + i, c, (row + r)*sy + ky*dy - py, ox*sx + kx*dx - px]`, or 0 outside x.
/// Grid: pixels of the tile, channels, images of the tile.
#[cube(launch, address_type = "dynamic")]
fn im2col_kernel<E: Float>(
    x: &Tensor<E>,
    columns: &mut Tensor<E>,
    place: &Place,
    #[comptime] window: Window,
    #[define(E)] _type: ElemType,
) {
    let pixels = place.rows * place.width_out;
    let pixel = CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X;
    if pixel >= pixels {
        terminate!();
    }
    let channel = CUBE_POS_Y as usize;
    let channels = x.shape(1);
    let height = x.shape(2) as i32;
    let width = x.shape(3) as i32;
    let oy = place.row + pixel / place.width_out;
    let ox = pixel % place.width_out;
    let y = (oy * comptime!(window.stride.0)) as i32 - place.pad_y;
    let x0 = (ox * comptime!(window.stride.1)) as i32 - place.pad_x;
    let source = (place.image + CUBE_POS_Z) as usize * x.stride(0) + channel * x.stride(1);
    let taps = comptime!((window.kernel.0 * window.kernel.1) as usize);
    let target = (CUBE_POS_Z as usize * channels + channel) * taps * pixels as usize + pixel as usize;
    #[unroll]
    for ky in 0..comptime!(window.kernel.0) {
        #[unroll]
        for kx in 0..comptime!(window.kernel.1) {
            let sy = y + comptime!((ky * window.dilation.0) as i32);
            let sx = x0 + comptime!((kx * window.dilation.1) as i32);
            let mut value = E::from_int(0);
            if sy >= 0 && sy < height && sx >= 0 && sx < width {
                value = x[source + sy as usize * x.stride(2) + sx as usize * x.stride(3)];
            }
            columns[target + comptime!((ky * window.kernel.1 + kx) as usize) * pixels as usize] = value;
        }
    }
}

/// `dx[image + i, c, y, x] (+)= sum over (ky, kx) of columns[i, c, ky, kx, (y + py - ky*dy) / sy - row, (x + px - kx*dx) / sx]`, over
/// the taps for which both divisions are exact and fall into the tile. Grid: input pixels of rows `first..first+count`, channels, images.
#[cube(launch, address_type = "dynamic")]
fn col2im_kernel<E: Float>(
    columns: &Tensor<E>,
    dx: &mut Tensor<E>,
    place: &Place,
    #[comptime] window: Window,
    #[comptime] add: bool,
    #[define(E)] _type: ElemType,
) {
    let width = dx.shape(3) as u32;
    let pixel = CUBE_POS_X * CUBE_DIM_X + UNIT_POS_X;
    if pixel >= place.count * width {
        terminate!();
    }
    let channel = CUBE_POS_Y as usize;
    let channels = dx.shape(1);
    let pixels = (place.rows * place.width_out) as usize;
    let y = place.first + pixel / width;
    let x = pixel % width;
    let taps = comptime!((window.kernel.0 * window.kernel.1) as usize);
    let source = (CUBE_POS_Z as usize * channels + channel) * taps * pixels;
    let mut sum = 0.0f32;
    #[unroll]
    for ky in 0..comptime!(window.kernel.0) {
        #[unroll]
        for kx in 0..comptime!(window.kernel.1) {
            let ty = y as i32 + place.pad_y - comptime!((ky * window.dilation.0) as i32);
            let tx = x as i32 + place.pad_x - comptime!((kx * window.dilation.1) as i32);
            if ty >= 0 && tx >= 0 {
                let oy = ty as u32 / comptime!(window.stride.0);
                let ox = tx as u32 / comptime!(window.stride.1);
                let exact = oy * comptime!(window.stride.0) == ty as u32 && ox * comptime!(window.stride.1) == tx as u32;
                if exact && oy >= place.row && oy < place.row + place.rows && ox < place.width_out {
                    let at = ((oy - place.row) * place.width_out + ox) as usize;
                    sum += f32::cast_from(columns[source + comptime!((ky * window.kernel.1 + kx) as usize) * pixels + at]);
                }
            }
        }
    }
    let target = (place.image + CUBE_POS_Z) as usize * dx.stride(0) + channel * dx.stride(1) + y as usize * dx.stride(2);
    let target = target + x as usize * dx.stride(3);
    if add {
        sum += f32::cast_from(dx[target]);
    }
    dx[target] = E::cast_from(sum);
}

fn place(g: &Geometry, tile: &Tile, rows: std::ops::Range<usize>) -> PlaceLaunch {
    PlaceLaunch::new(
        tile.images.start as u32,
        tile.rows.start as u32,
        tile.rows.len() as u32,
        g.output[1] as u32,
        rows.start as u32,
        rows.len() as u32,
        g.pad[0] as i32,
        g.pad[1] as i32,
    )
}

/// Fills `columns` (at least [`Geometry::columns`] numbers) from `x [n, ci, h, w]`, of any strides.
pub(crate) fn im2col(x: &CubeTensor, columns: &CubeTensor, g: &Geometry, tile: &Tile) {
    let count = CubeCount::Static((g.pixels(tile) as u32).div_ceil(UNITS), g.channels_in as u32, tile.images.len() as u32);
    im2col_kernel::launch(
        &x.client,
        count,
        CubeDim::new_1d(UNITS),
        address_type([x, columns]),
        x.clone().into_tensor_arg(),
        columns.clone().into_tensor_arg(),
        place(g, tile, 0..0),
        Window::from(g),
        dtype_to_storage_type(x.dtype),
    );
}

/// Adds the columns of `tile` to `dx [n, ci, h, w]` (`add`), or overwrites the pixels that the tile's images cover.
pub(crate) fn col2im(columns: &CubeTensor, dx: &CubeTensor, g: &Geometry, tile: &Tile, add: bool) {
    let rows = if add { g.input_rows(&tile.rows) } else { 0..g.input[0] };
    let pixels = (rows.len() * g.input[1]) as u32;
    if pixels == 0 {
        return;
    }
    let count = CubeCount::Static(pixels.div_ceil(UNITS), g.channels_in as u32, tile.images.len() as u32);
    col2im_kernel::launch(
        &dx.client,
        count,
        CubeDim::new_1d(UNITS),
        address_type([dx, columns]),
        columns.clone().into_tensor_arg(),
        dx.clone().into_tensor_arg(),
        place(g, tile, rows),
        Window::from(g),
        add,
        dtype_to_storage_type(dx.dtype),
    );
}
