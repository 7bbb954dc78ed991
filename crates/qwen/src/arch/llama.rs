//! The Llama layout (Touvron et al. 2023) without biases: Llama 2 to 3.3, SmolLM2, TinyLlama.
//!
//! In a GGUF the rows of q and k of each head are reordered so that the two coordinates of a rotation stand beside each other.

use serde_json::json;

use super::family::Family;

pub(super) const FAMILY: Family = Family {
    model_type: "llama",
    gguf_name: "llama",
    class_name: "LlamaForCausalLM",
    qkv_bias: false,
    qk_norm: false,
    windowed: false,
    gguf_interleaved: true,
    config_fields: || json!({ "attention_bias": false, "mlp_bias": false }),
};
