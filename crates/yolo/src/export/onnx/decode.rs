//! Logits to boxes and scores. A side is the expectation of a softmax over 16 bins, in grid units, from the anchor (see `model::head`).
//!
//! The anchors of a fixed size are constants. Where sizes are free, they are counted out of the shapes of the maps when the graph runs.

use bellows_weights::onnx::Attribute;

use super::graph::Builder;
use super::network::Heads;
use crate::model::head::{Anchors, REG_MAX, strides};

/// Values that say where anchors are: centres `[1, 2, A]` in grid units and pixels per unit `[1, 1, A]`.
pub(super) struct Grid {
    centres: String,
    strides: String,
}

/// Anchors that are known.
pub(super) fn constant_anchors(b: &mut Builder, anchors: &Anchors) -> Grid {
    let n = anchors.len();
    let planes: Vec<f32> = (0..2).flat_map(|k| anchors.centres.iter().map(move |c| c[k])).collect();
    Grid { centres: b.floats("/anchors", &[1, 2, n], &planes), strides: b.floats("/strides", &[1, 1, n], &anchors.strides) }
}

/// Anchors of whatever size the maps have.
pub(super) fn anchors_in_graph(b: &mut Builder, heads: &Heads) -> Grid {
    let (zero, one) = (b.int("/anchors/zero", 0), b.int("/anchors/one", 1));
    let half = b.floats("/anchors/half", &[], &[0.5]);
    let ones = b.ints("/anchors/ones", &[1, 1]);
    let mut centres = Vec::new();
    let mut units = Vec::new();
    for (level, (map, &stride)) in heads.levels.iter().zip(strides(heads.levels.len())).enumerate() {
        let at = |name: &str| format!("/anchors.{level}/{name}");
        let shape = b.node(&at("Shape"), "Shape", &[map], vec![Attribute::int("start", 2)]);
        let axis = |b: &mut Builder, index: &str, name: &str, as_column: i64| {
            let at = |op: &str| at(&format!("{name}/{op}"));
            let count = b.node(&at("Gather"), "Gather", &[&shape, index], vec![Attribute::int("axis", 0)]);
            let cells = b.node(&at("Range"), "Range", &[&zero, &count, &one], Vec::new());
            let cells = b.node(&at("Cast"), "Cast", &[&cells], vec![Attribute::int("to", 1)]);
            let cells = b.node(&at("Add"), "Add", &[&cells, &half], Vec::new());
            let place = b.ints(&at("place"), &[as_column]);
            let cells = b.node(&at("Unsqueeze"), "Unsqueeze", &[&cells, &place], Vec::new());
            let grid = b.node(&at("Expand"), "Expand", &[&cells, &shape], Vec::new());
            b.reshape(&at("Reshape"), &grid, &[1, 1, -1])
        };
        let x = axis(b, &one, "x", 0);
        let y = axis(b, &zero, "y", 1);
        centres.push(b.concat(&at("Concat"), &[x.clone(), y], 1));
        let count = b.node(&at("count/Shape"), "Shape", &[&x], vec![Attribute::int("start", 2)]);
        let whole = b.concat(&at("count/Concat"), &[ones.clone(), count], 0);
        let stride = b.floats(&at("stride"), &[1, 1, 1], &[stride as f32]);
        units.push(b.node(&at("Expand"), "Expand", &[&stride, &whole], Vec::new()));
    }
    Grid { centres: b.concat("/anchors/Concat", &centres, 2), strides: b.concat("/strides/Concat", &units, 2) }
}

/// Boxes `[B, 4, A]`, centre, width and height in pixels, and scores `[B, nc, A]` in 0..1.
pub(super) fn decode(b: &mut Builder, heads: &Heads, grid: &Grid) -> (String, String) {
    let bins = REG_MAX as i64;
    let at = |op: &str| format!("/{}.dfl/{op}", heads.path);
    let distances = format!("{}.dfl.conv.weight", heads.path);
    let sides = b.reshape(&at("Reshape"), &heads.boxes, &[0, 4, bins, -1]);
    let sides = b.node(&at("Transpose"), "Transpose", &[&sides], vec![Attribute::ints("perm", &[0, 2, 1, 3])]);
    let shares = b.node(&at("Softmax"), "Softmax", &[&sides], vec![Attribute::int("axis", 1)]);
    let sides = b.node(&at("conv/Conv"), "Conv", &[&shares, &distances], vec![Attribute::ints("kernel_shape", &[1, 1])]);
    let sides = b.reshape(&at("Reshape_1"), &sides, &[0, 4, -1]);

    let [near, far] = b.split("/Split", &sides, [2, 2]);
    let low = b.node("/Sub", "Sub", &[&grid.centres, &near], Vec::new());
    let high = b.node("/Add", "Add", &[&grid.centres, &far], Vec::new());
    let sum = b.node("/Add_1", "Add", &[&low, &high], Vec::new());
    let two = b.floats("/two", &[], &[2.0]);
    let centre = b.node("/Div", "Div", &[&sum, &two], Vec::new());
    let size = b.node("/Sub_1", "Sub", &[&high, &low], Vec::new());
    let units = b.concat("/Concat_1", &[centre, size], 1);
    let boxes = b.node("/Mul", "Mul", &[&units, &grid.strides], Vec::new());
    let scores = b.node("/Sigmoid", "Sigmoid", &[&heads.classes], Vec::new());
    (boxes, scores)
}
