//! AMX: eight registers of 16 rows of 64 bytes, and an instruction that multiplies two of them, pairs of bf16 with sums in f32.
//!
//! All is AVX-512-BF16's but the micro-kernels: six registers hold sums, one 16 rows of the left-hand side, 16 cells each, and one 16
//! cells of 16 columns of the right-hand side. So panels of the left-hand side are rows of a group here, and a register's rows have to be evenly
//! apart, which is what a [`Group`](super::Group) is. Blocks of plain matrices are whole registers, both sides filled up with zeros; a
//! convolution's groups are as long as its channels make them, and so are the registers.
//!
//! The unit is a type: the tests run the same code on any processor over a model of its instructions, beside arrays for vectors.

use std::cell::Cell;
use std::marker::PhantomData;

use half::bf16;

use super::set::{Group, ReduceTile, Tile, To, Vectors, end, with_sizes};

/// Rows of the sums.
const PANEL: usize = 32;
/// Rows, and cells of a row, of a register.
const SIDE: usize = 16;
/// Groups of rows of a reduction.
const REDUCE_ROWS: usize = 2;
/// Columns of the sums.
const WIDTH: usize = 3 * SIDE;

/// What multiplies registers. A value of it has the registers set up.
///
/// # Safety
/// The unit is there. Registers are numbered below 8, and the rows of their shape, `stride` bytes apart, may be read or written at each pointer.
pub trait Unit: Copy + Send + Sync + 'static {
    unsafe fn new(shapes: &Shapes) -> Self;
    unsafe fn zero<const T: usize>(&mut self);
    unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize);
    /// Adds the product of the registers 6 and 7.
    unsafe fn multiply<const T: usize>(&mut self);
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize);
    /// Gives the registers back.
    unsafe fn release(&mut self) {}
}

/// What the registers look like: palette 1, and for each of eight its rows and their bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// The registers 0 to 5 hold `side` rows of sums, 6 as many of `cells` of the left-hand side, 7 `cells` rows of the right-hand one.
    fn new(side: usize, cells: usize) -> Self {
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        row_bytes[..8].fill(64);
        rows[..8].fill(side as u8);
        (row_bytes[6], rows[7]) = (4 * cells as u16, cells as u8);
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// Whether a product of small whole numbers comes out exactly: a unit that a machine claims and does not have right is not used.
///
/// # Safety
/// The unit may be used.
pub(super) unsafe fn multiplies<U: Unit>() -> bool {
    let pair =
        |low: f32, high: f32| f32::from_bits(u32::from(bf16::from_f32(low).to_bits()) | u32::from(bf16::from_f32(high).to_bits()) << 16);
    let number = |i: usize| (i * 7 % 11) as f32 - 5.0;
    let cells = |seed: usize| (0..SIDE * SIDE).map(move |i| pair(number(2 * i + seed), number(2 * i + seed + 1))).collect::<Vec<f32>>();
    let (a, b, mut c) = (cells(1), cells(4), vec![0.0; SIDE * SIDE]);
    // SAFETY: the caller's; each array is 16 rows of 64 bytes.
    unsafe {
        let mut unit = U::new(&Shapes::new(SIDE, SIDE));
        unit.zero::<0>();
        unit.load::<6>(a.as_ptr(), 64);
        unit.load::<7>(b.as_ptr(), 64);
        unit.multiply::<0>();
        unit.store::<0>(c.as_mut_ptr(), 64);
        unit.release();
    }
    (0..SIDE * SIDE).all(|at| {
        let (i, j) = (at / SIDE, at % SIDE);
        let term = |k: usize| (0..2).map(|t| number(2 * (i * SIDE + k) + 1 + t) * number(2 * (k * SIDE + j) + 4 + t)).sum::<f32>();
        c[at] == (0..SIDE).map(term).sum::<f32>()
    })
}

/// A method of one of the registers of sums, the `j`-th of 3 in the `i`-th of 2 rows: constant once the loops around it are unrolled.
macro_rules! at {
    ($i:expr, $j:expr, $unit:ident.$method:ident $arguments:tt) => {
        match ($i, $j) {
            (0, 0) => $unit.$method::<0> $arguments,
            (0, 1) => $unit.$method::<1> $arguments,
            (0, _) => $unit.$method::<2> $arguments,
            (_, 0) => $unit.$method::<3> $arguments,
            (_, 1) => $unit.$method::<4> $arguments,
            (_, _) => $unit.$method::<5> $arguments,
        }
    };
}

/// The same of all registers of sums, `N` in each of `M` rows.
macro_rules! each {
    ($m:ident, $n:ident, |$i:ident, $j:ident| $unit:ident.$method:ident $arguments:tt) => {
        for $i in 0..$m {
            for $j in 0..$n {
                at!($i, $j, $unit.$method $arguments);
            }
        }
    };
}

/// [`Simd::tile`] of `M` panels and `N` vectors of columns to `c`, with rows `ldc` apart, which is added to if `accumulate`.
///
/// # Safety
/// The bounds were checked, `M` and `N` are the tile's, `c` has room for whole registers, and the unit is set up for whole registers of the group's cells.
#[inline(always)]
unsafe fn tile<U: Unit, const M: usize, const N: usize>(unit: &mut U, t: &Tile<'_, '_>, c: *mut f32, ldc: usize, accumulate: bool) {
    let (Group { size, apart }, mut a) = (t.group, t.a.as_ptr());
    // SAFETY: the bounds were checked.
    unsafe {
        if accumulate {
            each!(M, N, |i, j| unit.load(c.add(i * SIDE * ldc + j * SIDE), 4 * ldc));
        } else {
            each!(M, N, |i, j| unit.zero());
        }
        for g in 0..t.starts.depth() {
            let b = t.b.as_ptr().add(t.starts.at(g, size * N * SIDE));
            // The columns outside: their rows may lie across cache lines, those of the left-hand side do not.
            for j in 0..N {
                unit.load::<7>(b.add(j * SIDE), 4 * apart);
                for i in 0..M {
                    unit.load::<6>(a.add(i * t.panel), 4 * size);
                    at!(i, j, unit.multiply());
                }
            }
            a = a.add(SIDE * size);
        }
        each!(M, N, |i, j| unit.store(c.add(i * SIDE * ldc + j * SIDE), 4 * ldc));
    }
}

/// [`tile`] of as many panels and vectors as the tile has; all else that it asks for is the caller's.
#[inline(always)]
unsafe fn any_tile<U: Unit>(unit: &mut U, t: &Tile<'_, '_>, c: *mut f32, ldc: usize, accumulate: bool) {
    // SAFETY: the caller's.
    unsafe {
        match (t.rows > SIDE, t.cols.div_ceil(SIDE)) {
            (false, 1) => tile::<U, 1, 1>(unit, t, c, ldc, accumulate),
            (false, 2) => tile::<U, 1, 2>(unit, t, c, ldc, accumulate),
            (false, _) => tile::<U, 1, 3>(unit, t, c, ldc, accumulate),
            (true, 1) => tile::<U, 2, 1>(unit, t, c, ldc, accumulate),
            (true, 2) => tile::<U, 2, 2>(unit, t, c, ldc, accumulate),
            (true, _) => tile::<U, 2, 3>(unit, t, c, ldc, accumulate),
        }
    }
}

/// The sums of [`Simd::reduce_tile`] of `M` groups of rows and `N` vectors, `[group][row][48]`.
///
/// # Safety
/// The caller has run [`ReduceTile::check`], `M` and `N` are the tile's, and the unit is set up for the group's rows, of 16 cells.
#[inline(always)]
unsafe fn reduce<U: Unit, const M: usize, const N: usize>(unit: &mut U, t: &ReduceTile<'_>, sums: &mut [f32; PANEL * WIDTH]) {
    let Group { size, apart } = t.group;
    // SAFETY: the bounds were checked; of the sums M groups of at most 16 rows are written.
    unsafe {
        each!(M, N, |i, j| unit.zero());
        for p in (0..t.length).step_by(SIDE) {
            for (i, &row) in t.rows.iter().enumerate().take(M) {
                unit.load::<6>(t.a.as_ptr().add(row as usize + p), 4 * apart);
                for j in 0..N {
                    unit.load::<7>(t.b.as_ptr().add(p * t.ldb + j * SIDE), 4 * t.ldb);
                    at!(i, j, unit.multiply());
                }
            }
        }
        each!(M, N, |i, j| unit.store(sums.as_mut_ptr().add(i * size * WIDTH + j * SIDE), 4 * WIDTH));
    }
}

thread_local! {
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// The registers set up for `rows` rows of sums, of `cells` cells at once. It is the one of its thread, which it cannot leave: what the registers are
/// set up for is the thread's, and a second time would change it for the first.
pub struct Set<U: Unit> {
    unit: U,
    rows: usize,
    cells: usize,
    _stays: PhantomData<*const ()>,
}

impl<U: Unit> Drop for Set<U> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: whoever made it knew of the unit.
        unsafe { self.unit.release() };
        IN_USE.set(false);
    }
}

impl<U: Unit> Set<U> {
    /// # Safety
    /// The unit may be used.
    #[inline(always)]
    unsafe fn new(rows: usize, cells: usize) -> Self {
        assert!((1..=SIDE).contains(&rows) && (1..=SIDE).contains(&cells), "sums of {rows} rows, of {cells} cells");
        assert!(!IN_USE.replace(true), "the unit for matrices is set up for something else on this thread");
        // SAFETY: the caller's.
        Self { unit: unsafe { U::new(&Shapes::new(rows, cells)) }, rows, cells, _stays: PhantomData }
    }

    /// [`Simd::tile`] beside these vectors.
    #[inline(always)]
    fn tile<S: Vectors>(&mut self, s: S, mut t: Tile<'_, '_>) {
        let (panels, width) = (t.rows.div_ceil(SIDE), t.cols.next_multiple_of(SIDE));
        assert!((1..=PANEL).contains(&t.rows) && (1..=WIDTH).contains(&t.cols) && (1..=SIDE).contains(&t.group.size));
        assert!(end(panels, t.panel, t.starts.depth() * SIDE * t.group.size) <= t.a.len());
        t.check_right(width, SIDE);
        t.check_results(panels * SIDE, width);
        assert_eq!((self.rows, self.cells), (SIDE, t.group.size));
        let unit = &mut self.unit;
        if let To::Block(c, ldc) = &mut t.c {
            let (c, ldc) = (c.as_mut_ptr(), *ldc);
            // SAFETY: a set has the unit; the bounds were checked.
            return unsafe { any_tile(unit, &t, c, ldc, t.accumulate) };
        }
        let mut done = [0.0; PANEL * WIDTH];
        // SAFETY: the same; `done` has 32 rows of 48.
        unsafe { any_tile(unit, &t, done.as_mut_ptr(), WIDTH, false) };
        for (i, row) in done.chunks_exact(WIDTH).enumerate().take(t.rows) {
            let c = &mut t.c.row(i)[..t.cols];
            for (c, row) in c.chunks_mut(SIDE).zip(row.chunks(SIDE)) {
                let v = s.load(row);
                let v = if t.accumulate { s.add(s.load_part(c, c.len()), v) } else { v };
                s.store_part(v, c, c.len());
            }
        }
    }

    /// [`Simd::reduce_tile`].
    #[inline(always)]
    fn reduce_tile<S: Vectors>(&mut self, s: S, t: ReduceTile<'_>) {
        t.check(SIDE, REDUCE_ROWS, SIDE);
        assert_eq!((self.rows, self.cells), (t.group.size, SIDE));
        let unit = &mut self.unit;
        let mut done = [0.0; PANEL * WIDTH];
        // SAFETY: a set has the unit; the bounds were checked.
        unsafe { with_sizes!((t.rows.len(), t.vectors), [1] 2, |M, N| reduce::<U, M, N>(unit, &t, &mut done)) };
        let rows = t.rows.len() * t.group.size;
        for (c, row) in t.c.chunks_mut(t.ldc).zip(done.chunks_exact(WIDTH)).take(rows) {
            for (c, row) in c[..t.vectors * SIDE].chunks_exact_mut(SIDE).zip(row.chunks_exact(SIDE)) {
                s.store(s.add(s.load(c), s.load(row)), c);
            }
        }
    }
}

/// What [`Simd`] has of such a unit.
macro_rules! multiplies_by {
    ($unit:ty) => {
        const MR: usize = SIDE;
        const TOGETHER: usize = 2;
        const GROUP: usize = SIDE;
        const REDUCE_ROWS: usize = REDUCE_ROWS;
        type Unit = Set<$unit>;

        #[inline(always)]
        fn unit(self, rows: usize, cells: usize) -> Set<$unit> {
            // SAFETY: `self` proves the unit.
            unsafe { Set::new(rows, cells) }
        }
        #[inline(always)]
        fn tile(self, set: &mut Set<$unit>, t: Tile<'_, '_>) {
            set.tile(self, t);
        }
        #[inline(always)]
        fn reduce_tile(self, set: &mut Set<$unit>, t: ReduceTile<'_>) {
            set.reduce_tile(self, t);
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use hardware::{available, run};

#[cfg(target_arch = "x86_64")]
mod hardware {
    //! The processor's unit.

    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::mem::transmute;
    use std::sync::OnceLock;

    use half::bf16;

    use super::super::avx512::{Avx512, L, mask};
    use super::super::avx512_bf16::{self, join_pairs, pair_cells, pairs};
    use super::super::set::{ReduceTile, Simd, Task, Tile};
    use super::super::text::{entrance, proved};
    use super::{REDUCE_ROWS, SIDE, Set, Shapes, Unit, multiplies};

    /// The unit.
    #[derive(Clone, Copy)]
    pub struct Hardware;

    impl Simd for Avx512<Hardware> {
        multiplies_by!(Hardware);
        pair_cells!();
    }

    impl Unit for Hardware {
        #[inline(always)]
        unsafe fn new(shapes: &Shapes) -> Self {
            // SAFETY: the caller knows that the unit is there; reads 64 bytes.
            unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const *shapes, options(nostack)) };
            Self
        }
        #[inline(always)]
        unsafe fn zero<const T: usize>(&mut self) {
            // SAFETY: changes a register that no compiler uses.
            unsafe { asm!("tilezero tmm{0}", const T, options(nostack, nomem)) };
        }
        #[inline(always)]
        unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
            // SAFETY: the caller's.
            unsafe { asm!("tileloadd tmm{0}, [{1} + {2}*1]", const T, in(reg) from, in(reg) stride, options(nostack, readonly)) };
        }
        #[inline(always)]
        unsafe fn multiply<const T: usize>(&mut self) {
            // SAFETY: changes a register that no compiler uses.
            unsafe { asm!("tdpbf16ps tmm{0}, tmm6, tmm7", const T, options(nostack, nomem)) };
        }
        #[inline(always)]
        unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize) {
            // SAFETY: the caller's.
            unsafe { asm!("tilestored [{1} + {2}*1], tmm{0}", const T, in(reg) to, in(reg) stride, options(nostack)) };
        }
        #[inline(always)]
        unsafe fn release(&mut self) {
            // SAFETY: the caller's. Registers that are not in use need not be saved with a thread's others.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// Whether the processor has the unit, the kernel lets this process use it, and it computes what it should.
    pub fn available() -> bool {
        static ANSWER: OnceLock<bool> = OnceLock::new();
        // SAFETY: asked in this order, each question is allowed by the answer before.
        *ANSWER.get_or_init(|| avx512_bf16::available() && unsafe { has_unit() && permitted() && multiplies::<Hardware>() })
    }

    /// CPUID's leaf 7 has the unit (bit 24) and its product of bf16 (bit 22), and the system saves its registers (XCR0's bits 17 and 18).
    unsafe fn has_unit() -> bool {
        #[target_feature(enable = "xsave")]
        unsafe fn saved() -> bool {
            // SAFETY: the system uses XSAVE, as the caller has seen; register 0 is always there.
            unsafe { _xgetbv(0) & (3 << 17) == 3 << 17 }
        }
        // SAFETY: CPUID is on every processor with AVX-512; bit 27 of leaf 1 says that XGETBV may be asked.
        unsafe {
            let wanted = (1 << 24) | (1 << 22);
            __cpuid_count(0, 0).eax >= 7
                && __cpuid_count(7, 0).edx & wanted == wanted
                && __cpuid_count(1, 0).ecx & (1 << 27) != 0
                && saved()
        }
    }

    /// Linux gives the registers only to who asks: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
    unsafe fn permitted() -> bool {
        #[cfg(target_os = "linux")]
        {
            let mut answer: i64 = 158;
            // SAFETY: a system call that touches no memory.
            unsafe {
                asm!("syscall", inlateout("rax") answer, in("rdi") 0x1023, in("rsi") 18, lateout("rcx") _, lateout("r11") _, options(nostack));
            }
            answer == 0
        }
        #[cfg(not(target_os = "linux"))]
        false
    }

    entrance!(once available ["avx512f" "avx512vl" "avx512dq" "avx512bw" "avx512bf16" "avx2" "fma"], Avx512::<Hardware>::assume());
}

#[cfg(test)]
pub(super) mod model {
    //! The unit in plain Rust.

    use super::super::portable::wide::{Pair, terms};
    use super::super::portable::{Arrays, Cells};
    use super::super::set::{Simd, Task};
    use super::*;

    /// Eight registers, as cells, and their shapes.
    #[derive(Clone, Copy)]
    pub(crate) struct Model([[f32; SIDE * SIDE]; 8], Shapes);

    impl Simd for Arrays<Model, SIDE, SIDE> {
        const TERMS: usize = 2;
        multiplies_by!(Model);

        fn cell(self, low: Self::V, high: Self::V) -> Self::V {
            std::array::from_fn(|i| Pair::cell(low[i], high[i]))
        }
    }

    impl Model {
        /// Rows of a register, and cells of a row.
        fn shape(&self, register: usize) -> [usize; 2] {
            [usize::from(self.1.rows[register]), usize::from(self.1.row_bytes[register]) / 4]
        }
    }

    impl Unit for Model {
        unsafe fn new(shapes: &Shapes) -> Self {
            Self([[f32::NAN; SIDE * SIDE]; 8], *shapes)
        }
        unsafe fn zero<const T: usize>(&mut self) {
            self.0[T].fill(0.0);
        }
        unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
            let [rows, cells] = self.shape(T);
            for (i, row) in self.0[T].chunks_exact_mut(SIDE).enumerate().take(rows) {
                // SAFETY: the caller's.
                row[..cells].copy_from_slice(unsafe { std::slice::from_raw_parts(from.byte_add(i * stride), cells) });
            }
        }
        unsafe fn multiply<const T: usize>(&mut self) {
            let ([rows, cells], [depth, columns]) = (self.shape(6), self.shape(7));
            assert!(cells == depth && self.shape(T) == [rows, columns]);
            let [a, b] = [6, 7].map(|register| self.0[register].map(terms));
            for (i, sums) in self.0[T].chunks_exact_mut(SIDE).enumerate().take(rows) {
                for k in 0..depth {
                    let a = a[i * SIDE + k];
                    sums.iter_mut().zip(&b[k * SIDE..]).for_each(|(sum, b)| *sum += a[0] * b[0] + a[1] * b[1]);
                }
            }
        }
        unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize) {
            let [rows, cells] = self.shape(T);
            for (i, row) in self.0[T].chunks_exact(SIDE).enumerate().take(rows) {
                // SAFETY: the caller's.
                unsafe { std::slice::from_raw_parts_mut(to.byte_add(i * stride), cells) }.copy_from_slice(&row[..cells]);
            }
        }
    }

    #[test]
    fn the_model_multiplies() {
        // SAFETY: the model may always be used.
        assert!(unsafe { multiplies::<Model>() });
    }

    /// Runs `task` over the model.
    pub(crate) fn run<Out, T: Task<Out>>(task: T) -> Out {
        task.run(Arrays::<Model, SIDE, SIDE>::new())
    }
}
