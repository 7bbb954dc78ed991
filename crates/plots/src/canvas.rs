//! A picture in memory with the few strokes the charts are made of, on plotters' bitmap rasteriser.
//!
//! Everything is drawn at twice its size and halved on saving: that smooths lines and letters, which the rasteriser places on whole pixels. Coordinates are always in
//! pixels of the finished picture. A failing stroke is remembered and reported by `save`, so that charts read as drawings.

use crate::PlotError;
use image::{ImageEncoder, RgbImage, codecs::jpeg::JpegEncoder, codecs::png::PngEncoder, imageops};
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::{FontDesc, register_font};
use std::path::Path;
use std::sync::Once;

/// Red, green, blue.
pub type Rgb = [u8; 3];
/// x, y in pixels of the finished picture.
pub type Point = (f64, f64);

/// Paper.
pub const WHITE: Rgb = [255; 3];
/// Ink, a little softer than black.
pub const BLACK: Rgb = [25; 3];

/// Drawn pixels per pixel of the finished picture, each way.
const SCALE: u32 = 2;

/// Width that stands for "fill it".
pub const FILL: f64 = 0.0;

/// Where a text's reference point lies along its reading direction.
#[derive(Clone, Copy, PartialEq)]
pub enum Align {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

/// How a text looks.
#[derive(Clone, Copy)]
pub struct Style {
    /// Height of a line in pixels.
    pub size: f64,
    /// Colour.
    pub color: Rgb,
    /// Which part of the text its point is.
    pub align: Align,
    /// Reads from bottom to top.
    pub upward: bool,
}

impl Style {
    /// Level black text.
    pub fn new(size: f64, align: Align) -> Self {
        Self { size, color: BLACK, align, upward: false }
    }

    /// In another colour.
    pub fn color(self, color: Rgb) -> Self {
        Self { color, ..self }
    }

    /// Reading from bottom to top.
    pub fn upward(self) -> Self {
        Self { upward: true, ..self }
    }
}

/// A picture in the making.
pub struct Canvas {
    pixels: Vec<u8>,
    size: (u32, u32),
    error: Option<String>,
}

impl Canvas {
    /// White paper for a chart.
    pub fn paper(width: u32, height: u32) -> Self {
        let size = (width * SCALE, height * SCALE);
        Self { pixels: vec![255; size.0 as usize * size.1 as usize * 3], size, error: None }
    }

    /// Draws over an image.
    pub fn over(image: &RgbImage) -> Self {
        let size = (image.width() * SCALE, image.height() * SCALE);
        let large = imageops::resize(image, size.0, size.1, imageops::FilterType::Nearest);
        Self { size, pixels: large.into_raw(), error: None }
    }

    /// A rectangle between two corners; `width` [`FILL`] fills it.
    pub fn rect(&mut self, a: Point, b: Point, color: Rgb, width: f64) {
        let style = self.stroke(color, width);
        // The rasteriser draws outlines one pixel wide whatever it is told: nest them.
        for inset in 0..style.stroke_width.max(1) as i32 {
            let ((x0, y0), (x1, y1)) = (self.at(a), self.at(b));
            let corners = [(x0.min(x1) + inset, y0.min(y1) + inset), (x0.max(x1) - inset, y0.max(y1) - inset)];
            if corners[0].0 <= corners[1].0 && corners[0].1 <= corners[1].1 {
                self.draw(&Rectangle::new(corners, style));
            }
        }
    }

    /// A line through the points.
    pub fn line(&mut self, points: &[Point], color: Rgb, width: f64) {
        let style = self.stroke(color, width);
        let points: Vec<_> = points.iter().map(|&p| self.at(p)).collect();
        self.draw(&PathElement::new(points, style));
    }

    /// A filled circle.
    pub fn dot(&mut self, centre: Point, radius: f64, color: Rgb) {
        let style = self.stroke(color, FILL);
        self.draw(&Circle::new(self.at(centre), (radius * f64::from(SCALE)).round() as i32, style));
    }

    /// One line of text; the point is the middle of its capitals' height, and the start, middle or end of the line.
    pub fn text(&mut self, text: &str, (x, y): Point, style: Style) {
        let run = self.text_width(text, style.size);
        let back = match style.align {
            Align::Start => 0.0,
            Align::Middle => run / 2.0,
            Align::End => run,
        };
        // The rasteriser puts the baseline half a line below the point it is given; capitals of the font are .62 of a line high.
        let up = 0.19 * style.size;
        let (at, transform) =
            if style.upward { ((x - up, y + back), FontTransform::Rotate270) } else { ((x - back, y - up), FontTransform::None) };
        let [r, g, b] = style.color;
        let font = font(style.size * f64::from(SCALE)).transform(transform).color(&RGBColor(r, g, b));
        self.draw(&Text::new(text.to_owned(), self.at(at), font));
    }

    /// How long a text is, in pixels.
    pub fn text_width(&self, text: &str, size: f64) -> f64 {
        let scale = f64::from(SCALE);
        font(size * scale).box_size(text).map_or(0.0, |(width, _)| f64::from(width) / scale)
    }

    /// The text, cut with an ellipsis to be at most `width` pixels long.
    pub fn fit(&self, text: &str, size: f64, width: f64) -> String {
        let mut shown = text.to_owned();
        let mut kept: Vec<char> = text.chars().collect();
        while self.text_width(&shown, size) > width && kept.pop().is_some() {
            shown = kept.iter().collect::<String>().trim_end().to_owned() + "…";
        }
        shown
    }

    /// The picture as a file in the format of `path`'s extension: PNG or JPEG.
    ///
    /// # Errors
    /// A stroke that failed, or a picture that cannot be encoded.
    pub fn encode(self, path: &Path) -> Result<Vec<u8>, PlotError> {
        encode(&self.finish(path)?, path)
    }

    /// The picture; `path` is for the error.
    ///
    /// # Errors
    /// A stroke that failed.
    pub fn finish(self, path: &Path) -> Result<RgbImage, PlotError> {
        if let Some(reason) = self.error {
            return Err(PlotError::Draw { path: path.into(), reason });
        }
        let (width, height) = self.size;
        let Some(image) = RgbImage::from_raw(width, height, self.pixels) else {
            return Err(PlotError::Draw { path: path.into(), reason: format!("no room for {width}x{height} pixels") });
        };
        Ok(imageops::thumbnail(&image, width / SCALE, height / SCALE))
    }

    fn at(&self, (x, y): Point) -> (i32, i32) {
        let scale = f64::from(SCALE);
        ((x * scale).round() as i32, (y * scale).round() as i32)
    }

    fn stroke(&self, [r, g, b]: Rgb, width: f64) -> ShapeStyle {
        let color = RGBColor(r, g, b);
        if width == FILL {
            return color.filled();
        }
        color.stroke_width((width * f64::from(SCALE)).round().max(1.0) as u32)
    }

    fn draw<'a, E>(&mut self, element: &'a E)
    where
        E: for<'b> Drawable<BitMapBackend<'b>>,
        &'a E: PointCollection<'a, (i32, i32)>,
    {
        let area = BitMapBackend::with_buffer(&mut self.pixels, self.size).into_drawing_area();
        if let Err(reason) = area.draw(element) {
            self.error.get_or_insert(reason.to_string());
        }
    }
}

/// The embedded font, `size` pixels from ascent to descent.
fn font(size: f64) -> FontDesc<'static> {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // A font that cannot be read leaves texts undrawn; the first of them is then reported by `encode`.
        let _ = register_font("bellows", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    FontDesc::new(FontFamily::Name("bellows"), size, FontStyle::Normal)
}

/// An image as a file in the format of `path`'s extension: JPEG, else PNG.
///
/// # Errors
/// When it cannot be encoded.
pub fn encode(image: &RgbImage, path: &Path) -> Result<Vec<u8>, PlotError> {
    let jpeg = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("jpg") || e.eq_ignore_ascii_case("jpeg"));
    let mut bytes = Vec::new();
    let (width, height, color) = (image.width(), image.height(), image::ExtendedColorType::Rgb8);
    let written = if jpeg {
        JpegEncoder::new_with_quality(&mut bytes, 92).write_image(image, width, height, color)
    } else {
        PngEncoder::new(&mut bytes).write_image(image, width, height, color)
    };
    written.map(|()| bytes).map_err(|source| PlotError::Encode { path: path.into(), source })
}
