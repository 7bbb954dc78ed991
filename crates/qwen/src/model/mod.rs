//! Decoder-only language models in the published layout: embedding, layers, final norm, output head.

mod config;
mod error;
pub mod layers;
#[allow(non_snake_case, reason = "fields have the names of the tensors in adapter files")]
pub mod lora;
pub mod pass;
pub mod rope;
pub mod weight;

use bellows_kernels::{Precision, linear};
use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};

pub use config::ModelConfig;
pub use error::ConfigError;
use layers::{Layer, Linear, RmsNorm, frozen};
use pass::{KvCache, Pass};

/// A causal language model; parameters are named as in its checkpoint (`model.layers.0.self_attn.q_proj.weight`).
#[derive(Module, Debug)]
pub struct CausalLm {
    /// Everything up to the final norm.
    pub model: Decoder,
    /// Output head `[V, h]`; `None` where the embedding serves as one.
    pub lm_head: Option<Embedding>,
}

/// Embedding, layers and final norm.
#[derive(Module, Debug)]
pub struct Decoder {
    /// Token embedding.
    pub embed_tokens: Embedding,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub norm: RmsNorm,
}

/// A row per token id: what a token becomes, or, as output head, what its logit is made with.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[V, h]`.
    pub weight: Param<Tensor<2>>,
}

impl CausalLm {
    /// The architecture with every parameter zero and frozen.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (v, h) = (config.vocab_size, config.hidden_size);
        Self {
            model: Decoder {
                embed_tokens: Embedding { weight: frozen([v, h], device) },
                layers: (0..config.num_hidden_layers).map(|_| Layer::new(config, device)).collect(),
                norm: RmsNorm::new(h, config.rms_norm_eps, device),
            },
            lm_head: (!config.tie_word_embeddings).then(|| Embedding { weight: frozen([v, h], device) }),
        }
    }

    /// Token ids `[B, S]` to embeddings `[B, S, h]`.
    pub fn embed(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let [b, s] = ids.dims();
        let rows = self.model.embed_tokens.weight.val().select(0, ids.reshape([b * s])).cast(DType::F32);
        let h = rows.dims()[1];
        rows.reshape([b, s, h])
    }

    /// The head's weight, `[V, h]`.
    pub fn head(&self) -> &Param<Tensor<2>> {
        self.lm_head.as_ref().map_or(&self.model.embed_tokens.weight, |head| &head.weight)
    }

    /// Hidden states after the last layer, `[B, S, h]`, not yet normalised.
    pub fn hidden(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        self.model.layers.iter().fold(self.embed(ids), |x, layer| layer.forward(x, pass, None))
    }

    /// Logits `[B, S, V]` of every position, in one graph: for tests and short inputs.
    pub fn forward(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        self.logits(self.hidden(ids, pass), pass.precision)
    }

    /// Logits `[B, S, V]` of hidden states `[B, S, h]`.
    pub fn logits(&self, hidden: Tensor<3>, precision: Precision) -> Tensor<3> {
        let [b, s, h] = hidden.dims();
        let rows = self.model.norm.forward(hidden).reshape([b * s, h]);
        let logits = linear(rows, self.head().val(), None, precision);
        let vocab = logits.dims()[1];
        logits.reshape([b, s, vocab])
    }

    /// Logits `[B, V]` of the last of `ids` `[B, S]`, which follow what `caches` hold (one a layer).
    pub fn next_logits(&self, ids: Tensor<2, Int>, pass: &Pass, caches: &mut [KvCache]) -> Tensor<2> {
        let x = self.model.layers.iter().zip(caches).fold(self.embed(ids), |x, (layer, cache)| layer.forward(x, pass, Some(cache)));
        let [b, s, h] = x.dims();
        self.logits(x.narrow(1, s - 1, 1).reshape([b, 1, h]), pass.precision).squeeze_dim(1)
    }

    /// The linear maps of all layers by the names LoRA targets go by: `model.layers.0.self_attn.q_proj`.
    pub fn linears(&self) -> impl Iterator<Item = (String, &Linear)> {
        self.model
            .layers
            .iter()
            .enumerate()
            .flat_map(|(i, layer)| layer.linears().map(move |(name, linear)| (format!("model.layers.{i}.{name}"), linear)))
    }

    /// The same, to be changed.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = (String, &mut Linear)> {
        let layers = self.model.layers.iter_mut().enumerate();
        layers.flat_map(|(i, layer)| layer.linears_mut().map(move |(name, linear)| (format!("model.layers.{i}.{name}"), linear)))
    }
}
