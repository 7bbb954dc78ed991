//! Models, their training and their files against the libraries of others and against themselves. One program, since each would compile and link all of
//! Burn for itself.

mod adapters;
mod concept;
mod data;
mod eval;
mod example;
mod gguf_lora;
mod gguf_spm;
mod gguf_tokens;
mod layouts;
mod ollama;
mod parity;
mod peers;
mod precision;
mod preference;
mod smollm;
mod storage;
mod support;
mod training;
