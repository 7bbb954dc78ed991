//! From a request to a device: `auto` takes the first GPU that proves itself and else the CPU with the reason; a named device is
//! proved too, and fails rather than becoming another one.

use crate::adapters::{self, Adapter, Backend, best_hardware};
use crate::facts::{self, Facts};
use crate::probe::{self, ProbeOptions};
use crate::report::ProbeReport;
use crate::{DeviceError, DeviceRequest};
use bellows_kernels::Lowering;
use burn::tensor::Device;

/// The device to train on.
#[derive(Debug)]
pub struct Selected {
    /// The Burn device, without autodiff.
    pub device: Device,
    /// `flex` (the CPU), `vulkan`, `cuda`, `rocm`, `metal` or `webgpu`.
    pub backend: &'static str,
    /// The adapter and its driver, or the CPU's model and number of threads.
    pub name: String,
    /// Bytes of the card's own memory, where its driver tells.
    pub memory: Option<u64>,
    /// Where the card sits on the PCI bus (`0000:03:00.0`), where its driver tells.
    pub pci: Option<String>,
    /// Why `auto` gave the CPU; `None` for anything else.
    pub fallback: Option<String>,
    /// How layers shall compute convolutions: what was asked for in [`ProbeOptions::lowering`], and for `auto` what has proved itself here.
    pub lowering: Lowering,
    /// Why `auto` has become a certain lowering; `None` if nothing speaks against any, and for a lowering that was asked for.
    pub lowering_reason: Option<String>,
    /// What the probe found; `None` if none ran.
    pub report: Option<ProbeReport>,
}

/// Chooses the device for `request` and proves it.
///
/// The first probe of a GPU takes a minute or two; its verdict is remembered.
///
/// # Errors
/// For a named device that is absent, unproven, software without being named by its index, or not in this binary. Never for `auto`
/// and `cpu`.
pub fn select(request: &DeviceRequest, options: &ProbeOptions) -> Result<Selected, DeviceError> {
    let selected = match *request {
        DeviceRequest::Auto => auto(options),
        DeviceRequest::Cpu => cpu(None, None, options),
        DeviceRequest::Vulkan(index) => named(Backend::Vulkan, index, options)?,
        DeviceRequest::Cuda(index) => named(Backend::Cuda, index, options)?,
        DeviceRequest::Rocm(index) => named(Backend::Rocm, index, options)?,
        DeviceRequest::Metal => named(Backend::Metal, None, options)?,
        DeviceRequest::WebGpu => named(Backend::WebGpu, None, options)?,
    };
    match &selected.fallback {
        Some(reason) => tracing::warn!("device: CPU: {reason}"),
        None => tracing::info!("device: {} on {}", selected.name, selected.backend),
    }
    match &selected.lowering_reason {
        Some(reason) => tracing::warn!("convolutions: {}, because {reason}", selected.lowering),
        None => tracing::info!("convolutions: {}", selected.lowering),
    }
    Ok(selected)
}

/// The processor, for work that no GPU is worth proving for.
pub fn processor() -> Device {
    Device::flex()
}

/// Our CPU kernels know the fastest lowering of each shape themselves, which is what `Auto` leaves to them.
fn cpu(fallback: Option<String>, report: Option<ProbeReport>, options: &ProbeOptions) -> Selected {
    let (device, backend, name) = (processor(), Backend::Flex.name(), facts::cpu_name());
    Selected {
        device,
        backend,
        name,
        memory: None,
        pci: None,
        fallback,
        lowering: options.lowering.unwrap_or_default(),
        lowering_reason: None,
        report,
    }
}

fn auto(options: &ProbeOptions) -> Selected {
    let mut reasons = Vec::new();
    let mut report = None;
    for backend in Backend::GPUS.into_iter().filter(|backend| backend.built()) {
        if backend == Backend::Rocm && Facts::of_this_machine(&[]).has_rdna1() {
            reasons.push("rocm is not tried on RDNA1 unless named: ROCm does not support it, hangs are reported".to_owned());
            continue;
        }
        match named(backend, None, options) {
            Ok(selected) => return selected,
            Err(error) => {
                reasons.push(error.to_string());
                if let DeviceError::Probe(failed) = error {
                    report = Some(*failed);
                }
            }
        }
    }
    cpu(Some(reasons.join("; ")), report, options)
}

/// A proven device of `backend`.
fn named(backend: Backend, index: Option<usize>, options: &ProbeOptions) -> Result<Selected, DeviceError> {
    let adapter = find(backend, index, options)?;
    let device = adapters::open(&adapter)?;
    let report = probe::prove(&adapter, options);
    let Some((proved, reason)) = report.lowering() else {
        return Err(DeviceError::Probe(Box::new(report)));
    };
    let (lowering, lowering_reason) = match options.lowering {
        None | Some(Lowering::Auto) => (proved, reason),
        Some(asked) => (asked, None),
    };
    let name = format!("{}, {}", adapter.name, adapter.driver);
    Ok(Selected {
        device,
        backend: backend.name(),
        name,
        memory: adapter.memory,
        pci: Some(adapter.pci).filter(|pci| !pci.is_empty()),
        fallback: None,
        lowering,
        lowering_reason,
        report: Some(report),
    })
}

/// The adapter meant by `backend[:index]`. A software adapter is meant only by its index.
fn find(backend: Backend, index: Option<usize>, options: &ProbeOptions) -> Result<Adapter, DeviceError> {
    if !backend.built() {
        return Err(DeviceError::NotBuilt { backend });
    }
    let adapters = probe::list(backend, options).map_err(|reason| DeviceError::Enumerate { backend, reason })?;
    choose(backend, index, &adapters, options.software).cloned()
}

fn choose(backend: Backend, index: Option<usize>, adapters: &[Adapter], software: bool) -> Result<&Adapter, DeviceError> {
    if adapters.is_empty() {
        return Err(DeviceError::NoAdapter { backend });
    }
    let found = || adapters.iter().map(|adapter| format!("{adapter}")).collect::<Vec<_>>().join(", ");
    match index {
        Some(index) => adapters.get(index).ok_or_else(|| DeviceError::NoSuchAdapter { backend, index, found: found() }),
        None => best_hardware(adapters)
            .or(adapters.first().filter(|_| software))
            .ok_or_else(|| DeviceError::SoftwareOnly { backend, found: found() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::{AdapterKind, tests::adapter};

    #[test]
    fn software_is_chosen_by_its_index_only() {
        let list = [adapter(0, AdapterKind::Software, None)];
        let refused = choose(Backend::Vulkan, None, &list, false).unwrap_err();
        assert!(refused.to_string().contains("only software adapters (vulkan:0 (card 0, test 1.0))"), "{refused}");
        assert_eq!(choose(Backend::Vulkan, Some(0), &list, false).unwrap().index, 0);
        let absent = choose(Backend::Vulkan, Some(1), &list, false).unwrap_err();
        assert!(absent.to_string().contains("vulkan:1 does not exist; found: vulkan:0"), "{absent}");
        assert_eq!(choose(Backend::Vulkan, None, &[], false), Err(DeviceError::NoAdapter { backend: Backend::Vulkan }));
    }

    #[test]
    fn the_cpu_needs_no_probe() {
        let selected = select(&DeviceRequest::Cpu, &ProbeOptions::default()).unwrap();
        assert_eq!((selected.backend, selected.fallback, selected.report), ("flex", None, None));
        assert!(selected.name.contains("threads"), "{}", selected.name);
        assert_eq!((selected.lowering, selected.lowering_reason), (Lowering::Auto, None));
        let asked = ProbeOptions { lowering: Some(Lowering::Gemm), ..ProbeOptions::default() };
        assert_eq!(select(&DeviceRequest::Cpu, &asked).unwrap().lowering, Lowering::Gemm);
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_backend_that_is_not_built_in_says_how_to_get_it() {
        let error = select(&DeviceRequest::Cuda(None), &ProbeOptions::default()).unwrap_err();
        assert!(error.to_string().contains("--features cuda"), "{error}");
    }
}
