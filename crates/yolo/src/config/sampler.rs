//! `sampler`: which images an epoch is made of, where it is not every one of them once.

use bellows_settings::{Kind, unknown};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What an epoch is drawn by. Written as `{clips: balanced, empty: 0.1, classes: balanced, epoch: 0.25}`, on the command line as
/// `clips=balanced,empty=0.1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Sampler {
    /// Every clip as often as any other, its frames spread over its time.
    pub clips: bool,
    /// Share of images without objects.
    pub empty: Option<f64>,
    /// Images of rare classes more often.
    pub classes: bool,
    /// Length of an epoch as a part of the images.
    pub epoch: Option<f64>,
}

impl TryFrom<Value> for Sampler {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let map = value.as_object().ok_or("it is no map: {clips: balanced, empty: 0.1, classes: balanced, epoch: 0.25}")?;
        let mut sampler = Self::default();
        for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            let balanced = || match value.as_str() {
                Some("balanced") => Ok(true),
                Some("all") => Ok(false),
                _ => Err(format!("`{key}` is balanced or all, and not {value}")),
            };
            let part = |low: f64| {
                let part = value.as_f64().filter(|&x| x >= low && x <= 1.0 && (x > 0.0 || key == "empty"));
                part.ok_or_else(|| format!("`{key}` is a part of the images from 0 to 1, and not {value}"))
            };
            match key.as_str() {
                "clips" => sampler.clips = balanced()?,
                "classes" => sampler.classes = balanced()?,
                "empty" => sampler.empty = Some(part(0.0)?),
                "epoch" => sampler.epoch = Some(part(0.0)?),
                _ => return Err(unknown("key", key, ["clips", "empty", "classes", "epoch"])),
            }
        }
        Ok(sampler)
    }
}

impl From<Sampler> for Value {
    fn from(sampler: Sampler) -> Self {
        let mut map = Map::new();
        for (key, on) in [("clips", sampler.clips), ("classes", sampler.classes)] {
            if on {
                map.insert(key.into(), "balanced".into());
            }
        }
        for (key, part) in [("empty", sampler.empty), ("epoch", sampler.epoch)] {
            if let Some(part) = part {
                map.insert(key.into(), part.into());
            }
        }
        Self::Object(map)
    }
}

impl Kind for Sampler {
    fn value_name() -> String {
        "KEY=VALUE,..".into()
    }

    fn read(text: &str) -> Value {
        let pairs: Option<Map<String, Value>> = text
            .split(',')
            .map(|pair| pair.split_once('=').map(|(key, value)| (key.trim().to_string(), bellows_settings::number(value.trim()))))
            .collect();
        pairs.map_or_else(|| text.into(), Value::Object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sampler_is_read_from_flags_and_files_alike() {
        let read = |value: Value| serde_json::from_value::<Sampler>(value).map_err(|e| e.to_string());
        let expected = Sampler { clips: true, empty: Some(0.1), classes: true, epoch: None };
        let written = json!({"clips": "balanced", "empty": 0.1, "classes": "balanced"});
        assert_eq!(read(written.clone()), Ok(expected));
        assert_eq!(read(Sampler::read("clips=balanced,empty=0.1, classes=balanced")), Ok(expected));
        assert_eq!(read(serde_json::to_value(expected).unwrap()), Ok(expected));
        assert_eq!(read(json!({"empty": 0})).unwrap().empty, Some(0.0));
        for (wrong, part) in [
            (json!({"clip": "balanced"}), "did you mean `clips`"),
            (json!({"clips": true}), "balanced or all"),
            (json!({"empty": 1.5}), "from 0 to 1"),
            (json!({"epoch": 0}), "from 0 to 1"),
            (Sampler::read("balanced"), "no map"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
