//! Numbers against transformers and PEFT, on the tiny checkpoints of `tests/golden/make.py`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;

use bellows_kernels::cube::{Launches, launches, most_at_launches};
use bellows_kernels::{Adam, Lowering, Precision, adam_step, listen, set_default_lowering};
use bellows_learner::{Layout, Role, Stopwatch};
use bellows_qwen::adapter::{LoraConfig, Targets};
use bellows_qwen::bench::Size;
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::SftConfig;
use bellows_qwen::gradients::{Options, TrainBatch, gradients};
use bellows_qwen::load::load;
use bellows_qwen::memory::{Footprint, Place};
use bellows_qwen::model::pass::Pass;
use bellows_qwen::model::weight::Weight;
use bellows_qwen::model::{CausalLm, ModelConfig};
use bellows_qwen::peft;
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::storage::{BaseDtype, Storage};
use bellows_qwen::weights::visit;
use bellows_weights::{Tensors, read};
use burn::module::Module;
use burn::tensor::wgpu::WgpuBackend;
use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData};

const CASES: [&str; 12] = [
    "qwen2",
    "qwen3",
    "llama",
    "llama-untied",
    "qwen2-untied-rslora",
    "qwen3-untied",
    "qwen2-dora",
    "llama3-scaled",
    "linear-scaled",
    "dynamic-scaled",
    "yarn-scaled",
    "mistral-window",
];

/// What was told, in its order.
type Told = Rc<RefCell<Vec<(usize, Vec<f32>)>>>;

/// The device that a child of [`the_same_by_a_device`] is to use.
const DEVICE: &str = "BELLOWS_PARITY_DEVICE";

/// The processor, or in a child Mesa's OpenGL, with Burn's products, or a Vulkan device without a GPU, with ours.
fn device() -> Device {
    static SOFTWARE: OnceLock<Device> = OnceLock::new();
    let make = |name: OsString| {
        if name == "gl" {
            return Device::wgpu_options().graphics_api(WgpuBackend::Gl).init().unwrap();
        }
        set_default_lowering(Lowering::Gemm);
        Device::vulkan(DeviceKind::DefaultDevice)
    };
    match std::env::var_os(DEVICE) {
        None => Device::flex(),
        Some(name) => SOFTWARE.get_or_init(|| make(name)).clone(),
    }
}

/// All of them; one on a software device, which has no time for more.
fn cases() -> &'static [&'static str] {
    if std::env::var_os(DEVICE).is_some() { &["qwen3"] } else { &CASES }
}

/// Runs `tests` of this file on a device.
fn by_a_child(device: &str, tests: &[&str], variables: &[(&str, OsString)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(tests.iter().map(|test| format!("parity::{test}")));
    child.args(["--exact", "--test-threads=1", "--nocapture"]).env(DEVICE, device).envs(variables.iter().cloned());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = format!("{} passed", tests.len());
    assert!(output.status.success() && text.contains(&passed), "{device}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
}

const GOLDEN: [&str; 4] = ["logits_with_and_without_the_adapter", "loss_and_adapter_gradients", "ten_steps_of_adamw", "merged_weights"];
/// What else there is to say of our products.
const OURS: [&str; 3] =
    ["a_layer_is_few_launches", "bf16s_two_to_a_word_are_what_they_stand_for", "a_step_has_in_use_what_is_planned_of_a_card"];

/// The same numbers from a device of CubeCL's with Burn's matrix products: Mesa's software OpenGL, where `BELLOWS_MESA_GL=1` says that it is
/// installed. (SwiftShader's are wrong: decision 8.)
#[test]
fn the_same_by_a_device() {
    if std::env::var_os("BELLOWS_MESA_GL").is_none() {
        writeln!(std::io::stderr(), "skipped: set BELLOWS_MESA_GL=1 where Mesa's software OpenGL is installed (libegl1)").unwrap();
        return;
    }
    // In one process, which tunes the device's kernels once.
    by_a_child("gl", &GOLDEN, &[("LIBGL_ALWAYS_SOFTWARE", "1".into()), ("EGL_PLATFORM", "surfaceless".into())]);
}

/// And with ours, which add branches, biases and residuals where a product is written.
#[test]
fn the_same_by_our_products() {
    by_our_products("BELLOWS_SWIFTSHADER", ".ci/swiftshader", &[&GOLDEN[..], &OURS[..]].concat());
}

#[test]
#[ignore = "minutes, in which lavapipe compiles the kernels of maps of one input"]
fn the_same_by_our_products_on_lavapipe() {
    by_our_products("BELLOWS_LAVAPIPE", ".ci/lavapipe", &[&GOLDEN[..], &OURS[..]].concat());
}

/// The only software device with f16.
#[test]
fn a_step_in_f16_on_lavapipe() {
    by_our_products("BELLOWS_LAVAPIPE", ".ci/lavapipe", &["a_step_in_f16"]);
}

#[allow(clippy::print_stderr, reason = "a test says that it is skipped")]
fn by_our_products(variable: &str, script: &str, tests: &[&str]) {
    let Some(icd) = std::env::var_os(variable) else {
        return eprintln!("skipped: set {variable} to a Vulkan ICD file ({script} prints one)");
    };
    by_a_child("vulkan", tests, &[("VK_DRIVER_FILES", icd)]);
}

/// What one more layer adds to a step, forward and backward and with its gradients in an arena for the update, beside a base in f32, in bf16s two to a word, in int8 and in NF4. Says nothing on the processor,
/// where nothing is launched.
#[test]
fn a_layer_is_few_launches() {
    if std::env::var_os(DEVICE).is_none_or(|name| name != "vulkan") {
        return;
    }
    let case = Case::open("qwen2");
    let (batch, _) = case.batch(&device());
    let weights = case.tensors("model/model.safetensors");
    // Of what is counted the values do not matter: there are two layers of them.
    let of_first = |name: &str| match name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((_, rest)) => cut(&weights, &format!("model.layers.0.{rest}")),
        None => cut(&weights, name),
    };
    let counts = [("q_proj k_proj v_proj o_proj", 34), ("q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", 40)];
    // Weights in NF4 are made dense for the products with them and for those of the gradient of their input, the maps of one input in a launch (q, k and v; o; gate
    // and up; down), whichever have adapters.
    let bases = [(BaseDtype::Auto, false, 0), (BaseDtype::Auto, true, 0), (BaseDtype::Int8, true, 0), (BaseDtype::Nf4, true, 2 * 4)];
    for ((targets, most), (dtype, packed, dense)) in counts.into_iter().flat_map(|count| bases.map(|base| (count, base))) {
        let most = most + dense;
        let of = |layers: usize, checkpointing: Checkpointing| {
            let config = ModelConfig { num_hidden_layers: layers, ..case.config.clone() };
            let names = targets.split(' ').map(str::to_owned).collect();
            let lora = LoraConfig { target_modules: Targets::Names(names), ..LoraConfig::default() };
            let base = load(CausalLm::new(&config, &device()), dtype, packed, |name| Ok(of_first(name))).unwrap();
            assert!(base.linears().all(|(_, linear)| matches!(linear.weight, Weight::Blocks(_)) == packed));
            let model = lora.apply(base, 0).unwrap().train();
            let layout = Layout::of(&model, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
            // As an update leaves it.
            let values = layout.gather(layout.values(&model.valid()).into_iter().map(Some).collect());
            let model = layout.assign(model, layout.scatter(&values));
            let pass = || gradients(&model, &batch, Options { checkpointing, ..Options::default() }, &mut Stopwatch::start(None));
            let step = || layout.in_place(&model, || layout.gather(layout.arrange(&model, pass().1)));
            // What a device is asked once is asked in the first.
            drop(step());
            launches(|| device().sync().map(|()| step())).1
        };
        let (two, three) = (of(2, Checkpointing::OFF), of(3, Checkpointing::OFF));
        let count = |launches: &Launches| launches.values().sum::<usize>();
        // Layers that are run again cost a forward pass each; the top one never is.
        let again = [(2, &two), (3, &three)].map(|(layers, plain)| count(&of(layers, Checkpointing::ALL)) - count(plain));
        assert!(again[0] > 0 && again[1] == 2 * again[0], "{again:?}");
        let each = count(&three) - count(&two);
        let mut kernels = three.clone();
        kernels.iter_mut().for_each(|(kernel, count)| *count -= two.get(kernel).copied().unwrap_or(0));
        kernels.retain(|_, count| *count > 0);
        println!("{targets}, {dtype}, packed {packed}: {each} launches to a layer: {kernels:#?}");
        assert!(each <= most, "{targets}, {dtype}, packed {packed}: {each} launches to a layer: {kernels:#?}");
    }
}

/// A tensor of a base, linear maps cut to bf16.
fn cut(weights: &Tensors, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
    let (shape, values) = weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap()))?;
    let kept = if name.contains("_proj.") { 0xffff_0000 } else { u32::MAX };
    Some((shape, values.into_iter().map(|v| f32::from_bits(v.to_bits() & kept)).collect()))
}

/// A base in bf16 on a device that has no such type, and the same values in f32. Says nothing on the processor, which has it.
#[test]
fn bf16s_two_to_a_word_are_what_they_stand_for() {
    if std::env::var_os(DEVICE).is_none() {
        return;
    }
    let case = Case::open(cases()[0]);
    let weights = case.tensors("model/model.safetensors");
    let (batch, _) = case.batch(&device());
    let step = |frozen: bool| {
        let base = load(CausalLm::new(&case.config, &device()), BaseDtype::Auto, frozen, |name| Ok(cut(&weights, name))).unwrap();
        assert!(base.linears().all(|(_, linear)| matches!(linear.weight, Weight::Blocks(_)) == frozen));
        let model = peft::attach(base, &case.adapter, case.tensors("adapter/adapter_model.safetensors"), &case.dir).unwrap().train();
        let layout = Layout::of(&model, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
        let (loss, grads) =
            gradients(&model, &batch, Options { checkpointing: Checkpointing::ALL, ..Options::default() }, &mut Stopwatch::start(None));
        let grads = layout.arrange(&model, grads).into_iter().map(|grad| host(grad.unwrap()));
        std::iter::once(host(loss)).chain(grads).collect::<Vec<_>>()
    };
    for (words, values) in step(true).iter().zip(&step(false)) {
        let e = error(words, values);
        assert!(e < 1e-5, "{e:e}");
    }
}

/// Bytes that the device's allocator has given out.
fn in_use() -> u64 {
    device().memory_pool_usage().map_or(0, |usage| usage.bytes_in_use)
}

/// A step of LoRA in f32 has at most in use what a plan for a card counts, an update included that is not made here, and at least half of it; with the graphs of
/// layers kept, and with layers run again. What a driver takes is in no allocator's hands. Says nothing on the processor, whose plan is another.
#[test]
fn a_step_has_in_use_what_is_planned_of_a_card() {
    const CONTEXT: f64 = 0.4e9;
    if std::env::var_os(DEVICE).is_none_or(|name| name != "vulkan") {
        return;
    }
    let shape = ModelConfig {
        hidden_size: 128,
        intermediate_size: 352,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        vocab_size: 1024,
        ..Size::named("tiny").unwrap().shape()
    };
    let (rows, seq) = (2_usize, 128_usize);
    let config = SftConfig { r: 2, gradient_accumulation_steps: 1, ..SftConfig::default() };
    let plan = Footprint::new(&shape, &config, Storage::F32, Place::Card).unwrap();

    let before = in_use();
    let model = CausalLm::new(&shape, &device());
    let mut shapes = BTreeMap::new();
    visit(&model, &mut |name, shape, _| drop(shapes.insert(name.to_owned(), shape.to_vec())));
    let value = |name: &str| {
        let shape: &Vec<usize> = shapes.get(name)?;
        Some((shape.clone(), (0..shape.iter().product()).map(|i: usize| (i * 7919 % 101) as f32 / 1000.0 - 0.05).collect::<Vec<f32>>()))
    };
    let base = load(model, BaseDtype::F32, false, |name| Ok(value(name))).unwrap();
    let model = config.lora().apply(base, 0).unwrap().train();
    let ids: Vec<i32> = (0..rows * seq).map(|i| (i * 31 % 1024) as i32).collect();
    let learnt: Vec<i32> = (1..rows * seq).filter(|next| !next.is_multiple_of(seq)).map(|next| next as i32 - 1).collect();
    let targets = learnt.iter().map(|&row| ids[row as usize + 1]).collect();
    let positions: Vec<i32> = (0..rows).flat_map(|_| 0..seq as i32).collect();
    let pass = Pass::new([rows, seq], &positions, &vec![0; rows * seq], &shape, &device());
    let ints = |v: Vec<i32>| {
        let n = v.len();
        Tensor::<1, Int>::from_data(TensorData::new(v, [n]), &device())
    };
    let ids = Tensor::from_data(TensorData::new(ids, [rows, seq]), &device());
    let batch = TrainBatch { ids, rows: ints(learnt), targets: ints(targets), pass, noise: None };
    for checkpointing in [Checkpointing::OFF, Checkpointing::ALL] {
        let step = || gradients(&model, &batch, Options { checkpointing, ..Options::default() }, &mut Stopwatch::start(None));
        // Kernels are chosen in the first.
        drop(step());
        let most = most_at_launches(in_use, || drop(step())).1;
        device().sync().unwrap();
        let (held, planned) = (most as f64 - before as f64, plan.at(rows, seq, checkpointing).peak() - CONTEXT);
        println!("{checkpointing:?}: {held} bytes in use at most, {planned} planned");
        assert!((0.5 * planned..=planned).contains(&held), "{checkpointing:?}: {held} bytes in use at most, {planned} planned");
    }
}

struct Case {
    dir: PathBuf,
    config: ModelConfig,
    base: CausalLm,
    adapter: LoraConfig,
    model: CausalLm,
}

impl Case {
    fn open(name: &str) -> Self {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let device = device();
        let config = ModelConfig::from_json(&std::fs::read_to_string(dir.join("model/config.json")).unwrap()).unwrap();
        let weights = read(&dir.join("model/model.safetensors")).unwrap().tensors;
        let value = |name: &str| weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap()));
        let base = load(CausalLm::new(&config, &device), BaseDtype::Auto, false, |name| Ok(value(name))).unwrap();
        let path = dir.join("adapter/adapter_config.json");
        let adapter = peft::read_config(&path).unwrap();
        let tensors = read(&dir.join("adapter/adapter_model.safetensors")).unwrap().tensors;
        let model = peft::attach(base.clone(), &adapter, tensors, &path).unwrap();
        Self { dir, config, base, adapter, model }
    }

    fn tensors(&self, file: &str) -> Tensors {
        read(&self.dir.join(file)).unwrap().tensors
    }

    fn ids(&self) -> (Vec<i32>, [usize; 2]) {
        let ids = &self.tensors("case.safetensors")["input_ids"];
        (ids.to_f32().unwrap().iter().map(|&x| x as i32).collect(), [ids.shape[0], ids.shape[1]])
    }

    fn pass(&self, shape: [usize; 2], device: &Device) -> Pass {
        let positions: Vec<i32> = (0..shape[0]).flat_map(|_| 0..shape[1] as i32).collect();
        Pass::new(shape, &positions, &vec![0; positions.len()], &self.config, device)
    }

    /// And how many tokens are learnt.
    fn batch(&self, device: &Device) -> (TrainBatch, usize) {
        let (ids, shape) = self.ids();
        let labels = self.tensors("case.safetensors")["labels"].to_f32().unwrap();
        let next = |i: usize| !(i + 1).is_multiple_of(shape[1]) && labels[i + 1] >= 0.0;
        let rows: Vec<i32> = (0..ids.len()).filter(|&i| next(i)).map(|i| i as i32).collect();
        let targets: Vec<i32> = rows.iter().map(|&i| ids[i as usize + 1]).collect();
        let n = rows.len();
        let ints = |v: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::new(v, [n]), device);
        let ids = Tensor::from_data(TensorData::new(ids, shape), device);
        (TrainBatch { ids, rows: ints(rows), targets: ints(targets), pass: self.pass(shape, device), noise: None }, n)
    }
}

fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.into_data().try_into_vec_as().unwrap()
}

/// ‖ours − theirs‖ / ‖theirs‖.
fn error(ours: &[f32], theirs: &[f32]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(theirs).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut theirs.iter().map(|&x| f64::from(x)))
}

/// What PEFT calls a tensor of an adapter.
fn peft_name(name: &str) -> String {
    format!("base_model.model.{}.weight", name.replace(".lora.", "."))
}

#[test]
fn logits_with_and_without_the_adapter() {
    for name in cases() {
        let case = Case::open(name);
        let (ids, shape) = case.ids();
        let ids = || Tensor::<2, Int>::from_data(TensorData::new(ids.clone(), shape), &device());
        let golden = case.tensors("forward.safetensors");
        // Where a row is padded the two models see different things.
        let valid = case.tensors("case.safetensors")["attention_mask"].to_f32().unwrap();
        let keep = |v: Vec<f32>| -> Vec<f32> {
            let vocab = case.config.vocab_size;
            v.chunks(vocab).zip(&valid).filter(|(_, m)| **m > 0.0).flat_map(|(row, _)| row.to_vec()).collect()
        };
        for (model, key) in [(&case.base, "base_logits"), (&case.model, "logits")] {
            let e = error(&keep(host(model.forward(ids(), &case.pass(shape, &device())))), &keep(golden[key].to_f32().unwrap()));
            assert!(e < 1e-5, "{name} {key}: {e:e}");
        }
    }
}

#[test]
fn loss_and_adapter_gradients() {
    for name in cases() {
        let case = Case::open(name);
        let (batch, n) = case.batch(&device());
        let golden = case.tensors("grads.safetensors");
        let model = case.model.clone().train();
        let layout = Layout::of(&model, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
        let mut of_both = Vec::new();
        for checkpointing in [Checkpointing::OFF, Checkpointing::ALL] {
            let told = Told::default();
            let heard = Rc::clone(&told);
            let (loss, grads) = listen(layout.leaves(&model), Rc::new(move |entry, grad| heard.borrow_mut().push((entry, grad))), || {
                gradients(&model, &batch, Options { checkpointing, ..Options::default() }, &mut Stopwatch::start(None))
            });
            let loss = host(loss)[0] / n as f32;
            let theirs = golden["loss"].to_f32().unwrap()[0];
            assert!((loss - theirs).abs() / theirs < 1e-5, "{name}: loss {loss} for {theirs}");
            let grads: Vec<Vec<f32>> = layout.arrange(&model, grads).into_iter().map(|g| host(g.unwrap())).collect();
            // Other ranks may have them as soon as their layer is done, the upper layers first.
            let told = told.borrow();
            if std::env::var_os(DEVICE).is_none() {
                assert_eq!(told.len(), grads.len());
                assert!(told.iter().all(|(entry, told)| *told == grads[*entry]), "{name}: a gradient was told before it was whole");
                assert!(layout.entries[told[0].0].name > layout.entries[told[told.len() - 1].0].name, "{name}");
            }
            for (entry, grad) in layout.entries.iter().zip(&grads) {
                let key = peft_name(&entry.name);
                let ours: Vec<f32> = grad.iter().map(|g| g / n as f32).collect();
                let e = error(&ours, &golden[&key].to_f32().unwrap());
                assert!(e < 1e-4, "{name} {key}: {e:e}");
            }
            of_both.push(grads);
        }
        assert!(of_both[0] == of_both[1], "{name}: layers that are run again give other bits");
    }
}

/// How far a step is from PEFT's in f32: its loss, and the gradient of each tensor of the adapter, least first. The loss is scaled, as in a run in f16.
fn errors_of_a_step(case: &Case, device: &Device, dtype: BaseDtype, precision: Precision) -> (f64, Vec<f64>) {
    const SCALE: f32 = 128.0;
    let weights = case.tensors("model/model.safetensors");
    let value = |name: &str| weights.get(name).map(|t| (t.shape.clone(), t.to_f32().unwrap()));
    let base = load(CausalLm::new(&case.config, device), dtype, false, |name| Ok(value(name))).unwrap();
    let adapter = case.tensors("adapter/adapter_model.safetensors");
    let model = peft::attach(base, &case.adapter, adapter, &case.dir).unwrap().train();
    let layout = Layout::of(&model, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
    let (mut batch, n) = case.batch(device);
    batch.pass.precision = precision;
    let options = Options { scale: Some(SCALE.into()), ..Options::default() };
    let (loss, grads) = gradients(&model, &batch, options, &mut Stopwatch::start(None));
    let golden = case.tensors("grads.safetensors");
    let of_entry = |(name, grad): (&str, Vec<f32>)| {
        let ours: Vec<f32> = grad.iter().map(|g| g / (SCALE * n as f32)).collect();
        error(&ours, &golden[&peft_name(name)].to_f32().unwrap())
    };
    let grads = layout.arrange(&model, grads).into_iter().map(|grad| host(grad.unwrap()));
    let mut errors: Vec<f64> = layout.entries.iter().map(|entry| entry.name.as_str()).zip(grads).map(of_entry).collect();
    errors.sort_by(f64::total_cmp);
    (error(&[host(loss)[0] / n as f32], &golden["loss"].to_f32().unwrap()), errors)
}

/// Factors in f16, as `fp16` has them. A product then has three roundings to 11 bits, each by half a unit at most (2^-11 of a number): of both factors and, on
/// a card, of what it makes; sums are f32. What one of them does to a gradient is found on the processor in f32, beside a base that is stored in f16: that of the
/// weights. Independent errors add up as their squares, so √3 times as much is expected, and four times is the limit. Logits are 4 at most and losses about 4:
/// eight roundings of the largest are the limit of a loss.
#[test]
fn a_step_in_f16() {
    const HALF: f64 = 1.0 / 2048.0;
    for name in cases() {
        let case = Case::open(name);
        let stored = RunPrecision::Fp16.base_dtype(BaseDtype::Auto, name, Place::of(&device()));
        let (loss, errors) = errors_of_a_step(&case, &device(), stored, Precision::F16);
        let (_, of_weights) = errors_of_a_step(&case, &Device::flex(), BaseDtype::F16, Precision::F32);
        assert!(loss <= 8.0 * HALF, "{name}: loss {loss:e}");
        for place in [errors.len() / 2, errors.len() - 1] {
            let (error, expected) = (errors[place], of_weights[place]);
            println!("{name}: gradient {place} by error: {error:.1e}, by weights in f16 {expected:.1e}");
            assert!(expected <= 64.0 * HALF, "{name}: {expected:e} by one rounding a product is no limit");
            // What f32 does to them is less by far: these are products in f16.
            assert!(error > HALF / 16.0 && error <= 4.0 * expected, "{name}: {error:e}, and {expected:e} by weights in f16");
        }
    }
}

#[test]
fn ten_steps_of_adamw() {
    for name in cases() {
        let case = Case::open(name);
        let (batch, n) = case.batch(&device());
        let golden = case.tensors("steps.safetensors");
        let mut model = case.model.clone().train();
        let layout = Layout::of(&model, |name| if name.contains(".lora.") { Role::Trained(0) } else { Role::Fixed });
        let mut moments = vec![(None, None); layout.entries.len()];
        let theirs = golden["loss"].to_f32().unwrap();
        for (i, theirs) in theirs.iter().enumerate() {
            let options = Options { checkpointing: Checkpointing::ALL, ..Options::default() };
            let (loss, grads) = gradients(&model, &batch, options, &mut Stopwatch::start(None));
            let loss = host(loss)[0] / n as f32;
            assert!((loss - theirs).abs() / theirs < 1e-4, "{name}: step {i}: loss {loss} for {theirs}");
            let t = (i + 1) as i32;
            let step = Adam {
                rate: 1e-3 / (1.0 - 0.9f64.powi(t)),
                beta1: 0.9,
                beta2: 0.999,
                root: (1.0 - 0.999f64.powi(t)).sqrt(),
                epsilon: 1e-8,
                decay: 0.0,
                keep: 1.0,
            };
            let weights = layout.values(&model.valid());
            let grads = layout.arrange(&model, grads).into_iter().map(|g| g.unwrap().div_scalar(n as f64));
            let updated = weights.into_iter().zip(grads).zip(&mut moments).map(|((w, g), (first, second))| {
                let steps = vec![(w.dims()[0], step)];
                let [w, m, v] = adam_step(w, g, first.take(), second.take(), steps);
                (*first, *second) = (Some(m), Some(v));
                Some(w)
            });
            model = layout.assign(model.clone(), updated.collect());
        }
        for (key, ours) in peft::tensors(&model, &case.adapter).unwrap() {
            let e = error(&ours.to_f32().unwrap(), &golden[&key].to_f32().unwrap());
            assert!(e < 1e-4, "{name} {key} after ten steps: {e:e}");
        }
    }
}

#[test]
fn merged_weights() {
    for name in cases() {
        let case = Case::open(name);
        let golden = case.tensors("merged.safetensors");
        let mut trained = case.tensors("steps.safetensors");
        trained.remove("loss");
        let model = peft::attach(case.base.clone(), &case.adapter, trained, &case.dir).unwrap();
        let mut seen = 0;
        for (module, linear) in model.linears() {
            let Some(theirs) = golden.get(&format!("{module}.weight")) else { continue };
            let merged = linear.lora.as_ref().unwrap().merge(linear.weight.val());
            let e = error(&host(merged), &theirs.to_f32().unwrap());
            assert!(e < 1e-6, "{name} {module}: {e:e}");
            seen += 1;
        }
        assert_eq!(seen, 7);
    }
}

/// What we write is what PEFT wrote.
#[test]
fn an_adapter_goes_in_and_out_unchanged() {
    for name in cases() {
        let case = Case::open(name);
        assert!(peft::tensors(&case.model, &case.adapter).unwrap() == case.tensors("adapter/adapter_model.safetensors"), "{name}");
    }
}
