//! What a checkpoint must agree with to be resumed from: settings, one by one, and facts (the data, the base model).
//!
//! A setting that an older run did not know has its default, and a fact that it did not know is taken as it is: programs grow both, and a run of
//! days must not be lost to that.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::{Map, Value};

/// The key of the settings in a checkpoint's `info`.
const SETTINGS: &str = "settings";

/// Settings that change what a run computes, and facts about what it computes with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identity {
    settings: Map<String, Value>,
    defaults: Map<String, Value>,
    may_change: BTreeSet<String>,
    /// Settings that may change because a fact says what they stand for.
    stand_for: BTreeMap<String, String>,
    facts: Map<String, Value>,
}

impl Identity {
    /// All fields of `settings` but those in `may_change`.
    pub fn of<C: Serialize + Default>(settings: &C, may_change: &[&str]) -> Self {
        let fields = |config: &C| serde_json::to_value(config).ok().and_then(|v| v.as_object().cloned()).unwrap_or_default();
        let may_change = may_change.iter().map(ToString::to_string).collect();
        let (settings, defaults) = (fields(settings), fields(&C::default()));
        Self { settings, defaults, may_change, stand_for: BTreeMap::new(), facts: Map::new() }
    }

    /// `setting`, which may change, says where something lies, and `fact` what that is: an older run without the fact is held to the setting.
    #[must_use]
    pub fn told_by(mut self, setting: &str, fact: &str) -> Self {
        self.stand_for.insert(setting.into(), fact.into());
        self
    }

    /// Adds a fact: what it is about, in words that fit "the ... has changed", and a value that changes with it.
    #[must_use]
    pub fn with(mut self, fact: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(fact.into(), value.into());
        self
    }

    /// As a checkpoint keeps it.
    pub(crate) fn info(&self) -> Map<String, Value> {
        let kept = self.settings.iter().filter(|(key, _)| !self.may_change.contains(*key));
        let settings: Map<String, Value> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        let mut info = self.facts.clone();
        if !self.settings.is_empty() {
            info.insert(SETTINGS.into(), settings.into());
        }
        info
    }

    /// The settings that a checkpoint's `info` does not know, with what they are now.
    pub(crate) fn unknown_to(&self, info: &Map<String, Value>) -> Map<String, Value> {
        let Some(Value::Object(begun)) = info.get(SETTINGS) else { return Map::new() };
        let unknown = |key: &&String| !begun.contains_key(*key) && !self.may_change.contains(*key);
        self.settings.iter().filter(|(key, _)| unknown(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// What differs in a checkpoint's `info`, in words; `None` if it is the same run.
    pub(crate) fn difference(&self, info: &Map<String, Value>) -> Option<String> {
        let mut different: Vec<String> = Vec::new();
        if let Some(Value::Object(begun)) = info.get(SETTINGS) {
            let is_told = |key: &String| self.stand_for.get(key).is_none_or(|fact| info.contains_key(fact));
            let free = |key: &String| self.may_change.contains(key) && is_told(key);
            let keys: BTreeSet<&String> = begun.keys().chain(self.settings.keys()).filter(|key| !free(key)).collect();
            for key in keys {
                let now = self.settings.get(key);
                match (begun.get(key).or_else(|| self.defaults.get(key)), now) {
                    (Some(was), Some(now)) if was == now => {}
                    (Some(was), Some(now)) => different.push(format!("{key} was {was} and is {now}")),
                    (Some(was), None) => different.push(format!("{key}, which was {was}, is no setting any more")),
                    (None, _) => {}
                }
            }
        }
        let changed = self.facts.iter().filter(|(key, value)| info.get(*key).is_some_and(|was| was != *value));
        different.extend(changed.map(|(key, _)| format!("the {key} has changed")));
        (!different.is_empty()).then(|| different.join(", "))
    }
}

/// What differs between what rank 0 and another rank are, in words; `None` if they are the same.
pub(crate) fn unlike(first: &Map<String, Value>, other: &Map<String, Value>) -> Option<String> {
    let none = Map::new();
    let settings = |info: &Map<String, Value>| info.get(SETTINGS).and_then(Value::as_object).unwrap_or(&none).clone();
    let (ours, theirs) = (settings(first), settings(other));
    let keys: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let text = |value: Option<&Value>| value.map_or_else(|| "nothing".to_string(), Value::to_string);
    let differ = keys.into_iter().filter(|key| ours.get(*key) != theirs.get(*key));
    let mut different: Vec<String> =
        differ.map(|key| format!("{key}, which is {} and {} on rank 0", text(theirs.get(key)), text(ours.get(key)))).collect();
    let facts: BTreeSet<&String> = first.keys().chain(other.keys()).filter(|key| *key != SETTINGS).collect();
    different.extend(facts.into_iter().filter(|key| first.get(*key) != other.get(*key)).map(|key| format!("the {key}")));
    (!different.is_empty()).then(|| different.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Config {
        rate: f64,
        name: Option<String>,
        workers: usize,
        new: bool,
    }

    impl Default for Config {
        fn default() -> Self {
            Self { rate: 0.1, name: None, workers: 2, new: false }
        }
    }

    fn identity(config: &Config) -> Identity {
        Identity::of(config, &["workers"]).with("data", "abc")
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let begun = identity(&Config::default()).info();
        assert_eq!(identity(&Config { workers: 9, ..Config::default() }).difference(&begun), None);
        let other = identity(&Config { rate: 0.2, name: Some("n".into()), ..Config::default() }).with("data", "def");
        let said = other.difference(&begun).unwrap();
        assert_eq!(said, "name was null and is \"n\", rate was 0.1 and is 0.2, the data has changed");
    }

    #[test]
    fn another_rank_is_told_by_what_it_has() {
        let first = identity(&Config::default()).info();
        assert_eq!(unlike(&first, &identity(&Config { workers: 9, ..Config::default() }).info()), None);
        let other = identity(&Config { rate: 0.2, ..Config::default() }).with("data", "def").info();
        assert_eq!(unlike(&first, &other).unwrap(), "rate, which is 0.2 and 0.1 on rank 0, the data");
    }

    #[test]
    fn a_setting_that_the_older_run_did_not_know_has_its_default() {
        let mut begun = identity(&Config::default()).info();
        begun["settings"].as_object_mut().unwrap().remove("new");
        assert_eq!(identity(&Config::default()).difference(&begun), None);
        assert_eq!(Value::from(identity(&Config::default()).unknown_to(&begun)), serde_json::json!({ "new": false }));
        let said = identity(&Config { new: true, ..Config::default() }).difference(&begun).unwrap();
        assert_eq!(said, "new was false and is true");
        // So has a fact no value.
        assert_eq!(identity(&Config::default()).with("order", "1 2 3").difference(&begun), None);
        // What may change today did not, once; and what is gone cannot be honoured.
        begun["settings"].as_object_mut().unwrap().insert("workers".into(), 1.into());
        assert_eq!(identity(&Config::default()).difference(&begun), None);
        // But for what a fact tells of that it does not have.
        let told = |workers| identity(&Config { workers, ..Config::default() }).told_by("workers", "crew").with("crew", "abc");
        assert_eq!((told(1).difference(&begun), told(2).difference(&begun).unwrap()), (None, "workers was 1 and is 2".into()));
        assert_eq!(told(9).difference(&told(2).info()), None);
        begun["settings"].as_object_mut().unwrap().insert("old".into(), 1.into());
        assert!(identity(&Config::default()).difference(&begun).unwrap().contains("old, which was 1"));
    }
}
