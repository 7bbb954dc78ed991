//! Weights in blocks: NF4 against bitsandbytes' numbers, error bounds, and products at every instruction set against those with the same weight
//! made dense.

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::f16;

use super::operand;
use super::packed::{Coding, Form, Packed};
use super::tests::lora_linear;
use super::{Blocks, LowRank, Stored, Weight, int8, linear, linear_data_grad, nf4};
use crate::cpu::Precision;
use crate::cpu::reference::{greatest, noise};
use crate::cpu::simd::{Level, level, with_level};

/// What `tests/golden/nf4.py` draws.
fn drawn() -> Vec<f32> {
    let value = |i: usize| ((i * 7919 % 2003) as f32 - 1001.0) / 1024.0 * (1 + i / 64 % 7) as f32;
    (0..64 * 260).map(value).collect()
}

fn floats(line: &str) -> Vec<f32> {
    line.split(' ').map(|word| f32::from_bits(u32::from_str_radix(word, 16).unwrap())).collect()
}

fn bytes(line: &str) -> Vec<u8> {
    line.as_bytes().chunks(2).map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn nf4_is_that_of_bitsandbytes() {
    let golden: Vec<&str> = include_str!("../../tests/golden/nf4.txt").lines().collect();
    assert_eq!(floats(golden[0]), nf4::LEVELS);
    // Their table of magnitudes is made in f32, with a rounding at each step.
    let near = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        let worst = greatest(a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()) / f64::from(b.abs()).max(1e-30)));
        assert!(worst < 1.3e-7, "{worst:e}");
    };
    near(&*nf4::MAGNITUDES, &floats(golden[1]));
    let values = drawn();
    let (codes, scales) = nf4::encode(&values);
    let (levels, magnitudes) = codes.split_at(nf4::level_bytes(values.len()));
    let expected = bytes(golden[2]);
    assert_eq!(levels[..expected.len()], expected);
    assert_eq!(magnitudes[..260], bytes(golden[3]));
    let (scales_and_mean, tables) = scales.split_at(scales.len() - 272);
    near(scales_and_mean, &floats(&format!("{} {}", golden[4], golden[5])));
    assert_eq!(tables, [&nf4::LEVELS[..], &*nf4::MAGNITUDES].concat());
    let theirs: Vec<f32> = floats(golden[6]);
    for level in Level::all() {
        let ours: Vec<f32> = with_level(level, || decoded(Form::Nf4, &codes, &scales, [260, 64])).into_iter().step_by(97).collect();
        let worst = greatest(ours.iter().zip(&theirs).map(|(a, b)| f64::from((a - b).abs())));
        assert!(ours.len() == theirs.len() && worst < 1e-6, "{level:?}: {worst:e}");
    }
}

/// All values of a matrix in blocks.
fn decoded(form: Form, codes: &[u8], scales: &[f32], shape: [usize; 2]) -> Vec<f32> {
    let mut values = vec![f32::NAN; shape[0] * shape[1]];
    operand::decode(level(), Stored::Packed(Packed { codes, scales, form, shape }), 0, &mut values);
    values
}

/// Half the widest gap between two levels times the block's magnitude; and what the 8-bit magnitude is off by: half the widest gap of its
/// table times the scale.
#[test]
fn nf4_is_off_by_half_a_gap_at_most() {
    for len in [64 * 3, 64 * 300, 1000, 63, 1] {
        let values = noise(len as u64, len);
        let (codes, scales) = nf4::encode(&values);
        let back = decoded(Form::Nf4, &codes, &scales, [1, len]);
        let widest = |table: &[f32]| table.windows(2).map(|w| w[1] - w[0]).fold(0f32, f32::max);
        let (level, magnitude) = (widest(&nf4::LEVELS) / 2.0, widest(&*nf4::MAGNITUDES) / 2.0);
        for (b, (values, back)) in values.chunks(64).zip(back.chunks(64)).enumerate() {
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            let limit = level * largest + magnitude * scales[b / 256] + 1e-6;
            let worst = values.iter().zip(back).map(|(v, b)| (v - b).abs()).fold(0f32, f32::max);
            assert!(worst <= limit, "block {b} of {len}: {worst} > {limit}");
        }
    }
    let (codes, scales) = nf4::encode(&[0.0; 128]);
    assert_eq!(decoded(Form::Nf4, &codes, &scales, [2, 64]), [0.0; 128], "zeros stay zeros");
}

#[test]
fn int8_is_off_by_half_a_step_at_most() {
    let (rows, columns) = (5, 77);
    let mut values = noise(3, rows * columns);
    values[2 * columns..3 * columns].fill(0.0);
    let (codes, scales) = int8::encode(&values, columns);
    let back = decoded(Form::Int8, &codes, &scales, [rows, columns]);
    for (values, back) in values.chunks(columns).zip(back.chunks(columns)) {
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!(values.iter().zip(back).all(|(v, b)| (v - b).abs() <= largest / 253.9));
        let back = back.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert!((back - largest).abs() <= largest * f32::EPSILON, "the largest is off by a rounding at most: {back} for {largest}");
    }
}

/// Of scales below 2.9e-39 the inverse is too large for an f32.
#[test]
fn the_smallest_values_are_off_by_no_more() {
    let mut values: Vec<f32> = noise(3, 128).iter().map(|v| v * 1e-39).collect();
    values[5] = 0.0;
    for (form, (codes, scales), step) in [(Form::Int8, int8::encode(&values, 128), 1.0 / 250.0), (Form::Nf4, nf4::encode(&values), 0.2)] {
        let back = decoded(form, &codes, &scales, [1, 128]);
        assert!(values.iter().zip(&back).all(|(v, b)| (v - b).abs() <= 1e-39 * step), "{form:?}: {values:?} are {back:?}");
        assert_eq!(back[5], 0.0, "{form:?}");
    }
}

/// Blocks of 32 values: a scale and bytes, ggml's Q8_0.
fn coding() -> Coding {
    Coding::of_ggml(8, decode).unwrap()
}

fn decode(blocks: &[u8], values: &mut [f32]) {
    for (block, values) in blocks.chunks_exact(34).zip(values.chunks_exact_mut(32)) {
        let scale = f16::from_le_bytes(block[..2].try_into().unwrap()).to_f32();
        values.iter_mut().zip(&block[2..]).for_each(|(v, &byte)| *v = scale * f32::from(byte as i8));
    }
}

fn blocks_of_a_file(values: &[f32]) -> Vec<u8> {
    let block = |values: &[f32]| {
        let scale = f16::from_f32(1.0 / 127.0);
        let codes = values.iter().map(move |v| (v * 127.0).round().clamp(-127.0, 127.0) as i8 as u8);
        scale.to_le_bytes().into_iter().chain(codes).collect::<Vec<u8>>()
    };
    values.chunks(32).flat_map(block).collect()
}

#[test]
fn any_part_is_the_same_part_of_the_whole() {
    let shape = [6, 96];
    let values = noise(9, 6 * 96);
    let cases = [
        (Form::Bf16, (values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect(), Vec::new())),
        (Form::Int8, int8::encode(&values, 96)),
        (Form::Nf4, nf4::encode(&values)),
        (Form::File(coding()), (blocks_of_a_file(&values), Vec::new())),
    ];
    for (form, (codes, scales)) in &cases {
        let packed = Packed { codes, scales, form: *form, shape };
        let whole = with_level(Level::Portable, || decoded(*form, codes, scales, shape));
        for (at, len) in [(0, 1), (1, 1), (31, 2), (32, 64), (33, 200), (38, 30), (95, 97), (1, 575), (64, 128)] {
            for level in Level::all() {
                let mut part = vec![f32::NAN; len];
                operand::decode(level, Stored::Packed(packed), at, &mut part);
                assert_eq!(part, whole[at..at + len], "{form:?} {level:?} {at} {len}");
            }
        }
    }
}

/// Every way to store a weight `[out, in]`.
fn weights(out: usize, input: usize, device: &Device) -> Vec<(&'static str, Weight)> {
    let (values, shape) = (noise(2, out * input), [out, input]);
    let half = Tensor::<2>::from_data(TensorData::new(values.clone(), shape), (device, DType::F32)).cast(DType::F16);
    vec![
        ("f16", half.into()),
        ("bf16", Weight::Blocks(Blocks::bf16(&values, shape, device))),
        ("int8", Weight::Blocks(Blocks::int8(&values, shape, device))),
        ("nf4", Weight::Blocks(Blocks::nf4(&values, shape, device))),
        ("file", Weight::Blocks(Blocks::of_file(blocks_of_a_file(&values), coding(), shape, device))),
    ]
}

fn host(t: Tensor<2>) -> Vec<f32> {
    t.cast(DType::F32).try_into_vec_as().unwrap()
}

/// Products with a weight in blocks have the bits of products with the same weight made dense, in both directions: at one row and at many, and of
/// sizes that no block divides.
#[test]
fn products_are_those_with_the_dense_weight() {
    let device = Device::flex();
    for (n, out, input, rank) in [(1, 70, 96, 4), (37, 90, 64, 4), (150, 333, 544, 8)] {
        let drawn =
            |seed: u64, shape: [usize; 2]| Tensor::<2>::from_data(TensorData::new(noise(seed, shape[0] * shape[1]), shape), &device);
        let (x, dy) = (drawn(1, [n, input]), drawn(6, [n, out]));
        let branch = || LowRank { a: drawn(4, [rank, input]), b: drawn(5, [out, rank]), scaling: 0.7 };
        for (name, weight) in weights(out, input, &device) {
            let dense = weight.clone().dense().cast(DType::F32);
            for level in Level::all() {
                for precision in [Precision::F32, Precision::Bf16] {
                    let all = |weight: Weight| {
                        [
                            linear(x.clone(), weight.clone(), None, precision),
                            linear_data_grad(dy.clone(), weight.clone(), precision),
                            lora_linear(x.clone(), weight, None, branch(), precision),
                        ]
                        .map(host)
                    };
                    let [got, expected] = [weight.clone(), dense.clone().into()].map(|weight| with_level(level, || all(weight)));
                    assert!(got == expected, "{name} {level:?} {precision:?} {n} x {out} x {input}");
                }
            }
        }
    }
}

#[test]
fn gradients_pass_through_a_weight_in_blocks() {
    let device = Device::flex().autodiff();
    for (_, weight) in weights(70, 96, &device) {
        let run = |weight: Weight| {
            let leaf = |seed: u64, shape: [usize; 2]| {
                Tensor::<2>::from_data(TensorData::new(noise(seed, shape[0] * shape[1]), shape), &device).require_grad()
            };
            let (x, a, b) = (leaf(1, [9, 96]), leaf(4, [4, 96]), leaf(5, [70, 4]));
            let y = lora_linear(x.clone(), weight.clone(), None, LowRank { a: a.clone(), b: b.clone(), scaling: 0.7 }, Precision::F32);
            let y = y + linear(x.clone(), weight, None, Precision::F32);
            let mut graph = y.sum().backward();
            [x, a, b].map(|leaf| host(leaf.grad_remove(&mut graph).unwrap()))
        };
        let dense = weight.clone().dense().cast(DType::F32);
        assert!(run(weight) == run(dense.into()));
    }
}

#[test]
fn memory_is_what_the_form_says() {
    let (device, values) = (Device::flex(), noise(1, 1024 * 1024));
    let bits = |blocks: Blocks| 8.0 * blocks.bytes() as f64 / values.len() as f64;
    let (int8, nf4) = (bits(Blocks::int8(&values, [1024, 1024], &device)), bits(Blocks::nf4(&values, [1024, 1024], &device)));
    assert_eq!(bits(Blocks::bf16(&values, [1024, 1024], &device)).round(), 16.0);
    let tables = 8.0 * 4.0 * 272.0 / values.len() as f64;
    assert!((int8 - 8.03).abs() < 0.01 && (nf4 - tables - 4.127).abs() < 0.001, "{int8} {nf4}");
}

#[test]
#[should_panic(expected = "values of a matrix of shape [2, 3]")]
fn values_that_do_not_fit_are_named() {
    drop(Blocks::nf4(&[0.0; 5], [2, 3], &Device::flex()));
}

#[test]
fn halves_are_exact() {
    let values: Vec<f32> = noise(1, 300).iter().map(|&v| f16::from_f32(v).to_f32()).collect();
    let dense = Tensor::<2>::from_data(TensorData::new(values.clone(), [3, 100]), &Device::flex());
    let one = Tensor::<2>::from_data(TensorData::new(vec![1.0f32, 0.0, 0.0], [1, 3]), &Device::flex());
    assert_eq!(host(linear_data_grad(one.clone(), dense.cast(DType::F16), Precision::F32)), values[..100]);
    let values: Vec<f32> = values.iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect();
    let words = Weight::Blocks(Blocks::bf16(&values, [3, 100], &Device::flex()));
    assert_eq!(host(linear_data_grad(one, words, Precision::F32)), values[..100]);
}
