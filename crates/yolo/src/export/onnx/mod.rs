//! A folded detector as ONNX: input `images` `[B, C, H, W]`, RGB or gray in 0..1; output `output0` `[B, 4 + nc, A]`, boxes as centre, width and height
//! in pixels and scores in 0..1, or with suppression inside `[B, max_det, 6]`.
//!
//! `graph` collects nodes, `network` walks the layers, `decode` makes boxes of what the head says, `nms` suppresses, `metadata` is the text beside it.
//! Weights keep their published names, so that the file can be used as weights here. Shape, names of inputs and outputs, and metadata are those
//! of Ultralytics' exports, so what reads theirs reads these.

mod decode;
mod graph;
mod metadata;
mod network;
mod nms;

use bellows_weights::onnx::{Dimension, Graph, Model, OperatorSet, ValueInfo, encode};
use burn::store::burn_pack::Error as ReadError;

use super::about::{About, VERSION};
use crate::model::Fused;
use crate::model::head::{Anchors, STRIDES};
use graph::Builder;

/// Version of the operators.
pub const OPSET: i64 = 17;
/// Version of the file format that came with them.
const IR_VERSION: i64 = 8;

/// How to export.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnnxOptions {
    /// Images at a time.
    pub batch: usize,
    /// Height and width of the images, multiples of 32.
    pub size: [usize; 2],
    /// Let batch, height and width be anything when the graph runs.
    pub dynamic: bool,
    /// Suppress inside the graph.
    pub nms: Option<Suppression>,
}

/// Suppression inside the graph: of each anchor the best class, within a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suppression {
    /// A score must be greater than this.
    pub conf: f32,
    /// A box is dropped when its IoU with a better one of its class is greater than this.
    pub iou: f32,
    /// Rows of the output for each image; there are no more than anchors.
    pub max_det: usize,
}

/// The file of `model`.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_onnx(model: &Fused, about: &About, options: &OnnxOptions) -> Result<Vec<u8>, ReadError> {
    let mut b = Builder::default();
    for (name, (shape, values)) in model.tensors()? {
        b.floats(&name, &shape, &values);
    }
    let [h, w] = options.size;
    let anchors = Anchors::new(STRIDES.map(|s| [h / s, w / s]));
    let count = anchors.len();
    let rows = 4 + model.nc();
    let heads = network::network(&mut b, model.layers());
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
