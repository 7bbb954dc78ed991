//! Weights in blocks as a device makes them dense, against the processor.

use crate::launches::trace;
use crate::support::{on_each_device, pattern};
use bellows_kernels::{Blocks, Weight};
use burn::tensor::{Device, DeviceKind};

type Encode = fn(&[f32], [usize; 2], &Device) -> Blocks;

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("blocks::agrees_with_the_cpu") {
        return;
    }
    let vulkan = Device::vulkan(DeviceKind::Cpu);
    // Whole words and not, one block and many, more than one group of them.
    for shape in [[1, 1], [3, 5], [7, 64], [5, 63], [70, 96], [520, 64], [9, 2048]] {
        let values: Vec<f32> = pattern(7, shape[0] * shape[1]).into_iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect();
        let ways: [(&str, Encode); 3] = [("bf16", Blocks::bf16), ("int8", Blocks::int8), ("nf4", Blocks::nf4)];
        for (name, encode) in ways {
            let dense = |device: &Device| Weight::Blocks(encode(&values, shape, device)).dense().try_into_vec_as::<f32>().unwrap();
            let (ours, theirs) = (dense(&vulkan), dense(&Device::flex()));
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs().max(1e-3);
            assert!(ours.len() == theirs.len() && ours.iter().zip(&theirs).all(near), "{name} {shape:?}");
            assert!(name != "bf16" || ours == values, "bf16 is exact: {shape:?}");
        }
    }
    let weight = Weight::Blocks(Blocks::nf4(&pattern(1, 640), [10, 64], &vulkan));
    assert_eq!(trace(|| weight.dense()).len(), 1, "one launch");
}
