//! The probe from end to end, with SwiftShader as the GPU and with a child that hangs, crashes and miscalculates.
//!
//! This executable is its own probe child: the parent starts it with the filter `__probe`, which runs the test of that name alone, and
//! the job as a second filter that matches nothing. Tests that need a Vulkan driver take its ICD file from `BELLOWS_SWIFTSHADER` or
//! `VK_DRIVER_FILES` (`.ci/swiftshader` prints one) and say so when they are skipped.

use bellows_device::{
    Conv, DeviceError, DeviceRequest, Heads, LinearMap, Lowering, PROBE_SUBCOMMAND, PathReport, ProbeOptions, Selected, Shape, Stage,
    Storage, Verdict, Work, answer_probe, doctor, select,
};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

const VULKAN: DeviceRequest = DeviceRequest::Vulkan(None);
const VULKAN_0: DeviceRequest = DeviceRequest::Vulkan(Some(0));

/// Where this is set the child is of a program that has forgotten to answer: it adds a line to this file, and comes to `select` as its parent did.
const FORGETFUL: &str = "BELLOWS_TEST_FORGETFUL";

#[test]
fn __probe() {
    let Some(file) = env::var_os(FORGETFUL) else { return answer_probe() };
    let started = fs::read_to_string(&file).unwrap();
    let last = started.lines().count() >= 2;
    fs::write(&file, started + "child\n").unwrap();
    // A chain of children has an end here, for what it is a test of.
    if !last {
        let _ = select(&VULKAN_0, &ProbeOptions::default());
    }
}

/// The stages of a child that proves our convolutions, and of one that proves Burn's on a software adapter.
const GEMM: [Stage; 6] = [Stage::Enumerate, Stage::Adapter, Stage::Upload, Stage::ConvGemm, Stage::TrainGemm, Stage::Time];
const DIRECT: [Stage; 5] = [Stage::Enumerate, Stage::Adapter, Stage::Upload, Stage::ConvDirect, Stage::Matmul];

fn stages(path: &PathReport) -> Vec<Stage> {
    path.stages.iter().map(|stage| stage.stage).collect()
}

/// Generous limits (the machine may be busy), a cache of the test's own, and `fault` in the child.
fn options(folder: &Path, fault: &str) -> ProbeOptions {
    let mut options = ProbeOptions {
        step_limit: Duration::from_secs(120),
        compile_limit: Duration::from_secs(300),
        software_limit: Duration::from_secs(300),
        cache_file: Some(folder.join("probe.json")),
        ..ProbeOptions::default()
    };
    if !fault.is_empty() {
        options.env.push(("BELLOWS_PROBE_FAULT".into(), fault.into()));
    }
    options
}

/// As [`options`], with SwiftShader as the one Vulkan adapter; `None` and a line if there is none.
#[expect(clippy::print_stderr, reason = "a test that is skipped must say so")]
fn swiftshader(folder: &Path, fault: &str) -> Option<ProbeOptions> {
    let Some(icd) = env::var_os("BELLOWS_SWIFTSHADER").or_else(|| env::var_os("VK_DRIVER_FILES")) else {
        eprintln!("skipped: set BELLOWS_SWIFTSHADER or VK_DRIVER_FILES to a Vulkan ICD file (.ci/swiftshader prints one)");
        return None;
    };
    let mut options = options(folder, fault);
    options.env.push(("VK_DRIVER_FILES".into(), icd));
    options.software = true;
    Some(options)
}

/// As [`swiftshader`], asked for our own convolutions and with a verdict on them that is remembered: it was found once for all tests, without the fault, which
/// is to be one that they do not meet.
#[expect(clippy::unwrap_used, reason = "a test in all but its attribute")]
fn proved(folder: &Path, fault: &str) -> Option<ProbeOptions> {
    static REMEMBERED: OnceLock<String> = OnceLock::new();
    let gemm = |folder: &Path, fault: &str| Some(ProbeOptions { lowering: Some(Lowering::Gemm), ..swiftshader(folder, fault)? });
    let options = gemm(folder, fault)?;
    let remembered = REMEMBERED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let options = gemm(folder.path(), "").unwrap();
        assert!(!select(&VULKAN, &options).unwrap().report.unwrap().cached);
        fs::read_to_string(options.cache_file.unwrap()).unwrap()
    });
    let (none, some) = ("\"variables\": {}", "\"variables\": {\n");
    let with = format!("\"variables\": {{ \"BELLOWS_PROBE_FAULT\": \"{fault}\"");
    let of_this = || remembered.replace(none, &format!("{with} }}")).replace(some, &format!("{with},\n"));
    let of_this = if fault.is_empty() { remembered.clone() } else { of_this() };
    fs::write(options.cache_file.as_ref().unwrap(), of_this).unwrap();
    Some(options)
}

#[test]
fn a_device_is_used_with_what_passes_there() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "") else { return };
    let selected = select(&VULKAN, &options).unwrap();
    assert_eq!((selected.backend, selected.fallback), ("vulkan", None));
    assert!(selected.name.contains("SwiftShader"), "{}", selected.name);
    let report = selected.report.unwrap();
    assert!(!report.cached && report.gemm.passed());
    assert_eq!(stages(&report.gemm), GEMM);
    let errors = report.gemm.stages.iter().filter_map(|stage| stage.max_error).collect::<Vec<_>>();
    assert_eq!(errors.len(), 3);
    assert!(errors[0] == 0.0 && errors.iter().all(|error| *error < 1e-5), "{errors:?}");
    // Burn's kernels are not used where ours pass, and so they are not proved there.
    let why = "ours take few launches, and nothing is tuned";
    assert!(matches!(&report.direct.verdict, Verdict::Skipped { reason } if reason.contains(why)), "{report:?}");
    assert_eq!((report.direct.attempts, stages(&report.direct)), (0, Vec::new()));
    assert!(selected.lowering == Lowering::Gemm && selected.lowering_reason.unwrap().contains(why));

    let mut page = Vec::new();
    doctor(&VULKAN_0, &options, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    for words in [
        "SwiftShader",
        "[software], used only if named",
        "remembered",
        "enumerate",
        "conv gemm",
        "train gemm",
        "gemm convolutions: passed",
        "direct convolutions: ours take few launches, and nothing is tuned",
        "ms for a small step of training in f32, the processor",
        "trains on SwiftShader",
        &format!("convolutions: {}", selected.lowering),
    ] {
        assert!(page.contains(words), "no {words:?} in\n{page}");
    }
}

/// A detector needs none of Burn's where there are matrix units either; where it asks for them, they may or may not pass on SwiftShader: CubeCL 0.11.3 emits invalid
/// SPIR-V for shared memory on Vulkan devices without VK_KHR_workgroup_memory_explicit_layout (see `known_issues.rs`), and which of a kernel's variants autotune picks,
/// with shared memory or without, depends on how the machine is loaded.
#[test]
fn burns_convolutions_are_proved_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:adapter") else { return };
    let selected = select(&VULKAN, &options).unwrap();
    let report = selected.report.unwrap();
    assert_eq!(report.matrix_units(), Some(&["16x16x16 f16 f16 f32".to_owned()][..]));
    assert_eq!((selected.lowering, stages(&report.direct)), (Lowering::Gemm, Vec::new()));

    match select(&VULKAN, &ProbeOptions { lowering: Some(Lowering::Direct), ..options }) {
        Ok(selected) => {
            assert_eq!(selected.lowering, Lowering::Direct);
            assert_eq!(stages(&selected.report.unwrap().direct), DIRECT);
        }
        Err(DeviceError::Probe(report)) => {
            let (stage, reason) = report.direct.failure().unwrap();
            assert!(stage >= Stage::ConvDirect && reason.contains("wrong numbers"), "{stage}: {reason}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_verdict_is_remembered_until_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:upload") else { return };
    let probe = |options: &ProbeOptions| select(&DeviceRequest::Auto, options).unwrap().report.unwrap();
    let conv = Conv { maps: [5, 0, 0, 0, 0], c_out: 9, kernel: 3, stride: 1, input: [12, 16], normed: true, images: 1 };
    let of_run = ProbeOptions { shapes: vec![Shape::Conv(conv)], ..options.clone() };
    let first = probe(&of_run);
    assert!(!first.cached && first.failure().unwrap().1.contains("> 0e0"), "{first:?}");

    // Only a run that believes the file can come to this conclusion.
    let file = options.cache_file.clone().unwrap();
    let planted = fs::read_to_string(&file).unwrap().replace(first.failure().unwrap().1, "planted");
    fs::write(&file, planted).unwrap();
    let second = probe(&of_run);
    assert!(second.cached);
    assert_eq!(second.failure().unwrap(), (Stage::Upload, "planted"));
    let error = select(&VULKAN_0, &of_run).unwrap_err().to_string();
    assert!(error.contains("stage upload: planted") && error.contains("`doctor --device vulkan:0 --reprobe` tries again"), "{error}");
    // `doctor` knows no run's convolutions, and the run asks as before.
    assert_eq!(probe(&ProbeOptions { reprobe: true, ..options }).gemm.verdict, first.gemm.verdict);
    let again = probe(&of_run);
    assert!(!again.cached && again.gemm.verdict == first.gemm.verdict, "{again:?}");
}

#[test]
fn a_hang_is_cut_off_and_auto_takes_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut options) = swiftshader(folder.path(), "hang:upload") else { return };
    // Long enough for what comes before it on a busy machine, and waited for once.
    options.software_limit = Duration::from_secs(20);
    let selected = select(&DeviceRequest::Auto, &options).unwrap();
    assert_eq!(selected.backend, "flex");
    let report = selected.report.unwrap();
    assert_eq!(report.failure().unwrap(), (Stage::Upload, "1 MiB there and back: no answer within 20 s"));
    assert_eq!((report.gemm.attempts, report.direct.attempts), (1, 0));
    let reason = selected.fallback.unwrap();
    assert!(reason.contains("vulkan:0 (SwiftShader") && reason.contains("failed the probe at stage upload"), "{reason}");

    let error = select(&VULKAN_0, &options).unwrap_err();
    assert!(matches!(&error, DeviceError::Probe(report) if report.failure().unwrap().0 == Stage::Upload), "{error}");
}

#[test]
fn a_hang_or_crash_while_listing_needs_no_driver_to_be_survived() {
    let folder = tempfile::tempdir().unwrap();
    let hang = ProbeOptions { step_limit: Duration::from_secs(10), ..options(folder.path(), "hang:enumerate") };
    let start = Instant::now();
    let reason = select(&DeviceRequest::Auto, &hang).unwrap().fallback.unwrap();
    assert!(reason.contains("list adapters: no answer within 10 s"), "{reason}");
    // Not a measurement: the hang is endless, and a limit that is not kept must fail.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let crash = options(folder.path(), "crash:enumerate");
    let error = select(&VULKAN, &crash).unwrap_err().to_string();
    assert!(error.contains("listing the vulkan adapters failed") && error.contains("SIGABRT"), "{error}");
}

#[test]
fn a_crash_is_tried_once_more_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "crash:adapter") else { return };
    let report = select(&DeviceRequest::Auto, &options).unwrap().report.unwrap();
    assert_eq!(report.failure().unwrap(), (Stage::Adapter, "open, allocate: the driver aborted (SIGABRT)"));
    assert_eq!((report.gemm.attempts, report.direct.attempts), (2, 0));
}

/// A card whose memory another program has is proved again, as soon as it is asked for.
#[test]
fn memory_that_ran_out_is_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "short:upload") else { return };
    for _ in 0..2 {
        let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &options) else { panic!("there is no memory here") };
        let because = "1 MiB there and back: the GPU ran out of memory; panicked: out of device memory allocating 4096 bytes";
        assert_eq!(report.failure().unwrap(), (Stage::Upload, because));
        assert_eq!((report.gemm.attempts, report.cached), (2, false));
    }
    assert!(!options.cache_file.unwrap().exists());

    // But a hang beside it is not waited for again.
    let Some(mut options) = swiftshader(folder.path(), "short:conv gemm,hang:conv direct") else { return };
    options.software_limit = Duration::from_secs(20);
    for cached in [false, true] {
        let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &options) else {
            panic!("Burn's kernels hang here, and ours find no memory")
        };
        assert_eq!((report.failure().unwrap().0, report.direct.failure().unwrap().0), (Stage::ConvGemm, Stage::ConvDirect));
        assert_eq!(report.cached, cached);
    }
}

/// What a language model gets of SwiftShader when that claims matrix units, Burn's products misbehave as in `fault` and ours do not; `limit` for a step.
#[expect(clippy::unwrap_used, reason = "a test in all but its attribute")]
fn without_burns(fault: &str, limit: Duration) -> Option<Selected> {
    let folder = tempfile::tempdir().unwrap();
    let options = swiftshader(folder.path(), &format!("wrong:adapter,{fault}"))?;
    let options = ProbeOptions { work: Work::LanguageModel, software_limit: limit, ..options };
    let selected = select(&VULKAN, &options).unwrap();
    assert_eq!((selected.backend, &selected.fallback, selected.lowering), ("vulkan", &None, Lowering::Gemm));
    let report = selected.report.as_ref().unwrap();
    assert!(report.gemm.passed() && report.failure().is_none() && report.untuned.is_none(), "{report:?}");
    let common = [Stage::Enumerate, Stage::Adapter, Stage::Upload, Stage::Rows];
    assert_eq!(stages(&report.gemm), [&common[..], &[Stage::ProductsGemm, Stage::LoraGemm, Stage::Time]].concat());
    assert_eq!(stages(&report.direct), [&common[..], &[Stage::ProductsDirect]].concat());
    let (stage, reason) = report.direct.failure().unwrap();
    let because = format!("burn products failed the probe at stage {stage}: {reason}");
    assert_eq!((stage, selected.lowering_reason.as_ref()), (Stage::ProductsDirect, Some(&because)));
    Some(selected)
}

/// What a language model trains with is proved, its products by Burn's kernels and by ours.
#[test]
fn burns_products_that_are_wrong_are_replaced() {
    let Some(selected) = without_burns("wrong:products direct", Duration::from_secs(300)) else { return };
    let reason = selected.lowering_reason.unwrap();
    assert!(reason.contains("wrong numbers: relative error") && reason.contains("> 1e-3"), "{reason}");
    assert_eq!(selected.report.unwrap().direct.attempts, 1);
}

#[test]
fn burns_products_that_crash_are_replaced() {
    let Some(selected) = without_burns("crash:products direct", Duration::from_secs(300)) else { return };
    let reason = selected.lowering_reason.unwrap();
    assert!(reason.ends_with("the driver aborted (SIGABRT)"), "{reason}");
    assert_eq!(selected.report.unwrap().direct.attempts, 2);
}

#[test]
fn burns_products_that_hang_are_replaced() {
    // Long enough for our own kernels on a busy machine, and waited for once.
    let Some(selected) = without_burns("hang:products direct", Duration::from_secs(20)) else { return };
    let reason = selected.lowering_reason.unwrap();
    assert!(reason.ends_with("96x257 . 257x130, both ways: no answer within 20 s"), "{reason}");
    assert_eq!(selected.report.unwrap().direct.attempts, 1);
}

#[test]
fn a_device_that_fails_on_both_paths_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:conv gemm,crash:conv direct") else { return };
    let selected = select(&DeviceRequest::Auto, &options).unwrap();
    assert_eq!((selected.backend, selected.lowering, selected.lowering_reason), ("flex", Lowering::Auto, None));
    let report = selected.report.unwrap();
    let (stage, reason) = report.failure().unwrap();
    assert_eq!((stage, report.gemm.attempts), (Stage::ConvGemm, 1));
    assert!(reason.contains("wrong numbers: relative error") && reason.contains("> 1e-3"), "{reason}");
    let fallback = selected.fallback.unwrap();
    assert!(
        fallback.contains(&format!("at stage conv gemm: {reason}; at stage conv direct: 3x3 s2 3>16 forward: the driver")),
        "{fallback}"
    );

    let mut page = Vec::new();
    doctor(&VULKAN_0, &options, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    for words in ["gemm convolutions: FAILED at conv gemm", "direct convolutions: FAILED at conv direct", "`--device vulkan:0` fails"] {
        assert!(page.contains(words), "no {words:?} in\n{page}");
    }
}

#[test]
fn a_lowering_that_is_asked_for_is_the_only_one_proved() {
    let folder = tempfile::tempdir().unwrap();
    let Some(asked) = proved(folder.path(), "crash:conv direct") else { return };
    let selected = select(&VULKAN, &asked).unwrap();
    assert_eq!((selected.backend, selected.lowering, selected.lowering_reason), ("vulkan", Lowering::Gemm, None));
    let report = selected.report.unwrap();
    assert!(report.cached && report.gemm.passed());
    assert!(matches!(&report.direct.verdict, Verdict::Skipped { reason } if reason.contains("--conv gemm")), "{report:?}");
    assert_eq!((report.direct.attempts, stages(&report.direct)), (0, Vec::new()));

    // What is remembered of one path does not answer for the other.
    let asked = ProbeOptions { lowering: Some(Lowering::Direct), ..asked };
    let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &asked) else { panic!("direct convolutions crash here") };
    assert!(
        !report.cached && matches!(&report.gemm.verdict, Verdict::Skipped { reason } if reason.contains("--conv direct")),
        "{report:?}"
    );
    assert_eq!(report.failure().unwrap().0, Stage::ConvDirect);
}

/// `auto` proves a device, and does not take one that is slower than the processor.
#[test]
fn a_device_that_is_slower_than_the_processor_is_not_taken_unless_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = proved(folder.path(), "") else { return };
    let selected = select(&DeviceRequest::Auto, &options).unwrap();
    assert_eq!(selected.backend, "flex");
    let reason = selected.fallback.unwrap();
    assert!(reason.contains("is slower: ") && reason.contains("`--device vulkan` takes it"), "{reason}");
    let speed = select(&VULKAN, &options).unwrap().speed().unwrap();
    assert!(speed.adapter > speed.processor && reason.contains(&speed.to_string()), "{speed} {reason}");
}

/// A run's own convolutions are proved, one pass after the other, the few smallest on a program; and what is remembered of one size is no answer for another.
#[test]
fn the_shapes_of_the_run_are_proved() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:shapes") else { return };
    let conv = |side: usize| {
        let conv = Conv { maps: [3, 2, 0, 0, 0], c_out: 9, kernel: 3, stride: 2, input: [side, side + 4], normed: true, images: 1 };
        // Of so many images the blocks are others; a program is spared those.
        Shape::Conv(conv.in_batch(if side == 12 { 4096 } else { 1 }))
    };
    let of = |sides: &[usize], options: &ProbeOptions| {
        let shapes = sides.iter().map(|&side| conv(side)).collect();
        ProbeOptions { shapes, lowering: Some(Lowering::Gemm), ..options.clone() }
    };
    let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &of(&[12], &options)) else { panic!("the run's convolutions are wrong here") };
    let (stage, reason) = report.gemm.failure().unwrap();
    assert!(stage == Stage::Shapes && reason.starts_with("3x3 s2 3+2>9 at 16x12 forward, normalised: wrong numbers"), "{stage}: {reason}");

    let options = ProbeOptions { env: options.env.iter().filter(|(name, _)| name != "BELLOWS_PROBE_FAULT").cloned().collect(), ..options };
    let report = |sides: &[usize]| select(&VULKAN, &of(sides, &options)).unwrap().report.unwrap();
    let first = report(&[12, 16, 40, 8]);
    let shapes = first.gemm.stages.iter().find(|stage| stage.stage == Stage::Shapes).unwrap();
    assert!(!first.cached && shapes.steps == 3 * 3 && shapes.max_error.unwrap() <= 1e-5, "{shapes:?}");
    assert!(report(&[16]).cached && report(&[]).cached);

    // The same of a verdict that costs a second.
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:upload") else { return };
    let cached = |sides: &[usize]| {
        let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &of(sides, &options)) else { panic!("the upload is wrong here") };
        report.cached
    };
    assert_eq!([&[12, 16][..], &[16], &[], &[20], &[12, 20]].map(cached), [false, true, true, false, false]);
}

/// So are its heads and its matrices as they are stored: on a program the heads, and of the matrices the smallest.
#[test]
fn the_heads_and_the_storage_of_the_run_are_proved() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "") else { return };
    let map = |sizes, storage| Shape::Map(LinearMap { sizes, storage, rank: 4, rows: 64 });
    let frozen = [Storage::Nf4, Storage::Int8, Storage::Words].map(|storage| map([33, 70], Some(storage)));
    // Q5_0, Q4_K and Q6_K.
    let of_file = [6, 12, 14].map(|id| map([33, 256], Some(Storage::File(id))));
    let prove = |shapes: &[Shape]| {
        let (shapes, lowering, work) = (shapes.to_vec(), Some(Lowering::Gemm), Work::LanguageModel);
        let selected = select(&VULKAN, &ProbeOptions { shapes, lowering, work, ..options.clone() }).unwrap();
        let stages = selected.report.unwrap().gemm.stages;
        stages.into_iter().find(|stage| stage.stage == Stage::Shapes).unwrap()
    };
    let heads = Shape::Attention(Heads::few(14, 2, 64));
    for shapes in [&frozen[..], &of_file, &[map([257, 896], None), frozen[0], map([33, 70], None), heads]] {
        let proved = prove(shapes);
        assert!(proved.steps == 3 * 2 && proved.max_error.unwrap() <= 1e-4, "{proved:?}");
    }
}

/// Where Burn's tuned products crash and ours are wrong, or not asked for, Burn's are tried without their tuning.
#[test]
fn products_are_tried_without_tuning_where_nothing_else_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "wrong:products gemm,crash:products direct") else { return };
    let options = ProbeOptions { work: Work::LanguageModel, ..options };
    let asked = [None, Some(Lowering::Direct)];
    for options in asked.map(|lowering| ProbeOptions { lowering, ..options.clone() }) {
        let selected = select(&VULKAN, &options).unwrap();
        assert_eq!((selected.backend, selected.lowering), ("vulkan", Lowering::Untuned));
        let untuned = selected.report.unwrap().untuned.unwrap();
        assert_eq!(stages(&untuned)[3..], [Stage::Rows, Stage::ProductsUntuned, Stage::LoraUntuned]);
        let reason = selected.lowering_reason.unwrap();
        assert!(reason.contains("burn products failed the probe at stage products direct: "), "{reason}");
        assert_eq!(reason.contains("own products failed"), options.lowering.is_none(), "{reason}");
    }
    let mut broken = ProbeOptions { reprobe: true, ..options };
    broken.env.retain(|(name, _)| name != "BELLOWS_PROBE_FAULT");
    broken.env.push(("BELLOWS_PROBE_FAULT".into(), "wrong:products gemm,crash:products direct,wrong:products untuned".into()));
    let Err(DeviceError::Probe(report)) = select(&VULKAN_0, &broken) else { panic!("all products are wrong here") };
    assert!(report.untuned.is_some_and(|path| path.failure().unwrap().0 == Stage::ProductsUntuned));
}

/// Nothing is timed unless it is asked for; what was found is remembered beside the verdict.
#[test]
fn blocks_are_timed_once_and_only_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = proved(folder.path(), "") else { return };
    let report = |tune| select(&VULKAN, &ProbeOptions { tune, ..options.clone() }).unwrap().report.unwrap();
    let plain = report(false);
    assert!(plain.gemm.tuned.is_none() && stages(&plain.gemm) == GEMM);
    assert!(plain.matrix_units().is_some_and(<[String]>::is_empty));

    let tuned = report(true);
    assert!(!tuned.cached && tuned.gemm.passed());
    assert_eq!(stages(&tuned.gemm), [&GEMM[..5], &[Stage::Tune, Stage::Time]].concat());
    let names: Vec<&str> = tuned.gemm.tuned.iter().flatten().map(|(class, _)| class.as_str()).collect();
    assert_eq!(names, ["thin", "thin-many", "medium", "medium-many", "tall", "tall-many"]);
    let steps = tuned.gemm.stages.iter().find(|stage| stage.stage == Stage::Tune).unwrap();
    // Each class, and then the 13 checks of the path with all sizes.
    assert!(steps.steps == 6 + 13 && steps.max_error.unwrap() <= 1e-3, "{steps:?}");
    for again in [true, false] {
        let remembered = report(again);
        assert!(remembered.cached && remembered.gemm.tuned == tuned.gemm.tuned);
    }
}

/// What cannot be timed is no reason against a device.
#[test]
fn blocks_that_cannot_be_timed_have_the_sizes_of_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = proved(folder.path(), "crash:tune") else { return };
    let report = |options: &ProbeOptions| select(&VULKAN, options).unwrap().report.unwrap();
    // A new probe looks for sizes again where there had been some, of other shapes too.
    let file = options.cache_file.as_ref().unwrap();
    let text = fs::read_to_string(file).unwrap();
    fs::write(file, text.replacen("\"tuned\": null", "\"tuned\": [[\"thin\", [16, 64, 4, 4]]]", 1)).unwrap();
    assert_eq!(report(&options).gemm.tuned, Some(vec![("thin".into(), [16, 64, 4, 4])]));
    let shapes =
        vec![Shape::Conv(Conv { maps: [5, 0, 0, 0, 0], c_out: 9, kernel: 3, stride: 1, input: [12, 16], normed: true, images: 1 })];
    let again = ProbeOptions { reprobe: true, shapes, ..options.clone() };
    let failed = report(&again);
    assert!(!failed.cached && failed.gemm.passed());
    assert_eq!(stages(&failed.gemm), [&GEMM[..5], &[Stage::Shapes, Stage::Time]].concat());
    assert_eq!(failed.gemm.tuned, Some(Vec::new()));
    // Nor is it tried again in each run,
    assert!(report(&ProbeOptions { tune: true, ..options }).cached);
    // or where there had been none.
    assert_eq!(report(&again).gemm.tuned, None);
}

/// A device without f16 is told so, and one that has it is proved in it.
#[test]
fn images_in_f16_are_proved_where_there_is_f16() {
    let folder = tempfile::tempdir().unwrap();
    let Some(options) = swiftshader(folder.path(), "") else { return };
    let options = ProbeOptions { work: Work::HalfDetector, ..options };
    let error = select(&VULKAN, &options).unwrap_err().to_string();
    assert!(error.contains("at stage conv f16: 3x3 s1 16>16 forward: this device does not compute in f16"), "{error}");
    let Some(icd) = env::var_os("BELLOWS_LAVAPIPE") else { return };
    // With the run's own convolutions, all three passes. (A language model's kernels take lavapipe minutes to compile.)
    let shapes =
        vec![Shape::Conv(Conv { maps: [5, 0, 0, 0, 0], c_out: 9, kernel: 3, stride: 1, input: [12, 16], normed: true, images: 1 })];
    let mut options = ProbeOptions { shapes, ..options };
    options.env.push(("VK_DRIVER_FILES".into(), icd));
    let selected = select(&VULKAN, &options).unwrap();
    assert_eq!(selected.lowering, Lowering::Gemm);
    let halves: Vec<_> = selected.report.unwrap().gemm.stages.into_iter().filter(|stage| stage.stage >= Stage::ConvHalf).collect();
    assert!(halves[0].max_error.unwrap() > 1e-5 && halves[1].max_error.unwrap() < 2e-2, "{halves:?}");
    let of_run = halves.iter().find(|stage| stage.stage == Stage::Shapes).unwrap();
    assert!(of_run.steps == 3 && of_run.max_error.unwrap() > 1e-5, "{halves:?}");
}

#[test]
fn software_is_refused_unless_named() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut options) = swiftshader(folder.path(), "crash:upload") else { return };
    options.software = false;
    let error = select(&VULKAN, &options).unwrap_err();
    assert!(matches!(error, DeviceError::SoftwareOnly { .. }), "{error}");
    let reason = select(&DeviceRequest::Auto, &options).unwrap().fallback.unwrap();
    assert!(reason.contains("only software adapters (vulkan:0 (SwiftShader"), "{reason}");
    // Named, it is probed (and fails here, which shows that it was).
    let error = select(&VULKAN_0, &options).unwrap_err();
    assert!(matches!(&error, DeviceError::Probe(report) if report.failure().unwrap().0 == Stage::Upload), "{error}");
    let error = select(&DeviceRequest::Vulkan(Some(7)), &options).unwrap_err().to_string();
    assert!(error.contains("vulkan:7 does not exist; found: vulkan:0"), "{error}");
}

/// As [`options`], without a Vulkan loader.
#[expect(clippy::unwrap_used, reason = "a test in all but its attribute")]
fn without_loader(folder: &Path) -> ProbeOptions {
    // An empty file in front of the real loader cannot be loaded, which is what an absent one looks like.
    fs::write(folder.join("libvulkan.so.1"), "").unwrap();
    fs::write(folder.join("libvulkan.so"), "").unwrap();
    let mut options = options(folder, "");
    options.env.push(("LD_LIBRARY_PATH".into(), folder.into()));
    options
}

#[test]
fn a_child_whose_program_has_forgotten_to_answer_starts_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    fs::write(&started, "").unwrap();
    let mut options = without_loader(folder.path());
    options.env.push((FORGETFUL.into(), started.clone().into()));
    assert!(matches!(select(&VULKAN_0, &options), Err(DeviceError::NoAdapter { .. })));
    assert_eq!(fs::read_to_string(started).unwrap(), "child\n");
}

#[test]
fn without_a_vulkan_loader_auto_takes_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let options = without_loader(folder.path());
    let selected = select(&DeviceRequest::Auto, &options).unwrap();
    assert_eq!(selected.backend, "flex");
    assert!(selected.fallback.unwrap().contains("no vulkan adapter found"));
    assert!(matches!(select(&VULKAN_0, &options), Err(DeviceError::NoAdapter { .. })));
}

#[test]
fn a_child_that_cannot_start_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let options = ProbeOptions { exe: Some(folder.path().join("absent")), ..options(folder.path(), "") };
    let error = select(&VULKAN, &options).unwrap_err().to_string();
    assert!(error.contains("could not be started"), "{error}");
}

#[test]
fn a_child_does_not_outlive_its_parent() {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([PROBE_SUBCOMMAND, "list=vulkan"]).env("BELLOWS_PROBE_FAULT", "hang:enumerate");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // A parent that dies closes the pipe.
    drop(child.stdin.take());
    let start = Instant::now();
    let ended = loop {
        match child.try_wait().unwrap() {
            None if start.elapsed() < Duration::from_secs(60) => thread::sleep(Duration::from_millis(20)),
            status => break status,
        }
    };
    child.kill().ok();
    child.wait().unwrap();
    assert!(ended.is_some(), "the child is still there");
}
