//! Ranks that are threads of one process.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{Exchange, ExchangeError};

/// A rank that is a thread.
pub struct Thread {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

/// So many ranks that know each other, one for each thread.
pub fn threads(ranks: usize) -> Vec<Thread> {
    let mut all: Vec<Thread> = (0..ranks).map(|rank| Thread { rank, to: Vec::new(), from: Vec::new() }).collect();
    for giver in 0..ranks {
        for taker in 0..ranks {
            let (to, from) = channel();
            all[giver].to.push(to);
            // In the order of the givers, for that is the outer loop.
            all[taker].from.push(from);
        }
    }
    all
}

impl Exchange for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let gone = |rank| ExchangeError::Gone { rank, reason: "its thread has ended".into() };
        for (rank, (to, part)) in self.to.iter().zip(parts).enumerate() {
            to.send(part.to_vec()).map_err(|_| gone(rank))?;
        }
        self.from.iter().enumerate().map(|(rank, from)| from.recv().map_err(|_| gone(rank))).collect()
    }
}
