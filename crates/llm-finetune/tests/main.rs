//! The verbs of the program as users and scripts meet them. One test program, since each would link all of Burn for itself, and leave a core idle while its
//! longest test ends.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod chain;
mod eval;
mod export;
mod hub;
mod plan;
#[path = "support/program.rs"]
mod program;
