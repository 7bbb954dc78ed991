//! What an exported file says beside its weights, and the few forms of text that its readers expect.

use serde_json::{Map, Value};

use crate::model::YoloConfig;
use crate::preprocessing::Preprocessing;

/// Where the program is at home.
pub(super) const HOME: &str = env!("CARGO_PKG_REPOSITORY");
/// What wrote the file.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What is known of a detector beside its tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct About {
    /// What it was built from.
    pub config: YoloConfig,
    /// Class names by index.
    pub names: Vec<String>,
    /// Pixels of the longer side of the images it was trained with.
    pub imgsz: usize,
    /// When the file is made, as [`iso_date`] writes it.
    pub date: String,
    /// The licence of the weights, where it is known.
    pub license: Option<String>,
    /// The settings it was trained with, under their names; may be empty.
    pub settings: Map<String, Value>,
    /// What becomes of image files before it sees them: in every form of file, as text under the names of the settings.
    pub preprocessing: Preprocessing,
}

impl About {
    /// `yolov8n`, `yolov8n-p2`.
    pub(super) fn size(&self) -> String {
        format!("yolov8{}{}", self.config.scale.letter(), if self.config.p2 { "-p2" } else { "" })
    }
}

/// Seconds since 1970 as `2026-11-22T08:15:00`, in UTC.
///
/// The days are counted in years that begin in March, in eras of 400 years, all of which are alike
/// (H. Hinnant, "chrono-compatible low-level date algorithms", 2013).
pub fn iso_date(seconds: u64) -> String {
    let (day, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{:04}-{month:02}-{of_month:02}T{hour:02}:{minute:02}:{:02}", era * 400 + year + next, second % 60)
}

/// Names as Python prints a dictionary of them, `{0: 'person', 1: "driver's cab"}`: readers evaluate it. Control characters become spaces.
pub(super) fn python_dict(names: &[String]) -> String {
    let entry = |(i, name): (usize, &String)| {
        let quote = if name.contains('\'') && !name.contains('"') { '"' } else { '\'' };
        let mut text = format!("{i}: {quote}");
        for c in name.chars() {
            match c {
                c if c.is_control() => text.push(' '),
                c if c == quote || c == '\\' => text.extend(['\\', c]),
                c => text.push(c),
            }
        }
        text.push(quote);
        text
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    format!("{{{}}}", entries.join(", "))
}

/// `True` or `False`.
pub(super) fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_every_kind() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (1_795_335_825, "2026-11-22T08:23:45"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(iso_date(seconds), date);
        }
    }

    #[test]
    fn names_are_what_python_prints() {
        let names = ["person", "driver's cab", r#"a "b" c's"#, r"back\slash", "two\nlines", "Straße"].map(String::from);
        let text = r#"{0: 'person', 1: "driver's cab", 2: 'a "b" c\'s', 3: 'back\\slash', 4: 'two lines', 5: 'Straße'}"#;
        assert_eq!(python_dict(&names), text);
    }
}
