//! `status` and `stop`: how a run is, from its directory alone, and its end as by a signal.
//!
//! The directory says enough: `heartbeat.json` what the process is busy with, the lock whether there is one, `events.jsonl` and
//! `supervision.jsonl` what happened. Nothing in it is changed.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bellows_exit::{Coded, Exit};
use bellows_runs::{Beat, RunDir, STEP, began, find_latest_run, is_alive, is_suspended, read_beat, run_of};
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

use crate::signals::{terminate, wake};
use crate::{Failure, Usage, option, quoted, rate, reader_has_gone, say, switch, text};

/// Between two looks of `--follow`.
const LOOK: Duration = Duration::from_secs(2);
/// Between two lines of it about the same batch of the same epoch.
const LINE_EVERY: Duration = Duration::from_secs(30);
/// A log is read backwards in blocks of so many bytes,
const BLOCK: u64 = 1 << 16;
/// and no further back than this, some 300,000 steps of a language model.
const FURTHEST: u64 = 1 << 26;
/// Events that are shown.
const EVENTS: usize = 5;

fn run_arg() -> [Arg; 2] {
    let run = Arg::new("run").value_name("RUN").help("Its directory; the last one under the project if not given");
    [run, option("project", "Directory that runs are kept in").value_name("DIR")]
}

/// `status [RUN] [--follow] [--json]`.
pub fn status() -> Command {
    Command::new("status")
        .about("Tells how a run is: what it does, losses, temperature and power, what happened last")
        .args(run_arg())
        .arg(switch("follow", "Go on telling until the run ends"))
        .arg(switch("json", "Print one JSON object").conflicts_with("follow"))
}

/// `stop [RUN]`.
pub fn stop() -> Command {
    Command::new("stop").about("Ends a run after the step in progress, with a checkpoint").args(run_arg())
}

/// What is asked about, for a program that keeps its runs in `project`.
fn asked(matches: &ArgMatches, project: &str) -> Result<RunDir, Failure> {
    if let Some(run) = text(matches, "run") {
        let run = RunDir::open(run_of(Path::new(&run)))?;
        // Any folder opens, and of one that is none nobody may believe that it is a run that has ended.
        let files = [run.checkpoints(), run.config(), run.events(), run.heartbeat(), run.path().join("run.lock")];
        if run.holder().is_none() && !files.iter().any(|file| file.exists()) {
            let folder = run.path();
            let reason = format!("{} is not a run directory; `--project {}` asks for the last run in it", folder.display(), quoted(folder));
            return Err(Usage(reason).into());
        }
        return Ok(run);
    }
    let project = text(matches, "project").unwrap_or_else(|| project.into());
    let missing = || Usage(format!("no run under {project}: name its directory"));
    Ok(RunDir::open(latest(Path::new(&project)).ok_or_else(missing)?)?)
}

/// The run under `project`, or in a chain's folder there, that gave a sign of life last; where none ever did, the one that saved last.
fn latest(project: &Path) -> Option<PathBuf> {
    let runs = std::fs::read_dir(project).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let runs = runs.flat_map(|run| [run.join("run"), run]);
    let heard = runs.filter_map(|run| Some((std::fs::metadata(RunDir::at(&run).heartbeat()).ok()?.modified().ok()?, run)));
    heard.max().map(|(_, run)| run).or_else(|| find_latest_run(project))
}

/// Does `status`.
///
/// # Errors
/// No such run, as [`Usage`].
pub fn show(matches: &ArgMatches, project: &str) -> Result<(), Failure> {
    let run = asked(matches, project)?;
    let state = State::of(&run);
    if matches.get_flag("json") {
        say(&state.json(&run).to_string());
        return Ok(());
    }
    state.lines(&run).iter().for_each(|line| say(line));
    if matches.get_flag("follow") {
        follow(&run, state);
    }
    Ok(())
}

/// The process that is asked to stop gives no sign of life, and no supervisor ends it.
#[derive(Debug, thiserror::Error)]
#[error("{run}: no sign of life for {silent_s} s: `kill -9 {pid}` ends it, and its checkpoints stand")]
struct Hangs {
    run: String,
    silent_s: u64,
    pid: u32,
}

impl Coded for Hangs {
    fn exit(&self) -> Exit {
        Exit::Failed
    }
}

/// Does `stop`: asks, and waits until the run has ended.
///
/// # Errors
/// No such run, none that a process of this machine has, another user's, or one that hangs and is nobody's to end.
pub fn stopping(matches: &ArgMatches, project: &str) -> Result<(), Failure> {
    let run = asked(matches, project)?;
    let state = State::of(&run);
    let Some(pid) = state.supervisor().or(state.holder.flatten()) else {
        let why = if state.holder.is_some() {
            "its process is of another machine or container: stop it there"
        } else {
            "there is nothing to stop"
        };
        return Err(Usage(format!("{}: {}: {why}", run.path().display(), state.word())).into());
    };
    say(&format!("{}: asking process {pid} to stop after this step", run.path().display()));
    terminate(pid).map_err(|error| deaf(&run, pid, &error))?;
    // One that is suspended hears that when it goes on, and its last sign of life is of the time before; others do not notice. Where nobody tells which it
    // is, it has the time of one that was.
    let asked: Vec<u32> = state.supervisor().into_iter().chain(state.holder.flatten()).collect();
    let woken = (cfg!(not(target_os = "linux")) || asked.iter().any(|&pid| is_suspended(pid))).then(Instant::now);
    asked.into_iter().for_each(wake);
    loop {
        let state = State::of(&run);
        if !state.lives() {
            say(&format!("{}: {}", run.path().display(), state.word()));
            return Ok(());
        }
        let wakes = woken.is_some_and(|woken| woken.elapsed().as_secs_f64() <= state.beat.within_s);
        if state.hangs() && !wakes && state.supervisor().is_none() {
            return Err(Hangs { run: run.path().display().to_string(), silent_s: state.silent_s(), pid }.into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Why a process cannot be asked to stop.
fn deaf(run: &RunDir, pid: u32, error: &io::Error) -> Usage {
    Usage(match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{}: process {pid} is another user's: stop it as that user", run.path().display()),
        _ => "this system has no way to ask for that: press Ctrl-C where the run was started".into(),
    })
}

/// What a run's directory says.
struct State {
    beat: Beat,
    /// Whether a process has the run, and which.
    holder: Option<Option<u32>>,
    /// Whether the supervisor that the last sign of life names is there.
    supervised: bool,
    now: u64,
}

impl State {
    fn of(run: &RunDir) -> Self {
        // A file that is being written is whole an instant later.
        let read = || read_beat(&run.heartbeat());
        let again = || {
            std::thread::sleep(Duration::from_millis(5));
            read()
        };
        let beat = read().or_else(again).unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { supervised: is_supervised(&beat, run), beat, holder: run.holder(), now }
    }

    fn lives(&self) -> bool {
        self.holder.is_some() || self.supervised
    }

    fn supervisor(&self) -> Option<u32> {
        self.beat.supervisor.filter(|_| self.supervised)
    }

    /// Seconds since the last sign of life.
    fn silent_s(&self) -> u64 {
        self.now.saturating_sub(self.beat.time)
    }

    fn hangs(&self) -> bool {
        self.beat.count > 0 && self.silent_s() as f64 > self.beat.within_s
    }

    /// In a few words.
    fn word(&self) -> String {
        let Beat { phase, ended, .. } = &self.beat;
        let busy = match phase.as_str() {
            "evaluation" => "evaluating",
            "save" => "saving a checkpoint",
            "export" => "writing files",
            "start" => "starting",
            _ => "training",
        };
        match (self.holder, ended) {
            (Some(Some(pid)), _) if is_suspended(pid) => {
                format!("suspended ({phase}); `fg` where it was started, or `kill -CONT {pid}`, has it go on, and `stop` ends it")
            }
            (Some(_), _) if self.hangs() => format!("no sign of life for {} s ({phase})", self.silent_s()),
            (Some(_), _) => busy.into(),
            (None, Some(how)) if self.supervised => format!("{how}; its supervisor decides what is next"),
            (None, Some(how)) => how.clone(),
            (None, None) if self.supervised => "being started again".into(),
            (None, None) if self.beat.count == 0 => "no process has it".into(),
            (None, None) => format!("ended without a word, as by a kill or a crash ({phase})"),
        }
    }

    /// Where it is, what it loses, how the card is.
    fn place(&self) -> String {
        let Beat { epoch, epochs, done, total, evaluated, to_evaluate, step, losses, speed, unit, gauges, phase, .. } = &self.beat;
        let mut cells = vec![format!("epoch {epoch}/{epochs}")];
        // Nobody has counted the batches of a run that is not begun, or was over when it was resumed.
        cells.extend((*total > 0).then(|| format!("batch {done}/{total}")));
        cells.push(format!("step {step}"));
        cells.extend((phase == "evaluation").then(|| format!("evaluated {evaluated}/{to_evaluate}")));
        cells.extend(losses.iter().map(|(name, loss)| format!("{name} {loss:.4}")));
        cells.extend((*speed > 0.0).then(|| format!("{} {unit}/s", rate(*speed))));
        cells.extend(gauges.iter().map(|(name, value)| match name.as_str() {
            "gpu/memory_gb" => format!("GPU {value:.2}G"),
            "gpu/temperature_c" => format!("{value:.0}°C"),
            "gpu/power_w" => format!("{value:.0}W"),
            _ => format!("{name} {value}"),
        }));
        cells.join("  ")
    }

    fn lines(&self, run: &RunDir) -> Vec<String> {
        let Beat { device, fallback, restarts, phase, within_s, .. } = &self.beat;
        let mut lines = vec![format!("{}: {}", run.path().display(), self.word())];
        if self.beat.count == 0 {
            lines.extend(events(run));
            return lines;
        }
        lines.push(format!("  {}", self.place()));
        let why = fallback.as_ref().map_or(String::new(), |why| format!(" — {why}"));
        lines.extend(device.iter().map(|device| format!("  on {device}{why}")));
        if let Some(pid) = self.holder.flatten() {
            lines.push(format!("  process {pid}, last sign of life {} s ago ({phase}, at most {within_s:.0} s)", self.silent_s()));
        }
        let times = |n: &u32| if *n == 1 { "once".into() } else { format!("{n} times") };
        let again = if *restarts > 0 { format!(", started again {}", times(restarts)) } else { String::new() };
        lines.extend(self.supervisor().map(|pid| format!("  supervised by process {pid}{again}")));
        lines.extend(events(run));
        lines
    }

    fn json(&self, run: &RunDir) -> Value {
        json!({
            "run": run.path(),
            "state": self.word(),
            "running": self.lives(),
            "hangs": self.holder.is_some() && self.hangs(),
            "silent_s": self.silent_s(),
            "newest_checkpoint": run.newest_step(),
            "heartbeat": self.beat,
        })
    }
}

/// Whether the supervisor that a sign of life of the run names is there: that process, and not another of its number.
fn is_supervised(beat: &Beat, run: &RunDir) -> bool {
    let restarts = || tail(&run.supervision()).last().is_some_and(|line| line["event"] == "restart");
    beat.supervisor.is_some_and(|pid| match &beat.supervisor_began {
        Some(its) => began(pid).as_ref() == Some(its),
        // A number alone is believed while the run has not ended, or is to be started again.
        None => is_alive(pid) && (beat.ended.is_none() || restarts()),
    })
}

/// The last of what happened, but for single steps.
fn events(run: &RunDir) -> Vec<String> {
    let of = |event: &Value| {
        let text = |key: &str| event.get(key).and_then(Value::as_str);
        let kind = text("event")?;
        let what = ["message", "reason", "what"].into_iter().find_map(text).map_or(String::new(), |what| format!(": {what}"));
        let place = event.get("epoch").map_or(String::new(), |epoch| format!(" (epoch {epoch}, batch {})", event["batch"]));
        Some(format!("  {kind}{place}{what}"))
    };
    let section = |heading: &str, path: PathBuf| {
        let mut lines: Vec<String> = tail(&path).iter().filter_map(of).collect();
        if !lines.is_empty() {
            lines.insert(0, heading.into());
        }
        lines
    };
    [section("last events:", run.events()), section("supervisor:", run.supervision())].concat()
}

/// The objects of the last [`EVENTS`] lines of a log that are no steps, of which many thousands may follow them.
fn tail(path: &Path) -> Vec<Value> {
    // Looked at before opening: opening a pipe would block for ever.
    if path.is_file() { read_back(path).unwrap_or_default() } else { Vec::new() }
}

fn read_back(path: &Path) -> io::Result<Vec<Value>> {
    let mut file = File::open(path)?;
    let end = file.metadata()?.len();
    let (mut found, mut cut, mut from) = (Vec::new(), Vec::new(), end);
    while found.len() < EVENTS && from > 0 && end - from < FURTHEST {
        let len = from.min(BLOCK);
        from -= len;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = vec![0; len as usize];
        file.read_exact(&mut bytes)?;
        bytes.append(&mut cut);
        // The first line may have begun in the block before.
        let whole = if from == 0 { 0 } else { bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1) };
        let lines = bytes[whole..].split(|&byte| byte == b'\n').rev().filter(|line| !line.starts_with(STEP));
        let wanted = EVENTS - found.len();
        found.extend(lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok()).take(wanted));
        bytes.truncate(whole);
        cut = bytes;
    }
    found.reverse();
    Ok(found)
}

/// A line when something has changed from what was `said`, until no process has the run or nobody reads any more.
fn follow(run: &RunDir, mut said: State) {
    let mut at = Instant::now();
    while said.lives() && !reader_has_gone() {
        std::thread::sleep(LOOK);
        let state = State::of(run);
        let turned = state.word() != said.word() || state.beat.epoch != said.beat.epoch || state.beat.restarts != said.beat.restarts;
        if turned || at.elapsed() >= LINE_EVERY || !state.lives() {
            say(&format!("{}  {}", state.word(), state.place()));
            (said, at) = (state, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(beat: Beat, holder: Option<Option<u32>>) -> State {
        State { beat, holder, supervised: false, now: 1000 }
    }

    fn beat(phase: &str, time: u64) -> Beat {
        let losses = [("box_loss".to_string(), 1.25)].into();
        let gauges = [("gpu/temperature_c", 61.4), ("gpu/power_w", 181.0)].map(|(name, value)| (name.to_string(), value)).into();
        let place = Beat { epoch: 3, epochs: 100, done: 17, total: 240, step: 497, speed: 12.34, unit: "images".into(), ..Beat::default() };
        Beat { count: 9, time, phase: phase.into(), within_s: 300.0, losses, gauges, ..place }
    }

    #[test]
    fn a_few_words_say_how_it_is() {
        let word = |phase, time, holder| state(beat(phase, time), holder).word();
        assert_eq!(word("first", 990, Some(Some(7))), "training");
        assert_eq!(word("evaluation", 990, Some(None)), "evaluating");
        assert_eq!(word("step", 600, Some(Some(7))), "no sign of life for 400 s (step)");
        assert_eq!(word("step", 600, None), "ended without a word, as by a kill or a crash (step)");
        assert_eq!(State { supervised: true, ..state(beat("step", 990), None) }.word(), "being started again");
        assert_eq!(state(Beat { ended: Some("stopped".into()), ..beat("save", 10) }, None).word(), "stopped");
        assert_eq!(state(Beat::default(), None).word(), "no process has it");
        let failed = state(Beat { ended: Some("the device was lost".into()), ..beat("step", 990) }, None);
        assert_eq!(State { supervised: true, ..failed }.word(), "the device was lost; its supervisor decides what is next");
    }

    #[test]
    fn the_last_run_is_found_in_the_folder_of_a_concept_too() {
        let dir = tempfile::tempdir().unwrap();
        // Of two signs in the same instant the last by name counts.
        for run in ["a/run", "b"].map(|run| dir.path().join(run)) {
            std::fs::create_dir_all(&run).unwrap();
            std::fs::write(RunDir::at(&run).heartbeat(), "{}").unwrap();
            assert_eq!(latest(dir.path()), Some(run));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_supervisor_is_not_whoever_has_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let (pid, run) = (std::process::id(), RunDir::at(dir.path()));
        let of = |its: Option<&str>, ended: Option<&str>| {
            let [supervisor_began, ended] = [its, ended].map(|text| text.map(String::from));
            is_supervised(&Beat { supervisor: Some(pid), supervisor_began, ended, ..Beat::default() }, &run)
        };
        let own = began(pid).unwrap();
        assert!(of(Some(&own), None) && of(Some(&own), Some("the device was lost")), "what has failed may be started again");
        assert!(!of(Some("before the power cut 1"), None) && !of(None, Some("done")));
        assert!(of(None, None), "a run of an older program");
        assert!(!is_supervised(&Beat::default(), &run));
        std::fs::write(run.supervision(), "{\"event\": \"restart\"}\n").unwrap();
        assert!(of(None, Some("the device was lost")), "in the pause before it is started again");
    }

    #[test]
    fn whose_process_it_is_that_cannot_be_asked_is_told() {
        let told = |kind: io::ErrorKind| deaf(&RunDir::at("runs/v"), 7, &kind.into()).to_string();
        assert_eq!(told(io::ErrorKind::PermissionDenied), "runs/v: process 7 is another user's: stop it as that user");
        assert!(told(io::ErrorKind::Unsupported).contains("press Ctrl-C"));
    }

    #[test]
    fn place_losses_and_card_are_one_line() {
        let line = state(beat("step", 990), None).place();
        assert_eq!(line, "epoch 3/100  batch 17/240  step 497  box_loss 1.2500  12.3 images/s  181W  61°C");
    }

    #[test]
    fn batches_that_nobody_has_counted_are_left_out() {
        let over =
            Beat { epoch: 100, done: 0, total: 0, step: 24_000, losses: [].into(), gauges: [].into(), speed: 0.0, ..beat("export", 990) };
        assert_eq!(state(over, None).place(), "epoch 100/100  step 24000");
    }

    #[test]
    fn an_evaluation_has_a_counter_of_its_own() {
        let evaluating = Beat { evaluated: 5, to_evaluate: 90, ..beat("evaluation", 990) };
        assert!(state(evaluating.clone(), None).place().starts_with("epoch 3/100  batch 17/240  step 497  evaluated 5/90  box_loss"));
        let done = Beat { phase: "export".into(), ..evaluating };
        assert!(state(done, None).place().starts_with("epoch 3/100  batch 17/240  step 497  box_loss"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_log_that_is_a_pipe_is_not_waited_for() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let (told, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(tail(&path)));
        assert_eq!(answers.recv_timeout(Duration::from_secs(20)), Ok(Vec::new()));
    }

    #[test]
    fn the_last_events_are_told_without_steps() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "train", false).unwrap();
        assert!(events(&run).is_empty());
        let steps: String = (0..5000).map(|i| format!("{}\n", json!({ "event": "step", "epoch": 1, "batch": i }))).collect();
        let own = "{\"event\":\"oom\",\"epoch\":1,\"batch\":7,\"reason\":\"no memory\"}\n";
        std::fs::write(run.events(), format!("{own}{steps}{{\"event\":\"chec")).unwrap();
        std::fs::write(run.supervision(), "{\"time\":1,\"event\":\"restart\",\"what\":\"it hung\"}\n").unwrap();
        assert_eq!(events(&run), ["last events:", "  oom (epoch 1, batch 7): no memory", "supervisor:", "  restart: it hung"]);
        // Five at most, of whatever length.
        let long = "x".repeat(2 * BLOCK as usize);
        let told: String =
            (0..6).map(|i| format!("{}\n", json!({ "event": "warning", "epoch": 1, "batch": i, "message": long }))).collect();
        std::fs::write(run.events(), format!("{own}{told}{steps}")).unwrap();
        let last = (1..6).map(|i| format!("  warning (epoch 1, batch {i}): {long}"));
        assert!(events(&run).into_iter().skip(1).take(6).eq(last.chain(["supervisor:".to_string()])));
    }
}
