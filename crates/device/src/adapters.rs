//! The adapters that each backend sees, and the Burn device of an adapter.
//!
//! Listing loads drivers, and drivers hang and crash while being loaded: [`list`] is called in the probe's child process only.
//! [`open`] in the parent is lazy; the driver is loaded there by the first tensor, after the probe has passed.

use crate::DeviceError;
use crate::adapter::{Adapter, AdapterKind, Backend};
use crate::smi;
use burn::tensor::{Device, DeviceKind, wgpu::wgpu};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// What nvidia-smi is given to tell the memory of all cards: less than the parent gives the child to list them.
const PATIENCE: Duration = Duration::from_secs(5);

/// Every adapter of `backend`, in the driver's order. Loads the driver.
pub(crate) fn list(backend: Backend) -> Vec<Adapter> {
    let found = match backend {
        Backend::Flex => Vec::new(),
        Backend::Vulkan => list_wgpu(backend, wgpu::Backends::VULKAN),
        Backend::Metal => list_wgpu(backend, wgpu::Backends::METAL),
        Backend::WebGpu => list_wgpu(backend, wgpu::Backends::BROWSER_WEBGPU),
        Backend::Cuda => list_cards(backend, card_devices(backend), nvidia_driver()),
        Backend::Rocm => list_cards(backend, card_devices(backend), amd_driver()),
    };
    with_memory(found, Path::new("/sys/bus/pci/devices"), Path::new(smi::PROGRAM))
}

/// With the size of each card's memory, where somebody tells: amdgpu in files, nvidia-smi of all of NVIDIA's at once. What is carved out of the system's memory for
/// an integrated one is the lesser part of what its driver gives away, so of that alone nothing follows.
fn with_memory(mut adapters: Vec<Adapter>, devices: &Path, program: &Path) -> Vec<Adapter> {
    let read = |pci: &str, name: &str| fs::read_to_string(devices.join(pci).join(name)).ok().filter(|_| !pci.is_empty());
    let of_nvidia = |adapter: &Adapter| read(&adapter.pci, "vendor").is_some_and(|vendor| vendor.trim() == smi::VENDOR);
    let told = if adapters.iter().any(of_nvidia) { smi::memories(program, PATIENCE) } else { Vec::new() };
    for adapter in &mut adapters {
        let bytes = |name: &str| read(&adapter.pci, name).and_then(|bytes| bytes.trim().parse::<u64>().ok());
        let shared = if adapter.kind == AdapterKind::Integrated { bytes("mem_info_gtt_total") } else { Some(0) };
        let of_amd = bytes("mem_info_vram_total").zip(shared).map(|(own, shared)| own + shared);
        let of_smi = || told.iter().find(|(pci, _)| smi::same_place(pci, &adapter.pci)).map(|(_, bytes)| *bytes);
        adapter.memory = of_amd.or_else(of_smi);
    }
    adapters
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
            memory: None,
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
            memory: None,
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
    #[cfg(unix)]
    fn the_memory_of_a_card_is_what_its_driver_tells() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let program = dir.path().join("nvidia-smi");
        smi::tests::script(&program, "echo '00000000:02:00.0, 24576'");
        write("0000:01:00.0/vendor", "0x1002\n");
        write("0000:01:00.0/mem_info_vram_total", "8589934592\n");
        let at = |pci: &str| Adapter { pci: pci.into(), ..adapter(0, AdapterKind::Discrete, None) };
        let cards = || ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", ""].map(at).to_vec();
        let memory = |cards| with_memory(cards, dir.path(), &program).into_iter().map(|card| card.memory).collect::<Vec<_>>();
        assert_eq!(memory(cards()), [Some(8 << 30), None, None, None], "nobody of NVIDIA's is there to be asked about");
        write("0000:02:00.0/vendor", "0x10de\n");
        write("0000:03:00.0/vendor", "0x10de\n");
        assert_eq!(memory(cards()), [Some(8 << 30), Some(24 << 30), None, None]);

        write("0000:04:00.0/mem_info_vram_total", "536870912\n");
        let integrated = || vec![Adapter { kind: AdapterKind::Integrated, ..at("0000:04:00.0") }];
        assert_eq!(memory(integrated()), [None], "a part of it is no answer");
        write("0000:04:00.0/mem_info_gtt_total", "8053063680\n");
        write("0000:01:00.0/mem_info_gtt_total", "8053063680\n");
        assert_eq!(memory(integrated()), [Some(8 << 30)]);
        assert_eq!(memory(cards()), [Some(8 << 30), Some(24 << 30), None, None], "a card's own is its own");
    }

    #[test]
    fn a_second_software_adapter_is_refused_with_the_way_out() {
        let mut second = adapter(1, AdapterKind::Software, None);
        assert!(open(&second).is_ok());
        second.nth_of_kind = 1;
        assert!(open(&second).unwrap_err().to_string().contains("VK_DRIVER_FILES"));
    }
}
