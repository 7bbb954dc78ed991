//! Batch normalisation of parts of a batch that know of each other, against that of the whole: on the processor, and on each software device.

use crate::support::{on_each_device, pattern};
use bellows_kernels::{Gather, NormStep, batch_norm_silu, with_parts};
use burn::tensor::{Device, DeviceKind, Tensor};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Barrier, Mutex};

const SHAPE: [usize; 4] = [6, 5, 4, 3];

/// Output, both running statistics, and the gradients of x, gamma and beta, of these images.
fn pass(images: Range<usize>, silu: bool, device: &Device) -> [Vec<f32>; 6] {
    let device = device.clone().autodiff();
    let [n, c, h, w] = SHAPE;
    let image = |seed| Tensor::<1>::from_floats(pattern(seed, n * c * h * w).as_slice(), &device).reshape(SHAPE);
    // Of other sizes in every image, and far from zero: parts are unlike.
    let sizes = Tensor::<1>::from_floats([0.5, 1.0, 2.0, 3.0, 4.0, 0.1], &device).reshape([n, 1, 1, 1]);
    let mine = |x: Tensor<4>| x.narrow(0, images.start, images.len());
    let channel = |seed| Tensor::<1>::from_floats(pattern(seed, c).as_slice(), &device).require_grad();
    let x = mine(image(1) * sizes.clone() + sizes.mul_scalar(3.0)).detach().require_grad();
    let (gamma, beta) = (channel(2), channel(3));
    let running = [Tensor::zeros([c], &device), Tensor::ones([c], &device)];
    let step = NormStep { epsilon: 1e-3, silu, momentum: 0.3 };
    let y = batch_norm_silu(x.clone(), gamma.clone(), beta.clone(), running, step, None);
    let grads = (y.output.clone() * mine(image(4))).sum().backward();
    let host = |x: Tensor<1>| x.into_data().try_into_vec_as::<f32>().unwrap();
    let [mean, variance] = y.running.map(host);
    let flat = |x: Tensor<4>| host(x.flatten(0, 3));
    [flat(y.output), mean, variance, flat(x.grad(&grads).unwrap()), host(gamma.grad(&grads).unwrap()), host(beta.grad(&grads).unwrap())]
}

/// The same of `part` of the images, while other threads have the others.
fn together(all: &[Range<usize>], silu: bool, device: &Device) -> Vec<[Vec<f32>; 6]> {
    let (barrier, told) = (Arc::new(Barrier::new(all.len())), Arc::new(Mutex::new(vec![Vec::new(); all.len()])));
    std::thread::scope(|scope| {
        let part = |(i, images): (usize, &Range<usize>)| {
            let (barrier, told, images) = (barrier.clone(), told.clone(), images.clone());
            scope.spawn(move || {
                let gather: Gather = Rc::new(move |mine| {
                    told.lock().unwrap()[i] = mine.to_vec();
                    barrier.wait();
                    let all = told.lock().unwrap().clone();
                    barrier.wait();
                    all
                });
                with_parts(gather, || pass(images, silu, device))
            })
        };
        let parts: Vec<_> = all.iter().enumerate().map(part).collect();
        parts.into_iter().map(|part| part.join().unwrap()).collect()
    })
}

fn check(device: &Device) {
    for (parts, silu) in [(vec![0..3, 3..6], true), (vec![0..1, 1..2, 2..6], true), (vec![0..4, 4..6], false)] {
        let (whole, made) = (pass(0..6, silu, &Device::flex()), together(&parts, silu, device));
        let close = |what: &str, ours: &[f32], theirs: &[f32]| {
            assert_eq!(ours.len(), theirs.len());
            // The largest difference passes over what is no number.
            assert!(ours.iter().chain(theirs).all(|v| v.is_finite()), "{what} of {parts:?}: no numbers");
            let scale = theirs.iter().fold(1.0f32, |most, x| most.max(x.abs()));
            let apart = ours.iter().zip(theirs).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(apart <= 1e-5 * scale, "{what} of {parts:?}: {apart} apart");
        };
        for i in [0, 3] {
            let joined: Vec<f32> = made.iter().flat_map(|part| part[i].clone()).collect();
            close(["output", "", "", "dx"][i], &joined, &whole[i]);
        }
        for part in &made {
            close("running mean", &part[1], &whole[1]);
            close("running variance", &part[2], &whole[2]);
        }
        for i in [4, 5] {
            let sum: Vec<f32> = (0..SHAPE[1]).map(|c| made.iter().map(|part| part[i][c]).sum()).collect();
            close("sums", &sum, &whole[i]);
        }
    }
}

#[test]
fn parts_are_normalised_as_the_whole() {
    check(&Device::flex());
}

#[test]
fn parts_are_normalised_as_the_whole_on_devices() {
    if on_each_device("norm_parts::parts_are_normalised_as_the_whole_on_devices") {
        check(&Device::vulkan(DeviceKind::DefaultDevice));
    }
}
