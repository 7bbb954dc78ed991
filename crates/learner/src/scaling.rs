//! The loss scale of a run with numbers in f16, below whose smallest gradients fall: the loss is multiplied by it, and what comes of that divided
//! again, before anything else is done with gradients (Micikevicius et al. 2018).

use serde::{Deserialize, Serialize};

/// After how many updates without an overflow a dynamic scale is doubled: PyTorch's number.
const CLEAN: u32 = 2000;
/// Batches in a row that a dynamic scale may take to come down before it is no longer the scale that is wrong.
const OVERFLOWS: u32 = 10;

/// How the loss is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum LossScaling {
    /// By this.
    Static(f64),
    /// By as much as can be: halved by every overflow, doubled after 2000 updates without one.
    Dynamic {
        /// What it begins with.
        first: f64,
        /// What it is not halved below.
        least: f64,
    },
}

impl LossScaling {
    /// PyTorch's: it begins far too large, and is never less than a loss that is not scaled.
    pub const DYNAMIC: Self = Self::Dynamic { first: 65_536.0, least: 1.0 };

    /// What a run begins with.
    pub(crate) fn first(self) -> f64 {
        match self {
            Self::Static(scale) => scale,
            Self::Dynamic { first, .. } => first,
        }
    }

    /// Batches in a row that may be skipped before something is done about it, instead of `others`.
    pub(crate) fn patience(self, others: u32) -> u32 {
        match self {
            Self::Static(_) => others,
            Self::Dynamic { .. } => OVERFLOWS,
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
        Self { scale: scaling.first(), clean: 0 }
    }

    /// After an update.
    pub(crate) fn updated(&mut self, scaling: LossScaling) {
        self.clean += 1;
        if matches!(scaling, LossScaling::Dynamic { .. }) && self.clean >= CLEAN {
            *self = Self { scale: self.scale * 2.0, clean: 0 };
        }
    }

    /// Whether no overflow makes it smaller.
    pub(crate) fn is_least(self, scaling: LossScaling) -> bool {
        matches!(scaling, LossScaling::Dynamic { least, .. } if self.scale <= least)
    }

    /// After a batch of which something was not finite.
    pub(crate) fn overflowed(&mut self, scaling: LossScaling) {
        self.clean = 0;
        if let LossScaling::Dynamic { least, .. } = scaling {
            self.scale = (self.scale * 0.5).max(least);
        }
    }
}

#[test]
fn a_dynamic_scale_goes_down_at_once_and_up_slowly() {
    for (scaling, first, least) in [(LossScaling::DYNAMIC, 65_536.0, 1.0), (LossScaling::Dynamic { first: 1.0, least: 0.125 }, 1.0, 0.125)]
    {
        let mut scale = LossScale::first(scaling);
        scale.overflowed(scaling);
        assert_eq!(scale, LossScale { scale: first / 2.0, clean: 0 });
        (1..CLEAN).for_each(|_| scale.updated(scaling));
        assert_eq!(scale, LossScale { scale: first / 2.0, clean: CLEAN - 1 });
        scale.updated(scaling);
        assert_eq!(scale, LossScale { scale: first, clean: 0 });
        (0..40).for_each(|_| scale.overflowed(scaling));
        assert!(scale.scale == least && scale.is_least(scaling) && !LossScale::first(scaling).is_least(scaling));
    }
    for scale in [1024.0, 0.5] {
        let (scaling, mut fixed) = (LossScaling::Static(scale), LossScale::first(LossScaling::Static(scale)));
        fixed.overflowed(scaling);
        (0..2 * CLEAN).for_each(|_| fixed.updated(scaling));
        assert_eq!(fixed.scale, scale);
    }
}
