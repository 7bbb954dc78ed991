//! What `predict` leaves: lines, label files, crops, images and films with boxes drawn.

use std::path::{Path, PathBuf};

use bellows_cli::{Context, Exit, Failure, Usage, note, say};
use bellows_yolo::boxes::Detection;
use bellows_yolo::plots::{Annotator, GridBox, Ink, encode};
use bellows_yolo::predict::output::{FreshNames, crop, folder, json_line, label_lines, sentence};
use bellows_yolo::predict::video::FilmWriter;

use crate::shots::{Seen, Shot};

/// What is to be written.
pub(crate) struct Wanted {
    /// Where to; `None` where nothing is.
    pub(crate) folder: Option<PathBuf>,
    /// Images and films with boxes.
    pub(crate) images: bool,
    /// Frames of films with boxes, each an image.
    pub(crate) frames: bool,
    /// Label files.
    pub(crate) labels: bool,
    /// Confidences in them.
    pub(crate) confidences: bool,
    /// Crops.
    pub(crate) crops: bool,
    /// JSON lines on stdout.
    pub(crate) json: bool,
    /// What is drawn.
    pub(crate) ink: Ink,
}

/// A film that is being written, or whose frames are.
struct OpenFilm {
    /// Index of its source.
    input: usize,
    /// What its files are called, without a suffix.
    stem: PathBuf,
    writer: Option<FilmWriter>,
}

/// Writes results in the order they come.
pub(crate) struct Results {
    wanted: Wanted,
    sources: usize,
    names: Vec<String>,
    annotator: Annotator,
    fresh: FreshNames,
    fresh_crops: FreshNames,
    film: Option<OpenFilm>,
    looked_at: usize,
    skipped: usize,
    labels: usize,
    milliseconds: f64,
}

impl Results {
    pub(crate) fn new(wanted: Wanted, sources: usize, names: Vec<String>) -> Self {
        let annotator = Annotator::new(wanted.ink);
        let (fresh, fresh_crops) = (FreshNames::default(), FreshNames::default());
        Self { wanted, sources, names, annotator, fresh, fresh_crops, film: None, looked_at: 0, skipped: 0, labels: 0, milliseconds: 0.0 }
    }

    /// The next result.
    pub(crate) fn take(&mut self, seen: Seen) -> Result<(), Failure> {
        match seen {
            Seen::Skipped(reason) => {
                self.skipped += 1;
                note(&format!("skipped {reason}"));
                Ok(())
            }
            Seen::Shot(shot, found, milliseconds) => {
                self.looked_at += 1;
                self.milliseconds += milliseconds;
                self.tell(&shot, &found, milliseconds);
                self.write(&shot, &found)
            }
        }
    }

    fn tell(&self, shot: &Shot, found: &[Detection], milliseconds: f64) {
        let frame = shot.film.as_ref().map(|(number, _)| *number);
        if self.wanted.json {
            return say(&json_line(&shot.name, frame, shot.frame.size(), found, &self.names));
        }
        let (what, number) = (if frame.is_some() { "video" } else { "image" }, shot.input + 1);
        let frame = frame.map_or_else(String::new, |n| format!(" (frame {})", n + 1));
        let size = format!("{}x{}", shot.frame.height, shot.frame.width);
        let seen = sentence(found, &self.names);
        say(&format!("{what} {number}/{}{frame} {}: {size} {seen}, {milliseconds:.1}ms", self.sources, shot.name));
    }

    fn write(&mut self, shot: &Shot, found: &[Detection]) -> Result<(), Failure> {
        let Some(root) = self.wanted.folder.clone() else { return Ok(()) };
        let stem = match &shot.film {
            // The film itself has the name; each of its frames is numbered.
            Some((number, _)) => format!("{}_{}", shot.stem, number + 1).into(),
            None => self.fresh.fresh(&shot.stem),
        };
        if self.wanted.labels && !found.is_empty() {
            let lines = label_lines(found, shot.frame.size(), self.wanted.confidences);
            save(&root.join("labels").join(&stem).with_added_extension("txt"), lines.as_bytes())?;
            self.labels += 1;
        }
        if self.wanted.crops {
            for detection in found {
                let Some(part) = crop(&shot.frame, detection) else { continue };
                let name = self.fresh_crops.fresh(&format!("{}/{}", folder(&self.names, detection.class), stem.display()));
                let path = root.join("crops").join(name).with_added_extension("jpg");
                save(&path, &encode(&part.to_rgb(), &path).context(Exit::Failed, path.display())?)?;
            }
        }
        let drawn = self.wanted.images || self.wanted.frames && shot.film.is_some();
        if drawn { self.draw(&root, &stem, shot, found) } else { Ok(()) }
    }

    fn draw(&mut self, root: &Path, stem: &Path, shot: &Shot, found: &[Detection]) -> Result<(), Failure> {
        let mut image = shot.frame.to_rgb();
        let boxes: Vec<GridBox> = found.iter().map(|d| GridBox { xyxy: d.xyxy, class: d.class, score: Some(d.score) }).collect();
        let name = Path::new(&shot.name);
        self.annotator.draw(&mut image, &boxes, &self.names, name).context(Exit::Failed, &shot.name)?;
        let Some((number, rate)) = &shot.film else {
            let jpeg = name.extension().is_some_and(|e| ["jpg", "jpeg"].iter().any(|known| e.eq_ignore_ascii_case(known)));
            let path = root.join(stem).with_added_extension(if jpeg { "jpg" } else { "png" });
            return save(&path, &encode(&image, &path).context(Exit::Failed, path.display())?);
        };
        let frames = self.wanted.frames;
        let film = self.film_of(root, shot, image.dimensions(), rate)?;
        if let Some(writer) = &mut film.writer {
            writer.write(&image).context(Exit::Failed, &shot.name)?;
        }
        if !frames {
            return Ok(());
        }
        let mut folder = film.stem.clone().into_os_string();
        folder.push("_frames");
        let path = Path::new(&folder).join(format!("{}.jpg", number + 1));
        save(&path, &encode(&image, &path).context(Exit::Failed, path.display())?)
    }

    /// The film that a frame belongs to; the one before it is ended.
    fn film_of(&mut self, root: &Path, shot: &Shot, size: (u32, u32), rate: &str) -> Result<&mut OpenFilm, Failure> {
        let open = match self.film.take() {
            Some(film) if film.input == shot.input => film,
            before => {
                ended(before)?;
                let stem = root.join(self.fresh.fresh(&shot.stem));
                let path = stem.with_added_extension("mp4");
                let create = || FilmWriter::create(&path, size, rate).context(Exit::Failed, path.display());
                OpenFilm { input: shot.input, stem, writer: self.wanted.images.then(create).transpose()? }
            }
        };
        Ok(self.film.insert(open))
    }

    /// The last words.
    pub(crate) fn end(mut self, seconds: f64) -> Result<(), Failure> {
        ended(self.film.take())?;
        if self.looked_at == 0 {
            return Err(Usage(format!("none of {} sources can be read", self.sources)).into());
        }
        let tell = if self.wanted.json { note } else { say };
        let network = self.milliseconds / self.looked_at as f64;
        tell(&format!("{} images in {seconds:.2} s: {network:.1} ms an image in the network", self.looked_at));
        if self.skipped > 0 {
            tell(&format!("{} skipped", self.skipped));
        }
        if let Some(folder) = &self.wanted.folder {
            let labels = if self.labels > 0 {
                format!(", {} label files in {}", self.labels, folder.join("labels").display())
            } else {
                String::new()
            };
            tell(&format!("Results saved to {}{labels}", folder.display()));
        }
        Ok(())
    }
}

/// The end of a film's file.
fn ended(film: Option<OpenFilm>) -> Result<(), Failure> {
    film.and_then(|film| film.writer).map_or(Ok(()), |writer| writer.finish().context(Exit::Failed, "ending a film"))
}

/// These are many small files that can be made again: they are not forced to the disk one by one.
fn save(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(path, bytes)).context(Exit::Failed, path.display())
}
