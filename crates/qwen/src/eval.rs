//! How well a model does on rows with known answers: loss and perplexity of texts and chats, exact match of greedy answers, multiple choice by
//! log-likelihood.

use std::collections::BTreeMap;
use std::path::Path;

use bellows_chat::{
    Batch, ChatError, Conversation, Dataset, EncodeOptions, Encoded, Fault, IGNORE, Message, Outcome, Place, RenderOptions, Role, Template,
    Tokenizer, encode, encode_prompt,
};
use bellows_kernels::Precision;
use bellows_learner::{EvalContext, TaskError};
use burn::tensor::Device;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::SftConfig;
use crate::generate::{GenerateError, Sampling, generate, stop_ids};
use crate::loss::head_losses;
use crate::model::{CausalLm, ModelConfig};
use crate::task::{SftTask, upload};

/// How rows are put to a model.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// A prompt is text to go on with, no question of a user.
    pub raw: bool,
    /// Models that think do so before they answer.
    pub thinking: bool,
    /// Most tokens of an answer.
    pub max_new_tokens: usize,
    /// Rows that are looked at; 0 takes all.
    pub limit: usize,
}

/// What is asked of a model.
#[derive(Debug, Default)]
pub struct Questions {
    /// Texts and chats, of which the learnt tokens are judged.
    texts: Vec<Encoded>,
    exact: Vec<Exact>,
    choices: Vec<Choice>,
    /// Rows that were cut, or left out because nothing to judge was left of them.
    pub shortened: usize,
}

#[derive(Debug)]
struct Exact {
    prompt: Vec<u32>,
    answer: String,
}

#[derive(Debug)]
struct Choice {
    prompt: Vec<u32>,
    /// Tokens and bytes of each.
    choices: Vec<(Vec<u32>, usize)>,
    answer: usize,
}

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
    /// The share of right ones, and the interval that holds the true share in 95 of 100 samples (Wilson 1927).
    pub fn share(self) -> (f64, [f64; 2]) {
        const Z: f64 = 1.959_963_984_540_054;
        let n = self.rows.max(1) as f64;
        let (p, z2) = (self.right as f64 / n, Z * Z / n);
        let (middle, half) = (p + z2 / 2.0, Z * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt());
        (p, [(middle - half) / (1.0 + z2), (middle + half) / (1.0 + z2)])
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
    /// The same of log-likelihoods divided by the choices' bytes (`acc_norm` of lm-evaluation-harness).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice_by_length: Option<Right>,
}

/// A model, and how it reads.
pub struct Judge<'a> {
    /// Its shape.
    pub shape: &'a ModelConfig,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its turns.
    pub template: &'a Template,
    /// Batches and precision.
    pub config: &'a SftConfig,
    /// What is learnt of chats, and so judged.
    pub options: &'a EncodeOptions,
    /// How rows are put.
    pub asking: Asking,
}

impl Judge<'_> {
    /// Reads the rows of `file`: `{prompt, choices, answer}` are multiple choice, `{prompt, answer}` exact match, all others texts or chats to
    /// take the loss of.
    ///
    /// # Errors
    /// The first row that cannot be used, with file and line.
    pub fn read(&self, file: &Path) -> Result<Questions, ChatError> {
        let set = Dataset::open(file, &self.config.reading())?;
        let rows = if self.asking.limit == 0 { set.len() } else { set.len().min(self.asking.limit) };
        let mut questions = Questions::default();
        for i in 0..rows {
            let here = |fault: Fault| fault.on_line(file, set.line(i));
            match set.value(i)? {
                Value::Object(row) if row.contains_key("choices") => questions.choices.push(self.choice(&row).map_err(here)?),
                Value::Object(row) if row.contains_key("answer") && !row.contains_key(&self.config.completion_key) => {
                    let answer = text_of(&row, "answer").map_err(here)?.trim().to_owned();
                    questions.exact.push(Exact { prompt: self.prompt(&row).map_err(here)?, answer });
                }
                _ => match encode(&set.get(i)?, self.tokenizer, self.template, self.options).map_err(here)? {
                    Outcome::Kept(kept) => {
                        questions.shortened += usize::from(kept.iter().any(|example| example.cut > 0));
                        questions.texts.extend(kept);
                    }
                    Outcome::Dropped(_) => questions.shortened += 1,
                },
            }
        }
        Ok(questions)
    }

    /// The tokens of a row's prompt, with its `system` message if there is one.
    fn prompt(&self, row: &Map<String, Value>) -> Result<Vec<u32>, Fault> {
        let key = if row.contains_key("question") { "question" } else { &self.config.prompt_key };
        let prompt = text_of(row, key)?;
        if self.asking.raw {
            let ids = self.tokenizer.encode(prompt, self.options.special_in_content)?;
            return Ok(self.tokenizer.leading_bos().into_iter().chain(ids).collect());
        }
        let system = row.contains_key("system").then(|| text_of(row, "system")).transpose()?;
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().chain([Message::new(Role::User, prompt)]);
        let options = RenderOptions {
            thinking: self.asking.thinking,
            special_in_content: self.options.special_in_content,
            ..RenderOptions::default()
        };
        encode_prompt(&Conversation { messages: messages.collect(), ..Conversation::default() }, self.tokenizer, self.template, options)
    }

    fn choice(&self, row: &Map<String, Value>) -> Result<Choice, Fault> {
        let wrong = |key: &str, expected| Fault::Value {
            key: key.into(),
            found: row.get(key).map_or("missing".into(), Value::to_string),
            expected,
        };
        let texts: Option<Vec<&str>> = row["choices"].as_array().map(|list| list.iter().filter_map(Value::as_str).collect());
        let texts = texts.filter(|texts| texts.len() > 1 && row["choices"].as_array().is_some_and(|all| all.len() == texts.len()));
        let texts = texts.ok_or_else(|| wrong("choices", "a list of at least two texts"))?;
        let letter = |text: &str| match text.trim().as_bytes() {
            [byte] if byte.is_ascii_uppercase() => Some(usize::from(byte - b'A')),
            _ => None,
        };
        let answer = match row.get("answer") {
            Some(Value::Number(number)) => number.as_u64().map(|n| n as usize),
            Some(Value::String(text)) => texts.iter().position(|choice| choice == text).or_else(|| letter(text)),
            _ => None,
        };
        let answer =
            answer.filter(|&n| n < texts.len()).ok_or_else(|| wrong("answer", "the number of a choice from 0, its letter, or its text"))?;
        let ids = |text: &&str| Ok((self.tokenizer.ids(text, self.options.special_in_content, Place::Middle)?, text.len().max(1)));
        let choices = texts.iter().map(ids).collect::<Result<Vec<_>, Fault>>()?;
        if choices.iter().any(|(ids, _)| ids.is_empty()) {
            return Err(wrong("choices", "texts that are not empty"));
        }
        Ok(Choice { prompt: self.prompt(row)?, choices, answer })
    }

    /// What `model` reaches on `questions`. `progress` gets (done, total) of what is judged at the time.
    ///
    /// # Errors
    /// A device that fails, an answer that cannot be generated.
    pub fn score(
        &self,
        model: &CausalLm,
        questions: &Questions,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Scores, EvalError> {
        let device = device.clone().without_autodiff();
        let mut scores = Scores::default();
        if !questions.texts.is_empty() {
            let (lora, pad) = (self.config.lora(), self.tokenizer.pad().unwrap_or(0));
            let task = SftTask::new(self.config.clone(), lora, self.shape.clone(), Vec::new(), questions.texts.clone(), pad);
            let mut context = EvalContext { device: &device, workers: 0, epoch: 0, progress: &mut *progress, interrupted: &|| false };
            let (loss, tokens) = task.judge(model, &task.valid, &mut context).map_err(EvalError::Device)?;
            (scores.loss, scores.perplexity, scores.tokens) = (Some(loss), Some(loss.exp()), Some(tokens));
        }
        if !questions.exact.is_empty() {
            let ends = stop_ids(self.shape, self.tokenizer);
            let sampling = Sampling { max_new_tokens: self.asking.max_new_tokens, temperature: 0.0, ..Sampling::default() };
            let mut right = Right::default();
            for (i, Exact { prompt, answer }) in questions.exact.iter().enumerate() {
                let ids = generate(model, self.shape, prompt, &sampling, &ends, &device, |_| true)?;
                let text = self.tokenizer.decode(&ids, true).map_err(ChatError::from)?;
                // After its thoughts, if it has written any.
                let said = text.rsplit_once("</think>").map_or(text.as_str(), |(_, said)| said).trim();
                right = Right { right: right.right + usize::from(said == answer), rows: right.rows + 1 };
                progress(i + 1, questions.exact.len());
            }
            scores.exact_match = Some(right);
        }
        if !questions.choices.is_empty() {
            let (mut plain, mut by_length) = (Right::default(), Right::default());
            for (i, question) in questions.choices.iter().enumerate() {
                let sums = self.log_likelihoods(model, question, &device)?;
                let per_byte: Vec<f64> = sums.iter().zip(&question.choices).map(|(sum, (_, bytes))| sum / *bytes as f64).collect();
                for (right, values) in [(&mut plain, &sums), (&mut by_length, &per_byte)] {
                    right.right += usize::from(highest(values) == question.answer);
                    right.rows += 1;
                }
                progress(i + 1, questions.choices.len());
            }
            (scores.choice, scores.choice_by_length) = (Some(plain), Some(by_length));
        }
        Ok(scores)
    }

    /// `Σ log p(token | what is before it)` over the tokens of each choice.
    fn log_likelihoods(&self, model: &CausalLm, question: &Choice, device: &Device) -> Result<Vec<f64>, EvalError> {
        let mut sums = vec![0.0; question.choices.len()];
        let places: Vec<usize> = (0..sums.len()).collect();
        for chunk in places.chunks(self.config.batch_size.max(1)) {
            let examples: Vec<Encoded> = chunk
                .iter()
                .map(|&place| {
                    let own = &question.choices[place].0;
                    let ids: Vec<u32> = question.prompt.iter().chain(own).copied().collect();
                    Encoded { trained: (0..ids.len()).map(|i| i >= question.prompt.len()).collect(), ids, cut: 0 }
                })
                .collect();
            let rows: Vec<Vec<&Encoded>> = examples.iter().map(|example| vec![example]).collect();
            let batch = Batch::new(&rows, self.tokenizer.pad().unwrap_or(0), self.config.pad_to_multiple_of);
            let losses = losses(model, &batch, self.shape, self.config.precision(), device).map_err(EvalError::Device)?;
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
    let data = upload(batch, shape, precision, device);
    let [b, s] = data.ids.dims();
    let hidden = model.hidden(data.ids, &data.pass).reshape([b * s, shape.hidden_size]).select(0, data.rows);
    let losses = head_losses(model.model.norm.forward(hidden), &model.head().val(), data.targets, precision);
    let places = (0..batch.labels.len()).filter(|&i| batch.labels[i] != IGNORE).map(|i| i / s);
    Ok(places.zip(losses.try_into_vec_as::<f32>()?.into_iter().map(f64::from)).collect())
}

/// The place of the highest value, the first of equals.
fn highest(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (i, value)| if *value > values[best] { i } else { best })
}

fn text_of<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a str, Fault> {
    let found = || row.get(key).map_or("missing".into(), Value::to_string);
    row.get(key).and_then(Value::as_str).ok_or_else(|| Fault::Value { key: key.into(), found: found(), expected: "text" })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_wilsons() {
        // By the formula, in Python.
        let (p, [low, high]) = Right { right: 7, rows: 20 }.share();
        assert!((p - 0.35).abs() < 1e-12 && (low - 0.181_191_8).abs() < 1e-6 && (high - 0.567_145_7).abs() < 1e-6, "{low} {high}");
        let (p, [low, high]) = Right { right: 0, rows: 10 }.share();
        assert!(p == 0.0 && low.abs() < 1e-12 && (high - 0.277_532_8).abs() < 1e-6, "{low} {high}");
    }
}
