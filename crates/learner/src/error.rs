//! Everything that can stop a training run, each with the sentence a user reads.

use std::path::PathBuf;

use bellows_exit::{Coded, Exit};

use crate::shortage::Shortage;

/// A failure inside a [`Task`](crate::Task): reading data, evaluating, exporting.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Why a run could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// The task's own code failed: a file that cannot be decoded, an evaluation that cannot run.
    #[error("{what}")]
    Task {
        /// What was being done.
        what: String,
        /// Why it failed.
        #[source]
        source: TaskError,
    },
    /// A file operation in the run directory failed.
    #[error(transparent)]
    Store(#[from] bellows_runs::StoreError),
    /// The checkpoints of a run cannot be read.
    #[error(transparent)]
    Load(#[from] bellows_runs::LoadError),
    /// The first checkpoint of a run cannot be written: better known now than after an epoch.
    #[error("the first checkpoint could not be saved")]
    Save(#[source] TaskError),
    /// The last save of the run failed: training is done, but its result is not on disk.
    #[error("the final checkpoint could not be saved")]
    FinalSave(#[source] TaskError),
    /// Training is over and its checkpoint made, but a log, weights or a picture could not be written.
    #[error(transparent)]
    Unwritten(#[from] bellows_runs::Unwritten),
    /// The state holds a number that is not finite: it is not saved, and the checkpoint before it stands.
    #[error("{member}: {reason}")]
    NotFinite {
        /// The member of a checkpoint.
        member: String,
        /// The tensor, the element and its value.
        reason: String,
    },
    /// A checkpoint is intact but does not belong to this run: another model, optimizer or dataset.
    #[error("{}: {reason}", path.display())]
    Mismatch {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// Too many roll-backs: the loss or the gradients keep becoming NaN or infinite.
    #[error("training diverged: {rollbacks} roll-backs, last batch {batch} ({names})")]
    Diverged {
        /// Roll-backs made before giving up.
        rollbacks: u32,
        /// Number of the batch that was skipped last.
        batch: u64,
        /// Its samples.
        names: String,
    },
    /// The device ran out of memory and was lost; how far batches are to be cut, if it was in one, is saved.
    #[error("{what} ({reason}): {advice}; the last checkpoint is kept")]
    Lost {
        /// What did not fit.
        what: String,
        /// The device's words.
        reason: String,
        /// What the user can do about it.
        advice: String,
    },
    /// The device has no memory for what cannot be cut any smaller.
    #[error("{what} ({reason}): {advice}; the last checkpoint is kept")]
    OutOfMemory {
        /// What did not fit.
        what: String,
        /// The device's words.
        reason: String,
        /// What the user can do about it.
        advice: String,
    },
    /// The device failed to compute or to hand back a result.
    #[error("the device failed: {0}")]
    Device(String),
    /// Another rank of the run has other settings, other data, another program or another backend.
    #[error("rank {rank} is not of this run, it differs in {difference}")]
    Unlike {
        /// That rank.
        rank: usize,
        /// What differs.
        difference: String,
    },
    /// A rank has failed, and the run with it.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// That rank.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// A rank cannot be reached.
    #[error("{0}; what is saved is kept")]
    Exchange(#[from] bellows_ranks::ExchangeError),
    /// Settings that contradict each other.
    #[error("{0}")]
    Config(String),
}

impl LearnError {
    /// Wraps a task's failure with what was being done. A device that fails stays one: it has an exit code of its own, and says what it was asked for.
    pub fn task(what: impl Into<String>) -> impl FnOnce(TaskError) -> Self {
        let what = what.into();
        move |source| match source.downcast::<Self>() {
            Ok(own) if matches!(*own, Self::Device(_)) => *own,
            Ok(own) => Self::Task { what, source: own },
            Err(source) => Self::Task { what, source },
        }
    }

    /// The device cannot hand back `what`, with all that it says of it. One whose memory ran out, and which serves on, has not failed.
    pub fn unread(what: &str, error: &dyn std::error::Error) -> Self {
        let words = in_words(error);
        match Shortage::of(&words) {
            Some(Shortage { lost: false, .. }) => Self::Task {
                what: format!("reading {what}: the device has no memory for it, smaller batches take less"),
                source: words.into(),
            },
            _ => Self::Device(format!("reading {what}: {words}")),
        }
    }
}

/// An error and its causes, in one line.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let (mut words, mut next) = (error.to_string(), error.source());
    while let Some(cause) = next {
        words = format!("{words}: {cause}");
        next = cause.source();
    }
    words
}

/// What a task's own code fails at has happened while running, whatever it is.
impl Coded for LearnError {
    fn exit(&self) -> Exit {
        match self {
            Self::FinalSave(_) | Self::Unwritten(_) => Exit::FinalSave,
            Self::Diverged { .. } => Exit::Diverged,
            Self::Mismatch { .. } | Self::Unlike { .. } | Self::Config(_) => Exit::Usage,
            Self::Exchange(error) => error.exit(),
            Self::Load(error) => error.exit(),
            Self::Store(error) => error.exit(),
            Self::Lost { .. } | Self::Device(_) => Exit::Device,
            Self::Task { .. } | Self::Save(_) | Self::Rank { .. } | Self::OutOfMemory { .. } | Self::NotFinite { .. } => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_in_an_evaluation_is_one_that_fails() {
        let unread = |cause: &str| LearnError::task("evaluation")(LearnError::unread("the loss", &LearnError::Save(cause.into())).into());
        for cause in ["gone", "out of memory, and the device is lost"] {
            let (error, told) = (unread(cause), "the device failed: reading the loss: the first checkpoint could not be saved: ");
            assert_eq!((error.to_string(), error.exit()), (format!("{told}{cause}"), Exit::Device));
        }
        let error = unread("out of memory");
        assert_eq!(error.exit(), Exit::Failed);
        let told = "evaluation: reading the loss: the device has no memory for it, smaller batches take less: the first checkpoint could not be saved: out of memory";
        assert_eq!(in_words(&error), told);
        let other = LearnError::task("evaluation")("a file is torn".into());
        assert_eq!((other.to_string().as_str(), other.exit()), ("evaluation", Exit::Failed));
    }
}
