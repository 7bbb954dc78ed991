//! A pass over a batch of which every rank has a part, as if it were in one place: what operations ask for of all parts
//! ([`bellows_kernels::of_all_parts`]) is asked for in the middle of the pass.

use std::cell::RefCell;
use std::rc::Rc;

use bellows_kernels::with_parts;
use bellows_ranks::{Exchange, ExchangeError};

use crate::attempt::Failure;
use crate::error::LearnError;
use crate::ranks::Ranks;
use crate::wire::tell;

/// What `pass` makes of this rank's part of a batch, while the other ranks, if there are any to share it with, pass over theirs.
///
/// Ranks may have unlike numbers of parts, or none, and a pass may fail: who is done answers the others with nothing until all are done.
///
/// # Errors
/// What the pass fails with; a rank that is gone, or computes something else.
pub(crate) fn together<T>(ranks: Option<&Ranks>, pass: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let Some(exchange) = ranks.and_then(Ranks::exchange) else { return pass() };
    let broken: Rc<RefCell<Option<LearnError>>> = Rc::default();
    let gather = {
        let (exchange, broken) = (Rc::clone(exchange), Rc::clone(&broken));
        move |mine: &[f64]| {
            // Operations cannot fail: after an error the pass goes on alone, for nothing.
            let alone = || vec![mine.to_vec()];
            if broken.borrow().is_some() {
                return alone();
            }
            ask(&*exchange, mine).unwrap_or_else(|error| {
                broken.replace(Some(error));
                alone()
            })
        }
    };
    let done = with_parts(Rc::new(gather), pass);
    if broken.borrow().is_none() {
        answer(&**exchange).map_err(Failure::Other)?;
    }
    match broken.take() {
        Some(error) => Err(Failure::Other(error)),
        None => done,
    }
}

/// These numbers of all ranks that are not done.
fn ask(others: &dyn Exchange, mine: &[f64]) -> Result<Vec<Vec<f64>>, LearnError> {
    let told = tell(others, &Some(mine.to_vec()))?;
    let unlike = told.iter().position(|theirs: &Option<Vec<f64>>| theirs.as_ref().is_some_and(|theirs| theirs.len() != mine.len()));
    match unlike {
        Some(rank) => Err(ExchangeError::Unlike { rank }.into()),
        None => Ok(told.into_iter().flatten().collect()),
    }
}

/// Until nobody asks any more.
fn answer(others: &dyn Exchange) -> Result<(), LearnError> {
    while tell::<Option<Vec<f64>>>(others, &None)?.iter().any(Option::is_some) {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use bellows_kernels::of_all_parts;
    use bellows_ranks::{Thread, threads};

    use super::*;
    use crate::phase::Limits;

    /// What each of three ranks makes of `pass`, which is given its number.
    fn on_ranks<T: Send>(pass: impl Fn(usize) -> Result<T, Failure> + Sync) -> Vec<Result<T, String>> {
        let pass = &pass;
        let rank = |exchange: Thread| {
            let rank = exchange.rank();
            let ranks = Ranks::of(Rc::new(exchange), Limits::default());
            together(Some(&ranks), || pass(rank)).map_err(|failure| match failure {
                Failure::Other(error) => error.to_string(),
                Failure::Memory(shortage) => shortage.reason,
            })
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = threads(3).into_iter().map(|exchange| scope.spawn(|| rank(exchange))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn ranks_with_unlike_numbers_of_parts_pass_over_them_together() {
        // Rank 0 has two parts, rank 1 one, rank 2 none.
        let made = on_ranks(|rank| Ok((rank..2).map(|part| of_all_parts(vec![(10 * rank + part) as f64])).collect::<Vec<_>>()));
        let made: Vec<Vec<Vec<Vec<f64>>>> = made.into_iter().map(Result::unwrap).collect();
        assert_eq!(made[0], [vec![vec![0.0], vec![11.0]], vec![vec![1.0]]]);
        assert_eq!((&made[1], &made[2]), (&vec![vec![vec![0.0], vec![11.0]]], &vec![]));
        assert_eq!(of_all_parts(vec![1.0]), [[1.0]], "and alone again");
    }

    #[test]
    fn a_pass_that_fails_keeps_nobody_waiting() {
        let made = on_ranks(|rank| match rank {
            1 => Err(Failure::Other(LearnError::Config("no".into()))),
            _ => Ok(of_all_parts(vec![rank as f64])),
        });
        assert_eq!(made[0], Ok(vec![vec![0.0], vec![2.0]]));
        assert_eq!(made[2], made[0]);
        assert!(made[1].as_ref().is_err_and(|error| error.contains("no")));
    }

    #[test]
    fn a_rank_that_computes_something_else_is_an_error_and_no_sum() {
        let made = on_ranks(|rank| Ok(of_all_parts(vec![0.0; 1 + rank / 2]).len()));
        assert!(made.iter().all(|made| made.as_ref().is_err_and(|error| error.contains("something else"))), "{made:?}");
    }
}
