//! The messages of ONNX, as far as they are written, and the helpers that fill them.
//!
//! Field numbers and types are those of `onnx.proto`. Its syntax is proto2, where a number that is there and a number that is
//! absent differ even if it is 0; hence the `Option`s of attributes.

use prost::Message;

use crate::error::{Fault, WeightsError};

/// A file: a graph, and what it needs of whoever runs it.
#[derive(Clone, PartialEq, Message)]
pub struct Model {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// Program that wrote it.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    /// Versions of the operators.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
    /// Text beside the graph.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<Entry>,
}

/// Operators in use.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSet {
    /// Whose: empty for ONNX itself.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// Their version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A key and its text.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The text.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Operations in an order in which each finds its inputs done.
#[derive(Clone, PartialEq, Message)]
pub struct Graph {
    /// The operations.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants, weights among them.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    /// What is fed.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    /// What comes out.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Values it reads, by name.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Values it makes.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Its operator.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// How.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
}

/// A named argument of an operation; `kind` says which of the fields holds it.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// An integer, kind 2.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Text, kind 3.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// Integers, kind 7.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// Which it is.
    #[prost(int32, tag = "20")]
    pub kind: i32,
}

/// A constant.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    /// Its shape.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Type of its elements: 1 is f32, 7 is i64.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Its name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// Its elements, little endian.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// An input or output of the graph.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfo {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Type>,
}

/// A type; only tensors are written.
#[derive(Clone, PartialEq, Message)]
pub struct Type {
    /// Of a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

/// Type of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    /// Of its elements, as in [`Tensor::data_type`].
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// Its shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    /// The extents.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// An extent: a number, or a name for one that is known only when the graph runs.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    /// The number.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The name.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

/// f32 in [`Tensor::data_type`].
const FLOAT: i32 = 1;
/// i64 in [`Tensor::data_type`].
const INT64: i32 = 7;

/// The file of a model. The same model gives the same bytes.
pub fn encode(model: &Model) -> Vec<u8> {
    model.encode_to_vec()
}

/// The model of a file that is trusted: a damaged one gives an error, but may take many times its size in memory first. Strangers' files
/// are for [`read`](crate::read()).
///
/// # Errors
/// Bytes that are no such message.
pub fn decode(bytes: &[u8]) -> Result<Model, WeightsError> {
    Ok(Model::decode(bytes).map_err(|error| Fault::Onnx { at: 0, what: error.to_string() })?)
}

impl Attribute {
    /// An integer.
    pub fn int(name: &str, i: i64) -> Self {
        Self { name: name.into(), i: Some(i), kind: 2, ..Self::default() }
    }

    /// Integers.
    pub fn ints(name: &str, ints: &[i64]) -> Self {
        Self { name: name.into(), ints: ints.into(), kind: 7, ..Self::default() }
    }

    /// Text.
    pub fn text(name: &str, text: &str) -> Self {
        Self { name: name.into(), s: Some(text.into()), kind: 3, ..Self::default() }
    }
}

impl Tensor {
    /// Floats, row-major.
    pub fn floats(name: &str, dims: &[usize], values: &[f32]) -> Self {
        Self::new(name, dims, FLOAT, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Whole numbers, row-major.
    pub fn ints(name: &str, dims: &[usize], values: &[i64]) -> Self {
        Self::new(name, dims, INT64, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    fn new(name: &str, dims: &[usize], data_type: i32, raw_data: Vec<u8>) -> Self {
        Self { dims: dims.iter().map(|&d| d as i64).collect(), data_type, name: name.into(), raw_data }
    }
}

impl ValueInfo {
    /// Floats of this shape.
    pub fn floats(name: &str, dim: Vec<Dimension>) -> Self {
        let tensor = TensorType { elem_type: FLOAT, shape: Some(Shape { dim }) };
        Self { name: name.into(), r#type: Some(Type { tensor_type: Some(tensor) }) }
    }
}

impl From<usize> for Dimension {
    fn from(extent: usize) -> Self {
        Self { dim_value: Some(extent as i64), dim_param: None }
    }
}

impl From<&str> for Dimension {
    fn from(name: &str) -> Self {
        Self { dim_value: None, dim_param: Some(name.into()) }
    }
}
