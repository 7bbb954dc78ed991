//! What `predict` leaves: lines, label files, crops, images and films with boxes drawn.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bellows_cli::{Context, Exit, Failure, Usage, note, reader_has_gone, say};
use bellows_yolo::boxes::Detection;
use bellows_yolo::plots::{Annotator, GridBox, Ink, encode};
use bellows_yolo::predict::output::{FreshNames, crop, crop_of, folders, json_line, label_lines, name, sentence, signed};
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
    /// Those of the classes' crops.
    folders: Vec<String>,
    annotator: Annotator,
    /// Of images and films.
    fresh: FreshNames,
    /// Of label files, which frames of films have too.
    fresh_labels: FreshNames,
    fresh_crops: FreshNames,
    /// Crops of runs before this one, by the name of what they are of.
    crops_before: HashMap<String, Vec<PathBuf>>,
    film: Option<OpenFilm>,
    looked_at: usize,
    skipped: usize,
    labels: usize,
    milliseconds: f64,
}

impl Results {
    /// Looks at the crops that are in the folder.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub(crate) fn new(wanted: Wanted, inputs: &[Input], names: Vec<String>) -> Result<Self, Failure> {
        let annotator = Annotator::new(wanted.ink);
        let (sources, stems) = (inputs.len(), inputs.iter().map(Input::stem).collect());
        let (fresh, fresh_labels, fresh_crops) = Default::default();
        let (looked_at, skipped, labels, milliseconds) = Default::default();
        let crops = wanted.folder.as_ref().filter(|_| wanted.crops).map(|folder| crops_in(&folder.join("crops")));
        Ok(Self {
            wanted,
            sources,
            stems,
            folders: folders(&names),
            names,
            annotator,
            fresh,
            fresh_labels,
            fresh_crops,
            crops_before: crops.transpose()?.unwrap_or_default(),
            film: None,
            looked_at,
            skipped,
            labels,
            milliseconds,
        })
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
            for path in self.crops_before.remove(&named).unwrap_or_default() {
                remove(&path)?;
            }
            for detection in found {
                let Some(part) = crop(&shot.frame, detection) else { continue };
                let stem = format!("{}/{named}", name(&self.folders, detection.class));
                let path = loop {
                    let name = self.fresh_crops.fresh(&stem, &self.stems);
                    let path = root.join("crops").join(name).with_added_extension("jpg");
                    // What is still there is another one's.
                    if path.symlink_metadata().is_err() {
                        break path;
                    }
                };
                let jpeg = encode(&part.to_rgb(), &path).context(Exit::Failed, path.display())?;
                save(&path, &signed(&jpeg, &named))?;
            }
        }
        let drawn = self.wanted.images || self.wanted.frames && shot.film.is_some();
        if drawn { self.draw(&root.join(stem), shot, found) } else { Ok(()) }
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

/// The crops in the folders of classes, by the name of what they are of; nobody else's file is one.
fn crops_in(folder: &Path) -> Result<HashMap<String, Vec<PathBuf>>, Failure> {
    let mut crops: HashMap<String, Vec<PathBuf>> = HashMap::new();
    let classes = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(crops),
        classes => classes.context(Exit::Failed, folder.display())?,
    };
    for class in classes {
        let class = class.context(Exit::Failed, folder.display())?.path();
        if !class.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&class).context(Exit::Failed, class.display())? {
            let path = file.context(Exit::Failed, class.display())?.path();
            if let Some(of) = crop_of(&path) {
                crops.entry(of).or_default().push(path);
            }
        }
    }
    Ok(crops)
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

    /// Labels and crops of `inputs` go to `dir`.
    fn results(dir: &Path, inputs: &[Input]) -> Results {
        let wanted = Wanted {
            folder: Some(dir.into()),
            images: false,
            frames: false,
            labels: true,
            confidences: false,
            crops: true,
            json: true,
            ink: Ink::default(),
        };
        Results::new(wanted, inputs, vec!["car".into()]).unwrap()
    }

    fn image(path: &str) -> Input {
        Input::Image(path.into())
    }

    fn found(class: u32) -> Vec<Detection> {
        vec![Detection { xyxy: [1.0, 1.0, 9.0, 9.0], score: 0.5, class }]
    }

    fn shot(input: usize, stem: &str, film: Option<u64>) -> Box<Shot> {
        let (stem, film) = (stem.to_string(), film.map(|number| (number, "25".to_string())));
        Box::new(Shot { input, name: stem.clone(), stem, film, frame: Frame::filled(1, 16, 16, 90), stacked: None })
    }

    #[test]
    fn what_has_one_name_keeps_its_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let of = |inputs: &[Input]| results(dir.path(), inputs);
        let film = |path: &str| Input::Film(path.into());
        let mut results = of(&[film("a/clip.mp4"), film("b/clip.mp4"), image("clip_1.jpg")]);
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
        for (crop, of) in [("bus/clip_1_2", "clip_1_2"), ("bus/clip_1_2_2", "clip_1_2"), ("bus/other", "other")] {
            save(&dir.path().join(format!("crops/{crop}.jpg")), &signed(b"of the run before", of)).unwrap();
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

    #[test]
    fn classes_with_names_longer_than_a_folders_have_crops_too() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|end| "𠀀".repeat(80) + end);
        let mut results = Results { folders: folders(&names), ..results(dir.path(), &[image("a.jpg")]) };
        results.take(Seen::Shot(shot(0, "a", None), [found(0), found(1)].concat(), 1.0)).unwrap();
        let classes = std::fs::read_dir(dir.path().join("crops")).unwrap();
        assert!(classes.map(|class| class.unwrap().path().join("a.jpg").is_file()).eq([true; 2]));
    }

    #[test]
    fn crops_replace_those_of_the_same_image_only() {
        let dir = tempfile::tempdir().unwrap();
        let cars = dir.path().join("crops/car");
        let look = |name: &str, crops: usize| {
            let mut results = results(dir.path(), &[image(&format!("{name}.jpg"))]);
            results.take(Seen::Shot(shot(0, name, None), found(0).repeat(crops), 1.0)).unwrap();
            results.end(1.0).unwrap();
            let mut there: Vec<_> = std::fs::read_dir(&cars).unwrap().map(|entry| entry.unwrap().path()).collect();
            there.sort();
            let told = |path: PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), crop_of(&path));
            there.into_iter().map(told).collect::<Vec<_>>()
        };
        let of = |file: &str, of: &str| (file.to_owned(), Some(of.to_owned()));
        assert_eq!(look("g_2", 1), [of("g_2", "g_2")]);
        save(&cars.join("g_3.jpg"), b"somebody's").unwrap();
        let theirs = ("g_3".to_owned(), None);
        let both = [of("g", "g"), of("g_2", "g_2"), theirs.clone(), of("g_4", "g")];
        assert_eq!(look("g", 2), both);
        assert_eq!(look("g", 2), both);
        assert_eq!(image::open(cars.join("g_4.jpg")).unwrap().width(), 14);
        assert_eq!(look("g_2", 0), [of("g", "g"), theirs.clone(), of("g_4", "g")]);
        assert_eq!(look("g", 1), [of("g", "g"), theirs.clone()]);
        assert_eq!(look("g", 0), [theirs]);
    }
}
