//! A model's tensors in its files, by the names of its parameters: those of a directory are its own, a GGUF has others, and in some of its layouts
//! the rows of queries and keys stand in another order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bellows_learner::memory::Place;
use bellows_weights::gguf::{Gguf, TensorInfo};
use bellows_weights::{BlockType, Checkpoint, DType, TensorSpec, WeightsError};

use crate::hashes::{FNV, fnv};
use crate::load::HostTensor;
use crate::model::ModelConfig;
use crate::storage::{is_bf16, is_f16};

/// The files of a model, open.
pub(crate) enum Stored {
    /// A directory in the published layout.
    Directory(Checkpoint),
    /// A `.gguf` file.
    Gguf(Gguf),
}

impl Stored {
    /// Opens them.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightsError> {
        Ok(if path.is_file() { Self::Gguf(Gguf::open(path)?) } else { Self::Directory(Checkpoint::open(path)?) })
    }

    /// Values in all of their tensors.
    pub(crate) fn values(&self) -> usize {
        let of = |shape: &Vec<usize>| shape.iter().product::<usize>();
        match self {
            Self::Directory(checkpoint) => checkpoint.tensors().map(|(_, spec)| of(&spec.shape)).sum(),
            Self::Gguf(file) => file.tensors().values().map(|info| of(&info.shape)).sum(),
        }
    }

    /// What their matrices are stored in: the one type of all, f32 where there are several. A GGUF's blocks are none, for what they stand for was
    /// rounded more than 16 bits round; of a file that has no other matrices it is bf16.
    pub(crate) fn dtype(&self) -> DType {
        let found: Vec<DType> = match self {
            Self::Directory(checkpoint) => {
                checkpoint.tensors().filter(|(_, spec)| spec.shape.len() == 2).map(|(_, spec)| spec.dtype).collect()
            }
            Self::Gguf(file) => {
                let of = |kind: BlockType| match kind {
                    BlockType::F32 => Some(DType::F32),
                    BlockType::F16 => Some(DType::F16),
                    BlockType::BF16 => Some(DType::BF16),
                    _ => None,
                };
                file.tensors().values().filter(|info| info.shape.len() == 2).filter_map(|info| of(info.kind)).collect()
            }
        };
        let one = |dtype: &DType| found.iter().all(|other| other == dtype);
        [DType::BF16, DType::F16].into_iter().find(one).unwrap_or(DType::F32)
    }

    /// A tensor of theirs; `None` if they have none of this name.
    pub(crate) fn tensor(&self, name: &str, config: &ModelConfig) -> Result<Option<HostTensor>, WeightsError> {
        match self {
            Self::Directory(checkpoint) => in_checkpoint(checkpoint, name),
            Self::Gguf(file) => in_gguf(file, config, name),
        }
    }
}

/// Places of a tensor that a hash of its file has bytes of, and how many at each: a few pages of the file.
const PLACES: usize = 4;
const BYTES: usize = 128;

impl Stored {
    /// A hash of names, types and shapes, and of some bytes of every tensor. Whatever edits a model changes a matrix everywhere: an adapter that is merged, a
    /// concept that is taken out, numbers that are rounded anew.
    pub(crate) fn content(&self) -> Result<u64, WeightsError> {
        let tensors: BTreeMap<String, &[u8]> = match self {
            Self::Directory(checkpoint) => {
                let of = move |(name, spec): (&str, &TensorSpec)| {
                    Ok::<_, WeightsError>((format!("{name} {} {:?}", spec.dtype, spec.shape), checkpoint.tensor_bytes(name)?))
                };
                checkpoint.tensors().map(of).collect::<Result<_, _>>()?
            }
            Self::Gguf(file) => {
                let of = move |(name, info): (&String, &TensorInfo)| {
                    Ok::<_, WeightsError>((format!("{name} {} {:?}", info.kind.id(), info.shape), file.tensor_bytes(name)?))
                };
                file.tensors().iter().map(of).collect::<Result<_, _>>()?
            }
        };
        Ok(tensors.iter().fold(FNV, |hash, (form, bytes)| {
            let every = bytes.len().div_ceil(PLACES).max(BYTES);
            let some = bytes.chunks(every).flat_map(|part| part.iter().copied().take(BYTES));
            fnv(fnv(hash, form.bytes()), some)
        }))
    }
}

/// What the names of a GGUF's layers begin with.
const LAYER: &str = "blk.";

/// Elements of a matrix and the bytes they take.
#[derive(Clone, Copy, Default)]
struct Size {
    values: f64,
    bytes: f64,
}

impl Stored {
    /// ggml's numbers of the types of blocks that matrices of the layers are in; none of a directory.
    pub(crate) fn kinds(&self) -> Vec<u32> {
        let Self::Gguf(file) = self else { return Vec::new() };
        let in_blocks =
            file.tensors().iter().filter(|(name, info)| name.starts_with(LAYER) && info.shape.len() == 2 && info.kind.block_len() > 1);
        let kinds: BTreeSet<u32> = in_blocks.map(|(_, info)| info.kind.id()).collect();
        kinds.into_iter().collect()
    }

    /// Bytes a weight that the layers' matrices take in a `.gguf` file; none of a directory.
    pub(crate) fn in_file(&self) -> Option<f64> {
        let Self::Gguf(file) = self else { return None };
        let matrices = file.tensors().iter().filter(|(name, info)| name.starts_with(LAYER) && info.shape.len() == 2).map(|(_, info)| info);
        let size = matrices.fold(Size::default(), |size, info| {
            let values = info.shape.iter().product::<usize>() as f64;
            let bytes = values * info.kind.block_bytes() as f64 / info.kind.block_len() as f64;
            Size { values: size.values + values, bytes: size.bytes + bytes }
        });
        (size.values > 0.0).then(|| size.bytes / size.values)
    }

    /// Bytes a weight of the layers' matrices, and of embedding and head: of those that stay `in_blocks` what they are in the file, of others, each kept in bf16
    /// (or, on the processor, f16) if that holds all of its values, else in f32. A matrix whose type does not say so is read as far as the first value that it
    /// does not hold.
    pub(crate) fn bytes(&self, place: Place, in_blocks: bool) -> [f64; 2] {
        let mut sizes = [Size::default(); 2];
        let halves = place == Place::Processor;
        let mut add = |in_layers: bool, shape: &[usize], each: f64| {
            let (size, values) = (&mut sizes[usize::from(!in_layers)], shape.iter().product::<usize>() as f64);
            size.values += values;
            size.bytes += values * each;
        };
        let dense = |narrow: bool| if narrow { 2.0 } else { 4.0 };
        match self {
            Self::Directory(checkpoint) => {
                for (name, spec) in checkpoint.tensors().filter(|(_, spec)| spec.shape.len() == 2) {
                    let read = |holds: fn(f32) -> bool| checkpoint.all(name, holds).unwrap_or(false);
                    let narrow = match spec.dtype {
                        DType::BF16 => true,
                        DType::F16 if halves => true,
                        _ => read(is_bf16) || (halves && read(is_f16)),
                    };
                    add(name.starts_with("model.layers."), &spec.shape, dense(narrow));
                }
            }
            Self::Gguf(file) => {
                for (name, info) in file.tensors().iter().filter(|(_, info)| info.shape.len() == 2) {
                    let (in_layers, kind) = (name.starts_with(LAYER), info.kind);
                    let each = match kind {
                        BlockType::BF16 => 2.0,
                        BlockType::F16 if halves => 2.0,
                        BlockType::F32 | BlockType::F16 => dense(file.tensor_f32(name).is_ok_and(|values| {
                            let all = |holds: fn(f32) -> bool| values.iter().copied().all(holds);
                            all(is_bf16) || (halves && all(is_f16))
                        })),
                        _ if in_layers && in_blocks => kind.block_bytes() as f64 / kind.block_len() as f64,
                        // What blocks of few bits stand for has the bits of a scale and of a number each.
                        _ => 4.0,
                    };
                    add(in_layers, &info.shape, each);
                }
            }
        }
        sizes.map(|Size { values, bytes }| if values > 0.0 { bytes / values } else { 2.0 })
    }
}

/// A tensor of a directory.
fn in_checkpoint(checkpoint: &Checkpoint, name: &str) -> Result<Option<HostTensor>, WeightsError> {
    let Some(spec) = checkpoint.spec(name) else { return Ok(None) };
    Ok(Some((spec.shape.clone(), checkpoint.tensor_f32(name)?)))
}

/// A tensor of a GGUF, its rows in the order of directories.
fn in_gguf(file: &Gguf, config: &ModelConfig, name: &str) -> Result<Option<HostTensor>, WeightsError> {
    let Some(stored) = gguf_name(name) else { return Ok(None) };
    let Some(info) = file.tensors().get(&stored) else { return Ok(None) };
    let (shape, mut values) = (info.shape.clone(), file.tensor_f32(&stored)?);
    if config.architecture.gguf_interleaved()
        && let (Some(heads), Some(&rows)) = (rotated_heads(name, config), shape.first())
    {
        values = halves_from_pairs(&values, heads, rows);
    }
    Ok(Some((shape, values)))
}

/// The GGUF name of a checkpoint's tensor.
pub(crate) fn gguf_name(name: &str) -> Option<String> {
    let whole = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.into());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    let module = match module {
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        _ => return None,
    };
    Some(format!("blk.{layer}.{module}.{kind}"))
}

/// The heads of a matrix whose rows are rotated: q's or k's.
pub(crate) fn rotated_heads(name: &str, config: &ModelConfig) -> Option<usize> {
    if name.contains(".q_proj.") {
        Some(config.num_attention_heads)
    } else if name.contains(".k_proj.") {
        Some(config.num_key_value_heads)
    } else {
        None
    }
}

/// Rows (of values, or of the bytes of blocks) of each head from pair order (0, d/2, 1, d/2 + 1, ..) to halves (0, 1, .., d - 1).
pub(crate) fn halves_from_pairs<T: Copy>(values: &[T], heads: usize, rows: usize) -> Vec<T> {
    reorder(values, heads, rows, |j, half| if j < half { 2 * j } else { 2 * (j - half) + 1 })
}

/// The inverse of what reading does: rows of each head from halves to pair order.
pub(crate) fn pairs_from_halves(values: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    reorder(values, heads, rows, |j, half| if j % 2 == 0 { j / 2 } else { half + j / 2 })
}

/// Row j of each head becomes row `from(j, d / 2)`.
fn reorder<T: Copy>(values: &[T], heads: usize, rows: usize, from: impl Fn(usize, usize) -> usize) -> Vec<T> {
    let (width, d) = (values.len() / rows.max(1), rows / heads.max(1));
    let mut out = Vec::with_capacity(values.len());
    for head in 0..heads {
        for j in 0..d {
            let row = head * d + from(j, d / 2);
            out.extend_from_slice(&values[row * width..(row + 1) * width]);
        }
    }
    out
}
