//! The kinds of values settings have beside numbers and text.

use bellows_settings::{Kind, number};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A switch that can also be a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false or a file")]
pub enum Toggle {
    /// Plain on or off.
    On(bool),
    /// On, with this file.
    Path(String),
}

impl Kind for Toggle {
    fn value_name() -> String {
        "VALUE".into()
    }

    fn read(text: &str) -> Value {
        switch_or(text, number)
    }
}

/// True or false, or what `other` reads.
fn switch_or(text: &str, other: impl Fn(&str) -> Value) -> Value {
    Some(bool::read(text)).filter(Value::is_boolean).unwrap_or_else(|| other(text))
}

/// Where decoded images are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Cache {
    /// Read from disk every time.
    Off,
    /// Kept in memory.
    Ram,
    /// Kept decoded in the user's cache folder, never beside the data.
    Disk,
}

impl TryFrom<Value> for Cache {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::Bool(on) => Ok(if on { Self::Ram } else { Self::Off }),
            Value::String(s) if s == "ram" => Ok(Self::Ram),
            Value::String(s) if s == "disk" => Ok(Self::Disk),
            _ => Err("it must be false, ram or disk".into()),
        }
    }
}

impl From<Cache> for Value {
    fn from(cache: Cache) -> Self {
        match cache {
            Cache::Off => Self::from(false),
            Cache::Ram => Self::from("ram"),
            Cache::Disk => Self::from("disk"),
        }
    }
}

impl Kind for Cache {
    fn value_name() -> String {
        "false|ram|disk".into()
    }

    fn read(text: &str) -> Value {
        switch_or(text, String::read)
    }
}

/// Whether what could be kept for the backward pass is made again there, as `kernels::set_keeps` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Checkpointing {
    /// Unless there is plenty of memory; a run finds out when it begins, and each time it goes on.
    Auto,
    /// Yes or no.
    On(bool),
}

impl TryFrom<Value> for Checkpointing {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::Bool(on) => Ok(Self::On(on)),
            Value::String(s) if s == "auto" => Ok(Self::Auto),
            _ => Err("it must be auto, true or false".into()),
        }
    }
}

impl From<Checkpointing> for Value {
    fn from(checkpointing: Checkpointing) -> Self {
        match checkpointing {
            Checkpointing::Auto => Self::from("auto"),
            Checkpointing::On(on) => Self::from(on),
        }
    }
}

impl Kind for Checkpointing {
    fn value_name() -> String {
        "auto|true|false".into()
    }

    fn read(text: &str) -> Value {
        switch_or(text, String::read)
    }
}

/// Which optimizer is asked for; the case of its letters does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub enum OptimizerChoice {
    /// Chosen from the number of iterations and classes.
    #[serde(rename = "auto")]
    Auto,
    /// Stochastic gradient descent with Nesterov momentum.
    SGD,
    /// Adam.
    Adam,
    /// AdamW.
    AdamW,
    /// NAdam.
    NAdam,
    /// RAdam.
    RAdam,
    /// Adamax.
    Adamax,
    /// RMSprop with momentum.
    RMSProp,
}

impl OptimizerChoice {
    const ALL: [(&str, Self); 8] = [
        ("auto", Self::Auto),
        ("SGD", Self::SGD),
        ("Adam", Self::Adam),
        ("AdamW", Self::AdamW),
        ("NAdam", Self::NAdam),
        ("RAdam", Self::RAdam),
        ("Adamax", Self::Adamax),
        ("RMSProp", Self::RMSProp),
    ];
}

impl TryFrom<String> for OptimizerChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| name.eq_ignore_ascii_case(&text));
        found.map(|(_, choice)| *choice).ok_or_else(|| format!("it must be one of {}", Self::ALL.map(|(name, _)| name).join(", ")))
    }
}

/// Layers that are not trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number of layers, or a list of them")]
pub enum Freeze {
    /// The first n.
    First(usize),
    /// These.
    List(Vec<usize>),
}

impl Kind for Freeze {
    fn value_name() -> String {
        "N|N,N,..|[N]".into()
    }

    fn read(text: &str) -> Value {
        match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(list) => Vec::<usize>::read(list),
            None if text.contains(',') => Vec::<usize>::read(text),
            None => number(text),
        }
    }
}

impl Freeze {
    /// Whether layer `index` is frozen.
    pub fn covers(&self, index: usize) -> bool {
        match self {
            Self::First(n) => index < *n,
            Self::List(list) => list.contains(&index),
        }
    }
}

/// Images per batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "Value")]
pub enum BatchSize {
    /// This many.
    Images(usize),
    /// As many as fit into this fraction of the device's memory (-1 asks for 0.6).
    Memory(f64),
}

/// What is taken when the device does not tell its memory.
const FALLBACK: usize = 16;

impl BatchSize {
    /// The number of images; 16 as long as it is still to be chosen.
    pub fn images(self) -> usize {
        match self {
            Self::Images(n) => n,
            Self::Memory(_) => FALLBACK,
        }
    }
}

impl From<usize> for BatchSize {
    fn from(images: usize) -> Self {
        Self::Images(images)
    }
}

impl TryFrom<f64> for BatchSize {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        match value {
            -1.0 => Ok(Self::Memory(0.6)),
            v if v >= 1.0 && v.fract() == 0.0 => Ok(Self::Images(v as usize)),
            v if v > 0.0 && v < 1.0 => Ok(Self::Memory(v)),
            v => Err(format!("{v} is neither a number of images, nor a fraction of the memory, nor -1")),
        }
    }
}

impl From<BatchSize> for Value {
    fn from(batch: BatchSize) -> Self {
        match batch {
            BatchSize::Images(n) => Self::from(n),
            BatchSize::Memory(fraction) => Self::from(fraction),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn optimizers_are_known_in_any_case() {
        for (name, choice) in OptimizerChoice::ALL {
            assert_eq!(serde_json::to_value(choice).unwrap(), json!(name));
            for written in [name.to_lowercase(), name.to_uppercase()] {
                assert_eq!(serde_json::from_value::<OptimizerChoice>(json!(written)).unwrap(), choice);
            }
        }
        let error = serde_json::from_value::<OptimizerChoice>(json!("Muon")).unwrap_err().to_string();
        assert!(error.contains("RMSProp"), "{error}");
    }

    #[test]
    fn flags_are_read_as_what_they_can_be() {
        assert_eq!([Toggle::read("True"), Toggle::read("a.pt"), Toggle::read("4")], [json!(true), json!("a.pt"), json!(4)]);
        assert_eq!([Cache::read("ram"), Cache::read("FALSE")], [json!("ram"), json!(false)]);
        assert_eq!([Freeze::read("3"), Freeze::read("3,b")], [json!(3), json!([3, "b"])]);
        assert_eq!([Freeze::read("[3]"), Freeze::read("[3, 4]"), Freeze::read("[3")], [json!([3]), json!([3, 4]), json!("[3")]);
    }
}
