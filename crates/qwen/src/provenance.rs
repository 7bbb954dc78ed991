//! What was done to a model's weights by hand: recorded in `config.json`, in a GGUF's metadata and on the model card, so that an edited model is
//! known for one wherever it goes.

use serde::{Deserialize, Serialize};

/// The key of `config.json`, and of a GGUF's metadata (as the text of the same JSON).
pub const EDITS: &str = "bellows.edits";

/// A direction taken out of what layers write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    /// What was done.
    pub kind: String,
    /// The model it was done to, as it was named.
    pub model: String,
    /// The prompt sets that the direction separates, as they were named.
    pub concept: String,
    /// The layer at whose input the direction was found, from 0.
    pub layer: usize,
    /// The place in the prompts where it was found, counted from their end, from 1.
    pub position: usize,
    /// SHA-256 of the unit direction's values (f64, little-endian).
    pub direction_sha256: String,
    /// The layers whose `o_proj` and `down_proj` were edited.
    pub layers: String,
    /// λ of `W − λ r̂ r̂ᵀ W`.
    pub strength: f64,
    /// Whether what each input writes kept its length.
    pub norm_preserving: bool,
    /// Whether the embedding was edited too.
    pub embeddings: bool,
    /// The program that did it, and its version.
    pub tool: String,
}

/// The edits in one sentence each, for a GGUF's `general.description`.
pub fn description(edits: &[Edit]) -> String {
    let one = |e: &Edit| {
        format!(
            "Edited by {}: {} of the direction between the prompt sets of {:?} (found at the input of layer {}), layers {}, strength {}.",
            e.tool, e.kind, e.concept, e.layer, e.layers, e.strength
        )
    };
    edits.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// How every [`card`] begins, and no other.
pub(crate) const CARD_HEAD: &str = "---\ntags:\n- bellows\n- edited-weights\n---\n\n# A model with edited weights\n\n";

/// The model card (`README.md`) of an edited model.
pub fn card(edits: &[Edit]) -> String {
    let mut text = String::from(CARD_HEAD);
    text += "Its weights are not those of the model it was made from. What was done to them, in this order:\n";
    for (number, e) in (1..).zip(edits) {
        let rows = [
            ("what", e.kind.clone()),
            ("made from", e.model.clone()),
            ("prompt sets", e.concept.clone()),
            ("direction", format!("input of layer {}, token {} from the end, SHA-256 {}", e.layer, e.position, e.direction_sha256)),
            ("matrices", format!("o_proj and down_proj of layers {}{}", e.layers, if e.embeddings { ", and embed_tokens" } else { "" })),
            ("strength", format!("{} of W − λ r r^T W", e.strength)),
            ("lengths", if e.norm_preserving { "of what each input writes: kept" } else { "not kept" }.to_string()),
            ("by", e.tool.clone()),
        ];
        text += &format!("\n## Edit {number}\n\n| | |\n| --- | --- |\n");
        rows.iter().for_each(|(name, value)| text += &format!("| {name} | {value} |\n"));
    }
    text
}
