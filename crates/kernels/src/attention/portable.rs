//! Attention composed of products and a masked softmax: the definition, and the way of devices and types without a kernel.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Scalar, TensorMetadata};
use burn::tensor::Shape;

use crate::decoder::{BLOCKED, DecoderOps};

/// The sizes of a problem.
struct Sizes {
    b: usize,
    g: usize,
    /// Query heads to a key head.
    group: usize,
    s: usize,
    t: usize,
    d: usize,
}

impl Sizes {
    fn new<B: Backend>(q: &FloatTensor<B>, k: &FloatTensor<B>) -> Self {
        let ([b, h, s, d], [_, g, t, _]) = (q.shape().dims(), k.shape().dims());
        Self { b, g, group: h / g, s, t, d }
    }

    /// `[B, H, S, d]` as `[B, G, H / G S, d]`: the query heads of a key head are rows of one product.
    fn rows<B: Backend>(&self, q: FloatTensor<B>) -> FloatTensor<B> {
        B::float_reshape(q, Shape::new([self.b, self.g, self.group * self.s, self.d]))
    }

    fn heads<B: Backend>(&self, rows: FloatTensor<B>) -> FloatTensor<B> {
        B::float_reshape(rows, Shape::new([self.b, self.g * self.group, self.s, self.d]))
    }

    /// 0 where a query sees a key, else [`BLOCKED`]: `[B, 1, H / G S, T]`, of the type of `like`.
    fn mask<B: Backend>(&self, first: IntTensor<B>, like: &FloatTensor<B>) -> FloatTensor<B> {
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

fn transposed<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(x, 2, 3)
}

fn probabilities<B: DecoderOps>(q: FloatTensor<B>, k: FloatTensor<B>, first: IntTensor<B>, scale: f64, sizes: &Sizes) -> FloatTensor<B> {
    let mask = sizes.mask::<B>(first, &q);
    B::masked_softmax(B::float_matmul(sizes.rows::<B>(q), transposed::<B>(k)), mask, scale)
}

pub(super) fn attend<B: DecoderOps>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    first: IntTensor<B>,
    scale: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let sizes = Sizes::new::<B>(&q, &k);
    let p = probabilities::<B>(q, k, first, scale, &sizes);
    // Nobody reads the sums of a backend that makes its probabilities from the scores once more.
    let sums = B::float_zeros(Shape::new([1]), &p.device(), p.dtype().into());
    (sizes.heads::<B>(B::float_matmul(p, v)), sums)
}

pub(super) fn attend_grad<B: DecoderOps>(
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    first: IntTensor<B>,
    dy: FloatTensor<B>,
    scale: f64,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let sizes = Sizes::new::<B>(&q, &k);
    let p = probabilities::<B>(q.clone(), k.clone(), first, scale, &sizes);
    let (q, dy) = (sizes.rows::<B>(q), sizes.rows::<B>(dy));
    let dp = B::float_matmul(dy.clone(), transposed::<B>(v));
    let dv = B::float_matmul(transposed::<B>(p.clone()), dy);
    let ds = B::masked_softmax_grad(p, dp, scale);
    let dk = B::float_matmul(transposed::<B>(ds.clone()), q);
    (sizes.heads::<B>(B::float_matmul(ds, k)), dk, dv)
}
