//! The validation table on the console, in the columns detector users know.

use bellows_learner::format_g;

use super::DetectionMetrics;

/// The line above the rows.
pub fn table_header() -> String {
    let names = ["Images", "Instances", "Box(P", "R", "mAP50", "mAP50-95)"];
    format!("{:>22}", "Class") + &names.map(|name| format!("{name:>11}")).concat()
}

/// One row: `name`, counts, then precision, recall, mAP50 and mAP50-95 with three significant digits.
pub fn table_row(name: &str, images: usize, instances: usize, values: [f64; 4]) -> String {
    format!("{name:>22}{images:>11}{instances:>11}") + &values.map(|value| format!("{:>11}", format_g(value, 3))).concat()
}

impl DetectionMetrics {
    /// The row over all classes.
    pub fn summary_row(&self) -> String {
        table_row("all", self.images, self.instances, [self.precision, self.recall, self.map50, self.map50_95])
    }

    /// One row per class of the ground truth, `names` by class index.
    pub fn class_rows(&self, names: &[String]) -> Vec<String> {
        let rows = self.per_class.iter().map(|c| {
            let name = names.get(c.class as usize).map_or_else(|| format!("class_{}", c.class), Clone::clone);
            table_row(&name, c.images, c.instances, [c.precision, c.recall, c.ap50, c.ap50_95])
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        assert_eq!(table_header(), "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)");
        let row = table_row("all", 64, 310, [0.8, 0.712345, 0.75, 0.4321]);
        assert_eq!(row, "                   all         64        310        0.8      0.712       0.75      0.432");
    }
}
