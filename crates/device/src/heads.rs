//! Attention with the run's own heads: their width decides how much its kernels take of shared memory, and which kernels compute it at all.

use crate::made::{numbers, tensor};
use bellows_kernels::{attention, lead};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Two of the kernels' tiles of 32, and a part of a third. So few that each query head makes a part of the gradients of keys, as in all but long rows.
const TOKENS: usize = 75;
/// The first tokens of the documents that are packed there; none is at the border of a tile.
const DOCUMENTS: [usize; 3] = [0, 5, 40];

/// The heads of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Heads {
    /// Of queries.
    pub queries: usize,
    /// Of keys, each of which serves as many of queries.
    pub keys: usize,
    /// Numbers of a head.
    pub width: usize,
    /// They lie in f16.
    pub half: bool,
}

impl Heads {
    /// Those of a model of so many in f32, but no more than two of keys: with the same number of queries to each, more would show nothing else.
    pub fn few(queries: usize, keys: usize, width: usize) -> Self {
        let few = keys.clamp(1, 2);
        Self { queries: queries / keys.max(1) * few, keys: few, width, half: false }
    }

    /// Multiplications and additions of a token.
    pub(crate) fn flops(&self) -> usize {
        4 * TOKENS * self.queries * self.width
    }

    /// The result, of numbers of this type.
    pub(crate) fn forward(&self, device: &Device, dtype: DType) -> Vec<Vec<f32>> {
        let [q, k, v] = self.inputs(device, dtype);
        vec![numbers(self.attend(q, k, v))]
    }

    /// The gradients of queries, keys and values, of a weighted sum of the result.
    pub(crate) fn gradients(&self, device: &Device, dtype: DType) -> Vec<Vec<f32>> {
        let leaves = self.inputs(&device.clone().autodiff(), dtype).map(|x| x.require_grad());
        let [q, k, v] = leaves.clone();
        let y = self.attend(q, k, v);
        let seed = tensor::<4>(93, y.dims(), &y.device()).cast(dtype);
        let gradients = lead(y, seed).backward();
        leaves.iter().map(|leaf| leaf.grad(&gradients).map(numbers).unwrap_or_default()).collect()
    }

    /// Queries, keys and values as the maps before leave them: the heads of a token side by side.
    fn inputs(&self, device: &Device, dtype: DType) -> [Tensor<4>; 3] {
        let of = |stream, heads| tensor::<4>(stream, [1, TOKENS, heads, self.width], device).cast(dtype);
        [of(90, self.queries), of(91, self.keys), of(92, self.keys)]
    }

    fn attend(&self, q: Tensor<4>, k: Tensor<4>, v: Tensor<4>) -> Tensor<4> {
        let first_of = |token: usize| DOCUMENTS.into_iter().rfind(|first| *first <= token).unwrap_or_default() as i32;
        let first: Vec<i32> = (0..TOKENS).map(first_of).collect();
        let first = Tensor::<2, Int>::from_data(TensorData::new(first, [1, TOKENS]), &q.device());
        let [q, k, v] = [q, k, v].map(|x| x.swap_dims(1, 2));
        attention(q, k, v, first, 1.0 / (self.width as f64).sqrt())
    }
}

impl fmt::Display for Heads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.half { " in f16" } else { "" };
        write!(f, "attention {}/{}x{}{of}", self.queries, self.keys, self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_few_and_keep_their_ratio_and_their_width() {
        let heads = |queries, keys, width| Heads { queries, keys, width, half: false };
        assert_eq!(Heads::few(14, 2, 64), heads(14, 2, 64));
        assert_eq!(Heads::few(32, 8, 128), heads(8, 2, 128));
        assert_eq!(Heads::few(9, 3, 64), heads(6, 2, 64));
        assert_eq!(Heads::few(12, 12, 64), heads(2, 2, 64));
        assert_eq!(Heads::few(8, 1, 256), heads(8, 1, 256));
    }

    /// A document's tokens see nothing of another's, and the first of each only itself.
    #[test]
    fn documents_are_apart() {
        let heads = Heads::few(4, 2, 8);
        let device = Device::flex();
        let y = heads.forward(&device, DType::F32).remove(0);
        let [_, _, v] = heads.inputs(&device, DType::F32);
        let v = numbers(v);
        for (head, first) in (0..4).flat_map(|head| DOCUMENTS.map(|first| (head, first))) {
            let (result, value) = ((head * TOKENS + first) * 8, (first * 2 + head / 2) * 8);
            for i in 0..8 {
                assert!((y[result + i] - v[value + i]).abs() < 1e-6, "head {head}, token {first}");
            }
        }
        let gradients = heads.gradients(&device, DType::F32);
        assert_eq!(gradients.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2, 2].map(|heads| heads * TOKENS * 8));
    }
}
