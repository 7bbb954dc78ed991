//! Numbers of a device on the host.

use bellows_learner::LearnError;
use burn::tensor::Tensor;

/// What the device has computed.
pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, LearnError> {
    tensor.try_into_vec_as::<f32>().map_err(|error| LearnError::unread("what a model says of images", &error))
}
