//! Dropout and noise on CubeCL devices: f32 in one launch, everything else by Burn's own operations.
//!
//! Draws are numbers of 64 bits, which few devices multiply: they are computed in two halves.

use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{DropoutOps, Mask, composed, composed_noise};
use crate::cube::launch::{covers, launch};
use crate::cube::pixels::replacement;

/// A number of 64 bits.
#[derive(CubeLaunch, CubeType)]
struct Wide {
    low: u32,
    high: u32,
}

fn wide(number: u64) -> WideLaunch {
    WideLaunch::new(number as u32, (number >> 32) as u32)
}

#[cube]
fn add(a: &Wide, b: &Wide) -> Wide {
    let low = a.low + b.low;
    let carry = select(low < a.low, 1u32, 0u32);
    Wide { low, high: a.high + b.high + carry }
}

#[cube]
fn times(a: &Wide, low: u32, high: u32) -> Wide {
    Wide { low: a.low * low, high: a.low.mul_hi(low) + a.low * high + a.high * low }
}

/// `z ^ (z >> by)`, by from 1 to 31.
#[cube]
fn fold(z: &Wide, by: u32) -> Wide {
    Wide { low: z.low ^ ((z.low >> by) | (z.high << (32u32 - by))), high: z.high ^ (z.high >> by) }
}

/// [`mix`](crate::draws::mix)
#[cube]
fn mix(z: &Wide) -> Wide {
    let first = times(&fold(z, 30u32), 0x1ce4_e5b9u32, 0xbf58_476du32);
    let second = times(&fold(&first, 27u32), 0x1331_11ebu32, 0x94d0_49bbu32);
    fold(&second, 31u32)
}

/// [`bits_at`](crate::draws::bits_at)
#[cube]
fn draw(key: &Wide, i: usize) -> Wide {
    let number = Wide { low: i as u32 + 1u32, high: 0u32 };
    // [`GOLDEN`](crate::draws::GOLDEN)
    mix(&add(key, &times(&number, 0x7f4a_7c15u32, 0x9e37_79b9u32)))
}

/// y may be x.
#[cube(launch_unchecked, address_type = "dynamic")]
fn dropout_kernel(x: &Tensor<f32>, y: &mut Tensor<f32>, key: &Wide, limit: &Wide, scale: f32) {
    let i = ABSOLUTE_POS;
    if i >= x.len() {
        terminate!();
    }
    let bits = draw(key, i);
    let high = bits.high >> 11u32;
    let low = (bits.low >> 11u32) | (bits.high << 21u32);
    let dropped = high < limit.high || (high == limit.high && low < limit.low);
    y[i] = x[i] * select(dropped, 0.0f32, scale);
}

/// By the upper 24 bits of a draw, as many as an f32 holds. y may be x.
#[cube(launch_unchecked, address_type = "dynamic")]
fn noise_kernel(x: &Tensor<f32>, y: &mut Tensor<f32>, key: &Wide, scale: f32) {
    let i = ABSOLUTE_POS;
    if i >= x.len() {
        terminate!();
    }
    let bits = draw(key, i);
    let unit = f32::cast_from(bits.high >> 8u32) / 16777216.0f32;
    y[i] = x[i] + (unit * 2.0f32 - 1.0f32) * scale;
}

impl DropoutOps for CubeBackend {
    fn dropout(x: CubeTensor, key: u64, p: f64) -> CubeTensor {
        let (mask, len) = (Mask::new(key, p), x.meta.shape().num_elements());
        if !covers([&x]) || len >= u32::MAX as usize {
            return composed::<Self>(x, mask);
        }
        let x = into_contiguous(x);
        let (y, to_y) = replacement(&x, 0);
        launch!(dropout_kernel, len, [(x, len)], to_y, wide(mask.key), wide(mask.limit), mask.scale);
        y
    }

    fn add_noise(x: CubeTensor, key: u64, scale: f64) -> CubeTensor {
        let len = x.meta.shape().num_elements();
        if !covers([&x]) || len >= u32::MAX as usize {
            return composed_noise::<Self>(x, key, scale);
        }
        let x = into_contiguous(x);
        let (y, to_y) = replacement(&x, 0);
        launch!(noise_kernel, len, [(x, len)], to_y, wide(key), scale as f32);
        y
    }
}
