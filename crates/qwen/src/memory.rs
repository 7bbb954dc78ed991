//! What a training run holds in memory, from its settings and the shape of the model alone: asked before anything is allocated.
//!
//! The peak is the sum of six terms. *Weights* lie as they are stored. *Adapters* (or whatever is trained) are f32, and so is what the *optimizer*
//! keeps of each of their values: moments, and the average that is judged. *Activations* are what the backward pass reads again: of a layer whose
//! graph is kept everything its operations save (the gradients of products, attention and decoder in `kernels`; the list is in
//! `Footprint::graph`), of one that is run again its input. *Logits* are those of one block of rows ([`CHUNK`](crate::loss::CHUNK)).
//! *Workspace* is what comes and goes: gradients on their way down through one layer, an update, a checkpoint, the program itself.
//!
//! Their moments differ, and still they add up: what is freed waits in a pool for the next step instead of going back to the system, though never
//! more of it than was once in use (`kernels::buffers`). So there are two moments to look at, an update and a checkpoint. An evaluation has a pool of
//! its own, as have the files of the end, and no backward pass: batches like those of training need less there. Only the size of the program and its
//! tokenizer is measured; docs/memory.md holds plans against measurements.

use crate::adapter::{AdapterError, EMBEDDING, HEAD};
use crate::checkpointing::Checkpointing;
use crate::config::{Method, SftConfig};
use crate::loss::{copies, most};
use crate::maps::{Map, of_layer};
use crate::model::ModelConfig;
use crate::optim::Optim;
use crate::precision::Products;
use crate::preference::Objective;
use crate::storage::{BaseDtype, Storage};
use bellows_kernels::Precision;
use bellows_kernels::attention::MOST_SUMMED;
use bellows_kernels::cube::MOST_DENSE;
pub use bellows_learner::memory::Place;
use bellows_learner::memory::last;
use bellows_weights::gguf::Preset;
use std::ops::Range;

/// Bytes of a value that is computed with.
const F32: f64 = 4.0;
/// Values in f16, as values in f32.
const HALF: f64 = 0.5;
/// Bytes of the program: its code and its threads, and the tables of a tokenizer (SmolLM2's of 49,152 words take 63 MB, Qwen2.5's of three times as many 70).
fn program(words: usize) -> f64 {
    42e6 + 65e6 * (words as f64 / 49_152.0).min(1.0)
}

/// Bytes of a card that its driver and the kernels take.
const CONTEXT: f64 = 400e6;
/// Bytes of the parts of a product's sums at most, and terms of each at least (`kernels::cube`).
const PARTS: f64 = (16 << 20) as f64;
const TERMS: f64 = 256.0;
/// What allocators lose of a card's memory to rounding and to blocks that fit nothing (not measured: no card was at hand).
const CARD_LOSS: f64 = 1.1;

/// The memory of a run, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The model that nothing is learnt of.
    pub weights: f64,
    /// What is trained.
    pub adapters: f64,
    /// Moments and average.
    pub optimizer: f64,
    /// What the backward pass reads again.
    pub activations: f64,
    /// Logits of a block of rows.
    pub logits: f64,
    /// What comes and goes.
    pub workspace: f64,
    /// While the model is loaded, and while it is merged into files.
    outside: f64,
}

impl Plan {
    /// The most that is held at once.
    pub fn peak(&self) -> f64 {
        let Self { weights, adapters, optimizer, activations, logits, workspace, outside } = *self;
        (weights + adapters + optimizer + activations + logits + workspace).max(outside)
    }
}

/// What of a run its memory and its work depend on; rows and tokens are asked for later.
#[derive(Clone, Debug)]
pub struct Footprint {
    pub(crate) maps: [Map; 7],
    /// Rank of the adapter of each map, layer by layer; 0 where it has none.
    pub(crate) ranks: Vec<[usize; 7]>,
    /// Whether each map is trained itself: all of them, or those to save.
    pub(crate) whole: Vec<[bool; 7]>,
    /// Embedding or head is trained.
    pub(crate) head_trained: bool,
    pub(crate) vocabulary: [usize; 2],
    /// Query heads, and the widths of hidden states, queries, keys, MLP.
    pub(crate) heads: usize,
    pub(crate) widths: [f64; 4],
    qk_norm: bool,
    /// Gate and up are f16 where they can be, and so are queries, keys and values.
    halves: [bool; 2],
    dropout: bool,
    dora: bool,
    pairs: bool,
    /// Each batch is also computed without the adapter, forward alone.
    pub(crate) reference: bool,
    accumulates: bool,
    moments: f64,
    weights: f64,
    trained: f64,
    /// What a card holds for a moment of weights that its products (Burn's or ours) do not read as they are stored; the processor's read all.
    dense: f64,
    /// Bytes of the largest tensor: embedding or head as it is held, or what products read in place of it or of a map.
    pub(crate) largest: f64,
    loading: f64,
    merged: f64,
    place: Place,
}

/// Bytes of the largest tensor of a merged model while it is written, where a run ends with one: in f32, whose memory a directory's 16 bits are made
/// in, and in a GGUF's blocks beside that.
fn merged(model: &ModelConfig, config: &SftConfig) -> f64 {
    let shape = [model.vocab_size, model.hidden_size];
    let of = |preset: Preset| preset.block_type("token_embd.weight", &shape, model.num_hidden_layers, model.tie_word_embeddings);
    let blocks = config.gguf().and_then(Preset::from_name).and_then(|preset| of(preset).bytes_of(&shape));
    let values = if config.save_merged || blocks.is_some() { shape[0] * shape[1] } else { 0 };
    F32 * values as f64 + blocks.unwrap_or_default() as f64
}

/// Shapes of the maps that are trained themselves.
fn trained_whole(whole: &[[bool; 7]], maps: &[Map; 7]) -> impl Iterator<Item = [usize; 2]> {
    whole.iter().flat_map(move |layer| layer.iter().zip(maps)).filter(|(whole, _)| **whole).map(|(_, (_, shape))| *shape)
}

impl Footprint {
    /// That of a run with these settings, on a model of this shape that is stored so.
    ///
    /// # Errors
    /// Settings of an adapter that cannot be met.
    pub fn new(model: &ModelConfig, config: &SftConfig, storage: Storage, place: Place) -> Result<Self, AdapterError> {
        let (h, i, layers) = (model.hidden_size, model.intermediate_size, model.num_hidden_layers);
        let (q, kv) = (model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim);
        let maps = of_layer(model);
        let (full, lora) = (config.method == Method::Full, config.lora());
        let (mut ranks, mut whole) = (vec![[0; 7]; layers], vec![[full; 7]; layers]);
        for (layer, (ranks, whole)) in ranks.iter_mut().zip(&mut whole).enumerate().filter(|_| !full) {
            for ((rank, whole), (name, _)) in ranks.iter_mut().zip(whole).zip(maps) {
                let name = format!("model.layers.{layer}.{name}");
                *rank = lora.spec(&name, layer, 0)?.map_or(0, |spec| spec.rank);
                *whole = lora.saves(&name);
            }
        }
        let sides = |[out, input]: [usize; 2]| out + input;
        let dora = |[out, _]: [usize; 2]| if config.use_dora { out } else { 0 };
        let of_map = |(rank, (_, shape)): (&usize, &Map)| if *rank == 0 { 0 } else { rank * sides(*shape) + dora(*shape) };
        let adapters: usize = ranks.iter().map(|ranks| ranks.iter().zip(&maps).map(of_map).sum::<usize>()).sum();
        // Beside its magnitudes DoRA keeps ‖w‖² of every row that it rescales (`Lora::squares`).
        let rescaled = |(rank, (_, shape)): (&usize, &Map)| if *rank == 0 { 0 } else { dora(*shape) };
        let squares: usize = ranks.iter().map(|ranks| ranks.iter().zip(&maps).map(rescaled).sum::<usize>()).sum();

        let vocabulary = [model.vocab_size, h];
        let embeddings: Vec<&str> = std::iter::once(EMBEDDING).chain((!model.tie_word_embeddings).then_some(HEAD)).collect();
        let saved = embeddings.iter().filter(|name| full || lora.trains(name)).count();
        let in_f16 = matches!(config.precision(), Precision::F16 | Precision::PureF16);
        let in_rows = if config.dtypes(place)[1] == BaseDtype::F16 { Storage::Half } else { storage.of_embedding(place) };
        let embedding = in_rows.bytes(vocabulary);
        let of_layers = layers as f64 * maps.iter().map(|(_, shape)| storage.bytes(*shape)).sum::<f64>();
        let small = (layers * (2 * h + if model.qkv_bias { q + 2 * kv } else { 0 }) + h) as f64;
        let rows = (vocabulary[0] * vocabulary[1]) as f64;
        // Bytes of a factor, in which matrices are made dense.
        let factor = if in_f16 { HALF * F32 } else { F32 };
        let largest = |storage: Storage, values: f64| match (place, storage) {
            (Place::Processor, _) => 0.0,
            (Place::Card, Storage::F32) if !in_f16 => 0.0,
            // Our own read 16 bits and int8 where they lie, whatever the factors are; any read f16 for products in f16.
            (Place::Card, Storage::Words | Storage::Int8) if config.products == Products::Own => 0.0,
            (Place::Card, Storage::Half | Storage::Mixed { .. }) if in_f16 || config.products == Products::Own => 0.0,
            (Place::Card, _) => factor * values,
        };
        // Our own have small maps of one input dense together: q, k and v; gate and up.
        let values = |maps: &[Map]| maps.iter().map(|(_, [out, input])| out * input).sum::<usize>();
        let together = match storage {
            Storage::Nf4 | Storage::Blocks { .. } if config.products != Products::Burn => {
                [&maps[..3], &maps[4..6]].map(values).into_iter().filter(|values| *values <= MOST_DENSE).max().unwrap_or(0)
            }
            _ => 0,
        };
        let frozen = of_layers - trained_whole(&whole, &maps).map(|shape| storage.bytes(shape)).sum::<f64>();
        let of_whole = trained_whole(&whole, &maps).map(|[out, input]| (out * input) as f64).sum::<f64>();
        let (weights, trained) = match full {
            true => (0.0, of_whole + small + embeddings.len() as f64 * rows),
            false => (
                frozen + F32 * (small + squares as f64) + (embeddings.len() - saved) as f64 * embedding,
                adapters as f64 + of_whole + saved as f64 * rows,
            ),
        };
        let dense = largest(storage, (h * i).max(together) as f64).max(largest(in_rows, rows));
        let halves = place == Place::Card && config.precision() == Precision::F16 && config.products == Products::Own;
        Ok(Self {
            maps,
            ranks,
            whole,
            head_trained: saved > 0,
            vocabulary,
            heads: model.num_attention_heads,
            widths: [h, q, kv, i].map(|width| width as f64),
            qk_norm: model.qk_norm,
            halves: [halves, halves && !model.qkv_bias],
            dropout: config.lora_dropout > 0.0,
            dora: config.use_dora,
            pairs: config.objective.is_of_pairs(),
            reference: config.objective == Objective::Dpo,
            accumulates: config.gradient_accumulation_steps > 1,
            moments: match config.optim {
                Optim::Sgd | Optim::Lion => 1.0,
                Optim::Adafactor => 0.0,
                Optim::Adam | Optim::AdamW => 2.0,
            },
            weights,
            trained,
            dense,
            largest: dense.max(if saved > 0 { F32 * rows } else { embedding }),
            // A tensor is read as f32 before it is stored. The largest is the embedding, which comes before maps that are in no blocks.
            loading: program(model.vocab_size)
                + embedding
                + F32 * rows
                + if storage.is_blocks() { of_layers } else { (of_layers - F32 * rows).max(0.0) },
            merged: merged(model, config),
            place,
        })
    }

    /// The lowest layer that something is learnt in; those below have no backward pass.
    pub(crate) fn lowest(&self) -> usize {
        let learns = |layer: &usize| self.ranks[*layer].iter().any(|rank| *rank > 0) || self.whole[*layer].contains(&true);
        let layers = self.ranks.len();
        if self.head_trained { 0 } else { (0..layers).find(learns).unwrap_or(layers) }
    }

    /// How many layers have a backward pass.
    pub fn layers(&self) -> usize {
        self.ranks.len() - self.lowest()
    }

    /// What `of` says of the shapes of maps with adapters of these ranks; 0 of those that have none.
    fn adapted(&self, ranks: &[usize; 7], of: impl Fn([usize; 2]) -> usize) -> [usize; 7] {
        std::array::from_fn(|map| if ranks[map] > 0 { of(self.maps[map].1) } else { 0 })
    }

    /// What a value counts that lies between these maps of a layer, where it `can` be f16: [`HALF`] if all are no more than maps (`in_half` of the layers), and none is
    /// trained itself, which computes in f32.
    fn between(&self, can: bool, layer: usize, maps: Range<usize>) -> f64 {
        let alone = (self.dora || self.dropout) && self.ranks[layer][maps.clone()].iter().any(|rank| *rank > 0);
        if can && !alone && !self.whole[layer][maps].contains(&true) { HALF } else { 1.0 }
    }

    /// The same of queries, keys and values, of what attention makes of them and of the gradients of these.
    fn attended(&self, layer: usize) -> f64 {
        self.between(self.halves[1], layer, 0..4)
    }

    /// The same of gate and up, of what is made of them and of the gradients of these.
    fn gated(&self, layer: usize) -> f64 {
        self.between(self.halves[0], layer, 4..7)
    }

    /// Values a token that the graph of a layer keeps, as so many in f32.
    fn graph(&self, layer: usize) -> f64 {
        let [h, q, kv, i] = self.widths;
        let (ranks, whole) = (&self.ranks[layer], self.whole[layer]);
        let sum = |of: [usize; 7]| of.iter().sum::<usize>() as f64;
        let kept = |by: bool, width: f64| if by { width } else { 0.0 };
        // The inputs of maps that learn, but for that of o, which attention has kept already; with dropout each adapter has one of its own.
        let reads: [bool; 7] = std::array::from_fn(|map| whole[map] || ranks[map] > 0 && !self.dropout);
        let [of_q, of_k, of_v, _, of_gate, of_up, of_down] = reads;
        let dropped = if self.dropout { sum(self.adapted(ranks, |[_, input]| input)) } else { 0.0 };
        let inputs = kept(of_q || of_k || of_v, h) + kept(of_gate || of_up, h) + self.gated(layer) * kept(of_down, i) + dropped;
        // DoRA scales the map's output and the branch's (`base` and `branch(x)` of `lora.rs`) by what is learnt, and reads both again.
        let dora = if self.dora { 2.0 * sum(self.adapted(ranks, |[out, _]| out)) } else { 0.0 };
        // A branch that is computed by itself keeps what A makes of its input (`inner`), which B's gradient reads.
        let inner = if self.dora || self.dropout { sum(*ranks) } else { 0.0 };
        let head_norms = if self.qk_norm { q + kv } else { 0.0 };
        // Inputs of both norms; queries, keys, values, what attention makes of them, the sum of each row; gate and up.
        let attention = self.attended(layer) * (head_norms + 2.0 * q + 2.0 * kv) + self.heads as f64;
        2.0 * h + attention + self.gated(layer) * 2.0 * i + inputs + dora + inner
    }

    /// Of what DoRA rescales: outputs of the maps of one input together, and of one map its rank times its outputs; both at the largest.
    fn rescaled(&self) -> [f64; 2] {
        if !self.dora {
            return [0.0; 2];
        }
        let outputs = |ranks: &[usize; 7]| self.adapted(ranks, |[out, _]| out);
        let together = |ranks: &[usize; 7]| {
            let [q, k, v, o, gate, up, down] = outputs(ranks);
            (q + k + v).max(o).max(gate + up).max(down)
        };
        let norms = |ranks: &[usize; 7]| ranks.iter().zip(outputs(ranks)).map(|(rank, out)| rank * out).max().unwrap_or(0);
        let most = |of: &dyn Fn(&[usize; 7]) -> usize| self.ranks.iter().map(of).max().unwrap_or(0) as f64;
        [most(&together), most(&norms)]
    }

    /// With micro-batches of so many rows of so many tokens, padding included.
    pub fn at(&self, rows: usize, seq: usize, checkpointing: Checkpointing) -> Plan {
        let [h, q, _, i] = self.widths;
        let (tokens, rerun) = ((rows * seq) as f64, checkpointing.of(self.layers()));
        let graphs: f64 = (self.lowest() + rerun..self.ranks.len()).map(|layer| self.graph(layer)).sum();
        let [v, width] = self.vocabulary.map(|n| n as f64);
        let (loss, own) = match self.place {
            Place::Processor => (1.0, program(self.vocabulary[0])),
            Place::Card => (CARD_LOSS, CONTEXT),
        };
        let activations = loss * F32 * tokens * (graphs + (rerun + 1) as f64 * h);
        let block = tokens.min(most(self.place, self.pairs) as f64);
        let logits = loss * F32 * copies(self.place, self.pairs) as f64 * block * v;
        // Down through the MLP, where gradients are widest; hidden states at the head, and the gradient of its weights or of a map's.
        let of_maps = trained_whole(&self.whole, &self.maps).map(|[out, input]| out * input).max().unwrap_or(0) as f64;
        let of_weights = if self.head_trained { of_maps.max(3.0 * v * width) } else { of_maps };
        // DoRA's: of the maps of one input the gradients of `base` and `branch(x)`, which are that of y times their scales; and of one map's
        // `row_norms` A Wᵀ and B A Aᵀ, each with its product with B.
        let [rescaled, norms] = self.rescaled();
        let doras = 2.0 * tokens * rescaled + 4.0 * norms;
        let widest = |of: &dyn Fn(usize) -> f64| (self.lowest()..self.ranks.len()).map(of).fold(HALF, f64::max);
        let (gated, attended) = (widest(&|layer| self.gated(layer)), widest(&|layer| self.attended(layer)));
        // Sums in parts: of the gradient of the head's rows, the longest, and of those of keys and values, a part to a query head at most.
        let parts = match self.place {
            Place::Processor => 0.0,
            Place::Card => {
                let of_keys = 2.0 * q * tokens.min((MOST_SUMMED / self.heads) as f64);
                F32 * of_keys + PARTS.min(F32 * block * h * (v / TERMS).floor())
            }
        };
        let passing = loss * (F32 * (tokens * (gated * 3.0 * i + 9.0 * h + attended * q) + doras + of_weights) + self.dense + parts);

        let (one, moments) = (F32 * self.trained, self.moments);
        let (learnt, passes) = (one * (2.0 + moments), activations + logits);
        // Gradients (twice, where they are summed up), the weights in one piece, the new ones, the new moments.
        let new = one * (3.0 + moments + f64::from(u8::from(self.accumulates)));
        let updating = learnt + passes + passing + new;
        // Weights, average and moments as files, and the last of them as tensors too.
        let waiting = (passes + passing + new).min((learnt + passes).max(learnt + new));
        let saving = learnt + waiting + one * (2.0 + 2.0 * moments);
        let held = if self.place == Place::Processor { updating.max(saving) } else { updating };
        // Beside the state lies the best adapter.
        let merging = if self.merged > 0.0 { own + self.weights + learnt + one + self.merged } else { 0.0 };
        Plan {
            weights: self.weights,
            adapters: one,
            optimizer: learnt - one,
            activations,
            logits,
            workspace: own + held - learnt - passes,
            outside: if self.place == Place::Card { 0.0 } else { self.loading.max(merging) },
        }
    }

    /// The fewest layers run again with which such micro-batches fit into `bytes`; all, if none do.
    pub fn fewest(&self, rows: usize, seq: usize, bytes: f64) -> Checkpointing {
        let fits = |n: &usize| self.at(rows, seq, Checkpointing::Layers(*n)).peak() <= bytes;
        (0..self.layers()).find(fits).map_or(Checkpointing::ALL, Checkpointing::Layers)
    }

    /// The most rows of so many tokens that fit into `bytes`, at most `most`; 0 if not even one does.
    pub fn most_rows(&self, seq: usize, checkpointing: Checkpointing, bytes: f64, most: usize) -> usize {
        last(most, |rows| self.at(rows, seq, checkpointing).peak() <= bytes)
    }

    /// The longest rows, in steps of `step` tokens, that fit so; 0 if none do.
    pub fn longest(&self, rows: usize, checkpointing: Checkpointing, bytes: f64, step: usize, most: usize) -> usize {
        step * last(most / step, |n| self.at(rows, n * step, checkpointing).peak() <= bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Targets;
    use crate::bench::Size;
    use crate::precision::RunPrecision;

    fn of(size: &str, config: SftConfig, storage: Storage) -> Footprint {
        Footprint::new(&Size::named(size).unwrap().shape(), &config, storage, Place::Processor).unwrap()
    }

    /// Counts of parameters as the model cards and PEFT's `print_trainable_parameters` say them.
    #[test]
    fn parameters_are_those_of_the_published_models() {
        for (size, all, adapters) in
            [("0.5B", 494_032_768.0, 8_798_208.0), ("1.5B", 1_543_714_304.0, 18_464_768.0), ("3B", 3_085_938_688.0, 29_933_568.0)]
        {
            let full = of(size, SftConfig { method: Method::Full, ..SftConfig::default() }, Storage::F32);
            assert_eq!((full.trained, full.weights), (all, 0.0), "{size}");
            let lora = of(size, SftConfig::default(), Storage::F32);
            assert_eq!((lora.trained, lora.weights), (adapters, 4.0 * all), "{size}");
        }
        let saved = SftConfig { modules_to_save: vec!["embed_tokens".into()], ..SftConfig::default() };
        let (saved, plain) = (of("0.5B", saved, Storage::Half), of("0.5B", SftConfig::default(), Storage::Half));
        let rows = 151_936.0 * 896.0;
        assert_eq!((saved.trained - plain.trained, plain.weights - saved.weights), (rows, 2.0 * rows));
        // A map among them has no adapter.
        let saved = SftConfig { modules_to_save: vec!["down_proj".into()], ..SftConfig::default() };
        let (saved, maps) = (of("0.5B", saved, Storage::Half), 24.0 * 896.0 * 4864.0);
        let adapters = 24.0 * 16.0 * (896.0 + 4864.0);
        assert_eq!((saved.trained - plain.trained, plain.weights - saved.weights), (maps - adapters, 2.0 * maps));
    }

    #[test]
    fn a_map_that_is_saved_has_a_graph_and_a_gradient() {
        let shape = Size::named("0.5B").unwrap().shape();
        let run = |modules_to_save: &[&str], use_dora| {
            let modules_to_save = modules_to_save.iter().map(ToString::to_string).collect();
            let (target_modules, layers_to_transform) = (Targets::parse("q_proj"), (12..24).collect());
            let config = SftConfig { modules_to_save, target_modules, layers_to_transform, use_dora, ..SftConfig::default() };
            Footprint::new(&shape, &config, Storage::Half, Place::Card).unwrap()
        };
        let layers = |saved: &[&str]| run(saved, false).layers();
        assert_eq!([layers(&[]), layers(&["layers.3.mlp.down_proj"]), layers(&["up_proj"])], [12, 21, 24]);
        let near = |bytes: f64, values: f64| assert!((bytes - 4.0 * values).abs() < 1.0, "{bytes} for {values} values");
        for use_dora in [false, true] {
            let at = |saved: &[&str]| run(saved, use_dora).at(1, 512, Checkpointing::OFF);
            let (saved, plain) = (at(&["layers.23.mlp.down_proj"]), at(&[]));
            near(saved.activations - plain.activations, CARD_LOSS * 512.0 * 4864.0);
            // Gradients of the batch and of the window, weights in one piece and new ones, two new moments; and one gradient on its way.
            near(saved.workspace - plain.workspace, (6.0 + CARD_LOSS) * 896.0 * 4864.0);
        }
    }

    /// Of 0.5B: 12,672 outputs a layer, 9,728 of them gate's and up's; rank 16.
    #[test]
    fn dora_is_planned_with_all_that_it_keeps() {
        let shape = Size::named("0.5B").unwrap().shape();
        let (tokens, outs) = (512.0, 24.0 * 12_672.0);
        let more = |place, target_modules: &str, at: usize| {
            let plan = |use_dora| {
                let config = SftConfig { use_dora, target_modules: Targets::parse(target_modules), ..SftConfig::default() };
                let Plan { weights, adapters, activations, workspace, .. } =
                    Footprint::new(&shape, &config, Storage::Nf4, place).unwrap().at(1, 512, Checkpointing::OFF);
                [weights, adapters, activations, workspace]
            };
            plan(true)[at] - plan(false)[at]
        };
        let near = |bytes: f64, values: f64| assert!((bytes - 4.0 * values).abs() < 1.0, "{bytes} for {values} values");
        near(more(Place::Processor, "all-linear", 0), outs);
        near(more(Place::Processor, "all-linear", 1), outs);
        near(more(Place::Processor, "all-linear", 2), tokens * (2.0 * outs + 24.0 * 7.0 * 16.0));
        // The new gradients (twice), weights (twice) and moments of the magnitudes come with an update.
        let passing = |rescaled: f64, out: f64| CARD_LOSS * (2.0 * tokens * rescaled + 4.0 * 16.0 * out);
        near(more(Place::Card, "all-linear", 3), 6.0 * outs + passing(9_728.0, 4864.0));
        near(more(Place::Card, "q_proj,v_proj", 3), 6.0 * 24.0 * 1024.0 + passing(1024.0, 896.0));
    }

    /// At Qwen's vocabulary, of pairs too, and on cards with what their allocators lose.
    #[test]
    fn logits_take_less_than_150_mb() {
        let shape = Size::named("0.5B").unwrap().shape();
        for place in [Place::Processor, Place::Card] {
            for objective in [Objective::Sft, Objective::Orpo] {
                let config = SftConfig { objective, ..SftConfig::default() };
                let run = Footprint::new(&shape, &config, Storage::Half, place).unwrap();
                let logits = run.at(4, 2048, Checkpointing::OFF).logits;
                assert!((0.1e9..0.15e9).contains(&logits), "{place:?} {objective:?}: {logits}");
            }
        }
    }

    /// Of 1.5B, whose embedding is 933 MB in f32: it is merged beside the base in NF4 and five times the adapters (state and the best of them).
    #[test]
    fn a_merged_model_is_planned_a_tensor_at_a_time() {
        let peak = |save_merged, save_gguf: Option<&str>| {
            let config = SftConfig { save_merged, save_gguf: save_gguf.map(Into::into), ..SftConfig::default() };
            of("1.5B", config, Storage::Nf4).at(1, 64, Checkpointing::ALL).peak()
        };
        let (rows, adapters) = (151_936.0 * 1536.0, 18_464_768.0);
        let base = of("1.5B", SftConfig::default(), Storage::Nf4).weights;
        let merging = program(151_936) + base + 4.0 * (5.0 * adapters + rows);
        assert!(peak(false, None) < merging);
        for (peak, blocks) in [(peak(true, None), 0.0), (peak(true, Some("f16")), 2.0), (peak(false, Some("q8_0")), 34.0 / 32.0)] {
            assert!((peak - merging - blocks * rows).abs() < 1.0, "{peak} with {blocks} bytes a value of the file");
        }
    }

    #[test]
    fn a_weight_takes_what_its_storage_says() {
        let bytes = |storage: Storage| storage.bytes([64, 256]) / (64.0 * 256.0);
        assert_eq!([Storage::F32, Storage::Half, Storage::Blocks { layers: 0.5625, rows: 4.0 }].map(bytes), [4.0, 2.0, 0.5625]);
        assert_eq!(bytes(Storage::Int8), 1.0 + 4.0 / 256.0);
        assert!((bytes(Storage::Nf4) - 0.515_869).abs() < 1e-6);
    }

    #[test]
    fn a_card_makes_weights_dense_and_a_files_blocks_are_those_of_layers() {
        let shape = Size::named("1.5B").unwrap().shape();
        let by =
            |products, storage, place| Footprint::new(&shape, &SftConfig { products, ..SftConfig::default() }, storage, place).unwrap();
        let of = |storage, place| by(Products::Auto, storage, place);
        let rows = 151_936.0 * 1536.0;
        let dense = |storage| [Place::Processor, Place::Card].map(|place| of(storage, place).dense);
        assert_eq!((dense(Storage::F32), dense(Storage::Half)), ([0.0, 0.0], [0.0, 4.0 * rows]), "the head is the largest");
        assert_eq!(by(Products::Own, Storage::Half, Place::Card).dense, 0.0, "read where it lies");
        let half = SftConfig { precision: RunPrecision::Fp16, ..SftConfig::default() };
        assert_eq!(Footprint::new(&shape, &half, Storage::F32, Place::Card).unwrap().dense, 2.0 * rows, "rounded");
        for storage in [Storage::Nf4, Storage::Words] {
            assert_eq!(dense(storage), [0.0, 4.0 * 1536.0 * 8960.0], "a map at a time, beside a head in f32");
        }
        let own = [Storage::Nf4, Storage::Words, Storage::Int8].map(|storage| by(Products::Own, storage, Place::Card).dense);
        assert_eq!(own, [4.0 * 1536.0 * 8960.0, 0.0, 0.0], "words are read where they lie");
        let small = |products, storage| {
            let config = SftConfig { products, ..SftConfig::default() };
            Footprint::new(&Size::named("0.5B").unwrap().shape(), &config, storage, Place::Card).unwrap().dense
        };
        let (one, gguf) = (4.0 * 896.0 * 4864.0, Storage::Blocks { layers: 0.5625, rows: 4.0 });
        for (products, maps) in [(Products::Burn, 1.0), (Products::Auto, 2.0), (Products::Own, 2.0)] {
            assert_eq!([Storage::Nf4, gguf].map(|storage| small(products, storage)), [maps * one; 2], "{products:?}: gate beside up");
        }
        assert_eq!(small(Products::Auto, Storage::Words), one, "read where they lie, or one by one");
        let nf4 = SftConfig { base_dtype: BaseDtype::Nf4, ..half.clone() };
        assert_eq!(Footprint::new(&shape, &nf4, Storage::Nf4, Place::Card).unwrap().dense, 2.0 * 1536.0 * 8960.0, "made in f16");
        let pure = SftConfig { precision: RunPrecision::Fp16Pure, ..half };
        let pure = |storage| Footprint::new(&shape, &pure, storage, Place::Card).unwrap().dense;
        assert_eq!([Storage::Half, Storage::F32].map(pure), [0.0, 2.0 * rows], "f16 is read where it lies");
        let [here, there] = [Place::Processor, Place::Card].map(|place| of(Storage::Nf4, place).weights);
        assert_eq!(there - here, 2.0 * rows);
        let more =
            of(Storage::Blocks { layers: 0.5625, rows: 4.0 }, Place::Processor).weights - of(Storage::Half, Place::Processor).weights;
        assert!((more - (2.0 * rows - (2.0 - 0.5625) * (1_543_714_304.0 - rows))).abs() < 1e6, "{more}");
    }

    /// A base of published weights, in f16 where factors are. Beside what a driver takes and allocators lose, which are assumed, at most 5 GB were asked.
    #[test]
    fn one_and_a_half_billion_in_f16_take_five_gigabytes_of_a_card() {
        let config = SftConfig { precision: RunPrecision::Fp16, ..SftConfig::default() }.stored_at(Place::Card);
        let storage = Storage::asked(config.base_dtype).unwrap();
        let run = Footprint::new(&Size::named("1.5B").unwrap().shape(), &config, storage, Place::Card).unwrap();
        let plan = run.at(1, 2048, Checkpointing::ALL);
        assert!((plan.peak() - 5.506e9).abs() < 5e6, "{plan:?}");
        // Gradients of the batch and of the window, weights in one piece and new ones, two new moments; the rest of what comes and goes is on its way down.
        let passing = plan.workspace - CONTEXT - 6.0 * plan.adapters;
        let lost = (1.0 - 1.0 / CARD_LOSS) * (plan.activations + plan.logits + passing);
        let counted = plan.peak() - CONTEXT - lost;
        assert!((4.9e9..5.0e9).contains(&counted), "{counted} of {plan:?}");
        // By our own products three times i of the layer that is kept, and as much on the way down, take two bytes less.
        let own = SftConfig { products: Products::Own, ..config.clone() };
        let own =
            Footprint::new(&Size::named("1.5B").unwrap().shape(), &own, storage, Place::Card).unwrap().at(1, 2048, Checkpointing::ALL);
        assert!((plan.peak() - own.peak() - CARD_LOSS * 2.0 * 2048.0 * 2.0 * 3.0 * 8960.0).abs() < 1.0, "{own:?}");
        // In NF4, beside rows of half the size that nobody rounds again.
        let nf4 = |precision| {
            let config = SftConfig { precision, base_dtype: BaseDtype::Nf4, ..SftConfig::default() };
            Footprint::new(&Size::named("1.5B").unwrap().shape(), &config, Storage::Nf4, Place::Card).unwrap()
        };
        let peaks = [RunPrecision::Fp16, RunPrecision::F32].map(|precision| nf4(precision).at(1, 2048, Checkpointing::ALL).peak());
        assert!((peaks[0] - 3.592e9).abs() < 5e6 && (peaks[1] - 4.089e9).abs() < 5e6, "{peaks:?}");
    }

    /// By our own products gate, up and what is made of them are kept in f16, and so is what is widest on the way down.
    #[test]
    fn the_widest_of_a_layer_take_two_bytes_where_they_are_f16() {
        let (layers, tokens, i) = (24.0, 512.0, 4864.0);
        let saved = |settings: &dyn Fn(&mut SftConfig)| {
            let plan = |products| {
                let mut config = SftConfig { precision: RunPrecision::Fp16, products, ..SftConfig::default() };
                settings(&mut config);
                let run = Footprint::new(&Size::named("0.5B").unwrap().shape(), &config, Storage::Half, Place::Card).unwrap();
                run.at(1, 512, Checkpointing::OFF)
            };
            let (f32, f16) = (plan(Products::Burn), plan(Products::Own));
            [f32.activations - f16.activations, f32.workspace - f16.workspace]
        };
        let near = |saved: [f64; 2], kept: f64, passing: f64| {
            let expected = [kept, passing].map(|values| 2.0 * CARD_LOSS * tokens * i * values);
            let apart = saved.iter().zip(expected).any(|(saved, expected)| (saved - expected).abs() > 1.0);
            assert!(!apart, "{saved:?} for {expected:?}");
        };
        let few = |config: &mut SftConfig| config.target_modules = Targets::parse("q_proj,v_proj");
        near(saved(&|_| ()), 3.0 * layers, 3.0);
        near(saved(&few), 2.0 * layers, 3.0);
        // Adapters by themselves, and weights that are trained, compute in f32; those of attention are no reason to.
        near(saved(&|config| config.lora_dropout = 0.1), 0.0, 0.0);
        near(saved(&|config| config.use_dora = true), 0.0, 0.0);
        let of_attention = |config: &mut SftConfig| {
            few(config);
            config.lora_dropout = 0.1;
        };
        near(saved(&of_attention), 2.0 * layers, 3.0);
        near(saved(&|config| config.modules_to_save = vec!["layers.3.mlp.down_proj".into()]), 3.0 * (layers - 1.0), 0.0);
        near(saved(&|config| config.precision = RunPrecision::Fp16Pure), 0.0, 0.0);
    }

    /// Queries, keys, values and what attention makes of them are f16 too where they have no bias.
    #[test]
    fn attention_takes_two_bytes_where_keys_have_no_bias() {
        let (layers, tokens, q, kv) = (24.0, 512.0, 896.0, 128.0);
        let saved = |qk_norm: bool, settings: &dyn Fn(&mut SftConfig)| {
            let plan = |qkv_bias| {
                let mut config = SftConfig { precision: RunPrecision::Fp16, products: Products::Own, ..SftConfig::default() };
                settings(&mut config);
                let model = ModelConfig { qkv_bias, qk_norm, ..Size::named("0.5B").unwrap().shape() };
                Footprint::new(&model, &config, Storage::Half, Place::Card).unwrap().at(1, 512, Checkpointing::OFF)
            };
            let (f32, f16) = (plan(true), plan(false));
            [f32.activations - f16.activations, f32.workspace - f16.workspace].map(|bytes| bytes / (2.0 * CARD_LOSS * tokens))
        };
        let near = |saved: [f64; 2], kept: f64, passing: f64| {
            assert!((saved[0] - kept).abs() < 1e-3 && (saved[1] - passing).abs() < 1e-3, "{saved:?} for {kept} and {passing}");
        };
        let each = 2.0 * (q + kv);
        near(saved(false, &|_| ()), layers * each, q);
        near(saved(true, &|_| ()), layers * (each + q + kv), q);
        near(saved(false, &|config| config.modules_to_save = vec!["layers.3.self_attn.o_proj".into()]), (layers - 1.0) * each, 0.0);
        // Adapters by themselves compute in f32; those of the MLP are no reason to.
        near(saved(false, &|config| config.use_dora = true), 0.0, 0.0);
        let of_mlp = |config: &mut SftConfig| {
            config.target_modules = Targets::parse("down_proj");
            config.lora_dropout = 0.1;
        };
        near(saved(false, &of_mlp), layers * each, q);
        near(saved(false, &|config| config.products = Products::Burn), 0.0, 0.0);
    }

    /// Sums in parts: of the gradient of the head's rows up to 16 MiB, and of those of 512 blocks of 32 keys and their values, 1,170 tokens of 14 heads.
    #[test]
    fn sums_in_parts_are_planned_on_a_card() {
        let run = of("0.5B", SftConfig::default(), Storage::F32);
        let card = Footprint { place: Place::Card, ..run.clone() };
        let passing = |tokens: usize| {
            let plan = card.at(1, tokens, Checkpointing::ALL);
            plan.workspace - CONTEXT - 4.0 * run.trained * 6.0 - CARD_LOSS * 4.0 * tokens as f64 * (3.0 * 4864.0 + 9.0 * 896.0 + 896.0)
        };
        let of_keys = |tokens: f64| 4.0 * 2.0 * 896.0 * tokens;
        for (tokens, summed) in [(512, 512.0), (1170, 1170.0), (4096, 1170.0)] {
            let expected = CARD_LOSS * (PARTS + of_keys(summed));
            assert!((passing(tokens) - expected).abs() < 1.0, "{tokens} tokens: {} for {expected}", passing(tokens));
        }
    }

    #[test]
    fn more_rows_longer_rows_and_more_graphs_take_more() {
        let run = of("0.5B", SftConfig::default(), Storage::Half);
        let peak = |rows, seq, rerun| run.at(rows, seq, Checkpointing::Layers(rerun)).peak();
        assert!(peak(2, 512, 23) > peak(1, 512, 23) && peak(1, 1024, 23) > peak(1, 512, 23) && peak(1, 512, 22) > peak(1, 512, 23));
        assert_eq!(peak(1, 512, 99), peak(1, 512, 23), "the top layer is never run again");
        // What is not learnt of is not kept: layers below the first adapter, inputs of maps without one.
        let upper = of("0.5B", SftConfig { layers_to_transform: (12..24).collect(), ..SftConfig::default() }, Storage::Half);
        assert_eq!(upper.layers(), 12);
        let few = SftConfig { target_modules: Targets::parse("q_proj,v_proj"), ..SftConfig::default() };
        let few = of("0.5B", few, Storage::Half).at(1, 512, Checkpointing::OFF).activations;
        let [all, upper] = [run, upper].map(|run| run.at(1, 512, Checkpointing::OFF).activations);
        assert!(few < 0.8 * all && upper < 0.51 * all, "{few} {upper} of {all}");
    }

    #[test]
    fn the_largest_that_fits_fits_and_one_more_does_not() {
        let run = of("0.5B", SftConfig::default(), Storage::Half);
        let (all, room) = (Checkpointing::ALL, 8e9);
        let rows = run.most_rows(512, all, room, 1024);
        assert!(run.at(rows, 512, all).peak() <= room && run.at(rows + 1, 512, all).peak() > room, "{rows}");
        let seq = run.longest(1, all, room, 64, 32_768);
        assert!(seq.is_multiple_of(64) && run.at(1, seq, all).peak() <= room && run.at(1, seq + 64, all).peak() > room, "{seq}");
        assert_eq!((run.most_rows(512, all, 1e8, 1024), run.longest(1, all, 1e8, 64, 32_768)), (0, 0));
        assert_eq!(run.most_rows(512, all, 1e15, 1024), 1024);
    }
}
