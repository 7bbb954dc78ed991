//! The validation table on the console, in the columns detector users know.
//!
//! The columns are as wide as there is room for: where a terminal is narrow, they come closer and names are cut, so that no number is lost.

use bellows_learner::format_g;

use super::DetectionMetrics;

/// What stands above the columns.
const NAMES: [&str; 7] = ["Class", "Images", "Instances", "Box(P", "R", "mAP50", "mAP50-95)"];
const USUAL: [usize; 7] = [22, 11, 11, 11, 11, 11, 11];
/// The least that numbers need; the first column has what is left.
const NARROW: [usize; 7] = [5, 7, 10, 9, 9, 9, 11];

fn widths(columns: usize) -> [usize; 7] {
    if columns >= USUAL.iter().sum() {
        return USUAL;
    }
    let mut widths = NARROW;
    widths[0] = columns.saturating_sub(NARROW[1..].iter().sum()).clamp(NARROW[0], USUAL[0]);
    widths
}

fn line(columns: usize, cells: [String; 7]) -> String {
    let cell = |(mut cell, width): (String, usize)| {
        if cell.chars().count() > width {
            cell = cell.chars().take(width - 1).chain(['…']).collect();
        }
        format!("{cell:>width$}")
    };
    cells.into_iter().zip(widths(columns)).map(cell).collect()
}

/// The line above the rows, for a terminal of so many columns.
pub fn table_header(columns: usize) -> String {
    line(columns, NAMES.map(String::from))
}

/// One row: `name`, counts, then precision, recall, mAP50 and mAP50-95 with three significant digits.
pub fn table_row(columns: usize, name: &str, images: usize, instances: usize, values: [f64; 4]) -> String {
    let [p, r, map50, map50_95] = values.map(|value| format_g(value, 3));
    line(columns, [name.into(), images.to_string(), instances.to_string(), p, r, map50, map50_95])
}

impl DetectionMetrics {
    /// The row over all classes.
    pub fn summary_row(&self, columns: usize) -> String {
        table_row(columns, "all", self.images, self.instances, [self.precision, self.recall, self.map50, self.map50_95])
    }

    /// One row per class of the ground truth, `names` by class index.
    pub fn class_rows(&self, columns: usize, names: &[String]) -> Vec<String> {
        let rows = self.per_class.iter().map(|c| {
            let name = names.get(c.class as usize).map_or_else(|| format!("class_{}", c.class), Clone::clone);
            table_row(columns, &name, c.images, c.instances, [c.precision, c.recall, c.ap50, c.ap50_95])
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let table = |columns| [table_header(columns), table_row(columns, "motorcycle", 64, 310, [0.8, 0.712345, 0.75, 0.4321])];
        assert_eq!(
            table(usize::MAX),
            [
                "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)",
                "            motorcycle         64        310        0.8      0.712       0.75      0.432",
            ]
        );
        assert_eq!(
            table(60),
            [
                "Class Images Instances    Box(P        R    mAP50  mAP50-95)",
                "moto…     64       310      0.8    0.712     0.75      0.432",
            ]
        );
        for columns in 60..=140 {
            let lengths = table(columns).map(|line| line.chars().count());
            assert!(lengths[0] == lengths[1] && lengths[0] <= columns, "{columns}: {lengths:?}");
        }
    }
}
