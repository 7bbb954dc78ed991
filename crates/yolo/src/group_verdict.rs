//! Groups of a validation as people and programs read them: lines, `groups.csv`, `stability.csv`, JSON, columns of `results.csv`.

use bellows_learner::{TaskError, format_g};
use serde_json::{Value, json};

use crate::metrics::{CocoMetrics, Grouped, Interval};

/// With more groups than this a key is told in `groups.csv`, and by its worst groups in lines.
const MOST: usize = 40;
const WORST: usize = 3;
const COLUMNS: [&str; 8] = ["key", "group", "images", "instances", "mAP50", "mAP50_low", "mAP50_high", "mAP50-95"];
/// What `groups.csv` and `val.csv` call AP by size.
pub(crate) const SIZES: [&str; 6] = ["AP_small", "AP_medium", "AP_large", "AP50_small", "AP50_medium", "AP50_large"];
const STABILITY: [&str; 9] = ["key", "groups", "mAP50", "CoV", "CoV_low", "CoV_high", "score", "score_low", "score_high"];

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |v| format_g(v, digits))
}

fn range(interval: Option<Interval>) -> String {
    interval.map_or_else(String::new, |[low, high]| format!("{low:.3} to {high:.3}"))
}

/// A header, a row a group, and how much they vary.
pub(crate) fn rows(by: &Grouped) -> Vec<String> {
    let row = |name: &str, cells: [String; 5]| {
        let name: String = name.chars().take(34).collect();
        let [images, instances, map50, map, interval] = cells;
        format!("{name:>34}{images:>9}{instances:>10}{map50:>9}{map:>10}  {interval}").trim_end().to_string()
    };
    let names = ["images", "objects", "mAP50", "mAP50-95", "mAP50, 95 %"].map(String::from);
    let mut rows = vec![row(&format!("by {}", by.key), names)];
    let mut shown: Vec<_> = by.groups.iter().collect();
    if shown.len() > MOST {
        shown.retain(|g| g.coco.map50.is_some());
        shown.sort_by(|a, b| a.coco.map50.unwrap_or(0.0).total_cmp(&b.coco.map50.unwrap_or(0.0)));
        shown.truncate(WORST);
        rows[0] += &format!("   (the worst {WORST} of {})", by.groups.len());
    }
    rows.extend(shown.into_iter().map(|g| {
        let numbers =
            [g.images.to_string(), g.instances.to_string(), number(g.coco.map50, 3), number(g.coco.map50_95, 3), range(g.interval)];
        row(&g.name, numbers)
    }));
    if let Some(s) = &by.stability {
        let sure = |interval| Some(range(interval)).filter(|text| !text.is_empty()).map(|text| format!(" ({text})")).unwrap_or_default();
        let numbers = s.numbers().map(|(name, value, interval)| format!("{name} {value:.3}{}", sure(interval))).join(", ");
        rows.push(format!("{:>34}  {numbers}", format!("over {}", by.key)));
    }
    rows
}

/// A row a group of every key; a cell is empty where no object decides it.
///
/// # Errors
/// Never in practice: the rows are written to memory.
pub(crate) fn csv(groups: &[Grouped]) -> Result<Vec<u8>, TaskError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS.iter().chain(&SIZES))?;
    for by in groups {
        for g in &by.groups {
            let [low, high] = ends(g.interval);
            let cells = [g.coco.map50, low, high, g.coco.map50_95].into_iter().chain(g.coco.by_size()).map(cell);
            let head = [by.key.clone(), g.name.clone(), g.images.to_string(), g.instances.to_string()];
            writer.write_record(head.into_iter().chain(cells))?;
        }
    }
    Ok(writer.into_inner()?)
}

/// A row a key that tells how much its groups vary; of those that have objects.
///
/// # Errors
/// Never in practice: the rows are written to memory.
pub(crate) fn stability(groups: &[Grouped]) -> Result<Vec<u8>, TaskError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(STABILITY)?;
    for (by, s) in groups.iter().filter_map(|by| Some((by, by.stability?))) {
        let judged = by.groups.iter().filter(|g| g.coco.map50.is_some()).count();
        let ([cov_low, cov_high], [low, high]) = (ends(s.cov_interval), ends(s.score_interval));
        let cells = [Some(s.map50), Some(s.cov), cov_low, cov_high, Some(s.score), low, high].map(cell);
        writer.write_record([by.key.clone(), judged.to_string()].into_iter().chain(cells))?;
    }
    Ok(writer.into_inner()?)
}

fn ends(interval: Option<Interval>) -> [Option<f64>; 2] {
    interval.map_or([None; 2], |interval| interval.map(Some))
}

/// A number of a table; empty where there is none.
pub(crate) fn cell(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format_g(v, 6))
}

/// `cov`, `score`, their intervals, and a list of the groups.
pub(crate) fn json(by: &Grouped) -> Value {
    let group = |g: &crate::metrics::GroupMetrics| {
        json!({
            "name": g.name, "images": g.images, "instances": g.instances, "map50": g.coco.map50, "map50_95": g.coco.map50_95,
            "map50_interval": g.interval, "by_size": { "small": g.coco.small, "medium": g.coco.medium, "large": g.coco.large },
            "by_size50": { "small": g.coco.small50, "medium": g.coco.medium50, "large": g.coco.large50 },
        })
    };
    json!({
        "cov": by.stability.map(|s| s.cov), "score": by.stability.map(|s| s.score),
        "cov_interval": by.stability.and_then(|s| s.cov_interval), "score_interval": by.stability.and_then(|s| s.score_interval),
        "groups": by.groups.iter().map(group).collect::<Value>(),
    })
}

/// Of groups, those that have columns of their own.
fn shown<T>(groups: &[T]) -> &[T] {
    if groups.len() > MOST { &[] } else { groups }
}

/// The columns of `results.csv` for a key with these groups: CoV and score, and mAP50, then mAP50-95, of each where they are not too many.
pub(crate) fn columns(key: &str, names: &[String]) -> Vec<String> {
    let each = ["mAP50", "mAP50-95"].into_iter().flat_map(|of| shown(names).iter().map(move |name| format!("metrics/{of}({key} {name})")));
    [format!("metrics/CoV({key})"), format!("metrics/score({key})")].into_iter().chain(each).collect()
}

/// What stands in them; no number where no object decides it.
pub(crate) fn values(by: &Grouped) -> Vec<f64> {
    let groups = shown(&by.groups);
    let each = groups.iter().map(|g| g.coco.map50).chain(groups.iter().map(|g| g.coco.map50_95));
    let stability = [by.stability.map(|s| s.cov), by.stability.map(|s| s.score)];
    stability.into_iter().chain(each).map(|value| value.unwrap_or(f64::NAN)).collect()
}

/// Those for AP by size over all images, which a run that judges groups has too.
pub(crate) fn size_columns() -> [String; 6] {
    SIZES.map(|size| format!("metrics/{size}"))
}

/// What stands in these.
pub(crate) fn size_values(coco: &CocoMetrics) -> [f64; 6] {
    coco.by_size().map(|value| value.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{GroupMetrics, Stability};

    fn by(groups: usize) -> Grouped {
        let group = |i: usize| GroupMetrics {
            name: format!("2020-{:02}", i + 1),
            images: 10 * i,
            instances: i,
            coco: CocoMetrics {
                map50: (i > 0).then_some(0.5 + 0.01 * i as f64),
                map50_95: (i > 0).then_some(0.25),
                medium50: (i > 0).then_some(0.75),
                ..CocoMetrics::default()
            },
            interval: (i > 1).then_some([0.4, 0.625]),
        };
        let stability = Stability { map50: 0.5, cov: 0.1, score: 0.45, cov_interval: Some([0.05, 0.2]), score_interval: None };
        Grouped { key: "month".into(), groups: (0..groups).map(group).collect(), stability: Some(stability) }
    }

    #[test]
    fn lines_rows_and_columns_agree() {
        let by = self::by(3);
        let lines = rows(&by);
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["2020-01", "0", "0", "-", "-"]);
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["2020-03", "20", "2", "0.52", "0.25", "0.400", "to", "0.625"]);
        assert!(lines[4].ends_with("over month  mAP50 0.500, CoV 0.100 (0.050 to 0.200), mAP50*(1-CoV) 0.450"), "{}", lines[4]);
        let text = String::from_utf8(csv(std::slice::from_ref(&by)).unwrap()).unwrap();
        assert_eq!(text.lines().nth(1), Some("month,2020-01,0,0,,,,,,,,,,"));
        assert_eq!(text.lines().nth(3), Some("month,2020-03,20,2,0.52,0.4,0.625,0.25,,,,,0.75,"));
        let alone = Grouped { stability: None, ..by.clone() };
        let text = String::from_utf8(stability(&[alone, by.clone()]).unwrap()).unwrap();
        assert_eq!(text, "key,groups,mAP50,CoV,CoV_low,CoV_high,score,score_low,score_high\nmonth,2,0.5,0.1,0.05,0.2,0.45,,\n");
        let names: Vec<String> = by.groups.iter().map(|g| g.name.clone()).collect();
        let (columns, values) = (columns("month", &names), values(&by));
        assert_eq!((columns.len(), values.len()), (8, 8));
        assert_eq!((columns[1].as_str(), values[1]), ("metrics/score(month)", 0.45));
        assert!(columns[2] == "metrics/mAP50(month 2020-01)" && values[2].is_nan() && values[4] == 0.52, "{columns:?} {values:?}");
        assert!(columns[7] == "metrics/mAP50-95(month 2020-03)" && values[5].is_nan() && values[7] == 0.25, "{columns:?} {values:?}");
        assert_eq!((size_columns()[4].as_str(), size_values(&by.groups[2].coco)[4]), ("metrics/AP50_medium", 0.75));
        assert_eq!(json(&by)["groups"][2]["map50_interval"], json!([0.4, 0.625]));
    }

    #[test]
    fn of_many_groups_the_worst_are_told() {
        let by = self::by(50);
        let lines = rows(&by);
        assert!(lines.len() == 5 && lines[0].ends_with("(the worst 3 of 50)") && lines[1].contains("2020-02"), "{lines:?}");
        assert_eq!((values(&by).len(), columns("month", &vec![String::new(); 50]).len()), (2, 2));
    }
}
