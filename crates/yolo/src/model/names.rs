//! A model as named tensors and back, under the names and shapes of the published state dict.
//!
//! A parameter's name is the path of fields and indices that leads to it; the variant of an enum is no part of it.
//! Two things in the state dict are no tensors of ours and are written and counted all the same, so that PyTorch
//! loads what we save: the batch counter of each normalisation and the constant weight of the box expectation.

use std::collections::BTreeMap;

use bellows_kernels::note_read;
use burn::store::ModuleSnapshot;
use burn::store::burn_pack::{Error as ReadError, Tensor as Stored};
use burn::tensor::{Bytes, DType, Tensor};

use super::Yolo;
use super::head::REG_MAX;

/// Name to shape and values.
pub type NamedTensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The one convolution whose input channels may differ from the checkpoint's.
const FIRST: &str = "model.0.conv.weight";

/// The values of a float tensor, row-major; one read.
#[expect(clippy::expect_used, reason = "every float type converts to f32")]
pub fn to_host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    note_read();
    tensor.into_data().try_into_vec_as::<f32>().expect("a float tensor")
}

/// Whether a tensor is learned or observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Learned by gradient.
    Param,
    /// A running statistic.
    Buffer,
}

fn kind(name: &str) -> Kind {
    if name.ends_with(".running_mean") || name.ends_with(".running_var") { Kind::Buffer } else { Kind::Param }
}

/// The float tensors of a model, in the order of the layers; nothing is read from the device yet.
fn stored(model: &Yolo) -> impl Iterator<Item = Stored> {
    model.collect(None, None, true).into_iter().filter(|tensor| tensor.dtype.is_float())
}

/// Name, shape and kind of every tensor, in the order of the layers.
pub fn named_tensors(model: &Yolo) -> Vec<(String, Vec<usize>, Kind)> {
    stored(model).map(|t| (t.name.clone(), t.shape.to_vec(), kind(&t.name))).collect()
}

/// The full state dict (355 tensors for sizes n and s), loadable by PyTorch with `strict=True`.
///
/// `batches` is written as every `num_batches_tracked`.
///
/// # Errors
/// When the device cannot hand a tensor back.
pub fn to_tensors(model: &Yolo, batches: u64) -> Result<NamedTensors, ReadError> {
    let mut tensors = NamedTensors::new();
    for tensor in stored(model) {
        let values = tensor.to_bytes()?.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(norm) = tensor.name.strip_suffix("running_var") {
            tensors.insert(format!("{norm}num_batches_tracked"), (vec![], vec![batches as f32]));
        }
        tensors.insert(tensor.name, (tensor.shape.to_vec(), values));
    }
    // The constant 0, 1, .. 15 that turns a distribution over bins into a distance.
    tensors.insert(format!("model.{}.dfl.conv.weight", model.head()), (vec![1, REG_MAX, 1, 1], (0..REG_MAX).map(|k| k as f32).collect()));
    Ok(tensors)
}

/// Replaces the tensors that `tensors` names, each of the model's own shape; the others stay.
pub(super) fn assign<'a>(model: &mut Yolo, tensors: impl IntoIterator<Item = (&'a String, &'a (Vec<usize>, Vec<f32>))>) {
    let stored = tensors.into_iter().map(|(name, (shape, values))| {
        let bytes = Bytes::from_elems(values.clone());
        Stored::new(name.clone(), DType::F32, shape.clone(), None, bytes)
    });
    model.apply(stored.collect(), None, None, true);
}

/// What became of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadReport {
    /// State-dict tensors taken over.
    pub transferred: usize,
    /// State-dict tensors the model has.
    pub total: usize,
    /// Names the source lacks; the model keeps its own values.
    pub missing: Vec<String>,
    /// Names the source has in another shape: name, the model's shape, the source's.
    pub mismatched: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Names of the source that the model has not.
    pub foreign: Vec<String>,
}

/// A source whose values do not fill its shape.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("tensor {name}: {values} values do not fill shape {shape:?}")]
pub struct BadTensor {
    /// Name in the source.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many values came with it.
    pub values: usize,
}

/// A source that does not fill its shapes, or a model that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// See [`BadTensor`].
    #[error(transparent)]
    Source(#[from] BadTensor),
    /// The device cannot hand a tensor back.
    #[error(transparent)]
    Model(#[from] ReadError),
}

/// Takes over every tensor of `source` whose name and shape the model has; other names are ignored.
///
/// When only the image channels differ, the first convolution takes the channels both have; one of a gray image takes the sum of all, and that of a gray
/// image is shared out among all: either makes of a gray image what the source makes of it.
/// Running statistics are shared by clones of a model: load into one that has none, or into `valid().train()`.
///
/// # Errors
/// [`BadTensor`] if a tensor of the source has not as many values as its shape says.
pub fn load_tensors(mut model: Yolo, source: &NamedTensors) -> Result<(Yolo, LoadReport), LoadError> {
    for (name, (shape, values)) in source {
        if shape.iter().product::<usize>() != values.len() {
            return Err(BadTensor { name: name.clone(), shape: shape.clone(), values: values.len() }.into());
        }
    }
    let own = to_tensors(&model, 0)?;
    let total = own.len();
    let foreign = source.keys().filter(|name| !own.contains_key(*name)).cloned().collect();
    let (mut taken, mut missing, mut mismatched) = (NamedTensors::new(), vec![], vec![]);
    for (name, (shape, mut values)) in own {
        match source.get(&name) {
            None => missing.push(name),
            Some(theirs) if theirs.0 == shape => drop(taken.insert(name, theirs.clone())),
            Some((theirs, from)) if name == FIRST && theirs.len() == 4 && theirs[0] == shape[0] && theirs[2..] == shape[2..] => {
                common_channels(&mut values, shape[1], from, theirs[1], shape[2] * shape[3]);
                taken.insert(name, (shape, values));
            }
            Some((theirs, _)) => mismatched.push((name, shape, theirs.clone())),
        }
    }
    assign(&mut model, &taken);
    Ok((model, LoadReport { transferred: taken.len(), total, missing, mismatched, foreign }))
}

/// Copies the input channels both `[out, channels, area]` weights have, sums them up for a single one, or gives each the same part of a single one.
fn common_channels(to: &mut [f32], to_channels: usize, from: &[f32], from_channels: usize, area: usize) {
    let n = to_channels.min(from_channels) * area;
    for (to, from) in to.chunks_exact_mut(to_channels * area).zip(from.chunks_exact(from_channels * area)) {
        if from_channels == 1 {
            let planes = to.chunks_exact_mut(area);
            planes.flat_map(|plane| plane.iter_mut().zip(from)).for_each(|(to, v)| *to = v / to_channels as f32);
            continue;
        }
        to[..n].copy_from_slice(&from[..n]);
        if to_channels == 1 {
            from[n..].chunks_exact(area).for_each(|channel| to.iter_mut().zip(channel).for_each(|(to, v)| *to += v));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Scale, YoloConfig};
    use burn::tensor::Device;

    fn model(nc: usize, seed: u64) -> Yolo {
        YoloConfig::new(nc).init(seed, &Device::flex())
    }

    #[test]
    fn names_are_those_of_the_state_dict() {
        let names = named_tensors(&model(4, 0));
        assert_eq!(names.len(), 355 - 57 - 1);
        let find = |n: &str| names.iter().find(|(name, ..)| name == n).map(|(_, shape, kind)| (shape.clone(), *kind));
        assert_eq!(find("model.0.conv.weight"), Some((vec![16, 3, 3, 3], Kind::Param)));
        assert_eq!(find("model.0.bn.weight"), Some((vec![16], Kind::Param)));
        assert_eq!(find("model.0.bn.running_var"), Some((vec![16], Kind::Buffer)));
        assert_eq!(find("model.2.m.0.cv1.conv.weight"), Some((vec![16, 16, 3, 3], Kind::Param)));
        assert_eq!(find("model.9.cv2.bn.bias"), Some((vec![256], Kind::Param)));
        assert_eq!(find("model.22.cv2.0.2.weight"), Some((vec![64, 64, 1, 1], Kind::Param)));
        assert_eq!(find("model.22.cv3.2.1.bn.running_mean"), Some((vec![64], Kind::Buffer)));
        assert_eq!(find("model.22.cv3.2.2.bias"), Some((vec![4], Kind::Param)));
        assert_eq!(names.iter().filter(|n| n.2 == Kind::Param).count(), 183);
    }

    #[test]
    fn a_full_round_trip_transfers_all() {
        let (a, b) = (model(4, 1), model(4, 2));
        let source = to_tensors(&a, 5).unwrap();
        let (b, report) = load_tensors(b, &source).unwrap();
        assert_eq!((report.transferred, report.total), (355, 355));
        assert_eq!(to_tensors(&b, 5).unwrap(), source);
    }

    #[test]
    fn another_number_of_classes_transfers_all_but_the_class_branches() {
        let (loaded, report) = load_tensors(model(4, 1), &to_tensors(&model(80, 2), 0).unwrap()).unwrap();
        assert_eq!((report.transferred, report.total), (319, 355));
        assert!(report.missing.is_empty());
        assert_eq!(report.mismatched.len(), 36);
        assert!(report.mismatched.iter().all(|(n, ..)| n.starts_with("model.22.cv3.")), "{report:?}");
        let class = "model.22.cv3.0.2.weight";
        assert_eq!(to_tensors(&loaded, 0).unwrap()[class], to_tensors(&model(4, 1), 0).unwrap()[class]);
    }

    #[test]
    fn a_gray_model_takes_the_sum_of_the_colour_channels() {
        let colour = to_tensors(&model(4, 2), 0).unwrap();
        let gray = YoloConfig { channels: 1, ..YoloConfig::new(4) }.init(1, &Device::flex());
        let (gray, report) = load_tensors(gray, &colour).unwrap();
        assert_eq!(report.transferred, 355);
        let (shape, values) = &to_tensors(&gray, 0).unwrap()["model.0.conv.weight"];
        assert_eq!(shape, &[16, 1, 3, 3]);
        let expected: Vec<f32> = colour["model.0.conv.weight"]
            .1
            .chunks(27)
            .flat_map(|c| (0..9).map(|k| c[k] + c[k + 9] + c[k + 18]).collect::<Vec<_>>())
            .collect();
        assert_eq!(values, &expected);
        // A gray picture in three equal channels, and the same in one.
        let picture: Vec<f32> = (0..64 * 64).map(|i| (i * 37 % 255) as f32 / 255.0).collect();
        let see = |model: &Yolo, channels: usize| {
            let pixels = burn::tensor::TensorData::new(picture.repeat(channels), [1, channels, 64, 64]);
            to_host(model.forward(Tensor::<4>::from_data(pixels, &Device::flex())).into_iter().next().unwrap())
        };
        let colour_model = load_tensors(model(4, 3), &colour).unwrap().0;
        let (a, b) = (see(&colour_model, 3), see(&gray, 1));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3), "the outputs differ");
    }

    #[test]
    fn a_colour_model_shares_out_what_a_gray_one_weighs() {
        let gray = YoloConfig { channels: 1, ..YoloConfig::new(4) }.init(2, &Device::flex());
        let source = to_tensors(&gray, 0).unwrap();
        let (colour, report) = load_tensors(model(4, 1), &source).unwrap();
        assert_eq!(report.transferred, 355);
        let (shape, values) = &to_tensors(&colour, 0).unwrap()["model.0.conv.weight"];
        assert_eq!(shape, &[16, 3, 3, 3]);
        let third = |filter: &[f32]| filter.iter().map(|v| v / 3.0).collect::<Vec<_>>().repeat(3);
        assert_eq!(values, &source["model.0.conv.weight"].1.chunks(9).flat_map(third).collect::<Vec<_>>());
    }

    #[test]
    fn foreign_names_are_ignored_and_absent_ones_reported() {
        let mut source = to_tensors(&model(4, 2), 0).unwrap();
        source.remove("model.4.cv1.bn.bias");
        source.insert("ema.decay".into(), (vec![1], vec![0.5]));
        let (_, report) = load_tensors(model(4, 1), &source).unwrap();
        assert_eq!(report.transferred, 354);
        assert_eq!((report.missing, report.foreign), (vec!["model.4.cv1.bn.bias".to_string()], vec!["ema.decay".to_string()]));
    }

    #[test]
    fn a_tensor_shorter_than_its_shape_is_refused() {
        let source = NamedTensors::from([("model.0.bn.bias".to_owned(), (vec![16], vec![0.0; 15]))]);
        let error = load_tensors(model(4, 1), &source).unwrap_err();
        assert_eq!(error.to_string(), "tensor model.0.bn.bias: 15 values do not fill shape [16]");
    }

    #[test]
    fn larger_sizes_have_their_state_dict_too() {
        let m = YoloConfig { scale: Scale::M, ..YoloConfig::new(80) }.init(0, &Device::flex());
        assert_eq!(to_tensors(&m, 0).unwrap().len(), 475);
    }
}
