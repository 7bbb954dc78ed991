//! Qwen2 and Qwen2.5 (Qwen team 2024): the Llama layout with a bias on q, k and v, and none elsewhere.
//!
//! h = x + Wo·attention(rope(Wq n + bq), rope(Wk n + bk), Wv n + bv) with n = RMSNorm(x); y = h + MLP(RMSNorm(h)). The sizes up to 3B
//! use the embedding as output head. A head's size is h / heads. Rows of q and k keep their order in a GGUF.

use serde_json::json;

use super::family::Family;

pub(super) const FAMILY: Family = Family {
    model_type: "qwen2",
    gguf_name: "qwen2",
    class_name: "Qwen2ForCausalLM",
    qkv_bias: true,
    qk_norm: false,
    windowed: false,
    gguf_interleaved: false,
    config_fields: || json!({ "use_sliding_window": false }),
};
