//! A validation as people and programs read it: tables, `val.csv`, one JSON object, pictures.

use bellows_learner::{RunFile, TaskError, format_g};
use serde_json::{Map, Value, json};

use crate::group_verdict;
use crate::metrics::{ClassMetrics, CocoMetrics};
use crate::pictures;
use crate::plots::PlotError;
use crate::validate::Validation;

/// A validation and the names of its classes.
pub struct Verdict<'a> {
    validation: &'a Validation,
    names: &'a [String],
}

/// The columns of `val.csv`.
const COLUMNS: [&str; 7] = ["class", "images", "instances", "precision", "recall", "mAP50", "mAP50-95"];
/// Widths of the table of sizes: the name, and each number.
const WIDTHS: (usize, usize) = (22, 10);

impl<'a> Verdict<'a> {
    /// `names` by class index.
    pub fn new(validation: &'a Validation, names: &'a [String]) -> Self {
        Self { validation, names }
    }

    fn name(&self, class: u32) -> String {
        self.names.get(class as usize).map_or_else(|| format!("class_{class}"), Clone::clone)
    }

    fn coco(&self, class: &ClassMetrics) -> CocoMetrics {
        self.validation.coco_classes.get(class.class as usize).copied().unwrap_or_default()
    }

    /// AP by object size, then AP50: each a header, a row over all classes, a row a class. By pycocotools' definition, which is the one papers report sizes in.
    pub fn size_rows(&self) -> Vec<String> {
        let row = |name: &str, cells: [String; 4]| {
            let name: String = name.chars().take(WIDTHS.0).collect();
            cells.iter().fold(format!("{name:>0$}", WIDTHS.0), |line, cell| line + &format!("{cell:>0$}", WIDTHS.1))
        };
        let sizes = |title: &str, of: fn(CocoMetrics) -> [Option<f64>; 4]| {
            let numbers = |m: CocoMetrics| of(m).map(|v| v.map_or_else(|| "-".into(), |v| format_g(v, 3)));
            let mut rows = vec![row(title, ["any", "small", "medium", "large"].map(String::from))];
            rows.push(row("all", numbers(self.validation.coco)));
            rows.extend(self.validation.metrics.per_class.iter().map(|c| row(&self.name(c.class), numbers(self.coco(c)))));
            rows
        };
        let mut rows = sizes("COCO AP by size", |m| [m.map50_95, m.small, m.medium, m.large]);
        rows.extend(sizes("COCO AP50 by size", |m| [m.map50, m.small50, m.medium50, m.large50]));
        rows
    }

    /// `val.csv`: a row over all classes, then a row for each class that occurs; a cell is empty where no object has that size.
    ///
    /// # Errors
    /// Never in practice: the rows are written to memory.
    pub fn csv(&self) -> Result<Vec<u8>, csv::Error> {
        let m = &self.validation.metrics;
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COLUMNS.iter().chain(&group_verdict::SIZES))?;
        let mut row = |name: String, counts: [usize; 2], values: [f64; 4], coco: CocoMetrics| {
            let numbers = counts
                .map(|n| n.to_string())
                .into_iter()
                .chain(values.map(|v| format_g(v, 6)))
                .chain(coco.by_size().map(group_verdict::cell));
            writer.write_record(std::iter::once(name).chain(numbers))
        };
        row("all".into(), [m.images, m.instances], [m.precision, m.recall, m.map50, m.map50_95], self.validation.coco)?;
        for c in &m.per_class {
            row(self.name(c.class), [c.images, c.instances], [c.precision, c.recall, c.ap50, c.ap50_95], self.coco(c))?;
        }
        writer.into_inner().map_err(|e| e.into_error().into())
    }

    /// One object: `map50`, `map50_95`, `precision`, `recall`, ..., `by_size`, `by_size50`, and the same for each class that occurs. What no object decides is
    /// null.
    pub fn json(&self) -> Map<String, Value> {
        let m = &self.validation.metrics;
        let sizes = |c: CocoMetrics| json!({ "any": c.map50_95, "small": c.small, "medium": c.medium, "large": c.large });
        let sizes50 = |c: CocoMetrics| json!({ "any": c.map50, "small": c.small50, "medium": c.medium50, "large": c.large50 });
        let class = |c: &ClassMetrics| {
            json!({
                "class": c.class, "name": self.name(c.class), "images": c.images, "instances": c.instances, "precision": c.precision,
                "recall": c.recall, "map50": c.ap50, "map50_95": c.ap50_95, "by_size": sizes(self.coco(c)),
                "by_size50": sizes50(self.coco(c)),
            })
        };
        let speed = json!({
            "preprocess": m.speed.preprocess, "inference": m.speed.inference, "loss": m.speed.loss, "postprocess": m.speed.postprocess,
        });
        let groups = self.validation.groups.iter().map(|by| (by.key.clone(), group_verdict::json(by)));
        let fields = [
            ("groups", Value::Object(groups.collect())),
            ("map50", json!(m.map50)),
            ("map75", json!(m.map75)),
            ("map50_95", json!(m.map50_95)),
            ("precision", json!(m.precision)),
            ("recall", json!(m.recall)),
            ("fitness", json!(m.fitness)),
            ("images", json!(m.images)),
            ("instances", json!(m.instances)),
            ("unreadable", json!(self.validation.unreadable.len())),
            ("by_size", sizes(self.validation.coco)),
            ("by_size50", sizes50(self.validation.coco)),
            ("per_class", m.per_class.iter().map(class).collect()),
            ("speed_ms", speed),
        ];
        fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// AP of the groups of each key: lines for people.
    pub fn group_rows(&self) -> Vec<String> {
        self.validation.groups.iter().flat_map(group_verdict::rows).collect()
    }

    /// `val.csv`, and with groups `groups.csv` and `stability.csv`.
    ///
    /// # Errors
    /// Never in practice: all are written to memory.
    pub fn files(&self) -> Result<Vec<RunFile>, TaskError> {
        let mut files = vec![RunFile { path: "val.csv".into(), bytes: self.csv()? }];
        if !self.validation.groups.is_empty() {
            files.push(RunFile { path: "groups.csv".into(), bytes: group_verdict::csv(&self.validation.groups)? });
            files.push(RunFile { path: "stability.csv".into(), bytes: group_verdict::stability(&self.validation.groups)? });
        }
        Ok(files)
    }

    /// Curves, confusion, groups, and the first images with their labels and predictions.
    ///
    /// # Errors
    /// What cannot be drawn.
    pub fn pictures(&self) -> Result<Vec<RunFile>, PlotError> {
        pictures::closing(self.validation, self.names)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::boxes::{Detection, GroundTruth};
    use crate::metrics::{CocoEvaluator, ConfusionMatrix, Evaluator};

    /// Of three classes, of which the second does not occur.
    pub(crate) fn validation() -> Validation {
        let (mut evaluator, mut coco) = (Evaluator::new(3), CocoEvaluator::new(3));
        let truths = [(0, [0.0, 0.0, 20.0, 20.0]), (2, [0.0, 0.0, 200.0, 200.0])].map(|(class, xyxy)| GroundTruth { class, xyxy });
        let found = [Detection { xyxy: [0.0, 0.0, 20.0, 20.0], score: 0.9, class: 0 }];
        evaluator.add_image(&found, &truths);
        coco.add_image(&found, &truths);
        Validation {
            metrics: evaluator.metrics(),
            coco: coco.metrics(),
            coco_classes: coco.class_metrics(),
            losses: [0.0; 3],
            sure: 0.25,
            confusion: ConfusionMatrix::new(3, 0.25, 0.45),
            shown: Vec::new(),
            unreadable: Vec::new(),
            cases: Vec::new(),
            groups: Vec::new(),
            kept: Vec::new(),
        }
    }

    #[test]
    fn sizes_stand_beside_their_classes() {
        let validation = validation();
        let names = ["a, b".to_string(), "b".to_string(), "c".to_string()];
        let verdict = Verdict::new(&validation, &names);
        let rows = verdict.size_rows();
        assert_eq!(rows[1], "                   all       0.5         1         -         0");
        assert_eq!(rows[2], "                  a, b         1         1         -         -");
        assert_eq!(
            (rows[5].as_str(), rows.len()),
            ("                   all       0.5         1         -         0", 8),
            "class b does not occur"
        );
        let csv = String::from_utf8(verdict.csv().unwrap()).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(
            lines[0],
            "class,images,instances,precision,recall,mAP50,mAP50-95,AP_small,AP_medium,AP_large,AP50_small,AP50_medium,AP50_large"
        );
        assert!(lines[2].starts_with("\"a, b\",1,1,") && lines[2].ends_with(",1,,,1,,"), "{csv}");
        assert!(lines[3].ends_with(",,,0,,,0"), "{csv}");
        let json = Value::Object(verdict.json());
        assert_eq!((&json["per_class"][1]["name"], &json["per_class"][1]["by_size"]["small"]), (&json!("c"), &Value::Null));
        assert_eq!((&json["by_size"]["small"], &json["map50"]), (&json!(1.0), &json!(validation.metrics.map50)));
        assert_eq!(verdict.files().unwrap().iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["val.csv"]);
    }
}
