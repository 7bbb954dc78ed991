//! The columns of `results.csv` as small charts in SVG, drawn with the colours of the page they stand in.

use std::fmt::Write as _;

use bellows_learner::{TaskError, format_g};
use serde::Serialize;

/// Size of a chart in its own units, and the room for the numbers beside and below it.
const SIZE: (f64, f64) = (320.0, 190.0);
const LEFT: f64 = 46.0;
const BELOW: f64 = 22.0;
const MARGIN: f64 = 8.0;

/// One chart.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    name: String,
    svg: String,
}

/// A line: whether it is of the validation, and (epoch, value) where there is one.
struct Line {
    validation: bool,
    points: Vec<(f64, f64)>,
}

/// A chart for each loss (training and validation in one) and each metric.
pub(super) fn charts(csv: &str) -> Result<Vec<Chart>, TaskError> {
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let headers: Vec<String> = reader.headers()?.iter().map(|h| h.trim().to_string()).collect();
    let rows: Vec<Vec<f64>> = reader
        .records()
        .map(|record| record.map(|r| r.iter().map(|cell| cell.trim().parse().unwrap_or(f64::NAN)).collect()))
        .collect::<Result<_, _>>()?;
    let column = |name: &str| headers.iter().position(|h| h == name);
    let line = |index: usize, validation: bool| {
        let points = rows.iter().filter_map(|row| Some((*row.first()?, *row.get(index)?)));
        Line { validation, points: points.filter(|(x, y)| x.is_finite() && y.is_finite()).collect() }
    };
    let mut charts = Vec::new();
    for (index, header) in headers.iter().enumerate() {
        let (name, lines) = if let Some(loss) = header.strip_prefix("train/") {
            let validation = column(&format!("val/{loss}")).map(|i| line(i, true));
            (loss.to_string(), std::iter::once(line(index, false)).chain(validation).collect::<Vec<_>>())
        } else if let Some(metric) = header.strip_prefix("metrics/") {
            (metric.trim_end_matches("(B)").to_string(), vec![line(index, true)])
        } else {
            continue;
        };
        charts.push(Chart { name, svg: svg(&lines) });
    }
    Ok(charts)
}

/// Low and high of values, apart even where all are equal.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match (low.is_finite(), high > low) {
        (false, _) => (0.0, 1.0),
        (true, true) => (low, high),
        (true, false) => (low - 0.5, high + 0.5),
    }
}

fn svg(lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|l| l.points.iter());
    let ((x0, x1), (y0, y1)) = (range(points().map(|p| p.0)), range(points().map(|p| p.1)));
    let x = |v: f64| LEFT + (v - x0) / (x1 - x0) * (SIZE.0 - LEFT - MARGIN);
    let y = |v: f64| SIZE.1 - BELOW - (v - y0) / (y1 - y0) * (SIZE.1 - BELOW - MARGIN);
    let mut out = format!("<svg viewBox=\"0 0 {} {}\" role=\"img\">", SIZE.0, SIZE.1);
    let mut add = |text: String| {
        // Writing to a string cannot fail.
        let _ = out.write_str(&text);
    };
    for part in [0.0, 0.5, 1.0] {
        let value = y0 + part * (y1 - y0);
        let at = y(value);
        add(format!("<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>", SIZE.0 - MARGIN));
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", LEFT - 6.0, at + 4.0, format_g(value, 3)));
    }
    for (value, anchor) in [(x0, "start"), (x1, "end")] {
        add(format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>", x(value), SIZE.1 - 5.0, format_g(value, 4)));
    }
    for line in lines {
        let path: Vec<String> = line.points.iter().map(|&(a, b)| format!("{:.1},{:.1}", x(a), y(b))).collect();
        let class = if line.validation { "val" } else { "train" };
        add(format!("<polyline class=\"{class}\" points=\"{}\"/>", path.join(" ")));
        // A single epoch is no line.
        if let [(a, b)] = line.points[..] {
            add(format!("<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>", x(a), y(b)));
        }
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_share_a_chart_and_gaps_are_left_out() {
        let csv = "epoch,time,train/box_loss,metrics/mAP50(B),val/box_loss,lr/pg0\n1,9,4,0.5,3,1\n2,9,nan,0.5,2,1\n3,9,2,0.5,1,1\n";
        let charts = charts(csv).unwrap();
        assert_eq!(charts.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["box_loss", "mAP50"]);
        let count = |text: &str| charts[0].svg.matches(text).count();
        assert_eq!((count("<polyline"), count("NaN")), (2, 0));
        let train = charts[0].svg.split("class=\"train\" points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(train, "46.0,8.0 312.0,114.7", "from (1, 4), the highest, to (3, 2)");
        assert!(super::charts("epoch,train/a\n1,2\n").unwrap()[0].svg.contains("<circle"));
        assert!(super::charts("").unwrap().is_empty());
    }
}
