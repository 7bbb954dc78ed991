//! What is compiled into the kernel of the matrix product: how C is shared out, and how B is read from words or from an image.

use super::packing::Packing;

pub(crate) use super::sizes::FILLING_BLOCKS;
use super::sizes::size;

/// Terms of a plain sum, or pixels of a weight gradient, in shared memory at a time.
const DEEP: u32 = 16;

/// Most terms at a time where they are channels and taps.
const DEEPEST: u32 = 27;

/// Numbers that are read at once: of memory where they lie so, of shared memory where a thread has eight columns.
pub(super) const AT_ONCE: u32 = 4;

/// Bytes of shared memory that every Vulkan device has.
const SHARED_BYTES: u32 = 16 << 10;

/// Most taps of a convolution through shared memory: a thread remembers in one number which of them are inside the image.
pub(crate) const MOST_TAPS: u32 = 32;

/// A workgroup's block of C, and the block of terms that it takes through shared memory at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    /// Rows and columns of C in one workgroup, and in one thread.
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) tall: u32,
    pub(crate) wide: u32,
    /// Steps of k at a time: terms, or channels with all their taps.
    pub(crate) deep: u32,
    /// Whether every sum is a multiple of `deep` long.
    pub(crate) exact: bool,
    /// Through shared memory.
    pub(crate) shared: bool,
    /// Whether neighbouring k are neighbours in memory, for A and for B: shared blocks are then loaded along k.
    pub(crate) a_along_k: bool,
    pub(crate) b_along_k: bool,
    /// Whether A and B are read by fours.
    pub(crate) a_fours: bool,
    pub(crate) b_fours: bool,
    /// How B's numbers lie.
    pub(crate) packing: Packing,
    /// A is in f32 and is rounded to the type of factors as it is read.
    pub(crate) rounds: bool,
    /// Add a number to each row.
    pub(crate) bias: bool,
    /// Apply `y * sigmoid(y)` at the end.
    pub(crate) silu: bool,
    /// Add what C holds.
    pub(crate) onto: bool,
    /// B is read from an image.
    pub(crate) gather: Option<Gather>,
    /// C's columns are pixels that are not neighbours.
    pub(crate) spread: bool,
}

/// B as the columns of a convolution, which nobody writes down: pixel (i, j) of a map and tap (s, t) of channel c is the image's number
/// `(c, first_y + i step_y + s tap_y, first_x + j step_x + t tap_x)`, zero outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Gather {
    /// Taps, (vertical, horizontal), as are all pairs.
    pub(crate) taps: (u32, u32),
    pub(crate) step: (i32, i32),
    pub(crate) tap: (i32, i32),
    /// Whether B's lines are channels and taps and its k pixels, as in a weight gradient; else its lines are pixels, its k channels, and every k
    /// is as many terms as there are taps, in A too.
    pub(crate) taps_are_lines: bool,
}

impl Gather {
    /// Taps of a channel.
    pub(crate) fn count(&self) -> u32 {
        self.taps.0 * self.taps.1
    }
}

/// What B is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Matrix,
    /// Its columns are the pixels of maps.
    Map,
    /// Its columns are channels and taps.
    Taps,
}

/// What one operand has in shared memory: `[deep * taps][lines + pad]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Side {
    pub(crate) lines: u32,
    pub(crate) deep: u32,
    /// Terms of a k, (vertical, horizontal).
    pub(crate) taps: (u32, u32),
    pub(crate) along_k: bool,
    /// Loaded by fours, of lines or, `along_k`, of k.
    pub(crate) fours: bool,
    pub(crate) exact: bool,
    pub(crate) packing: Packing,
    /// Threads that load it.
    pub(crate) units: u32,
    /// Extra numbers to a term, so that threads loading along k do not all write to one bank: an odd number of them, or of fours.
    pub(crate) pad: u32,
    /// How far apart the lines of a thread are that it reads at once: they are neighbours in shared memory.
    pub(crate) apart: u32,
}

impl Side {
    pub(crate) fn count(&self) -> u32 {
        self.taps.0 * self.taps.1
    }

    /// Terms.
    pub(crate) fn depth(&self) -> u32 {
        self.deep * self.count()
    }

    /// From one term to the next.
    pub(crate) fn pitch(&self) -> u32 {
        self.lines + self.pad
    }

    /// Numbers, rounded up so that what comes behind begins where numbers are read at once.
    pub(crate) fn size(&self) -> usize {
        (self.depth() * self.pitch()).next_multiple_of(AT_ONCE) as usize
    }

    /// Numbers that a thread loads.
    pub(crate) fn each(&self) -> u32 {
        (self.lines * self.depth()).div_ceil(self.units)
    }

    /// Lines of a thread that has whole lines of an image.
    pub(crate) fn own_lines(&self) -> u32 {
        (self.lines / self.units).max(1)
    }

    /// Threads that share such a line.
    pub(crate) fn sharing(&self) -> u32 {
        (self.units / self.lines).max(1)
    }
}

impl Block {
    /// A block of C of at most `units` threads for C of `m` rows and `n` columns in `batches`, by the table of [`sizes`](super::sizes).
    pub(crate) fn new(m: usize, n: usize, batches: usize, units: u32) -> Self {
        let [rows, cols, tall, wide] = size(m, n, batches, units);
        Self {
            rows,
            cols,
            tall,
            wide,
            deep: DEEP,
            exact: false,
            shared: false,
            a_along_k: false,
            b_along_k: false,
            a_fours: false,
            b_fours: false,
            packing: Packing::Plain,
            rounds: false,
            bias: false,
            silu: false,
            onto: false,
            gather: None,
            spread: false,
        }
    }

    /// The same for sums over `k`, at most `part` of it at a time.
    pub(crate) fn of_terms(self, gather: Option<Gather>, k: usize, part: usize) -> Self {
        let block = Self { gather, ..self };
        let taps = block.taps();
        let deep = if taps.0 * taps.1 == 1 { DEEP } else { block.channels(taps.0 * taps.1, k as u32) };
        Self { deep, exact: k.is_multiple_of(deep as usize) && part.is_multiple_of(deep as usize), ..block }
    }

    /// Channels at a time, of so many taps each: many that share out what there is, or else with few that are not there; as many to every thread.
    fn channels(&self, taps: u32, channels: u32) -> u32 {
        let (sharing, line) = (self.right().sharing(), (self.left().pitch() + self.right().pitch()) * size_of::<f32>() as u32);
        let most = (DEEPEST.min(SHARED_BYTES / line) / taps).max(1);
        let exact = |deep: &u32| channels.is_multiple_of(*deep) && 2 * deep >= most;
        let frugal = |deep: &u32| channels.next_multiple_of(*deep) * 8 <= channels * 9;
        let some = || (1..=most).rev().filter(|deep| deep.is_multiple_of(sharing));
        some().find(exact).or_else(|| some().find(frugal)).unwrap_or(sharing)
    }

    /// Threads of a workgroup.
    pub(crate) fn units(&self) -> u32 {
        self.rows * self.cols / (self.tall * self.wide)
    }

    /// Threads to a row of them.
    pub(crate) fn across(&self) -> u32 {
        self.cols / self.wide
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.gather {
            None => Kind::Matrix,
            Some(gather) if gather.taps_are_lines => Kind::Taps,
            Some(_) => Kind::Map,
        }
    }

    /// Terms of a k, (vertical, horizontal).
    pub(crate) fn taps(&self) -> (u32, u32) {
        if self.kind() == Kind::Map { self.gather.unwrap_or_default().taps } else { (1, 1) }
    }

    /// A in shared memory, where a thread's rows are neighbours.
    pub(crate) fn left(&self) -> Side {
        Side {
            lines: self.rows,
            deep: self.deep,
            taps: self.taps(),
            along_k: self.a_along_k,
            fours: self.a_fours,
            exact: self.exact,
            packing: Packing::Plain,
            units: self.units(),
            pad: if self.reads_fours() { AT_ONCE } else { 1 },
            apart: 1,
        }
    }

    /// B in shared memory.
    pub(crate) fn right(&self) -> Side {
        let apart = if self.reads_fours() { self.across() } else { 1 };
        Side { lines: self.cols, along_k: self.b_along_k, fours: self.b_fours, packing: self.packing, apart, ..self.left() }
    }

    /// Whether shared memory is laid out for reads of four numbers: where a thread has eight columns. Of fewer it uses each number less often, and what reads save is lost again: a
    /// block of 16 x 128 has so many threads to a row that they would put their numbers into the same banks, and one of 64 x 64 takes registers more (by RADV's compiler).
    fn reads_fours(&self) -> bool {
        self.wide == 2 * AT_ONCE
    }

    /// The same with operands that are read by fours, those that lie so and that all threads have as many fours of.
    pub(crate) fn by_fours(self, [a, b]: [bool; 2]) -> Self {
        let shares = |side: Side| self.shared && side.count() == 1 && (side.lines * side.deep).is_multiple_of(AT_ONCE * side.units);
        Self { a_fours: a && shares(self.left()), b_fours: b && shares(self.right()), ..self }
    }

    /// Elements that are read at once, of A and of B.
    pub(crate) fn at_once(&self) -> [usize; 2] {
        [(self.a_fours, Packing::Plain), (self.b_fours, self.packing)].map(|(fours, packing)| if fours { packing.of_four() } else { 1 })
    }

    /// Whether rows of C can be added up where B was: there is a thread to each, and room for a number of every thread's rows.
    pub(crate) fn adds_rows(&self) -> bool {
        let numbers = (self.across() * self.left().pitch()) as usize;
        self.shared && self.units() >= self.rows && self.right().size() >= numbers
    }

    /// Bytes of the registers of all threads at least: each holds its sums, their factors of one term, and the numbers that are under way to shared memory.
    pub(crate) fn registers(&self) -> usize {
        let under_way = if self.shared { self.left().each() + self.right().each() } else { 0 };
        (self.units() * (self.tall * self.wide + self.tall + self.wide + under_way)) as usize * size_of::<f32>()
    }

    /// Bytes of shared memory.
    pub(crate) fn bytes(&self) -> usize {
        (self.left().size() + self.right().size()) * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads share out both blocks as the kernel takes for granted, for whatever is asked.
    #[test]
    fn blocks_are_shared_out_evenly() {
        let gathers = [(1, 1), (1, 2), (2, 2), (3, 3), (5, 5)]
            .into_iter()
            .flat_map(|taps| [false, true].map(|taps_are_lines| Some(Gather { taps, step: (1, 1), tap: (1, 1), taps_are_lines })));
        for gather in gathers.chain([None]) {
            for m in [1, 16, 30, 48, 64, 130, 256] {
                for n in [1, 40, 400, 100_000] {
                    for (k, units) in [(1, 256), (3, 256), (48, 128), (64, 256), (127, 64), (130, 16)] {
                        let block = Block::new(m, n, 1, units).of_terms(gather, k, k);
                        let (left, right) = (block.left(), block.right());
                        assert!(block.units() <= units && block.units() * block.tall * block.wide == block.rows * block.cols, "{block:?}");
                        assert_eq!(right.own_lines() * right.units, right.lines * right.sharing(), "{block:?}");
                        assert!(block.taps() == (1, 1) || right.deep.is_multiple_of(right.sharing()), "{block:?}");
                        assert!(block.units().is_multiple_of(DEEP), "{block:?}");
                        assert!(left.each() * left.units >= left.lines * left.depth(), "{block:?}");
                    }
                }
            }
        }
        // A 3x3 convolution of YOLOv8n, its stem, and a 1x1 one.
        let of = |m, taps, k| Block::new(m, 102_400, 1, 256).of_terms(Some(Gather { taps, ..Gather::default() }), k, k);
        let numbers = |block: Block| (block.rows, block.cols, block.units(), block.right().depth(), block.exact);
        assert_eq!(numbers(of(64, (3, 3), 64)), (64, 128, 128, 18, true));
        assert_eq!(numbers(of(16, (3, 3), 3)), (16, 128, 128, 27, true));
        assert_eq!(numbers(of(32, (1, 1), 48)), (32, 128, 128, 16, true));
        for block in [of(64, (3, 3), 64), of(64, (3, 3), 48), of(32, (2, 2), 33), of(16, (3, 3), 3)] {
            assert!(block.bytes() <= 16 << 10, "{block:?}");
        }
        // 64 sums and 16 factors to each of 128 threads; 18 terms of 64 rows and of 128 columns are 9 and 18 numbers to a thread.
        let tall = of(64, (3, 3), 64);
        assert_eq!([tall.registers(), Block { shared: true, ..tall }.registers()], [128 * 80 * 4, 128 * (80 + 27) * 4]);
    }
}
