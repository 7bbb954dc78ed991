//! A detector used on images: frames in, boxes in the pixels of those frames out.
//!
//! [`Predictor`] computes, [`source`] finds what to look at, [`past`] has the frames before an image, [`video`] has frames of films and cameras from the `ffmpeg` program, [`output`]
//! is what is written of a result. Nothing here prints or chooses a device. The order of results is the order of what was given.

pub mod output;
pub mod past;
pub mod source;
pub mod tiles;
pub mod video;

use bellows_exit::{Coded, Exit};
use bellows_kernels::images;
use bellows_learner::LearnError;
use burn::tensor::Device;
use rayon::prelude::*;

use crate::boxes::Detection;
use crate::config::STRIDE;
use crate::data::{DataError, Frame, Letterbox, Size, letterbox};
use crate::metrics::{NmsConfig, nms};
use crate::model::Fused;
use crate::readback::host;
use tiles::{Merge, Tiling};

/// How to look.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictConfig {
    /// What an image is fitted into before it is padded to the network's stride: both sides are multiples of 32.
    pub imgsz: Size,
    /// Images (or tiles) that go through the network together.
    pub batch: usize,
    /// What is kept of the network's answers.
    pub nms: NmsConfig,
    /// Images are also looked at tile by tile.
    pub tiling: Option<Tiling>,
}

impl Default for PredictConfig {
    /// What detector users expect: confidence above 0.25, one class an anchor.
    fn default() -> Self {
        Self { imgsz: Size::square(640), batch: 1, nms: NmsConfig { conf: 0.25, multi_label: false, ..NmsConfig::default() }, tiling: None }
    }
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// An image that cannot be brought to the network's size.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device cannot hand its results back.
    #[error(transparent)]
    Device(#[from] LearnError),
}

impl Coded for PredictError {
    fn exit(&self) -> Exit {
        match self {
            Self::Data(error) => error.exit(),
            Self::Device(error) => error.exit(),
        }
    }
}

/// A detector ready for images.
pub struct Predictor {
    model: Fused,
    device: Device,
    config: PredictConfig,
}

impl Predictor {
    /// `model` was fused on `device`.
    pub fn new(model: Fused, device: &Device, config: PredictConfig) -> Self {
        Self { model, device: device.clone(), config }
    }

    /// Its settings.
    pub fn config(&self) -> &PredictConfig {
        &self.config
    }

    /// The detections of each frame, best first, in its own pixels and clipped to it.
    ///
    /// # Errors
    /// [`PredictError`].
    pub fn predict(&self, frames: &[&Frame]) -> Result<Vec<Vec<Detection>>, PredictError> {
        let Some(tiling) = &self.config.tiling else {
            return Ok(frames.chunks(self.config.batch.max(1)).map(|batch| self.views(batch)).collect::<Result<Vec<_>, _>>()?.concat());
        };
        frames.iter().map(|frame| self.tiled(frame, tiling)).collect()
    }

    /// The whole frame, for what is larger than a tile, and each of its tiles.
    fn tiled(&self, frame: &Frame, tiling: &Tiling) -> Result<Vec<Detection>, PredictError> {
        let mut found = self.views(&[frame])?.concat();
        let places = tiling.places(frame.width, frame.height);
        if places.len() > 1 {
            for places in places.chunks(self.config.batch.max(1)) {
                let tiles: Vec<Frame> = places.iter().map(|place| place.cut(frame)).collect();
                let views = self.views(&tiles.iter().collect::<Vec<_>>())?;
                found.extend(views.into_iter().zip(places).flat_map(|(view, place)| view.into_iter().map(|d| place.back(d))));
            }
        }
        Ok(tiles::merge(found, Merge { agnostic: self.config.nms.agnostic, max_det: self.config.nms.max_det, ..tiling.merge }))
    }

    /// One pass through the network.
    fn views(&self, frames: &[&Frame]) -> Result<Vec<Vec<Detection>>, PredictError> {
        let shape = network_shape(frames, self.config.imgsz);
        let channels = frames.iter().map(|f| f.channels).max().unwrap_or(1).min(self.model.channels());
        let (mut pixels, mut places) = (Vec::new(), Vec::<Letterbox>::new());
        for frame in frames {
            let (fitted, place) = letterbox(frame, frame.size(), shape, true)?;
            let fitted = if channels == 1 { fitted.to_gray() } else { fitted.with_channels(channels) };
            pixels.extend(fitted.pixels);
            places.push(place);
        }
        let input = [frames.len(), channels, shape.height as usize, shape.width as usize];
        let images = images(&pixels, input, self.model.channels(), &self.device);
        let decoded = self.model.decode(&self.model.forward(images));
        let decoded: Vec<f32> = host(decoded)?;
        let (nc, per_image) = (self.model.nc(), decoded.len() / frames.len().max(1));
        let found = decoded.par_chunks(per_image.max(1)).zip(&places).map(|(prediction, place)| {
            let mut found = nms(prediction, nc, per_image / (4 + nc), &self.config.nms);
            found.iter_mut().for_each(|d| d.xyxy = place.to_original(d.xyxy));
            found
        });
        Ok(found.collect())
    }
}

/// The smallest rectangle with sides that are multiples of 32 that holds every frame as large as it fits into `room`.
fn network_shape(frames: &[&Frame], room: Size) -> Size {
    let stride = STRIDE as u32;
    frames.iter().fold(Size::square(stride), |shape, frame| {
        let [width, height] = [frame.width, frame.height].map(|v| v.max(1) as f64);
        let [across, down] = [room.width, room.height].map(f64::from);
        // By the side that ends first.
        let (side, of) = if width * down >= height * across { (across, width) } else { (down, height) };
        let [width, height] = [width, height].map(|v| ((v * side / of).round().max(1.0) as u32).next_multiple_of(stride));
        Size { width: shape.width.max(width), height: shape.height.max(height) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::YoloConfig;

    fn predictor(config: PredictConfig) -> Predictor {
        let device = Device::flex();
        Predictor::new(YoloConfig::new(3).init(4, &device).fuse(&device), &device, config)
    }

    fn frame(width: usize, height: usize) -> Frame {
        let pixels = (0..width * height).map(|i| ((i % width) * 3 + (i / width) * 5) as u8).collect();
        Frame { pixels, channels: 1, width, height, difference: false }
    }

    #[test]
    fn the_input_is_the_smallest_rectangle() {
        let (thermal, tall, tiny) = (frame(384, 288), frame(100, 200), frame(20, 20));
        let size = |width, height| Size { width, height };
        for (frames, shape) in [
            (vec![&thermal], size(640, 480)),
            (vec![&thermal, &tall], size(640, 640)),
            (vec![&tall], size(320, 640)),
            (vec![&tiny], size(640, 640)),
        ] {
            assert_eq!(network_shape(&frames, Size::square(640)), shape);
        }
        // A rectangle bounds both sides: which of them an image reaches depends on its form.
        for (frames, shape) in [(vec![&thermal], size(448, 320)), (vec![&tall], size(160, 320)), (vec![&thermal, &tall], size(448, 320))] {
            assert_eq!(network_shape(&frames, size(640, 320)), shape);
        }
    }

    #[test]
    fn batches_change_no_box_and_boxes_stay_in_their_frame() {
        let loose = NmsConfig { conf: 0.0, max_det: 20, ..PredictConfig::default().nms };
        let config = |batch| PredictConfig { imgsz: Size::square(64), batch, nms: loose.clone(), tiling: None };
        let frames: Vec<Frame> = (0..3).map(|i| frame(90 + i, 60)).collect();
        let frames: Vec<&Frame> = frames.iter().collect();
        let one = predictor(config(1)).predict(&frames).unwrap();
        let all = predictor(config(3)).predict(&frames).unwrap();
        assert_eq!((one.len(), one.clone()), (3, all));
        for (found, frame) in one.iter().zip(frames) {
            assert!(!found.is_empty());
            assert!(found.iter().all(|d| d.xyxy[0] >= 0.0 && d.xyxy[2] <= frame.width as f32 && d.xyxy[3] <= frame.height as f32));
        }
    }
}
