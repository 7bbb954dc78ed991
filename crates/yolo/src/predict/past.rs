//! The frames before an image, for a detector that looks at several: those before it in its folder, in the order of their names,
//! up to a gap in their numbers.
//!
//! What was looked at last is not read again: a folder from its beginning to its end is decoded once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::data::header::is_image;
use crate::data::{Frame, Normalisation, Ring, Stack, decode_file, gaps, natural};

/// Makes the inputs of images, one after the other.
pub struct Past {
    stack: Stack,
    levels: Normalisation,
    /// Those that were asked for: a list may alternate between them.
    folders: HashMap<PathBuf, Folder>,
    ring: Ring,
    /// The image that the ring holds last.
    last: Option<PathBuf>,
}

/// What is in a folder.
struct Folder {
    /// Its images, in order.
    images: Vec<PathBuf>,
    /// Whether there is a gap before each of them.
    gaps: Vec<bool>,
}

impl Folder {
    fn of(folder: &Path) -> Self {
        let images = images(folder);
        let gaps = {
            let names: Vec<_> = images.iter().map(|image| image.to_string_lossy()).collect();
            gaps(&names.iter().map(|name| &**name).collect::<Vec<_>>())
        };
        Self { images, gaps }
    }
}

impl Past {
    /// `levels` are those of 16-bit images.
    pub fn new(stack: Stack, levels: Normalisation) -> Self {
        Self { stack, levels, folders: HashMap::new(), ring: Ring::new(stack), last: None }
    }

    /// The input for `frame`, which is the image at `path`. One before it that cannot be read is told; where it would be looked at, it is as good as not there,
    /// with all before it.
    pub fn input(&mut self, path: &Path, frame: &Frame) -> Frame {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Folder { images, gaps } = self.folders.entry(folder.into()).or_insert_with(|| Folder::of(folder));
        let path = folder.join(path.file_name().unwrap_or_default());
        let at = images.partition_point(|image| in_order(image, &path).is_lt());
        // What is no image of the folder has no gap of its own.
        let known = at + usize::from(images.get(at) == Some(&path));
        let begin = gaps[..known].iter().rposition(|gap| *gap).unwrap_or(0);
        let before = &images[at.saturating_sub(self.stack.reach()).max(begin)..at];
        if before.is_empty() || before.last() != self.last.as_ref() {
            self.ring = Ring::new(self.stack);
            for image in before {
                let frame = decode_file(image, &self.levels);
                let frame = frame.inspect_err(|error| tracing::warn!("missing to the frames after it: {error}"));
                self.ring.remember(frame.ok().as_ref());
            }
        }
        self.last = Some(path);
        self.ring.push(frame)
    }
}

/// The images of a folder in order; of one that cannot be listed none.
fn images(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).inspect_err(|error| tracing::warn!("{}: {error}", folder.display()));
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    let mut images: Vec<PathBuf> = entries.map(|entry| folder.join(entry.file_name())).filter(|path| is_image(path)).collect();
    images.sort_by(|a, b| in_order(a, b));
    images
}

fn in_order(a: &Path, b: &Path) -> std::cmp::Ordering {
    natural(&a.to_string_lossy(), &b.to_string_lossy()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of one gray.
    fn gray(value: u8) -> Frame {
        Frame::filled(1, 4, 3, value)
    }

    #[test]
    fn an_image_has_the_past_of_its_folder_whatever_was_looked_at_before() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a", "b"] {
            std::fs::create_dir(dir.path().join(folder)).unwrap();
            for i in 1..=12_u8 {
                let at = dir.path().join(folder).join(format!("f{i}.png"));
                image::GrayImage::from_pixel(4, 3, image::Luma([i])).save(at).unwrap();
            }
        }
        std::fs::write(dir.path().join("a/f6.png"), "torn").unwrap();
        std::fs::write(dir.path().join("a/f8.txt"), "no image").unwrap();
        let mut past = Past::new(Stack { frames: 3, ..Stack::default() }, Normalisation::Range { low: 0.0, high: 65535.0 });
        let mut planes = |name: &str, value: u8| {
            let input = past.input(&dir.path().join(name), &gray(value));
            [0, 1, 2].map(|c| input.plane(c)[0])
        };
        // A single one, a gap, the next, one out of order, the first, another folder that begins as the last one ended.
        let seen = ["a/f10", "a/f4", "a/f5", "a/f3", "a/f1", "b/f1", "b/f2", "b/f11"].map(|name| {
            let value = name[3..].parse().unwrap();
            planes(&format!("{name}.png"), value)
        });
        assert_eq!(seen, [[8, 9, 10], [2, 3, 4], [3, 4, 5], [1, 2, 3], [1, 1, 1], [1, 1, 1], [1, 1, 2], [9, 10, 11]]);
        // Numbers that are missing end what is before.
        let gone = dir.path().join("c");
        std::fs::create_dir(&gone).unwrap();
        for i in [1, 2, 3, 4, 7, 8_u8] {
            image::GrayImage::from_pixel(4, 3, image::Luma([i])).save(gone.join(format!("f{i}.png"))).unwrap();
        }
        assert_eq!([planes("c/f4.png", 4), planes("c/f7.png", 7), planes("c/f8.png", 8)], [[2, 3, 4], [7, 7, 7], [7, 7, 8]]);
        // So does one that cannot be read.
        assert_eq!([planes("a/f7.png", 7), planes("a/f8.png", 8)], [[7, 7, 7], [7, 7, 8]]);
        let mut apart = Past::new(Stack { frames: 2, stride: 2, background: 0 }, Normalisation::Range { low: 0.0, high: 65535.0 });
        let mut pair = |name: &str, value: u8| {
            let input = apart.input(&dir.path().join(name), &gray(value));
            [0, 1].map(|c| input.plane(c)[0])
        };
        assert_eq!([pair("a/f7.png", 7), pair("a/f8.png", 8)], [[5, 7], [7, 8]], "but not where nobody looks at it");
        for i in [5, 6_u8] {
            image::GrayImage::from_pixel(4, 3, image::Luma([i])).save(gone.join(format!("f{i}.png"))).unwrap();
        }
        assert_eq!(planes("c/f7.png", 7), [7, 7, 7], "a folder is listed once, whatever was asked for since");
    }
}
