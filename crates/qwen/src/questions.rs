//! The rows of a file as questions to a model: texts and chats to take the loss of, answers to compare, choices to weigh.

use std::path::PathBuf;

use bellows_chat::{
    ChatError, Conversation, Dataset, EncodeOptions, Encoded, Example, Fault, Message, Place, ReadOptions, RenderOptions, Role, Splits,
    Template, Tokenizer, encode, encode_prompt,
};
use serde_json::{Map, Value};

use crate::config::SftConfig;
use crate::data::LeftOut;

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
    pub(crate) texts: Vec<Encoded>,
    pub(crate) exact: Vec<Exact>,
    pub(crate) choices: Vec<Choice>,
    /// What was left out, and what was cut.
    pub left: LeftOut,
}

#[derive(Debug)]
pub(crate) struct Exact {
    pub(crate) prompt: Vec<u32>,
    pub(crate) answer: String,
}

#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) prompt: Vec<u32>,
    /// Tokens and bytes of each.
    pub(crate) choices: Vec<(Vec<u32>, usize)>,
    pub(crate) answer: usize,
}

/// What turns rows into tokens.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    /// The model's.
    pub tokenizer: &'a Tokenizer,
    /// Its turns.
    pub template: &'a Template,
    /// Keys of rows; batches and precision.
    pub config: &'a SftConfig,
    /// What is learnt of chats, and so judged.
    pub options: &'a EncodeOptions,
    /// How rows are put.
    pub asking: Asking,
}

impl Words<'_> {
    /// The rows of files, and of folders those to judge by ([`Splits::judged`]): `{prompt, choices, answer}` are multiple choice, `{prompt, answer}` exact
    /// match, all others texts or chats to take the loss of; so is a row with a text under a key that was named for it.
    ///
    /// # Errors
    /// The first row that cannot be used, with file and line; with `skip_bad_rows` more than 1 % of them.
    pub fn read(&self, paths: &[PathBuf]) -> Result<Questions, ChatError> {
        let limit = if self.asking.limit == 0 { usize::MAX } else { self.asking.limit };
        let mut questions = Questions::default();
        for path in paths {
            let splits = Splits::open(path, &self.config.reading())?;
            let mut rest = limit;
            for set in splits.judged() {
                let rows = set.len().min(rest);
                for row in 0..rows {
                    let asked = self.row(set, row, &mut questions);
                    questions.left.usable(asked, self.config)?;
                }
                rest -= rows;
                set.forget();
            }
        }
        questions.left.check()?;
        Ok(questions)
    }

    fn row(&self, set: &Dataset, i: usize, questions: &mut Questions) -> Result<(), ChatError> {
        let here = |fault: Fault| fault.on_line(set.path(), set.line(i));
        match set.value(i)? {
            Value::Object(row) if has(&row, "choices") && !self.is_text(&row) => questions.choices.push(self.choice(&row).map_err(here)?),
            Value::Object(row) if self.is_exact(&row) && !self.is_text(&row) => {
                let answer = text_of(&row, "answer").map_err(here)?.trim().to_owned();
                questions.exact.push(Exact { prompt: self.prompt(&row).map_err(here)?, answer });
            }
            _ => {
                let example = set.get(i)?;
                if matches!(example, Example::Pair { .. }) {
                    return Err(here(Fault::Kind { found: "is a pair of answers", expected: "one answer: eval judges single texts" }));
                }
                let outcome = encode(&example, self.tokenizer, self.template, self.options).map_err(here)?;
                questions.texts.extend(questions.left.kept(outcome));
            }
        }
        Ok(())
    }

    /// Whether a row has a text under a key that was named for it: what is named comes before all else that a row has.
    fn is_text(&self, row: &Map<String, Value>) -> bool {
        let key = self.config.text_key.as_str();
        key != ReadOptions::default().text_key && row.get(key).is_some_and(|text| !text.is_null() && text != "")
    }

    /// Whether a row asks for its `answer`, and is not one to learn from that has an answer besides.
    fn is_exact(&self, row: &Map<String, Value>) -> bool {
        let (prompt, completion) = (self.config.prompt_key.as_str(), self.config.completion_key.as_str());
        let any = |keys: &[&str]| keys.iter().any(|key| has(row, key));
        let alpaca = has(row, "instruction") && has(row, "output");
        has(row, "answer") && any(&["question", prompt]) && !any(&[completion, "messages", "conversations"]) && !alpaca
    }

    /// The tokens of a row's prompt, with its `system` message if there is one.
    fn prompt(&self, row: &Map<String, Value>) -> Result<Vec<u32>, Fault> {
        let named = self.config.prompt_key != ReadOptions::default().prompt_key && has(row, &self.config.prompt_key);
        let key = if has(row, "question") && !named { "question" } else { &self.config.prompt_key };
        let prompt = text_of(row, key)?;
        if self.asking.raw {
            let ids = self.tokenizer.encode(prompt, self.options.special_in_content)?;
            let ids: Vec<u32> = self.tokenizer.leading_bos().into_iter().chain(ids).collect();
            if ids.is_empty() {
                let expected = "text: this model has no token that begins one";
                return Err(Fault::Value { key: key.into(), found: "empty".into(), expected });
            }
            return Ok(ids);
        }
        let system = has(row, "system").then(|| text_of(row, "system")).transpose()?;
        let messages = system.map(|text| Message::new(Role::System, text)).into_iter().chain([Message::new(Role::User, prompt)]);
        let options = RenderOptions {
            thinking: Some(self.asking.thinking),
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
            Some(Value::String(text)) => {
                // A cell of CSV has no other numbers.
                texts.iter().position(|choice| choice == text).or_else(|| letter(text)).or_else(|| text.trim().parse().ok())
            }
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
}

/// Whether there is something under `key`: rows of a table have all of its keys, and null under those that others use.
fn has(row: &Map<String, Value>, key: &str) -> bool {
    row.get(key).is_some_and(|value| !value.is_null())
}

fn text_of<'a>(row: &'a Map<String, Value>, key: &str) -> Result<&'a str, Fault> {
    let found = || row.get(key).map_or("missing".into(), Value::to_string);
    row.get(key).and_then(Value::as_str).ok_or_else(|| Fault::Value { key: key.into(), found: found(), expected: "text" })
}
