//! What a direction does to what a model is about to say (Arditi et al. 2024, section 2.3 and appendix C): of each candidate, whether taking it
//! out makes the user's markers unlikely on the target's prompts, whether adding it makes them likely on the baseline's, and how much else
//! changes there.

use serde::{Deserialize, Serialize};

use bellows_chat::Tokenizer;

use super::direction::{Directions, Place, Separation};
use super::edit::{Ablation, steer};
use super::error::ConceptError;
use super::measure::{divergence, marker_score};
use super::prompts::EncodedSets;
use super::reader::{Progress, Reader};

/// A candidate that changes the baseline's next tokens by more than this (KL divergence in nats, the paper's limit) is not chosen.
pub const MOST_DIVERGENCE: f64 = 0.1;

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Mean log-odds of a marker coming next on the target's prompts, with the direction taken out: low is good.
    pub ablation: f64,
    /// The same on the baseline's prompts, with the difference of the means added at its layer: high is good.
    pub induction: f64,
    /// Mean KL divergence of the next token on the baseline's prompts, from the model to the one with the direction taken out.
    pub divergence: f64,
    /// Why it is not to be chosen, if so.
    pub refused: Option<String>,
}

/// All candidates, and the one to take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Mean log-odds of a marker on the target's prompts, of the model as it is.
    pub target: f64,
    /// And on the baseline's.
    pub baseline: f64,
    /// The layers that were edited.
    pub layers: String,
    /// λ.
    pub strength: f64,
    /// The candidates, by layer.
    pub candidates: Vec<Scored>,
    /// The candidate with the lowest ablation score that is not refused; else the one that separates best.
    pub chosen: Place,
}

/// The token that each marker begins with.
pub fn marker_ids(markers: &[String], tokenizer: &Tokenizer) -> Result<Vec<u32>, ConceptError> {
    let mut ids = Vec::new();
    for marker in markers {
        ids.extend(tokenizer.encode(marker.trim(), false)?.first());
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// Scores `candidates` with the edit that is to be made. `markers` are [`marker_ids`].
///
/// # Errors
/// No markers, no candidates, an edit that cannot be made, a device that fails.
pub fn score(
    reader: Reader<'_>,
    directions: &Directions,
    candidates: &[&Separation],
    sets: &EncodedSets,
    markers: &[u32],
    edit: &Ablation,
    progress: Progress<'_>,
) -> Result<Scores, ConceptError> {
    if markers.is_empty() {
        return Err(ConceptError::Setting(
            "scores need markers.txt beside the prompt sets: texts by which an answer with the concept begins".into(),
        ));
    }
    let nothing = || ConceptError::Setting("no layer separates the sets: there is nothing to score".into());
    let best = candidates.iter().max_by(|a, b| a.effect.total_cmp(&b.effect)).ok_or_else(nothing)?.place;
    let (target, baseline) = (&sets.target.held_out, &sets.baseline.held_out);
    let mean = |log_p: &[Vec<f32>]| log_p.iter().map(|p| marker_score(p, markers)).sum::<f64>() / log_p.len().max(1) as f64;
    let plain = reader.next(baseline)?;
    let (on_target, on_baseline) = (mean(&reader.next(target)?), mean(&plain));
    let mut scored = Vec::new();
    for (done, Separation { place, .. }) in candidates.iter().enumerate() {
        let edited = edit.apply(reader.model.clone(), &directions.unit(*place)?)?;
        let edited = Reader { model: &edited, ..reader };
        let ablation = mean(&edited.next(target)?);
        let after = edited.next(baseline)?;
        let divergence = plain.iter().zip(&after).map(|(p, q)| divergence(p, q)).sum::<f64>() / plain.len().max(1) as f64;
        let steered = steer(reader.model.clone(), place.layer, directions.at(*place))?;
        let induction = mean(&Reader { model: &steered, ..reader }.next(baseline)?);
        let refused = if divergence > MOST_DIVERGENCE {
            Some(format!("what the baseline says changes by {divergence:.2} nats, more than {MOST_DIVERGENCE}"))
        } else if induction <= on_baseline {
            Some("adding it does not make the markers likelier".into())
        } else {
            None
        };
        scored.push(Scored { place: *place, ablation, induction, divergence, refused });
        progress(done + 1, candidates.len());
    }
    let chosen = scored.iter().filter(|s| s.refused.is_none()).min_by(|a, b| a.ablation.total_cmp(&b.ablation)).map_or(best, |s| s.place);
    let (layers, strength) = (edit.layers.to_string(), edit.strength);
    Ok(Scores { target: on_target, baseline: on_baseline, layers, strength, candidates: scored, chosen })
}
