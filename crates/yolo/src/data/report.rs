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
    // Those of a test split may be somebody else's to keep.
    if split != Split::Test && scan.all_labels().is_empty() {
        lines.push(format!("{key}: warning: no labels at all, nothing can be learnt from these images"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::image::tests::jpeg;
    use crate::data::{DataConfig, ScanOptions, scan};

    #[test]
    fn labels_are_missed_where_they_are_learnt_from_or_judged_by() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("images")).unwrap();
        std::fs::write(dir.path().join("images/a.jpg"), jpeg(64, 48)).unwrap();
        let text = "train: images\nval: images\ntest: images\nnames: [a]\n";
        let config = DataConfig::parse(text, &dir.path().join("d.yaml")).unwrap();
        let warned = |split| {
            let found = scan(&config, split, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
            report(split, &found).iter().any(|line| line.contains("no labels at all"))
        };
        assert_eq!(Split::ALL.map(warned), [true, true, false]);
    }
}
