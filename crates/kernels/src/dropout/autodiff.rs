//! The gradient of dropout.

use super::DropoutOps;
use crate::planes::PlaneOps;
use crate::steps::{Autodiff, CheckpointStrategy, Float, recorded};

impl<B: DropoutOps + PlaneOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropout(x: Float<Self>, key: u64, p: f64) -> Float<Self> {
        let (nodes, y) = ([x.node()], B::dropout(x.into_primitive(), key, p));
        recorded::<B, C, 1>(nodes, &[], y, move |dy, mut parents| parents.give::<B>(0, || B::dropout(dy, key, p)))
    }
}
