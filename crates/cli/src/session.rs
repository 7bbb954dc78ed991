//! A verb that trains, from its first line to its last word: what every such verb does, so that a program writes down only what is its own.
//!
//! [`Session::begin`] comes first. Then the program settles its settings, picks the device, opens data: a signal ends all of that at once. With
//! [`Session::open`] it takes the run directory, which is given back if nothing comes to be in it; from [`Run::start`] on a signal lets the
//! step finish, and from [`Run::close`] on it leaves what can be done again.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bellows_device::{Selected, Telemetry};
use bellows_exit::Exit;
use bellows_learner::{Dashboard, LearnError, Learner, Limits, Observer, Outcome, Phase, Task};
use bellows_runs::{Journal, RunDir};
use bellows_settings::Setting;
use burn::train::Interrupter;
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::background::{self, keep_words, leave_terminal, own_words};
use crate::device::{share_card, threads};
use crate::layers::{record_places, record_settings};
use crate::orders;
use crate::output;
use crate::pulse::{self, Watch};
use crate::ranks::Ranks;
use crate::signals::{Signals, Taken};
use crate::supervise::{end_with_parent, supervise};
use crate::{Context, Failure, Usage, join_pool, note, place, quoted, ranks, say};

/// Who does the work of a verb that trains, and who looks after it.
#[derive(Clone, Debug, Default)]
pub struct Keeping {
    /// A process that computes nothing watches the one that does.
    pub supervise: bool,
    /// With that: the processor takes over from a device that fails twice.
    pub fallback: bool,
    /// How long what may take without a sign of life.
    pub limits: Limits,
    /// The run outlives its terminal.
    pub background: bool,
    /// Processes that train together.
    pub ranks: usize,
    /// Where they compute, as it is written.
    pub device: String,
    /// With `supervise`: those of this machine that are lost are left out.
    pub elastic: bool,
}

/// The settings that say so, as every program that trains has them.
#[derive(Deserialize)]
struct KeepingSettings {
    supervise: bool,
    fallback: String,
    heartbeat: BTreeMap<String, f64>,
    elastic: bool,
    device: String,
}

impl Keeping {
    /// As the settings of a run have it.
    ///
    /// # Errors
    /// What `heartbeat` cannot mean, as [`Usage`].
    pub fn of(config: &impl Serialize, background: bool, ranks: usize) -> Result<Self, Failure> {
        let settings = serde_json::to_value(config).and_then(serde_json::from_value);
        let KeepingSettings { supervise, fallback, heartbeat, elastic, device } =
            settings.context(Exit::Failed, "the settings of a run")?;
        let limits = Limits::of(&heartbeat).map_err(Usage)?;
        Ok(Self { supervise, fallback: fallback == "cpu", limits, background, ranks, device, elastic })
    }
}

/// A verb that trains, before it has a run.
pub struct Session {
    program: &'static str,
    signals: Signals,
    tui: bool,
    limits: Limits,
    ranks: Option<Ranks>,
    /// Ranks on this machine.
    here: usize,
    /// Where they compute, as it is written.
    device: String,
}

impl Session {
    /// Of this program, with or without a dashboard.
    ///
    /// # Errors
    /// A dashboard where there is no terminal, as [`Usage`].
    pub fn begin(program: &'static str, signals: &Signals, tui: bool) -> Result<Self, Failure> {
        signals.before("stopped before training began: nothing is lost");
        output::is_recorded();
        // The dashboard is rank 0's, and a rank that it has started has no terminal.
        let tui = tui && !place::is_started();
        if tui && !std::io::stdout().is_terminal() {
            return Err(Usage("--tui needs a terminal: leave it out".into()).into());
        }
        let (limits, device) = (Limits::default(), String::new());
        Ok(Self { program, signals: signals.clone(), tui, limits, ranks: None, here: 1, device })
    }

    /// Whether other processes did the work, and this one has only kept them. Else it is this one's: its threads are set up, from here on
    /// it gives signs of life, and the other ranks have been met. The words of a run in the background begin in `project`, or beside the run that is
    /// `resumed`, whose settings may name a place on another machine.
    ///
    /// # Errors
    /// A dashboard of a run that another process trains, as [`Usage`]; the end of a supervised run that did not end well; ranks that do not come.
    pub fn is_left_to_others(&mut self, keeping: &Keeping, resumed: Option<&Path>, project: &str) -> Result<bool, Failure> {
        place::take_part();
        if self.tui && (keeping.background || keeping.supervise) {
            return Err(Usage("--tui shows the run of its own process: leave out --supervise and --detach, or --tui".into()).into());
        }
        if keeping.supervise && place::is_of_mpi() {
            let why = "--supervise starts a process again, which MPI's launcher takes for the end of all: leave it out, and resume the run";
            return Err(Usage(why.into()).into());
        }
        if keeping.background && place::is_launched() {
            return Err(Usage(
                "--detach leaves the process that mpirun or srun has started, which takes that for its end: leave it out".into(),
            )
            .into());
        }
        if keeping.background && orders::background().is_none() && !place::is_started() {
            background::start(self.program, resumed.and_then(Path::parent).unwrap_or(Path::new(project)), &self.signals)?;
            return Ok(true);
        }
        leave_terminal();
        if keeping.supervise && orders::orders().is_none() && !place::is_started() {
            if keeping.elastic && place::is_placed() {
                let why = "--elastic starts the ranks of one machine again, and these were started by somebody else: leave it out";
                return Err(Usage(why.into()).into());
            }
            if keeping.fallback && place::is_placed() {
                let why =
                    "--fallback cpu of one rank leaves the others on their cards, and ranks must compute the same: set --fallback none";
                return Err(Usage(why.into()).into());
            }
            let elastic = keeping.elastic.then_some(keeping.ranks);
            supervise(self.program, &keeping.limits, keeping.fallback, elastic, &self.signals)?;
            return Ok(true);
        }
        self.limits = keeping.limits.clone();
        // Rank 0 answers to the supervisor, the others to rank 0.
        let orders = orders::orders().filter(|_| !place::is_started());
        pulse::begin(keeping.limits.clone(), orders);
        match (place::is_started(), orders) {
            (true, _) => ranks::end_with_first(),
            (false, Some(_)) => end_with_parent(Some("the supervisor has died: the run ends, too")),
            (false, None) => {}
        }
        let (_, here) = ranks::local_rank(keeping.ranks);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        join_pool(threads(std::env::var("RAYON_NUM_THREADS").ok().as_deref(), cores, here))?;
        self.ranks = ranks::meet(keeping.ranks, Duration::from_secs_f64(keeping.limits.seconds(Phase::Start)))?;
        self.here = here;
        self.device.clone_from(&keeping.device);
        Ok(false)
    }

    /// How many ranks share this machine, this one included: of those that train now, not of those that the run was begun with.
    pub fn local_ranks(&self) -> usize {
        self.here
    }

    /// What ends this process, the same command goes on with, and not `--resume`.
    pub fn goes_on_by_itself(&self) {
        pulse::same_command();
    }

    /// Whether this process keeps the run: the only rank, or rank 0.
    fn is_first(&self) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.exchange.rank() == 0)
    }

    /// The run directory, for this process alone: the one that is resumed, or a new one; none for other ranks than the first.
    ///
    /// # Errors
    /// A directory that is none, cannot be made, or is another process's.
    pub fn open(self, resumed: Option<&Path>, project: &str, name: &str, exist_ok: bool) -> Result<Run, Failure> {
        if !self.is_first() {
            return Ok(Run { session: self, dir: RunDir::nowhere(), resumed: false, started: Instant::now(), _taken: None });
        }
        let (dir, taken) = self.signals.take(|| {
            let dir = match resumed {
                Some(path) => RunDir::open(path)?,
                None => RunDir::create(Path::new(project), name, exist_ok)?,
            };
            let (lock, mine) = (dir.lock()?, dir.clone());
            // Somebody may have deleted the weights of a run that is to go on.
            dir.make_folders()?;
            Ok((dir, move || mine.withdraw(lock)))
        })?;
        pulse::run(dir.path(), &dir.heartbeat());
        Ok(Run { session: self, dir, resumed: resumed.is_some(), started: Instant::now(), _taken: Some(taken) })
    }
}

/// What runs of every program leave besides checkpoints: weights, and logs that a new run does not begin anew.
const LEFT: [&str; 4] = ["weights/best.safetensors", "weights/last.safetensors", "weights/epoch*.safetensors", "tensorboard"];
/// What a supervisor has seen.
const SUPERVISION: &str = "supervision.jsonl";

/// The files and folders that settings name, without links: a run reads them again when it is resumed.
fn named_in(config: &impl Serialize) -> Result<Vec<PathBuf>, Failure> {
    let settings = serde_json::to_value(config).context(Exit::Failed, "the settings of a run")?;
    let mut named = Vec::new();
    for value in settings.as_object().into_iter().flat_map(|all| all.values()) {
        let texts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        named.extend(texts.iter().filter_map(|text| Path::new(text.as_str()?).canonicalize().ok()));
    }
    Ok(named)
}

/// A run that this process has.
pub struct Run {
    session: Session,
    dir: RunDir,
    resumed: bool,
    started: Instant,
    _taken: Option<Taken>,
}

impl Run {
    /// Its directory.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// Where that is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Whether it was begun before.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Whether this process keeps the run, and writes its files: the only rank, or rank 0.
    pub fn is_first(&self) -> bool {
        self.session.is_first()
    }

    /// Whether a signal has asked for the end.
    pub fn is_stopped(&self) -> bool {
        self.session.signals.stopped()
    }

    /// Joins the other ranks, whose devices must be like this one's, and goes on from the newest checkpoint if the run is resumed. From here on the first
    /// signal ends it after the step in progress.
    ///
    /// # Errors
    /// Checkpoints of which none can be used; a rank that is another run's, or computes in another backend.
    pub fn start<T: Task>(&mut self, learner: &mut Learner<T>, device: &Selected) -> Result<(), Failure> {
        if let Some(Ranks { exchange, .. }) = &self.session.ranks {
            learner.computes_on(device.backend, device.model());
            learner.join(Rc::clone(exchange), &ranks::code(), self.session.limits.clone())?;
            self.resumed = exchange.first(&[self.resumed.into()])? == [1];
            let here = self.session.here;
            if self.session.is_first() && share_card(&self.session.device, device, here) {
                let shared = format!("{here} ranks share {} ({})", device.backend, device.name);
                note(&format!("{shared}: where each can have a card of its own, --device vulkan:rank (cuda:rank, rocm:rank) gives it"));
            }
        }
        if self.resumed {
            learner.resume()?;
        }
        if let Some(orders) = orders::orders() {
            let reason = orders.reason.clone().unwrap_or_default();
            (0..orders.cuts).for_each(|_| learner.cut_batches(&reason));
            if orders.restarts > 0 {
                learner.first_event("restart", json!({ "reason": reason, "restarts": orders.restarts }));
            }
        }
        learner.stop_when(self.session.signals.flag()).incomplete_when(self.session.signals.incomplete());
        self.session.signals.training(self.session.tui);
        self.started = Instant::now();
        Ok(())
    }

    /// Writes `config.yaml` of a new run, and of one that goes on where its files lie now: the settings of `table` and the command line as typed. Checkpoints of a run that lay in its directory
    /// are set aside before, for these are not the settings they were made with; so are its weights, the logs that go on, and what else a run of this program has `made`, by
    /// names in which a `*` stands for anything: what this one does not write would be taken for its own.
    ///
    /// # Errors
    /// When those cannot be set aside, or it cannot be written.
    pub fn record(&self, typed: &[String], table: &[Setting], config: &impl Serialize, made: &[&str]) -> Result<(), Failure> {
        if !self.is_first() {
            return Ok(());
        }
        if self.resumed {
            return record_places(self.path(), config);
        }
        let journal = Journal::open(self.dir.clone())?;
        // One that ended before its first checkpoint has made nothing, and begins anew beside what was set aside then. Logs that cannot be read may be of one
        // that has trained; that they cannot be written either is told by this one, whose training they do not hinder.
        if self.dir.newest_step().is_some() || journal.has_trained().unwrap_or(true) {
            // After a restart it tells of this run.
            let seen = orders::orders().is_none_or(|orders| orders.restarts == 0).then_some(SUPERVISION);
            let aside = self.dir.set_aside(&[&LEFT[..], seen.as_slice(), made].concat(), &named_in(config)?)?;
            if aside > 0 {
                let of_run = format!("{aside} files and folders of the run before in {}", self.path().display());
                say(&format!("{of_run} are set aside: they are called NAME.abandoned, or NAME.abandoned-2 and so on"));
            }
        }
        journal.checkpoints().abandon_after(None)?;
        record_settings(self.path(), &format!("{} {}", self.session.program, typed.join(" ")), table, config)
    }

    /// Tells the log which device it is (`more` is what else was decided about it) and reads its gauges, and lets the dashboard or `console`
    /// watch.
    pub fn watch<T: Task>(&self, learner: &mut Learner<T>, device: &Selected, more: Map<String, Value>, console: impl Observer + 'static) {
        learner.observe(Watch::default());
        let counters = &learner.state().counters;
        if counters.done {
            pulse::over(counters.epochs, counters.batches);
        }
        if !self.is_first() {
            // The words of one that rank 0 has started are rank 0's.
            if place::is_placed() {
                own_words();
            }
            return;
        }
        let about = [("backend", json!(device.backend)), ("name", json!(device.name)), ("fallback", json!(device.fallback))];
        let about: Map<String, Value> = about.map(|(key, value)| (key.to_string(), value)).into_iter().chain(more).collect();
        let telemetry = Telemetry::start(device);
        learner.first_event("device", about.into()).gauges(move || telemetry.latest().gauges());
        if self.session.tui {
            let quit = Interrupter::new();
            let renderer = TuiMetricsRendererWrapper::new(quit.clone(), None);
            learner.stop_on(quit).observe(Dashboard::new(Box::new(renderer)));
            return;
        }
        if !learner.state().counters.done {
            let epochs = learner.state().counters.epochs;
            say(&format!("Logging to {}\nStarting training for {epochs} epochs", self.path().display()));
        }
        learner.observe(console);
        keep_words(self.session.program, self.path());
    }

    /// Whether there is a closing to do after training that ended so; if not, says how to go on. From here on a signal leaves what is not yet
    /// done.
    pub fn close(&self, outcome: Outcome) -> bool {
        if !self.is_first() {
            return false;
        }
        let resume = format!("{} --resume {}", self.session.program, quoted(self.path()));
        match outcome {
            Outcome::Interrupted => {
                pulse::end("stopped");
                say(&format!("Stopped; go on with: {resume}"));
                return false;
            }
            Outcome::NothingToDo => {
                say(&format!("{} is finished: nothing to resume; what its files lack is written", self.path().display()));
            }
            Outcome::Finished | Outcome::EarlyStopped => {}
        }
        pulse::turn_to(Phase::Export);
        self.session.signals.closing(format!("stopped: the training is done and saved; the rest is done by: {resume}"))
    }

    /// A file of the closing work could not be written: a signal does not hide that.
    pub fn lacks_a_file(&self) {
        self.session.signals.lacks_a_file();
    }

    /// The last word, after a closing that came to `closed`; `written` is what became of the files of the run.
    ///
    /// # Errors
    /// Those of both, and if there are two that of the files, whose code says that training is saved.
    pub fn end(&self, closed: Result<(), Failure>, written: Result<(), LearnError>) -> Result<(), Failure> {
        if let Err(unwritten) = written {
            if let Err(error) = closed {
                note(&format!("error: {error}"));
            }
            return Err(unwritten.into());
        }
        closed?;
        say(&format!("Results saved to {} ({:.0} s)", self.path().display(), self.started.elapsed().as_secs_f64()));
        Ok(())
    }
}
