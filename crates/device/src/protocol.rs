//! The words between the probe's child process and its parent: one JSON object a line on the child's standard output.
//!
//! Drivers print to standard output too, sometimes without a line break, so the parent looks for the object inside the line and
//! ignores all else. A `begin` comes before each step: after a silence the parent knows what hung.

use crate::adapter::Adapter;
use bellows_kernels::cube::Size;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The stages of the probe. A child does the first three and then those of its work on one path, in this order; each relies on the ones before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// List the adapters.
    #[serde(rename = "enumerate")]
    Enumerate,
    /// Open the adapter, allocate a little.
    #[serde(rename = "adapter")]
    Adapter,
    /// Upload 1 MiB and read the same bits back.
    #[serde(rename = "upload")]
    Upload,
    /// Operations of a language model on the rows of a matrix, against the CPU.
    #[serde(rename = "rows")]
    Rows,
    /// A language model's products of matrices, by our own kernel.
    #[serde(rename = "products gemm")]
    ProductsGemm,
    /// Two steps of LoRA beside a frozen layer, with our own products.
    #[serde(rename = "lora gemm")]
    LoraGemm,
    /// A language model's products, by Burn's own kernels.
    #[serde(rename = "products direct")]
    ProductsDirect,
    /// Two steps of LoRA with Burn's own products.
    #[serde(rename = "lora direct")]
    LoraDirect,
    /// A language model's products, by the first kernels of Burn's that take them, none timed.
    #[serde(rename = "products untuned")]
    ProductsUntuned,
    /// Two steps of LoRA with those.
    #[serde(rename = "lora untuned")]
    LoraUntuned,
    /// Two steps of LoRA with factors in f16.
    #[serde(rename = "lora f16")]
    LoraHalf,
    /// Convolutions of YOLOv8n's kinds and both their gradients, by our own kernels, against the CPU.
    #[serde(rename = "conv gemm")]
    ConvGemm,
    /// Two steps of a small detector with our own convolutions, against the CPU: every operation of the large one, and its update.
    #[serde(rename = "train gemm")]
    TrainGemm,
    /// Convolutions of images in f16, by our own kernels.
    #[serde(rename = "conv f16")]
    ConvHalf,
    /// The small detector with images in f16.
    #[serde(rename = "train f16")]
    TrainHalf,
    /// The convolutions of `ConvGemm`, by Burn's own kernels.
    #[serde(rename = "conv direct")]
    ConvDirect,
    /// The small detector with Burn's own convolutions.
    #[serde(rename = "train direct")]
    TrainDirect,
    /// Burn's own matrix products, one of odd shape, against the CPU. Behind the rest, because no detector computes one itself: they are
    /// what Burn's convolutions are made of, and a device that gets them wrong is to be trained on with our own kernels.
    #[serde(rename = "matmul")]
    Matmul,
    /// The run's own convolutions and their gradients, or its maps and attention, on the path at hand and in the run's precision.
    #[serde(rename = "shapes")]
    Shapes,
    /// Which sizes of block are fastest for our own products, if that is asked for.
    #[serde(rename = "tune")]
    Tune,
    /// How long a small step of training takes, there and on the CPU.
    #[serde(rename = "time")]
    Time,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 21] = [
        Self::Enumerate,
        Self::Adapter,
        Self::Upload,
        Self::Rows,
        Self::ProductsGemm,
        Self::LoraGemm,
        Self::ProductsDirect,
        Self::LoraDirect,
        Self::ProductsUntuned,
        Self::LoraUntuned,
        Self::LoraHalf,
        Self::ConvGemm,
        Self::TrainGemm,
        Self::ConvHalf,
        Self::TrainHalf,
        Self::ConvDirect,
        Self::TrainDirect,
        Self::Matmul,
        Self::Shapes,
        Self::Tune,
        Self::Time,
    ];

    /// Whether the stage compiles kernels that no earlier stage has compiled.
    pub(crate) fn compiles(self) -> bool {
        self >= Self::Rows
    }

    /// Whether the stage is the same on both paths, so that its failure is the adapter's and not a path's.
    pub(crate) fn common(self) -> bool {
        self <= Self::Rows
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Enumerate => "enumerate",
            Self::Adapter => "adapter",
            Self::Upload => "upload",
            Self::Rows => "rows",
            Self::ProductsGemm => "products gemm",
            Self::LoraGemm => "lora gemm",
            Self::ProductsDirect => "products direct",
            Self::LoraDirect => "lora direct",
            Self::ProductsUntuned => "products untuned",
            Self::LoraUntuned => "lora untuned",
            Self::LoraHalf => "lora f16",
            Self::ConvGemm => "conv gemm",
            Self::TrainGemm => "train gemm",
            Self::ConvHalf => "conv f16",
            Self::TrainHalf => "train f16",
            Self::ConvDirect => "conv direct",
            Self::TrainDirect => "train direct",
            Self::Matmul => "matmul",
            Self::Shapes => "shapes",
            Self::Tune => "tune",
            Self::Time => "time",
        })
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|stage| stage.to_string() == text).ok_or_else(|| format!("unknown probe stage '{text}'"))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    /// The step is about to start.
    Begin { stage: Stage, step: String },
    /// The adapters found by the enumerate stage.
    Adapters { adapters: Vec<Adapter> },
    /// The step ended well. `max_error` is relative to the largest magnitude of the CPU's result.
    Done { stage: Stage, step: String, seconds: f64, max_error: Option<f64> },
    /// What the driver says it has for products of small matrices.
    Units { units: Vec<String> },
    /// The fastest size of block for each class of shapes.
    Tuned { sizes: Vec<(String, Size)> },
    /// Seconds of a small step of training on the adapter and on the CPU.
    Timed { adapter: f64, processor: f64 },
    /// The step ended badly, the child stops. `crash`: it is worth a second try, which wrong numbers are not.
    Fail { stage: Stage, step: String, reason: String, crash: bool },
    /// Every step ended well.
    Pass,
}

impl Event {
    /// The event in a line of output, if there is one.
    pub(crate) fn find(line: &str) -> Option<Self> {
        serde_json::from_str(&line[line.find(r#"{"event":"#)?..]).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_behind_a_drivers_chatter() {
        let event = Event::Begin { stage: Stage::ConvDirect, step: "3x3 s2".into() };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(Event::find(&line), Some(event.clone()));
        assert_eq!(Event::find(&format!("MESA: warning: {{x}} {line}")), Some(event));
        assert_eq!(Event::find("UNREACHABLE: TypePointer"), None);
        assert_eq!(Event::find(r#"{"event":"unheard of"}"#), None);
    }

    #[test]
    fn stages_have_one_name() {
        for stage in Stage::ALL {
            assert_eq!(stage.to_string().parse(), Ok(stage));
            assert_eq!(serde_json::to_string(&stage).unwrap(), format!("\"{stage}\""));
        }
    }
}
