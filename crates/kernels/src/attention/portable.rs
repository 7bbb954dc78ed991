//! Attention composed of products and a masked softmax: the definition, and the way of devices and types without a kernel.
//!
//! A block of queries at a time, with the keys that the last of them sees: the scores of all pairs are never held here either, and half of them
//! are never made. A short sequence is one block. What is in f16, which has no number for a key that is not seen, becomes f32.

use std::ops::Range;

use burn::backend::tensor::{FloatTensor as Float, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::{DType, Shape, Slice};

use super::sizes::Sizes;
use crate::decoder::{BLOCKED, DecoderOps};
use crate::matrices::MatrixOps;

/// Scores that are held at a time, in f32 32 MB; a few times as many are in use where gradients are made of them.
pub(super) const SCORES: usize = 8 << 20;

/// Of the queries, those `rows` and the keys that the last of them sees, `0 .. keys`.
struct Part {
    rows: Range<usize>,
    keys: usize,
}

impl Part {
    /// All of them, from the first queries to the last.
    fn all<B: Backend>(q: &Float<B>, k: &Float<B>, most: usize) -> Vec<Self> {
        let ([b, h, s, _], [_, _, t, _]) = (q.shape().dims(), k.shape().dims());
        let height = (most / (b * h * t).max(1)).clamp(1, s.max(1));
        let part = |start: usize| Self { rows: start..s.min(start + height), keys: t - s.saturating_sub(start + height) };
        (0..s).step_by(height).map(part).collect()
    }

    fn first<B: Backend>(&self, first: &IntTensor<B>) -> IntTensor<B> {
        let first = first.clone();
        if self.rows == (0..first.shape()[1]) { first } else { B::int_slice(first, &[Slice::full(), self.rows.clone().into()]) }
    }
}

/// Rows of the third axis.
fn cut<B: Backend>(x: &Float<B>, rows: Range<usize>) -> Float<B> {
    if rows == (0..x.shape()[2]) { x.clone() } else { B::float_slice(x.clone(), &[Slice::full(), Slice::full(), rows.into()]) }
}

/// What was made of the parts, in their order.
fn joined<B: Backend>(mut parts: Vec<Float<B>>) -> Float<B> {
    if parts.len() == 1 { parts.remove(0) } else { B::float_cat(parts, 2) }
}

impl Sizes {
    /// `[B, H, S, d]` as `[B, G, H / G S, d]`: the query heads of a key head are rows of one product.
    fn rows<B: Backend>(&self, q: Float<B>) -> Float<B> {
        B::float_reshape(q, Shape::new([self.b, self.g, self.group * self.s, self.d]))
    }

    fn heads<B: Backend>(&self, rows: Float<B>) -> Float<B> {
        B::float_reshape(rows, Shape::new([self.b, self.g * self.group, self.s, self.d]))
    }

    /// 0 where a query sees a key, else [`BLOCKED`]: `[B, 1, H / G S, T]`, of the type of `like`.
    fn mask<B: Backend>(&self, first: IntTensor<B>, like: &Float<B>) -> Float<B> {
        let &Self { b, group, s, t, .. } = self;
        let (device, ints) = (like.device(), first.dtype().into());
        let keys = B::int_arange(0..t as i64, &device, ints);
        let keys = B::int_expand(B::int_reshape(keys, Shape::new([1, 1, t])), Shape::new([b, s, t]));
        let first = B::int_expand(B::int_reshape(first, Shape::new([b, s, 1])), Shape::new([b, s, t]));
        let last = B::int_arange((t - s) as i64..t as i64, &device, ints);
        let last = B::int_expand(B::int_reshape(last, Shape::new([1, s, 1])), Shape::new([b, s, t]));
        // How far a key lies before the first or behind the last. (Truth values cannot be stored on every device.)
        let outside = |by: IntTensor<B>| B::int_clamp(by, Scalar::Int(0), Scalar::Int(1));
        let hidden = B::int_add(outside(B::int_sub(first, keys.clone())), outside(B::int_sub(keys, last)));
        let mask = B::float_mul_scalar(B::int_into_float(hidden, like.dtype().into()), Scalar::Float(f64::from(BLOCKED)));
        let mask = B::float_expand(B::float_reshape(mask, Shape::new([b, 1, s, t])), Shape::new([b, group, s, t]));
        B::float_reshape(mask, Shape::new([b, 1, group * s, t]))
    }
}

fn wide<B: DecoderOps>(x: Float<B>) -> Float<B> {
    if x.dtype() == DType::F16 { B::widen(x) } else { x }
}

fn transposed<B: Backend>(x: Float<B>) -> Float<B> {
    B::float_swap_dims(x, 2, 3)
}

fn probabilities<B: DecoderOps + MatrixOps>(q: Float<B>, k: Float<B>, first: IntTensor<B>, scale: f64, sizes: &Sizes) -> Float<B> {
    let mask = sizes.mask::<B>(first, &q);
    B::masked_softmax(B::product(sizes.rows::<B>(q), transposed::<B>(k)), mask, scale)
}

/// By parts of at most so many scores: [`SCORES`], but for the test.
pub(super) fn attend<B: DecoderOps + MatrixOps>(
    most: usize,
    operands: [Float<B>; 3],
    first: IntTensor<B>,
    scale: f64,
) -> (Float<B>, Float<B>) {
    let [q, k, v] = operands.map(wide::<B>);
    let of_part = |part: Part| {
        let (q, k, v) = (cut::<B>(&q, part.rows.clone()), cut::<B>(&k, 0..part.keys), cut::<B>(&v, 0..part.keys));
        let sizes = Sizes::new(&q, &k);
        let p = probabilities::<B>(q, k, part.first::<B>(&first), scale, &sizes);
        sizes.heads::<B>(B::product(p, v))
    };
    let y = joined::<B>(Part::all::<B>(&q, &k, most).into_iter().map(of_part).collect());
    // Nobody reads the sums of a backend that makes its probabilities from the scores once more.
    let sums = B::float_zeros(Shape::new([1]), &y.device(), y.dtype().into());
    (y, sums)
}

/// By parts of at most so many scores: [`SCORES`], but for the test.
pub(super) fn attend_grad<B: DecoderOps + MatrixOps>(
    most: usize,
    operands: [Float<B>; 4],
    first: IntTensor<B>,
    scale: f64,
) -> (Float<B>, Float<B>, Float<B>) {
    let [q, k, v, dy] = operands.map(wide::<B>);
    let mut dq = Vec::new();
    // Of the keys of the parts so far; those of the last part are all.
    let mut sums: Option<[Float<B>; 2]> = None;
    for part in Part::all::<B>(&q, &k, most).into_iter().rev() {
        let [q, dy] = [&q, &dy].map(|x| cut::<B>(x, part.rows.clone()));
        let [k, v] = [&k, &v].map(|x| cut::<B>(x, 0..part.keys));
        let sizes = Sizes::new(&q, &k);
        let p = probabilities::<B>(q.clone(), k.clone(), part.first::<B>(&first), scale, &sizes);
        let (q, dy) = (sizes.rows::<B>(q), sizes.rows::<B>(dy));
        let dp = B::product(dy.clone(), transposed::<B>(v));
        let dv = B::product(transposed::<B>(p.clone()), dy);
        let ds = B::masked_softmax_grad(p, dp, scale);
        let dk = B::product(transposed::<B>(ds.clone()), q);
        dq.push(sizes.heads::<B>(B::product(ds, k)));
        sums = Some(match sums {
            None => [dk, dv],
            Some([of_keys, of_values]) => [(of_keys, dk), (of_values, dv)].map(|(sum, more)| {
                let range = [Slice::full(), Slice::full(), Slice::from(0..part.keys)];
                let more = B::float_add(B::float_slice(sum.clone(), &range), more);
                B::float_slice_assign(sum, &range, more)
            }),
        });
    }
    dq.reverse();
    let [dk, dv] = sums.unwrap_or_else(|| [k, v].map(|of| B::float_zeros(of.shape(), &of.device(), of.dtype().into())));
    (joined::<B>(dq), dk, dv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::reference::noise;
    use burn::backend::Flex;
    use burn::tensor::TensorData;
    use burn_flex::FlexTensor;

    /// In parts of any height it is the same attention, up to the order of sums.
    #[test]
    fn parts_do_not_matter() {
        let ([b, h, g, s, t, d], scale) = ([2, 4, 2, 11, 14, 8], 0.3);
        let tensor = |seed: u64, shape: [usize; 4]| FlexTensor::from_data(TensorData::new(noise(seed, shape.iter().product()), shape));
        let (q, k, v, dy) = (tensor(1, [b, h, s, d]), tensor(2, [b, g, t, d]), tensor(3, [b, g, t, d]), tensor(4, [b, h, s, d]));
        let first: Vec<i64> = (0..b * s).map(|i| [0, 0, 2, 3][i % 4]).collect();
        let first = FlexTensor::from_data(TensorData::new(first, [b, s]));
        let all = |most| {
            let [q, k, v, dy] = [&q, &k, &v, &dy].map(Clone::clone);
            let y = attend::<Flex>(most, [&q, &k, &v].map(Clone::clone), first.clone(), scale).0;
            let (dq, dk, dv) = attend_grad::<Flex>(most, [q, k, v, dy], first.clone(), scale);
            [y, dq, dk, dv].map(|x| x.into_data().try_into_vec_as::<f32>().unwrap())
        };
        let whole = all(usize::MAX);
        for most in [1, 3 * b * h * t, 5 * b * h * t, 10 * b * h * t] {
            for (parts, whole) in all(most).iter().zip(&whole) {
                assert!(parts.len() == whole.len() && parts.iter().zip(whole).all(|(a, b)| (a - b).abs() < 1e-5), "{most}");
            }
        }
    }
}
