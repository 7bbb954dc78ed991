//! All three passes against sums in f64, for shapes of every kind, on every instruction set.

use super::super::reference::{Case, any_geometry, noise, shapes, widen};
use super::super::simd::{self, Level};
use super::super::{ConvShape, Epilogue, Lowering, Precision, Prepared, data_grad, forward, weight_grad};
use super::view::{Source, Tap, View};
use super::weight_grad_precision;
use proptest::prelude::*;

/// Checks the three passes on all levels, in f32 and where there is an instruction for it in bf16, of which only the factors are rounded;
/// every result is computed twice and must repeat to the bit.
fn check(s: &ConvShape, silu: bool) -> Result<(), TestCaseError> {
    let case = Case::new(*s, 1);
    let Case { x, w, dy, bias, .. } = &case;
    let (exact, rounded) = (case.reference(), case.rounded().reference());
    // The error of a chain of K additions grows as sqrt(K) relative to the rms of the sums.
    let limit = |k: usize| 6e-6 * (k as f64 / 300.0).sqrt().max(1.0);
    let asked = Level::all().filter(|level| level.in_bf16() != *level).map(|level| (level, Precision::Bf16));
    for (level, precision) in asked.chain(Level::tested().map(|level| (level, Precision::F32))) {
        let is_rounded = precision == Precision::Bf16 || level > Level::Avx512;
        let [y, dx, dw] = if is_rounded { &rounded } else { &exact };
        let dw = if weight_grad_precision(s, precision) == precision { dw } else { &exact[2] };
        let run = |f: &dyn Fn(&mut [f32]), len: usize| {
            let (mut a, mut b) = (vec![f32::NAN; len], vec![f32::NAN; len]);
            simd::with_level(level, || {
                f(&mut a);
                f(&mut b);
            });
            assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{level:?} {s:?}: not repeatable");
            a
        };
        let forward = |epilogue, out: &mut [f32]| forward(s, Lowering::Implicit, precision, &[x], w, epilogue, out);
        let k = s.kernel[0] * s.kernel[1];
        let e = y.error(&run(&|out| forward(Epilogue::default(), out), dy.len()));
        prop_assert!(e <= limit(k * s.in_channels), "forward {level:?} {precision:?} {s:?}: {e}");
        let epilogue = Epilogue { bias: Some(bias), silu };
        let finished = run(&|out| forward(epilogue, out), dy.len());
        let e = y.finish(s, &widen(bias), silu).error(&finished);
        prop_assert!(e <= limit(k * s.in_channels), "epilogue {level:?} {precision:?} {s:?}: {e}");
        // Prepared weights know of no image and no batch.
        let weights =
            simd::with_level(level, || Prepared::new(&ConvShape { batch: 0, height: 0, width: 0, ..*s }, Lowering::Implicit, precision, w));
        let mut prepared = vec![f32::NAN; dy.len()];
        weights.forward(s, &[x], epilogue, &mut prepared);
        prop_assert!(prepared.iter().zip(&finished).all(|(a, b)| a.to_bits() == b.to_bits()), "prepared {level:?} {precision:?} {s:?}");
        let e = dx.error(&run(&|out| data_grad(s, Lowering::Implicit, precision, dy, w, &mut [out]), x.len()));
        prop_assert!(e <= limit(k * s.out_channels), "data_grad {level:?} {precision:?} {s:?}: {e}");
        let e = dw.error(&run(&|out| weight_grad(s, Lowering::Implicit, precision, &[x], dy, out), w.len()));
        prop_assert!(e <= limit(s.batch * s.out_height() * s.out_width()), "weight_grad {level:?} {precision:?} {s:?}: {e}");
    }
    Ok(())
}

/// A source of more values than 32 bits count is packed a strip at a time, where a smaller one serves itself.
#[test]
fn sources_beyond_32_bits_are_packed() {
    for (channels, direct) in [(40, true), (400, false)] {
        let source = Source { channels, height: 3504, width: 3504 };
        let tap = Tap { row: 0, col: 0, weight: 0 };
        let mut view = View::new(source, [[1, 1]; 2], [3504, 3504], &[tap], 160, true);
        assert_eq!(view.direct, direct);
        view.set_strip(48);
        assert_eq!(view.offset_table(&[tap], 1).len(), channels);
    }
}

/// Long sums are formed in blocks: their error is that of a block and of the sum of the blocks, not of one chain, which for these would be
/// ten times as large.
#[test]
#[cfg_attr(miri, ignore = "slow there")]
fn long_sums() {
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let run = |level, len, f: &(dyn Fn(&mut [f32]) + Sync)| {
        let mut out = vec![f32::NAN; len];
        alone.install(|| simd::with_level(level, || f(&mut out)));
        out
    };
    let stem = shape(4, [3, 16], [320, 320], [3, 3], [2, 2], [1, 1]);
    let pointwise = shape(2, [4, 8], [200, 200], [1, 1], [1, 1], [0, 0]);
    let deep = shape(1, [600, 8], [12, 12], [3, 3], [1, 1], [1, 1]);
    let cases = [
        (stem, 0.0, 4e-6, 7e-6),
        (stem, 0.3, 1e-5, 1.5e-4),
        (pointwise, 0.0, 4e-6, 4e-6),
        (deep, 0.0, 2e-6, 4e-6),
        (deep, 0.3, 1e-5, 1e-5),
    ];
    for (s, mean, of_output, of_weights) in cases {
        let mut case = Case::new(s, 1);
        for tensor in [&mut case.x, &mut case.w, &mut case.dy] {
            tensor.iter_mut().for_each(|v| *v += mean);
        }
        let [y, _, dw] = case.reference();
        let Case { x, w, dy, .. } = &case;
        for level in Level::all() {
            let forward = |out: &mut [f32]| forward(&s, Lowering::Implicit, Precision::F32, &[x], w, Epilogue::default(), out);
            let weight_grad = |out: &mut [f32]| weight_grad(&s, Lowering::Implicit, Precision::F32, &[x], dy, out);
            let errors = [y.error(&run(level, dy.len(), &forward)), dw.error(&run(level, w.len(), &weight_grad))];
            assert!(errors[0] <= of_output && errors[1] <= of_weights, "{level:?}, mean {mean}, {s:?}: {errors:?}");
        }
    }
}

fn shape(
    batch: usize,
    [ci, co]: [usize; 2],
    [height, width]: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> ConvShape {
    ConvShape { batch, in_channels: ci, out_channels: co, height, width, kernel, stride, padding }
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and random_shapes runs the same code")]
fn layers_of_a_detector() {
    let shapes = [
        shape(2, [3, 16], [64, 64], [3, 3], [2, 2], [1, 1]),
        shape(1, [16, 32], [40, 40], [3, 3], [2, 2], [1, 1]),
        shape(1, [64, 5], [20, 20], [1, 1], [1, 1], [0, 0]),
        shape(1, [48, 32], [40, 40], [1, 1], [1, 1], [0, 0]),
        shape(1, [130, 33], [20, 20], [1, 1], [1, 1], [0, 0]),
        shape(1, [64, 128], [20, 20], [3, 3], [2, 2], [1, 1]),
        shape(4, [16, 16], [40, 40], [3, 3], [1, 1], [1, 1]),
        shape(1, [32, 64], [20, 20], [3, 3], [1, 1], [1, 1]),
        shape(1, [130, 130], [70, 70], [1, 1], [1, 1], [0, 0]),
        shape(1, [130, 130], [70, 70], [3, 3], [2, 2], [1, 1]),
    ];
    for s in shapes {
        check(&s, true).unwrap();
    }
}

#[test]
fn edges() {
    let shapes = [
        shape(1, [1, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
        shape(1, [1, 1], [1, 1], [3, 3], [1, 1], [1, 1]),
        // Rows and columns that no output reads, phases without taps.
        shape(2, [3, 4], [9, 10], [1, 1], [2, 2], [0, 0]),
        shape(2, [3, 4], [9, 10], [1, 1], [2, 3], [1, 1]),
        shape(1, [2, 3], [11, 13], [2, 3], [4, 5], [0, 2]),
        // More padding than image.
        shape(1, [2, 3], [2, 1], [3, 3], [1, 1], [3, 4]),
        shape(1, [2, 3], [1, 2], [5, 5], [3, 3], [4, 4]),
        shape(1, [2, 3], [4, 4], [1, 1], [1, 1], [2, 2]),
        // No output at all, then exactly one.
        shape(1, [2, 3], [2, 2], [3, 3], [1, 1], [0, 0]),
        shape(1, [2, 3], [3, 3], [3, 3], [2, 2], [0, 0]),
        shape(0, [2, 3], [3, 3], [3, 3], [1, 1], [0, 0]),
        shape(1, [3, 2], [8, 8], [6, 6], [2, 2], [2, 2]),
        shape(1, [1, 40], [70, 3], [7, 1], [1, 1], [3, 0]),
        shape(1, [40, 1], [3, 70], [1, 17], [1, 2], [0, 8]),
    ];
    // Miri has no time for the last two.
    for s in shapes.into_iter().filter(|s| !cfg!(miri) || s.macs() < 5000) {
        check(&s, false).unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "slow there, and random_shapes runs the same code")]
fn any_number_of_threads() {
    let s = shape(3, [12, 50], [17, 23], [3, 3], [2, 2], [1, 1]);
    let (x, w, bias, dy) = (noise(1, s.input_len()), noise(2, s.weight_len()), noise(3, s.out_channels), noise(4, s.output_len()));
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            check(&s, true).unwrap();
            let (mut y, mut dx) = (vec![f32::NAN; s.output_len()], vec![f32::NAN; s.input_len()]);
            forward(&s, Lowering::Implicit, Precision::F32, &[&x], &w, Epilogue { bias: Some(&bias), silu: true }, &mut y);
            data_grad(&s, Lowering::Implicit, Precision::F32, &dy, &w, &mut [&mut dx]);
            y.into_iter().chain(dx).map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let one = with(1);
    for threads in [2, 3, 7, 16] {
        assert!(with(threads) == one, "{threads} threads give other bits");
    }
}

/// Where a 1x1 convolution's source is read does not show in the result.
#[test]
fn in_place_or_copied() {
    for (channels, size, silu) in
        [([40, 33], [32, 32], false), ([300, 9], [20, 19], true), ([13, 70], [7, 11], false), ([5, 4], [64, 80], true)]
    {
        let s = shape(2, channels, size, [1, 1], [1, 1], [0, 0]);
        if cfg!(miri) && s.macs() > 200_000 {
            continue;
        }
        let Case { x, w, bias, .. } = Case::new(s, 1);
        let product = super::forward_product(&s, &w, Epilogue { bias: Some(&bias), silu });
        for level in Level::all() {
            let packed = super::prepare(level, &s, &w, super::scratch::take);
            let run = |in_place| {
                let mut out = vec![f32::NAN; s.output_len()];
                super::product::multiply_as(level, &product, in_place, &packed, &[&x], &mut [&mut out]);
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(run(true) == run(false), "{level:?} {s:?}");
        }
    }
}

/// Three passes with an input in so many `channels` each, against those with one tensor, to the bit.
fn check_parts(s: &ConvShape, channels: &[usize]) -> Result<(), TestCaseError> {
    let Case { x, w, dy, .. } = &Case::new(*s, 1);
    // For each part its values of every image.
    let cut = |x: &[f32]| {
        let plane = s.height * s.width;
        let mut parts = vec![Vec::new(); channels.len()];
        for mut image in x.chunks_exact(s.in_channels * plane) {
            for (part, c) in parts.iter_mut().zip(channels) {
                let (own, behind) = image.split_at(c * plane);
                part.extend(own.iter().map(|v| v.to_bits()));
                image = behind;
            }
        }
        parts
    };
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let parts: Vec<Vec<f32>> = cut(x).into_iter().map(|part| part.into_iter().map(f32::from_bits).collect()).collect();
    let parts: Vec<&[f32]> = parts.iter().map(Vec::as_slice).collect();
    let asked = Level::all().filter(|level| level.in_bf16() != *level).map(|level| (level, Precision::Bf16));
    for (level, precision) in asked.chain(Level::tested().map(|level| (level, Precision::F32))) {
        let result = |len: usize, f: &dyn Fn(&mut [f32])| {
            let mut out = vec![f32::NAN; len];
            simd::with_level(level, || f(&mut out));
            out
        };
        let by = Lowering::Implicit;
        let joined = result(dy.len(), &|y| forward(s, by, precision, &[x], w, Epilogue::default(), y));
        let apart = result(dy.len(), &|y| forward(s, by, precision, &parts, w, Epilogue::default(), y));
        prop_assert!(bits(&apart) == bits(&joined), "forward {level:?} {precision:?} {channels:?} {s:?}");
        let joined = result(w.len(), &|dw| weight_grad(s, by, precision, &[x], dy, dw));
        let apart = result(w.len(), &|dw| weight_grad(s, by, precision, &parts, dy, dw));
        prop_assert!(bits(&apart) == bits(&joined), "weight_grad {level:?} {precision:?} {channels:?} {s:?}");
        let joined = result(x.len(), &|dx| data_grad(s, by, precision, dy, w, &mut [dx]));
        let mut apart: Vec<Vec<f32>> = parts.iter().map(|part| vec![f32::NAN; part.len()]).collect();
        simd::with_level(level, || {
            let mut apart: Vec<&mut [f32]> = apart.iter_mut().map(Vec::as_mut_slice).collect();
            data_grad(s, by, precision, dy, w, &mut apart);
        });
        let apart: Vec<_> = apart.iter().map(|part| bits(part)).collect();
        prop_assert!(apart == cut(&joined), "data_grad {level:?} {precision:?} {channels:?} {s:?}");
    }
    Ok(())
}

/// Channels that fill no panel, vector or group of a unit's rows; planes read in place, copied, and of a batch of one.
#[test]
#[cfg_attr(miri, ignore = "slow there, and random_parts runs the same code")]
fn parts_of_a_detector() {
    let pointwise = |batch, ci, co, size| shape(batch, [ci, co], size, [1, 1], [1, 1], [0, 0]);
    check_parts(&pointwise(2, 48, 32, [32, 32]), &[32, 16]).unwrap();
    check_parts(&pointwise(3, 64, 33, [20, 19]), &[31, 1, 15, 17]).unwrap();
    check_parts(&pointwise(1, 300, 9, [20, 20]), &[7, 193, 100]).unwrap();
    check_parts(&pointwise(2, 70, 70, [70, 70]), &[70]).unwrap();
    // Strips of as many pixels as a cache holds are not those of a packing, whose planes are whole lines.
    check_parts(&pointwise(1, 3000, 3, [20, 20]), &[2999, 1]).unwrap();
    check_parts(&shape(2, [13, 20], [21, 18], [3, 3], [2, 2], [1, 1]), &[4, 9]).unwrap();
    check_parts(&pointwise(0, 5, 3, [4, 4]), &[2, 3]).unwrap();
}

#[test]
#[should_panic(expected = "that is no number of channels")]
fn parts_are_whole_channels() {
    let s = shape(2, [3, 1], [4, 4], [1, 1], [1, 1], [0, 0]);
    weight_grad(&s, Lowering::Implicit, Precision::F32, &[&[0.0; 40], &[0.0; 56]], &[0.0; 32], &mut [0.0; 3]);
}

proptest! {
    #![proptest_config(crate::test_cases(100))]
    #[test]
    fn random_parts(
        s in shapes(300_000, prop_oneof![Just([[1; 2], [1; 2], [0; 2]]), any_geometry()]),
        cuts in prop::collection::vec(0usize..1000, 0..4),
    ) {
        let mut ends: Vec<usize> = cuts.into_iter().map(|cut| 1 + cut % s.in_channels).chain([s.in_channels]).collect();
        ends.sort_unstable();
        ends.dedup();
        let channels: Vec<usize> = [0].iter().chain(&ends).zip(&ends).map(|(start, end)| end - start).collect();
        check_parts(&s, &channels)?;
    }
}

proptest! {
    #![proptest_config(crate::test_cases(200))]
    #[test]
    fn random_shapes(s in shapes(1_000_000, any_geometry()), silu: bool) {
        check(&s, silu)?;
    }
}
