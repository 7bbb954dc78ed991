//! Which layers are run again in the backward pass instead of keeping what they computed (Chen et al. 2016).

use bellows_settings::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `auto`, `off`, or a number of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Checkpointing {
    /// As few layers as the memory asks for. A run settles it before it begins; until then it is [`ALL`](Self::ALL).
    Auto,
    /// So many layers, the lowest ones, as Megatron's `recompute-num-layers` counts them. The top one never is: its turn comes first, and what it
    /// computed is still there.
    Layers(usize),
}

impl Checkpointing {
    /// Every graph is kept.
    pub const OFF: Self = Self::Layers(0);
    /// Every layer but the top one.
    pub const ALL: Self = Self::Layers(usize::MAX);

    /// How many layers are run again of `layers` that have a backward pass.
    pub fn of(self, layers: usize) -> usize {
        let most = layers.saturating_sub(1);
        match self {
            Self::Auto => most,
            Self::Layers(n) => n.min(most),
        }
    }
}

impl Default for Checkpointing {
    fn default() -> Self {
        Self::OFF
    }
}

impl TryFrom<Value> for Checkpointing {
    type Error = String;

    /// Yes and no are what the setting was before it was a number, and what other tools write.
    fn try_from(value: Value) -> Result<Self, String> {
        let refused = || format!("{value} is neither auto, off, all nor a number of layers");
        match &value {
            Value::Bool(yes) => Ok(if *yes { Self::ALL } else { Self::OFF }),
            Value::Number(n) => n.as_u64().and_then(|n| n.try_into().ok()).map(Self::Layers).ok_or_else(refused),
            Value::String(text) => match text.to_ascii_lowercase().as_str() {
                "auto" => Ok(Self::Auto),
                "off" | "false" => Ok(Self::OFF),
                "all" | "true" => Ok(Self::ALL),
                text => text.parse().map(Self::Layers).map_err(|_| refused()),
            },
            _ => Err(refused()),
        }
    }
}

impl From<Checkpointing> for Value {
    fn from(checkpointing: Checkpointing) -> Self {
        match checkpointing {
            Checkpointing::Auto => "auto".into(),
            Checkpointing::OFF => "off".into(),
            Checkpointing::ALL => "all".into(),
            Checkpointing::Layers(n) => n.into(),
        }
    }
}

impl Kind for Checkpointing {
    fn value_name() -> String {
        "auto|off|N".into()
    }

    fn read(text: &str) -> Value {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_today_and_of_yesterday_are_read() {
        let read = |value: Value| serde_json::from_value::<Checkpointing>(value).map_err(|e| e.to_string());
        for (value, means) in [
            (json!(true), Checkpointing::ALL),
            (json!("True"), Checkpointing::ALL),
            (json!("all"), Checkpointing::ALL),
            (json!(false), Checkpointing::OFF),
            (json!("off"), Checkpointing::OFF),
            (json!(0), Checkpointing::OFF),
            (json!("12"), Checkpointing::Layers(12)),
            (json!(12), Checkpointing::Layers(12)),
            (json!("auto"), Checkpointing::Auto),
        ] {
            assert_eq!(read(value.clone()), Ok(means), "{value}");
            assert_eq!(read(Value::from(means)), Ok(means), "{means:?} is written as it is read");
        }
        for wrong in [json!(-1), json!(1.5), json!("some"), json!([])] {
            assert!(read(wrong.clone()).unwrap_err().contains("neither auto, off, all nor a number"), "{wrong}");
        }
    }

    #[test]
    fn the_top_layer_is_never_run_again() {
        let of = |checkpointing: Checkpointing| [0, 1, 4].map(|layers| checkpointing.of(layers));
        assert_eq!(of(Checkpointing::OFF), [0, 0, 0]);
        assert_eq!(of(Checkpointing::Layers(2)), [0, 0, 2]);
        assert_eq!(of(Checkpointing::ALL), [0, 0, 3]);
        assert_eq!(of(Checkpointing::Auto), [0, 0, 3]);
    }
}
