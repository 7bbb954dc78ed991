//! Is this file a usable image? Answered from its first and last bytes, so that 420,000 of them are checked in minutes.
//!
//! Refused: less than 10 pixels a side, more than 16,384, an unknown format, and a JPEG or PNG without its end marker (the rest of the picture
//! is missing). Such a file is reported and left as it is: repairing it is the owner's decision.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use bellows_runs::open_regular;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::frame::Size;

/// Largest side that is decoded, pixels.
pub const MAX_SIDE: u32 = 16_384;
/// Bytes a decoder may take.
pub(crate) const MAX_ALLOC: u64 = 256 << 20;

/// What can be read. Which of these a file really is, its first bytes say.
const SUFFIXES: [&str; 8] = ["bmp", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp"];
/// Smallest side that can hold an object, pixels.
const MIN_SIDE: u32 = 10;
/// A JPEG's header (with its thumbnails and colour profiles) is looked for in this much of the file first.
const HEAD: u64 = 64 << 10;
/// Bytes in which a file ends that has nothing behind its end marker, and more.
const TAIL: u64 = 16;

/// The suffix of a file's name, in small letters.
pub(crate) fn suffix(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Whether a file is called like an image that can be read.
pub(crate) fn is_image(path: &Path) -> bool {
    SUFFIXES.contains(&suffix(path).as_str())
}

/// What the header says, after EXIF rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Width and height as the image will be decoded.
    pub size: Size,
    /// One channel.
    pub gray: bool,
    /// 16 bits a pixel, of one channel.
    pub deep: bool,
}

/// Reads and checks the header of the image at `path`.
///
/// # Errors
/// The reason, as text for the list of bad files.
pub fn read(path: &Path) -> Result<Header, String> {
    let mut file = open_regular(path).map_err(|e| e.to_string())?;
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let mut head = Vec::new();
    file.by_ref().take(HEAD).read_to_end(&mut head).map_err(|e| e.to_string())?;
    let format = guess(&head)?;
    // Nearly every file ends in its end marker; only the others are looked through, as far as a decoder would read.
    if check_complete(format, &bytes_from(&mut file, length.saturating_sub(TAIL))?).is_err() {
        check_complete(format, &bytes_from(&mut file, 0)?)?;
    }
    let parsed = match format {
        ImageFormat::Jpeg => parse(Cursor::new(&head), format),
        _ => parse(reopen(&mut file)?, format),
    };
    match parsed {
        Err(_) if format == ImageFormat::Jpeg && length > HEAD => parse(reopen(&mut file)?, format),
        other => other,
    }
}

/// Checks the header of an image whose bytes are at hand.
///
/// # Errors
/// As [`read`].
pub(crate) fn of(bytes: &[u8]) -> Result<Header, String> {
    let format = guess(bytes)?;
    check_complete(format, bytes)?;
    parse(Cursor::new(bytes), format)
}

fn guess(head: &[u8]) -> Result<ImageFormat, String> {
    image::guess_format(head).map_err(|_| "not an image of a known format (bmp, jpeg, png, tiff, webp)".into())
}

fn reopen(file: &mut File) -> Result<BufReader<&mut File>, String> {
    file.seek(SeekFrom::Start(0)).map_err(|e| e.to_string())?;
    Ok(BufReader::new(file))
}

fn bytes_from(file: &mut File, begin: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(begin)).and_then(|_| file.take(MAX_ALLOC).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|e| e.to_string())
}

/// What every decoder is held to.
pub(crate) fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_ALLOC);
    limits
}

/// Refuses a JPEG or PNG whose end marker is not among these bytes, which are its last ones or all. What is behind the marker is no matter: cameras
/// append metadata there, and phones a film.
pub(crate) fn check_complete(format: ImageFormat, bytes: &[u8]) -> Result<(), String> {
    let ended = match format {
        ImageFormat::Jpeg => bytes.ends_with(&[0xFF, 0xD9]) || scan_ends(bytes),
        ImageFormat::Png => bytes.ends_with(b"IEND\xAE\x42\x60\x82") || bytes.windows(4).any(|w| w == b"IEND"),
        _ => true,
    };
    if ended { Ok(()) } else { Err("truncated: the end marker is missing".into()) }
}

/// Whether there is an end marker behind where the pixels of a whole JPEG begin: the one of a thumbnail is before that. Decoders pass over stray bytes
/// between two segments, from which on any end marker counts.
fn scan_ends(jpeg: &[u8]) -> bool {
    if !jpeg.starts_with(&[0xFF, 0xD8]) {
        return false;
    }
    let mut at = 2;
    while let [0xFF, marker, high, low, ..] = jpeg.get(at..).unwrap_or_default() {
        if *marker == 0xFF {
            at += 1;
            continue;
        }
        at += 2 + usize::from(u16::from_be_bytes([*high, *low]));
        if *marker == 0xDA {
            break;
        }
    }
    jpeg.get(at..).is_some_and(|rest| rest.windows(2).any(|w| w == [0xFF, 0xD9]))
}

fn parse<R: std::io::BufRead + Seek>(reader: R, format: ImageFormat) -> Result<Header, String> {
    let mut reader = ImageReader::with_format(reader, format);
    // Sides are judged below, where they can be told.
    let mut limits = limits();
    (limits.max_image_width, limits.max_image_height) = (None, None);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions();
    let turned = {
        use image::metadata::Orientation::*;
        matches!(decoder.orientation().unwrap_or(NoTransforms), Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
    };
    let size = if turned { Size { width: height, height: width } } else { Size { width, height } };
    if size.width.min(size.height) < MIN_SIDE {
        return Err(format!("{}x{} pixels; at least {MIN_SIDE} a side are needed", size.width, size.height));
    }
    if size.width.max(size.height) > MAX_SIDE {
        return Err(format!("{}x{} pixels; at most {MAX_SIDE} a side are read", size.width, size.height));
    }
    let deep = matches!(decoder.color_type(), ColorType::L16 | ColorType::La16);
    let gray = deep || matches!(decoder.color_type(), ColorType::L8 | ColorType::La8);
    Ok(Header { size, gray, deep })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_that_is_too_long_is_told() {
        for (width, height) in [(20_000, 10), (10, 16_385)] {
            let mut png = Cursor::new(Vec::new());
            image::GrayImage::new(width, height).write_to(&mut png, ImageFormat::Png).unwrap();
            let told = of(png.get_ref()).unwrap_err();
            assert_eq!(told, format!("{width}x{height} pixels; at most 16384 a side are read"));
        }
    }
}
