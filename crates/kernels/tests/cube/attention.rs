//! Attention in tiles on the device against the composed one on the CPU in f64: results, gradients, launches.

use crate::launches::{assert_ours, in_use, most_in_use};
use crate::support::{Numbers, cases, counted, cube, data, device, flex64, numbers, on_each_device, on_swiftshader, pattern, relative};
use bellows_kernels::attention::AttentionOps;
use bellows_kernels::cube::shared_memory_works;
use burn::backend::ops::IntTensorOps;
use burn::backend::{Backend, f16};
use burn::tensor::{DType, TensorData};
use burn_cubecl::CubeBackend;
use burn_flex::Flex;
use proptest::prelude::*;

/// Sizes of a problem, and the documents of a row.
#[derive(Clone, Copy, Debug)]
struct Case {
    b: usize,
    key_heads: usize,
    group: usize,
    queries: usize,
    past: usize,
    d: usize,
    documents: usize,
    /// The numbers of a key are not side by side.
    turned: bool,
}

impl Case {
    /// y and the gradients of q, k and v, of numbers that f16 holds.
    fn all<B: AttentionOps>(
        &self,
        upload: impl Fn(TensorData) -> B::FloatTensorPrimitive,
        device: &B::Device,
    ) -> Vec<B::FloatTensorPrimitive> {
        let &Self { b, key_heads, group, queries, past, d, documents, turned } = self;
        let keys = past + queries;
        let made = |stream, shape: [usize; 4]| {
            let values = pattern(stream, shape.iter().product()).into_iter().map(|v| f16::from_f32(2.0 * v).to_f32()).collect::<Vec<_>>();
            upload(TensorData::new(values, shape))
        };
        // An image for all, and the heads of a token side by side, as products leave them.
        let for_all = |stream, heads, lines| B::float_expand(made(stream, [1, heads, lines, d]), [b, heads, lines, d].into());
        let by_tokens = |stream, heads, lines| B::float_swap_dims(made(stream, [b, lines, heads, d]), 1, 2);
        let of_keys = |stream, heads, lines| match turned {
            true => B::float_swap_dims(made(stream, [b, heads, d, lines]), 2, 3),
            false => made(stream, [b, heads, lines, d]),
        };
        let length = keys.div_ceil(documents);
        let first: Vec<i32> =
            (0..b * queries).map(|i| ((past + i % queries) / (length + i / queries) * (length + i / queries)) as i32).collect();
        let first = || B::int_from_data(TensorData::new(first.clone(), [b, queries]), device);
        let (q, k, v) = (|| for_all(1, key_heads * group, queries), || of_keys(2, key_heads, keys), || by_tokens(3, key_heads, keys));
        let (y, sums) = B::attend(q(), k(), v(), first(), 0.3);
        let (dq, dk, dv) = B::attend_grad(q(), k(), v(), first(), y.clone(), sums, by_tokens(4, key_heads * group, queries), 0.3);
        vec![y, dq, dk, dv]
    }

    /// The largest error, relative to the largest number of each.
    fn error(&self, upload: impl Fn(TensorData) -> burn_cubecl::tensor::CubeTensor) -> f32 {
        let ours = self.all::<CubeBackend>(upload, &device());
        let theirs = self.all::<Flex>(flex64, &Default::default());
        ours.into_iter().zip(theirs).fold(0.0f32, |most, (ours, theirs)| most.max(relative(&numbers(ours), &theirs.into_f32())))
    }
}

const PACKED: Case = Case { b: 2, key_heads: 2, group: 3, queries: 70, past: 0, d: 64, documents: 3, turned: false };
/// So many blocks of keys, 258, that a workgroup has all three query heads of a key head; and 172, where one has two of them, and another the third.
const MANY: Case = Case { b: 129, queries: 20, d: 16, ..PACKED };
const FEWER: Case = Case { b: 43, queries: 40, d: 16, ..PACKED };

#[test]
fn agrees_with_the_cpu() {
    if !on_swiftshader("attention::agrees_with_the_cpu") {
        return;
    }
    let check = |case: Case| {
        let error = case.error(cube);
        assert!(error < 2e-5, "{case:?}: {error:.1e}");
    };
    for (queries, past, d) in [(1, 0, 20), (1, 40, 16), (32, 0, 128), (33, 31, 20)] {
        check(Case { queries, past, d, turned: true, ..PACKED });
    }
    for case in [PACKED, FEWER, MANY] {
        check(case);
    }
    let sizes = (1usize..3, 1usize..3, 1usize..4, 1usize..90, 0usize..40, prop::sample::select(vec![16usize, 20, 64]), 1usize..5);
    cases(
        12,
        sizes.prop_map(|(b, key_heads, group, queries, past, d, documents)| Case {
            b,
            key_heads,
            group,
            queries,
            past,
            d,
            documents,
            turned: false,
        }),
        check,
    );
}

#[test]
fn in_half_precision_too() {
    if !on_each_device("attention::in_half_precision_too") || !CubeBackend::supports_dtype(&device(), DType::F16) {
        return;
    }
    for case in [PACKED, Case { d: PACKED.d, ..MANY }] {
        let error = case.error(|data| cube(data.convert::<f16>()));
        assert!(error < 3.0 / 2048.0, "{case:?}: {error:.1e}");
    }
}

/// A number that is none is seen in the results of the queries that meet it, and in no others.
#[test]
fn no_number_is_seen_in_the_result() {
    if !on_each_device("attention::no_number_is_seen_in_the_result") {
        return;
    }
    const LINES: usize = 40;
    const D: usize = 16;
    let made = |stream, bad: Option<usize>| {
        let mut values = pattern(stream, LINES * D);
        if let Some(line) = bad {
            values[line * D + 3] = f32::NAN;
        }
        cube(TensorData::new(values, [1, 1, LINES, D]))
    };
    for (query, key, bad) in [(Some(7), None, 7..8), (None, Some(35), 35..LINES)] {
        let first = CubeBackend::int_from_data(TensorData::new(vec![0i32; LINES], [1, LINES]), &device());
        let y = numbers(CubeBackend::attend(made(1, query), made(2, key), made(3, None), first, 0.3).0);
        for (line, y) in y.chunks(D).enumerate() {
            assert!(y.iter().all(|y| y.is_finite() != bad.contains(&line)), "line {line}: {y:?}");
        }
    }
}

/// One launch forward, three backward, and one that adds up the gradients of keys where few have them in parts; the same bits every time.
#[test]
fn launches_few_kernels_and_repeats() {
    if !on_swiftshader("attention::launches_few_kernels_and_repeats") {
        return;
    }
    // A device is asked once, by a launch.
    assert!(shared_memory_works(&device()));
    for (case, parts) in [(PACKED, 3), (FEWER, 2), (MANY, 1)] {
        let run = || case.all::<CubeBackend>(cube, &device());
        let (first, counted) = counted(run);
        let kernels = ["attend_kernel", "rows_kernel", "query_grad_kernel", "key_grad_kernel"].map(|name| (name, 1));
        assert_ours(&counted.launches, &[&kernels[..], &[("key_grad_sum_kernel", usize::from(parts > 1))]].concat());
        assert!(first.into_iter().map(numbers).eq(run().into_iter().map(numbers)), "{case:?}");

        // Of queries their own and dy, of keys and values their own and a part each.
        let moved = case.b * case.key_heads * case.queries * case.d * (2 * case.group + 2 + 2 * parts);
        assert_eq!(counted.work["attention, gradients of keys and values"].bytes, 4 * moved as u64, "{case:?}");
    }
}

/// A query sees the keys up to its own, and products are counted of no others.
#[test]
fn pairs_that_are_seen_are_counted() {
    if !on_swiftshader("attention::pairs_that_are_seen_are_counted") {
        return;
    }
    let counted = counted(|| Case { past: 5, documents: 1, ..PACKED }.all::<CubeBackend>(cube, &device())).1;
    let pairs: u64 = (1..=70).map(|query| 5 + query).sum();
    let of_heads = [("attention", 2), ("attention, gradient of queries", 3), ("attention, gradients of keys and values", 4)];
    for (name, products) in of_heads {
        assert_eq!(counted.work[name].flops, products * 2 * (2 * 6) * 64 * pairs, "{name}");
    }
}

/// Beside operands and results there are three numbers to a row in memory, and nothing of the size of the scores, in both passes.
#[test]
fn nothing_of_all_pairs_is_in_memory() {
    const HEADS: usize = 2;
    const S: usize = 512;
    const D: usize = 16;
    /// Bytes of a matrix of all pairs of a head.
    const SCORES: u64 = (4 * S * S) as u64;
    if !on_swiftshader("attention::nothing_of_all_pairs_is_in_memory") {
        return;
    }
    // A device is asked once, with tensors of its own.
    assert!(shared_memory_works(&device()));
    let [q, k, v, dy] = [1, 2, 3, 4].map(|stream| cube(data(stream, [1, HEADS, S, D])));
    let first = CubeBackend::int_from_data(TensorData::new(vec![0i32; S], [1, S]), &device());
    let operands = in_use(&device().client());
    let most = most_in_use(|| {
        let (y, logs) = CubeBackend::attend(q.clone(), k.clone(), v.clone(), first.clone(), 0.3);
        CubeBackend::attend_grad(q.clone(), k.clone(), v.clone(), first.clone(), y, logs, dy.clone(), 0.3)
    });
    let results = (4 * 4 * HEADS * S * D) as u64;
    eprintln!("> {operands} B of operands, {results} B of results, {most} B in use, {SCORES} B of a head's scores");
    assert!(most.abs_diff(operands + results) < SCORES / 16, "{most} B");
}
