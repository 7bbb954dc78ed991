//! From rows to token ids, against the libraries of others and against itself. One program: it is linked once.

mod encode;
mod formats;
mod shards;
mod spm;
mod support;
mod templates;
mod tiny_chat;
mod tokenizer;
