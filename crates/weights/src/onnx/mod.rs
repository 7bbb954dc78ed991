//! ONNX: a graph of operations with its weights, as protobuf.
//!
//! `messages` are those parts of `onnx.proto` that a convolutional network needs, with their field numbers; whoever knows a model builds its
//! graph of them and has the bytes from [`encode`]. Reading is for weights only: `read` walks the bytes (`wire`) and takes initializers and metadata,
//! never the graph, so nesting costs nothing and a length that the file does not have is refused before anything is allocated.
//! Weights in files beside the model are refused.
//! Format: <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>.

mod messages;
mod read;
mod wire;

pub use messages::{
    Attribute, Dimension, Entry, Graph, Model, Node, OperatorSet, Shape, Tensor, TensorType, Type, ValueInfo, decode, encode,
};
pub(crate) use read::{is_onnx, read};
