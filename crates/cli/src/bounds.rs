//! What `benchmark` says its time is held against.

use bellows_learner::bench::Bounds;

use crate::console::say;

/// Says how many multiplications and additions a step is, how many it does a second, what share that is of `peak`, the most the processor's micro-kernel
/// reaches (GFLOP/s, where it was measured), and which share of their time the threads did nothing.
pub fn say_bounds(bounds: &Bounds, peak: Option<f64>) {
    let &Bounds { flop, gflops, idle_share } = bounds;
    let share = peak.map(|peak| format!(", {:.0} % of the {peak:.1} that the micro-kernel reaches", 100.0 * gflops / peak));
    say(&format!("{:>10} {:>9.1} GFLOP a step, {gflops:.1} GFLOP/s{}", "work", flop / 1e9, share.unwrap_or_default()));
    if let Some(share) = idle_share {
        say(&format!("{:>10} {:>9.1} % of the threads' time", "idle", 100.0 * share));
    }
}
