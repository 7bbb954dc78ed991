//! Qwen3, dense sizes (Qwen team 2025): no biases; every query and key head goes through an RMS norm, with one weight of a head's
//! size for all heads, before it is rotated.
//!
//! A head's size is its own setting: heads × head_dim is not h (0.6B: 16 × 128 = 2048 for h = 1024). Rows of q and k keep their order in
//! a GGUF, which states the head's size as `attention.key_length`.

use serde_json::json;

use super::family::Family;

pub(super) const FAMILY: Family = Family {
    model_type: "qwen3",
    gguf_name: "qwen3",
    class_name: "Qwen3ForCausalLM",
    qkv_bias: false,
    qk_norm: true,
    windowed: false,
    gguf_interleaved: false,
    config_fields: || json!({ "attention_bias": false, "use_sliding_window": false }),
};
