//! `concept`: a direction between two sets of prompts, found, scored, taken out, added, judged; and the chain that does it before fine-tuning.

pub(crate) mod args;
pub(crate) mod chain;
mod steps;
pub(crate) mod verbs;
