//! What a probe found out: a verdict for each path, and what follows from the two of them for the device.

use crate::adapter::{Adapter, Backend};
use crate::options::Work;
use crate::plan::Path;
use crate::protocol::{Event, Stage};
use bellows_kernels::Lowering;
use bellows_kernels::cube::{Class, Size};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whether a path of an adapter may be trusted.
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
    /// It was not tried.
    Skipped {
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

impl StageReport {
    /// The stages in what a child said.
    pub(crate) fn all(events: &[Event]) -> Vec<Self> {
        let mut reports: Vec<Self> = Vec::new();
        for event in events {
            match event {
                Event::Begin { stage, .. } if reports.last().is_none_or(|last| last.stage != *stage) => {
                    reports.push(Self { stage: *stage, steps: 0, seconds: 0.0, max_error: None });
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
}

/// Seconds of the same small step of training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// On the adapter.
    pub adapter: f64,
    /// On the processor, with all of its threads, in f32.
    pub processor: f64,
    /// Whether the adapter's was in f16.
    pub half: bool,
}

impl Speed {
    /// Whether the adapter loses.
    pub(crate) fn is_slower(&self) -> bool {
        self.adapter > self.processor
    }

    pub(crate) fn of(events: &[Event], work: Work) -> Option<Self> {
        events.iter().find_map(|event| match *event {
            Event::Timed { adapter, processor } => Some(Self { adapter, processor, half: work.half() }),
            _ => None,
        })
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (precision, [adapter, processor]) = (if self.half { "f16" } else { "f32" }, [self.adapter, self.processor].map(|s| s * 1e3));
        write!(f, "{adapter:.1} ms for a small step of training in {precision}, the processor {processor:.1} ms in f32")
    }
}

/// What the probe found out about one way to compute convolutions or products.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// The verdict.
    pub verdict: Verdict,
    /// The stages that were begun, in order.
    pub stages: Vec<StageReport>,
    /// 2 if the first child crashed, 0 if there was none.
    pub attempts: u32,
    /// The last of what the driver wrote to standard error.
    pub stderr: String,
    /// What a small step takes; `None` if it did not come to that.
    pub speed: Option<Speed>,
    /// What the driver says it has for products of small matrices, as `16x16x16 f16 f16 f32`; `None` if it was not asked.
    pub matrix_units: Option<Vec<String>>,
    /// The fastest sizes of blocks by the names of their classes; empty if timing them failed, `None` if it was not tried.
    pub tuned: Option<Vec<(String, Size)>>,
    /// Whether it failed for want of what the machine may have again in a minute, which is no verdict on the adapter.
    #[serde(skip)]
    pub(crate) momentary: bool,
    /// Whether it was waited for in vain, to the end of its limit.
    #[serde(skip)]
    pub(crate) hung: bool,
}

impl PathReport {
    /// What is known before a child has said anything.
    pub(crate) fn of(verdict: Verdict, attempts: u32) -> Self {
        let (stages, stderr) = (Vec::new(), String::new());
        Self { verdict, stages, attempts, stderr, speed: None, matrix_units: None, tuned: None, momentary: false, hung: false }
    }

    pub(crate) fn skipped(reason: &str) -> Self {
        Self::of(Verdict::Skipped { reason: reason.into() }, 0)
    }

    /// Whether every stage ended in time with the CPU's numbers.
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Pass
    }

    /// Why nothing but our own path, of which this is the report, is needed there for this work; `None` if another may be taken.
    pub(crate) fn suffices(&self, work: Work) -> Option<&'static str> {
        let without_units = self.matrix_units.as_ref().is_some_and(Vec::is_empty);
        match (self.passed(), work.of_words()) {
            (true, false) => Some(NOTHING_TUNED),
            (true, true) if without_units => Some(FEWER_LAUNCHES),
            _ => None,
        }
    }

    /// Where it failed and why; `None` if it passed or was not tried.
    pub fn failure(&self) -> Option<(Stage, &str)> {
        match &self.verdict {
            Verdict::Fail { stage, reason } => Some((*stage, reason)),
            Verdict::Pass | Verdict::Skipped { .. } => None,
        }
    }
}

/// What the probe found out about one adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The adapter.
    pub adapter: Adapter,
    /// What it was proved for.
    pub work: Work,
    /// Convolutions as matrix products of our own, and other products by the same kernel.
    pub gemm: PathReport,
    /// Burn's own convolutions and products.
    pub direct: PathReport,
    /// Burn's products without their tuning; `None` where they were not needed.
    pub untuned: Option<PathReport>,
    /// Whether this is a remembered report.
    #[serde(skip)]
    pub cached: bool,
}

impl ProbeReport {
    /// All paths, in the order in which they are tried.
    pub fn paths(&self) -> impl Iterator<Item = (Lowering, &PathReport)> {
        let both = [(Path::Gemm.lowering(), &self.gemm), (Path::Direct.lowering(), &self.direct)];
        both.into_iter().chain(self.untuned.iter().map(|path| (Path::Untuned.lowering(), path)))
    }

    /// Whether it is worth remembering: what failed for want of memory or of a process is no verdict, but a hang would cost its limit again.
    pub(crate) fn lasts(&self) -> bool {
        self.paths().any(|(_, path)| path.hung) || !self.paths().any(|(_, path)| path.momentary)
    }

    /// What a small step takes by the path that is used: Burn's, if nothing else is asked for.
    pub fn speed(&self) -> Option<Speed> {
        let used = match self.lowering()?.0 {
            Lowering::Auto => Lowering::Direct,
            used => used,
        };
        self.paths().find(|(lowering, _)| *lowering == used)?.1.speed
    }

    /// The fastest sizes of blocks, where they were timed.
    pub(crate) fn tuned(&self) -> impl Iterator<Item = (Class, Size)> {
        self.gemm.tuned.iter().flatten().filter_map(|(name, size)| Some((Class::named(name)?, *size)))
    }

    /// What the driver says it has for products of small matrices; `None` if no path came to ask it.
    pub fn matrix_units(&self) -> Option<&[String]> {
        self.gemm.matrix_units.as_deref().or(self.direct.matrix_units.as_deref())
    }

    /// How convolutions and products are to be computed, and why not as usual; `None` if no way is good.
    pub fn lowering(&self) -> Option<(Lowering, Option<String>)> {
        let (work, noun) = (self.work, self.work.noun());
        let why_not = |(lowering, path): (Lowering, &PathReport)| match &path.verdict {
            Verdict::Pass => None,
            Verdict::Fail { stage, reason } => {
                Some(format!("{} {noun} failed the probe at stage {stage}: {reason}", work.name_of(lowering)))
            }
            Verdict::Skipped { reason } => Some(reason.clone()),
        };
        let why = |path: Path, report| why_not((path.lowering(), report));
        match (why(Path::Gemm, &self.gemm), why(Path::Direct, &self.direct)) {
            (None, None) => Some((Lowering::Auto, None)),
            (None, Some(reason)) => Some((Lowering::Gemm, Some(reason))),
            (Some(reason), None) => Some((Lowering::Direct, Some(reason))),
            (Some(_), Some(_)) => {
                self.untuned.as_ref().filter(|path| path.passed())?;
                let failed = self.paths().filter(|(_, path)| path.failure().is_some()).filter_map(why_not);
                Some((Lowering::Untuned, Some(failed.collect::<Vec<_>>().join("; "))))
            }
        }
    }

    /// Where the adapter failed first and why, in one sentence; `None` if one path passed, which is enough.
    pub fn failure(&self) -> Option<(Stage, &str)> {
        if self.paths().any(|(_, path)| path.passed()) { None } else { self.gemm.failure().or(self.direct.failure()) }
    }

    /// Behind what a card is left for: how to ask again, where it is only remembered. Not every verb has a flag for it, and `doctor` forgets for all.
    pub(crate) fn hint(&self) -> String {
        let Adapter { backend, index, .. } = &self.adapter;
        let number = if matches!(backend, Backend::Metal | Backend::WebGpu) { String::new() } else { format!(":{index}") };
        if self.cached {
            format!(" (found by an earlier run; `doctor --device {backend}{number} --reprobe` tries again)")
        } else {
            String::new()
        }
    }

    /// All failures, and then what was not tried, in one sentence.
    pub(crate) fn failures(&self) -> String {
        let (work, noun) = (self.work, self.work.noun());
        let failed = |(_, path): (_, &PathReport)| path.failure().map(|(stage, reason)| format!("at stage {stage}: {reason}"));
        let skipped = |(lowering, path): (Lowering, &PathReport)| match &path.verdict {
            Verdict::Skipped { reason } => Some(format!("{} {noun}: {reason}", work.name_of(lowering))),
            Verdict::Pass | Verdict::Fail { .. } => None,
        };
        self.paths().filter_map(failed).chain(self.paths().filter_map(skipped)).collect::<Vec<_>>().join("; ")
    }
}

/// Without units for products of small matrices Burn's tuned kernels are made of the same instructions as ours, by more launches, and each shape is tuned
/// before it is used: minutes, which a probe of them would spend too (decision 20).
const FEWER_LAUNCHES: &str = "this card has no matrix units: ours take few launches, and nothing is tuned";

/// With such units Burn tunes a detector's 180 passes one by one, some of which give an H200 nothing to say for 15 seconds (decision 20).
const NOTHING_TUNED: &str = "ours take few launches, and nothing is tuned";

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::adapter::{AdapterKind, tests::adapter};

    fn path(verdict: Verdict) -> PathReport {
        PathReport::of(verdict, 1)
    }

    pub(crate) fn report(adapter: &Adapter, gemm: Verdict, direct: Verdict) -> ProbeReport {
        ProbeReport { adapter: adapter.clone(), work: Work::Detector, gemm: path(gemm), direct: path(direct), untuned: None, cached: false }
    }

    #[test]
    fn a_stage_gathers_its_steps() {
        let step = "s".to_owned();
        let begin = |stage| Event::Begin { stage, step: "s".into() };
        let done = |stage, seconds, max_error| Event::Done { stage, step: step.clone(), seconds, max_error };
        let (a, m) = (Stage::Adapter, Stage::Matmul);
        let events = [begin(a), done(a, 1.0, None), begin(m), done(m, 2.0, Some(1e-6)), begin(m), done(m, 3.0, Some(1e-7)), begin(m)];
        let reports = StageReport::all(&events);
        assert_eq!(reports[0], StageReport { stage: a, steps: 1, seconds: 1.0, max_error: None });
        assert_eq!(reports[1], StageReport { stage: m, steps: 2, seconds: 5.0, max_error: Some(1e-6) });
    }

    #[test]
    fn one_good_path_is_enough_and_none_is_not() {
        let card = adapter(0, AdapterKind::Discrete, None);
        let fail = |stage| Verdict::Fail { stage, reason: "1x1: wrong numbers".into() };
        let skipped = || Verdict::Skipped { reason: "known issue".into() };
        let judge = |gemm, direct| {
            let report = report(&card, gemm, direct);
            assert_eq!(report.lowering().is_none(), report.failure().is_some());
            report.lowering()
        };
        let because = |lowering, reason: &str| Some((lowering, Some(reason.to_owned())));
        assert_eq!(judge(Verdict::Pass, Verdict::Pass), Some((Lowering::Auto, None)));
        let reason = "direct convolutions failed the probe at stage conv direct: 1x1: wrong numbers";
        assert_eq!(judge(Verdict::Pass, fail(Stage::ConvDirect)), because(Lowering::Gemm, reason));
        let reason = "gemm convolutions failed the probe at stage train gemm: 1x1: wrong numbers";
        assert_eq!(judge(fail(Stage::TrainGemm), Verdict::Pass), because(Lowering::Direct, reason));
        assert_eq!(judge(Verdict::Pass, skipped()), because(Lowering::Gemm, "known issue"));
        assert_eq!(judge(fail(Stage::ConvGemm), fail(Stage::ConvDirect)), None);
        assert_eq!(judge(fail(Stage::ConvGemm), skipped()), None);
        let failures = report(&card, fail(Stage::ConvGemm), skipped()).failures();
        assert_eq!(failures, "at stage conv gemm: 1x1: wrong numbers; direct convolutions: known issue");
        let failures = report(&card, skipped(), fail(Stage::ConvDirect)).failures();
        assert_eq!(failures, "at stage conv direct: 1x1: wrong numbers; gemm convolutions: known issue");
        // A language model has products, by the names of its own flag.
        let words = |gemm, direct| ProbeReport { work: Work::LanguageModel, ..report(&card, gemm, direct) };
        let reason = "burn products failed the probe at stage products direct: 1x1: wrong numbers";
        assert_eq!(words(Verdict::Pass, fail(Stage::ProductsDirect)).lowering(), because(Lowering::Gemm, reason));
        let failures = words(skipped(), fail(Stage::ProductsDirect)).failures();
        assert_eq!(failures, "at stage products direct: 1x1: wrong numbers; own products: known issue");
    }

    #[test]
    fn our_own_path_suffices_where_it_passed_but_for_words_where_there_are_matrix_units() {
        let of = |work, verdict, units: Option<&[&str]>| {
            let units = units.map(|units| units.iter().map(|unit| (*unit).to_owned()).collect());
            PathReport { matrix_units: units, ..path(verdict) }.suffices(work)
        };
        let with = |verdict, units| of(Work::LanguageModel, verdict, units);
        assert_eq!(of(Work::Detector, Verdict::Pass, Some(&["16x16x16 f16 f16 f32"])), Some(NOTHING_TUNED));
        assert_eq!(with(Verdict::Pass, Some(&[])), Some(FEWER_LAUNCHES));
        assert_eq!(with(Verdict::Pass, Some(&["16x16x16 f16 f16 f32"])), None);
        assert_eq!(with(Verdict::Pass, None), None, "nobody asked");
        let skipped = || Verdict::Skipped { reason: "not asked for".into() };
        for otherwise in [Verdict::Fail { stage: Stage::ConvGemm, reason: "1x1: wrong numbers".into() }, skipped()] {
            assert_eq!(with(otherwise.clone(), Some(&[])), None);
            assert_eq!(of(Work::Detector, otherwise, Some(&[])), None);
        }
        // What is then left out is the reason for the path that is taken, whose speed is the adapter's.
        let card = adapter(0, AdapterKind::Discrete, None);
        let mut report = report(&card, Verdict::Pass, Verdict::Skipped { reason: FEWER_LAUNCHES.into() });
        report.gemm.speed = Some(Speed { adapter: 0.004, processor: 0.02, half: false });
        assert_eq!(report.lowering(), Some((Lowering::Gemm, Some(FEWER_LAUNCHES.into()))));
        assert_eq!(report.speed().unwrap().adapter, 0.004);
    }

    #[test]
    fn products_without_tuning_are_the_last_resort() {
        let card = adapter(0, AdapterKind::Discrete, None);
        let fail = |stage| Verdict::Fail { stage, reason: "1x1: wrong numbers".into() };
        let judge = |gemm, untuned| {
            let words = ProbeReport { work: Work::LanguageModel, ..report(&card, gemm, fail(Stage::ProductsDirect)) };
            let report = ProbeReport { untuned: Some(path(untuned)), ..words };
            assert_eq!(report.lowering().is_none(), report.failure().is_some());
            report.lowering()
        };
        let skipped = || Verdict::Skipped { reason: "not asked for".into() };
        let direct = "burn products failed the probe at stage products direct: 1x1: wrong numbers";
        assert_eq!(judge(skipped(), Verdict::Pass), Some((Lowering::Untuned, Some(direct.into()))));
        let (lowering, reason) = judge(fail(Stage::ProductsGemm), Verdict::Pass).unwrap();
        let both = format!("own products failed the probe at stage products gemm: 1x1: wrong numbers; {direct}");
        assert_eq!((lowering, reason), (Lowering::Untuned, Some(both)));
        assert_eq!(judge(Verdict::Pass, Verdict::Pass).unwrap().0, Lowering::Gemm);
        assert_eq!(judge(skipped(), fail(Stage::ProductsUntuned)), None);
    }

    #[test]
    fn the_faster_path_that_passed_is_the_adapters_speed() {
        let card = adapter(0, AdapterKind::Discrete, None);
        let speed = |adapter| Some(Speed { adapter, processor: 0.02, half: false });
        let mut report = report(&card, Verdict::Pass, Verdict::Pass);
        assert_eq!(report.speed(), None);
        (report.gemm.speed, report.direct.speed) = (speed(0.004), speed(0.001));
        assert_eq!(report.speed(), speed(0.001));
        report.direct.verdict = Verdict::Skipped { reason: "known issue".into() };
        assert_eq!(report.speed(), speed(0.004));
        assert_eq!(speed(0.004).unwrap().to_string(), "4.0 ms for a small step of training in f32, the processor 20.0 ms in f32");
        let half = Speed { half: true, ..speed(0.004).unwrap() };
        assert!(half.to_string().starts_with("4.0 ms for a small step of training in f16, the processor 20.0 ms"), "{half}");
    }
}
