//! Before a device computes anything that counts: whether it has the numbers, and the first layer of the model itself, compared with the processor's.

use bellows_cli::{Failure, Usage, note};
use bellows_device::{Heads, LinearMap, ProbeOptions, Selected, Shape, Storage, Work, processor};
use bellows_learner::memory::Place;
use bellows_qwen::base::Base;
use bellows_qwen::config::{Method, SftConfig};
use bellows_qwen::hub::describe;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::precision::{Products, RunPrecision};
use bellows_qwen::prove::first_layer;
use bellows_qwen::storage::BaseDtype;
use bellows_weights::BlockType;

/// How far an accelerator's first layer may be from the processor's; f32 kernels are within 1e-5.
const PROVED: f64 = 1e-3;
/// The same in f16, whose products an accelerator rounds once more: 2^-11 of each.
const PROVED_F16: f64 = 1e-2;

/// What a device is to prove for a language model with these products.
pub(crate) fn by(products: Products) -> ProbeOptions {
    ProbeOptions { lowering: Some(products.lowering()), ..ProbeOptions::of(Work::LanguageModel) }
}

/// The same for a run of this model, in its precision and with its own maps, as they are stored, and heads.
pub(crate) fn of_run(config: &SftConfig, model: Option<&ModelConfig>) -> ProbeOptions {
    let work = if config.precision.is_f16() { Work::HalfLanguageModel } else { Work::LanguageModel };
    ProbeOptions { work, shapes: model.map(|model| shapes(model, config)).unwrap_or_default(), ..by(config.products) }
}

/// How a card may hold the maps of the base; `None`: in f32.
fn storages(config: &SftConfig) -> Vec<Option<Storage>> {
    let dtype = config.clone().stored_at(Place::Card).base_dtype;
    if !config.keeps_maps() && dtype != BaseDtype::Gguf {
        return vec![None];
    }
    match dtype {
        // What it makes of a matrix depends on its values, which are not read yet; a file says which of them are in blocks.
        BaseDtype::Auto | BaseDtype::Gguf => {
            let file = describe(&config.model, config.offline, &mut |_| {}).ok().filter(|path| path.is_file());
            let kinds = file.map(|path| Base::kinds(&path)).unwrap_or_default().into_iter().map(|id| Some(Storage::File(id)));
            [None, Some(Storage::Words)].into_iter().chain(kinds).collect()
        }
        BaseDtype::F32 => vec![None],
        BaseDtype::Bf16 => vec![Some(Storage::Bf16)],
        BaseDtype::F16 => vec![Some(Storage::F16)],
        BaseDtype::Int8 => vec![Some(Storage::Int8)],
        BaseDtype::Nf4 => vec![Some(Storage::Nf4)],
    }
}

/// The rank of the branches that are terms of the maps' own sums. One that drops inputs or rescales rows, and one in pure f16, is products of its own.
fn rank(config: &SftConfig) -> usize {
    let alone = config.use_dora || config.lora_dropout > 0.0 || config.precision == RunPrecision::Fp16Pure;
    if config.method == Method::Lora && !alone { config.r } else { 0 }
}

/// The maps of a layer, each shape once as it may be stored, with the rows of the longest batch, and its heads.
fn shapes(model: &ModelConfig, config: &SftConfig) -> Vec<Shape> {
    let (hidden, inner, width) = (model.hidden_size, model.intermediate_size, model.head_dim);
    let [queries, keys] = [model.num_attention_heads, model.num_key_value_heads];
    let sequences = config.batch_size * config.objective.sequences();
    let rows = sequences * config.max_seq_length.next_multiple_of(config.pad_to_multiple_of.max(1));
    // A file may say any rank, and its tensors are not looked at yet.
    let (rank, storages) = (rank(config).min(hidden.max(inner)), storages(config));
    let maps = [[queries * width, hidden], [keys * width, hidden], [hidden, queries * width], [inner, hidden], [hidden, inner]];
    let whole = |[_, columns]: [usize; 2], storage: &Option<Storage>| match storage {
        Some(Storage::File(id)) => BlockType::from_id(*id).is_some_and(|kind| columns.is_multiple_of(kind.block_len())),
        _ => true,
    };
    let of_map = |sizes, storage| Shape::Map(LinearMap { sizes, storage, rank, rows }.in_batch(rows));
    let stored = |sizes| storages.iter().filter(move |storage| whole(sizes, storage)).map(move |&storage| of_map(sizes, storage));
    let mut all: Vec<Shape> = maps.into_iter().flat_map(stored).collect();
    let heads = Heads::few(queries, keys, width);
    all.push(Shape::Attention(heads));
    if config.precision == RunPrecision::Fp16 && config.products != Products::Burn && !model.qkv_bias {
        all.push(Shape::Attention(Heads { half: true, ..heads }));
    }
    all.sort();
    all.dedup();
    all
}

/// Refuses a precision that the device has no numbers for, and tells of one that it has no products of.
pub(crate) fn has_numbers(precision: RunPrecision, device: &Selected) -> Result<(), Usage> {
    if let Some(instead) = precision.instead(&device.device) {
        let (asked, backend, name) = (precision.name(), device.backend, &device.name);
        note(&format!("warning: precision {asked}: {backend} ({name}) has no products of {asked}, so they are computed in {instead}"));
    }
    if !precision.is_f16() || device.has_f16() {
        return Ok(());
    }
    Err(Usage(format!("precision {}: {} ({}) has no f16; f32 is computed everywhere", precision.name(), device.backend, device.name)))
}

/// Refuses a device that does not compute the model as the processor does in the same precision; and one token as a model that `speaks` does.
pub(crate) fn prove(
    model: &CausalLm,
    shape: &ModelConfig,
    precision: RunPrecision,
    device: &Selected,
    speaks: bool,
) -> Result<(), Failure> {
    let error = match device.backend {
        "flex" => 0.0,
        _ => first_layer(model, shape, precision.of_products(), &device.device, &processor(), speaks),
    };
    if error < if precision.is_f16() { PROVED_F16 } else { PROVED } {
        return Ok(());
    }
    let (backend, name) = (device.backend, &device.name);
    let reason = format!("{backend} ({name}) computes the model's first layer wrongly (relative error {error:.3} against the processor)");
    Err(Usage(format!("{reason}: use --device cpu")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_own_shapes_are_proved_as_they_are_stored() {
        let model = ModelConfig::from_json(include_str!("../../qwen/tests/golden/qwen2/model/config.json")).unwrap();
        let of = |base_dtype, precision| of_run(&SftConfig { base_dtype, precision, ..SftConfig::default() }, Some(&model));
        let storages = |options: &ProbeOptions| {
            let stored = |shape: &Shape| match shape {
                Shape::Map(map) => Some(map.storage),
                Shape::Attention(_) | Shape::Conv(_) => None,
            };
            let mut all: Vec<Option<Storage>> = options.shapes.iter().filter_map(stored).collect();
            all.sort();
            all.dedup();
            all
        };
        let f32 = RunPrecision::F32;
        assert_eq!(storages(&of(BaseDtype::Auto, f32)), [None, Some(Storage::Words)]);
        assert_eq!(storages(&of(BaseDtype::F32, f32)), [None]);
        assert_eq!(storages(&of(BaseDtype::Nf4, f32)), [Some(Storage::Nf4)]);
        let half = of(BaseDtype::Auto, RunPrecision::Fp16);
        assert_eq!((half.work, storages(&half)), (Work::HalfLanguageModel, vec![Some(Storage::F16)]));
        let heads = Heads::few(model.num_attention_heads, model.num_key_value_heads, model.head_dim);
        let has = |options: &ProbeOptions, half| options.shapes.contains(&Shape::Attention(Heads { half, ..heads }));
        assert!(has(&half, false) && !has(&half, true), "of keys with a bias");
        let plain = ModelConfig { qkv_bias: false, ..model.clone() };
        let half = SftConfig { precision: RunPrecision::Fp16, ..SftConfig::default() };
        let [ours, burns] = [Products::Auto, Products::Burn].map(|products| of_run(&SftConfig { products, ..half.clone() }, Some(&plain)));
        assert!(has(&ours, false) && has(&ours, true) && has(&burns, false) && !has(&burns, true));
    }

    /// A branch is in the sums of its map unless something is done to it alone, and a batch has as many rows as its longest.
    #[test]
    fn the_runs_own_branches_and_rows_are_proved() {
        let text = include_str!("../../qwen/tests/golden/qwen2/model/config.json");
        let model = ModelConfig { hidden_size: 896, intermediate_size: 4864, ..ModelConfig::from_json(text).unwrap() };
        let plain = SftConfig { r: 8, batch_size: 4, max_seq_length: 500, ..SftConfig::default() };
        let of = |config: &SftConfig| {
            let of_map = |shape: &Shape| if let Shape::Map(map) = shape { Some(*map) } else { None };
            of_run(config, Some(&model)).shapes.iter().filter_map(of_map).collect::<Vec<_>>()
        };
        // Of 4 x 512 rows 21 blocks are the first with the block that 896 columns have then.
        let gate = LinearMap { sizes: [4864, 896], storage: Some(Storage::Words), rank: 8, rows: 1344 };
        assert!(of(&plain).contains(&gate), "{:?}", of(&plain));
        let small = SftConfig { batch_size: 1, ..plain.clone() };
        assert!(of(&small).contains(&LinearMap { rows: 256, ..gate }), "{:?}", of(&small));
        let none = SftConfig { r: 1 << 50, ..plain.clone() };
        assert!(of(&none).iter().all(|map| map.rank == 4864), "{:?}", of(&none));
        for alone in [
            SftConfig { lora_dropout: 0.1, ..plain.clone() },
            SftConfig { use_dora: true, ..plain.clone() },
            SftConfig { method: Method::Full, ..plain.clone() },
            SftConfig { precision: RunPrecision::Fp16Pure, ..plain.clone() },
        ] {
            assert!(of(&alone).iter().all(|map| map.rank == 0), "{:?}", of(&alone));
        }
    }
}
