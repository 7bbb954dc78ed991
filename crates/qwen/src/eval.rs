//! How well a model does on rows with known answers: loss and perplexity of texts and chats, exact match of greedy answers, multiple choice by
//! log-likelihood.

use std::collections::BTreeMap;

use bellows_chat::{Batch, ChatError, Encoded, IGNORE};
use bellows_kernels::Precision;
use bellows_learner::{EvalContext, Shared, TaskError};
use burn::tensor::Device;
use serde::Serialize;

use crate::concept::measure::Rate;
use crate::generate::{GenerateError, Sampling, generate, stop_ids};
use crate::model::{CausalLm, ModelConfig};
use crate::questions::{Choice, Exact, Questions, Words};
use crate::task::{SftTask, upload};

/// Why rows cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A row, with its file and line.
    #[error(transparent)]
    Row(#[from] ChatError),
    /// An answer that cannot be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A device that fails.
    #[error("judging: {0}")]
    Device(TaskError),
}

impl bellows_exit::Coded for EvalError {
    fn exit(&self) -> bellows_exit::Exit {
        match self {
            Self::Row(error) => error.exit(),
            Self::Generate(_) | Self::Device(_) => bellows_exit::Exit::Failed,
        }
    }
}

/// Rows of one kind that were right, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Right {
    /// Right ones.
    pub right: usize,
    /// All.
    pub rows: usize,
}

impl Right {
    fn count(&mut self, right: bool) {
        self.right += usize::from(right);
        self.rows += 1;
    }

    /// The share of right ones, and the interval that holds the true share in 95 of 100 samples.
    pub fn share(self) -> (f64, [f64; 2]) {
        let rate = Rate::new(self.right, self.rows);
        (rate.share(), [rate.low, rate.high])
    }
}

/// What a model has reached; a kind of row that there is none of is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scores {
    /// Mean loss a judged token, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Its exponential.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Judged tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Greedy answers that are the expected text, white space around it aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_match: Option<Right>,
    /// Questions whose answer has the highest log-likelihood of all choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Right>,
    /// The same of log-likelihoods divided by the choices' bytes (`acc_bytes` of lm-evaluation-harness; its `acc_norm` divides by characters, of
    /// which ASCII has as many).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice_by_length: Option<Right>,
}

/// A model's shape, and how it reads.
pub struct Judge<'a> {
    /// The shape.
    pub shape: &'a ModelConfig,
    /// Tokenizer, template, settings.
    pub words: Words<'a>,
}

/// What is told of progress: (done, total) of what is judged at the time.
type Progress<'a> = &'a mut dyn FnMut(usize, usize);

impl Judge<'_> {
    /// What `model` reaches on `questions`.
    ///
    /// # Errors
    /// A device that fails, an answer that cannot be generated.
    pub fn score(&self, model: &CausalLm, questions: &Questions, device: &Device, progress: Progress<'_>) -> Result<Scores, EvalError> {
        let device = device.clone().without_autodiff();
        let mut scores = Scores::default();
        if !questions.texts.is_empty() {
            let (loss, tokens) = self.mean_loss(model, &questions.texts, &device, progress)?;
            (scores.loss, scores.perplexity, scores.tokens) = (Some(loss), Some(loss.exp()), Some(tokens));
        }
        if !questions.exact.is_empty() {
            scores.exact_match = Some(self.exact_match(model, &questions.exact, &device, progress)?);
        }
        if !questions.choices.is_empty() {
            let [plain, by_length] = self.likeliest(model, &questions.choices, &device, progress)?;
            (scores.choice, scores.choice_by_length) = (Some(plain), Some(by_length));
        }
        Ok(scores)
    }

    /// The mean loss of the learnt tokens of `texts`, and their number.
    fn mean_loss(&self, model: &CausalLm, texts: &[Encoded], device: &Device, progress: Progress<'_>) -> Result<(f64, usize), EvalError> {
        let (config, pad) = (self.words.config, self.words.tokenizer.pad().unwrap_or(0));
        let task = SftTask::new(config.clone(), config.lora(), self.shape.clone(), Vec::new(), texts.to_vec(), pad);
        let mut context = EvalContext { device, workers: 0, epoch: 0, progress, interrupted: &|| false, shared: &Shared::alone() };
        task.judge(model, &task.valid, &mut context).map_err(EvalError::Device)
    }

    fn exact_match(&self, model: &CausalLm, rows: &[Exact], device: &Device, progress: Progress<'_>) -> Result<Right, EvalError> {
        let (tokenizer, mut right) = (self.words.tokenizer, Right::default());
        let ends = stop_ids(self.shape, tokenizer, Some(self.words.template));
        let sampling = Sampling { max_new_tokens: self.words.asking.max_new_tokens, temperature: 0.0, ..Sampling::default() };
        for Exact { prompt, answer } in rows {
            let ids = generate(model, self.shape, prompt, &sampling, &ends, device, |_| true)?;
            let text = tokenizer.decode(&ids, true).map_err(ChatError::from)?;
            // After its thoughts, if it has written any.
            let said = text.rsplit_once("</think>").map_or(text.as_str(), |(_, said)| said).trim();
            right.count(said == answer);
            progress(right.rows, rows.len());
        }
        Ok(right)
    }

    /// How often the answer has the highest log-likelihood, and the highest a byte.
    fn likeliest(&self, model: &CausalLm, rows: &[Choice], device: &Device, progress: Progress<'_>) -> Result<[Right; 2], EvalError> {
        let mut right = [Right::default(); 2];
        for question in rows {
            let sums = self.log_likelihoods(model, question, device)?;
            let per_byte: Vec<f64> = sums.iter().zip(&question.choices).map(|(sum, (_, bytes))| sum / *bytes as f64).collect();
            right[0].count(highest(&sums) == question.answer);
            right[1].count(highest(&per_byte) == question.answer);
            progress(right[0].rows, rows.len());
        }
        Ok(right)
    }

    /// `Σ log p(token | what is before it)` over the tokens of each choice.
    fn log_likelihoods(&self, model: &CausalLm, question: &Choice, device: &Device) -> Result<Vec<f64>, EvalError> {
        let mut sums = vec![0.0; question.choices.len()];
        let places: Vec<usize> = (0..sums.len()).collect();
        for chunk in places.chunks(self.words.config.batch_size.max(1)) {
            let examples: Vec<Encoded> = chunk
                .iter()
                .map(|&place| {
                    let own = &question.choices[place].0;
                    let ids: Vec<u32> = question.prompt.iter().chain(own).copied().collect();
                    Encoded { trained: (0..ids.len()).map(|i| i >= question.prompt.len()).collect(), ids, cut: 0 }
                })
                .collect();
            let rows: Vec<Vec<&Encoded>> = examples.iter().map(|example| vec![example]).collect();
            let batch = Batch::new(&rows, self.words.tokenizer.pad().unwrap_or(0), self.words.config.pad_to_multiple_of);
            let losses = losses(model, &batch, self.shape, self.words.config.precision(), device).map_err(EvalError::Device)?;
            for (row, loss) in losses {
                sums[chunk[row]] -= loss;
            }
        }
        Ok(sums)
    }
}

/// Row and loss of every judged token of a batch.
fn losses(
    model: &CausalLm,
    batch: &Batch,
    shape: &ModelConfig,
    precision: Precision,
    device: &Device,
) -> Result<Vec<(usize, f64)>, TaskError> {
    let losses = upload(batch, shape, precision, device).losses(model);
    let places = (0..batch.labels.len()).filter(|&i| batch.labels[i] != IGNORE).map(|i| i / batch.seq);
    Ok(places.zip(losses.try_into_vec_as::<f32>()?.into_iter().map(f64::from)).collect())
}

/// The place of the highest value, the first of equals.
fn highest(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (i, value)| if *value > values[best] { i } else { best })
}

/// Scores as rows of a table: what it is called, before, after.
pub fn table(before: &Scores, after: Option<&Scores>) -> Vec<(&'static str, String, Option<String>)> {
    let share = |right: Right| {
        let (p, [low, high]) = right.share();
        format!("{:.1} % ({} of {}, {:.1} to {:.1})", 100.0 * p, right.right, right.rows, 100.0 * low, 100.0 * high)
    };
    let rows = |scores: &Scores| -> BTreeMap<usize, (&'static str, String)> {
        let lines = [
            scores.loss.map(|loss| ("loss", format!("{loss:.4}"))),
            scores.perplexity.map(|perplexity| ("perplexity", format!("{perplexity:.3}"))),
            scores.tokens.map(|tokens| ("tokens", tokens.to_string())),
            scores.exact_match.map(|right| ("exact match", share(right))),
            scores.choice.map(|right| ("choice", share(right))),
            scores.choice_by_length.map(|right| ("choice by length", share(right))),
        ];
        lines.into_iter().enumerate().filter_map(|(at, line)| Some((at, line?))).collect()
    };
    let mut after = after.map(rows);
    rows(before).into_iter().map(|(at, (name, value))| (name, value, after.as_mut().and_then(|rows| Some(rows.remove(&at)?.1)))).collect()
}
