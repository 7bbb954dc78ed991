//! However a frozen base is stored, a step computes with exactly the values that are stored.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::support::{ending, error, examples, host, model, scatter, settings, shape, tokenizer};
use bellows_chat::Template;
use bellows_kernels::Precision;
use bellows_learner::memory::{Place, peak_memory};
use bellows_learner::{Draw, Layout, LearnError, Outcome, Stopwatch, Task};
use bellows_qwen::arch::Architecture;
use bellows_qwen::base::{Base, BaseError, random};
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::{Method, SftConfig};
use bellows_qwen::data::SftData;
use bellows_qwen::export::{write_gguf, write_transformers};
use bellows_qwen::loss::{head_loss, head_loss_only};
use bellows_qwen::model::pass::Pass;
use bellows_qwen::model::weight::Weight;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::peft;
use bellows_qwen::storage::{BaseDtype, Storage};
use bellows_qwen::task::SftTask;
use bellows_qwen::train::Finetune;
use bellows_qwen::weights::visit;
use bellows_runs::{Checkpoint, Checkpoints, Member, RunDir};
use bellows_weights::gguf::{self, Gguf, Preset};
use bellows_weights::{BlockType, WeightsError, to_safetensors};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, DeviceKind, Distribution, Int, Tensor, TensorData};
use serde_json::json;

const LENGTHS: [usize; 5] = [5, 9, 13, 7, 20];

fn stored(dtype: BaseDtype) -> CausalLm {
    let base = Base { model: model(), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
    base.stored_as([dtype; 2], &Device::flex()).unwrap().model
}

/// The same values, every one of them in f32.
fn dense(mut model: CausalLm) -> CausalLm {
    for (_, linear) in model.linears_mut() {
        linear.weight = Weight::frozen(linear.weight.val().cast(DType::F32));
    }
    let rows = model.model.embed_tokens.weight.val().cast(DType::F32);
    model.model.embed_tokens.weight = Param::from_tensor(rows).set_require_grad(false);
    model
}

/// Loss and gradients of a batch of adapters on `model`.
fn step(model: CausalLm, config: &SftConfig) -> Vec<Vec<f32>> {
    let model = scatter(config.lora().apply(model, 1).unwrap(), |name| name.ends_with("lora_B")).train();
    let task = SftTask::new(config.clone(), config.lora(), shape(), examples(&LENGTHS), Vec::new(), 0);
    let layout = Layout::of(&model, |name| task.role_of(name));
    let (draw, device) = (Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 }, Device::flex().autodiff());
    let batch = task.batch(&InMemDataset::new(Vec::new()), draw, &task.plan(draw).unwrap()[0]).unwrap();
    let (output, grads) = task.gradients(&model, &batch, draw, &device, &layout, &mut Stopwatch::start(None));
    std::iter::once(host(output.loss)).chain(grads.into_iter().map(|grad| host(grad.unwrap()))).collect()
}

fn logits(model: &CausalLm, shape: &ModelConfig) -> Vec<f32> {
    let ids: Vec<i32> = (0..17).map(|i| i * 7 % 64).collect();
    let positions: Vec<i32> = (0..17).collect();
    let pass = Pass::new([1, 17], &positions, &[0; 17], shape, &Device::flex());
    host(model.forward(Tensor::from_data(TensorData::new(ids, [1, 17]), &Device::flex()), &pass))
}

#[test]
fn a_step_has_the_bits_of_one_with_the_same_values_in_f32() {
    let plain = logits(&model(), &shape());
    // What rounding does to the logits, more or less.
    let limits = [(BaseDtype::F32, 0.0), (BaseDtype::F16, 1e-3), (BaseDtype::Bf16, 8e-3), (BaseDtype::Int8, 3e-2), (BaseDtype::Nf4, 0.4)];
    for (dtype, limit) in limits {
        let base = stored(dtype);
        let e = error(&logits(&base, &shape()), &plain);
        assert!(e <= limit && (e > limit / 100.0 || limit == 0.0), "{dtype}: {e:e}");
        assert_eq!(base.linears().all(|(_, linear)| matches!(linear.weight, Weight::Blocks(_))), dtype.is_blocks(), "{dtype}");
        for gradient_checkpointing in [Checkpointing::ALL, Checkpointing::OFF] {
            for (use_dora, lora_dropout) in [(false, 0.0), (true, 0.1)] {
                let config = SftConfig { gradient_checkpointing, batch_size: 3, use_dora, lora_dropout, ..settings() };
                let (ours, theirs) = (step(base.clone(), &config), step(dense(base.clone()), &config));
                assert!(ours.len() == theirs.len() && ours == theirs, "{dtype}, checkpointing {gradient_checkpointing:?}, DoRA {use_dora}");
            }
        }
    }
}

#[test]
fn everything_of_a_model_in_blocks_is_visited() {
    let names = |model: &CausalLm| {
        let mut names = Vec::new();
        visit(model, &mut |name, shape, read| names.push((name.to_owned(), shape.to_vec(), read().unwrap().len())));
        names.sort();
        names
    };
    assert_eq!(names(&stored(BaseDtype::Nf4)), names(&model()));
}

/// A run on a base stored as `dtype` in a directory that may have one.
fn on(dtype: BaseDtype, dir: &Path) -> Finetune {
    let base = Base { model: stored(dtype), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
    let data = SftData { train: examples(&LENGTHS).into(), ..SftData::default() };
    let config = SftConfig { base_dtype: dtype, ..settings() };
    Finetune::new(config, base, data, Template::ChatMl, &Device::flex(), RunDir::create(dir, "run", true).unwrap()).unwrap()
}

#[test]
fn a_run_on_nf4_goes_on_where_it_was_and_on_nothing_else() {
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut whole = on(BaseDtype::Nf4, whole.path());
    assert_eq!(whole.run().unwrap().outcome, Outcome::Finished);
    let mut first = on(BaseDtype::Nf4, parts.path());
    first.learner().stop_when(Arc::new(AtomicBool::new(true)));
    assert_eq!(first.run().unwrap().outcome, Outcome::Interrupted);
    let refused = on(BaseDtype::Int8, parts.path()).learner().resume().unwrap_err().to_string();
    assert!(refused.contains("base_dtype"), "{refused}");
    let mut second = on(BaseDtype::Nf4, parts.path());
    second.learner().resume().unwrap();
    assert_eq!(second.run().unwrap().outcome, Outcome::Finished);
    assert!(ending(&mut whole) == ending(&mut second));
}

/// Norms are what they were where an adapter is merged, a concept taken out or a GGUF quantised anew.
#[test]
fn a_run_goes_on_with_the_base_that_it_began_with_wherever_it_lies_and_with_no_other() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let [began, copy, other] = ["began", "copy", "other"].map(|name| {
        let folder = dir.path().join(name);
        write_transformers(&folder, &model(), &shape(), &tokenizer(), bellows_weights::DType::F32).unwrap();
        folder
    });
    let file = other.join("model.safetensors");
    let mut tensors = bellows_weights::read(&file).unwrap().tensors;
    tensors.get_mut("model.layers.1.self_attn.o_proj.weight").unwrap().data[0] ^= 1;
    std::fs::write(&file, to_safetensors(&tensors, &BTreeMap::new()).unwrap()).unwrap();

    let opened = |base: &Path| Base::open(base, &device).unwrap();
    let on = |base: Base| {
        let data = SftData { train: examples(&LENGTHS).into(), ..SftData::default() };
        Finetune::new(settings(), base, data, Template::ChatMl, &device, RunDir::create(dir.path(), "run", true).unwrap()).unwrap()
    };
    let mut first = on(opened(&began));
    first.learner().stop_when(Arc::new(AtomicBool::new(true)));
    assert_eq!(first.run().unwrap().outcome, Outcome::Interrupted);
    for base in [opened(&other), Base { content: None, ..opened(&began) }] {
        let refused = on(base).learner().resume().unwrap_err();
        let told = refused.to_string();
        assert!(matches!(refused, LearnError::Mismatch { .. }) && told.contains("the content of the base model has changed"), "{told}");
    }
    on(opened(&copy)).learner().resume().unwrap();

    let content = |base: &Path, dtype: BaseDtype| Base::open_as(base, dtype, &device).unwrap().content.unwrap();
    assert_eq!(content(&began, BaseDtype::Nf4), content(&copy, BaseDtype::Auto), "however it is kept");
    let [q8, q4] = [Preset::Q8_0, Preset::Q4_0].map(|preset| {
        let file = dir.path().join("m.gguf");
        write_gguf(&file, &model(), &shape(), &tokenizer(), preset, "m").unwrap();
        assert_eq!(content(&file, BaseDtype::Gguf), content(&file, BaseDtype::Auto));
        content(&file, BaseDtype::Auto)
    });
    assert_ne!(q8, q4);
}

/// It has no word of its test split, so its data have to lie where they lay if there is one.
#[test]
fn a_run_from_before_test_splits_were_compared_goes_on_where_its_data_lie() {
    let dir = tempfile::tempdir().unwrap();
    let on = |place: &str, test: &[usize]| {
        let base = Base { model: model(), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
        let data = SftData { train: examples(&LENGTHS).into(), test: examples(test).into(), ..SftData::default() };
        let config = SftConfig { data: vec![place.into()], ..settings() };
        Finetune::new(config, base, data, Template::ChatMl, &Device::flex(), RunDir::create(dir.path(), "run", true).unwrap()).unwrap()
    };
    let mut first = on("here", &[]);
    first.learner().stop_when(Arc::new(AtomicBool::new(true)));
    assert_eq!(first.run().unwrap().outcome, Outcome::Interrupted);
    let checkpoints = Checkpoints::open(dir.path().join("run/checkpoints")).unwrap();
    let Checkpoint { step, mut info, members, .. } = checkpoints.latest().unwrap().checkpoint.unwrap();
    assert!(info.remove("test data").is_some());
    info["settings"]["data"] = json!(["here"]);
    let members: Vec<Member<'_>> = members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    checkpoints.save(step, &members, &info).unwrap();

    on("elsewhere", &[]).learner().resume().unwrap();
    let refused = on("elsewhere", &[4]).learner().resume().unwrap_err().to_string();
    assert!(refused.contains("data was [\"here\"] and is [\"elsewhere\"]"), "{refused}");
    on("here", &[4]).learner().resume().unwrap();
}

#[test]
fn a_ggufs_own_blocks_are_the_values_they_stand_for() {
    let (dir, device) = (tempfile::tempdir().unwrap(), Device::flex());
    let llama = ModelConfig { architecture: Architecture::Llama, qkv_bias: false, ..shape() };
    for (shape, preset) in [(shape(), Preset::Q8_0), (llama.clone(), Preset::Q4_0), (llama, Preset::F16)] {
        let file = dir.path().join("m.gguf");
        write_gguf(&file, &random(&shape, 3, &device), &shape, &tokenizer(), preset, "m").unwrap();
        let [blocks, values] = [BaseDtype::Gguf, BaseDtype::Auto].map(|dtype| Base::open_as(&file, dtype, &device).unwrap().model);
        // A map whose rows are no whole blocks is in f16 there.
        let in_blocks = |model: &CausalLm| model.linears().filter(|(_, linear)| matches!(linear.weight, Weight::Blocks(_))).count();
        assert_eq!(in_blocks(&blocks) > 0, preset != Preset::F16);
        assert!(logits(&blocks, &shape) == logits(&values, &shape), "{}", preset.name());
        // Where nothing of the maps is trained, a file's own blocks are what `auto` keeps.
        let kept = Base::open_for(&file, [BaseDtype::Auto; 2], true, &device).unwrap().model;
        assert!(in_blocks(&kept) == in_blocks(&blocks) && logits(&kept, &shape) == logits(&values, &shape));
        let in_f16 = values.model.embed_tokens.weight.val().dtype() == DType::F16;
        assert_eq!(in_f16, preset == Preset::F16, "{}: f16 stays f16, and what blocks stand for is in no 16 bits", preset.name());
        // On a card f16 becomes f32, which is told, and blocks stay.
        let told = |dtype, place| Base::widened(&file, dtype, true, Base::storage(&file, dtype, true, place));
        let said = told(BaseDtype::Auto, Place::Card);
        assert_eq!(said.is_some(), preset == Preset::F16, "{said:?}");
        let end = "f32 on a card, 2.0 times what its layers are in the file: --base-dtype int8 or nf4 holds less";
        assert!(said.is_none_or(|said| said.ends_with(end)));
        assert_eq!(told(BaseDtype::Auto, Place::Processor), None);
        let kept = [Place::Processor, Place::Card].map(|place| Base::storage(&file, BaseDtype::Auto, true, place));
        let size = |storage| if let Storage::Blocks { layers, .. } = storage { layers } else { 0.0 };
        assert!(preset == Preset::F16 || kept.map(size).iter().all(|bytes| (0.5..2.0).contains(bytes)), "{kept:?}");
        assert!(preset != Preset::F16 || kept.map(|storage| storage.bytes([1, 1])) == [2.0, 4.0], "{kept:?}");
        assert_eq!([BaseDtype::F32, BaseDtype::Nf4, BaseDtype::Gguf].map(|dtype| told(dtype, Place::Card)), [None, None, None]);
        let nf4 = Base::open_as(&file, BaseDtype::Nf4, &device).unwrap().model;
        let e = error(&logits(&nf4, &shape), &logits(&values, &shape));
        assert!(e > 0.0 && e < 0.4, "{e:e}");
    }
    let wrong = Base::open_as(dir.path(), BaseDtype::Gguf, &device).err().unwrap();
    assert!(matches!(wrong, BaseError::NoBlocks(_)), "{wrong}");
}

/// Set in a child of [`a_card_keeps_the_blocks_of_a_gguf`].
const ON_SWIFTSHADER: &str = "BELLOWS_BLOCKS_CHILD";

/// On a card a file's blocks and its bf16s take what they take in the file, and stand for the values that the processor reads; f16s become f32.
#[test]
fn a_card_keeps_the_blocks_of_a_gguf() {
    let name = "storage::a_card_keeps_the_blocks_of_a_gguf";
    let Some(icd) = std::env::var_os("BELLOWS_SWIFTSHADER") else {
        writeln!(std::io::stderr(), "skipped: set BELLOWS_SWIFTSHADER to a Vulkan ICD file (.ci/swiftshader prints one)").unwrap();
        return;
    };
    if std::env::var_os(ON_SWIFTSHADER).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(ON_SWIFTSHADER, "1").env("VK_DRIVER_FILES", icd).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (dir, card) = (tempfile::tempdir().unwrap(), Device::vulkan(DeviceKind::DefaultDevice));
    let shape = ModelConfig { hidden_size: 256, intermediate_size: 512, num_hidden_layers: 1, head_dim: 64, ..shape() };
    let of_maps = 256 * 256 * 2 + 128 * 256 * 2 + 512 * 256 * 3;
    for (preset, in_blocks) in [(Preset::Q4KM, true), (Preset::Q8_0, true), (Preset::BF16, true), (Preset::F16, false)] {
        let file = dir.path().join("m.gguf");
        write_gguf(&file, &random(&shape, 3, &Device::flex()), &shape, &tokenizer(), preset, "m").unwrap();
        let open = |device| Base::open_for(&file, [BaseDtype::Auto; 2], true, device).unwrap().model;
        let ([ours, theirs], mut held) = ([open(&card), open(&Device::flex())], 0);
        for ((name, ours), (_, theirs)) in ours.linears().zip(theirs.linears()) {
            held +=
                if let Weight::Blocks(blocks) = &ours.weight { blocks.bytes() } else { 4 * ours.weight.dims().iter().product::<usize>() };
            assert_eq!(matches!(ours.weight, Weight::Blocks(_)), in_blocks, "{} {name}", preset.name());
            let [there, here] = [ours, theirs].map(|linear| host(linear.weight.val().cast(DType::F32)));
            assert!(there == here && there.iter().any(|v| *v != 0.0), "{} {name}", preset.name());
        }
        let planned = Base::storage(&file, BaseDtype::Auto, true, Place::Card).bytes([of_maps, 1]);
        // A number for scales that are none, and codes in whole words.
        assert!((held as f64 - planned).abs() < 7.0 * 8.0, "{}: {held} of {planned}", preset.name());
    }
    // Of a file of several types each map is kept by its own, whatever comes before it.
    let [plain, mixed] = ["m.gguf", "mixed.gguf"].map(|name| dir.path().join(name));
    let file = Gguf::open(&plain).unwrap();
    let mut tensors = file.tensors().clone();
    for (name, kind) in [("blk.0.attn_k.weight", BlockType::BF16), ("blk.0.attn_v.weight", BlockType::Q8_0)] {
        tensors.get_mut(name).unwrap().kind = kind;
    }
    let out = std::fs::File::create(&mixed).unwrap();
    gguf::write::<WeightsError>(out, file.metadata(), &tensors, |name| file.tensor_f32(name)).unwrap();
    let [ours, theirs] = [&card, &Device::flex()].map(|device| Base::open_for(&mixed, [BaseDtype::Auto; 2], true, device).unwrap().model);
    let in_blocks: Vec<bool> = ours.linears().map(|(_, linear)| matches!(linear.weight, Weight::Blocks(_))).collect();
    assert_eq!(in_blocks, [false, true, true, false, false, false, false]);
    for ((name, ours), (_, theirs)) in ours.linears().zip(theirs.linears()) {
        let [there, here] = [ours, theirs].map(|linear| host(linear.weight.val().cast(DType::F32)));
        assert!(there == here && there.iter().any(|v| *v != 0.0), "{name}");
    }
}

#[test]
fn what_is_trained_is_in_no_blocks() {
    let full = SftConfig { method: Method::Full, base_dtype: BaseDtype::Nf4, ..settings() };
    assert!(full.validate().unwrap_err().to_string().contains("base_dtype"));
    let whole = SftConfig { modules_to_save: vec!["down_proj".into()], ..settings() };
    let error = whole.lora().apply(stored(BaseDtype::Int8), 0).unwrap_err().to_string();
    assert!(error.contains("model.layers.0.mlp.down_proj is stored in blocks"), "{error}");
    // One that was trained beside another base comes with its own values.
    let (dir, saved) = (tempfile::tempdir().unwrap(), whole.lora().apply(model(), 0).unwrap());
    peft::write(dir.path(), &saved, &whole.lora(), None).unwrap();
    let (config, tensors) = peft::read(dir.path()).unwrap();
    let attached = peft::attach(stored(BaseDtype::Int8), &config, tensors, dir.path()).unwrap();
    let dense = attached.linears().filter(|(_, linear)| matches!(linear.weight, Weight::Dense(_))).count();
    assert_eq!(dense, shape().num_hidden_layers, "the maps that are saved");
    // f16 ends where bf16 does not.
    let mut large = model();
    large.model.embed_tokens.weight = large.model.embed_tokens.weight.clone().map(|w| w.mul_scalar(1e6));
    let base = || Base { model: large.clone(), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
    let error = base().stored_as([BaseDtype::F16; 2], &Device::flex()).err().unwrap().to_string();
    assert!(error.contains("embed_tokens") && error.contains("65504"), "{error}");
    assert!(base().stored_as([BaseDtype::Bf16; 2], &Device::flex()).is_ok());
}

/// Set in the child of [`the_head_takes_no_more_than_a_block_of_logits`].
const CHILD: &str = "BELLOWS_HEAD_CHILD";

/// Loss and gradient of 2,048 tokens under Qwen's vocabulary, whose logits would be 1.2 GB, and the loss alone; in a process of its own, for the system
/// tells the most that a process has ever held.
#[test]
#[cfg(target_os = "linux")]
fn the_head_takes_no_more_than_a_block_of_logits() {
    let name = "storage::the_head_takes_no_more_than_a_block_of_logits";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (device, [n, h, v]) = (Device::flex(), [2048, 16, 151_936]);
    let numbers = |rows: usize| Tensor::<2>::random([rows, h], Distribution::Default, &device);
    let (rows, head, targets) = (numbers(n), numbers(v), Tensor::<1, Int>::arange(0..n as i64, &device));
    let before = peak_memory().unwrap();
    let spent = |of: Tensor<1>| {
        assert!(of.into_scalar::<f32>().is_finite());
        (peak_memory().unwrap() - before) * 1.024e9
    };
    let alone = spent(head_loss_only(rows.clone(), &head, targets.clone(), Precision::F32));
    let all = spent(head_loss(rows, &head, targets, false, Precision::F32).loss);
    assert!(alone < 150e6 && all < 150e6, "{:.0} and {:.0} MB", alone / 1e6, all / 1e6);
}
