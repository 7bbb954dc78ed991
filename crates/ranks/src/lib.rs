//! What several processes that train one model (its ranks) exchange: one trait with one operation, and what is made of it.
//!
//! A rank gives every rank a part and gets one from each ([`Exchange::swap`]). Sums are made of that in the order of the ranks, whatever
//! the network does, so a number of ranks gives the same bits every time. Ranks are threads of one process ([`threads`]), or processes that
//! reach each other over TCP ([`Tcp`]) or over MPI (`bellows-mpi`).

mod error;
mod floats;
mod tcp;
mod threads;

use std::time::Duration;

pub use error::ExchangeError;
pub use floats::Wire;
pub use tcp::{Tcp, listen};
pub use threads::{Thread, threads};

use floats::share;

/// The ranks of a run as one of them sees the others. Every call is made by all ranks, in the same order; it ends when all have made it.
pub trait Exchange {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Gives `parts[i]` to rank `i` (this one too) and returns what each rank gave to this one, by rank.
    ///
    /// # Errors
    /// A rank that is gone, or silent for too long.
    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// The same for another thread than the one it was made on, if it may be used there; by one at a time.
    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        None
    }

    /// From here on a rank that says nothing for so long is taken for dead, where an exchange can tell.
    fn wait_at_most(&self, _patience: Duration) {}

    /// This rank is well and still busy with work of its own: whoever waits for it waits on, where an exchange can tell. From the thread that exchanges, between
    /// two exchanges; as often as one likes, for few of them travel.
    fn sign_of_life(&self) {}

    /// Whether signs of life reach who waits, where one waits with a limit at all.
    fn hears_signs_of_life(&self) -> bool {
        true
    }

    /// What every rank gives, by rank.
    ///
    /// # Errors
    /// As [`Exchange::swap`].
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.swap(&vec![mine; self.ranks()])
    }

    /// What rank 0 gives; what the others give counts for nothing.
    ///
    /// # Errors
    /// As [`Exchange::swap`].
    fn first(&self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        let part: &[u8] = if self.rank() == 0 { mine } else { &[] };
        Ok(self.swap(&vec![part; self.ranks()])?.swap_remove(0))
    }

    /// Adds up `values` over all ranks, each in the order of the ranks: rank `i` adds the `i`-th part and gives it to all. They travel as `wire`
    /// says, from every rank and from the one that adds, also to itself: all have the same bits.
    ///
    /// # Errors
    /// As [`Exchange::swap`]; another number of values on another rank.
    fn sum(&self, values: &mut [f32], wire: Wire) -> Result<(), ExchangeError> {
        let (rank, ranks, len, width) = (self.rank(), self.ranks(), values.len(), wire.width());
        let bytes = wire.encode(values);
        let shares: Vec<&[u8]> =
            (0..ranks).map(|i| share(len, ranks, i)).map(|part| &bytes[width * part.start..width * part.end]).collect();
        let mut sum = vec![0.0; share(len, ranks, rank).len()];
        for (from, part) in self.swap(&shares)?.iter().enumerate() {
            if part.len() != width * sum.len() {
                return Err(ExchangeError::Unlike { rank: from });
            }
            match from {
                // As it is: 0 + x is not x where x is -0.
                0 => wire.decode(part, &mut sum, |sum, value| *sum = value),
                _ => wire.decode(part, &mut sum, |sum, value| *sum += value),
            }
        }
        for (from, part) in self.gather(&wire.encode(&sum))?.iter().enumerate() {
            let place = share(len, ranks, from);
            if part.len() != width * place.len() {
                return Err(ExchangeError::Unlike { rank: from });
            }
            wire.decode(part, &mut values[place], |value, sum| *value = sum);
        }
        Ok(())
    }
}
