//! What a network costs: a model of the exchange is fitted to measurements of `docs/cluster.sh sums`, checked against those it has not seen and against whole steps
//! of `docs/cluster.sh steps`, and drawn to 64 ranks: `step_time LINKS.csv OUT.png [STEPS.csv...]`, of which the first are those that are drawn.
//!
//! Each of N ranks sends 2 (N - 1) / N of its S bytes, a share of the sum to everyone and its own share's sum back: what an exchange costs in any case (a), what the
//! link carries beside the bytes (b), and what it costs to write numbers as bytes and add them (c), which ranks of one machine do on the same cores. On processors
//! buckets of gradients travel while the backward pass goes on, and c, which takes the cores from that pass, is not hidden.
#![allow(clippy::print_stdout, reason = "it prints a table")]

mod model;

use std::error::Error;
use std::path::Path;

use bellows_plots::{Align, Axes, Canvas, Captions, Style};

use crate::model::{Bucket, Model, Net, Sum};

/// Of the machine that measures.
const CORES: f64 = 2.0;
/// Ranks and links of the drawing, in Gbit/s, each with its colour.
const MOST: usize = 64;
const LINKS: [(f64, [u8; 3]); 3] = [(1.0, [200, 60, 40]), (10.0, [40, 110, 190]), (25.0, [50, 140, 70])];
/// What small messages cost in a drawn step: the token buckets' bursts hide it from the measurement.
const MESSAGES: f64 = 0.5e-3;
/// YOLOv8n's buckets where none were measured, bytes and the share of a pass that is left: by the operations of its convolutions, the backward pass being two thirds.
const YOLO: [(f64, f64); 10] = [
    (1.492e6, 0.642),
    (1.051e6, 0.543),
    (1.442e6, 0.406),
    (1.573e6, 0.380),
    (1.180e6, 0.273),
    (1.245e6, 0.243),
    (1.180e6, 0.223),
    (1.442e6, 0.200),
    (1.081e6, 0.128),
    (0.362e6, 0.0),
];

type Failed = Box<dyn Error>;

fn numbers(line: &str) -> Result<Vec<f64>, Failed> {
    line.split(',').map(|cell| cell.parse::<f64>().map_err(|e| Failed::from(format!("{line}: {e}")))).collect()
}

/// `Mbit/s,ranks,bytes of a number,numbers,seconds`.
fn sum_of(line: &str) -> Result<Sum, Failed> {
    let [mbit, ranks, width, count, seconds] = numbers(line)?[..] else { return Err(format!("five columns are wanted: {line}").into()) };
    Ok(Sum { net: Net { ranks, rate: mbit * 1e6 / 8.0, cores: CORES }, bytes: width * count, seconds })
}

/// `Mbit/s,ranks,forward,backward,update,bytes:left bytes:left ...`; no limit is 0.
fn step_of(line: &str) -> Result<(Net, f64, f64, Vec<Bucket>), Failed> {
    let (times, buckets) = line.rsplit_once(',').ok_or("six columns are wanted")?;
    let [mbit, ranks, forward, backward, update] = numbers(times)?[..] else {
        return Err(format!("six columns are wanted: {line}").into());
    };
    let bucket = |pair: &str| -> Result<Bucket, Failed> {
        let (bytes, left) = pair.split_once(':').ok_or_else(|| format!("no bucket: {pair}"))?;
        Ok(Bucket { bytes: bytes.parse()?, left: left.parse()? })
    };
    let buckets = buckets.split_whitespace().map(bucket).collect::<Result<Vec<_>, _>>()?;
    let rate = if mbit > 0.0 { mbit * 1e6 / 8.0 } else { f64::INFINITY };
    Ok((Net { ranks, rate, cores: CORES }, forward + backward, update, buckets))
}

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [links, out, more @ ..] = &args[..] else { return Err("step_time LINKS.csv OUT.png [STEPS.csv...]".into()) };
    let sums: Vec<Sum> = std::fs::read_to_string(links)?.lines().map(sum_of).collect::<Result<_, _>>()?;
    // Learnt from two ranks, and from the smaller gradients of four; told of the rest.
    let (seen, unseen): (Vec<&Sum>, Vec<&Sum>) = sums.iter().partition(|sum| sum.net.ranks < 3.0 || sum.bytes < 5e6);
    let model = Model::fit(&seen);
    println!("a = {:.1} ms, b = {:.3}, c = {:.2} ns a byte", model.0[0] * 1e3, model.0[1], model.0[2] * 1e9);
    for (what, sums) in [("seen", &seen), ("unseen", &unseen)] {
        for Sum { net, bytes, seconds } in sums {
            let (told, mbit) = (model.seconds(*net, *bytes), net.rate * 8e-6);
            let (ranks, mb, off) = (net.ranks, bytes / 1e6, 100.0 * (told / seconds - 1.0));
            println!("{what}: {mbit:.0} Mbit/s, {ranks} ranks, {mb:.1} MB: {seconds:.3} s, model {told:.3} s ({off:+.0} %)");
        }
    }
    let mut buckets: Vec<Bucket> = YOLO.map(|(bytes, left)| Bucket { bytes, left }).to_vec();
    for (i, path) in more.iter().enumerate() {
        let steps: Vec<_> = std::fs::read_to_string(path)?.lines().map(step_of).collect::<Result<_, _>>()?;
        // What is not exchange is learnt where the link is as fast as the machine; nothing else of a step is.
        let free = steps.iter().find(|(net, ..)| net.rate.is_infinite()).ok_or("no step without a limit (0 Mbit/s)")?;
        if i == 0 {
            buckets.clone_from(&free.3);
        }
        let alone = free.2 - model.exposed(free.0, &free.3, free.1);
        for (net, pass, update, _) in steps.iter().filter(|(net, ..)| net.rate.is_finite()) {
            let exposed = model.exposed(*net, &free.3, free.1);
            let (step, told) = (pass + update, free.1 + alone + exposed);
            let (mbit, ranks, off) = (net.rate * 8e-6, net.ranks, 100.0 * (told / step - 1.0));
            let left = update - alone;
            println!(
                "{path}: {mbit:.0} Mbit/s, {ranks} ranks: {step:.3} s, model {told:.3} s ({off:+.0} %); exposed {left:.3}, model {exposed:.3} s"
            );
        }
    }
    std::fs::write(out, draw(model, &buckets, Path::new(out))?)?;
    Ok(())
}

/// Share of a step that is compute, by ranks, each on a machine of its own: thick as a step is, thin as if nothing were hidden.
fn draw(model: Model, yolo: &[Bucket], out: &Path) -> Result<Vec<u8>, Failed> {
    let mut canvas = Canvas::paper(1380, 420);
    let model = Model([MESSAGES, model.0[1], model.0[2]]);
    // Layers of Qwen2.5-3B, each a bucket; a backward pass that makes no gradients of the weights below is half of one.
    let layers: Vec<Bucket> = (0..36_u32).rev().map(|k| Bucket { bytes: 120e6 / 36.0, left: 0.5 * f64::from(k) / 36.0 }).collect();
    let work = [
        ("YOLOv8n, batch 4, two cores (0.28 s a step)", yolo, 0.28, true),
        ("YOLOv8n, a card ten times as fast (0.03 s)", yolo, 0.03, false),
        ("LoRA of 30 M numbers, processor (2 s a step)", &layers[..], 2.0, true),
    ];
    for (i, (title, buckets, compute, hides)) in work.into_iter().enumerate() {
        let left = 70.0 + 450.0 * i as f64;
        let axes = Axes { frame: ((left, 50.0), (left + 380.0, 350.0)), x: 1.0..MOST as f64, y: 0.0..100.0 };
        let y = if i == 0 { "compute, % of a step" } else { "" };
        axes.draw(&mut canvas, &Captions { title, x: "ranks", y, size: 15.0 }, 6, 5);
        println!("\n{title}: % of a step that is compute, with 2, 4, 8, 16, 32, 64 ranks");
        let bytes: f64 = buckets.iter().map(|bucket| bucket.bytes).sum();
        for (k, (gbit, color)) in LINKS.into_iter().enumerate() {
            let share = |ranks: usize, hides: bool| {
                let net = Net { ranks: ranks as f64, rate: gbit * 1e9 / 8.0, cores: f64::INFINITY };
                let pass = compute + model.0[2] * bytes;
                let step = if hides { pass + model.exposed(net, buckets, pass) } else { compute + model.seconds(net, bytes) };
                if ranks > 1 { 100.0 * compute / step } else { 100.0 }
            };
            for (hides, width) in [(false, 1.0), (hides, 2.0)] {
                axes.line(&mut canvas, (1..=MOST).map(|ranks| (ranks as f64, share(ranks, hides))), color, width);
            }
            // Beside one another, since lines may lie upon each other; the lowest below its line.
            let ranks = (0.25 + 0.3 * k as f64) * MOST as f64;
            let (x, y) = axes.at(ranks, share(ranks as usize, hides));
            let y = if k == 0 { y + 12.0 } else { y - 12.0 };
            canvas.text(&format!("{gbit} Gbit/s"), (x, y), Style::new(14.0, Align::Middle).color(color));
            println!("{gbit:>4} Gbit/s: {}", [2, 4, 8, 16, 32, 64].map(|ranks| format!("{:.0}", share(ranks, hides))).join(" "));
        }
    }
    Ok(canvas.encode(out)?)
}
