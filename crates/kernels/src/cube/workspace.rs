//! How much memory the parts of a sum may take that is cut over several blocks.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Sixteen megabytes unless [`set_workspace_mb`] says otherwise: those of a convolution are an eighth of what it reads at most (see `conv`).
static WORKSPACE: AtomicUsize = AtomicUsize::new(16 << 20);

/// Limits the parts of a weight gradient that a convolution by matrix product holds at a time, in every thread.
pub fn set_workspace_mb(megabytes: usize) {
    set_workspace_bytes(megabytes.saturating_mul(1 << 20));
}

/// [`set_workspace_mb`] in bytes.
pub fn set_workspace_bytes(bytes: usize) {
    WORKSPACE.store(bytes, Ordering::Relaxed);
}

/// The limit in bytes.
pub(super) fn workspace_bytes() -> usize {
    WORKSPACE.load(Ordering::Relaxed)
}
