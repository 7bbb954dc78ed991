//! The validation table on the console, in the columns detector users know.

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

/// C's `%.{digits}g`: `digits` significant digits, no trailing zeros, an exponent only below 1e-4 or from 10^digits up.
pub fn format_g(value: f64, digits: usize) -> String {
    if !value.is_finite() || value == 0.0 {
        return if value == 0.0 { "0".into() } else { value.to_string().to_lowercase() };
    }
    let digits = digits.max(1);
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let strip = |text: &str| if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() };
    if exponent < -4 || exponent >= digits as i32 {
        format!("{}e{}{:02}", strip(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.abs())
    } else {
        strip(&format!("{value:.*}", (digits as i32 - 1 - exponent).max(0) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_printf_writes_it() {
        let three = [(0.0, "0"), (0.5, "0.5"), (0.99951, "1"), (0.123456, "0.123"), (0.00012345, "0.000123"), (0.000012345, "1.23e-05")];
        for (value, text) in three {
            assert_eq!(format_g(value, 3), text);
        }
        assert_eq!(format_g(1234.0, 3), "1.23e+03");
        assert_eq!([format_g(123456.4, 6), format_g(1234567.0, 6), format_g(-2.5, 6)], ["123456", "1.23457e+06", "-2.5"]);
        assert_eq!([format_g(f64::NAN, 3), format_g(f64::INFINITY, 3)], ["nan", "inf"]);
    }

    #[test]
    fn columns_line_up() {
        assert_eq!(table_header(), "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)");
        let row = table_row("all", 64, 310, [0.8, 0.712345, 0.75, 0.4321]);
        assert_eq!(row, "                   all         64        310        0.8      0.712       0.75      0.432");
    }
}
