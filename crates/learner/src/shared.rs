//! An evaluation that ranks share: each judges some of its pieces, and all have what was made of every one, in order, so that what is computed of
//! that is what one rank would compute. A rank that is done before another waits for it as long as that gives signs of life.

use std::cell::Cell;

use bellows_ranks::Exchange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{LearnError, TaskError};
use crate::wire::{pack, unpack};

/// The ranks that share an evaluation, as one of them sees them; nobody else, for most.
pub struct Shared<'a> {
    others: Option<&'a dyn Exchange>,
    merged: Cell<bool>,
}

/// Another rank has not judged its share; it tells why.
#[derive(Debug, thiserror::Error)]
#[error("another rank has not judged its share")]
pub(crate) struct Elsewhere;

impl<'a> Shared<'a> {
    /// With nobody.
    pub fn alone() -> Self {
        Self::among(None)
    }

    /// With the ranks of an exchange, if there is one.
    pub fn among(others: Option<&'a dyn Exchange>) -> Self {
        Self { others, merged: Cell::new(false) }
    }

    /// Ranks that share it.
    pub fn ranks(&self) -> usize {
        self.others.map_or(1, |others| others.ranks())
    }

    /// Whether the `i`-th piece is this rank's.
    pub fn is_mine(&self, i: usize) -> bool {
        i % self.ranks() == self.others.map_or(0, |others| others.rank())
    }

    /// This rank has judged some more of its share: the others, who may be done with theirs, wait on.
    pub(crate) fn sign_of_life(&self) {
        if let Some(others) = self.others {
            others.sign_of_life();
        }
    }

    /// What every rank gives when all of them are there. Shares may be larger than what a connection holds while the other end does not read, which is no sign
    /// of life and no end of one.
    fn meet(others: &dyn Exchange, mine: &[u8]) -> Result<Vec<Vec<u8>>, LearnError> {
        others.gather(&[])?;
        Ok(others.gather(mine)?)
    }

    /// What was made of every piece, in their order, from what this rank has made of its own. Once in an evaluation, and before anything is
    /// computed of it.
    ///
    /// # Errors
    /// A rank that has failed, was interrupted or is gone.
    pub fn merge<P: Serialize + DeserializeOwned>(&self, mine: Vec<(usize, P)>) -> Result<Vec<P>, TaskError> {
        self.merged.set(true);
        let mut all = match self.others {
            None => mine,
            Some(others) => {
                let told = Self::meet(others, &pack(&Some(mine))?)?;
                let told = told.iter().enumerate().map(|(rank, bytes)| unpack::<Option<Vec<(usize, P)>>>(rank, bytes));
                told.collect::<Result<Vec<_>, _>>()?
                    .into_iter()
                    .collect::<Option<Vec<_>>>()
                    .ok_or(Elsewhere)?
                    .into_iter()
                    .flatten()
                    .collect()
            }
        };
        all.sort_by_key(|(i, _)| *i);
        Ok(all.into_iter().map(|(_, piece)| piece).collect())
    }

    /// The other ranks, if there are any; those that wait for this one's share, which it has not given, hear that it does not come.
    ///
    /// # Errors
    /// A rank that is gone.
    pub(crate) fn others(&self) -> Result<Option<&'a dyn Exchange>, LearnError> {
        if let Some(others) = self.others
            && !self.merged.replace(true)
        {
            Self::meet(others, &pack(&None::<()>)?)?;
        }
        Ok(self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_what_was_made_of_every_piece_in_order() {
        let alone = Shared::alone();
        assert_eq!(alone.merge((0..5).map(|i| (i, f32::NAN.max(i as f32))).collect()).unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0]);
        let merged = std::thread::scope(|scope| {
            let judge = |others: bellows_ranks::Thread| {
                let shared = Shared::among(Some(&others));
                let mine = (0..5).filter(|&i| shared.is_mine(i)).map(|i| (i, (i as f32).sqrt()));
                let merged = shared.merge(mine.collect()).unwrap();
                assert!(shared.others().unwrap().is_some());
                merged
            };
            let all: Vec<_> = bellows_ranks::threads(3).into_iter().map(|others| scope.spawn(move || judge(others))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(merged.iter().all(|pieces| *pieces == (0..5).map(|i| (i as f32).sqrt()).collect::<Vec<_>>()));
    }

    #[test]
    fn who_waits_for_a_share_that_does_not_come_hears_of_it() {
        let [first, second]: [bellows_ranks::Thread; 2] = bellows_ranks::threads(2).try_into().ok().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || Shared::among(Some(&first)).others().unwrap().is_some());
            let error = Shared::among(Some(&second)).merge(vec![(1, 1.0)]).unwrap_err();
            assert!(error.is::<Elsewhere>());
        });
    }
}
