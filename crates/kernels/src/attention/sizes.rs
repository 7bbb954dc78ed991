//! The sizes of a problem.

use burn::backend::TensorMetadata;

#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub b: usize,
    /// Key heads.
    pub g: usize,
    /// Query heads to a key head.
    pub group: usize,
    pub s: usize,
    pub t: usize,
    pub d: usize,
}

/// Panics unless the shapes of queries, keys, values and first keys fit each other.
#[track_caller]
pub(super) fn expect_fit(q: [usize; 4], k: [usize; 4], v: [usize; 4], first: [usize; 2]) {
    let ([b, h, s, d], [_, g, t, _]) = (q, k);
    let fits = k == [b, g, t, d] && v == k && first == [b, s] && g > 0 && h.is_multiple_of(g) && t >= s;
    assert!(fits, "queries {q:?}, keys {k:?}, values {v:?}, first keys {first:?}");
}

impl Sizes {
    /// Of queries `[B, H, S, d]` and keys `[B, G, T, d]`.
    pub(super) fn new<T: TensorMetadata>(q: &T, k: &T) -> Self {
        let ([b, h, s, d], [_, g, t, _]) = (q.shape().dims(), k.shape().dims());
        Self { b, g, group: h / g, s, t, d }
    }

    /// The position of query `s`.
    pub(super) fn position(&self, s: usize) -> usize {
        self.t - self.s + s
    }
}
