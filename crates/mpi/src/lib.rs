//! Ranks that an MPI launcher (`mpirun`) has started and that reach each other by its library.
//!
//! A crate of its own, so that whoever wants MPI builds little again; without its feature `mpi` it is empty and links nothing.

#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "mpi")]
mod watch;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;
