//! How a probe is run, for those who run it, watch it and remember what it said.

use bellows_kernels::Lowering;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How the probe is run. `ProbeOptions::default()` is what users get.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The executable to start as child; `None`: this one. It must route [`crate::PROBE_SUBCOMMAND`] to [`crate::probe_child_main`].
    pub exe: Option<PathBuf>,
    /// Variables to set for the child.
    pub env: Vec<(OsString, OsString)>,
    /// How long one step may take: 15 s. On a software adapter `compile_limit` holds for all steps.
    pub step_limit: Duration,
    /// How long the first step of a stage that compiles and tunes kernels may take: 60 s.
    pub compile_limit: Duration,
    /// Ignore the remembered verdict.
    pub reprobe: bool,
    /// What the user wrote after `--conv`. `Gemm`: no convolution kernel of Burn's is run. `Direct`: Burn's own convolutions only. Any other:
    /// both ways to compute convolutions on a GPU are proved, and one is chosen.
    pub lowering: Option<Lowering>,
    /// Treat software adapters like hardware. For tests, which have no GPU.
    pub software: bool,
    /// Where verdicts are remembered; `None`: nowhere.
    pub cache_file: Option<PathBuf>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            exe: None,
            env: Vec::new(),
            step_limit: Duration::from_secs(15),
            compile_limit: Duration::from_secs(60),
            reprobe: false,
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
