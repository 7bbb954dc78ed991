//! What becomes of an evaluation that ranks share, when each of them has judged its share or has not.

use serde::{Deserialize, Serialize};

use crate::attempt::Failure;
use crate::error::{LearnError, in_words};
use crate::shared::{Elsewhere, Shared};
use crate::shortage::Shortage;
use crate::task::{Evaluation, Interrupted};
use crate::wire::tell;

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
    // Who has lost its device saves nothing, and who saves waits for the others: all do the same.
    let lost = all.iter().any(|told| matches!(told, Told::Short(_, true)));
    for (rank, told) in all.iter().enumerate() {
        match told {
            Told::Failed(_) | Told::Short(..) if rank == others.rank() => {
                return judged.map_err(|failure| match failure {
                    Failure::Memory(own) => Failure::Memory(Shortage { lost, ..own }),
                    failure => failure,
                });
            }
            Told::Failed(reason) => return Err(Failure::Other(LearnError::Rank { rank, reason: reason.clone() })),
            Told::Short(reason, _) => return Err(Failure::Memory(Shortage { reason: format!("rank {rank}: {reason}"), lost })),
            _ => {}
        }
    }
    // That of rank 0 is everybody's: devices may differ in the last bit.
    match all.into_iter().next() {
        Some(Told::Judged(evaluation)) => Ok(evaluation),
        _ => judged,
    }
}

#[cfg(test)]
mod tests {
    use bellows_ranks::{Exchange, Thread, threads};

    use super::*;

    /// What becomes of an evaluation on three ranks, of which the second is short of memory, and the third, too, has lost its device to that.
    #[test]
    fn a_device_that_is_lost_is_lost_for_all() {
        let settled = |exchange: Thread| {
            let short = |lost| Err(Failure::Memory(Shortage { reason: "out of memory".into(), lost }));
            let evaluation = Evaluation { fitness: 0.0, metrics: Vec::new(), samples: 0, objects: 0, unreadable: Vec::new() };
            let own = match exchange.rank() {
                0 => Ok(evaluation),
                rank => short(rank == 2),
            };
            match settle(&Shared::among(Some(&exchange)), own) {
                Err(Failure::Memory(Shortage { reason, lost })) => (reason, lost),
                Err(Failure::Other(error)) => panic!("{error}"),
                Ok(_) => panic!("it is judged"),
            }
        };
        let all: Vec<(String, bool)> = std::thread::scope(|scope| {
            let all: Vec<_> = threads(3).into_iter().map(|exchange| scope.spawn(move || settled(exchange))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(all, ["rank 1: out of memory", "out of memory", "rank 1: out of memory"].map(|reason| (reason.to_string(), true)));
    }
}
