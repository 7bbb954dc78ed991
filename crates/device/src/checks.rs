//! What the probe does on the GPU and on the CPU, and how their numbers are compared.
//!
//! Each check is one function of a device and a path that returns numbers, so that both sides run the same lines. What is checked is what the
//! program at hand trains with, in the precision it trains in: a driver that has the convolutions right may have the loss wrong. For convolutions the CPU
//! always computes Burn's own, so that a mistake in our kernels' common lines cannot agree with itself.

use crate::Stage;
use crate::convolutions::{BOTTLENECK, Conv, POINTWISE, STEM, WIDE};
use crate::made::{numbers, tensor};
use crate::maps::Storage;
use crate::options::{Shape, Work};
use crate::plan::Path;
use crate::proofs::{Proof, proofs};
use crate::{assigned, decoder, detector, timing};
use bellows_kernels::cube::Pass;
use bellows_kernels::{Lowering, Precision};
use burn::tensor::{DType, Device};

/// Largest error allowed, relative to the largest magnitude of the CPU's result: f32 kernels differ by the order of summation (1e-6),
/// a wrong kernel by far more.
pub(crate) const TOLERANCE: f64 = 1e-3;

/// The same of images in f16, whose numbers have 11 bits: a few roundings to each, and what two steps of training make of them.
pub(crate) const HALF_TOLERANCE: f64 = 2e-2;
/// Of factors after two steps of Adam in f16, which divides a gradient by its own size: 3.7e-2 on the processor, where what is wrong is off by its size.
const HALF_STEPS_TOLERANCE: f64 = 1e-1;

/// How often what must have the same bits each time is computed.
const TIMES: usize = 8;

/// One comparison of the probe.
pub(crate) struct Check {
    pub(crate) stage: Stage,
    pub(crate) name: String,
    /// Largest relative error allowed.
    pub(crate) tolerance: f64,
    /// Left out on software adapters, which would spend minutes on it (Burn's kernels are tuned to each shape) or have no such fault.
    pub(crate) hardware_only: bool,
    /// The type that a device must have for it.
    needs: Option<DType>,
    run: Run,
}

/// What is computed on a device, by a lowering of convolutions; each list has a scale of its own.
type Run = Box<dyn Fn(&Device, Lowering, bool) -> Vec<Vec<f32>>>;

impl Check {
    /// `run` is given the device, the lowering of its convolutions, and whether this is the CPU's turn.
    fn new(stage: Stage, name: impl Into<String>, run: impl Fn(&Device, Lowering, bool) -> Vec<Vec<f32>> + 'static) -> Self {
        Self { stage, name: name.into(), tolerance: TOLERANCE, hardware_only: false, needs: None, run: Box::new(run) }
    }

    /// A sentence if the device cannot do it at all.
    pub(crate) fn possible(&self, device: &Device) -> Result<(), String> {
        let Some(dtype) = self.needs.filter(|dtype| !device.supports_dtype(*dtype)) else { return Ok(()) };
        let name = format!("{dtype:?}").to_lowercase();
        Err(format!("this device does not compute in {name}"))
    }

    /// Both sides' numbers: `device`'s by `path`, and the CPU's.
    pub(crate) fn run(&self, device: &Device, path: Path) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
        ((self.run)(device, path.lowering(), false), (self.run)(&Device::flex(), Lowering::Direct, true))
    }
}

/// Every comparison of `path` in the order it runs.
pub(crate) fn checks(path: Path, work: Work, shapes: &[Shape]) -> Vec<Check> {
    // A copy has no rounding to forgive.
    let copy = Check::new(Stage::Upload, "1 MiB there and back", |device, _, _| vec![numbers(tensor(1, [1 << 18], device))]);
    let mut all = vec![Check { tolerance: 0.0, ..copy }];
    match work {
        Work::Detector | Work::HalfDetector => of_detector(path, work, &mut all),
        Work::LanguageModel | Work::HalfLanguageModel => of_language_model(path, work, &mut all),
    }
    // Burn's kernels have no classes.
    let of_path = proofs(shapes).into_iter().filter(|proof| path == Path::Gemm || !proof.of_batch);
    all.extend(of_path.map(|proof| of_run(proof, path, work)));
    all
}

fn of_detector(path: Path, work: Work, all: &mut Vec<Check>) {
    let (conv, train) = match path {
        Path::Gemm => (Stage::ConvGemm, Stage::TrainGemm),
        Path::Direct | Path::Untuned => (Stage::ConvDirect, Stage::TrainDirect),
    };
    let convolutions = [
        ("3x3 s2 3>16 forward", &STEM, Pass::Forward),
        ("3x3 s2 3>16 gradient of x", &STEM, Pass::Input),
        ("3x3 s2 3>16 gradient of w", &STEM, Pass::Weight),
        ("3x3 s1 16>16 forward", &BOTTLENECK, Pass::Forward),
        ("3x3 s1 16>16 gradient of x", &BOTTLENECK, Pass::Input),
        ("3x3 s1 16>16 gradient of w", &BOTTLENECK, Pass::Weight),
        ("1x1 104>208 forward", &POINTWISE, Pass::Forward),
        ("1x1 104>208 gradient of x", &POINTWISE, Pass::Input),
        ("1x1 104>208 gradient of w", &POINTWISE, Pass::Weight),
    ];
    all.extend(convolutions.map(|(name, layer, pass)| Check::new(conv, name, move |device, by, _| layer.run(pass, 1, device, by, false))));
    // Burn's tune a convolution with a bias anew, which takes a program long and is used by none.
    let inferred = |name, layer: &'static Conv| {
        let check = Check::new(conv, name, move |device, by, _| layer.inferred(device, by));
        Check { hardware_only: path != Path::Gemm, ..check }
    };
    all.extend([inferred("3x3 s1 16>16 with bias and SiLU", &BOTTLENECK), inferred("1x1 104>208 with bias and SiLU", &POINTWISE)]);
    if path == Path::Gemm {
        let often = |device: &Device, by, reference| repeated(|| WIDE.run(Pass::Forward, 1, device, by, false).concat(), reference);
        all.push(Check { hardware_only: true, ..Check::new(conv, "3x3 s1 64>64 forward, 8 times", often) });
    }
    let found = Check::new(train, "anchors that learn three objects", |device, _, _| assigned::learnt(device));
    all.push(Check { hardware_only: path != Path::Gemm, ..found });
    let steps = Check::new(train, "2 steps of a small detector", |device, by, _| detector::two_steps(device, by, false));
    all.push(Check { hardware_only: path != Path::Gemm, ..steps });
    match (path, work) {
        (Path::Gemm, Work::HalfDetector) => {
            let forward = |name, layer: &'static Conv| {
                let run = move |device: &Device, by, reference: bool| layer.run(Pass::Forward, 1, device, by, !reference);
                half(Check::new(Stage::ConvHalf, name, run))
            };
            all.extend([forward("3x3 s1 16>16 forward", &BOTTLENECK), forward("1x1 104>208 forward", &POINTWISE)]);
            let train = |device: &Device, by, reference: bool| detector::two_steps(device, by, !reference);
            all.push(half(Check::new(Stage::TrainHalf, "2 steps of a small detector", train)));
        }
        (Path::Gemm, _) => {}
        (Path::Direct | Path::Untuned, _) => {
            all.push(Check::new(Stage::Matmul, "64x64 . 64x64", |device, _, _| vec![matmul(64, 64, 64, device)]));
            let large = Check::new(Stage::Matmul, "257x384 . 384x1152", |device, _, _| vec![matmul(257, 384, 1152, device)]);
            all.push(Check { hardware_only: true, ..large });
        }
    }
}

fn of_language_model(path: Path, work: Work, all: &mut Vec<Check>) {
    let (products, train) = match path {
        Path::Gemm => (Stage::ProductsGemm, Stage::LoraGemm),
        Path::Direct => (Stage::ProductsDirect, Stage::LoraDirect),
        Path::Untuned => (Stage::ProductsUntuned, Stage::LoraUntuned),
    };
    all.push(Check::new(Stage::Rows, "normalisation, rotation, gate, losses, dropout", |device, _, _| decoder::rows(device)));
    all.push(Check::new(products, "96x257 . 257x130, both ways", |device, _, _| decoder::products(device)));
    if path == Path::Gemm {
        let often = |device: &Device, _, reference| repeated(|| decoder::large_product(device), reference);
        all.push(Check { hardware_only: true, ..Check::new(products, "1024x64 . 64x1536, 8 times", often) });
    }
    all.push(Check::new(train, "2 steps of LoRA on a frozen layer", |device, _, _| decoder::two_steps(device, Precision::F32)));
    if work.half() {
        let steps = |device: &Device, _, reference: bool| decoder::two_steps(device, precision(!reference));
        let steps = Check::new(Stage::LoraHalf, "2 steps of LoRA on a frozen layer", steps);
        all.push(Check { hardware_only: path != Path::Gemm, tolerance: HALF_STEPS_TOLERANCE, ..half(steps) });
    }
}

/// The numbers of a product of ours, and one more than so many of them as have other bits in another launch. Its sums have a fixed order, so there are none;
/// but kernels whose threads have more than some 544 bytes of their own are reported to get them mixed up on RADV now and then (cubecl issue 1336), and with
/// the largest blocks ours have.
fn repeated(run: impl Fn() -> Vec<f32>, reference: bool) -> Vec<Vec<f32>> {
    let first = run();
    let differ = |other: &[f32]| first.iter().zip(other).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let others = if reference { 0 } else { TIMES - 1 };
    let most = (0..others).map(|_| differ(&run())).max().unwrap_or_default();
    vec![first, vec![1.0 + most as f32]]
}

/// With another tolerance, for a device that has f16.
fn half(check: Check) -> Check {
    Check { tolerance: HALF_TOLERANCE, needs: Some(DType::F16), ..check }
}

fn precision(half: bool) -> Precision {
    if half { Precision::F16 } else { Precision::F32 }
}

/// A pass of a convolution, of a map or of attention of the run, in the precision of the run on the device.
fn of_run(proof: Proof, path: Path, work: Work) -> Check {
    let Proof { shape, pass, count, of_batch } = proof;
    // What is between a language model's products may be f32 in f16 too (decision 16).
    let in_half = work.half() && !matches!(shape, Shape::Attention(heads) if !heads.half);
    let name = match (shape, pass) {
        (Shape::Conv(conv), Pass::Forward) if conv.normed => "forward, normalised",
        (_, Pass::Forward) => "forward",
        (Shape::Map(map), _) if map.rank > 0 => "gradients of x, A and B",
        (Shape::Attention(_), _) => "gradients of q, k and v",
        (_, Pass::Input) => "gradient of x",
        (_, Pass::Weight) => "gradient of w",
    };
    let what = if matches!(shape, Shape::Conv(_)) { "images" } else { "rows" };
    let many = if of_batch { format!(", {count} {what}") } else { String::new() };
    let run = move |device: &Device, by: Lowering, reference: bool| {
        let half = in_half && !reference;
        let dtype = if half { DType::F16 } else { DType::F32 };
        match shape {
            Shape::Conv(conv) => conv.run(pass, count, device, by, half),
            Shape::Map(map) => map.run(pass, count, device, precision(half)),
            Shape::Attention(heads) if pass == Pass::Forward => heads.forward(device, dtype),
            Shape::Attention(heads) => heads.gradients(device, dtype),
        }
    };
    let check = Check::new(Stage::Shapes, format!("{shape} {name}{many}"), run);
    // A program on the processor has the same kernels in the blocks of a few images and rows, and would spend minutes on the others.
    let check = Check { hardware_only: path != Path::Gemm || of_batch, ..check };
    let check = if in_half { half(check) } else { check };
    let storage = if let Shape::Map(map) = shape { map.storage } else { None };
    Check { needs: storage.and_then(Storage::needs).or(check.needs), ..check }
}

/// Seconds of a small step of this work, in f16 or in f32.
pub(crate) fn time(device: &Device, by: Lowering, work: Work, half: bool) -> f64 {
    match work {
        Work::Detector | Work::HalfDetector => timing::convolution(device, by, half),
        Work::LanguageModel | Work::HalfLanguageModel => timing::product(device, half),
    }
}

/// The largest difference of `gpu` from `cpu`, relative to the largest magnitude in its list of `cpu`.
///
/// # Errors
/// A sentence if the lengths differ, if anything is not finite, or if the error is above `tolerance`.
pub(crate) fn compare(gpu: &[Vec<f32>], cpu: &[Vec<f32>], tolerance: f64) -> Result<f64, String> {
    if gpu.len() != cpu.len() {
        return Err(format!("{} lists of numbers came back, {} were expected", gpu.len(), cpu.len()));
    }
    gpu.iter().zip(cpu).try_fold(0.0f64, |worst, (gpu, cpu)| Ok(worst.max(compare_list(gpu, cpu, tolerance)?)))
}

fn compare_list(gpu: &[f32], cpu: &[f32], tolerance: f64) -> Result<f64, String> {
    if gpu.len() != cpu.len() || cpu.is_empty() {
        return Err(format!("{} numbers came back, {} were expected", gpu.len(), cpu.len()));
    }
    if let Some(at) = gpu.iter().zip(cpu).position(|(gpu, cpu)| !gpu.is_finite() || !cpu.is_finite()) {
        return Err(format!("{} at position {at}, the CPU computes {}", gpu[at], cpu[at]));
    }
    let scale = cpu.iter().fold(f64::MIN_POSITIVE, |scale, value| scale.max(f64::from(value.abs())));
    let difference = gpu.iter().zip(cpu).fold(0.0f64, |most, (gpu, cpu)| most.max((f64::from(*gpu) - f64::from(*cpu)).abs()));
    let error = difference / scale;
    if error <= tolerance {
        Ok(error)
    } else {
        Err(format!("wrong numbers: relative error {error:.1e} > {tolerance:.0e} of the CPU's result"))
    }
}

fn matmul(m: usize, k: usize, n: usize, device: &Device) -> Vec<f32> {
    numbers(tensor::<2>(2, [m, k], device).matmul(tensor(3, [k, n], device)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convolutions::plain;
    use crate::heads::Heads;
    use crate::maps::{LinearMap, SOME};
    use crate::proofs::tests::of_a_detector;

    fn map(sizes: [usize; 2], storage: Option<Storage>, rank: usize) -> Shape {
        Shape::Map(LinearMap { sizes, storage, rank, rows: SOME })
    }

    #[test]
    fn comparison_is_relative_and_refuses_what_is_not_a_number() {
        assert_eq!(compare_list(&[1.0, -100.0], &[1.0, -100.0], 0.0), Ok(0.0));
        assert!(compare_list(&[1.0, -100.05], &[1.0, -100.0], TOLERANCE).unwrap() > 4e-4);
        assert!(compare_list(&[1.2, -100.0], &[1.0, -100.0], TOLERANCE).unwrap_err().contains("relative error 2.0e-3"));
        assert!(compare_list(&[f32::NAN], &[1.0], TOLERANCE).unwrap_err().contains("NaN at position 0"));
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
        for odd in odd {
            assert!(compare_list(&[1.0, 2.0], &[1.0, odd], TOLERANCE).unwrap_err().contains("position 1, the CPU computes"), "{odd}");
        }
        assert!(compare_list(&[1.0], &[1.0, 2.0], TOLERANCE).unwrap_err().contains("1 numbers came back"));
        assert!(compare_list(&[], &[], TOLERANCE).is_err());
        assert_eq!(compare_list(&[0.0], &[0.0], TOLERANCE), Ok(0.0));
        // A small number is not hidden by a large one elsewhere.
        let (ours, theirs) = ([vec![100.0], vec![0.2]], [vec![100.0], vec![0.1]]);
        assert!(compare(&ours, &theirs, TOLERANCE).is_err());
        assert!(compare(&ours[..1], &theirs, TOLERANCE).unwrap_err().contains("1 lists"));
    }

    #[test]
    fn checks_agree_on_the_cpu() {
        for (path, work, count) in [
            (Path::Gemm, Work::Detector, 15),
            (Path::Direct, Work::Detector, 16),
            (Path::Gemm, Work::LanguageModel, 5),
            (Path::Direct, Work::LanguageModel, 4),
            (Path::Untuned, Work::LanguageModel, 4),
        ] {
            let checks = checks(path, work, &[]);
            assert_eq!(checks.len(), count, "{path} {work}");
            assert!(checks.is_sorted_by_key(|check| check.stage), "{path} {work}");
            for check in &checks {
                let (ours, reference) = check.run(&Device::flex(), path);
                compare(&ours, &reference, check.tolerance).unwrap();
            }
        }
        let half = checks(Path::Gemm, Work::HalfDetector, &[]);
        assert!(half.is_sorted_by_key(|check| check.stage) && half.len() == 18);
        // The processor computes a map in f16 too.
        let half = checks(Path::Gemm, Work::HalfLanguageModel, &[map([130, 70], None, 8)]);
        assert!(half.is_sorted_by_key(|check| check.stage) && half.len() == 8);
        for check in &half {
            let (ours, reference) = check.run(&Device::flex(), Path::Gemm);
            compare(&ours, &reference, check.tolerance).unwrap();
        }
    }

    #[test]
    fn each_pass_of_the_runs_own_shapes_is_checked() {
        let plain = Conv { input: [12, 20], ..plain(5, 7, 3, 2, 0) };
        let [conv, normed] = [false, true].map(|normed| Shape::Conv(Conv { normed, ..plain }));
        let heads = Heads::few(6, 3, 16);
        let [attention, in_half] = [false, true].map(|half| Shape::Attention(Heads { half, ..heads }));
        for (path, work, shape, passes) in [
            (Path::Gemm, Work::Detector, conv, &["forward", "gradient of x", "gradient of w"][..]),
            (Path::Gemm, Work::Detector, normed, &["forward, normalised", "gradient of x", "gradient of w"]),
            (Path::Direct, Work::LanguageModel, map([33, 70], None, 0), &["forward", "gradient of x"]),
            (Path::Gemm, Work::LanguageModel, map([33, 70], Some(Storage::Nf4), 4), &["forward", "gradients of x, A and B"]),
            (Path::Gemm, Work::HalfLanguageModel, map([33, 70], Some(Storage::Int8), 4), &["forward", "gradients of x, A and B"]),
            (Path::Gemm, Work::HalfLanguageModel, attention, &["forward", "gradients of q, k and v"]),
            (Path::Gemm, Work::HalfLanguageModel, in_half, &["forward", "gradients of q, k and v"]),
        ] {
            let all = checks(path, work, &[shape]);
            let of_run: Vec<&Check> = all.iter().filter(|check| check.stage == Stage::Shapes).collect();
            let names: Vec<String> = passes.iter().map(|pass| format!("{shape} {pass}")).collect();
            assert_eq!(of_run.iter().map(|check| check.name.clone()).collect::<Vec<_>>(), names);
            assert!(of_run.iter().all(|check| check.hardware_only == (path == Path::Direct)));
            for check in of_run {
                let (ours, reference) = check.run(&Device::flex(), path);
                compare(&ours, &reference, check.tolerance).unwrap();
            }
        }
        let names = [conv, map([33, 70], Some(Storage::Nf4), 4), attention, in_half].map(|shape| shape.to_string());
        assert_eq!(names, ["3x3 s2 5>7 at 20x12", "70>33 in nf4", "attention 4/2x16", "attention 4/2x16 in f16"]);
    }

    /// What only the batches of a run have is proved by our kernels on cards; a program, and Burn's kernels, have the rest.
    #[test]
    fn a_program_is_spared_the_blocks_of_batches() {
        let map = LinearMap { sizes: [4864, 896], storage: Some(Storage::Words), rank: 16, rows: 0 }.in_batch(2048);
        for (work, shapes, few, of_batch) in [
            (Work::Detector, of_a_detector(16), of_a_detector(1), vec!["64>64 at 80x80 forward, normalised, 3 images"]),
            (
                Work::LanguageModel,
                vec![Shape::Map(map)],
                vec![Shape::Map(map.in_batch(64))],
                vec!["896>4864 in words of bf16 forward, 193 rows", "896>4864 in words of bf16 gradients of x, A and B, 1281 rows"],
            ),
        ] {
            let names = |path, shapes: &[Shape], on_program: bool| {
                let all = checks(path, work, shapes).into_iter();
                let of_run = all.filter(|check| check.stage == Stage::Shapes && !(on_program && check.hardware_only));
                of_run.map(|check| check.name).collect::<Vec<_>>()
            };
            let one = names(Path::Gemm, &few, true);
            assert_eq!(names(Path::Gemm, &few, false), one);
            assert_eq!(names(Path::Gemm, &shapes, true), one);
            assert_eq!(names(Path::Direct, &shapes, false), one);
            let all = names(Path::Gemm, &shapes, false);
            assert!(of_batch.iter().all(|name| all[one.len()..].iter().any(|more| more.ends_with(name))), "{all:?}");
        }
    }

    /// One launch of eight with another bit is seen, however small.
    #[test]
    fn numbers_that_change_from_launch_to_launch_are_wrong() {
        let launches = std::cell::Cell::new(0);
        let run = |changing: u32| {
            launches.set(launches.get() + 1);
            vec![1.0, if launches.get() == changing { 2.0f32.next_up() } else { 2.0 }]
        };
        let reference = repeated(|| vec![1.0, 2.0], true);
        assert_eq!(compare(&repeated(|| run(0), false), &reference, TOLERANCE), Ok(0.0));
        assert_eq!(launches.replace(0), 8);
        assert!(compare(&repeated(|| run(5), false), &reference, TOLERANCE).unwrap_err().contains("wrong numbers"));
    }

    /// Factors in f16 are forgiven more; attention that is f32 beside them is not. A type that a device lacks is asked for by its name.
    #[test]
    fn a_check_knows_its_precision_and_what_it_needs() {
        let of = |work, shape| checks(Path::Gemm, work, &[shape]).pop().unwrap();
        let attention = |half| of(Work::HalfLanguageModel, Shape::Attention(Heads { half, ..Heads::few(2, 2, 8) }));
        let asked = [false, true].map(attention).map(|check| (check.tolerance, check.needs));
        assert_eq!(asked, [(TOLERANCE, None), (HALF_TOLERANCE, Some(DType::F16))]);
        let nf4 = of(Work::HalfLanguageModel, map([8, 8], Some(Storage::Nf4), 2));
        assert_eq!((nf4.tolerance, nf4.needs), (HALF_TOLERANCE, Some(DType::F16)));
        let bf16 = of(Work::LanguageModel, map([8, 8], Some(Storage::Bf16), 2));
        assert_eq!((bf16.tolerance, bf16.needs), (TOLERANCE, Some(DType::BF16)));
        let absent = Check { needs: Some(DType::Flex32), ..bf16 };
        assert!(absent.possible(&Device::flex()).is_err_and(|said| said.ends_with("compute in flex32")));
    }
}
