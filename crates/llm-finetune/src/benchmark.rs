//! `benchmark`: how fast a LoRA step is here, in the keys that other tools' timers print.

use anyhow::Context;
use bellows_cli::{Usage, join_pool, say};
use bellows_qwen::adapter::Targets;
use bellows_qwen::bench::{Benchmark, Size};

use crate::args::BenchmarkArgs;

pub(crate) fn run(args: &BenchmarkArgs) -> anyhow::Result<()> {
    let least = [("batch", args.batch, 1), ("seq", args.seq, 2), ("rank", args.rank, 1), ("steps", args.steps, 1)];
    if let Some((name, given, least)) = least.into_iter().find(|(_, given, least)| given < least) {
        return Err(Usage(format!("--{name} is {given}, and must be at least {least}")).into());
    }
    join_pool(args.threads)?;
    let device = bellows_device::select(&args.device.parse()?, &bellows_device::ProbeOptions::default())?;
    let what = Benchmark {
        size: Size::named(&args.size).context("clap knows the sizes")?,
        batch: args.batch,
        seq: args.seq,
        rank: args.rank,
        steps: args.steps,
        targets: Targets::parse(&args.targets),
        checkpointing: args.checkpointing,
    };
    let scratch = std::env::temp_dir().join(format!("bellows-benchmark-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let report = what.run(&device.device, &scratch);
    std::fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let report = report?;
    if args.json {
        say(&serde_json::to_string(&report)?);
        return Ok(());
    }
    say(&format!("{} ({}), {} threads, {} {}x{}", device.backend, device.name, report.threads, report.size, report.batch, report.seq));
    let rows = [("forward", report.forward_s), ("backward", report.backward_s), ("update", report.update_s), ("step", report.step_s)];
    rows.iter().for_each(|(name, seconds)| say(&format!("{name:>10} {:>9.1} ms", seconds * 1e3)));
    say(&format!("{:>10} {:>9.1} tokens/s", "training", report.tokens_per_s));
    if let Some(gb) = report.peak_gb {
        say(&format!("{:>10} {gb:>9.2} GB peak", "memory"));
    }
    Ok(())
}
