//! The shared Learner: it knows no model, it loses nothing.
//!
//! A model joins by implementing [`Task`]; data comes from any Burn `Dataset`; burn-train's metrics and renderers plug in. The loop and
//! the checkpoints are ours because a resumed run has to end in the same bits as one that was never interrupted: everything that
//! survives is in [`RunState`], every random draw is a hash of (seed, stream, epoch, index), and nothing depends on a thread or a clock.

mod adaptive;
mod arenas;
pub mod bench;
mod config;
mod counters;
mod dashboard;
mod discrete;
mod ema;
mod entry;
mod error;
mod exit;
mod grads;
mod host;
mod identity;
mod judge;
mod layout;
mod learner;
mod level;
mod loader;
mod log;
mod meet;
pub mod memory;
mod metrics;
mod observe;
mod optim;
mod parts;
mod phase;
mod plan;
mod profile;
mod ranks;
mod rescue;
pub mod rng;
mod run;
mod sampler;
mod scaling;
mod schedule;
mod settle;
mod shared;
mod shortage;
mod state;
mod step;
mod task;
mod tensorboard;
mod train;
mod watchers;
mod wire;

pub use arenas::Arenas;
pub use config::LearnerConfig;
pub use counters::{Counters, Place};
pub use dashboard::Dashboard;
pub use ema::Ema;
pub use entry::Entry;
pub use error::{LearnError, TaskError};
pub use grads::GradBuffer;
pub use identity::Identity;
pub use layout::{HostTensor, Layout, ParamGrads, Role};
pub use learner::Learner;
pub use loader::Loader;
pub use log::format_g;
pub use observe::{BatchReport, EpochReport, Gauge, Notice, Observer, RunInfo};
pub use optim::{Constants, Optimizer, OptimizerKind};
pub use phase::{Limits, Phase};
pub use profile::{Stage, StepTimes, Stopwatch};
pub use rng::Rng;
pub use run::Outcome;
pub use sampler::epoch_order;
pub use scaling::{LossScale, LossScaling};
pub use schedule::{Decay, EpochSchedule, Hyper, Schedule, UpdateSchedule};
pub use shared::Shared;
pub use state::{Members, RunState};
pub use task::{Draw, EvalContext, Evaluation, Group, Interrupted, RunFile, StepOutput, Task, Unreadable};
