//! What tells the families of models apart. Each has a file that says all of it; the decoder they share is in [`crate::model`].

mod family;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

use serde_json::Value;

use family::Family;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// See `qwen2.rs`.
    Qwen2,
    /// See `qwen3.rs`.
    Qwen3,
    /// See `llama.rs`.
    Llama,
    /// See `mistral.rs`.
    Mistral,
}

impl Architecture {
    /// All families.
    pub const ALL: [Self; 4] = [Self::Qwen2, Self::Qwen3, Self::Llama, Self::Mistral];

    fn family(self) -> &'static Family {
        match self {
            Self::Qwen2 => &qwen2::FAMILY,
            Self::Qwen3 => &qwen3::FAMILY,
            Self::Llama => &llama::FAMILY,
            Self::Mistral => &mistral::FAMILY,
        }
    }

    /// The family of a `model_type`.
    pub fn from_model_type(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.model_type() == name)
    }

    /// The family of a `general.architecture`.
    pub fn from_gguf_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.gguf_name() == name)
    }

    /// `general.architecture` in a GGUF.
    pub fn gguf_name(self) -> &'static str {
        self.family().gguf_name
    }

    /// `model_type` in config.json.
    pub fn model_type(self) -> &'static str {
        self.family().model_type
    }

    /// The class transformers loads it with.
    pub fn class_name(self) -> &'static str {
        self.family().class_name
    }

    /// Whether q, k and v have a bias.
    pub fn qkv_bias(self) -> bool {
        self.family().qkv_bias
    }

    /// Whether query and key heads are normalised.
    pub fn qk_norm(self) -> bool {
        self.family().qk_norm
    }

    /// Whether `sliding_window` of config.json bounds what a token sees.
    pub fn windowed(self) -> bool {
        self.family().windowed
    }

    /// Whether the rows of q and k stand in pair order in a GGUF.
    pub fn gguf_interleaved(self) -> bool {
        self.family().gguf_interleaved
    }

    /// Fields of config.json that only this family has.
    pub fn config_fields(self) -> Value {
        (self.family().config_fields)()
    }
}
