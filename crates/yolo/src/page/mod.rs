//! `report.html`: a run or a validation on one page that needs nothing beside it, to be looked at or sent to somebody.
//!
//! The page is a template (`page.html`) that escapes whatever it is given: names of classes and files are strangers' text. Charts are SVG in the
//! colours of the page, which follow the reader's light or dark; pictures are JPEG within it.

mod curves;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_learner::{RunFile, TaskError, format_g};
use image::{RgbImage, imageops};
use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use self::curves::{Chart, charts};
use crate::data::Frame;
use crate::metrics::CocoMetrics;
use crate::plots::{Annotator, GridBox, Ink, PlotError, encode};
use crate::validate::{Case, ValSet, Validation};

/// Long side of a picture of a bad case, in pixels: smaller frames are enlarged to the first, larger ones brought down to the second, or a page of photographs
/// has a hundred megabytes.
const SIDES: [u32; 2] = [640, 1280];
/// Most cells a side for which the confusion matrix is a table; a larger one is a picture in the run directory only.
const MATRIX: usize = 40;

/// What a page is made of.
pub struct Page<'a> {
    /// Its heading.
    pub title: &'a str,
    /// Settings and what is known of the device: (heading, rows of name and value).
    pub facts: &'a [(&'a str, Vec<(String, String)>)],
    /// The rows of `results.csv`, of a run.
    pub history: Option<&'a str>,
    /// The validation.
    pub validation: &'a Validation,
    /// The set it was made on, for the pixels of bad cases.
    pub set: &'a ValSet,
    /// Class names by index.
    pub names: &'a [String],
    /// Pictures with their captions, as JPEG or PNG files: augmented batches.
    pub samples: &'a [(String, Vec<u8>)],
}

/// What the template asks for.
#[derive(Serialize)]
struct Content<'a> {
    title: &'a str,
    facts: &'a [(&'a str, Vec<(String, String)>)],
    charts: Vec<Chart>,
    figures: Vec<(&'static str, String)>,
    rows: Vec<Row>,
    columns: Vec<String>,
    matrix: Vec<Predicted>,
    sure: String,
    cases: Vec<Picture>,
    samples: Vec<Picture>,
}

#[derive(Serialize)]
struct Picture {
    caption: String,
    data: String,
}

/// A row of the table of classes.
#[derive(Serialize)]
struct Row {
    name: String,
    counts: [usize; 2],
    values: [String; 4],
    sizes: [String; 3],
}

/// A row of the confusion matrix: how many of a predicted class were what; the shade is the share of the true class.
#[derive(Serialize)]
struct Predicted {
    name: String,
    cells: Vec<(u64, f64)>,
}

impl Page<'_> {
    /// The page, as `report.html`.
    ///
    /// # Errors
    /// A case that cannot be drawn, or a history that is no table.
    pub fn file(&self) -> Result<RunFile, TaskError> {
        let mut environment = Environment::new();
        environment.add_template("report.html", include_str!("page.html"))?;
        let charts = self.history.map(charts).transpose()?.unwrap_or_default();
        let content = Content {
            title: self.title,
            facts: self.facts,
            charts,
            figures: self.figures(),
            rows: self.rows(),
            columns: self.columns(),
            matrix: self.matrix(),
            sure: format_g(f64::from(self.validation.sure), 3),
            cases: self.cases()?,
            samples: self.samples.iter().map(|(caption, bytes)| picture(caption.clone(), bytes)).collect(),
        };
        let page = environment.get_template("report.html")?.render(Serde(content))?;
        Ok(RunFile { path: "report.html".into(), bytes: page.into_bytes() })
    }

    fn name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| format!("class_{class}"))
    }

    /// The numbers that stand large at the top.
    fn figures(&self) -> Vec<(&'static str, String)> {
        let m = &self.validation.metrics;
        let of = [("mAP50-95", m.map50_95), ("mAP50", m.map50), ("precision", m.precision), ("recall", m.recall)];
        let counts = [("images", m.images), ("objects", m.instances)].map(|(name, n)| (name, n.to_string()));
        of.map(|(name, v)| (name, format_g(v, 3))).into_iter().chain(counts).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let m = &self.validation.metrics;
        let numbers = |values: [f64; 4]| values.map(|v| format_g(v, 3));
        let sizes = |c: CocoMetrics| [c.small, c.medium, c.large].map(|v| v.map_or_else(|| "–".into(), |v| format_g(v, 3)));
        let all = Row {
            name: "all".into(),
            counts: [m.images, m.instances],
            values: numbers([m.precision, m.recall, m.map50, m.map50_95]),
            sizes: sizes(self.validation.coco),
        };
        let class = |c: &crate::metrics::ClassMetrics| Row {
            name: self.name(c.class as usize),
            counts: [c.images, c.instances],
            values: numbers([c.precision, c.recall, c.ap50, c.ap50_95]),
            sizes: sizes(self.validation.coco_classes.get(c.class as usize).copied().unwrap_or_default()),
        };
        std::iter::once(all).chain(m.per_class.iter().map(class)).collect()
    }

    /// Names over the confusion matrix: what was there.
    fn columns(&self) -> Vec<String> {
        (0..self.validation.confusion.nc()).map(|c| self.name(c)).chain(["background".into()]).collect()
    }

    fn matrix(&self) -> Vec<Predicted> {
        let confusion = &self.validation.confusion;
        let side = confusion.nc() + 1;
        if side > MATRIX {
            return Vec::new();
        }
        let column = |truth: usize| (0..side).map(|p| confusion.get(p, truth)).sum::<u64>().max(1) as f64;
        let row = |(predicted, name): (usize, String)| {
            let cell = |truth: usize| (confusion.get(predicted, truth), (confusion.get(predicted, truth) as f64 / column(truth)).min(1.0));
            Predicted { name, cells: (0..side).map(cell).collect() }
        };
        self.columns().into_iter().enumerate().map(row).collect()
    }

    /// The images with the most mistakes.
    fn cases(&self) -> Result<Vec<Picture>, TaskError> {
        let mut annotator = Annotator::new(Ink { line_width: Some(2), ..Ink::default() });
        let mut pictures = Vec::new();
        for case in &self.validation.cases {
            let item = self.set.item(case.index)?;
            let image = draw(&mut annotator, &item.frame, case, self.names)?;
            let caption = format!("{}: {} missed, {} false", case.name, case.missed, case.mistaken);
            pictures.push(picture(caption, &encode(&image, "case.jpg".as_ref())?));
        }
        Ok(pictures)
    }
}

fn picture(caption: String, bytes: &[u8]) -> Picture {
    let kind = if bytes.starts_with(b"\x89PNG") { "png" } else { "jpeg" };
    Picture { caption, data: format!("data:image/{kind};base64,{}", STANDARD.encode(bytes)) }
}

/// Truths as green frames, detections as boxes with their names.
fn draw(annotator: &mut Annotator, frame: &Frame, case: &Case, names: &[String]) -> Result<RgbImage, PlotError> {
    let (longest, [least, most]) = (frame.width.max(frame.height).max(1) as f64, SIDES.map(f64::from));
    let scale = longest.clamp(least, most) / longest;
    let [width, height] = [frame.width, frame.height].map(|v| ((v as f64 * scale).round() as u32).max(1));
    let mut image = imageops::resize(&frame.to_rgb(), width, height, imageops::FilterType::Triangle);
    let pixels = |xyxy: [f32; 4]| {
        let [x1, y1, x2, y2] = xyxy;
        [x1 * width as f32, y1 * height as f32, x2 * width as f32, y2 * height as f32]
    };
    let found: Vec<GridBox> = case.found.iter().map(|d| GridBox { xyxy: pixels(d.xyxy), class: d.class, score: Some(d.score) }).collect();
    let truths: Vec<[f32; 4]> = case.truths.iter().map(|t| pixels(t.xyxy)).collect();
    annotator.draw(&mut image, &found, names, "case.jpg".as_ref())?;
    annotator.frame(&mut image, &truths, [60, 230, 90]);
    Ok(image)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::data::dataset::InMemDataset;

    use super::*;
    use crate::boxes::{Detection, GroundTruth};
    use crate::data::Item;
    use crate::verdict::tests::validation;

    #[test]
    fn pictures_of_cases_are_neither_tiny_nor_huge() {
        let (found, truths) = (Vec::new(), vec![GroundTruth { class: 0, xyxy: [0.25, 0.25, 0.75, 0.75] }]);
        let case = Case { index: 0, name: "a.jpg".into(), missed: 1, mistaken: 0, found, truths };
        let side = |width, height| {
            let drawn = draw(&mut Annotator::default(), &Frame::filled(1, width, height, 90), &case, &[]).unwrap();
            // The frame of the object is where it is in the picture.
            assert_ne!(drawn.get_pixel(drawn.width() / 4, drawn.height() / 2).0, [90; 3]);
            drawn.dimensions()
        };
        for (size, drawn) in [((40, 30), (640, 480)), ((900, 600), (900, 600)), ((2000, 1000), (1280, 640)), ((1000, 2560), (500, 1280))] {
            assert_eq!(side(size.0, size.1), drawn);
        }
    }

    #[test]
    fn a_page_stands_alone_and_escapes_what_it_shows() {
        let mut validation = Validation { sure: 0.6, ..validation() };
        let truths = vec![GroundTruth { class: 0, xyxy: [0.1, 0.1, 0.5, 0.5] }];
        let found = vec![Detection { xyxy: [0.6, 0.6, 0.9, 0.9], score: 0.8, class: 1 }];
        validation.cases = vec![Case { index: 0, name: "<img src=x>.jpg".into(), missed: 1, mistaken: 1, found, truths }];
        let frame = Frame::filled(1, 40, 30, 90);
        let item = Item::new(frame.clone(), vec![], "a.jpg".into());
        let set = ValSet::with_sizes(Arc::new(InMemDataset::new(vec![item])), vec![frame.size()]);
        let names = ["<script>alert(1)</script>", "b", "c"].map(String::from);
        let history = "epoch,time,train/box_loss,val/box_loss,metrics/mAP50(B)\n1,1,2.5,2.4,0.1\n2,2,nan,2.2,0.4\n3,3,1.5,2.0,0.5\n";
        let page = Page {
            title: "A run & more",
            facts: &[("Settings", vec![("imgsz".into(), "640".into())])],
            history: Some(history),
            validation: &validation,
            set: &set,
            names: &names,
            samples: &[("batch 0".into(), b"\x89PNG....".to_vec())],
        };
        let page = String::from_utf8(page.file().unwrap().bytes).unwrap();
        for part in [
            "A run &amp; more",
            "imgsz",
            "&lt;script&gt;alert(1)",
            "&lt;img src=x&gt;.jpg: 1 missed, 1 false",
            "data:image/jpeg;base64,/9j/",
            "data:image/png;base64,",
            "with a confidence above 0.6.",
            "<svg",
            "box_loss",
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(part), "no {part}");
        }
        for absent in ["<script>alert", "http://", "https://", "<img src=x>", "NaN"] {
            assert!(!page.contains(absent), "{absent}");
        }
    }
}
