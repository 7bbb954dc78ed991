//! What `predict` leaves: lines, label files, crops, images and films with boxes drawn.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bellows_cli::{Context, Exit, Failure, Usage, note, reader_has_gone, say};
use bellows_yolo::boxes::Detection;
use bellows_yolo::plots::{Annotator, GridBox, Ink, encode};
use bellows_yolo::predict::output::{FreshNames, crop, folder, json_line, label_lines, sentence};
use bellows_yolo::predict::source::Input;
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

/// A film that is being looked at.
struct OpenFilm {
    /// Index of its source.
    input: usize,
    /// What its files are called, without a suffix.
    stem: PathBuf,
    /// From its first picture on, where films are written.
    writer: Option<FilmWriter>,
}

/// Writes results in the order they come.
pub(crate) struct Results {
    wanted: Wanted,
    sources: usize,
    /// What they are called, which is the name of nothing else.
    stems: HashSet<String>,
    names: Vec<String>,
    annotator: Annotator,
    /// Of images and films.
    fresh: FreshNames,
    /// Of label files, which frames of films have too.
    fresh_labels: FreshNames,
    fresh_crops: FreshNames,
    film: Option<OpenFilm>,
    looked_at: usize,
    skipped: usize,
    labels: usize,
    milliseconds: f64,
}

impl Results {
    pub(crate) fn new(wanted: Wanted, inputs: &[Input], names: Vec<String>) -> Self {
        let annotator = Annotator::new(wanted.ink);
        let (sources, stems) = (inputs.len(), inputs.iter().map(Input::stem).collect());
        let (fresh, fresh_labels, fresh_crops) = Default::default();
        let (looked_at, skipped, labels, milliseconds) = Default::default();
        Self {
            wanted,
            sources,
            stems,
            names,
            annotator,
            fresh,
            fresh_labels,
            fresh_crops,
            film: None,
            looked_at,
            skipped,
            labels,
            milliseconds,
        }
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

    /// Nobody would have anything of the next one: lines are all there is of it, and their reader has gone.
    pub(crate) fn are_unwanted(&self) -> bool {
        self.wanted.folder.is_none() && reader_has_gone()
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
        let (stem, named) = match &shot.film {
            // The film itself has the name; each of its frames is numbered.
            Some((number, _)) => {
                let stem = self.film_of(shot)?.stem.clone();
                let mut named = format!("{}_{}", stem.display(), number + 1);
                while self.stems.contains(&named) {
                    named.push_str("_2");
                }
                (stem, named)
            }
            None => {
                let stem = self.fresh.fresh(&shot.stem, &self.stems);
                let named = stem.display().to_string();
                (stem, named)
            }
        };
        let label = |name: &Path| root.join("labels").join(name).with_added_extension("txt");
        if self.wanted.labels && !found.is_empty() {
            let lines = label_lines(found, shot.frame.size(), self.wanted.confidences);
            let name = self.fresh_labels.fresh(&named, &self.stems);
            save(&label(&name), lines.as_bytes())?;
            self.labels += 1;
        } else if self.wanted.labels && !self.fresh_labels.contains(&named) {
            remove(&label(Path::new(&named)))?;
        }
        if self.wanted.crops {
            self.forget_crops(&root.join("crops"), &named)?;
            for detection in found {
                let Some(part) = crop(&shot.frame, detection) else { continue };
                let name = self.fresh_crops.fresh(&format!("{}/{named}", folder(&self.names, detection.class)), &self.stems);
                let path = root.join("crops").join(name).with_added_extension("jpg");
                save(&path, &encode(&part.to_rgb(), &path).context(Exit::Failed, path.display())?)?;
            }
        }
        let drawn = self.wanted.images || self.wanted.frames && shot.film.is_some();
        if drawn { self.draw(&root.join(stem), shot, found) } else { Ok(()) }
    }

    /// Removes what a run before this one has cropped of what is called `named`, in the folder of any class: `NAME.jpg`, `NAME_2.jpg` and so on.
    fn forget_crops(&self, crops: &Path, named: &str) -> Result<(), Failure> {
        let classes = match std::fs::read_dir(crops) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            classes => classes.context(Exit::Failed, crops.display())?,
        };
        for class in classes {
            let class = class.context(Exit::Failed, crops.display())?;
            let folder = class.file_name().to_string_lossy().into_owned();
            for name in std::iter::once(named.to_owned()).chain((2_u64..).map(|number| format!("{named}_{number}"))) {
                // Another one's own name is its own to clear.
                if name != named && self.stems.contains(&name) {
                    continue;
                }
                let path = class.path().join(&name).with_added_extension("jpg");
                if !path.is_file() {
                    break;
                }
                if !self.fresh_crops.contains(&format!("{folder}/{name}")) {
                    remove(&path)?;
                }
            }
        }
        Ok(())
    }

    /// Draws what goes to `stem` with a suffix.
    fn draw(&mut self, stem: &Path, shot: &Shot, found: &[Detection]) -> Result<(), Failure> {
        let mut image = shot.frame.to_rgb();
        let boxes: Vec<GridBox> = found.iter().map(|d| GridBox { xyxy: d.xyxy, class: d.class, score: Some(d.score) }).collect();
        let name = Path::new(&shot.name);
        self.annotator.draw(&mut image, &boxes, &self.names, name).context(Exit::Failed, &shot.name)?;
        let Some((number, rate)) = &shot.film else {
            let jpeg = name.extension().is_some_and(|e| ["jpg", "jpeg"].iter().any(|known| e.eq_ignore_ascii_case(known)));
            let path = stem.with_added_extension(if jpeg { "jpg" } else { "png" });
            return save(&path, &encode(&image, &path).context(Exit::Failed, path.display())?);
        };
        if self.wanted.images {
            let film = self.film_of(shot)?;
            if film.writer.is_none() {
                let path = stem.with_added_extension("mp4");
                film.writer = Some(FilmWriter::create(&path, image.dimensions(), rate).context(Exit::Failed, path.display())?);
            }
            if let Some(writer) = &mut film.writer {
                writer.write(&image).context(Exit::Failed, &shot.name)?;
            }
        }
        if !self.wanted.frames {
            return Ok(());
        }
        let mut folder = stem.as_os_str().to_owned();
        folder.push("_frames");
        let path = Path::new(&folder).join(format!("{}.jpg", number + 1));
        save(&path, &encode(&image, &path).context(Exit::Failed, path.display())?)
    }

    /// The film that a frame belongs to, which has a name of its own from its first one on; the film before it is ended.
    fn film_of(&mut self, shot: &Shot) -> Result<&mut OpenFilm, Failure> {
        let open = match self.film.take() {
            Some(film) if film.input == shot.input => film,
            before => {
                ended(before)?;
                OpenFilm { input: shot.input, stem: self.fresh.fresh(&shot.stem, &self.stems), writer: None }
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

/// What a run before this one has found in the same folder is not to be taken for what this one has.
fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context(Exit::Failed, path.display()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bellows_yolo::data::Frame;

    use super::*;

    #[test]
    fn what_has_one_name_keeps_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = || Wanted {
            folder: Some(dir.path().into()),
            images: false,
            frames: false,
            labels: true,
            confidences: false,
            crops: true,
            json: true,
            ink: Ink::default(),
        };
        let of = |inputs: &[Input]| Results::new(wanted(), inputs, vec!["car".into()]);
        let image = |path: &str| Input::Image(path.into());
        let film = |path: &str| Input::Film(path.into());
        let mut results = of(&[film("a/clip.mp4"), film("b/clip.mp4"), image("clip_1.jpg")]);
        let found = |class| vec![Detection { xyxy: [1.0, 1.0, 9.0, 9.0], score: 0.5, class }];
        let shot = |input, stem: &str, film: Option<u64>| {
            let (stem, film) = (stem.to_string(), film.map(|number| (number, "25".to_string())));
            Box::new(Shot { input, name: stem.clone(), stem, film, frame: Frame::filled(1, 16, 16, 90), stacked: None })
        };
        // Two films of one name, then the image that is called as the first frame of the first.
        let shots = [(0, "clip", Some(0)), (0, "clip", Some(1)), (1, "clip", Some(0)), (2, "clip_1", None)];
        for (class, (input, stem, film)) in (0..).zip(shots) {
            results.take(Seen::Shot(shot(input, stem, film), found(class), 1.0)).unwrap();
        }
        results.end(1.0).unwrap();
        for (class, name) in ["clip_1_2", "clip_2", "clip_2_1", "clip_1"].iter().enumerate() {
            let lines = std::fs::read_to_string(dir.path().join(format!("labels/{name}.txt"))).unwrap();
            assert!(lines.starts_with(&format!("{class} ")), "{name}: {lines}");
        }
        for crop in ["car/clip_1_2", "class_1/clip_2", "class_2/clip_2_1", "class_3/clip_1"] {
            assert!(dir.path().join(format!("crops/{crop}.jpg")).is_file(), "{crop}");
        }
        for crop in ["bus/clip_1_2", "bus/clip_1_2_2", "bus/other"] {
            save(&dir.path().join(format!("crops/{crop}.jpg")), b"of the run before").unwrap();
        }
        // The next run in this folder finds nothing in the two images, of which one is called as a frame that it has found something in.
        let mut again = of(&[image("clip_1_2.jpg"), film("clip.mp4"), image("clip.jpg")]);
        for (found, (input, stem, film)) in
            [(Vec::new(), (0, "clip_1_2", None)), (found(0), (1, "clip", Some(1))), (Vec::new(), (2, "clip", None))]
        {
            again.take(Seen::Shot(shot(input, stem, film), found, 1.0)).unwrap();
        }
        again.end(1.0).unwrap();
        let is_left = |name: &str| dir.path().join(format!("labels/{name}.txt")).is_file();
        assert_eq!(["clip_1", "clip_2", "clip_1_2"].map(is_left), [true, true, false]);
        let is_left = |name: &str| dir.path().join(format!("crops/{name}.jpg")).is_file();
        // What it has found, and what it has not looked at.
        assert_eq!(["car/clip_2", "class_2/clip_2_1", "class_3/clip_1", "bus/other"].map(is_left), [true; 4]);
        assert_eq!(["car/clip_1_2", "class_1/clip_2", "bus/clip_1_2", "bus/clip_1_2_2"].map(is_left), [false; 4]);
        // A number is none that another image is called by.
        let mut numbered = of(&[image("a/f_1.jpg"), image("b/f_1.jpg"), image("b/f_1_2.jpg")]);
        for (class, (input, stem)) in (0..).zip([(0, "f_1"), (1, "f_1"), (2, "f_1_2")]) {
            numbered.take(Seen::Shot(shot(input, stem, None), found(class), 1.0)).unwrap();
        }
        for (class, name) in ["f_1", "f_1_3", "f_1_2"].iter().enumerate() {
            let lines = std::fs::read_to_string(dir.path().join(format!("labels/{name}.txt"))).unwrap();
            assert!(lines.starts_with(&format!("{class} ")), "{name}: {lines}");
        }
    }
}
