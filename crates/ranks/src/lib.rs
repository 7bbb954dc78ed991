//! What several processes that train one model (its ranks) exchange: one trait with one operation, and what is made of it.
//!
//! A rank gives every rank a part and gets one from each ([`Exchange::swap`]). Sums are made of that in the order of the ranks, whatever
//! the network does, so a number of ranks gives the same bits every time. Ranks are threads of one process ([`threads`]) or processes that
//! reach each other over TCP ([`Tcp`]).

mod error;
mod floats;
mod tcp;
mod threads;

use std::time::Duration;

pub use error::ExchangeError;
pub use tcp::Tcp;
pub use threads::{Thread, threads};

use floats::{add, from_bytes, share, to_bytes};

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

    /// From here on a rank that says nothing for so long is taken for dead, where an exchange can tell.
    fn wait_at_most(&self, _patience: Duration) {}

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

    /// Adds up `values` over all ranks, each in the order of the ranks: rank `i` adds the `i`-th part and gives it to all.
    ///
    /// # Errors
    /// As [`Exchange::swap`]; another number of values on another rank.
    fn sum(&self, values: &mut [f32]) -> Result<(), ExchangeError> {
        let (rank, ranks, len) = (self.rank(), self.ranks(), values.len());
        let bytes = to_bytes(values);
        let shares: Vec<&[u8]> = (0..ranks).map(|i| share(len, ranks, i)).map(|part| &bytes[4 * part.start..4 * part.end]).collect();
        let parts = self.swap(&shares)?;
        let mine = share(len, ranks, rank).len();
        let mut sum = Vec::new();
        for (from, part) in parts.iter().enumerate() {
            if part.len() != 4 * mine {
                return Err(ExchangeError::Unlike { rank: from });
            }
            // The first as it is: 0 + x is not x where x is -0.
            match from {
                0 => sum = from_bytes(part).collect(),
                _ => add(&mut sum, from_bytes(part)),
            }
        }
        for (from, part) in self.gather(&to_bytes(&sum))?.iter().enumerate() {
            let place = share(len, ranks, from);
            if part.len() != 4 * place.len() {
                return Err(ExchangeError::Unlike { rank: from });
            }
            values[place].iter_mut().zip(from_bytes(part)).for_each(|(value, sum)| *value = sum);
        }
        Ok(())
    }
}
