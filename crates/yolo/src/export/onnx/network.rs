//! The layers as nodes, one module after the other. SiLU is a sigmoid and a product, which runtimes recognise.

use bellows_weights::onnx::Attribute;

use super::graph::{Builder, INPUT};
use crate::model::Layer;
use crate::model::head::{Branch, Detect, REG_MAX};
use crate::model::layers::{Bottleneck, C2f, Conv, Conv2d, Sppf};

/// What the head says, and of what.
pub(super) struct Heads {
    /// Its layer's path: `model.22`.
    pub(super) path: String,
    /// Logits of the box sides' bins of the levels, `[B, 64, h, w]`.
    pub(super) levels: Vec<String>,
    /// The same of all anchors, `[B, 64, A]`.
    pub(super) boxes: String,
    /// Logits of the classes, `[B, nc, A]`.
    pub(super) classes: String,
}

/// The nodes of all layers; the head reads those of the numbers `inputs`.
pub(super) fn network(b: &mut Builder, layers: &[Layer], inputs: &[usize]) -> Heads {
    let mut values: Vec<String> = Vec::new();
    let mut heads = Heads { path: String::new(), levels: Vec::new(), boxes: String::new(), classes: String::new() };
    let mut x = INPUT.to_string();
    for (i, layer) in layers.iter().enumerate() {
        let path = format!("model.{i}");
        match layer {
            Layer::Conv(m) => x = conv(b, &path, m, &x),
            Layer::C2f(m) => x = c2f(b, &path, m, &x),
            Layer::Sppf(m) => x = sppf(b, &path, m, &x),
            Layer::Upsample(_) => x = upsample(b, &path, &x),
            Layer::Concat(m) => x = b.concat(&format!("/{path}/Concat"), &[x, values[m.with()].clone()], 1),
            Layer::Detect(m) => heads = detect(b, &path, m, &inputs.iter().map(|&input| values[input].as_str()).collect::<Vec<_>>()),
        }
        values.push(x.clone());
    }
    heads
}

fn conv2d(b: &mut Builder, path: &str, m: &Conv2d, x: &str) -> String {
    let k = m.weight.dims()[2] as i64;
    let stride = m.stride() as i64;
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{path}.{part}"));
    let attributes = vec![
        Attribute::ints("dilations", &[1, 1]),
        Attribute::int("group", 1),
        Attribute::ints("kernel_shape", &[k, k]),
        Attribute::ints("pads", &[k / 2; 4]),
        Attribute::ints("strides", &[stride, stride]),
    ];
    b.node(&format!("/{path}/Conv"), "Conv", &[x, &weight, &bias], attributes)
}

fn conv(b: &mut Builder, path: &str, m: &Conv, x: &str) -> String {
    let y = conv2d(b, &format!("{path}.conv"), &m.conv, x);
    if !m.act() {
        return y;
    }
    let gate = b.node(&format!("/{path}.act/Sigmoid"), "Sigmoid", &[&y], Vec::new());
    b.node(&format!("/{path}.act/Mul"), "Mul", &[&y, &gate], Vec::new())
}

fn bottleneck(b: &mut Builder, path: &str, m: &Bottleneck, x: &str) -> String {
    let y = conv(b, &format!("{path}.cv1"), &m.cv1, x);
    let y = conv(b, &format!("{path}.cv2"), &m.cv2, &y);
    if m.shortcut() { b.node(&format!("/{path}/Add"), "Add", &[x, &y], Vec::new()) } else { y }
}

fn c2f(b: &mut Builder, path: &str, m: &C2f, x: &str) -> String {
    let both = conv(b, &format!("{path}.cv1"), &m.cv1, x);
    let c = m.hidden();
    let [first, second] = b.split(&format!("/{path}/Split"), &both, [c, c]);
    let mut parts = vec![first, second.clone()];
    let mut last = second;
    for (j, inner) in m.m.iter().enumerate() {
        last = bottleneck(b, &format!("{path}.m.{j}"), inner, &last);
        parts.push(last.clone());
    }
    let joined = b.concat(&format!("/{path}/Concat"), &parts, 1);
    conv(b, &format!("{path}.cv2"), &m.cv2, &joined)
}

fn sppf(b: &mut Builder, path: &str, m: &Sppf, x: &str) -> String {
    let mut parts = vec![conv(b, &format!("{path}.cv1"), &m.cv1, x)];
    for i in 0..3 {
        let attributes = vec![
            Attribute::int("ceil_mode", 0),
            Attribute::ints("kernel_shape", &[5, 5]),
            Attribute::ints("pads", &[2; 4]),
            Attribute::ints("strides", &[1, 1]),
        ];
        parts.push(b.node(&format!("/{path}.m/MaxPool_{i}"), "MaxPool", &[&parts[i]], attributes));
    }
    let joined = b.concat(&format!("/{path}/Concat"), &parts, 1);
    conv(b, &format!("{path}.cv2"), &m.cv2, &joined)
}

fn upsample(b: &mut Builder, path: &str, x: &str) -> String {
    let scales = b.floats(&format!("/{path}/Resize_scales"), &[4], &[1.0, 1.0, 2.0, 2.0]);
    let attributes = vec![
        Attribute::text("coordinate_transformation_mode", "asymmetric"),
        Attribute::text("mode", "nearest"),
        Attribute::text("nearest_mode", "floor"),
    ];
    b.node(&format!("/{path}/Resize"), "Resize", &[x, "", &scales], attributes)
}

fn detect(b: &mut Builder, path: &str, m: &Detect, x: &[&str]) -> Heads {
    let mut levels = Vec::new();
    let mut branch = |b: &mut Builder, name: &str, branches: &[Branch], channels: usize| {
        let mut flat = Vec::new();
        for (level, (branch, x)) in branches.iter().zip(x).enumerate() {
            let path = format!("{path}.{name}.{level}");
            let y = conv(b, &format!("{path}.0"), &branch.0, x);
            let y = conv(b, &format!("{path}.1"), &branch.1, &y);
            let y = conv2d(b, &format!("{path}.2"), &branch.2, &y);
            flat.push(b.reshape(&format!("/{path}/Reshape"), &y, &[0, channels as i64, -1]));
            levels.push(y);
        }
        b.concat(&format!("/{path}.{name}/Concat"), &flat, 2)
    };
    let boxes = branch(b, "cv2", &m.cv2, 4 * REG_MAX);
    let nc = m.cv3.first().map_or(0, |branch| branch.2.weight.dims()[0]);
    let classes = branch(b, "cv3", &m.cv3, nc);
    levels.truncate(m.cv2.len());
    Heads { path: path.into(), levels, boxes, classes }
}
