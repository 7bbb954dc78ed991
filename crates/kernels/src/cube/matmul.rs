//! A matrix product of our own, from the host's side: batched, strided, written into a part of a larger tensor, with bias and SiLU.
//!
//! CubeCL's matmuls are faster where the hardware has matrix units, but no fixed choice among them is right on every Vulkan device:
//! they need cooperative matrices, or shared memory where CubeCL miscompiles it (see [`shared`](super::shared)), or subgroup
//! operations; and they write no part of a larger tensor, so that every tile of the columns would cost a copy of its result. One kernel
//! with nothing to choose but the height of its block, which follows from the shape, is here instead: nothing is tuned, and the order of
//! every sum is fixed by the shapes, so results repeat bit for bit.
//!
//! ```text
//! C[z, s](i, j) = sum over o in split s, k in split s:  A[z mod period](i, k; o) * B[z](k, j; o)
//! ```
//!
//! z is image and group, o an outer sum (over images, in a weight gradient), s a part of the sums: a weight gradient has few blocks of C
//! and very long sums, which are cut into parts that are added up by [`add_parts`], always in the same order.

use super::geometry::MAX_GRID;
use super::launch::{UNITS, address_type, grid};
use super::product::{ArgsLaunch, Block, COLS, Gather, ImageLaunch, add_parts_kernel, matmul_kernel};
use super::shared::shared_memory_works;
use super::trace::note;
use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Offsets and steps of a matrix in its buffer, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) offset: usize,
    /// From one z to the next, and from one outer index to the next.
    pub(crate) batch: usize,
    pub(crate) outer: usize,
    /// From one row of C (for A) or column of C (for B) to the next, and from one k to the next.
    pub(crate) line: usize,
    pub(crate) k: usize,
}

/// What is computed: C[batches] of m x n from sums over k and `outer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    /// What it is for.
    pub(crate) name: &'static str,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) outer: usize,
    pub(crate) batches: usize,
    /// A is taken modulo this many batches: one for each group.
    pub(crate) period: usize,
    pub(crate) a: Layout,
    pub(crate) b: Layout,
    /// C: `offset`, `batch`, `outer` (from one split to the next) and `line` (from row to row); columns are neighbours.
    pub(crate) c: Layout,
    pub(crate) splits: Splits,
    pub(crate) silu: bool,
    /// What the sums are multiplied by.
    pub(crate) scale: f32,
    /// B as the columns of an image, instead of by `line` and `k`.
    pub(crate) window: Option<Window>,
}

/// How B is read from an image, and C's columns are spread over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) gather: Gather,
    pub(crate) map_width: usize,
    /// Of the image.
    pub(crate) size: [usize; 2],
    /// The row and column of pixel 0 and tap 0.
    pub(crate) first: [i32; 2],
    /// Channels, rows, pixels.
    pub(crate) steps: [usize; 3],
    /// Of the taps in A.
    pub(crate) a_taps: [usize; 2],
    /// Rows and pixels of C, if its columns are not neighbours.
    pub(crate) spread: Option<[usize; 2]>,
}

/// How the sums are cut: into `outer * inner` parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Splits {
    pub(crate) outer: usize,
    pub(crate) inner: usize,
}

impl Splits {
    /// One sum.
    pub(crate) const ONE: Self = Self { outer: 1, inner: 1 };

    pub(crate) fn count(&self) -> usize {
        self.outer * self.inner
    }
}

impl Product {
    /// The block of C to a workgroup of at most `units` threads: as tall as wastes no more than a quarter.
    fn block(&self, units: u32) -> Block {
        let padded = |rows: usize| self.m.div_ceil(rows) * rows;
        let wasteful = |rows: usize| padded(rows) * 4 > padded(16) * 5;
        let tall = |rows: u32| if rows == 64 { 8 } else { 4 };
        let fits = |rows: u32, cols: u32| rows * cols <= units * tall(rows) * COLS;
        let rows = [64, 32].into_iter().find(|rows| !wasteful(*rows) && fits(*rows as u32, 64)).unwrap_or(16) as u32;
        // 16 x 64 is 64 threads, which every GPU allows; CubeCL's CPU runtime may not.
        let cols = [64, 32].into_iter().find(|cols| fits(rows, *cols)).unwrap_or(16);
        let (a_along_k, b_along_k) = (self.a.k < self.a.line, self.b.k < self.b.line);
        let (gather, spread) = (self.window.map(|w| w.gather), self.window.is_some_and(|w| w.spread.is_some()));
        Block { rows, cols, tall: tall(rows), shared: false, a_along_k, b_along_k, bias: false, silu: self.silu, gather, spread }
    }

    /// How many parts the sums are worth being cut into: enough blocks for a GPU, at least 256 terms to each part, and at most
    /// `limit` numbers in all parts together.
    pub(crate) fn cut(&self, limit: usize) -> Splits {
        // A mid-range GPU holds some 36 compute units with four workgroups each.
        const BLOCKS: usize = 144;
        const TERMS: usize = 256;
        let block = self.block(256);
        let blocks = self.m.div_ceil(block.rows as usize) * self.n.div_ceil(block.cols as usize) * self.batches;
        let wanted = BLOCKS.div_ceil(blocks).min(limit / (self.m * self.n * self.batches)).min(self.k * self.outer / TERMS).max(1);
        let outer = wanted.min(self.outer);
        Splits { outer, inner: (wanted / outer).min(self.k / TERMS).max(1) }
    }

    /// Launches the kernel: `c = a * b (+ bias, a number to each row) (SiLU)`.
    pub(crate) fn run(&self, a: &CubeTensor, b: &CubeTensor, bias: Option<&CubeTensor>, c: &CubeTensor) {
        let client = &c.client;
        let shared = shared_memory_works(&c.device);
        let block = Block { bias: bias.is_some(), shared, ..self.block(client.properties().hardware.max_units_per_cube) };
        let most = (MAX_GRID / self.splits.count()).max(1);
        let width = MAX_GRID * block.cols as usize;
        // Nothing in a network is larger than one grid; a larger one is cut.
        for first_batch in (0..self.batches).step_by(most) {
            let batches = most.min(self.batches - first_batch);
            for first in (0..self.n).step_by(width) {
                let n = width.min(self.n - first);
                let blocks = [n.div_ceil(block.cols as usize), self.m.div_ceil(block.rows as usize)];
                let count = CubeCount::Static(blocks[0] as u32, blocks[1] as u32, (batches * self.splits.count()) as u32);
                note(self.name, [a, b, c], 2 * (self.m * n * self.k * self.outer * batches) as u64);
                matmul_kernel::launch(
                    client,
                    count,
                    CubeDim::new_1d(block.units()),
                    address_type([a, b, c]),
                    a.clone().into_tensor_arg(),
                    b.clone().into_tensor_arg(),
                    // Without a bias something must still be bound; it is not read.
                    bias.unwrap_or(a).clone().into_tensor_arg(),
                    c.clone().into_tensor_arg(),
                    self.args(first_batch, first, n),
                    self.image(first),
                    block,
                    [a, b, c].map(|tensor| dtype_to_storage_type(tensor.dtype)),
                );
            }
        }
    }

    fn image(&self, first: usize) -> ImageLaunch {
        let nothing =
            Window { gather: Gather::default(), map_width: 1, size: [0; 2], first: [0; 2], steps: [0; 3], a_taps: [0; 2], spread: None };
        let Window { map_width, size: [height, width], first: [first_y, first_x], steps: [channel, row, pixel], a_taps, spread, .. } =
            self.window.unwrap_or(nothing);
        let [c_row, c_pixel] = spread.unwrap_or_default();
        ImageLaunch::new(
            first as u32,
            map_width as u32,
            height as i32,
            width as i32,
            first_y,
            first_x,
            channel,
            row,
            pixel,
            a_taps[0],
            a_taps[1],
            c_row,
            c_pixel,
        )
    }

    fn args(&self, first_batch: usize, first: usize, n: usize) -> ArgsLaunch {
        let Splits { outer, inner } = self.splits;
        let spread = self.window.is_some_and(|w| w.spread.is_some());
        ArgsLaunch::new(
            self.m as u32,
            n as u32,
            self.k as u32,
            self.outer as u32,
            self.period as u32,
            first_batch as u32,
            self.splits.count() as u32,
            inner as u32,
            self.outer.div_ceil(outer) as u32,
            self.k.div_ceil(inner) as u32,
            self.a.offset,
            self.a.batch,
            self.a.outer,
            self.a.line,
            self.a.k,
            self.b.offset + if self.window.is_some() { 0 } else { first * self.b.line },
            self.b.batch,
            self.b.outer,
            self.b.line,
            self.b.k,
            self.c.offset + if spread { 0 } else { first },
            self.c.batch,
            self.c.outer,
            self.c.line,
            self.scale,
        )
    }
}

/// `out = sum over the first axis of parts`, both of f32; `parts` holds `count` times as many numbers as `out`.
pub(crate) fn add_parts(parts: &CubeTensor, out: &CubeTensor, count: usize) {
    debug_assert_eq!([parts.dtype, out.dtype], [DType::F32; 2]);
    note("add_parts_kernel", [parts, out], 0);
    add_parts_kernel::launch(
        &out.client,
        grid(out.meta.shape().num_elements()),
        CubeDim::new_1d(UNITS),
        address_type([parts, out]),
        parts.clone().into_tensor_arg(),
        out.clone().into_tensor_arg(),
        count as u32,
    );
}
