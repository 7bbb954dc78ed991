//! Losses of pairs against TRL's formulas in PyTorch (`tests/golden/preference.py`), and a run that learns what is preferred.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use crate::support::{self, begun, error, examples, host, model, settings, shape, tokenizer, train};
use bellows_chat::{Batch, Encoded, Example, Template};
use bellows_kernels::Precision;
use bellows_learner::{Draw, Layout, Role, Stopwatch, Task};
use bellows_qwen::adapter::LoraConfig;
use bellows_qwen::base::Base;
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::{Method, SftConfig};
use bellows_qwen::data::{Encoding, SftData};
use bellows_qwen::gradients::Options;
use bellows_qwen::load::load;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::pairs::PairBatch;
use bellows_qwen::peft;
use bellows_qwen::preference::{LogP, Objective, PairLoss};
use bellows_qwen::storage::BaseDtype;
use bellows_qwen::task::SftTask;
use bellows_qwen::train::Finetune;
use bellows_runs::RunDir;
use bellows_weights::read;
use burn::module::Module;
use burn::tensor::Device;
use serde_json::Value;

const OBJECTIVES: [Objective; 3] = [Objective::Orpo, Objective::Simpo, Objective::Dpo];

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn cases() -> Value {
    serde_json::from_str(include_str!("golden/preference/cases.json")).unwrap()
}

fn name(objective: Objective) -> String {
    serde_json::to_value(objective).unwrap().as_str().unwrap().to_owned()
}

fn loss(objective: Objective) -> PairLoss {
    let cases = cases();
    PairLoss { objective, beta: cases["beta"][name(objective)].as_f64().unwrap(), gamma: cases["gamma"].as_f64().unwrap() }
}

#[test]
fn formulas_are_trls() {
    for case in cases()["fixed"].as_array().unwrap() {
        let number = |key: &str| case[key].as_f64().unwrap();
        let count = |key: &str| case[key].as_u64().unwrap() as usize;
        let side = |of: &str| LogP { answer: number(of), answer_tokens: count(&format!("{of}_tokens")), ..LogP::default() };
        let chosen = LogP { all: number("text"), all_tokens: count("text_tokens"), ..side("chosen") };
        let reference = [0, 1].map(|i| case["reference"][i].as_f64().unwrap());
        for objective in OBJECTIVES {
            let (ours, theirs) = (loss(objective).of(chosen, side("rejected"), reference).loss, number(&name(objective)));
            assert!((ours - theirs).abs() < 1e-9, "{objective:?}: {ours} for {theirs}");
        }
    }
}

/// The pairs as rows, each chosen answer above the rejected one.
fn pairs() -> Vec<Encoded> {
    let ids = |value: &Value| value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>();
    let mut all = Vec::new();
    for pair in cases()["pairs"].as_array().unwrap() {
        for side in ["chosen", "rejected"] {
            let (prompt, answer) = (ids(&pair["prompt"]), ids(&pair[side]));
            let trained = std::iter::repeat_n(false, prompt.len()).chain(std::iter::repeat_n(true, answer.len())).collect();
            all.push(Encoded { ids: [prompt, answer].concat(), trained, cut: 0 });
        }
    }
    all
}

#[test]
fn losses_and_adapter_gradients_are_those_of_pytorch() {
    let (dir, device) = (golden().join("qwen2"), Device::flex());
    let config = ModelConfig::from_json(&std::fs::read_to_string(dir.join("model/config.json")).unwrap()).unwrap();
    let weights = read(&dir.join("model/model.safetensors")).unwrap().tensors;
    let value = |name: &str| Ok(weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap())));
    let (adapter, tensors) = peft::read(&dir.join("adapter")).unwrap();
    let model =
        peft::attach(load(CausalLm::new(&config, &device), BaseDtype::Auto, false, value).unwrap(), &adapter, tensors, &dir).unwrap();
    let theirs = read(&golden().join("preference/gradients.safetensors")).unwrap().tensors;
    let (cases, examples) = (cases(), pairs());
    let rows: Vec<Vec<&Encoded>> = examples.iter().map(|example| vec![example]).collect();
    let batch = Batch::new(&rows, 0, 8);
    let trained = model.clone().train();
    let layout = Layout::of(&trained, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
    for objective in OBJECTIVES {
        let (loss, name) = (loss(objective), name(objective));
        let pairs = PairBatch::new(&batch, objective, &config, Precision::F32, &device);
        let wanted = cases["losses"][&name].as_f64().unwrap();
        let judged = pairs.judge(&model, &loss).unwrap();
        assert!((judged[0] / wanted - 1.0).abs() < 1e-5, "{name}: {judged:?} for {wanted}");
        for checkpointing in [Checkpointing::OFF, Checkpointing::ALL] {
            let reference = pairs.reference(&model, &loss);
            let options = Options { checkpointing, ..Options::default() };
            let (value, grads, sums) = pairs.gradients(&trained, &loss, reference.as_deref(), options, &mut Stopwatch::start(None));
            assert!((f64::from(host(value)[0]) / wanted - 1.0).abs() < 1e-5 && (sums[0] - judged[0]).abs() < 1e-6);
            let mut none = 0;
            for (entry, grad) in layout.entries.iter().zip(layout.arrange(&trained, grads)) {
                let key = format!("{name}.base_model.model.{}.weight", entry.name.replace(".lora.", "."));
                let (ours, theirs) = (host(grad.unwrap()), theirs[&key].to_f32().unwrap());
                none += usize::from(theirs.iter().all(|&x| x == 0.0));
                let e = error(&ours, &theirs);
                assert!(e < 1e-4, "{key}: {e:e}");
            }
            assert_eq!(none, 0, "gradients that say nothing");
        }
    }
}

/// One graph over the whole batch gives what is computed piece by piece.
#[test]
fn a_batch_of_pairs_has_one_gradient() {
    let device = Device::flex();
    for objective in OBJECTIVES {
        let config = SftConfig { objective, batch_size: 3, pad_to_multiple_of: 8, ..settings() };
        let lora = config.lora();
        let model = support::scatter(lora.apply(model(), 1).unwrap(), |name| name.contains(".lora.")).train();
        let task = SftTask::new(config, lora, shape(), examples(&[9, 7, 12, 5, 6, 8]), Vec::new(), 0);
        let draw = Draw { seed: 0, epoch: 0, epochs: 1, step: 0, first: 0 };
        let data = burn::data::dataset::InMemDataset::new(vec![(); 3]);
        let batch = task.batch(&data, draw, &[0, 1, 2]).unwrap();
        assert_eq!((batch.batch.rows, batch.examples), (6, 3));
        let layout = Layout::of(&model, |name| task.role_of(name));
        let (output, pieces) = task.gradients(&model, &batch, draw, &device, &layout, &mut Stopwatch::start(None));
        let whole = task.loss(&model, &batch, draw, &device.clone().autodiff());
        assert_eq!(output.count, 3);
        let (ours, theirs) = (host(output.loss)[0], host(whole.loss.clone().inner())[0]);
        assert!((ours / theirs - 1.0).abs() < 1e-5, "{objective:?}: {ours} {theirs}");
        let graph = layout.take_gradients(&model, &mut whole.loss.backward());
        for ((entry, piece), whole) in layout.entries.iter().zip(pieces).zip(graph) {
            let e = error(&host(piece.unwrap()), &host(whole.unwrap()));
            assert!(e < 1e-4, "{objective:?} {}: {e:e}", entry.name);
        }
    }
}

/// Pairs whose chosen answers are of low ids and whose rejected ones of high ids, with a prompt of two tokens.
fn preferences(count: usize) -> Vec<Encoded> {
    let side = |i: usize, low: u32| {
        let ids: Vec<u32> = [40, 41 + i as u32 % 5].into_iter().chain((0..4).map(|t| low + (i as u32 * 7 + t * 3) % 12)).collect();
        Encoded { trained: (0..ids.len()).map(|t| t >= 2).collect(), ids, cut: 0 }
    };
    (0..count).flat_map(|i| [side(i, 2), side(i, 20)]).collect()
}

#[test]
fn what_is_preferred_becomes_likelier_than_what_is_not() {
    for objective in OBJECTIVES {
        let dir = tempfile::tempdir().unwrap();
        let config = SftConfig { objective, batch_size: 2, epochs: 6, learning_rate: 0.3, plots: false, ..settings() };
        let run = train(config, model(), shape(), preferences(8), preferences(3), dir.path());
        let rows = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
        let mut lines = rows.lines();
        let head: Vec<&str> = lines.next().unwrap().split(',').collect();
        let column = |name: &str| head.iter().position(|h| *h == name).unwrap_or_else(|| panic!("no {name} in {head:?}"));
        let last: Vec<f64> = lines.last().unwrap().split(',').map(|x| x.parse().unwrap_or(f64::NAN)).collect();
        let first: Vec<f64> = rows.lines().nth(1).unwrap().split(',').map(|x| x.parse().unwrap_or(f64::NAN)).collect();
        assert!(last[column("train/loss")] < first[column("train/loss")], "{objective:?}: {rows}");
        assert_eq!(last[column("val/accuracy")], 1.0, "{objective:?}: {rows}");
        assert!(last[column("val/margin")] > 0.0 && run.header().iter().any(|line| line.contains("8 pairs")), "{rows}");
    }
}

#[test]
fn settings_that_pairs_have_no_place_for_are_refused() {
    let refused = |config: SftConfig| config.validate().unwrap_err().to_string();
    let of = |objective| SftConfig { objective, ..SftConfig::default() };
    assert!(refused(SftConfig { packing: true, ..of(Objective::Orpo) }).contains("packing"));
    assert!(refused(SftConfig { modules_to_save: vec!["norm".into()], ..of(Objective::Dpo) }).contains("reference"));
    assert!(refused(SftConfig { beta: Some(0.0), ..of(Objective::Dpo) }).contains("beta 0"));
    assert_eq!(of(Objective::Simpo).pair_loss().unwrap().beta, 2.0);
    assert!(of(Objective::Sft).pair_loss().is_none());
}

/// The programs encode by the settings that they train with; whoever calls the library hands both over apart.
#[test]
fn data_are_of_the_kind_that_the_objective_learns_from() {
    let begin = |config: SftConfig, data: SftData| {
        let runs = tempfile::tempdir().unwrap();
        let base = Base { model: model(), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
        let dir = RunDir::create(runs.path(), "run", false).unwrap();
        Finetune::new(config, base, data, Template::ChatMl, &Device::flex(), dir).map(drop).map_err(|e| e.to_string())
    };
    let data = |pairs, lengths: &[usize]| SftData { train: examples(lengths).into(), pairs, ..SftData::default() };
    let of = |objective| SftConfig { objective, ..settings() };
    for objective in OBJECTIVES {
        for count in [3, 4] {
            let error = begin(of(objective), data(false, &[9; 4][..count])).unwrap_err();
            assert!(error.starts_with("the data are single answers") && error.contains("SftConfig::encoding"), "{error}");
        }
        assert!(begin(of(objective), data(true, &[9; 3])).unwrap_err().ends_with("their number is odd"));
        assert_eq!(begin(of(objective), data(true, &[9; 4])), Ok(()));
    }
    let error = begin(of(Objective::Sft), data(true, &[9; 4])).unwrap_err();
    assert!(error.starts_with("the data are pairs of answers, and objective sft"), "{error}");
    let error = begin(SftConfig { method: Method::Full, ..of(Objective::Dpo) }, data(true, &[9; 4])).unwrap_err();
    assert!(error.contains("method full leaves none"), "{error}");

    let side = |last| Box::new(Example::Tokens { ids: vec![1, 2, last], trained: vec![false, false, true] });
    let pair = Example::Pair { chosen: side(3), rejected: side(4) };
    for (objective, example) in [(Objective::Orpo, pair), (Objective::Sft, *side(3))] {
        let (options, tokenizer) = (of(objective).encoding().unwrap(), tokenizer());
        let data =
            SftData::of(&[example], &[], Encoding { options: &options, tokenizer: &tokenizer, template: &Template::ChatMl }).unwrap();
        assert_eq!((data.pairs, data.train.len()), (objective == Objective::Orpo, objective.sequences()));
        assert_eq!(begin(of(objective), data), Ok(()));
    }
}

/// What it has trained whole is in the reference too.
#[test]
fn dpo_goes_on_from_no_adapter_with_weights_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let lora = LoraConfig { modules_to_save: vec!["norm".into()], ..LoraConfig::default() };
    peft::write(dir.path(), &lora.apply(model(), 1).unwrap(), &lora, None).unwrap();
    let go_on = |objective| {
        let config = SftConfig { objective, adapter: Some(dir.path().display().to_string()), ..SftConfig::default() };
        let runs = tempfile::tempdir().unwrap();
        begun(config, model(), shape(), preferences(2), Vec::new(), runs.path()).map(drop).map_err(|e| e.to_string())
    };
    assert!(go_on(Objective::Dpo).unwrap_err().contains("modules_to_save would change it too"));
    assert_eq!(go_on(Objective::Orpo), Ok(()));
}
