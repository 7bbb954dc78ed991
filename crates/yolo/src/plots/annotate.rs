//! Detections drawn on an image at its own size, as fast as frames of a video come: lines are written into the pixels, and only the plates with
//! names go through the rasteriser.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use bellows_plots::{Align, Canvas, FILL, Style};
use image::{Rgb, RgbImage, imageops};

use super::tags::Tags;
use super::{GridBox, PlotError, class_color, class_name, readable_on};

/// What is drawn of a detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ink {
    /// The box.
    pub boxes: bool,
    /// The class's name.
    pub labels: bool,
    /// The confidence, behind the name.
    pub conf: bool,
    /// Width of lines in pixels; `None` is three thousandths of half the image's circumference.
    pub line_width: Option<u32>,
}

impl Default for Ink {
    fn default() -> Self {
        Self { boxes: true, labels: true, conf: true, line_width: None }
    }
}

/// Draws boxes, and remembers the plates with names it has made.
#[derive(Debug, Default)]
pub struct Annotator {
    ink: Ink,
    plates: HashMap<(u32, Option<u8>, u32), RgbImage>,
}

impl Annotator {
    /// That draws this much.
    pub fn new(ink: Ink) -> Self {
        Self { ink, plates: HashMap::new() }
    }

    /// Draws `boxes` (in pixels of `image`) with the names of their classes; the surest are drawn last. `path` is for the error.
    ///
    /// # Errors
    /// When a name cannot be drawn.
    pub fn draw(&mut self, image: &mut RgbImage, boxes: &[GridBox], names: &[String], path: &Path) -> Result<(), PlotError> {
        let sides = f64::from(image.width() + image.height()) / 2.0;
        let width = self.width(image);
        let mut order: Vec<&GridBox> = boxes.iter().filter(|b| b.xyxy.iter().all(|v| v.is_finite())).collect();
        order.sort_by(|a, b| a.score.unwrap_or(1.0).total_cmp(&b.score.unwrap_or(1.0)));
        if self.ink.boxes {
            order.iter().for_each(|b| outline(image, b.xyxy, width, Rgb(class_color(b.class))));
        }
        if !self.ink.labels {
            return Ok(());
        }
        let size = (sides / 40.0).clamp(11.0, 40.0).round() as u32;
        let (right, bottom) = (f64::from(image.width()), f64::from(image.height()));
        let mut tags = Tags::within([0.0, 0.0, right, bottom]);
        let mut places = Vec::with_capacity(order.len());
        // The surest has the first choice of a place, and is drawn last where there is none for all.
        for b in order.iter().rev() {
            let plate = self.plate(b, names, size, path)?;
            let [x1, y1, x2, y2] = b.xyxy.map(|v| f64::from(v).floor());
            let of = [x1.clamp(0.0, right), y1.clamp(0.0, bottom), x2.clamp(0.0, right), y2.clamp(0.0, bottom)];
            places.push((*b, tags.place(of, (f64::from(plate.width()), f64::from(plate.height())))));
        }
        for (b, (x, y)) in places.iter().rev() {
            imageops::replace(image, self.plate(b, names, size, path)?, *x as i64, *y as i64);
        }
        Ok(())
    }

    /// Frames without names, in one colour.
    pub fn frame(&self, image: &mut RgbImage, boxes: &[[f32; 4]], color: [u8; 3]) {
        boxes.iter().for_each(|&xyxy| outline(image, xyxy, self.width(image), Rgb(color)));
    }

    fn width(&self, image: &RgbImage) -> u32 {
        let usual = f64::from(image.width() + image.height()) / 2.0 * 0.003;
        self.ink.line_width.unwrap_or(usual.round() as u32).max(1)
    }

    /// The plate of a box, made at its first use.
    fn plate(&mut self, b: &GridBox, names: &[String], size: u32, path: &Path) -> Result<&RgbImage, PlotError> {
        let hundredths = b.score.filter(|_| self.ink.conf).map(|score| (score * 100.0).round() as u8);
        let key = (b.class, hundredths, size);
        let plate = match self.plates.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(plate(b, hundredths, names, size, path)?),
        };
        Ok(plate)
    }
}

/// A name, and the confidence in hundredths, on the colour of the class.
fn plate(b: &GridBox, hundredths: Option<u8>, names: &[String], size: u32, path: &Path) -> Result<RgbImage, PlotError> {
    let name = class_name(names, b.class as usize);
    let text = hundredths.map_or(name.clone(), |h| format!("{name} {:.2}", f64::from(h) / 100.0));
    let color = class_color(b.class);
    let (line, height) = (f64::from(size), (f64::from(size) * 1.2).ceil());
    let width = (Canvas::paper(1, 1).text_width(&text, line) + 6.0).ceil();
    let mut plate = Canvas::paper(width as u32, height as u32);
    plate.rect((0.0, 0.0), (width, height), color, FILL);
    plate.text(&text, (3.0, height / 2.0), Style::new(line, Align::Start).color(readable_on(color)));
    plate.finish(path)
}

/// A frame of `width` pixels inside the box, as far as it lies in the image.
fn outline(image: &mut RgbImage, xyxy: [f32; 4], width: u32, color: Rgb<u8>) {
    let (w, h) = image.dimensions();
    let clip = |v: f32, n: u32| (v.round().max(0.0) as u32).min(n.saturating_sub(1));
    let [x1, y1, x2, y2] = [clip(xyxy[0], w), clip(xyxy[1], h), clip(xyxy[2], w), clip(xyxy[3], h)];
    let inner = width - 1;
    let bands = [
        [x1, y1, x2, y1 + inner],
        [x1, y2.saturating_sub(inner), x2, y2],
        [x1, y1, x1 + inner, y2],
        [x2.saturating_sub(inner), y1, x2, y2],
    ];
    for [left, top, right, bottom] in bands {
        for y in top.max(y1)..=bottom.min(y2) {
            (left.max(x1)..=right.min(x2)).for_each(|x| image.put_pixel(x, y, color));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_run_along_the_box_and_names_stay_inside() {
        let mut image = RgbImage::from_pixel(100, 80, Rgb([7; 3]));
        let boxes = [
            GridBox { xyxy: [20.0, 30.0, 60.0, 70.0], class: 0, score: Some(0.5) },
            GridBox { xyxy: [90.0, -5.0, 130.0, 20.0], class: 1, score: None },
            GridBox { xyxy: [f32::NAN, 0.0, 1.0, 1.0], class: 1, score: None },
        ];
        let names = ["a".to_string(), "a very long name of a class".to_string()];
        let mut bare = image.clone();
        let without = Ink { labels: false, line_width: Some(2), ..Ink::default() };
        Annotator::new(without).draw(&mut bare, &boxes, &names, Path::new("x.png")).unwrap();
        let blue = Rgb(class_color(0));
        for (x, y, is) in
            [(20, 30, blue), (21, 50, blue), (22, 50, Rgb([7; 3])), (60, 70, blue), (59, 50, blue), (40, 69, blue), (40, 50, Rgb([7; 3]))]
        {
            assert_eq!(*bare.get_pixel(x, y), is, "{x} {y}");
        }
        Annotator::default().draw(&mut image, &boxes, &names, Path::new("x.png")).unwrap();
        assert_eq!(*image.get_pixel(21, 29), blue, "the plate stands on the box");
        assert_ne!(image, bare);
    }
}
