//! Arenas on the device: what lies where, launches, and what is not copied.

use crate::launches::{assert_ours, trace};
use crate::support::{cube, numbers, on_each_device, pattern};
use bellows_kernels::Places;
use bellows_kernels::arena::ArenaOps;
use bellows_kernels::planes::Parts;
use burn::tensor::{Shape, TensorData};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

fn parts(lengths: &[usize]) -> Vec<CubeTensor> {
    lengths.iter().enumerate().map(|(i, &len)| cube(TensorData::new(pattern(i as u64, len), [len]))).collect()
}

/// Thirty tensors of uneven lengths: a launch for as many as the device binds beside the result and the launch's numbers (6 on SwiftShader, 14 at
/// most), none to take them apart and to put them together again.
#[test]
fn tensors_come_back_from_their_places() {
    if !on_each_device("arena::tensors_come_back_from_their_places") {
        return;
    }
    let lengths: Vec<usize> = (0..30).map(|i| [1, 64, 1000, 63, 40_001][i % 5] + i / 5).collect();
    let places = Places::of(lengths.iter().copied());
    let mut whole = None;
    let launched = trace(|| whole = Some(CubeBackend::arena(Parts(parts(&lengths)), places.clone())));
    let whole: CubeTensor = whole.unwrap();
    let bound = whole.client.properties().hardware.max_bindings as usize - 2;
    assert_ours(&launched, &[("join_kernel", 30_usize.div_ceil(bound.min(14)))]);
    let values = numbers(whole.clone());
    for (i, &(start, len)) in places.all.iter().enumerate() {
        assert_eq!(values[start..start + len], pattern(i as u64, len), "tensor {i}");
        let next = places.all.get(i + 1).map_or(values.len(), |place| place.0);
        assert!(values[start + len..next].iter().all(|&v| v == 0.0), "zeros behind tensor {i}");
    }
    let mut again = None;
    let launched = trace(|| again = Some(CubeBackend::arena(CubeBackend::arena_parts(whole.clone(), places.clone()), places.clone())));
    assert_ours(&launched, &[]);
    assert_eq!(numbers(again.unwrap()), values);
    let back = CubeBackend::arena_parts(whole, places.clone()).0;
    for (i, (part, &len)) in back.into_iter().zip(&lengths).enumerate() {
        assert_eq!(numbers(part), pattern(i as u64, len), "tensor {i}");
    }
}

/// A tensor in longer memory, as CUDA and ROCm give to one of a single axis: what lies behind it is not put into the gap.
#[test]
fn memory_behind_a_tensor_is_not_copied() {
    if !on_each_device("arena::memory_behind_a_tensor_is_not_copied") {
        return;
    }
    let mut values = pattern(0, 10);
    values.resize(64, f32::NAN);
    let longer = cube(TensorData::new(values, [64]));
    let mut tensors = parts(&[10, 3]);
    tensors[0] = CubeTensor::new_contiguous(longer.client, longer.device, Shape::new([10]), longer.handle, longer.dtype);
    let places = Places::of([10, 3]);
    let gap = vec![0.0; places.all[1].0 - 10];
    assert_eq!(numbers(CubeBackend::arena(Parts(tensors), places)), [pattern(0, 10), gap, pattern(1, 3)].concat());
}

/// Views that lie elsewhere are put together anew.
#[test]
fn views_in_another_order_are_copied() {
    if !on_each_device("arena::views_in_another_order_are_copied") {
        return;
    }
    let places = Places::of([128, 128]);
    let whole = CubeBackend::arena(Parts(parts(&[128, 128])), places.clone());
    let mut views = CubeBackend::arena_parts(whole, places.clone()).0;
    views.reverse();
    let swapped = numbers(CubeBackend::arena(Parts(views), places));
    assert_eq!(swapped, [pattern(1, 128), pattern(0, 128)].concat());
}
