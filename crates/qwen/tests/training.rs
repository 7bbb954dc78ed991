//! What must not change a run's numbers does not, and what must does: packing, accumulation, noise, full fine-tuning, PEFT's adapters.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

use crate::support::{self, ending, error, examples, host, model, scatter, settings, shape, tokenizer, train};
use bellows_chat::{Batch, Encoded, PADDING, Template};
use bellows_learner::{Draw, Layout, Stopwatch, Task};
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::base::{Base, random};
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::{Method, SftConfig};
use bellows_qwen::data::SftData;
use bellows_qwen::grow::add_tokens;
use bellows_qwen::load::{load, replace};
use bellows_qwen::model::layers::Linear;
use bellows_qwen::model::lora::{Lora, LoraSpec};
use bellows_qwen::model::pass::{Draws, Pass};
use bellows_qwen::model::weight::Weight;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::optim::Optim;
use bellows_qwen::peft;
use bellows_qwen::storage::BaseDtype;
use bellows_qwen::task::SftTask;
use bellows_qwen::train::{Finetune, with_adapter};
use bellows_runs::RunDir;
use bellows_settings::Layer;
use bellows_weights::{Tensor as FileTensor, read};
use burn::data::dataset::InMemDataset;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

/// Lengths that fill rows of 24 only together, and one that is longer than a row.
const LENGTHS: [usize; 9] = [5, 9, 13, 7, 20, 3, 11, 2, 30];

/// An adapted model whose B is not zero, so that A has gradients too.
fn adapted(config: &SftConfig) -> CausalLm {
    scatter(config.lora().apply(model(), 1).unwrap(), |name| name.ends_with("lora_B")).train()
}

/// Summed loss, number of targets and gradients of an epoch, and its number of rows.
fn epoch(config: SftConfig, epoch: usize) -> (f64, usize, Vec<(String, Vec<f32>)>, usize) {
    epoch_of(config, epoch, &LENGTHS)
}

fn epoch_of(config: SftConfig, epoch: usize, lengths: &[usize]) -> (f64, usize, Vec<(String, Vec<f32>)>, usize) {
    epoch_in(config, epoch, lengths, usize::MAX)
}

/// The same with every micro-batch in parts of `rows` rows.
fn epoch_in(config: SftConfig, epoch: usize, lengths: &[usize], part: usize) -> (f64, usize, Vec<(String, Vec<f32>)>, usize) {
    let model = adapted(&config);
    let task = SftTask::new(config.clone(), config.lora(), shape(), examples(lengths), Vec::new(), 0);
    let layout = Layout::of(&model, |name| task.role_of(name));
    let (draw, device) = (Draw { seed: 0, epoch, epochs: 2, step: 0, first: 0 }, Device::flex().autodiff());
    let (mut loss, mut count, mut rows) = (0.0, 0, 0);
    let mut sums = vec![Vec::new(); layout.entries.len()];
    for indices in task.plan(draw).unwrap().iter().flat_map(|batch| batch.chunks(part)) {
        let batch = task.batch(&InMemDataset::new(Vec::new()), draw, indices).unwrap();
        let (output, grads) = task.gradients(&model, &batch, draw, &device, &layout, &mut Stopwatch::start(None));
        loss += f64::from(host(output.loss)[0]);
        count += output.count;
        rows += batch.batch.rows;
        for (sum, grad) in sums.iter_mut().zip(grads) {
            let grad = host(grad.unwrap());
            sum.resize(grad.len(), 0.0);
            sum.iter_mut().zip(grad).for_each(|(s, g): (&mut f32, f32)| *s += g);
        }
    }
    (loss, count, layout.entries.iter().map(|e| e.name.clone()).zip(sums).collect(), rows)
}

fn same(ours: &[(String, Vec<f32>)], theirs: &[(String, Vec<f32>)], limit: f64, what: &str) {
    assert_eq!(ours.len(), theirs.len());
    for ((name, a), (other, b)) in ours.iter().zip(theirs) {
        let e = error(a, b);
        assert!(name == other && e < limit, "{what}: {name}: {e:e}");
    }
}

#[test]
fn packed_rows_are_the_examples_they_hold() {
    let (loss, count, grads, rows) = epoch(settings(), 0);
    assert_eq!((rows, grads.len()), (LENGTHS.len(), 2 * 7 * 2));
    for (batch_size, pad_to_multiple_of) in [(1, 1), (1, 16), (3, 16)] {
        let packing = SftConfig { packing: true, max_seq_length: 24, batch_size, pad_to_multiple_of, ..settings() };
        let packed = epoch(packing, 0);
        let what = format!("{batch_size} rows padded to multiples of {pad_to_multiple_of}");
        assert!(packed.3 < rows && packed.1 == count, "{what}: {} rows for {rows}", packed.3);
        assert!((packed.0 - loss).abs() / loss < 1e-6, "{what}: {} for {loss}", packed.0);
        same(&packed.2, &grads, 1e-5, &what);
    }
}

#[test]
fn a_micro_batch_in_parts_is_the_whole() {
    for config in [SftConfig { batch_size: 4, ..settings() }, SftConfig { batch_size: 3, packing: true, max_seq_length: 24, ..settings() }]
    {
        let (loss, count, grads, rows) = epoch(config.clone(), 0);
        for part in [1, 2] {
            let parts = epoch_in(config.clone(), 0, &LENGTHS, part);
            assert!(parts.1 == count && parts.3 == rows && (parts.0 - loss).abs() / loss < 1e-6, "{part} rows: {} for {loss}", parts.0);
            same(&parts.2, &grads, 1e-5, &format!("parts of {part} rows"));
        }
    }
    // A part knows its place, which its draws depend on.
    let pairs = SftConfig { batch_size: 2, ..settings() };
    let task = SftTask::new(pairs.clone(), pairs.lora(), shape(), examples(&[9; 4]), Vec::new(), 0);
    let draw = Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 };
    let of = |row| task.batch(&InMemDataset::new(Vec::new()), draw, &[row]).unwrap();
    assert_eq!([0, 1, 2, 3].map(|row| (of(row).position, of(row).first)), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn the_first_epoch_begins_with_the_longest_row() {
    let lengths: Vec<usize> = (0..40).map(|i| 3 + (i * 17) % 37).collect();
    for (packing, group_by_length) in [(false, false), (false, true), (true, false)] {
        let config = SftConfig { packing, group_by_length, batch_size: 3, ..settings() };
        let task = SftTask::new(config.clone(), config.lora(), shape(), examples(&lengths), Vec::new(), 0);
        let places = |epoch| -> Vec<usize> {
            let draw = Draw { seed: 0, epoch, epochs: 9, step: 0, first: 0 };
            let batch = |indices: &Vec<usize>| task.batch(&InMemDataset::new(Vec::new()), draw, indices).unwrap().batch.ids.len();
            task.plan(draw).unwrap().iter().map(batch).collect()
        };
        let largest_first = |epoch| places(epoch)[0] == places(epoch).into_iter().max().unwrap();
        assert!(largest_first(0) && (packing || !(1..9).all(largest_first)), "packing {packing}, grouped {group_by_length}");
    }
}

#[test]
fn packed_logits_are_those_of_the_documents_alone() {
    let config = SftConfig { packing: true, max_seq_length: 24, batch_size: 3, pad_to_multiple_of: 16, ..settings() };
    let (model, vocab, documents) = (adapted(&config).valid(), shape().vocab_size, examples(&LENGTHS));
    let logits = |batch: &Batch| {
        let (size, device) = ([batch.rows, batch.seq], Device::flex());
        let pass = Pass::new(size, &batch.positions, &batch.documents, &shape(), &device);
        host(model.forward(Tensor::from_data(TensorData::new(batch.ids.clone(), size), &device), &pass))
    };
    let task = SftTask::new(config.clone(), config.lora(), shape(), documents.clone(), Vec::new(), 0);
    let (draw, mut seen, mut packed) = (Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 }, Vec::new(), 0);
    for indices in task.plan(draw).unwrap() {
        let batch = task.batch(&InMemDataset::new(Vec::new()), draw, &indices).unwrap().batch;
        let together = logits(&batch);
        for start in (0..batch.ids.len()).filter(|&i| batch.documents[i] != PADDING && batch.positions[i] == 0) {
            // An example's first token is its number.
            let number = batch.ids[start] as usize;
            let alone = logits(&Batch::new(&[vec![&documents[number]]], 0, 1));
            let e = error(&together[start * vocab..][..alone.len()], &alone);
            assert!(e < 1e-5, "document {number} at {start}: {e:e}");
            seen.push(number);
            packed += usize::from(batch.documents[start] > 0);
        }
    }
    seen.sort_unstable();
    assert!(seen == (0..LENGTHS.len()).collect::<Vec<_>>() && packed > 2, "{seen:?}, {packed} of them behind another");
}

/// Of the first update; both matrices of PEFT's adapter are non-zero, so that both have gradients.
#[test]
fn lora_plus_is_a_higher_rate_for_b_alone() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen2");
    let adapter = golden.join("adapter");
    let update = |loraplus_lr_ratio| -> Vec<(String, Vec<f32>)> {
        let ((base, shape), rows, dir) = (checkpoint(&golden.join("model")), case(&golden), tempfile::tempdir().unwrap());
        let config = SftConfig {
            adapter: Some(adapter.to_string_lossy().into_owned()),
            optim: Optim::Sgd,
            epochs: 1,
            batch_size: rows.len(),
            learning_rate: 1.0,
            loraplus_lr_ratio,
            max_grad_norm: 0.0,
            ..SftConfig { r: 16, lora_alpha: 32.0, ..settings() }
        };
        train(config, base, shape, rows, Vec::new(), dir.path());
        let before = peft::read(&adapter).unwrap().1;
        let values = |(key, after): (String, FileTensor)| {
            let before = before[&key].to_f32().unwrap();
            let difference = after.to_f32().unwrap().iter().zip(before).map(|(a, b)| a - b).collect();
            (key, difference)
        };
        peft::read(&dir.path().join("run/adapter")).unwrap().1.into_iter().map(values).collect()
    };
    for ((key, one), (_, more)) in update(1.0).into_iter().zip(update(16.0)) {
        assert!(one.iter().any(|&x| x != 0.0), "{key}");
        if key.contains("lora_B") {
            let e = error(&more, &one.iter().map(|x| 16.0 * x).collect::<Vec<_>>());
            assert!(e < 1e-3, "{key}: {e:e}");
        } else {
            assert!(more == one, "{key}");
        }
    }
}

#[test]
fn waiting_for_the_device_changes_no_bit() {
    let run = |sync_launches, gradient_checkpointing| {
        let dir = tempfile::tempdir().unwrap();
        let config = SftConfig { sync_launches, gradient_checkpointing, epochs: 1, ..settings() };
        ending(&mut train(config, model(), shape(), examples(&LENGTHS), Vec::new(), dir.path()))
    };
    for checkpointing in [Checkpointing::ALL, Checkpointing::OFF] {
        assert!(run(true, checkpointing) == run(false, checkpointing));
    }
}

#[test]
fn layers_run_again_give_the_bits_of_layers_kept() {
    let deep = ModelConfig { num_hidden_layers: 5, ..shape() };
    for (layers_to_transform, lora_dropout) in [(Vec::new(), 0.0), (vec![1, 2, 4], 0.3)] {
        let run = |gradient_checkpointing| {
            let (dir, layers_to_transform) = (tempfile::tempdir().unwrap(), layers_to_transform.clone());
            let config = SftConfig { gradient_checkpointing, layers_to_transform, lora_dropout, epochs: 1, ..settings() };
            let model = random(&deep, 5, &Device::flex());
            ending(&mut train(config, model, deep.clone(), examples(&LENGTHS), Vec::new(), dir.path()))
        };
        let kept = run(Checkpointing::OFF);
        let others = (1..5).map(Checkpointing::Layers).chain([Checkpointing::ALL, Checkpointing::Auto]);
        others.for_each(|checkpointing| assert!(run(checkpointing) == kept, "{checkpointing:?}"));
    }
}

#[test]
fn batches_of_eight_are_eight_batches_of_one() {
    let lengths: Vec<usize> = (0..24).map(|i| 4 + (i * 7) % 31).collect();
    for (optim, limit) in [(Optim::Sgd, 1e-6), (Optim::AdamW, 1e-5)] {
        let run = |batch_size, gradient_accumulation_steps| {
            let dir = tempfile::tempdir().unwrap();
            let learning_rate = if optim == Optim::Sgd { 0.05 } else { 1e-3 };
            let config = SftConfig { batch_size, gradient_accumulation_steps, optim, learning_rate, ..settings() };
            ending(&mut train(config, model(), shape(), examples(&lengths), Vec::new(), dir.path()))
        };
        same(&run(8, 1), &run(1, 8), limit, &format!("{optim:?}"));
    }
}

#[test]
fn noise_and_dropout_are_drawn_anew_each_epoch_and_the_same_in_each_run() {
    let noisy = SftConfig { lora_dropout: 0.3, neftune_noise_alpha: 5.0, ..settings() };
    let kept = SftConfig { gradient_checkpointing: Checkpointing::OFF, ..noisy.clone() };
    let plain = epoch(settings(), 0);
    for one in [SftConfig { neftune_noise_alpha: 0.0, ..noisy.clone() }, SftConfig { lora_dropout: 0.0, ..noisy.clone() }] {
        assert!((epoch(one, 0).0 - plain.0).abs() > 1e-3, "each changes the loss");
    }
    let first = epoch(noisy.clone(), 0);
    let again = epoch(noisy.clone(), 0);
    assert!(first.0 == again.0 && first.2 == again.2, "the same bits");
    same(&epoch(kept, 0).2, &first.2, 1e-5, "recomputing a layer draws its mask again");
    // One example, so that no order comes into it.
    let [first, second] = [0, 1].map(|i| epoch_of(noisy.clone(), i, &[20]).0);
    assert!((first - second).abs() > 1e-3, "another epoch, other draws");
}

#[test]
fn dropout_keeps_its_share_and_scales_it_up() {
    let (device, n, width) = (Device::flex(), 64, 128);
    let spec = LoraSpec { rank: width, scaling: 1.0, dropout: 0.25, dora: false, stream: 3 };
    let branch = Lora::from_tensors(spec, Tensor::eye(width, &device), Tensor::eye(width, &device), None);
    let linear =
        Linear { weight: Weight::Dense(Param::from_tensor(Tensor::zeros([width, width], &device))), bias: None, lora: Some(branch) };
    let mask = |draws: Option<Draws>| {
        let pass = Pass::new([1, n], &vec![0; n], &vec![0; n], &shape(), &device);
        let pass = draws.map_or(pass.clone(), |draws| pass.with_draws(draws));
        host(linear.forward(Tensor::ones([1, n, width], &device), &pass))
    };
    assert!(mask(None).iter().all(|&x| x == 1.0), "none in evaluation");
    let draws = Draws { seed: 1, epoch: 0, batch: 0 };
    let values = mask(Some(draws));
    assert!(values.iter().all(|&x| x == 0.0 || (x - 4.0 / 3.0).abs() < 1e-6));
    let dropped = values.iter().filter(|&&x| x == 0.0).count() as f64 / values.len() as f64;
    assert!((dropped - 0.25).abs() < 0.02, "{dropped}");
    assert!(values == mask(Some(draws)) && values != mask(Some(Draws { batch: 1, ..draws })));
}

#[test]
fn full_fine_tuning_changes_every_tensor_and_lora_none_of_the_base() {
    let before = parameters(&model());
    for method in [Method::Full, Method::Lora] {
        let dir = tempfile::tempdir().unwrap();
        let config = SftConfig { method, epochs: 1, ..settings() };
        let run = train(config, model(), shape(), examples(&LENGTHS), examples(&LENGTHS[..2]), dir.path());
        for ((name, old), (_, new)) in before.iter().zip(parameters(&run.model())) {
            assert_eq!(*old == new, method == Method::Lora, "{method:?}: {name}");
        }
        // With one epoch the best model is the last.
        assert!(parameters(&run.best().unwrap()) == parameters(&run.model()), "{method:?}: what was written is what was trained");
    }
}

fn parameters(model: &CausalLm) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    bellows_qwen::weights::visit(model, &mut |name, _, read| all.push((name.to_owned(), read().unwrap())));
    all
}

#[test]
fn grouped_by_length_every_example_comes_once_an_epoch() {
    let lengths: Vec<usize> = (0..61).map(|i| 3 + (i * 17) % 40).collect();
    let config = SftConfig { group_by_length: true, batch_size: 4, pad_to_multiple_of: 8, ..settings() };
    let task = SftTask::new(config.clone(), config.lora(), shape(), examples(&lengths), Vec::new(), 0);
    let mut orders = Vec::new();
    for epoch in 0..3 {
        let draw = Draw { seed: 0, epoch, epochs: 3, step: 0, first: 0 };
        let (mut seen, mut padding) = (Vec::new(), 0);
        for indices in task.plan(draw).unwrap() {
            let batch = task.batch(&InMemDataset::new(Vec::new()), draw, &indices).unwrap().batch;
            // An example's first token is its number.
            seen.extend(batch.ids.chunks(batch.seq).map(|row| row[0]));
            padding += batch.padding();
        }
        assert!(padding < 61 * 8, "{padding} places of padding: rows of like length are together");
        let mut sorted = seen.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..61).collect::<Vec<i32>>(), "epoch {epoch}");
        orders.push(seen);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
}

/// PEFT's adapters as `save_pretrained` wrote them, trained on by PEFT for ten steps and by a run of ours: the same ten updates.
#[test]
fn an_adapter_of_pefts_goes_on_as_in_peft() {
    for name in ["qwen2", "qwen3-untied", "llama", "llama-untied", "qwen2-untied-rslora", "qwen2-dora"] {
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let (base, shape) = checkpoint(&golden.join("model"));
        let rows = case(&golden);
        let config = SftConfig {
            adapter: Some(golden.join("adapter").to_string_lossy().into_owned()),
            epochs: 10,
            batch_size: rows.len(),
            learning_rate: 1e-3,
            max_grad_norm: 0.0,
            ..SftConfig { r: 16, lora_alpha: 32.0, ..settings() }
        };
        let dir = tempfile::tempdir().unwrap();
        train(SftConfig { optim: Optim::AdamW, ..config }, base, shape, rows, Vec::new(), dir.path());
        let (ours, tensors) = peft::read(&dir.path().join("run/adapter")).unwrap();
        let (theirs, _) = peft::read(&golden.join("adapter")).unwrap();
        assert_eq!(
            (ours.r, ours.lora_alpha, ours.use_rslora, ours.use_dora),
            (theirs.r, theirs.lora_alpha, theirs.use_rslora, theirs.use_dora),
            "{name}: the adapter's own settings hold"
        );
        let golden = read(&golden.join("steps.safetensors")).unwrap().tensors;
        assert_eq!(tensors.len() + 1, golden.len());
        for (key, tensor) in tensors {
            let e = error(&tensor.to_f32().unwrap(), &golden[&key].to_f32().unwrap());
            assert!(e < 1e-4, "{name} {key}: {e:e}");
        }
    }
}

/// The settings that a run has recorded are the run's own when it goes on, also where a text is read as a name and the adapter means an expression.
#[test]
fn what_a_run_has_recorded_of_an_adapter_is_the_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let word = |text: &str| Targets::Pattern(text.into());
    let (target_modules, exclude_modules) = (word("model.layers.0.self_attn.q_proj"), word("lm_head"));
    let theirs = LoraConfig { target_modules, exclude_modules, ..settings().lora() };
    std::fs::write(dir.path().join("adapter_config.json"), peft::config_json(&theirs, None).to_string()).unwrap();
    let adapter = Some(dir.path().to_string_lossy().into_owned());
    let (begun, lora) = with_adapter(SftConfig { adapter, ..settings() }).unwrap();
    let recorded = serde_json::to_value(&begun).unwrap();
    let layer = Layer { origin: "config.yaml".into(), values: recorded.as_object().unwrap().clone() };
    let read = SftConfig::from_layers(&[layer]).unwrap();
    assert!(read.target_modules != begun.target_modules && read.exclude_modules != begun.exclude_modules, "read as names");
    assert_eq!(with_adapter(read.clone()).unwrap(), (begun, lora));
    // Another name is not the adapter's.
    let error = with_adapter(SftConfig { exclude_modules: Targets::parse("v_proj"), ..read }).unwrap_err().to_string();
    assert!(error.contains("leave exclude_modules to the adapter"), "{error}");
}

/// Trained whole, the embedding of a model whose head it is stands in the files under both names, as PEFT has it.
#[test]
fn an_adapter_with_a_tied_embedding_goes_out_and_in() {
    let saved = SftConfig { modules_to_save: ["embed_tokens", "norm", "down_proj"].map(String::from).into(), epochs: 1, ..settings() };
    let dir = tempfile::tempdir().unwrap();
    let run = train(saved.clone(), model(), shape(), examples(&LENGTHS), Vec::new(), dir.path());
    let adapter = dir.path().join("run/adapter");
    let (config, tensors) = peft::read(&adapter).unwrap();
    let key = |name: &str| format!("base_model.model.{name}.weight");
    assert!(tensors[&key("lm_head")] == tensors[&key("model.embed_tokens")]);
    assert!(tensors.contains_key(&key("model.layers.1.input_layernorm")), "norm is every norm, as in PEFT");
    let down = "model.layers.1.mlp.down_proj";
    let before = parameters(&model()).into_iter().find(|(name, _)| *name == format!("{down}.weight")).unwrap();
    assert!(tensors[&key(down)].to_f32().unwrap() != before.1, "a map that is trained whole is trained");
    let again = peft::attach(model(), &config, tensors.clone(), &adapter).unwrap();
    assert!(parameters(&again) == parameters(&run.model()));

    // Without the word that both stay one, PEFT computes with two: refused.
    let path = adapter.join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"ensure_weight_tying\": true", "\"ensure_weight_tying\": false")).unwrap();
    let error = peft::attach(model(), &peft::read_config(&path).unwrap(), tensors, &adapter).unwrap_err();
    assert!(error.to_string().contains("ensure_weight_tying"), "{error}");
}

/// The adapter's embedding stands for the model's, and grows with it; a head of its own that nobody trains would begin and stay as a mean.
#[test]
fn tokens_that_an_adapter_does_not_know_need_every_row_trained() {
    let shape = ModelConfig { tie_word_embeddings: false, ..shape() };
    let untied = || random(&shape, 5, &Device::flex());
    let saving =
        |modules: &[&str]| SftConfig { modules_to_save: modules.iter().map(ToString::to_string).collect(), epochs: 1, ..settings() };
    let begin = |config: SftConfig, dir: &Path| {
        let mut base = Base { model: untied(), config: shape.clone(), tokenizer: tokenizer(), content: None, added: 0 };
        add_tokens(&mut base, &["<slag>".into()]).unwrap();
        let data = SftData { train: examples(&LENGTHS).into(), ..SftData::default() };
        let run = RunDir::create(dir, "on", false).unwrap();
        Finetune::new(config, base, data, Template::ChatMl, &Device::flex(), run).map(|run| parameters(&run.model()))
    };
    let go_on = |modules: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        train(saving(modules), untied(), shape.clone(), examples(&LENGTHS), Vec::new(), dir.path());
        begin(SftConfig { adapter: Some(dir.path().join("run/adapter").to_string_lossy().into_owned()), ..settings() }, dir.path())
    };
    let fresh = begin(saving(&["embed_tokens"]), tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
    assert!(fresh.ends_with("must be trained: modules_to_save lm_head too"), "{fresh}");
    let error = go_on(&["embed_tokens"]).unwrap_err().to_string();
    let ending = "run/adapter does not train them, and cannot be made to: merge it into its model, and train a new adapter on that";
    assert!(error.contains("lm_head of its own") && error.ends_with(ending), "{error}");
    let grown = go_on(&["embed_tokens", "lm_head"]).unwrap();
    for matrix in ["model.embed_tokens.weight", "lm_head.weight"] {
        let values = &grown.iter().find(|(name, _)| name == matrix).unwrap().1;
        let (width, first) = (shape.hidden_size, shape.vocab_size);
        assert_eq!(values.len(), 2 * first * width);
        let mean = |column: usize| (0..first).map(|row| f64::from(values[row * width + column])).sum::<f64>() / first as f64;
        assert!((0..width).all(|column| (f64::from(values[first * width + column]) - mean(column)).abs() < 1e-6), "{matrix}");
    }
}

fn checkpoint(dir: &Path) -> (CausalLm, ModelConfig) {
    let config = ModelConfig::from_json(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap();
    let weights = read(&dir.join("model.safetensors")).unwrap().tensors;
    let value = |name: &str| weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap()));
    (load(CausalLm::new(&config, &Device::flex()), BaseDtype::Auto, false, |name| Ok(value(name))).unwrap(), config)
}

/// The golden batch as examples, without its padding.
fn case(dir: &Path) -> Vec<Encoded> {
    let tensors = read(&dir.join("case.safetensors")).unwrap().tensors;
    let row = |key: &str, i: usize| {
        let tensor = &tensors[key];
        tensor.to_f32().unwrap()[i * tensor.shape[1]..(i + 1) * tensor.shape[1]].to_vec()
    };
    let one = |i: usize| {
        let len = row("attention_mask", i).iter().filter(|&&m| m > 0.0).count();
        let ids = row("input_ids", i)[..len].iter().map(|&id| id as u32).collect();
        Encoded { ids, trained: row("labels", i)[..len].iter().map(|&l| l >= 0.0).collect(), cut: 0 }
    };
    (0..tensors["input_ids"].shape[0]).map(one).collect()
}

#[test]
fn adapters_that_no_gradient_reaches_are_named_once() {
    struct Told(std::rc::Rc<std::cell::RefCell<Vec<String>>>);
    impl bellows_learner::Observer for Told {
        fn on_notice(&mut self, notice: &bellows_learner::Notice) {
            self.0.borrow_mut().extend((notice.kind == "warning").then(|| notice.message.clone()));
        }
    }
    let warnings = |config: SftConfig, model: CausalLm| {
        let (dir, told) = (tempfile::tempdir().unwrap(), std::rc::Rc::default());
        let mut run = support::run(config, model, shape(), examples(&[9; 12]), Vec::new(), dir.path());
        run.learner().observe(Told(std::rc::Rc::clone(&told)));
        run.run().unwrap();
        told.take()
    };
    let config = || SftConfig { target_modules: Targets::Names(vec!["q_proj".into(), "up_proj".into()]), ..settings() };
    // What the first layer attends to goes nowhere.
    let deaf = |model: CausalLm| {
        let zeros = |name: &str| (name == "model.layers.0.self_attn.o_proj.weight").then(|| (vec![32, 32], vec![0.0; 32 * 32]));
        replace(model, zeros).unwrap().0
    };
    let told = warnings(config(), deaf(model()));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with(
            "after 10 updates the adapters of 1 of 4 modules are what they were, or their B is all zero: model.layers.0.self_attn.q_proj."
        ),
        "{told:?}"
    );
    assert_eq!(warnings(config(), model()), Vec::<String>::new());
    let told = warnings(SftConfig { learning_rate: 0.0, ..config() }, model());
    assert!(told.len() == 1 && told[0].contains("4 of 4 modules"), "{told:?}");
}
