//! Pixels: decoded to planar 8 bit, one channel when the file has one (thermal frames do, and every later step then costs a third).
//!
//! Hostile files are bounded: at most 16,384 pixels a side and 256 MiB of decoder memory, and a decoder that panics is an error like any
//! other. EXIF rotation is applied. Alpha is dropped.
//!
//! 16-bit gray is radiometric and stays 16 bit until a [`Normalisation`] makes 256 grays of it. 16-bit colour is divided by 257.

use std::io::{Cursor, Read};
use std::path::Path;

use bellows_runs::open_regular;
use image::{DynamicImage, ImageDecoder, ImageReader};

use super::error::DataError;
use super::frame::Frame;
use super::header::{MAX_ALLOC, check_complete, limits};
use super::normalisation::Normalisation;

/// Reads and decodes the image at `path`.
///
/// # Errors
/// [`DataError::Io`], also for what is no regular file, or [`DataError::Image`].
pub fn decode_file(path: &Path, normalisation: &Normalisation) -> Result<Frame, DataError> {
    let mut bytes = Vec::new();
    open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(DataError::io(path))?;
    decode(&bytes, &path.to_string_lossy(), normalisation)
}

/// Decodes an image file's bytes; `name` is for the error. `normalisation` is for 16-bit gray only.
///
/// # Errors
/// [`DataError::Image`]: unknown format, over the limits, truncated, or damaged.
pub fn decode(bytes: &[u8], name: &str, normalisation: &Normalisation) -> Result<Frame, DataError> {
    guarded(name, || planar(picture(bytes)?, normalisation))
}

/// The counts of a 16-bit gray image file's bytes, row-major; `name` is for the error.
///
/// # Errors
/// [`DataError::Image`], also for an image of another kind.
pub(crate) fn counts_of(bytes: &[u8], name: &str) -> Result<Vec<u16>, DataError> {
    guarded(name, || counts(picture(bytes)?).map_err(|_| "not 16-bit gray".into()))
}

fn guarded<T>(name: &str, decode: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe) -> Result<T, DataError> {
    let fault = |reason: String| DataError::Image { name: name.to_string(), reason };
    match std::panic::catch_unwind(decode) {
        Ok(result) => result.map_err(fault),
        Err(_) => Err(fault("the decoder panicked: the file is damaged in a way it does not know".into())),
    }
}

fn picture(bytes: &[u8]) -> Result<DynamicImage, String> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| e.to_string())?;
    let format = reader.format().ok_or("not an image of a known format (bmp, jpeg, png, tiff, webp)")?;
    check_complete(format, bytes)?;
    reader.limits(limits());
    let mut decoder = reader.into_decoder().map_err(|e| e.to_string())?;
    if decoder.total_bytes() > MAX_ALLOC {
        return Err(format!("{} bytes of pixels; at most {MAX_ALLOC} are decoded", decoder.total_bytes()));
    }
    let orientation = decoder.orientation().unwrap_or(image::metadata::Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|e| e.to_string())?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// The counts of 16-bit gray; another picture comes back.
fn counts(picture: DynamicImage) -> Result<Vec<u16>, Box<DynamicImage>> {
    match picture {
        DynamicImage::ImageLuma16(p) => Ok(p.into_raw()),
        DynamicImage::ImageLumaA16(p) => Ok(p.into_raw().into_iter().step_by(2).collect()),
        other => Err(Box::new(other)),
    }
}

fn planar(picture: DynamicImage, normalisation: &Normalisation) -> Result<Frame, String> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let picture = match counts(picture) {
        Ok(counts) => return Ok(Frame { pixels: normalisation.apply(&counts), channels: 1, width, height, difference: false }),
        Err(other) => *other,
    };
    let (pixels, channels) = match picture {
        DynamicImage::ImageLuma8(p) => (p.into_raw(), 1),
        DynamicImage::ImageLumaA8(p) => (p.into_raw().into_iter().step_by(2).collect(), 1),
        DynamicImage::ImageRgb8(p) => (deinterleave::<3, u8>(&p.into_raw(), |v| v), 3),
        DynamicImage::ImageRgba8(p) => (deinterleave::<4, u8>(&p.into_raw(), |v| v), 3),
        DynamicImage::ImageRgb16(p) => (deinterleave::<3, u16>(&p.into_raw(), |v| (v / 257) as u8), 3),
        DynamicImage::ImageRgba16(p) => (deinterleave::<4, u16>(&p.into_raw(), |v| (v / 257) as u8), 3),
        other => return Err(format!("{:?} pixels are not supported: their range is unknown", other.color())),
    };
    Ok(Frame { pixels, channels, width, height, difference: false })
}

/// `[H, W, STEP]` to `[3, H, W]`, dropping alpha.
fn deinterleave<const STEP: usize, T: Copy>(raw: &[T], narrow: impl Fn(T) -> u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() / STEP * 3);
    for c in 0..3 {
        out.extend(raw.chunks_exact(STEP).map(|p| narrow(p[c])));
    }
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::data::header;

    const WHOLE: Normalisation = Normalisation::Frame { low: 0.0, high: 100.0 };

    fn decode(bytes: &[u8], name: &str) -> Result<Frame, DataError> {
        super::decode(bytes, name, &WHOLE)
    }
    use image::{ImageBuffer, ImageFormat, Luma, Rgb};

    /// The bytes of a JPEG of a frame.
    pub(crate) fn jpeg(width: u32, height: u32) -> Vec<u8> {
        encode(DynamicImage::ImageLuma8(ImageBuffer::from_fn(width, height, |x, y| Luma([(x * 5 + y * 3) as u8]))), ImageFormat::Jpeg)
    }

    fn encode(picture: DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn gray_stays_one_channel_and_colour_is_planar() {
        let gray = decode(&jpeg(32, 20), "g").unwrap();
        assert_eq!((gray.channels, gray.width, gray.height, gray.pixels.len()), (1, 32, 20, 640));
        let rgb = ImageBuffer::from_fn(12, 11, |x, y| Rgb([x as u8, y as u8, 200]));
        for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::WebP] {
            let frame = decode(&encode(DynamicImage::ImageRgb8(rgb.clone()), format), "c").unwrap();
            assert_eq!((frame.channels, frame.plane(0)[5], frame.plane(1)[3 * 12], frame.plane(2)[131]), (3, 5, 3, 200), "{format:?}");
        }
    }

    #[test]
    fn sixteen_bit_gray_keeps_its_narrow_band() {
        let counts = ImageBuffer::from_fn(16, 16, |x, _| Luma([3000u16 + 10 * x as u16]));
        for format in [ImageFormat::Png, ImageFormat::Tiff] {
            let frame = decode(&encode(DynamicImage::ImageLuma16(counts.clone()), format), "r").unwrap();
            assert_eq!((frame.channels, frame.pixels[0], frame.pixels[15], frame.pixels[5]), (1, 0, 255, 85), "{format:?}");
            let ranged = Normalisation::Range { low: 3000.0, high: 3050.0 };
            let frame = super::decode(&encode(DynamicImage::ImageLuma16(counts.clone()), format), "r", &ranged).unwrap();
            assert_eq!((frame.pixels[0], frame.pixels[1], frame.pixels[5], frame.pixels[15]), (0, 51, 255, 255), "{format:?}");
        }
    }

    #[test]
    fn damaged_files_are_errors() {
        let whole = jpeg(64, 48);
        let cut = decode(&whole[..whole.len() / 2], "cut.jpg").unwrap_err().to_string();
        assert!(cut.contains("cut.jpg") && cut.contains("truncated"), "{cut}");
        assert!(decode(b"", "empty").is_err());
        assert!(decode(b"GIF89a not here", "gif").is_err());
        let mut appended = whole.clone();
        appended.extend(b"maker notes");
        assert!(decode(&appended, "tail").is_ok(), "bytes after the end marker are common and harmless");
        // As much as a film behind the picture; a thumbnail that is whole before a picture that is not.
        let (long, small) = ([whole.clone(), vec![0; 1 << 20]].concat(), jpeg(16, 16));
        let length = (small.len() as u16 + 2).to_be_bytes();
        let torn = [&whole[..2], b"\xFF\xE1".as_slice(), length.as_slice(), small.as_slice(), &whole[2..whole.len() - 2]].concat();
        // Bytes that belong to no segment, behind a comment.
        let stray = [&whole[..2], b"\xFF\xFE\x00\x04ab\x00\x00".as_slice(), &appended[2..]].concat();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("picture.jpg");
        for (bytes, ended) in [(&whole, true), (&appended, true), (&long, true), (&stray, true), (&torn, false)] {
            std::fs::write(&path, bytes).unwrap();
            let told = [decode(bytes, "picture").err().map(|e| e.to_string()), header::read(&path).err()];
            let right = told.iter().all(|told| told.as_ref().map_or(ended, |told| !ended && told.contains("truncated")));
            assert!(right, "{} bytes: {told:?}", bytes.len());
        }
        // Any single broken byte may be an error or a picture, never a panic or an endless loop.
        for i in (0..whole.len()).step_by(7) {
            let mut broken = whole.clone();
            broken[i] ^= 0x55;
            let _ = decode(&broken, "broken");
        }
    }

    /// Whoever opens a pipe for reading waits for one who writes.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_no_picture() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jpg");
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let (told, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(decode_file(&path, &WHOLE).unwrap_err().to_string()));
        let error = answers.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        assert!(error.ends_with("a.jpg: not a regular file"), "{error}");
    }

    #[test]
    fn a_huge_picture_is_refused_before_it_is_allocated() {
        // PNG headers that claim a side, and bytes, over the limit, with nothing behind them.
        let mut png = encode(DynamicImage::ImageRgb8(ImageBuffer::new(16, 16)), ImageFormat::Png);
        let claims = [(20_000_u32, "Image size exceeds limit"), (16_000, "768000000 bytes of pixels; at most 268435456 are decoded")];
        for (side, limit) in claims {
            png[16..20].copy_from_slice(&side.to_be_bytes());
            png[20..24].copy_from_slice(&side.to_be_bytes());
            let crc = crc32(&png[12..29]);
            png[29..33].copy_from_slice(&crc.to_be_bytes());
            let told = decode(&png, "bomb").unwrap_err().to_string();
            assert!(told.contains(limit), "{told}");
        }
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes
            .iter()
            .fold(!0u32, |crc, &b| (0..8).fold(crc ^ u32::from(b), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xEDB8_8320 } else { c >> 1 }))
    }

    #[test]
    fn luminance_of_gray_is_itself() {
        let frame = Frame { pixels: vec![0, 7, 128, 255], channels: 1, width: 2, height: 2, difference: false };
        assert_eq!(frame.clone().with_channels(3).to_gray(), frame);
    }
}
