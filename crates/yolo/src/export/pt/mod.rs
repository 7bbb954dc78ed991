//! A detector as the `.pt` that Ultralytics trains to: a pickled `DetectionModel` with all its modules, and the facts of a finished training.
//!
//! `modules` are PyTorch's and Ultralytics' classes with the attributes that they look for, `plan` is the architecture in the words of its YAML files. Everything
//! here is data of the file format, seen in published files; nothing of Python is run to write it. There is no optimizer in it: a training can start from it
//! and not be resumed.

mod modules;
mod plan;

use bellows_weights::pt::{Pickled, Storages, write};
use bellows_weights::{DType, Tensor, to_f16};
use serde_json::Value;

use super::about::{About, HOME, VERSION};
use super::error::ExportError;
use super::state::state_dict;
use crate::model::Yolo;
use crate::model::head::strides;
use modules::{Writer, class, module};

/// The file of `model`, which is not folded; weights as f32, bit for bit, or rounded to f16 (`half`), as Ultralytics stores them.
///
/// # Errors
/// [`ExportError`].
pub fn to_pt(model: &Yolo, about: &About, half: bool) -> Result<Vec<u8>, ExportError> {
    let (mut views, mut storages) = (Vec::new(), Storages::default());
    for (name, tensor) in state_dict(model)? {
        let tensor = if half && tensor.dtype == DType::F32 { halved(&name, &tensor)? } else { tensor };
        views.push((name, storages.whole(tensor)));
    }
    let levels: Vec<f32> = strides(model.head_inputs().len()).iter().map(|&s| s as f32).collect();
    let stride = Pickled::Tensor(storages.whole(Tensor::from_f32([levels.len()], &levels)));
    let mut writer = Writer::new(views, stride.clone());
    let layers = writer.layers(model)?;

    let settings = settings(about);
    let names = about.names.iter().enumerate().map(|(i, name)| (Pickled::Int(i as i64), name.as_str().into()));
    let attributes = vec![
        ("yaml", plan::plan(about, model)),
        ("save", Pickled::ints(&plan::save(model))),
        ("names", Pickled::Dict(names.collect())),
        ("inplace", Pickled::Bool(true)),
        ("end2end", Pickled::Bool(false)),
        ("stride", stride),
        ("nc", Pickled::Int(about.config.nc as i64)),
        ("task", "detect".into()),
        ("args", settings.clone()),
    ];
    let detector = module(class::DETECTION_MODEL, Vec::new(), Vec::new(), vec![("model".into(), layers)], attributes);
    let facts = [
        ("date", about.date.as_str().into()),
        ("version", format!("bellows {VERSION}").as_str().into()),
        ("license", about.license.as_deref().unwrap_or("not stated").into()),
        ("docs", HOME.into()),
        ("epoch", Pickled::Int(-1)),
        ("best_fitness", Pickled::None),
        ("model", detector),
        ("ema", Pickled::None),
        ("updates", Pickled::None),
        ("optimizer", Pickled::None),
        ("scaler", Pickled::None),
        ("train_args", settings),
        ("train_metrics", Pickled::Dict(Vec::new())),
        ("train_results", Pickled::Dict(Vec::new())),
    ];
    let seen = about.preprocessing.facts();
    let seen = seen.iter().map(|(key, text)| (key.as_str(), text.as_str().into()));
    let root = Pickled::dict(facts.into_iter().chain(seen));
    Ok(write(&root, &storages)?)
}

fn halved(name: &str, tensor: &Tensor) -> Result<Tensor, ExportError> {
    let (data, count) = to_f16(&tensor.to_f32()?);
    match count {
        0 => Ok(Tensor { dtype: DType::F16, shape: tensor.shape.clone(), data }),
        count => Err(ExportError::Half { name: name.into(), count }),
    }
}

/// The settings of the training, with those that say what the file is.
fn settings(about: &About) -> Pickled {
    let mut settings = about.settings.clone();
    for (key, value) in [("task", Value::from("detect")), ("mode", "train".into()), ("imgsz", about.imgsz.into())] {
        settings.entry(key).or_insert(value);
    }
    settings.entry("model").or_insert_with(|| format!("{}.yaml", about.size()).into());
    python(&Value::Object(settings))
}

/// JSON as the Python values it stands for.
fn python(value: &Value) -> Pickled {
    match value {
        Value::Null => Pickled::None,
        Value::Bool(bool) => Pickled::Bool(*bool),
        Value::Number(number) => number.as_i64().map_or_else(|| Pickled::Float(number.as_f64().unwrap_or(f64::NAN)), Pickled::Int),
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => Pickled::List(items.iter().map(python).collect()),
        Value::Object(map) => Pickled::dict(map.iter().map(|(key, value)| (key.as_str(), python(value)))),
    }
}
