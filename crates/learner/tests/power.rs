//! The power fails after any operation of a whole training run, logs and weights included: it goes on from what was reported, and ends the same.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic")]

#[path = "../../runs/tests/common/memory.rs"]
mod memory;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use crate::toy::{Toy, config, net};
use bellows_learner::{Identity, LearnError, Learner, LearnerConfig, Outcome};
use bellows_runs::{Journal, RunDir, Store};
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use memory::MemoryStore;

const ROOT: &str = "/run";
/// Disks looked at after each cut.
const SUBSETS: u64 = 16;

fn learner(store: &MemoryStore) -> Result<Learner<Toy>, LearnError> {
    // A checkpoint after every batch, and one at every edge.
    let config = LearnerConfig { epochs: 2, checkpoint_minutes: 0.0, ..config() };
    let identity = Identity::default().with("model", "toy");
    let device = Device::flex();
    Learner::with_store(Toy::default(), net(&device), &device, config, RunDir::at(ROOT), identity, Rc::new(store.clone()))
}

/// Three batches an epoch.
fn train(store: &MemoryStore) -> Result<Outcome, LearnError> {
    let mut learner = learner(store)?;
    learner.resume()?;
    learner.fit(&InMemDataset::new((0..12).collect()))
}

/// The step of the newest checkpoint and its tensors, `results.csv` without its times, and the weights that were exported.
type Ending = (u64, BTreeMap<String, Vec<u8>>, String, [Option<Vec<u8>>; 2]);

fn ending(store: &MemoryStore) -> Ending {
    let journal = Journal::open_with(Rc::new(store.clone()), RunDir::at(ROOT)).unwrap();
    let mut newest = journal.checkpoints().latest().unwrap().checkpoint.unwrap();
    newest.members.retain(|name, _| name.ends_with(".safetensors"));
    let csv = String::from_utf8(store.read(&RunDir::at(ROOT).results(), u64::MAX).unwrap()).unwrap();
    let row = |line: &str| line.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, c)| c.to_owned()).collect::<Vec<_>>().join(",");
    let weights = ["best", "last"].map(|name| RunDir::at(ROOT).weights().join(format!("{name}.safetensors")));
    let weights = weights.map(|path| store.read(&path, u64::MAX).ok());
    (newest.step, newest.members, csv.lines().map(row).collect::<Vec<_>>().join("\n"), weights)
}

/// The newest step on a disk, if there is a checkpoint.
fn newest(store: &MemoryStore) -> Option<u64> {
    let journal = Journal::open_with(Rc::new(store.clone()), RunDir::at(ROOT)).ok()?;
    Some(journal.checkpoints().latest().unwrap().checkpoint?.step)
}

fn disk(operations: usize) -> MemoryStore {
    let store = MemoryStore::new(Path::new(ROOT), operations, |_, _| false);
    // The directory that a run is created with; where the power goes here, there is none.
    drop(store.create_dir(&RunDir::at(ROOT).weights()).and_then(|()| store.sync_dir(Path::new(ROOT))));
    store
}

#[test]
fn cut_anywhere_it_ends_the_same() {
    let whole = disk(usize::MAX);
    assert_eq!(train(&whole).unwrap(), Outcome::Finished);
    let expected = ending(&whole);
    assert!(expected.0 == 6 && expected.3.iter().all(Option::is_some));
    let (mut disks, mut cuts, mut seen) = (0, 0, 0);
    for operations in 0.. {
        let store = disk(operations);
        if train(&store).is_ok() {
            break;
        }
        cuts += 1;
        for found in store.after_power_loss(SUBSETS) {
            let step = newest(&found);
            // What a later cut leaves is never behind what an earlier one did by more than the batch in progress.
            assert!(step.unwrap_or(0) + 1 >= seen, "after {operations} operations: step {step:?}, {seen} was there before");
            seen = seen.max(step.unwrap_or(0));
            if found.create_dir(&RunDir::at(ROOT).weights()).is_ok() {
                assert!(step.is_none(), "a run with a checkpoint has its directories");
            }
            let outcome = train(&found).unwrap_or_else(|e| panic!("after {operations} operations: {e}"));
            assert!(matches!(outcome, Outcome::Finished | Outcome::NothingToDo), "{outcome:?}");
            assert!(ending(&found) == expected, "after {operations} operations");
            disks += 1;
        }
    }
    println!("{cuts} cuts, {disks} disks");
    assert!(cuts > 200 && disks > 1_000, "only {cuts} cuts, {disks} disks");
}

/// The first checkpoint has neither moments yet nor gradients, which the toy sums over three batches. That it may have no room either, for its names, is told after that.
#[test]
fn a_disk_with_little_room_is_told_of_at_the_beginning() {
    let is_told = |missing: u64| {
        let store = disk(usize::MAX);
        let session = learner(&store).unwrap();
        let store = store.with_room(3 * session.state().full_size(session.layout(), true) - missing);
        drop(learner(&store).unwrap().fit(&InMemDataset::new((0..12).collect())));
        let events = store.read(&RunDir::at(ROOT).events(), u64::MAX).unwrap();
        String::from_utf8(events).unwrap().contains("has room for less than three checkpoints")
    };
    assert_eq!([1, 0].map(is_told), [true, false]);
}
