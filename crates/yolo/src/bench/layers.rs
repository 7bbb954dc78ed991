//! Every convolution of the network on its own: forward, gradient of the input, gradient of the weight.

use std::collections::BTreeMap;
use std::time::Instant;

use bellows_kernels::cube::side_by_side;
use bellows_kernels::{ConvConfig, Lowering, conv2d, conv2d_data_grad, conv2d_weight_grad};
use burn::tensor::{Device, Distribution, ExecutionError, Tensor};

use super::{Benchmark, median};
use crate::model::YoloConfig;
use crate::model::summary::Convolution;

/// Median seconds of one shape.
#[derive(Clone, Debug)]
pub struct LayerTimes {
    /// The convolution.
    pub convolution: Convolution,
    /// How often the network has it.
    pub count: usize,
    /// Forward, gradient of the input, gradient of the weight, by the lowering asked for.
    pub ours: [f64; 3],
    /// The same by Burn's own convolutions, if they were to run.
    pub burn: Option<[f64; 3]>,
}

impl Benchmark {
    /// Times every distinct convolution on `device` in the order of the network, by `lowering` and, if `burn`, by Burn's own in turn: those
    /// are tuned on a GPU by running candidates, which some drivers do not survive.
    ///
    /// # Errors
    /// When the device fails.
    pub fn layers(&self, device: &Device, lowering: Lowering, burn: bool) -> Result<Vec<LayerTimes>, ExecutionError> {
        let model = YoloConfig { scale: self.scale, ..YoloConfig::new(self.classes) }.init(0, device);
        let mut distinct: BTreeMap<Convolution, usize> = BTreeMap::new();
        // Neither a normalisation behind one nor of which maps its input is made is part of what is timed.
        let plain = |c: Convolution| Convolution { normed: false, maps: side_by_side(&[c.cin]), ..c };
        let all: Vec<Convolution> = model.summary(self.imgsz, self.imgsz).convolutions.into_iter().map(plain).collect();
        all.iter().for_each(|&c| *distinct.entry(c).or_default() += 1);
        let mut order: Vec<(Convolution, usize)> = distinct.into_iter().collect();
        order.sort_by_key(|(c, _)| all.iter().position(|a| a == c));
        order.into_iter().map(|(convolution, count)| self.layer(convolution, count, device, lowering, burn)).collect()
    }

    fn layer(&self, c: Convolution, count: usize, device: &Device, lowering: Lowering, burn: bool) -> Result<LayerTimes, ExecutionError> {
        let random = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Uniform(-1.0, 1.0), device);
        let [height, width] = c.input;
        let x = random([self.batch, c.cin, height, width]);
        let weight = random([c.cout, c.cin, c.k, c.k]);
        let dy = random([self.batch, c.cout, height / c.stride, width / c.stride]);
        let run = |lowering| -> Result<[f64; 3], ExecutionError> {
            let config = ConvConfig::new(c.stride, c.k / 2, lowering);
            let passes: [&dyn Fn() -> Tensor<4>; 3] = [
                &|| conv2d(x.clone(), weight.clone(), None, config),
                &|| conv2d_data_grad(dy.clone(), weight.clone(), &[c.cin], c.input, config).remove(0),
                &|| conv2d_weight_grad(vec![x.clone()], dy.clone(), [c.k; 2], config),
            ];
            let mut seconds = [0.0; 3];
            for (seconds, pass) in seconds.iter_mut().zip(passes) {
                let started = Instant::now();
                drop(pass());
                device.sync()?;
                *seconds = started.elapsed().as_secs_f64();
            }
            Ok(seconds)
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..=self.steps {
            ours.push(run(lowering)?);
            if burn {
                theirs.push(run(Lowering::Direct)?);
            }
        }
        // The first round warms up.
        let medians = |rows: &[[f64; 3]]| [0, 1, 2].map(|i| median(rows.iter().skip(1).map(|r| r[i]).collect()));
        Ok(LayerTimes { convolution: c, count, ours: medians(&ours), burn: burn.then(|| medians(&theirs)) })
    }
}
