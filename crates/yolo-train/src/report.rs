//! A validation on the console: the table, AP by object size and by groups, speed.

use bellows_cli::columns;
use bellows_yolo::metrics::table_header;
use bellows_yolo::{Validation, Verdict};

/// Prints it with `say`, line by line.
pub(crate) fn tell(validation: &Validation, names: &[String], say: fn(&str)) {
    let metrics = &validation.metrics;
    say(&table_header(columns()));
    say(&metrics.summary_row(columns()));
    metrics.class_rows(columns(), names).iter().for_each(|row| say(row));
    let verdict = Verdict::new(validation, names);
    verdict.size_rows().iter().chain(&verdict.group_rows()).for_each(|row| say(row));
    let s = metrics.speed;
    say(&format!(
        "Speed: {:.1}ms preprocess, {:.1}ms inference, {:.1}ms loss, {:.1}ms postprocess per image",
        s.preprocess, s.inference, s.loss, s.postprocess
    ));
}
