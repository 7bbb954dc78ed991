//! A scan in words.

use super::description::Split;
use super::scan::Scan;

/// How many unusable files are named.
const NAMED: usize = 20;

/// What was found in `split`: one line of counts, then what is odd, one line each.
pub fn report(split: Split, scan: &Scan) -> Vec<String> {
    let key = split.key();
    let mut line = format!(
        "{key}: {} images, {} backgrounds, {} corrupt, {} objects",
        scan.len(),
        scan.missing + scan.empty,
        scan.bad.len(),
        scan.all_labels().len()
    );
    for (count, what) in [(scan.duplicates, "duplicate labels removed"), (scan.zero_size, "boxes without size removed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    let mut lines = vec![line];
    lines.extend(scan.notes.iter().map(|note| format!("{key}: {note}")));
    lines.extend(scan.bad.iter().take(NAMED).map(|bad| format!("{key}: ignored {bad}")));
    if scan.bad.len() > NAMED {
        lines.push(format!("{key}: ignored {} more", scan.bad.len() - NAMED));
    }
    if scan.all_labels().is_empty() {
        lines.push(format!("{key}: warning: no labels at all, nothing can be learnt from these images"));
    }
    lines
}
