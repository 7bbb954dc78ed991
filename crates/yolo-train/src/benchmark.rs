//! `yolo-train benchmark`: how fast a training step is here, in the keys that other tools' timers print.

use std::time::Duration;

use bellows_cli::{Context, Exit, Failure, Signals, Usage, device_of_rank, join_pool, placed, say, say_bounds, say_launches, scratch};
use bellows_device::{Backend, ProbeOptions, Work, select};
use bellows_kernels::{Lowering, Precision, cube, processor_choices, processor_has_bf16, processor_level, processor_peak, set_keeps};
use bellows_learner::bench::ranks;
use bellows_learner::memory::Place;
use bellows_yolo::bench::LayerTimes;
use bellows_yolo::config::{HALF, OptimizerChoice, STRIDE, TrainConfig};
use bellows_yolo::data::header::MAX_SIDE;
use bellows_yolo::fit::Question;
use bellows_yolo::model::YoloConfig;

use crate::args::BenchmarkArgs;
use crate::run::has_half;

/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &BenchmarkArgs, signals: &Signals) -> Result<(), Failure> {
    let what = args.what;
    if what.batch == 0 || what.classes == 0 || what.steps == 0 || what.imgsz == 0 || !what.imgsz.is_multiple_of(STRIDE) {
        let problem = format!("benchmark: batch, classes and steps are at least 1, imgsz is a positive multiple of {STRIDE}");
        return Err(Usage(problem).into());
    }
    if what.imgsz > MAX_SIDE as usize {
        return Err(Usage(format!("benchmark: imgsz {} is more than {MAX_SIDE} pixels", what.imgsz)).into());
    }
    join_pool(args.threads)?;
    let work = if what.half { Work::HalfDetector } else { Work::Detector };
    let device = select(&device_of_rank(&args.device).parse()?, &ProbeOptions { lowering: Some(args.conv), ..ProbeOptions::of(work) })?;
    if what.half {
        has_half(&device)?;
    }
    device.adopt();
    // Started by mpirun or srun, or with torchrun's variables, this is a rank of several, which time their steps together.
    let others = placed(PATIENCE)?;
    let keeps = keeps(args, ranks(&others), Place::of(&device.device), device.memory);
    set_keeps(keeps);
    cube::set_workspace_mb(args.conv_workspace_mb);
    let (folder, _taken) = scratch(signals)?;
    if args.count {
        let counted = what.count(&device.device, &folder)?;
        return say_launches(&counted, what.half, args.json);
    }
    let report = what.run(&device.device, &folder, others)?;
    let in_bf16 = device.lowering == Lowering::Bf16 && processor_has_bf16();
    let precision = if in_bf16 { Precision::Bf16 } else { Precision::F32 };
    let level = (device.backend == Backend::Flex.name()).then(|| processor_level(precision));
    let peak = level.map(|_| processor_peak(precision) / 1e9);
    let precision = if what.half { HALF } else { precision.name() };
    if args.json {
        let mut report = serde_json::to_value(&report).context(Exit::Failed, "the report as JSON")?;
        report["conv"] = device.lowering.name().into();
        report["conv_reason"] = device.lowering_reason.into();
        report["gradient_checkpointing"] = (!keeps).into();
        report["precision"] = precision.into();
        report["level"] = level.into();
        report["peak_gflops"] = peak.into();
        report["processor"] = device.name.as_str().into();
        say(&report.to_string());
        return Ok(());
    }
    say(&format!("{} ({}), {} threads, batch {}, {} pixels", device.backend, device.name, report.threads, report.batch, report.imgsz));
    say(&format!("precision: {precision}{}", level.map(|level| format!(" by {level}")).unwrap_or_default()));
    if level.is_some() {
        say(&processor_choices());
    }
    let because = device.lowering_reason.as_ref().map(|reason| format!(", because {reason}")).unwrap_or_default();
    say(&format!("convolutions: {}{because}", device.lowering));
    say(&format!("gradient_checkpointing: {}", !keeps));
    let parts = [("forward", report.forward_s), ("backward", report.backward_s)];
    let exchange = Some(("exchange", report.exchange_s)).filter(|(_, seconds)| *seconds > 0.0);
    let rows = parts.into_iter().chain(exchange).chain([("update", report.update_s), ("step", report.step_s)]);
    rows.for_each(|(name, seconds)| say(&format!("{name:>10} {:>9.1} ms", seconds * 1e3)));
    say(&format!(
        "{:>10} {:>9.1} ms of the step: value and gradient over {} classes",
        "class loss",
        report.class_loss_s * 1e3,
        report.classes
    ));
    say(&format!("{:>10} {:>9.2} images/s", "training", report.train_images_per_s));
    say(&format!("{:>10} {:>9.2} images/s", "inference", report.infer_images_per_s));
    say_bounds(&report.bounds, peak);
    if let Some(gb) = report.peak_gb {
        say(&format!("{:>10} {gb:>9.2} GB peak", "memory"));
    }
    let layers = what.layers(&device.device, device.lowering, device.direct_is_proved()).context(Exit::Failed, "timing the layers")?;
    table(&layers, what.batch, peak.map(|peak| (peak * 1e9, precision)));
    Ok(())
}

/// Whether a run on such batches would keep what could be made again in the backward pass, where there are so many bytes.
fn keeps(args: &BenchmarkArgs, ranks: usize, place: Place, memory: Option<u64>) -> bool {
    let what = args.what;
    let BenchmarkArgs { gradient_checkpointing, .. } = *args;
    let (imgsz, batch) = (what.imgsz, what.batch.into());
    let (optimizer, precision) = (OptimizerChoice::SGD, if what.half { HALF } else { Precision::F32.name() }.into());
    let config = TrainConfig {
        imgsz,
        batch,
        ranks,
        optimizer,
        precision,
        nbs: what.batch,
        workers: 0,
        gradient_checkpointing,
        ..TrainConfig::default()
    };
    let mut question = Question::new(config, YoloConfig { scale: what.scale, ..YoloConfig::new(what.classes) }, place, &|_| 0.0);
    question.choose_checkpointing(place.room(memory));
    question.keeps
}

/// One row a shape: milliseconds of the three passes, ours and Burn's own, what that is in operations a second, and the share of the most
/// there could be: `peak`, of a precision, or else what the best of the 1x1 convolutions reaches.
fn table(layers: &[LayerTimes], batch: usize, peak: Option<(f64, &str)>) {
    let flops = |layer: &LayerTimes| layer.convolution.flops() as f64 * batch as f64;
    let rate = |flops: f64, times: &[f64]| flops * times.len() as f64 / times.iter().sum::<f64>();
    let pointwise = layers.iter().filter(|l| l.convolution.k == 1).map(|l| rate(flops(l), &l.ours));
    let (most, share, source) = match peak {
        Some((peak, precision)) => (peak, "of peak", format!("the micro-kernel of {precision} with its operands in the first-level cache")),
        None => {
            let best = "the best 1x1 convolution below; the device's peak is not known";
            (pointwise.fold(0.0, f64::max), "of best", best.to_owned())
        }
    };
    say(&format!("\n100 % is {:.1} GFLOP/s: {source}", most / 1e9));
    let columns = ["forward", "dx", "dw", "GFLOP/s", share, "Burn fwd", "dx", "dw"].map(|c| format!("{c:>9}")).concat();
    say(&format!("{:>28}{columns}   (ms per call)", "in -> out  k s  size   times"));
    let row = |name: String, rate: f64, ours: [f64; 3], burn: Option<[f64; 3]>| {
        let ms = |times: [f64; 3]| times.map(|t| format!("{:>9.2}", t * 1e3)).concat();
        let burn = burn.map_or_else(|| format!("{:>9}", "-").repeat(3), ms);
        say(&format!("{name:>28}{}{:>9.0}{:>7.0} %{burn}", ms(ours), rate / 1e9, 100.0 * rate / most));
    };
    let (mut done, mut ours, mut burn) = (0.0, [0.0; 3], Some([0.0; 3]));
    for (index, layer) in layers.iter().enumerate() {
        let c = &layer.convolution;
        let name = format!("{} -> {}  {} {}  {} x{}", c.cin, c.cout, c.k, c.stride, c.input[0], layer.count);
        row(name, rate(flops(layer), &layer.ours), layer.ours, layer.burn);
        let n = layer.count as f64;
        // No training asks for the gradient of the image.
        let passes: &[usize] = if index == 0 { &[0, 2] } else { &[0, 1, 2] };
        done += n * flops(layer) * passes.len() as f64;
        let add = |mut sum: [f64; 3], times: [f64; 3]| {
            passes.iter().for_each(|&pass| sum[pass] += n * times[pass]);
            sum
        };
        ours = add(ours, layer.ours);
        burn = burn.zip(layer.burn).map(|(sum, times)| add(sum, times));
    }
    row("all but the first dx".into(), done / ours.iter().sum::<f64>(), ours, burn);
}
