//! A model judged by what it says: the share of greedy answers that hold one of the user's markers, and the perplexity of text that must not
//! become less likely.

use bellows_chat::{Template, Tokenizer};
use serde::{Deserialize, Serialize};

use super::error::ConceptError;
use super::measure::Rate;
use super::prompts::{EncodedSets, PromptSets};
use super::reader::{Progress, Reader};
use crate::generate::{Sampling, generate, stop_ids};

/// Tokens of the guard's text that are read at most.
const GUARD_TOKENS: usize = 8192;

/// What one model says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Answers to the target's held-out prompts that hold a marker; none where there are no markers.
    pub target: Option<Rate>,
    /// And to the baseline's.
    pub baseline: Option<Rate>,
    /// Perplexity of the guard's text, if there is one.
    pub perplexity: Option<f64>,
    /// The answers to the target's held-out prompts.
    pub target_answers: Vec<String>,
    /// And to the baseline's.
    pub baseline_answers: Vec<String>,
}

/// Has the model answer the held-out prompts, which are in the turns of `template`, with at most `tokens` tokens each, and read the guard's text.
///
/// # Errors
/// A device that fails, text that the tokenizer refuses.
pub fn judge(
    reader: Reader<'_>,
    (tokenizer, template): (&Tokenizer, Option<&Template>),
    sets: &PromptSets,
    encoded: &EncodedSets,
    tokens: usize,
    progress: Progress<'_>,
) -> Result<Verdict, ConceptError> {
    let (target, baseline) = (&encoded.target.held_out, &encoded.baseline.held_out);
    let (total, mut done) = (target.len() + baseline.len(), 0);
    let sampling = Sampling { max_new_tokens: tokens, temperature: 0.0, ..Sampling::default() };
    let stop = stop_ids(reader.config, tokenizer, template);
    let mut answers = |prompts: &[Vec<u32>]| -> Result<Vec<String>, ConceptError> {
        let mut answers = Vec::new();
        for prompt in prompts {
            let new = generate(reader.model, reader.config, prompt, &sampling, &stop, reader.device, |_| true)?;
            answers.push(tokenizer.decode(&new, true)?);
            done += 1;
            progress(done, total);
        }
        Ok(answers)
    };
    let (target_answers, baseline_answers) = (answers(target)?, answers(baseline)?);
    let rate = |answers: &[String]| (!sets.markers.is_empty()).then(|| marked(answers, &sets.markers));
    let perplexity = match &sets.guard {
        Some(text) => {
            let mut ids: Vec<u32> = tokenizer.leading_bos().into_iter().chain(tokenizer.encode(text, false)?).collect();
            ids.truncate(GUARD_TOKENS);
            Some(reader.perplexity(&ids, &mut |_, _| ())?)
        }
        None => None,
    };
    Ok(Verdict { target: rate(&target_answers), baseline: rate(&baseline_answers), perplexity, target_answers, baseline_answers })
}

/// How many answers hold one of the markers, letter by letter.
pub fn marked(answers: &[String], markers: &[String]) -> Rate {
    let hits = answers.iter().filter(|answer| markers.iter().any(|marker| answer.contains(marker.as_str()))).count();
    Rate::new(hits, answers.len())
}

/// A model before and after an edit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Before.
    pub before: Verdict,
    /// After; none where only one model was judged.
    pub after: Option<Verdict>,
    /// How much the perplexity may rise, as a share.
    pub most_rise: f64,
}

impl Comparison {
    /// By which share the perplexity rose; none without a guard's text or a second model.
    pub fn rise(&self) -> Option<f64> {
        Some(self.after.as_ref()?.perplexity? / self.before.perplexity? - 1.0)
    }

    /// That the model has not become worse at the guard's text than it may.
    ///
    /// # Errors
    /// [`ConceptError::Guard`].
    pub fn hold(&self) -> Result<(), ConceptError> {
        let most = self.most_rise;
        match self.rise() {
            Some(rise) if rise.partial_cmp(&most).is_none_or(|order| order.is_gt()) => Err(ConceptError::Guard { rise, most }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_letter_by_letter_and_the_guard_breaks_at_its_limit() {
        let answers = ["Dear sir", "dear me", "Well, sir "].map(String::from);
        assert_eq!(marked(&answers, &["Dear".into(), " sir ".into()]).hits, 2);
        let verdict =
            |perplexity| Verdict { target: None, baseline: None, perplexity, target_answers: Vec::new(), baseline_answers: Vec::new() };
        let rose = |before, after| Comparison { before: verdict(before), after: Some(verdict(after)), most_rise: 0.05 };
        assert!(rose(Some(10.0), Some(10.4)).hold().is_ok() && rose(None, Some(10.0)).hold().is_ok());
        let said = rose(Some(10.0), Some(11.0)).hold().unwrap_err().to_string();
        assert!(said.contains("10.0 %, more than 5.0"), "{said}");
        assert!(rose(Some(10.0), Some(f64::NAN)).hold().is_err());
        assert!(Comparison { most_rise: f64::NAN, ..rose(Some(10.0), Some(10.0)) }.hold().is_err());
        let lost = serde_json::to_string(&rose(Some(10.0), Some(1e300))).unwrap();
        assert!(serde_json::from_str::<Comparison>(&lost).unwrap().hold().is_err());
        assert!(Comparison { after: None, ..rose(Some(1.0), None) }.rise().is_none());
    }
}
