//! Times LoRA training steps on made-up weights and tokens: the Learner's own step, with nothing to load.

use std::collections::BTreeMap;
use std::path::Path;

use bellows_chat::Encoded;
use bellows_kernels::cube::Counted;
use bellows_kernels::processor_level;
use bellows_learner::bench::{Bounds, Others, StepTimer, median, ranks, run_dir};
use bellows_learner::memory::peak_memory;
use bellows_learner::{Decay, Identity, Learner, Limits, Rng, StepTimes};
use burn::data::dataset::InMemDataset;
use burn::tensor::{DType, Device};
use rayon::prelude::*;
use serde::Serialize;

use crate::adapter::Targets;
use crate::arch::Architecture;
use crate::checkpointing::Checkpointing;
use crate::checks::adapter_fits;
use crate::config::SftConfig;
use crate::fit::Question;
use crate::load::load_for;
use crate::memory::Place;
use crate::model::{CausalLm, ModelConfig};
use crate::precision::RunPrecision;
use crate::storage::{BaseDtype, Storage};
use crate::task::SftTask;
use crate::train::FinetuneError;
use crate::weights::visit;

/// A published shape of Qwen2.5, or a small one: hidden, intermediate, layers, heads, key heads.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    name: &'static str,
    sizes: [usize; 5],
}

const SIZES: [Size; 4] = [
    Size { name: "tiny", sizes: [256, 704, 4, 4, 2] },
    Size { name: "0.5B", sizes: [896, 4864, 24, 14, 2] },
    Size { name: "1.5B", sizes: [1536, 8960, 28, 12, 2] },
    Size { name: "3B", sizes: [2048, 11008, 36, 16, 2] },
];
const VOCABULARY: usize = 151_936;
/// Rows of an embedding that nothing is looked up in.
const FEW: usize = 64;
const WARM_UP: usize = 1;

impl Size {
    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        SIZES.into_iter().find(|s| s.name == name)
    }

    /// The shape, with Qwen2.5's vocabulary.
    pub fn shape(self) -> ModelConfig {
        let [hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads] = self.sizes;
        ModelConfig {
            architecture: Architecture::Qwen2,
            hidden_size,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim: hidden_size / num_attention_heads,
            vocab_size: VOCABULARY,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            rope_scaling: None,
            sliding_window: None,
            tie_word_embeddings: true,
            max_position_embeddings: 32_768,
            qkv_bias: true,
            qk_norm: false,
            eos_token_ids: Vec::new(),
            generation: serde_json::Map::new(),
            edits: Vec::new(),
        }
    }
}

/// What is timed.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Shape of the model.
    pub size: Size,
    /// Rows.
    pub batch: usize,
    /// Tokens a row, all but the first of them learnt.
    pub seq: usize,
    /// Rank of the adapters.
    pub rank: usize,
    /// Steps that count; one more comes before them.
    pub steps: usize,
    /// Maps with adapters.
    pub targets: Targets,
    /// Layers run again in the backward pass.
    pub checkpointing: Checkpointing,
    /// How the weights are multiplied; with bf16 they are stored so too, as the peer's are.
    pub precision: RunPrecision,
    /// How the weights are stored.
    pub base_dtype: BaseDtype,
}

/// Medians over the steps.
#[derive(Clone, Debug, Serialize)]
pub struct BenchmarkReport {
    /// The program: `bellows`.
    pub peer: &'static str,
    /// Shape of the model.
    pub size: &'static str,
    /// Type of the weights and of products with them.
    pub dtype: &'static str,
    /// Rows.
    pub batch: usize,
    /// Tokens a row.
    pub seq: usize,
    /// Rank.
    pub rank: usize,
    /// Maps with adapters.
    pub targets: String,
    /// Whether layers were run again.
    pub checkpointing: bool,
    /// Forward pass and loss (with the head's gradient), seconds.
    pub forward_s: f64,
    /// Backward pass, seconds.
    pub backward_s: f64,
    /// Clipping and update, seconds.
    pub update_s: f64,
    /// The whole step, seconds.
    pub step_s: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Most memory this process has held, as [`peak_memory`] counts it; `None` where the system does not tell.
    pub peak_gb: Option<f64>,
    /// Threads of the CPU that were used.
    pub threads: usize,
    /// What of the exchange with other ranks comes after the backward pass, and waiting for them, seconds.
    pub exchange_s: f64,
    /// The instruction set of products with the weights, on the processor.
    pub level: &'static str,
    /// Layers run again in the backward pass.
    pub layers_rerun: usize,
    /// How the weights were stored.
    pub base_dtype: BaseDtype,
    /// What the step is held against: the work of its products and of attention (`Footprint::work`).
    #[serde(flatten)]
    pub bounds: Bounds,
}

impl Benchmark {
    /// Runs on `device`, as one of several ranks if there are `others`; `scratch` is a folder for the Learner's files.
    ///
    /// # Errors
    /// When the folder cannot be written, or the device fails; a rank that is gone.
    pub fn run(&self, device: &Device, scratch: &Path, others: Others) -> Result<BenchmarkReport, FinetuneError> {
        let (checkpointing, work) = self.settled(device)?;
        let rerun = checkpointing.of(self.size.shape().num_hidden_layers);
        let timer = Self { checkpointing, ..self.clone() }.train(device, scratch, self.steps + WARM_UP, others)?;
        let (times, threads) = (timer.after(WARM_UP), rayon::current_num_threads());
        let part = |of: fn(&StepTimes) -> f64| median(times.iter().map(of).collect());
        let step_s = part(StepTimes::step);
        let flop = (self.batch * self.seq) as f64 * work;
        let bounds = Bounds {
            flop,
            gflops: flop / step_s / 1e9,
            idle_share: timer.idle_share(WARM_UP, threads).filter(|_| Place::of(device) == Place::Processor),
        };
        Ok(BenchmarkReport {
            peer: "bellows",
            size: self.size.name,
            dtype: self.precision.name(),
            batch: self.batch,
            seq: self.seq,
            rank: self.rank,
            targets: self.targets.to_string(),
            checkpointing: rerun > 0,
            forward_s: part(|t| t.forward),
            backward_s: part(|t| t.backward),
            update_s: part(|t| t.update),
            step_s,
            tokens_per_s: (self.batch * self.seq) as f64 / step_s,
            peak_gb: peak_memory(),
            threads,
            exchange_s: part(|t| t.exchange),
            level: processor_level(self.precision.of_products()),
            layers_rerun: rerun,
            base_dtype: self.base_dtype,
            bounds,
        })
    }

    /// What a training step launches on a GPU, by kernel, and what ours move and compute: what two steps do more than one, so that nothing counts that happens once.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn count(&self, device: &Device, scratch: &Path) -> Result<Counted, FinetuneError> {
        let count = |steps| {
            let (result, counted) = Counted::of(|| self.train(device, scratch, steps, None));
            result.map(|_| counted)
        };
        // What Burn chooses by trying is chosen in the first.
        count(1)?;
        Ok(count(2)?.more_than(&count(1)?))
    }

    /// The same model with a single layer and hardly an embedding, on `device`: what that is to prove before it is timed.
    ///
    /// # Errors
    /// An adapter that does not fit the model.
    pub fn one_layer(&self, device: &Device) -> Result<CausalLm, FinetuneError> {
        let shape = ModelConfig { num_hidden_layers: 1, vocab_size: FEW, ..self.size.shape() };
        self.adapted(&shape, &self.config(), device)
    }

    /// A made-up model of this shape, with its adapters.
    fn adapted(&self, shape: &ModelConfig, config: &SftConfig, device: &Device) -> Result<CausalLm, FinetuneError> {
        let lora = config.lora();
        let model = made_up(shape, self.precision, config.dtypes(Place::of(device)), device);
        adapter_fits(&lora, &model)?;
        Ok(lora.apply(model, 0)?)
    }

    fn config(&self) -> SftConfig {
        SftConfig {
            r: self.rank,
            lora_alpha: 2.0 * self.rank as f64,
            target_modules: self.targets.clone(),
            batch_size: self.batch,
            gradient_accumulation_steps: 1,
            epochs: 1,
            lr_scheduler_type: Decay::Constant,
            warmup_ratio: 0.0,
            pad_to_multiple_of: 1,
            gradient_checkpointing: self.checkpointing,
            precision: self.precision,
            base_dtype: self.base_dtype,
            profile: true,
            ..SftConfig::default()
        }
    }

    /// Which layers are run again, `auto` as the free memory of the processor allows, and the multiplications and additions a token that makes.
    fn settled(&self, device: &Device) -> Result<(Checkpointing, f64), FinetuneError> {
        let place = Place::of(device);
        let drawn = if place == Place::Processor && matches!(self.precision, RunPrecision::Bf16 | RunPrecision::Bf16x2) {
            Storage::Half
        } else {
            Storage::F32
        };
        let storage = Storage::asked(self.base_dtype).unwrap_or(drawn);
        let shape = self.size.shape();
        let has_f16 = device.supports_dtype(DType::F16);
        let mut question = Question { model: &shape, config: self.config(), storage, place, has_f16, seq: self.seq };
        question.choose(place.room(None))?;
        let checkpointing = question.config.gradient_checkpointing;
        let [products, attention] = question.footprint()?.work(self.seq, checkpointing);
        Ok((checkpointing, products + attention))
    }

    /// So many steps on made-up rows.
    fn train(&self, device: &Device, scratch: &Path, steps: usize, others: Others) -> Result<StepTimer, FinetuneError> {
        let (shape, ranks) = (self.size.shape(), ranks(&others));
        let config = SftConfig { ranks, ..self.config() };
        let mut rng = Rng::new(0, "benchmark", 0, 0);
        let mut row = || Encoded {
            ids: (0..self.seq).map(|_| rng.below(VOCABULARY as u64 - 300) as u32).collect(),
            trained: (0..self.seq).map(|i| i > 0).collect(),
            cut: 0,
        };
        let rows: Vec<_> = (0..self.batch * ranks * steps).map(|_| row()).collect();
        let model = self.adapted(&shape, &config, device)?;
        let (lora, learner_config) = (config.lora(), config.learner(false));
        let task = SftTask::new(config, lora, shape, rows, Vec::new(), 0);
        let dir = run_dir(scratch, &others)?;
        let mut learner = Learner::new(task, model, device, learner_config, dir, Identity::default())?;
        if let Some(others) = others {
            learner.join(others, "bellows", Limits::default())?;
        }
        let times = StepTimer::default();
        learner.observe(times.clone());
        learner.fit(&InMemDataset::new(vec![(); self.batch * ranks * steps]))?;
        Ok(times)
    }
}

/// Weights of the size that published models start from, drawn on all threads.
fn made_up(config: &ModelConfig, precision: RunPrecision, dtypes: [BaseDtype; 2], device: &Device) -> CausalLm {
    let model = CausalLm::new(config, device);
    let mut shapes = BTreeMap::new();
    visit(&model, &mut |name, shape, _| drop(shapes.insert(name.to_owned(), shape.to_vec())));
    let drawn = |name: &str| {
        let shape = shapes.get(name)?.clone();
        let rng = Rng::new(0, name, 0, 0);
        let value = |i: u64| match (name.ends_with("norm.weight"), precision) {
            (true, _) => 1.0,
            (false, RunPrecision::F32 | RunPrecision::Fp16 | RunPrecision::Fp16Pure) => (rng.unit_at(i) * 0.08 - 0.04) as f32,
            // A bf16 is the upper half of an f32.
            (false, RunPrecision::Bf16 | RunPrecision::Bf16x2) => {
                f32::from_bits(((rng.unit_at(i) * 0.08 - 0.04) as f32).to_bits() & 0xffff_0000)
            }
        };
        let count: usize = shape.iter().product();
        Some((shape, (0..count as u64).into_par_iter().map(value).collect()))
    };
    match load_for(model, dtypes, true, |name| Ok(drawn(name))) {
        Ok(model) => model,
        Err(error) => unreachable!("the shapes are the model's own: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prove::first_layer;
    use bellows_kernels::Precision;

    fn small(layers: usize) -> Benchmark {
        Benchmark {
            size: Size { name: "small", sizes: [16, 32, layers, 2, 1] },
            batch: 1,
            seq: 4,
            rank: 2,
            steps: 1,
            targets: Targets::parse("q_proj"),
            checkpointing: Checkpointing::OFF,
            precision: RunPrecision::F32,
            base_dtype: BaseDtype::Auto,
        }
    }

    #[test]
    fn a_device_proves_a_layer_of_what_is_timed() {
        let (what, device) = (small(3), Device::flex());
        let model = what.one_layer(&device).unwrap();
        assert_eq!(model.model.layers.len(), 1);
        assert!(model.linears().any(|(name, map)| name.ends_with("down_proj") && map.weight.dims() == [16, 32]));
        assert_eq!(first_layer(&model, &what.size.shape(), Precision::F32, &device, &device, false), 0.0);
    }

    #[test]
    fn a_report_has_the_keys_of_its_peers() {
        let what = small(1);
        let counted = what.count(&Device::flex().autodiff(), tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(counted.reads, 1, "a step waits for its device once, for the sums of its update");
        let report = what.run(&Device::flex().autodiff(), tempfile::tempdir().unwrap().path(), None).unwrap();
        let serde_json::Value::Object(json) = serde_json::to_value(report).unwrap() else { panic!("a report is an object") };
        // What `../shared/peers/lora_step.py` prints, in its order, and then our own.
        let keys = [
            "peer",
            "size",
            "dtype",
            "batch",
            "seq",
            "rank",
            "targets",
            "checkpointing",
            "forward_s",
            "backward_s",
            "update_s",
            "step_s",
            "tokens_per_s",
            "peak_gb",
            "threads",
            "exchange_s",
            "level",
            "layers_rerun",
            "base_dtype",
            "flop",
            "gflops",
            "idle_share",
        ];
        assert_eq!(json.keys().collect::<Vec<_>>(), keys);
        assert_eq!(json["peer"], "bellows");
        assert!(json["flop"].as_f64() > Some(0.0) && json["gflops"].as_f64() > Some(0.0));
        // Other tests work in this process too.
        assert!(json["idle_share"].as_f64().map_or(!cfg!(unix), |share| (0.0..1.0).contains(&share)));
    }
}
