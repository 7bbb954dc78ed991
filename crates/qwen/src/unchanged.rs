//! Adapters that do not learn: those that are, after some updates, what they were before the first, or whose B is all zero, so that the map is
//! still the frozen one.

use std::collections::BTreeMap;

use crate::hashes::{FNV, fnv};
use crate::model::CausalLm;
use crate::weights::{Unread, visit_all};

/// Updates after which is looked: a rate that warms up is above 0 at the second.
pub(crate) const AFTER: u64 = 10;
/// Modules that are named.
const NAMED: usize = 8;

/// The adapters of a model by module, as hashes of their values.
#[derive(Debug, Default)]
pub(crate) struct Adapters(BTreeMap<String, Adapter>);

#[derive(Debug, Default)]
struct Adapter {
    hash: u64,
    idle: bool,
}

impl Adapters {
    /// Those of `model`.
    ///
    /// # Errors
    /// A device that does not hand them back.
    pub(crate) fn of(model: &CausalLm) -> Result<Self, Unread> {
        let (mut adapters, mut failed) = (BTreeMap::<String, Adapter>::new(), None);
        visit_all(model, &mut |name, _, read| {
            let Some((module, part)) = name.split_once(".lora.") else { return };
            let adapter = adapters.entry(module.to_owned()).or_default();
            match read() {
                Ok(values) => {
                    adapter.hash = fnv(adapter.hash ^ FNV, values.iter().map(|value| value.to_bits()));
                    adapter.idle |= part == "lora_B" && values.iter().all(|value| *value == 0.0);
                }
                Err(error) => failed = Some(error),
            }
        });
        failed.map_or(Ok(Self(adapters)), Err)
    }

    /// What is odd about these, which were `before` at the beginning.
    pub(crate) fn oddity(&self, before: &Self) -> Option<String> {
        let same = |name: &String, adapter: &Adapter| before.0.get(name).is_some_and(|before| before.hash == adapter.hash);
        let odd: Vec<&str> =
            self.0.iter().filter(|(name, adapter)| adapter.idle || same(name, adapter)).map(|(name, _)| name.as_str()).collect();
        if odd.is_empty() {
            return None;
        }
        let (all, more) = (self.0.len(), odd.len().saturating_sub(NAMED));
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let idle = if self.0.values().any(|adapter| adapter.idle) { ", or their B is all zero" } else { "" };
        Some(format!(
            "after {AFTER} updates the adapters of {} of {all} modules are what they were{idle}: {}{more}. No gradient reaches them, or the learning rate is 0",
            odd.len(),
            odd[..odd.len().min(NAMED)].join(", ")
        ))
    }
}
