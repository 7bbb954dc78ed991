//! Data defined in code: each item is held against the network before it is used, as files are when they are scanned, and settings that are for files are told.

use std::sync::Arc;

use burn::data::dataset::{Dataset, DatasetError};

use crate::config::{Cache, TrainConfig};
use crate::data::{DataError, Item};

/// What there is to say against `config` with such data: a setting that is carried out where files are found and read. A sampler has nothing to draw by there,
/// unless `weights` are given.
pub(crate) fn of_files(config: &TrainConfig, weights: &[f64]) -> Option<String> {
    let settings = [
        ("single_cls", config.single_cls),
        ("classes", config.classes.is_some()),
        ("sampler", config.sampler.is_some() && weights.is_empty()),
        ("fraction", config.fraction < 1.0),
        ("cache", config.cache != Cache::Off),
        ("frames", config.frames > 1),
        ("background", config.background > 0),
    ];
    let (setting, _) = settings.into_iter().find(|(_, asked)| *asked)?;
    Some(format!("{setting} is of data that are read from files: a data set defined in code gives its items as they are to be used"))
}

/// `data` for a network of so many classes and channels: an item that it cannot be trained with or judged on is one that cannot be read.
pub(crate) fn checked(data: Arc<dyn Dataset<Item>>, classes: usize, channels: usize) -> Arc<dyn Dataset<Item>> {
    Arc::new(Checked { data, classes, channels })
}

struct Checked {
    data: Arc<dyn Dataset<Item>>,
    classes: usize,
    channels: usize,
}

impl Checked {
    /// What is wrong with an item.
    fn fault(&self, Item { frame, labels, .. }: &Item) -> Option<String> {
        let (pixels, sides) = (frame.pixels.len(), [frame.channels, frame.width, frame.height]);
        if pixels == 0 || pixels != sides.iter().product::<usize>() {
            let [channels, width, height] = sides;
            return Some(format!("{pixels} pixels do not fill {channels} channels of {width}x{height}"));
        }
        // Gray is repeated.
        if frame.channels != self.channels && (frame.channels, self.channels) != (1, 3) {
            return Some(format!("{} channels, and the network has {}", frame.channels, self.channels));
        }
        if let Some(label) = labels.iter().find(|label| label.class as usize >= self.classes) {
            return Some(format!("class {} is not one of the {} classes (from 0)", label.class, self.classes));
        }
        let label = labels.iter().find(|label| !label.xywh.iter().all(|v| v.is_finite()))?;
        Some(format!("a box of {:?}", label.xywh))
    }
}

impl Dataset<Item> for Checked {
    fn get(&self, index: usize) -> Result<Item, DatasetError> {
        let item = self.data.get(index)?;
        match self.fault(&item) {
            None => Ok(item),
            Some(reason) => Err(DatasetError::new(DataError::Image { name: item.name, reason })),
        }
    }

    fn len(&self) -> usize {
        self.data.len()
    }
}
