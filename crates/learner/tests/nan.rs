//! Nothing that is not finite reaches weights, moments, statistics or EMA (contract P6, test T8).
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::ranks::{on_threads, rank};
use crate::toy::{self, Toy, config, data, ending, identity, learner, no_poison};
use bellows_learner::{LearnError, LearnerConfig, LossScale, LossScaling, Outcome, Schedule};
use bellows_ranks::Exchange;
use burn::data::dataset::InMemDataset;

#[test]
fn a_poisoned_batch_leaves_everything_as_it_was() {
    fn poison(epoch: usize, position: usize) -> bool {
        (epoch, position) == (0, 5)
    }
    // One batch a window, stopped right after the poisoned batch: the state is the one before it, but for the counters.
    let config = || LearnerConfig { workers: 0, ..config() };
    let run = |poison, after: usize| {
        let dir = tempfile::tempdir().unwrap();
        let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let mut session = learner(dir.path(), config(), poison);
        session.observe(toy::StopAfter { after, seen: 0, flag: flag.clone() }).stop_when(flag);
        session.fit(&data()).unwrap();
        let members = session.state().encode(session.layout()).unwrap();
        (members, session.state().counters.clone())
    };
    // The observer sees trained batches only: the fifth is number 4, the poisoned number 5 comes before the stop takes effect.
    let (clean, _) = run(no_poison, 5);
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config(), poison);
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    session.observe(StopAtSkip(flag.clone())).stop_when(flag);
    session.fit(&data()).unwrap();
    let poisoned = session.state().encode(session.layout()).unwrap();
    assert_eq!(session.state().counters.skipped, 1);
    assert_eq!(session.state().counters.position, 6);
    for ((name, a), (_, b)) in clean.iter().zip(&poisoned).filter(|((name, _), _)| name.ends_with(".safetensors")) {
        assert!(a == b, "{name} was touched by the poisoned batch");
    }
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    let skip = events.lines().find(|l| l.contains("\"skip\"")).unwrap();
    assert!(skip.contains("\"reason\":\"loss\"") && skip.contains("sample-"), "{skip}");
}

struct StopAtSkip(std::sync::Arc<std::sync::atomic::AtomicBool>);

impl bellows_learner::Observer for StopAtSkip {
    fn on_notice(&mut self, notice: &bellows_learner::Notice) {
        if notice.kind == "skip" {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

#[test]
fn overflows_that_a_scale_answers_go_back_nowhere_and_it_is_resumed() {
    // One more in a row than a run without a scale bears.
    fn poison(epoch: usize, position: usize) -> bool {
        epoch == 1 && (4..8).contains(&position)
    }
    let scaled = || LearnerConfig { loss_scaling: Some(LossScaling::Dynamic { first: 1.0, least: 1.0 / 1024.0 }), ..config() };
    let [whole, parts, plain] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mut run = learner(whole.path(), scaled(), poison);
    assert_eq!(run.fit(&data()).unwrap(), Outcome::Finished);
    let counters = &run.state().counters;
    assert_eq!((counters.skipped, counters.rollbacks, counters.lr_scale), (4, 0, 1.0));
    let scale = counters.loss_scale.unwrap();
    assert!(scale.scale == 0.0625 && scale.clean > 0, "{scale:?}");

    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut first = learner(parts.path(), scaled(), poison);
    first.observe(StopAtSkip(flag.clone())).stop_when(flag);
    assert_eq!(first.fit(&data()).unwrap(), Outcome::Interrupted);
    assert_eq!(first.state().counters.loss_scale, Some(LossScale { scale: 0.5, clean: 0 }));
    let mut second = learner(parts.path(), scaled(), poison);
    second.resume().unwrap();
    assert_eq!(second.fit(&data()).unwrap(), Outcome::Finished);
    assert!(ending(whole.path()) == ending(parts.path()));

    let mut without = learner(plain.path(), config(), poison);
    assert_eq!(without.fit(&data()).unwrap(), Outcome::Finished);
    assert_eq!((without.state().counters.rollbacks, without.state().counters.loss_scale), (1, None));
}

/// One has numbers in f16, as its device may and the other's may not, and all bear as many overflows as its scale does: four batches, of two lists each.
#[test]
fn ranks_of_which_one_scales_its_loss_answer_overflows_alike() {
    fn poison(epoch: usize, list: usize) -> bool {
        epoch == 1 && (2..10).contains(&list)
    }
    for scaled in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let all = on_threads(2, |exchange| {
            let loss_scaling = (exchange.rank() == scaled).then_some(LossScaling::DYNAMIC);
            let config = LearnerConfig { loss_scaling, ..toy::of_ranks(2) };
            let mut learner = rank(dir.path(), exchange, Toy { poison, ..Toy::default() }, config, identity()).unwrap();
            assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
            let counters = &learner.state().counters;
            (counters.skipped, counters.rollbacks, counters.loss_scale.map(|scale| scale.scale))
        });
        assert_eq!(all, [(4, 0, Some(4096.0)); 2], "rank {scaled}");
    }
}

#[test]
fn an_evaluation_that_is_not_a_number_is_never_best_and_can_be_resumed_from() {
    fn poison(epoch: usize, position: usize) -> bool {
        epoch < 2 && position == toy::EVALUATION
    }
    let dir = tempfile::tempdir().unwrap();
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut session = learner(dir.path(), config(), poison);
    // After the first epoch's evaluation, and no other, was seen.
    session.observe(toy::StopAfter { after: toy::BATCHES + 1, seen: 0, flag: flag.clone() }).stop_when(flag);
    session.fit(&data()).unwrap();
    assert_eq!(session.state().counters.best, None);
    assert!(!dir.path().join("run/weights/best.safetensors").exists());
    let mut session = learner(dir.path(), config(), poison);
    session.resume().unwrap();
    session.fit(&data()).unwrap();
    let (fitness, epoch) = session.state().counters.best.unwrap();
    assert!(fitness.is_finite() && epoch >= 2, "{fitness} in epoch {epoch}");
}

#[test]
fn an_epoch_without_a_trained_batch_has_no_loss() {
    fn poison(epoch: usize, _: usize) -> bool {
        epoch == 1
    }
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config(), poison);
    // Two batches, for three in a row would go back.
    assert_eq!(session.fit(&InMemDataset::new((0..2 * toy::BATCH).collect())).unwrap(), Outcome::Finished);
    let counters = &session.state().counters;
    assert_eq!((counters.skipped, counters.rollbacks), (2, 0));
    let rows = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
    let losses: Vec<Vec<&str>> = rows.lines().skip(1).map(|row| row.split(',').skip(2).take(2).collect()).collect();
    assert_eq!((losses.len(), losses[1].as_slice()), (toy::EPOCHS, &["nan"; 2][..]));
    let number = |text: &&str| text.parse::<f64>().is_ok_and(|loss| loss > 0.0);
    assert!([0, 2, 3].iter().all(|&epoch| losses[epoch].iter().all(number)), "{rows}");
    let events = std::fs::read_to_string(dir.path().join("run/events.jsonl")).unwrap();
    let epochs: Vec<&str> = events.lines().filter(|line| line.contains("\"event\":\"epoch\"")).collect();
    assert!(epochs[1].contains("\"train\":[null,null]") && !epochs[2].contains("null"), "{epochs:?}");
}

#[test]
fn an_exploding_rate_never_writes_a_weight_that_is_not_finite() {
    let mut config = config();
    let Schedule::Epochs(schedule) = &mut config.schedule else { unreachable!() };
    schedule.lr0 = 1e38;
    schedule.warmup_epochs = 0.0;
    config.max_grad_norm = 0.0;
    let dir = tempfile::tempdir().unwrap();
    let mut session = learner(dir.path(), config, no_poison);
    // Whether the run survives or gives up is the numbers' choice; that nothing bad was written is not.
    match session.fit(&data()) {
        Ok(_) | Err(LearnError::Diverged { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(session.state().counters.skipped > 0, "nothing exploded: nothing was tested");
    let average: Vec<_> = session.layout().scatter(&session.state().ema.values).into_iter().flatten().collect();
    for (name, _, values) in session.layout().read(&average).unwrap() {
        assert!(values.iter().all(|v| v.is_finite()), "EMA of {name}");
    }
}
