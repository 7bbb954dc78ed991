//! What a driver says it has for products of small matrices. Nothing of ours uses it: Burn's own products may.

use burn::backend::DispatchDevice;
use burn::tensor::Device;

/// The products of small matrices that a device's driver says a group of threads makes in one instruction, as `16x16x16 f16 f16 f32`: rows, columns and terms, the
/// types of both factors and of the sums. Asks the driver, which may cost it its life.
pub fn matrix_units(device: &Device) -> Vec<String> {
    let DispatchDevice::Cube(device) = device.as_dispatch() else { return Vec::new() };
    let client = device.client();
    let named = client.properties().features.matmul.cmma.iter();
    named.map(|of| format!("{}x{}x{} {} {} {}", of.m, of.n, of.k, of.a_type, of.b_type, of.cd_type)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_none() {
        assert_eq!(matrix_units(&Device::flex()), Vec::<String>::new());
    }
}
