//! Decoder language models on Burn: Qwen2, Qwen2.5, Qwen3, Mistral and the Llama layout, fine-tuned with LoRA.
//!
//! [`model`] reads like the papers, [`gradients`] runs it backwards layer by layer, [`task`] is how the Learner sees it; [`peft`] and
//! [`weights`] are the files that go in and out.

pub mod adapter;
pub mod arch;
pub mod base;
pub mod bench;
pub mod checkpointing;
mod checks;
pub mod concept;
pub mod config;
mod curves;
pub mod data;
pub mod eval;
pub mod examples;
pub mod export;
pub mod fit;
pub mod generate;
pub mod gguf_lora;
mod gguf_rope;
pub mod gradients;
pub mod grow;
mod hashes;
pub mod hub;
pub mod hub_data;
pub mod load;
pub mod loss;
mod maps;
pub mod memory;
pub mod merging;
pub mod model;
pub mod modelfile;
mod named;
pub mod optim;
mod overflow;
pub mod pairs;
pub mod peft;
pub mod precision;
pub mod preference;
pub mod prove;
pub mod provenance;
pub mod questions;
pub mod speed;
pub mod storage;
mod stored;
pub mod task;
pub mod train;
mod unchanged;
pub mod weights;
