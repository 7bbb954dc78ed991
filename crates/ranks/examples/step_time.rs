//! What a network costs: a model of the exchange is fitted to measurements of `docs/cluster.sh`, checked against those it has not seen, and drawn to
//! 64 ranks: `step_time LINKS.csv OUT.png`.
//!
//! Each of N ranks sends 2 (N - 1) / N of its S bytes, a share of the sum to everyone and its own share's sum back, so with links of R bytes a second
//! `t = a + b 2 (N - 1) / N S / R + c S max(1, N / cores)`: what an exchange costs in any case, what the link carries beside the bytes, and what it
//! costs to write numbers as bytes and add them, which ranks of one machine do on the same cores.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::error::Error;
use std::path::Path;

use bellows_plots::{Align, Axes, Canvas, Captions, Style};

/// Of the machine that measures.
const CORES: f64 = 2.0;
/// Ranks and links of the drawing, in Gbit/s, each with its colour.
const MOST: usize = 64;
const LINKS: [(f64, [u8; 3]); 3] = [(1.0, [200, 60, 40]), (10.0, [40, 110, 190]), (25.0, [50, 140, 70])];
/// What small messages cost in a drawn step: the buckets' bursts hide it from the measurement.
const MESSAGES: f64 = 0.5e-3;
/// What steps, bytes of its gradients, and seconds of compute.
const WORK: [(&str, f64, f64); 3] = [
    ("YOLOv8n, batch 4, two cores (0.28 s a step)", 12.05e6, 0.28),
    ("YOLOv8n, a card ten times as fast (0.03 s)", 12.05e6, 0.03),
    ("LoRA of 30 M numbers (2 s a step)", 120e6, 2.0),
];

struct Row {
    rate: f64,
    ranks: f64,
    bytes: f64,
    seconds: f64,
}

impl Row {
    fn of(line: &str) -> Result<Self, Box<dyn Error>> {
        let numbers: Vec<f64> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let [mbit, ranks, width, numbers, seconds] = numbers[..] else { return Err(format!("five columns are wanted: {line}").into()) };
        Ok(Self { rate: mbit * 1e6 / 8.0, ranks, bytes: width * numbers, seconds })
    }

    /// What a, b and c are multiplied by.
    fn terms(&self, cores: f64) -> [f64; 3] {
        [1.0, 2.0 * (self.ranks - 1.0) / self.ranks * self.bytes / self.rate, self.bytes * (self.ranks / cores).max(1.0)]
    }
}

/// Least squares of relative errors: the normal equations of three unknowns, by elimination.
fn fit(rows: &[&Row]) -> [f64; 3] {
    let mut m = [[0.0; 4]; 3];
    for row in rows {
        let t = row.terms(CORES).map(|term| term / row.seconds);
        for i in 0..3 {
            (0..3).for_each(|j| m[i][j] += t[i] * t[j]);
            m[i][3] += t[i];
        }
    }
    for i in 0..3 {
        let pivot = m[i];
        for (_, row) in m.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let by = row[i] / pivot[i];
            (0..4).for_each(|k| row[k] -= by * pivot[k]);
        }
    }
    [0, 1, 2].map(|i| m[i][3] / m[i][i])
}

fn seconds(model: [f64; 3], row: &Row, cores: f64) -> f64 {
    row.terms(cores).iter().zip(model).map(|(term, by)| term * by).sum()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [links, out] = &args[..] else { return Err("step_time LINKS.csv OUT.png".into()) };
    let rows: Vec<Row> = std::fs::read_to_string(links)?.lines().map(Row::of).collect::<Result<_, _>>()?;
    // Learnt from two ranks, and from the smaller gradients of four; told of the rest.
    let (seen, unseen): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.ranks < 3.0 || row.bytes < 5e6);
    let model = fit(&seen);
    println!("a = {:.1} ms, b = {:.3}, c = {:.2} ns a byte", model[0] * 1e3, model[1], model[2] * 1e9);
    for (what, rows) in [("seen", &seen), ("unseen", &unseen)] {
        for row in rows {
            let told = seconds(model, row, CORES);
            let Row { rate, ranks, bytes, .. } = row;
            let (mbit, mb, off) = (rate * 8e-6, bytes / 1e6, 100.0 * (told / row.seconds - 1.0));
            println!("{what}: {mbit:.0} Mbit/s, {ranks} ranks, {mb:.1} MB: {:.3} s, model {told:.3} s ({off:+.0} %)", row.seconds);
        }
    }
    std::fs::write(out, draw(model, Path::new(out))?)?;
    Ok(())
}

/// Share of a step that is compute, by ranks, each on a machine of its own.
fn draw(model: [f64; 3], out: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut canvas = Canvas::paper(1380, 420);
    let model = [MESSAGES, model[1], model[2]];
    for (i, (title, bytes, compute)) in WORK.into_iter().enumerate() {
        let left = 70.0 + 450.0 * i as f64;
        let axes = Axes { frame: ((left, 50.0), (left + 380.0, 350.0)), x: 1.0..MOST as f64, y: 0.0..100.0 };
        let y = if i == 0 { "compute, % of a step" } else { "" };
        axes.draw(&mut canvas, &Captions { title, x: "ranks", y, size: 15.0 }, 6, 5);
        println!("\n{title}: % of a step that is compute, with 2, 4, 8, 16, 32, 64 ranks");
        for (k, (gbit, color)) in LINKS.into_iter().enumerate() {
            let share = |ranks: usize| {
                let row = Row { rate: gbit * 1e9 / 8.0, ranks: ranks as f64, bytes, seconds: 0.0 };
                let exchange = if ranks > 1 { seconds(model, &row, f64::INFINITY) } else { 0.0 };
                100.0 * compute / (compute + exchange)
            };
            axes.line(&mut canvas, (1..=MOST).map(|ranks| (ranks as f64, share(ranks))), color, 2.0);
            // Above its line, but for the one that has another above it.
            let (x, y) = axes.at(0.8 * MOST as f64, share(MOST));
            let y = if k == 1 { y + 12.0 } else { y - 12.0 };
            canvas.text(&format!("{gbit} Gbit/s"), (x, y), Style::new(14.0, Align::Middle).color(color));
            println!("{gbit:>4} Gbit/s: {}", [2, 4, 8, 16, 32, 64].map(|ranks| format!("{:.0}", share(ranks))).join(" "));
        }
    }
    Ok(canvas.encode(out)?)
}
