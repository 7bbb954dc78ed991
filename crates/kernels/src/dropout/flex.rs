//! Dropout on Flex: f32 in one pass, everything else by Burn's own operations.

use burn::backend::{Flex, TensorMetadata};
use burn_flex::FlexTensor;
use rayon::prelude::*;

use super::mask::Mask;
use super::{DropoutOps, portable};
use crate::buffers::{all_f32, contiguous, values, written};
use crate::cpu::machine::TASK;

impl DropoutOps for Flex {
    fn dropout(x: FlexTensor, key: u64, p: f64) -> FlexTensor {
        let mask = Mask::new(key, p);
        let true = all_f32([&x]) else { return portable::dropout::<Self>(x, mask) };
        let x = contiguous(x);
        let task = |(task, (y, x)): (usize, (&mut [f32], &[f32]))| {
            y.iter_mut().zip(x).enumerate().for_each(|(i, (y, x))| *y = x * mask.at(task * TASK + i));
        };
        written(x.shape(), |y| y.par_chunks_mut(TASK).zip(values(&x).par_chunks(TASK)).enumerate().for_each(task))
    }
}
