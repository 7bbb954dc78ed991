//! What becomes of an evaluation that ranks share, when each of them has judged its share or has not.

use serde::{Deserialize, Serialize};

use crate::error::LearnError;
use crate::shared::{Elsewhere, Shared};
use crate::shortage::{Failure, Shortage};
use crate::task::{Evaluation, Interrupted};
use crate::wire::{in_words, tell};

/// What became of an evaluation on one rank.
#[derive(Serialize, Deserialize)]
enum Told {
    Judged(Evaluation),
    Interrupted,
    /// Memory ran out, in the device's words, and whether the device is lost.
    Short(String, bool),
    Failed(String),
    Elsewhere,
}

impl Told {
    fn of(judged: &Result<Evaluation, Failure>) -> Self {
        match judged {
            Ok(evaluation) => Self::Judged(evaluation.clone()),
            Err(Failure::Other(LearnError::Task { source, .. })) if source.is::<Interrupted>() => Self::Interrupted,
            Err(Failure::Other(LearnError::Task { source, .. })) if source.is::<Elsewhere>() => Self::Elsewhere,
            Err(Failure::Other(error)) => Self::Failed(in_words(error)),
            Err(Failure::Memory(shortage)) => Self::Short(shortage.reason.clone(), shortage.lost),
        }
    }
}

/// What all ranks make of an evaluation: the same, whatever became of this one's share.
pub(crate) fn settle(shared: &Shared<'_>, judged: Result<Evaluation, Failure>) -> Result<Evaluation, Failure> {
    let Some(others) = shared.others().map_err(Failure::Other)? else { return judged };
    let all = tell(others, &Told::of(&judged)).map_err(Failure::Other)?;
    if all.iter().any(|told| matches!(told, Told::Interrupted)) {
        return Err(Failure::Other(LearnError::task("evaluation")(Interrupted.into())));
    }
    for (rank, told) in all.iter().enumerate() {
        match told {
            Told::Failed(_) | Told::Short(..) if rank == others.rank() => return judged,
            Told::Failed(reason) => return Err(Failure::Other(LearnError::Rank { rank, reason: reason.clone() })),
            Told::Short(reason, lost) => {
                return Err(Failure::Memory(Shortage { reason: format!("rank {rank}: {reason}"), lost: *lost }));
            }
            _ => {}
        }
    }
    // That of rank 0 is everybody's: devices may differ in the last bit.
    match all.into_iter().next() {
        Some(Told::Judged(evaluation)) => Ok(evaluation),
        _ => judged,
    }
}
