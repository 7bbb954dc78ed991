//! Runs the probe's child process under a clock.
//!
//! The clock is per step: a slow adapter that makes progress is slow, not hung. A process stuck inside a kernel driver cannot be
//! killed and must not be waited for, so nothing here blocks on the child: pipes are read and its end is awaited by threads of their own.

use crate::child::{Job, PROBE_SUBCOMMAND};
use crate::known_issues::tells_of_shortage;
use crate::options::ProbeOptions;
use crate::program::this_program;
use crate::protocol::{Event, Stage};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Standard error kept for the report; drivers can be endless.
const STDERR_KEPT: usize = 16 * 1024;
/// What a child that has said its last word gets to store its tuning results and leave.
const GRACE: Duration = Duration::from_secs(1);

/// How the child ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum End {
    /// It reported a pass.
    Passed,
    /// It reported a failure: reason, and whether it was a crash.
    Failed(String, bool),
    /// It said nothing for this long.
    Hung(Duration),
    /// It died without a verdict: what the operating system says of it.
    Died(String),
    /// The operating system would not have it, or ended it: what it says of that.
    Starved(String),
}

/// What one child did.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) events: Vec<Event>,
    pub(crate) end: End,
    pub(crate) stderr: String,
}

impl Run {
    /// The step that had begun when the child ended.
    pub(crate) fn last_step(&self) -> (Stage, &str) {
        let begun = self.events.iter().rev().find_map(|event| match event {
            Event::Begin { stage, step } => Some((*stage, step.as_str())),
            _ => None,
        });
        begun.unwrap_or((Stage::Enumerate, "start"))
    }

    /// Whether it failed for want of what may be there again in a minute: memory of the card or of the machine, a process. A hang, which is ended by us, is not
    /// among these, nor are wrong numbers.
    pub(crate) fn momentary(&self) -> bool {
        match &self.end {
            End::Starved(_) => true,
            End::Died(cause) | End::Failed(cause, true) => tells_of_shortage(&self.stderr, cause),
            End::Passed | End::Failed(_, false) | End::Hung(_) => false,
        }
    }
}

/// Runs `job` in a child process until it ends, fails or falls silent.
pub(crate) fn run(job: &Job, options: &ProbeOptions) -> Run {
    let mut run = Run { events: Vec::new(), end: End::Died("it could not be started".into()), stderr: String::new() };
    let mut child = match spawn(job, options) {
        Ok(child) => child,
        Err(error) => {
            run.end = End::Starved(format!("it could not be started: {error}"));
            return run;
        }
    };
    let stderr = child.stderr.take().map(keep_tail).unwrap_or_default();
    let stdin = child.stdin.take();
    let lines = read_events(&mut child);
    let mut tuned = Vec::new();
    let mut limit = options.step_limit;
    run.end = loop {
        match lines.recv_timeout(limit) {
            Ok(event) => {
                let end = end_of(&event);
                limit = limit_after(&event, options, &mut tuned);
                run.events.push(event);
                if let Some(end) = end {
                    break end;
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => break End::Hung(limit),
            Err(mpsc::RecvTimeoutError::Disconnected) => break End::Died("it ended without a word".into()),
        }
    };
    let status = leave(child, !matches!(run.end, End::Hung(_)));
    drop(stdin);
    if let Some(status) = status
        && matches!(run.end, End::Died(_))
    {
        run.end = end_by(status);
    }
    run.stderr = stderr.lock().map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
    run
}

fn spawn(job: &Job, options: &ProbeOptions) -> std::io::Result<Child> {
    let exe = options.exe.clone().map_or_else(this_program, Ok)?;
    let mut command = Command::new(exe);
    // CubeCL's compiler asks for a backtrace with every type it handles, a third of its time where RUST_BACKTRACE is set; a panic's is printed all the same.
    command.arg(PROBE_SUBCOMMAND).arg(job.to_arg()).env("RUST_LIB_BACKTRACE", "0");
    command.envs(options.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

fn read_events(child: &mut Child) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            // Bytes, not lines of text: one driver message in another encoding must not end the conversation.
            while matches!(reader.read_until(b'\n', &mut line), Ok(read) if read > 0) {
                let found = Event::find(&String::from_utf8_lossy(&line));
                line.clear();
                if found.is_some_and(|event| sender.send(event).is_err()) {
                    break;
                }
            }
        });
    }
    receiver
}

fn keep_tail(mut stderr: std::process::ChildStderr) -> Arc<Mutex<Vec<u8>>> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let writer = Arc::clone(&kept);
    thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(read) = stderr.read(&mut chunk)
            && read > 0
        {
            if let Ok(mut kept) = writer.lock() {
                kept.extend_from_slice(&chunk[..read]);
                let surplus = kept.len().saturating_sub(STDERR_KEPT);
                kept.drain(..surplus);
            }
        }
    });
    kept
}

fn end_of(event: &Event) -> Option<End> {
    match event {
        Event::Pass => Some(End::Passed),
        Event::Fail { reason, crash, .. } => Some(End::Failed(reason.clone(), *crash)),
        _ => None,
    }
}

/// How long the child may be silent after `event`. The first step of a stage that compiles new kernels gets the longer limit, and each of tuning and of
/// the run's own shapes: nothing was compiled for them.
fn limit_after(event: &Event, options: &ProbeOptions, tuned: &mut Vec<Stage>) -> Duration {
    match event {
        Event::Begin { stage, .. } if stage.compiles() && (matches!(stage, Stage::Tune | Stage::Shapes) || !tuned.contains(stage)) => {
            tuned.push(*stage);
            options.compile_limit
        }
        _ => options.step_limit,
    }
}

/// Lets the child go, by force if it does not go by itself or, for a hung one, at once. Returns its exit status if it came in time.
fn leave(mut child: Child, patient: bool) -> Option<ExitStatus> {
    let mut waited = Duration::ZERO;
    let tick = Duration::from_millis(10);
    while patient && waited < GRACE {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        thread::sleep(tick);
        waited += tick;
    }
    let _ = child.kill();
    // Reaps it whenever it dies; if the driver holds it for ever, this thread is all that waits.
    thread::spawn(move || child.wait());
    None
}

#[cfg(unix)]
fn end_by(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    End::Died(match status.signal() {
        Some(libc::SIGSEGV) => "the driver crashed (SIGSEGV)".into(),
        Some(libc::SIGABRT) => "the driver aborted (SIGABRT)".into(),
        Some(libc::SIGBUS) => "the driver crashed (SIGBUS)".into(),
        Some(libc::SIGILL) => "the driver crashed (SIGILL)".into(),
        // Ours does not come here: whom it ends has hung, or has said its last word.
        Some(libc::SIGKILL) => return End::Starved("the process was killed (SIGKILL), perhaps for want of memory".into()),
        Some(signal) => format!("the process died of signal {signal}"),
        None => describe_code(status),
    })
}

#[cfg(not(unix))]
fn end_by(status: ExitStatus) -> End {
    End::Died(describe_code(status))
}

fn describe_code(status: ExitStatus) -> String {
    format!("the process ended early with code {}", status.code().unwrap_or(-1))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::adapter::Backend;
    use std::path::PathBuf;

    #[test]
    fn what_the_machine_has_not_got_is_told_from_what_a_driver_did() {
        let folder = tempfile::tempdir().unwrap();
        let killed = folder.path().join("killed");
        crate::smi::tests::script(&killed, "kill -9 $$");
        let end = |exe: PathBuf| run(&Job::List(Backend::Vulkan), &ProbeOptions { exe: Some(exe), ..ProbeOptions::default() });
        assert!(end(killed).momentary() && end(folder.path().join("absent")).momentary());
        assert!(!end("/bin/false".into()).momentary());

        let of = |end| Run { events: Vec::new(), end, stderr: String::new() }.momentary();
        let short = || "panicked: out of device memory allocating 4096 bytes".to_owned();
        assert!(of(End::Failed(short(), true)) && of(End::Died(short())));
        assert!(!of(End::Failed("panicked: Device is lost".into(), true)) && !of(End::Died("the driver crashed (SIGSEGV)".into())));
        assert!(!of(End::Hung(GRACE)) && !of(End::Failed("wrong numbers".into(), false)) && !of(End::Passed));
    }
}
