//! Why no device could be given. Every message names the device, the reason and what to do.

use bellows_exit::{Coded, Exit};

use crate::{ProbeReport, adapter::Backend};

/// Why [`crate::select`] gives no device. Never returned for `auto`, which falls back to the CPU, nor for `cpu`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// The backend is not in this binary.
    #[error("this binary was built without {backend}: build it with `--features {backend}`")]
    NotBuilt {
        /// The backend's name, which is also the name of the cargo feature.
        backend: Backend,
    },
    /// The adapters could not even be listed.
    #[error("listing the {backend} adapters failed: {reason}")]
    Enumerate {
        /// The backend asked.
        backend: Backend,
        /// What happened to the child process.
        reason: String,
    },
    /// The backend finds no adapter.
    #[error("no {backend} adapter found: is a driver installed? (`doctor` prints what is seen)")]
    NoAdapter {
        /// The backend asked.
        backend: Backend,
    },
    /// The index is past the end of the list.
    #[error("{backend}:{index} does not exist; found: {found}")]
    NoSuchAdapter {
        /// The backend asked.
        backend: Backend,
        /// The index asked for.
        index: usize,
        /// The adapters there are.
        found: String,
    },
    /// Fewer cards than that.
    #[error("{backend} has no card {rank}, counted from 0; found: {found}")]
    TooFew {
        /// The backend asked.
        backend: Backend,
        /// The number asked for.
        rank: usize,
        /// The adapters there are.
        found: String,
    },
    /// Only software adapters, and none was named.
    #[error("{backend} offers only software adapters ({found}), which are slower than the cpu device; to use one all the same, name it")]
    SoftwareOnly {
        /// The backend asked.
        backend: Backend,
        /// The adapters there are, each with the name to use.
        found: String,
    },
    /// A number alone, and no card of that number has proved itself.
    #[error("device '{number}': there is no such card, or none that can be used: {reason}; 'cpu' is the processor")]
    NoCard {
        /// The number.
        number: usize,
        /// What was tried.
        reason: String,
    },
    /// The adapter failed the probe, which is told in full by the report.
    #[error("{}", failure(.0))]
    Probe(Box<ProbeReport>),
    /// The adapter exists but Burn has no way to address it.
    #[error("{device} cannot be addressed: {reason}")]
    Unaddressable {
        /// The adapter.
        device: String,
        /// Why.
        reason: &'static str,
    },
}

impl Coded for DeviceError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

fn failure(report: &ProbeReport) -> String {
    match report.failure() {
        Some(_) => format!("{} failed the probe {}{}", report.adapter, report.failures(), report.hint()),
        None => format!("{} passed the probe", report.adapter),
    }
}
