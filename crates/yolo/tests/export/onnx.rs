//! ONNX: the graph is whole, it computes what the model computes (by an interpreter that knows only the definitions), and it is read back as weights.

use std::collections::{BTreeMap, BTreeSet};

use bellows_weights::onnx::{Dimension, Model, ValueInfo, decode};
use bellows_yolo::export::{OnnxOptions, Suppression, to_onnx};
use bellows_yolo::metrics::{NmsConfig, nms};
use bellows_yolo::model::YoloConfig;
use bellows_yolo::model::names::to_host;
use bellows_yolo::{Detector, WeightFile};
use burn::tensor::Device;

use crate::interpreter::{Array, run};
use crate::{about, images, model, pixels, preprocessing};

const STATIC: OnnxOptions = OnnxOptions { batch: 1, size: [32, 64], dynamic: false, nms: None };

fn config() -> YoloConfig {
    YoloConfig::new(3)
}

fn exported(config: YoloConfig, options: &OnnxOptions) -> (Vec<u8>, Model) {
    let bytes = to_onnx(&model(config).fuse(&Device::flex()), &about(config), options).unwrap();
    let graph = decode(&bytes).unwrap();
    (bytes, graph)
}

fn input(shape: [usize; 4]) -> Array {
    Array::new(shape.to_vec(), pixels(shape).into_iter().map(f64::from).collect())
}

/// What the model itself says, `[B, 4 + nc, A]`.
fn expected(config: YoloConfig, shape: [usize; 4]) -> Vec<f32> {
    let fused = model(config).fuse(&Device::flex());
    to_host(fused.decode(&fused.forward(images(shape))))
}

#[track_caller]
fn close(output: &Array, expected: &[f32], rows: usize, tolerance: f64) {
    assert_eq!(output.data.len(), expected.len());
    // Boxes are compared with the largest coordinate, scores with the largest score.
    let anchors = output.shape[2];
    for is_box in [true, false] {
        let own = (0..expected.len()).filter(|i| ((i / anchors % rows) < 4) == is_box);
        let (mut worst, mut largest) = (0.0f64, 0.0f64);
        for i in own {
            worst = worst.max((output.data[i] - f64::from(expected[i])).abs());
            largest = largest.max(f64::from(expected[i]).abs());
        }
        assert!(worst <= tolerance * largest, "{worst} of {largest}");
    }
}

fn shape_of(value: &ValueInfo) -> Vec<Dimension> {
    value.r#type.clone().unwrap().tensor_type.unwrap().shape.unwrap().dim
}

#[test]
fn every_graph_is_whole() {
    let nms = Some(Suppression { conf: 0.25, iou: 0.7, max_det: 300 });
    for options in
        [STATIC, OnnxOptions { dynamic: true, ..STATIC }, OnnxOptions { nms, ..STATIC }, OnnxOptions { dynamic: true, nms, ..STATIC }]
    {
        let graph = exported(config(), &options).1.graph.unwrap();
        let mut known: BTreeSet<&str> = graph.initializer.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(known.len(), graph.initializer.len(), "initializers with one name");
        assert!(known.insert(&graph.input[0].name));
        let (mut used, mut names) = (BTreeSet::new(), BTreeSet::new());
        for node in &graph.node {
            assert!(names.insert(&node.name), "two nodes are called {}", node.name);
            for input in node.input.iter().filter(|input| !input.is_empty()) {
                assert!(known.contains(input.as_str()), "{} reads {input}, which nothing made before", node.name);
                used.insert(input.as_str());
            }
            node.output.iter().for_each(|output| assert!(known.insert(output), "{output} is made twice"));
        }
        used.insert(&graph.output[0].name);
        // Of what is split off, and of the two results of choosing the best, a part may be left over.
        let unused: Vec<_> = known.difference(&used).collect();
        assert!(unused.is_empty(), "made for nothing: {unused:?}");
    }
}

#[test]
fn operators_weights_and_shapes_are_those_of_the_architecture() {
    let (_, file) = exported(config(), &STATIC);
    let graph = file.graph.unwrap();
    let mut count = BTreeMap::new();
    graph.node.iter().for_each(|node| *count.entry(node.op_type.as_str()).or_insert(0) += 1);
    // 57 convolutions with SiLU, 6 without, and the expectation; 8 blocks, 6 shortcuts; the rest is decoding.
    let expected = [
        ("Add", 6 + 2),
        ("Concat", 8 + 1 + 4 + 2 + 2),
        ("Conv", 57 + 6 + 1),
        ("Div", 1),
        ("MaxPool", 3),
        ("Mul", 57 + 1),
        ("Reshape", 6 + 2),
        ("Resize", 2),
        ("Sigmoid", 57 + 1),
        ("Softmax", 1),
        ("Split", 8 + 1),
        ("Sub", 2),
        ("Transpose", 1),
    ];
    assert_eq!(count, BTreeMap::from(expected));
    assert_eq!(graph.initializer.iter().filter(|t| t.name.starts_with("model.")).count(), 127);
    let fixed = |shape: &[usize]| shape.iter().map(|&n| Dimension::from(n)).collect::<Vec<_>>();
    assert_eq!((graph.input[0].name.as_str(), graph.output[0].name.as_str()), ("images", "output0"));
    assert_eq!(shape_of(&graph.input[0]), fixed(&[1, 3, 32, 64]));
    assert_eq!(shape_of(&graph.output[0]), fixed(&[1, 7, 42]));
    assert_eq!((file.ir_version, file.opset_import[0].version), (8, 17));
    let keys = file.metadata_props.iter().map(|e| (e.key.as_str(), e.value.as_str()));
    let metadata = BTreeMap::from_iter(keys);
    for (key, value) in [
        ("stride", "32"),
        ("task", "detect"),
        ("batch", "1"),
        ("imgsz", "[32, 64]"),
        ("names", r#"{0: "class '0'", 1: "class '1'", 2: "class '2'"}"#),
        ("args", "{'batch': 1, 'half': False, 'dynamic': False, 'simplify': True, 'opset': 17, 'nms': False}"),
        ("channels", "3"),
        ("license", "CC0"),
        ("date", "2026-11-22T08:00:00"),
    ] {
        assert_eq!(metadata[key], value);
    }

    let dynamic = exported(config(), &OnnxOptions { dynamic: true, ..STATIC }).1.graph.unwrap();
    assert_eq!(shape_of(&dynamic.input[0]), ["batch".into(), 3.into(), "height".into(), "width".into()]);
    assert_eq!(shape_of(&dynamic.output[0]), ["batch".into(), 7.into(), "anchors".into()]);
}

#[test]
fn a_graph_computes_what_the_model_computes() {
    let gray = YoloConfig { channels: 1, sppf_act: false, ..YoloConfig::new(1) };
    for (config, batch) in [(config(), 1), (gray, 2)] {
        let shape = [batch, config.channels, 32, 64];
        let (_, graph) = exported(config, &OnnxOptions { batch, ..STATIC });
        let output = run(&graph, input(shape));
        assert_eq!(output.shape, [batch, 4 + config.nc, 42]);
        close(&output, &expected(config, shape), 4 + config.nc, 1e-5);
    }
}

#[test]
fn a_dynamic_graph_takes_every_size() {
    let (_, graph) = exported(config(), &OnnxOptions { dynamic: true, ..STATIC });
    for shape in [[2, 3, 64, 32], [1, 3, 32, 96]] {
        close(&run(&graph, input(shape)), &expected(config(), shape), 7, 1e-5);
    }
}

#[test]
fn suppression_inside_is_ours() {
    let shape = [2, 3, 32, 64];
    let raw = expected(config(), shape);
    for (conf, iou, max_det, dynamic) in [(0.45f32, 0.5f32, 20, false), (0.45, 0.7, 300, true), (0.99, 0.7, 300, false)] {
        let options = OnnxOptions { batch: 2, dynamic, nms: Some(Suppression { conf, iou, max_det }), ..STATIC };
        let output = run(&exported(config(), &options).1, input(shape));
        assert_eq!(output.shape, [2, max_det.min(42), 6]);
        for (rows, raw) in output.data.chunks(max_det.min(42) * 6).zip(raw.chunks(7 * 42)) {
            let config = NmsConfig { conf, iou: iou.into(), max_det, multi_label: false, ..NmsConfig::default() };
            let kept = nms(raw, 3, 42, &config);
            assert_eq!(kept.is_empty(), conf > 0.9);
            let (found, rest) = rows.split_at(kept.len() * 6);
            assert!(rest.iter().all(|&v| v == 0.0), "rows that are left over are zero");
            for (row, kept) in found.chunks(6).zip(&kept) {
                let own = [&kept.xyxy.map(f64::from)[..], &[kept.score.into(), kept.class.into()]].concat();
                assert!(row.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-3), "{row:?} and {own:?}");
            }
        }
    }
}

#[test]
fn a_file_is_weights_again() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let gray = YoloConfig { channels: 1, sppf_act: false, ..YoloConfig::new(2) };
    for (i, (config, dynamic)) in [(config(), true), (gray, false)].into_iter().enumerate() {
        let path = folder.path().join(format!("{i}.onnx"));
        std::fs::write(&path, exported(config, &OnnxOptions { dynamic, ..STATIC }).0).unwrap();
        let read = Detector::open(&path, &device).unwrap();
        assert!(read.folded);
        assert_eq!((read.preprocessing, WeightFile::read(&path).unwrap().preprocessing()), (preprocessing(config), preprocessing(config)));
        assert_eq!((read.config, &read.names, read.imgsz), (config, &about(config).names, Some(64)));
        let (ours, theirs) = (model(config).fuse(&device), read.fuse(&device));
        assert_eq!(ours.tensors().unwrap(), theirs.tensors().unwrap());
        let outputs = |fused: &bellows_yolo::model::Fused| {
            fused.forward(images([1, config.channels, 64, 32])).into_iter().map(to_host).collect::<Vec<_>>()
        };
        assert_eq!(outputs(&ours), outputs(&theirs));
    }
}
