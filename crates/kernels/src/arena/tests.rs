//! What lies where, and what is copied.

use burn::backend::Flex;
use burn::tensor::{DType, Device, TensorData};
use burn_flex::FlexTensor;

use super::*;

fn up(values: &[f32]) -> Tensor<1> {
    Tensor::from_data(TensorData::from(values), &Device::flex())
}

fn host(t: Tensor<1>) -> Vec<f32> {
    t.try_to_vec_as().unwrap()
}

#[test]
fn tensors_come_back_from_their_places() {
    let lengths = [3usize, 64, 65, 1, 200_000, 128];
    let places = Places::of(lengths);
    assert_eq!(places.all, [(0, 3), (128, 64), (256, 65), (384, 1), (512, 200_000), (200_576, 128)]);
    let parts: Vec<Vec<f32>> = lengths.iter().map(|&len| (0..len).map(|i| (i + len) as f32).collect()).collect();
    let whole = arena(parts.iter().map(|part| up(part)).collect(), &places);
    let values = host(whole.clone());
    assert_eq!(values.len(), places.len());
    let inside = |i: usize| places.all.iter().any(|&(start, len)| (start..start + len).contains(&i));
    assert!((0..values.len()).all(|i| inside(i) || values[i] == 0.0), "zeros between");
    let back = arena_parts(whole, &places);
    assert_eq!(back.into_iter().map(host).collect::<Vec<_>>(), parts);
}

#[test]
fn what_lies_in_an_arena_is_not_copied() {
    let places = Places::of([40_000, 70_000]);
    let flex = |len: usize| FlexTensor::from_data(TensorData::new(vec![len as f32; len], [len]));
    let pack = |parts: Vec<FlexTensor>| <Flex as ArenaOps>::arena(Parts(parts), places.clone());
    let memory = |t: &FlexTensor| t.as_slice::<f32>().unwrap().as_ptr();
    let whole = pack(vec![flex(40_000), flex(70_000)]);
    let parts = Flex::arena_parts(whole.clone(), places.clone()).0;
    assert_eq!(memory(&pack(parts.clone())), memory(&whole));
    // One from elsewhere: a copy.
    let other = pack(vec![parts[0].clone(), flex(70_000)]);
    assert_ne!(memory(&other), memory(&whole));
    assert_eq!(other.as_slice::<f32>(), whole.as_slice::<f32>());
}

#[test]
fn other_types_go_through_burn() {
    let half = |values: &[f32]| up(values).cast(DType::F16);
    let places = Places::of([2, 3]);
    let whole = arena(vec![half(&[1.0, 2.0]), half(&[3.0, 4.0, 5.0])], &places);
    assert_eq!(whole.dtype(), DType::F16);
    let parts = arena_parts(whole, &places);
    assert_eq!(parts[1].clone().try_to_vec_as::<f32>().unwrap(), [3.0, 4.0, 5.0]);
}
