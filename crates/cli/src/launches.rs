//! What `benchmark --count` says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bellows_device::{CARDS, Card, Counted, Done};
use serde_json::{Value, json};

use crate::console::say;
use crate::failure::{Failure, Usage};

/// What a step launches, and what is known of it.
struct Step<'a> {
    counted: &'a Counted,
    /// Bytes and operations of each launch that is known.
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
    let step = Step::new(counted);
    if step.launches == 0 {
        return Err(Usage("benchmark --count: the processor launches nothing; name a GPU with --device".into()).into());
    }
    if json {
        say(&step.json(half).to_string());
        return Ok(());
    }
    by_count(&counted.launches).iter().for_each(|line| say(line));
    say(&format!("{:>6}  launches to a step, which waits for numbers of the device {} times\n", step.launches, counted.reads));
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

/// A line to a kernel, the most frequent first.
fn by_count(launches: &BTreeMap<&'static str, usize>) -> Vec<String> {
    let mut kernels: Vec<_> = launches.iter().collect();
    kernels.sort_by_key(|(name, count)| (Reverse(**count), **name));
    kernels.iter().map(|(name, count)| format!("{count:>6}  {name}")).collect()
}

impl<'a> Step<'a> {
    fn new(counted: &'a Counted) -> Self {
        let known = counted.known();
        let (bytes, flops) = counted.work.values().fold((0, 0), |(bytes, flops), done| (bytes + done.bytes, flops + done.flops));
        Self { counted, known, bytes, flops, launches: counted.launches.values().sum() }
    }

    /// Seconds at best by memory, by arithmetic and by launches, and how many times those of the products alone at 60 % of the peak they are together, unless
    /// only kernels multiply that nobody counts.
    fn on(&self, card: &Card, half: bool) -> ([f64; 3], Option<f64>) {
        let seconds = card.seconds(&self.known, self.launches, half);
        let ratio = || seconds.iter().sum::<f64>() / card.attainable(self.flops, half);
        (seconds, (self.flops > 0).then(ratio))
    }

    fn json(&self, half: bool) -> Value {
        let Counted { launches, unknown, work, reads, .. } = self.counted;
        let work: BTreeMap<_, _> = work.iter().map(|(name, done)| (name, row_json(done))).collect();
        let roofline = |half: bool| {
            let of_card = |card: &Card| {
                let ([memory, arithmetic, launches], ratio) = self.on(card, half);
                json!({ "memory_s": memory, "arithmetic_s": arithmetic, "launches_s": launches, "over_products_at_60_percent": ratio })
            };
            CARDS.iter().map(|card| (card.name, of_card(card))).collect::<BTreeMap<_, _>>()
        };
        let mut all = json!({
            "launches": self.launches, "unknown_launches": self.unknown(), "unknown": unknown,
            "work": work, "bytes": self.bytes, "flops": self.flops, "roofline": roofline(false),
            "sources": CARDS.iter().map(|card| (card.name, [card.rates_from, card.launch_from])).collect::<BTreeMap<_, _>>(),
            "kernels": launches, "reads": reads,
        });
        if half {
            all["roofline_f16"] = json!(roofline(true));
        }
        all
    }

    /// Launches that nobody has told of, of Burn's kernels: bytes and operations of them are in no figure here.
    fn unknown(&self) -> usize {
        self.counted.unknown.values().sum()
    }

    fn said_unknown(&self) -> Vec<String> {
        let unknown = self.unknown();
        let all = format!("{unknown:>6} launches of Burn's kernels: neither bytes nor FLOPs are known, and no figure here has them");
        let said = (unknown > 0).then_some(all);
        said.into_iter().chain(by_count(&self.counted.unknown)).collect()
    }

    /// What each kernel moves and computes, and how many of its workgroups fit.
    fn say_work(&self) {
        say(&format!("{:>6} {:>9} {:>9}  of the kernels that count what they are given", "times", "MB", "GFLOP"));
        let work = &self.counted.work;
        let mut rows: Vec<_> = work.iter().collect();
        rows.sort_by_key(|(_, done)| Reverse(done.bytes));
        let row = |name: &str, launches: usize, bytes: u64, flops: u64| {
            say(&format!("{launches:>6} {:>9.1} {:>9.2}  {name}", bytes as f64 / 1e6, flops as f64 / 1e9));
        };
        rows.iter().for_each(|(name, done)| row(name, done.launches, done.bytes, done.flops));
        row("together", work.values().map(|done| done.launches).sum(), self.bytes, self.flops);
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
            let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
            say(&format!("{:>12}{ms}{ratio:>8}", card.name));
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

    /// A launch of each.
    fn alike(work: &BTreeMap<&'static str, Done>) -> BTreeMap<(&'static str, u64, u64), usize> {
        work.iter().map(|(name, done)| ((*name, done.bytes, done.flops), 1)).collect()
    }

    #[test]
    fn each_launch_is_bound_by_memory_or_by_arithmetic() {
        // On an MI50: 1 ms of memory three times, and 100 ms of f32.
        let alike = BTreeMap::from([(("product", 1_024_000_000, 1_000), 3), (("product", 1_000, 1_330_000_000_000), 1)]);
        let counted = Counted { alike, ..Counted::default() };
        let card = CARDS.into_iter().find(|card| card.name == "MI50").unwrap();
        let [memory, arithmetic, _] = Step::new(&counted).on(&card, false).0;
        assert!((memory - 0.003).abs() < 1e-9 && (arithmetic - 0.1).abs() < 1e-9, "{memory} {arithmetic}");
    }

    #[test]
    fn without_products_that_are_counted_there_is_nothing_to_hold_a_step_against() {
        let counted = Counted { alike: BTreeMap::from([(("copy", 1_024, 0), 1)]), ..Counted::default() };
        let step = Step::new(&counted);
        assert!(CARDS.iter().all(|card| step.on(card, false).1.is_none()));
        assert!(step.json(false)["roofline"]["MI50"]["over_products_at_60_percent"].is_null());
    }

    #[test]
    fn a_step_is_held_against_its_products_at_60_percent() {
        // On an MI50: 1.33 TFLOP are 100 ms of f32, and 1.33 / 26.5 s of f16; 1.024 GB of a kernel that computes nothing are 1 ms.
        let work = BTreeMap::from([
            ("product", Done { launches: 1, flops: 1_330_000_000_000, ..Done::default() }),
            ("copy", Done { launches: 1, bytes: 1_024_000_000, ..Done::default() }),
        ]);
        let counted = Counted { launches: BTreeMap::from([("some", 1000)]), alike: alike(&work), work, ..Counted::default() };
        let step = Step::new(&counted);
        let card = CARDS.into_iter().find(|card| card.name == "MI50").unwrap();
        for (half, products) in [(false, 0.1), (true, 1.33 / 26.5)] {
            let ([memory, arithmetic, launches], ratio) = step.on(&card, half);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            assert!(near(memory, 0.001) && near(arithmetic, products) && near(launches, 1000.0 * card.launch));
            assert!(near(ratio.unwrap(), (0.001 + products + launches) / (products / 0.6)), "{ratio:?}");
        }
        let said = step.json(true);
        assert!(said["roofline_f16"]["MI50"]["arithmetic_s"].as_f64() < said["roofline"]["MI50"]["arithmetic_s"].as_f64());
        assert_eq!(said["sources"]["RX 7900 XT"][1], "ROCm/rocm-systems#10834: 0.88 us through Vulkan on Navi 31");
        assert!(step.json(false).get("roofline_f16").is_none());
    }

    #[test]
    fn launches_that_nothing_is_known_of_are_counted_by_name() {
        let counted = Counted {
            launches: BTreeMap::from([("ours", 5), ("sum", 3), ("fill", 4)]),
            unknown: BTreeMap::from([("sum", 3), ("fill", 4)]),
            work: BTreeMap::from([("product", Done { launches: 5, flops: 1, ..Done::default() })]),
            ..Counted::default()
        };
        let step = Step::new(&counted);
        let said = step.said_unknown();
        assert!(said[0].starts_with("     7 launches of Burn's kernels: "), "{said:?}");
        assert_eq!(said[1..], ["     4  fill", "     3  sum"]);
        let json = step.json(false);
        assert_eq!(
            (&json["unknown_launches"], &json["unknown"], &json["launches"]),
            (&json!(7), &json!({ "fill": 4, "sum": 3 }), &json!(12))
        );
        assert!(Step::new(&Counted { unknown: BTreeMap::new(), ..counted.clone() }).said_unknown().is_empty());
    }
}
