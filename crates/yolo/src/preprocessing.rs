//! What becomes of image files before a network sees them: which frames of a clip stand in its channels, and how counts of 16 bits become grays.
//!
//! Every file of weights says it, under the names of the settings. Training writes it, an export hands it on, and whoever uses the weights (`val`, `predict`, a training
//! that starts from them) reads it here. Weights whose channels are not what they say they look at are refused: three frames are not three colours.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config::TrainConfig;
use crate::data::{Normalisation, Stack};

/// What weights were trained to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Preprocessing {
    /// Which frames make an input.
    pub stack: Stack,
    /// How counts of 16-bit images become grays; none where there were no such images.
    pub levels: Option<Normalisation>,
}

impl Preprocessing {
    /// Of a run with these settings, in which `range` is that which was measured.
    pub fn of(config: &TrainConfig) -> Self {
        let levels = config.levels();
        Self { stack: config.stack(), levels: (levels.range.is_some() || levels.per_frame).then(|| levels.alone()) }
    }

    /// As settings, which whoever uses the weights takes for defaults.
    pub fn settings(&self) -> Map<String, Value> {
        let levels = match self.levels {
            Some(Normalisation::Range { low, high }) => vec![("range", json!([low, high]))],
            Some(Normalisation::Frame { low, high }) => vec![("percentile_of", "frame".into()), ("percentile", json!([low, high]))],
            None => Vec::new(),
        };
        let Stack { frames, stride, background } = self.stack;
        let stack = [("frames", frames), ("frame_stride", stride), ("background", background)].map(|(key, n)| (key, n.into()));
        let stack = stack.into_iter().filter(|_| self.stack.is_on());
        levels.into_iter().chain(stack).map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// The same as texts beside the tensors of a file.
    pub(crate) fn facts(&self) -> BTreeMap<String, String> {
        let text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        self.settings().into_iter().map(|(key, value)| (key, text(value))).collect()
    }

    /// What a file with this `metadata` says, whose network has `channels`; where its own facts are silent, the settings of its training.
    ///
    /// # Errors
    /// Facts that make no sense, or none that explain the channels: as the end of a sentence about the file.
    pub(crate) fn read(metadata: &BTreeMap<String, String>, channels: usize) -> Result<Self, String> {
        let settings: Map<String, Value> = metadata.get("train_args").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let own = |key: &str| metadata.get(key).map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()));
        let fact = |key: &str| own(key).or_else(|| settings.get(key).cloned()).filter(|value| !value.is_null());
        let number = |key: &str, otherwise: usize, least: u64| match fact(key) {
            None => Ok(otherwise),
            Some(value) => match value.as_u64().filter(|n| (least..=64).contains(n)) {
                Some(n) => Ok(n as usize),
                None => Err(format!("its `{key}` is {value}, which is no number of frames")),
            },
        };
        let pair = |key: &str| match fact(key).map(|value| (serde_json::from_value::<[f64; 2]>(value.clone()), value)) {
            None => Ok(None),
            Some((Ok([low, high]), _)) if low < high => Ok(Some([low, high])),
            Some((_, value)) => Err(format!("its `{key}` is {value}, and not two rising numbers")),
        };
        let alone = Stack::default();
        let stack = Stack {
            frames: number("frames", alone.frames, 1)?,
            stride: number("frame_stride", alone.stride, 1)?,
            background: number("background", alone.background, 0)?,
        };
        let per_frame = fact("percentile_of").is_some_and(|of| of == "frame");
        let levels = match (pair("range")?, per_frame.then(|| pair("percentile")).transpose()?.flatten()) {
            (Some([low, high]), _) => Some(Normalisation::Range { low, high }),
            (None, Some([low, high])) => Some(Normalisation::Frame { low, high }),
            (None, None) => None,
        };
        let looks = format!("it says that it looks at {} of a clip", stack.told());
        match channels {
            n if stack.is_on() && n != stack.channels() => Err(format!("{looks}, and its first convolution has {n} channels")),
            n if !stack.is_on() && n != 1 && n != 3 => {
                Err(format!("its first convolution has {n} channels, and it does not say what they are"))
            }
            _ => Ok(Self { stack, levels }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Preprocessing; 4] {
        let stack = Stack { frames: 3, stride: 2, background: 0 };
        let range = Some(Normalisation::Range { low: 27_000.0, high: 31_000.5 });
        let frame = Some(Normalisation::Frame { low: 0.5, high: 99.5 });
        [
            Preprocessing::default(),
            Preprocessing { stack, levels: range },
            Preprocessing { stack: Stack { background: 5, ..Stack::default() }, levels: frame },
            Preprocessing { stack: Stack::default(), levels: range },
        ]
    }

    #[test]
    fn what_was_trained_on_is_what_is_read() {
        for record in all() {
            let channels = if record.stack.is_on() { record.stack.channels() } else { 3 };
            assert_eq!(Preprocessing::read(&record.facts(), channels), Ok(record));
            // Of the settings of a run, and as the settings that others take.
            let layer = bellows_settings::Layer { origin: "weights".into(), values: record.settings() };
            let config = TrainConfig::from_layers(&[layer]).unwrap();
            assert_eq!(Preprocessing::of(&config), record);
            let settings = BTreeMap::from([("train_args".to_string(), serde_json::to_string(&config).unwrap())]);
            assert_eq!(Preprocessing::read(&settings, channels), Ok(record), "a file that has its training's settings alone");
        }
        assert!(Preprocessing::default().facts().is_empty(), "of single images of 8 bits there is nothing to say");
    }

    #[test]
    fn channels_that_are_not_what_is_said_are_refused() {
        let read = |facts: &[(&str, &str)], channels| {
            let facts = facts.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect();
            Preprocessing::read(&facts, channels).unwrap_err()
        };
        assert!(read(&[("frames", "2")], 3).contains("looks at 2 frames of a clip, and its first convolution has 3 channels"));
        assert!(read(&[("background", "5")], 3).contains("1 frame and a background of a clip"));
        assert!(read(&[], 2).contains("2 channels, and it does not say"));
        for facts in [[("frames", "three")], [("frames", "0")], [("frame_stride", "-1")], [("background", "65")], [("frames", "1e9")]] {
            assert!(read(&facts, 3).contains("no number of frames"), "{facts:?}");
        }
        for facts in [[("range", "[5,5]")], [("range", "hot")], [("range", "[1,2,3]")]] {
            assert!(read(&facts, 3).contains("not two rising numbers"), "{facts:?}");
        }
    }
}
