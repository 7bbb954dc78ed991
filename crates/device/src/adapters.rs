//! The adapters that each backend sees, and the Burn device of an adapter.
//!
//! Listing loads drivers, and drivers hang and crash while being loaded: [`list`] is called in the probe's child process only.
//! [`open`] in the parent is lazy; the driver is loaded there by the first tensor, after the probe has passed.

use crate::DeviceError;
use crate::adapter::{Adapter, AdapterKind, Backend};
use burn::tensor::{Device, DeviceKind, wgpu::wgpu};
use std::fs;

/// Every adapter of `backend`, in the driver's order. Loads the driver.
pub(crate) fn list(backend: Backend) -> Vec<Adapter> {
    match backend {
        Backend::Flex => Vec::new(),
        Backend::Vulkan => list_wgpu(backend, wgpu::Backends::VULKAN),
        Backend::Metal => list_wgpu(backend, wgpu::Backends::METAL),
        Backend::WebGpu => list_wgpu(backend, wgpu::Backends::BROWSER_WEBGPU),
        Backend::Cuda => list_cards(backend, card_devices(backend), nvidia_driver()),
        Backend::Rocm => list_cards(backend, card_devices(backend), amd_driver()),
    }
}

fn list_wgpu(backend: Backend, apis: wgpu::Backends) -> Vec<Adapter> {
    let descriptor = wgpu::InstanceDescriptor { backends: apis, ..wgpu::InstanceDescriptor::new_without_display_handle() };
    let instance = wgpu::Instance::new(descriptor);
    let found = block_on(instance.enumerate_adapters(apis));
    let mut adapters: Vec<Adapter> = Vec::new();
    for (index, adapter) in found.iter().enumerate() {
        let info = adapter.get_info();
        let kind = kind_of(info.device_type);
        adapters.push(Adapter {
            backend,
            index,
            nth_of_kind: adapters.iter().filter(|other| other.kind == kind).count(),
            memory: card_memory(&info.device_pci_bus_id),
            name: info.name,
            kind,
            id: (info.vendor, info.device),
            pci: info.device_pci_bus_id,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            max_buffer: adapter.limits().max_buffer_size,
        });
    }
    adapters
}

fn kind_of(kind: wgpu::DeviceType) -> AdapterKind {
    match kind {
        wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
        wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
        wgpu::DeviceType::Cpu => AdapterKind::Software,
        wgpu::DeviceType::Other => AdapterKind::Other,
    }
}

/// wgpu's native futures are ready at once; one that were not would be found by the parent's clock.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

fn list_cards(backend: Backend, devices: Vec<Device>, driver: String) -> Vec<Adapter> {
    let describe = |(index, device): (usize, Device)| {
        let identity = device.identity();
        let physical = identity.as_ref().and_then(|identity| identity.physical.clone());
        let pci = physical.and_then(|physical| physical.pci_address).map(|pci| pci.to_string()).unwrap_or_default();
        Adapter {
            backend,
            index,
            nth_of_kind: index,
            name: identity.map(|identity| identity.name).unwrap_or_else(|| format!("{backend} device {index}")),
            kind: AdapterKind::Discrete,
            id: (0, 0),
            memory: card_memory(&pci),
            pci,
            driver: driver.clone(),
            max_buffer: 0,
        }
    };
    devices.into_iter().enumerate().map(describe).collect()
}

fn card_devices(backend: Backend) -> Vec<Device> {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => Device::enumerate(burn::tensor::DeviceType::Cuda).into_iter().collect(),
        #[cfg(feature = "rocm")]
        Backend::Rocm => Device::enumerate(burn::tensor::DeviceType::Rocm).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn nvidia_driver() -> String {
    let text = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn amd_driver() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    format!("ROCm {} Linux {}", read("/opt/rocm/.info/version"), read("/proc/sys/kernel/osrelease"))
}

/// amdgpu publishes the size of a card's memory; other drivers have no file for it.
fn card_memory(pci: &str) -> Option<u64> {
    if pci.is_empty() {
        return None;
    }
    fs::read_to_string(format!("/sys/bus/pci/devices/{pci}/mem_info_vram_total")).ok()?.trim().parse().ok()
}

/// The Burn device of `adapter`, without autodiff. Does not touch the driver.
pub(crate) fn open(adapter: &Adapter) -> Result<Device, DeviceError> {
    let refuse = |reason| Err(DeviceError::Unaddressable { device: adapter.to_string(), reason });
    let kind = match adapter.kind {
        AdapterKind::Discrete => DeviceKind::DiscreteGpu(adapter.nth_of_kind),
        AdapterKind::Integrated => DeviceKind::IntegratedGpu(adapter.nth_of_kind),
        AdapterKind::Virtual => DeviceKind::VirtualGpu(adapter.nth_of_kind),
        AdapterKind::Software if adapter.nth_of_kind == 0 => DeviceKind::Cpu,
        AdapterKind::Software => return refuse("Burn reaches only the first software adapter; choose the driver with VK_DRIVER_FILES"),
        AdapterKind::Other => return refuse("its driver does not say whether it is discrete or integrated"),
    };
    match adapter.backend {
        Backend::Vulkan => Ok(Device::vulkan(kind)),
        #[cfg(feature = "metal")]
        Backend::Metal => Ok(Device::metal(kind)),
        #[cfg(feature = "webgpu")]
        Backend::WebGpu => Ok(Device::webgpu(kind)),
        #[cfg(feature = "cuda")]
        Backend::Cuda => Ok(Device::cuda(adapter.index)),
        #[cfg(feature = "rocm")]
        Backend::Rocm => Ok(Device::rocm(adapter.index)),
        backend => Err(DeviceError::NotBuilt { backend }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::tests::adapter;

    #[test]
    fn a_second_software_adapter_is_refused_with_the_way_out() {
        let mut second = adapter(1, AdapterKind::Software, None);
        assert!(open(&second).is_ok());
        second.nth_of_kind = 1;
        assert!(open(&second).unwrap_err().to_string().contains("VK_DRIVER_FILES"));
    }
}
