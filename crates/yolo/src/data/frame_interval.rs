//! How far apart the frames of a clip are, and what is a gap between them.

/// So many usual steps, or more, are a gap.
pub(crate) const GAP: f64 = 1.5;
/// Of a clip with fewer steps than this nobody can say what is usual: it is measured by all clips of its kind.
pub(crate) const FEW: usize = 3;

/// The mean of the steps up to twice their median: a camera with a frame in 1.4 s has steps of 1 and of 2 whole seconds. Frames that share a time, which is
/// told less finely than they were taken, say nothing of it.
pub(crate) fn typical_interval(mut steps: Vec<i64>) -> Option<f64> {
    steps.retain(|&step| step > 0);
    steps.sort_unstable();
    let most = 2 * steps.get(steps.len().saturating_sub(1) / 2)?;
    let usual = &steps[..steps.partition_point(|&step| step <= most)];
    Some(usual.iter().sum::<i64>() as f64 / usual.len() as f64)
}
