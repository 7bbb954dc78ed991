//! Which model a weight file holds, from the names of its modules and the shapes of its tensors.
//!
//! Ultralytics numbers the layers of every model it has: `model.22` is the head of YOLOv8, `model.23` that of YOLO11, and what stands in a head
//! says what it is for. Only YOLOv8 for detection is accepted, with three levels or (p2, `model.28`) a finer fourth; the others are refused by their names, because half of their tensors would fit.

use std::collections::BTreeMap;

use bellows_weights::Weights;

use crate::model::{Scale, YoloConfig};

/// Number of the head's layer.
const HEAD: usize = 22;
/// The same with a level of stride 4.
const HEAD_P2: usize = 28;

/// What the tensors of a detector say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// How to build it.
    pub(crate) config: YoloConfig,
    /// Its batch normalisation is folded into the convolutions.
    pub(crate) folded: bool,
}

/// Shapes by name, and where the file tells them the classes of modules by path.
struct Looks<'a> {
    shapes: BTreeMap<&'a str, &'a [usize]>,
    classes: &'a BTreeMap<String, String>,
    head: usize,
}

/// What `weights` are.
///
/// # Errors
/// What they are instead, as the end of a sentence about a file.
pub(crate) fn recognise(weights: &Weights) -> Result<Form, String> {
    let shapes: BTreeMap<&str, &[usize]> = weights.tensors.iter().map(|(name, t)| (name.as_str(), t.shape.as_slice())).collect();
    let number = |name: &&str| name.strip_prefix("model.")?.split('.').next()?.parse().ok();
    let Some(head) = shapes.keys().filter_map(number).max() else {
        let first = shapes.keys().next().map_or(String::new(), |name| format!(" (its first tensor is `{name}`)"));
        return Err(format!("not the weights of a YOLOv8 detector: no tensor is named `model.0.…`{first}"));
    };
    let looks = Looks { shapes, classes: &weights.classes, head };
    if let Some(other) = looks.other_model() {
        return Err(format!("the weights of {other}; this program has YOLOv8 for detection"));
    }
    looks.form(weights)
}

impl Looks<'_> {
    fn has(&self, name: &str) -> bool {
        self.shapes.keys().any(|n| n.starts_with(name))
    }

    fn in_head(&self, name: &str) -> bool {
        self.has(&format!("model.{}.{name}", self.head))
    }

    /// The head is of this class, or contains what only that class has.
    fn is(&self, class: &str, part: &str) -> bool {
        let path = format!("model.{}", self.head);
        self.classes.get(&path).is_some_and(|c| c.rsplit('.').next() == Some(class)) || (!part.is_empty() && self.in_head(part))
    }

    fn family(&self) -> &'static str {
        let attention = |layer: usize| self.has(&format!("model.{layer}.m.0.attn.")) || self.has(&format!("model.{layer}.m.0.0.attn."));
        match self.head {
            21 if attention(6) => "YOLO12",
            23 if attention(10) => "YOLO11",
            _ if self.in_head("one2one_cv2.") => "YOLOv10",
            _ if self.has("model.2.cv3.") && !self.has("model.2.cv3.0.") => "YOLOv5",
            _ if self.has("model.2.cv4.") || self.has("model.2.cv3.0.") => "YOLOv9",
            HEAD => "YOLOv8",
            _ if self.p2() => "YOLOv8",
            9 => "YOLOv8 or its kin",
            28 | 29 if self.in_head("cv2.3.") => "YOLOv8 with four levels (p6)",
            _ => "another YOLO",
        }
    }

    /// Whether it has a level of stride 4: the pooling pyramid is where it always is, and the head has a fourth level.
    fn p2(&self) -> bool {
        self.head == HEAD_P2 && self.in_head("cv2.3.") && self.has("model.9.cv2.") && self.has("model.27.cv2.")
    }

    /// The name of a model that is not YOLOv8 for detection.
    fn other_model(&self) -> Option<String> {
        let family = self.family();
        let branch = format!("model.{}.cv4.0.2.weight", self.head);
        let turned = self.shapes.get(branch.as_str()).is_some_and(|shape| shape.first() == Some(&1));
        let task = match () {
            () if self.is("RTDETRDecoder", "dec_score_head.") => return Some("RT-DETR".into()),
            () if self.is("Classify", "linear.") => "classification",
            () if self.is("Segment", "proto.") => "segmentation",
            () if self.is("OBB", "") || turned => "oriented boxes (OBB)",
            () if self.is("Pose", "cv4.") => "poses",
            () => "detection",
        };
        (family != "YOLOv8" || task != "detection").then(|| format!("{family} for {task} (its head is layer {})", self.head))
    }

    fn form(&self, weights: &Weights) -> Result<Form, String> {
        let out = |layer: usize| Some(*self.shapes.get(format!("model.{layer}.conv.weight").as_str())?.first()?);
        let depth = (0..).take_while(|i| self.has(&format!("model.4.m.{i}."))).count();
        let looks = [out(0), out(7)];
        let scale = Scale::ALL.into_iter().find(|s| s.looks() == ([looks[0].unwrap_or(0), looks[1].unwrap_or(0)], depth));
        let scale = scale.ok_or_else(|| {
            let [first, deep] = looks.map(|n| n.map_or_else(|| "no".into(), |n| n.to_string()));
            format!("not the weights of a YOLOv8 of size n, s, m, l or x: {first} channels in layer 0, {deep} in layer 7, {depth} bottlenecks in layer 4")
        })?;
        let of = |name: &str, axis: usize| -> Result<usize, String> {
            let shape = self.shapes.get(name).filter(|shape| shape.len() == 4).ok_or_else(|| format!("no tensor `{name}` of four axes"))?;
            Some(shape[axis]).filter(|&n| n > 0).ok_or_else(|| format!("`{name}` is empty"))
        };
        let nc = of(&format!("model.{}.cv3.0.2.weight", self.head), 0)?;
        let channels = of("model.0.conv.weight", 1)?;
        let folded = self.shapes.contains_key("model.0.conv.bias");
        // Where neither modules nor we ourselves tell of it, whether an activation is missing would be a guess.
        if folded && weights.classes.is_empty() && weights.metadata.get("author").is_none_or(|author| author != "Bellows") {
            return Err("folded weights of another program without their modules, as its ONNX files are, whose graph is not read: \
                        name the .pt they were made from"
                .into());
        }
        let config = YoloConfig { scale, nc, channels, sppf_act: sppf_has_activation(weights), p2: self.p2() };
        Ok(Form { config, folded })
    }
}

/// Release 8.4 leaves the activation of the first convolution of the pooling pyramid out.
fn sppf_has_activation(weights: &Weights) -> bool {
    let exported_without = weights.metadata.get("sppf_act").is_some_and(|v| v == "false");
    !exported_without && !weights.classes.get("model.9.cv1.act").is_some_and(|class| class.ends_with(".Identity"))
}

#[cfg(test)]
mod tests {
    use bellows_weights::Tensor;

    use super::*;
    use crate::model::names::named_tensors;
    use burn::tensor::Device;

    fn file<'a>(shapes: impl IntoIterator<Item = (&'a str, Vec<usize>)>) -> Weights {
        let tensors = shapes.into_iter().map(|(name, shape)| {
            let zeros = vec![0.0; shape.iter().product()];
            (name.to_string(), Tensor::from_f32(shape, &zeros))
        });
        Weights { tensors: tensors.collect(), ..Weights::default() }
    }

    fn detector(scale: Scale, nc: usize) -> Weights {
        let model = YoloConfig { scale, channels: 1, ..YoloConfig::new(nc) }.init(0, &Device::flex());
        let names = named_tensors(&model);
        file(names.iter().map(|(name, shape, _)| (name.as_str(), shape.clone())))
    }

    #[test]
    fn every_size_of_yolov8_is_known_by_its_shapes() {
        for scale in [Scale::N, Scale::S, Scale::M] {
            let form = recognise(&detector(scale, 7)).unwrap();
            assert_eq!((form.config.scale, form.config.nc, form.config.channels, form.folded), (scale, 7, 1, false));
            assert!(!form.config.p2);
        }
        let finer = YoloConfig { p2: true, ..YoloConfig::new(3) }.init(0, &Device::flex());
        let names = named_tensors(&finer);
        let form = recognise(&file(names.iter().map(|(name, shape, _)| (name.as_str(), shape.clone())))).unwrap();
        assert_eq!((form.config.p2, form.config.nc, form.config.scale), (true, 3, Scale::N));
        let looks = Scale::ALL.map(Scale::looks);
        assert!((0..5).all(|i| (0..i).all(|j| looks[i] != looks[j])), "{looks:?}");
    }

    #[test]
    fn folded_weights_tell_their_modules_or_are_ours() {
        let device = Device::flex();
        let names = named_tensors(&YoloConfig::new(2).init(0, &device).fuse(&device).into_inner());
        let mut weights = file(names.iter().map(|(name, shape, _)| (name.as_str(), shape.clone())));
        assert!(recognise(&weights).unwrap_err().contains("name the .pt"));
        weights.metadata.insert("author".into(), "Ultralytics".into());
        assert!(recognise(&weights).unwrap_err().contains("name the .pt"));
        let mut pickled = weights.clone();
        pickled.classes.insert("model.9.cv1.act".into(), "torch.nn.modules.linear.Identity".into());
        weights.metadata.insert("author".into(), "Bellows".into());
        for (weights, sppf_act) in [(weights, true), (pickled, false)] {
            let form = recognise(&weights).unwrap();
            assert_eq!((form.folded, form.config.sppf_act), (true, sppf_act));
        }
    }

    #[test]
    fn a_yolov8_with_another_head_is_refused_by_its_task() {
        for (extra, shape, what) in [
            ("model.22.cv4.0.2.weight", vec![1, 16, 1, 1], "YOLOv8 for oriented boxes (OBB)"),
            ("model.22.cv4.0.2.weight", vec![51, 51, 1, 1], "YOLOv8 for poses"),
            ("model.22.proto.cv1.conv.weight", vec![64, 64, 3, 3], "YOLOv8 for segmentation"),
            ("model.22.dec_score_head.0.weight", vec![80, 256], "RT-DETR"),
            ("model.22.one2one_cv2.0.2.weight", vec![64, 64, 1, 1], "YOLOv10 for detection"),
            ("model.2.cv3.conv.weight", vec![32, 32, 1, 1], "YOLOv5 for detection"),
            ("model.23.cv2.0.2.weight", vec![64, 64, 1, 1], "another YOLO for detection (its head is layer 23)"),
        ] {
            let mut weights = detector(Scale::N, 2);
            weights.tensors.extend(file([(extra, shape)]).tensors);
            let refusal = recognise(&weights).unwrap_err();
            assert!(refusal.contains(what), "{extra}: {refusal}");
        }
    }

    #[test]
    fn other_models_are_refused_by_their_names() {
        let conv = |c: usize| vec![c, 3, 3, 3];
        for (names, what) in [
            (
                vec![
                    ("model.0.conv.weight", conv(16)),
                    ("model.10.m.0.attn.qkv.conv.weight", conv(1)),
                    ("model.23.cv2.0.2.weight", conv(1)),
                ],
                "YOLO11",
            ),
            (vec![("model.6.m.0.0.attn.qkv.conv.weight", conv(1)), ("model.21.cv2.0.2.weight", conv(1))], "YOLO12"),
            (vec![("model.0.conv.weight", conv(16)), ("model.9.linear.weight", vec![1000, 1280])], "YOLOv8 or its kin for classification"),
            (vec![("model.2.cv3.conv.weight", conv(1)), ("model.24.m.0.weight", conv(1))], "YOLOv5 for detection"),
            (vec![("model.22.cv2.3.2.weight", conv(1)), ("model.28.cv2.3.2.weight", conv(1))], "four levels"),
            (vec![("transformer.decoder.weight", vec![2, 2])], "its first tensor is `transformer.decoder.weight`"),
            (
                vec![("model.0.conv.weight", conv(24)), ("model.22.cv3.0.2.weight", conv(1))],
                "24 channels in layer 0, no in layer 7, 0 bottlenecks",
            ),
        ] {
            let refusal = recognise(&file(names)).unwrap_err();
            assert!(refusal.contains(what), "{what}: {refusal}");
        }
        let mut by_class = detector(Scale::N, 2);
        by_class.classes.insert("model.22".into(), "ultralytics.nn.modules.head.Segment".into());
        assert!(recognise(&by_class).unwrap_err().contains("segmentation"));
    }
}
