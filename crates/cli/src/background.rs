//! A run that outlives its terminal: the same command line in a process of a session of its own, whose words go to a file.
//!
//! Until training begins this process stays and shows them, so that a mistake in the settings is seen where it was made. Then the file
//! becomes `console.log` of the run, which says to this one that it may go.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bellows_device::this_program;
use bellows_exit::{Coded, Exit};

use crate::orders::{background, in_background};
use crate::signals::quit;
use crate::{Context, Failure, Signals, note, quoted, say};

/// What the words of a run are called in its folder.
const LOG: &str = "console.log";

/// Between two looks at them.
const LOOK: Duration = Duration::from_millis(50);

const STARTING: &str = "starting the run in the background";

/// The process in the background has ended before it trained.
#[derive(Debug, thiserror::Error)]
#[error("the run has ended with code {code} before training began")]
struct Ended {
    code: i32,
}

impl Coded for Ended {
    fn exit(&self) -> Exit {
        Exit::of(self.code)
    }
}

/// Starts this process's command line again, in the background, and shows what it says until it trains. Its words are kept under `project`
/// until there is a run.
///
/// # Errors
/// A project that cannot be written, a process that cannot be started, or one that ends with an error before it trains.
pub(crate) fn start(program: &str, project: &Path, signals: &Signals) -> Result<(), Failure> {
    fs::create_dir_all(project).context(Exit::Usage, project.display())?;
    let log = project.join(format!(".{program}-{}.log", std::process::id()));
    let log = std::path::absolute(log).context(Exit::Failed, STARTING)?;
    let file = File::create(&log).context(Exit::Usage, log.display())?;
    let out = file.try_clone().context(Exit::Failed, log.display())?;
    let exe = this_program().context(Exit::Failed, STARTING)?;
    let words = std::env::args_os().skip(1).chain(in_background(&log));
    let command = &mut Command::new(exe);
    let mut child = command.args(words).stdin(Stdio::null()).stdout(out).stderr(file).spawn().context(Exit::Failed, STARTING)?;
    signals.pass_on_to_background(child.id());
    let mut shown = File::open(&log).context(Exit::Failed, log.display())?;
    loop {
        // In this order: what was said before the end, or before training, is shown.
        let (ended, trains) = (child.try_wait().context(Exit::Failed, STARTING)?, !log.exists());
        show(&mut shown);
        if trains {
            say(&format!("In the background as process {}", child.id()));
            return Ok(());
        }
        if let Some(status) = ended {
            fs::remove_file(&log).ok();
            return match status.code() {
                Some(0) => Ok(()),
                Some(code @ (129 | 130 | 143)) => quit(code),
                code => Err(Ended { code: code.unwrap_or(-1) }.into()),
            };
        }
        std::thread::sleep(LOOK);
    }
}

fn show(log: &mut File) {
    let mut new = Vec::new();
    if log.read_to_end(&mut new).is_ok() && std::io::stdout().write_all(&new).is_err() {
        tracing::debug!("stdout is closed");
    }
}

/// In the process in the background: it belongs to no terminal from here on.
pub(crate) fn leave_terminal() {
    #[cfg(unix)]
    if background().is_some() {
        // The leader of a session, as a run that it supervises is not, cannot begin another one.
        rustix::process::setsid().ok();
    }
}

/// In the process that trains: its words are the run's from here on, the last that are shown those by which `program` asks for this run and no other.
pub(crate) fn keep_words(program: &str, run: &Path) {
    let Some(log) = background().filter(|log| log.exists()) else { return };
    say(&format!("`{program} status {0}` tells how it is, `{program} stop {0}` ends it", quoted(run)));
    if let Err((kept, error)) = keep(&log, run) {
        note(&format!("warning: what is said stays in {}: {error}", kept.display()));
    }
}

/// In a rank that trains and has no run directory of its own: whoever waits for it may go, and is told where its words stay.
pub(crate) fn own_words() {
    let Some(log) = background().filter(|log| log.exists()) else { return };
    note(&format!("goes on in the background; what this rank says is kept in {}", kept(&log).display()));
    if let Err(error) = fs::rename(&log, kept(&log)) {
        note(&format!("warning: {}: {error}", log.display()));
    }
}

/// What words are called that are no run's.
fn kept(log: &Path) -> PathBuf {
    log.with_extension(LOG)
}

/// Makes `log` that of `run`; what an earlier process said stays there by a number. Where it cannot (a run on another disk), `log` is only called
/// something else, as the process that waits for that has to see, and that is told with the error.
fn keep(log: &Path, run: &Path) -> Result<(), (PathBuf, io::Error)> {
    let own = run.join(LOG);
    let free = (1..).map(|number: u32| run.join(format!("console-{number}.log"))).find(|path| !path.exists());
    let aside = free.filter(|_| own.exists()).map_or(Ok(()), |free| fs::rename(&own, free));
    aside.and_then(|()| fs::rename(log, &own)).map_err(|error| {
        let kept = kept(log);
        let renamed = fs::rename(log, &kept).is_ok();
        (if renamed { kept } else { log.into() }, error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_kept_and_its_first_name_always_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (log, run) = (dir.path().join(".yolo-train-7.log"), dir.path().join("run"));
        fs::create_dir(&run).unwrap();
        for words in ["first", "second", "third"] {
            fs::write(&log, words).unwrap();
            keep(&log, &run).unwrap();
        }
        let read = |name: &str| fs::read_to_string(run.join(name)).unwrap();
        assert_eq!(["console-1.log", "console-2.log", LOG].map(read), ["first", "second", "third"]);
        fs::write(&log, "fourth").unwrap();
        let (kept, _) = keep(&log, &dir.path().join("gone")).unwrap_err();
        assert_eq!((fs::read_to_string(kept).unwrap().as_str(), log.exists()), ("fourth", false));
    }
}
