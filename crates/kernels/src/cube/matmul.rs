//! A matrix product of our own, from the host's side: batched, strided, written into a part of a larger tensor, with bias and SiLU.
//!
//! CubeCL's matmuls are faster where the hardware has matrix units, but no fixed choice among them is right on every Vulkan device:
//! they need cooperative matrices, or shared memory where CubeCL miscompiles it (see [`shared`](super::shared)), or subgroup
//! operations; and they read no columns from an image. One kernel
//! with nothing to choose but the size of its block, which follows from the shape, is here instead: nothing is tuned, and the order of
//! every sum is fixed by the shapes, so results repeat bit for bit.
//!
//! ```text
//! C[z, s](i, j) = sum over o in split s, k in split s:  A[z mod period](i, k; o) * B[z](k, j; o)
//! ```
//!
//! z is a group, or a matrix of many, o an outer sum (over images, in a weight gradient), s a part of the sums: a weight gradient has few blocks of C
//! and very long sums, which are cut into parts that are added up by [`Product::run_in_parts`], always in the same order.

use super::args::{ArgsLaunch, ImageLaunch};
use super::block::{Block, FILLING_BLOCKS, Gather, MOST_TAPS};
use super::geometry::MAX_GRID;
use super::launch::{address_type, check_reach, launch};
use super::moments::matmul_moments_kernel;
use super::packing::Packing;
use super::pixels::empty;
use super::product::{add_parts_kernel, matmul_kernel};
use super::shared::shared_memory_works;
use super::trace::{note, note_room};
use crate::shapes::expect;
use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

/// Offsets and steps of a matrix in its buffer, in its numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) offset: usize,
    /// From one z to the next, and from one outer index to the next.
    pub(crate) batch: usize,
    pub(crate) outer: usize,
    /// From one row of C (for A) or column of C (for B) to the next, and from one k to the next.
    pub(crate) line: usize,
    pub(crate) k: usize,
    /// How the numbers lie. Only those of B may be packed.
    pub(crate) packing: Packing,
}

impl Layout {
    /// Of a contiguous matrix, whose rows or columns are the lines.
    pub(crate) fn columns(&self) -> usize {
        self.line.max(self.k).max(1)
    }
}

/// What is computed: C[batches] of m x n from sums over k and `outer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Product {
    /// What it is for.
    pub(crate) name: &'static str,
    pub(crate) m: usize,
    pub(crate) n: usize,
    /// Terms of a sum; or channels, where B's columns are the pixels of a window, each of as many terms as it has taps.
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
    /// Whether they are added to what C holds.
    pub(crate) onto: bool,
    /// B as the columns of an image, instead of by `line` and `k`.
    pub(crate) window: Option<Window>,
}

/// How B is read from an image, and C's columns are spread over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) gather: Gather,
    /// Rows and pixels to a row of a map; the columns of C are the pixels of one map after the other, unless they are taps.
    pub(crate) map: [usize; 2],
    /// Of the image.
    pub(crate) size: [usize; 2],
    /// The row and column of pixel 0 and tap 0.
    pub(crate) first: [i32; 2],
    /// Images, channels, rows, pixels.
    pub(crate) steps: [usize; 4],
    /// Of the taps in A.
    pub(crate) a_taps: [usize; 2],
    /// Images of C, and rows and pixels if its columns are not neighbours.
    pub(crate) c_image: usize,
    pub(crate) spread: Option<[usize; 2]>,
}

/// Parts of sums begin at multiples of it: at whole blocks of terms.
const PART: usize = 16;

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
    /// The block of C to a workgroup of at most `units` threads.
    pub(crate) fn block(&self, units: u32) -> Block {
        let gather = self.window.map(|w| w.gather);
        Block {
            a_along_k: self.a.k < self.a.line,
            b_along_k: self.window.map_or(self.b.k < self.b.line, |w| w.gather.taps_are_lines),
            packing: self.b.packing,
            silu: self.silu,
            onto: self.onto,
            spread: self.window.is_some_and(|w| w.spread.is_some()),
            ..Block::new(self.m, self.n, self.batches * self.splits.count(), units).of_terms(gather, self.k, self.part())
        }
    }

    /// Terms to a part of the sums.
    fn part(&self) -> usize {
        let part = self.k.div_ceil(self.splits.inner);
        if self.splits.inner == 1 { part } else { part.next_multiple_of(PART) }
    }

    /// How many parts the sums are worth being cut into: enough blocks for a large GPU, at least 256 terms to each part, and at most
    /// `limit` numbers in all parts together.
    pub(crate) fn cut(&self, limit: usize) -> Splits {
        const TERMS: usize = 256;
        let block = self.block(256);
        let blocks = self.m.div_ceil(block.rows as usize) * self.n.div_ceil(block.cols as usize) * self.batches;
        let wanted = FILLING_BLOCKS.div_ceil(blocks).min(limit / (self.m * self.n * self.batches)).min(self.k * self.outer / TERMS).max(1);
        // As many as have a term each.
        let outer = self.outer.div_ceil(self.outer.div_ceil(wanted.min(self.outer)));
        let inner = (wanted / outer).min(self.k / TERMS).max(1);
        let part = Self { splits: Splits { outer, inner }, ..*self }.part();
        Splits { outer, inner: self.k.div_ceil(part) }
    }

    /// Launches the kernel: `c = a * b (+ bias, a number to each row) (SiLU)`.
    pub(crate) fn run(&self, a: &CubeTensor, b: &CubeTensor, bias: Option<&CubeTensor>, c: &CubeTensor) {
        self.launch(a, b, bias, None, c);
    }

    /// The same without bias, by way of parts that are added up if sums are cut; `scales` are those of a packed `b` that has such.
    pub(crate) fn run_in_parts(&self, a: &CubeTensor, b: &CubeTensor, scales: Option<&CubeTensor>, c: &CubeTensor) {
        self.check_scales(scales);
        self.in_parts(c, |c| self.launch(a, b, None, scales, c));
    }

    /// c, which `run` writes; or the sum of parts that it writes, if sums are cut.
    pub(crate) fn in_parts(&self, c: &CubeTensor, run: impl FnOnce(&CubeTensor)) {
        let count = self.splits.count();
        if count == 1 {
            return run(c);
        }
        let parts = empty(c, [count * self.c.outer], DType::F32);
        run(&parts);
        let len = c.meta.shape().num_elements();
        launch!(add_parts_kernel, len, [(parts, count * len), (c, len, c.dtype)], count as u32, dtype_to_storage_type(c.dtype));
    }

    /// Panics unless there is a scale to each row of the matrix that B lies in, if its packing has any.
    pub(crate) fn check_scales(&self, scales: Option<&CubeTensor>) {
        if self.b.packing == Packing::Int8 {
            let rows = self.n * self.k / self.b.columns();
            let Some(scales) = scales else { panic!("{}: no scales of {rows} rows", self.name) };
            check_reach("scales of a product", [scales], [rows], [DType::F32]);
        }
    }

    /// The sum of products into one matrix of images' type: each of some columns of W, which is `a`, with an image of its own. And the moments of its rows, in the
    /// launch that makes it. Nothing is launched where that cannot be.
    #[expect(unsafe_code, reason = "see SAFETY")]
    pub(crate) fn run_moments(products: &[Self], a: &CubeTensor, images: &[&CubeTensor], c: &CubeTensor) -> Option<CubeTensor> {
        let (client, first) = (&c.client, products.first()?);
        let hardware = &client.properties().hardware;
        let whole = first.block_of(c);
        // What is bound is bound as one type to all of them.
        let mut fours = [true; 2];
        for (product, image) in products.iter().zip(images) {
            let [of_a, of_b] = product.fours(a, image);
            fours = [fours[0] && of_a, fours[1] && of_b];
        }
        let blocks: Vec<Block> = products.iter().map(|product| product.block_as(&whole, c).by_fours(fours)).collect();
        let at_once = blocks[0].at_once();
        let grid = [first.n.div_ceil(whole.cols as usize), first.m.div_ceil(whole.rows as usize)];
        let most = |of: fn(&Block) -> usize| blocks.iter().map(of).max().unwrap_or_default();
        let room = [most(|block| block.left().size()), most(|block| block.right().size())];
        let bytes = room.iter().sum::<usize>() * size_of::<f32>();
        // W, C, the moments and the launch's numbers are bound, too.
        let fits = bytes <= hardware.max_shared_memory_size && images.len() + 4 <= hardware.max_bindings as usize;
        let alone = first.batches * first.splits.count() == 1 && grid[0] <= MAX_GRID;
        if !(fits && alone && blocks.iter().all(Block::adds_rows)) {
            return None;
        }
        for ((product, image), block) in products.iter().zip(images).zip(&blocks) {
            product.check(a, image, None, c);
            let alike = image.dtype == c.dtype && block.at_once() == at_once && [product.m, product.n] == [first.m, first.n];
            assert!(alike, "{}: {product:?} beside {first:?}", first.name);
        }
        let parts = empty(c, [3, first.m, grid[0]], DType::F32);
        let all = || images.iter().copied().chain([a, c, &parts]);
        note(first.name, all(), products.iter().zip(&blocks).map(|(product, &block)| product.flops(product.n, 1, block)).sum());
        note_room(first.name, bytes, most(Block::registers));
        // SAFETY: `check` has found the last number of each tensor that its steps reach, and `parts` has three for each row and block of columns.
        unsafe {
            matmul_moments_kernel::launch_unchecked(
                client,
                CubeCount::Static(grid[0] as u32, grid[1] as u32, 1),
                CubeDim::new_1d(whole.units()),
                all().map(|tensor| address_type([tensor])).max().unwrap_or_default(),
                a.clone().into_tensor_arg(),
                images.iter().map(|&image| image.clone().into_tensor_arg()).collect(),
                c.clone().into_tensor_arg(),
                parts.clone().into_tensor_arg(),
                products.iter().map(|product| product.args(0, 0, product.n)).collect(),
                products.iter().map(|product| product.image(0)).collect(),
                blocks,
                room,
                dtype_to_storage_type(c.dtype),
                at_once,
            );
        }
        Some(parts)
    }

    /// The block of C to a workgroup of the device of `c`: through shared memory, where that works and has room.
    pub(crate) fn block_of(&self, c: &CubeTensor) -> Block {
        let hardware = &c.client.properties().hardware;
        let block = self.block(hardware.max_units_per_cube);
        let fits = block.bytes() <= hardware.max_shared_memory_size && block.taps().0 * block.taps().1 <= MOST_TAPS;
        Block { shared: fits && shared_memory_works(&c.device), ..block }
    }

    /// The same as large as that of another product of its launch.
    pub(crate) fn block_as(&self, &Block { rows, cols, tall, wide, shared, .. }: &Block, c: &CubeTensor) -> Block {
        let own = Block { rows, cols, tall, wide, ..self.block(c.client.properties().hardware.max_units_per_cube) };
        let block = own.of_terms(own.gather, self.k, self.part());
        Block { shared: shared && block.taps().0 * block.taps().1 <= MOST_TAPS, ..block }
    }

    /// Multiplications and additions of `n` columns of so many matrices.
    pub(super) fn flops(&self, n: usize, batches: usize, block: Block) -> u64 {
        2 * (self.m * n * self.k * (block.taps().0 * block.taps().1) as usize * self.outer * batches) as u64
    }

    #[expect(unsafe_code, reason = "see SAFETY")]
    fn launch(&self, a: &CubeTensor, b: &CubeTensor, bias: Option<&CubeTensor>, scales: Option<&CubeTensor>, c: &CubeTensor) {
        let client = &c.client;
        let block = Block { bias: bias.is_some(), ..self.block_of(c) }.by_fours(self.fours(a, b));
        self.check(a, b, bias, c);
        let most = (MAX_GRID / self.splits.count()).max(1);
        let width = MAX_GRID * block.cols as usize;
        // More than one grid (that of YOLOv8n's stem, of 32 images of 1280 pixels) is cut; the tensors are told of with the first part, for each is moved once.
        for first_batch in (0..self.batches).step_by(most) {
            let batches = most.min(self.batches - first_batch);
            for first in (0..self.n).step_by(width) {
                let n = width.min(self.n - first);
                let blocks = [n.div_ceil(block.cols as usize), self.m.div_ceil(block.rows as usize)];
                let count = CubeCount::Static(blocks[0] as u32, blocks[1] as u32, (batches * self.splits.count()) as u32);
                let told = [a, b, c].into_iter().chain(scales).chain(block.onto.then_some(c)).filter(|_| first_batch + first == 0);
                note(self.name, told, self.flops(n, batches, block));
                note_room(self.name, if block.shared { block.bytes() } else { 0 }, block.registers());
                // SAFETY: `check` has found the last number of each tensor that its steps reach, `check_scales` a scale to each row.
                unsafe {
                    matmul_kernel::launch_unchecked(
                        client,
                        count,
                        CubeDim::new_1d(block.units()),
                        address_type([a, b, c]).max(self.b.packing.address_type(b)),
                        a.clone().into_tensor_arg(),
                        b.clone().into_tensor_arg(),
                        // Something must be bound; it is not read if it is neither.
                        bias.or(scales).unwrap_or(a).clone().into_tensor_arg(),
                        c.clone().into_tensor_arg(),
                        self.args(first_batch, first, n),
                        self.image(first),
                        block,
                        [a.dtype, self.b.packing.element(b.dtype), c.dtype].map(dtype_to_storage_type),
                        block.at_once(),
                    );
                }
            }
        }
    }

    /// Panics unless each tensor holds the last number that its steps reach.
    pub(crate) fn check(&self, a: &CubeTensor, b: &CubeTensor, bias: Option<&CubeTensor>, c: &CubeTensor) {
        let last = |steps: &[(usize, usize)]| steps.iter().map(|(count, step)| count.saturating_sub(1) * step).sum::<usize>();
        let (k, outer) = (self.k, self.outer);
        let taps = |window: &Window| [window.gather.taps.0 as usize, window.gather.taps.1 as usize];
        let mut of_a = self.a.offset + last(&[(self.period, self.a.batch), (outer, self.a.outer), (self.m, self.a.line), (k, self.a.k)]);
        let mut of_b = self.b.offset + last(&[(self.batches, self.b.batch), (outer, self.b.outer)]);
        let mut of_c = self.c.offset + last(&[(self.batches, self.c.batch), (self.splits.count(), self.c.outer), (self.m, self.c.line)]);
        match &self.window {
            None => {
                of_b += last(&[(self.n, self.b.line), (k, self.b.k)]);
                of_c += self.n - 1;
            }
            Some(window) => {
                let ([down, across], [height, width], [image, channel, row, pixel]) = (taps(window), window.size, window.steps);
                let lines = window.gather.taps_are_lines;
                let (images, channels) = if lines { (1, self.n / (down * across)) } else { (self.n / (window.map[0] * window.map[1]), k) };
                of_b += last(&[(images, image), (channels, channel), (height, row), (width, pixel)]);
                if lines {
                    of_c += self.n - 1;
                } else {
                    let [c_row, c_pixel] = window.spread.unwrap_or([window.map[1], 1]);
                    of_a += last(&[(down, window.a_taps[0]), (across, window.a_taps[1])]);
                    of_c += last(&[(images, window.c_image), (window.map[0], c_row), (window.map[1], c_pixel)]);
                }
            }
        }
        for (what, tensor, packing, last) in
            [("A", a, Packing::Plain, of_a), ("B", b, self.b.packing, of_b), ("C", c, Packing::Plain, of_c)]
        {
            let numbers = packing.numbers(tensor);
            assert!(last < numbers, "{}: {what} has {numbers} numbers, and number {last} is asked for", self.name);
        }
        if let Some(bias) = bias {
            expect("bias", bias.meta.shape().dims(), [self.period * self.m]);
            // As on the processor, where a bias of another type has no numbers.
            check_reach("bias of a product", [bias], [self.period * self.m], [DType::F32]);
        }
    }

    pub(crate) fn image(&self, first: usize) -> ImageLaunch {
        let nothing = Window {
            gather: Gather::default(),
            map: [1; 2],
            size: [0; 2],
            first: [0; 2],
            steps: [0; 4],
            a_taps: [0; 2],
            c_image: 0,
            spread: None,
        };
        let window = self.window.unwrap_or(nothing);
        let Window { map, size: [height, width], first: [first_y, first_x], steps: [image, channel, row, pixel], a_taps, .. } = window;
        let [c_row, c_pixel] = window.spread.unwrap_or_default();
        let [up, left] = window.first.map(|first| first.min(0).unsigned_abs());
        ImageLaunch::new(
            if window.gather.taps_are_lines { 0 } else { first as u32 },
            (map[0] * map[1]) as u32,
            map[1] as u32,
            height as i32,
            width as i32,
            first_y,
            first_x,
            up as i32,
            left as i32,
            up as usize * row + left as usize * pixel,
            image,
            channel,
            row,
            pixel,
            a_taps[0],
            a_taps[1],
            window.c_image,
            c_row,
            c_pixel,
        )
    }

    pub(crate) fn args(&self, first_batch: usize, first: usize, n: usize) -> ArgsLaunch {
        let Splits { outer, inner } = self.splits;
        // A launch that begins later is told so by its image, if the columns of C are pixels.
        let pixels = self.window.is_some_and(|w| !w.gather.taps_are_lines);
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
            self.part() as u32,
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
            self.b.columns(),
            self.c.offset + if pixels { 0 } else { first },
            self.c.batch,
            self.c.outer,
            self.c.line,
            self.scale,
            1.0,
        )
    }
}
