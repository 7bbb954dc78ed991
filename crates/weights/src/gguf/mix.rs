//! Which block type each tensor gets: llama.cpp's mixes, named as its quantiser names them.

use crate::blocks::BlockType::{self, *};

/// A way to store a whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are llama.cpp's")]
pub enum Preset {
    F16,
    BF16,
    Q4_0,
    Q8_0,
    Q4KM,
    Q5KM,
    Q6K,
}

impl Preset {
    /// All of them.
    pub const ALL: [Preset; 7] = [Preset::F16, Preset::BF16, Preset::Q4_0, Preset::Q8_0, Preset::Q4KM, Preset::Q5KM, Preset::Q6K];

    /// The preset of this name: `q4_k_m`.
    pub fn from_name(name: &str) -> Option<Self> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Preset::F16 => "f16",
            Preset::BF16 => "bf16",
            Preset::Q4_0 => "q4_0",
            Preset::Q8_0 => "q8_0",
            Preset::Q4KM => "q4_k_m",
            Preset::Q5KM => "q5_k_m",
            Preset::Q6K => "q6_k",
        }
    }

    /// The value of `general.file_type`.
    pub const fn file_type(self) -> u32 {
        match self {
            Preset::F16 => 1,
            Preset::Q4_0 => 2,
            Preset::Q8_0 => 7,
            Preset::Q4KM => 15,
            Preset::Q5KM => 17,
            Preset::Q6K => 18,
            Preset::BF16 => 32,
        }
    }

    /// The block type of a tensor with this GGUF name and torch shape, in a model of `layers` layers.
    /// `tied`: the model has no `output.weight`, its embedding serves as one.
    ///
    /// Vectors (norms, biases) stay F32. The output matrix gets Q6_K whatever the mix; `q4_k_m` and `q5_k_m` give it to
    /// half of the layers' `attn_v` and `ffn_down` too, the ones that cost the most quality.
    pub fn block_type(self, name: &str, shape: &[usize], layers: usize, tied: bool) -> BlockType {
        let &[.., _, row] = shape else { return F32 };
        if name.ends_with("_norm.weight") {
            return F32;
        }
        let output = name == "output.weight" || (tied && name == "token_embd.weight");
        let wanted = match self {
            Preset::F16 => F16,
            Preset::BF16 => BF16,
            Preset::Q8_0 => Q8_0,
            _ if output => Q6K,
            Preset::Q4_0 => Q4_0,
            Preset::Q6K => Q6K,
            Preset::Q4KM | Preset::Q5KM if is_sensitive(name, layers) => Q6K,
            Preset::Q4KM => Q4K,
            Preset::Q5KM => Q5K,
        };
        wanted.fallback(row)
    }
}

/// `attn_v` and `ffn_down` of the first and the last eighth of the layers, and of every third one between.
fn is_sensitive(name: &str, layers: usize) -> bool {
    let Some((layer, part)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else { return false };
    let Ok(layer) = layer.parse::<usize>() else { return false };
    let eighth = layers / 8;
    let chosen = layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
    chosen && matches!(part, "attn_v.weight" | "ffn_down.weight")
}
