//! What CubeCL, and wgpu and the drivers below it, call memory that ran out, and how much of it is had at a time.

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// In lower case, `_` and `-` taken for spaces.
const WORDS: [&str; 6] = [
    // CubeCL (Vulkan, CUDA, HIP): "out of device memory allocating 4096 bytes".
    "out of device memory",
    // Vulkan's VK_ERROR_OUT_OF_HOST_MEMORY.
    "out of host memory",
    // CubeCL on a launch, wgpu ("wgpu error: Out of Memory"), CUDA_ERROR_OUT_OF_MEMORY.
    "out of memory",
    // hipErrorOutOfMemory.
    "outofmemory",
    // wgpu-core.
    "not enough memory",
    // CubeCL, more than one page can hold, or no page size left: "can't allocate buffer of size: 4096".
    "can't allocate",
];

/// Whether an error or a panic of a device says that its memory ran out.
pub fn out_of_memory(text: &str) -> bool {
    let plain = text.to_lowercase().replace(['_', '-'], " ");
    WORDS.iter().any(|words| plain.contains(words))
}

/// The most bytes that such a device allocates at a time; `None` of the processor. Asks the driver.
pub fn largest_allocation(device: &Device) -> Option<u64> {
    let device = device.clone().without_autodiff();
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return None };
    Some(device.client().properties().memory.max_page_size)
}
