//! What `benchmark --count` says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bellows_device::{CARDS, Card, Counted, Done};
use serde_json::{Value, json};

use crate::console::say;
use crate::failure::{Failure, Usage};

/// What a step launches, and what is known of it.
struct Step<'a> {
    work: &'a BTreeMap<&'static str, Done>,
    /// Bytes and operations of each kernel of ours.
    known: Vec<(u64, u64)>,
    bytes: u64,
    flops: u64,
    launches: usize,
}

/// Says how often a training step launches each kernel, the most frequent first, and waits for the device, what kernels of ours move and compute, how many of
/// their workgroups fit a compute unit, and what that would take on some cards at best, of a step with images or factors in f16 (`half`) in f16 too; or one
/// JSON object of it.
///
/// # Errors
/// There are no launches: that was no GPU.
pub fn say_launches(counted: &Counted, half: bool, json: bool) -> Result<(), Failure> {
    let Counted { launches, work, reads } = counted;
    let total: usize = launches.values().sum();
    if total == 0 {
        return Err(Usage("benchmark --count: the processor launches nothing; name a GPU with --device".into()).into());
    }
    let step = Step::new(work, total);
    if json {
        let mut all = step.json(half);
        all["kernels"] = json!(launches);
        all["reads"] = (*reads).into();
        say(&all.to_string());
        return Ok(());
    }
    let mut kernels: Vec<(&&str, &usize)> = launches.iter().collect();
    kernels.sort_by_key(|(name, count)| (Reverse(**count), **name));
    kernels.iter().for_each(|(name, count)| say(&format!("{count:>6}  {name}")));
    say(&format!("{total:>6}  launches to a step, which waits for numbers of the device {reads} times\n"));
    step.say_work();
    step.say_roofline(false);
    if half {
        step.say_roofline(true);
    }
    say(
        "\nwhere the figures of the cards are from (what a launch takes on the host besides, 24 to 36 us through WebGPU's checks on Vulkan",
    );
    say("by arXiv 2604.02344, goes on beside the card's work):");
    CARDS.iter().for_each(|card| say(&format!("{:>12}  {}; {}", card.name, card.rates_from, card.launch_from)));
    Ok(())
}

impl<'a> Step<'a> {
    fn new(work: &'a BTreeMap<&'static str, Done>, launches: usize) -> Self {
        let known: Vec<(u64, u64)> = work.values().map(|done| (done.bytes, done.flops)).collect();
        let (bytes, flops) = known.iter().fold((0, 0), |(bytes, flops), more| (bytes + more.0, flops + more.1));
        Self { work, known, bytes, flops, launches }
    }

    /// Seconds at best by memory, by arithmetic and by launches, and how many times those of the products alone at 60 % of the peak they are together.
    fn on(&self, card: &Card, half: bool) -> ([f64; 3], f64) {
        let seconds = card.seconds(&self.known, self.launches, half);
        (seconds, seconds.iter().sum::<f64>() / card.attainable(self.flops, half))
    }

    fn json(&self, half: bool) -> Value {
        let work: BTreeMap<_, _> = self.work.iter().map(|(name, done)| (name, row_json(done))).collect();
        let roofline = |half: bool| {
            let of_card = |card: &Card| {
                let ([memory, arithmetic, launches], ratio) = self.on(card, half);
                json!({ "memory_s": memory, "arithmetic_s": arithmetic, "launches_s": launches, "over_products_at_60_percent": ratio })
            };
            CARDS.iter().map(|card| (card.name, of_card(card))).collect::<BTreeMap<_, _>>()
        };
        let mut all = json!({
            "launches": self.launches, "unknown_launches": self.unknown(), "work": work, "bytes": self.bytes, "flops": self.flops,
            "roofline": roofline(false),
            "sources": CARDS.iter().map(|card| (card.name, [card.rates_from, card.launch_from])).collect::<BTreeMap<_, _>>(),
        });
        if half {
            all["roofline_f16"] = json!(roofline(true));
        }
        all
    }

    /// Launches of kernels that do not say what they are given, Burn's: bytes and operations of them are in no figure here.
    fn unknown(&self) -> usize {
        self.launches.saturating_sub(self.work.values().map(|done| done.launches).sum())
    }

    fn said_unknown(&self) -> Option<String> {
        let unknown = self.unknown();
        (unknown > 0)
            .then(|| format!("{unknown:>6} launches of Burn's kernels: neither bytes nor FLOPs are known, and no figure here has them"))
    }

    /// What each kernel moves and computes, and how many of its workgroups fit.
    fn say_work(&self) {
        say(&format!("{:>6} {:>9} {:>9}  of the kernels that count what they are given", "times", "MB", "GFLOP"));
        let mut rows: Vec<_> = self.work.iter().collect();
        rows.sort_by_key(|(_, done)| Reverse(done.bytes));
        let row = |name: &str, launches: usize, bytes: u64, flops: u64| {
            say(&format!("{launches:>6} {:>9.1} {:>9.2}  {name}", bytes as f64 / 1e6, flops as f64 / 1e9));
        };
        rows.iter().for_each(|(name, done)| row(name, done.launches, done.bytes, done.flops));
        row("together", self.work.values().map(|done| done.launches).sum(), self.bytes, self.flops);
        self.said_unknown().iter().for_each(|line| say(line));
        rows.retain(|(_, done)| done.shared + done.registers > 0);
        if rows.is_empty() {
            return;
        }
        say(
            "\nworkgroups that a compute unit holds at a time, by KB of shared memory and of registers (those that a kernel needs; what a driver's",
        );
        say("compiler takes besides, only the driver knows, and then fewer fit)");
        say(&format!("{:>6} {:>6}{}", "shared", "reg", CARDS.map(|card| format!("{:>12}", card.name)).concat()));
        for (name, done) in rows {
            let each = CARDS.map(|card| format!("{:>12}", card.workgroups(done.shared, done.registers).unwrap_or_default())).concat();
            say(&format!("{:>6.1} {:>6.1}{each}  {name}", done.shared as f64 / 1024.0, done.registers as f64 / 1024.0));
        }
    }

    /// A line to a card.
    fn say_roofline(&self, half: bool) {
        let by = if half { "in f16" } else { "in f32, to which our kernels widen what they multiply" };
        say(&format!("\nat best, by specification (ms): memory, arithmetic {by}, launches, together; and that"));
        say("over the products' operations alone at 60 % of that peak");
        for card in &CARDS {
            let (seconds, ratio) = self.on(card, half);
            let ms = seconds.into_iter().chain([seconds.iter().sum()]).map(|s| format!("{:>9.1}", s * 1e3)).collect::<String>();
            say(&format!("{:>12}{ms}{ratio:>8.2}", card.name));
        }
    }
}

fn row_json(done: &Done) -> Value {
    let &Done { launches, bytes, flops, shared, registers } = done;
    json!({ "launches": launches, "bytes": bytes, "flops": flops, "shared_bytes": shared, "register_bytes": registers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_held_against_its_products_at_60_percent() {
        // On an MI50: 1.33 TFLOP are 100 ms of f32, and 1.33 / 26.5 s of f16; 1.024 GB of a kernel that computes nothing are 1 ms.
        let work = BTreeMap::from([
            ("product", Done { launches: 1, flops: 1_330_000_000_000, ..Done::default() }),
            ("copy", Done { launches: 1, bytes: 1_024_000_000, ..Done::default() }),
        ]);
        let step = Step::new(&work, 1000);
        let card = CARDS.into_iter().find(|card| card.name == "MI50").unwrap();
        for (half, products) in [(false, 0.1), (true, 1.33 / 26.5)] {
            let ([memory, arithmetic, launches], ratio) = step.on(&card, half);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(near(memory, 0.001) && near(arithmetic, products) && near(launches, 1000.0 * card.launch));
            assert!(near(ratio, (0.001 + products + launches) / (products / 0.6)), "{ratio}");
        }
        let said = step.json(true);
        assert!(said["roofline_f16"]["MI50"]["arithmetic_s"].as_f64() < said["roofline"]["MI50"]["arithmetic_s"].as_f64());
        assert_eq!(said["sources"]["RX 7900 XT"][1], "ROCm/rocm-systems#10834: 0.88 us through Vulkan on Navi 31");
        assert!(step.json(false).get("roofline_f16").is_none());
    }

    #[test]
    fn launches_that_nothing_is_known_of_are_counted() {
        let work = BTreeMap::from([
            ("product", Done { launches: 3, flops: 1, ..Done::default() }),
            ("copy", Done { launches: 2, ..Done::default() }),
        ]);
        let step = Step::new(&work, 12);
        assert!(step.said_unknown().is_some_and(|line| line.starts_with("     7 launches of Burn's kernels: ")));
        assert_eq!(step.json(false)["unknown_launches"], 7);
        assert_eq!(Step::new(&work, 5).said_unknown(), None);
    }
}
