//! Any of burn-train's metrics, fed with the output of every training step.

use burn::data::dataloader::Progress;
use burn::train::metric::{Adaptor, Metric, MetricMetadata, Numeric};
use serde_json::{Value, json};

use crate::task::StepOutput;

/// A metric whose input type is forgotten.
pub(crate) trait ErasedMetric<O>: Send {
    fn update(&mut self, output: &StepOutput<O>, position: usize, batches: usize);
    /// (name, value so far in this epoch)
    fn value(&self) -> (String, Value);
}

pub(crate) struct StepMetric<M>(pub(crate) M);

impl<O, M> ErasedMetric<O> for StepMetric<M>
where
    M: Metric + Numeric,
    StepOutput<O>: Adaptor<M::Input>,
{
    fn update(&mut self, output: &StepOutput<O>, position: usize, batches: usize) {
        if position == 0 {
            self.0.clear();
        }
        let metadata =
            MetricMetadata { progress: Progress::new(position + 1, batches, Some("batches".into())), iteration: Some(position), lr: None };
        if let Err(error) = self.0.update(&output.adapt(), &metadata) {
            tracing::warn!("metric {}: {error}", self.0.name());
        }
    }

    fn value(&self) -> (String, Value) {
        (self.0.name().to_string(), self.0.running_value().map_or(Value::Null, |v| json!(v.current())))
    }
}

impl<O> Adaptor<burn::train::metric::LossInput> for StepOutput<O> {
    fn adapt(&self) -> burn::train::metric::LossInput {
        burn::train::metric::LossInput::new(self.loss.clone().inner())
    }
}
