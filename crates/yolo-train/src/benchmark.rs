//! `yolo-train benchmark`: how fast a training step is here, in the keys that other tools' timers print.

use anyhow::Context;
use bellows_cli::{Usage, join_pool, say};
use bellows_device::{ProbeOptions, select};
use bellows_kernels::set_default_lowering;
use bellows_yolo::bench::LayerTimes;

use crate::args::BenchmarkArgs;

pub(crate) fn run(args: &BenchmarkArgs) -> anyhow::Result<()> {
    let what = args.what;
    if what.batch == 0 || what.steps == 0 || what.imgsz == 0 || !what.imgsz.is_multiple_of(32) {
        return Err(Usage("benchmark: batch and steps are at least 1, imgsz is a positive multiple of 32".into()).into());
    }
    join_pool(args.threads)?;
    let device = select(&args.device.parse()?, &ProbeOptions { lowering: Some(args.conv), ..ProbeOptions::default() })?;
    set_default_lowering(device.lowering);
    let scratch = std::env::temp_dir().join(format!("bellows-benchmark-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let report = what.run(&device.device, &scratch);
    std::fs::remove_dir_all(&scratch).with_context(|| scratch.display().to_string())?;
    let report = report?;
    if args.json {
        say(&serde_json::to_string(&report)?);
        return Ok(());
    }
    say(&format!("{} ({}), {} threads, batch {}, {} pixels", device.backend, device.name, report.threads, report.batch, report.imgsz));
    let rows = [("forward", report.forward_s), ("backward", report.backward_s), ("update", report.update_s), ("step", report.step_s)];
    rows.iter().for_each(|(name, seconds)| say(&format!("{name:>10} {:>9.1} ms", seconds * 1e3)));
    say(&format!("{:>10} {:>9.2} images/s", "training", report.train_images_per_s));
    say(&format!("{:>10} {:>9.2} images/s", "inference", report.infer_images_per_s));
    if let Some(gb) = report.peak_gb {
        say(&format!("{:>10} {gb:>9.2} GB peak", "memory"));
    }
    layers(&what.layers(&device.device, device.lowering)?, what.batch);
    Ok(())
}

/// One row a shape: milliseconds of the three passes, ours and Burn's own, and what that is in operations a second.
fn layers(layers: &[LayerTimes], batch: usize) {
    let columns = ["forward", "dx", "dw", "GFLOP/s", "Burn fwd", "dx", "dw"].map(|c| format!("{c:>9}")).concat();
    say(&format!("\n{:>28}{columns}   (ms per call)", "in -> out  k s  size   times"));
    let row = |name: String, flops: f64, ours: [f64; 3], direct: [f64; 3]| {
        let ms = |times: [f64; 3]| times.map(|t| format!("{:>9.2}", t * 1e3)).concat();
        let rate = 3.0 * flops / ours.iter().sum::<f64>() / 1e9;
        say(&format!("{name:>28}{}{rate:>9.0}{}", ms(ours), ms(direct)));
    };
    let (mut flops, mut ours, mut direct) = (0.0, [0.0; 3], [0.0; 3]);
    for layer in layers {
        let c = &layer.convolution;
        let own = c.flops() as f64 * batch as f64;
        row(format!("{} -> {}  {} {}  {} x{}", c.cin, c.cout, c.k, c.stride, c.input[0], layer.count), own, layer.ours, layer.direct);
        let n = layer.count as f64;
        flops += n * own;
        for pass in 0..3 {
            ours[pass] += n * layer.ours[pass];
            direct[pass] += n * layer.direct[pass];
        }
    }
    row("all".into(), flops, ours, direct);
}
