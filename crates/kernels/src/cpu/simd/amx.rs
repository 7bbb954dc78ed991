//! AMX: eight registers of 16 rows of 64 bytes, and an instruction that multiplies two of them, pairs of bf16 with sums in f32.
//!
//! All is [`Avx512Bf16`]'s but the micro-kernel of plain matrices: six registers hold 32 x 48 sums, one 16 rows of the left-hand side, 16
//! cells each, and one 16 cells of 16 columns of the right-hand side. So panels of the left-hand side are rows here, and blocks of a sum
//! whole registers: both sides are filled up with zeros.
//!
//! The unit is a type: on a processor without it the tests run the same code over a model of its five instructions.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::sync::OnceLock;

use half::bf16;

use super::avx512::{L, MR, REDUCE_ROWS};
use super::avx512_bf16::{self, Avx512Bf16, inherit, inherit_vectors};
use super::set::{PanelTile, ReduceTile, Simd, Task, Tile};

/// Rows of a panel.
const PANEL: usize = 32;
/// Rows, and cells of a row, of a register.
const SIDE: usize = 16;
/// Columns of the sums.
const WIDTH: usize = 3 * SIDE;

/// What multiplies registers. A value of it has the registers set up, and gives them back when it is dropped.
///
/// # Safety
/// Registers are numbered below 8, and 16 rows of 64 bytes, `stride` bytes apart, may be read or written at each pointer.
pub trait Unit {
    /// Sets up.
    unsafe fn new() -> Self;
    /// Fills a register with zeros.
    unsafe fn zero<const T: usize>(&mut self);
    /// Reads a register.
    unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize);
    /// `c += a b`.
    unsafe fn multiply<const C: usize, const A: usize, const B: usize>(&mut self);
    /// Writes a register.
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize);
}

/// The processor's.
pub struct Hardware;

/// What the registers look like: palette 1, and for each of eight 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static SHAPES: Shapes = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut i = 0;
    while i < 8 {
        (row_bytes[i], rows[i]) = (64, 16);
        i += 1;
    }
    Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

impl Unit for Hardware {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller knows that the unit is there; reads 64 bytes of a static.
        unsafe { asm!("ldtilecfg [{0}]", in(reg) &raw const SHAPES, options(nostack)) };
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
    unsafe fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: changes a register that no compiler uses.
        unsafe { asm!("tdpbf16ps tmm{0}, tmm{1}, tmm{2}", const C, const A, const B, options(nostack, nomem)) };
    }
    #[inline(always)]
    unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize) {
        // SAFETY: the caller's.
        unsafe { asm!("tilestored [{1} + {2}*1], tmm{0}", const T, in(reg) to, in(reg) stride, options(nostack)) };
    }
}

impl Drop for Hardware {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a value of this type was made where the unit is. Registers that are not in use need not be saved with a thread's others.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Proof that the processor has the unit, and what [`Avx512Bf16`] needs.
pub struct Amx<U>(Avx512Bf16, PhantomData<fn() -> U>);

impl<U> Clone for Amx<U> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<U> Copy for Amx<U> {}

impl<U> Amx<U> {
    /// The proof, unproved.
    ///
    /// # Safety
    /// The processor has AVX-512-BF16, and whatever U is made of.
    pub(super) unsafe fn assume() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { Avx512Bf16::assume() }, PhantomData)
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
        __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & wanted == wanted && __cpuid_count(1, 0).ecx & (1 << 27) != 0 && saved()
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
        let mut unit = U::new();
        unit.zero::<0>();
        unit.load::<1>(a.as_ptr(), 64);
        unit.load::<2>(b.as_ptr(), 64);
        unit.multiply::<0, 1, 2>();
        unit.store::<0>(c.as_mut_ptr(), 64);
    }
    (0..SIDE * SIDE).all(|at| {
        let (i, j) = (at / SIDE, at % SIDE);
        let term = |k: usize| (0..2).map(|t| number(2 * (i * SIDE + k) + 1 + t) * number(2 * (k * SIDE + j) + 4 + t)).sum::<f32>();
        c[at] == (0..SIDE).map(term).sum::<f32>()
    })
}

/// Runs `task` with these features.
pub fn run<T: Task>(task: T) -> T::Out {
    assert!(available());
    // SAFETY: the unit was found on the line above.
    unsafe { within(task, Amx::<Hardware>::assume()) }
}

/// Runs `task` in code for this processor's vectors.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma")]
pub(super) fn within<U: Unit + 'static, T: Task>(task: T, simd: Amx<U>) -> T::Out {
    task.run(simd)
}

/// The sums of `M` times 16 rows and `N` times 16 columns, `[32][48]`.
///
/// # Safety
/// The caller has run [`PanelTile::check`] for panels of [`PANEL`] rows, and `depth` is whole registers.
#[inline(always)]
unsafe fn sums<U: Unit, const M: usize, const N: usize>(a: &[f32], b: &[f32], depth: usize, sums: &mut [f32; PANEL * WIDTH]) {
    /// One of the registers of sums, by a number that is constant once the loops are unrolled.
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
    // SAFETY: a holds 32 rows of depth cells, b depth rows of N registers' width, sums 32 rows of 48.
    unsafe {
        let mut unit = U::new();
        for i in 0..M {
            for j in 0..N {
                at!(i, j, unit.zero());
            }
        }
        for k in (0..depth).step_by(SIDE) {
            for i in 0..M {
                unit.load::<6>(a.as_ptr().add(i * SIDE * depth + k), 4 * depth);
                for j in 0..N {
                    unit.load::<7>(b.as_ptr().add(k * N * SIDE + j * SIDE), 4 * N * SIDE);
                    match (i, j) {
                        (0, 0) => unit.multiply::<0, 6, 7>(),
                        (0, 1) => unit.multiply::<1, 6, 7>(),
                        (0, _) => unit.multiply::<2, 6, 7>(),
                        (_, 0) => unit.multiply::<3, 6, 7>(),
                        (_, 1) => unit.multiply::<4, 6, 7>(),
                        (_, _) => unit.multiply::<5, 6, 7>(),
                    }
                }
            }
        }
        for i in 0..M {
            for j in 0..N {
                at!(i, j, unit.store(sums.as_mut_ptr().add(i * SIDE * WIDTH + j * SIDE), 4 * WIDTH));
            }
        }
    }
}

type V = __m512;

impl<U: Unit + 'static> Simd for Amx<U> {
    const LANES: usize = L;
    const MR: usize = MR;
    const PANEL: usize = PANEL;
    const ROUND: usize = SIDE;
    const BY_ROWS: bool = true;
    const REDUCE_ROWS: usize = REDUCE_ROWS;
    const TERMS: usize = 2;
    type V = V;

    inherit_vectors!();
    inherit! {
        cell(low: V, high: V) -> V;
        neighbours(a: V, b: V) -> V;
        neighbours_bf16(src: &[bf16], n: usize) -> V;
        cell_bf16(low: &[bf16], high: &[bf16], n: usize) -> V;
        tile(tile: Tile<'_>);
        reduce_tile(tile: ReduceTile<'_>);
    }

    #[inline(always)]
    fn panel_tile(self, t: PanelTile<'_, '_>) {
        t.check(PANEL, L);
        assert!(t.depth.is_multiple_of(SIDE));
        let mut done = [0.0; PANEL * WIDTH];
        // SAFETY: `self` proves the unit; the bounds were checked.
        unsafe {
            match (t.c.len() > SIDE, t.cols.div_ceil(L)) {
                (false, 1) => sums::<U, 1, 1>(t.a, t.b, t.depth, &mut done),
                (false, 2) => sums::<U, 1, 2>(t.a, t.b, t.depth, &mut done),
                (false, _) => sums::<U, 1, 3>(t.a, t.b, t.depth, &mut done),
                (true, 1) => sums::<U, 2, 1>(t.a, t.b, t.depth, &mut done),
                (true, 2) => sums::<U, 2, 2>(t.a, t.b, t.depth, &mut done),
                (true, _) => sums::<U, 2, 3>(t.a, t.b, t.depth, &mut done),
            }
        }
        for (c, row) in t.c.iter_mut().zip(done.chunks_exact(WIDTH)) {
            let c = &mut c[t.at..t.at + t.cols];
            for (c, row) in c.chunks_mut(L).zip(row.chunks(L)) {
                let v = self.load(row);
                let v = if t.accumulate { self.add(self.load_part(c, c.len()), v) } else { v };
                self.store_part(v, c, c.len());
            }
        }
    }
}

#[cfg(test)]
pub(super) mod model {
    //! The unit in plain Rust.

    use super::*;

    /// Eight registers, as cells.
    pub(crate) struct Model([[f32; SIDE * SIDE]; 8]);

    fn terms(cell: f32) -> [f32; 2] {
        let bits = cell.to_bits();
        [f32::from_bits(bits << 16), f32::from_bits(bits & 0xffff_0000)]
    }

    impl Unit for Model {
        unsafe fn new() -> Self {
            Self([[f32::NAN; SIDE * SIDE]; 8])
        }
        unsafe fn zero<const T: usize>(&mut self) {
            self.0[T].fill(0.0);
        }
        unsafe fn load<const T: usize>(&mut self, from: *const f32, stride: usize) {
            for (i, row) in self.0[T].chunks_exact_mut(SIDE).enumerate() {
                // SAFETY: the caller's.
                row.copy_from_slice(unsafe { std::slice::from_raw_parts(from.byte_add(i * stride), SIDE) });
            }
        }
        unsafe fn multiply<const C: usize, const A: usize, const B: usize>(&mut self) {
            for at in 0..SIDE * SIDE {
                let (i, j) = (at / SIDE, at % SIDE);
                for k in 0..SIDE {
                    let (a, b) = (terms(self.0[A][i * SIDE + k]), terms(self.0[B][k * SIDE + j]));
                    self.0[C][at] += a[0] * b[0] + a[1] * b[1];
                }
            }
        }
        unsafe fn store<const T: usize>(&mut self, to: *mut f32, stride: usize) {
            for (i, row) in self.0[T].chunks_exact(SIDE).enumerate() {
                // SAFETY: the caller's.
                unsafe { std::slice::from_raw_parts_mut(to.byte_add(i * stride), SIDE) }.copy_from_slice(row);
            }
        }
    }

    #[test]
    fn the_model_multiplies() {
        // SAFETY: the model may always be used.
        assert!(unsafe { multiplies::<Model>() });
    }

    /// Runs `task` over the model.
    pub(crate) fn run<T: Task>(task: T) -> T::Out {
        assert!(avx512_bf16::available());
        // SAFETY: the vectors' features were found on the line above, and the model may always be used.
        unsafe { within(task, Amx::<Model>::assume()) }
    }
}
