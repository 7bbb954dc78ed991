//! Numbers that come back from a device while it trains. Whoever asks for them waits until all that was launched before is done, so it is counted how often
//! that is.

use std::cell::Cell;

thread_local! {
    static READS: Cell<usize> = const { Cell::new(0) };
}

/// This thread waits for numbers of a device: said by whatever reads in the middle of a step.
pub fn note_read() {
    READS.set(READS.get() + 1);
}

/// How often this thread has said so.
pub(crate) fn reads() -> usize {
    READS.get()
}
