//! Ranks that are threads of one process.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use crate::{Exchange, ExchangeError};

/// A rank that is a thread.
pub struct Thread {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Mutex<Vec<Receiver<Vec<u8>>>>,
}

/// So many ranks that know each other, one for each thread.
pub fn threads(ranks: usize) -> Vec<Thread> {
    let mut ends: Vec<(Vec<Sender<_>>, Vec<Receiver<_>>)> = (0..ranks).map(|_| Default::default()).collect();
    for giver in 0..ranks {
        for taker in 0..ranks {
            let (to, from) = channel();
            ends[giver].0.push(to);
            // In the order of the givers, for that is the outer loop.
            ends[taker].1.push(from);
        }
    }
    ends.into_iter().enumerate().map(|(rank, (to, from))| Thread { rank, to, from: Mutex::new(from) }).collect()
}

impl Exchange for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        Some(self)
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let gone = |rank| ExchangeError::Gone { rank, reason: "its thread has ended".into() };
        for (rank, (to, part)) in self.to.iter().zip(parts).enumerate() {
            to.send(part.to_vec()).map_err(|_| gone(rank))?;
        }
        let from = self.from.lock().unwrap_or_else(PoisonError::into_inner);
        from.iter().enumerate().map(|(rank, from)| from.recv().map_err(|_| gone(rank))).collect()
    }
}
