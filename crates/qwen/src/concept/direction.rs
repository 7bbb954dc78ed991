//! The direction from one set of prompts to the other, for every layer and each of the last places of the prompts: the difference of the sets'
//! means of the residual stream at the layer's input, in f64 (Arditi et al. 2024, section 2.3). And how well each separates prompts it was not
//! found on.

use serde::{Deserialize, Serialize};

use super::error::ConceptError;
use super::measure::{auc, effect_size};
use super::prompts::EncodedSets;
use super::reader::{Progress, Reader};

/// Places that are looked at in a prompt at most.
const MOST_PLACES: usize = 8;

/// Where in a model a direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The layer at whose input it is, from 0.
    pub layer: usize,
    /// The token of the prompt, counted from its end, from 1.
    pub position: usize,
}

/// A direction for every layer and place.
#[derive(Clone, Debug, PartialEq)]
pub struct Directions {
    /// Layers.
    pub layers: usize,
    /// Places in a prompt, the last ones.
    pub positions: usize,
    /// h.
    pub hidden: usize,
    /// `[layers, positions, h]`, the place furthest from the end first.
    pub values: Vec<f64>,
}

impl Directions {
    /// The difference of the means at a place, `[h]`; empty where there is none.
    pub fn at(&self, place: Place) -> &[f64] {
        let row = place.layer * self.positions + self.positions.saturating_sub(place.position);
        let inside = place.layer < self.layers && (1..=self.positions).contains(&place.position);
        if inside { &self.values[row * self.hidden..(row + 1) * self.hidden] } else { &[] }
    }

    /// The direction at a place, of length 1.
    ///
    /// # Errors
    /// A place that is not there, or at which the sets' means are the same.
    pub fn unit(&self, place: Place) -> Result<Vec<f64>, ConceptError> {
        let (r, Place { layer, position }) = (self.at(place), place);
        let length = norm(r);
        if r.is_empty() {
            let (layers, positions) = (self.layers, self.positions);
            let reason = format!(
                "layer {layer}, token {position} from the end: there are layers 0 to {}, tokens 1 to {positions}",
                layers.saturating_sub(1)
            );
            return Err(ConceptError::Setting(reason));
        }
        if length == 0.0 {
            return Err(ConceptError::Setting(format!(
                "the sets do not differ at the input of layer {layer}, token {position} from the end"
            )));
        }
        Ok(r.iter().map(|x| x / length).collect())
    }
}

/// ‖x‖.
pub(super) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// a · b.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The last tokens that all prompts have in common, at least one and at most eight: what a template writes between the question and the answer,
/// where a model has read the whole prompt and every prompt is at the same token.
pub fn common_end(sets: &EncodedSets) -> usize {
    let Some(first) = sets.all().next() else { return 1 };
    let common = |ids: &Vec<u32>| ids.iter().rev().zip(first.iter().rev()).take_while(|(a, b)| a == b).count();
    sets.all().map(common).min().unwrap_or(1).clamp(1, MOST_PLACES)
}

/// Finds the directions from `baseline` to `target`.
///
/// # Errors
/// Those of [`Reader::residuals`].
pub fn find(
    reader: Reader<'_>,
    target: &[Vec<u32>],
    baseline: &[Vec<u32>],
    positions: usize,
    progress: Progress<'_>,
) -> Result<Directions, ConceptError> {
    let (layers, hidden) = (reader.config.num_hidden_layers, reader.config.hidden_size);
    let total = target.len() + baseline.len();
    let mut values = vec![0.0; layers * positions * hidden];
    for (set, sign, before) in [(target, 1.0, 0), (baseline, -1.0, target.len())] {
        let mut sum = vec![0.0; values.len()];
        reader.residuals(set, positions, &mut |done, _| progress(before + done, total), |_, layer, x| {
            let place = layer * positions * hidden;
            sum[place..].iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x));
        })?;
        let weight = sign / set.len().max(1) as f64;
        values.iter_mut().zip(&sum).for_each(|(value, sum)| *value += weight * sum);
    }
    Ok(Directions { layers, positions, hidden, values })
}

/// How well a direction separates the sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Separation {
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
    /// Length of the difference of the means.
    pub norm: f64,
    /// Cohen's d of the projections h · r̂: the distance of their means in standard deviations.
    pub effect: f64,
    /// Probability that a prompt of the target projects further than one of the baseline (area under the ROC curve).
    pub auc: f64,
    /// Cosine of the angle to the direction at the next layer; none at the last.
    pub cosine_to_next: Option<f64>,
}

/// The separation of prompts that are held out, for every layer and place.
///
/// # Errors
/// Those of [`Reader::residuals`].
pub fn separation(
    reader: Reader<'_>,
    directions: &Directions,
    target: &[Vec<u32>],
    baseline: &[Vec<u32>],
    progress: Progress<'_>,
) -> Result<Vec<Separation>, ConceptError> {
    let Directions { layers, positions, hidden, .. } = *directions;
    let places: Vec<Place> = (0..layers).flat_map(|layer| (0..positions).map(move |i| Place { layer, position: positions - i })).collect();
    let total = target.len() + baseline.len();
    let mut project = |set: &[Vec<u32>], before: usize| -> Result<Vec<Vec<f64>>, ConceptError> {
        let mut found = vec![vec![0.0; set.len()]; places.len()];
        reader.residuals(set, positions, &mut |done, _| progress(before + done, total), |prompt, layer, x| {
            for (i, x) in x.chunks(hidden).enumerate() {
                let r = directions.at(Place { layer, position: positions - i });
                let along: f64 = r.iter().zip(x).map(|(r, &x)| r * f64::from(x)).sum();
                found[layer * positions + i][prompt] = along / norm(r).max(f64::MIN_POSITIVE);
            }
        })?;
        Ok(found)
    };
    let (target, baseline) = (project(target, 0)?, project(baseline, target.len())?);
    let one = |(i, &place): (usize, &Place)| {
        let (r, next) = (directions.at(place), directions.at(Place { layer: place.layer + 1, ..place }));
        Separation {
            place,
            norm: norm(r),
            effect: effect_size(&target[i], &baseline[i]),
            auc: auc(&target[i], &baseline[i]),
            cosine_to_next: (!next.is_empty()).then(|| dot(r, next) / (norm(r) * norm(next)).max(f64::MIN_POSITIVE)),
        }
    };
    Ok(places.iter().enumerate().map(one).collect())
}

/// The places among which one is chosen: of each layer the one that separates best, without the first layer, which has read no word in its
/// place among others, and the last fifth, where a model is already choosing its word (Arditi et al. 2024, appendix C).
pub fn candidates(separations: &[Separation], layers: usize) -> Vec<&Separation> {
    let end = (layers * 4 / 5).max(2).min(layers);
    let best = |layer: usize| {
        let of_layer = separations.iter().filter(|s| s.place.layer == layer && s.norm > 0.0);
        of_layer.max_by(|a, b| a.effect.total_cmp(&b.effect))
    };
    (usize::from(layers > 1)..end).filter_map(best).collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;
    use crate::base::Base;
    use crate::concept::prompts::Half;

    #[test]
    fn only_what_all_prompts_end_in_is_looked_at() {
        let half = |held_out: &[&[u32]]| Half { found_on: vec![vec![1, 2, 7, 8]], held_out: held_out.iter().map(|p| p.to_vec()).collect() };
        let end = |a: &[&[u32]], b: &[&[u32]]| common_end(&EncodedSets { target: half(a), baseline: half(b) });
        assert_eq!(end(&[&[3, 7, 8]], &[&[9, 9, 7, 8]]), 2);
        assert_eq!(end(&[&[3, 7, 8]], &[&[9, 9, 7, 9]]), 1, "one, whatever it is");
        assert_eq!(end(&[], &[]), 4);
    }

    /// Token ids under 100 get 20 r̂ added to their embedding, all of them 20 q̂: what the sets have in common is no part of the direction.
    #[test]
    fn a_planted_direction_is_found_where_it_was_planted() {
        let device = Device::flex();
        let mut base = Base::tiny(["a b"], 3, &device).unwrap();
        let h = base.config.hidden_size;
        let drawn = |name: &str| -> Vec<f64> {
            let mut rng = bellows_learner::Rng::new(7, name, 0, 0);
            let r: Vec<f64> = (0..h).map(|_| rng.normal()).collect();
            r.iter().map(|x| x / norm(&r)).collect()
        };
        let (planted, common) = (drawn("planted"), drawn("common"));
        let embedding = base.model.model.embed_tokens.weight.clone();
        base.model.model.embed_tokens.weight = embedding.map(|old| {
            let [v, h] = old.dims();
            let place = |i: usize| 20.0 * (common[i % h] + if i / h < 100 { planted[i % h] } else { 0.0 });
            let add: Vec<f32> = (0..v * h).map(|i| place(i) as f32).collect();
            old + Tensor::from_data(TensorData::new(add, [v, h]), &device)
        });
        let prompts = |low: usize, seed: u64| -> Vec<Vec<u32>> {
            let mut rng = bellows_learner::Rng::new(seed, "prompts", 0, 0);
            (0..96).map(|_| (0..6).map(|_| (low + rng.below(100) as usize) as u32).collect()).collect()
        };
        let (target, baseline) = (prompts(0, 1), prompts(120, 2));
        let reader = Reader { model: &base.model, config: &base.config, device: &device };
        let found = find(reader, &target, &baseline, 2, &mut |_, _| ()).unwrap();
        for (layer, position) in [(0, 1), (0, 2), (1, 1), (2, 2)] {
            let cosine = dot(&found.unit(Place { layer, position }).unwrap(), &planted);
            assert!(cosine > 0.99, "layer {layer}, {position} from the end: {cosine}");
        }
        let separations = separation(reader, &found, &prompts(0, 3), &prompts(120, 4), &mut |_, _| ()).unwrap();
        assert_eq!(separations.len(), 8);
        assert!(separations.iter().all(|s| s.auc > 0.99 && s.effect > 4.0), "{separations:?}");
        assert!(separations[0].cosine_to_next.unwrap() > 0.99 && separations[7].cosine_to_next.is_none());
        // Two sets of the same kind have no direction that holds on others.
        let none = find(reader, &prompts(120, 5), &prompts(120, 6), 1, &mut |_, _| ()).unwrap();
        let separations = separation(reader, &none, &prompts(120, 7), &prompts(120, 8), &mut |_, _| ()).unwrap();
        assert!(separations.iter().all(|s| (0.3..0.7).contains(&s.auc)), "{separations:?}");
        assert!(found.unit(Place { layer: 4, position: 1 }).unwrap_err().to_string().contains("layers 0 to 3"));
        let chosen: Vec<usize> = candidates(&separations, 4).iter().map(|s| s.place.layer).collect();
        assert_eq!(chosen, [1, 2]);
    }
}
