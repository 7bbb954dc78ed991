//! Why ranks do not reach each other.

use bellows_exit::{Coded, Exit};

/// A rank that cannot be reached, or is another run's.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExchangeError {
    /// It has ended, or the network has lost it.
    #[error("rank {rank} is gone: {reason}")]
    Gone {
        /// The rank.
        rank: usize,
        /// What the system said.
        reason: String,
    },
    /// It is there, and has given no sign of life for as long as it may.
    #[error("rank {rank} is gone: it said nothing for too long")]
    Silent {
        /// The rank.
        rank: usize,
        /// How long that is.
        seconds: f64,
    },
    /// It has more or less to give than this one: it does something else.
    #[error("rank {rank} exchanges something else than this one")]
    Unlike {
        /// The rank.
        rank: usize,
    },
    /// There is no meeting.
    #[error("rank {rank} cannot meet the others at {address}: {reason}")]
    NoMeeting {
        /// This rank.
        rank: usize,
        /// Where rank 0 waits.
        address: String,
        /// What the system said.
        reason: String,
    },
}

/// Starting again may help.
impl Coded for ExchangeError {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}
