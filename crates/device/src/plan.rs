//! Which convolutions are proved, and in what order.
//!
//! A network's convolutions, or a language model's products of matrices, reach a GPU by one of two paths, and a device that fails one may be good on the other: drivers for RDNA1 are
//! reported to hang in direct convolution kernels. Each path is a child process of its own, because a hang, a crash or a lost device
//! ends the process it happens in; ours goes first, so that its verdict is there whatever the other does to the driver. A path that is
//! known to be dangerous, or that the user has not asked for, is not tried at all. Of products there is a third, the last resort.

use crate::adapter::Adapter;
use crate::known_issues;
use crate::options::Work;
use bellows_kernels::Lowering;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way for convolutions and products of matrices to be computed on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// Matrix products of our own.
    Gemm,
    /// Burn's convolutions, or Burn's products.
    Direct,
    /// Burn's products without the tuning, where the two others have failed.
    Untuned,
}

impl Path {
    pub(crate) const ALL: [Self; 3] = [Self::Gemm, Self::Direct, Self::Untuned];

    pub(crate) fn lowering(self) -> Lowering {
        match self {
            Self::Gemm => Lowering::Gemm,
            Self::Direct => Lowering::Direct,
            Self::Untuned => Lowering::Untuned,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lowering().fmt(f)
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|path| path.to_string() == text).ok_or_else(|| format!("unknown path '{text}'"))
    }
}

/// Why each path is left out; `None`: it is proved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) without_gemm: Option<String>,
    pub(crate) without_direct: Option<String>,
}

impl Plan {
    /// What to prove of `adapter` for this work and a user who has asked for `lowering`, on a machine with these AMD GPUs.
    pub(crate) fn of(adapter: &Adapter, work: Work, lowering: Option<Lowering>, gfx: &[u32]) -> Self {
        match work {
            Work::Detector => Self::of_detector(adapter, lowering, gfx),
            Work::HalfDetector => Self { without_direct: Some("images in f16 take our own convolutions".into()), ..Self::default() },
            Work::LanguageModel | Work::HalfLanguageModel => Self::of_language_model(lowering),
        }
    }

    fn of_language_model(lowering: Option<Lowering>) -> Self {
        let unasked = |by: &str| Some(format!("not tried: `--products {by}` was asked for"));
        match lowering.unwrap_or_default() {
            Lowering::Gemm => Self { without_direct: unasked("own"), ..Self::default() },
            Lowering::Direct => Self { without_gemm: unasked("burn"), ..Self::default() },
            Lowering::Auto | Lowering::Winograd | Lowering::Implicit | Lowering::Bf16 | Lowering::Untuned => Self::default(),
        }
    }

    fn of_detector(adapter: &Adapter, lowering: Option<Lowering>, gfx: &[u32]) -> Self {
        let unasked = |by: Lowering| Some(format!("not tried: `--conv {by}` was asked for"));
        match lowering.unwrap_or_default() {
            // Algorithms of the processor mean nothing to a GPU: the choice is automatic there (see `select`).
            Lowering::Auto | Lowering::Winograd | Lowering::Implicit | Lowering::Bf16 | Lowering::Untuned => {
                Self { without_direct: known_issues::direct_convolutions(adapter, gfx), ..Self::default() }
            }
            by @ Lowering::Gemm => Self { without_direct: unasked(by), ..Self::default() },
            // A user's word is above the table, and the child is still the safest place to find out.
            by @ Lowering::Direct => {
                if let Some(issue) = known_issues::direct_convolutions(adapter, gfx) {
                    tracing::warn!("{issue}; tried all the same, because of `--conv {by}`");
                }
                Self { without_gemm: unasked(by), ..Self::default() }
            }
        }
    }

    pub(crate) fn without(&self, path: Path) -> Option<&str> {
        match path {
            Path::Gemm => self.without_gemm.as_deref(),
            Path::Direct => self.without_direct.as_deref(),
            Path::Untuned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{AdapterKind, tests::adapter};

    #[test]
    fn a_path_has_one_name() {
        for path in Path::ALL {
            assert_eq!(path.to_string().parse(), Ok(path));
        }
    }

    #[test]
    fn the_work_decides_first() {
        let mut rdna1 = adapter(0, AdapterKind::Discrete, None);
        rdna1.name = "AMD Radeon RX 5600 XT (RADV NAVI10)".into();
        let of_words = |asked| Plan::of(&rdna1, Work::LanguageModel, asked, &[]);
        assert_eq!(of_words(None), Plan::default(), "its hangs are in convolutions");
        assert_eq!(of_words(Some(Lowering::Gemm)).without(Path::Direct), Some("not tried: `--products own` was asked for"));
        assert_eq!(of_words(Some(Lowering::Direct)).without(Path::Gemm), Some("not tried: `--products burn` was asked for"));
        assert!(Plan::of(&rdna1, Work::HalfDetector, None, &[]).without(Path::Direct).unwrap().contains("f16"));
    }

    #[test]
    fn both_paths_unless_known_or_asked() {
        let plain = adapter(0, AdapterKind::Discrete, None);
        let mut rdna1 = plain.clone();
        rdna1.name = "AMD Radeon RX 5600 XT (RADV NAVI10)".into();
        for lowering in [None, Some(Lowering::Auto), Some(Lowering::Winograd), Some(Lowering::Implicit), Some(Lowering::Bf16)] {
            assert_eq!(Plan::of(&plain, Work::Detector, lowering, &[]), Plan::default());
            let plan = Plan::of(&rdna1, Work::Detector, lowering, &[]);
            assert!(plan.without_gemm.is_none() && plan.without_direct.unwrap().contains("known issue"));
        }
        for card in [&plain, &rdna1] {
            let plan = Plan::of(card, Work::Detector, Some(Lowering::Gemm), &[]);
            assert_eq!((plan.without(Path::Gemm), plan.without(Path::Direct)), (None, Some("not tried: `--conv gemm` was asked for")));
            let plan = Plan::of(card, Work::Detector, Some(Lowering::Direct), &[]);
            assert_eq!((plan.without(Path::Gemm), plan.without(Path::Direct)), (Some("not tried: `--conv direct` was asked for"), None));
        }
    }
}
