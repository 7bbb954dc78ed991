//! One family, as its file describes it.

use serde_json::Value;

/// What tells one family from the others.
pub(super) struct Family {
    /// `model_type` in config.json.
    pub(super) model_type: &'static str,
    /// `general.architecture` in a GGUF.
    pub(super) gguf_name: &'static str,
    /// The class transformers loads it with.
    pub(super) class_name: &'static str,
    /// q, k and v have a bias.
    pub(super) qkv_bias: bool,
    /// Query and key heads go through an RMS norm before they are rotated.
    pub(super) qk_norm: bool,
    /// Every layer sees the last `sliding_window` tokens only, where config.json says how many.
    pub(super) windowed: bool,
    /// Rows of q and k stand in another order in a GGUF: pairs of a rotation beside each other instead of half a head apart.
    pub(super) gguf_interleaved: bool,
    /// Fields of config.json that only this family has.
    pub(super) config_fields: fn() -> Value,
}
