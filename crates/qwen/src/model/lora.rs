//! Low-rank adaptation (Hu et al. 2021), with rank-stabilised scaling (Kalajdzievski 2023) and weight decomposition (DoRA, Liu et al. 2024).
//!
//! The branch is computed beside the frozen map, never composed with it: `x Aᵀ Bᵀ` costs r (in + out) products a token and keeps
//! nothing of the weight's size.

use bellows_kernels::{LowRank, Map, Precision, Weight, dropout, linear, maps};
use bellows_learner::Rng;
use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, TensorData};

use super::pass::Pass;

/// An adapter of one linear map: `W' = W + scaling B A`.
#[derive(Module, Debug)]
pub struct Lora {
    /// `[r, in]`.
    pub lora_A: Param<Tensor<2>>,
    /// `[out, r]`.
    pub lora_B: Param<Tensor<2>>,
    /// DoRA: the norm of each row of W', `[out]`.
    pub lora_magnitude_vector: Option<Param<Tensor<1>>>,
    /// DoRA: ‖w‖² of each row of the frozen weight beside it, `[out, 1]`. A pass that has them needs no dense weight.
    squares: Option<Tensor<2>>,
    scaling: f64,
    dropout: f64,
    /// Which of the model's maps this is, for its own stream of draws.
    stream: u64,
}

/// How an adapter is made.
#[derive(Clone, Copy, Debug)]
pub struct LoraSpec {
    /// r.
    pub rank: usize,
    /// Factor on B A: α / r, or α / √r with rank-stabilised scaling.
    pub scaling: f64,
    /// Probability that an input of the branch is dropped.
    pub dropout: f64,
    /// Weight decomposition.
    pub dora: bool,
    /// Which of the model's maps this is: draws differ between maps.
    pub stream: u64,
}

impl Lora {
    /// A of `U(-1/√in, 1/√in)` drawn from `seed`, B of zeros: the map is at first what it was. `weight` is `[out, in]`.
    pub fn new(spec: LoraSpec, weight: &Weight, seed: u64) -> Self {
        let ([out, input], device) = (weight.dims(), weight.device());
        let bound = 1.0 / (input as f64).sqrt();
        let mut rng = Rng::new(seed, "lora_A", 0, spec.stream);
        let a: Vec<f32> = (0..spec.rank * input).map(|_| rng.uniform(-bound, bound) as f32).collect();
        let a = Tensor::from_data(TensorData::new(a, [spec.rank, input]), &device);
        let mut lora = Self::from_tensors(spec, a, Tensor::zeros([out, spec.rank], &device), None);
        if spec.dora {
            // Those of W alone, since B is zero.
            lora.lora_magnitude_vector = Some(Param::from_tensor(row_squares(weight).sqrt().reshape([out])));
        }
        lora
    }

    /// An adapter that exists: A `[r, in]`, B `[out, r]`, magnitudes `[out]`.
    pub fn from_tensors(spec: LoraSpec, a: Tensor<2>, b: Tensor<2>, magnitude: Option<Tensor<1>>) -> Self {
        Self {
            lora_A: Param::from_tensor(a),
            lora_B: Param::from_tensor(b),
            lora_magnitude_vector: magnitude.map(Param::from_tensor),
            squares: None,
            scaling: spec.scaling,
            dropout: spec.dropout,
            stream: spec.stream,
        }
    }

    /// Looks once at the frozen weight beside it, `[out, in]`, of which DoRA asks in every pass.
    pub fn stand_beside(&mut self, weight: &Weight) {
        self.squares = self.lora_magnitude_vector.is_some().then(|| row_squares(weight));
    }

    /// Factor on B A.
    pub fn scaling(&self) -> f64 {
        self.scaling
    }

    /// The branch, if that is all there is: nothing is dropped in this pass, no row rescaled.
    pub(super) fn plain(&self, pass: &Pass) -> Option<LowRank> {
        let drops = pass.draws.is_some() && self.dropout > 0.0;
        let (a, b) = (self.lora_A.val(), self.lora_B.val());
        (!drops && self.lora_magnitude_vector.is_none()).then_some(LowRank { a, b, scaling: self.scaling })
    }

    /// `x Wᵀ + b` with the branch added; x `[N, in]`, W `[out, in]`.
    pub(super) fn forward(&self, x: Tensor<2>, weight: Weight, bias: Option<Tensor<1>>, pass: &Pass) -> Tensor<2> {
        let precision = pass.precision;
        if let Some(branch) = self.plain(pass) {
            let [y] = maps(x, [Map { weight, bias, branch: Some(branch) }], None, false, precision);
            return y;
        }
        let dropped = match pass.draws {
            Some(draws) if self.dropout > 0.0 => Some(dropout(x.clone(), draws.stream("dropout", self.stream).key(), self.dropout)),
            _ => None,
        };
        let (a, b) = (self.lora_A.val(), self.lora_B.val());
        let branch = |input: Tensor<2>| {
            // The narrower side is scaled.
            let inner = linear(input, a.clone(), None, Precision::F32).mul_scalar(self.scaling);
            linear(inner, b.clone(), None, Precision::F32)
        };
        let Some(magnitude) = &self.lora_magnitude_vector else {
            return linear(x.clone(), weight, bias, precision) + branch(dropped.unwrap_or(x));
        };
        // The norm counts as a constant (DoRA, section 4.3). With dropout, only what passed it is rescaled, as in PEFT.
        let squares = self.squares.clone().unwrap_or_else(|| row_squares(&weight));
        let ratio = (magnitude.val() / self.row_norms(weight.clone(), squares).detach()).unsqueeze::<2>();
        let base = linear(x.clone(), weight.clone(), None, precision);
        let rescaled = dropped.clone().map_or_else(|| base.clone(), |x| linear(x, weight, None, precision));
        let y = base + rescaled * ratio.clone().sub_scalar(1.0) + branch(dropped.unwrap_or(x)) * ratio;
        match bias {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }

    /// ‖W + s B A‖ of each row, `[out]`, without composing it: `‖w‖² + 2 s b·(A w) + s² b·(A Aᵀ b)`, of which `squares` are the first.
    fn row_norms(&self, weight: Weight, squares: Tensor<2>) -> Tensor<1> {
        // A parameter that is detached asks for a gradient still, and a graph of all this would be kept until the backward pass.
        let [a, b] = [&self.lora_A, &self.lora_B].map(|side| side.val().set_require_grad(false));
        let [out, _] = b.dims();
        let inner = linear(a.clone(), weight, None, Precision::F32).transpose();
        let cross = (inner * b.clone()).sum_dim(1).mul_scalar(2.0 * self.scaling);
        let gram = linear(a.clone(), a, None, Precision::F32);
        // A Aᵀ is its own transpose.
        let own = (linear(b.clone(), gram, None, Precision::F32) * b).sum_dim(1).mul_scalar(self.scaling * self.scaling);
        (squares + cross + own).sqrt().reshape([out])
    }

    /// W' as a dense weight, `[out, in]`.
    pub fn merge(&self, weight: Tensor<2>) -> Tensor<2> {
        let weight = weight.cast(DType::F32);
        let product = linear(self.lora_B.val(), self.lora_A.val().transpose(), None, Precision::F32);
        let dense = weight.clone() + product.mul_scalar(self.scaling);
        match &self.lora_magnitude_vector {
            Some(magnitude) => {
                let [out] = magnitude.dims();
                let weight = weight.into();
                let squares = row_squares(&weight);
                dense * (magnitude.val() / self.row_norms(weight, squares)).reshape([out, 1])
            }
            None => dense,
        }
    }
}

/// ‖w‖² of each row, `[out, 1]`.
fn row_squares(weight: &Weight) -> Tensor<2> {
    weight.clone().dense().cast(DType::F32).square().sum_dim(1)
}

#[cfg(test)]
mod tests {
    use bellows_kernels::Blocks;
    use burn::tensor::Device;

    use super::*;
    use crate::model::ModelConfig;

    fn drawn(seed: u64, shape: [usize; 2]) -> Tensor<2> {
        let mut rng = Rng::new(seed, "drawn", 0, 0);
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| rng.normal() as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.try_into_vec_as().unwrap()
    }

    /// Beside a weight in four bits: the norms are those of the composed weight, and a pass takes what was kept of it.
    #[test]
    fn doras_norms_need_no_dense_weight() {
        let (out, input, rank) = (48, 64, 4);
        let blocks = Blocks::nf4(&host(drawn(1, [out, input])), [out, input], &Device::flex());
        let weight = Weight::Blocks(blocks);
        let spec = LoraSpec { rank, scaling: 0.5, dropout: 0.0, dora: true, stream: 0 };
        let magnitude = drawn(2, [1, out]).reshape([out]);
        let mut lora = Lora::from_tensors(spec, drawn(3, [rank, input]), drawn(4, [out, rank]), Some(magnitude));
        let composed = weight.clone().dense() + lora.lora_B.val().matmul(lora.lora_A.val()).mul_scalar(0.5);
        let norms = composed.square().sum_dim(1).sqrt();
        for (ours, theirs) in host(lora.row_norms(weight.clone(), row_squares(&weight))).iter().zip(host(norms)) {
            assert!((ours / theirs - 1.0).abs() < 1e-5, "{ours} for {theirs}");
        }

        let shape = ModelConfig::from_json(include_str!("../../tests/golden/qwen2/model/config.json")).unwrap();
        let pass = Pass::new([1, 3], &[0, 1, 2], &[0; 3], &shape, &Device::flex());
        let y = |lora: &Lora| host(lora.forward(drawn(5, [3, input]), weight.clone(), None, &pass));
        let looked_up = y(&lora);
        lora.stand_beside(&weight);
        assert_eq!(y(&lora), looked_up);
        lora.squares = Some(Tensor::full([out, 1], f32::NAN, &Device::flex()));
        assert!(y(&lora).iter().all(|v| v.is_nan()));
    }
}
