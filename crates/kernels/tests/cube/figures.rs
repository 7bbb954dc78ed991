//! Not tests: figures for the documentation, of the device that `VK_DRIVER_FILES` names:
//! `cargo test --release --workspace --test cube -- --ignored --nocapture figures`;
//! `BELLOWS_CUBE_DIRECT=1` adds Burn's own convolutions, whose tuning takes minutes on SwiftShader.

use crate::launches::most_in_use;
use crate::support::{self, Numbers, cube, data, device, flex, numbers, relative};
use bellows_kernels::cube::{set_workspace_bytes, shared_memory_works};
use bellows_kernels::ops::KernelOps;
use bellows_kernels::{ConvConfig, Lowering};
use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_flex::Flex;
use std::env;
use std::time::Instant;

/// Forward and backward of a chain like the first layers of YOLOv8n, activations kept as training keeps them; the device's numbers.
fn chain(lowering: Lowering) -> Vec<f32> {
    let layers = [(3, 16, 3, 2), (16, 32, 3, 2), (32, 32, 1, 1), (32, 32, 3, 1), (32, 64, 3, 2), (64, 64, 1, 1), (64, 64, 3, 1)];
    let mut kept = vec![cube(data(1, [4, 3, 256, 256]))];
    let weights = layers.iter().zip(10..).map(|(&(ci, co, k, _), stream)| cube(data(stream, [co, ci, k, k]))).collect::<Vec<_>>();
    let config = |k: usize, stride| ConvConfig::new(stride, k / 2, lowering);
    for (&(_, _, k, stride), w) in layers.iter().zip(&weights) {
        let y = CubeBackend::conv_forward(kept.last().unwrap().clone(), w.clone(), None.into(), config(k, stride));
        kept.push(CubeBackend::float_mul_scalar(y, burn::backend::Scalar::Float(0.1)));
    }
    let mut dy = kept.pop().unwrap();
    let mut sums = Vec::new();
    for (&(_, _, k, stride), w) in layers.iter().zip(&weights).rev() {
        let x = kept.pop().unwrap();
        let [_, _, height, width] = x.shape().dims();
        let dw = support::weight_grad(x, dy.clone(), [k; 2], config(k, stride));
        sums.extend(numbers(dw));
        if !kept.is_empty() {
            dy = support::data_grad(dy, w.clone(), [height, width], config(k, stride));
        }
    }
    sums
}

/// The peak of a step's memory and its time, by lowering and workspace.
#[test]
#[ignore = "figures"]
fn memory_figures() {
    let direct = env::var_os("BELLOWS_CUBE_DIRECT").map(|_| ("direct", Lowering::Direct, 0));
    let limits = direct.into_iter().chain([16, 4, 2, 1].map(|mb| ("gemm", Lowering::Gemm, mb)));
    let mut base = None;
    for (name, lowering, mb) in limits {
        set_workspace_bytes(mb << 20);
        // Candidates are tried the first time.
        let first = chain(lowering);
        let start = Instant::now();
        let mut second = Vec::new();
        let most = most_in_use(|| second = chain(lowering)) as f64 / f64::from(1 << 20);
        let error = relative(&second, &first);
        let base = *base.get_or_insert(most);
        let change = (most / base - 1.0) * 100.0;
        println!(
            "{name} {mb:3} MB: {most:6.1} MB in use at most, {change:+.0} %, {:.2} s, repeats to {error:.0e}",
            start.elapsed().as_secs_f32()
        );
    }
}

/// CubeCL's own matmul without tuning against ours (as a 1x1 convolution), right or wrong and how fast.
#[test]
#[ignore = "figures"]
fn matmul_figures() {
    use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
    println!("{}, shared memory {}", device().client().name(), shared_memory_works(&device()));
    for (m, k, n) in [(16, 1, 4), (16, 3, 4), (64, 64, 64), (33, 17, 65), (64, 576, 6400), (128, 1152, 1600)] {
        let (a, b) = (cube(data(1, [m, k])), cube(data(2, [k, n])));
        let cpu = Flex::float_matmul(flex(data(1, [m, k])), flex(data(2, [k, n]))).into_f32();
        let theirs = || numbers(matmul(a.clone(), b.clone(), None, MatmulStrategy::Cube, DType::F32).unwrap());
        let (w, x) = (cube(data(1, [m, k, 1, 1])), cube(data(2, [1, k, n, 1])));
        let ours = || numbers(CubeBackend::conv_forward(x.clone(), w.clone(), None.into(), ConvConfig::new(1, 0, Lowering::Gemm)));
        let timed = |run: &dyn Fn() -> Vec<f32>| {
            let error = relative(&run(), &cpu);
            let start = Instant::now();
            run();
            let time = start.elapsed().as_secs_f64();
            format!("error {error:.0e}, {:.1} ms, {:.2} GFLOP/s", time * 1e3, (2 * m * k * n) as f64 / time * 1e-9)
        };
        println!("[{m}, {k}] x [{k}, {n}]: CubeCL {}; ours {}", timed(&theirs), timed(&ours));
    }
}
