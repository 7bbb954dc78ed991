//! Suppression as part of the graph: rows `x1, y1, x2, y2, score, class`, best first; the rows that are left over are zero.
//!
//! ONNX's own operator suppresses within each class but returns a list of all images, class by class. So that it sees only an anchor's best class, the scores
//! of the others are set to 0; what it chose is written back into a row of scores for each image, zero where nothing was chosen, and the
//! best of these are taken. No loop over images is needed, and the batch may be of any size.

use bellows_weights::onnx::Attribute;

use super::graph::{Builder, axis};
use super::options::Suppression;

/// `boxes` `[B, 4, A]` and `scores` `[B, nc, A]` to the graph's output; `anchors` is A where it is known.
pub(super) fn suppress(b: &mut Builder, boxes: &str, scores: &str, nc: usize, nms: &Suppression, anchors: Option<usize>) {
    let keep = |on: bool| Attribute::int("keepdims", i64::from(on));
    let boxes = b.node("/nms/Transpose", "Transpose", &[boxes], vec![Attribute::ints("perm", &[0, 2, 1])]);
    let best = b.node("/nms/ReduceMax", "ReduceMax", &[scores], vec![Attribute::ints("axes", &[1]), keep(false)]);
    let class = b.node("/nms/ArgMax", "ArgMax", &[scores], vec![axis(1), keep(true)]);
    let classes = b.ints("/nms/classes", &(0..nc as i64).collect::<Vec<_>>());
    let classes = b.reshape("/nms/Reshape", &classes, &[1, -1, 1]);
    let is_best = b.node("/nms/Equal", "Equal", &[&class, &classes], Vec::new());
    let zero = b.floats("/nms/zero", &[], &[0.0]);
    let only = b.node("/nms/Where", "Where", &[&is_best, scores, &zero], Vec::new());

    let most = b.ints("/nms/max_det", &[nms.max_det as i64]);
    let iou = b.floats("/nms/iou", &[1], &[nms.iou]);
    let conf = b.floats("/nms/conf", &[1], &[nms.conf]);
    let by_centre = vec![Attribute::int("center_point_box", 1)];
    let chosen = b.node("/nms/NonMaxSuppression", "NonMaxSuppression", &[&boxes, &only, &most, &iou, &conf], by_centre);
    // Image, class, anchor: the class is known.
    let columns = b.ints("/nms/columns", &[0, 2]);
    let places = b.node("/nms/Gather", "Gather", &[&chosen, &columns], vec![axis(1)]);
    let values = b.node("/nms/GatherND", "GatherND", &[&best, &places], Vec::new());
    let shape = b.node("/nms/Shape", "Shape", &[&best], Vec::new());
    let nothing = b.node("/nms/ConstantOfShape", "ConstantOfShape", &[&shape], Vec::new());
    let kept = b.node("/nms/ScatterND", "ScatterND", &[&nothing, &places, &values], Vec::new());

    let count = match anchors {
        Some(anchors) => b.ints("/nms/count", &[nms.max_det.min(anchors) as i64]),
        None => {
            let anchors = b.node("/nms/Shape_1", "Shape", &[&best], vec![Attribute::int("start", 1)]);
            b.node("/nms/Min", "Min", &[&most, &anchors], Vec::new())
        }
    };
    let [score, anchor] = b.pair("/nms/TopK", "TopK", &[&kept, &count], vec![axis(1)]);
    let last = b.ints("/nms/last", &[2]);
    let score = b.node("/nms/Unsqueeze", "Unsqueeze", &[&score, &last], Vec::new());
    let anchor = b.node("/nms/Unsqueeze_1", "Unsqueeze", &[&anchor, &last], Vec::new());

    let xyxy = corners(b, &boxes);
    let class = b.node("/nms/Transpose_1", "Transpose", &[&class], vec![Attribute::ints("perm", &[0, 2, 1])]);
    let class = b.node("/nms/Cast", "Cast", &[&class], vec![Attribute::int("to", 1)]);
    let all = b.concat("/nms/Concat", &[xyxy, class], 2);
    let width = b.ints("/nms/width", &[1, 1, 5]);
    let wide = b.node("/nms/Expand", "Expand", &[&anchor, &width], Vec::new());
    let rows = b.node("/nms/GatherElements", "GatherElements", &[&all, &wide], vec![axis(1)]);
    let found = b.node("/nms/Greater", "Greater", &[&score, &zero], Vec::new());
    let rows = b.node("/nms/Where_1", "Where", &[&found, &rows, &zero], Vec::new());
    let parts = b.ints("/nms/parts", &[4, 1]);
    let [xyxy, class] = b.pair("/nms/Split_1", "Split", &[&rows, &parts], vec![axis(2)]);
    b.output("/nms/Concat_1", "Concat", &[&xyxy, &score, &class], vec![axis(2)]);
}

/// Centres and sizes `[B, A, 4]` to corners.
fn corners(b: &mut Builder, boxes: &str) -> String {
    let halves = b.ints("/nms/halves", &[2, 2]);
    let [centre, size] = b.pair("/nms/Split", "Split", &[boxes, &halves], vec![axis(2)]);
    let two = b.floats("/nms/two", &[], &[2.0]);
    let reach = b.node("/nms/Div", "Div", &[&size, &two], Vec::new());
    let low = b.node("/nms/Sub", "Sub", &[&centre, &reach], Vec::new());
    let high = b.node("/nms/Add", "Add", &[&centre, &reach], Vec::new());
    b.concat("/nms/Concat_2", &[low, high], 2)
}
