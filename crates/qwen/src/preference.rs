//! Losses of pairs of answers, one preferred to the other, as functions of their tokens' log-probabilities: DPO (Rafailov et al. 2023, equation 7),
//! ORPO (Hong et al. 2024, equations 6 and 7) and SimPO (Meng et al. 2024, equation 6), as TRL computes them for one pair.
//!
//! Everything here is f64 on the host: a batch has a handful of sequences. No file is opened and no device known.

use bellows_chat::{Batch, IGNORE, PADDING};
use serde::{Deserialize, Serialize};

/// What is learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Every trained token of an example.
    Sft,
    /// Of pairs, odds ratios beside the likelihood of the chosen text.
    Orpo,
    /// Of pairs, mean log-probabilities with a margin.
    Simpo,
    /// Of pairs, log-probabilities relative to those of the model without its adapter.
    Dpo,
}

impl Objective {
    /// Whether examples are pairs.
    pub fn is_of_pairs(self) -> bool {
        self != Self::Sft
    }

    /// Sequences an example has: one, or the two of a pair.
    pub fn sequences(self) -> usize {
        if self.is_of_pairs() { 2 } else { 1 }
    }
}

/// An objective with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairLoss {
    /// Which.
    pub objective: Objective,
    /// β.
    pub beta: f64,
    /// γ of SimPO: by how much the chosen answer is to be ahead.
    pub gamma: f64,
}

impl std::fmt::Display for PairLoss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { objective, beta, gamma } = self;
        match objective {
            Objective::Simpo => write!(f, "SimPO, β {beta}, γ {gamma}"),
            Objective::Dpo => write!(f, "DPO, β {beta}, against the model without its adapter"),
            Objective::Orpo | Objective::Sft => write!(f, "ORPO, β {beta}"),
        }
    }
}

/// What a sequence is worth to a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogP {
    /// Σ log p over the answer's tokens.
    pub answer: f64,
    /// Their number.
    pub answer_tokens: usize,
    /// Σ log p over all tokens that were looked at, the prompt's among them.
    pub all: f64,
    /// Their number.
    pub all_tokens: usize,
}

impl LogP {
    /// Mean log p of the answer's tokens.
    fn mean(&self) -> f64 {
        self.answer / self.answer_tokens.max(1) as f64
    }
}

/// The loss of one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairValue {
    /// The loss.
    pub loss: f64,
    /// Its derivative by the log p of each token of the chosen answer.
    pub by_chosen: f64,
    /// And of the rejected one.
    pub by_rejected: f64,
    /// What each token of the chosen text adds to its derivative: ORPO learns the prompt too.
    pub by_text: f64,
    /// By how much the chosen answer's reward is above the other's: β times the difference of what the objective compares.
    pub margin: f64,
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

/// log(1 + eˣ): −log σ(−x).
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

impl PairLoss {
    /// Of one pair; `reference` is Σ log p of both answers to the reference model, of which only DPO asks.
    pub fn of(&self, chosen: LogP, rejected: LogP, reference: [f64; 2]) -> PairValue {
        let Self { objective, beta, gamma } = *self;
        let [n_chosen, n_rejected] = [chosen, rejected].map(|side| side.answer_tokens.max(1) as f64);
        let difference = chosen.mean() - rejected.mean();
        match objective {
            Objective::Dpo => {
                let margin = beta * ((chosen.answer - rejected.answer) - (reference[0] - reference[1]));
                let slope = beta * sigmoid(-margin);
                PairValue { loss: softplus(-margin), by_chosen: -slope, by_rejected: slope, by_text: 0.0, margin }
            }
            Objective::Simpo => {
                let z = beta * difference - gamma;
                let slope = beta * sigmoid(-z);
                let (by_chosen, by_rejected) = (-slope / n_chosen, slope / n_rejected);
                PairValue { loss: softplus(-z), by_chosen, by_rejected, by_text: 0.0, margin: beta * difference }
            }
            Objective::Orpo | Objective::Sft => {
                // An answer that is certain has no odds.
                let [a, b] = [chosen, rejected].map(|side| side.mean().min(-1e-6));
                let log_odds = a - b - ((-a.exp_m1()).ln() - (-b.exp_m1()).ln());
                let slope = beta * sigmoid(-log_odds);
                let n = chosen.all_tokens.max(1) as f64;
                PairValue {
                    loss: -chosen.all / n + beta * softplus(-log_odds),
                    by_chosen: slope / a.exp_m1() / n_chosen,
                    by_rejected: -slope / b.exp_m1() / n_rejected,
                    by_text: -1.0 / n,
                    margin: beta * difference,
                }
            }
        }
    }
}

/// The tokens of a batch of pairs whose log-probabilities are looked at. Its rows are sequences, each chosen one followed by the rejected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Where each is predicted, in the flattened batch.
    pub rows: Vec<i32>,
    /// The tokens.
    pub targets: Vec<i32>,
    /// The sequence of each.
    pub sequence: Vec<usize>,
    /// Whether it is the answer's.
    pub answer: Vec<bool>,
    /// Sequences.
    pub sequences: usize,
}

impl Places {
    /// Those of the answers, and for ORPO those of the chosen sequences' prompts.
    pub fn of(batch: &Batch, objective: Objective) -> Self {
        let mut places = Self { rows: Vec::new(), targets: Vec::new(), sequence: Vec::new(), answer: Vec::new(), sequences: batch.rows };
        for row in 0..batch.rows {
            for at in (row * batch.seq..(row + 1) * batch.seq).take(batch.seq.saturating_sub(1)) {
                let (answer, inside) = (batch.labels[at] != IGNORE, batch.documents[at + 1] != PADDING);
                if answer || (inside && objective == Objective::Orpo && row.is_multiple_of(2)) {
                    places.rows.push(at as i32);
                    places.targets.push(batch.ids[at + 1]);
                    places.sequence.push(row);
                    places.answer.push(answer);
                }
            }
        }
        places
    }

    /// What each sequence is worth, from the loss (−log p) of each token.
    pub fn log_p(&self, losses: &[f32]) -> Vec<LogP> {
        let mut sums = vec![LogP::default(); self.sequences];
        for ((&sequence, &answer), &loss) in self.sequence.iter().zip(&self.answer).zip(losses) {
            let sum = &mut sums[sequence];
            (sum.all, sum.all_tokens) = (sum.all - f64::from(loss), sum.all_tokens + 1);
            if answer {
                (sum.answer, sum.answer_tokens) = (sum.answer - f64::from(loss), sum.answer_tokens + 1);
            }
        }
        sums
    }

    /// The derivative of the pairs' losses by the loss of each token.
    pub fn weights(&self, values: &[PairValue]) -> Vec<f32> {
        let one = |(&sequence, &answer): (&usize, &bool)| {
            let value = values[sequence / 2];
            let (own, text) = match sequence.is_multiple_of(2) {
                true => (value.by_chosen, value.by_text),
                false => (value.by_rejected, 0.0),
            };
            // By the loss, which is −log p.
            -(text + if answer { own } else { 0.0 }) as f32
        };
        self.sequence.iter().zip(&self.answer).map(one).collect()
    }
}

/// The pairs' losses; `reference` is what the sequences are worth to the reference model.
pub fn values(loss: &PairLoss, log_p: &[LogP], reference: Option<&[LogP]>) -> Vec<PairValue> {
    let of = |pair: usize| {
        let reference = reference.map_or([0.0; 2], |all| [all[2 * pair].answer, all[2 * pair + 1].answer]);
        loss.of(log_p[2 * pair], log_p[2 * pair + 1], reference)
    };
    (0..log_p.len() / 2).map(of).collect()
}

/// Sums over pairs: loss, pairs whose chosen answer is ahead, margins.
pub fn totals(values: &[PairValue]) -> [f64; 3] {
    let ahead = values.iter().filter(|value| value.margin > 0.0).count() as f64;
    [values.iter().map(|value| value.loss).sum(), ahead, values.iter().map(|value| value.margin).sum()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTIVES: [Objective; 3] = [Objective::Orpo, Objective::Simpo, Objective::Dpo];

    fn loss(objective: Objective) -> PairLoss {
        PairLoss { objective, beta: 0.7, gamma: 0.4 }
    }

    /// Losses of tokens of two pairs, by sequence: prompt tokens of the chosen ones first.
    fn batch() -> (Places, Vec<f32>) {
        let sequence = vec![0, 0, 0, 1, 1, 1, 2, 2, 3];
        let answer = vec![false, true, true, true, true, true, false, true, true];
        let places = Places { rows: vec![0; 9], targets: vec![0; 9], sequence, answer, sequences: 4 };
        (places, vec![1.5, 0.4, 2.0, 3.0, 0.2, 1.1, 0.6, 0.9, 2.4])
    }

    #[test]
    fn derivatives_are_those_of_the_loss() {
        let (places, losses) = batch();
        for objective in OBJECTIVES {
            let reference = places.log_p(&losses.iter().map(|x| x * 0.8 + 0.1).collect::<Vec<_>>());
            let value = |losses: &[f32]| totals(&values(&loss(objective), &places.log_p(losses), Some(&reference)))[0];
            let weights = places.weights(&values(&loss(objective), &places.log_p(&losses), Some(&reference)));
            for (i, weight) in weights.iter().enumerate() {
                let moved = |by: f32| losses.iter().enumerate().map(|(j, x)| if i == j { x + by } else { *x }).collect::<Vec<_>>();
                let slope = (value(&moved(1.0 / 64.0)) - value(&moved(-1.0 / 64.0))) * 32.0;
                assert!((slope - f64::from(*weight)).abs() < 1e-3, "{objective:?} {i}: {slope} {weight}");
            }
        }
    }

    #[test]
    fn the_extremes_are_finite() {
        let at = |mean: f64| LogP { answer: 4.0 * mean, answer_tokens: 4, all: 4.0 * mean, all_tokens: 4 };
        for objective in OBJECTIVES {
            for (a, b) in [(0.0, -1e4), (-1e4, 0.0), (0.0, 0.0), (-1e4, -1e4)] {
                let PairValue { loss, by_chosen, by_rejected, .. } = loss(objective).of(at(a), at(b), [0.0; 2]);
                assert!(loss.is_finite() && by_chosen.is_finite() && by_rejected.is_finite(), "{objective:?} {a} {b}");
            }
        }
    }

    #[test]
    fn places_are_the_answers_and_for_orpo_the_chosen_prompt() {
        let side = |ids: &[u32], answer: usize| bellows_chat::Encoded {
            ids: ids.to_vec(),
            trained: (0..ids.len()).map(|i| i >= answer).collect(),
            cut: 0,
        };
        let (chosen, rejected) = (side(&[5, 6, 7, 8], 2), side(&[5, 6, 9], 2));
        let batch = Batch::new(&[vec![&chosen], vec![&rejected]], 0, 1);
        let dpo = Places::of(&batch, Objective::Dpo);
        assert_eq!((dpo.targets, dpo.rows, dpo.sequence), (vec![7, 8, 9], vec![1, 2, 5], vec![0, 0, 1]));
        let orpo = Places::of(&batch, Objective::Orpo);
        assert_eq!((orpo.targets, orpo.answer), (vec![6, 7, 8, 9], vec![false, true, true, true]));
    }
}
