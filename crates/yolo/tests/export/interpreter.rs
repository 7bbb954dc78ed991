//! ONNX operators by their definitions, one loop each, in f64: what a graph means, for small images.
//!
//! Whole numbers and booleans are numbers too. Only what our graphs use is here; anything else panics with its name.

use std::collections::BTreeMap;

use bellows_weights::onnx::{Attribute, Model, Node, Tensor};

/// A value: row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

impl Array {
    pub(crate) fn new(shape: Vec<usize>, data: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "{shape:?}");
        Self { shape, data }
    }

    fn list(values: &[usize]) -> Self {
        Self::new(vec![values.len()], values.iter().map(|&v| v as f64).collect())
    }

    /// Extents before, at and after an axis.
    fn around(&self, axis: usize) -> [usize; 3] {
        let product = |part: &[usize]| part.iter().product();
        [product(&self.shape[..axis]), self.shape[axis], product(&self.shape[axis + 1..])]
    }

    /// The part `from..from + count` of an axis.
    fn part(&self, axis: usize, from: usize, count: usize) -> Self {
        let [outer, extent, inner] = self.around(axis);
        let rows = (0..outer).flat_map(|o| &self.data[(o * extent + from) * inner..][..count * inner]).copied().collect();
        let mut shape = self.shape.clone();
        shape[axis] = count;
        Self::new(shape, rows)
    }

    /// The element at an index, whose shape this one is broadcast to.
    fn at(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (&i, &extent)| flat * extent + if extent == 1 { 0 } else { i });
        self.data[flat]
    }

    fn integers(&self) -> Vec<i64> {
        self.data.iter().map(|&v| v as i64).collect()
    }
}

/// All indices of a shape, row-major.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..shape.iter().product::<usize>()).map(move |mut flat| {
        let mut index = vec![0; shape.len()];
        for (i, extent) in index.iter_mut().zip(shape).rev() {
            *i = flat % extent;
            flat /= extent;
        }
        index
    })
}

fn broadcast(shapes: &[&[usize]]) -> Vec<usize> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let extent = |axis: usize| {
        let own = shapes.iter().filter_map(|s| s.get((axis + s.len()).checked_sub(rank)?)).copied();
        own.fold(1, |a, b| {
            assert!(a == 1 || b == 1 || a == b, "{shapes:?}");
            a.max(b)
        })
    };
    (0..rank).map(extent).collect()
}

/// Elementwise over broadcast inputs.
fn each(inputs: &[&Array], f: impl Fn(&[f64]) -> f64) -> Array {
    let shapes: Vec<&[usize]> = inputs.iter().map(|a| a.shape.as_slice()).collect();
    let shape = broadcast(&shapes);
    let data = indices(&shape).map(|index| f(&inputs.iter().map(|a| a.at(&index)).collect::<Vec<_>>()));
    let data = data.collect();
    Array::new(shape, data)
}

fn constant(tensor: &Tensor) -> Array {
    let shape = tensor.dims.iter().map(|&d| d as usize).collect();
    let data = match tensor.data_type {
        1 => tensor.raw_data.as_chunks::<4>().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
        7 => tensor.raw_data.as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
        other => panic!("type {other}"),
    };
    Array::new(shape, data)
}

fn find<'a>(node: &'a Node, name: &str) -> Option<&'a Attribute> {
    node.attribute.iter().find(|a| a.name == name)
}

fn int(node: &Node, name: &str, default: i64) -> i64 {
    find(node, name).map_or(default, |a| a.i.unwrap())
}

/// Runs the graph on these images and returns its output.
pub(crate) fn run(model: &Model, images: Array) -> Array {
    let graph = model.graph.as_ref().unwrap();
    let mut values: BTreeMap<&str, Array> = graph.initializer.iter().map(|t| (t.name.as_str(), constant(t))).collect();
    values.insert(&graph.input[0].name, images);
    for node in &graph.node {
        let empty = Array::default();
        let inputs: Vec<&Array> = node.input.iter().map(|name| if name.is_empty() { &empty } else { &values[name.as_str()] }).collect();
        let outputs = apply(node, &inputs);
        assert_eq!(outputs.len(), node.output.len(), "{}", node.name);
        values.extend(node.output.iter().map(String::as_str).zip(outputs));
    }
    values.remove(graph.output[0].name.as_str()).unwrap()
}

fn apply(node: &Node, x: &[&Array]) -> Vec<Array> {
    let axis = || int(node, "axis", 0) as usize;
    vec![match node.op_type.as_str() {
        "Conv" => conv(node, x[0], x[1], x.get(2).copied()),
        "MaxPool" => max_pool(node, x[0]),
        "Sigmoid" => each(x, |v| 1.0 / (1.0 + (-v[0]).exp())),
        "Mul" => each(x, |v| v[0] * v[1]),
        "Add" => each(x, |v| v[0] + v[1]),
        "Sub" => each(x, |v| v[0] - v[1]),
        "Div" => each(x, |v| v[0] / v[1]),
        "Min" => each(x, |v| v[0].min(v[1])),
        "Equal" => each(x, |v| f64::from(v[0] == v[1])),
        "Greater" => each(x, |v| f64::from(v[0] > v[1])),
        "Where" => each(x, |v| if v[0] == 0.0 { v[2] } else { v[1] }),
        "Cast" => x[0].clone(),
        "Expand" => {
            let wanted: Vec<usize> = x[1].data.iter().map(|&v| v as usize).collect();
            let ones = Array::new(wanted.clone(), vec![0.0; wanted.iter().product()]);
            each(&[x[0], &ones], |v| v[0])
        }
        "Concat" => concat(x, axis()),
        "Split" => return split(x[0], axis(), &x[1].integers()),
        "Reshape" => reshape(x[0], &x[1].integers()),
        "Unsqueeze" => {
            let mut shape = x[0].shape.clone();
            x[1].integers().iter().for_each(|&axis| shape.insert(axis as usize, 1));
            Array::new(shape, x[0].data.clone())
        }
        "Transpose" => transpose(x[0], &find(node, "perm").unwrap().ints),
        "Softmax" => softmax(x[0], axis()),
        "Resize" => resize(x[0], x[2]),
        "Shape" => Array::list(&x[0].shape[int(node, "start", 0) as usize..]),
        "Range" => {
            assert_eq!((x[0].data[0], x[2].data[0]), (0.0, 1.0));
            Array::list(&(0..x[1].data[0] as usize).collect::<Vec<_>>())
        }
        "ConstantOfShape" => {
            let shape: Vec<usize> = x[0].data.iter().map(|&v| v as usize).collect();
            Array::new(shape.clone(), vec![0.0; shape.iter().product()])
        }
        "Gather" => gather(x[0], x[1], axis()),
        "GatherND" => {
            let width = x[1].shape[1];
            let found = x[1].data.chunks(width).map(|row| x[0].at(&row.iter().map(|&v| v as usize).collect::<Vec<_>>()));
            Array::new(vec![x[1].shape[0]], found.collect())
        }
        "ScatterND" => {
            let mut out = x[0].clone();
            for (row, &value) in x[1].data.chunks(2).zip(&x[2].data) {
                out.data[row[0] as usize * x[0].shape[1] + row[1] as usize] = value;
            }
            out
        }
        "GatherElements" => {
            let place = |index: Vec<usize>| {
                let mut from = index.clone();
                from[axis()] = x[1].at(&index) as usize;
                x[0].at(&from)
            };
            let data = indices(&x[1].shape).map(place).collect();
            Array::new(x[1].shape.clone(), data)
        }
        "ReduceMax" | "ArgMax" => best(node, x[0]),
        "TopK" => return top(x[0], x[1].data[0] as usize),
        "NonMaxSuppression" => suppress(node, x),
        other => panic!("operator {other}"),
    }]
}

fn conv(node: &Node, x: &Array, w: &Array, bias: Option<&Array>) -> Array {
    let first = |name: &str, default: i64| find(node, name).map_or(default, |a| a.ints[0]) as usize;
    let (stride, pad) = (first("strides", 1), first("pads", 0));
    let [batch, cin, h, wide] = x.shape[..] else { panic!("{:?}", x.shape) };
    let [cout, channels, k, _] = w.shape[..] else { panic!("{:?}", w.shape) };
    assert_eq!((cin, int(node, "group", 1)), (channels, 1), "{}", node.name);
    let size = |n: usize| (n + 2 * pad - k) / stride + 1;
    let shape = vec![batch, cout, size(h), size(wide)];
    let mut data = vec![0.0; shape.iter().product()];
    for (out, index) in data.iter_mut().zip(indices(&shape)) {
        let mut sum = bias.map_or(0.0, |b| b.data[index[1]]);
        for c in 0..cin {
            let (plane, kernel) = (&x.data[(index[0] * cin + c) * h * wide..], &w.data[(index[1] * cin + c) * k * k..]);
            for dy in 0..k {
                let Some(y) = (index[2] * stride + dy).checked_sub(pad).filter(|&y| y < h) else { continue };
                for dx in 0..k {
                    let Some(x) = (index[3] * stride + dx).checked_sub(pad).filter(|&x| x < wide) else { continue };
                    sum += plane[y * wide + x] * kernel[dy * k + dx];
                }
            }
        }
        *out = sum;
    }
    Array::new(shape, data)
}

fn max_pool(node: &Node, x: &Array) -> Array {
    let (k, pad) = (find(node, "kernel_shape").unwrap().ints[0] as usize, find(node, "pads").unwrap().ints[0] as usize);
    assert_eq!((find(node, "strides").unwrap().ints[0], k), (1, 2 * pad + 1));
    let [_, _, h, w] = x.shape[..] else { panic!("{:?}", x.shape) };
    let most = |index: Vec<usize>| {
        let range = |i: usize, n: usize| i.saturating_sub(pad)..(i + pad + 1).min(n);
        let cells = range(index[2], h).flat_map(|y| range(index[3], w).map(move |x| [y, x]));
        cells.map(|[y, c]| x.at(&[index[0], index[1], y, c])).fold(f64::NEG_INFINITY, f64::max)
    };
    Array::new(x.shape.clone(), indices(&x.shape).map(most).collect())
}

fn concat(x: &[&Array], axis: usize) -> Array {
    let mut shape = x[0].shape.clone();
    shape[axis] = x.iter().map(|a| a.shape[axis]).sum();
    let outer = x[0].around(axis)[0];
    let rows = (0..outer).flat_map(|o| {
        x.iter().flat_map(move |a| {
            let [_, extent, inner] = a.around(axis);
            a.data[o * extent * inner..][..extent * inner].to_vec()
        })
    });
    let data = rows.collect();
    Array::new(shape, data)
}

fn split(x: &Array, axis: usize, parts: &[i64]) -> Vec<Array> {
    assert_eq!(parts.iter().sum::<i64>() as usize, x.shape[axis]);
    let mut from = 0;
    let cut = |&count: &i64| {
        let part = x.part(axis, from, count as usize);
        from += count as usize;
        part
    };
    parts.iter().map(cut).collect()
}

fn reshape(x: &Array, wanted: &[i64]) -> Array {
    let mut shape: Vec<usize> = wanted.iter().enumerate().map(|(i, &n)| if n == 0 { x.shape[i] } else { n.max(1) as usize }).collect();
    if let Some(open) = wanted.iter().position(|&n| n == -1) {
        shape[open] = x.data.len() / shape.iter().product::<usize>();
    }
    Array::new(shape, x.data.clone())
}

fn transpose(x: &Array, perm: &[i64]) -> Array {
    let shape: Vec<usize> = perm.iter().map(|&axis| x.shape[axis as usize]).collect();
    let from = |index: Vec<usize>| {
        let mut source = vec![0; index.len()];
        perm.iter().zip(index).for_each(|(&axis, i)| source[axis as usize] = i);
        x.at(&source)
    };
    let data = indices(&shape).map(from).collect();
    Array::new(shape, data)
}

fn softmax(x: &Array, axis: usize) -> Array {
    let [_, extent, inner] = x.around(axis);
    let mut out = x.clone();
    for (i, value) in out.data.iter_mut().enumerate() {
        let start = i / (extent * inner) * extent * inner + i % inner;
        let own = || (0..extent).map(|k| x.data[start + k * inner]);
        let most = own().fold(f64::NEG_INFINITY, f64::max);
        *value = (x.data[i] - most).exp() / own().map(|v| (v - most).exp()).sum::<f64>();
    }
    out
}

fn resize(x: &Array, scales: &Array) -> Array {
    let shape: Vec<usize> = x.shape.iter().zip(&scales.data).map(|(&n, s)| (n as f64 * s) as usize).collect();
    let from = |index: Vec<usize>| x.at(&index.iter().zip(&scales.data).map(|(&i, s)| (i as f64 / s).floor() as usize).collect::<Vec<_>>());
    let data = indices(&shape).map(from).collect();
    Array::new(shape, data)
}

fn gather(x: &Array, index: &Array, axis: usize) -> Array {
    let parts: Vec<Array> = index.data.iter().map(|&i| x.part(axis, i as usize, 1)).collect();
    let mut joined = concat(&parts.iter().collect::<Vec<_>>(), axis);
    if index.shape.is_empty() {
        joined.shape.remove(axis);
    }
    joined
}

/// Maximum, or where the first one is, along axis 1.
fn best(node: &Node, x: &Array) -> Array {
    let [outer, extent, inner] = x.around(1);
    let arg = node.op_type == "ArgMax";
    let cells = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i)));
    let data = cells.map(|(o, i)| {
        let own = (0..extent).map(|k| x.data[(o * extent + k) * inner + i]);
        let (at, most) = own.enumerate().fold((0, f64::NEG_INFINITY), |best, now| if now.1 > best.1 { now } else { best });
        if arg { at as f64 } else { most }
    });
    let data = data.collect();
    let mut shape = x.shape.clone();
    shape[1] = 1;
    if int(node, "keepdims", 1) == 0 {
        shape.remove(1);
    }
    Array::new(shape, data)
}

/// The greatest `k` of each row and where they are; of equal ones the first.
fn top(x: &Array, k: usize) -> Vec<Array> {
    let mut found = [Vec::new(), Vec::new()];
    for row in x.data.chunks(x.shape[1]) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        found[0].extend(order[..k].iter().map(|&i| row[i]));
        found[1].extend(order[..k].iter().map(|&i| i as f64));
    }
    found.map(|data| Array::new(vec![x.shape[0], k], data)).into()
}

fn suppress(node: &Node, x: &[&Array]) -> Array {
    let [boxes, scores, most, iou, conf] = x else { panic!("{} inputs", x.len()) };
    assert_eq!(int(node, "center_point_box", 0), 1);
    let mut rows = Vec::new();
    for (b, c) in (0..scores.shape[0]).flat_map(|b| (0..scores.shape[1]).map(move |c| (b, c))) {
        let corners = |a: usize| {
            let [x, y, w, h] = [0, 1, 2, 3].map(|k| boxes.at(&[b, a, k]));
            [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]
        };
        let overlap = |p: [f64; 4], q: [f64; 4]| {
            let side = |k: usize| (p[k + 2].min(q[k + 2]) - p[k].max(q[k])).max(0.0);
            let area = |r: [f64; 4]| (r[2] - r[0]) * (r[3] - r[1]);
            side(0) * side(1) / (area(p) + area(q) - side(0) * side(1))
        };
        let mut order: Vec<usize> = (0..scores.shape[2]).filter(|&a| scores.at(&[b, c, a]) > conf.data[0]).collect();
        order.sort_by(|&p, &q| scores.at(&[b, c, q]).total_cmp(&scores.at(&[b, c, p])).then(p.cmp(&q)));
        let mut kept: Vec<usize> = Vec::new();
        for a in order {
            if kept.len() < most.data[0] as usize && kept.iter().all(|&k| overlap(corners(k), corners(a)) <= iou.data[0]) {
                kept.push(a);
            }
        }
        rows.extend(kept.into_iter().flat_map(|a| [b as f64, c as f64, a as f64]));
    }
    Array::new(vec![rows.len() / 3, 3], rows)
}
