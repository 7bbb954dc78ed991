//! Decoder language models on Burn: Qwen2, Qwen2.5, Qwen3 and the Llama layout, with LoRA.

pub mod adapter;
pub mod arch;
pub mod gradients;
pub mod load;
pub mod loss;
pub mod model;
pub mod peft;
