//! Ranks that are not alike: refused before they begin, or known by what they have learnt before a checkpoint is made of it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ranks::{on_threads, rank};
use crate::toy::{Toy, data, net, of_ranks as config};
use bellows_exit::{Coded, Exit};
use bellows_learner::{Identity, LearnError, Learner, LearnerConfig, Limits, Wire};
use bellows_ranks::{Exchange, ExchangeError, Thread};
use bellows_runs::{Checkpoints, RunDir};
use burn::tensor::Device;

/// One of two ranks, on that device of that backend.
fn on(
    dir: &Path,
    exchange: impl Exchange + 'static,
    config: LearnerConfig,
    [backend, name]: [&str; 2],
) -> Result<Learner<Toy>, LearnError> {
    let run = if exchange.rank() == 0 { RunDir::create(dir, "run", true).unwrap() } else { RunDir::nowhere() };
    let mut learner = Learner::new(Toy::default(), net(&Device::flex()), &Device::flex(), config, run, Identity::default())?;
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
        let device = [["vulkan", "a card"], ["flex", "a processor"]][exchange.rank()];
        let error = on(dir.path(), exchange, config(2), device).err().unwrap();
        (error.to_string(), error.exit())
    });
    let devices = "flex (a processor) and vulkan (a card) on rank 0: name one with --device";
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

/// One bit of one sum, that of the third batch: as a rank may make that computes on another card, which is told of at the beginning. No checkpoint is made of
/// it, whether it is the epoch that is over, or the run within it, or minutes.
#[test]
fn ranks_that_have_learnt_something_else_are_known_before_the_next_checkpoint() {
    let ended = |names: [&str; 2], config: &LearnerConfig| {
        let dir = tempfile::tempdir().unwrap();
        let ended = on_threads(2, |exchange| {
            let left = AtomicUsize::new(if exchange.rank() == 1 { 2 } else { usize::MAX });
            let device = ["vulkan", names[exchange.rank()]];
            let mut learner = on(dir.path(), Turning { exchange, left }, config.clone(), device).unwrap();
            let error = learner.fit(&data()).unwrap_err();
            let counters = &learner.state().counters;
            (error.to_string(), counters.epoch, counters.position)
        });
        assert_eq!(ended[0], ended[1]);
        let newest = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap().latest().unwrap().checkpoint.unwrap();
        assert_eq!(ended[0].1, 0);
        let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
        (ended[0].0.clone(), ended[0].2, newest.step, events.contains("rank 1 computes on vulkan (B), and rank 0 on vulkan (A)"))
    };
    let alike = "rank 1: its weights are not those of rank 0";
    let unlike = format!("{alike}: it computes on vulkan (B), and rank 0 on vulkan (A)");
    assert_eq!(ended(["A", "B"], &config(2)), (unlike, 6, 0, true));
    let known = |config: LearnerConfig| ended(["A", "A"], &config);
    assert_eq!(known(config(2)), (alike.to_string(), 6, 0, false));
    assert_eq!(known(LearnerConfig { max_steps: Some(4), ..config(2) }), (alike.to_string(), 4, 0, false));
    assert_eq!(known(LearnerConfig { checkpoint_minutes: 0.0, ..config(2) }), (alike.to_string(), 3, 2, false));
}
