//! An evaluation that ranks share: each judges some of its pieces, and all have what was made of every one, in order, so that what is computed of
//! that is what one rank would compute. A rank that is done before another waits for it as long as that gives signs of life.

use std::cell::Cell;

use bellows_ranks::Exchange;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{LearnError, TaskError};
use crate::wire::{pack, tell};

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

    /// Waits until all ranks are there. Shares may be larger than what a connection holds while the other end does not read, and who does not read is taken for
    /// dead, whatever signs of life it gives.
    fn meet(others: &dyn Exchange) -> Result<(), LearnError> {
        others.gather(&[])?;
        Ok(())
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
                Self::meet(others)?;
                let told = tell::<Option<Vec<(usize, P)>>>(others, &Some(mine))?;
                told.into_iter().collect::<Option<Vec<_>>>().ok_or(Elsewhere)?.into_iter().flatten().collect()
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
            Self::meet(others)?;
            others.gather(&pack(&None::<()>)?)?;
        }
        Ok(self.others)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;
    use std::time::{Duration, Instant};

    use bellows_ranks::Tcp;

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

    /// More than the connection holds, so that who gives its share before another reads is stuck until it does.
    #[test]
    fn a_large_share_waits_for_a_rank_that_works_for_longer_than_the_limit() {
        const SHARE: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let share = |others: &Tcp| {
            let merged = Shared::among(Some(others)).merge(vec![(others.rank(), "x".repeat(SHARE))]);
            merged.map(|shares| shares.iter().map(String::len).collect::<Vec<_>>()).map_err(|error| error.to_string())
        };
        let limit = Duration::from_secs(8);
        let all = thread::scope(|scope| {
            let first = scope.spawn(|| {
                let others = Tcp::host(&listener, 2, &|| None).unwrap();
                others.wait_at_most(limit);
                share(&others)
            });
            let second = scope.spawn(|| {
                let others = Tcp::join(&address, 1, 2, Duration::from_secs(20), &|_| {}).unwrap();
                others.wait_at_most(limit);
                let until = Instant::now() + Duration::from_secs(9);
                while Instant::now() < until {
                    others.sign_of_life();
                    thread::sleep(Duration::from_millis(50));
                }
                share(&others)
            });
            [first, second].map(|rank| rank.join().unwrap())
        });
        for merged in all {
            assert_eq!(merged.unwrap(), [SHARE; 2]);
        }
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
