//! A direction of the residual stream that separates two sets of prompts, and what can be done with it: found, scored, taken out of the weights,
//! added while the model speaks, judged before and after (Arditi et al. 2024, "Refusal in language models is mediated by a single direction",
//! for any two sets).
//!
//! The user brings both sets ([`prompts`]). [`direction`] finds a direction for every layer and place as the difference of the sets' means,
//! [`edit`] changes weights, [`measure`] reads models, edited or not: an edit is scored by doing it. [`score`] puts these together, [`files`] is
//! what is kept on disk, [`stages`] what a run does one after the other, and every edit is recorded in the model ([`crate::provenance`]).

pub mod direction;
pub mod edit;
mod error;
pub mod files;
pub mod judge;
pub mod measure;
mod picture;
pub mod prompts;
pub mod reader;
pub mod score;
pub mod stages;

pub use error::ConceptError;
