//! SIGINT and SIGTERM, and SIGHUP when the terminal goes, from a program's first moment to its last. What the first one does depends on what it would
//! cost; the second ends the process at once, unless it is SIGHUP: a terminal that goes is told of two or three times, and nobody asks twice by that.
//!
//! A thread of its own answers them, so the answer comes while the main thread is in a driver, a download or a decoder, and no signal falls
//! between two looks at a flag. What the main thread takes from the disk before anything is at stake (a run directory, scratch files) it
//! registers here, so that it is given back also when the process ends between two of its instructions.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bellows_exit::Exit;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals as Arriving;
use signal_hook::low_level;

use crate::orders::orders;
use crate::{Context, Failure, note, pulse, screen};

/// How long the closing work gets to notice that it should stop. Nobody loses what it had done: all of it can be done again.
const GRACE: Duration = Duration::from_secs(1);

/// Within this time of a supervised run's first SIGTERM another one is the same: what ends all processes of a job at once (systemd, Slurm) sends it to the run
/// and to its supervisor, which passes its own on.
const ECHO: Duration = Duration::from_secs(1);

/// What there is to lose.
enum Phase {
    /// Nothing: the first signal ends the process at once, with this sentence.
    Before(&'static str),
    /// The step in progress: the first signal asks for the end after it. On a dashboard's screen there is no room for a word, and
    /// the second one gives that screen back.
    Training { silent: bool },
    /// What this process, another one, has: every signal is passed on to it; SIGHUP is not, if it `outlives` the terminal.
    Another { pid: u32, outlives: bool },
    /// Nothing that could not be done again, as this sentence says how; whether some of it was done, and has failed.
    Closing { words: String, lacks: bool },
}

/// How to take back what was taken from the disk.
type Undo = Box<dyn FnOnce() + Send>;

struct State {
    phase: Phase,
    undo: Option<Undo>,
    /// When somebody has asked for the end, and by which signal: the next time ends the process at once.
    asked: Option<(Instant, i32)>,
}

/// The signals of this process. Clones are the same signals.
#[derive(Clone)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    incomplete: Arc<AtomicBool>,
    state: Arc<Mutex<State>>,
}

impl Signals {
    /// Answers signals from here on.
    ///
    /// # Errors
    /// When the operating system refuses a handler or a thread.
    pub(crate) fn install() -> Result<Self, Failure> {
        let state = State { phase: Phase::Before("stopped"), undo: None, asked: None };
        let signals = Self { stop: Arc::default(), incomplete: Arc::default(), state: Arc::new(Mutex::new(state)) };
        let installing = "installing signal handlers";
        let answered = [SIGINT, SIGTERM].into_iter().chain(hears_the_terminal().then_some(SIGHUP));
        let mut arriving = Arriving::new(answered).context(Exit::Failed, installing)?;
        // A file that outgrows `ulimit -f` is then an error of that write and not the end of the process.
        signal_hook::flag::register(SIGXFSZ, Arc::default()).context(Exit::Failed, installing)?;
        let answering = signals.clone();
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || arriving.forever().for_each(|signal| answering.answer(signal))).context(Exit::Failed, installing)?;
        Ok(signals)
    }

    /// The flag that the first signal sets, for [`Learner::stop_when`](bellows_learner::Learner::stop_when).
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// The flag that is set while a file of the run could not be written, for
    /// [`Learner::incomplete_when`](bellows_learner::Learner::incomplete_when).
    pub(crate) fn incomplete(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.incomplete)
    }

    /// What a signal says that ends the process at once.
    pub(crate) fn before(&self, words: &'static str) {
        self.state().phase = Phase::Before(words);
    }

    /// From here on the work in progress is finished and saved after a signal.
    pub(crate) fn training(&self, silent: bool) {
        self.state().phase = Phase::Training { silent };
    }

    /// From here on signals go to process `pid`, which knows what to do with them.
    pub(crate) fn pass_on(&self, pid: u32) {
        self.pass(pid, false);
    }

    /// The same for a process in the background, which goes on when the terminal goes and this process with it.
    pub(crate) fn pass_on_to_background(&self, pid: u32) {
        self.pass(pid, true);
    }

    fn pass(&self, pid: u32, outlives: bool) {
        self.state().phase = Phase::Another { pid, outlives };
        // One that came before there was anybody to tell.
        if self.stopped() {
            terminate(pid).ok();
        }
    }

    /// From here on `words` say how to do again what a signal keeps from being done. False if it was asked to stop before: then they are said now.
    pub(crate) fn closing(&self, words: String) -> bool {
        let mut state = self.state();
        let stopped = self.stopped();
        if stopped {
            tell(&words);
        }
        state.phase = Phase::Closing { words, lacks: false };
        !stopped
    }

    /// A file of the closing work could not be written: a signal that ends it does not hide that.
    pub(crate) fn lacks_a_file(&self) {
        if let Phase::Closing { lacks, .. } = &mut self.state().phase {
            *lacks = true;
        }
    }

    /// Whether a signal has come.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// What `take` takes from the disk, one thing at a time, and what gives it back: when the guard is dropped, or when a signal ends the
    /// process before. No signal is answered while it is being taken.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn take<T, U: FnOnce() + Send + 'static>(&self, take: impl FnOnce() -> Result<(T, U), Failure>) -> Result<(T, Taken), Failure> {
        let mut state = self.state();
        let (taken, undo) = take()?;
        state.undo = Some(Box::new(undo));
        Ok((taken, Taken(self.clone())))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self) {
        let undo = self.state().undo.take();
        undo.into_iter().for_each(|undo| undo());
    }

    fn answer(&self, signal: i32) {
        // Held for the whole answer: the main thread goes into no other phase meanwhile.
        let mut state = self.state();
        if is_echo(state.asked, signal, orders().is_some()) {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        let again = signal != SIGHUP && state.asked.replace((Instant::now(), signal)).is_some();
        match &state.phase {
            Phase::Before(words) => {
                tell(words);
                state.undo.take().into_iter().for_each(|undo| undo());
                quit(128 + signal);
            }
            Phase::Another { outlives: true, .. } if signal == SIGHUP => quit(128 + signal),
            Phase::Another { pid, .. } => {
                send(*pid, signal).ok();
            }
            Phase::Training { silent: true } if again => {
                screen::give_back();
                quit(128 + signal);
            }
            _ if again => quit(128 + signal),
            Phase::Training { silent: true } => {}
            Phase::Training { silent: false } => tell("stopping after this step; again to stop at once"),
            Phase::Closing { words, lacks } => {
                tell(words);
                let lacks = *lacks || self.incomplete.load(Ordering::Relaxed);
                drop(state);
                pulse::end("stopped in its closing work");
                std::thread::sleep(GRACE);
                quit(if lacks { Exit::FinalSave.code().into() } else { 0 });
            }
        }
    }
}

/// Something of the disk, until it is given back.
pub struct Taken(Signals);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// Whether a signal is the one by which the end was `asked` for, come a second time.
fn is_echo(asked: Option<(Instant, i32)>, signal: i32, supervised: bool) -> bool {
    supervised && asked.is_some_and(|(at, first)| first == signal && signal == SIGTERM && at.elapsed() < ECHO)
}

/// Over the bar that may stand in this line of a terminal.
fn tell(words: &str) {
    let clear = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    note(&format!("{clear}{words}"));
}

/// Whether this process is to end when its terminal goes. Not where whoever started it has it live on (`nohup`), which is to be left as it is, and not
/// where the system does not say so.
fn hears_the_terminal() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored(&status).is_some_and(|signals| signals & (1 << (SIGHUP - 1)) == 0)
}

/// The signals that a process ignores, a bit each from the first on, as Linux tells of it (proc(5)).
fn ignored(status: &str) -> Option<u64> {
    let bits = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

/// Asks a process to end.
///
/// # Errors
/// Another user's process, or a system without signals.
pub(crate) fn terminate(pid: u32) -> io::Result<()> {
    send(pid, SIGTERM)
}

/// Has a process go on that was suspended.
pub(crate) fn wake(pid: u32) {
    send(pid, SIGCONT).ok();
}

#[cfg(unix)]
fn send(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let Some((pid, signal)) = pid.zip(rustix::process::Signal::from_named_raw(signal)) else { return Ok(()) };
    arrived(rustix::process::kill_process(pid, signal))
}

#[cfg(not(unix))]
fn send(_: u32, _: i32) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// What became of a signal: a process that is not there has ended by itself.
#[cfg(unix)]
fn arrived(sent: rustix::io::Result<()>) -> io::Result<()> {
    match sent {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

/// Without the handlers of `exit`, which may wait for a thread that hangs in a driver.
pub(crate) fn quit(code: i32) -> ! {
    low_level::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_the_supervisor_passes_on_is_not_the_second() {
        let at_once = |first, signal, supervised| is_echo(Some((Instant::now(), first)), signal, supervised);
        assert!(at_once(SIGTERM, SIGTERM, true) && !at_once(SIGTERM, SIGTERM, false), "nobody else passes one on");
        assert!(!at_once(SIGINT, SIGINT, true) && !at_once(SIGINT, SIGTERM, true), "a key that is pressed twice is meant");
        assert!(!is_echo(None, SIGTERM, true));
        let before = Instant::now().checked_sub(ECHO).map(|at| (at, SIGTERM));
        assert!(!is_echo(before, SIGTERM, true), "a second later somebody asks again");
    }

    #[test]
    #[cfg(unix)]
    fn a_process_of_another_user_does_not_hear_and_one_that_has_ended_need_not() {
        use rustix::io::Errno;
        assert_eq!(arrived(Err(Errno::PERM)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(arrived(Ok(())).is_ok() && arrived(Err(Errno::SRCH)).is_ok());
    }

    #[test]
    fn a_process_knows_what_it_ignores() {
        assert_eq!(ignored("Name:\tsh\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n"), Some(0x1001));
        assert_eq!([ignored("Name:\tsh\n"), ignored("SigIgn:\tnone\n")], [None; 2]);
    }
}
