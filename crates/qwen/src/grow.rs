//! More tokens for a model: rows for them in the embedding and in the output head, at first the mean of those that are there, as transformers
//! begins new rows.

use std::ops::Range;

use bellows_chat::{Fault, Tokenizer};
use bellows_weights::{Tensor as FileTensor, Tensors};
use burn::module::Param;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::adapter::{EMBEDDING, HEAD};
use crate::base::Base;
use crate::peft::{PeftError, peft_name};
use crate::weights::host;

/// A grown embedding has a multiple of this many rows.
const MULTIPLE: usize = 64;

/// Adds `tokens` that the tokenizer does not have, with rows for them. Returns how many are new.
///
/// # Errors
/// [`Fault::Tokenizer`] for a token that is empty.
pub fn add_tokens(base: &mut Base, tokens: &[String]) -> Result<usize, Fault> {
    let first = base.tokenizer.len();
    let added = base.tokenizer.add(tokens)?;
    base.added += added;
    if added > 0 {
        let (end, rows) = (base.tokenizer.len(), base.config.vocab_size);
        set_rows(base, first..end, if end > rows { end.next_multiple_of(MULTIPLE) } else { rows });
    }
    Ok(added)
}

/// Takes over the tokenizer of an adapter, and as many rows as the adapter's embedding has: more than the model's where there was no room for new tokens,
/// fewer where somebody cut what the model has none for.
pub fn adopt(base: &mut Base, tokenizer: Tokenizer, rows: usize) {
    let first = base.tokenizer.len();
    (base.tokenizer, base.added) = (tokenizer, 0);
    set_rows(base, first..rows, rows);
}

/// Gives the embedding and the head among an adapter's tensors the rows that those of the model have: `rows`, of which `fresh` are new.
///
/// # Errors
/// A tensor that cannot be read as numbers, or that the device does not hand back.
pub(crate) fn grow_adapter(tensors: &mut Tensors, fresh: &Range<usize>, rows: usize, device: &Device) -> Result<(), PeftError> {
    for name in [EMBEDDING, HEAD] {
        let Some(tensor) = tensors.get_mut(&peft_name(name)) else { continue };
        // What is no matrix, or has no row for each token of before, is refused by whoever puts it on the model.
        let [old_rows, width] = tensor.shape[..] else { continue };
        if old_rows >= fresh.start {
            let old = Tensor::<2>::from_data(TensorData::new(tensor.to_f32()?, [old_rows, width]), device);
            *tensor = FileTensor::from_f32([rows, width], &host(name, with_rows(old, fresh.clone(), rows))?);
        }
    }
    Ok(())
}

/// Gives the embedding (and a head of its own) `rows` rows, those of `fresh` new.
fn set_rows(base: &mut Base, fresh: Range<usize>, rows: usize) {
    let Base { model, config, .. } = base;
    let grown = |weight: &Param<Tensor<2>>| {
        weight.clone().map(|old| {
            let wanted = old.is_require_grad();
            with_rows(old.cast(DType::F32), fresh.clone(), rows).detach().set_require_grad(wanted)
        })
    };
    model.model.embed_tokens.weight = grown(&model.model.embed_tokens.weight);
    if let Some(head) = &mut model.lm_head {
        head.weight = grown(&head.weight);
    }
    config.vocab_size = rows;
}

/// A matrix with `rows` rows, fewer or more. Of more, those of `fresh`, and those that are not there yet, are the mean of the rows before `fresh`.
pub(crate) fn with_rows(old: Tensor<2>, fresh: Range<usize>, rows: usize) -> Tensor<2> {
    let [old_rows, _] = old.dims();
    if rows < old_rows {
        return old.narrow(0, 0, rows);
    }
    let kept = old.clone().narrow(0, 0, fresh.start);
    let mean = |count: usize| (count > 0).then(|| kept.clone().mean_dim(0).repeat_dim(0, count));
    let between = (fresh.end < old_rows).then(|| old.narrow(0, fresh.end, old_rows - fresh.end));
    let rest = rows - fresh.end.max(old_rows);
    let parts = [Some(kept.clone()), mean(fresh.len()), between, mean(rest)];
    Tensor::cat(parts.into_iter().flatten().collect(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(base: &Base) -> Vec<f32> {
        base.model.model.embed_tokens.weight.val().try_into_vec_as().unwrap()
    }

    #[test]
    fn new_tokens_get_mean_rows_and_the_others_keep_theirs() {
        let mut base = Base::tiny(["a b"], 1, &Device::flex()).unwrap();
        let (old, before, h) = (rows(&base), base.tokenizer.len(), base.config.hidden_size);
        // One fits into the rows that are there as padding.
        assert!(before < base.config.vocab_size);
        let vocabulary = base.config.vocab_size;
        assert_eq!(add_tokens(&mut base, &["<ore>".into(), "a".into()]).unwrap(), 1, "a is a token already");
        let new = rows(&base);
        assert_eq!((base.config.vocab_size, new.len()), (vocabulary, old.len()));
        assert_eq!((&new[..before * h], &new[(before + 1) * h..]), (&old[..before * h], &old[(before + 1) * h..]));
        let mean = |column: usize| (0..before).map(|row| f64::from(old[row * h + column])).sum::<f64>() / before as f64;
        assert!((0..h).all(|column| (f64::from(new[before * h + column]) - mean(column)).abs() < 1e-6));
        assert_eq!(base.tokenizer.encode("x<ore>y", false).unwrap()[1] as usize, before);
        // More than there is room for.
        let many: Vec<String> = (0..vocabulary).map(|i| format!("<word {i}>")).collect();
        assert_eq!(add_tokens(&mut base, &many).unwrap(), vocabulary);
        assert_eq!((base.config.vocab_size % MULTIPLE, rows(&base).len()), (0, base.config.vocab_size * h));
        assert!(base.config.vocab_size >= base.tokenizer.len() && rows(&base)[..before * h] == old[..before * h]);
        assert_eq!(add_tokens(&mut base, &many).unwrap(), 0);
        assert!(add_tokens(&mut base, &[String::new()]).is_err());
    }
}
