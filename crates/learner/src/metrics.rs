//! Any of burn-train's metrics, fed with the output of every training step.

use burn::data::dataloader::Progress;
use burn::train::metric::{Adaptor, Metric, MetricMetadata, Numeric};
use serde_json::{Value, json};

/// A metric whose input type is forgotten.
pub(crate) trait ErasedMetric<O>: Send {
    /// Forgets what it was fed with.
    fn clear(&mut self);
    fn update(&mut self, output: &O, position: usize, batches: usize);
    /// (name, value so far in this epoch)
    fn value(&self) -> (String, Value);
}

pub(crate) struct StepMetric<M>(pub(crate) M);

impl<O, M> ErasedMetric<O> for StepMetric<M>
where
    M: Metric + Numeric,
    O: Adaptor<M::Input>,
{
    fn clear(&mut self) {
        self.0.clear();
    }

    fn update(&mut self, output: &O, position: usize, batches: usize) {
        let metadata =
            MetricMetadata { progress: Progress::new(position + 1, batches, Some("batches".into())), iteration: Some(position), lr: None };
        let input: M::Input = output.adapt();
        if let Err(error) = self.0.update(&input, &metadata) {
            tracing::warn!("metric {}: {error}", self.0.name());
        }
    }

    fn value(&self) -> (String, Value) {
        (self.0.name().to_string(), self.0.running_value().map_or(Value::Null, |v| json!(v.current())))
    }
}
