//! Changes to a model's weights: a direction taken out of what its layers write into the residual stream, or a vector added to it.
//!
//! In a decoder layer only `o_proj` and `down_proj` write there. `W − λ r̂ r̂ᵀ W` of both is the same as taking the share λ of the direction out
//! of what they write in every pass (Arditi et al. 2024, section 2.4). All sums are in f64, the result is f32.

use std::fmt;
use std::str::FromStr;

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use rayon::prelude::*;

use super::error::ConceptError;
use super::reader::host;
use crate::model::CausalLm;
use crate::model::layers::Linear;

/// Consecutive layers, both ends included: `8-16`, `8`, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRange {
    first: usize,
    /// `None`: to the last one.
    last: Option<usize>,
}

impl LayerRange {
    /// Every layer.
    pub const ALL: Self = Self { first: 0, last: None };

    /// Those of a model with so many layers, as first and one past the last.
    ///
    /// # Errors
    /// A layer that the model does not have.
    pub fn of(self, layers: usize) -> Result<std::ops::Range<usize>, ConceptError> {
        let last = self.last.unwrap_or(layers.saturating_sub(1));
        if last >= layers {
            return Err(ConceptError::Setting(format!("layers {self}: this model has {layers} layers, counted from 0")));
        }
        Ok(self.first..last + 1)
    }
}

impl FromStr for LayerRange {
    type Err = ConceptError;

    fn from_str(text: &str) -> Result<Self, ConceptError> {
        let wrong = || ConceptError::Setting(format!("layers {text:?}: expected `all`, a layer (8) or a range of them (8-16)"));
        if text.trim() == "all" {
            return Ok(Self::ALL);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(Self { first, last: Some(last) }) } else { Err(wrong()) }
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            None => f.write_str("all"),
            Some(last) if last == self.first => write!(f, "{last}"),
            Some(last) => write!(f, "{}-{last}", self.first),
        }
    }
}

/// How a direction is taken out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ablation {
    /// Of which layers.
    pub layers: LayerRange,
    /// λ: 1 takes it out, less leaves a part, 2 turns it round.
    pub strength: f64,
    /// What each input of a matrix writes keeps its length: the columns of `[h, in]` are scaled back, which leaves the direction out of them.
    pub norm_preserving: bool,
    /// Take it out of the embedding too. Where that is the output head as well, the head is edited with it.
    pub embeddings: bool,
}

impl Default for Ablation {
    fn default() -> Self {
        Self { layers: LayerRange::ALL, strength: 1.0, norm_preserving: false, embeddings: false }
    }
}

impl Ablation {
    /// That its numbers fit a model of so many layers.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, layers: usize) -> Result<(), ConceptError> {
        self.layers.of(layers)?;
        self.check_strength()
    }

    /// That λ is one.
    ///
    /// # Errors
    /// If not.
    pub fn check_strength(&self) -> Result<(), ConceptError> {
        let sound = self.strength.is_finite() && self.strength > 0.0 && self.strength <= 4.0;
        sound.then_some(()).ok_or_else(|| ConceptError::Setting(format!("strength {} is not above 0 and at most 4", self.strength)))
    }

    /// What a person should know before this is done to a model: of embeddings that stay, and of a head that changes.
    pub fn warning(&self, tied: bool) -> Option<&'static str> {
        match (tied, self.embeddings) {
            (true, true) => Some(
                "the embedding is the output head too (tie_word_embeddings): the edit changes both, and with it which words are likely",
            ),
            (true, false) => Some(
                "the embedding is the output head too (tie_word_embeddings) and stays as it is: the first layers still read the direction from it",
            ),
            (false, _) => None,
        }
    }

    /// `model` with the direction `unit` (`[h]`, of length 1) taken out. Adapters must have been [merged](crate::weights::merge).
    ///
    /// # Errors
    /// Layers or a strength that are not to be had, a device that fails.
    pub fn apply(&self, mut model: CausalLm, unit: &[f64]) -> Result<CausalLm, ConceptError> {
        self.check(model.model.layers.len())?;
        let range = self.layers.of(model.model.layers.len())?;
        for layer in &mut model.model.layers[range] {
            for linear in [&mut layer.self_attn.o_proj, &mut layer.mlp.down_proj] {
                let [rows, columns] = linear.weight.dims();
                let mut values = host("a weight", linear.weight.val())?;
                take_out_of_columns(&mut values, [rows, columns], unit, self.strength, self.norm_preserving);
                linear.weight = linear.weight.clone().map(|old| with(old, values));
                if let Some(bias) = &mut linear.bias {
                    let mut values = host("a bias", bias.val())?;
                    take_out_of_columns(&mut values, [rows, 1], unit, self.strength, false);
                    replace(bias, values);
                }
            }
        }
        if self.embeddings {
            let weight = &mut model.model.embed_tokens.weight;
            let mut values = host("the embedding", weight.val())?;
            take_out_of_rows(&mut values, unit, self.strength);
            replace(weight, values);
        }
        Ok(model)
    }
}

/// A tensor of the shape of `old`, where that is.
fn with<const D: usize>(old: Tensor<D>, values: Vec<f32>) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, old.dims()), &old.device())
}

fn replace<const D: usize>(parameter: &mut Param<Tensor<D>>, values: Vec<f32>) {
    *parameter = parameter.clone().map(|old| with(old, values));
}

/// `W − λ r̂ (r̂ᵀ W)` of W `[h, n]`; with `keep` each column is then scaled to the length it had, ‖w‖² − (2λ − λ²)(r̂ᵀw)² being what it has.
fn take_out_of_columns(values: &mut [f32], [rows, columns]: [usize; 2], unit: &[f64], strength: f64, keep: bool) {
    let (mut along, mut squares) = (vec![0.0f64; columns], vec![0.0f64; columns]);
    for (row, r) in values.chunks(columns).zip(unit) {
        for ((along, square), &w) in along.iter_mut().zip(&mut squares).zip(row) {
            *along += r * f64::from(w);
            *square += f64::from(w) * f64::from(w);
        }
    }
    let scale = |(along, before): (&f64, &f64)| {
        let after = before - (2.0 - strength) * strength * along * along;
        // A column that was all direction has no length to be given back.
        if keep && after > 1e-9 * before { (before / after).sqrt() } else { 1.0 }
    };
    let scales: Vec<f64> = along.iter().zip(&squares).map(scale).collect();
    debug_assert_eq!(values.len(), rows * columns);
    values.par_chunks_mut(columns).zip(unit).for_each(|(row, r)| {
        for ((w, along), scale) in row.iter_mut().zip(&along).zip(&scales) {
            *w = ((f64::from(*w) - strength * r * along) * scale) as f32;
        }
    });
}

/// `E − λ (E r̂) r̂ᵀ` of E `[V, h]`.
fn take_out_of_rows(values: &mut [f32], unit: &[f64], strength: f64) {
    values.par_chunks_mut(unit.len()).for_each(|row| {
        let along: f64 = row.iter().zip(unit).map(|(&e, r)| f64::from(e) * r).sum();
        row.iter_mut().zip(unit).for_each(|(e, r)| *e = (f64::from(*e) - strength * along * r) as f32);
    });
}

/// `model` that adds `vector` (`[h]`) to the residual stream at the input of layer `layer`, at every token: a bias of the `down_proj` before it.
///
/// # Errors
/// Layer 0, which no layer writes to, or one that the model does not have.
pub fn steer(mut model: CausalLm, layer: usize, vector: &[f64]) -> Result<CausalLm, ConceptError> {
    let layers = model.model.layers.len();
    if layer == 0 || layer >= layers {
        return Err(ConceptError::Setting(format!("layer {layer} cannot be steered: there are 1 to {}", layers.saturating_sub(1))));
    }
    let linear: &mut Linear = &mut model.model.layers[layer - 1].mlp.down_proj;
    let values: Vec<f32> = vector.iter().map(|&x| x as f32).collect();
    let added = Tensor::<1>::from_data(TensorData::new(values, [vector.len()]), &linear.weight.device());
    let bias = match &linear.bias {
        Some(bias) => bias.val() + added,
        None => added,
    };
    linear.bias = Some(Param::from_tensor(bias.set_require_grad(false)));
    Ok(model)
}

#[cfg(test)]
mod tests {
    use bellows_learner::Rng;
    use burn::tensor::{Device, Int};

    use super::*;
    use crate::base::Base;
    use crate::model::pass::Pass;

    fn unit(h: usize) -> Vec<f64> {
        let mut rng = Rng::new(5, "direction", 0, 0);
        let r: Vec<f64> = (0..h).map(|_| rng.normal()).collect();
        let length = r.iter().map(|x| x * x).sum::<f64>().sqrt();
        r.iter().map(|x| x / length).collect()
    }

    /// ‖r̂ᵀ W‖ / ‖W‖.
    fn left(values: &[f32], columns: usize, unit: &[f64]) -> f64 {
        let mut along = vec![0.0; columns];
        for (row, r) in values.chunks(columns).zip(unit) {
            along.iter_mut().zip(row).for_each(|(a, &w)| *a += r * f64::from(w));
        }
        let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut along.into_iter()) / norm(&mut values.iter().map(|&w| f64::from(w)))
    }

    #[test]
    fn the_direction_is_gone_from_what_the_layers_write_and_from_nothing_else() {
        let device = Device::flex();
        let base = Base::tiny(["a b"], 3, &device).unwrap();
        let r = unit(base.config.hidden_size);
        for norm_preserving in [false, true] {
            let edit = Ablation { layers: "1-2".parse().unwrap(), norm_preserving, ..Ablation::default() };
            let edited = edit.apply(base.model.clone(), &r).unwrap();
            for (i, (old, new)) in base.model.model.layers.iter().zip(&edited.model.layers).enumerate() {
                for ((name, old), (_, new)) in old.linears().zip(new.linears()) {
                    let (old, new) = [old, new].map(|l| host("w", l.weight.val()).unwrap()).into();
                    let written = (1..=2).contains(&i) && ["self_attn.o_proj", "mlp.down_proj"].contains(&name);
                    assert_eq!(old != new, written, "layer {i}: {name}");
                    if written {
                        let columns = new.len() / r.len();
                        assert!(left(&new, columns, &r) < 1e-6 && left(&old, columns, &r) > 0.01);
                        let length = |w: &[f32]| (0..r.len()).map(|row| f64::from(w[row * columns]).powi(2)).sum::<f64>().sqrt();
                        let ratio = length(&new) / length(&old);
                        assert_eq!((ratio - 1.0).abs() < 1e-6, norm_preserving, "{ratio}");
                    }
                }
            }
        }
        // A column keeps its length whatever share of the direction it loses.
        let columns = vec![0.5f32, -1.0, 2.0, 1.0, 0.25, 4.0];
        for strength in [0.3, 0.8, 1.0, 1.5] {
            let mut edited = columns.clone();
            take_out_of_columns(&mut edited, [3, 2], &[0.6, 0.0, 0.8], strength, true);
            let length = |w: &[f32], column: usize| w.chunks(2).map(|row| f64::from(row[column]).powi(2)).sum::<f64>().sqrt();
            assert!((0..2).all(|column| (length(&edited, column) / length(&columns, column) - 1.0).abs() < 1e-6), "{strength}");
        }
        let embeddings = Ablation { embeddings: true, ..Ablation::default() }.apply(base.model.clone(), &r).unwrap();
        let rows = host("e", embeddings.model.embed_tokens.weight.val()).unwrap();
        let along = rows.chunks(r.len()).map(|row| row.iter().zip(&r).map(|(&e, r)| f64::from(e) * r).sum::<f64>().abs());
        assert!(along.fold(0.0, f64::max) < 1e-6);
    }

    /// Everywhere and from the embedding, a model has nothing of it in its residual stream; half of it is half; twice of it is turned round.
    #[test]
    fn the_residual_stream_follows_the_strength() {
        let device = Device::flex();
        let base = Base::tiny(["a b"], 3, &device).unwrap();
        let (h, r) = (base.config.hidden_size, unit(base.config.hidden_size));
        let along = |model: &CausalLm| -> f64 {
            let pass = Pass::new([1, 5], &[0, 1, 2, 3, 4], &[0; 5], &base.config, &device);
            let ids = Tensor::<2, Int>::from_data(TensorData::new(vec![3, 40, 7, 90, 12], [1, 5]), &device);
            let x = host("x", model.model.layers[0].forward(model.embed(ids), &pass, None)).unwrap();
            x[4 * h..].iter().zip(&r).map(|(&x, r)| f64::from(x) * r).sum()
        };
        let with =
            |strength: f64| along(&Ablation { strength, embeddings: true, ..Ablation::default() }.apply(base.model.clone(), &r).unwrap());
        let whole = along(&base.model);
        assert!(whole.abs() > 1e-3 && with(1.0).abs() < 1e-6, "{whole} {}", with(1.0));
        // The layer reads another residual stream than before, so half and twice are so to first order.
        let shares = [0.5, 2.0].map(|strength| with(strength) / whole);
        assert!((0.25..0.75).contains(&shares[0]) && (-1.5..-0.5).contains(&shares[1]), "{shares:?}");
        let added: Vec<f64> = r.iter().map(|r| 3.0 * r).collect();
        assert!((along(&steer(base.model.clone(), 1, &added).unwrap()) - whole - 3.0).abs() < 1e-5);
        for layer in [0, 4] {
            assert!(steer(base.model.clone(), layer, &added).unwrap_err().to_string().contains("there are 1 to 3"));
        }
    }

    #[test]
    fn layers_are_written_as_people_write_them() {
        let range = |text: &str| text.parse::<LayerRange>().and_then(|range| range.of(20));
        assert_eq!((range("8-16").unwrap(), range("3").unwrap(), range("all").unwrap()), (8..17, 3..4, 0..20));
        for wrong in ["", "16-8", "a-b", "-1", "5-20"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        for text in ["8-16", "3", "all"] {
            assert_eq!(text.parse::<LayerRange>().unwrap().to_string(), text);
        }
        let strong = Ablation { strength: 5.0, ..Ablation::default() };
        assert!(strong.check(4).unwrap_err().to_string().contains("strength 5"));
        assert!(Ablation::default().warning(true).is_some() && Ablation::default().warning(false).is_none());
    }
}
