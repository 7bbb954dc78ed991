//! The run directory: a journal of logs, atomic checkpoints with a manifest and checksums, and files; retention; a lock.
//!
//! What it promises, on Unix and an honest disk: at any instant a kill or a power loss leaves a run whose last *reported*
//! checkpoint still loads; one flipped bit in a checkpoint is noticed, named, and answered by the checkpoint before it; damage is
//! never answered by silently starting over. What it refuses: two processes in one run, checkpoints of a newer format, member
//! names that are paths, files larger than their budget, paths that leave their root.
//!
//! It knows no tensors and no training: members are names and bytes, `info` is a JSON map.

mod append_log;
mod atomic;
mod bounded;
mod checkpoints;
mod folder;
mod heartbeat;
mod journal;
mod lock;
mod manifest;
mod nowhere;
mod process;
mod rows;
mod run_dir;
mod store;
mod waiting;

pub use atomic::{part_of, publish, scratch_in, sweep_dead, write_atomic, write_atomic_with, write_unflushed};
pub use bounded::{PathError, open_regular, read_bounded};
pub use checkpoints::{Checkpoint, Checkpoints, Latest, LoadError, SaveError, SetAside};
pub use folder::cache_dir;
pub use heartbeat::{Beat, End, Heartbeat, read_beat};
pub use journal::{Again, Journal, Retention, STEP, Unwritten};
pub use lock::{LockError, RunLock};
pub use manifest::{FORMAT, MANIFEST, Member, MemberNameError};
pub use nowhere::Nowhere;
pub use process::{began, is_alive, is_suspended};
pub use run_dir::{RunDir, RunDirError, find_latest_run, results_dir, run_of};
pub use store::{DiskStore, Store, StoreError, create_dir_all_synced};
