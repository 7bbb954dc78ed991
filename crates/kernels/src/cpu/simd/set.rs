//! One instruction set, as kernels see it: its vectors, its two micro-kernels and their arguments.

use half::bf16;

/// Where each row of the right-hand matrix of [`Simd::tile`] starts: an implicit im2col is nothing but such a table.
///
/// The greatest entry is kept beside the table (and nothing outside these modules can change either) so that a micro-kernel can prove its bounds with one comparison.
pub struct Offsets {
    pub(super) table: Vec<u32>,
    pub(super) max: u32,
}

impl Offsets {
    /// Row `k` starts at `table[k]`.
    pub fn new(table: Vec<u32>) -> Self {
        let max = table.iter().copied().max().unwrap_or(0);
        Self { table, max }
    }

    /// The number of rows, i.e. the length K of the sums.
    pub fn depth(&self) -> usize {
        self.table.len()
    }
}

/// Rows that one entry of a table of starts stands for: evenly apart, so that a unit for matrices can read them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Their number, 1..=[`Simd::GROUP`].
    pub size: usize,
    /// Their distance.
    pub apart: usize,
}

impl Group {
    /// Each row has its own entry.
    pub const ONE: Self = Self { size: 1, apart: 0 };

    /// The fewest groups of `rows` rows that a set of instructions with such a [`Simd::GROUP`] can read, as even as they can be: their size.
    pub fn size_of(rows: usize, most: usize) -> usize {
        rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
    }

    /// From the first value of a group to that behind its last row's first.
    #[inline(always)]
    pub(super) fn reach(self) -> usize {
        (self.size - 1).saturating_mul(self.apart)
    }
}

/// Where the right-hand rows of [`Simd::tile`] start.
#[derive(Clone, Copy)]
pub enum Starts<'a> {
    /// Each group where its entry says.
    Table(&'a Offsets),
    /// So many groups one after the other, their rows as wide as the columns rounded up to whole vectors: what is beyond `cols` must be present, and
    /// is not used.
    Dense(usize),
}

impl Starts<'_> {
    pub(super) fn depth(&self) -> usize {
        match self {
            Starts::Table(offsets) => offsets.depth(),
            Starts::Dense(depth) => *depth,
        }
    }

    /// That of group `g`, of groups of so many values.
    #[inline(always)]
    pub(super) fn at(&self, g: usize, len: usize) -> usize {
        match self {
            Starts::Table(offsets) => offsets.table[g] as usize,
            Starts::Dense(_) => g * len,
        }
    }
}

/// Where [`Simd::tile`] writes.
pub enum To<'a, 'b> {
    /// Rows so far apart.
    Block(&'a mut [f32], usize),
    /// The part of each row that begins there.
    Rows(&'a mut [&'b mut [f32]], usize),
}

impl To<'_, '_> {
    /// Row `i`, from the tile's first column on.
    #[inline(always)]
    pub(super) fn row(&mut self, i: usize) -> &mut [f32] {
        match self {
            To::Block(c, ldc) => &mut c[i * *ldc..],
            To::Rows(rows, at) => &mut rows[i][*at..],
        }
    }

    /// Where the first `MR` rows begin; anywhere for those that do not exist.
    #[inline(always)]
    pub(super) fn pointers<const MR: usize>(&mut self) -> [*mut f32; MR] {
        match self {
            To::Block(c, ldc) => {
                let c = c.as_mut_ptr();
                std::array::from_fn(|i| c.wrapping_add(i * *ldc))
            }
            To::Rows(rows, at) => {
                let mut rows = rows.iter_mut();
                std::array::from_fn(|_| rows.next().map_or(std::ptr::null_mut(), |row| row.as_mut_ptr()).wrapping_add(*at))
            }
        }
    }
}

/// Arguments of [`Simd::tile`]: `c[i][j] = [c +] sum_gk a[(g*MR + i) * size + k] * b[starts[g] + k*apart + j]` for `i < rows`,
/// `j < cols`, `k < size`; `a` and `b` hold cells, whose product is the sum of the products of their terms.
///
/// Where [`Simd::TOGETHER`] is more than 1 there are up to so many times MR rows, all rows of a panel are there in a block `c`, and its columns up to whole
/// vectors, as are those of `b`: what is beyond `rows` and `cols` may be read, and changed.
pub struct Tile<'a, 'b> {
    /// Packed left-hand panels, `[group][MR][size]`, rows beyond `rows` must be present (any finite value, normally zero).
    pub a: &'a [f32],
    /// Distance of the panels.
    pub panel: usize,
    /// What each of the starts stands for.
    pub group: Group,
    /// The right-hand side, already cut to begin at the tile's first column.
    pub b: &'a [f32],
    /// Starts of the right-hand rows.
    pub starts: Starts<'a>,
    /// Result, `rows` rows of `cols` values.
    pub c: To<'a, 'b>,
    /// Rows stored, 1..=MR a panel.
    pub rows: usize,
    /// Columns read and stored, 1..=NR. Nothing beyond them is written by a set of instructions with one panel.
    pub cols: usize,
    /// Add the sum, formed from zero, to what `c` holds instead of overwriting it: blocks of a long sum lose less than one chain.
    pub accumulate: bool,
    /// Ask for the next `NR` columns of each right-hand row meanwhile: for rows that come from beyond the second-level cache and tiles
    /// visited from left to right. The processor's own prefetcher does not follow a hundred streams of three lines each.
    pub prefetch: bool,
}

/// Arguments of [`Simd::reduce_tile`]: `c[(i*size + k) * ldc + j] += sum_p a[rows[i] + k*apart + p] * b[p*ldb + j]` for `k < size`,
/// `j < vectors * LANES`, `p < length`.
///
/// Each row of the left-hand side is contiguous along the reduction: a plane of pixels, read one cell at a time and broadcast. The sum is
/// formed from zero and then added to `c`: a reduction over many pixels made of many short calls loses less than one chain.
pub struct ReduceTile<'a> {
    /// Left-hand side.
    pub a: &'a [f32],
    /// Starts of its groups of rows, 1..=REDUCE_ROWS of them.
    pub rows: &'a [u32],
    /// What each entry of `rows` stands for.
    pub group: Group,
    /// Right-hand side, `length` rows `ldb` apart.
    pub b: &'a [f32],
    /// Distance of the rows of `b`.
    pub ldb: usize,
    /// Length of the reduction, a multiple of [`Simd::GROUP`].
    pub length: usize,
    /// Accumulators.
    pub c: &'a mut [f32],
    /// Distance of the rows of `c`.
    pub ldc: usize,
    /// Vectors per row of `c`: 1 or 2.
    pub vectors: usize,
}

impl ReduceTile<'_> {
    /// The bounds that the micro-kernels rely on.
    #[inline(always)]
    pub(super) fn check(&self, lanes: usize, max_rows: usize, max_group: usize) {
        let width = self.vectors * lanes;
        assert!(matches!(self.vectors, 1 | 2) && (1..=max_rows).contains(&self.rows.len()));
        assert!((1..=max_group).contains(&self.group.size) && self.length.is_multiple_of(max_group));
        for &row in self.rows {
            assert!(self.length.saturating_add(row as usize).saturating_add(self.group.reach()) <= self.a.len());
        }
        assert!(end(self.length, self.ldb, width) <= self.b.len());
        assert!(end(self.rows.len() * self.group.size, self.ldc, width) <= self.c.len());
    }
}

impl<'b> Tile<'_, 'b> {
    /// Panics unless the results are inside `c`, `rows` rows of `cols` columns.
    #[inline(always)]
    pub(super) fn check_results(&self, rows: usize, cols: usize) {
        match &self.c {
            To::Block(c, ldc) => assert!(end(rows, *ldc, cols) <= c.len()),
            To::Rows(c, at) => {
                assert!(self.rows <= c.len());
                c[..self.rows].iter().for_each(|row| assert!(at.saturating_add(self.cols) <= row.len()));
            }
        }
    }

    /// Panics unless `width` columns of every right-hand row are in `b`, of a table; all of whole vectors, if they lie one after the other.
    #[inline(always)]
    pub(super) fn check_right(&self, width: usize, lanes: usize) {
        let size = self.group.size;
        match self.starts {
            Starts::Table(offsets) => {
                let last = (offsets.max as usize).saturating_add(self.group.reach());
                assert!(offsets.depth() == 0 || last.saturating_add(width) <= self.b.len());
            }
            Starts::Dense(depth) => {
                let whole = self.cols.next_multiple_of(lanes);
                assert!(size == 1 || self.group.apart == whole);
                assert!(depth.saturating_mul(size).saturating_mul(whole) <= self.b.len());
            }
        }
    }

    /// The bounds that the micro-kernels without groups rely on.
    #[inline(always)]
    pub(super) fn check(&self, mr: usize, lanes: usize) {
        assert!(self.group.size == 1 && (1..=mr).contains(&self.rows) && (1..=3 * lanes).contains(&self.cols));
        assert!(self.a.len() / mr >= self.starts.depth());
        self.check_right(self.cols, lanes);
        self.check_results(self.rows, self.cols);
    }

    /// The tile of the columns from `at` on.
    #[inline(always)]
    pub(super) fn behind(&mut self, at: usize) -> Tile<'_, 'b> {
        let c = match &mut self.c {
            To::Block(c, ldc) => To::Block(&mut c[at..], *ldc),
            To::Rows(rows, from) => To::Rows(rows, *from + at),
        };
        Tile { b: &self.b[at..], c, cols: self.cols - at, ..*self }
    }
}

/// Where the last of `rows` rows of `width` values ends that begin `stride` apart; beyond all memory rather than wrapped around.
#[inline(always)]
pub(super) fn end(rows: usize, stride: usize, width: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(width) }
}

/// Calls a micro-kernel with the rows and the vectors, 1 or 2, of its tile as constants; the last number of rows is the greatest.
macro_rules! with_sizes {
    ($sizes:expr, [$($rows:literal)*] $most:literal, |$r:ident, $n:ident| $call:expr) => {
        match $sizes {
            $(($rows, 1) => with_sizes!($r = $rows, $n = 1, $call),)*
            (_, 1) => with_sizes!($r = $most, $n = 1, $call),
            $(($rows, _) => with_sizes!($r = $rows, $n = 2, $call),)*
            (_, _) => with_sizes!($r = $most, $n = 2, $call),
        }
    };
    ($r:ident = $rows:literal, $n:ident = $vectors:literal, $call:expr) => {{
        const $r: usize = $rows;
        const $n: usize = $vectors;
        $call
    }};
}
pub(crate) use with_sizes;

/// At least any instruction set's [`Vectors::LANES`].
pub const MAX_LANES: usize = 16;

/// One instruction set's vectors. A value of the type is the proof that this processor has it.
pub trait Vectors: Copy + Send + Sync + 'static {
    /// f32 values in a vector.
    const LANES: usize;
    /// A vector.
    type V: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::V;
    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
    /// The first `LANES` values of `src`, which must be that long.
    fn load(self, src: &[f32]) -> Self::V;
    /// The first `n <= LANES` values of `src`, then zeros.
    fn load_part(self, src: &[f32], n: usize) -> Self::V;
    /// The first `n <= LANES` values of `src` in f32, then zeros.
    #[inline(always)]
    fn load_bf16(self, src: &[bf16], n: usize) -> Self::V {
        let mut values = [0.0; MAX_LANES];
        values[..n].iter_mut().zip(&src[..n]).for_each(|(v, x)| *v = x.to_f32());
        self.load(&values)
    }
    /// What the first `LANES` codes of 4 bits stand for in `table`; two are a byte, the first in its upper half.
    #[inline(always)]
    fn look_up(self, table: &[f32; 16], codes: &[u8]) -> Self::V {
        let mut values = [0.0; MAX_LANES];
        for (pair, &code) in values.chunks_exact_mut(2).zip(&codes[..Self::LANES / 2]) {
            pair.copy_from_slice(&[table[usize::from(code >> 4)], table[usize::from(code & 15)]]);
        }
        self.load(&values)
    }
    /// Writes the first `LANES` values of `dst`, which must be that long.
    fn store(self, v: Self::V, dst: &mut [f32]);
    /// Writes the first `n <= LANES` values of `dst`.
    fn store_part(self, v: Self::V, dst: &mut [f32], n: usize);
    /// All values of `src`, at most `LANES`, then zeros.
    #[inline(always)]
    fn read(self, src: &[f32]) -> Self::V {
        if src.len() == Self::LANES { self.load(src) } else { self.load_part(src, src.len()) }
    }
    /// Writes all of `dst`, at most `LANES` values.
    #[inline(always)]
    fn write(self, v: Self::V, dst: &mut [f32]) {
        if dst.len() == Self::LANES { self.store(v, dst) } else { self.store_part(v, dst, dst.len()) }
    }
    /// The sum of the first `n` lanes, one after the other.
    #[inline(always)]
    fn total(self, v: Self::V, n: usize) -> f64 {
        let mut lanes = [0.0; MAX_LANES];
        self.store_part(v, &mut lanes, n);
        lanes[..n].iter().fold(0.0, |sum, &lane| sum + f64::from(lane))
    }

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller of each lane; `b` where either is NaN, as on x86.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The greater of each lane; `b` where either is NaN, as on x86.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for integral `n` in -126..=127.
    fn exp2_integer(self, n: Self::V) -> Self::V;

    /// The even and the odd elements of the `2 * LANES` consecutive values in `a`, `b`.
    fn deinterleave2(self, a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// The inverse of [`Vectors::deinterleave2`]: a0 b0 a1 b1 ...
    fn interleave2(self, even: Self::V, odd: Self::V) -> (Self::V, Self::V);

    /// `dst[c * dst_stride + r] = src[r * src_stride + c]` for `r < rows`, `c < cols`, both at most `LANES` and `rows` not 0; the lanes from `rows` to
    /// `LANES` of each of the `cols` rows of `dst` become zero (so those rows must be `LANES` long).
    fn transpose(self, src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize);

    /// `dst[c * LANES / 2 + r] = src[r * src_stride + c]` for `r < LANES / 2`, `c < 2 * LANES`.
    #[inline(always)]
    fn transpose_half(self, src: &[f32], src_stride: usize, dst: &mut [f32]) {
        for (c, column) in dst.chunks_exact_mut(Self::LANES / 2).take(2 * Self::LANES).enumerate() {
            column.iter_mut().enumerate().for_each(|(r, value)| *value = src[r * src_stride + c]);
        }
    }

    /// `dst[c][at + r] = src[r * src_stride + c]` for `r < rows <= LANES` and every `c`; each row of `src` is `LANES` long, and `dst` has at
    /// most `LANES` slices. Unlike [`Vectors::transpose`] it writes nothing beside: for results that belong to different slices.
    #[inline(always)]
    fn transpose_rows(self, src: &[f32], src_stride: usize, rows: usize, dst: &mut [&mut [f32]], at: usize) {
        for (c, dst) in dst.iter_mut().enumerate() {
            dst[at..at + rows].iter_mut().enumerate().for_each(|(r, value)| *value = src[r * src_stride + c]);
        }
    }

    /// Asks for the cache lines of `src` in the second-level cache, or in the first to write them; only a hint, which may do nothing.
    fn prefetch<T>(self, src: &[T], write: bool);

    /// The nearest numbers of 8 significant bits, which a bf16 holds exactly: Veltkamp's splitting, for magnitudes below 2^111.
    #[inline(always)]
    fn high(self, v: Self::V) -> Self::V {
        let wide = self.mul(v, self.splat(65537.0));
        self.sub(wide, self.sub(wide, v))
    }
    /// What [`high`](Vectors::high) leaves, exactly.
    #[inline(always)]
    fn rest(self, v: Self::V) -> Self::V {
        self.sub(v, self.high(v))
    }

    /// (p, q) with p q = exp(x), to a few units in the last place: Cody and Waite's reduction by multiples of ln 2 and the Taylor
    /// polynomial of degree 7 on |r| <= ln 2 / 2, whose remainder there is below 6e-9. The argument is cut off at +-87; of NaN p is NaN.
    #[inline(always)]
    fn exp_parts(self, x: Self::V) -> (Self::V, Self::V) {
        // x comes second, so that a NaN is not cut off too.
        let t = self.min(self.splat(87.0), self.max(self.splat(-87.0), x));
        let n = self.round(self.mul(t, self.splat(std::f32::consts::LOG2_E)));
        // ln 2 in two parts: the first has few enough bits for n * part to be exact.
        let r = self.mul_add(n, self.splat(-0.693_359_4), t);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = self.mul_add(p, r, self.splat(c));
        }
        (p, self.exp2_integer(n))
    }

    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        let (p, q) = self.exp_parts(x);
        self.mul(p, q)
    }

    /// `1 / (1 + exp(-x))`.
    #[inline(always)]
    fn sigmoid(self, x: Self::V) -> Self::V {
        let (p, q) = self.exp_parts(self.sub(self.zero(), x));
        self.div(self.splat(1.0), self.mul_add(p, q, self.splat(1.0)))
    }

    /// `x / (1 + exp(-x))`: beyond +-87 the quotient is x, or x times 1.6e-38 and not 0.
    #[inline(always)]
    fn silu(self, x: Self::V) -> Self::V {
        self.div(x, self.add(self.splat(1.0), self.exp(self.sub(self.zero(), x))))
    }
}

/// An instruction set: its vectors, and what multiplies cells.
pub trait Simd: Vectors {
    /// Rows of a panel of [`Simd::tile`]; divides `LANES`.
    const MR: usize;
    /// Most panels of [`Simd::tile`].
    const TOGETHER: usize = 1;
    /// Most rows of a [`Group`].
    const GROUP: usize = 1;
    /// Columns of [`Simd::tile`].
    const NR: usize = 3 * Self::LANES;
    /// Most groups of rows of [`Simd::reduce_tile`].
    const REDUCE_ROWS: usize;
    /// Most rows of [`Simd::tile`].
    const PANEL: usize = Self::MR * Self::TOGETHER;
    /// Terms of a sum in each cell that the micro-kernels multiply: 1 or 2.
    const TERMS: usize = 1;
    /// Its unit for matrices, set up; nothing where there is none.
    type Unit;

    /// Cells of the terms `low` and `high`; where `TERMS` is 1, `low`.
    #[inline(always)]
    fn cell(self, low: Self::V, _high: Self::V) -> Self::V {
        low
    }
    /// Cells of the `2 * LANES` consecutive values in `a`, `b`, each of two neighbours; only where `TERMS` is 2.
    #[inline(always)]
    fn neighbours(self, a: Self::V, b: Self::V) -> Self::V {
        let (even, odd) = self.deinterleave2(a, b);
        self.cell(even, odd)
    }
    /// [`cell`](Simd::cell) of the first `n <= LANES` values of each, then zeros; only where `TERMS` is 2.
    #[inline(always)]
    fn cell_bf16(self, low: &[bf16], high: &[bf16], n: usize) -> Self::V {
        self.cell(self.load_bf16(low, n), self.load_bf16(high, n))
    }

    /// The unit, for sums of `rows` rows, each over `cells` cells at once: at most [`Simd::GROUP`] of either. Setting it up takes as long as some
    /// of its products, so once for many of them. [`Simd::tile`] asks for GROUP rows of a group of cells, [`Simd::reduce_tile`] for the other way round.
    ///
    /// # Panics
    /// If this thread has one already.
    fn unit(self, rows: usize, cells: usize) -> Self::Unit;
    /// The matrix micro-kernel, lanes along the columns: see [`Tile`].
    fn tile(self, unit: &mut Self::Unit, tile: Tile<'_, '_>);
    /// The micro-kernel for a reduction over pixels, lanes along output channels: see [`ReduceTile`].
    fn reduce_tile(self, unit: &mut Self::Unit, tile: ReduceTile<'_>);
}

/// A kernel with its arguments.
pub trait Task<Out = ()> {
    /// Does the work; must be `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Out;
}
