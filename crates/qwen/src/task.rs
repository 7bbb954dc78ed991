//! Supervised fine-tuning as the Learner sees it: batches of encoded chats, the sum of their tokens' losses, perplexity.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bellows_chat::plan;
use bellows_chat::{Batch, Encoded, IGNORE};
use bellows_kernels::{Precision, linear};
use bellows_learner::{
    Draw, EvalContext, Evaluation, Group, Interrupted, Layout, LearnError, Rng, Role, StepOutput, Stopwatch, Task, TaskError,
};
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::adapter::{EMBEDDING, HEAD, LoraConfig};
use crate::checkpointing::Checkpointing;
use crate::config::{Method, SftConfig};
use crate::examples::Examples;
use crate::gradients::{Noise, Options, TrainBatch, gradients};
use crate::model::pass::{Draws, Pass};
use crate::model::{CausalLm, ModelConfig};
use crate::overflow::first_not_finite;
use crate::pairs::PairBatch;
use crate::precision::{RunPrecision, rounded};
use crate::preference::PairLoss;
use crate::unchanged::{AFTER, Adapters};
use crate::weights::Unread;
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
    /// Examples, row by row, those of the first micro-batch first. (A list of its own for every row would take three times the memory.)
    examples: Vec<usize>,
    /// Where in `examples` each row begins, and the end.
    rows: Vec<usize>,
    /// Tokens of each row.
    tokens: Vec<usize>,
    /// The first row of each micro-batch, and the end.
    starts: Vec<usize>,
}

impl Epoch {
    fn new(number: usize, batches: &[plan::MicroBatch], lengths: &[usize]) -> Self {
        let count: usize = batches.iter().map(Vec::len).sum();
        let (examples, tokens) = (Vec::with_capacity(lengths.len()), Vec::with_capacity(count));
        let (mut rows, mut starts) = (Vec::with_capacity(count + 1), Vec::with_capacity(batches.len() + 1));
        rows.push(0);
        starts.push(0);
        let mut epoch = Self { number, examples, rows, tokens, starts };
        for batch in batches {
            for row in batch {
                epoch.examples.extend(row);
                epoch.rows.push(epoch.examples.len());
                epoch.tokens.push(row.iter().map(|&example| lengths[example]).sum());
            }
            epoch.starts.push(epoch.tokens.len());
        }
        epoch
    }

    /// The examples of a row.
    fn row(&self, row: usize) -> &[usize] {
        &self.examples[self.rows[row]..self.rows[row + 1]]
    }
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
    pub train: Examples,
    /// Examples to judge by.
    pub valid: Examples,
    /// Fills the ends of rows.
    pub pad: u32,
    /// The adapters before the first update.
    beginning: Adapters,
    /// The bits of what the Learner scales the loss by, an f64.
    scale: AtomicU64,
    plan: Mutex<Option<Arc<Epoch>>>,
}

impl SftTask {
    /// A task over these examples.
    pub fn new(
        config: SftConfig,
        lora: LoraConfig,
        model: ModelConfig,
        train: impl Into<Examples>,
        valid: impl Into<Examples>,
        pad: u32,
    ) -> Self {
        Self {
            config,
            lora,
            model,
            train: train.into(),
            valid: valid.into(),
            pad,
            beginning: Adapters::default(),
            scale: AtomicU64::new(1f64.to_bits()),
            plan: Mutex::new(None),
        }
    }

    /// The same, which knows the adapters before the first update and warns of those that do not learn.
    ///
    /// # Errors
    /// A device that does not hand them back.
    pub(crate) fn beginning_with(self, model: &CausalLm) -> Result<Self, Unread> {
        Ok(Self { beginning: Adapters::of(model)?, ..self })
    }

    /// The micro-batches of an epoch; made once an epoch.
    fn epoch(&self, draw: Draw) -> Arc<Epoch> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match &*plan {
            Some(epoch) if epoch.number == draw.epoch => Arc::clone(epoch),
            _ => {
                let sequences: Vec<usize> = self.train.lengths().collect();
                let longest = |example: &[usize]| example.iter().copied().max().unwrap_or(0);
                let lengths: Vec<usize> = sequences.chunks(self.config.objective.sequences()).map(longest).collect();
                let bits = |i: u64| Rng::new(draw.seed, "order", draw.epoch as u64, i).bits();
                let mut batches = plan::plan(&lengths, self.config.batch_size, self.config.batching(), bits);
                if draw.epoch == 0 {
                    plan::longest_first(&mut batches, &lengths);
                }
                let epoch = Arc::new(Epoch::new(draw.epoch, &batches, &lengths));
                *plan = Some(Arc::clone(&epoch));
                epoch
            }
        }
    }

    /// What gradients through f16 are multiplied by: the loss scale of the mean of so many tokens (or pairs), as PyTorch's users scale it. None in
    /// other precisions.
    fn scale(&self, count: usize) -> Option<f64> {
        let scale = f64::from_bits(self.scale.load(Ordering::Relaxed));
        self.config.precision.is_f16().then(|| scale / count.max(1) as f64)
    }

    /// Gradients of the loss itself, in the order of the layout.
    fn unscaled(&self, layout: &Layout, grads: Vec<Option<Tensor<1>>>, scale: Option<f64>) -> Vec<Option<Tensor<1>>> {
        let Some(scale) = scale else { return grads };
        let kept = grads.into_iter().map(|grad| grad.map(|grad| self.kept(grad))).collect();
        layout.unscaled(kept, scale)
    }

    /// A gradient in the numbers of what is trained.
    fn kept(&self, grad: Tensor<1>) -> Tensor<1> {
        if self.config.precision == RunPrecision::Fp16Pure { rounded(grad) } else { grad }
    }

    /// Whether there is a weight decay, and parameters that it is not for.
    fn spares(&self) -> bool {
        self.config.weight_decay > 0.0 && (self.config.method == Method::Full || !self.lora.modules_to_save.is_empty())
    }

    /// Micro-batches of the first epoch.
    pub(crate) fn batches(&self) -> usize {
        self.epoch(Draw { seed: self.config.seed, epoch: 0, epochs: self.config.epochs, step: 0, first: 0 }).starts.len() - 1
    }

    /// Means over the pairs of `examples` ([`PAIR_METRICS`]), and their number.
    fn judge_pairs(
        &self,
        model: &CausalLm,
        examples: &Examples,
        loss: &PairLoss,
        context: &mut EvalContext<'_>,
    ) -> Result<([f64; 3], usize), TaskError> {
        let (mut judged, mut done) = (Vec::new(), 0);
        let (pairs, all) = (examples.len() / 2, (0..examples.len()).collect::<Vec<usize>>());
        let chunks = all.chunks(2 * self.config.batch_size.max(1)).enumerate();
        for (i, chunk) in chunks.filter(|(i, _)| context.shared.is_mine(*i)) {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let kept = chunk.iter().map(|&i| examples.get(i)).collect::<Result<Vec<_>, _>>()?;
            let rows: Vec<Vec<&Encoded>> = kept.iter().map(|example| vec![example.as_ref()]).collect();
            let batch = Batch::new(&rows, self.pad, self.config.pad_to_multiple_of);
            let batch = PairBatch::new(&batch, loss.objective, &self.model, self.config.precision(), context.device);
            judged.push((i, batch.judge(model, loss)?));
            done += chunk.len() / 2;
            (context.progress)((done * context.shared.ranks()).min(pairs), pairs);
        }
        let mut sums = [0.0; 3];
        for of_batch in context.shared.merge(judged)? {
            sums.iter_mut().zip(of_batch).for_each(|(sum, of_batch)| *sum += of_batch);
        }
        Ok((sums.map(|sum| sum / pairs.max(1) as f64), pairs))
    }

    /// The mean loss of the learnt tokens of `examples` (of pairs: that of a pair), and their number.
    pub(crate) fn judge(&self, model: &CausalLm, examples: &Examples, context: &mut EvalContext<'_>) -> Result<(f64, usize), TaskError> {
        if let Some(loss) = self.config.pair_loss() {
            let ([loss, ..], pairs) = self.judge_pairs(model, examples, &loss, context)?;
            return Ok((loss, pairs));
        }
        let lengths: Vec<usize> = examples.lengths().collect();
        let mut order: Vec<usize> = (0..examples.len()).collect();
        order.sort_by_key(|&i| (lengths[i], i));
        let mut judged: Vec<(usize, (f64, usize))> = Vec::new();
        let chunks = order.chunks(self.config.batch_size.max(1)).enumerate();
        for (i, chunk) in chunks.filter(|(i, _)| context.shared.is_mine(*i)) {
            if (context.interrupted)() {
                return Err(Box::new(Interrupted));
            }
            let kept = chunk.iter().map(|&i| examples.get(i)).collect::<Result<Vec<_>, _>>()?;
            let rows: Vec<Vec<&Encoded>> = kept.iter().map(|example| vec![example.as_ref()]).collect();
            let batch = Batch::new(&rows, self.pad, self.config.pad_to_multiple_of);
            let data = upload(&batch, &self.model, self.config.precision(), context.device);
            let loss = data.total_loss(model).try_into_vec_as::<f32>().map_err(|error| LearnError::unread("the loss", &error))?;
            judged.push((i, (f64::from(loss[0]), batch.targets())));
            (context.progress)((i * self.config.batch_size + chunk.len()).min(order.len()), order.len());
        }
        let add = |(sum, tokens), (of_batch, its_tokens): (f64, usize)| (sum + of_batch, tokens + its_tokens);
        let (sum, tokens) = context.shared.merge(judged)?.into_iter().fold((0.0, 0), add);
        Ok((sum / tokens.max(1) as f64, tokens))
    }

    /// Uniform noise of α / √(S h) on every embedding (NEFTune, Jain et al. 2023).
    fn noise(&self, seq: usize, draws: &Draws) -> Option<Noise> {
        let alpha = self.config.neftune_noise_alpha;
        let scale = alpha / ((seq * self.model.hidden_size) as f64).sqrt();
        (alpha > 0.0).then(|| Noise { key: draws.stream("noise", 0).key(), scale })
    }
}

/// Whether a parameter is the scale of a norm, by the rule of transformers' Trainer.
fn is_norm(name: &str) -> bool {
    name.split('.').any(|part| part == "norm" || part.ends_with("_norm") || part.contains("layernorm"))
}

/// Uploads a batch: ids `[B, S]`, the places that are learnt, and what they are to say.
pub(crate) fn upload(batch: &Batch, model: &ModelConfig, precision: Precision, device: &Device) -> TrainBatch {
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

    /// A, then B of LoRA+; the embedding and the head, where they have a rate of their own; then, where a run trains norms or biases, those of A
    /// and B without weight decay. (A run's tables have a column for each, so there are no more than it needs.)
    fn groups(&self) -> Vec<Group> {
        let rates = [1.0, self.config.loraplus_lr_ratio];
        let group = |lr_scale, weight_decay| Group { lr_scale, weight_decay, bias: false };
        let decay = self.config.weight_decay;
        let own = self.config.embedding_learning_rate.map(|lr| group(lr / self.config.learning_rate, decay));
        let spared = self.spares().then(|| rates.map(|rate| group(rate, 0.0)));
        rates.map(|rate| group(rate, decay)).into_iter().chain(own).chain(spared.into_iter().flatten()).collect()
    }

    fn role_of(&self, name: &str) -> Role {
        let (full, (norm, bias)) = (self.config.method == Method::Full, (is_norm(name), name.ends_with(".bias")));
        if !(full || self.lora.trains(name)) {
            return Role::Fixed;
        }
        let own = self.config.embedding_learning_rate.is_some();
        if own && [EMBEDDING, HEAD].contains(&name) {
            return Role::Trained(2);
        }
        // As in PEFT's LoRA+: what is no matrix goes with B.
        let with_b = !full && (name.ends_with("lora_B") || name.ends_with("lora_magnitude_vector") || norm || bias);
        let spared = self.spares() && (norm || bias);
        Role::Trained(usize::from(with_b) + usize::from(spared) * (2 + usize::from(own)))
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
        let read = |(row, side): (usize, usize)| {
            epoch.row(row).iter().map(|&example| self.train.get(per * example + side)).collect::<Result<Vec<_>, _>>()
        };
        let sides = indices.iter().flat_map(|&row| (0..per).map(move |side| (row, side)));
        let kept = sides.map(read).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<Vec<&Encoded>> = kept.iter().map(|row| row.iter().map(AsRef::as_ref).collect()).collect();
        Ok(SftBatch {
            batch: Batch::new(&rows, self.pad, self.config.pad_to_multiple_of),
            examples: rows.iter().map(Vec::len).sum::<usize>() / per,
            position: position as u64,
            first: (first - epoch.starts[position]) as u64,
        })
    }

    /// The longest row's tokens, padding included, to the next power of two.
    fn size_class(&self, draw: Draw, indices: &[usize]) -> usize {
        let epoch = self.epoch(draw);
        let longest = indices.iter().map(|&row| epoch.tokens[row]).max().unwrap_or(0);
        longest.next_multiple_of(self.config.pad_to_multiple_of.max(1)).next_power_of_two().ilog2() as usize
    }

    fn sample_names(&self, batch: &SftBatch) -> Vec<String> {
        vec![format!("micro-batch {}", batch.position + 1); batch.examples]
    }

    fn oddity(&self, model: &CausalLm, updates: u64) -> Option<String> {
        if updates != AFTER {
            return None;
        }
        match Adapters::of(&model.valid()) {
            Ok(now) => now.oddity(&self.beginning),
            Err(error) => {
                tracing::debug!("{error}");
                None
            }
        }
    }

    fn scale_loss(&self, scale: f64) {
        self.scale.store(scale.to_bits(), Ordering::Relaxed);
    }

    fn first_not_finite(&self, model: &CausalLm, batch: &SftBatch, _: Draw, device: &Device) -> Option<String> {
        let data = upload(&batch.batch, &self.model, self.config.precision(), &device.clone().without_autodiff());
        first_not_finite(model, &data, self.scale(batch.batch.targets()), |grad| self.kept(grad))
    }

    fn less_memory(&self) -> String {
        let further = match (self.config.gradient_checkpointing, self.config.method) {
            (Checkpointing::ALL, Method::Full) => "--method lora",
            (Checkpointing::ALL, Method::Lora) => "a lower --r",
            _ => "--gradient-checkpointing all",
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
        let counted = if self.config.objective.is_of_pairs() { batch.examples } else { batch.batch.targets() };
        let scale = self.scale(counted);
        let options = Options { checkpointing: self.config.gradient_checkpointing, sync: self.config.sync_launches, scale };
        if let Some(loss) = self.config.pair_loss() {
            let mut pairs = PairBatch::new(&batch.batch, loss.objective, &self.model, self.config.precision(), &device);
            let reference = pairs.reference(&model.valid(), &loss);
            pairs.data.noise = self.noise(batch.batch.seq, &draws);
            pairs.data.pass = pairs.data.pass.with_draws(draws);
            let (loss, grads, sums) = pairs.gradients(model, &loss, reference.as_deref(), options, watch);
            return (of_pairs((loss, sums), batch), self.unscaled(layout, layout.arrange(model, grads), scale));
        }
        let mut data = upload(&batch.batch, &self.model, self.config.precision(), &device);
        data.noise = self.noise(batch.batch.seq, &draws);
        data.pass = data.pass.with_draws(draws);
        let (loss, grads) = gradients(model, &data, options, watch);
        let count = batch.batch.targets();
        (
            StepOutput { items: loss.clone().div_scalar(count.max(1) as f64), loss, count, output: () },
            self.unscaled(layout, layout.arrange(model, grads), scale),
        )
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
        let batch = task.batch(&InMemDataset::new(vec![(); 2]), Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 }, &[0, 1]).unwrap();
        assert_eq!((batch.batch.ids.len(), task.units(&batch), batch.batch.targets()), (64, 27, 5));
    }

    #[test]
    fn batches_are_classed_by_their_longest_row() {
        let example = |len: u32| Encoded { ids: (0..len).collect(), trained: vec![true; len as usize], cut: 0 };
        let model = ModelConfig::from_json(include_str!("../tests/golden/qwen2/model/config.json")).unwrap();
        let config = SftConfig { batch_size: 2, pad_to_multiple_of: 16, ..SftConfig::default() };
        let task = SftTask::new(config, LoraConfig::default(), model, [600, 70, 7, 40].map(example).to_vec(), Vec::new(), 0);
        let draw = Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 };
        let rows = task.epoch(draw).tokens.clone();
        let place = |tokens| rows.iter().position(|&n| n == tokens).unwrap();
        let class = |rows: &[usize]| task.size_class(draw, rows);
        assert_eq!([600, 70, 7, 40].map(|tokens| class(&[place(tokens)])), [10, 7, 4, 6]);
        assert_eq!(class(&[place(7), place(70)]), 7);
    }

    #[test]
    fn an_epoch_has_the_rows_of_its_plan() {
        let lengths = [600, 70, 7, 40, 33];
        let examples = lengths.map(|n| Encoded { ids: vec![1; n], trained: vec![true; n], cut: 0 }).to_vec();
        let model = ModelConfig::from_json(include_str!("../tests/golden/qwen2/model/config.json")).unwrap();
        let config = SftConfig { batch_size: 2, packing: true, max_seq_length: 110, ..SftConfig::default() };
        let mode = config.batching();
        let task = SftTask::new(config, LoraConfig::default(), model, examples, Vec::new(), 0);
        let draw = Draw { seed: 3, epoch: 1, epochs: 2, step: 0, first: 0 };
        let planned = plan::plan(&lengths, 2, mode, |i| Rng::new(3, "order", 1, i).bits());
        let epoch = task.epoch(draw);
        let batch = |ends: &[usize]| (ends[0]..ends[1]).map(|row| epoch.row(row).to_vec()).collect::<Vec<_>>();
        assert_eq!(epoch.starts.windows(2).map(batch).collect::<Vec<_>>(), planned);
        let tokens = planned.iter().flatten().map(|row| row.iter().map(|&example| lengths[example]).sum::<usize>());
        assert!(epoch.tokens.iter().copied().eq(tokens) && epoch.tokens.contains(&600) && epoch.tokens.len() == 3, "{:?}", epoch.tokens);
    }

    #[test]
    fn groups_are_those_of_transformers_and_peft() {
        let model = ModelConfig::from_json(include_str!("../tests/golden/qwen2/model/config.json")).unwrap();
        let task = |config: SftConfig| {
            let lora = config.lora();
            SftTask::new(config, lora, model.clone(), Vec::new(), Vec::new(), 0)
        };
        let group = |task: &SftTask, name: &str| match task.role_of(name) {
            Role::Trained(index) => Some((task.groups()[index].lr_scale, task.groups()[index].weight_decay)),
            _ => None,
        };
        let layer = |name: &str| format!("model.layers.0.{name}");
        let plus = SftConfig { weight_decay: 0.1, loraplus_lr_ratio: 16.0, ..SftConfig::default() };
        let lora = task(plus.clone());
        assert_eq!(lora.groups().len(), 2);
        assert_eq!(group(&lora, &layer("self_attn.q_proj.lora.lora_A")), Some((1.0, 0.1)));
        assert_eq!(group(&lora, &layer("self_attn.q_proj.lora.lora_B")), Some((16.0, 0.1)));
        assert_eq!(group(&lora, &layer("self_attn.q_proj.lora.lora_magnitude_vector")), Some((16.0, 0.1)));
        assert_eq!(group(&lora, "model.norm.weight"), None);
        let saved = task(SftConfig { modules_to_save: ["norm", "embed_tokens"].map(String::from).into(), ..plus.clone() });
        assert_eq!(group(&saved, "model.norm.weight"), Some((16.0, 0.0)));
        assert_eq!(group(&saved, "model.embed_tokens.weight"), Some((1.0, 0.1)));
        let own = SftConfig { embedding_learning_rate: Some(plus.learning_rate / 2.0), ..saved.config.clone() };
        let own = task(own);
        assert_eq!((saved.groups().len(), own.groups().len()), (4, 5));
        assert_eq!((own.role_of(EMBEDDING), group(&own, EMBEDDING)), (Role::Trained(2), Some((0.5, 0.1))));
        assert_eq!(group(&own, "model.norm.weight"), Some((16.0, 0.0)));
        let head = task(SftConfig { modules_to_save: vec!["lm_head".into()], ..own.config.clone() });
        assert_eq!((head.role_of(HEAD), head.role_of(EMBEDDING)), (Role::Trained(2), Role::Fixed));
        assert_eq!(group(&own, &layer("self_attn.q_proj.lora.lora_B")), Some((16.0, 0.1)));
        let full = task(SftConfig { method: Method::Full, ..plus });
        for name in ["input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_norm.weight", "self_attn.q_proj.bias"] {
            assert_eq!(group(&full, &layer(name)), Some((1.0, 0.0)), "{name}");
        }
        assert_eq!(group(&full, "model.norm.weight"), Some((1.0, 0.0)));
        assert_eq!(group(&full, &layer("mlp.up_proj.weight")), Some((1.0, 0.1)));
        assert_eq!(task(SftConfig::default()).groups().len(), 2);
    }
}
