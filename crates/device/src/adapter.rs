//! The backends there are, and what an adapter of one is. It loads no driver.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A way to compute that may be compiled in. The name is also that of the cargo feature, where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Burn's CPU backend.
    Flex,
    /// WGPU with SPIR-V shaders.
    Vulkan,
    /// CubeCL on CUDA.
    Cuda,
    /// CubeCL on HIP.
    Rocm,
    /// WGPU on Metal.
    Metal,
    /// The browser's WebGPU.
    WebGpu,
}

impl Backend {
    /// The GPU backends in the order `auto` tries them: the vendor's own first.
    pub(crate) const GPUS: [Self; 5] = [Self::Cuda, Self::Rocm, Self::Metal, Self::Vulkan, Self::WebGpu];

    /// The name as in `--device`, except for the CPU, which is `flex`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Vulkan => "vulkan",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Metal => "metal",
            Self::WebGpu => "webgpu",
        }
    }

    /// Whether this binary contains it.
    pub(crate) fn built(self) -> bool {
        match self {
            Self::Flex | Self::Vulkan => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Rocm => cfg!(feature = "rocm"),
            Self::Metal => cfg!(feature = "metal"),
            Self::WebGpu => cfg!(feature = "webgpu"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::GPUS.into_iter().find(|backend| backend.name() == text).ok_or_else(|| format!("unknown GPU backend '{text}'"))
    }
}

/// What kind of hardware an adapter says it is. The order is the one in which adapters are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdapterKind {
    /// A card with its own memory.
    Discrete,
    /// A GPU in the CPU's package.
    Integrated,
    /// A GPU passed through to a virtual machine.
    Virtual,
    /// Something the driver has no word for.
    Other,
    /// A program on the CPU: llvmpipe, lavapipe, SwiftShader.
    Software,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Virtual => "virtual",
            Self::Other => "other",
            Self::Software => "software",
        })
    }
}

/// One adapter of one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// The backend that sees it.
    pub backend: Backend,
    /// The `N` of `vulkan:N`.
    pub index: usize,
    /// Its place among the adapters of the same kind, which is how Burn addresses it.
    pub nth_of_kind: usize,
    /// The name the driver gives it.
    pub name: String,
    /// Discrete, integrated, software ...
    pub kind: AdapterKind,
    /// PCI vendor and device id; zeros where unknown.
    pub id: (u32, u32),
    /// PCI address such as `0000:03:00.0`; empty where unknown.
    pub pci: String,
    /// Driver name and version.
    pub driver: String,
    /// Bytes of the card's own memory, where the kernel driver tells; of an integrated one with what it may have of the system's.
    pub memory: Option<u64>,
    /// Bytes of the largest buffer it allocates; 0 where unknown.
    pub max_buffer: u64,
}

impl Adapter {
    /// Whether one of the machine's AMD GPUs can be this adapter.
    pub(crate) fn is_amd(&self) -> bool {
        const AMD: u32 = 0x1002;
        self.kind != AdapterKind::Software && (self.id.0 == AMD || self.backend == Backend::Rocm)
    }
}

impl fmt::Display for Adapter {
    /// `vulkan:0 (AMD Radeon RX 5700 XT, radv Mesa 24.1)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({}, {})", self.backend, self.index, self.name, self.driver)
    }
}

/// The hardware adapters, the best one first, which `auto` and a backend named without an index use; of two equals the earlier.
pub(crate) fn best_hardware(adapters: &[Adapter]) -> Vec<&Adapter> {
    let mut hardware: Vec<&Adapter> = adapters.iter().filter(|adapter| adapter.kind != AdapterKind::Software).collect();
    hardware.sort_by_key(|adapter| (adapter.kind, std::cmp::Reverse(adapter.memory), adapter.index));
    hardware
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn adapter(index: usize, kind: AdapterKind, memory: Option<u64>) -> Adapter {
        let name = format!("card {index}");
        let (pci, driver) = (String::new(), "test 1.0".to_owned());
        Adapter { backend: Backend::Vulkan, index, nth_of_kind: 0, name, kind, id: (1, 2), pci, driver, memory, max_buffer: 0 }
    }

    #[test]
    fn the_best_adapter_is_discrete_large_and_never_software() {
        use AdapterKind::{Discrete, Integrated, Software};
        let software = adapter(0, Software, Some(1 << 40));
        assert!(best_hardware(std::slice::from_ref(&software)).is_empty());
        let list = [software, adapter(1, Integrated, None), adapter(2, Discrete, Some(4)), adapter(3, Discrete, Some(8))];
        assert_eq!(best_hardware(&list).iter().map(|adapter| adapter.index).collect::<Vec<_>>(), [3, 2, 1]);
    }
}
