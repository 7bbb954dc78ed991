//! Which optimizer a run asks for: `--optim`.

use bellows_learner::OptimizerKind;
use serde::{Deserialize, Serialize};

/// The optimizers of a fine-tuning run, by their names in any case and some of transformers'. The Learner's others have constants of detectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub enum Optim {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Adam; weight decay is added to the gradient.
    Adam,
    /// Gradient descent with Nesterov momentum; weight decay is added to the gradient.
    #[serde(rename = "SGD")]
    Sgd,
    /// Adafactor, without first moment.
    Adafactor,
    /// Lion.
    Lion,
}

impl Optim {
    const ALL: [(&str, Self); 5] =
        [("AdamW", Self::AdamW), ("Adam", Self::Adam), ("SGD", Self::Sgd), ("Adafactor", Self::Adafactor), ("Lion", Self::Lion)];

    /// What transformers calls them otherwise. Its `lion_32bit` has another second constant, and paged ones and those of 8 bits are not there.
    const ALIASES: [(&str, Self); 3] = [("adamw_torch", Self::AdamW), ("adamw_torch_fused", Self::AdamW), ("adamw_hf", Self::AdamW)];
}

impl TryFrom<String> for Optim {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let found = Self::ALL.iter().chain(&Self::ALIASES).find(|(name, _)| name.eq_ignore_ascii_case(&text));
        found.map(|(_, optim)| *optim).ok_or_else(|| format!("it must be one of {}", Self::ALL.map(|(name, _)| name).join(", ")))
    }
}

impl From<Optim> for OptimizerKind {
    fn from(optim: Optim) -> Self {
        match optim {
            Optim::AdamW => Self::AdamW,
            Optim::Adam => Self::Adam,
            Optim::Sgd => Self::Sgd,
            Optim::Adafactor => Self::Adafactor,
            Optim::Lion => Self::Lion,
        }
    }
}

#[cfg(test)]
mod tests {
    use bellows_settings::Layer;
    use serde_json::json;

    use super::*;
    use crate::config::SftConfig;

    #[test]
    fn optimizers_are_known_in_any_case_and_by_transformers_names() {
        for (name, optim) in Optim::ALL {
            let written = serde_json::to_value(optim).unwrap();
            assert_eq!((&written, serde_json::to_value(OptimizerKind::from(optim)).unwrap()), (&json!(name), json!(name)), "as it was");
            for text in [name.to_string(), name.to_lowercase(), name.to_uppercase()] {
                assert_eq!(serde_json::from_value::<Optim>(json!(text)).unwrap(), optim);
            }
        }
        for (name, optim) in Optim::ALIASES {
            assert_eq!(serde_json::from_value::<Optim>(json!(name)).unwrap(), optim);
        }
        for name in ["NAdam", "lion_32bit", "paged_adamw_8bit"] {
            let values = [("optim".to_string(), json!(name))].into_iter().collect();
            let error = SftConfig::from_layers(&[Layer { origin: "x.yaml".into(), values }]).unwrap_err().to_string();
            assert_eq!(error, format!("x.yaml: `optim` cannot be {name:?}: it must be one of AdamW, Adam, SGD, Adafactor, Lion"));
        }
    }
}
