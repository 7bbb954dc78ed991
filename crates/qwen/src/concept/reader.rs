//! A model reading prompts: the residual stream before every layer, and the probabilities of the next token.
//!
//! Prompts stand in rows that padding fills on the right: nothing before padding sees it, and what is wanted is picked by place.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::error::ConceptError;
use crate::gradients::TrainBatch;
use crate::model::pass::Pass;
use crate::model::{CausalLm, ModelConfig};

/// Prompts that are read at once.
const ROWS: usize = 8;
/// Tokens of a text that are read at once.
const WINDOW: usize = 512;

/// Who wants to know how far it is: (done, total).
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// A model and where it is.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The model.
    pub model: &'a CausalLm,
    /// Its shape.
    pub config: &'a ModelConfig,
    /// Its device.
    pub device: &'a Device,
}

/// Prompts as a batch, and the places in it that are looked at: the last `tail` of each.
struct Rows {
    ids: Tensor<2, Int>,
    pass: Pass,
    places: Tensor<1, Int>,
}

impl Reader<'_> {
    fn rows(&self, prompts: &[&Vec<u32>], tail: usize) -> Rows {
        let (b, s) = (prompts.len(), prompts.iter().map(|ids| ids.len()).max().unwrap_or(0));
        let (mut ids, mut places) = (vec![0; b * s], Vec::with_capacity(b * tail));
        for (row, prompt) in prompts.iter().enumerate() {
            ids[row * s..].iter_mut().zip(*prompt).for_each(|(place, &id)| *place = id as i32);
            places.extend((prompt.len() - tail..prompt.len()).map(|place| (row * s + place) as i32));
        }
        let positions: Vec<i32> = (0..b).flat_map(|_| 0..s as i32).collect();
        Rows {
            ids: Tensor::from_data(TensorData::new(ids, [b, s]), self.device),
            pass: Pass::new([b, s], &positions, &vec![0; b * s], self.config, self.device),
            places: Tensor::from_data(TensorData::new(places, [b * tail]), self.device),
        }
    }

    /// Calls `each` with a prompt's number, a layer, and the residual stream at that layer's input: `[tail, h]`, the last places of the prompt.
    ///
    /// # Errors
    /// A prompt shorter than `tail`, a device that fails, a value that is not finite.
    pub fn residuals(
        &self,
        prompts: &[Vec<u32>],
        tail: usize,
        progress: Progress<'_>,
        mut each: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), ConceptError> {
        if let Some(short) = prompts.iter().position(|ids| ids.len() < tail || ids.is_empty()) {
            return Err(ConceptError::Setting(format!(
                "prompt {} has {} tokens, and {tail} are looked at",
                short + 1,
                prompts[short].len()
            )));
        }
        let h = self.config.hidden_size;
        for (number, chunk) in by_length(prompts).chunks(ROWS).enumerate() {
            let rows = self.rows(&chunk.iter().map(|&i| &prompts[i]).collect::<Vec<_>>(), tail);
            let mut x = self.model.embed(rows.ids);
            for (layer, block) in self.model.model.layers.iter().enumerate() {
                let [b, s, _] = x.dims();
                let values = host(&format!("the input of layer {layer}"), x.clone().reshape([b * s, h]).select(0, rows.places.clone()))?;
                values.chunks(tail * h).zip(chunk).for_each(|(values, &prompt)| each(prompt, layer, values));
                x = block.forward(x, &rows.pass, None);
            }
            progress((number * ROWS + chunk.len()).min(prompts.len()), prompts.len());
        }
        Ok(())
    }

    /// log p of every token after each prompt, `[V]` each.
    ///
    /// # Errors
    /// An empty prompt, a device that fails, a value that is not finite.
    pub fn next(&self, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, ConceptError> {
        if prompts.iter().any(Vec::is_empty) {
            return Err(ConceptError::Setting("a prompt is empty".into()));
        }
        let (h, v) = (self.config.hidden_size, self.config.vocab_size);
        let mut all = vec![Vec::new(); prompts.len()];
        for chunk in by_length(prompts).chunks(ROWS) {
            let rows = self.rows(&chunk.iter().map(|&i| &prompts[i]).collect::<Vec<_>>(), 1);
            let [b, s] = rows.ids.dims();
            let last = self.model.hidden(rows.ids, &rows.pass).reshape([b * s, h]).select(0, rows.places).reshape([b, 1, h]);
            let logits = self.model.logits(last, rows.pass.precision).reshape([b, v]);
            let values = host("the next token's probabilities", log_softmax(logits, 1))?;
            values.chunks(v).zip(chunk).for_each(|(values, &prompt)| all[prompt] = values.to_vec());
        }
        Ok(all)
    }

    /// exp of the mean −log p of every token of a text but the first of each window of 512, given those before it in the window.
    ///
    /// # Errors
    /// A text of less than two tokens, a device that fails.
    pub fn perplexity(&self, ids: &[u32], progress: Progress<'_>) -> Result<f64, ConceptError> {
        let (mut sum, mut count) = (0.0, 0);
        for (number, window) in ids.chunks(WINDOW).enumerate().filter(|(_, window)| window.len() > 1) {
            let n = window.len();
            let Rows { ids: window_ids, pass, .. } = self.rows(&[&window.to_vec()], n);
            let ints = |values: Vec<i32>| Tensor::from_data(TensorData::new(values, [n - 1]), self.device);
            let (rows, targets) = (ints((0..n as i32 - 1).collect()), ints(window[1..].iter().map(|&id| id as i32).collect()));
            let text = TrainBatch { ids: window_ids, rows, targets, pass, noise: None };
            sum += f64::from(host("the loss", text.total_loss(self.model))?[0]);
            count += n - 1;
            progress((number * WINDOW + n).min(ids.len()), ids.len());
        }
        match count {
            0 => Err(ConceptError::Setting("the guard's text has no two tokens".into())),
            // What is beyond all numbers would be none in a JSON file.
            count => Ok((sum / count as f64).exp().min(1e300)),
        }
    }
}

/// The prompts' numbers, the shortest first.
fn by_length(prompts: &[Vec<u32>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..prompts.len()).collect();
    order.sort_by_key(|&i| (prompts[i].len(), i));
    order
}

/// A tensor's values, all finite.
pub(super) fn host<const D: usize>(what: &str, tensor: Tensor<D>) -> Result<Vec<f32>, ConceptError> {
    let fail = |reason: String| ConceptError::Device { what: what.into(), reason };
    let values = tensor.into_data().try_into_vec_as::<f32>().map_err(|e| fail(e.to_string()))?;
    if values.iter().all(|x| x.is_finite()) { Ok(values) } else { Err(fail("a value is not finite".into())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Base;

    #[test]
    fn a_prompt_reads_the_same_alone_and_beside_longer_ones() {
        let device = Device::flex();
        let base = Base::tiny(["a b"], 3, &device).unwrap();
        let reader = Reader { model: &base.model, config: &base.config, device: &device };
        let prompt = |n: u32| (0..n).map(|i| (i * 37 + n) % 250).collect::<Vec<u32>>();
        let (short, long) = (prompt(4), prompt(11));
        let read = |prompts: &[Vec<u32>]| {
            let mut found = vec![Vec::new(); prompts.len()];
            reader.residuals(prompts, 2, &mut |_, _| (), |prompt, _, values| found[prompt].extend_from_slice(values)).unwrap();
            found
        };
        let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        let (both, alone) = (read(&[long.clone(), short.clone()]), read(std::slice::from_ref(&short)));
        assert_eq!(both[1].len(), 4 * 2 * 128);
        assert!(near(&both[1], &alone[0]) && !near(&both[0], &both[1]));
        let (both, alone) = (reader.next(&[long, short.clone()]).unwrap(), reader.next(&[short]).unwrap());
        assert!(near(&both[1], &alone[0]));
        assert!((both[0].iter().map(|x| f64::from(*x).exp()).sum::<f64>() - 1.0).abs() < 1e-4);
        let ids: Vec<u32> = (0..700).map(|i| i % 90).collect();
        let perplexity = reader.perplexity(&ids, &mut |_, _| ()).unwrap();
        assert!((perplexity.ln() - f64::from(base.config.vocab_size as u32).ln()).abs() < 0.2, "fresh weights know nothing: {perplexity}");
    }
}
