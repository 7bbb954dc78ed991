//! Products in f16: what overflows is skipped, counted and named, the loss scale finds its place and survives, and pure f16 trains f16.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::support::{ending, error, examples, model, settings, shape, tokenizer};
use bellows_chat::Template;
use bellows_kernels::{Lowering, set_default_lowering};
use bellows_learner::{LearnError, Notice, Observer, Outcome};
use bellows_qwen::base::Base;
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::SftConfig;
use bellows_qwen::data::SftData;
use bellows_qwen::model::CausalLm;
use bellows_qwen::optim::Optim;
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::train::{Finetune, FinetuneError};
use bellows_runs::RunDir;
use burn::module::Module;
use burn::tensor::{Device, DeviceKind};

const LENGTHS: [usize; 12] = [5, 9, 13, 7, 20, 11, 6, 15, 8, 10, 12, 14];

#[derive(Clone, Default)]
struct Told(Rc<RefCell<Vec<String>>>);

impl Observer for Told {
    fn on_notice(&mut self, notice: &Notice) {
        self.0.borrow_mut().push(format!("{}: {}", notice.kind, notice.message));
    }
}

fn on(config: &SftConfig, model: CausalLm, dir: &Path) -> Finetune {
    on_device(config, model, dir, &Device::flex())
}

fn on_device(config: &SftConfig, model: CausalLm, dir: &Path, device: &Device) -> Finetune {
    let base = Base { model: model.to_device(device), config: shape(), tokenizer: tokenizer(), content: None, added: 0 };
    let data = SftData { train: examples(&LENGTHS).into(), ..SftData::default() };
    let dir = RunDir::create(dir, "run", true).unwrap();
    Finetune::new(config.clone(), base, data, Template::ChatMl, device, dir).unwrap()
}

/// A model whose final norm makes gradients a hundred times as large.
fn loud() -> CausalLm {
    let mut model = model();
    model.model.norm.weight = model.model.norm.weight.clone().map(|w| w.mul_scalar(100.0));
    model
}

fn with(precision: RunPrecision) -> SftConfig {
    SftConfig { precision, ..settings() }
}

fn trained(config: &SftConfig, device: &Device) -> Vec<(String, Vec<f32>)> {
    let dir = tempfile::tempdir().unwrap();
    let mut run = on_device(config, model(), dir.path(), device);
    assert_eq!(run.run().unwrap().outcome, Outcome::Finished);
    ending(&mut run)
}

#[test]
fn a_run_in_f16_is_near_one_in_f32() {
    // SGD moves by what gradients are; Adam would by their signs, and has an ε of its own in pure f16.
    let sgd = |precision| SftConfig { optim: Optim::Sgd, ..with(precision) };
    let plain = trained(&sgd(RunPrecision::F32), &Device::flex());
    for (precision, scale, limit) in
        [(RunPrecision::Fp16, "dynamic", 5e-3), (RunPrecision::Fp16, "1024", 5e-3), (RunPrecision::Fp16Pure, "dynamic", 2e-2)]
    {
        for gradient_checkpointing in [Checkpointing::ALL, Checkpointing::OFF] {
            let config = SftConfig { gradient_checkpointing, loss_scale: scale.into(), ..sgd(precision) };
            for ((name, ours), (_, theirs)) in trained(&config, &Device::flex()).iter().zip(&plain) {
                let e = error(ours, theirs);
                assert!(e > 0.0 && e < limit, "{precision:?}, scale {scale}, {name}: {e:e}");
                // The lowest 13 of the 23 bits of a mantissa.
                let halves = ours.iter().all(|v| v.to_bits() & 0x1fff == 0);
                assert_eq!(halves, precision == RunPrecision::Fp16Pure, "{name}");
            }
        }
    }
}

/// Set in a child of [`pure_f16_on_a_device_is_that_of_the_processor`].
const CHILD: &str = "BELLOWS_PRECISION_CHILD";

/// Every step of a run on Mesa's lavapipe, which has f16.
#[test]
#[ignore = "nearly two minutes of lavapipe's compiler on a quiet machine"]
fn pure_f16_on_a_device_is_that_of_the_processor() {
    let name = "precision::pure_f16_on_a_device_is_that_of_the_processor";
    let Some(icd) = std::env::var_os("BELLOWS_LAVAPIPE") else {
        writeln!(std::io::stderr(), "skipped: set BELLOWS_LAVAPIPE to a Vulkan ICD file (.ci/lavapipe prints one)").unwrap();
        return;
    };
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output =
            child.args([name, "--exact", "--nocapture", "--ignored"]).env(CHILD, "1").env("VK_DRIVER_FILES", icd).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let config = SftConfig { optim: Optim::Sgd, epochs: 1, ..with(RunPrecision::Fp16Pure) };
    let [theirs, ours] = [Device::flex(), Device::vulkan(DeviceKind::DefaultDevice)].map(|device| trained(&config, &device));
    for ((name, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        let e = error(ours, theirs);
        assert!(e < 2e-2 && ours.iter().all(|v| v.to_bits() & 0x1fff == 0), "{name}: {e:e}");
    }
}

#[test]
fn a_dynamic_scale_comes_down_until_gradients_fit_and_survives() {
    let config = with(RunPrecision::Fp16);
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (mut run, told) = (on(&config, loud(), whole.path()), Told::default());
    run.learner().observe(told.clone());
    assert_eq!(run.run().unwrap().outcome, Outcome::Finished);
    let counters = run.learner().state().counters.clone();
    let scale = counters.loss_scale.unwrap();
    assert!(counters.skipped > 0 && counters.rollbacks == 0 && scale.scale < 65_536.0 && scale.clean > 0, "{counters:?}");
    assert!(told.0.borrow().iter().any(|line| line.contains("the gradient is not finite") && line.contains("loss scale is 32768")));

    let mut first = on(&config, loud(), parts.path());
    first.learner().stop_when(Arc::new(AtomicBool::new(true)));
    assert_eq!(first.run().unwrap().outcome, Outcome::Interrupted);
    let mut second = on(&config, loud(), parts.path());
    second.learner().resume().unwrap();
    assert_eq!(second.run().unwrap().outcome, Outcome::Finished);
    assert!(ending(&mut run) == ending(&mut second));
    assert_eq!(second.learner().state().counters.loss_scale, Some(scale));
}

#[test]
fn what_never_fits_ends_with_the_place_named() {
    let config = |scale: &str| SftConfig { loss_scale: scale.into(), ..with(RunPrecision::Fp16) };
    let named = |config: SftConfig, model: CausalLm, place: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (mut run, told) = (on(&config, model, dir.path()), Told::default());
        run.learner().observe(told.clone());
        let end = run.run().unwrap_err();
        assert!(matches!(end, FinetuneError::Learn(LearnError::Diverged { .. })), "{end}");
        let (told, line) = (told.0.borrow(), format!("the first number that is not finite: {place}"));
        assert!(told.iter().any(|told| told.contains(&line)), "{place}: {told:#?}");
    };
    let top = shape().num_hidden_layers - 1;
    // Gradients overflow on their way down into the first layer that they reach.
    named(config("1e12"), model(), &format!("the gradient of the input of model.layers.{top}"));
    // Products of f16 overflow where a weight is beyond its range.
    for layer in 0..=top {
        let mut model = model();
        let up = &mut model.model.layers[layer].mlp.up_proj.weight;
        *up = up.clone().map(|weight| weight.mul_scalar(1e7));
        named(config("1"), model, &format!("the output of model.layers.{layer}"));
    }
    let mut large = model();
    large.model.norm.weight = large.model.norm.weight.clone().map(|weight| weight.mul_scalar(1e7));
    named(config("1"), large, "the loss");
    // What one layer hands to another fits, and the gradients of a branch this strong do not: B's, for A's are 0 as long as B is.
    let strong = SftConfig { lora_alpha: 1e5, ..with(RunPrecision::Fp16Pure) };
    named(strong, loud(), "the gradient of model.layers.0.self_attn.");
}

#[test]
fn scales_are_checked() {
    for scale in ["-1", "0", "much", "nan"] {
        let error = SftConfig { loss_scale: scale.into(), ..settings() }.validate().unwrap_err().to_string();
        assert!(error.contains("loss_scale"), "{error}");
    }
}
