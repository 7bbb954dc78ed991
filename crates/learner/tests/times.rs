//! Where the time of a step goes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use crate::ranks::{on_threads, rank};
use crate::toy::{Toy, data, identity, of_ranks};
use bellows_learner::bench::StepTimer;
use bellows_learner::{LearnerConfig, StepTimes};
use bellows_ranks::Exchange;

/// Every batch of rank 1 takes a while, for which rank 0 waits.
#[test]
fn waiting_for_another_rank_is_no_update() {
    let (dir, pause) = (tempfile::tempdir().unwrap(), Duration::from_millis(250));
    let all = on_threads(2, |exchange| {
        let toy = Toy { pause: if exchange.rank() == 1 { pause } else { Duration::ZERO }, ..Toy::default() };
        let config = LearnerConfig { max_steps: Some(3), ..of_ranks(2) };
        let mut learner = rank(dir.path(), exchange, toy, config, identity()).unwrap();
        let timer = StepTimer::default();
        learner.observe(timer.clone());
        learner.fit(&data()).unwrap();
        timer.after(0)
    });
    let sum = |rank: usize, of: fn(&StepTimes) -> f64| all[rank].iter().map(of).sum::<f64>();
    let paused = pause.as_secs_f64() * all[1].len() as f64;
    assert!(all[1].len() >= 3 && sum(1, |times| times.backward) >= paused, "{:?}", all[1]);
    // They begin a step together, as far as a busy machine lets them.
    let [exchange, update] = [sum(0, |times| times.exchange), sum(0, |times| times.update)];
    assert!(exchange >= 0.5 * paused && update < 0.5 * paused, "{:?}", all[0]);
}
