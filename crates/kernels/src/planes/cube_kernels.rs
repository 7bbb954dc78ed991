//! The device side of the plane operations, a thread to a number that is read or written. Sums are of f32, whatever numbers are.

use cubecl::prelude::*;

/// Channels of some images within those of others: runs of `len` numbers, one from each `total`, which begins `start` numbers into it.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Runs {
    len: usize,
    total: usize,
    start: usize,
}

/// Runs of `whole` to where they lie side by side.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn extract_kernel<E: Float>(whole: &Tensor<E>, part: &mut Tensor<E>, runs: &Runs, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= part.len() {
        terminate!();
    }
    part[i] = whole[i / runs.len * runs.total + runs.start + i % runs.len];
}

/// And back, with zeros around the runs.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn pad_kernel<E: Float>(part: &Tensor<E>, whole: &mut Tensor<E>, runs: &Runs, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= whole.len() {
        terminate!();
    }
    let at = i % runs.total;
    let mut value = E::cast_from(0.0f32);
    if at >= runs.start && at < runs.start + runs.len {
        value = part[i / runs.total * runs.len + at - runs.start];
    }
    whole[i] = value;
}

/// The part added to its runs of the whole.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn add_runs_kernel<E: Float>(part: &Tensor<E>, whole: &mut Tensor<E>, runs: &Runs, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= part.len() {
        terminate!();
    }
    let at = i / runs.len * runs.total + runs.start + i % runs.len;
    whole[at] = E::cast_from(f32::cast_from(part[i]) + f32::cast_from(whole[at]));
}

/// A plane, and how many numbers there are to its pixel.
#[derive(CubeLaunch, CubeType)]
pub(super) struct Plane {
    height: usize,
    width: usize,
    inner: usize,
}

/// The first maximum of the window around number `at`, row by row, as its pixel's number in the plane. A NaN is greater than all before it.
#[cube]
fn first_maximum<E: Float>(x: &Tensor<E>, at: usize, plane: &Plane, reach: usize) -> usize {
    let pixel = at / plane.inner % (plane.height * plane.width);
    let base = at - pixel * plane.inner;
    let (row, column) = (pixel / plane.width, pixel % plane.width);
    let (rows, columns) = (min(row + reach + 1, plane.height), min(column + reach + 1, plane.width));
    let left = column - min(column, reach);
    let mut r = row - min(row, reach);
    let mut best = r * plane.width + left;
    let mut most = f32::cast_from(x[base + best * plane.inner]);
    while r < rows {
        let mut c = left;
        while c < columns {
            let here = r * plane.width + c;
            let value = f32::cast_from(x[base + here * plane.inner]);
            if value > most || value.is_nan() {
                best = here;
                most = value;
            }
            c += 1;
        }
        r += 1;
    }
    best
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn max_pool_kernel<E: Float>(x: &Tensor<E>, y: &mut Tensor<E>, plane: &Plane, reach: usize, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= x.len() {
        terminate!();
    }
    let pixel = i / plane.inner % (plane.height * plane.width);
    y[i] = x[i - pixel * plane.inner + first_maximum::<E>(x, i, plane, reach) * plane.inner];
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn first_maximum_kernel<E: Float>(
    x: &Tensor<E>,
    firsts: &mut Tensor<u32>,
    plane: &Plane,
    reach: usize,
    #[define(E)] _type: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= x.len() {
        terminate!();
    }
    firsts[i] = first_maximum::<E>(x, i, plane, reach) as u32;
}

/// Each pixel is the sum of the dy of those windows that have their first maximum there.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn max_pool_grad_kernel<E: Float>(
    firsts: &Tensor<u32>,
    dy: &Tensor<E>,
    dx: &mut Tensor<E>,
    plane: &Plane,
    reach: usize,
    #[define(E)] _type: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= dy.len() {
        terminate!();
    }
    let pixel = i / plane.inner % (plane.height * plane.width);
    let base = i - pixel * plane.inner;
    let (row, column) = (pixel / plane.width, pixel % plane.width);
    let (rows, columns) = (min(row + reach + 1, plane.height), min(column + reach + 1, plane.width));
    let left = column - min(column, reach);
    let mut r = row - min(row, reach);
    let mut sum = 0.0f32;
    while r < rows {
        let mut c = left;
        while c < columns {
            let window = base + (r * plane.width + c) * plane.inner;
            if firsts[window] == pixel as u32 {
                sum += f32::cast_from(dy[window]);
            }
            c += 1;
        }
        r += 1;
    }
    dx[i] = E::cast_from(sum);
}

/// `own` planes of so many bytes, four to a word, are an image's; `table` has the number of each byte.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn of_bytes_kernel(words: &Tensor<u32>, table: &Tensor<f32>, y: &mut Tensor<f32>, plane: usize, own: usize, channels: usize) {
    let i = ABSOLUTE_POS;
    if i >= y.len() {
        terminate!();
    }
    let (image, channel) = (i / plane / channels, i / plane % channels);
    let at = (image * own + channel.min(own - 1usize)) * plane + i % plane;
    let byte = (words[at / 4usize] >> ((at % 4usize) as u32 * 8u32)) & 255u32;
    y[i] = table[byte as usize];
}

/// `plane` is x's.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn double_kernel<E: Float>(x: &Tensor<E>, y: &mut Tensor<E>, plane: &Plane, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= y.len() {
        terminate!();
    }
    let pixel = i / plane.inner;
    let (line, column) = (pixel / (2 * plane.width), pixel % (2 * plane.width) / 2);
    let (outer, row) = (line / (2 * plane.height), line % (2 * plane.height) / 2);
    y[i] = x[((outer * plane.height + row) * plane.width + column) * plane.inner + i % plane.inner];
}

/// `plane` is dx's.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn double_grad_kernel<E: Float>(dy: &Tensor<E>, dx: &mut Tensor<E>, plane: &Plane, #[define(E)] _type: ElemType) {
    let i = ABSOLUTE_POS;
    if i >= dx.len() {
        terminate!();
    }
    let pixel = i / plane.inner;
    // Rows of dy, two to one of dx, go on from plane to plane.
    let (line, column) = (pixel / plane.width, pixel % plane.width);
    let wide = 2 * plane.width * plane.inner;
    let above = 2 * line * wide + 2 * column * plane.inner + i % plane.inner;
    let below = above + wide;
    let upper = f32::cast_from(dy[above]) + f32::cast_from(dy[above + plane.inner]);
    dx[i] = E::cast_from(upper + f32::cast_from(dy[below]) + f32::cast_from(dy[below + plane.inner]));
}
