//! What a scan keeps, what it refuses, and when its memory counts.

use super::*;
use crate::data::Source;
use crate::data::image::tests::jpeg;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

struct Set {
    dir: TempDir,
    config: DataConfig,
    options: ScanOptions,
}

impl Set {
    /// `count` images of 32x24, each with one box of class `i % 2`.
    fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = DataConfig::parse("train: images\nval: images\nnames: [a, b]\n", &dir.path().join("set/data.yaml")).unwrap();
        let options = ScanOptions { cache_dir: Some(dir.path().join("cache")), ..ScanOptions::default() };
        let set = Self { dir, config, options };
        for folder in ["images", "labels"] {
            std::fs::create_dir_all(set.file(folder)).unwrap();
        }
        let picture = jpeg(32, 24);
        for i in 0..count {
            set.write(&format!("images/{i:03}.jpg"), &picture);
            set.write(&format!("labels/{i:03}.txt"), format!("{} 0.5 0.5 0.2 0.{}\n", i % 2, 1 + i % 9).as_bytes());
        }
        set
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("set").join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).unwrap();
    }

    fn scan(&self) -> Result<Scan, DataError> {
        scan(&self.config, Split::Train, &self.options, &|_, _| {})
    }

    /// A scan that ignores memory: what the truth is.
    fn fresh(&self) -> Scan {
        scan(&self.config, Split::Train, &ScanOptions { cache_dir: None, ..self.options.clone() }, &|_, _| {}).unwrap()
    }

    fn cache_file(&self) -> PathBuf {
        std::fs::read_dir(self.dir.path().join("cache")).unwrap().next().unwrap().unwrap().path()
    }
}

#[test]
fn counts_and_reasons() {
    let mut set = Set::new(10);
    std::fs::remove_file(set.file("labels/000.txt")).unwrap();
    set.write("labels/001.txt", b"\n");
    set.write("labels/002.txt", b"0 0 0 0 0\n");
    set.write("labels/003.txt", b"1 .5 .5 .1 .1\n1 .5 .5 .1 .1\n");
    set.write("labels/004.txt", b"0 .5 .5 .1 .1\n2 .5 .5 .1 .1\n");
    set.write("images/005.jpg", &jpeg(32, 24)[..300]);
    set.write("images/006.jpg", b"no image at all");
    set.write("images/007.jpg", &jpeg(9, 30));
    let message = set.scan().unwrap_err().to_string();
    for part in [
        "4 of 10",
        "004.txt:2: class 2 is not one of the 2 classes (0..1)",
        "005.jpg: truncated",
        "006.jpg: not an image",
        "007.jpg: 9x30 pixels",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    set.options.allow_bad = true;
    let scan = set.scan().unwrap();
    assert_eq!((scan.len(), scan.found, scan.missing, scan.empty, scan.bad.len(), scan.duplicates, scan.zero_size), (6, 3, 1, 2, 4, 1, 1));
    assert_eq!(scan.labels(3), [Label { class: 1, xywh: [0.5, 0.5, 0.1, 0.1] }]);
    assert!(scan.path(3).ends_with("images/003.jpg") && scan.images[3].gray && scan.images[3].size == Size { width: 32, height: 24 });
    assert_eq!(scan.class_counts(2), [1, 2]);
    assert_eq!(std::fs::read(set.file("images/005.jpg")).unwrap().len(), 300, "nothing of the user's is repaired");
}

#[test]
fn one_percent_is_the_limit() {
    let set = Set::new(200);
    set.write("labels/000.txt", b"9 .5 .5 .1 .1\n");
    set.write("labels/001.txt", b"x\n");
    assert_eq!(set.scan().unwrap().bad.len(), 2);
    set.write("labels/002.txt", b"x\n");
    assert!(matches!(set.scan(), Err(DataError::TooManyBad { bad: 3, total: 200, .. })));
}

#[test]
fn selections() {
    let mut set = Set::new(10);
    set.options.fraction = 0.25;
    let part = set.scan().unwrap();
    let names: Vec<_> = (0..part.len()).map(|i| part.path(i).file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["000", "005"], "round half to even, spread over the sorted list");
    set.options.fraction = 0.01;
    assert_eq!(set.scan().unwrap().len(), 1);
    set.options.fraction = 0.7;
    assert_eq!(set.scan().unwrap().len(), 7);
    set.options.fraction = 1.0;
    set.options.classes = Some(vec![1]);
    let scan = set.scan().unwrap();
    assert_eq!((scan.len(), scan.all_labels().len()), (10, 5));
    set.options = ScanOptions { classes: None, single_cls: true, ..set.options };
    set.write("labels/000.txt", b"7 .5 .5 .1 .1\n");
    let scan = set.scan().unwrap();
    assert_eq!(scan.class_counts(1), [10]);
    set.options.fraction = 1.5;
    assert!(set.scan().is_err());
}

/// Sets a file's modification time without touching its content.
fn set_time(path: &Path, time: SystemTime) {
    std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn what_is_remembered_is_used_and_only_while_it_holds() {
    let set = Set::new(20);
    let first = set.scan().unwrap();
    assert_eq!(first, set.fresh());
    assert_eq!(first, set.scan().unwrap());
    let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().count();
    assert_eq!(
        (entries(&set.file("images")), entries(&set.file("labels")), entries(&set.file("."))),
        (20, 20, 2),
        "nothing is written into the dataset"
    );

    // Size changes, time changes, files come and go: each is seen.
    set.write("labels/004.txt", b"1 .25 .25 .1 .1\n0 .5 .5 .1 .1\n");
    assert_eq!(set.scan().unwrap().labels(4).len(), 2);
    set.write("labels/005.txt", b"0 0.5 0.5 0.2 0.9\n");
    set_time(&set.file("labels/005.txt"), SystemTime::now() + Duration::from_secs(5));
    assert_eq!(set.scan().unwrap().labels(5)[0], Label { class: 0, xywh: [0.5, 0.5, 0.2, 0.9] });
    std::fs::remove_file(set.file("labels/006.txt")).unwrap();
    std::fs::remove_file(set.file("images/007.jpg")).unwrap();
    set.write("images/020.jpg", &jpeg(40, 24));
    assert_eq!(set.scan().unwrap(), set.fresh());
}

#[test]
fn a_record_is_really_reused() {
    let set = Set::new(100);
    set.scan().unwrap();
    // Not one of the 64 sampled files (every second): same size and time, other content. Only a reused record still shows the old class.
    let file = set.file("labels/013.txt");
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    set.write("labels/013.txt", b"0 0.5 0.5 0.2 0.5\n");
    set_time(&file, time);
    assert_eq!(set.scan().unwrap().labels(13)[0].class, 1);
}

#[test]
fn changed_content_under_an_old_stamp_is_caught_by_the_samples() {
    let set = Set::new(20);
    set.scan().unwrap();
    let file = set.file("labels/013.txt");
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    set.write("labels/013.txt", b"0 0.5 0.5 0.2 0.5\n");
    set_time(&file, time);
    assert_eq!(set.scan().unwrap().labels(13)[0].class, 0);
    assert_eq!(set.scan().unwrap(), set.fresh());
}

/// A folder in the place of a label file, which no program can read, whoever runs it.
#[test]
fn a_file_that_could_not_be_read_is_looked_at_again() {
    let mut set = Set::new(100);
    set.options.allow_bad = true;
    // Not one of the sampled files.
    let file = set.file("labels/013.txt");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let before = std::fs::metadata(&file).unwrap();
    assert_eq!(set.scan().unwrap().bad.len(), 1);
    std::fs::remove_dir(&file).unwrap();
    let mut label = b"0 .5 .5 .1 .1\n".to_vec();
    // As long as the folder, on file systems where that has room for a box.
    label.resize(label.len().max(before.len() as usize), b'\n');
    std::fs::write(&file, label).unwrap();
    set_time(&file, before.modified().unwrap());
    assert!(set.scan().unwrap().bad.is_empty());
}

#[test]
fn a_damaged_memory_costs_a_scan_and_nothing_else() {
    let set = Set::new(12);
    let truth = set.scan().unwrap();
    let whole = std::fs::read(set.cache_file()).unwrap();
    for i in (0..whole.len()).step_by(11) {
        let mut broken = whole.clone();
        broken[i] ^= 0x10;
        std::fs::write(set.cache_file(), &broken).unwrap();
        assert_eq!(set.scan().unwrap(), truth, "byte {i}");
        assert_eq!(std::fs::read(set.cache_file()).unwrap(), whole, "it is written anew");
    }
    for cut in [0, 5, 20, whole.len() / 2, whole.len() - 1] {
        std::fs::write(set.cache_file(), &whole[..cut]).unwrap();
        assert_eq!(set.scan().unwrap(), truth, "cut at {cut}");
    }
}

#[test]
fn other_classes_are_checked_again() {
    let mut set = Set::new(10);
    set.scan().unwrap();
    set.config.names = vec!["a".into()];
    assert!(matches!(set.scan(), Err(DataError::TooManyBad { bad: 5, .. })));
    set.config.names = ["a", "b", "c"].map(String::from).to_vec();
    assert_eq!(set.scan().unwrap().len(), 10);
}

/// It would make its image one without objects.
#[cfg(target_os = "linux")]
#[test]
fn a_label_file_in_capitals_is_not_passed_over() {
    let mut set = Set::new(3);
    std::fs::rename(set.file("labels/001.txt"), set.file("labels/001.TXT")).unwrap();
    set.options.allow_bad = true;
    let scanned = set.scan().unwrap();
    let bad: Vec<String> = scanned.bad.iter().map(BadFile::to_string).collect();
    assert!(bad.len() == 1 && bad[0].ends_with("001.TXT: labels are read from files that end in `.txt`: rename it"), "{bad:?}");
    assert_eq!((scanned.missing, scanned.found), (0, 2));
    std::fs::rename(set.file("labels/001.TXT"), set.file("labels/001.txt")).unwrap();
    assert_eq!(set.scan().unwrap().found, 3);
}

#[cfg(unix)]
#[test]
fn a_path_of_windows_is_known_as_one() {
    let mut set = Set::new(2);
    set.config.train = vec!["images\\train".into()];
    let error = set.scan().unwrap_err().to_string();
    assert!(error.contains("no such images") && error.ends_with("; here `/` divides folders, and not `\\`"), "{error}");
    set.write("list.txt", b"images/000.jpg\nimages\\001.jpg\nimages/002.jpg\n");
    set.config.train = vec!["list.txt".into()];
    set.options.allow_bad = true;
    let bad: Vec<String> = set.scan().unwrap().bad.iter().map(BadFile::to_string).collect();
    assert_eq!(bad.iter().map(|told| told.contains("here `/` divides folders")).collect::<Vec<_>>(), [false, true], "{bad:?}");
}

#[test]
fn a_single_image_is_held_out_and_nothing_is_left() {
    let mut set = Set::new(1);
    set.config.hold_out = true;
    assert_eq!(scan(&set.config, Split::Val, &set.options, &|_, _| {}).unwrap().len(), 1);
    let error = set.scan().unwrap_err().to_string();
    assert!(error.contains("all held out for validation: name a `val`"), "{error}");
    std::fs::remove_file(set.file("images/000.jpg")).unwrap();
    let error = set.scan().unwrap_err().to_string();
    assert!(error.contains("`train` names no image file"), "{error}");
}

#[test]
fn progress_reaches_the_end() {
    let set = Set::new(9);
    let calls = AtomicU64::new(0);
    scan(&set.config, Split::Val, &set.options, &|_, total| {
        assert_eq!(total, 9);
        calls.fetch_add(1, Ordering::Relaxed);
    })
    .unwrap();
    assert_eq!(calls.into_inner(), 9);
}

#[test]
fn an_image_of_a_coco_file_is_looked_at_again_once_it_has_changed() {
    let dir = tempfile::tempdir().unwrap();
    let put = |i: usize, width: u32, height: u32| {
        // All are equally long: decoders stop at the end marker.
        let mut bytes = jpeg(width, height);
        bytes.resize(16_384, 0);
        std::fs::write(dir.path().join(format!("{i:02}.jpg")), bytes).unwrap();
    };
    // Of so many every second one is among the samples of the memory.
    let listed: Vec<String> = (0..65).map(|i| format!("{{\"id\":{i},\"file_name\":\"{i:02}.jpg\"}}")).collect();
    std::fs::write(dir.path().join("a.json"), format!("{{\"images\":[{}]}}", listed.join(","))).unwrap();
    (0..65).for_each(|i| put(i, 32, 24));
    let config = DataConfig::parse("train: a.json\nval: a.json\nnames: [a]\n", &dir.path().join("data.yaml")).unwrap();
    let options = ScanOptions { cache_dir: Some(dir.path().join("cache")), ..ScanOptions::default() };
    let sizes = || scan(&config, Split::Train, &options, &|_, _| {}).unwrap().images.iter().map(|image| image.size).collect::<Vec<_>>();
    let mut expected = vec![Size { width: 32, height: 24 }; 65];
    assert_eq!(sizes(), expected);
    put(1, 64, 48);
    set_time(&dir.path().join("01.jpg"), SystemTime::now() + Duration::from_secs(9));
    expected[1] = Size { width: 64, height: 48 };
    assert_eq!(sizes(), expected);
    assert_eq!(sizes(), expected);
}

/// Every way to images behind links, of which the names lead to labels.
#[cfg(unix)]
#[test]
fn labels_are_found_by_the_names_of_images_behind_links() {
    use std::os::unix::fs::symlink;
    let mut set = Set::new(20);
    let away = set.dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    for (name, target) in [("images", "frames"), ("labels", "boxes")] {
        std::fs::rename(set.file(name), away.join(target)).unwrap();
        symlink(away.join(target), set.file(name)).unwrap();
    }
    let list: String = (0..20).map(|i| format!("images/{i:03}.jpg\n")).collect();
    set.write("list.txt", list.as_bytes());
    for source in ["images", "list.txt"] {
        set.config.train = vec![source.into()];
        set.config.allow_outside = vec![away.join("frames")];
        let refused = set.scan().unwrap_err().to_string();
        assert!(refused.contains("outside the dataset root") && refused.contains("away/boxes"), "{source}: {refused}");
        set.config.allow_outside = vec![away.clone()];
        let first = set.scan().unwrap();
        assert_eq!((first.found, first.missing, first.all_labels().len()), (20, 0, 20), "{source}");
        assert_eq!(set.scan().unwrap(), first);

        // What is remembered holds while these label files do.
        let label = away.join("boxes/004.txt");
        let (before, time) = (std::fs::read(&label).unwrap(), std::fs::metadata(&label).unwrap().modified().unwrap());
        std::fs::write(&label, "1 .25 .25 .1 .1\n0 .5 .5 .1 .1\n").unwrap();
        assert_eq!(set.scan().unwrap().labels(4).len(), 2);
        std::fs::write(&label, &before).unwrap();
        set_time(&label, time);
        assert_eq!(set.scan().unwrap(), first);
        let other = [&b"1"[..], &before[1..]].concat();
        std::fs::write(&label, other).unwrap();
        set_time(&label, time);
        assert_eq!(set.scan().unwrap().labels(4)[0].class, 1, "the samples tell");
        std::fs::write(&label, &before).unwrap();
    }
    // Where the name leads to none, the image's real place may.
    std::fs::rename(away.join("boxes/007.txt"), away.join("frames/007.txt")).unwrap();
    assert_eq!(set.scan().unwrap().found, 20);
    // One of them that leads elsewhere is refused, as images are.
    std::fs::rename(away.join("boxes/008.txt"), set.dir.path().join("008.txt")).unwrap();
    symlink(set.dir.path().join("008.txt"), away.join("boxes/008.txt")).unwrap();
    assert!(matches!(set.scan(), Err(DataError::Outside { .. })));
}

#[cfg(unix)]
#[test]
fn labels_are_found_by_the_names_of_single_links_and_of_sources_that_are_links() {
    use std::os::unix::fs::symlink;
    let mut set = Set::new(1);
    for folder in ["raw", "labels/night"] {
        std::fs::create_dir(set.file(folder)).unwrap();
    }
    set.write("raw/0001.jpg", &jpeg(32, 24));
    symlink("../raw/0001.jpg", set.file("images/link.jpg")).unwrap();
    symlink("../raw", set.file("images/night")).unwrap();
    set.write("list.txt", b"images/link.jpg\nimages/000.jpg\n");
    let found = |set: &mut Set, source: &str| {
        set.config.train = vec![source.into()];
        let scanned = set.scan().unwrap();
        (scanned.found, scanned.missing)
    };
    assert_eq!((found(&mut set, "list.txt"), found(&mut set, "images/night")), ((1, 1), (0, 1)));
    set.write("labels/link.txt", b"0 .5 .5 .1 .1\n");
    set.write("labels/night/0001.txt", b"1 .5 .5 .1 .1\n");
    assert_eq!((found(&mut set, "list.txt"), found(&mut set, "images/night")), ((2, 0), (1, 0)));
    std::fs::rename(set.file("labels/link.txt"), set.file("raw/0001.txt")).unwrap();
    assert_eq!(found(&mut set, "list.txt"), (2, 0));
    // By two names, of which one leads to labels, it is one image that has them.
    std::fs::remove_file(set.file("raw/0001.txt")).unwrap();
    set.config.train = ["raw", "images/night"].map(Source::from).to_vec();
    let both = set.scan().unwrap();
    assert_eq!((both.len(), both.found), (1, 1));
    symlink("../raw", set.file("images/day")).unwrap();
    std::fs::create_dir(set.file("labels/day")).unwrap();
    std::fs::rename(set.file("labels/night/0001.txt"), set.file("labels/day/0001.txt")).unwrap();
    set.config.train = ["images/day", "images/night"].map(Source::from).to_vec();
    let both = set.scan().unwrap();
    assert_eq!((both.len(), both.found), (1, 1));
}

/// Beside real images, too.
#[cfg(unix)]
#[test]
fn a_label_folder_that_leads_out_of_the_set_is_refused() {
    let mut set = Set::new(4);
    let away = set.dir.path().join("away");
    std::fs::rename(set.file("labels"), &away).unwrap();
    std::os::unix::fs::symlink(&away, set.file("labels")).unwrap();
    let refused = set.scan().unwrap_err().to_string();
    assert!(refused.contains("outside the dataset root") && refused.contains("away"), "{refused}");
    set.config.allow_outside = vec![away];
    assert_eq!(set.scan().unwrap().found, 4);
}

/// By itself, in a folder that is real.
#[cfg(unix)]
#[test]
fn a_label_file_that_is_a_link_leads_where_images_may() {
    use std::os::unix::fs::symlink;
    let mut set = Set::new(4);
    let away = set.dir.path().join("away");
    std::fs::create_dir(&away).unwrap();
    std::fs::rename(set.file("labels/001.txt"), set.file("boxes.txt")).unwrap();
    symlink("../boxes.txt", set.file("labels/001.txt")).unwrap();
    std::fs::remove_file(set.file("labels/003.txt")).unwrap();
    symlink("gone", set.file("labels/003.txt")).unwrap();
    let scanned = set.scan().unwrap();
    assert_eq!((scanned.found, scanned.missing, scanned.labels(1).len()), (3, 1, 1));
    std::fs::rename(set.file("labels/002.txt"), away.join("002.txt")).unwrap();
    symlink(away.join("002.txt"), set.file("labels/002.txt")).unwrap();
    set.write("list.txt", b"images/000.jpg\nimages/002.jpg\n");
    for (source, found) in [("images", 3), ("list.txt", 2)] {
        set.config.train = vec![source.into()];
        set.config.allow_outside = Vec::new();
        let refused = set.scan().unwrap_err().to_string();
        assert!(refused.contains("outside the dataset root") && refused.contains("away/002.txt"), "{source}: {refused}");
        set.config.allow_outside = vec![away.clone()];
        assert_eq!(set.scan().unwrap().found, found, "{source}");
    }
}

/// Whoever opens a pipe for reading waits for one who writes.
#[cfg(target_os = "linux")]
#[test]
fn pipes_are_not_waited_for() {
    use rustix::fs::{CWD, Mode, mkfifoat};
    let pipe = |path: &Path| {
        std::fs::remove_file(path).unwrap();
        mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).unwrap();
    };
    let (told, answers) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut set = Set::new(4);
        set.options.allow_bad = true;
        for name in ["images/001.jpg", "labels/002.txt"] {
            pipe(&set.file(name));
        }
        let bad = || set.scan().unwrap().bad.iter().map(BadFile::to_string).collect::<Vec<_>>().join("\n");
        told.send(bad()).unwrap();
        pipe(&set.cache_file());
        told.send(bad()).unwrap();
        set.write("list.txt", b"");
        pipe(&set.file("list.txt"));
        set.config.train = vec!["list.txt".into()];
        told.send(set.scan().unwrap_err().to_string()).unwrap();
    });
    let told = [(); 3].map(|()| answers.recv_timeout(Duration::from_secs(20)).unwrap());
    for bad in &told[..2] {
        let lines: Vec<&str> = bad.lines().collect();
        assert!(lines.len() == 2 && lines.iter().all(|line| line.ends_with(": not a regular file")), "{bad}");
        assert!(lines[0].contains("images/001.jpg") && lines[1].contains("labels/002.txt"), "{bad}");
    }
    assert!(told[2].ends_with("list.txt is not a regular file"), "{}", told[2]);
}

/// In a folder and in a list; what is not called like an image is nobody's.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_one_bad_image() {
    let mut set = Set::new(3);
    set.options.allow_bad = true;
    for name in ["003.jpg", "notes"] {
        std::os::unix::fs::symlink("gone", set.file("images").join(name)).unwrap();
    }
    set.write("list.txt", b"images/000.jpg\nimages/001.jpg\nimages/002.jpg\nimages/003.jpg\n");
    for source in ["images", "list.txt"] {
        set.config.train = vec![source.into()];
        let scanned = set.scan().unwrap();
        assert_eq!((scanned.len(), scanned.bad.len()), (3, 1), "{source}");
        assert!(scanned.bad[0].path.ends_with("images/003.jpg"), "{:?}", scanned.bad);
    }
    set.options.allow_bad = false;
    assert!(matches!(set.scan(), Err(DataError::TooManyBad { bad: 1, total: 4, .. })));
}

#[test]
fn boxes_of_one_image_in_two_coco_files_are_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("1.jpg"), jpeg(32, 24)).unwrap();
    let put = |name: &str, boxes: &[(u32, u32)]| {
        let note = |(category, x): &(u32, u32)| format!("{{\"image_id\":1,\"category_id\":{category},\"bbox\":[{x},1,8,9]}}");
        let notes = boxes.iter().map(note).collect::<Vec<_>>().join(",");
        let categories = "[{\"id\":1,\"name\":\"a\"},{\"id\":2,\"name\":\"b\"},{\"id\":3,\"name\":\"other\"}]";
        let images = "[{\"id\":1,\"file_name\":\"1.jpg\"}]";
        let text = format!("{{\"images\":{images},\"categories\":{categories},\"annotations\":[{notes}]}}");
        std::fs::write(dir.path().join(name), text).unwrap();
    };
    let config = DataConfig::parse("train: [a.json, b.json]\nval: a.json\nnames: [a, b]\n", &dir.path().join("data.yaml")).unwrap();
    let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
    let look = || scan(&config, Split::Train, &options, &|_, _| {});
    put("a.json", &[(1, 1), (1, 2)]);
    for lost in [&[(2, 1)][..], &[(1, 1), (1, 3)]] {
        put("b.json", lost);
        let refused = look().unwrap_err().to_string();
        assert!(refused.contains("1.jpg: ") && refused.contains("a.json and ") && refused.contains("b.json list it"), "{refused}");
    }
    for kept in [&[][..], &[(1, 2)], &[(1, 2), (1, 1)], &[(1, 1), (3, 7)]] {
        put("b.json", kept);
        assert_eq!(look().unwrap().all_labels().len(), 2, "{kept:?}");
    }
}
