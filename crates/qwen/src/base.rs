//! The model a run starts from: a directory in the published layout, a GGUF file, or a small one made on the spot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bellows_chat::{ChatError, Fault, TokenType, Tokenizer, Vocabulary};
use bellows_exit::{Coded, Exit};
use bellows_kernels::{Blocks, Coding};
use bellows_learner::Rng;
use bellows_learner::memory::Place;
use bellows_weights::WeightsError;
use bellows_weights::gguf::{Gguf, Metadata, TensorInfo};
use burn::tensor::{DType, Device};
use serde_json::Map;

use crate::arch::Architecture;
use crate::gguf_rope;
use crate::hub::HubError;
use crate::load::{LoadError, checked, load_for};
use crate::model::rope::Rotation;
use crate::model::weight::Weight;
use crate::model::{CausalLm, ConfigError, ModelConfig};
use crate::provenance::EDITS;
use crate::storage::{BaseDtype, Storage};
use crate::stored::{Stored, gguf_name, halves_from_pairs, rotated_heads};
use crate::weights::{Unread, visit};

/// A model, its shape, and the tokenizer it came with.
pub struct Base {
    /// The weights, frozen.
    pub model: CausalLm,
    /// The shape.
    pub config: ModelConfig,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// A hash of its files, of which it has some bytes of every tensor, so that a run goes on with the base it began with; none of a model that is in no files.
    pub content: Option<u64>,
    /// How many of its tokens, the last ones, were added to it: rows of theirs have learnt nothing.
    pub added: usize,
}

/// Why a model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// Neither a directory nor a file, nor anything else that names a model.
    #[error("model {0:?}: there is no such directory or .gguf file, and it is no name of the hub's (owner/name)")]
    NotFound(String),
    /// A model of the hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// Its description.
    #[error("{}: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A weight file.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Weights that do not fit.
    #[error("{}: {source}", path.display())]
    Load {
        /// The model.
        path: PathBuf,
        /// What does not fit.
        source: LoadError,
    },
    /// A device without the type that is asked for.
    #[error("base_dtype {0}: this device has no such numbers{instead}", instead = instead(.0))]
    Dtype(BaseDtype),
    /// Blocks of a GGUF, and no GGUF.
    #[error("{}: base_dtype gguf keeps the blocks of a .gguf file, and this is none: nf4 and int8 make blocks of any model", .0.display())]
    NoBlocks(PathBuf),
    /// A tensor that the device does not hand back.
    #[error(transparent)]
    Unread(#[from] Unread),
    /// A part of a model.
    #[error("{}: this is one of {parts} files of a model: join them with llama.cpp's `llama-gguf-split --merge`", path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// How many there are.
        parts: u64,
    },
    /// A tokenizer that knows more tokens than the model.
    #[error("{}: the tokenizer has ids up to {}, and the embedding {rows} rows", path.display(), tokens - 1)]
    Vocabulary {
        /// The model.
        path: PathBuf,
        /// One past the tokenizer's largest id.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// The tokenizer.
    #[error(transparent)]
    Chat(#[from] ChatError),
}

impl Coded for BaseError {
    fn exit(&self) -> Exit {
        match self {
            Self::Hub(error) => error.exit(),
            Self::Weights(error) => error.exit(),
            Self::Chat(error) => error.exit(),
            Self::Unread(_) => Exit::Failed,
            Self::Dtype(_)
            | Self::NoBlocks(_)
            | Self::NotFound(_)
            | Self::Config { .. }
            | Self::Io { .. }
            | Self::Load { .. }
            | Self::Split { .. }
            | Self::Vocabulary { .. } => Exit::Usage,
        }
    }
}

impl Base {
    /// Opens a directory or a `.gguf` file.
    ///
    /// Every tensor of a GGUF must have a place in the model, or something else would be computed: other files have more biases, or frequencies
    /// for long texts. llama.cpp opens no file with a tensor it does not use, so there are no harmless ones; a tied model's `output.weight` is
    /// its head.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn open(path: &Path, device: &Device) -> Result<Self, BaseError> {
        Self::open_as(path, BaseDtype::Auto, device)
    }

    /// The same with its matrices stored as `dtype` says, one after the other: it is never in memory in f32 as a whole.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn open_as(path: &Path, dtype: BaseDtype, device: &Device) -> Result<Self, BaseError> {
        Self::open_for(path, [dtype; 2], false, device)
    }

    /// The same with layers, and embedding and head, as these two say, where all linear maps are `frozen`, or not: with [`BaseDtype::Auto`] those may be
    /// kept in the blocks that a GGUF has them in, or as bf16s two to a word (on a device that has no such type).
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn open_for(path: &Path, [dtype, rows]: [BaseDtype; 2], frozen: bool, device: &Device) -> Result<Self, BaseError> {
        let as_in_file = dtype == BaseDtype::Auto && frozen && path.is_file();
        let dtype = if as_in_file { BaseDtype::Gguf } else { dtype };
        Self::on_device([dtype, rows], device)?;
        if dtype == BaseDtype::Gguf && path.is_dir() {
            return Err(BaseError::NoBlocks(path.to_owned()));
        }
        let (Self { mut model, config, tokenizer, added, .. }, files) = Self::described(path, device)?;
        let misfit = |source| BaseError::Load { path: path.to_owned(), source };
        if let (BaseDtype::Gguf, Stored::Gguf(file)) = (dtype, &files) {
            keep_blocks(&mut model, file, &config, device).map_err(misfit)?;
        }
        let model = load_for(model, [dtype, rows], frozen, |name| files.tensor(name, &config)).map_err(misfit)?;
        // Last, when the disk has just read them.
        let content = Some(files.content()?);
        Ok(Self { model, config, tokenizer, content, added })
    }

    /// The same without its weights, which stay in the files: zeros instead, that take no memory until they are looked at.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn without_weights(path: &Path, device: &Device) -> Result<Self, BaseError> {
        Ok(Self::described(path, device)?.0)
    }

    /// The same, and the files.
    fn described(path: &Path, device: &Device) -> Result<(Self, Stored), BaseError> {
        let at = |file: PathBuf| move |source| BaseError::Config { path: file, source };
        let (config, files, file) = if path.is_dir() {
            (Self::shape(path)?, Stored::open(path)?, path.join("config.json"))
        } else if path.is_file() {
            let file = whole(path)?;
            (config_of(&file).map_err(at(path.to_owned()))?, Stored::Gguf(file), path.to_owned())
        } else {
            return Err(BaseError::NotFound(path.display().to_string()));
        };
        config.fits(files.values()).map_err(at(file))?;
        let model = CausalLm::new(&config, device);
        if let Stored::Gguf(file) = &files
            && let Some(name) = unused(file, &model, &config)
        {
            return Err(BaseError::Load { path: path.to_owned(), source: LoadError::Unused(name) });
        }
        let tokenizer = match &files {
            Stored::Directory(_) => tokenizer_in(path, &config)?,
            Stored::Gguf(file) => tokenizer_of(file, path)?,
        };
        let (tokens, rows) = (tokenizer.len(), config.vocab_size);
        if tokens > rows {
            return Err(BaseError::Vocabulary { path: path.to_owned(), tokens, rows });
        }
        Ok((Self { model, config, tokenizer, content: None, added: 0 }, files))
    }

    /// Whether the device has the types that these two are stored in.
    ///
    /// # Errors
    /// [`BaseError::Dtype`], of the first that it lacks.
    pub fn on_device(dtypes: [BaseDtype; 2], device: &Device) -> Result<(), BaseError> {
        for dtype in dtypes {
            let needed = match dtype {
                BaseDtype::Bf16 => DType::BF16,
                BaseDtype::F16 => DType::F16,
                _ => continue,
            };
            if !device.supports_dtype(needed) {
                return Err(BaseError::Dtype(dtype));
            }
        }
        Ok(())
    }

    /// The shape of the model in a directory or a `.gguf` file, without its weights.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn shape(path: &Path) -> Result<ModelConfig, BaseError> {
        if path.is_file() {
            return config_of(&whole(path)?).map_err(|source| BaseError::Config { path: path.to_owned(), source });
        }
        if !path.is_dir() {
            return Err(BaseError::NotFound(path.display().to_string()));
        }
        let read = |file: &Path| std::fs::read_to_string(file).map_err(|source| BaseError::Io { path: file.to_owned(), source });
        let file = path.join("config.json");
        let config = ModelConfig::from_json(&read(&file)?).map_err(|source| BaseError::Config { path: file, source })?;
        let file = path.join("generation_config.json");
        if !file.exists() {
            return Ok(config);
        }
        config.with_generation(&read(&file)?).map_err(|source| BaseError::Config { path: file, source })
    }

    /// The tokenizer of the model in a directory or a `.gguf` file.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn tokenizer(path: &Path) -> Result<Tokenizer, BaseError> {
        match path.is_file() {
            true => Ok(tokenizer_of(&Gguf::open(path)?, path)?),
            false => Ok(tokenizer_in(path, &Self::shape(path)?)?),
        }
    }

    /// A small model that is in memory, with its matrices stored otherwise: layers, and embedding and head.
    ///
    /// # Errors
    /// See [`BaseError`].
    pub fn stored_as(mut self, [dtype, rows]: [BaseDtype; 2], device: &Device) -> Result<Self, BaseError> {
        Self::on_device([dtype, rows], device)?;
        let (path, mut values, mut failed) = (PathBuf::from("tiny"), BTreeMap::new(), None);
        match dtype {
            BaseDtype::Auto => return Ok(self),
            BaseDtype::Gguf => return Err(BaseError::NoBlocks(path)),
            _ => {}
        }
        visit(&self.model, &mut |name, shape, read| match read() {
            Ok(tensor) => drop(values.insert(name.to_owned(), (shape.to_vec(), tensor))),
            Err(error) => failed = Some(error),
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let model = load_for(CausalLm::new(&self.config, device), [dtype, rows], true, |name| Ok(values.remove(name)));
        self.model = model.map_err(|source| BaseError::Load { path, source })?;
        Ok(self)
    }

    /// The tokenizer of [`Base::tiny`].
    ///
    /// # Errors
    /// [`Fault::Tokenizer`].
    pub fn tiny_tokenizer<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Tokenizer, Fault> {
        Tokenizer::byte_level(texts, 512)
    }

    /// A small Qwen2 model drawn from `seed`, with a tokenizer learnt from `texts`.
    ///
    /// # Errors
    /// [`Fault::Tokenizer`].
    pub fn tiny<'a>(texts: impl IntoIterator<Item = &'a str>, seed: u64, device: &Device) -> Result<Self, Fault> {
        let tokenizer = Self::tiny_tokenizer(texts)?;
        let config = Self::tiny_shape(&tokenizer);
        Ok(Self { model: random(&config, seed, device), config, tokenizer, content: None, added: 0 })
    }

    /// The shape of [`Base::tiny`].
    pub fn tiny_shape(tokenizer: &Tokenizer) -> ModelConfig {
        ModelConfig {
            architecture: Architecture::Qwen2,
            hidden_size: 128,
            intermediate_size: 352,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 32,
            vocab_size: tokenizer.len().next_multiple_of(64),
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: None,
            sliding_window: None,
            tie_word_embeddings: true,
            max_position_embeddings: 512,
            qkv_bias: true,
            qk_norm: false,
            eos_token_ids: tokenizer.eos().into_iter().collect(),
            generation: Map::new(),
            edits: Vec::new(),
        }
    }

    /// How the matrices of the model in a directory or a `.gguf` file are kept by [`open_for`](Self::open_for). Where the weights are not there yet they
    /// are taken to be bf16, as published models are.
    pub fn storage(path: &Path, dtype: BaseDtype, frozen: bool, place: Place) -> Storage {
        if let Some(asked) = Storage::asked(dtype) {
            return asked;
        }
        let Ok(files) = Stored::open(path) else { return Storage::of_bf16(place, frozen) };
        let in_blocks = (frozen || dtype == BaseDtype::Gguf) && !files.kinds().is_empty();
        match (place, files.bytes(place, in_blocks)) {
            (_, [layers, rows]) if in_blocks => Storage::Blocks { layers, rows },
            (Place::Processor, [2.0, 2.0]) => Storage::Half,
            (Place::Card, [2.0, _]) => Storage::of_bf16(place, frozen),
            (Place::Card, [layers, _]) if frozen => Storage::Mixed { layers, rows: 4.0 },
            (Place::Card, _) | (Place::Processor, [4.0, 4.0]) => Storage::F32,
            (Place::Processor, [layers, rows]) => Storage::Mixed { layers, rows },
        }
    }

    /// What is told of a `.gguf` file of which [`storage`](Self::storage) says that [`BaseDtype::Auto`] keeps `frozen` maps larger than the file has them, as those
    /// in f16 on a card: how many times as large, and what holds less. `None` of any other.
    pub fn widened(path: &Path, dtype: BaseDtype, frozen: bool, kept: Storage) -> Option<String> {
        if dtype != BaseDtype::Auto || !frozen || !path.is_file() || matches!(kept, Storage::Blocks { .. }) {
            return None;
        }
        let times = kept.bytes([1, 1]) / Stored::open(path).ok()?.in_file()?;
        let told = || {
            format!("the base becomes f32 on a card, {times:.1} times what its layers are in the file: --base-dtype int8 or nf4 holds less")
        };
        (times > 1.0).then(told)
    }

    /// Bytes of the model in a `.gguf` file in f32; `None` of one whose layers are in no blocks.
    pub fn in_f32(path: &Path) -> Option<f64> {
        let files = Stored::open(path).ok().filter(|_| path.is_file())?;
        (!files.kinds().is_empty()).then(|| 4.0 * files.values() as f64)
    }

    /// ggml's numbers of the types of blocks that the layers' matrices of a `.gguf` file are in.
    pub fn kinds(path: &Path) -> Vec<u32> {
        Stored::open(path).map(|files| files.kinds()).unwrap_or_default()
    }
}

/// A `.gguf` file that holds all of its model.
fn whole(path: &Path) -> Result<Gguf, BaseError> {
    let file = Gguf::open(path)?;
    match file.metadata().get("split.count").and_then(bellows_weights::gguf::Value::as_u64) {
        Some(parts) if parts > 1 => Err(BaseError::Split { path: path.to_owned(), parts }),
        _ => Ok(file),
    }
}

/// Gives the linear maps the file's own blocks; those in f32, bf16 or f16 are left to be loaded.
fn keep_blocks(model: &mut CausalLm, file: &Gguf, config: &ModelConfig, device: &Device) -> Result<(), LoadError> {
    for (name, linear) in model.linears_mut() {
        let (name, shape) = (format!("{name}.weight"), linear.weight.dims());
        let Some(stored) = gguf_name(&name) else { continue };
        let Some(TensorInfo { kind, shape: found }) = file.tensors().get(&stored) else { continue };
        let Some(coding) = Coding::of_ggml(kind.id(), kind.decoder()) else { continue };
        let mut bytes = file.tensor_bytes(&stored)?.to_vec();
        checked(&name, (found.clone(), file.tensor_f32(&stored)?), &shape)?;
        if config.architecture.gguf_interleaved()
            && let Some(heads) = rotated_heads(&name, config)
        {
            bytes = halves_from_pairs(&bytes, heads, shape[0]);
        }
        linear.weight = Weight::Blocks(Blocks::of_file(bytes, coding, shape, device));
    }
    Ok(())
}

/// What a device without this type has in its place.
fn instead(dtype: &BaseDtype) -> &'static str {
    if *dtype == BaseDtype::Bf16 { "; auto keeps a frozen model's bf16 there, two to a word" } else { "" }
}

/// A tensor of the file that has no place in the model.
fn unused(file: &Gguf, model: &CausalLm, config: &ModelConfig) -> Option<String> {
    let mut places: BTreeSet<String> = config.rope_scaling.iter().map(|_| gguf_rope::FREQS.to_owned()).collect();
    visit(model, &mut |name, _, _| places.extend(gguf_name(name)));
    file.tensors().keys().find(|name| !places.contains(*name)).cloned()
}

/// Weights of N(0, 0.02²), norms of ones, biases of zeros: what published models start from.
pub fn random(config: &ModelConfig, seed: u64, device: &Device) -> CausalLm {
    let model = CausalLm::new(config, device);
    let mut shapes = Vec::new();
    visit(&model, &mut |name, shape, _| shapes.push((name.to_owned(), shape.to_vec())));
    let drawn = |name: &str| {
        let shape = shapes.iter().find(|(n, _)| n == name).map(|(_, s)| s.clone())?;
        let count: usize = shape.iter().product();
        let mut rng = Rng::new(seed, name, 0, 0);
        let values = match name {
            _ if name.ends_with("norm.weight") => vec![1.0; count],
            _ if name.ends_with(".bias") => vec![0.0; count],
            _ => (0..count).map(|_| (rng.normal() * 0.02) as f32).collect(),
        };
        Some((shape, values))
    };
    match crate::load::replace(model, drawn) {
        Ok((model, _)) => model,
        Err(error) => unreachable!("the shapes are the model's own: {error}"),
    }
}

fn config_of(file: &Gguf) -> Result<ModelConfig, ConfigError> {
    let metadata = file.metadata();
    let name = metadata.get("general.architecture").and_then(|v| v.as_str()).unwrap_or_default();
    let architecture = Architecture::from_gguf_name(name).ok_or_else(|| ConfigError::Architecture(name.into()))?;
    let count = |key: &str| metadata.get(&format!("{name}.{key}")).and_then(bellows_weights::gguf::Value::as_u64).map(|n| n as usize);
    let float = |key: &str| metadata.get(&format!("{name}.{key}")).and_then(bellows_weights::gguf::Value::as_f32).map(f64::from);
    let missing = |key: &str| ConfigError::Malformed(format!("no {name}.{key}"));
    let need = |key: &str| count(key).ok_or_else(|| missing(key));
    let (hidden_size, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let vocab = file.tensors().get("token_embd.weight").and_then(|t| t.shape.first().copied());
    // The ends of a text, of a turn, and of a message that calls a function.
    let end = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}_token_id")).and_then(bellows_weights::gguf::Value::as_u64);
    let mut ends: Vec<u32> = ["eos", "eot", "eom"].into_iter().filter_map(|key| end(key)?.try_into().ok()).collect();
    let mut seen = BTreeSet::new();
    ends.retain(|id| seen.insert(*id));
    let edits = metadata.get(EDITS).and_then(|v| v.as_str()).map_or(Ok(Vec::new()), serde_json::from_str);
    let head_dim = count("attention.key_length").unwrap_or(hidden_size / heads.max(1));
    if let Some(rotated) = count("rope.dimension_count").filter(|rotated| *rotated != head_dim) {
        let what = format!("{name}.rope.dimension_count is {rotated}, of {head_dim}: heads that are rotated in part are not supported");
        return Err(ConfigError::Unsupported(what));
    }
    let rope_theta = float("rope.freq_base").unwrap_or(10_000.0);
    let max_position_embeddings = need("context_length")?;
    let rotation = Rotation { theta: rope_theta, dim: head_dim, longest: max_position_embeddings };
    let config = ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: need("feed_forward_length")?,
        num_hidden_layers: need("block_count")?,
        num_attention_heads: heads,
        num_key_value_heads: count("attention.head_count_kv").unwrap_or(heads),
        head_dim,
        vocab_size: vocab.ok_or_else(|| ConfigError::Malformed("no tensor token_embd.weight".into()))?,
        rms_norm_eps: float("attention.layer_norm_rms_epsilon").ok_or_else(|| missing("attention.layer_norm_rms_epsilon"))?,
        rope_theta,
        rope_scaling: gguf_rope::read(file, architecture, rotation)?,
        sliding_window: None,
        tie_word_embeddings: !file.tensors().contains_key("output.weight"),
        max_position_embeddings,
        qkv_bias: architecture.qkv_bias(),
        qk_norm: architecture.qk_norm(),
        eos_token_ids: ends,
        generation: Map::new(),
        edits: edits.map_err(|e| ConfigError::Malformed(format!("{EDITS}: {e}")))?,
    };
    config.check()?;
    Ok(config)
}

/// The tokenizer of a directory; where its own files name no end of text, the configuration's first one is it.
fn tokenizer_in(dir: &Path, config: &ModelConfig) -> Result<Tokenizer, ChatError> {
    let mut tokenizer = Tokenizer::from_dir(dir)?;
    let first = config.eos_token_ids.first().and_then(|&id| tokenizer.token(id));
    if let (None, Some(token)) = (tokenizer.eos(), first) {
        tokenizer.set_eos(&token)?;
    }
    Ok(tokenizer)
}

fn tokenizer_of(file: &Gguf, path: &Path) -> Result<Tokenizer, ChatError> {
    vocabulary_of(file.metadata()).and_then(|v| Tokenizer::from_gguf_vocab(&v)).map_err(|e| e.in_file(path))
}

fn vocabulary_of(metadata: &Metadata) -> Result<Vocabulary, Fault> {
    let fault = |what: String| Fault::Tokenizer { what };
    let value = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}"));
    let text = |key: &str| value(key).and_then(|v| v.as_str());
    let list = |key: &str| {
        let missing = || fault(format!("there is no `tokenizer.ggml.{key}`"));
        value(key).and_then(|v| v.as_strings()).map(<[String]>::to_vec).ok_or_else(missing)
    };
    let sentencepiece = match text("model").unwrap_or_default() {
        "gpt2" => false,
        "llama" => true,
        other => {
            return Err(fault(format!("`tokenizer.ggml.model` is \"{other}\"; expected gpt2 (byte-level BPE) or llama (SentencePiece)")));
        }
    };
    let scores = || value("scores").and_then(|v| v.as_f32s()).filter(|scores| !scores.is_empty()).map(<[f32]>::to_vec);
    let tokens = list("tokens")?;
    let kinds = value("token_type").and_then(|v| v.as_i32s()).unwrap_or_default();
    let kind = |i: usize| kinds.get(i).and_then(|&k| TokenType::from_number(k)).unwrap_or(TokenType::Normal);
    // What llama.cpp takes where a file of SentencePiece's says nothing.
    let id = |key: &str, plain: Option<u32>| value(key).and_then(bellows_weights::gguf::Value::as_u64).map(|id| id as u32).or(plain);
    let flag = |key: &str, plain: bool| value(key).and_then(bellows_weights::gguf::Value::as_bool).unwrap_or(plain);
    let plain = |id: u32| sentencepiece.then_some(id);
    // Byte-level BPE is cut in ways that differ from model to model, and a wrong one shows nowhere; SentencePiece's is cut in one.
    let unsaid = "there is no `tokenizer.ggml.pre`, so it is not known how this model's text is cut: take a newer GGUF, or the original";
    let pre = text("pre").or(sentencepiece.then_some("default")).ok_or_else(|| fault(unsaid.into()))?;
    Ok(Vocabulary {
        pre: pre.into(),
        types: (0..tokens.len()).map(kind).collect(),
        tokens,
        merges: if sentencepiece { Vec::new() } else { list("merges")? },
        scores: if sentencepiece { scores().ok_or_else(|| fault("there are no `tokenizer.ggml.scores`".into()))? } else { Vec::new() },
        space_prefix: flag("add_space_prefix", sentencepiece),
        bos: id("bos_token_id", plain(1)),
        eos: id("eos_token_id", plain(2)),
        unk: id("unknown_token_id", plain(0)),
        pad: id("padding_token_id", None),
        add_bos: flag("add_bos_token", sentencepiece || pre == "llama-bpe"),
        chat_template: metadata.get("tokenizer.chat_template").and_then(|v| v.as_str()).map(str::to_owned),
    })
}
