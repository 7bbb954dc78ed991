//! What the user may write after `--device`, and what to answer to what they may not.
//!
//! Parsing knows names only; whether this binary contains the backend and whether the machine has the adapter is [`crate::select`]'s
//! business. Of the names other trainers use, `0` and `mps` are taken for what they mean there; others (`candle`, `-1`) are refused with the
//! name to use here.

use std::{fmt, str::FromStr};

use bellows_exit::{Coded, Exit};

/// A device as named by the user: `auto|cpu|vulkan[:N]|cuda[:N]|rocm[:N]|metal|webgpu`, or a number alone.
///
/// `N` counts the adapters of that backend in the order `doctor` prints them; a number alone counts cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceRequest {
    /// The first GPU that passes the probe, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// What other trainers call `0`: the card of this number, the strongest first, of the first backend that has it and proves it. Never the CPU.
    Card(usize),
    /// A Vulkan adapter; without an index the best hardware one.
    Vulkan(Option<usize>),
    /// An NVIDIA GPU through CUDA.
    Cuda(Option<usize>),
    /// An AMD GPU through ROCm/HIP.
    Rocm(Option<usize>),
    /// The GPU of a Mac.
    Metal,
    /// WebGPU, which only a browser offers.
    WebGpu,
}

/// Why a device name was refused. The messages name what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The backend existed once and is gone.
    #[error(
        "device 'candle' is not available: upstream deprecated burn-candle and removed it before Burn 0.22, and its last stable release \
         (0.21.0) cannot be mixed with 0.22; use 'cpu', or 'auto' for a GPU"
    )]
    Candle,
    /// A name of another program for a device that exists here under another name.
    #[error("device '{given}' is not a name used here; use '{instead}'")]
    Foreign {
        /// What was written.
        given: String,
        /// What to write.
        instead: String,
    },
    /// More than one device.
    #[error(
        "device '{0}' names several devices and a process trains on one: with --ranks 2 --device vulkan:rank (or cuda:rank) two processes train on two"
    )]
    Several(String),
    /// What follows the colon is not an adapter index.
    #[error("device '{given}': '{index}' is not an adapter index; 'doctor' prints the adapters, counted from 0")]
    Index {
        /// What was written.
        given: String,
        /// The part after the colon.
        index: String,
    },
    /// The device takes no index.
    #[error("device '{0}' takes no index")]
    NoIndex(String),
    /// Nothing of that name.
    #[error("unknown device '{0}'; use auto, cpu, vulkan[:N], cuda[:N], rocm[:N], metal or webgpu")]
    Unknown(String),
}

impl Coded for RequestError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl FromStr for DeviceRequest {
    type Err = RequestError;

    fn from_str(given: &str) -> Result<Self, RequestError> {
        let text = given.trim().to_ascii_lowercase();
        if text.contains(',') {
            return Err(RequestError::Several(given.into()));
        }
        let foreign = |instead: &str| RequestError::Foreign { given: given.into(), instead: instead.into() };
        if let Ok(number) = text.parse() {
            return Ok(Self::Card(number));
        }
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text.as_str(), None),
        };
        let number = || match index {
            None => Ok(None),
            Some(index) => index.parse().map(Some).map_err(|_| RequestError::Index { given: given.into(), index: index.into() }),
        };
        let plain = |request| if index.is_none() { Ok(request) } else { Err(RequestError::NoIndex(name.into())) };
        match name {
            "auto" => plain(Self::Auto),
            "cpu" => plain(Self::Cpu),
            "vulkan" => Ok(Self::Vulkan(number()?)),
            "cuda" => Ok(Self::Cuda(number()?)),
            "rocm" => Ok(Self::Rocm(number()?)),
            "metal" | "mps" => plain(Self::Metal),
            "webgpu" => plain(Self::WebGpu),
            "candle" => Err(RequestError::Candle),
            "gpu" | "-1" | "" => Err(foreign("auto")),
            "hip" | "amd" => Err(foreign("rocm' or 'vulkan")),
            "nvidia" => Err(foreign("cuda' or 'vulkan")),
            "wgpu" => Err(foreign("vulkan")),
            "flex" | "ndarray" => Err(foreign("cpu")),
            _ => Err(RequestError::Unknown(given.into())),
        }
    }
}

impl fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, index) = match self {
            Self::Auto => ("auto", None),
            Self::Cpu => ("cpu", None),
            Self::Card(number) => return write!(f, "{number}"),
            Self::Vulkan(index) => ("vulkan", *index),
            Self::Cuda(index) => ("cuda", *index),
            Self::Rocm(index) => ("rocm", *index),
            Self::Metal => ("metal", None),
            Self::WebGpu => ("webgpu", None),
        };
        match index {
            Some(index) => write!(f, "{name}:{index}"),
            None => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for name in ["auto", "cpu", "0", "2", "vulkan", "vulkan:1", "cuda", "cuda:0", "rocm", "rocm:3", "metal", "webgpu"] {
            assert_eq!(name.parse::<DeviceRequest>().unwrap().to_string(), name);
        }
        assert_eq!("Vulkan:2".parse(), Ok(DeviceRequest::Vulkan(Some(2))));
        assert_eq!(("0".parse(), "mps".parse()), (Ok(DeviceRequest::Card(0)), Ok(DeviceRequest::Metal)));
    }

    #[test]
    fn refusals_say_what_to_write() {
        let refuse = |name: &str| name.parse::<DeviceRequest>().unwrap_err().to_string();
        assert!(refuse("candle").contains("removed it before Burn 0.22"));
        assert!(refuse("-1").contains("use 'auto'"));
        assert!(refuse("0,1").contains("several"));
        assert!(refuse("cuda:0,1").contains("several"));
        assert!(refuse("vulkan:x").contains("'x' is not an adapter index"));
        assert!(refuse("vulkan:-1").contains("not an adapter index"));
        assert!(refuse("cpu:0").contains("takes no index"));
        assert!(refuse("opencl").contains("unknown device 'opencl'"));
    }
}
