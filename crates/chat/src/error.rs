//! The one error of this crate: which file, which line, what was found and what was expected.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::Once;

use bellows_exit::{Coded, Exit};

/// A data set, a tokenizer or a template that cannot be used.
#[derive(Debug)]
pub struct ChatError {
    /// The file, when there is one.
    pub path: Option<PathBuf>,
    /// The line of the file, from 1 (the row, for Parquet), where the fault belongs to one.
    pub line: Option<u64>,
    /// What was wrong.
    pub fault: Fault,
}

impl Coded for ChatError {
    fn exit(&self) -> Exit {
        self.fault.exit()
    }
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}", path.display())?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for ChatError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault.source()
    }
}

impl From<Fault> for ChatError {
    fn from(fault: Fault) -> Self {
        ChatError { path: None, line: None, fault }
    }
}

/// What was wrong. Every message names what was found and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file could not be opened within its budget.
    #[error(transparent)]
    Open(#[from] bellows_runs::PathError),
    /// A shard or its index is damaged, or cannot be read or written.
    #[error(transparent)]
    Shard(#[from] bellows_shards::ShardError),
    /// A file could not be written.
    #[error(transparent)]
    Save(#[from] bellows_runs::StoreError),
    /// Bytes that are no text.
    #[error("byte {at} of the line is not UTF-8; save the file as UTF-8")]
    NotUtf8 {
        /// Position within the line, from 1.
        at: usize,
    },
    /// No JSON, or JSON with a key twice.
    #[error("broken JSON: {what}")]
    Json {
        /// The parser's complaint, with the column.
        what: String,
    },
    /// A CSV or Parquet file that its reader refuses.
    #[error("{format}: {what}")]
    Table {
        /// "CSV" or "Parquet".
        format: &'static str,
        /// The complaint.
        what: String,
    },
    /// The keys of a row fit no known format.
    #[error(
        "the keys are {found}; expected `messages`, `conversations`, `instruction` and `output`, `prompt` and `completion`, `chosen` and `rejected`, `text`, or `input_ids`"
    )]
    UnknownKeys {
        /// The keys, in order.
        found: String,
    },
    /// A value is missing or has the wrong type.
    #[error("`{key}` is {found}; expected {expected}")]
    Value {
        /// Where in the row: `messages[2].content`.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// A role nobody knows.
    #[error("`{key}` is \"{found}\"; expected one of {expected}")]
    UnknownRole {
        /// Where in the row.
        key: String,
        /// The role.
        found: String,
        /// The known ones.
        expected: &'static str,
    },
    /// The turns are in an order no chat has.
    #[error("message {index} is of the {found} and follows {after}; expected {expected}")]
    Order {
        /// Position of the message, from 1.
        index: usize,
        /// Its role.
        found: &'static str,
        /// The message before it.
        after: &'static str,
        /// What may follow there.
        expected: &'static str,
    },
    /// An assistant that says nothing.
    #[error("message {index} is of the assistant and empty; expected text or a tool call")]
    EmptyAssistant {
        /// Position of the message, from 1.
        index: usize,
    },
    /// Nothing to learn from.
    #[error("none of the {tokens} tokens is trained: {why}")]
    NoTargets {
        /// Tokens of the example.
        tokens: usize,
        /// What the mask looked for.
        why: String,
    },
    /// Rows were to be skipped, and too many had to be.
    #[error("{bad} of {rows} rows cannot be used, and more than 1 % is no accident; the first: {first}")]
    TooManyBad {
        /// Rows that cannot be used.
        bad: usize,
        /// All rows.
        rows: usize,
        /// What is wrong with the first of them, with its file and line.
        first: String,
    },
    /// Rows of another kind than what is learnt from.
    #[error("the row {found}; expected {expected}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What would do.
        expected: &'static str,
    },
    /// Longer than allowed, where the user asked for an error.
    #[error("{tokens} tokens; at most {limit} are allowed")]
    TooLong {
        /// Tokens of the example.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// A size over a fixed bound.
    #[error("{what}: {size} is over the limit of {limit}")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How much there was.
        size: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// A row in shards that may be two.
    #[error("`{key}.{kind}` is no row of its own, for names in shards are alike up to their first dot: rename it")]
    Merged {
        /// What both are called.
        key: String,
        /// What one of them is called behind that.
        kind: String,
    },
    /// A folder or file without one usable example.
    #[error("no examples found; expected {expected}")]
    Empty {
        /// What was looked for.
        expected: &'static str,
    },
    /// A folder of rows to learn from, and no telling which.
    #[error("the splits to learn from are {found}; expected {expected}, or the files of the one that is meant in place of the folder")]
    Splits {
        /// Those that are there.
        found: String,
        /// What would be taken.
        expected: &'static str,
    },
    /// A file in pieces, some of which are missing.
    #[error(
        "{there} of the {count} pieces of {file} are here: get the others, or name the files in place of the folder to take these alone"
    )]
    Pieces {
        /// Its name.
        file: String,
        /// Those that are here.
        there: usize,
        /// How many there should be.
        count: usize,
    },
    /// The tokenizer is damaged or lacks something.
    #[error("tokenizer: {what}")]
    Tokenizer {
        /// The complaint.
        what: String,
    },
    /// The chat template cannot be used.
    #[error("chat template: {what}")]
    Template {
        /// The complaint.
        what: String,
    },
    /// A setting that makes no sense.
    #[error("{setting} is {found}; expected {expected}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: &'static str,
    },
}

/// Data and tokenizers are the user's; that they cannot be written is not.
impl Coded for Fault {
    fn exit(&self) -> Exit {
        match self {
            Self::Save(error) => error.exit(),
            Self::Shard(error) => error.exit(),
            _ => Exit::Usage,
        }
    }
}

impl Fault {
    /// This fault, in `path`.
    pub fn in_file(self, path: &Path) -> ChatError {
        ChatError { path: Some(path.to_owned()), line: None, fault: self }
    }

    /// This fault, on `line` (from 1; 0 is none) of `path`.
    pub fn on_line(self, path: &Path, line: u64) -> ChatError {
        ChatError { path: Some(path.to_owned()), line: (line > 0).then_some(line), fault: self }
    }

    /// What `work` returns, or this: libraries check most of a damaged file, and index without a check in places. Their panics are told by it alone.
    pub(crate) fn guarded<T>(damaged: impl FnOnce() -> Self, work: impl FnOnce() -> Result<T, Self>) -> Result<T, Self> {
        thread_local!(static GUARDED: Cell<bool> = const { Cell::new(false) });
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let hook = take_hook();
            set_hook(Box::new(move |info| {
                if !GUARDED.try_with(Cell::get).unwrap_or_default() {
                    hook(info);
                }
            }));
        });
        let outer = GUARDED.replace(true);
        let done = catch_unwind(AssertUnwindSafe(work));
        GUARDED.set(outer);
        done.unwrap_or_else(|_| Err(damaged()))
    }

    pub(crate) fn tokenizer(what: impl Into<String>) -> Self {
        Fault::Tokenizer { what: what.into() }
    }

    pub(crate) fn template(what: impl Into<String>) -> Self {
        Fault::Template { what: what.into() }
    }
}
