//! `--tune`: which size of block is fastest on a device, for each class of shapes that the kernels' table tells apart.
//!
//! A 3x3 convolution of YOLOv8n's kind at 640 pixels stands for its class, for a language model's products too. A size that computes wrong numbers is out,
//! however fast.

use crate::checks::{TOLERANCE, compare};
use crate::convolutions::{Conv, plain};
use crate::made::numbers;
use crate::timing::medians;
use bellows_kernels::Lowering;
use bellows_kernels::cube::{Class, Pass, Size, set_tuned};
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
    plain(channels, channels, 3, 1, size)
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
    let forward = |device: &Device, by| conv.run(Pass::Forward, 1, device, by, false);
    let expected = forward(&Device::flex(), Lowering::Direct);
    let (x, w) = (conv.input(1, device), conv.weight(device));
    let (mut right, mut wrong) = (Vec::new(), String::new());
    for size in table_first(class) {
        set_tuned([(class, size)]);
        match compare(&forward(device, Lowering::Gemm), &expected, TOLERANCE) {
            Ok(error) => right.push((size, error)),
            Err(reason) => wrong = reason,
        }
    }
    let seconds = medians(right.len(), |at| {
        set_tuned([(class, right[at].0)]);
        // Reading waits for what was launched.
        black_box(numbers(conv.apply(x.clone(), w.clone(), Lowering::Gemm).sum()));
    });
    best(&seconds).map(|at| right[at]).ok_or(wrong)
}

/// The sizes of `class`, the table's before the others.
fn table_first(class: Class) -> Vec<Size> {
    let mut sizes = class.sizes().to_vec();
    sizes.sort_by_key(|size| *size != class.of_table());
    sizes
}

/// The first, unless another is faster by more than what two measurements of the same differ by.
fn best(seconds: &[f64]) -> Option<usize> {
    (0..seconds.len()).reduce(|best, at| if seconds[at] < 0.95 * seconds[best] { at } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_example_is_of_its_class() {
        for class in Class::ALL {
            let conv = example(class);
            assert_eq!(conv.classes(Pass::Forward, 1), [class]);
        }
    }

    #[test]
    fn the_tables_size_is_replaced_only_by_a_clearly_faster_one() {
        for class in Class::ALL {
            let sizes = table_first(class);
            assert!(sizes[0] == class.of_table() && sizes.len() == class.sizes().len());
        }
        assert_eq!(best(&[1.0, 0.96, 0.97]), Some(0));
        assert_eq!(best(&[1.0, 0.96, 0.9, 0.88]), Some(2));
        assert_eq!(best(&[]), None);
    }
}
