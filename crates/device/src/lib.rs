//! Choose a compute device, prove it, fall back and say why.
//!
//! This is the only crate that names Burn backends. [`select`] turns what the user asked for ([`DeviceRequest`]) into a Burn device.
//! A GPU is not trusted on its driver's word: drivers hang, crash and compute wrong numbers, so a child process does a staged piece of
//! training on it first and compares every number with the CPU, once with our own kernels and once
//! with Burn's, in the [`Work`] and precision at hand; what it may be used with is part of the answer ([`Selected::lowering`]). `auto` falls back to the CPU and tells the
//! reason; a device named by the user fails instead. Software Vulkan is refused unless named.
//!
//! The child is this program, started again with a hidden subcommand: it relies on the binary to call [`answer_probe`] first. It never sets driver variables
//! such as `HSA_OVERRIDE_GFX_VERSION`: [`doctor`] prints them and says what is known about the card.

mod adapter;
mod adapters;
mod assigned;
mod cache;
mod cards;
mod checks;
mod child;
mod convolutions;
mod decoder;
mod detector;
mod doctor;
mod error;
mod facts;
mod flat;
mod heads;
mod known_issues;
mod made;
mod maps;
mod options;
mod plan;
mod probe;
mod program;
mod proofs;
mod protocol;
mod report;
mod request;
mod select;
mod smi;
mod telemetry;
mod timing;
mod tuning;
mod watch;

pub use adapter::{Adapter, AdapterKind, Backend};
pub use bellows_kernels::cube::{Counted, Done};
pub use bellows_kernels::{Lowering, processor};
pub use cards::{CARDS, Card};
pub use child::{PROBE_SUBCOMMAND, answer_probe};
pub use convolutions::Conv;
pub use doctor::doctor;
pub use error::DeviceError;
pub use heads::Heads;
pub use maps::{LinearMap, Storage};
pub use options::{ProbeOptions, Shape, Work};
pub use program::this_program;
pub use protocol::Stage;
pub use report::{PathReport, ProbeReport, Speed, StageReport, Verdict};
pub use request::{DeviceRequest, RequestError};
pub use select::{Selected, select};
pub use telemetry::{Reading, Telemetry};
