//! Adapters in PEFT's files: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bellows_exit::{Coded, Exit};
use bellows_runs::{PathError, read_bounded};
use bellows_weights::{Tensor as FileTensor, Tensors, WeightsError, to_safetensors};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::{Value, json};

use crate::adapter::{ALL_LINEAR, AdapterError, EMBEDDING, HEAD, LoraConfig, Targets, settled};
use crate::load;
use crate::model::CausalLm;
use crate::model::lora::{Lora, LoraSpec};
use crate::model::weight::Weight;
use crate::weights::{self, Unread};

/// The largest `adapter_config.json`, whose lists may name every map of a model.
const MOST_BYTES: u64 = 16 << 20;
/// What PEFT puts before a module's own name.
pub(crate) const PREFIX: &str = "base_model.model.";
/// Settings that are off in a plain adapter: with them PEFT has other targets, other layers or another forward pass.
const OFF: [&str; 13] = [
    "alora_invocation_tokens",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "layers_pattern",
    "lora_bias",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
];

/// The name PEFT gives an adapter's or a saved module's tensor.
pub(crate) fn peft_name(name: &str) -> String {
    let plain = name.replace(".lora.", ".");
    // The magnitudes are the one tensor without an ending.
    let ending = if plain.ends_with("lora_A") || plain.ends_with("lora_B") { ".weight" } else { "" };
    format!("{PREFIX}{plain}{ending}")
}

/// Why an adapter cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PeftError {
    /// A file.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Settings that cannot be opened within their budget.
    #[error(transparent)]
    Open(#[from] PathError),
    /// A weight file.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Settings that do not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The device cannot hand a tensor back.
    #[error(transparent)]
    Device(#[from] Unread),
}

impl Coded for PeftError {
    fn exit(&self) -> Exit {
        match self {
            Self::Weights(error) => error.exit(),
            Self::Adapter(error) => error.exit(),
            Self::File { .. } | Self::Open(_) => Exit::Usage,
            Self::Device { .. } => Exit::Failed,
        }
    }
}

/// The trained tensors of a model under PEFT's names.
///
/// # Errors
/// When the device cannot hand one back.
pub fn tensors(model: &CausalLm, config: &LoraConfig) -> Result<Tensors, PeftError> {
    those(model, |name| config.trains(name))
}

/// The tensors that `which` picks by the model's names.
fn those(model: &CausalLm, which: impl Fn(&str) -> bool) -> Result<Tensors, PeftError> {
    let mut tensors = Ok(Tensors::new());
    weights::visit_all(model, &mut |name, shape, read| {
        let (Ok(found), true) = (&mut tensors, which(name)) else { return };
        match read() {
            Ok(values) => drop(found.insert(peft_name(name), FileTensor::from_f32(shape.to_vec(), &values))),
            Err(error) => tensors = Err(error.into()),
        }
    });
    tensors
}

/// The bytes of `adapter_model.safetensors`.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_bytes(model: &CausalLm, config: &LoraConfig) -> Result<Vec<u8>, PeftError> {
    serialize(&tensors(model, config)?)
}

fn serialize(tensors: &Tensors) -> Result<Vec<u8>, PeftError> {
    Ok(to_safetensors(tensors, &BTreeMap::from([("format".to_string(), "pt".to_string())]))?)
}

/// `adapter_config.json`: the keys that every release of PEFT since 0.11 knows, sorted.
pub fn config_json(config: &LoraConfig, base_model: Option<&str>) -> Value {
    let optional = |list: &[String]| if list.is_empty() { Value::Null } else { json!(list) };
    json!({
        "alpha_pattern": config.alpha_pattern,
        "auto_mapping": null,
        "base_model_name_or_path": base_model,
        "bias": "none",
        "exclude_modules": if config.exclude_modules == Targets::Names(Vec::new()) { Value::Null } else { json!(config.exclude_modules) },
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layer_replication": null,
        "layers_pattern": null,
        "layers_to_transform": if config.layers_to_transform.is_empty() { Value::Null } else { json!(config.layers_to_transform) },
        "loftq_config": {},
        "lora_alpha": config.lora_alpha,
        "lora_bias": false,
        "lora_dropout": config.lora_dropout,
        "megatron_config": null,
        "megatron_core": "megatron.core",
        "modules_to_save": optional(&config.modules_to_save),
        "peft_type": "LORA",
        "r": config.r,
        "rank_pattern": config.rank_pattern,
        "revision": null,
        "target_modules": config.target_modules,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": null,
        "use_dora": config.use_dora,
        "use_rslora": config.use_rslora,
    })
}

/// Settings from `adapter_config.json`.
///
/// # Errors
/// What is not LoRA, or asks for something that is not built here.
pub fn read_config(path: &Path) -> Result<LoraConfig, PeftError> {
    let fail = |reason: String| PeftError::File { path: path.to_owned(), reason };
    let json: Value = serde_json::from_slice(&read_bounded(path, MOST_BYTES)?).map_err(|e| fail(e.to_string()))?;
    let fields = json.as_object().ok_or_else(|| fail("not a JSON object".into()))?;
    if fields.get("peft_type").and_then(Value::as_str) != Some("LORA") {
        return Err(fail(format!("peft_type is {}: only LORA is supported", fields.get("peft_type").unwrap_or(&Value::Null))));
    }
    let off = [json!(null), json!(false), json!([]), json!({}), json!("")];
    // Others (pissa, olora, corda, loftq, ..) change the base model's weights too.
    let starts = [json!(null), json!(true), json!(false), json!("gaussian"), json!("orthogonal")];
    let plain = |key: &str, value: &Value| match key {
        "bias" => value.is_null() || value == "none",
        "init_lora_weights" => starts.contains(value),
        _ => !OFF.contains(&key) || off.contains(value),
    };
    if let Some((key, value)) = fields.iter().find(|(key, value)| !plain(key, value)) {
        return Err(fail(format!("{key} is {value}: not supported")));
    }
    let known = serde_json::to_value(LoraConfig::default()).unwrap_or_default();
    let ours = fields.iter().filter(|(key, value)| !value.is_null() && known.get(key.as_str()).is_some());
    // PEFT takes one layer as a number.
    let listed = |key: &str, value: &Value| if key == "layers_to_transform" && value.is_u64() { json!([value]) } else { value.clone() };
    let ours: serde_json::Map<String, Value> = ours.map(|(k, v)| (k.clone(), listed(k, v))).collect();
    let config: LoraConfig = serde_json::from_value(Value::Object(ours)).map_err(|e| fail(e.to_string()))?;
    Ok(LoraConfig { ensure_weight_tying: fields.get("ensure_weight_tying") == Some(&json!(true)), ..config })
}

/// An adapter's directory: its settings and its tensors.
///
/// # Errors
/// Files that are missing or damaged, or settings that are not supported.
pub fn read(dir: &Path) -> Result<(LoraConfig, Tensors), PeftError> {
    let config = read_config(&dir.join("adapter_config.json"))?;
    let tensors = bellows_weights::read(&dir.join("adapter_model.safetensors"))?.tensors;
    let names = tensors.keys().filter_map(|name| name.strip_prefix(PREFIX));
    let brought = names.filter(|name| !name.contains(".lora_") && !config.trains(name)).map(String::from).collect();
    Ok((LoraConfig { brought, ..config }, tensors))
}

/// Writes an adapter's directory.
///
/// # Errors
/// A directory that cannot be written.
pub fn write(dir: &Path, model: &CausalLm, config: &LoraConfig, base_model: Option<&str>) -> Result<(), PeftError> {
    let listed = LoraConfig { target_modules: Targets::Names(target_names(model, config)), ..config.clone() };
    let mut json = config_json(&listed, base_model);
    if config.trains_tied(model) {
        // Known since PEFT 0.18; older ones would tear head and embedding apart with or without it. PEFT wants the weight under both names.
        json["ensure_weight_tying"] = true.into();
    }
    let mut text = serde_json::to_string_pretty(&json).unwrap_or_default();
    text.push('\n');
    let mut tensors = those(model, |name| config.keeps(name))?;
    if config.trains_tied(model)
        && let Some(embedding) = tensors.get(&peft_name(EMBEDDING)).cloned()
    {
        tensors.insert(peft_name(HEAD), embedding);
    }
    let bytes = serialize(&tensors)?;
    for (name, bytes) in [("adapter_model.safetensors", bytes.as_slice()), ("adapter_config.json", text.as_bytes())] {
        let path = dir.join(name);
        let written = bellows_runs::create_dir_all_synced(dir).map_err(|e| e.to_string());
        let written = written.and_then(|()| bellows_runs::write_atomic(&path, bytes).map_err(|e| e.to_string()));
        written.map_err(|reason| PeftError::File { path, reason })?;
    }
    Ok(())
}

/// The rows of the embedding that is among an adapter's tensors, if it is.
pub fn embedding_rows(tensors: &Tensors) -> Option<usize> {
    tensors.get(&peft_name(EMBEDDING)).and_then(|tensor| tensor.shape.first().copied())
}

/// The values of a tensor of an adapter, taken out of `tensors`; or why there are none.
pub(crate) fn values(tensors: &mut Tensors, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let tensor = tensors.remove(name).ok_or_else(|| format!("the adapter has no tensor {name}"))?;
    if tensor.shape != shape {
        return Err(format!("{name} has shape {:?}, this model needs {shape:?}", tensor.shape));
    }
    let values = tensor.to_f32().map_err(|e| format!("{name}: {e}"))?;
    if values.iter().all(|v| v.is_finite()) { Ok(values) } else { Err(format!("{name} holds a value that is not finite")) }
}

/// The adapter of the map `name` `[out, in]`, taken from an adapter's tensors.
///
/// # Errors
/// A tensor that is missing, has another shape, or is not finite.
pub(crate) fn take(
    tensors: &mut Tensors,
    spec: LoraSpec,
    name: &str,
    [out, input]: [usize; 2],
    device: &Device,
    path: &Path,
) -> Result<Lora, PeftError> {
    let mut part = |part: &str, shape: &[usize]| {
        let values = values(tensors, &format!("{PREFIX}{name}.{part}"), shape);
        values.map_err(|reason| PeftError::File { path: path.to_owned(), reason })
    };
    let a = part("lora_A.weight", &[spec.rank, input])?;
    let b = part("lora_B.weight", &[out, spec.rank])?;
    let magnitude = spec.dora.then(|| part("lora_magnitude_vector", &[out])).transpose()?;
    Ok(Lora::from_tensors(
        spec,
        Tensor::from_data(TensorData::new(a, [spec.rank, input]), device),
        Tensor::from_data(TensorData::new(b, [out, spec.rank]), device),
        magnitude.map(|m| Tensor::from_data(TensorData::new(m, [out]), device)),
    ))
}

/// Puts an adapter's tensors (under PEFT's names) on a base model. `path` is its directory, for what is said of its files.
///
/// # Errors
/// A tensor that is missing, has another shape, or that the model has no place for; settings that cannot be met.
pub fn attach(model: CausalLm, config: &LoraConfig, mut tensors: Tensors, path: &Path) -> Result<CausalLm, PeftError> {
    let model = out_of_blocks(model, &tensors);
    let equipped = config.apply_with(model, |spec, weight, name| take(&mut tensors, spec, name, weight.dims(), &weight.device(), path));
    let model = equipped.map_err(|error| match error {
        PeftError::Adapter(error) => PeftError::File { path: path.join("adapter_config.json"), reason: error.to_string() },
        other => other,
    })?;
    let mut missing = None;
    weights::visit(&model, &mut |name, _, _| {
        let saved = !name.contains(".lora.") && config.trains(name);
        if saved && !tensors.contains_key(&peft_name(name)) {
            missing = Some(peft_name(name));
        }
    });
    match missing {
        Some(name) => Err(PeftError::File { path: path.to_owned(), reason: format!("no tensor {name}") }),
        None => assign(model, tensors, path).map(settled),
    }
}

/// The model with maps dense that come with values of their own, which are in no blocks.
fn out_of_blocks(mut model: CausalLm, tensors: &Tensors) -> CausalLm {
    for (name, linear) in model.linears_mut() {
        if matches!(linear.weight, Weight::Blocks(_)) && tensors.contains_key(&peft_name(&format!("{name}.weight"))) {
            linear.weight = Weight::frozen(linear.weight.val());
        }
    }
    model
}

/// Replaces the values of the adapters (and saved modules) a model has by `tensors` under PEFT's names.
///
/// # Errors
/// A tensor of another shape, or that the model has no place for.
pub fn assign(model: CausalLm, mut tensors: Tensors, path: &Path) -> Result<CausalLm, PeftError> {
    let model = out_of_blocks(model, &tensors);
    if model.lm_head.is_none() && tensors.contains_key(&peft_name(EMBEDDING)) {
        tensors.remove(&peft_name(HEAD));
    }
    let fail = |reason: String| PeftError::File { path: path.to_owned(), reason };
    let mut values = BTreeMap::new();
    for (name, tensor) in tensors {
        values.insert(name, (tensor.shape.clone(), tensor.to_f32()?));
    }
    let (model, used) = load::replace(model, |name| values.get(&peft_name(name)).cloned()).map_err(|e| fail(e.to_string()))?;
    match values.keys().find(|key| !used.iter().any(|name| peft_name(name) == **key)) {
        Some(extra) => Err(fail(format!("this model has no place for {extra}"))),
        None => Ok(model),
    }
}

/// The targets as a list, which every reader takes: name endings for everything, and for an expression the maps it found.
fn target_names(model: &CausalLm, config: &LoraConfig) -> Vec<String> {
    let adapted = model.linears().filter(|(_, l)| l.lora.is_some()).map(|(name, _)| name);
    match &config.target_modules {
        Targets::Names(names) => names.clone(),
        Targets::Pattern(pattern) if pattern == ALL_LINEAR => {
            let endings = adapted.map(|name| name.rsplit('.').next().unwrap_or_default().to_owned());
            endings.collect::<BTreeSet<_>>().into_iter().collect()
        }
        Targets::Pattern(_) => adapted.collect(),
    }
}
