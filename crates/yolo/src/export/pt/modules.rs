//! PyTorch modules as their pickles hold them: a class and the `__dict__` of an instance.
//!
//! Every module has the same two dozen entries before its own: hooks, all empty, and the dictionaries of parameters, buffers and children. The own ones
//! are those that the class sets when it is made, since unpickling does not call its constructor.

use std::collections::BTreeMap;

use bellows_weights::pt::{Pickled, View};

use crate::export::error::ExportError;
use crate::model::head::{Branch, Detect, REG_MAX};
use crate::model::layers::{BN_EPSILON, BN_MOMENTUM, Bottleneck, C2f, Conv, Sppf};
use crate::model::{Layer, Yolo};

/// The classes, as module and name.
pub(super) mod class {
    pub(crate) type Class = (&'static str, &'static str);
    pub(crate) const DETECTION_MODEL: Class = ("ultralytics.nn.tasks", "DetectionModel");
    pub(super) const CONV: Class = ("ultralytics.nn.modules.conv", "Conv");
    pub(super) const CONCAT: Class = ("ultralytics.nn.modules.conv", "Concat");
    pub(super) const C2F: Class = ("ultralytics.nn.modules.block", "C2f");
    pub(super) const BOTTLENECK: Class = ("ultralytics.nn.modules.block", "Bottleneck");
    pub(super) const SPPF: Class = ("ultralytics.nn.modules.block", "SPPF");
    pub(super) const DFL: Class = ("ultralytics.nn.modules.block", "DFL");
    pub(super) const DETECT: Class = ("ultralytics.nn.modules.head", "Detect");
    pub(super) const SEQUENTIAL: Class = ("torch.nn.modules.container", "Sequential");
    pub(super) const MODULE_LIST: Class = ("torch.nn.modules.container", "ModuleList");
    pub(super) const CONV2D: Class = ("torch.nn.modules.conv", "Conv2d");
    pub(super) const BATCH_NORM: Class = ("torch.nn.modules.batchnorm", "BatchNorm2d");
    pub(super) const SILU: Class = ("torch.nn.modules.activation", "SiLU");
    pub(super) const IDENTITY: Class = ("torch.nn.modules.linear", "Identity");
    pub(super) const MAX_POOL: Class = ("torch.nn.modules.pooling", "MaxPool2d");
    pub(super) const UPSAMPLE: Class = ("torch.nn.modules.upsampling", "Upsample");
}
use class::Class;

type Own = Vec<(&'static str, Pickled)>;
type Children = Vec<(String, Pickled)>;

/// A module.
pub(super) fn module((path, name): Class, parameters: Own, buffers: Own, children: Children, own: Own) -> Pickled {
    let hooks = |name| (name, Pickled::OrderedDict(Vec::new()));
    let mut state = vec![
        ("training", Pickled::Bool(false)),
        ("_parameters", Pickled::dict(parameters)),
        ("_buffers", Pickled::dict(buffers)),
        ("_non_persistent_buffers_set", Pickled::Set(Vec::new())),
        hooks("_backward_pre_hooks"),
        hooks("_backward_hooks"),
        ("_is_full_backward_hook", Pickled::None),
        hooks("_forward_hooks"),
        hooks("_forward_hooks_with_kwargs"),
        hooks("_forward_hooks_always_called"),
        hooks("_forward_pre_hooks"),
        hooks("_forward_pre_hooks_with_kwargs"),
        hooks("_state_dict_hooks"),
        hooks("_state_dict_pre_hooks"),
        hooks("_load_state_dict_pre_hooks"),
        hooks("_load_state_dict_post_hooks"),
        ("_modules", Pickled::dict(children)),
    ];
    state.extend(own);
    Pickled::Object(path, name, Box::new(Pickled::dict(state)))
}

/// A module that is only its class and its attributes.
fn plain(class: Class, own: Own) -> Pickled {
    module(class, Vec::new(), Vec::new(), Vec::new(), own)
}

fn ints<const N: usize>(ints: [usize; N]) -> Pickled {
    Pickled::Tuple(ints.map(|int| Pickled::Int(int as i64)).into())
}

fn numbered(children: Vec<Pickled>) -> Children {
    children.into_iter().enumerate().map(|(i, child)| (i.to_string(), child)).collect()
}

/// Makes modules of layers; hands out each tensor.
pub(super) struct Writer {
    views: BTreeMap<String, View>,
    stride: Pickled,
}

impl Writer {
    /// Of these tensors by name; `stride` are the pixels of a cell at each level.
    pub(super) fn new(views: Vec<(String, View)>, stride: Pickled) -> Self {
        Self { views: views.into_iter().collect(), stride }
    }

    /// All layers of `model`.
    pub(super) fn layers(&mut self, model: &Yolo) -> Result<Pickled, ExportError> {
        let mut layers = Vec::new();
        for (i, layer) in model.model.iter().enumerate() {
            let path = format!("model.{i}");
            let (class, from, children, own) = match layer {
                Layer::Conv(m) => (class::CONV, None, self.conv_parts(&path, m)?, Vec::new()),
                Layer::C2f(m) => (class::C2F, None, self.c2f(&path, m)?, vec![("c", Pickled::Int(m.hidden() as i64))]),
                Layer::Sppf(m) => (class::SPPF, None, self.sppf(&path, m)?, vec![("n", Pickled::Int(3)), ("add", Pickled::Bool(false))]),
                Layer::Upsample(_) => (class::UPSAMPLE, None, Vec::new(), upsample()),
                Layer::Concat(m) => (class::CONCAT, Some(vec![-1, m.with() as i64]), Vec::new(), vec![("d", Pickled::Int(1))]),
                Layer::Detect(m) => {
                    let from = model.head_inputs().iter().map(|&i| i as i64).collect();
                    (class::DETECT, Some(from), self.detect(&path, m)?, self.detect_own(model.nc(), m.cv2.len()))
                }
            };
            let own = own.into_iter().chain([
                ("np", Pickled::Int(self.parameters(&path) as i64)),
                ("i", Pickled::Int(i as i64)),
                ("f", from.map_or(Pickled::Int(-1), |from| Pickled::ints(&from))),
                ("type", Pickled::Text(format!("{}.{}", class.0, class.1))),
            ]);
            layers.push(module(class, Vec::new(), Vec::new(), children, own.collect()));
        }
        Ok(module(class::SEQUENTIAL, Vec::new(), Vec::new(), numbered(layers), Vec::new()))
    }

    /// Number of parameters below `path`.
    fn parameters(&self, path: &str) -> usize {
        let below = self.views.iter().filter(|(name, _)| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')));
        let counts = below.filter(|(name, _)| !name.contains(".running_") && !name.ends_with(".num_batches_tracked"));
        counts.map(|(_, view)| view.shape.iter().product::<usize>()).sum()
    }

    fn view(&self, name: String) -> Result<View, ExportError> {
        self.views.get(&name).cloned().ok_or(ExportError::Absent(name))
    }

    fn parameter(&self, path: &str, name: &'static str) -> Result<(&'static str, Pickled), ExportError> {
        Ok((name, Pickled::Parameter(self.view(format!("{path}.{name}"))?)))
    }

    fn buffer(&self, path: &str, name: &'static str) -> Result<(&'static str, Pickled), ExportError> {
        Ok((name, Pickled::Tensor(self.view(format!("{path}.{name}"))?)))
    }

    fn conv2d(&self, path: &str, stride: usize, bias: bool) -> Result<Pickled, ExportError> {
        let weight = self.view(format!("{path}.weight"))?;
        let &[cout, cin, k, _] = weight.shape.as_slice() else { return Err(ExportError::Absent(format!("{path}.weight"))) };
        let pad = k / 2;
        let bias = if bias { self.parameter(path, "bias")? } else { ("bias", Pickled::None) };
        let own = vec![
            ("in_channels", Pickled::Int(cin as i64)),
            ("out_channels", Pickled::Int(cout as i64)),
            ("kernel_size", ints([k, k])),
            ("stride", ints([stride, stride])),
            ("padding", ints([pad, pad])),
            ("dilation", ints([1, 1])),
            ("transposed", Pickled::Bool(false)),
            ("output_padding", ints([0, 0])),
            ("groups", Pickled::Int(1)),
            ("padding_mode", "zeros".into()),
            ("_reversed_padding_repeated_twice", ints([pad; 4])),
        ];
        Ok(module(class::CONV2D, vec![("weight", Pickled::Parameter(weight)), bias], Vec::new(), Vec::new(), own))
    }

    fn batch_norm(&self, path: &str) -> Result<Pickled, ExportError> {
        let (weight, bias) = (self.parameter(path, "weight")?, self.parameter(path, "bias")?);
        let own = vec![
            ("num_features", Pickled::Int(self.view(format!("{path}.weight"))?.shape.iter().product::<usize>() as i64)),
            ("eps", Pickled::Float(BN_EPSILON)),
            ("momentum", Pickled::Float(BN_MOMENTUM)),
            ("affine", Pickled::Bool(true)),
            ("track_running_stats", Pickled::Bool(true)),
        ];
        let buffers = ["running_mean", "running_var", "num_batches_tracked"].map(|name| self.buffer(path, name));
        let buffers = buffers.into_iter().collect::<Result<_, _>>()?;
        Ok(module(class::BATCH_NORM, vec![weight, bias], buffers, Vec::new(), own))
    }

    fn conv_parts(&self, path: &str, m: &Conv) -> Result<Children, ExportError> {
        let act = if m.act() { plain(class::SILU, vec![("inplace", Pickled::Bool(true))]) } else { plain(class::IDENTITY, Vec::new()) };
        let conv = self.conv2d(&format!("{path}.conv"), m.conv.stride(), false)?;
        Ok(vec![("conv".into(), conv), ("bn".into(), self.batch_norm(&format!("{path}.bn"))?), ("act".into(), act)])
    }

    fn conv(&self, path: &str, m: &Conv) -> Result<Pickled, ExportError> {
        Ok(module(class::CONV, Vec::new(), Vec::new(), self.conv_parts(path, m)?, Vec::new()))
    }

    /// The children `cv1` and `cv2`.
    fn two(&self, path: &str, cv1: &Conv, cv2: &Conv) -> Result<Children, ExportError> {
        let (first, second) = (self.conv(&format!("{path}.cv1"), cv1)?, self.conv(&format!("{path}.cv2"), cv2)?);
        Ok(vec![("cv1".into(), first), ("cv2".into(), second)])
    }

    fn bottleneck(&self, path: &str, m: &Bottleneck) -> Result<Pickled, ExportError> {
        let children = self.two(path, &m.cv1, &m.cv2)?;
        Ok(module(class::BOTTLENECK, Vec::new(), Vec::new(), children, vec![("add", Pickled::Bool(m.shortcut()))]))
    }

    fn c2f(&self, path: &str, m: &C2f) -> Result<Children, ExportError> {
        let mut children = self.two(path, &m.cv1, &m.cv2)?;
        let chain = m.m.iter().enumerate().map(|(j, inner)| self.bottleneck(&format!("{path}.m.{j}"), inner));
        let chain = numbered(chain.collect::<Result<_, _>>()?);
        children.push(("m".into(), module(class::MODULE_LIST, Vec::new(), Vec::new(), chain, Vec::new())));
        Ok(children)
    }

    fn sppf(&self, path: &str, m: &Sppf) -> Result<Children, ExportError> {
        let mut children = self.two(path, &m.cv1, &m.cv2)?;
        let own = vec![
            ("kernel_size", Pickled::Int(5)),
            ("stride", Pickled::Int(1)),
            ("padding", Pickled::Int(2)),
            ("dilation", Pickled::Int(1)),
            ("return_indices", Pickled::Bool(false)),
            ("ceil_mode", Pickled::Bool(false)),
        ];
        children.push(("m".into(), plain(class::MAX_POOL, own)));
        Ok(children)
    }

    fn detect(&self, path: &str, m: &Detect) -> Result<Children, ExportError> {
        let branches = |name: &str, branches: &[Branch]| -> Result<Pickled, ExportError> {
            let levels = branches.iter().enumerate().map(|(level, branch)| {
                let at = |i: usize| format!("{path}.{name}.{level}.{i}");
                let parts = vec![self.conv(&at(0), &branch.0)?, self.conv(&at(1), &branch.1)?, self.conv2d(&at(2), 1, true)?];
                Ok(module(class::SEQUENTIAL, Vec::new(), Vec::new(), numbered(parts), Vec::new()))
            });
            let levels = numbered(levels.collect::<Result<_, ExportError>>()?);
            Ok(module(class::MODULE_LIST, Vec::new(), Vec::new(), levels, Vec::new()))
        };
        let conv = self.conv2d(&format!("{path}.dfl.conv"), 1, false)?;
        let dfl = module(class::DFL, Vec::new(), Vec::new(), vec![("conv".into(), conv)], vec![("c1", Pickled::Int(REG_MAX as i64))]);
        Ok(vec![("cv2".into(), branches("cv2", &m.cv2)?), ("cv3".into(), branches("cv3", &m.cv3)?), ("dfl".into(), dfl)])
    }

    fn detect_own(&self, nc: usize, levels: usize) -> Own {
        vec![
            ("nc", Pickled::Int(nc as i64)),
            ("nl", Pickled::Int(levels as i64)),
            ("reg_max", Pickled::Int(REG_MAX as i64)),
            ("no", Pickled::Int((nc + 4 * REG_MAX) as i64)),
            ("stride", self.stride.clone()),
            ("inplace", Pickled::Bool(true)),
        ]
    }
}

fn upsample() -> Own {
    vec![
        ("name", "Upsample".into()),
        ("size", Pickled::None),
        ("scale_factor", Pickled::Float(2.0)),
        ("mode", "nearest".into()),
        ("align_corners", Pickled::None),
        ("recompute_scale_factor", Pickled::None),
    ]
}
