//! One YOLO label file: `class x y w h` a line, normalised, or `class x1 y1 x2 y2 ...` polygons, whose box is the smallest that holds them.
//!
//! What makes a file bad (and its image unusable): a row that is neither, a value that is not a finite number, a coordinate above 1.01, any
//! value below -0.01 (1 % tolerance for rounding), a class that is no integer or not below the number of classes. What is dropped and
//! counted: repeated rows, and boxes without width or height, which some converters write for images without objects
//! (`3 0.0 0.0 0.0 0.0` in the LTDv2 kit) and which would count as missed objects in every validation.
//!
//! A five-column row is a box even beside polygons: tools do mix them, and read as a polygon of two points it would be a wrong box.

use super::outline::Outline;
use crate::boxes::Label;

/// Coordinates may exceed the image by this much.
const TOLERANCE: f32 = 0.01;

/// Why a label file cannot be used; `line` is 1-based.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct LabelError {
    /// 1-based line.
    pub line: u32,
    /// What is wrong with it.
    pub problem: LabelProblem,
}

/// What is wrong with one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LabelProblem {
    /// Neither a box nor a polygon.
    #[error("{0} columns; expected 5 (class x y w h) or a polygon (class and at least 3 points)")]
    Columns(usize),
    /// Not a finite number.
    #[error("`{0}` is not a finite number")]
    NotANumber(String),
    /// Above 1 by more than the tolerance.
    #[error("coordinate {0} is above 1: coordinates are normalised to the image")]
    AboveOne(f32),
    /// Below 0 by more than the tolerance.
    #[error("value {0} is negative")]
    Negative(f32),
    /// Not an index of any class.
    #[error("class {0} is no index of a class: those are whole numbers from 0")]
    NoIndex(f32),
    /// Not an index of a class of this data set.
    #[error("class {0} is not one of the {1} classes (0..{max})", max = .1.saturating_sub(1))]
    Class(f32, u32),
    /// The file is not text.
    #[error("not UTF-8 text")]
    NotText,
}

/// The content of one label file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedLabels {
    /// In the file's order.
    pub labels: Vec<Label>,
    /// Outlines of these, normalised, one a label (without points for a box); empty where all are boxes.
    pub outlines: Vec<Outline>,
    /// Repeated rows that were removed.
    pub duplicates: u32,
    /// Rows removed because their width or height is 0 or less.
    pub zero_size: u32,
}

/// Reads the bytes of a label file for a dataset of `nc` classes.
///
/// # Errors
/// The first line that breaks a rule.
pub fn parse(bytes: &[u8], nc: u32) -> Result<ParsedLabels, LabelError> {
    let text = std::str::from_utf8(bytes).map_err(|e| LabelError {
        line: 1 + bytes[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count() as u32,
        problem: LabelProblem::NotText,
    })?;
    let mut parsed = ParsedLabels::default();
    let mut seen = std::collections::HashSet::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let (label, outline) = parse_line(line, nc).map_err(|problem| LabelError { line: number as u32 + 1, problem })?;
        if label.xywh[2] <= 0.0 || label.xywh[3] <= 0.0 {
            parsed.zero_size += 1;
        } else if seen.insert((label.class, label.xywh.map(f32::to_bits))) {
            parsed.push(label, outline);
        } else {
            parsed.duplicates += 1;
        }
    }
    Ok(parsed)
}

impl ParsedLabels {
    /// Adds a label; memory for outlines is taken only once there is one.
    pub(crate) fn push(&mut self, label: Label, outline: Outline) {
        if !outline.is_empty() || !self.outlines.is_empty() {
            self.outlines.resize(self.labels.len(), Outline::new());
            self.outlines.push(outline);
        }
        self.labels.push(label);
    }
}

fn parse_line(line: &str, nc: u32) -> Result<(Label, Outline), LabelProblem> {
    let values = line.split_whitespace().map(number).collect::<Result<Vec<f32>, _>>()?;
    let xywh = match values.len() {
        5 => [values[1], values[2], values[3], values[4]],
        n if n >= 7 && n % 2 == 1 => enclose(&values[1..]),
        n => return Err(LabelProblem::Columns(n)),
    };
    if let Some(&low) = std::iter::once(&values[0]).chain(&xywh).find(|&&v| v < -TOLERANCE) {
        return Err(LabelProblem::Negative(low));
    }
    if let Some(&high) = xywh.iter().find(|&&v| v > 1.0 + TOLERANCE) {
        return Err(LabelProblem::AboveOne(high));
    }
    let class = values[0];
    // What no data set can have, for its own classes may not be known here.
    if class.fract() != 0.0 || class >= u32::MAX as f32 {
        return Err(LabelProblem::NoIndex(class));
    }
    if class >= nc as f32 {
        return Err(LabelProblem::Class(class, nc));
    }
    let points = if values.len() > 5 { values[1..].chunks_exact(2).map(|p| [p[0], p[1]]).collect() } else { Outline::new() };
    Ok((Label { class: class as u32, xywh }, points))
}

fn number(text: &str) -> Result<f32, LabelProblem> {
    text.parse().ok().filter(|v: &f32| v.is_finite()).ok_or_else(|| LabelProblem::NotANumber(text.chars().take(40).collect()))
}

/// The smallest box around `x1 y1 x2 y2 ...`.
fn enclose(points: &[f32]) -> [f32; 4] {
    let range = |offset: usize| {
        let axis = points.iter().skip(offset).step_by(2);
        axis.fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), &v| (lo.min(v), hi.max(v)))
    };
    let ((x1, x2), (y1, y2)) = (range(0), range(1));
    crate::boxes::xyxy_to_xywh([x1, y1, x2, y2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_files() {
        let b = |class, xywh| Label { class, xywh };
        let cases: &[(&str, Vec<Label>, u32, u32)] = &[
            ("", vec![], 0, 0),
            ("\n  \n", vec![], 0, 0),
            ("0 0.5 0.5 0.25 0.5\n", vec![b(0, [0.5, 0.5, 0.25, 0.5])], 0, 0),
            ("\u{feff}1.0 .5 .5 .25 .5\r\n", vec![b(1, [0.5, 0.5, 0.25, 0.5])], 0, 0),
            ("0 1.009 0.5 0.25 0.5", vec![b(0, [1.009, 0.5, 0.25, 0.5])], 0, 0),
            ("0 -0.009 0.5 0.25 0.5", vec![b(0, [-0.009, 0.5, 0.25, 0.5])], 0, 0),
            ("0 .5 .5 .25 .5\n0 .5 .5 .25 .5\n1 .5 .5 .25 .5", vec![b(0, [0.5, 0.5, 0.25, 0.5]), b(1, [0.5, 0.5, 0.25, 0.5])], 1, 0),
            ("3 0.0 0.0 0.0 0.0\n", vec![], 0, 1),
            ("0 .5 .5 -0.005 .5\n", vec![], 0, 1),
            ("2 .25 .25 .75 .25 .75 .5", vec![b(2, [0.5, 0.375, 0.5, 0.25])], 0, 0),
            ("2 .25 .25 .75 .25 .75 .5\n0 .5 .5 .25 .5", vec![b(2, [0.5, 0.375, 0.5, 0.25]), b(0, [0.5, 0.5, 0.25, 0.5])], 0, 0),
        ];
        for (text, labels, duplicates, zero_size) in cases {
            let parsed = parse(text.as_bytes(), 4).unwrap();
            assert_eq!((&parsed.labels, parsed.duplicates, parsed.zero_size), (labels, *duplicates, *zero_size), "{text:?}");
            assert_eq!(parsed.outlines.is_empty(), !text.contains(".75 .25"), "{text:?}");
        }
    }

    #[test]
    fn polygons_keep_their_points_beside_boxes() {
        let parsed = parse(b"0 .5 .5 .25 .5\n2 .25 .25 .75 .25 .75 .5\n1 .5 .5 .1 .1", 4).unwrap();
        assert_eq!(parsed.outlines, [vec![], vec![[0.25, 0.25], [0.75, 0.25], [0.75, 0.5]], vec![]]);
    }

    #[test]
    fn bad_files_name_line_and_reason() {
        use LabelProblem::*;
        let cases: &[(&[u8], u32, LabelProblem)] = &[
            (b"0 .5 .5 .5", 1, Columns(4)),
            (b"0 .5 .5 .5 .5 .9", 1, Columns(6)),
            (b"0 .1 .1 .2 .2 .3 .3 .4", 1, Columns(8)),
            (b"0 .5 .5 .5 .5\n\n0 .5 .5 .5 1.02", 3, AboveOne(1.02)),
            (b"0 192 144 20 20", 1, AboveOne(192.0)),
            (b"0 -0.02 .5 .5 .5", 1, Negative(-0.02)),
            (b"-1 .5 .5 .5 .5", 1, Negative(-1.0)),
            (b"4 .5 .5 .5 .5", 1, Class(4.0, 4)),
            (b"0.5 .5 .5 .5 .5", 1, NoIndex(0.5)),
            (b"5e9 .5 .5 .5 .5", 1, NoIndex(5e9)),
            (b"0 nan .5 .5 .5", 1, NotANumber("nan".into())),
            (b"0 inf .5 .5 .5", 1, NotANumber("inf".into())),
            (b"person .5 .5 .5 .5", 1, NotANumber("person".into())),
            (b"0 .5 .5 .5 .5\n\xff\xfe", 2, NotText),
        ];
        for (bytes, line, problem) in cases {
            let error = parse(bytes, 4).unwrap_err();
            assert!(!error.to_string().contains(&u32::MAX.to_string()), "{error}");
            assert_eq!(error, LabelError { line: *line, problem: problem.clone() }, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
