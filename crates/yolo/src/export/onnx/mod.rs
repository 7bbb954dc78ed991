//! A folded detector as ONNX: input `images` `[B, C, H, W]`, RGB or gray in 0..1; output `output0` `[B, 4 + nc, A]`, boxes as centre, width and height
//! in pixels and scores in 0..1, or with suppression inside `[B, max_det, 6]`.
//!
//! `graph` collects nodes, `network` walks the layers, `decode` makes boxes of what the head says, `nms` suppresses, `options` is what can be chosen, `metadata` is the text beside it.
//! Weights keep their published names, so that the file can be used as weights here. Shape, names of inputs and outputs, and metadata are those
//! of Ultralytics' exports, so what reads theirs reads these.

mod decode;
mod graph;
mod metadata;
mod network;
mod nms;
mod options;

use bellows_weights::onnx::{Dimension, Graph, Model, OperatorSet, ValueInfo, encode};

use super::about::{About, VERSION};
use super::error::ExportError;
use crate::model::Fused;
use crate::model::head::{Anchors, strides};
use graph::Builder;
pub use options::{OPSET, OnnxOptions, Suppression};

/// Version of the file format that came with them.
const IR_VERSION: i64 = 8;

/// The file of `model`.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_onnx(model: &Fused, about: &About, options: &OnnxOptions) -> Result<Vec<u8>, ExportError> {
    let mut b = Builder::default();
    for (name, (shape, values)) in model.tensors()? {
        b.floats(&name, &shape, &values);
    }
    let [h, w] = options.size;
    let sizes: Vec<[usize; 2]> = strides(model.head_inputs().len()).iter().map(|s| [h / s, w / s]).collect();
    let anchors = Anchors::new(&sizes);
    let count = anchors.len();
    let rows = 4 + model.nc();
    let heads = network::network(&mut b, model.layers(), model.head_inputs());
    let anchors = if options.dynamic { decode::anchors_in_graph(&mut b, &heads) } else { decode::constant_anchors(&mut b, &anchors) };
    let (boxes, scores) = decode::decode(&mut b, &heads, &anchors);
    let free = |number: usize, name: &str| if options.dynamic { Dimension::from(name) } else { number.into() };
    let batch = || free(options.batch, "batch");
    let shape = match options.nms {
        Some(nms) => {
            nms::suppress(&mut b, &boxes, &scores, model.nc(), &nms, (!options.dynamic).then_some(count));
            vec![batch(), free(nms.max_det.min(count), "detections"), 6.into()]
        }
        None => {
            b.output("/Concat", "Concat", &[&boxes, &scores], vec![graph::axis(1)]);
            vec![batch(), rows.into(), free(count, "anchors")]
        }
    };
    let images = vec![batch(), model.channels().into(), free(h, "height"), free(w, "width")];
    let graph = Graph {
        node: b.nodes,
        name: about.size(),
        initializer: b.constants,
        input: vec![ValueInfo::floats(graph::INPUT, images)],
        output: vec![ValueInfo::floats(graph::OUTPUT, shape)],
    };
    Ok(encode(&Model {
        ir_version: IR_VERSION,
        producer_name: "bellows".into(),
        producer_version: VERSION.into(),
        graph: Some(graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPSET }],
        metadata_props: metadata::metadata(about, options),
    }))
}
