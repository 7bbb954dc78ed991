//! What `benchmark --count` says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bellows_device::{CARDS, Done};
use serde_json::json;

use crate::console::say;
use crate::failure::{Failure, Usage};

/// Says how often a training step launches each kernel, the most frequent first, what those of ours (`work`, by name) move and compute, how many of their
/// workgroups fit a compute unit, and what that would take on some cards at best; or one JSON object of it.
///
/// # Errors
/// There are no launches: that was no GPU.
pub fn say_launches(launches: &BTreeMap<&'static str, usize>, work: &BTreeMap<&'static str, Done>, json: bool) -> Result<(), Failure> {
    let total: usize = launches.values().sum();
    if total == 0 {
        return Err(Usage("benchmark --count: the processor launches nothing; name a GPU with --device".into()).into());
    }
    let known: Vec<(u64, u64)> = work.values().map(|done| (done.bytes, done.flops)).collect();
    let (bytes, flops) = known.iter().fold((0, 0), |(bytes, flops), more| (bytes + more.0, flops + more.1));
    let ours: usize = work.values().map(|done| done.launches).sum();
    let cards = CARDS.map(|card| (card, card.seconds(&known, total)));
    if json {
        let work: BTreeMap<_, _> = work
            .iter()
            .map(|(name, &Done { launches, bytes, flops, shared })| {
                (name, json!({ "launches": launches, "bytes": bytes, "flops": flops, "shared_bytes": shared }))
            })
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
    rows.sort_by_key(|(_, done)| Reverse(done.bytes));
    let row = |name: &str, launches: usize, bytes: u64, flops: u64| {
        say(&format!("{launches:>6} {:>9.1} {:>9.2}  {name}", bytes as f64 / 1e6, flops as f64 / 1e9));
    };
    rows.iter().for_each(|(name, done)| row(name, done.launches, done.bytes, done.flops));
    row("together", ours, bytes, flops);
    say_workgroups(&rows);
    say("\nat best, by specification (ms): memory, arithmetic in f32, launches of 5 us each");
    for (card, [memory, arithmetic, launching]) in cards {
        let ms = [memory, arithmetic, launching, memory + arithmetic + launching].map(|s| format!("{:>9.1}", s * 1e3)).concat();
        say(&format!("{:>12}{ms}", card.name));
    }
    Ok(())
}

/// How many workgroups of each kernel a compute unit's shared memory holds.
fn say_workgroups(rows: &[(&&'static str, &Done)]) {
    let rows: Vec<_> = rows.iter().filter(|(_, done)| done.shared > 0).collect();
    if rows.is_empty() {
        return;
    }
    say("\nworkgroups that a compute unit's shared memory holds at a time (registers, which only a driver knows, may allow fewer)");
    say(&format!("{:>6}{}", "KB", CARDS.map(|card| format!("{:>12}", card.name)).concat()));
    for (name, done) in rows {
        let each = CARDS.map(|card| format!("{:>12}", card.workgroups(done.shared).unwrap_or_default())).concat();
        say(&format!("{:>6.1}{each}  {name}", done.shared as f64 / 1024.0));
    }
}
