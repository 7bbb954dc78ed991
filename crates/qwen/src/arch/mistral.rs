//! Mistral (Jiang et al. 2023): the Llama layout, in which the first version's tokens see the last 4096 only; the later ones see all.
//!
//! A GGUF calls it `llama`, and llama.cpp then lets every token see all before it.

use serde_json::json;

use super::family::Family;

pub(super) const FAMILY: Family = Family {
    model_type: "mistral",
    gguf_name: "llama",
    class_name: "MistralForCausalLM",
    qkv_bias: false,
    qk_norm: false,
    windowed: true,
    gguf_interleaved: true,
    config_fields: || json!({}),
};
