//! Where the time of a step goes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use crate::ranks::{on_threads, rank};
use crate::toy::{Toy, data, identity, of_ranks};
use bellows_learner::LearnerConfig;
use bellows_learner::bench::StepTimer;
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
    let pause = pause.as_secs_f64();
    assert!(all[1].len() >= 3 && all[1].iter().all(|times| times.backward >= pause), "{:?}", all[1]);
    // They begin a step together, but a busy machine may take time from any of them.
    assert!(all[0].iter().any(|times| times.exchange >= 0.5 * pause && times.update < 0.5 * pause), "{:?}", all[0]);
}
