//! The exit codes of the Learner's errors. What a task's own code fails at has happened while running, whatever it is.

use bellows_exit::{Coded, Exit};

use crate::error::LearnError;

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
