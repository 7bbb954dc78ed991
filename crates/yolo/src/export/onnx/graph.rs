//! Nodes and constants as they are collected. A node's output is called after the node, so names are unique where nodes' names are.

use bellows_weights::onnx::{Attribute, Node, Tensor};

/// Name of the graph's input.
pub(super) const INPUT: &str = "images";
/// Name of its output.
pub(super) const OUTPUT: &str = "output0";

/// A graph being built.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) nodes: Vec<Node>,
    pub(super) constants: Vec<Tensor>,
}

impl Builder {
    /// A node with one output, whose name is returned.
    pub(super) fn node(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let output = format!("{name}_output_0");
        self.push(name, op, inputs, attributes, vec![output.clone()]);
        output
    }

    /// A node with two outputs.
    pub(super) fn pair(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Vec<Attribute>) -> [String; 2] {
        let outputs = [0, 1].map(|i| format!("{name}_output_{i}"));
        self.push(name, op, inputs, attributes, outputs.to_vec());
        outputs
    }

    /// The node that makes the graph's output.
    pub(super) fn output(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Vec<Attribute>) {
        self.push(name, op, inputs, attributes, vec![OUTPUT.into()]);
    }

    fn push(&mut self, name: &str, op: &str, inputs: &[&str], attribute: Vec<Attribute>, output: Vec<String>) {
        let input = inputs.iter().map(|&input| input.into()).collect();
        self.nodes.push(Node { input, output, name: name.into(), op_type: op.into(), attribute });
    }

    /// A constant of floats.
    pub(super) fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        self.constants.push(Tensor::floats(name, shape, values));
        name.into()
    }

    /// A constant list of whole numbers.
    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> String {
        self.constants.push(Tensor::ints(name, &[values.len()], values));
        name.into()
    }

    /// A constant whole number.
    pub(super) fn int(&mut self, name: &str, value: i64) -> String {
        self.constants.push(Tensor::ints(name, &[], &[value]));
        name.into()
    }

    /// `input` in another shape, of the same number of elements; 0 is the extent that was there, -1 what is left.
    pub(super) fn reshape(&mut self, name: &str, input: &str, shape: &[i64]) -> String {
        let shape = self.ints(&format!("{name}_shape"), shape);
        self.node(name, "Reshape", &[input, &shape], Vec::new())
    }

    /// The two parts of `input` along axis 1, of these extents.
    pub(super) fn split(&mut self, name: &str, input: &str, parts: [usize; 2]) -> [String; 2] {
        let parts = self.ints(&format!("{name}_parts"), &parts.map(|n| n as i64));
        self.pair(name, "Split", &[input, &parts], vec![axis(1)])
    }

    /// Parts put one after the other.
    pub(super) fn concat(&mut self, name: &str, parts: &[String], along: i64) -> String {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.node(name, "Concat", &parts, vec![axis(along)])
    }
}

/// The attribute `axis`.
pub(super) fn axis(axis: i64) -> Attribute {
    Attribute::int("axis", axis)
}
