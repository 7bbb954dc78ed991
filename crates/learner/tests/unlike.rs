//! Ranks that are not alike: refused before they begin, or known after an epoch by what they have learnt.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ranks::{on_threads, rank};
use crate::toy::{Toy, data, net, of_ranks as config};
use bellows_exit::{Coded, Exit};
use bellows_learner::{Identity, LearnError, Learner, Limits, Wire};
use bellows_ranks::{Exchange, ExchangeError, Thread};
use bellows_runs::{Checkpoints, RunDir};
use burn::tensor::Device;

/// One of two ranks, on that device of that backend.
fn on(dir: &Path, exchange: impl Exchange + 'static, [backend, name]: [&str; 2]) -> Result<Learner<Toy>, LearnError> {
    let run = if exchange.rank() == 0 { RunDir::create(dir, "run", true).unwrap() } else { RunDir::nowhere() };
    let mut learner = Learner::new(Toy::default(), net(&Device::flex()), &Device::flex(), config(2), run, Identity::default())?;
    learner.computes_on(backend, name).join(Rc::new(exchange), "this program", Limits::default())?;
    Ok(learner)
}

#[test]
fn a_rank_that_is_another_is_refused_with_the_difference() {
    let dir = tempfile::tempdir().unwrap();
    let errors = on_threads(3, |exchange| {
        let data = if exchange.rank() == 2 { "def" } else { "abc" };
        rank(dir.path(), exchange, Toy::default(), config(3), Identity::default().with("data", data)).err().unwrap().to_string()
    });
    assert_eq!(errors, ["rank 2 is not of this run, it differs in the data"; 3]);
}

/// As where one of two machines has no driver for its card.
#[test]
fn ranks_in_two_backends_are_refused_before_they_begin() {
    let dir = tempfile::tempdir().unwrap();
    let errors = on_threads(2, |exchange| {
        let device = [["vulkan", "a card"], ["flex", "a processor, 8 threads"]][exchange.rank()];
        let error = on(dir.path(), exchange, device).err().unwrap();
        (error.to_string(), error.exit())
    });
    let devices = "flex (a processor, 8 threads) and vulkan (a card) on rank 0: name one with --device";
    let expected = (format!("rank 1 is not of this run, it differs in the device, which is {devices}"), Exit::Usage);
    assert_eq!(errors, [expected.clone(), expected]);
}

/// Gives another number than it was given in one sum, the one that comes after so many, as a bad memory may.
struct Turning {
    exchange: Thread,
    left: AtomicUsize,
}

impl Exchange for Turning {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn ranks(&self) -> usize {
        self.exchange.ranks()
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.exchange.swap(parts)
    }

    fn sum(&self, values: &mut [f32], wire: Wire) -> Result<(), ExchangeError> {
        self.exchange.sum(values, wire)?;
        let turns = self.left.fetch_sub(1, Ordering::SeqCst) == 0;
        if let Some(largest) = values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).filter(|_| turns) {
            *largest = -*largest;
        }
        Ok(())
    }
}

/// One bit of one sum, in the middle of the first epoch: as a rank may make that computes on another card, which is told of at the beginning. No checkpoint
/// is made of it.
#[test]
fn ranks_that_have_learnt_something_else_are_known_after_the_epoch() {
    let ended = |names: [&str; 2]| {
        let dir = tempfile::tempdir().unwrap();
        let ended = on_threads(2, |exchange| {
            let left = AtomicUsize::new(if exchange.rank() == 1 { 2 } else { usize::MAX });
            let device = ["vulkan", names[exchange.rank()]];
            let mut learner = on(dir.path(), Turning { exchange, left }, device).unwrap();
            let error = learner.fit(&data()).unwrap_err();
            (error.to_string(), learner.state().counters.epoch)
        });
        assert_eq!(ended[0], ended[1]);
        let newest = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap().latest().unwrap().checkpoint.unwrap();
        assert_eq!((newest.step, ended[0].1), (0, 0));
        let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
        (ended[0].0.clone(), events.contains("rank 1 computes on vulkan (B), and rank 0 on vulkan (A)"))
    };
    let alike = "rank 1: its weights are not those of rank 0";
    assert_eq!(ended(["A", "A"]), (alike.to_string(), false));
    assert_eq!(ended(["A", "B"]), (format!("{alike}: it computes on vulkan (B), and rank 0 on vulkan (A)"), true));
}
