//! `benchmark`: how fast a LoRA step is here, in the keys that other tools' timers print.

use std::time::Duration;

use bellows_cli::{Context, Exit, Failure, Signals, Usage, device_of_rank, join_pool, placed, say, say_bounds, say_launches, scratch};
use bellows_device::ProbeOptions;
use bellows_qwen::adapter::Targets;
use bellows_qwen::bench::{Benchmark, Size};
use bellows_qwen::checkpointing::Checkpointing;
use bellows_qwen::config::SftConfig;
use bellows_qwen::memory::Place;
use bellows_qwen::precision::RunPrecision;
use bellows_qwen::speed::{processor_choices, processor_peak};
use bellows_qwen::storage::BaseDtype;
use serde_json::Value;

use crate::args::BenchmarkArgs;
use crate::prove::{has_numbers, of_run, prove};

/// How long ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a device is to prove before steps of a model of this size are timed on it: what a run of them asks.
fn asked(size: Size, of: SftConfig) -> ProbeOptions {
    of_run(&of, Some(&size.shape()))
}

pub(crate) fn run(args: &BenchmarkArgs, signals: &Signals) -> Result<(), Failure> {
    let least = [("batch", args.batch, 1), ("seq", args.seq, 2), ("rank", args.rank, 1), ("steps", args.steps, 1)];
    if let Some((name, given, least)) = least.into_iter().find(|(_, given, least)| given < least) {
        return Err(Usage(format!("--{name} is {given}, and must be at least {least}")).into());
    }
    join_pool(args.threads)?;
    let precision =
        RunPrecision::named(&args.precision).ok_or_else(|| Usage(format!("benchmark: there is no precision {}", args.precision)))?;
    let base_dtype = args.base_dtype.parse::<BaseDtype>().map_err(|e| Usage(format!("benchmark: {e}")))?;
    let size = Size::named(&args.size).ok_or_else(|| Usage(format!("benchmark: there is no size {}", args.size)))?;
    let (batch_size, max_seq_length, r, products) = (args.batch, args.seq, args.rank, args.products);
    let asked = asked(size, SftConfig { precision, base_dtype, products, batch_size, max_seq_length, r, ..SftConfig::default() });
    let device = bellows_device::select(&device_of_rank(&args.device).parse()?, &asked)?;
    device.adopt();
    let what = Benchmark {
        size,
        batch: args.batch,
        seq: args.seq,
        rank: args.rank,
        steps: args.steps,
        targets: Targets::parse(&args.targets),
        checkpointing: Checkpointing::try_from(Value::from(args.checkpointing.as_str()))
            .map_err(|e| Usage(format!("--checkpointing {e}")))?,
        precision,
        base_dtype: precision.base_dtype(base_dtype, &args.size, Place::of(&device.device)),
    };
    has_numbers(what.precision, &device)?;
    if device.is_accelerator() {
        prove(&what.one_layer(&device.device)?, &size.shape(), what.precision, &device, false)?;
    }
    let (folder, _taken) = scratch(signals)?;
    if args.count {
        let counted = what.count(&device.device, &folder)?;
        return say_launches(&counted, what.precision.is_f16(), args.json);
    }
    // Started by mpirun or srun, or with torchrun's variables, this is a rank of several, which time their steps together.
    let report = what.run(&device.device, &folder, placed(PATIENCE)?)?;
    let precision = what.precision.instead(&device.device).unwrap_or(what.precision.name());
    let level = (!device.is_accelerator()).then_some(report.level);
    let peak = level.map(|_| processor_peak(what.precision.of_products()) / 1e9);
    if args.json {
        let mut report = serde_json::to_value(&report).context(Exit::Failed, "the report as JSON")?;
        report["precision"] = precision.into();
        report["level"] = level.into();
        report["peak_gflops"] = peak.into();
        report["processor"] = device.name.as_str().into();
        say(&report.to_string());
        return Ok(());
    }
    say(&format!("{} ({}), {} threads, {} {}x{}", device.backend, device.name, report.threads, report.size, report.batch, report.seq));
    say(&format!("precision: {precision}{}", level.map(|level| format!(" by {level}")).unwrap_or_default()));
    if level.is_some() {
        say(&processor_choices());
    }
    let parts = [("forward", report.forward_s), ("backward", report.backward_s)];
    let exchange = Some(("exchange", report.exchange_s)).filter(|(_, seconds)| *seconds > 0.0);
    let rows = parts.into_iter().chain(exchange).chain([("update", report.update_s), ("step", report.step_s)]);
    rows.for_each(|(name, seconds)| say(&format!("{name:>10} {:>9.1} ms", seconds * 1e3)));
    say(&format!("{:>10} {:>9.1} tokens/s", "training", report.tokens_per_s));
    say_bounds(&report.bounds, peak);
    if let Some(gb) = report.peak_gb {
        say(&format!("{:>10} {gb:>9.2} GB peak", "memory"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellows_device::Work;

    #[test]
    fn a_device_proves_what_is_timed() {
        let of = |precision| asked(Size::named("tiny").unwrap(), SftConfig { precision, r: 4, ..SftConfig::default() });
        let [half, whole] = [RunPrecision::Fp16, RunPrecision::F32].map(of);
        assert_eq!([half.work, whole.work], [Work::HalfLanguageModel, Work::LanguageModel]);
        assert!(!half.shapes.is_empty() && !whole.shapes.is_empty() && half.shapes != whole.shapes, "{:?}", half.shapes);
    }
}
