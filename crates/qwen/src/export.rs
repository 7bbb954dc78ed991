//! A model as files other tools load: a directory for transformers, a GGUF for llama.cpp.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bellows_chat::{ChatError, Fault, TokenType, Tokenizer, Vocabulary};
use bellows_exit::{Coded, Exit};
use bellows_weights::gguf::{self, Metadata, Preset, TensorInfo, Value};
use bellows_weights::{
    BlockType, DType, Parts, Tensor as FileTensor, TensorSpec, Tensors, WeightsError, to_bf16, to_f16, to_safetensors, write_checkpoint,
};
use burn::tensor::Bytes;
use indexmap::IndexMap;
use serde_json::json;

use crate::gguf_rope;
use crate::load::LoadError;
use crate::model::{CausalLm, ConfigError, ModelConfig};
use crate::peft::PeftError;
use crate::provenance::{CARD_HEAD, EDITS, card, description};
use crate::stored::{gguf_name, pairs_from_halves, rotated_heads};
use crate::weights::{Unread, merged, visit};

/// Files of a checkpoint are cut at this many bytes.
const MAX_SHARD: usize = 5_000_000_000;
/// Bytes of f32 that are made 16 bits at a time: work for many threads.
const PIECE: usize = 4 << 20;

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A weight file.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device cannot hand a tensor back.
    #[error(transparent)]
    Device(#[from] Unread),
    /// A tensor of the model's own files.
    #[error("{}: {source}", path.display())]
    Load {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        source: LoadError,
    },
    /// The adapter's tensors.
    #[error(transparent)]
    Peft(#[from] PeftError),
    /// The tokenizer.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A tokenizer that no GGUF can describe.
    #[error(transparent)]
    Vocabulary(#[from] Fault),
    /// An adapter that has no form in the format, or does not fit the model.
    #[error("{0}")]
    Adapter(String),
    /// A scaling of rotary positions that llama.cpp computes in another way.
    #[error(transparent)]
    Rope(#[from] ConfigError),
    /// A weight that is not finite: an adapter that diverged.
    #[error("{0} holds a value that is not finite: nothing is written")]
    NotFinite(String),
}

impl Coded for ExportError {
    fn exit(&self) -> Exit {
        match self {
            Self::Adapter(_) | Self::Rope(_) | Self::NotFinite(_) | Self::Load { .. } => Exit::Usage,
            Self::Peft(error) => error.exit(),
            Self::Chat(error) => error.exit(),
            Self::Vocabulary(fault) => fault.exit(),
            // What is wrong with them when they are written is not the input.
            Self::File { .. } | Self::Weights(_) | Self::Device(_) => Exit::Failed,
        }
    }
}

/// What is written of a model: its parameters by name, each made when it is its turn. A whole model in f32 need not fit into memory.
pub trait Parameters {
    /// Their names and shapes, in the order of the layers.
    fn shapes(&self) -> IndexMap<String, Vec<usize>>;

    /// The values of one.
    ///
    /// # Errors
    /// One that cannot be read.
    fn values(&self, name: &str) -> Result<Vec<f32>, ExportError>;
}

/// A model in memory; its adapter is added to each matrix when it is asked for.
impl Parameters for CausalLm {
    fn shapes(&self) -> IndexMap<String, Vec<usize>> {
        let mut shapes = IndexMap::new();
        visit(self, &mut |name, shape, _| drop(shapes.insert(name.to_owned(), shape.to_vec())));
        shapes
    }

    fn values(&self, wanted: &str) -> Result<Vec<f32>, ExportError> {
        let mut found = merged(self, wanted);
        if found.is_none() {
            visit(self, &mut |name, _, read| {
                if name == wanted {
                    found = Some(read());
                }
            });
        }
        Ok(found.unwrap_or_else(|| Ok(Vec::new()))?)
    }
}

/// The values of a parameter, all finite.
fn finite(model: &dyn Parameters, name: &str) -> Result<Vec<f32>, ExportError> {
    let values = model.values(name)?;
    if values.iter().all(|x| x.is_finite()) { Ok(values) } else { Err(ExportError::NotFinite(name.into())) }
}

/// The bytes of a tensor, which are the first of the memory that its values in f32 were in: a copy of the largest would be in memory beside it.
struct InFile {
    memory: Bytes,
    len: usize,
}

impl InFile {
    /// Values as they are, in the order of every machine this runs on, which is the files'.
    fn as_they_are(values: Vec<f32>) -> Self {
        let memory = Bytes::from_elems(values);
        Self { len: memory.len(), memory }
    }

    /// Values in the 16 bits that `to_half` makes of them.
    fn halved(values: Vec<f32>, mut to_half: impl FnMut(&[f32]) -> Vec<u8>) -> Self {
        let mut memory = Bytes::from_elems(values);
        let bytes: &mut [u8] = &mut memory;
        let mut len = 0;
        // What is written ends before what is still to be read.
        for start in (0..bytes.len()).step_by(PIECE) {
            let end = bytes.len().min(start + PIECE);
            let piece: Vec<f32> = bytes[start..end].as_chunks().0.iter().map(|&value| f32::from_ne_bytes(value)).collect();
            let half = to_half(&piece);
            bytes[len..len + half.len()].copy_from_slice(&half);
            len += half.len();
        }
        Self { memory, len }
    }
}

impl AsRef<[u8]> for InFile {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// All parameters as a safetensors file in memory: small models.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_bytes(model: &CausalLm) -> Result<Vec<u8>, ExportError> {
    let (mut tensors, mut failed) = (Tensors::new(), None);
    visit(model, &mut |name, shape, read| match read() {
        Ok(values) => drop(tensors.insert(name.to_owned(), FileTensor::from_f32(shape.to_vec(), &values))),
        Err(error) => failed = Some(error),
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(to_safetensors(&tensors, &BTreeMap::from([("format".to_string(), "pt".to_string())]))?),
    }
}

/// Writes a directory that transformers loads: config.json, the weights in f32, f16 or bf16, the tokenizer. Adapters are
/// merged on the way, a matrix at a time. Returns one line a tensor whose values had to be cut to f16's range.
///
/// # Errors
/// A value that is not finite, or a directory that cannot be written.
pub fn write_transformers(
    dir: &Path,
    model: &dyn Parameters,
    config: &ModelConfig,
    tokenizer: &Tokenizer,
    dtype: DType,
) -> Result<Vec<String>, ExportError> {
    let fail = |path: &Path, reason: String| ExportError::File { path: path.to_owned(), reason };
    bellows_runs::create_dir_all_synced(dir).map_err(|e| fail(dir, e.to_string()))?;
    let specs = model.shapes().into_iter().map(|(name, shape)| (name, TensorSpec { dtype, shape }));
    let mut lines = Vec::new();
    write_checkpoint(dir, &specs.collect(), MAX_SHARD, |name| {
        let values = finite(model, name)?;
        Ok::<_, ExportError>(match dtype {
            DType::F16 => {
                let mut saturated = 0;
                let halved = InFile::halved(values, |piece| {
                    let (bytes, more) = to_f16(piece);
                    saturated += more;
                    bytes
                });
                lines.extend((saturated > 0).then(|| cut(name, saturated)));
                halved
            }
            DType::BF16 => InFile::halved(values, to_bf16),
            _ => InFile::as_they_are(values),
        })
    })?;
    let name = match dtype {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    };
    let (mut generation, edits) = (config.generation.clone(), config.edits.clone());
    let config = ModelConfig { eos_token_ids: ends(config, tokenizer), ..config.clone() }.to_json(name);
    for (key, value) in [
        ("eos_token_id", config["eos_token_id"].clone()),
        ("pad_token_id", json!(tokenizer.pad())),
        ("bos_token_id", json!(tokenizer.bos())),
    ] {
        generation.insert(key.into(), value);
    }
    for (file, json) in [("config.json", config), ("generation_config.json", generation.into())] {
        let path = dir.join(file);
        let text = serde_json::to_string_pretty(&json).unwrap_or_default() + "\n";
        bellows_runs::write_atomic(&path, text.as_bytes()).map_err(|e| fail(&path, e.to_string()))?;
    }
    let path = dir.join("README.md");
    if !edits.is_empty() {
        bellows_runs::write_atomic(&path, card(&edits).as_bytes()).map_err(|e| fail(&path, e.to_string()))?;
    } else if std::fs::read(&path).is_ok_and(|text| text.starts_with(CARD_HEAD.as_bytes())) {
        // Of an edited model that was here before.
        std::fs::remove_file(&path).map_err(|e| fail(&path, e.to_string()))?;
    }
    tokenizer.save(dir)?;
    Ok(lines)
}

/// What is said of a tensor with values that f16 cannot hold.
fn cut(name: &str, values: usize) -> String {
    format!("{name}: {values} values beyond ±65504 were cut")
}

/// The tokens that end an answer: first the tokenizer's end of text, which tuning may have changed, then those the model came with.
fn ends(config: &ModelConfig, tokenizer: &Tokenizer) -> Vec<u32> {
    let own = tokenizer.eos();
    own.into_iter().chain(config.eos_token_ids.iter().copied().filter(|&id| Some(id) != own)).collect()
}

/// Writes a GGUF (version 3) with the tokenizer and its chat template inside, under `path` once it is complete. Adapters are
/// merged on the way, a matrix at a time. Returns what is not as it was asked for, a line each: tensors that no blocks of the preset's type fit
/// into, texts that llama.cpp reads otherwise, tensors whose values had to be cut to f16's range.
///
/// # Errors
/// A value that is not finite, a tokenizer that no GGUF can describe, or a file that cannot be written.
pub fn write_gguf(
    path: &Path,
    model: &dyn Parameters,
    config: &ModelConfig,
    tokenizer: &Tokenizer,
    preset: Preset,
    name: &str,
) -> Result<Vec<String>, ExportError> {
    let shapes = model.shapes();
    let named: IndexMap<String, &str> = shapes.keys().filter_map(|n| Some((gguf_name(n)?, n.as_str()))).collect();
    let (layers, tied) = (config.num_hidden_layers, config.tie_word_embeddings);
    let rope = gguf_rope::stored(config)?;
    let mut infos: IndexMap<String, TensorInfo> = named
        .iter()
        .map(|(stored, name)| {
            let shape = shapes[*name].clone();
            let kind = if shape.len() < 2 { BlockType::F32 } else { preset.block_type(stored, &shape, layers, tied) };
            (stored.clone(), TensorInfo { kind, shape })
        })
        .collect();
    if let Some(freqs) = &rope.freqs {
        infos.insert(gguf_rope::FREQS.into(), TensorInfo { kind: BlockType::F32, shape: vec![freqs.len()] });
    }
    let vocabulary = tokenizer.vocabulary(config.vocab_size)?;
    let mut lines = tokenizer.vocabulary_differs(&vocabulary)?;
    lines.extend(fallen_back(preset, &infos));
    lines.extend(rope.line);
    let window = |window| {
        format!(
            "llama.cpp lets every token of this model see all before it, and not the last {window} alone: longer texts are read otherwise there"
        )
    };
    lines.extend(config.sliding_window.map(window));
    let mut metadata = metadata(config, vocabulary, preset, name);
    let scaling = |key: &str| format!("{}.rope.scaling.{key}", config.architecture.gguf_name());
    metadata.extend(rope.metadata.into_iter().map(|(key, value)| (scaling(key), value)));
    lines.extend(write_file(path, &metadata, &infos, |stored| {
        if let (gguf_rope::FREQS, Some(freqs)) = (stored, &rope.freqs) {
            return Ok(freqs.clone());
        }
        let name = named[stored];
        let values = finite(model, name)?;
        match rotated_heads(name, config).filter(|_| config.architecture.gguf_interleaved()) {
            Some(heads) => Ok(pairs_from_halves(&values, heads, infos[stored].shape[0])),
            None => Ok(values),
        }
    })?);
    Ok(lines)
}

/// The tensors whose rows are no whole number of a K-quant's blocks, in a sentence. llama.cpp's quantiser stores them in the same types.
fn fallen_back(preset: Preset, infos: &IndexMap<String, TensorInfo>) -> Option<String> {
    if !matches!(preset, Preset::Q4KM | Preset::Q5KM | Preset::Q6K) {
        return None;
    }
    let matrices = infos.values().filter(|info| info.shape.len() > 1);
    let others: Vec<&TensorInfo> = matrices.clone().filter(|info| info.kind != BlockType::F32 && info.kind.block_len() != 256).collect();
    let kinds = BlockType::ALL.into_iter().filter_map(|kind| {
        let count = others.iter().filter(|info| info.kind == kind).count();
        (count > 0).then(|| format!("{count} {kind}"))
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    (!others.is_empty()).then(|| {
        format!(
            "{} of {} matrices have rows that are no multiple of 256, which {} needs: stored larger ({kinds})",
            others.len(),
            matrices.count(),
            preset.name()
        )
    })
}

/// Writes a GGUF under `path` once it is complete. Returns one line a tensor whose values had to be cut to f16's range.
pub(crate) fn write_file(
    path: &Path,
    metadata: &Metadata,
    infos: &IndexMap<String, TensorInfo>,
    values: impl FnMut(&str) -> Result<Vec<f32>, ExportError>,
) -> Result<Vec<String>, ExportError> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(|e| ExportError::File { path: dir.to_owned(), reason: e.to_string() })?;
    // Of other names too: the next file here need not have that of one that was given up.
    bellows_runs::sweep_dead(dir);
    let mut parts = Parts::default();
    let saturated = parts.write(path, |out| gguf::write(out, metadata, infos, values))?;
    parts.publish()?;
    Ok(saturated.iter().map(|(name, values)| cut(name, *values)).collect())
}

fn metadata(config: &ModelConfig, vocabulary: Vocabulary, preset: Preset, name: &str) -> Metadata {
    let arch = config.architecture.gguf_name();
    let count = |n: usize| Value::U32(n as u32);
    let mut m = Metadata::new();
    let mut put = |key: &str, value: Value| drop(m.insert(key.to_owned(), value));
    put("general.architecture", arch.into());
    put("general.type", "model".into());
    put("general.name", name.into());
    put("general.file_type", Value::U32(preset.file_type()));
    put("general.quantization_version", Value::U32(2));
    if !config.edits.is_empty() {
        put("general.description", description(&config.edits).as_str().into());
        put(EDITS, json!(config.edits).to_string().as_str().into());
    }
    let mut own = |key: &str, value: Value| put(&format!("{arch}.{key}"), value);
    own("block_count", count(config.num_hidden_layers));
    own("context_length", count(config.max_position_embeddings));
    own("embedding_length", count(config.hidden_size));
    own("feed_forward_length", count(config.intermediate_size));
    own("attention.head_count", count(config.num_attention_heads));
    own("attention.head_count_kv", count(config.num_key_value_heads));
    own("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32));
    own("attention.key_length", count(config.head_dim));
    own("attention.value_length", count(config.head_dim));
    own("rope.freq_base", Value::F32(config.rope_theta as f32));
    own("rope.dimension_count", count(config.head_dim));
    own("vocab_size", count(config.vocab_size));
    let mut put = |key: &str, value: Value| drop(m.insert(format!("tokenizer.{key}"), value));
    put("ggml.model", vocabulary.model().into());
    put("ggml.pre", vocabulary.pre.as_str().into());
    put("ggml.tokens", vocabulary.tokens.into());
    put("ggml.token_type", vocabulary.types.iter().map(|&t: &TokenType| t as i32).collect::<Vec<i32>>().into());
    if vocabulary.scores.is_empty() {
        put("ggml.merges", vocabulary.merges.into());
    } else {
        put("ggml.scores", vocabulary.scores.into());
        put("ggml.add_space_prefix", Value::Bool(vocabulary.space_prefix));
    }
    for (key, id) in [("bos", vocabulary.bos), ("eos", vocabulary.eos), ("unknown", vocabulary.unk), ("padding", vocabulary.pad)] {
        if let Some(id) = id {
            put(&format!("ggml.{key}_token_id"), Value::U32(id));
        }
    }
    put("ggml.add_bos_token", Value::Bool(vocabulary.add_bos));
    put("ggml.add_eos_token", Value::Bool(false));
    if let Some(template) = vocabulary.chat_template {
        put("chat_template", Value::String(template));
    }
    m
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::base::Base;

    fn tiny() -> Base {
        Base::tiny(["a b"], 0, &Device::flex()).unwrap()
    }

    fn bytes(file: &InFile) -> &[u8] {
        file.as_ref()
    }

    /// In pieces, the last of which is short.
    #[test]
    fn sixteen_bits_are_made_in_the_memory_of_the_values() {
        let values: Vec<f32> = (0..2 * PIECE / 4 + 3).map(|i| (i % 1001) as f32 * 131.7 - 3.0).collect();
        let (bf16, (f16, cut)) = (to_bf16(&values), to_f16(&values));
        let mut saturated = 0;
        let mut clipped = |piece: &[f32]| {
            let (bytes, more) = to_f16(piece);
            saturated += more;
            bytes
        };
        let own = values.clone();
        let place = own.as_ptr().cast::<u8>();
        let file = InFile::halved(own, to_bf16);
        assert!(bytes(&file) == bf16 && bytes(&file).as_ptr() == place);
        assert!(bytes(&InFile::halved(values, &mut clipped)) == f16);
        assert!(saturated == cut && cut > 0, "{saturated} of {cut}");
        assert!(bytes(&InFile::halved(Vec::new(), to_bf16)).is_empty());
    }

    #[test]
    fn what_a_k_quant_cannot_store_is_told() {
        let (dir, base) = (tempfile::tempdir().unwrap(), tiny());
        let lines = |preset| write_gguf(&dir.path().join("m.gguf"), &base.model, &base.config, &base.tokenizer, preset, "m").unwrap();
        // Rows of 128 and 352.
        let told = lines(Preset::Q4KM);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("29 of 29 matrices") && told[0].contains("q4_k_m") && told[0].contains("Q5_0"), "{told:?}");
        assert_eq!(lines(Preset::Q8_0), Vec::<String>::new());
    }

    /// It was to have another name.
    #[cfg(unix)]
    #[test]
    fn what_a_dead_process_was_writing_is_removed() {
        let (dir, base) = (tempfile::tempdir().unwrap(), tiny());
        let mine = bellows_runs::part_of(&dir.path().join("other.gguf")).unwrap().to_string_lossy().into_owned();
        // As of a process of the highest number, which none has.
        let left = mine.replace(&format!("-{}-", std::process::id()), "-2147483646-");
        std::fs::write(&left, b"half").unwrap();
        write_gguf(&dir.path().join("m.gguf"), &base.model, &base.config, &base.tokenizer, Preset::F16, "m").unwrap();
        assert!(!Path::new(&left).exists());
    }

    #[test]
    fn outputs_end_where_the_tokenizer_says_and_begin_as_the_model_was_trained() {
        let dir = tempfile::tempdir().unwrap();
        let mut base = tiny();
        let [old, end] = ["<|endoftext|>", "<|im_end|>"].map(|token| base.tokenizer.id(token).unwrap());
        base.config.eos_token_ids = vec![old];
        base.tokenizer.set_eos("<|im_end|>").unwrap();
        write_transformers(dir.path(), &base.model, &base.config, &base.tokenizer, DType::F32).unwrap();
        for file in ["config.json", "generation_config.json"] {
            let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["eos_token_id"], json!([end, old]), "{file}");
        }
        // How the makers have it speak goes with it.
        let path = dir.path().join("generation_config.json");
        std::fs::write(
            &path,
            json!({ "eos_token_id": [old, 7], "do_sample": true, "temperature": 0.6, "stop_strings": ["x"] }).to_string(),
        )
        .unwrap();
        let shape = Base::shape(dir.path()).unwrap();
        assert_eq!(shape.eos_token_ids, [end, old, 7]);
        write_transformers(dir.path(), &base.model, &shape, &base.tokenizer, DType::F32).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let mut want = json!({ "eos_token_id": [end, old, 7], "do_sample": true, "temperature": 0.6, "stop_strings": ["x"] });
        (want["pad_token_id"], want["bos_token_id"]) = (json!(old), json!(null));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), want);
        std::fs::write(&path, "[]").unwrap();
        assert!(Base::shape(dir.path()).unwrap_err().to_string().contains("generation_config.json"));
        std::fs::remove_file(&path).unwrap();
        for add_bos in [true, false] {
            let config = json!({ "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_bos_token": add_bos });
            std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
            let (tokenizer, path) = (Tokenizer::from_dir(dir.path()).unwrap(), dir.path().join("m.gguf"));
            write_gguf(&path, &base.model, &base.config, &tokenizer, Preset::F16, "m").unwrap();
            let file = gguf::Gguf::open(&path).unwrap();
            assert_eq!(file.metadata()["tokenizer.ggml.add_bos_token"].as_bool(), Some(add_bos));
            assert_eq!(file.metadata()["tokenizer.ggml.eos_token_id"].as_u64(), Some(u64::from(end)));
            assert_eq!(Base::tokenizer(&path).unwrap().leading_bos(), add_bos.then_some(old));
        }
    }
}
