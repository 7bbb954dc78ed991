//! How a graph is exported.

/// Version of the operators.
pub const OPSET: i64 = 17;

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
