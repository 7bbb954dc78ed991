//! What several processes that train one model (its ranks) exchange: one trait with one operation, and what is made of it.
//!
//! A rank gives every rank a part and gets one from each ([`Exchange::swap`]). Sums are made of that in the order of the ranks, whatever
//! the network does, so a number of ranks gives the same bits every time. Ranks are threads of one process ([`threads`]) or processes that
//! reach each other over TCP ([`Tcp`]).

mod error;
mod floats;
mod tcp;
mod threads;

pub use error::ExchangeError;
pub use tcp::{Meeting, Tcp};
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
    fn swap(&self, parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, ExchangeError>;

    /// What every rank gives, by rank.
    ///
    /// # Errors
    /// As [`Exchange::swap`].
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.swap(vec![mine.to_vec(); self.ranks()])
    }

    /// What rank 0 gives; what the others give counts for nothing.
    ///
    /// # Errors
    /// As [`Exchange::swap`].
    fn first(&self, mine: &[u8]) -> Result<Vec<u8>, ExchangeError> {
        let part = if self.rank() == 0 { mine } else { &[] };
        Ok(self.swap(vec![part.to_vec(); self.ranks()])?.swap_remove(0))
    }

    /// Adds up `values` over all ranks, each in the order of the ranks: rank `i` adds the `i`-th part and gives it to all.
    ///
    /// # Errors
    /// As [`Exchange::swap`]; another number of values on another rank.
    fn sum(&self, values: &mut [f32]) -> Result<(), ExchangeError> {
        let (rank, ranks, len) = (self.rank(), self.ranks(), values.len());
        let parts = self.swap((0..ranks).map(|i| to_bytes(&values[share(len, ranks, i)])).collect())?;
        let mut sum = vec![0.0; share(len, ranks, rank).len()];
        for (from, part) in parts.iter().enumerate() {
            let part = from_bytes(part);
            if part.len() != sum.len() {
                return Err(ExchangeError::Unlike { rank: from });
            }
            // The first as it is: 0 + x is not x where x is -0.
            match from {
                0 => sum = part,
                _ => add(&mut sum, &part),
            }
        }
        for (from, part) in self.gather(&to_bytes(&sum))?.iter().enumerate() {
            let (part, place) = (from_bytes(part), share(len, ranks, from));
            if part.len() != place.len() {
                return Err(ExchangeError::Unlike { rank: from });
            }
            values[place].copy_from_slice(&part);
        }
        Ok(())
    }
}
