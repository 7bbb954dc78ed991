//! Whether a device's shared memory can be trusted.
//!
//! CubeCL 0.11.3 emits invalid SPIR-V for shared memory on Vulkan devices without `VK_KHR_workgroup_memory_explicit_layout`: in
//! `cubecl-spirv/src/ops/memory.rs`, `lower_shared_implicit`, the types of the variable and of its value are exchanged, and the variable
//! becomes a pointer to a pointer. This workspace mends it (`patches/cubecl-spirv`), but who uses these crates as libraries may have CubeCL as it
//! is published: SwiftShader then reads one and the same number everywhere, lavapipe crashes. All of CubeCL's own matmuls and reductions are hit.
//! Drivers do not tell whether they do it right, so each device is asked once to turn 64 numbers round, which costs one small kernel before the
//! first product.

use burn::tensor::{DType, Shape};
use burn_cubecl::CubeDevice;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use cubecl::prelude::*;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

const CHECKED: u32 = 64;

/// `out[i] = 63 - i`, by way of shared memory.
#[cube(launch)]
fn shared_check_kernel(out: &mut Tensor<u32>) {
    let mut shared = Shared::<[u32]>::new_slice(comptime!(CHECKED as usize));
    shared[UNIT_POS as usize] = UNIT_POS;
    sync_cube();
    out[UNIT_POS as usize] = shared[(CHECKED - 1 - UNIT_POS) as usize];
}

static ANSWERS: LazyLock<Mutex<HashMap<CubeDevice, bool>>> = LazyLock::new(Mutex::default);

/// From now on the device's products go without shared memory: for tests of that way, and for who knows better.
pub fn distrust_shared_memory(device: &CubeDevice) {
    ANSWERS.lock().unwrap_or_else(PoisonError::into_inner).insert(device.clone(), false);
}

/// Whether numbers put into shared memory come out as they went in; asked once of each device.
pub fn shared_memory_works(device: &CubeDevice) -> bool {
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    *answers.entry(device.clone()).or_insert_with(|| {
        let client = device.client();
        let shape = Shape::new([CHECKED as usize]);
        let out = empty_device_contiguous_dtype(client.clone(), device.clone(), shape, DType::U32);
        shared_check_kernel::launch(&client, CubeCount::new_single(), CubeDim::new_1d(CHECKED), out.clone().into_tensor_arg());
        let expected = (0..CHECKED).rev().flat_map(u32::to_ne_bytes).collect::<Vec<_>>();
        let works = client.read_one(out.handle).is_ok_and(|bytes| bytes.starts_with(&expected));
        let name = client.name();
        if works {
            tracing::info!("matrix products on {name}: one fixed kernel, blocks in shared memory, no autotune");
        } else {
            tracing::warn!(
                "matrix products on {name}: one fixed kernel, straight from memory: what was put into shared memory did not come out"
            );
        }
        works
    })
}
