//! The probe as seen by the parent: runs the child, tries a crash once more, turns its end into a verdict of one sentence.
//!
//! The verdict is remembered (see `cache.rs`), because a hang costs the user its whole limit.

use crate::adapters::{Adapter, AdapterKind, Backend};
use crate::cache::{self, Key};
use crate::child::Job;
use crate::known_issues::crash_sentence;
use crate::protocol::{Event, Stage};
use crate::watch::{self, End, Run};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How the probe is run. `ProbeOptions::default()` is what users get.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The executable to start as child; `None`: this one. It must route [`crate::PROBE_SUBCOMMAND`] to [`crate::probe_child_main`].
    pub exe: Option<PathBuf>,
    /// Variables to set for the child.
    pub env: Vec<(OsString, OsString)>,
    /// How long one step may take: 15 s. On a software adapter `compile_limit` holds for all steps.
    pub step_limit: Duration,
    /// How long the first step of a stage that compiles and tunes kernels may take: 60 s.
    pub compile_limit: Duration,
    /// Ignore the remembered verdict.
    pub reprobe: bool,
    /// Treat software adapters like hardware. For tests, which have no GPU.
    pub software: bool,
    /// Where verdicts are remembered; `None`: nowhere.
    pub cache_file: Option<PathBuf>,
}

impl Default for ProbeOptions {
    fn default() -> Self {
        Self {
            exe: None,
            env: Vec::new(),
            step_limit: Duration::from_secs(15),
            compile_limit: Duration::from_secs(60),
            reprobe: false,
            software: false,
            cache_file: cache::default_file(),
        }
    }
}

/// Whether an adapter may be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "lowercase")]
pub enum Verdict {
    /// Every stage ended in time with the CPU's numbers.
    Pass,
    /// One did not.
    Fail {
        /// Which.
        stage: Stage,
        /// One sentence.
        reason: String,
    },
}

/// One stage's times and numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageReport {
    /// Which stage.
    pub stage: Stage,
    /// Steps that ended well.
    pub steps: usize,
    /// Seconds they took together, CPU reference included.
    pub seconds: f64,
    /// The largest error, relative to the largest magnitude of the CPU's result; `None` if the stage compares nothing.
    pub max_error: Option<f64>,
}

/// What the probe found out about one adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The adapter.
    pub adapter: Adapter,
    /// The verdict.
    pub verdict: Verdict,
    /// The stages that were begun, in order.
    pub stages: Vec<StageReport>,
    /// 2 if the first child crashed.
    pub attempts: u32,
    /// The last of what the driver wrote to standard error.
    pub stderr: String,
    /// Whether this is a remembered report.
    #[serde(skip)]
    pub cached: bool,
}

impl ProbeReport {
    /// Where the adapter failed and why, in one sentence; `None` if it passed.
    pub fn failure(&self) -> Option<(Stage, &str)> {
        match &self.verdict {
            Verdict::Pass => None,
            Verdict::Fail { stage, reason } => Some((*stage, reason)),
        }
    }
}

/// The adapters of `backend`, listed in a child process; a crash is tried once more.
///
/// # Errors
/// One sentence on how the child ended.
pub(crate) fn list(backend: Backend, options: &ProbeOptions) -> Result<Vec<Adapter>, String> {
    let (run, _) = with_retry(&Job::List(backend), options);
    if run.end != End::Passed {
        return Err(reason(&run));
    }
    let found = run.events.into_iter().find_map(|event| match event {
        Event::Adapters { adapters } => Some(adapters),
        _ => None,
    });
    Ok(found.unwrap_or_default())
}

/// The report on `adapter`: remembered if there is one, else from a probe done now.
pub(crate) fn prove(adapter: &Adapter, options: &ProbeOptions) -> ProbeReport {
    let key = Key::of(adapter, options);
    if let Some(report) = options.cache_file.as_ref().filter(|_| !options.reprobe).and_then(|file| cache::load(file, &key)) {
        return report;
    }
    tracing::info!("probing {adapter}: the first time this takes up to a minute");
    let report = probe(adapter, options);
    if let Some(file) = &options.cache_file
        && let Err(error) = cache::store(file, &key, &report)
    {
        tracing::debug!("the probe's verdict could not be kept in {}: {error}", file.display());
    }
    report
}

fn probe(adapter: &Adapter, options: &ProbeOptions) -> ProbeReport {
    let mut options = options.clone();
    if adapter.kind == AdapterKind::Software {
        // A program tunes each new shape for many seconds.
        options.step_limit = options.compile_limit;
    }
    let (run, attempts) = with_retry(&Job::Probe(adapter.backend, adapter.index), &options);
    if attempts > 1 {
        tracing::warn!("the probe of {adapter} crashed once and was tried again");
    }
    let verdict = match run.end {
        End::Passed => Verdict::Pass,
        _ => Verdict::Fail { stage: run.last_step().0, reason: reason(&run) },
    };
    ProbeReport { adapter: adapter.clone(), verdict, stages: stages(&run.events), attempts, stderr: run.stderr, cached: false }
}

/// Some drivers fail at random while starting up, so a crash is tried once more; hangs and wrong numbers are not.
fn with_retry(job: &Job, options: &ProbeOptions) -> (Run, u32) {
    let first = watch::run(job, options);
    match first.end {
        End::Died(_) | End::Failed(_, true) => (watch::run(job, options), 2),
        _ => (first, 1),
    }
}

fn reason(run: &Run) -> String {
    let step = run.last_step().1;
    match &run.end {
        End::Passed => String::new(),
        End::Hung(limit) => format!("{step}: no answer within {} s", limit.as_secs_f64()),
        End::Failed(reason, false) => format!("{step}: {reason}"),
        End::Failed(cause, true) | End::Died(cause) => format!("{step}: {}", crash_sentence(&run.stderr, cause)),
    }
}

fn stages(events: &[Event]) -> Vec<StageReport> {
    let mut reports: Vec<StageReport> = Vec::new();
    for event in events {
        match event {
            Event::Begin { stage, .. } if reports.last().is_none_or(|last| last.stage != *stage) => {
                reports.push(StageReport { stage: *stage, steps: 0, seconds: 0.0, max_error: None });
            }
            Event::Done { seconds, max_error, .. } => {
                if let Some(report) = reports.last_mut() {
                    report.steps += 1;
                    report.seconds += seconds;
                    report.max_error = max_error.map(|error| report.max_error.unwrap_or(0.0).max(error)).or(report.max_error);
                }
            }
            _ => {}
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_gathers_its_steps() {
        let step = "s".to_owned();
        let begin = |stage| Event::Begin { stage, step: "s".into() };
        let done = |stage, seconds, max_error| Event::Done { stage, step: step.clone(), seconds, max_error };
        let (a, m) = (Stage::Adapter, Stage::Matmul);
        let events = [begin(a), done(a, 1.0, None), begin(m), done(m, 2.0, Some(1e-6)), begin(m), done(m, 3.0, Some(1e-7)), begin(m)];
        let reports = stages(&events);
        assert_eq!(reports[0], StageReport { stage: a, steps: 1, seconds: 1.0, max_error: None });
        assert_eq!(reports[1], StageReport { stage: m, steps: 2, seconds: 5.0, max_error: Some(1e-6) });
    }
}
