//! Each operation on each instruction set against a plain loop.

use super::*;
use crate::cpu::reference::{greatest, noise};

fn values(n: usize) -> Vec<f32> {
    noise(1, n)
}

/// Runs a task on every level.
fn on_all<T: Task + Copy>(task: T) {
    Level::tested().for_each(|level| run(level, task));
}

#[derive(Clone, Copy)]
struct Lanewise;

impl Task for Lanewise {
    fn run<S: Simd>(self, s: S) {
        let n = S::LANES;
        let (a, b) = (values(2 * n), values(3 * n)[n..].to_vec());
        let (va, vb) = (s.load(&a), s.load(&b));
        let lanes = |v: S::V| {
            let mut out = vec![0.0; n];
            s.store(v, &mut out);
            out
        };
        let expect = |v: S::V, f: &dyn Fn(f32, f32) -> f32| {
            assert_eq!(lanes(v), a[..n].iter().zip(&b).map(|(a, b)| f(*a, *b)).collect::<Vec<_>>());
        };
        expect(s.add(va, vb), &|a, b| a + b);
        expect(s.sub(va, vb), &|a, b| a - b);
        expect(s.mul(va, vb), &|a, b| a * b);
        expect(s.div(va, vb), &|a, b| a / b);
        expect(s.min(va, vb), &f32::min);
        expect(s.max(va, vb), &f32::max);
        let none = s.splat(f32::NAN);
        for of_two in [s.min(none, va), s.max(none, va)] {
            expect(of_two, &|a, _| a);
        }
        for of_two in [s.min(va, none), s.max(va, none), s.exp(none), s.sigmoid(none), s.silu(none)] {
            assert!(lanes(of_two).iter().all(|v| v.is_nan()), "{:?}", lanes(of_two));
        }
        expect(s.splat(2.0), &|_, _| 2.0);
        expect(s.zero(), &|_, _| 0.0);
        expect(s.round(s.mul(va, s.splat(9.0))), &|a, _| (a * 9.0).round_ties_even());
        for (v, (a, b)) in lanes(s.mul_add(va, vb, va)).iter().zip(a.iter().zip(&b)) {
            assert!((v - (a * b + a)).abs() <= 1e-6);
        }
        for power in [-126, -1, 0, 1, 127] {
            assert_eq!(lanes(s.exp2_integer(s.splat(power as f32))), vec![2f32.powi(power); n]);
        }
        let halves: Vec<half::bf16> = a.iter().map(|&a| half::bf16::from_f32(a)).collect();
        for part in 0..=n {
            let mut expected = vec![0.0; n];
            expected[..part].iter_mut().zip(&halves).for_each(|(e, h)| *e = h.to_f32());
            assert_eq!(lanes(s.load_bf16(&halves[..part], part)), expected);
            expected[..part].copy_from_slice(&a[..part]);
            assert_eq!(lanes(s.load_part(&a[..part], part)), expected);
            let codes: Vec<u8> = (0..n / 2).map(|i| (part * 37 + i * 91) as u8).collect();
            let table: [f32; 16] = std::array::from_fn(|i| i as f32);
            let expected: Vec<f32> = codes.iter().flat_map(|code| [f32::from(code >> 4), f32::from(code & 15)]).collect();
            assert_eq!(lanes(s.look_up(&table, &codes)), expected);
            let mut out = vec![7.0; n];
            s.store_part(va, &mut out, part);
            assert_eq!(out[..part], a[..part]);
            assert!(out[part..].iter().all(|&x| x == 7.0));
        }
    }
}

#[derive(Clone, Copy)]
struct Moves;

impl Task for Moves {
    fn run<S: Simd>(self, s: S) {
        let n = S::LANES;
        let x = values(2 * n);
        let v = [0, 1].map(|i| s.load(&x[i * n..]));
        let lanes = |v: S::V| {
            let mut out = vec![0.0; n];
            s.store(v, &mut out);
            out
        };
        let every = |from: usize, step: usize| x[from..].iter().copied().step_by(step).take(n).collect::<Vec<_>>();
        let (even, odd) = s.deinterleave2(v[0], v[1]);
        assert_eq!((lanes(even), lanes(odd)), (every(0, 2), every(1, 2)));
        let (low, high) = s.interleave2(even, odd);
        assert_eq!((lanes(low), lanes(high)), (x[..n].to_vec(), x[n..2 * n].to_vec()));

        let (src, stride) = (values(40 * n), n + 3);
        let (half, mut cells) = (n / 2, vec![7.0; n * n + 1]);
        s.transpose_half(&src, stride, &mut cells);
        let expected: Vec<f32> = (0..n * n).map(|i| src[i % half * stride + i / half]).chain([7.0]).collect();
        assert_eq!(cells, expected);
        for rows in 1..=n {
            for cols in 0..=n {
                let mut dst = vec![vec![7.0; n + 5]; cols];
                s.transpose_rows(&src, stride, rows, &mut dst.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(), 3);
                for (c, line) in dst.iter().enumerate() {
                    let expected: Vec<f32> =
                        (0..n + 5).map(|i| if (3..3 + rows).contains(&i) { src[(i - 3) * stride + c] } else { 7.0 }).collect();
                    assert_eq!(*line, expected);
                }
            }
        }
        for rows in 0..=n {
            for cols in 0..=n {
                let mut dst = vec![7.0; (n + 2) * n];
                s.transpose(&src, stride, rows, cols, &mut dst, n + 2);
                for (c, line) in dst.chunks(n + 2).enumerate() {
                    for (r, &value) in line.iter().enumerate() {
                        let inside = if r < rows { src[r * stride + c] } else { 0.0 };
                        let written = c < cols && r < n && rows > 0;
                        assert!(
                            value == if written { inside } else { 7.0 } || (rows == 0 && value == 0.0),
                            "{rows} {cols} {r} {c}: {value}"
                        );
                    }
                }
            }
        }
    }
}

/// Both ways of making cells agree, with values in f32 and in bf16.
#[derive(Clone, Copy)]
struct Pairs;

impl Task for Pairs {
    fn run<S: Simd>(self, s: S) {
        if S::TERMS == 1 {
            return;
        }
        let halves: Vec<half::bf16> = values(2 * S::LANES).into_iter().map(half::bf16::from_f32).collect();
        for n in 0..=2 * S::LANES {
            let mut part: Vec<f32> = halves[..n].iter().map(|h| h.to_f32()).collect();
            part.resize(2 * S::LANES, 0.0);
            let every = |from: usize| part[from..].iter().copied().step_by(2).collect::<Vec<f32>>();
            let bits = |v: S::V| {
                let mut out = vec![0.0; S::LANES];
                s.store(v, &mut out);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let expected = bits(s.cell(s.load(&every(0)), s.load(&every(1))));
            assert_eq!(bits(s.neighbours(s.load(&part), s.load(&part[S::LANES..]))), expected);
            if n <= S::LANES {
                let (low, high) = (&halves[..n], &halves[S::LANES..][..n]);
                assert_eq!(bits(s.cell_bf16(low, high, n)), bits(s.cell(s.load_bf16(low, n), s.load_bf16(high, n))));
            }
        }
    }
}

#[test]
fn pairs() {
    on_all(Pairs);
}

/// `len` cells of values that bf16 holds exactly.
struct Cells {
    terms: Vec<[f32; 2]>,
    cells: Vec<f32>,
}

impl Cells {
    fn new<S: Simd>(s: S, len: usize) -> Self {
        let values: Vec<f32> = values(2 * len).iter().map(|v| (v * 64.0).round() / 64.0).collect();
        let terms: Vec<[f32; 2]> = values.chunks_exact(2).map(|v| [v[0], if S::TERMS == 2 { v[1] } else { 0.0 }]).collect();
        let mut cells = vec![0.0; len];
        for (terms, cells) in terms.chunks(S::LANES).zip(cells.chunks_mut(S::LANES)) {
            let [low, high] = [0, 1].map(|i| s.load_part(&terms.iter().map(|t| t[i]).collect::<Vec<_>>(), terms.len()));
            s.store_part(s.cell(low, high), cells, terms.len());
        }
        Self { terms, cells }
    }

    /// The sum of the products of the terms.
    fn product(&self, i: usize, other: &Self, j: usize) -> f32 {
        let (a, b) = (self.terms[i], other.terms[j]);
        a[0] * b[0] + a[1] * b[1]
    }
}

#[derive(Clone, Copy)]
struct Products;

impl Task for Products {
    fn run<S: Simd>(self, s: S) {
        let (depth, ldc) = (5, S::NR + 3);
        let table: Vec<u32> = vec![3, 0, 100, 41, 8];
        for cols in (1..=S::NR).filter(|_| S::GROUP == 1) {
            for rows in 1..=S::MR {
                // Exactly as long as is needed, so that Miri or a sanitizer sees any read beyond.
                let (a, b) = (Cells::new(s, depth * S::MR), Cells::new(s, 100 + cols));
                let before = values((rows - 1) * ldc + cols);
                for (accumulate, prefetch) in [(false, false), (true, false), (false, true)] {
                    let mut c = before.clone();
                    let offsets = Offsets::new(table.clone());
                    assert_eq!(offsets.depth(), depth);
                    let (group, starts) = (Group::ONE, Starts::Table(&offsets));
                    let (a_cells, b_cells, to) = (&a.cells, &b.cells, To::Block(&mut c, ldc));
                    let t = Tile { a: a_cells, panel: 0, group, b: b_cells, starts, c: to, rows, cols, accumulate, prefetch };
                    s.tile(&mut s.unit(S::GROUP, group.size), t);
                    for (at, (&c, &before)) in c.iter().zip(&before).enumerate() {
                        let (i, j) = (at / ldc, at % ldc);
                        let sum = |j: usize| (0..depth).map(|k| a.product(k * S::MR + i, &b, table[k] as usize + j)).sum::<f32>();
                        let expected = if j >= cols { before } else { sum(j) + if accumulate { before } else { 0.0 } };
                        assert!((c - expected).abs() < 1e-5, "{rows} {cols} {i} {j}: {c} {expected}");
                    }
                }
            }
        }
        let depth = depth.next_multiple_of(S::GROUP);
        for cols in 1..=S::NR {
            let width = cols.next_multiple_of(S::LANES);
            for rows in 1..=S::PANEL {
                let (a, b) = (Cells::new(s, depth * S::PANEL), Cells::new(s, depth * width));
                let group = Group { size: S::GROUP, apart: width };
                let place =
                    |i: usize, k: usize| (i / S::MR * depth + k / S::GROUP * S::GROUP) * S::MR + i % S::MR * S::GROUP + k % S::GROUP;
                for accumulate in [false, true] {
                    let mut lines: Vec<Vec<f32>> = (0..rows).map(|_| values(3 + cols)).collect();
                    let before = lines[0].clone();
                    let mut c: Vec<&mut [f32]> = lines.iter_mut().map(Vec::as_mut_slice).collect();
                    let (panel, starts, to) = (S::MR * depth, Starts::Dense(depth / S::GROUP), To::Rows(&mut c, 3));
                    let (a_cells, b_cells, prefetch) = (&a.cells, &b.cells, false);
                    let t = Tile { a: a_cells, panel, group, b: b_cells, starts, c: to, rows, cols, accumulate, prefetch };
                    s.tile(&mut s.unit(S::GROUP, group.size), t);
                    for (i, line) in lines.iter().enumerate() {
                        for (at, (&c, &before)) in line.iter().zip(&before).enumerate() {
                            let sum = |j: usize| (0..depth).map(|k| a.product(place(i, k), &b, k * width + j)).sum::<f32>();
                            let expected = if at < 3 { before } else { sum(at - 3) + if accumulate { before } else { 0.0 } };
                            assert!((c - expected).abs() < 1e-5, "{rows} {cols} {i} {at}: {c} {expected}");
                        }
                    }
                }
            }
        }
        for vectors in 1..=2 {
            for count in 1..=S::REDUCE_ROWS {
                for length in [0, 1, 7].map(|n| n * S::GROUP) {
                    for size in sizes::<S>() {
                        let (width, ldb, group) = (vectors * S::LANES, 2 * S::LANES + 1, Group { size, apart: 23 });
                        let rows: Vec<u32> = (0..count as u32).map(|i| i * 3 % 11).collect();
                        let reach = (size - 1) * group.apart;
                        let (a, b) = (Cells::new(s, 10 + reach + length), Cells::new(s, 7 * S::GROUP * ldb));
                        let before = values((count * size - 1) * ldc + width);
                        let mut c = before.clone();
                        let (a_cells, b_cells, c_rows) = (&a.cells, &b.cells, &mut c);
                        let t = ReduceTile { a: a_cells, rows: &rows, group, b: b_cells, ldb, length, c: c_rows, ldc, vectors };
                        s.reduce_tile(&mut s.unit(group.size, S::GROUP), t);
                        for (at, (&c, &before)) in c.iter().zip(&before).enumerate() {
                            let (i, j) = (at / ldc, at % ldc);
                            let row = rows[i / size] as usize + i % size * group.apart;
                            let sum = |j: usize| (0..length).map(|p| a.product(row + p, &b, p * ldb + j)).sum::<f32>();
                            let expected = if j < width { before + sum(j) } else { before };
                            assert!((c - expected).abs() < 1e-4, "{vectors} {count} {length} {size} {i} {j}: {c} {expected}");
                        }
                    }
                }
            }
        }
    }
}

/// Of rows that lie one after the other a group of one has no distance: what it says is not asked.
#[derive(Clone, Copy)]
struct SingleRows;

impl Task for SingleRows {
    fn run<S: Simd>(self, s: S) {
        let (depth, rows, cols, ldc) = (5, S::MR, S::NR - 1, S::NR);
        let (a, b) = (Cells::new(s, depth * rows), Cells::new(s, depth * ldc));
        for apart in [0, 1, ldc] {
            let (group, starts, mut c) = (Group { size: 1, apart }, Starts::Dense(depth), vec![0.0; rows * ldc]);
            let (a_cells, b_cells, to, accumulate, prefetch) = (&a.cells, &b.cells, To::Block(&mut c, ldc), false, false);
            let t = Tile { a: a_cells, panel: 0, group, b: b_cells, starts, c: to, rows, cols, accumulate, prefetch };
            s.tile(&mut s.unit(S::GROUP, group.size), t);
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                let (c, sum) = (c[i * ldc + j], (0..depth).map(|k| a.product(k * rows + i, &b, k * ldc + j)).sum::<f32>());
                assert!((c - sum).abs() < 1e-5, "{apart} {i} {j}: {c} {sum}");
            }
        }
    }
}

#[test]
fn single_rows() {
    on_all(SingleRows);
}

/// Sizes of groups to try.
fn sizes<S: Simd>() -> Vec<usize> {
    [1, 2, 5, 16].into_iter().filter(|&size| size <= S::GROUP).collect()
}

/// [`Simd::tile`] of a unit that reads groups of rows.
#[derive(Clone, Copy)]
struct Groups;

impl Task for Groups {
    fn run<S: Simd>(self, s: S) {
        let ldc = S::NR + 3;
        let tables: [&[u32]; 2] = [&[3, 0, 100, 41], &[]];
        let sizes = sizes::<S>().into_iter().filter(|_| S::GROUP > 1);
        for (size, table) in sizes.flat_map(|size| tables.map(|table| (size, table))) {
            let group = Group { size, apart: 61 };
            for (rows, cols) in [(1_usize, 1_usize), (15, 17), (16, 48), (17, 16), (32, 33), (32, 48)] {
                let (panels, width) = (rows.div_ceil(S::MR), cols.next_multiple_of(S::LANES));
                // Exactly as long as is needed.
                let panel = table.len() * S::MR * size;
                let (a, b) = (Cells::new(s, panels * panel), Cells::new(s, 100 + (size - 1) * group.apart + width));
                let before = values((panels * S::MR - 1) * ldc + width);
                for accumulate in [false, true] {
                    let mut c = before.clone();
                    let offsets = Offsets::new(table.to_vec());
                    let (a_cells, b_cells, to, prefetch) = (&a.cells, &b.cells, To::Block(&mut c, ldc), false);
                    let starts = Starts::Table(&offsets);
                    let t = Tile { a: a_cells, panel, group, b: b_cells, starts, c: to, rows, cols, accumulate, prefetch };
                    s.tile(&mut s.unit(S::GROUP, group.size), t);
                    for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                        let left = |g: usize, k: usize| i / S::MR * panel + (g * S::MR + i % S::MR) * size + k;
                        let right = |g: usize, k: usize| table[g] as usize + k * group.apart + j;
                        let terms = (0..table.len()).flat_map(|g| (0..size).map(move |k| (g, k)));
                        let sum = terms.map(|(g, k)| a.product(left(g, k), &b, right(g, k))).sum::<f32>();
                        let expected = sum + if accumulate { before[i * ldc + j] } else { 0.0 };
                        let c = c[i * ldc + j];
                        assert!((c - expected).abs() < 1e-4, "{size} {rows} {cols} {i} {j}: {c} {expected}");
                    }
                    for (at, (c, before)) in c.iter().zip(&before).enumerate() {
                        assert!(at % ldc < width || c.to_bits() == before.to_bits(), "{size} {rows} {cols}: {at} changed");
                    }
                }
            }
        }
    }
}

#[test]
fn groups() {
    on_all(Groups);
}

#[test]
fn groups_are_few_and_even() {
    let of = |rows| Group::size_of(rows, 16);
    assert_eq!([0, 1, 2, 8, 16, 17, 24, 40, 64].map(of), [1, 1, 2, 8, 16, 9, 12, 14, 16]);
    assert_eq!([1, 40].map(|rows| Group::size_of(rows, 1)), [1, 1]);
}

#[derive(Clone, Copy)]
struct Silu;

impl Task for Silu {
    fn run<S: Simd>(self, s: S) {
        let mut worst: f64 = 0.0;
        for i in (-20_000..20_000).step_by(if cfg!(miri) { 401 } else { 1 }) {
            let x = i as f32 * 1e-3;
            let mut out = vec![0.0; S::LANES];
            s.store(s.silu(s.splat(x)), &mut out);
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            if exact != 0.0 {
                worst = greatest([worst, ((f64::from(out[0]) - exact) / exact).abs()].into_iter());
            }
        }
        assert!(worst < 4e-7, "relative error {worst}");
        for (x, expected) in [(1000.0, 1000.0), (-1000.0, 0.0), (0.0, 0.0), (f32::INFINITY, f32::INFINITY)] {
            let mut out = vec![0.0; S::LANES];
            s.store(s.silu(s.splat(x)), &mut out);
            assert!((out[0] - expected).abs() < 1e-30 || out[0] == expected, "{x}: {}", out[0]);
        }
        let mut out = vec![0.0; S::LANES];
        s.store(s.silu(s.splat(f32::NAN)), &mut out);
        assert!(out[0].is_nan());
    }
}

#[test]
fn lanewise_operations() {
    on_all(Lanewise);
}

#[test]
fn moves() {
    on_all(Moves);
}

#[test]
fn products() {
    on_all(Products);
}

#[test]
fn silu() {
    on_all(Silu);
}

#[test]
fn level_is_restored() {
    let best = level();
    with_level(Level::Portable, || assert_eq!(level(), Level::Portable));
    assert_eq!(level(), best);
}
