//! The one-dimensional transforms of F(4, 3) at the points 0, 3/4, -3/4, 3/2, -3/2 and infinity, on vectors.
//!
//! A correlation of 6 inputs d with 3 taps g has 4 outputs `y = A^T ((G g) . (B^T d))`: the polynomials with coefficients g and y are
//! evaluated at six points, multiplied there, and (transposing that algorithm, Winograd 1980; Lavin and Gray 2016) the matrices are
//!
//! ```text
//!        | 81/64      0  -45/16     0   1  0 |       |   64/81       0      0  |         | 1    1      1      1      1    0 |
//!        |    0  -27/16    -9/4   3/4   1  0 |       | -128/243  -32/81  -8/27 |   A^T = | 0   3/4   -3/4    3/2   -3/2   0 |
//!  B^T = |    0   27/16    -9/4  -3/4   1  0 |   G = | -128/243   32/81  -8/27 |         | 0   9/16   9/16   9/4    9/4   0 |
//!        |    0  -27/32   -9/16   3/2   1  0 |       |   32/243   16/81   8/27 |         | 0  27/64 -27/64  27/8  -27/8   1 |
//!        |    0   27/32   -9/16  -3/2   1  0 |       |   32/243  -16/81   8/27 |
//!        |    0   81/64       0 -45/16  0  1 |       |      0        0      1  |
//! ```
//!
//! In two dimensions each matrix is applied to the rows and to the columns. The usual points 0, +-1, +-2 lose four times as much
//! accuracy: what matters is the product of the norms of the three matrices, and the larger powers of 2 cost more there than the
//! rounding of 8/27 and its kin. All entries of B and A are exact in f32. Rows come in pairs for +-p, which share an even and an odd part.

use super::super::simd::Simd;

/// `B^T d`: six inputs to six points.
#[inline(always)]
pub fn input<S: Simd>(s: S, d: [S::V; 6]) -> [S::V; 6] {
    let (small, large) = (s.splat(-9.0 / 16.0), s.splat(-9.0 / 4.0));
    let (outer, middle) = (s.splat(81.0 / 64.0), s.splat(-45.0 / 16.0));
    let first = s.mul_add(outer, d[0], s.mul_add(middle, d[2], d[4]));
    let last = s.mul_add(outer, d[1], s.mul_add(middle, d[3], d[5]));
    let even = s.mul_add(large, d[2], d[4]);
    let odd = s.mul(s.splat(0.75), s.mul_add(large, d[1], d[3]));
    let even2 = s.mul_add(small, d[2], d[4]);
    let odd2 = s.mul(s.splat(1.5), s.mul_add(small, d[1], d[3]));
    [first, s.add(even, odd), s.sub(even, odd), s.add(even2, odd2), s.sub(even2, odd2), last]
}

/// `A^T m`: six points to four outputs.
#[inline(always)]
pub fn output<S: Simd>(s: S, m: [S::V; 6]) -> [S::V; 4] {
    let (even, odd) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
    let (even2, odd2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
    [
        s.add(m[0], s.add(even, even2)),
        s.mul_add(s.splat(0.75), odd, s.mul(s.splat(1.5), odd2)),
        s.mul_add(s.splat(9.0 / 16.0), even, s.mul(s.splat(9.0 / 4.0), even2)),
        s.mul_add(s.splat(27.0 / 64.0), odd, s.mul_add(s.splat(27.0 / 8.0), odd2, m[5])),
    ]
}

/// `A y`: the gradient of four outputs to six points, for the gradient of the weights.
#[inline(always)]
pub fn gradient<S: Simd>(s: S, y: [S::V; 4]) -> [S::V; 6] {
    let even = s.mul_add(s.splat(9.0 / 16.0), y[2], y[0]);
    let odd = s.mul_add(s.splat(0.75), y[1], s.mul(s.splat(27.0 / 64.0), y[3]));
    let even2 = s.mul_add(s.splat(9.0 / 4.0), y[2], y[0]);
    let odd2 = s.mul_add(s.splat(1.5), y[1], s.mul(s.splat(27.0 / 8.0), y[3]));
    [y[0], s.add(even, odd), s.sub(even, odd), s.add(even2, odd2), s.sub(even2, odd2), y[3]]
}

/// `G g`: three taps to six points.
#[inline(always)]
pub fn filter<S: Simd>(s: S, g: [S::V; 3]) -> [S::V; 6] {
    let even = s.mul_add(s.splat(-128.0 / 243.0), g[0], s.mul(s.splat(-8.0 / 27.0), g[2]));
    let odd = s.mul(s.splat(-32.0 / 81.0), g[1]);
    let even2 = s.mul_add(s.splat(32.0 / 243.0), g[0], s.mul(s.splat(8.0 / 27.0), g[2]));
    let odd2 = s.mul(s.splat(16.0 / 81.0), g[1]);
    [s.mul(s.splat(64.0 / 81.0), g[0]), s.add(even, odd), s.sub(even, odd), s.add(even2, odd2), s.sub(even2, odd2), g[2]]
}

/// `G^T u`: six points to the gradient of three taps.
#[inline(always)]
pub fn filter_gradient<S: Simd>(s: S, u: [S::V; 6]) -> [S::V; 3] {
    let (even, odd) = (s.add(u[1], u[2]), s.sub(u[2], u[1]));
    let (even2, odd2) = (s.add(u[3], u[4]), s.sub(u[3], u[4]));
    [
        s.mul_add(s.splat(64.0 / 81.0), u[0], s.mul_add(s.splat(-128.0 / 243.0), even, s.mul(s.splat(32.0 / 243.0), even2))),
        s.mul_add(s.splat(32.0 / 81.0), odd, s.mul(s.splat(16.0 / 81.0), odd2)),
        s.mul_add(s.splat(8.0 / 27.0), s.sub(even2, even), u[5]),
    ]
}
