//! ONNX files: what is written is read back, and what is hostile is refused.

use bellows_weights::onnx::{Attribute, Dimension, Entry, Graph, Model, Node, OperatorSet, Tensor, ValueInfo, decode, encode};
use proptest::prelude::*;

use crate::common::read_bytes;

/// One convolution.
pub(crate) fn model() -> Model {
    let conv = Node {
        input: vec!["images".into(), "w".into()],
        output: vec!["y".into()],
        name: "conv".into(),
        op_type: "Conv".into(),
        attribute: vec![Attribute::int("group", 1), Attribute::ints("pads", &[0, 0, 0, 0]), Attribute::text("auto_pad", "NOTSET")],
    };
    let graph = Graph {
        node: vec![conv],
        name: "g".into(),
        initializer: vec![Tensor::floats("w", &[1, 1, 1, 2], &[0.5, -2.0]), Tensor::ints("axes", &[2], &[-1, 1 << 40])],
        input: vec![ValueInfo::floats("images", vec![Dimension::from("batch"), 1.into(), 1.into(), 2.into()])],
        output: vec![ValueInfo::floats("y", vec!["batch".into(), 1.into(), 1.into(), 1.into()])],
    };
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    Model {
        ir_version: 8,
        producer_name: "bellows".into(),
        producer_version: "0".into(),
        graph: Some(graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: 17 }],
        metadata_props: vec![entry("names", "{0: 'a'}"), entry("stride", "32")],
    }
}

#[test]
fn weights_and_metadata_come_back() {
    let bytes = encode(&model());
    assert_eq!(decode(&bytes).unwrap(), model());
    let read = read_bytes(&bytes).unwrap();
    assert_eq!(read.tensors["w"], bellows_weights::Tensor::from_f32([1, 1, 1, 2], &[0.5, -2.0]));
    assert_eq!(read.tensors["axes"], bellows_weights::Tensor::from_i64([2], &[-1, 1 << 40]));
    assert_eq!(read.tensors.len(), 2);
    assert_eq!((read.metadata["names"].as_str(), read.metadata["stride"].as_str()), ("{0: 'a'}", "32"));
}

/// Seven bits a byte, the lowest first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value > 127 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// A field with a length, by hand.
fn field(number: u64, content: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A model with this one initializer.
fn with(tensor: &[Vec<u8>]) -> Vec<u8> {
    [b"\x08\x08\x12\x01x".to_vec(), field(7, &field(5, &tensor.concat()))].concat()
}

#[test]
fn every_way_to_store_elements() {
    let named = || vec![field(8, b"w"), number(2, 1), number(1, 2)];
    let floats: Vec<u8> = [1f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let one = |value: f32| [&b"\x25"[..], &value.to_le_bytes()].concat();
    let expected = bellows_weights::Tensor::from_f32([2], &[1.0, 2.0]);
    for data in [field(9, &floats), field(4, &floats), [one(1.0), one(2.0)].concat()] {
        assert_eq!(read_bytes(&with(&[named(), vec![data]].concat())).unwrap().tensors["w"], expected);
    }
    let ints = [field(8, b"w"), number(2, 7), field(1, &[2]), field(7, b"\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")];
    // Seven bits a byte grow when they are spelt out; twice the file is what is allowed.
    assert_eq!(read_bytes(&with(&ints)).unwrap().tensors["w"], bellows_weights::Tensor::from_i64([2], &[3, -1]));
}

#[track_caller]
fn refused(bytes: &[u8], what: &str) {
    let error = read_bytes(bytes).map(|weights| weights.tensors.into_keys().collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(error.contains(what), "{error:?} does not say {what:?}");
}

#[test]
fn hostile_files_are_refused() {
    let good = encode(&model());
    for cut in [5, 20, good.len() / 2, good.len() - 1] {
        refused(&good[..cut], "ONNX byte");
    }
    // A graph of ten gigabytes in a file of a few bytes.
    refused(b"\x08\x08\x12\x01x\x3a\x80\xc8\xaf\xa0\x25abc", "ONNX byte 11: 10000000000 bytes wanted, 3 left");
    let tensor = |parts: &[Vec<u8>]| with(&[&[field(8, b"w"), number(2, 1)], parts].concat());
    refused(&tensor(&[number(1, 1 << 33), field(9, &[0; 8])]), "8 bytes of data, but shape [8589934592] of F32 needs 34359738368");
    refused(&tensor(&[number(1, 1 << 62), number(1, 1 << 62)]), "does not fit the address space");
    refused(&tensor(&[number(1, u64::MAX)]), "an extent of -1");
    refused(&tensor(&[number(1, 1).repeat(17)]), "dimensions of a tensor: 17 is over the limit of 16");
    refused(&tensor(&[number(1, 1), field(13, b"")]), "the weights are in a file of their own");
    refused(&tensor(&[number(1, 1), number(14, 1)]), "the weights are in a file of their own");
    refused(&tensor(&[number(1, 1), field(5, &[1])]), "elements in this kind of list are not read");
    refused(&tensor(&[number(1, 1)]), "0 bytes of data, but shape [1] of F32 needs 4");
    refused(&tensor(&[number(1, 40), field(7, &[1; 40])]), "bytes of tensors and names");
    refused(&with(&[field(8, b"w"), number(2, 8)]), "tensor `w`: elements of ONNX type 8 are not read");
    refused(&with(&[field(8, b"\xff")]), "text that is not UTF-8");
    refused(&with(&[field(8, b"a\nb"), number(2, 1), field(9, &[0; 4])]), "control characters");
    let twice = field(5, &[field(8, b"w"), number(2, 1), field(9, &[0; 4])].concat()).repeat(2);
    refused(&[b"\x08\x08\x12\x01x".to_vec(), field(7, &twice)].concat(), "two tensors are named `w`");
    let entry = field(14, &[field(1, b"k"), field(2, b"v")].concat());
    refused(&[good.clone(), entry.repeat(2)].concat(), "metadata `k`: it appears twice");
    refused(&[b"\x08\x08\x12\x01x".to_vec(), field(7, &field(15, b""))].concat(), "sparse initializers");
    refused(b"\x08\x08\x12\x01x", "an ONNX model without initializers");
}

/// The graph is not looked at: what would overflow the stack of a parser that builds it costs nothing here.
#[test]
fn deep_nesting_costs_nothing() {
    let mut deep = Vec::new();
    for _ in 0..5000 {
        // A node with an attribute with a graph with a node...
        deep = field(1, &field(5, &field(6, &deep)));
    }
    let weights = field(5, &[field(8, b"w"), number(2, 1), field(9, &[0; 4])].concat());
    let file = [b"\x08\x08\x12\x01x".to_vec(), field(7, &[deep, weights].concat())].concat();
    assert_eq!(read_bytes(&file).unwrap().tensors.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The reader, which walks bytes, agrees with the crate that wrote them.
    #[test]
    fn the_reader_agrees_with_prost(
        tensors in prop::collection::btree_map("[a-z.]{1,8}", prop::collection::vec(any::<f32>(), 0..9), 1..6),
        metadata in prop::collection::btree_map(".{0,6}", ".{0,6}", 0..6),
    ) {
        let mut model = model();
        model.graph.as_mut().unwrap().initializer = tensors.iter().map(|(name, v)| Tensor::floats(name, &[v.len()], v)).collect();
        model.metadata_props = metadata.iter().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }).collect();
        let read = read_bytes(&encode(&model)).unwrap();
        prop_assert_eq!(read.metadata, metadata);
        prop_assert_eq!(read.tensors.len(), tensors.len());
        for (name, values) in &tensors {
            prop_assert_eq!(&read.tensors[name], &bellows_weights::Tensor::from_f32([values.len()], values));
        }
    }
}
