//! The block types against other programs (`golden/blocks.py`): the `gguf` package, ggml itself and candle.

use crate::common::golden;
use bellows_weights::{BlockType, Tensors, to_bf16, to_f16};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

const LEGACY: [BlockType; 5] = [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_0, BlockType::Q5_1, BlockType::Q8_0];
const K_QUANTS: [BlockType; 3] = [BlockType::Q4K, BlockType::Q5K, BlockType::Q6K];

fn fixture() -> Tensors {
    bellows_weights::read(&golden("blocks.safetensors")).unwrap().tensors
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn any_bytes_decode_as_the_gguf_package_decodes_them() {
    let fixture = fixture();
    for kind in LEGACY.into_iter().chain(K_QUANTS) {
        let values = kind.dequantize(&fixture[&format!("{kind}.any")].data);
        assert_eq!(bits(&values), bits(&fixture[&format!("{kind}.values")].to_f32().unwrap()), "{kind}");
        assert_eq!(values.len(), 512);
    }
}

#[test]
fn the_32_blocks_are_those_of_gguf_and_candle() {
    let fixture = fixture();
    let rows = fixture["rows"].to_f32().unwrap();
    for kind in LEGACY {
        let ours = kind.quantize(&rows).unwrap();
        assert_eq!(ours.saturated, 0);
        assert!(ours.bytes == fixture[kind.name()].data, "{kind} differs from the gguf package's");
        assert!(ours.bytes == fixture[&format!("{kind}.candle")].data, "{kind} differs from candle's");
    }
}

#[test]
fn sixteen_bit_floats_are_those_of_gguf() {
    let fixture = fixture();
    let values = fixture["floats"].to_f32().unwrap();
    // NaN payloads are each program's own.
    let pairs = |bytes: &[u8]| -> Vec<u16> { bytes.as_chunks().0.iter().map(|&b| u16::from_le_bytes(b)).collect() };
    let is_nan = |index: usize| values[index].is_nan();
    let differing = |ours: &[u8], theirs: &[u8]| -> Vec<usize> {
        let (ours, theirs) = (pairs(ours), pairs(theirs));
        assert_eq!(ours.len(), theirs.len());
        (0..ours.len()).filter(|&i| ours[i] != theirs[i] && !is_nan(i)).collect()
    };
    let bf16 = BlockType::BF16.quantize(&values).unwrap();
    assert_eq!(bf16.bytes, to_bf16(&values));
    assert_eq!(differing(&bf16.bytes, &fixture["BF16"].data), Vec::<usize>::new());

    let f16 = BlockType::F16.quantize(&values).unwrap();
    assert_eq!((f16.bytes.clone(), f16.saturated), to_f16(&values));
    let saturated = differing(&f16.bytes, &fixture["F16"].data);
    assert_eq!(saturated.len(), f16.saturated);
    assert!(f16.saturated > 10 && saturated.iter().all(|&i| values[i].is_finite() && values[i].abs() >= 65520.0));
}

/// Squared error of the rows `from..to` of the fixture, each counted with this power of its magnitude.
fn error(kind: BlockType, blocks: &[u8], rows: &[f32], span: std::ops::Range<usize>, power: i32) -> f64 {
    let size = kind.block_bytes();
    let values = kind.dequantize(&blocks[span.start * size..span.end * size]);
    let rows = &rows[span.start * 256..span.end * 256];
    rows.iter().zip(values).map(|(x, y)| f64::from(x - y).powi(2) * f64::from(x.abs()).powi(power)).sum()
}

#[test]
fn k_quants_lose_no_more_than_those_of_candle_and_ggml() {
    let fixture = fixture();
    let rows = fixture["rows"].to_f32().unwrap();
    for kind in K_QUANTS {
        let ours = kind.quantize(&rows).unwrap().bytes;
        let names = [("normal", 0..16), ("heavy-tailed", 16..24), ("constant and odd", 24..32)];
        for (name, span) in names.into_iter().chain((24..32).map(|row| ("one of the odd", row..row + 1))) {
            for power in [0, 1] {
                let error = |blocks: &[u8]| error(kind, blocks, &rows, span.clone(), power).sqrt();
                let (ours, candle, ggml) =
                    (error(&ours), error(&fixture[&format!("{kind}.candle")].data), error(&fixture[kind.name()].data));
                let what = format!("{kind} of {name} rows ({span:?}), weighted by |x|^{power}: {ours:e}, candle {candle:e}, ggml {ggml:e}");
                assert!(ours <= candle * 1.02, "{what}");
                // A single row of a constant is a matter of luck with the rounding of one f16.
                assert!(ours <= ggml * 1.03 || span.len() == 1, "{what}");
            }
        }
    }
}

/// The search may be improved; this is here so that it is never changed unawares, or by a compiler, a machine or a thread count.
#[test]
fn k_quants_are_the_same_everywhere() {
    let rows = fixture()["rows"].to_f32().unwrap();
    let hashes = K_QUANTS.map(|kind| {
        let digest = Sha256::digest(kind.quantize(&rows).unwrap().bytes);
        digest.iter().take(8).map(|b| format!("{b:02x}")).collect::<String>()
    });
    assert_eq!(hashes, ["dfe8fa34f3c3c41c", "cc2b0c20ef424513", "89fe456de67821f1"]);
}

#[test]
fn constants_and_zeros_come_back() {
    for kind in LEGACY.into_iter().chain(K_QUANTS) {
        assert_eq!(kind.dequantize(&kind.quantize(&[0.0; 256]).unwrap().bytes), [0.0; 256], "{kind}");
        for constant in [0.5, -0.5, 3.7, -1e4] {
            let back = kind.dequantize(&kind.quantize(&[constant; 256]).unwrap().bytes);
            assert!(back.iter().all(|x| (x - constant).abs() <= 0.01 * constant.abs()), "{kind} of {constant}: {}", back[0]);
        }
    }
}

#[test]
fn what_a_block_cannot_hold_is_refused_or_counted() {
    let refused = |kind: BlockType, values: &[f32]| kind.quantize(values).unwrap_err().to_string();
    assert_eq!(refused(BlockType::Q8_0, &[0.0; 33]), "33 values are no whole number of Q8_0 blocks of 32");
    let mut values = [0.0; 256];
    values[7] = f32::NAN;
    assert_eq!(refused(BlockType::Q4K, &values), "element 7 is NaN, and Q4_K blocks hold finite numbers only");
    values[7] = f32::NEG_INFINITY;
    assert!(refused(BlockType::Q8_0, &values).contains("-inf"));
    assert_eq!(BlockType::BF16.quantize(&values).unwrap().saturated, 0);

    values[7] = 1e9;
    for kind in LEGACY.into_iter().chain(K_QUANTS) {
        let quantized = kind.quantize(&values).unwrap();
        assert_eq!(quantized.saturated, 1, "{kind}");
        let back = kind.dequantize(&quantized.bytes);
        assert!((back[7] - 65504.0).abs() < 100.0 && back.iter().all(|x| x.is_finite()), "{kind}: {}", back[7]);
    }
}

#[test]
fn sizes_and_fallbacks() {
    use BlockType::*;
    assert_eq!(Q4K.bytes_of(&[3, 512]), Some(3 * 2 * 144));
    assert_eq!(Q4K.bytes_of(&[512, 3]), None);
    assert_eq!(F32.bytes_of(&[]), Some(4));
    assert_eq!(Q8_0.bytes_of(&[0, 64]), Some(0));
    assert_eq!(F16.bytes_of(&[usize::MAX, 2]), None);
    assert_eq!(BlockType::ALL.map(|kind| kind.fallback(512)), BlockType::ALL);
    assert_eq!([Q4K, Q5K, Q6K, Q4_0, F32].map(|kind| kind.fallback(896)), [Q5_0, Q5_1, Q8_0, Q4_0, F32]);
    assert_eq!([Q4K, Q5K, Q6K, Q4_0, Q8_0, BF16].map(|kind| kind.fallback(900)), [F16, F16, F16, F16, F16, BF16]);
    for kind in BlockType::ALL {
        assert_eq!(BlockType::from_id(kind.id()), Some(kind));
    }
    assert_eq!([10, 4, u32::MAX].map(BlockType::from_id), [None; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// No finite input, however odd, gives a panic or a number that is not finite; and the error stays within a step.
    #[test]
    fn finite_in_finite_out(
        exponent in -45i32..38,
        values in prop::collection::vec(-1f32..1.0, 256),
        which in prop::sample::select(BlockType::ALL.to_vec()),
    ) {
        let values: Vec<f32> = values.iter().map(|x| x * 10f32.powi(exponent)).collect();
        let back = which.dequantize(&which.quantize(&values).unwrap().bytes);
        prop_assert!(back.iter().all(|x| x.is_finite()), "{}", which);
        if (-2..4).contains(&exponent) {
            let largest = values.iter().fold(0f32, |max, x| max.max(x.abs()));
            for (x, y) in values.iter().zip(back) {
                prop_assert!((x - y).abs() <= largest / 7.0, "{which}: {x} came back as {y}");
            }
        }
    }
}
