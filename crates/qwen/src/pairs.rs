//! Preference training on the device: a batch of pairs read by the model, by the model without its adapter where DPO asks for a reference, and
//! the gradient of the pairs' losses.

use bellows_chat::Batch;
use bellows_kernels::{Precision, linear, total};
use bellows_learner::{LearnError, ParamGrads, Stopwatch, TaskError};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::gradients::{Options, TrainBatch, gradients_of};
use crate::model::pass::Pass;
use crate::model::{CausalLm, ModelConfig};
use crate::preference::{LogP, Objective, PairLoss, Places, totals, values};

/// A batch of pairs on the device.
pub struct PairBatch {
    /// Its tokens; `rows` and `targets` are the places.
    pub data: TrainBatch,
    /// Which token is whose.
    pub places: Places,
}

impl PairBatch {
    /// `batch` has a chosen sequence in every other row, each followed by its rejected one.
    pub fn new(batch: &Batch, objective: Objective, model: &ModelConfig, precision: Precision, device: &Device) -> Self {
        let (shape, places) = ([batch.rows, batch.seq], Places::of(batch, objective));
        let ints = |values: &[i32]| Tensor::<1, Int>::from_data(TensorData::new(values.to_vec(), [values.len()]), device);
        let data = TrainBatch {
            ids: Tensor::from_data(TensorData::new(batch.ids.clone(), shape), device),
            rows: ints(&places.rows),
            targets: ints(&places.targets),
            pass: Pass::new(shape, &batch.positions, &batch.documents, model, device).with_precision(precision),
            noise: None,
        };
        Self { data, places }
    }

    /// −log p of each place, `[N]`, in one graph.
    fn losses_on_graph(&self, model: &CausalLm) -> Tensor<1> {
        let n = self.places.rows.len();
        let logits = linear(self.data.hidden(model), model.head().val(), None, self.data.pass.precision);
        log_softmax(logits, 1).gather(1, self.data.targets.clone().reshape([n, 1])).reshape([n]).neg()
    }

    /// What the sequences are worth to the model without its adapters: DPO's reference.
    pub fn reference(&self, model: &CausalLm, loss: &PairLoss) -> Option<Vec<LogP>> {
        (loss.objective == Objective::Dpo).then(|| self.places.log_p(&on_host(self.data.losses(&without_adapters(model.clone())))))
    }

    /// Loss, pairs whose chosen answer is ahead, and margins, summed over the pairs: evaluation.
    ///
    /// # Errors
    /// A device that cannot hand the losses back.
    pub fn judge(&self, model: &CausalLm, loss: &PairLoss) -> Result<[f64; 3], TaskError> {
        let reference = self.reference(model, loss);
        let losses = self.data.losses(model).try_into_vec_as::<f32>().map_err(|error| LearnError::unread("the losses", &error))?;
        Ok(totals(&values(loss, &self.places.log_p(&losses), reference.as_deref())))
    }

    /// The sum of the pairs' losses, `[1]`, in one graph, and the sums of [`judge`](Self::judge): what [`gradients`](Self::gradients) computes piece by piece.
    pub fn loss(&self, model: &CausalLm, loss: &PairLoss) -> (Tensor<1>, [f64; 3]) {
        let dpo = loss.objective == Objective::Dpo;
        let reference = dpo.then(|| self.places.log_p(&on_host(self.losses_on_graph(&without_adapters(model.clone())).inner())));
        let (mut sums, losses) = ([0.0; 3], self.losses_on_graph(model));
        let (value, weights) = self.weigh(losses.clone().inner(), loss, reference.as_deref(), &mut sums);
        // The value is the host's, the gradient that of the weighted sum.
        let weighted = total(losses * Tensor::from_inner(weights));
        (weighted.clone() - weighted.detach() + Tensor::from_inner(value), sums)
    }

    /// The sum of the pairs' losses, `[1]`, with its gradients, and the sums of [`judge`](Self::judge). `reference` is
    /// [`reference`](Self::reference)'s.
    pub fn gradients(
        &self,
        model: &CausalLm,
        loss: &PairLoss,
        reference: Option<&[LogP]>,
        options: Options,
        watch: &mut Stopwatch<'_>,
    ) -> (Tensor<1>, ParamGrads, [f64; 3]) {
        let mut sums = [0.0; 3];
        let mut weigh = |losses: Tensor<1>| self.weigh(losses, loss, reference, &mut sums);
        let (loss, grads) = gradients_of(model, &self.data, options, Some(&mut weigh), watch);
        (loss, grads, sums)
    }

    /// The loss of all pairs, `[1]`, and its derivative by each of `losses`.
    fn weigh(&self, losses: Tensor<1>, loss: &PairLoss, reference: Option<&[LogP]>, sums: &mut [f64; 3]) -> (Tensor<1>, Tensor<1>) {
        let device = losses.device();
        let values = values(loss, &self.places.log_p(&on_host(losses)), reference);
        *sums = totals(&values);
        let weights = self.places.weights(&values);
        let n = weights.len();
        (Tensor::from_data([sums[0] as f32], &device), Tensor::from_data(TensorData::new(weights, [n]), &device))
    }
}

/// Values on the host. What a device cannot hand back is NaN here: the step then is not finite, and reading its loss or its gradients says
/// why.
fn on_host(losses: Tensor<1>) -> Vec<f32> {
    let n = losses.dims()[0];
    losses.try_into_vec_as::<f32>().unwrap_or_else(|_| vec![f32::NAN; n])
}

/// The model as it was before it had adapters. Only adapters may be trained in it.
fn without_adapters(mut model: CausalLm) -> CausalLm {
    model.linears_mut().for_each(|(_, linear)| linear.lora = None);
    model
}
