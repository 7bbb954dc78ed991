//! The shared Learner: it knows no model, it loses nothing.
//!
//! A model joins by implementing [`Task`]; data comes from any Burn `Dataset`; burn-train's metrics and renderers plug in. The loop and
//! the checkpoints are ours because a resumed run has to end in the same bits as one that was never interrupted: everything that
//! survives is in [`RunState`], every random draw is a hash of (seed, stream, epoch, index), and nothing depends on a thread or a clock.

pub mod bench;
mod dashboard;
mod ema;
mod error;
mod exit;
mod grads;
mod layout;
mod learner;
mod loader;
mod log;
mod metrics;
mod observe;
mod optim;
mod profile;
pub mod rng;
mod sampler;
mod schedule;
mod shortage;
mod state;
mod step;
mod task;
mod tensorboard;

pub use dashboard::Dashboard;
pub use ema::Ema;
pub use error::{LearnError, TaskError};
pub use grads::{GradBuffer, clip_to_norm};
pub use layout::{Entry, HostTensor, Layout, ParamGrads, Role};
pub use learner::{Learner, LearnerConfig, Outcome};
pub use loader::Loader;
pub use log::format_g;
pub use observe::{BatchReport, EpochReport, Gauge, Notice, Observer, RunInfo};
pub use optim::{Optimizer, OptimizerKind};
pub use profile::{Stage, StepTimes, Stopwatch};
pub use rng::Rng;
pub use sampler::epoch_order;
pub use schedule::{Decay, EpochSchedule, Hyper, Schedule, UpdateSchedule};
pub use state::{Counters, Members, RunState};
pub use task::{Draw, EvalContext, Evaluation, Group, Interrupted, StepOutput, Task};
pub use tensorboard::TensorBoard;
