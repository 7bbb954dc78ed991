//! The stages of a run with a concept, by the names under which they may be left out.

/// One stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The direction is looked for.
    Extract,
    /// The layers' directions are tried.
    Score,
    /// The direction is taken out of the weights.
    Ablate,
    /// The model is judged, before and after.
    Eval,
    /// What is left is tuned.
    Train,
    /// A GGUF and its Modelfile are written.
    Export,
}

impl Stage {
    /// All, in their order.
    pub const ALL: [Self; 6] = [Self::Extract, Self::Score, Self::Ablate, Self::Eval, Self::Train, Self::Export];

    /// As settings name it: the verb that does the same alone.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extract => "extract",
            Self::Score => "score",
            Self::Ablate => "ablate",
            Self::Eval => "eval",
            Self::Train => "train",
            Self::Export => "export",
        }
    }

    /// Whether it is one of these names.
    pub fn is_in(self, names: &[String]) -> bool {
        names.iter().any(|name| name == self.name())
    }
}

/// That each of `concept_skip` names a stage.
///
/// # Errors
/// The first that does not.
pub fn check_names(skipped: &[String]) -> Result<(), String> {
    let wrong = skipped.iter().find(|name| !Stage::ALL.iter().any(|stage| stage.name() == name.as_str()));
    wrong.map_or(Ok(()), |name| Err(format!("concept_skip {name:?} is none of {}", Stage::ALL.map(Stage::name).join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_left_out_by_name() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(check_names(&[]).is_ok() && check_names(&Stage::ALL.map(|stage| stage.name().to_owned())).is_ok());
        assert_eq!(
            check_names(&names(&["eval", "edit"])).unwrap_err(),
            "concept_skip \"edit\" is none of extract, score, ablate, eval, train, export"
        );
        let some = names(&["ablate", "train"]);
        assert_eq!(Stage::ALL.map(|stage| stage.is_in(&some)), [false, false, true, false, true, false]);
    }
}
