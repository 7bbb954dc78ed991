//! The model and its loss against Ultralytics 8.3.227 (PyTorch on the CPU): forward, loss, assignment, gradients, training.
//!
//! `golden/golden.safetensors` holds its results on weights, images and labels made by the formulas below
//! (`golden/make.py` writes it). With BELLOWS_YOLO_GOLDEN set to a directory of full reference tensors
//! (weights, case, eval, train, assign, steps .safetensors), `reference_files` compares those too;
//! BELLOWS_YOLO_GOLDEN_LR is the learning rate their steps were made with, 0.01 if not set.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout, reason = "helpers of tests fail and report like tests")]

#[path = "support/mod.rs"]
mod support;

use bellows_kernels::cube::{Counted, launches, most_at_launches};
use bellows_kernels::{Lowering, set_default_lowering, set_keeps, with_parts};
use bellows_learner::memory::Place;
use bellows_yolo::bench::Benchmark;
use bellows_yolo::boxes::Label;
use bellows_yolo::loss::DetectionLoss;
use bellows_yolo::memory::{Held, Plan};
use bellows_yolo::model::head::REG_MAX;
use bellows_yolo::model::names::{NamedTensors, named_tensors, to_tensors};
use bellows_yolo::model::{Scale, Yolo, YoloConfig};
use burn::backend::f16;
use burn::module::Module;
use burn::tensor::wgpu::WgpuBackend;
use burn::tensor::{Device, DeviceKind, FloatDType, Tensor};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use support::*;

const NC: usize = 4;

fn golden() -> NamedTensors {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/golden.safetensors"))
}

/// The weights that make.py fills in.
fn formula_weights() -> NamedTensors {
    let mut tensors = to_tensors(&YoloConfig::new(NC).init(0, &Device::flex()), 0).unwrap();
    for (name, (shape, values)) in &mut tensors {
        let n = values.len();
        if name.ends_with("num_batches_tracked") || name.contains("dfl") {
            continue;
        }
        let (low, high) = if shape.len() == 4 {
            let bound = (3.0 / (shape[1] * shape[2] * shape[3]) as f32).sqrt();
            (-bound, bound)
        } else if name.ends_with("bn.weight") || name.ends_with("running_var") {
            (0.5, 1.5)
        } else if name.contains("cv3") && name.ends_with("2.bias") {
            (-4.0, -1.0)
        } else {
            (-0.5, 0.5)
        };
        *values = uniform(name, n, low, high);
    }
    tensors
}

struct Case {
    name: &'static str,
    batch: usize,
    height: usize,
    width: usize,
    targets: Vec<(u32, Label)>,
}

impl Case {
    fn shape(&self) -> [usize; 4] {
        [self.batch, 3, self.height, self.width]
    }

    fn pixels(&self) -> Vec<f32> {
        uniform(&format!("{}.image", self.name), self.shape().iter().product(), 0.0, 1.0)
    }
}

fn plain() -> Case {
    let (images, each) = (2, 6);
    let u = uniform("plain.labels", images * each * 5, 0.0, 1.0);
    let label = |(i, u): (usize, &[f32])| {
        let (w, h) = (u[0] * 0.5 + 0.05, u[1] * 0.5 + 0.05);
        let xywh = [w / 2.0 + u[2] * (1.0 - w), h / 2.0 + u[3] * (1.0 - h), w, h];
        ((i / each) as u32, Label { class: (u[4] * NC as f32) as u32, xywh })
    };
    Case { name: "plain", batch: images, height: 96, width: 96, targets: u.chunks(5).enumerate().map(label).collect() }
}

/// No object in image 0. In image 1: a box no anchor centre falls in, one that holds fewer than ten, an all-zero
/// box (padding), two nearly equal boxes of different class, one that leaves the image.
fn edges() -> Case {
    let rows: [(u32, u32, [f32; 4]); 7] = [
        (1, 1, [0.04, 0.05, 0.01, 0.01]),
        (1, 0, [0.30, 0.30, 0.15, 0.2]),
        (1, 3, [0.0; 4]),
        (1, 2, [0.60, 0.50, 0.50, 0.60]),
        (1, 3, [0.61, 0.51, 0.50, 0.60]),
        (1, 0, [0.95, 0.90, 0.30, 0.40]),
        (2, 1, [0.50, 0.50, 1.00, 1.00]),
    ];
    let targets = rows.map(|(image, class, xywh)| (image, Label { class, xywh })).into();
    Case { name: "edges", batch: 3, height: 64, width: 96, targets }
}

fn empty() -> Case {
    Case { name: "empty", batch: 2, height: 64, width: 64, targets: vec![] }
}

fn check_case(case: &Case, plain: &Device) {
    let golden = golden();
    let get = |key: &str| &golden[&format!("{}.{key}", case.name)].1;
    let model = model_from(&formula_weights(), NC, plain);

    let infer = model.valid();
    let y = infer.decode(&infer.forward(image(case.pixels(), case.shape(), plain)));
    let error = relative(&vec(y), get("eval"));
    println!("{} eval {error:.1e}", case.name);
    assert!(error <= 1e-4, "eval {error}");

    let feats = model.forward(image(case.pixels(), case.shape(), &plain.clone().autodiff()));
    check_assignment(case, &assignment(&feats, &case.targets), get("fg"), get("gt"), get("score"));

    let out = DetectionLoss::new(NC).forward(&feats, &case.targets).unwrap();
    let items = vec(out.items);
    let total = vec(out.total.clone())[0];
    println!("{} items {items:?} reference {:?}", case.name, get("items"));
    assert!(worst_each(&items, get("items")) <= 1e-5, "{items:?} {:?}", get("items"));
    assert!((total / get("total")[0] - 1.0).abs() <= 1e-5);

    let grads = gradients(&model, &out.total.backward());
    assert!(grads.values().flatten().all(|g| g.is_finite()));
    assert_eq!(grads.len(), 183);
    let errors = grads.iter().zip(get("grad.sketch").chunks(9)).map(|((k, g), r)| (sketch_error(sketch(k, g), r), k));
    let (error, name) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{} gradient {error:.1e} at {name}", case.name);
    assert!(error <= 1e-3, "gradient of {name}: {error}");
}

/// Losses, and the errors of all gradients in their order, of a step on these images.
fn step_errors(case: &Case, model: &Yolo, images: Tensor<4>) -> (Vec<f32>, Vec<(f64, String)>) {
    let golden = golden();
    let out = DetectionLoss::new(NC).forward(&model.forward(images), &case.targets).unwrap();
    let items = vec(out.items);
    let grads = gradients(model, &out.total.backward());
    assert!(grads.len() == 183 && grads.values().flatten().all(|g| g.is_finite()));
    let reference = golden[&format!("{}.grad.sketch", case.name)].1.chunks(9);
    let mut errors: Vec<_> = grads.iter().zip(reference).map(|((k, g), r)| (sketch_error(sketch(k, g), r), k.clone())).collect();
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    (items, errors)
}

/// A step with images in f16 against the same numbers.
///
/// What such rounding does to a gradient is found on the processor, in f32: a convolution by weights that are rounded to f16 is as wrong as one whose output
/// is, each of its terms by half a unit in the eleventh bit at most. That is one rounding a layer, where images in f16 have four: of the convolution's output and of the
/// normalised one, and of both their gradients. Independent errors add up as their squares, so twice as much is expected, and four times is the limit.
///
/// A loss is a number, whose error is small by chance too, so its limit follows from the rounding itself: at most 48 convolutions are one behind the other, each
/// with two roundings forward by half a unit, 2^-11 of a number, at most; 9.8 times that by their squares, and twice as much is the limit.
fn check_half(case: &Case, plain: &Device) {
    let autodiff = |device: &Device| image(case.pixels(), case.shape(), &device.clone().autodiff());
    let mut rounded = formula_weights();
    for (_, values) in rounded.values_mut().filter(|(shape, _)| shape.len() == 4) {
        values.iter_mut().for_each(|v| *v = f16::from_f32(*v).to_f32());
    }
    let flex = Device::flex();
    let (items, simulated) = step_errors(case, &model_from(&rounded, NC, &flex), autodiff(&flex));
    let reference = &golden()[&format!("{}.items", case.name)].1;
    println!("{} by weights in f16: items {:.1e}", case.name, worst_each(&items, reference));
    let model = model_from(&formula_weights(), NC, plain);
    let (items, errors) = step_errors(case, &model, autodiff(plain).cast(FloatDType::F16));
    println!("{} in f16: items {items:?} reference {reference:?}", case.name);
    assert!(worst_each(&items, reference) <= 2.0 * (2.0 * 48.0f64).sqrt() / 2048.0, "{items:?}");
    for place in [errors.len() / 2, errors.len() - 1] {
        let ((error, name), (limit, _)) = (&errors[place], &simulated[place]);
        println!("{} in f16: gradient {place} of 183 by error: {error:.1e} at {name}, by weights in f16 {limit:.1e}", case.name);
        assert!(*error <= 4.0 * limit, "gradient of {name}: {error:.1e}, and {limit:.1e} by weights in f16");
    }
}

/// The largest relative difference, element by element; where the reference is zero, so must be the value.
fn worst_each(own: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(own.len(), reference.len());
    greatest(own.iter().zip(reference).map(|(a, b)| f64::from((a - b).abs()) / f64::from(b.abs()).max(1e-12)))
}

#[test]
fn what_is_no_number_is_an_error() {
    let (good, bad) = ([1.0; 9], [1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!([worst_each(&good, &good), worst(&good, &good), sketch_error(good.map(f64::from), &good)], [0.0; 3]);
    assert_eq!([worst_each(&bad, &good), worst(&bad, &good), sketch_error(bad.map(f64::from), &good)], [f64::INFINITY; 3]);
}

fn check_assignment(case: &Case, own: &[Vec<bellows_yolo::loss::assigner::Foreground>], fg: &[f32], gt: &[f32], score: &[f32]) {
    let anchors = fg.len() / case.batch;
    for (image, own) in own.iter().enumerate() {
        let row = image * anchors..(image + 1) * anchors;
        let places: Vec<usize> = own.iter().map(|f| f.anchor).collect();
        let expected: Vec<usize> = fg[row.clone()].iter().enumerate().filter(|(_, v)| **v > 0.0).map(|(a, _)| a).collect();
        assert_eq!(places, expected, "{} image {image}: foreground", case.name);
        for f in own {
            let at = row.start + f.anchor;
            assert_eq!(f.gt as f32, gt[at], "{} image {image} anchor {}: matched object", case.name, f.anchor);
            assert!((f.score - score[at]).abs() <= 1e-5, "{} image {image} anchor {}: {} {}", case.name, f.anchor, f.score, score[at]);
        }
    }
}

#[test]
fn random_objects() {
    check_case(&plain(), &Device::flex());
}

#[test]
fn edge_cases_and_a_wide_input() {
    check_case(&edges(), &Device::flex());
}

#[test]
fn no_object_in_the_batch() {
    check_case(&empty(), &Device::flex());
}

/// A step on the processor reads twice: predictions for the assigner, and the sums of its update. On a GPU it waits for those alone (`check_launches`).
#[test]
fn a_step_reads_twice() {
    let scratch = tempfile::tempdir().unwrap();
    let what = Benchmark { scale: Scale::N, batch: 1, imgsz: 32, classes: 4, steps: 1, boxes: 1, half: false };
    assert_eq!(what.count(&Device::flex(), scratch.path()).unwrap().reads, 2);
}

/// Set in a child, to what it computes by.
const CHILD: &str = "BELLOWS_PARITY_CHILD";

/// Runs a test of this file once more, in a process of its own with these variables: a loader reads them when the device is made.
fn by_a_child(test: &str, api: &str, variables: &[(&str, OsString)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = format!("parity::{test}");
    child.args([name.as_str(), "--exact", "--nocapture", "--include-ignored"]).env(CHILD, api).envs(variables.iter().cloned());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{variables:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The value of a variable; says what a test without it is skipped for.
fn asked_for(variable: &str, icd: &str) -> Option<OsString> {
    let value = std::env::var_os(variable);
    if value.is_none() {
        eprintln!("skipped: set {variable} ({icd})");
    }
    value
}

/// The same numbers from each software device, inference and a whole step, without one convolution or matrix product of Burn's.
#[test]
fn random_objects_on_software_devices() {
    let Some(api) = std::env::var_os(CHILD) else {
        // All at once: most of it is a driver's compiler, which has one thread.
        std::thread::scope(|scope| {
            for (variable, icd, api) in [
                ("BELLOWS_SWIFTSHADER", ".ci/swiftshader", "vulkan"),
                ("BELLOWS_LAVAPIPE", ".ci/lavapipe", "vulkan"),
                ("BELLOWS_MESA_GL", "where libegl1 is installed, 1", "gl"),
            ] {
                let Some(value) = asked_for(variable, icd) else { continue };
                scope.spawn(move || {
                    let variables = match api {
                        "gl" => vec![("LIBGL_ALWAYS_SOFTWARE", "1".into()), ("EGL_PLATFORM", "surfaceless".into())],
                        _ => vec![("VK_DRIVER_FILES", value)],
                    };
                    by_a_child("random_objects_on_software_devices", api, &variables);
                });
            }
        });
        return;
    };
    set_default_lowering(Lowering::Gemm);
    let device = match api.to_str() {
        Some("gl") => Device::wgpu_options().graphics_api(WgpuBackend::Gl).init().unwrap(),
        _ => Device::vulkan(DeviceKind::DefaultDevice),
    };
    let launches = launches(|| check_case(&plain(), &device)).1;
    let ours = |kernel: &str| kernel.contains("bellows_kernels");
    let named = |name: &str| launches.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
    // 63 convolutions, seven of them of stride 2: forward twice, and both gradients but the image's. In training the 57 that are normalised find their moments, and
    // both gradients of the 13 that read several maps are products of one launch.
    let products = ["matmul_kernel", "matmul_moments_kernel", "matmul_group_kernel"].map(named);
    assert_eq!(products, [63 + 6 + 56 - 13 + 63 - 13, 57, 6 + 2 * 13], "{launches:?}");
    assert_eq!(named("norm_moments_kernel"), 0, "{launches:?}");
    let theirs = |word: &str| launches.keys().find(|kernel| !ours(kernel) && kernel.to_lowercase().contains(word)).copied();
    assert_eq!(["conv", "matmul", "gemm"].map(theirs), [None; 3]);

    check_assigned(&device);
    check_launches(&device, 64, false);
    if device.supports_dtype(FloatDType::F16) {
        check_half(&plain(), &device);
        // At the size of `plain`, whose kernels are there.
        check_launches(&device, 96, true);
    }
}

/// Raw outputs for images of 192 pixels, made up; the larger `fall` is, the smaller are the boxes they mean.
fn made_up(name: &str, [images, nc]: [usize; 2], fall: f32, device: &Device) -> Vec<Tensor<4>> {
    let channels = 4 * REG_MAX + nc;
    let level = |side: usize| {
        let (shape, cells) = ([images, channels, side, side], side * side);
        let bin = |i: usize| if i / cells % channels < 4 * REG_MAX { i / cells % channels % REG_MAX } else { 0 };
        let drawn = uniform(&format!("{name}.{side}"), images * channels * cells, -2.0, 2.0);
        let values = drawn.into_iter().enumerate().map(|(i, x)| x - fall * bin(i) as f32).collect();
        image(values, shape, &device.clone().autodiff()).require_grad()
    };
    [24, 12, 6].map(level).into()
}

/// Of each image `each` boxes with sides between these, of the image's. None reaches the upper row of cells: where an object has too few anchors, the host takes the
/// first ones for the rest of its ten (docs/decisions/0002).
fn scattered(name: &str, [images, nc]: [usize; 2], each: usize, [low, high]: [f32; 2]) -> Vec<(u32, Label)> {
    let label = |(i, u): (usize, &[f32])| {
        let [w, h] = [u[0], u[1]].map(|side| low + (high - low) * side);
        let xywh = [w / 2.0 + u[2] * (1.0 - w), 0.05 + h / 2.0 + u[3] * (0.95 - h), w, h];
        ((i / each) as u32, Label { class: (u[4] * nc as f32) as u32, xywh })
    };
    uniform(&format!("{name}.labels"), images * each * 5, 0.0, 1.0).chunks(5).enumerate().map(label).collect()
}

/// Loss items of these outputs, and how strongly each anchor is drawn at: the root of its squared gradients for the sides of its box.
fn learnt(nc: usize, feats: &[Tensor<4>], targets: &[(u32, Label)]) -> (Vec<f32>, Vec<f32>) {
    let out = DetectionLoss::new(nc).forward(feats, targets).unwrap();
    let (items, grads) = (vec(out.items), out.total.backward());
    let of_level = |feat: &Tensor<4>| {
        let [_, channels, h, w] = feat.dims();
        let grad = vec(feat.grad(&grads).unwrap());
        let of_image = move |image: &[f32]| {
            let sides = image.chunks(h * w).take(4 * REG_MAX);
            let mut squares = vec![0.0f32; h * w];
            sides.for_each(|row| squares.iter_mut().zip(row).for_each(|(sum, g)| *sum += g * g));
            squares.into_iter().map(f32::sqrt).collect::<Vec<_>>()
        };
        grad.chunks(channels * h * w).flat_map(of_image).collect::<Vec<_>>()
    };
    let pulls = feats.iter().flat_map(of_level).collect();
    (items, pulls)
}

/// What a device finds for a batch's objects by itself is what the host's assigner does: the same losses, and the same anchors learn as strongly.
fn check_assigned(device: &Device) {
    // Images and classes, objects an image, their sides, and how fast logits fall from bin to bin.
    let cases = [
        ("few", [2, 4], 3, [0.1, 0.6], 0.0),
        ("crowded", [2, 80], 40, [0.25, 0.5], 0.0),
        ("small", [3, 4], 25, [0.01, 0.08], 0.9),
        ("none", [2, 4], 0, [0.1, 0.2], 0.0),
    ];
    for (name, sizes, each, sides, fall) in cases {
        let mut targets = scattered(name, sizes, each.max(1), sides);
        match name {
            "none" => targets.clear(),
            // The second image has no object; in the first are padding, and one beyond the image.
            "small" => {
                targets.retain(|(image, _)| *image != 1);
                targets.insert(1, (0, Label { class: 3, xywh: [0.0; 4] }));
                targets.insert(2, (0, Label { class: 2, xywh: [1.3, 0.5, 0.2, 0.2] }));
            }
            _ => {}
        }
        let on = |device: &Device| learnt(sizes[1], &made_up(name, sizes, fall, device), &targets);
        let ((found, pulls), (items, wanted)) = (on(device), on(&Device::flex()));
        let most = wanted.iter().copied().fold(0.0, f32::max);
        let learners = wanted.iter().filter(|pull| **pull > 1e-6 * most).count();
        println!("{name}: {} objects, {learners} anchors learn, items {found:?} {items:?}", targets.len());
        match name {
            "none" => assert_eq!(learners, 0),
            // Anchors that several want.
            "crowded" => assert!(learners > 200 && learners < 10 * targets.len()),
            _ => assert!(learners > 10),
        }
        assert!(worst_each(&found, &items) <= 1e-4, "{name}: {found:?} {items:?}");
        for (anchor, (pull, wanted)) in pulls.iter().zip(&wanted).enumerate() {
            assert!((pull - wanted).abs() <= 1e-3 * wanted + 1e-5 * most, "{name}, anchor {anchor}: {pull} {wanted}");
        }
    }
    // Of a batch that others have parts of the host says who learns, for the sum of all scores is known there alone.
    let (feats, targets) = (made_up("few", [2, 4], 0.0, device), scattered("few", [2, 4], 3, [0.1, 0.6]));
    let pass = || drop(DetectionLoss::new(4).forward(&feats, &targets).unwrap());
    let alone = |mine: &[f64]| vec![mine.to_vec()];
    let reads = [Counted::of(pass).1, Counted::of(|| with_parts(Rc::new(alone), pass)).1].map(|counted| counted.reads);
    assert_eq!(reads, [0, 1]);
}

/// How often a step launches a kernel, and waits for the device.
fn check_launches(device: &Device, imgsz: usize, half: bool) {
    let scratch = tempfile::tempdir().unwrap();
    let what = Benchmark { scale: Scale::N, batch: 2, imgsz, classes: 4, steps: 1, boxes: 3, half };
    let counted = what.count(device, scratch.path()).unwrap();
    assert_eq!(counted.reads, 1);
    let step = counted.launches;
    let count: usize = step.values().sum();
    // Size decides only which weight gradients are added up from parts and which outputs are made again and not kept: at most one launch more for each
    // of 63 and 57, of which some are here already.
    let of = |name: &str| step.iter().filter(|(kernel, _)| kernel.contains(name)).map(|(_, count)| count).sum::<usize>();
    let most = count + (63 - of("add_parts_kernel")) + (2 * 57 - of("norm_output_kernel"));
    println!("{count} launches to a step, f16 {half}, {most} at most in a larger one: {step:#?}");
    // Each gradient and each running statistic is written to its place in an arena, and there is one of either: they are squared, clipped, updated and averaged at once. Four
    // joins are of the head's outputs, a sum is of the loss.
    let of_update = [("blend", 2), ("clip", 1), ("sgd", 1), ("squares", 3), ("join", 4), ("whole_kernel", 3)];
    assert_eq!(of_update.map(|(name, _)| (name, of(name))), of_update, "{step:#?}");
    // It was some 3,400.
    assert!(most <= 800, "f16 {half}: {most} launches to a step: {step:#?}");
}

/// What is planned of a card is what an allocator gives out at most: while a batch is computed, with things made again and kept, and, of few pixels, in an update.
fn check_memory(device: &Device, imgsz: usize, half: bool) {
    let model = YoloConfig::new(NC).init(0, &Device::flex());
    let (summary, scratch) = (model.summary(imgsz, imgsz), tempfile::tempdir().unwrap());
    for keeps in [false, true] {
        let what = Benchmark { scale: Scale::N, batch: 4, imgsz, classes: NC, steps: 1, boxes: 3, half };
        let (of, before) = (device.clone(), set_keeps(keeps));
        let in_use = move || of.memory_pool_usage().map_or(0, |usage| usage.bytes_in_use);
        let run = || what.run(device, scratch.path(), None).unwrap();
        // What Burn chooses by trying is chosen in the first.
        if !keeps {
            run();
        }
        let most = most_at_launches(in_use, run).1 as f64;
        set_keeps(before);
        let held = Held { moments: 1, accumulates: false, keeps, half };
        let planned = Plan::new(&summary, Place::Card, 4, [3, imgsz], held, 0, 0.0).given_out();
        let reserved = device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved);
        println!("{imgsz} pixels, f16 {half}, keeps {keeps}: {most} bytes in use at most, {planned} planned; {reserved} reserved");
        assert!(
            (0.9..=1.01).contains(&(most / planned)),
            "{imgsz} pixels, f16 {half}, keeps {keeps}: {most} bytes in use at most, {planned} planned"
        );
    }
}

/// The same in f16, by hand.
#[test]
#[ignore = "minutes, in which lavapipe compiles the kernels of larger images"]
fn memory_of_a_step_in_f16() {
    if std::env::var_os(CHILD).is_none() {
        if let Some(icd) = asked_for("BELLOWS_LAVAPIPE", ".ci/lavapipe") {
            by_a_child("memory_of_a_step_in_f16", "vulkan", &[("VK_DRIVER_FILES", icd)]);
        }
        return;
    }
    set_default_lowering(Lowering::Gemm);
    check_memory(&Device::vulkan(DeviceKind::DefaultDevice), 320, true);
}

/// Bytes an image of a step in f32 with images of 64 pixels: what two images have more than one. And no launch of it is unknown but a few small ones.
#[test]
fn bytes_of_a_step_are_counted() {
    const NAME: &str = "bytes_of_a_step_are_counted";
    if std::env::var_os(CHILD).is_none() {
        if let Some(icd) = asked_for("BELLOWS_SWIFTSHADER", ".ci/swiftshader") {
            by_a_child(NAME, "vulkan", &[("VK_DRIVER_FILES", icd)]);
        }
        return;
    }
    set_default_lowering(Lowering::Gemm);
    let (device, scratch) = (Device::vulkan(DeviceKind::DefaultDevice), tempfile::tempdir().unwrap());
    let count = |batch| {
        let what = Benchmark { scale: Scale::N, batch, imgsz: 64, classes: 4, steps: 1, boxes: 3, half: false };
        what.count(&device, scratch.path()).unwrap()
    };
    let counts = [1, 2].map(count);
    [64, 320].into_iter().for_each(|imgsz| check_memory(&device, imgsz, false));
    let of_an_image = |bytes: &dyn Fn(&Counted) -> u64| bytes(&counts[1]) - bytes(&counts[0]);

    // Shortcuts are added by the normalisation before them, and gradients that meet by the convolution whose comes second. Left are those of maps that are doubled, of
    // layers 9 and 12, and, of what lies between the two bottlenecks of layers 4 and 6, that of the second one's shortcut. They have so many numbers at 640 pixels.
    let (doubled, between) = (102_400 + 204_800, 204_800 + 102_400);
    // And of all but the last of the pooling pyramid's maps two.
    let pyramid = 3 * 51_200;
    // Two tensors of f32 are read and one is written, and there are a hundredth of the pixels.
    assert_eq!(of_an_image(&|counted| counted.work["sum of two"].bytes), 3 * 4 * (doubled + between + pyramid) / 100);
    // Together 9.1 MB by arithmetic: of a convolution's inputs three passes and of its outputs ten, sums, pooling, doubling and the loss. Parts of weight
    // gradients are cut by the batch. What an update writes in the place of what it reads is of no image.
    let all = of_an_image(&|counted| counted.work.values().map(|done| done.bytes).sum());
    println!("{all} bytes an image: {counts:#?}");
    assert!((8_600_000..9_700_000).contains(&all), "{all} bytes an image");

    for counted in &counts {
        // Sums of the loss's terms and of six biases' gradients, tensors of 1 that gradients begin with, factors of the loss, one of its terms, and parts of joined
        // gradients that are put in order.
        let small = ["reduce", "full_kernel", "MulOp", "slice_kernel", "contiguous"];
        let other = counted.unknown.keys().find(|kernel| !small.iter().any(|name| kernel.contains(name)));
        let unknown: usize = counted.unknown.values().sum();
        assert!(other.is_none() && unknown <= 40, "{unknown} launches that nothing is known of: {:#?}", counted.unknown);
    }
}

#[test]
fn ten_steps_of_training() {
    let golden = golden();
    let case = plain();
    let (model, trace) =
        train(model_from(&formula_weights(), NC, &Device::flex()), &case.pixels(), case.shape(), &case.targets, 10, 0.0002);
    let reference = &golden["steps.items"].1;
    // In the tenth step something is assigned so narrowly that roundings, hence the number of threads, decide it: 2e-3 or 1e-4.
    let errors = [worst_each(&trace[..27], &reference[..27]), worst_each(&trace[27..], &reference[27..])];
    println!("nine steps: losses {:.1e}, the tenth {:.1e}", errors[0], errors[1]);
    assert!(errors[0] <= 1e-3 && errors[1] <= 5e-3, "{trace:?} {reference:?}");

    // Running statistics do not act on training, so only the final state shows them.
    let tensors = to_tensors(&model, 10).unwrap();
    let mut names: Vec<String> = named_tensors(&model).into_iter().map(|t| t.0).collect();
    names.sort();
    let reference = golden["steps.final.sketch"].1.chunks(9);
    assert_eq!(reference.len(), names.len());
    let errors = names.iter().zip(reference).map(|(k, r)| (sketch_error(sketch(k, &tensors[k].1), r), k));
    let (error, name) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("ten steps: state {error:.1e} at {name}");
    assert!(error <= 1e-3, "final {name}: {error}");
}

fn train(mut model: Yolo, pixels: &[f32], shape: [usize; 4], targets: &[(u32, Label)], steps: usize, lr: f32) -> (Yolo, Vec<f32>) {
    let device = Device::flex().autodiff();
    let loss = DetectionLoss::new(model.nc());
    let mut sgd = Sgd::default();
    let mut trace = vec![];
    for _ in 0..steps {
        let out = loss.forward(&model.forward(image(pixels.to_vec(), shape, &device)), targets).unwrap();
        trace.extend(vec(out.items));
        model = sgd.step(model, &out.total.backward(), lr);
    }
    (model, trace)
}

#[test]
fn reference_files() {
    let Some(dir) = std::env::var_os("BELLOWS_YOLO_GOLDEN").map(PathBuf::from) else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_YOLO_GOLDEN is not set").unwrap();
        return;
    };
    let file = |name: &str| read(&dir.join(format!("{name}.safetensors")));
    let (weights, case, train_ref, steps) = (file("weights"), file("case"), file("train"), file("steps"));
    let nc = weights["model.22.cv3.0.2.bias"].1.len();
    let (shape, pixels) = &case["img"];
    let shape: [usize; 4] = shape.as_slice().try_into().unwrap();
    let rows = case["batch_idx"].1.iter().zip(&case["cls"].1).zip(case["bboxes"].1.chunks(4));
    let targets: Vec<(u32, Label)> = rows.map(|((i, c), b)| (*i as u32, Label { class: *c as u32, xywh: b.try_into().unwrap() })).collect();

    let infer = model_from(&weights, nc, &Device::flex()).valid();
    let y = vec(infer.decode(&infer.forward(image(pixels.clone(), shape, &Device::flex()))));
    let error = relative(&y, &file("eval")["y"].1);
    println!("eval {error:.2e} (worst {:.2e})", worst(&y, &file("eval")["y"].1));
    assert!(error <= 1e-4);

    let model = model_from(&weights, nc, &Device::flex());
    let feats = model.forward(image(pixels.clone(), shape, &Device::flex().autodiff()));
    for (i, f) in feats.iter().enumerate() {
        let error = relative(&vec(f.clone()), &train_ref[&format!("feats.{i}")].1);
        println!("feats.{i} {error:.2e}");
        assert!(error <= 1e-4);
    }
    let assign = file("assign");
    let own = assignment(&feats, &targets);
    let mut score_error = 0.0f64;
    let anchors = assign["fg_mask"].1.len() / shape[0];
    for (i, own) in own.iter().enumerate() {
        let mask = &assign["fg_mask"].1[i * anchors..][..anchors];
        let expected: Vec<usize> = (0..anchors).filter(|&a| mask[a] > 0.0).collect();
        assert_eq!(own.iter().map(|f| f.anchor).collect::<Vec<_>>(), expected);
        for f in own {
            let at = i * anchors + f.anchor;
            assert!(worst(&f.target.xyxy, &assign["target_bboxes"].1[at * 4..][..4]) < 1e-6, "the matched box");
            let scores = &assign["target_scores"].1[at * nc..][..nc];
            for (c, s) in scores.iter().enumerate() {
                let own = if c == f.target.class as usize { f.score } else { 0.0 };
                score_error = greatest([score_error, f64::from((own - s).abs())].into_iter());
            }
        }
    }
    println!("foreground {} anchors identical, target scores {score_error:.2e}", own.iter().flatten().count());
    assert!(score_error <= 1e-5);
    let out = DetectionLoss::new(nc).forward(&feats, &targets).unwrap();
    let error = worst_each(&vec(out.items), &train_ref["loss_items"].1);
    println!("loss items {error:.2e}");
    assert!(error <= 1e-5);
    let grads = gradients(&model, &out.total.backward());
    let errors = grads.iter().map(|(k, g)| (relative(g, &train_ref[&format!("grad.{k}")].1), k));
    let (error, name) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{} gradients, worst {error:.2e} at {name}", grads.len());
    assert!(error <= 1e-3);

    let count = steps["loss_items"].0[0];
    let lr = std::env::var("BELLOWS_YOLO_GOLDEN_LR").map_or(0.01, |v| v.parse().unwrap());
    let (model, trace) = train(model_from(&weights, nc, &Device::flex()), pixels, shape, &targets, count, lr);
    let error = worst_each(&trace, &steps["loss_items"].1);
    for (own, reference) in trace.chunks(3).zip(steps["loss_items"].1.chunks(3)) {
        println!("  {own:?} {reference:?} {:.1e}", worst_each(own, reference));
    }
    println!("{count} steps: losses {error:.2e}");
    let tensors = to_tensors(&model, count as u64).unwrap();
    let finals = tensors.iter().filter(|(_, t)| t.1.iter().any(|v| *v != 0.0));
    let errors = finals.map(|(k, t)| (relative(&t.1, &steps[&format!("final.{k}")].1), k));
    let (worst, name) = errors.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{count} steps: state {worst:.2e} at {name}");
    // At a high rate training is chaotic: at 0.01, PyTorch with and without its oneDNN convolutions parts by 3 % in
    // ten steps. The first five steps agree at any rate, all ten at a low one.
    let checked = if lr <= 5e-4 { trace.len() } else { 15.min(trace.len()) };
    let error = worst_each(&trace[..checked], &steps["loss_items"].1[..checked]);
    assert!(error <= 1e-3, "{error}");
}
