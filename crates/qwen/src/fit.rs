//! Whether a run fits the memory there is, and with which settings it would.

use bellows_exit::{Coded, Exit};
pub use bellows_kernels::cube::largest_allocation;
use bellows_learner::memory::TooLarge;

use crate::adapter::{AdapterError, EMBEDDING, HEAD};
use crate::checkpointing::Checkpointing;
use crate::config::{Method, SftConfig};
use crate::memory::{Footprint, Place, Plan};
use crate::model::ModelConfig;
use crate::model::layers::MAPS;
use crate::storage::{BaseDtype, Storage};

/// The share of free memory that layers' graphs are kept for: the plan may be off by 15 %.
const SHARE: f64 = 0.85;
/// The same of a card's memory: nobody has held a plan against one yet, and other programs draw on it.
const SHARE_OF_CARD: f64 = 0.6;
/// Rows are padded to a multiple of at least this, so no shorter ones are proposed.
const STEP: usize = 64;

/// What makes the largest tensors smaller, on a device that has f16.
const HALVED: &str = ": embedding and head that nothing trains take half as much with --precision fp16";

/// Why a run is not begun.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// More than the setting allows.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A tensor that the device has no room for in one piece, in GB, what it allocates at a time, and what would help there.
    #[error("a tensor of this model takes {0:.2} GB, and the device allocates {1:.2} GB at a time at most{2}")]
    Tensor(f64, f64, &'static str),
    /// The adapter.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
}

impl Coded for FitError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// A run whose memory is asked for.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// The shape of its model.
    pub model: &'a ModelConfig,
    /// Its settings.
    pub config: SftConfig,
    /// How the model is stored.
    pub storage: Storage,
    /// Where it computes.
    pub place: Place,
    /// Whether the device there has f16, as one that is not at hand is taken to have.
    pub has_f16: bool,
    /// Tokens of the longest row, padding included.
    pub seq: usize,
}

/// Tokens of the longest row made of examples of these lengths, padding included.
pub fn longest_row(config: &SftConfig, lengths: impl Iterator<Item = usize>) -> usize {
    let longest = if config.packing { config.max_seq_length } else { lengths.max().unwrap_or(0) };
    longest.next_multiple_of(config.pad_to_multiple_of.max(1))
}

impl Question<'_> {
    /// Its footprint.
    ///
    /// # Errors
    /// Settings of an adapter that cannot be met.
    pub fn footprint(&self) -> Result<Footprint, AdapterError> {
        Footprint::new(self.model, &self.config, self.storage, self.place)
    }

    /// Sequences of a micro-batch.
    pub fn rows(&self) -> usize {
        self.config.batch_size * self.config.objective.sequences()
    }

    /// The plan, with `gradient_checkpointing: auto` settled for `free` bytes (where known) and the limit that is set.
    ///
    /// # Errors
    /// Settings of an adapter that cannot be met.
    pub fn choose(&mut self, free: Option<f64>) -> Result<Plan, AdapterError> {
        let footprint = self.footprint()?;
        if self.config.gradient_checkpointing == Checkpointing::Auto {
            let limit = self.config.memory_limit.map(|gb| gb * 1e9);
            let share = if self.place == Place::Processor { SHARE } else { SHARE_OF_CARD };
            let room = limit.into_iter().chain(free.map(|bytes| share * bytes)).reduce(f64::min);
            let fewest = |room| footprint.fewest(self.rows(), self.seq, room);
            self.config.gradient_checkpointing = room.map_or(Checkpointing::ALL, fewest);
        }
        Ok(footprint.at(self.rows(), self.seq, self.config.gradient_checkpointing))
    }

    /// The same, held against the limit that is set.
    ///
    /// # Errors
    /// A plan beyond that limit.
    pub fn settle(&mut self, free: Option<f64>) -> Result<Plan, FitError> {
        let plan = self.choose(free)?;
        match self.config.memory_limit {
            Some(limit) if plan.peak() > limit * 1e9 => {
                let advice = match self.remedies(limit * 1e9)? {
                    Some(flags) => format!("it would fit with {flags}"),
                    None => "no setting makes it fit; a smaller model would".into(),
                };
                Err(TooLarge { planned: plan.peak() / 1e9, limit, advice }.into())
            }
            _ => Ok(plan),
        }
    }

    /// Whether each tensor of the model fits into the `most` bytes that the device allocates at a time, where that is known.
    ///
    /// # Errors
    /// One that does not; settings of an adapter that cannot be met.
    pub fn allocates(&self, most: Option<u64>) -> Result<(), FitError> {
        let (largest, most) = (self.footprint()?.largest, most.map_or(f64::INFINITY, |most| most as f64));
        let advice = if self.has_f16 { HALVED } else { "" };
        if largest > most { Err(FitError::Tensor(largest / 1e9, most / 1e9, advice)) } else { Ok(()) }
    }

    /// Flags with which the run would fit into `bytes`, those first that change no number: layers run again and smaller batches, then a base in fewer
    /// bits, then shorter rows. `None` if none would do.
    ///
    /// # Errors
    /// Settings of an adapter that cannot be met.
    pub fn remedies(&self, bytes: f64) -> Result<Option<String>, AdapterError> {
        let (all, per) = (Checkpointing::ALL, self.config.objective.sequences());
        // Of a window of batches the sum of their gradients is kept.
        let steps = self.config.gradient_accumulation_steps.max(2);
        let windows = SftConfig { gradient_accumulation_steps: steps, ..self.config.clone() };
        let mut smallest = (None, self.footprint()?);
        for (dtype, storage) in std::iter::once((None, self.storage)).chain(self.narrower()) {
            let planned = |config| -> Result<_, AdapterError> {
                let footprint = Footprint::new(self.model, config, storage, self.place)?;
                let rows = footprint.most_rows(self.seq, all, bytes, self.rows()) / per;
                Ok((footprint, rows))
            };
            let (mut footprint, mut rows) = planned(&self.config)?;
            if rows < self.config.batch_size && self.config.batch_size > 1 {
                (footprint, rows) = planned(&windows)?;
            }
            if rows > 0 {
                return Ok(Some(self.flags(&footprint, dtype, rows, None)));
            }
            smallest = (dtype, footprint);
        }
        let ((dtype, footprint), step) = (smallest, self.config.pad_to_multiple_of.max(STEP));
        Ok(match footprint.longest(per, all, bytes, step, self.seq) {
            0 => None,
            seq => Some(self.flags(&footprint, dtype, 1, Some(seq))),
        })
    }

    /// Ways to store the model there that take less, the most faithful first; blocks are for what is frozen.
    fn narrower(&self) -> impl Iterator<Item = (Option<BaseDtype>, Storage)> {
        let half = match self.place {
            Place::Processor => Some(BaseDtype::Bf16),
            Place::Card => self.has_f16.then_some(BaseDtype::F16),
        };
        let lora = self.config.method == Method::Lora && self.config.modules_to_save.is_empty();
        let map = [self.model.hidden_size, self.model.intermediate_size];
        let asked = |dtype: BaseDtype| Some((Some(dtype), Storage::asked(dtype)?));
        let less = move |(_, storage): &(Option<BaseDtype>, Storage)| lora && storage.bytes(map) < self.storage.bytes(map);
        half.into_iter().chain([BaseDtype::Int8, BaseDtype::Nf4]).filter_map(asked).filter(less)
    }

    /// The flags of a run that is planned as `footprint`, in batches of at most `rows`, where they are not its own.
    fn flags(&self, footprint: &Footprint, dtype: Option<BaseDtype>, rows: usize, seq: Option<usize>) -> String {
        let (layers, batch, mut flags) = (footprint.layers(), self.config.batch_size, Vec::new());
        if self.config.gradient_checkpointing.of(layers) < Checkpointing::ALL.of(layers) {
            flags.push("--gradient-checkpointing all".to_owned());
        }
        if rows < batch {
            // An update of as many examples has the same gradient.
            let update = batch * self.config.gradient_accumulation_steps;
            let fits = (1..=rows).rev().find(|fits| update.is_multiple_of(*fits)).unwrap_or(1);
            flags.push(format!("--batch-size {fits} --gradient-accumulation-steps {}", update / fits));
        }
        flags.extend(dtype.map(|dtype| format!("--base-dtype {dtype}")));
        flags.extend(seq.map(|seq| format!("--max-seq-length {seq}")));
        flags.join(" ")
    }
}

impl SftConfig {
    /// With the base stored as its precision has it there. Weights that are trained begin as they are in the file, and ranks, on devices that may be unlike,
    /// have the same settings.
    #[must_use]
    pub fn stored_at(self, place: Place) -> Self {
        let place = if self.method == Method::Lora && self.ranks == 1 { place } else { Place::Processor };
        Self { base_dtype: self.precision.base_dtype(self.base_dtype, &self.model, place), ..self }
    }

    /// How the layers of the base are stored there, and how embedding and head are: beside blocks in f16 if they are frozen, on a card whose products would
    /// round them to it each time.
    pub fn dtypes(&self, place: Place) -> [BaseDtype; 2] {
        let in_blocks = match self.base_dtype {
            BaseDtype::Auto => self.keeps_maps() && self.model.ends_with(".gguf"),
            dtype => dtype.is_blocks(),
        };
        let rounded = place == Place::Card && self.precision.is_f16() && in_blocks;
        let lora = self.lora();
        let in_f16 = rounded && ![EMBEDDING, HEAD].iter().any(|rows| lora.trains(rows));
        [self.base_dtype, if in_f16 { BaseDtype::F16 } else { self.base_dtype }]
    }

    /// Whether nothing of a linear map of the base is trained, so that it may be kept in any form.
    pub fn keeps_maps(&self) -> bool {
        let lora = self.lora();
        let names_one = |name: &String| MAPS.iter().any(|map| name.ends_with(map));
        self.method == Method::Lora && !MAPS.iter().any(|map| lora.saves(map)) && !self.modules_to_save.iter().any(names_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Base, BaseError};
    use crate::bench::Size;
    use crate::model::CausalLm;
    use crate::model::weight::Weight;
    use crate::precision::RunPrecision;
    use burn::tensor::{DType, Device};
    use half::f16;

    fn question(model: &ModelConfig, config: SftConfig) -> Question<'_> {
        Question { model, config, storage: Storage::Half, place: Place::Processor, has_f16: true, seq: 2048 }
    }

    #[test]
    fn auto_keeps_as_many_graphs_as_fit_and_no_more() {
        let model = Size::named("0.5B").unwrap().shape();
        let config = SftConfig { batch_size: 2, ..SftConfig::default() };
        let settled = |free: Option<f64>, memory_limit| {
            let mut question = question(&model, SftConfig { memory_limit, ..config.clone() });
            let plan = question.choose(free).unwrap();
            (question.config.gradient_checkpointing.of(24), plan.peak())
        };
        assert_eq!(settled(Some(1e12), None).0, 0);
        assert_eq!(settled(Some(1e9), None).0, 23, "where nothing fits, as little as can be");
        assert_eq!(settled(None, None).0, 23, "where nothing is known too");
        let (rerun, peak) = settled(Some(8e9), None);
        let footprint = question(&model, config.clone()).footprint().unwrap();
        assert!((1..23).contains(&rerun) && peak <= SHARE * 8e9, "{rerun}: {peak}");
        assert!(footprint.at(2, 2048, Checkpointing::Layers(rerun - 1)).peak() > SHARE * 8e9, "one more graph does not fit");
        assert_eq!(settled(Some(1e12), Some(SHARE * 8.0)).0, rerun, "a limit is kept to");
    }

    #[test]
    fn a_run_beyond_its_limit_is_refused_with_what_would_fit() {
        let model = Size::named("1.5B").unwrap().shape();
        let config =
            SftConfig { batch_size: 4, memory_limit: Some(8.0), gradient_checkpointing: Checkpointing::OFF, ..SftConfig::default() };
        let refused = question(&model, config.clone()).settle(None).unwrap_err();
        assert_eq!(refused.exit(), Exit::Usage);
        let text = refused.to_string();
        assert!(text.contains("memory_limit is 8: it would fit with --gradient-checkpointing all"), "{text}");
        let flags = question(&model, config.clone()).remedies(8e9).unwrap().unwrap();
        let value = |flag: &str| Some(flags.split_once(flag)?.1.split_whitespace().next()?.parse::<usize>().unwrap());
        let batch_size = value("--batch-size ").unwrap_or(4);
        let gradient_checkpointing = Checkpointing::ALL;
        let steps = value("--gradient-accumulation-steps ").unwrap_or(8);
        assert_eq!(batch_size * steps, 32, "{flags}");
        let mut advised = question(&model, SftConfig { batch_size, gradient_checkpointing, ..config.clone() });
        advised.seq = value("--max-seq-length ").unwrap_or(2048);
        advised.settle(None).unwrap();
        // Rows of this length beside a base in blocks, then shorter ones.
        let blocks = question(&model, config.clone()).remedies(4.6e9).unwrap().unwrap();
        assert!(blocks.ends_with("--base-dtype int8") && !blocks.contains("--max-seq-length"), "{blocks}");
        let shorter = question(&model, config.clone()).remedies(2.7e9).unwrap().unwrap();
        assert!(shorter.contains("--batch-size 1 --gradient-accumulation-steps 32 --base-dtype nf4 --max-seq-length "), "{shorter}");
        assert_eq!(question(&model, config.clone()).remedies(1e9).unwrap(), None, "less than the weights is never enough");
        // All of it is trained, in one batch: the sum of a window is as large as the gradients, and advised runs have it in their plan.
        let whole = SftConfig { method: Method::Full, batch_size: 32, gradient_accumulation_steps: 1, ..config.clone() };
        let ask = Question { storage: Storage::F32, ..question(&model, whole.clone()) };
        let fits = |flags: &str, bytes: f64| {
            let value =
                |flag: &str, or| flags.split_once(flag).map_or(or, |(_, rest)| rest.split_whitespace().next().unwrap().parse().unwrap());
            let steps = value("--gradient-accumulation-steps ", 1);
            let config = SftConfig {
                batch_size: value("--batch-size ", 32),
                gradient_accumulation_steps: steps,
                gradient_checkpointing,
                ..whole.clone()
            };
            let advised = Question { seq: value("--max-seq-length ", 2048), config, ..ask.clone() };
            assert!(
                advised.footprint().unwrap().at(advised.rows(), advised.seq, gradient_checkpointing).peak() <= bytes,
                "{bytes}: {flags}"
            );
            steps
        };
        let advised = (90..180).step_by(2).filter_map(|gb| Some((f64::from(gb) * 1e9, ask.remedies(f64::from(gb) * 1e9).unwrap()?)));
        let steps: Vec<usize> = advised.map(|(bytes, flags)| fits(&flags, bytes)).collect();
        assert!(steps.iter().any(|&steps| steps > 1) && steps.contains(&1), "{steps:?}");
        // What is trained whole is in no blocks.
        let saved = SftConfig { modules_to_save: vec!["norm".into()], ..config };
        let shorter = question(&model, saved).remedies(4.6e9).unwrap().unwrap();
        assert!(shorter.contains("--max-seq-length ") && !shorter.contains("dtype"), "{shorter}");
    }

    #[test]
    fn a_tensor_larger_than_any_buffer_is_refused() {
        let shape = ModelConfig { hidden_size: 3584, vocab_size: 152_064, ..Size::named("1.5B").unwrap().shape() };
        let allocates = |storage, config, most| Question { storage, place: Place::Card, ..question(&shape, config) }.allocates(most);
        let fp16 = || SftConfig { precision: RunPrecision::Fp16, ..SftConfig::default() };
        let vulkan = Some((1 << 31) - 1);
        let refused = allocates(Storage::F32, fp16(), vulkan).unwrap_err();
        assert_eq!(refused.exit(), Exit::Usage);
        assert!(refused.to_string().contains("takes 2.18 GB, and the device allocates 2.15 GB"), "{refused}");
        allocates(Storage::F32, fp16(), None).unwrap();
        allocates(Storage::F32, fp16(), Some(1 << 32)).unwrap();
        allocates(Storage::Half, fp16(), vulkan).unwrap();
        // A GGUF keeps its blocks in fp16 too.
        let gguf = |config| allocates(Storage::Blocks { layers: 0.6, rows: 4.0 }, SftConfig { model: "m.gguf".into(), ..config }, vulkan);
        gguf(fp16()).unwrap();
        let refused = gguf(SftConfig::default()).unwrap_err().to_string();
        assert!(refused.ends_with("take half as much with --precision fp16"), "{refused}");
        let without = Question { storage: Storage::F32, place: Place::Card, has_f16: false, ..question(&shape, SftConfig::default()) };
        let refused = without.allocates(vulkan).unwrap_err().to_string();
        assert!(refused.ends_with("the device allocates 2.15 GB at a time at most"), "{refused}");
        for (storage, base_dtype) in [(Storage::Half, BaseDtype::F16), (Storage::Int8, BaseDtype::Int8), (Storage::Nf4, BaseDtype::Nf4)] {
            allocates(storage, SftConfig { base_dtype, ..fp16() }, vulkan).unwrap();
        }
        let too_large = |storage, config| matches!(allocates(storage, config, vulkan), Err(FitError::Tensor(..)));
        assert!(too_large(Storage::Nf4, SftConfig::default()), "rows beside blocks are f32 there");
        let trained = SftConfig { modules_to_save: vec!["embed_tokens".into()], ..fp16() };
        assert!(too_large(Storage::Half, trained), "trained in f32");
    }

    #[test]
    fn a_card_without_f16_is_advised_blocks() {
        let model = Size::named("1.5B").unwrap().shape();
        let advised = |has_f16| -> Vec<String> {
            let ask = Question { storage: Storage::F32, place: Place::Card, has_f16, ..question(&model, SftConfig::default()) };
            (2..16).filter_map(|gb| ask.remedies(f64::from(gb) * 1e9).unwrap()).collect()
        };
        let (with, without) = (advised(true), advised(false));
        let names = |advised: &[String], dtype: &str| advised.iter().any(|flags| flags.contains(dtype));
        assert!(names(&with, "--base-dtype f16"), "{with:?}");
        assert!(names(&without, "--base-dtype int8") && !names(&without, "f16"), "{without:?}");
        let [f16, bf16] = [BaseDtype::F16, BaseDtype::Bf16].map(|dtype| BaseError::Dtype(dtype).to_string());
        assert_eq!(f16, "base_dtype f16: this device has no such numbers");
        assert_eq!(bf16, "base_dtype bf16: this device has no such numbers; auto keeps a frozen model's bf16 there, two to a word");
    }

    #[test]
    fn rows_beside_blocks_are_f16_where_products_round_them() {
        let config = |precision, base_dtype| SftConfig { precision, base_dtype, ..SftConfig::default() };
        let nf4 = config(RunPrecision::Fp16, BaseDtype::Nf4);
        assert_eq!(nf4.dtypes(Place::Card), [BaseDtype::Nf4, BaseDtype::F16]);
        assert_eq!(config(RunPrecision::Fp16Pure, BaseDtype::Int8).dtypes(Place::Card), [BaseDtype::Int8, BaseDtype::F16]);
        assert_eq!(nf4.dtypes(Place::Processor), [BaseDtype::Nf4; 2], "bf16 there");
        assert_eq!(config(RunPrecision::F32, BaseDtype::Nf4).dtypes(Place::Card), [BaseDtype::Nf4; 2]);
        let gguf = SftConfig { model: "m.gguf".into(), ..config(RunPrecision::Fp16, BaseDtype::Auto) };
        assert_eq!(gguf.dtypes(Place::Card), [BaseDtype::Auto, BaseDtype::F16]);
        assert_eq!(gguf.dtypes(Place::Processor), [BaseDtype::Auto; 2]);
        let trained = SftConfig { modules_to_save: vec!["down_proj".into()], ..gguf };
        assert_eq!(trained.dtypes(Place::Card), [BaseDtype::Auto; 2], "maps that are trained are in no blocks");
        let saved = SftConfig { modules_to_save: vec!["embed_tokens".into()], ..nf4.clone() };
        assert_eq!(saved.dtypes(Place::Card), [BaseDtype::Nf4; 2], "trained in f32");

        let base = || Base::tiny(["a text"], 0, &Device::flex()).unwrap();
        let rounded = base().stored_as(nf4.dtypes(Place::Card), &Device::flex()).unwrap().model;
        assert!(rounded.linears().all(|(_, linear)| matches!(linear.weight, Weight::Blocks(_))));
        let rows = |model: &CausalLm| model.head().val().cast(DType::F32).try_into_vec_as::<f32>().unwrap();
        assert_eq!(rounded.head().val().dtype(), DType::F16);
        let wanted = rows(&base().model).into_iter().map(|value| f16::from_f32(value).to_f32());
        assert!(rows(&rounded).into_iter().eq(wanted) && rows(&rounded) != rows(&base().model));
    }

    #[test]
    fn rows_are_as_long_as_padding_makes_them() {
        let plain = SftConfig { max_seq_length: 100, ..SftConfig::default() };
        assert_eq!(longest_row(&plain, [3, 65, 7].into_iter()), 128);
        assert_eq!(longest_row(&SftConfig { packing: true, ..plain }, [3].into_iter()), 128);
    }
}
