//! How a probe is run, for those who run it, watch it and remember what it said.

use crate::adapter::AdapterKind;
use crate::convolutions::Conv;
use crate::heads::Heads;
use crate::maps::{LinearMap, SOME};
use bellows_kernels::Lowering;
use bellows_kernels::cube::{Class, Pass};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What a device is to be used for, which decides what is proved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// A detector: convolutions, normalisation, its loss.
    #[default]
    #[serde(rename = "detector")]
    Detector,
    /// The same with images in f16, besides.
    #[serde(rename = "f16-detector")]
    HalfDetector,
    /// A language model: products of matrices, attention, a frozen base.
    #[serde(rename = "language-model")]
    LanguageModel,
    /// The same with factors of products in f16, besides.
    #[serde(rename = "f16-language-model")]
    HalfLanguageModel,
}

/// A convolution, a linear map or attention of the run that a device is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shape {
    /// A convolution.
    #[serde(rename = "conv")]
    Conv(Conv),
    /// A linear map.
    #[serde(rename = "map")]
    Map(LinearMap),
    /// Attention with these heads.
    #[serde(rename = "attention")]
    Attention(Heads),
}

impl Shape {
    /// Multiplications and additions of a forward pass, of one image, of a row or of a token.
    pub(crate) fn flops(&self) -> usize {
        match self {
            Self::Conv(conv) => {
                2 * conv.c_in() * conv.c_out * conv.kernel * conv.kernel * conv.input[0] * conv.input[1] / (conv.stride * conv.stride)
            }
            Self::Map(LinearMap { sizes: [out, input], .. }) => 2 * out * input,
            Self::Attention(heads) => heads.flops(),
        }
    }

    /// What there is to prove of it. The gradients of a map, and those of attention, come together.
    pub(crate) fn passes(&self) -> &'static [Pass] {
        match self {
            Self::Conv(_) => &[Pass::Forward, Pass::Input, Pass::Weight],
            Self::Map(_) | Self::Attention(_) => &[Pass::Forward, Pass::Input],
        }
    }

    /// Images or rows that show whether a pass is right, and those of the run, if they are more.
    pub(crate) fn counts(&self) -> [usize; 2] {
        let [least, of_run] = match self {
            Self::Conv(conv) => [conv.least(), conv.images],
            Self::Map(map) => [SOME, map.rows],
            Self::Attention(_) => [1, 1],
        };
        [least, of_run.max(least)]
    }

    /// The classes of the blocks in which a pass of so many images or rows is computed; none where there are no classes.
    pub(crate) fn classes(&self, pass: Pass, count: usize) -> Vec<Class> {
        match self {
            Self::Conv(conv) => conv.classes(pass, count),
            Self::Map(map) => vec![map.class(pass, count)],
            Self::Attention(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conv(conv @ Conv { c_out, kernel: k, stride, input: [height, width], .. }) => {
                let maps = conv.channels().iter().map(usize::to_string).collect::<Vec<_>>().join("+");
                write!(f, "{k}x{k} s{stride} {maps}>{c_out} at {width}x{height}")
            }
            Self::Map(map) => map.fmt(f),
            Self::Attention(heads) => heads.fmt(f),
        }
    }
}

impl Work {
    const ALL: [Self; 4] = [Self::Detector, Self::HalfDetector, Self::LanguageModel, Self::HalfLanguageModel];

    /// Whether it is in f16.
    pub(crate) fn half(self) -> bool {
        matches!(self, Self::HalfDetector | Self::HalfLanguageModel)
    }

    /// Whether it is a language model's.
    pub(crate) fn of_words(self) -> bool {
        matches!(self, Self::LanguageModel | Self::HalfLanguageModel)
    }

    /// What is computed by one [`Lowering`] or another.
    pub fn noun(self) -> &'static str {
        if self.of_words() { "products" } else { "convolutions" }
    }

    /// What the flag of its programs calls a lowering: `--conv`, or `--products`.
    pub fn name_of(self, lowering: Lowering) -> &'static str {
        match lowering {
            Lowering::Gemm if self.of_words() => "own",
            Lowering::Direct if self.of_words() => "burn",
            Lowering::Untuned if self.of_words() => "untuned burn",
            lowering => lowering.name(),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Detector => "detector",
            Self::HalfDetector => "f16-detector",
            Self::LanguageModel => "language-model",
            Self::HalfLanguageModel => "f16-language-model",
        })
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|work| work.to_string() == text).ok_or_else(|| format!("unknown work '{text}'"))
    }
}

/// How the probe is run. `ProbeOptions::default()` is what users get.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The executable to start as child; `None`: this one. It must come to [`crate::answer_probe`].
    pub exe: Option<PathBuf>,
    /// Variables to set for the child.
    pub env: Vec<(OsString, OsString)>,
    /// How long one step may take on a card: 15 s.
    pub step_limit: Duration,
    /// How long the first step of a stage that compiles and tunes kernels may take on a card: 60 s.
    pub compile_limit: Duration,
    /// How long any step may take on a software adapter: ten minutes.
    pub software_limit: Duration,
    /// Ignore the remembered verdict.
    pub reprobe: bool,
    /// Time the sizes of block that our own products may have, unless that is remembered, and remember the fastest beside the verdict.
    pub tune: bool,
    /// What the device is for.
    pub work: Work,
    /// The run's own convolutions, or maps and attention: each pass of each is proved, and each class of blocks of the run's batches. Few and small ones on a software adapter,
    /// and none of Burn's there.
    pub shapes: Vec<Shape>,
    /// What the user wrote after `--conv`. `Gemm`: no convolution kernel of Burn's is run. `Direct`: Burn's own convolutions only. Any other:
    /// both ways to compute convolutions on a GPU are proved, Burn's only where the choice may fall on it, and one is chosen. `--products` of language models in the same way.
    pub lowering: Option<Lowering>,
    /// Treat software adapters like hardware. For tests, which have no GPU.
    pub software: bool,
    /// Where verdicts are remembered; `None`: nowhere.
    pub cache_file: Option<PathBuf>,
}

impl ProbeOptions {
    /// What users get who ask for a device for this.
    pub fn of(work: Work) -> Self {
        Self { work, ..Self::default() }
    }

    /// With the limits of an adapter of this kind.
    pub(crate) fn on(&self, kind: AdapterKind) -> Self {
        let (step, compile) = match kind {
            AdapterKind::Software => (self.software_limit, self.software_limit),
            _ => (self.step_limit, self.compile_limit),
        };
        Self { step_limit: step, compile_limit: compile, ..self.clone() }
    }
}

/// A program on the processor compiles every kernel anew for many seconds, whatever the step: lavapipe was over a minute at two steps of LoRA in f16, and is slower where the
/// machine has other work. It is used by those who name it, and its hang costs nobody a driver, so patience is cheap.
const SOFTWARE_LIMIT: Duration = Duration::from_secs(600);

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            exe: None,
            env: Vec::new(),
            step_limit: Duration::from_secs(15),
            compile_limit: Duration::from_secs(60),
            software_limit: SOFTWARE_LIMIT,
            reprobe: false,
            tune: false,
            work: Work::default(),
            shapes: Vec::new(),
            lowering: None,
            software: false,
            cache_file: default_cache_file(),
        }
    }
}

/// `probe.json` in the user's cache folder.
fn default_cache_file() -> Option<PathBuf> {
    bellows_runs::cache_dir().map(|dir| dir.join("probe.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_more_time_than_a_card() {
        let limits = |options: &ProbeOptions, kind| {
            let options = options.on(kind);
            [options.step_limit, options.compile_limit].map(|limit| limit.as_secs())
        };
        let mut options = ProbeOptions::default();
        for kind in [AdapterKind::Discrete, AdapterKind::Integrated, AdapterKind::Virtual, AdapterKind::Other] {
            assert_eq!(limits(&options, kind), [15, 60], "{kind}");
        }
        assert_eq!(limits(&options, AdapterKind::Software), [600, 600]);
        options.software_limit = Duration::from_secs(3);
        assert_eq!(limits(&options, AdapterKind::Software), [3, 3]);
    }
}
