//! What goes to stdout. For most verbs that is all they make, so one that has lost a part of it must not end as if all were well.

use std::io::{Error, ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bellows_exit::Exit;

use crate::{Context, Failure};

/// Why stdout did not take something, where that is not its reader's wish.
static LOST: OnceLock<Error> = OnceLock::new();
/// Whether its reader has gone.
static GONE: AtomicBool = AtomicBool::new(false);
/// Whether what is printed stands in a run's files, too.
static RECORDED: AtomicBool = AtomicBool::new(false);

/// Prints `text` to stdout, at once and as it is.
pub fn print(text: &str) {
    let mut out = std::io::stdout();
    if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        lose(error);
    }
}

/// A reader that has gone, as `head` does, has what it wanted.
fn lose(error: Error) {
    tracing::debug!("stdout: {error}");
    if error.kind() == ErrorKind::BrokenPipe {
        GONE.store(true, Ordering::Relaxed);
    } else {
        LOST.get_or_init(|| error);
    }
}

/// Whether the reader of stdout has gone. Who makes nothing but lines, of a source that may never end, is done then.
pub fn reader_has_gone() -> bool {
    GONE.load(Ordering::Relaxed)
}

/// From here on lines are news of work whose result is files: the loss of one is no error.
pub(crate) fn is_recorded() {
    RECORDED.store(true, Ordering::Relaxed);
}

/// The end of a verb as far as stdout is concerned.
///
/// # Errors
/// When stdout did not take all, and nothing else has it.
pub(crate) fn end() -> Result<(), Failure> {
    match LOST.get() {
        Some(error) if !RECORDED.load(Ordering::Relaxed) => Err(error).context(Exit::Failed, "stdout"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_lost_is_an_error_and_a_reader_that_has_gone_is_none() {
        assert!(!reader_has_gone());
        lose(ErrorKind::BrokenPipe.into());
        assert!(end().is_ok() && reader_has_gone());
        lose(Error::other("the disk is full"));
        lose(Error::other("the disk is full again"));
        let failure = end().unwrap_err();
        assert_eq!((failure.to_string().as_str(), failure.exit()), ("stdout: the disk is full", Exit::Failed));
        is_recorded();
        assert!(end().is_ok());
    }
}
