//! What sets of instructions with one register a vector have in common: macros over each one's intrinsics.

/// What [`prefetch`] is for, as x86 numbers it: the first-level cache, the second-level one, or to write (PREFETCHW, as old as AVX2).
pub(super) const FIRST: i32 = 3;
pub(super) const SECOND: i32 = 2;
pub(super) const WRITE: i32 = 7;

/// Asks for the cache line that holds a value. The pointer may point anywhere.
#[inline(always)]
pub(super) fn prefetch<const TO: i32>(p: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which touches no memory that the program can observe.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<TO>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the same.
    unsafe {
        use std::arch::asm;
        match TO {
            FIRST => asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)),
            SECOND => asm!("prfm pldl2keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)),
            _ => asm!("prfm pstl1keep, [{}]", in(reg) p, options(nostack, preserves_flags, readonly)),
        }
    }
}

/// Asks for all cache lines that these values are on: a row begins anywhere in its first one.
#[inline(always)]
pub(super) fn prefetch_lines<const TO: i32, T>(src: &[T]) {
    let (start, bytes) = (src.as_ptr().cast::<u8>(), size_of_val(src));
    (0..bytes).step_by(64).chain(bytes.checked_sub(1)).for_each(|at| prefetch::<TO>(start.wrapping_add(at).cast()));
}

/// [`Simd`] of a set of instructions, given its features, its masks, the numbers of rows of its reductions, and what it says of cells. What the
/// micro-kernels are made of are constants and functions of its module: `L`, `MR`, `MASKED`, `zero`, `load`, `load_part`, `store`, `store_part`, `add`,
/// `mask`, and the product of cells.
macro_rules! micro_kernels {
    ($set:ty, $features:literal, $mask:ty, [$($sizes:literal)*] $most:literal $(, $cells:ident)?) => {
        /// [`Simd::tile`] over `N` vectors of columns; with `PART` the last of them covers only the lanes of `last`, and unless right-hand rows are
        /// `WHOLE` vectors, only those are read of it. (Of more than `MASKED` vectors all are.)
        ///
        /// # Safety
        /// The caller has run [`Tile::check`] for `MR` and `L`, `starts` are the tile's, `cols` is as `N`, `PART` and `last` say, and if `N` is more
        /// than `MASKED` every row of `b` has `N` whole vectors.
        #[target_feature(enable = $features)]
        unsafe fn tile<const N: usize, const PART: bool, const PREFETCH: bool, const WHOLE: bool>(
            mut t: Tile<'_, '_>,
            starts: impl Iterator<Item = usize>,
            last: $mask,
        ) {
            if WHOLE {
                for c in t.c.pointers::<MR>() {
                    // By its end: the line that a vector begins in is mostly that which the one before it ends in.
                    for j in 1..=N {
                        prefetch::<WRITE>(c.wrapping_add(j * L - 1));
                    }
                }
            }
            let mut acc = [[zero(); N]; MR];
            let mut a = t.a.as_ptr();
            for start in starts {
                // SAFETY: a advances MR for each start and holds MR * depth values; start + cols <= b.len().
                unsafe {
                    let b = t.b.as_ptr().add(start);
                    if PREFETCH {
                        for j in (0..N * L).step_by(16) {
                            prefetch::<FIRST>(b.wrapping_add(N * L + j + 15));
                        }
                    }
                    let mut bv = [zero(); N];
                    for (j, v) in bv.iter_mut().enumerate() {
                        let part = PART && !WHOLE && N <= MASKED && j + 1 == N;
                        *v = if part { load_part(b.add(j * L), last) } else { load(b.add(j * L)) };
                    }
                    for (i, row) in acc.iter_mut().enumerate() {
                        multiply_row(a.add(i), bv, row);
                    }
                    a = a.add(MR);
                }
            }
            let c = t.c.pointers::<MR>();
            for (i, row) in acc.iter().enumerate() {
                if i < t.rows {
                    for (j, &v) in row.iter().enumerate() {
                        // SAFETY: i < rows and the lanes read and written are < cols: inside c by Tile::check.
                        unsafe {
                            let p = c[i].add(j * L);
                            if PART && j + 1 == N {
                                store_part(p, last, if t.accumulate { add(load_part(p, last), v) } else { v });
                            } else {
                                store(p, if t.accumulate { add(load(p), v) } else { v });
                            }
                        }
                    }
                }
            }
        }

        /// [`Simd::reduce_tile`] of `R` rows and `N` vectors.
        ///
        /// # Safety
        /// The caller has run [`ReduceTile::check`], and `R`, `N` are the tile's.
        #[target_feature(enable = $features)]
        unsafe fn reduce<const R: usize, const N: usize>(t: ReduceTile<'_>) {
            let mut acc = [[zero(); N]; R];
            let mut a = [t.a.as_ptr(); R];
            for (i, a) in a.iter_mut().enumerate() {
                // SAFETY: rows[i] + length <= a.len().
                *a = unsafe { a.add(t.rows[i] as usize) };
            }
            let mut b = t.b.as_ptr();
            for p in 0..t.length {
                // SAFETY: p < length, and row p of b holds N vectors. (The last wrapping_add may leave b; it is not followed.)
                unsafe {
                    let mut bv = [zero(); N];
                    for (j, v) in bv.iter_mut().enumerate() {
                        *v = load(b.add(j * L));
                    }
                    for (row, a) in acc.iter_mut().zip(a) {
                        multiply_row(a.add(p), bv, row);
                    }
                    b = b.wrapping_add(t.ldb);
                }
            }
            let c = t.c.as_mut_ptr();
            for (i, row) in acc.iter().enumerate() {
                for (j, &v) in row.iter().enumerate() {
                    // SAFETY: R rows of N vectors lie in c.
                    unsafe {
                        let p = c.add(i * t.ldc + j * L);
                        store(p, add(load(p), v));
                    }
                }
            }
        }

        impl Simd for $set {
            const MR: usize = MR;
            const REDUCE_ROWS: usize = $most;
            type Unit = ();

            $($cells!();)?

            #[inline(always)]
            fn unit(self, _: usize, _: usize) {}
            #[inline(always)]
            fn tile(self, _: &mut (), mut t: Tile<'_, '_>) {
                t.check(MR, L);
                let vectors = t.cols.div_ceil(L);
                let rest = t.cols - (vectors - 1) * L;
                // SAFETY: `self` proves the features, the bounds were checked, and cols is (vectors - 1) * L + rest with 1 <= rest <= L.
                unsafe {
                    let last = mask(rest);
                    match t.starts {
                        Starts::Dense(depth) => match vectors {
                            1 => tile::<1, true, false, true>(t, (0..depth).map(|k| k * L), last),
                            2 => tile::<2, true, false, true>(t, (0..depth).map(|k| k * 2 * L), last),
                            _ => tile::<3, true, false, true>(t, (0..depth).map(|k| k * 3 * L), last),
                        },
                        Starts::Table(offsets) if vectors > MASKED && offsets.max as usize + vectors * L > t.b.len() => {
                            // The last columns of the last row of b: too few for so many whole vectors.
                            self.tile(&mut (), t.behind((vectors - 1) * L));
                            t.cols = (vectors - 1) * L;
                            self.tile(&mut (), t);
                        }
                        Starts::Table(offsets) => {
                            let starts = offsets.table.iter().map(|&start| start as usize);
                            match (vectors, rest < L, t.prefetch) {
                                (1, false, _) => tile::<1, false, false, false>(t, starts, last),
                                (1, true, _) => tile::<1, true, false, false>(t, starts, last),
                                (2, false, _) => tile::<2, false, false, false>(t, starts, last),
                                (2, true, _) => tile::<2, true, false, false>(t, starts, last),
                                (_, false, false) => tile::<3, false, false, false>(t, starts, last),
                                (_, false, true) => tile::<3, false, true, false>(t, starts, last),
                                (_, true, _) => tile::<3, true, false, false>(t, starts, last),
                            }
                        }
                    }
                }
            }
            #[inline(always)]
            fn reduce_tile(self, _: &mut (), t: ReduceTile<'_>) {
                t.check(L, $most, 1);
                // SAFETY: `self` proves the features, the bounds were checked, and each arm's R and N are those of the tile.
                unsafe { with_sizes!((t.rows.len(), t.vectors), [$($sizes)*] $most, |R, N| reduce::<R, N>(t)) }
            }
        }
    };
}

/// Methods that may use what `self` proves: the features, and what they are given where they assert it. (A closure in them would not have the features.)
macro_rules! proved {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $out:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($argument: $type),*) $(-> $out)? {
                // SAFETY: `self` proves the features.
                unsafe { $body }
            }
        )*
    };
}

/// Methods of [`Vectors`] that are an intrinsic each, and those that move vectors, over functions of the module.
macro_rules! vectors {
    ($($name:ident($($argument:ident),*) = $intrinsic:expr;)*) => {
        const LANES: usize = L;

        proved! {
            $(fn $name($($argument: Self::V),*) -> Self::V {
                $intrinsic($($argument),*)
            })*
            fn splat(x: f32) -> Self::V {
                splat(x)
            }
            fn load(src: &[f32]) -> Self::V {
                assert!(src.len() >= L);
                load(src.as_ptr())
            }
            fn load_part(src: &[f32], n: usize) -> Self::V {
                assert!(n <= L && n <= src.len());
                load_part(src.as_ptr(), mask(n))
            }
            fn store(v: Self::V, dst: &mut [f32]) {
                assert!(dst.len() >= L);
                store(dst.as_mut_ptr(), v)
            }
            fn store_part(v: Self::V, dst: &mut [f32], n: usize) {
                assert!(n <= L && n <= dst.len());
                store_part(dst.as_mut_ptr(), mask(n), v)
            }
            fn transpose(src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
                transpose(src, src_stride, rows, cols, dst, dst_stride)
            }
            fn transpose_rows(src: &[f32], src_stride: usize, rows: usize, dst: &mut [&mut [f32]], at: usize) {
                transpose_rows(src, src_stride, rows, dst, at)
            }
        }

        #[inline(always)]
        fn prefetch<T>(self, src: &[T], write: bool) {
            if write { prefetch_lines::<WRITE, T>(src) } else { prefetch_lines::<SECOND, T>(src) }
        }
    };
}

/// [`Vectors::transpose`] and [`Vectors::transpose_rows`] from the transpose of a square of vectors.
macro_rules! transposes {
    ($features:literal, $square:ident, [$low:expr, $high:expr]) => {
        transposes!($features, $square);

        /// [`Vectors::transpose_half`]: two squares beside each other are one of which a column is a half of two.
        #[target_feature(enable = $features)]
        fn transpose_half(src: &[f32], src_stride: usize, dst: &mut [f32]) {
            assert!(end(L / 2, src_stride, 2 * L) <= src.len() && L * L <= dst.len());
            let mut r = [zero(); L];
            for (i, v) in r.iter_mut().enumerate() {
                // SAFETY: L / 2 rows of 2 L lie in src.
                *v = unsafe { load(src.as_ptr().add(i % (L / 2) * src_stride + i / (L / 2) * L)) };
            }
            for (i, pair) in $square(r).chunks_exact(2).enumerate() {
                // SAFETY: L vectors lie in dst.
                unsafe {
                    store(dst.as_mut_ptr().add(i * L), $low(pair[0], pair[1]));
                    store(dst.as_mut_ptr().add((i + L / 2) * L), $high(pair[0], pair[1]));
                }
            }
        }
    };
    ($features:literal, $square:ident) => {
        #[target_feature(enable = $features)]
        fn transpose(src: &[f32], src_stride: usize, rows: usize, cols: usize, dst: &mut [f32], dst_stride: usize) {
            if rows == 0 || cols == 0 {
                return;
            }
            assert!(rows <= L && cols <= L);
            assert!(end(rows, src_stride, cols) <= src.len() && end(cols, dst_stride, L) <= dst.len());
            let mut r = [zero(); L];
            if (rows, cols) == (L, L) {
                // The usual case, without twice L branches.
                for (i, v) in r.iter_mut().enumerate() {
                    // SAFETY: L rows of L lie in src.
                    *v = unsafe { load(src.as_ptr().add(i * src_stride)) };
                }
                for (i, &v) in $square(r).iter().enumerate() {
                    // SAFETY: L rows of L lie in dst.
                    unsafe { store(dst.as_mut_ptr().add(i * dst_stride), v) };
                }
                return;
            }
            let columns = mask(cols);
            for (i, v) in r.iter_mut().enumerate().take(rows) {
                // SAFETY: row i < rows and the lanes below cols lie in src.
                *v = unsafe { load_part(src.as_ptr().add(i * src_stride), columns) };
            }
            for (i, &v) in $square(r).iter().enumerate().take(cols) {
                // SAFETY: row i < cols of dst holds L values.
                unsafe { store(dst.as_mut_ptr().add(i * dst_stride), v) };
            }
        }

        #[target_feature(enable = $features)]
        fn transpose_rows(src: &[f32], src_stride: usize, rows: usize, dst: &mut [&mut [f32]], at: usize) {
            assert!((1..=L).contains(&rows) && end(rows, src_stride, L) <= src.len());
            let mut r = [zero(); L];
            for (i, v) in r.iter_mut().enumerate().take(rows) {
                // SAFETY: row i < rows of src holds L values.
                *v = unsafe { load(src.as_ptr().add(i * src_stride)) };
            }
            for (v, dst) in $square(r).into_iter().zip(dst) {
                let dst = &mut dst[at..at + rows];
                // SAFETY: the mask selects the values of the slice.
                unsafe { store_part(dst.as_mut_ptr(), mask(rows), v) };
            }
        }
    };
}

/// The first half of the transpose of a square of vectors: pairs of rows, then pairs of pairs, within 128-bit lanes.
#[cfg(target_arch = "x86_64")]
macro_rules! transposed_lanes {
    ($rows:ident, $low:ident, $high:ident, $shuffle:ident) => {{
        let mut u = $rows;
        for q in 0..L / 4 {
            let [a, b, c, d] = [$rows[4 * q], $rows[4 * q + 1], $rows[4 * q + 2], $rows[4 * q + 3]];
            let (low0, high0, low1, high1) = ($low(a, b), $high(a, b), $low(c, d), $high(c, d));
            u[4 * q] = $shuffle::<0x44>(low0, low1);
            u[4 * q + 1] = $shuffle::<0xEE>(low0, low1);
            u[4 * q + 2] = $shuffle::<0x44>(high0, high1);
            u[4 * q + 3] = $shuffle::<0xEE>(high0, high1);
        }
        u
    }};
}

/// How a module with a set of instructions is entered: whether the processor has these features, and a task in a function compiled for them. Where more
/// has to be asked, the module says itself what is `available`.
#[cfg(target_arch = "x86_64")]
macro_rules! entrance {
    ([$($feature:tt)*], $proof:expr) => {
        pub fn available() -> bool {
            $(is_x86_feature_detected!($feature))&&*
        }
        entrance!(once available [$($feature)*], $proof);
    };
    (once available [$($feature:tt)*], $proof:expr) => {
        pub fn run<Out, T: Task<Out>>(task: T) -> Out {
            #[target_feature($(enable = $feature),*)]
            fn inner<Out, T: Task<Out>, S: Simd>(task: T, simd: S) -> Out {
                task.run(simd)
            }
            assert!(available());
            // SAFETY: what the proof stands for was found on the line above.
            unsafe { inner(task, $proof) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub(super) use {entrance, transposed_lanes};
pub(super) use {micro_kernels, proved, transposes, vectors};
