//! The vector operations that the processor's kernels are written in, and the choice of an instruction set at run time.
//!
//! A kernel is a [`Task`]: a struct of its arguments with one method generic over [`Simd`]. [`run`] calls that method inside a function compiled for the
//! instruction set, so everything marked `#[inline(always)]` below it becomes that set's code. Target features do not cross a closure sent to another thread:
//! call [`run`] inside each rayon task, never around the parallel loop. For the same reason generic code must not hide vector work in functions that are not
//! `#[inline(always)]`, nor in closures that are not inlined into one that is. A program where some are not shows it: it has symbols of its own for the
//! intrinsics used here (`nm -C` finds `core_arch::x86::avx512f::_mm512_mul_ps` and the like).
//!
//! Every operation takes slices and checks their lengths; the micro-kernels, [`Simd::tile`] and [`Simd::reduce_tile`], check
//! once before their loops. Only the modules of instruction sets contain `unsafe`.
//!
//! The operands of the micro-kernels are *cells* of 32 bits, each of [`Simd::TERMS`] consecutive terms of the sum: one f32, or at
//! [`Level::Avx512Bf16`] and [`Level::Amx`] two bf16. [`Simd::cell`] makes them; nothing else about a kernel depends on it.

#[cfg(any(test, target_arch = "x86_64"))]
#[allow(unsafe_code)]
mod amx;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code)]
mod neon;
mod portable;
mod set;
#[cfg(test)]
mod tests;
#[cfg(any(target_arch = "aarch64", target_arch = "x86_64"))]
#[allow(unsafe_code)]
mod text;

#[cfg(test)]
use std::cell::Cell;
use std::sync::OnceLock;

use crate::policy::Precision;
pub(crate) use set::with_sizes;
pub use set::{Group, MAX_LANES, Offsets, ReduceTile, Simd, Starts, Task, Tile, To};

/// The sizes of an instruction set, constants of [`Simd`], for code that divides work before it runs in one.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub lanes: usize,
    pub mr: usize,
    pub nr: usize,
    pub panel: usize,
    pub terms: usize,
    pub group: usize,
}

/// The instruction sets, from least to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Arrays of four floats, no intrinsics: what any target's compiler makes of them.
    Portable,
    /// 128-bit vectors of 64-bit ARM.
    Neon,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors (F, VL, DQ, BW).
    Avx512,
    /// The same, whose micro-kernels multiply pairs of bf16 and sum in f32.
    Avx512Bf16,
    /// The same with a unit for matrices.
    Amx,
    /// A model of AVX-512-BF16, for tests on processors without it.
    #[cfg(test)]
    Bf16Model,
    /// The same with a model of the unit.
    #[cfg(test)]
    AmxModel,
}

impl Level {
    /// Whether this processor has it.
    pub fn available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::available(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::available(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => avx512_bf16::available(),
            #[cfg(target_arch = "x86_64")]
            Level::Amx => amx::available(),
            #[cfg(test)]
            Level::Bf16Model | Level::AmxModel => true,
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Every level this processor has that computes in f32.
    pub fn all() -> impl Iterator<Item = Level> {
        [Level::Portable, Level::Neon, Level::Avx2, Level::Avx512].into_iter().filter(|level| level.available())
    }

    /// Every level that tests run: what this processor has, and the models.
    #[cfg(test)]
    pub fn tested() -> impl Iterator<Item = Level> {
        Self::all().chain([Level::Avx512Bf16, Level::Amx, Level::Bf16Model, Level::AmxModel].into_iter().filter(|level| level.available()))
    }

    /// Its sizes.
    pub fn form(self) -> Form {
        struct Ask;
        impl Task<Form> for Ask {
            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> Form {
                Form { lanes: S::LANES, mr: S::MR, nr: S::NR, panel: S::PANEL, terms: S::TERMS, group: S::GROUP }
            }
        }
        run(self, Ask)
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Neon => "NEON",
            Level::Avx2 => "AVX2",
            Level::Avx512 => "AVX-512",
            Level::Avx512Bf16 => "AVX-512-BF16",
            Level::Amx => "AMX",
            #[cfg(test)]
            Level::Bf16Model => "a model of AVX-512-BF16",
            #[cfg(test)]
            Level::AmxModel => "a model of AMX",
        }
    }

    /// This level with products in bf16 if the processor has such instructions for it, else this level.
    pub fn in_bf16(self) -> Level {
        #[cfg(test)]
        if let Some([_, in_bf16]) = FORCED.get().filter(|[level, _]| *level == self) {
            return in_bf16;
        }
        let better = |level: &Level| self == Level::Avx512 && level.available();
        [Level::Amx, Level::Avx512Bf16].into_iter().find(better).unwrap_or(self)
    }

    /// This level for products of such a precision.
    pub fn of(self, precision: Precision) -> Level {
        match precision {
            Precision::Bf16 => self.in_bf16(),
            // Without a unit two products in bf16 take as long as one in f32.
            Precision::Bf16x2 if self.in_bf16() == Level::Amx => Level::Amx,
            _ => self,
        }
    }
}

#[cfg(test)]
thread_local! {
    /// A level, and that of its products in bf16.
    static FORCED: Cell<Option<[Level; 2]>> = const { Cell::new(None) };
}

/// The level that kernels called on this thread use. Read it once at a kernel's entry and hand it to the tasks: the choice a test made by
/// `with_level` belongs to the calling thread, not to the workers.
pub fn level() -> Level {
    static BEST: OnceLock<Level> = OnceLock::new();
    #[cfg(test)]
    if let Some([level, _]) = FORCED.get() {
        return level;
    }
    *BEST.get_or_init(|| Level::all().max().unwrap_or(Level::Portable))
}

/// Runs `f` with kernels restricted to `level`: how the tests reach every instruction set. Panics if the processor lacks it.
#[cfg(test)]
pub fn with_level<R>(level: Level, f: impl FnOnce() -> R) -> R {
    with_levels([level, level.in_bf16()], f)
}

/// The same with a level of its own for products in bf16: how a processor with a unit for matrices goes about, which multiplies f32s without it.
#[cfg(test)]
pub fn with_levels<R>(levels: [Level; 2], f: impl FnOnce() -> R) -> R {
    struct Restore(Option<[Level; 2]>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    assert!(levels.iter().all(|level| level.available()), "this processor lacks one of {levels:?}");
    let _restore = Restore(FORCED.replace(Some(levels)));
    f()
}

/// Runs `task` compiled for `level`.
pub fn run<Out, T: Task<Out>>(level: Level, task: T) -> Out {
    match level {
        #[cfg(target_arch = "aarch64")]
        Level::Neon => task.run(neon::Neon),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::run(task),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => avx512::run(task),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Bf16 => avx512_bf16::run(task),
        #[cfg(target_arch = "x86_64")]
        Level::Amx => amx::run(task),
        #[cfg(test)]
        Level::Bf16Model => task.run(portable::wide::Wide::new()),
        #[cfg(test)]
        Level::AmxModel => amx::model::run(task),
        // Of the others this processor has one.
        _ => task.run(portable::Portable::new()),
    }
}
