//! What a run promises, on a task that trains in milliseconds. One program, since each would compile and link all of Burn for itself; the three that are
//! alone in theirs measure the process, or draw from a generator that it has one of.

mod ahead;
mod failures;
mod formats;
mod kill;
mod limits;
mod memory;
mod nan;
mod optimizers;
mod power;
mod ranks;
mod resume;
mod rollback;
mod times;
mod toy;
mod unlike;
