//! The parts of a decoder layer: linear maps with their low-rank branch, RMS norm, rotary attention, gated MLP.
//!
//! Field names are those of the published checkpoints, so that a parameter's path is its tensor's name. Weights are kept `[out, in]` as
//! checkpoints store them. Hidden states are `[B, S, h]`.

use bellows_kernels::{Map, Precision, attention, linear, maps, rms_norm, rotate, swiglu};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor};

use super::ModelConfig;
use super::lora::Lora;
use super::pass::{KvCache, Pass};
use super::weight::Weight;

/// The linear maps of a layer by the names that LoRA's targets go by, in the order of the checkpoint.
pub const MAPS: [&str; 7] =
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// A parameter of zeros that no gradient is asked for until [`Param::set_require_grad`] says otherwise. It has no memory until it is looked at: one
/// that is loaded never has two.
pub(super) fn frozen<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    let zeros = move |device: &Device, wanted: bool| Tensor::zeros(shape, device).set_require_grad(wanted);
    Param::uninitialized(ParamId::new(), zeros, device.clone(), false, Shape::new(shape))
}

/// `y = x Wᵀ + b`, and beside it the low-rank branch if there is one.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Weight,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// The adapter.
    pub lora: Option<Lora>,
}

impl Linear {
    pub(super) fn new(out: usize, input: usize, bias: bool, device: &Device) -> Self {
        Self { weight: Weight::Dense(frozen([out, input], device)), bias: bias.then(|| frozen([out], device)), lora: None }
    }

    /// `[B, S, in]` to `[B, S, out]`.
    pub fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let [y] = apply([self], x, None, false, pass);
        y
    }

    /// It as one of the maps of an input, if its branch is no more than `s B A`.
    fn map(&self, pass: &Pass) -> Option<Map> {
        let branch = match &self.lora {
            Some(lora) => Some(lora.plain(pass)?),
            None => None,
        };
        Some(Map { weight: self.weight.stored(), bias: self.bias.as_ref().map(Param::val), branch })
    }

    /// `[N, in]` to `[N, out]`, by itself.
    fn alone(&self, x: Tensor<2>, pass: &Pass) -> Tensor<2> {
        let (weight, bias) = (self.weight.stored(), self.bias.as_ref().map(Param::val));
        match &self.lora {
            Some(lora) => lora.forward(x, weight, bias, pass),
            None => linear(x, weight, bias, pass.precision),
        }
    }
}

/// Whether what lies between these may be in f16 (decision 16): a map whose adapter computes by itself makes and reads f32.
fn in_half<'a>(mut linears: impl Iterator<Item = &'a Linear>, pass: &Pass) -> bool {
    pass.precision == Precision::F16 && linears.all(|linear| linear.map(pass).is_some())
}

/// What each of `linears` makes of x, `[B, S, in]` to `[B, S, out]`; `onto` `[B, S, out]` is added to the first. With `half`, results may be in f16.
fn apply<const N: usize>(linears: [&Linear; N], x: Tensor<3>, onto: Option<Tensor<3>>, half: bool, pass: &Pass) -> [Tensor<3>; N] {
    let together: Option<Vec<Map>> = linears.iter().map(|linear| linear.map(pass)).collect();
    if let Some(together) = together.and_then(|all| <[Map; N]>::try_from(all).ok()) {
        return maps(x, together, onto, half, pass.precision);
    }
    let ([b, s, input], mut onto) = (x.dims(), onto);
    let rows = x.reshape([b * s, input]);
    linears.map(|linear| {
        let y = linear.alone(rows.clone(), pass);
        let [_, out] = y.dims();
        let y = y.reshape([b, s, out]);
        match onto.take() {
            Some(onto) => onto + y,
            None => y,
        }
    })
}

/// `x / sqrt(mean(x²) + ε) ⊙ w` over the last dimension (Zhang and Sennrich 2019).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[h]`.
    pub weight: Param<Tensor<1>>,
    eps: f64,
}

impl RmsNorm {
    pub(super) fn new(size: usize, eps: f64, device: &Device) -> Self {
        Self { weight: frozen([size], device), eps }
    }

    /// Any shape whose last extent is h.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.weight.val(), self.eps)
    }
}

/// Grouped-query attention with rotary positions (Ainslie et al. 2023; Su et al. 2021).
#[derive(Module, Debug)]
pub struct Attention {
    /// `[n_heads d, h]`, with a bias in Qwen2.
    pub q_proj: Linear,
    /// `[n_kv d, h]`.
    pub k_proj: Linear,
    /// `[n_kv d, h]`.
    pub v_proj: Linear,
    /// `[h, n_heads d]`.
    pub o_proj: Linear,
    /// Qwen3: norm of every query head, `[d]`.
    pub q_norm: Option<RmsNorm>,
    /// Qwen3: norm of every key head, `[d]`.
    pub k_norm: Option<RmsNorm>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    fn new(c: &ModelConfig, device: &Device) -> Self {
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let norm = || c.qk_norm.then(|| RmsNorm::new(c.head_dim, c.rms_norm_eps, device));
        Self {
            q_proj: Linear::new(q, c.hidden_size, c.qkv_bias, device),
            k_proj: Linear::new(kv, c.hidden_size, c.qkv_bias, device),
            v_proj: Linear::new(kv, c.hidden_size, c.qkv_bias, device),
            o_proj: Linear::new(c.hidden_size, q, false, device),
            q_norm: norm(),
            k_norm: norm(),
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
        }
    }

    /// `onto` with what it makes of x added, `[B, S, h]` all; `cache` holds the keys and values of what came before, and takes these.
    pub fn forward(&self, x: Tensor<3>, onto: Tensor<3>, pass: &Pass, cache: Option<&mut KvCache>) -> Tensor<3> {
        let ([b, s, _], d) = (x.dims(), self.head_dim);
        let (inputs, output) = ([&self.q_proj, &self.k_proj, &self.v_proj], &self.o_proj);
        // A bias makes keys so large that rounding them is a percent of what attention makes (decision 21). Keys of tokens that come a few at a time are f32, and so are
        // those they are joined to.
        let half = self.k_proj.bias.is_none() && cache.is_none() && in_half(inputs.into_iter().chain([output]), pass);
        let [q, k, v] = apply(inputs, x, None, half, pass);
        let heads = |y: Tensor<3>, n: usize, norm: &Option<RmsNorm>| {
            let y = y.reshape([b, s, n, d]);
            match norm {
                Some(norm) => norm.forward(y),
                None => y,
            }
        };
        let (q, k) = (heads(q, self.heads, &self.q_norm), heads(k, self.kv_heads, &self.k_norm));
        let [q, k] = rotate(q, k, pass.rope.cos.clone(), pass.rope.sin.clone());
        let v = heads(v, self.kv_heads, &None).swap_dims(1, 2);
        let (k, v) = match cache {
            Some(cache) => cache.extend(k, v),
            None => (k, v),
        };
        let y = attention(q, k, v, pass.first.clone(), 1.0 / (d as f64).sqrt());
        let y = y.swap_dims(1, 2).reshape([b, s, self.heads * d]);
        let [y] = apply([output], y, Some(onto), false, pass);
        y
    }
}

/// `down(silu(gate(x)) ⊙ up(x))` (Shazeer 2020).
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[i, h]`.
    pub gate_proj: Linear,
    /// `[i, h]`.
    pub up_proj: Linear,
    /// `[h, i]`.
    pub down_proj: Linear,
}

impl Mlp {
    fn new(c: &ModelConfig, device: &Device) -> Self {
        Self {
            gate_proj: Linear::new(c.intermediate_size, c.hidden_size, false, device),
            up_proj: Linear::new(c.intermediate_size, c.hidden_size, false, device),
            down_proj: Linear::new(c.hidden_size, c.intermediate_size, false, device),
        }
    }

    /// `onto` with what it makes of x added, `[B, S, h]` all.
    pub fn forward(&self, x: Tensor<3>, onto: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let (wide, down) = ([&self.gate_proj, &self.up_proj], &self.down_proj);
        let half = in_half(wide.into_iter().chain([down]), pass);
        let [gate, up] = apply(wide, x, None, half, pass);
        let [y] = apply([down], swiglu(gate, up), Some(onto), false, pass);
        y
    }
}

/// One decoder layer: `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Module, Debug)]
pub struct Layer {
    /// Attention.
    pub self_attn: Attention,
    /// MLP.
    pub mlp: Mlp,
    /// Before attention.
    pub input_layernorm: RmsNorm,
    /// Before the MLP.
    pub post_attention_layernorm: RmsNorm,
}

impl Layer {
    pub(super) fn new(c: &ModelConfig, device: &Device) -> Self {
        let norm = || RmsNorm::new(c.hidden_size, c.rms_norm_eps, device);
        Self { self_attn: Attention::new(c, device), mlp: Mlp::new(c, device), input_layernorm: norm(), post_attention_layernorm: norm() }
    }

    /// `[B, S, h]` to the same.
    pub fn forward(&self, x: Tensor<3>, pass: &Pass, cache: Option<&mut KvCache>) -> Tensor<3> {
        let x = self.self_attn.forward(self.input_layernorm.forward(x.clone()), x, pass, cache);
        self.mlp.forward(self.post_attention_layernorm.forward(x.clone()), x, pass)
    }

    /// Its linear maps by the names LoRA targets go by, in the checkpoint's order.
    pub fn linears(&self) -> impl Iterator<Item = (&'static str, &Linear)> {
        let (a, m) = (&self.self_attn, &self.mlp);
        MAPS.into_iter().zip([&a.q_proj, &a.k_proj, &a.v_proj, &a.o_proj, &m.gate_proj, &m.up_proj, &m.down_proj])
    }

    /// The same, to be changed.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Linear)> {
        let (a, m) = (&mut self.self_attn, &mut self.mlp);
        let all = [&mut a.q_proj, &mut a.k_proj, &mut a.v_proj, &mut a.o_proj, &mut m.gate_proj, &mut m.up_proj, &mut m.down_proj];
        MAPS.into_iter().zip(all)
    }
}
