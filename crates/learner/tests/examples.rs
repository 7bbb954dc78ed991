//! The examples, which use the public interface alone, learn, and are resumed to the bit.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../examples/byte_gpt.rs"]
mod byte_gpt;
#[path = "../examples/classify.rs"]
mod classify;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellows_learner::{BatchReport, Learner, Observer, Outcome, Task};
use bellows_runs::RunDir;
use burn::data::dataset::Dataset;

/// Stops a run after this batch of it.
struct StopAfter(u64, Arc<AtomicBool>);

impl Observer for StopAfter {
    fn on_batch(&mut self, report: &BatchReport) {
        self.1.store(report.step == self.0, Ordering::SeqCst);
    }
}

/// Trains to the end, interrupted after these batches, and returns the weights and the best fitness.
fn train<T: Task>(
    start: impl Fn(RunDir) -> Result<Learner<T>, Box<dyn std::error::Error>>,
    data: &dyn Dataset<T::Item>,
    dir: &Path,
    stops: &[u64],
) -> (Vec<u8>, f64) {
    let session = || start(RunDir::create(dir, "run", true).unwrap()).unwrap();
    for &after in stops {
        let flag = Arc::new(AtomicBool::new(false));
        let mut learner = session();
        assert_eq!(learner.observe(StopAfter(after, flag.clone())).stop_when(flag).fit(data).unwrap(), Outcome::Interrupted);
    }
    let mut learner = session();
    assert_eq!(learner.fit(data).unwrap(), Outcome::Finished);
    (std::fs::read(learner.dir().weights().join("last.safetensors")).unwrap(), learner.state().counters.best.unwrap().0)
}

fn resumed_equals_whole<T: Task>(
    start: impl Fn(RunDir) -> Result<Learner<T>, Box<dyn std::error::Error>>,
    data: &dyn Dataset<T::Item>,
    stops: &[u64],
) -> f64 {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (whole, fitness) = train(&start, data, dirs[0].path(), &[]);
    assert!(whole == train(&start, data, dirs[1].path(), stops).0, "a resumed run ends in other weights");
    fitness
}

/// One after the other: Burn's dropout draws from a generator that a process has one of.
#[test]
fn they_learn_and_resume() {
    let (windows, _) = byte_gpt::docs().unwrap();
    let bits = -resumed_equals_whole(|dir| byte_gpt::learner(dir, 40), &windows, &[7, 40]);
    assert!(bits < 5.0, "{bits} bits a byte: chance is 8");
    let accuracy = resumed_equals_whole(|dir| classify::learner(dir, 8), &classify::data(), &[5, 61]);
    assert!(accuracy > 0.7, "accuracy {accuracy}: chance is a third");
}

/// A folder of its own for every start would never be resumed.
#[test]
fn the_page_resumes_the_folder_that_it_makes() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/add-a-model.md")).unwrap();
    let made: Vec<&str> = page.lines().filter_map(|line| Some(line.split_once("RunDir::create(")?.1.split_once("?;")?.0)).collect();
    assert!(page.contains("learner.resume()?") && made.len() == 1 && made[0].ends_with(", true)"), "{made:?}");
}
