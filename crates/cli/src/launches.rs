//! What `benchmark --count` says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bellows_device::CARDS;
use serde_json::json;

use crate::console::say;
use crate::failure::{Failure, Usage};

/// Says how often a training step launches each kernel, the most frequent first, what those of ours (`work`: launches, bytes and FLOPs by
/// name) move and compute, and what that would take on some cards at best; or one JSON object of it.
///
/// # Errors
/// There are no launches: that was no GPU.
pub fn say_launches(
    launches: &BTreeMap<&'static str, usize>,
    work: &BTreeMap<&'static str, (usize, u64, u64)>,
    json: bool,
) -> Result<(), Failure> {
    let total: usize = launches.values().sum();
    if total == 0 {
        return Err(Usage("benchmark --count: the processor launches nothing; name a GPU with --device".into()).into());
    }
    let known: Vec<(u64, u64)> = work.values().map(|&(_, bytes, flops)| (bytes, flops)).collect();
    let (bytes, flops) = known.iter().fold((0, 0), |(bytes, flops), more| (bytes + more.0, flops + more.1));
    let ours: usize = work.values().map(|(launches, ..)| launches).sum();
    let cards = CARDS.map(|card| (card, card.seconds(&known, total)));
    if json {
        let work: BTreeMap<_, _> = work
            .iter()
            .map(|(name, (launches, bytes, flops))| (name, json!({ "launches": launches, "bytes": bytes, "flops": flops })))
            .collect();
        let cards: BTreeMap<_, _> = cards.iter().map(|(card, seconds)| (card.name, seconds.iter().sum::<f64>())).collect();
        say(&json!({ "launches": total, "kernels": launches, "work": work, "bytes": bytes, "flops": flops, "roofline_s": cards })
            .to_string());
        return Ok(());
    }
    let mut kernels: Vec<(&&str, &usize)> = launches.iter().collect();
    kernels.sort_by_key(|(name, count)| (Reverse(**count), **name));
    kernels.iter().for_each(|(name, count)| say(&format!("{count:>6}  {name}")));
    say(&format!("{total:>6}  launches to a step\n"));
    say(&format!("{:>6} {:>9} {:>9}  of the kernels that count what they are given", "times", "MB", "GFLOP"));
    let mut rows: Vec<_> = work.iter().collect();
    rows.sort_by_key(|(_, (_, bytes, _))| Reverse(*bytes));
    let row = |name: &str, launches: usize, bytes: u64, flops: u64| {
        say(&format!("{launches:>6} {:>9.1} {:>9.2}  {name}", bytes as f64 / 1e6, flops as f64 / 1e9));
    };
    rows.iter().for_each(|(name, (launches, bytes, flops))| row(name, *launches, *bytes, *flops));
    row("together", ours, bytes, flops);
    say("\nat best, by specification (ms): memory, arithmetic in f32, launches of 5 us each");
    for (card, [memory, arithmetic, launching]) in cards {
        let ms = [memory, arithmetic, launching, memory + arithmetic + launching].map(|s| format!("{:>9.1}", s * 1e3)).concat();
        say(&format!("{:>12}{ms}", card.name));
    }
    Ok(())
}
