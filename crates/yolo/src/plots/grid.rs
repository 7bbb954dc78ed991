//! `train_batchN.jpg`, `val_batchN_labels.jpg`, `val_batchN_pred.jpg`: what the network was shown, with boxes.

use super::{PlotError, class_color, class_name, readable_on};
use bellows_plots::{Align, Canvas, FILL, Style};
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
        // Along the bottom, where tags of boxes seldom are.
        let name = canvas.fit(&image.name.chars().take(NAME).collect::<String>(), text, self.size.0 - 12.0);
        if !name.is_empty() {
            self.tag(canvas, &name, (self.origin.0, self.origin.1 + self.size.1), text, [40; 3]);
        }
        // Tags after all boxes, the surest last, so that no box runs through a name.
        let mut order = boxes;
        order.sort_by(|a, b| a.score.unwrap_or(0.0).total_cmp(&b.score.unwrap_or(0.0)));
        for b in order {
            let name = class_name(names, b.class as usize);
            let tag = b.score.map_or(name.clone(), |score| format!("{name} {score:.1}"));
            self.tag(canvas, &tag, self.at(b.xyxy[0], b.xyxy[1]), text, class_color(b.class));
        }
        let (x, y) = self.origin;
        canvas.rect((x, y), (x + self.size.0 - 1.0, y + self.size.1 - 1.0), [255; 3], 1.0);
    }

    /// Text on a plate that stands on a point (a box's corner), moved inside the cell, and so into the box, where it would leave it.
    fn tag(&self, canvas: &mut Canvas, text: &str, (x, y): (f64, f64), size: f64, color: [u8; 3]) {
        let (width, height) = (canvas.text_width(text, size) + 6.0, size * 1.2);
        let x = x.min(self.origin.0 + self.size.0 - width).max(self.origin.0);
        let y = y.clamp(self.origin.1 + height, self.origin.1 + self.size.1);
        canvas.rect((x, y - height), (x + width, y), color, FILL);
        canvas.text(text, (x + 3.0, y - height / 2.0), Style::new(size, Align::Start).color(readable_on(color)));
    }

    /// A point of the image on the sheet, held inside the cell.
    fn at(&self, x: f32, y: f32) -> (f64, f64) {
        let along = |v: f32, origin: f64, size: f64| origin + (f64::from(v) * self.scale).clamp(0.0, size - 1.0);
        (along(x, self.origin.0, self.size.0), along(y, self.origin.1, self.size.1))
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
