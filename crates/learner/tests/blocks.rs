//! What a step has left in the pool of blocks is no burden to an evaluation, nor the other way round. Alone in its file, for the system tells the most
//! that a process has ever held.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Mutex;

use bellows_kernels::dropout;
use bellows_learner::memory::peak_memory;
use bellows_learner::{
    Draw, EvalContext, Evaluation, Identity, Learner, LearnerConfig, Outcome, Schedule, StepOutput, Task, TaskError, UpdateSchedule,
};
use bellows_runs::RunDir;
use burn::data::dataset::{Dataset, InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// Values of the block of a step. That of an evaluation is smaller by more than the eighth that a block may be too large.
const STEP: usize = 16 << 20;
const EVALUATION: usize = STEP / 4 * 3;

/// A task of blocks.
#[derive(Default)]
struct Blocks {
    /// The most memory held until before and after each evaluation, GB.
    peaks: Mutex<Vec<f64>>,
}

fn block(values: usize, device: &Device) {
    drop(dropout(Tensor::<1>::ones([values], &device.clone().without_autodiff()), 0, 0.5));
}

impl Task for Blocks {
    type Model = Linear;
    type Item = ();
    type Batch = usize;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["loss"]
    }
    fn metric_names(&self) -> Vec<String> {
        vec!["val/loss".into()]
    }
    fn batch(&self, _: &dyn Dataset<()>, _: Draw, indices: &[usize]) -> Result<usize, TaskError> {
        Ok(indices.len())
    }
    fn sample_names(&self, batch: &usize) -> Vec<String> {
        vec!["nobody".into(); *batch]
    }
    fn loss(&self, model: &Linear, batch: &usize, _: Draw, device: &Device) -> StepOutput<()> {
        block(STEP, device);
        StepOutput::sum(model.forward(Tensor::<2>::ones([*batch, 1], device)).sum(), *batch)
    }
    fn evaluate(&self, _: &Linear, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let mut peaks = self.peaks.lock().unwrap();
        peaks.extend(peak_memory());
        block(EVALUATION, context.device);
        peaks.extend(peak_memory());
        Ok(Evaluation::of("val/loss", 0.0, 1))
    }
}

#[test]
fn steps_and_evaluations_hold_their_blocks_one_after_the_other() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let run = RunDir::create(dir.path(), "run", true).unwrap();
    let config = LearnerConfig::new(2, Schedule::Updates(UpdateSchedule { batch: 2, ..UpdateSchedule::default() }));
    let model = LinearConfig::new(1, 1).init(&device.clone().autodiff());
    let mut learner = Learner::new(Blocks::default(), model, &device, config, run, Identity::default()).unwrap();
    assert_eq!(learner.fit(&InMemDataset::new(vec![(); 4])).unwrap(), Outcome::Finished);
    let peaks = learner.task().peaks.lock().unwrap();
    // The first is that of a step alone.
    assert!(peaks.len() == 4 && peaks[3] - peaks[0] < 0.01, "{peaks:?}");
}
