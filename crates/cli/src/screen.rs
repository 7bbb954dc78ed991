//! The screen of a dashboard, given back where the process ends in the middle of it.

use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

use crossterm::cursor::Show;
use crossterm::event::DisableMouseCapture;
use crossterm::execute;
use crossterm::terminal::{LeaveAlternateScreen, disable_raw_mode};

/// A terminal that takes no output (Ctrl-S) must not keep the process from ending.
const PATIENCE: Duration = Duration::from_millis(500);

/// What was on the terminal before the dashboard, with its cursor and its line editing. The thread that does it keeps standard output for good:
/// the dashboard's own thread would draw on it again.
pub(crate) fn give_back() {
    let (done, given_back) = channel();
    let thread = std::thread::Builder::new().name("screen".into());
    let spawned = thread.spawn(move || {
        let mut out = std::io::stdout().lock();
        let restored = execute!(out, DisableMouseCapture, LeaveAlternateScreen, Show).and(disable_raw_mode()).and(out.flush());
        if let Err(error) = restored {
            tracing::debug!("the terminal: {error}");
        }
        if done.send(()).is_ok() {
            loop {
                std::thread::park();
            }
        }
    });
    if spawned.is_ok() {
        given_back.recv_timeout(PATIENCE).ok();
    }
}
