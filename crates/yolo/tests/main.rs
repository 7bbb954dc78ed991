//! The detector against the libraries of others and against itself. One program, since each would link all of Burn for itself; planned and sync_bn choose how
//! their whole process computes convolutions.

mod hit_uav;
mod in_code;
mod metrics_golden;
mod parity;
mod plots;
mod real_weights;
mod shared;
