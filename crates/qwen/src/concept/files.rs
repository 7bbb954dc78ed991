//! What is kept of a concept in a folder: `directions.safetensors` and `concept.json` of finding it, `scores.json` of scoring it, with pictures, and the
//! edited model. Each step's own JSON is written last: where it is, the step is done.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use bellows_chat::Tokenizer;
use bellows_runs::{part_of, publish, read_bounded, write_atomic};
use bellows_weights::gguf::{Metadata, TensorInfo, Value};
use bellows_weights::{BlockType, DType, Tensor, Tensors, to_safetensors};
use indexmap::IndexMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::direction::{Directions, Place, Separation};
use super::edit::Ablation;
use super::error::ConceptError;
use super::picture;
use super::prompts::{EncodedSets, PromptSets};
use super::score::Scores;
use crate::export::{write_file, write_transformers};
use crate::hashes::hex;
use crate::model::{CausalLm, ModelConfig};
use crate::provenance::Edit;

const FOUND: &str = "concept.json";
const SCORES: &str = "scores.json";
const SCORES_PICTURE: &str = "scores.png";
const DIRECTIONS: &str = "directions.safetensors";
const TENSOR: &str = "directions";
const MOST_BYTES: u64 = 64 << 20;

/// What finding a concept found: `concept.json`, with the directions themselves beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The program and its version.
    pub tool: String,
    /// The model, as it was named.
    pub model: String,
    /// What the prompt sets are called.
    pub concept: String,
    /// SHA-256 of the prompts as the model reads them.
    pub prompts_sha256: String,
    /// Prompts of the target that the direction was found on, and that were held out.
    pub target: [usize; 2],
    /// And of the baseline.
    pub baseline: [usize; 2],
    /// Of every layer and place, on the prompts that were held out.
    pub separations: Vec<Separation>,
    /// The place that separates best among the candidates.
    pub chosen: Place,
    /// The directions; in a file of their own.
    #[serde(skip, default = "nothing")]
    pub directions: Directions,
}

fn nothing() -> Directions {
    Directions { layers: 0, positions: 0, hidden: 0, values: Vec::new() }
}

impl Found {
    /// Writes it to `dir` with the picture of its separations.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), ConceptError> {
        make(dir)?;
        let Directions { layers, positions, hidden, values } = &self.directions;
        let data = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let tensor = Tensor { dtype: DType::F64, shape: vec![*layers, *positions, *hidden], data };
        let tensors = Tensors::from([(TENSOR.to_string(), tensor)]);
        write_atomic(&dir.join(DIRECTIONS), &to_safetensors(&tensors, &BTreeMap::new())?)?;
        let file = dir.join("separation.png");
        write_atomic(&file, &picture::separation(&self.concept, &self.separations, self.chosen, &file)?)?;
        write_json(&dir.join(FOUND), self)
    }

    /// Whether `dir` holds one.
    pub fn is_in(dir: &Path) -> bool {
        dir.join(FOUND).is_file()
    }

    /// Reads it back.
    ///
    /// # Errors
    /// A file that is missing, damaged, or does not fit the other.
    pub fn read(dir: &Path) -> Result<Self, ConceptError> {
        let found: Self = read_json(&dir.join(FOUND))?;
        let path = dir.join(DIRECTIONS);
        let tensors = bellows_weights::read(&path)?.tensors;
        let wrong = |reason: String| ConceptError::File { path: path.clone(), reason };
        let tensor = tensors.get(TENSOR).ok_or_else(|| wrong(format!("there is no tensor {TENSOR}")))?;
        let [layers, positions, hidden] = tensor.shape[..] else {
            return Err(wrong(format!("shape {:?}: expected layers, places, width", tensor.shape)));
        };
        let values: Vec<f64> = tensor.data.chunks_exact(8).filter_map(|b| b.try_into().ok().map(f64::from_le_bytes)).collect();
        let fits = tensor.dtype == DType::F64 && values.len() == tensor.numel() && values.iter().all(|x| x.is_finite());
        if !fits || found.separations.len() != layers * positions {
            return Err(wrong(format!("does not fit {FOUND} beside it: find the concept again")));
        }
        Ok(Self { directions: Directions { layers, positions, hidden, values }, ..found })
    }

    /// That a model has the layers and the width it was found in.
    ///
    /// # Errors
    /// If not, with both numbers.
    pub fn fits(&self, config: &ModelConfig) -> Result<(), ConceptError> {
        let (of, own) = ([self.directions.layers, self.directions.hidden], [config.num_hidden_layers, config.hidden_size]);
        let reason = || format!("the concept was found in {} layers of width {}, and the model has {} of {}", of[0], of[1], own[0], own[1]);
        (of == own).then_some(()).ok_or_else(|| ConceptError::Setting(reason()))
    }
}

/// Writes the scores to `dir`, with their picture.
///
/// # Errors
/// A folder that cannot be written.
pub fn write_scores(dir: &Path, scores: &Scores) -> Result<(), ConceptError> {
    make(dir)?;
    let file = dir.join(SCORES_PICTURE);
    write_atomic(&file, &picture::scores(scores, &file)?)?;
    write_json(&dir.join(SCORES), scores)
}

/// Removes the scores in `dir` with their picture, if it was scored: they are of a direction that is found anew.
///
/// # Errors
/// A file that cannot be removed.
pub fn forget_scores(dir: &Path) -> Result<(), ConceptError> {
    for file in [SCORES, SCORES_PICTURE].map(|name| dir.join(name)) {
        match std::fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(ConceptError::File { path: file, reason: e.to_string() }),
            _ => {}
        }
    }
    Ok(())
}

/// The scores in `dir`, if it was scored.
///
/// # Errors
/// A file that is damaged.
pub fn read_scores(dir: &Path) -> Result<Option<Scores>, ConceptError> {
    let file = dir.join(SCORES);
    file.is_file().then(|| read_json(&file)).transpose()
}

/// SHA-256 of prompts as the model reads them.
pub fn digest(sets: &EncodedSets) -> String {
    let mut hash = Sha256::new();
    for ids in sets.all() {
        hash.update((ids.len() as u64).to_le_bytes());
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    }
    hex(&hash.finalize())
}

/// SHA-256 of the markers and the guard's text, which answers and models are judged by.
pub fn digest_of_judges(sets: &PromptSets) -> String {
    let mut hash = Sha256::new();
    hash.update((sets.markers.len() as u64).to_le_bytes());
    for text in sets.markers.iter().chain(&sets.guard) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hex(&hash.finalize())
}

/// The record of an edit made to `model` with the direction at `place`, which may have been found in another.
///
/// # Errors
/// A place that is not there.
pub fn record(found: &Found, place: Place, edit: &Ablation, model: &str, tool: &str) -> Result<Edit, ConceptError> {
    let bytes: Vec<u8> = found.directions.unit(place)?.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(Edit {
        kind: "ablation".into(),
        model: model.into(),
        concept: found.concept.clone(),
        layer: place.layer,
        position: place.position,
        direction_sha256: hex(&Sha256::digest(&bytes)),
        layers: edit.layers.to_string(),
        strength: edit.strength,
        norm_preserving: edit.norm_preserving,
        embeddings: edit.embeddings,
        tool: tool.into(),
    })
}

/// Writes an edited model to the folder `out`, which is complete or not there. Returns what [`write_transformers`] has to say.
///
/// # Errors
/// A folder that is there already, or cannot be written.
pub fn write_model(
    out: &Path,
    model: &CausalLm,
    config: &ModelConfig,
    edit: Edit,
    tokenizer: &Tokenizer,
    dtype: DType,
) -> Result<Vec<String>, ConceptError> {
    let fail = |path: &Path, reason: String| ConceptError::File { path: path.to_owned(), reason };
    if out.exists() {
        return Err(fail(out, "is there already: name another folder".into()));
    }
    let part = part_of(out)?;
    let config = ModelConfig { edits: config.edits.iter().cloned().chain([edit]).collect(), ..config.clone() };
    let written = write_transformers(&part, model, &config, tokenizer, dtype).map_err(ConceptError::from);
    let written = written.and_then(|lines| Ok(publish(&part, out).map(|()| lines)?));
    if written.is_err() {
        std::fs::remove_dir_all(&part).ok();
    }
    written
}

/// Writes a control vector for llama.cpp (`--control-vector`), which adds it to the output of the layer before `place`'s.
///
/// # Errors
/// The first two layers' inputs, which its files have no name for, or a file that cannot be written.
pub fn write_control_vector(path: &Path, vector: &[f64], place: Place, config: &ModelConfig, name: &str) -> Result<(), ConceptError> {
    // Its layers count from 1: `direction.1` is added to what comes out of the second one.
    if place.layer < 2 {
        return Err(ConceptError::Setting(format!(
            "a control vector has no place for the input of layer {}: there are 2 and up",
            place.layer
        )));
    }
    let tensor = format!("direction.{}", place.layer - 1);
    let mut metadata = Metadata::new();
    for (key, value) in [
        ("general.architecture", Value::from("controlvector".to_string())),
        ("general.name", Value::from(name.to_string())),
        ("controlvector.model_hint", Value::from(config.architecture.model_type().to_string())),
        ("controlvector.layer_count", Value::U32(config.num_hidden_layers as u32)),
    ] {
        metadata.insert(key.into(), value);
    }
    let infos = IndexMap::from([(tensor, TensorInfo { kind: BlockType::F32, shape: vec![vector.len()] })]);
    write_file(path, &metadata, &infos, |_| Ok(vector.iter().map(|&x| x as f32).collect()))?;
    Ok(())
}

fn make(dir: &Path) -> Result<(), ConceptError> {
    std::fs::create_dir_all(dir).map_err(|e| ConceptError::File { path: dir.to_owned(), reason: e.to_string() })
}

/// Writes a value as JSON, all of it or nothing, in a folder that is made where there is none.
///
/// # Errors
/// A folder or file that cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ConceptError> {
    let fail = |e: serde_json::Error| ConceptError::File { path: path.to_owned(), reason: e.to_string() };
    let text = serde_json::to_string_pretty(value).map_err(fail)? + "\n";
    path.parent().map_or(Ok(()), make)?;
    Ok(write_atomic(path, text.as_bytes())?)
}

/// Reads such a file.
///
/// # Errors
/// A file that is missing, too large, or no such JSON.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ConceptError> {
    let bytes = read_bounded(path, MOST_BYTES)?;
    serde_json::from_slice(&bytes).map_err(|e| ConceptError::File { path: path.to_owned(), reason: e.to_string() })
}
