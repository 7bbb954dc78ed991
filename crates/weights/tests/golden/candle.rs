//! candle's encoders, for blocks.py: `candle-oracle TYPE ROWS BLOCKS` reads little-endian f32 and writes the blocks.
//!
//! Not part of the build: candle-core is minutes of compiling for one fixture. A package of this file alone, with
//! `candle-core = { version = "=0.11.1", default-features = false }`, is all it needs.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};

fn main() {
    let [_, kind, rows, blocks] = std::env::args().collect::<Vec<_>>().try_into().unwrap();
    let kind = match kind.as_str() {
        "Q4_0" => GgmlDType::Q4_0,
        "Q4_1" => GgmlDType::Q4_1,
        "Q5_0" => GgmlDType::Q5_0,
        "Q5_1" => GgmlDType::Q5_1,
        "Q8_0" => GgmlDType::Q8_0,
        "Q4_K" => GgmlDType::Q4K,
        "Q5_K" => GgmlDType::Q5K,
        "Q6_K" => GgmlDType::Q6K,
        other => panic!("{other}"),
    };
    let values: Vec<f32> = std::fs::read(rows).unwrap().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let tensor = Tensor::from_vec(values.clone(), (values.len() / 256, 256), &Device::Cpu).unwrap();
    std::fs::write(blocks, QTensor::quantize(&tensor, kind).unwrap().data().unwrap()).unwrap();
}
