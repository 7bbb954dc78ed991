//! Supervised fine-tuning as the Learner sees it: batches of encoded chats, the sum of their tokens' losses, perplexity.

use std::sync::{Arc, Mutex, PoisonError};

use bellows_chat::plan;
use bellows_chat::{Batch, Encoded, IGNORE};
use bellows_kernels::{Precision, linear};
use bellows_learner::{Draw, EvalContext, Evaluation, Group, Interrupted, Layout, Rng, Role, StepOutput, Stopwatch, Task, TaskError};
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::adapter::{EMBEDDING, HEAD, LoraConfig};
use crate::config::{Method, SftConfig};
use crate::gradients::{Options, TrainBatch, gradients};
use crate::loss::head_loss_only;
use crate::model::pass::{Draws, Pass};
use crate::model::{CausalLm, ModelConfig};
use crate::pairs::PairBatch;
use crate::preference::PairLoss;
use crate::{export, peft};

/// Validation columns of `results.csv`.
pub const METRICS: [&str; 2] = ["val/loss", "val/perplexity"];

/// Those of pairs: the share of pairs whose chosen answer is ahead, and by how much it is.
pub const PAIR_METRICS: [&str; 3] = ["val/loss", "val/accuracy", "val/margin"];

/// A micro-batch, or a part of one, and where its random draws come from.
pub struct SftBatch {
    /// The tokens.
    pub batch: Batch,
    /// Rows that are packed or not, by example.
    pub examples: usize,
    /// Place of the micro-batch in the epoch.
    pub position: u64,
    /// The row of the micro-batch that it begins with: 0, or that of a part.
    pub first: u64,
}

/// The micro-batches of an epoch.
struct Epoch {
    number: usize,
    /// Examples of each row, those of the first micro-batch first.
    rows: Vec<Vec<usize>>,
    /// Where in `rows` each micro-batch begins, and the end.
    starts: Vec<usize>,
}

/// Fine-tuning: settings, the model's shape, examples.
pub struct SftTask {
    /// The resolved settings.
    pub config: SftConfig,
    /// Those of the adapter.
    pub lora: LoraConfig,
    /// The shape of the model.
    pub model: ModelConfig,
    /// Training examples.
    pub train: Vec<Encoded>,
    /// Examples to judge by.
    pub valid: Vec<Encoded>,
    /// Fills the ends of rows.
    pub pad: u32,
    plan: Mutex<Option<Arc<Epoch>>>,
}

impl SftTask {
    /// A task over these examples.
    pub fn new(config: SftConfig, lora: LoraConfig, model: ModelConfig, train: Vec<Encoded>, valid: Vec<Encoded>, pad: u32) -> Self {
        Self { config, lora, model, train, valid, pad, plan: Mutex::new(None) }
    }

    /// The micro-batches of an epoch; made once an epoch.
    fn epoch(&self, draw: Draw) -> Arc<Epoch> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match &*plan {
            Some(epoch) if epoch.number == draw.epoch => Arc::clone(epoch),
            _ => {
                let longest = |example: &[Encoded]| example.iter().map(Encoded::len).max().unwrap_or(0);
                let lengths: Vec<usize> = self.train.chunks(self.config.objective.sequences()).map(longest).collect();
                let bits = |i: u64| Rng::new(draw.seed, "order", draw.epoch as u64, i).bits();
                let mut batches = plan::plan(&lengths, self.config.batch_size, self.config.batching(), bits);
                if draw.epoch == 0 {
                    plan::longest_first(&mut batches, &lengths);
                }
                let starts = std::iter::once(0).chain(batches.iter().scan(0, |end, batch| {
                    *end += batch.len();
                    Some(*end)
                }));
                let (number, starts) = (draw.epoch, starts.collect());
                let epoch = Arc::new(Epoch { number, starts, rows: batches.into_iter().flatten().collect() });
                *plan = Some(Arc::clone(&epoch));
                epoch
            }
        }
    }

    /// Micro-batches of the first epoch.
    pub(crate) fn batches(&self) -> usize {
        self.epoch(Draw { seed: self.config.seed, epoch: 0, epochs: self.config.epochs, step: 0 }).starts.len() - 1
    }

    /// Means over the pairs of `examples` ([`PAIR_METRICS`]), and their number.
    fn judge_pairs(
        &self,
        model: &CausalLm,
        examples: &[Encoded],
        loss: &PairLoss,
        context: &mut EvalContext<'_>,
    ) -> Result<([f64; 3], usize), TaskError> {
        let (mut sums, mut done) = ([0.0; 3], 0);
        let pairs = examples.len() / 2;
        for chunk in examples.chunks(2 * self.config.batch_size.max(1)) {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let rows: Vec<Vec<&Encoded>> = chunk.iter().map(|example| vec![example]).collect();
            let batch = Batch::new(&rows, self.pad, self.config.pad_to_multiple_of);
            let batch = PairBatch::new(&batch, loss.objective, &self.model, self.config.precision(), context.device);
            sums.iter_mut().zip(batch.judge(model, loss)?).for_each(|(sum, of_batch)| *sum += of_batch);
            done += chunk.len() / 2;
            (context.progress)(done, pairs);
        }
        Ok((sums.map(|sum| sum / pairs.max(1) as f64), pairs))
    }

    /// The mean loss of the learnt tokens of `examples` (of pairs: that of a pair), and their number.
    pub(crate) fn judge(&self, model: &CausalLm, examples: &[Encoded], context: &mut EvalContext<'_>) -> Result<(f64, usize), TaskError> {
        let mut order: Vec<usize> = (0..examples.len()).collect();
        order.sort_by_key(|&i| (examples[i].len(), i));
        if let Some(loss) = self.config.pair_loss() {
            let ([loss, ..], pairs) = self.judge_pairs(model, examples, &loss, context)?;
            return Ok((loss, pairs));
        }
        let (mut sum, mut tokens) = (0.0, 0);
        for (i, chunk) in order.chunks(self.config.batch_size.max(1)).enumerate() {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let rows: Vec<Vec<&Encoded>> = chunk.iter().map(|&i| vec![&examples[i]]).collect();
            let batch = Batch::new(&rows, self.pad, self.config.pad_to_multiple_of);
            let data = upload(&batch, &self.model, self.config.precision(), context.device);
            let [b, s] = data.ids.dims();
            let hidden = model.hidden(data.ids, &data.pass).reshape([b * s, self.model.hidden_size]).select(0, data.rows);
            let loss = head_loss_only(model.model.norm.forward(hidden), &model.head().val(), data.targets, self.config.precision());
            sum += f64::from(loss.try_into_vec_as::<f32>()?[0]);
            tokens += batch.targets();
            (context.progress)((i * self.config.batch_size + chunk.len()).min(order.len()), order.len());
        }
        Ok((sum / tokens.max(1) as f64, tokens))
    }

    /// Uniform noise of α / √(S h) on every embedding (NEFTune, Jain et al. 2023).
    fn noise(&self, shape: [usize; 2], draws: &Draws, device: &Device) -> Option<Tensor<3>> {
        let alpha = self.config.neftune_noise_alpha;
        let ([b, s], h) = (shape, self.model.hidden_size);
        (alpha > 0.0).then(|| {
            let (rng, scale) = (draws.stream("noise", 0), alpha / ((s * h) as f64).sqrt());
            let values: Vec<f32> = (0..(b * s * h) as u64).map(|i| ((rng.unit_at(i) * 2.0 - 1.0) * scale) as f32).collect();
            Tensor::from_data(TensorData::new(values, [b, s, h]), device)
        })
    }
}

/// Uploads a batch: ids `[B, S]`, the places that are learnt, and what they are to say.
fn upload(batch: &Batch, model: &ModelConfig, precision: Precision, device: &Device) -> TrainBatch {
    let shape = [batch.rows, batch.seq];
    let rows: Vec<i32> = (0..batch.labels.len()).filter(|&i| batch.labels[i] != IGNORE).map(|i| i as i32).collect();
    let targets: Vec<i32> = rows.iter().map(|&i| batch.labels[i as usize]).collect();
    let n = rows.len();
    let ints = |values: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::new(values, [n]), device);
    TrainBatch {
        ids: Tensor::from_data(TensorData::new(batch.ids.clone(), shape), device),
        rows: ints(rows),
        targets: ints(targets),
        pass: Pass::new(shape, &batch.positions, &batch.documents, model, device).with_precision(precision),
        noise: None,
    }
}

/// A step's output from the loss of its pairs and the sums beside it: loss, pairs whose chosen answer is ahead, margins.
fn of_pairs((loss, sums): (Tensor<1>, [f64; 3]), batch: &SftBatch) -> StepOutput<()> {
    let (count, device) = (batch.examples, loss.device());
    let items = sums.map(|sum| (sum / count.max(1) as f64) as f32);
    StepOutput { items: Tensor::from_data(items, &device), loss, count, output: () }
}

impl Task for SftTask {
    type Model = CausalLm;
    type Item = ();
    type Batch = SftBatch;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        if self.config.objective.is_of_pairs() { &["loss", "accuracy", "margin"] } else { &["loss"] }
    }

    fn metric_names(&self) -> Vec<String> {
        match self.config.objective.is_of_pairs() {
            true => PAIR_METRICS.map(String::from).to_vec(),
            false => METRICS.map(String::from).to_vec(),
        }
    }

    fn groups(&self) -> Vec<Group> {
        let group = |lr_scale| Group { lr_scale, weight_decay: self.config.weight_decay, bias: false };
        // Logs have a column a group: the third is there for those who asked for it.
        let embedding = self.config.embedding_learning_rate.map(|lr| group(lr / self.config.learning_rate));
        [group(1.0), group(self.config.loraplus_lr_ratio)].into_iter().chain(embedding).collect()
    }

    fn role_of(&self, name: &str) -> Role {
        let trained = self.config.method == Method::Full || self.lora.trains(name);
        let of_words = self.config.embedding_learning_rate.is_some() && [EMBEDDING, HEAD].contains(&name);
        match trained {
            true if of_words => Role::Trained(2),
            true => Role::Trained(usize::from(name.ends_with("lora_B"))),
            false => Role::Fixed,
        }
    }

    fn per_count(&self) -> bool {
        true
    }

    fn plan(&self, draw: Draw) -> Option<Vec<Vec<usize>>> {
        Some(self.epoch(draw).starts.windows(2).map(|ends| (ends[0]..ends[1]).collect()).collect())
    }

    fn batch(&self, _: &dyn Dataset<()>, draw: Draw, indices: &[usize]) -> Result<SftBatch, TaskError> {
        let (epoch, first) = (self.epoch(draw), indices.first().copied().unwrap_or_default());
        let position = epoch.starts.partition_point(|&start| start <= first).saturating_sub(1);
        let per = self.config.objective.sequences();
        // The two sequences of a pair are rows one below the other.
        let side = |row: usize, side: usize| epoch.rows[row].iter().map(|&example| &self.train[per * example + side]).collect();
        let rows: Vec<Vec<&Encoded>> =
            indices.iter().flat_map(|&row| (0..per).map(move |i| (row, i))).map(|(row, i)| side(row, i)).collect();
        Ok(SftBatch {
            batch: Batch::new(&rows, self.pad, self.config.pad_to_multiple_of),
            examples: rows.iter().map(Vec::len).sum::<usize>() / per,
            position: position as u64,
            first: (first - epoch.starts[position]) as u64,
        })
    }

    fn sample_names(&self, batch: &SftBatch) -> Vec<String> {
        vec![format!("micro-batch {}", batch.position + 1); batch.examples]
    }

    fn less_memory(&self) -> String {
        let further = match (self.config.gradient_checkpointing, self.config.method) {
            (false, _) => "--gradient-checkpointing true",
            (true, Method::Full) => "--method lora",
            (true, Method::Lora) => "a lower --r",
        };
        format!("a lower --max-seq-length or {further} needs less")
    }

    fn unit(&self) -> &'static str {
        "tokens"
    }

    fn units(&self, batch: &SftBatch) -> usize {
        batch.batch.ids.len() - batch.batch.padding()
    }

    /// The whole batch in one graph: what [`gradients`](Self::gradients) computes piece by piece.
    fn loss(&self, model: &CausalLm, batch: &SftBatch, _: Draw, device: &Device) -> StepOutput<()> {
        if let Some(loss) = self.config.pair_loss() {
            let pairs = PairBatch::new(&batch.batch, loss.objective, &self.model, self.config.precision(), device);
            return of_pairs(pairs.loss(model, &loss), batch);
        }
        let data = upload(&batch.batch, &self.model, self.config.precision(), device);
        let [b, s] = data.ids.dims();
        let hidden = model.model.norm.forward(model.hidden(data.ids, &data.pass)).reshape([b * s, self.model.hidden_size]);
        let logits = linear(hidden.select(0, data.rows), model.head().val(), None, self.config.precision());
        let n = logits.dims()[0];
        let log_p = burn::tensor::activation::log_softmax(logits, 1);
        let loss = log_p.gather(1, data.targets.reshape([n, 1])).sum().neg();
        StepOutput { items: loss.clone().div_scalar(n.max(1) as f64), loss, count: n, output: () }
    }

    fn gradients(
        &self,
        model: &CausalLm,
        batch: &SftBatch,
        draw: Draw,
        device: &Device,
        layout: &Layout,
        watch: &mut Stopwatch<'_>,
    ) -> (StepOutput<()>, Vec<Option<Tensor<1>>>) {
        let device = device.clone().without_autodiff();
        // The parts of a micro-batch draw for themselves.
        let draws = Draws { seed: draw.seed, epoch: draw.epoch as u64, batch: batch.first << 32 | batch.position };
        let options = Options { recompute: self.config.gradient_checkpointing, sync: self.config.sync_launches };
        if let Some(loss) = self.config.pair_loss() {
            let mut pairs = PairBatch::new(&batch.batch, loss.objective, &self.model, self.config.precision(), &device);
            let reference = pairs.reference(&model.valid(), &loss);
            pairs.data.noise = self.noise([batch.batch.rows, batch.batch.seq], &draws, &device);
            pairs.data.pass = pairs.data.pass.with_draws(draws);
            let (loss, grads, sums) = pairs.gradients(model, &loss, reference.as_deref(), options, watch);
            return (of_pairs((loss, sums), batch), layout.arrange(model, grads));
        }
        let mut data = upload(&batch.batch, &self.model, self.config.precision(), &device);
        data.noise = self.noise([batch.batch.rows, batch.batch.seq], &draws, &device);
        data.pass = data.pass.with_draws(draws);
        let (loss, grads) = gradients(model, &data, options, watch);
        let count = batch.batch.targets();
        (StepOutput { items: loss.clone().div_scalar(count.max(1) as f64), loss, count, output: () }, layout.arrange(model, grads))
    }

    fn judges(&self) -> bool {
        !self.valid.is_empty()
    }

    fn evaluate(&self, model: &CausalLm, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        if let Some(loss) = self.config.pair_loss() {
            let (means, pairs) = self.judge_pairs(model, &self.valid, &loss, context)?;
            let metrics = PAIR_METRICS.map(String::from).into_iter().zip(means).collect();
            return Ok(Evaluation { fitness: -means[0], metrics, samples: pairs, objects: pairs, unreadable: Vec::new() });
        }
        let (loss, tokens) = self.judge(model, &self.valid, context)?;
        let metrics = METRICS.map(String::from).into_iter().zip([loss, loss.exp()]).collect();
        Ok(Evaluation { fitness: -loss, metrics, samples: self.valid.len(), objects: tokens, unreadable: Vec::new() })
    }
    fn export(&self, model: &CausalLm, _: usize) -> Result<Vec<u8>, TaskError> {
        match self.config.method {
            Method::Lora => Ok(peft::to_bytes(model, &self.lora)?),
            Method::Full => Ok(export::to_bytes(model)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::data::dataset::InMemDataset;

    #[test]
    fn speed_counts_every_token_but_padding() {
        let example =
            |len: u32, trained| Encoded { ids: (0..len).collect(), trained: (0..len).map(|i| i >= len - trained).collect(), cut: 0 };
        let config = SftConfig { batch_size: 2, pad_to_multiple_of: 16, ..SftConfig::default() };
        let model = ModelConfig::from_json(include_str!("../tests/golden/qwen2/model/config.json")).unwrap();
        let task = SftTask::new(config, LoraConfig::default(), model, vec![example(20, 3), example(7, 2)], Vec::new(), 0);
        let batch = task.batch(&InMemDataset::new(vec![(); 2]), Draw { seed: 0, epoch: 0, epochs: 1, step: 0 }, &[0, 1]).unwrap();
        assert_eq!((batch.batch.ids.len(), task.units(&batch), batch.batch.targets()), (64, 27, 5));
    }
}
