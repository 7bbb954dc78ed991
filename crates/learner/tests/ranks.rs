//! Several ranks train what one would: the same samples, the same updates, the same bits every time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::toy::{self, SAMPLES, StopAfter, Toy, data, ending, net, of_ranks as config};
use bellows_exit::{Coded, Exit};
use bellows_learner::{
    EpochReport, Identity, LearnError, Learner, LearnerConfig, Limits, Observer, OptimizerKind, Outcome, Phase, Schedule, UpdateSchedule,
    Wire, epoch_order,
};
use bellows_ranks::{Exchange, ExchangeError, Tcp, Thread, threads};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

/// A rank's Learner: rank 0 in `dir`, the others nowhere.
pub(crate) fn rank(
    dir: &Path,
    exchange: impl Exchange + 'static,
    toy: Toy,
    config: LearnerConfig,
    identity: Identity,
) -> Result<Learner<Toy>, LearnError> {
    let run = if exchange.rank() == 0 { RunDir::create(dir, "run", true).unwrap() } else { RunDir::nowhere() };
    let mut learner = Learner::new(toy, net(&Device::flex()), &Device::flex(), config, run, identity)?;
    learner.join(Rc::new(exchange), "this program", Limits::default())?;
    learner.resume()?;
    Ok(learner)
}

/// What each of so many ranks makes of `work`, on a thread of its own.
pub(crate) fn on_threads<T: Send>(ranks: usize, work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let all: Vec<_> = threads(ranks).into_iter().map(|exchange| scope.spawn(move || work(exchange))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The same of `work` that is given its number and its Learner.
fn on_ranks<T: Send>(
    dir: &Path,
    ranks: usize,
    config: &LearnerConfig,
    toy: impl Fn(usize) -> Toy + Sync,
    work: impl Fn(usize, &mut Learner<Toy>) -> T + Sync,
) -> Vec<T> {
    on_threads(ranks, |exchange| {
        let (number, identity) = (exchange.rank(), Identity::default().with("model", "toy"));
        let mut learner = rank(dir, exchange, toy(number), config.clone(), identity).unwrap();
        work(number, &mut learner)
    })
}

fn finish(_: usize, learner: &mut Learner<Toy>) {
    assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
}

/// Batches of 16 samples at most for so many ranks, whose gradient is divided by their number, without batch statistics.
fn updates(ranks: usize) -> LearnerConfig {
    let schedule = UpdateSchedule { lr: 0.05, warmup_steps: Some(2), batch: 16, accumulate: 1, ..UpdateSchedule::default() };
    LearnerConfig { schedule: Schedule::Updates(schedule), optimizer: OptimizerKind::AdamW, ema_decay: 0.0, ranks, ..toy::config() }
}

fn per_count(_: usize) -> Toy {
    Toy { per_count: true, ..Toy::default() }
}

fn weights(learner: &Learner<Toy>) -> Vec<f32> {
    let values = learner.layout().values(&learner.ema_model());
    learner.layout().read(&values).unwrap().into_iter().flat_map(|(_, _, values)| values).collect()
}

fn losses(dir: &Path) -> Vec<f64> {
    let csv = std::fs::read_to_string(dir.join("run/results.csv")).unwrap();
    csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap().parse().unwrap()).collect()
}

fn close(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len());
    let apart = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 1e-6, "{what}: {apart} apart");
}

fn learn(_: usize, learner: &mut Learner<Toy>) -> Vec<f32> {
    assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
    weights(learner)
}

#[test]
fn ranks_learn_what_one_learns_from_batches_of_all() {
    let alone = tempfile::tempdir().unwrap();
    let expected = on_ranks(alone.path(), 1, &updates(1), per_count, learn).remove(0);
    for ranks in [2, 4] {
        let dir = tempfile::tempdir().unwrap();
        let all = on_ranks(dir.path(), ranks, &updates(ranks), per_count, learn);
        assert!(all.iter().all(|other| *other == all[0]), "every rank has the same");
        close(&all[0], &expected, "weights");
        let (ours, theirs) = (losses(dir.path()), losses(alone.path()));
        assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() <= 2e-5), "{ours:?} for {theirs:?}");
        let there: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(there.len(), 1, "rank 0 writes");
    }
}

#[test]
fn a_number_of_ranks_gives_the_same_bits_every_time() {
    let run = |ranks| {
        let dir = tempfile::tempdir().unwrap();
        on_ranks(dir.path(), ranks, &config(ranks), |_| Toy::default(), finish);
        ending(dir.path())
    };
    let (two, three) = (run(2), run(3));
    assert!(two == run(2) && three == run(3));
    assert!(two != three);
    let dir = tempfile::tempdir().unwrap();
    toy::learner(dir.path(), config(1), toy::no_poison).fit(&data()).unwrap();
    assert!(ending(dir.path()) == run(1), "one rank is a run without ranks");
}

/// Draws pictures for long, on one rank.
struct Slow;

impl Observer for Slow {
    fn on_epoch_end(&mut self, _: &EpochReport) {
        thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn ranks_with_a_limit_of_time_have_one_clock() {
    let dir = tempfile::tempdir().unwrap();
    let config = LearnerConfig { time: Some(1.5 / 3600.0), ..config(2) };
    let all = on_ranks(
        dir.path(),
        2,
        &config,
        |_| Toy::default(),
        |rank, learner| {
            if rank == 0 {
                learner.observe(Slow);
            }
            assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
            let counters = &learner.state().counters;
            (counters.epochs, counters.epoch, weights(learner))
        },
    );
    assert!(all[0] == all[1], "{} of {} and {} of {}", all[0].1, all[0].0, all[1].1, all[1].0);
}

/// Gradients that are told in the middle of the backward pass, by all ranks or by some; and ones that are not all of the gradient.
#[test]
fn when_gradients_are_told_changes_no_bit() {
    type OfRank = fn(f32) -> f32;
    type Told = fn(usize) -> Option<OfRank>;
    let run = |told: Told, wire| {
        let dir = tempfile::tempdir().unwrap();
        let config = LearnerConfig { wire, ..config(2) };
        on_ranks(dir.path(), 2, &config, |rank| Toy { told: told(rank), ..Toy::default() }, finish);
        ending(dir.path())
    };
    for wire in [Wire::F32, Wire::Bf16] {
        let expected = run(|_| None, wire);
        let all: [Told; 4] = [
            |_| Some(|x| x),
            |rank| (rank == 1).then_some(|x| x),
            |_| Some(|x| x / 2.0),
            |rank| Some(if rank == 0 { |x| x } else { |x| x / 2.0 }),
        ];
        for (i, told) in all.into_iter().enumerate() {
            assert!(run(told, wire) == expected, "{i}, {wire:?}");
        }
    }
}

/// Counts what it has swapped.
struct Counting(Thread, Arc<AtomicUsize>);

impl Exchange for Counting {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        Some(self)
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let swapped = self.0.swap(parts);
        self.1.fetch_add(1, Ordering::SeqCst);
        swapped
    }
}

/// A pass that has told all of its gradient has the sum before it is over.
#[test]
fn gradients_travel_while_the_backward_pass_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    on_threads(2, |exchange| {
        let swaps = Arc::new(AtomicUsize::new(0));
        let toy = Toy { swaps: Some(Arc::clone(&swaps)), ..Toy::default() };
        let identity = Identity::default().with("model", "toy");
        finish(0, &mut rank(dir.path(), Counting(exchange, swaps), toy, config(2), identity).unwrap());
    });
    let after = tempfile::tempdir().unwrap();
    on_ranks(after.path(), 2, &config(2), |_| Toy::default(), finish);
    assert!(ending(dir.path()) == ending(after.path()), "and no bit is another");
}

/// Minutes between checkpoints may be other ones: all save when rank 0 does.
#[test]
fn ranks_with_other_minutes_save_together() {
    let run = |minutes: [f64; 2]| {
        let dir = tempfile::tempdir().unwrap();
        on_threads(2, |exchange| {
            let config = LearnerConfig { checkpoint_minutes: minutes[exchange.rank()], ..config(2) };
            finish(0, &mut rank(dir.path(), exchange, Toy::default(), config, Identity::default().with("model", "toy")).unwrap());
        });
        let saved = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap().matches("\"event\":\"checkpoint\"").count();
        (saved, ending(dir.path()))
    };
    let (often, seldom) = (run([0.0; 2]), run([10.0; 2]));
    assert!(often.0 > seldom.0 && run([0.0, 10.0]) == often && run([10.0, 0.0]) == seldom);
}

/// Whoever asks, whoever cannot read, whoever has no memory: all do the same.
#[test]
fn what_happens_to_one_rank_happens_to_all() {
    fn bad(epoch: usize, position: usize) -> bool {
        epoch == 1 && position == 3
    }
    fn short(epoch: usize, samples: &[usize]) -> Option<&'static str> {
        (epoch == 2 && samples.len() > 2).then_some("wgpu error: Out of Memory")
    }
    let troubles: [fn(usize) -> Toy; 3] = [
        |rank| Toy { poison: if rank == 1 { bad } else { toy::no_poison }, ..Toy::default() },
        |rank| Toy { overflow: if rank == 1 { bad } else { toy::no_poison }, ..Toy::default() },
        |rank| if rank == 1 { Toy { shortage: short, ..Toy::default() } } else { Toy::default() },
    ];
    for (i, trouble) in troubles.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let all = on_ranks(dir.path(), 2, &config(2), trouble, |_, learner| {
            assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
            let counters = learner.state().counters.clone();
            (counters.skipped, counters.split, counters.updates)
        });
        assert_eq!(all[0], all[1], "trouble {i}");
        assert!(all[0].0 + u64::from(all[0].1) > 0, "trouble {i} has not come: {all:?}");
    }
}

/// In the update that the second list of the first batch completes, after gradients that all have: on rank 1, whose list that is.
#[test]
fn memory_that_runs_out_in_the_update_of_one_rank_cuts_the_batches_of_all() {
    let sample = epoch_order(SAMPLES, toy::config().seed, 0, true)[11];
    let end = |_: usize, learner: &mut Learner<Toy>| {
        let learned = learn(0, learner);
        (learner.state().counters.split, learned)
    };
    let whole = tempfile::tempdir().unwrap();
    let expected = on_ranks(whole.path(), 2, &updates(2), per_count, end).remove(0);
    let dir = tempfile::tempdir().unwrap();
    let short = |rank: usize| Toy { update_shortage: (rank == 1).then_some(sample), ..per_count(rank) };
    let all = on_ranks(dir.path(), 2, &updates(2), short, end);
    assert!(all[0] == all[1], "every rank has the same");
    // Eight samples are four times two, and one by one.
    assert_eq!((expected.0, all[0].0), (0, 3));
    close(&all[0].1, &expected.1, "weights");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(events.matches("rank 1: wgpu error: Out of Memory").count(), 3, "{events}");
    // As the supervisor of rank 1 alone asks for, when the system has ended it.
    let dir = tempfile::tempdir().unwrap();
    let told = |rank: usize, learner: &mut Learner<Toy>| {
        (0..rank).for_each(|_| learner.cut_batches("killed"));
        finish(rank, learner);
        learner.state().counters.parts(0)
    };
    assert_eq!(on_ranks(dir.path(), 2, &updates(2), per_count, told), [2; 2]);
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(events.matches("rank 1 had no memory").count(), 1, "{events}");
}

/// The samples, of which one cannot be had.
struct Without(usize);

impl Dataset<usize> for Without {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if index == self.0 { Err(DatasetError::new(std::io::Error::other("the disk is away"))) } else { Ok(index) }
    }

    fn len(&self) -> usize {
        SAMPLES
    }
}

/// Data that fail on one rank, and data that are away for all for a while, cost nothing that was trained and leave nothing out.
#[test]
fn ranks_without_data_keep_what_they_have_trained() {
    let whole = tempfile::tempdir().unwrap();
    on_ranks(whole.path(), 2, &config(2), |_| Toy::default(), finish);
    let dir = tempfile::tempdir().unwrap();
    let at = |learner: &Learner<Toy>| {
        let counters = &learner.state().counters;
        (counters.epoch, counters.position, counters.unreadable)
    };
    // Rank 1 has it in the third batch.
    let sample = epoch_order(SAMPLES, toy::config().seed, 0, true)[5 * toy::BATCH];
    let fails = |_: usize, learner: &mut Learner<Toy>| {
        let error = learner.fit(&Without(sample)).unwrap_err();
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(why.starts_with("rank 1: the disk is away"), "{why}");
        error.to_string()
    };
    let errors = on_ranks(dir.path(), 2, &config(2), |_| Toy::default(), fails);
    assert_eq!(errors, ["batch 3 of epoch 1"; 2]);
    // From the third batch of the second epoch on, on both ranks.
    let away = |_| Toy { unreadable: |epoch, position| epoch == 1 && position >= 4, ..Toy::default() };
    let ended = on_ranks(dir.path(), 2, &config(2), away, |_, learner| (at(learner), learner.fit(&data()).unwrap_err().to_string()));
    let expected = ((0, 2, 0), "batch 5 of epoch 2".to_string());
    assert_eq!(ended, [expected.clone(), expected]);
    let resumed = |_: usize, learner: &mut Learner<Toy>| {
        let from = at(learner);
        finish(0, learner);
        from
    };
    assert_eq!(on_ranks(dir.path(), 2, &config(2), |_| Toy::default(), resumed), [(1, 2, 0); 2]);
    assert!(ending(dir.path()) == ending(whole.path()));
}

/// The others go on without it for two batches, which is told; at the third all end, with what they have trained.
#[test]
fn a_rank_whose_data_stay_away_ends_the_run_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let away = |rank| Toy { unreadable: if rank == 1 { |epoch, _| epoch == 1 } else { |_, _| false }, ..Toy::default() };
    let ended = on_ranks(dir.path(), 2, &config(2), away, |_, learner| {
        let error = learner.fit(&data()).unwrap_err();
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(why.starts_with("rank 1: 3 batches in a row"), "{why}");
        // Of the statistics each rank has its own within an epoch.
        let values = learner.layout().values(&learner.ema_model());
        let trained = learner.layout().read(&values).unwrap().into_iter().filter(|(name, ..)| !name.contains("running"));
        (error.to_string(), trained.collect::<Vec<_>>())
    });
    assert_eq!(ended[0].0, "batch 3 of epoch 2");
    assert!(ended[0] == ended[1], "all end there with the same");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    let told = events.lines().filter(|line| line.contains("\"unreadable\"") && line.contains("\"rank\":1")).count();
    assert_eq!(told, 2, "{events}");
    // Whoever starts it again while they are away makes no progress, by which a supervisor would go on for ever.
    let again = on_ranks(dir.path(), 2, &config(2), away, |_, learner| {
        let error = learner.fit(&data()).unwrap_err().to_string();
        (error, learner.state().counters.position)
    });
    assert_eq!(again, [("batch 3 of epoch 2".to_string(), 2), ("batch 3 of epoch 2".to_string(), 2)]);
    let resumed = on_ranks(
        dir.path(),
        2,
        &config(2),
        |_| Toy::default(),
        |rank, learner| {
            let counters = &learner.state().counters;
            let from = (counters.epoch, counters.position);
            finish(rank, learner);
            from
        },
    );
    assert_eq!(resumed, [(1, 2); 2]);
}

/// It is cut twice, and read three times.
#[test]
fn a_batch_that_is_cut_costs_no_more_patience_than_another() {
    let dir = tempfile::tempdir().unwrap();
    let short = |rank| Toy {
        unreadable: if rank == 1 { |epoch, position| (epoch, position) == (1, 1) } else { |_, _| false },
        shortage: |epoch, samples| (epoch == 1 && samples.len() > 1).then_some("wgpu error: Out of Memory"),
        ..Toy::default()
    };
    on_ranks(dir.path(), 2, &config(2), short, finish);
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert_eq!(events.lines().filter(|line| line.contains("\"unreadable\"")).count(), 1, "{events}");
}

#[test]
fn a_rank_that_fails_ends_the_run_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let broken = |_| Toy { unreadable: |_, _| true, ..Toy::default() };
    let errors = on_ranks(dir.path(), 2, &config(2), broken, |_, learner| learner.fit(&data()).unwrap_err().to_string());
    assert!(errors.iter().all(|error| error.contains("of epoch 1")), "{errors:?}");
    // And one that is gone is noticed by the others.
    let dir = tempfile::tempdir().unwrap();
    let gone = on_ranks(
        dir.path(),
        2,
        &config(2),
        |_| Toy::default(),
        |rank, learner| {
            if rank == 1 {
                return true;
            }
            matches!(learner.fit(&data()), Err(LearnError::Exchange(_) | LearnError::Save(_)))
        },
    );
    assert_eq!(gone, [true; 2]);
}

/// Stops a run of two ranks after eight batches, because rank 1 asks, and goes on with so many.
fn goes_on(begun: &LearnerConfig, toy: fn(usize) -> Toy, ranks: usize) -> (tempfile::TempDir, Vec<Vec<f32>>) {
    let dir = tempfile::tempdir().unwrap();
    let stopped = on_ranks(dir.path(), 2, begun, toy, |rank, learner| {
        let flag = Arc::new(AtomicBool::new(false));
        if rank == 1 {
            learner.observe(StopAfter { after: 8, seen: 0, flag: flag.clone() });
        }
        learner.stop_when(flag).fit(&data()).unwrap()
    });
    assert_eq!(stopped, [Outcome::Interrupted; 2], "one asks, all stop");
    let all = on_ranks(dir.path(), ranks, begun, toy, |_, learner| {
        let position = learner.state().counters.position;
        assert_eq!(position, 8 % SAMPLES.div_ceil(begun.schedule.batch()), "a batch is still one of two ranks");
        learn(0, learner)
    });
    (dir, all)
}

/// A rank that is gone when it has exchanged so often.
struct Dying {
    exchange: Thread,
    left: AtomicUsize,
}

impl Exchange for Dying {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn ranks(&self) -> usize {
        self.exchange.ranks()
    }

    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        Some(self)
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let left = self.left.load(Ordering::SeqCst).checked_sub(1);
        self.left.store(left.ok_or(ExchangeError::Gone { rank: self.rank(), reason: "it dies".into() })?, Ordering::SeqCst);
        self.exchange.swap(parts)
    }
}

/// Its rank dies in the save that comes after so many.
struct DiesSaving {
    rank: Rc<Dying>,
    saves: usize,
}

impl Observer for DiesSaving {
    fn on_phase(&mut self, phase: Phase) {
        if phase == Phase::Save {
            match self.saves.checked_sub(1) {
                Some(left) => self.saves = left,
                None => self.rank.left.store(0, Ordering::SeqCst),
            }
        }
    }
}

/// Trains on two ranks, of which the second dies after so many exchanges or saves: what became of the first, and of the second how often it
/// exchanged less than it might have.
fn with_a_dying_rank(dir: &Path, exchanges: usize, saves: usize) -> (Result<Outcome, LearnError>, usize) {
    let mut all = threads(2).into_iter();
    let (first, second) = (all.next().unwrap(), all.next().unwrap());
    thread::scope(|scope| {
        let dying = scope.spawn(move || {
            let exchange = Rc::new(Dying { exchange: second, left: AtomicUsize::new(exchanges) });
            let (model, device, run) = (net(&Device::flex()), Device::flex(), RunDir::nowhere());
            let mut learner =
                Learner::new(Toy::default(), model, &device, config(2), run, Identity::default().with("model", "toy")).unwrap();
            learner.observe(DiesSaving { rank: exchange.clone(), saves });
            let joined = learner.join(exchange.clone(), "this program", Limits::default());
            joined.and_then(|()| learner.resume()).and_then(|()| learner.fit(&data())).ok();
            exchange.left.load(Ordering::SeqCst)
        });
        let run = || {
            let mut learner = rank(dir, first, Toy::default(), config(2), Identity::default().with("model", "toy"))?;
            learner.fit(&data())
        };
        let ended = run();
        (ended, dying.join().unwrap())
    })
}

/// Whenever a rank dies the other one ends, with the code that a supervisor starts again on, and the run goes on to the same bits.
#[test]
fn a_rank_may_die_at_any_moment() {
    let whole = tempfile::tempdir().unwrap();
    let (ended, left) = with_a_dying_rank(whole.path(), 10_000, usize::MAX);
    assert_eq!(ended.unwrap(), Outcome::Finished);
    let exchanges = 10_000 - left;
    // The last ones, and some of the others.
    for dies_after in (0..exchanges).step_by(9).chain(exchanges - 8..exchanges) {
        let dir = tempfile::tempdir().unwrap();
        let (ended, _) = with_a_dying_rank(dir.path(), dies_after, usize::MAX);
        let error = ended.unwrap_err();
        assert!(matches!(error.exit(), Exit::Failed), "after {dies_after} of {exchanges}: {error}");
        on_ranks(dir.path(), 2, &config(2), |_| Toy::default(), |_, learner| learner.fit(&data()).map(drop).unwrap());
        assert!(ending(dir.path()) == ending(whole.path()), "after {dies_after} of {exchanges}");
    }
}

/// The first save is that of the state a run begins with, the second one is after its first epoch.
#[test]
fn a_rank_that_dies_in_a_save_is_not_taken_for_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (ended, _) = with_a_dying_rank(dir.path(), 10_000, 1);
    assert!(matches!(ended, Err(LearnError::Exchange(_))), "{ended:?}");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    assert!(events.contains("checkpoint") && !events.contains("training goes on"), "{events}");
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    for (begun, toy) in [(updates(2), per_count as fn(usize) -> Toy), (config(2), |_| Toy::default())] {
        let whole = tempfile::tempdir().unwrap();
        let expected = on_ranks(whole.path(), 2, &begun, toy, learn).remove(0);
        // Whoever has a whole list adds up the same numbers in the same order.
        let (same, again) = goes_on(&begun, toy, 2);
        assert!(again.iter().all(|weights| *weights == expected) && ending(same.path()) == ending(whole.path()));
        let (_, alone) = goes_on(&begun, toy, 1);
        let learned = |weights: &[f32]| weights[..32].to_vec();
        assert_eq!(learned(&alone[0]), learned(&expected), "what is learned, running statistics aside");
    }
    let whole = tempfile::tempdir().unwrap();
    let expected = on_ranks(whole.path(), 2, &updates(2), per_count, learn).remove(0);
    for ranks in [3, 4, 5] {
        let (_dir, all) = goes_on(&updates(2), per_count, ranks);
        close(&all[0], &expected, "weights");
    }
}

#[test]
fn every_sample_is_seen_once_an_epoch_with_however_many_ranks() {
    for ranks in [1, 2, 3, 7] {
        let dir = tempfile::tempdir().unwrap();
        let made = on_ranks(
            dir.path(),
            ranks,
            &config(2),
            |_| Toy::default(),
            |_, learner| {
                finish(0, learner);
                learner.task().made.lock().unwrap().clone()
            },
        );
        // Forty samples in one piece are an evaluation's.
        let mut seen: Vec<usize> = made.into_iter().flatten().filter(|part| part.len() < 40).flatten().collect();
        seen.sort_unstable();
        let expected: Vec<usize> = (0..SAMPLES).flat_map(|sample| [sample; toy::EPOCHS]).collect();
        assert_eq!(seen, expected, "{ranks} ranks");
    }
}

#[test]
fn a_rank_with_other_weights_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let errors = on_threads(2, |exchange| {
        let model = net(&Device::flex());
        let model = if exchange.rank() == 1 { toy::moved(model) } else { model };
        let run = if exchange.rank() == 0 { RunDir::create(dir.path(), "run", true).unwrap() } else { RunDir::nowhere() };
        let mut learner = Learner::new(Toy::default(), model, &Device::flex(), config(2), run, Identity::default()).unwrap();
        learner.join(Rc::new(exchange), "this program", Limits::default()).unwrap();
        learner.fit(&data()).unwrap_err().to_string()
    });
    assert_eq!(errors, ["rank 1: its weights are not those of rank 0"; 2]);
}

/// An evaluation that one rank fails at, or is asked to stop in.
#[test]
fn what_becomes_of_one_share_of_an_evaluation_becomes_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let broken = |rank: usize| Toy { bad_evaluation: if rank == 1 { |epoch, _| epoch == 1 } else { toy::no_poison }, ..Toy::default() };
    let errors = on_ranks(dir.path(), 2, &config(2), broken, |_, learner| learner.fit(&data()).unwrap_err().to_string());
    assert_eq!(errors, ["rank 1: evaluation: the validation data is gone", "evaluation"]);
    let dir = tempfile::tempdir().unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    let asked = |rank: usize| Toy { eval_flag: (rank == 1).then(|| flag.clone()), ..Toy::default() };
    let stopped = on_ranks(dir.path(), 2, &config(2), asked, |rank, learner| {
        if rank == 1 {
            learner.stop_when(flag.clone());
        }
        learner.fit(&data()).unwrap()
    });
    assert_eq!(stopped, [Outcome::Interrupted; 2]);
}

/// Writes down how long it may wait in each of its exchanges, in seconds.
struct Waiting {
    exchange: Thread,
    patience: Cell<u64>,
    waited: Rc<RefCell<Vec<u64>>>,
}

impl Exchange for Waiting {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn ranks(&self) -> usize {
        self.exchange.ranks()
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.waited.borrow_mut().push(self.patience.get());
        self.exchange.swap(parts)
    }

    fn wait_at_most(&self, patience: Duration) {
        self.patience.set(patience.as_secs());
    }
}

/// Rank 0 makes them, and a save has a limit of its own, which is shorter.
#[test]
fn an_export_is_waited_for_by_its_own_limit_and_told_when_it_fails() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits::of(&BTreeMap::from([("export".to_string(), 777.0)])).unwrap();
    let train = |exchange: Thread| {
        let waited = Rc::new(RefCell::new(Vec::new()));
        let run = if exchange.rank() == 0 { RunDir::create(dir.path(), "run", true).unwrap() } else { RunDir::nowhere() };
        let exchange = Waiting { exchange, patience: Cell::new(0), waited: Rc::clone(&waited) };
        let mut learner = Learner::new(Toy::default(), net(&Device::flex()), &Device::flex(), config(2), run, Identity::default()).unwrap();
        learner.join(Rc::new(exchange), "this program", limits.clone()).unwrap();
        finish(0, &mut learner);
        waited.take().into_iter().filter(|&seconds| seconds == 777).count()
    };
    let train = &train;
    let exports: Vec<usize> = thread::scope(|scope| {
        let all: Vec<_> = threads(2).into_iter().map(|exchange| scope.spawn(move || train(exchange))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(exports, [toy::EPOCHS; 2]);
    let dir = tempfile::tempdir().unwrap();
    let broken = |rank: usize| Toy { bad_export: rank == 0, ..Toy::default() };
    let errors = on_ranks(dir.path(), 2, &config(2), broken, |_, learner| learner.fit(&data()).unwrap_err().to_string());
    assert_eq!(errors, ["exporting the weights", "rank 0: exporting the weights: the device has no answer"]);
}

/// Two ranks over real connections, which wait for each other's evaluation for so many seconds: how they end, if the second one's has so many pieces of so long.
fn with_a_slow_evaluation(limit: f64, pieces: usize, each: Duration) -> Vec<Result<Outcome, String>> {
    let (dir, listener) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let limits = Limits::of(&BTreeMap::from([("evaluation".to_string(), limit)])).unwrap();
    let train = |number: usize| {
        let address = listener.local_addr().unwrap().to_string();
        let exchange = match number {
            0 => Tcp::host(&listener, 2, &|| None).unwrap(),
            _ => Tcp::join(&address, number, 2, Duration::from_secs(60), &|_| {}).unwrap(),
        };
        let run = if number == 0 { RunDir::create(dir.path(), "run", true).unwrap() } else { RunDir::nowhere() };
        let toy = Toy { slow_evaluation: (number == 1).then_some((pieces, each)), ..Toy::default() };
        let identity = Identity::default().with("model", "toy");
        let mut learner = Learner::new(toy, net(&Device::flex()), &Device::flex(), config(2), run, identity).unwrap();
        learner.join(Rc::new(exchange), "this program", limits.clone()).unwrap();
        learner.fit(&data()).map_err(|error| error.to_string())
    };
    let train = &train;
    thread::scope(|scope| {
        let all: Vec<_> = (0..2).map(|number| scope.spawn(move || train(number))).collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A rank that is done with its share of an evaluation before another one is.
#[test]
fn a_rank_that_judges_for_long_is_waited_for_and_one_that_hangs_is_not() {
    let slow = with_a_slow_evaluation(8.0, 180, Duration::from_millis(50));
    assert_eq!(slow, [Ok(Outcome::Finished), Ok(Outcome::Finished)]);
    let hung = with_a_slow_evaluation(2.0, 1, Duration::from_secs(8)).remove(0).unwrap_err();
    assert!(hung.contains("rank 1 is gone: it said nothing for too long"), "{hung}");
}
