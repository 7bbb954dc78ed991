//! Weights in blocks as a device makes them dense and as its products read them, against the processor.

use crate::half::has_half;
use crate::launches::{assert_ours, trace};
use crate::support::{counted, cube, data, device, numbers, on_each_device, on_swiftshader, pattern, relative};
use bellows_kernels::operands::Maybe;
use bellows_kernels::products::{Branch, Form, ProductOps, StoredBranch, StoredMap, StoredWeight};
use bellows_kernels::{Blocks, Coding, Lowering, Precision, Weight, linear, set_default_lowering};
use bellows_weights::BlockType;
use burn::backend::ops::IntTensorOps;
use burn::tensor::{DType, Device, DeviceKind, Tensor, TensorData};
use burn_cubecl::CubeBackend;

type Encode = fn(&[f32], [usize; 2], &Device) -> Blocks;

/// Values that bf16 holds.
pub(crate) fn cut(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect()
}

/// Such values two to a word.
pub(crate) fn words(values: &[f32], shape: [usize; 2]) -> StoredWeight<CubeBackend> {
    let upper = |v: &f32| v.to_bits() >> 16;
    let codes: Vec<i32> = values.chunks(2).map(|two| (upper(&two[0]) | two.get(1).map_or(0, upper) << 16) as i32).collect();
    let len = codes.len();
    StoredWeight::Blocks {
        codes: CubeBackend::int_from_data(TensorData::new(codes, [len]), &device()),
        scales: cube(TensorData::new(vec![0.0f32], [1])),
        form: Form::Bf16,
        shape,
    }
}

/// Whole numbers, four to a word, with a scale for each row; and what they stand for.
pub(crate) fn int8(values: &[f32], [rows, columns]: [usize; 2]) -> (StoredWeight<CubeBackend>, Vec<f32>) {
    let codes: Vec<i8> = values.iter().map(|v| (v * 127.0) as i8).collect();
    let scales: Vec<f32> = (0..rows).map(|row| 0.01 + 0.001 * row as f32).collect();
    let dense = codes.iter().enumerate().map(|(i, &code)| scales[i / columns] * f32::from(code)).collect();
    let word = |four: &[i8]| (0..4).map(|i| i32::from(four.get(i).copied().unwrap_or(0) as u8) << (8 * i)).sum::<i32>();
    let words: Vec<i32> = codes.chunks(4).map(word).collect();
    let len = words.len();
    let codes = CubeBackend::int_from_data(TensorData::new(words, [len]), &device());
    let scales = cube(TensorData::new(scales, [rows]));
    (StoredWeight::Blocks { codes, scales, form: Form::Int8, shape: [rows, columns] }, dense)
}

/// NF4 of made-up codes, scales and tables.
pub(crate) fn nf4([rows, columns]: [usize; 2]) -> StoredWeight<CubeBackend> {
    let count = rows * columns;
    let blocks = count.div_ceil(64);
    let codes: Vec<i32> = pattern(21, count.div_ceil(8) + blocks.div_ceil(4)).into_iter().map(|v| v.to_bits() as i32).collect();
    let len = codes.len();
    StoredWeight::Blocks {
        codes: CubeBackend::int_from_data(TensorData::new(codes, [len]), &device()),
        scales: cube(data(22, [blocks.div_ceil(256) + 1 + 16 + 256])),
        form: Form::Nf4,
        shape: [rows, columns],
    }
}

/// Such blocks of a file.
pub(crate) fn of_file(kind: BlockType, values: &[f32], shape: [usize; 2]) -> StoredWeight<CubeBackend> {
    let mut bytes = kind.quantize(values).unwrap().bytes;
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let codes: Vec<i32> = bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
    let len = codes.len();
    StoredWeight::Blocks {
        codes: CubeBackend::int_from_data(TensorData::new(codes, [len]), &device()),
        scales: cube(TensorData::new(vec![0.0f32], [1])),
        form: Form::File(Coding::of_ggml(kind.id(), kind.decoder()).unwrap()),
        shape,
    }
}

fn dense(values: Vec<f32>, shape: [usize; 2]) -> StoredWeight<CubeBackend> {
    StoredWeight::Dense(cube(TensorData::new(values, shape)))
}

#[test]
fn agrees_with_the_cpu() {
    if !on_each_device("blocks::agrees_with_the_cpu") {
        return;
    }
    let vulkan = Device::vulkan(DeviceKind::DefaultDevice);
    // Whole words and not, one block and many, more than one group of them.
    for shape in [[1, 1], [3, 5], [7, 64], [5, 63], [70, 96], [520, 64], [9, 2048]] {
        let values = cut(pattern(7, shape[0] * shape[1]));
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

/// Of every type that a GGUF has blocks of, with scales that f16 holds as numbers of their own kind too (2^-24 and up), and none.
#[test]
fn blocks_of_a_file_are_those_of_the_cpu_to_the_bit() {
    if !on_each_device("blocks::blocks_of_a_file_are_those_of_the_cpu_to_the_bit") {
        return;
    }
    let vulkan = Device::vulkan(DeviceKind::DefaultDevice);
    let kinds = BlockType::ALL.into_iter().filter(|kind| kind.block_len() > 1);
    let mut found = 0;
    for kind in kinds {
        let coding = Coding::of_ggml(kind.id(), kind.decoder()).unwrap();
        for (shape, size) in [([3, 256], 1.0), ([5, 1280], 30.0), ([2, 512], 4e-4), ([1, 256], 0.0)] {
            let values: Vec<f32> = pattern(13, shape[0] * shape[1]).into_iter().map(|v| size * v).collect();
            let bytes = kind.quantize(&values).unwrap().bytes;
            let theirs = kind.dequantize(&bytes);
            let blocks = Weight::Blocks(Blocks::of_file(bytes, coding, shape, &vulkan));
            let ours = blocks.clone().dense().try_into_vec_as::<f32>().unwrap();
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            assert!(ours.len() == theirs.len() && ours.iter().zip(&theirs).all(same), "{kind} {shape:?} {size}");
            assert!(size == 0.0 || ours.iter().any(|v| *v != 0.0), "{kind} {size}");
            assert_eq!(trace(|| blocks.dense()).len(), 1, "one launch");
        }
        found += 1;
    }
    assert_eq!(found, 8, "Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K");
    assert!(Coding::of_ggml(0, |_, _| {}).is_none() && Coding::of_ggml(10, |_, _| {}).is_none(), "f32 is in no blocks, Q2_K is unknown");
}

/// Of a few rows a product reads any blocks where they lie, before products of Burn's too; of one more they are made dense. Nothing is rounded.
#[test]
fn a_few_rows_need_nothing_dense() {
    if !on_each_device("blocks::a_few_rows_need_nothing_dense") {
        return;
    }
    let (vulkan, shape @ [out, input]) = (Device::vulkan(DeviceKind::DefaultDevice), [37, 768]);
    let values = cut(pattern(7, out * input));
    let ways: [(&str, Encode); 3] = [("bf16", Blocks::bf16), ("int8", Blocks::int8), ("nf4", Blocks::nf4)];
    let mut weights: Vec<(String, [Blocks; 2])> =
        ways.map(|(name, encode)| (name.into(), [&vulkan, &Device::flex()].map(|device| encode(&values, shape, device)))).into();
    for kind in BlockType::ALL.into_iter().filter(|kind| kind.block_len() > 1) {
        let coding = Coding::of_ggml(kind.id(), kind.decoder()).unwrap();
        let bytes = kind.quantize(&values).unwrap().bytes;
        let on = |device: &Device| Blocks::of_file(bytes.clone(), coding, shape, device);
        weights.push((kind.to_string(), [on(&vulkan), on(&Device::flex())]));
    }
    assert_eq!(weights.len(), 3 + 8);
    for lowering in [Lowering::Direct, Lowering::Gemm] {
        set_default_lowering(lowering);
        for (name, [ours, theirs]) in &weights {
            for rows in [1, 4] {
                let product = |blocks: &Blocks, device: &Device, precision: Precision| {
                    let x = Tensor::<2>::from_data(data(3, [rows, input]), device);
                    linear(x, Weight::Blocks(blocks.clone()), None, precision)
                };
                let numbers = |y: Tensor<2>| y.try_into_vec_as::<f32>().unwrap();
                let y = numbers(product(ours, &vulkan, Precision::F32));
                let error = relative(&y, &numbers(product(theirs, &Device::flex(), Precision::F32)));
                assert!(error < 2e-6, "{name}, {rows} rows: {error:.1e}");
                assert!(y == numbers(product(ours, &vulkan, Precision::F16)), "{name}: rounded");
                assert_ours(&trace(|| product(ours, &vulkan, Precision::F32)), &[("few_rows_kernel", 1)]);
                let moved = counted(|| product(ours, &vulkan, Precision::F32)).1.work["few rows"].bytes;
                assert_eq!(moved as usize, ours.bytes() + 4 * rows * (input + out), "{name}");
            }
        }
    }
    if has_half() {
        // A dense one that is stored in 16 bits, which our own product reads alone.
        let half = |device: &Device| Tensor::<2>::from_data(data(7, shape), device).cast(DType::F16);
        let product = |device: &Device| linear(Tensor::<2>::from_data(data(3, [1, input]), device), half(device), None, Precision::F32);
        let [ours, theirs] = [&vulkan, &Device::flex()].map(|device| product(device).try_into_vec_as::<f32>().unwrap());
        let error = relative(&ours, &theirs);
        assert!(error < 2e-6, "f16: {error:.1e}");
        let (x, weight) = (Tensor::<2>::from_data(data(3, [1, input]), &vulkan), half(&vulkan));
        assert_ours(&trace(|| linear(x, weight, None, Precision::F32)), &[("few_rows_kernel", 1)]);
    }
    let more = Tensor::<2>::from_data(data(3, [5, input]), &vulkan);
    let launched = trace(|| linear(more, Weight::Blocks(weights[2].1[0].clone()), None, Precision::F32));
    let of = |name: &str| launched.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
    assert_eq!(["dense_kernel", "matmul_kernel", "few_rows_kernel"].map(of), [1, 1, 0], "{launched:?}");
}

/// Products of ours read bf16s and int8s where they lie, in both directions: the bits of the same weight dense, no launch more, and long sums in parts.
#[test]
fn products_read_words() {
    if !on_swiftshader("blocks::products_read_words") {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    for (n, [out, input], [forward, backward]) in [(4, [7, 1501], [2, 1]), (3, [1100, 5], [1, 2]), (70, [33, 65], [1, 1])] {
        let (values, shape) = (cut(pattern(2, out * input)), [out, input]);
        let (whole, stands_for) = int8(&values, shape);
        let (x, dy) = (cube(data(1, [n, input])), cube(data(6, [n, out])));
        for (packed, values) in [(words(&values, shape), values), (whole, stands_for)] {
            let [ours, theirs] = [packed.clone(), dense(values, shape)].map(|weight| {
                let y = CubeBackend::linear_forward(
                    x.clone(),
                    StoredMap { weight: weight.clone(), bias: Maybe::None, branch: Branch::Zero },
                    Precision::F32,
                );
                [y, CubeBackend::linear_data_grad(dy.clone(), weight, Branch::Zero, Precision::F32)].map(numbers)
            });
            assert!(ours == theirs && ours.iter().flatten().all(|v| v.is_finite()), "{n} x {out} x {input}");
            assert!(ours.iter().all(|values| values.iter().any(|v| *v != 0.0)));
            let launched = trace(|| {
                CubeBackend::linear_forward(
                    x.clone(),
                    StoredMap { weight: packed.clone(), bias: Maybe::None, branch: Branch::Zero },
                    Precision::F32,
                )
            });
            assert_ours(&launched, &[("matmul_kernel", 1), ("add_parts_kernel", forward - 1)]);
            let launched = trace(|| CubeBackend::linear_data_grad(dy.clone(), packed, Branch::Zero, Precision::F32));
            assert_ours(&launched, &[("matmul_kernel", 1), ("add_parts_kernel", backward - 1)]);
        }
    }
    // The branch is beside it, not in its place.
    let (values, shape) = (cut(pattern(3, 20 * 31)), [20, 31]);
    let branch = || Branch::LowRank(StoredBranch { a: cube(data(4, [4, 31])), b: cube(data(5, [20, 4])), scaling: 0.7 });
    let [ours, theirs] = [words(&values, shape), dense(values, shape)].map(|weight| {
        let y = CubeBackend::linear_forward(
            cube(data(1, [9, 31])),
            StoredMap { weight: weight.clone(), bias: Maybe::None, branch: branch() },
            Precision::F32,
        );
        [y, CubeBackend::linear_data_grad(cube(data(6, [9, 20])), weight, branch(), Precision::F32)].map(numbers)
    });
    assert!(ours == theirs);
}

/// For products in f16 blocks are rounded where they are made dense: the bits of a dense weight that is cast, and no launch more.
#[test]
fn blocks_become_factors_in_f16() {
    if !on_each_device("blocks::blocks_become_factors_in_f16") || !has_half() {
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let shape @ [out, input] = [40, 96];
    let (x, dy) = (cube(data(1, [33, input])), cube(data(6, [33, out])));
    let whole = StoredWeight::Dense(CubeBackend::dense_weight(nf4(shape)));
    let both = |weight: &StoredWeight<CubeBackend>| {
        let map = StoredMap { weight: weight.clone(), bias: Maybe::None, branch: Branch::Zero };
        let y = CubeBackend::linear_forward(x.clone(), map, Precision::F16);
        [y, CubeBackend::linear_data_grad(dy.clone(), weight.clone(), Branch::Zero, Precision::F16)]
    };
    let [ours, theirs] = [&nf4(shape), &whole].map(|weight| both(weight).map(numbers));
    assert!(ours == theirs && ours.iter().all(|values| values.iter().any(|v| *v != 0.0)));
    let [ours, theirs] = [&nf4(shape), &whole].map(|weight| trace(|| both(weight)));
    let of = |name: &str| ours.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
    assert_eq!(of("dense_kernel"), 2, "{ours:?}");
    assert_eq!(ours.values().sum::<usize>(), theirs.values().sum::<usize>(), "{ours:?} and {theirs:?}");
}
