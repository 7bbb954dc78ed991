//! The loss scale of products in f16, whose smallest numbers gradients fall below: the loss is multiplied by it, and what comes of that divided
//! again, before anything else is done with gradients (Micikevicius et al. 2018).

use serde::{Deserialize, Serialize};

/// What a dynamic scale begins with, and after how many updates without an overflow it is doubled: PyTorch's numbers.
const FIRST: f64 = 65_536.0;
const CLEAN: u32 = 2000;
/// Batches in a row that a dynamic scale may take to come down before it is no longer the scale that is wrong.
const OVERFLOWS: u32 = 10;

/// How the loss is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum LossScaling {
    /// By this.
    Static(f64),
    /// By as much as can be: halved by every overflow, doubled after 2000 updates without one.
    Dynamic,
}

impl LossScaling {
    /// Batches in a row that may be skipped before something is done about it, instead of `others`.
    pub(crate) fn patience(self, others: u32) -> u32 {
        match self {
            Self::Static(_) => others,
            Self::Dynamic => OVERFLOWS,
        }
    }
}

/// The scale of a run, which survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// What the loss is multiplied by.
    pub scale: f64,
    /// Updates since it was doubled or halved.
    pub clean: u32,
}

impl LossScale {
    /// What a run begins with.
    pub(crate) fn first(scaling: LossScaling) -> Self {
        let scale = match scaling {
            LossScaling::Static(scale) => scale,
            LossScaling::Dynamic => FIRST,
        };
        Self { scale, clean: 0 }
    }

    /// After an update.
    pub(crate) fn updated(&mut self, scaling: LossScaling) {
        self.clean += 1;
        if scaling == LossScaling::Dynamic && self.clean >= CLEAN {
            *self = Self { scale: self.scale * 2.0, clean: 0 };
        }
    }

    /// After a batch of which something was not finite.
    pub(crate) fn overflowed(&mut self, scaling: LossScaling) {
        self.clean = 0;
        if scaling == LossScaling::Dynamic {
            self.scale = (self.scale * 0.5).max(1.0);
        }
    }
}

#[test]
fn a_dynamic_scale_goes_down_at_once_and_up_slowly() {
    let mut scale = LossScale::first(LossScaling::Dynamic);
    scale.overflowed(LossScaling::Dynamic);
    assert_eq!(scale, LossScale { scale: 32_768.0, clean: 0 });
    (1..CLEAN).for_each(|_| scale.updated(LossScaling::Dynamic));
    assert_eq!(scale, LossScale { scale: 32_768.0, clean: CLEAN - 1 });
    scale.updated(LossScaling::Dynamic);
    assert_eq!(scale, LossScale { scale: 65_536.0, clean: 0 });
    (0..40).for_each(|_| scale.overflowed(LossScaling::Dynamic));
    assert_eq!(scale.scale, 1.0);
    for scale in [1024.0, 0.5] {
        let (scaling, mut fixed) = (LossScaling::Static(scale), LossScale::first(LossScaling::Static(scale)));
        fixed.overflowed(scaling);
        (0..2 * CLEAN).for_each(|_| fixed.updated(scaling));
        assert_eq!(fixed.scale, scale);
    }
}
