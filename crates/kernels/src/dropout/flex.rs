//! Dropout on Flex: f32 in one pass, everything else by Burn's own operations.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::mask::Mask;
use super::{DropoutOps, portable};
use crate::buffers::{all_f32, contiguous, take, tensor, values};
use crate::cpu::machine::TASK;

impl DropoutOps for Flex {
    fn dropout(x: FlexTensor, key: u64, p: f64) -> FlexTensor {
        let mask = Mask::new(key, p);
        let true = all_f32([&x]) else { return portable::dropout::<Self>(x, mask) };
        let x = contiguous(x);
        let (shape, values) = (x.shape(), values(&x));
        let mut y = take(values.len());
        y.par_chunks_mut(TASK).zip(values.par_chunks(TASK)).enumerate().for_each(|(task, (y, x))| {
            for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
                *y = x * mask.at(task * TASK + i);
            }
        });
        tensor(y, shape)
    }
}
