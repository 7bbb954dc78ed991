//! `--tune`: which size of block is fastest on a device, for each class of shapes that the kernels' table tells apart.
//!
//! A convolution of YOLOv8n at 640 pixels stands for its class. A size that computes wrong numbers is out, however fast.

use crate::checks::{TOLERANCE, compare};
use crate::convolutions::Conv;
use crate::made::numbers;
use crate::timing::median;
use bellows_kernels::Lowering;
use bellows_kernels::cube::{Class, Size, set_tuned};
use burn::tensor::Device;
use std::hint::black_box;

/// 3x3 of so many channels, on a map of this side.
fn example(class: Class) -> Conv {
    let (channels, size) = match class {
        Class::Thin => (16, 80),
        Class::ThinMany => (16, 160),
        Class::Medium => (32, 80),
        Class::MediumMany => (32, 160),
        Class::Tall => (64, 40),
        Class::TallMany => (64, 160),
    };
    Conv { c_in: channels, c_out: channels, kernel: 3, stride: 1, size }
}

/// The fastest right size of `class` on `device`, and its error. From now on the process computes with the table's sizes.
///
/// # Errors
/// A sentence if no size computes what the CPU does.
pub(crate) fn fastest(device: &Device, class: Class) -> Result<(Size, f64), String> {
    let found = among(device, class);
    set_tuned([]);
    found
}

fn among(device: &Device, class: Class) -> Result<(Size, f64), String> {
    let conv = example(class);
    let expected = [conv.forward(&Device::flex(), Lowering::Direct, false)];
    let (x, w) = (conv.input(device), conv.weight(device));
    let (mut best, mut wrong): (Option<(f64, Size, f64)>, String) = (None, String::new());
    for &size in class.sizes() {
        set_tuned([(class, size)]);
        match compare(&[conv.forward(device, Lowering::Gemm, false)], &expected, TOLERANCE) {
            Ok(error) => {
                let seconds = median(|| {
                    // Reading waits for what was launched.
                    black_box(numbers(conv.apply(x.clone(), w.clone(), Lowering::Gemm).sum()));
                });
                if best.is_none_or(|(least, ..)| seconds < least) {
                    best = Some((seconds, size, error));
                }
            }
            Err(reason) => wrong = reason,
        }
    }
    best.map(|(_, size, error)| (size, error)).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_of_its_class() {
        for class in Class::ALL {
            let conv = example(class);
            assert_eq!(Class::of(conv.c_out, conv.size * conv.size, 1), class);
        }
    }
}
