//! The probe as seen by the parent: runs a child for each path, tries a crash once more, turns its end into a verdict of one sentence.
//!
//! The verdict is remembered (see `cache.rs`), because a hang costs the user its whole limit; but not, where nothing hung, what memory that another program has, or
//! a process that could not be had, made of it.

use crate::adapter::{Adapter, AdapterKind, Backend};
use crate::cache::{self, Key};
use crate::child::{Job, answer_probe};
use crate::facts::gfx_of_this_machine;
use crate::known_issues::crash_sentence;
use crate::options::{ProbeOptions, Work};
use crate::plan::{Path, Plan};
use crate::protocol::{Event, Stage};
use crate::report::{PathReport, ProbeReport, Speed, StageReport, Verdict};
use crate::watch::{self, End, Run};

/// The adapters of `backend`, listed in a child process; a crash is tried once more.
///
/// # Errors
/// One sentence on how the child ended.
pub(crate) fn list(backend: Backend, options: &ProbeOptions) -> Result<Vec<Adapter>, String> {
    // Every parent begins here, and so does a child whose program has not answered: it must not start another one, which would start another one.
    answer_probe();
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
    let mut plan = Plan::of(adapter, options.work, options.lowering, &gfx_of_this_machine());
    if options.work.of_words() && adapter.kind == AdapterKind::Software && !options.software {
        plan.without_direct = Some("Burn's products are not tried on a software adapter, where tuning them takes minutes".into());
    }
    let key = Key::of(adapter, &plan, options);
    let remembered = options.cache_file.as_ref().and_then(|file| cache::load(file, &key));
    let answers = |report: &ProbeReport| !options.tune || !report.gemm.passed() || report.gemm.tuned.is_some();
    if let Some(report) = remembered.filter(|report| !options.reprobe && answers(report)) {
        return report;
    }
    tracing::info!("probing {adapter}: the first time this takes a minute or two");
    // Sizes that were asked for once are not lost to a new probe, nor to one of other shapes.
    let had_sizes = options.cache_file.as_ref().is_some_and(|file| cache::has_sizes(file, &key));
    let report = probe(adapter, &plan, &ProbeOptions { tune: options.tune || had_sizes, ..options.clone() });
    let remember = |file: &std::path::Path| {
        if options.reprobe {
            cache::forget(file, &key)?;
        }
        if report.lasts() { cache::store(file, &key, &report) } else { Ok(()) }
    };
    if let Some(file) = &options.cache_file
        && let Err(error) = remember(file)
    {
        tracing::debug!("the probe's verdict could not be kept in {}: {error}", file.display());
    }
    report
}

/// What to do about a driver that Burn's own kernels have cost its life.
fn aftermath(work: Work) -> String {
    let flag = if work.of_words() { "--products own" } else { "--conv gemm" };
    let noun = work.noun();
    format!(" (this had passed before Burn's {noun} hung or crashed: reboot, then use `{flag}`, which leaves them out)")
}

fn probe(adapter: &Adapter, plan: &Plan, options: &ProbeOptions) -> ProbeReport {
    let mut options = options.on(adapter.kind);
    let (mut gemm, _) = prove_path(adapter, plan, Path::Gemm, &options);
    // Once is enough: whatever is proved from here on keeps the table's sizes.
    options.tune = false;
    if let Some((Stage::Tune, reason)) = gemm.failure() {
        tracing::warn!("{adapter}: sizes of blocks could not be timed, the table's are used: {reason}");
        let (plain, _) = prove_path(adapter, plan, Path::Gemm, &options);
        let (momentary, hung) = (gemm.momentary || plain.momentary, gemm.hung || plain.hung);
        gemm = PathReport { tuned: Some(Vec::new()), momentary, hung, ..plain };
    }
    // What the plan leaves out has a reason of its own.
    let enough = gemm.suffices(options.work).filter(|_| plan.without(Path::Direct).is_none());
    let direct = match (gemm.failure(), enough) {
        (Some((stage, _)), _) if stage.common() => PathReport::skipped("not tried: the adapter had failed before"),
        (_, Some(reason)) => PathReport::skipped(reason),
        _ => {
            let (direct, violent) = prove_path(adapter, plan, Path::Direct, &options);
            if violent && gemm.passed() {
                // A hang or a crash can cost the driver its life, and what was found out about our kernels was before it.
                tracing::info!(
                    "{adapter} hung or crashed in Burn's own kernels: ours are tried again, to see that the driver has survived"
                );
                let (again, _) = prove_path(adapter, plan, Path::Gemm, &options);
                gemm = PathReport { tuned: gemm.tuned.take(), hung: gemm.hung || again.hung, ..again };
                if let Verdict::Fail { reason, .. } = &mut gemm.verdict {
                    reason.push_str(&aftermath(options.work));
                }
            }
            direct
        }
    };
    // The last resort: what takes the place of Burn's products is ours, and this is for where that is wrong too, or was not asked for.
    let needed = !gemm.passed() && options.work.of_words() && direct.failure().is_some_and(|(stage, _)| !stage.common());
    let untuned = needed.then(|| prove_path(adapter, plan, Path::Untuned, &options).0);
    ProbeReport { adapter: adapter.clone(), work: options.work, gemm, direct, untuned, cached: false }
}

/// The report on one path, and whether it ended in a hang or a crash; nothing is run of what the plan leaves out.
fn prove_path(adapter: &Adapter, plan: &Plan, path: Path, options: &ProbeOptions) -> (PathReport, bool) {
    if let Some(reason) = plan.without(path) {
        return (PathReport::skipped(reason), false);
    }
    let Adapter { backend, index, .. } = *adapter;
    let job = Job::Probe { backend, index, path, work: options.work, tune: options.tune, shapes: options.shapes.clone() };
    let (run, attempts) = with_retry(&job, options);
    if attempts > 1 {
        tracing::warn!("the probe of {adapter} ({path}) crashed once and was tried again");
    }
    let verdict = match run.end {
        End::Passed => Verdict::Pass,
        _ => Verdict::Fail { stage: run.last_step().0, reason: reason(&run) },
    };
    let (hung, momentary) = (matches!(run.end, End::Hung(_)), run.momentary());
    let (stages, speed) = (StageReport::all(&run.events), Speed::of(&run.events, options.work));
    let mut report = PathReport { stages, speed, stderr: run.stderr, momentary, hung, ..PathReport::of(verdict, attempts) };
    for event in run.events {
        match event {
            Event::Units { units } => report.matrix_units = Some(units),
            Event::Tuned { sizes } => report.tuned = Some(sizes),
            _ => {}
        }
    }
    (report, hung || attempts > 1)
}

/// Some drivers fail at random while starting up, so a crash is tried once more; hangs and wrong numbers are not.
fn with_retry(job: &Job, options: &ProbeOptions) -> (Run, u32) {
    let first = watch::run(job, options);
    match first.end {
        End::Died(_) | End::Starved(_) | End::Failed(_, true) => (watch::run(job, options), 2),
        _ => (first, 1),
    }
}

fn reason(run: &Run) -> String {
    let step = run.last_step().1;
    match &run.end {
        End::Passed => String::new(),
        End::Hung(limit) => format!("{step}: no answer within {} s", limit.as_secs_f64()),
        End::Failed(reason, false) => format!("{step}: {reason}"),
        End::Failed(cause, true) | End::Died(cause) | End::Starved(cause) => format!("{step}: {}", crash_sentence(&run.stderr, cause)),
    }
}
