//! A folded detector's passes on the processor, which are planned, against those of its layers, to the bit.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use bellows_kernels::{Lowering, set_default_lowering};
use bellows_yolo::model::YoloConfig;
use burn::tensor::{Device, Tensor, TensorData};

fn images(batch: usize, [height, width]: [usize; 2], device: &Device) -> Tensor<4> {
    let values: Vec<f32> = (0..batch * 3 * height * width).map(|i| (i * 7919 % 1013) as f32 / 1013.0).collect();
    Tensor::from_data(TensorData::new(values, [batch, 3, height, width]), device)
}

/// One test, because the lowering is the process's.
#[test]
fn a_planned_pass_is_the_layers_pass_to_the_bit() {
    let device = Device::flex();
    let bits = |feats: Vec<Tensor<4>>| -> Vec<([usize; 4], Vec<u32>)> {
        let host = |x: Tensor<4>| (x.dims(), x.into_data().try_into_vec_as::<f32>().unwrap().into_iter().map(f32::to_bits).collect());
        feats.into_iter().map(host).collect()
    };
    for (sppf_act, p2) in [(true, false), (false, false), (true, true)] {
        let model = YoloConfig { sppf_act, p2, ..YoloConfig::new(3) }.init(1, &device);
        let fused = model.fuse(&device);
        for lowering in [Lowering::Auto, Lowering::Bf16, Lowering::Implicit] {
            set_default_lowering(lowering);
            for (batch, size) in [(1, [96, 96]), (4, [32, 64]), (1, [32, 64]), (4, [96, 96])] {
                let x = images(batch, size, &device);
                let layers = bits(model.forward(x.clone()));
                assert_eq!(layers.len(), if p2 { 4 } else { 3 });
                // Of images that others hold, and of such that may be written over.
                assert!(bits(fused.forward(x.clone())) == layers, "{sppf_act} {p2} {lowering} {batch} {size:?}");
                assert!(bits(fused.forward(x)) == layers, "{sppf_act} {p2} {lowering} {batch} {size:?}, again");
            }
        }
    }
}
