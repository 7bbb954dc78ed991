//! The one error of programs: a sentence for the person who reads it, a code for the script that asks for it.
//!
//! An error of ours knows its code ([`Coded`]) and becomes a [`Failure`] by `?`. Of an error of others, whoever meets it says what was being
//! done and which code that makes ([`Context`]).

use std::error::Error;
use std::fmt::{self, Display};
use std::io::Write;

use bellows_exit::{Coded, Exit};

use crate::place::prefix;

/// ENOENT, and what Windows calls ERROR_FILE_NOT_FOUND.
const NOT_FOUND: i32 = 2;

/// Why a program ended. Prints as the chain of causes, each once, on one line.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    error: Box<dyn Error + Send + Sync>,
}

impl<E: Coded + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { exit: error.exit(), error: Box::new(error) }
    }
}

/// The input or the command line is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

impl Coded for Usage {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

/// What was being done when an error of others came.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Doing {
    what: String,
    source: Box<dyn Error + Send + Sync>,
}

/// For errors that know no code.
pub trait Context<T> {
    /// The error as a [`Failure`] with this code that begins with what was being done.
    ///
    /// # Errors
    /// That failure, if there is an error.
    fn context(self, exit: Exit, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: Error + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, exit: Exit, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure { exit, error: Box::new(Doing { what: what.to_string(), source: Box::new(error) }) })
    }
}

impl Failure {
    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Prints it to stderr, on one line.
    pub(crate) fn complain(&self) {
        if std::io::stderr().write_all(format!("{}error: {self}\n", prefix()).as_bytes()).is_err() {
            tracing::debug!("stderr is closed");
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut message = self.error.to_string();
        let mut next = self.error.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Some errors say what their source says.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            next = cause.source();
        }
        f.write_str(&in_our_words(&message))
    }
}

/// A file that is not there, by far the most frequent of the system's refusals, in our words: its own end with a code and differ between systems.
fn in_our_words(message: &str) -> String {
    message.replace(&std::io::Error::from_raw_os_error(NOT_FOUND).to_string(), "there is no such file or folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_brings_its_code_and_its_causes_are_told_once() {
        let usage = Failure::from(Usage("no such file".into()));
        assert_eq!((usage.to_string().as_str(), usage.exit()), ("no such file", Exit::Usage));
        let full = || std::io::Error::other("the disk is full");
        let failed = Err::<(), _>(full()).context(Exit::Failed, "writing a.txt").unwrap_err();
        assert_eq!((failed.to_string().as_str(), failed.exit()), ("writing a.txt: the disk is full", Exit::Failed));
        let twice = Err::<(), _>(full()).context(Exit::FinalSave, "a.txt: the disk is full").unwrap_err();
        assert_eq!((twice.to_string().as_str(), twice.exit()), ("a.txt: the disk is full", Exit::FinalSave));
    }

    #[test]
    fn a_file_that_is_not_there_is_told_in_our_words() {
        let missing = std::fs::File::open("nowhere/a.txt").context(Exit::Usage, "nowhere/a.txt").unwrap_err();
        assert_eq!(missing.to_string(), "nowhere/a.txt: there is no such file or folder");
    }
}
