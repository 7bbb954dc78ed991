//! What `benchmark --count` says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::console::say;
use crate::failure::{Failure, Usage};

/// Says how often a training step launches each kernel, the most frequent first, or one JSON object of them.
///
/// # Errors
/// There are none: that was no GPU.
pub fn say_launches(launches: &BTreeMap<&'static str, usize>, json: bool) -> Result<(), Failure> {
    let total: usize = launches.values().sum();
    if total == 0 {
        return Err(Usage("benchmark --count: the processor launches nothing; name a GPU with --device".into()).into());
    }
    if json {
        say(&serde_json::json!({ "launches": total, "kernels": launches }).to_string());
        return Ok(());
    }
    let mut kernels: Vec<(&&str, &usize)> = launches.iter().collect();
    kernels.sort_by_key(|(name, count)| (Reverse(**count), **name));
    kernels.iter().for_each(|(name, count)| say(&format!("{count:>6}  {name}")));
    say(&format!("{total:>6}  launches to a step"));
    Ok(())
}
