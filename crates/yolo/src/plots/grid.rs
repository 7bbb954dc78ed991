//! `train_batchN.jpg`, `val_batchN_labels.jpg`, `val_batchN_pred.jpg`: what the network was shown, with boxes.

use super::tags::{Area, Tags};
use super::{PlotError, class_color, class_name, readable_on};
use bellows_plots::{Align, Canvas, FILL, Point, Rgb, Style};
use image::{RgbImage, imageops};
use std::path::Path;

/// Most images in a picture, and the most pixels along its side.
const IMAGES: usize = 16;
const SIDE: usize = 1920;
/// Small images are enlarged at most so far.
const ENLARGE: f64 = 6.0;
/// Characters of a file name that are shown.
const NAME: usize = 40;

/// A box on an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GridBox {
    /// Two corners in pixels of the image.
    pub xyxy: [f32; 4],
    /// Class index.
    pub class: u32,
    /// Confidence of a prediction, shown beside the name; `None` for a label.
    pub score: Option<f32>,
}

/// An image as the network got it.
#[derive(Clone, Debug, PartialEq)]
pub struct GridImage<'a> {
    /// Planar `[channels, height, width]`.
    pub pixels: &'a [u8],
    /// 1 (gray) or 3 (RGB).
    pub channels: usize,
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Shown in the corner, usually the file name.
    pub name: &'a str,
    /// Labels or predictions.
    pub boxes: Vec<GridBox>,
}

/// Draws up to 16 images in a square grid of at most 1920 px; small images are enlarged so that the boxes' names can be read.
///
/// # Errors
/// When an image's pixels do not fit its size, or the picture cannot be written.
pub fn image_grid(images: &[GridImage], names: &[String], path: &Path) -> Result<Vec<u8>, PlotError> {
    let images = &images[..images.len().min(IMAGES)];
    let columns = (images.len() as f64).sqrt().ceil().max(1.0) as usize;
    let rows = images.len().div_ceil(columns).max(1);
    let widest = images.iter().map(|i| i.width).max().unwrap_or(0).max(1);
    let tallest = images.iter().map(|i| i.height).max().unwrap_or(0).max(1);
    let scale = (SIDE as f64 / (columns * widest.max(tallest)) as f64).min(ENLARGE);
    let cell = |pixels: usize| ((pixels as f64 * scale) as u32).max(1);
    let (cell_w, cell_h) = (cell(widest), cell(tallest));

    let empty = images.is_empty();
    let (width, height) = if empty { (640, 640) } else { (cell_w * columns as u32, cell_h * rows as u32) };
    let mut sheet = RgbImage::from_pixel(width, height, image::Rgb([255; 3]));
    let corner = |i: usize| ((i % columns) as u32 * cell_w, (i / columns) as u32 * cell_h);
    for (i, image) in images.iter().enumerate() {
        let rgb = to_rgb(image, path)?;
        let resized = imageops::resize(&rgb, cell(image.width), cell(image.height), imageops::FilterType::Triangle);
        let (x, y) = corner(i);
        imageops::replace(&mut sheet, &resized, i64::from(x), i64::from(y));
    }

    let mut canvas = Canvas::over(&sheet);
    if empty {
        canvas.text("no images", (320.0, 320.0), Style::new(28.0, Align::Middle));
    }
    for (i, image) in images.iter().enumerate() {
        let (x, y) = corner(i);
        let cell = Cell { origin: (f64::from(x), f64::from(y)), scale, size: (f64::from(cell_w), f64::from(cell_h)) };
        cell.draw(&mut canvas, image, names);
    }
    canvas.encode(path)
}

/// One place of the grid: image pixels times `scale` plus `origin`.
struct Cell {
    origin: (f64, f64),
    scale: f64,
    size: (f64, f64),
}

impl Cell {
    fn draw(&self, canvas: &mut Canvas, image: &GridImage, names: &[String]) {
        let text = (self.size.1 / 24.0).clamp(14.0, 22.0);
        let boxes: Vec<_> = image.boxes.iter().filter(|b| b.xyxy.iter().all(|v| v.is_finite())).collect();
        for b in &boxes {
            canvas.rect(self.at(b.xyxy[0], b.xyxy[1]), self.at(b.xyxy[2], b.xyxy[3]), class_color(b.class), 2.0);
        }
        let (x, y) = self.origin;
        let bottom = y + self.size.1;
        let mut tags = Tags::within([x, y, x + self.size.0, bottom]);
        // Along the bottom, where tags of boxes seldom are.
        let name = canvas.fit(&image.name.chars().take(NAME).collect::<String>(), text, self.size.0 - 12.0);
        if !name.is_empty() {
            Tag::new(canvas, &mut tags, name, [x, bottom, x, bottom], text, [40; 3]).draw(canvas);
        }
        // Tags after all boxes, so that no box runs through a name. The surest has the first choice of a place, and is drawn last where there is none for all.
        let mut order = boxes;
        order.sort_by(|a, b| b.score.unwrap_or(0.0).total_cmp(&a.score.unwrap_or(0.0)));
        let tag = |b: &&GridBox| {
            let told = told(class_name(names, b.class as usize), b.score);
            let ((x1, y1), (x2, y2)) = (self.at(b.xyxy[0], b.xyxy[1]), self.at(b.xyxy[2], b.xyxy[3]));
            Tag::new(canvas, &mut tags, told, [x1, y1, x2, y2], text, class_color(b.class))
        };
        let placed: Vec<Tag> = order.iter().map(tag).collect();
        placed.iter().rev().for_each(|tag| tag.draw(canvas));
        canvas.rect((x, y), (x + self.size.0 - 1.0, y + self.size.1 - 1.0), [255; 3], 1.0);
    }

    /// A point of the image on the sheet, held inside the cell.
    fn at(&self, x: f32, y: f32) -> (f64, f64) {
        let along = |v: f32, origin: f64, size: f64| origin + (f64::from(v) * self.scale).clamp(0.0, size - 1.0);
        (along(x, self.origin.0, self.size.0), along(y, self.origin.1, self.size.1))
    }
}

/// A name, and the confidence behind it; of one decimal 0.97 would be 1.0.
fn told(name: String, score: Option<f32>) -> String {
    score.map(|score| format!("{name} {score:.2}")).unwrap_or(name)
}

/// Text on a plate.
struct Tag {
    text: String,
    /// Of a line.
    height: f64,
    /// Top left, and bottom right.
    corners: (Point, Point),
    color: Rgb,
}

impl Tag {
    /// In the place that `tags` has for it at the box `of`.
    fn new(canvas: &Canvas, tags: &mut Tags, text: String, of: Area, height: f64, color: Rgb) -> Self {
        let size = (canvas.text_width(&text, height) + 6.0, height * 1.2);
        let (x, y) = tags.place(of, size);
        Self { text, height, corners: ((x, y), (x + size.0, y + size.1)), color }
    }

    fn draw(&self, canvas: &mut Canvas) {
        let (a, b) = self.corners;
        canvas.rect(a, b, self.color, FILL);
        let style = Style::new(self.height, Align::Start).color(readable_on(self.color));
        canvas.text(&self.text, (a.0 + 3.0, (a.1 + b.1) / 2.0), style);
    }
}

fn to_rgb(image: &GridImage, path: &Path) -> Result<RgbImage, PlotError> {
    let &GridImage { pixels, channels, width, height, name, .. } = image;
    let plane = width * height;
    if pixels.len() != channels * plane || !matches!(channels, 1 | 3) || plane == 0 {
        let (expected, name, path) = (channels * plane, name.to_owned(), path.into());
        return Err(PlotError::Pixels { path, name, found: pixels.len(), expected, channels, height, width });
    }
    Ok(RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let at = y as usize * width + x as usize;
        image::Rgb(std::array::from_fn(|c| pixels[c % channels * plane + at]))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_is_told_as_one() {
        let of = |score| told("car".into(), score);
        assert_eq!([of(Some(0.97)), of(Some(1.0)), of(None)], ["car 0.97", "car 1.00", "car"]);
    }
}
