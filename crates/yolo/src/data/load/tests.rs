//! What labelling tools export, as a tree of twelve images made here, opened and scanned as it was downloaded.

use std::fmt::Write;

use super::*;
use crate::data::image::tests::jpeg;
use crate::data::{ScanOptions, Split, scan};

const IMAGES: usize = 12;

/// A folder, and where in it the export lies.
struct Tree(tempfile::TempDir, &'static str);

impl Tree {
    fn new() -> Self {
        Self::below("")
    }

    fn below(folder: &'static str) -> Self {
        Self(tempfile::tempdir().unwrap(), folder)
    }

    fn root(&self) -> PathBuf {
        self.0.path().join(self.1).join("export")
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.root().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Twelve images in `folder`, and a label file each in `labels`.
    fn yolo(&self, folder: &str, labels: &str) {
        for i in 0..IMAGES {
            self.write(&format!("{folder}/{i:02}.jpg"), jpeg(64, 48));
            self.write(&format!("{labels}/{i:02}.txt"), "1 0.5 0.5 0.25 0.5\n");
        }
    }

    /// Twelve images in `folder`, and the COCO file `json` that calls them by `prefix` and their name; categories from `first`.
    fn coco(&self, folder: &str, json: &str, prefix: &str, first: usize) {
        let (mut images, mut annotations) = (Vec::new(), Vec::new());
        for i in 0..IMAGES {
            self.write(&format!("{folder}/{i:02}.jpg"), jpeg(64, 48));
            images.push(format!(r#"{{"id":{i},"file_name":"{prefix}{i:02}.jpg","width":64,"height":48,"license":0,"date_captured":""}}"#));
            let category = first + 1;
            annotations.push(format!(
                r#"{{"id":{i},"image_id":{i},"category_id":{category},"bbox":[24,12,16,24],"area":384,"segmentation":[],"iscrowd":0,"ignore":0}}"#
            ));
        }
        let categories = format!(r#"[{{"id":{first},"name":"cat"}},{{"id":{},"name":"dog","supercategory":"none"}}]"#, first + 1);
        let text = format!(
            r#"{{"info":{{"version":"1"}},"licenses":[],"categories":{categories},"images":[{}],"annotations":[{}]}}"#,
            images.join(","),
            annotations.join(",")
        );
        self.write(json, text);
    }

    fn list(&self, name: &str, prefix: &str) {
        let lines = (0..IMAGES).fold(String::new(), |mut text, i| {
            writeln!(text, "{prefix}{i:02}.jpg").unwrap();
            text
        });
        self.write(name, lines);
    }

    /// Images of (train, val, test) after opening `name`; every image has one dog in its middle.
    fn sizes(&self, name: &str) -> [usize; 3] {
        let config = DataConfig::load_with(&self.root().join(name), &[], None).unwrap();
        assert_eq!((config.names.join(" "), config.channels), ("cat dog".to_string(), 3));
        let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
        let mut sizes = [0; 3];
        for split in config.splits() {
            let found = scan(&config, split, &options, &|_, _| {}).unwrap();
            assert_eq!((found.found, found.bad.len()), (found.len(), 0));
            assert!(found.all_labels().iter().all(|l| l.class == 1 && l.xywh == [0.5, 0.5, 0.25, 0.5]));
            sizes[split as usize] = found.len();
        }
        sizes
    }

    /// One set of which a part is held out: the same images together, never in both.
    fn is_held_out(&self, name: &str) {
        let [train, val, test] = self.sizes(name);
        assert!(train > val && val > 0 && train + val == IMAGES && test == 0, "{train} {val} {test}");
        let config = DataConfig::load_with(&self.root().join(name), &[], None).unwrap();
        let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
        let paths = |split| {
            let found = scan(&config, split, &options, &|_, _| {}).unwrap();
            (0..found.len()).map(|i| found.path(i)).collect::<Vec<_>>()
        };
        let val = paths(Split::Val);
        assert!(paths(Split::Train).iter().all(|path| !val.contains(path)));
        assert_eq!(paths(Split::Val), val, "the same every time");
    }
}

#[test]
fn roboflow() {
    let tree = Tree::new();
    for split in ["train", "valid", "test"] {
        tree.yolo(&format!("{split}/images"), &format!("{split}/labels"));
    }
    let yaml = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['cat', 'dog']\n\n\
                roboflow:\n  workspace: w\n  project: p\n  version: 1\n  license: CC BY 4.0\n  url: https://x\n";
    tree.write("data.yaml", yaml);
    assert_eq!((tree.sizes(""), tree.sizes("data.yaml")), ([12; 3], [12; 3]));
    std::fs::rename(tree.root().join("data.yaml"), tree.root().join("cats.yml")).unwrap();
    assert_eq!(tree.sizes(""), [12; 3], "the only YAML");
    let tree = Tree::new();
    for split in ["train", "valid", "test"] {
        tree.coco(split, &format!("{split}/_annotations.coco.json"), "", 0);
    }
    tree.write("README.dataset.txt", "x");
    assert_eq!(tree.sizes(""), [12; 3]);
}

#[test]
fn cvat() {
    // YOLO 1.1: lists name images under `data/`, which the archive does not have.
    for prefix in ["data/obj_train_data/", "obj_train_data/"] {
        let tree = Tree::new();
        tree.yolo("obj_train_data", "obj_train_data");
        let data = prefix.strip_suffix("obj_train_data/").unwrap();
        tree.write("obj.data", format!("classes = 2\ntrain = {data}train.txt\nnames = {data}obj.names\nbackup = backup/\n"));
        tree.write("obj.names", "cat\ndog\n");
        tree.list("train.txt", prefix);
        tree.is_held_out("");
        tree.is_held_out("obj.data");
    }
    // Below a folder that is called as those of images are in other layouts.
    let tree = Tree::below("images/of/all");
    tree.yolo("obj_train_data", "obj_train_data");
    tree.write("obj.data", "classes = 2\ntrain = train.txt\nnames = obj.names\n");
    tree.write("obj.names", "cat\ndog\n");
    tree.list("train.txt", "obj_train_data/");
    let others = tree.0.path().join("labels/of/all/export/obj_train_data");
    std::fs::create_dir_all(&others).unwrap();
    std::fs::write(others.join("03.txt"), "0 0.1 0.1 0.1 0.1\n").unwrap();
    tree.is_held_out("");
    // Class names may lie elsewhere, where that is allowed.
    let tree = Tree::new();
    tree.yolo("obj_train_data", "obj_train_data");
    tree.list("train.txt", "obj_train_data/");
    let elsewhere = tree.0.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("obj.names"), "cat\ndog\n").unwrap();
    tree.write("obj.data", format!("train = train.txt\nnames = {}\n", elsewhere.join("obj.names").display()));
    for name in ["", "obj.data"] {
        let open = |allowed: &[PathBuf]| DataConfig::load_with(&tree.root().join(name), allowed, None);
        assert!(matches!(open(&[]), Err(DataError::Outside { .. })));
        assert_eq!(open(std::slice::from_ref(&elsewhere)).unwrap().names, ["cat", "dog"]);
    }
    for prefix in ["data/images/train/", "images/train/", "./images/train/"] {
        let tree = Tree::new();
        tree.yolo("images/train", "labels/train");
        tree.write("data.yaml", "path: ./ # dataset root dir\ntrain: train.txt  # train images\nnames:\n  0: cat\n  1: dog\n");
        tree.list("train.txt", prefix);
        tree.is_held_out("");
        tree.is_held_out("data.yaml");
    }
    for folder in ["images", "images/default"] {
        let tree = Tree::new();
        tree.coco(folder, "annotations/instances_default.json", "", 1);
        tree.is_held_out("");
    }
}

#[test]
fn label_studio() {
    let tree = Tree::new();
    tree.yolo("images", "labels");
    tree.write("classes.txt", "cat\ndog\n");
    tree.write("notes.json", r#"{"categories":[{"id":0,"name":"cat"},{"id":1,"name":"dog"}],"info":{"year":2026}}"#);
    tree.is_held_out("");
    for prefix in ["images/", r"images\\", "/data/local-files/upload/3/"] {
        let tree = Tree::new();
        tree.coco("images", "result.json", prefix, 0);
        tree.is_held_out("");
    }
}

#[test]
fn fifty_one() {
    let tree = Tree::new();
    for split in ["train", "val"] {
        tree.yolo(&format!("images/{split}"), &format!("labels/{split}"));
    }
    // The path of the machine that it was exported on.
    tree.write(
        "dataset.yaml",
        "names:\n  0: cat\n  1: dog\npath: /somewhere/that/is/not/here\ntrain: ./images/train/\nval: ./images/val/\n",
    );
    assert_eq!((tree.sizes(""), tree.sizes("dataset.yaml")), ([12, 12, 0], [12, 12, 0]));
    let tree = Tree::new();
    tree.coco("data", "labels.json", "", 1);
    tree.is_held_out("");
}

#[test]
fn one_coco_file_is_one_split() {
    let tree = Tree::new();
    tree.coco("val2017", "annotations/instances_val2017.json", "", 1);
    assert_eq!(tree.sizes("annotations/instances_val2017.json"), [0, 12, 0]);
    let config = DataConfig::load_with(&tree.root().join("annotations/instances_val2017.json"), &[], None).unwrap();
    assert!(config.train.is_empty() && config.sources(Split::Test) == config.sources(Split::Val));
    // Images beyond the root are found only by those who may look there.
    let tree = Tree::new();
    tree.coco("images", "labels/all.json", "../images/", 1);
    let json = tree.root().join("labels/all.json");
    let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
    let open = |allowed: &[PathBuf]| {
        let config = DataConfig::load_with(&json, allowed, None).unwrap();
        scan(&config, Split::Val, &options, &|_, _| {})
    };
    let refused = open(&[]).unwrap_err().to_string();
    let images = tree.root().join("images").canonicalize().unwrap();
    assert!(refused.contains(&format!("--allow-outside {}", images.display())), "{refused}");
    assert_eq!(open(&[images]).unwrap().len(), 12);
}

#[test]
fn what_is_no_data_set_says_what_would_be_one() {
    let tree = Tree::new();
    tree.write("images/a.jpg", "");
    let error = DataConfig::load_with(&tree.root(), &[], None).unwrap_err().to_string();
    assert!(error.contains("data.yaml") && error.contains("obj.data"), "{error}");
    tree.write("annotations/a_train.json", "{}");
    tree.write("annotations/b_train.json", "{}");
    assert!(DataConfig::load_with(&tree.root(), &[], None).unwrap_err().to_string().contains("several files for train"));
    tree.write("obj.data", "classes = 1\n");
    assert!(DataConfig::load_with(&tree.root(), &[], None).unwrap_err().to_string().contains("`train` is missing"));
    assert!(DataConfig::load_with(&tree.root().join("annotations.json"), &[], None).is_err(), "absent");
    std::fs::create_dir(tree.root().join("folder.json")).unwrap();
    assert!(crate::data::coco::open(&tree.root().join("folder.json"), None).unwrap_err().to_string().contains("not a regular file"));
    let json = tree.root().join("annotations/a_train.json");
    assert!(DataConfig::load_with(&json, &[], None).unwrap_err().to_string().contains("no `images`"));
}

#[test]
fn names_bind_categories_and_foreign_ones_are_counted() {
    let tree = Tree::new();
    tree.coco("images", "all.json", "", 1);
    tree.write("data.yaml", "train: all.json\nnames: [dog, bird]\n");
    let config = DataConfig::load_with(&tree.root().join("data.yaml"), &[], None).unwrap();
    let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
    let found = scan(&config, Split::Train, &options, &|_, _| {}).unwrap();
    assert!(found.all_labels().iter().all(|l| l.class == 0));
    assert!(found.notes[0].contains("none for cat (id 1), 0 dog (id 2)"), "{:?}", found.notes);
    tree.write("data.yaml", "train: all.json\nnames: [bird]\n");
    let config = DataConfig::load_with(&tree.root().join("data.yaml"), &[], None).unwrap();
    assert!(scan(&config, Split::Train, &options, &|_, _| {}).unwrap_err().to_string().contains("none of its categories (cat, dog)"));
}

#[test]
fn a_category_in_another_case_is_the_class_unless_there_are_two() {
    let tree = Tree::new();
    tree.coco("images", "all.json", "", 1);
    let open = |names: &str| {
        tree.write("data.yaml", format!("train: all.json\nnames: [{names}]\n"));
        let config = DataConfig::load_with(&tree.root().join("data.yaml"), &[], None).unwrap();
        scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {})
    };
    let found = open("bird, Dog").unwrap();
    assert!(!found.all_labels().is_empty() && found.all_labels().iter().all(|l| l.class == 1));
    assert_eq!(found.notes[1], "all.json: category dog is taken for class Dog");
    let found = open("Dog, dog").unwrap();
    assert!(found.all_labels().iter().all(|l| l.class == 1) && !found.notes.iter().any(|note| note.contains("taken for")));
    assert!(open("Dog, DOG").unwrap_err().to_string().contains("none of its categories (cat, dog)"));
}

#[test]
fn a_category_that_has_no_name_is_no_class() {
    let tree = Tree::new();
    tree.coco("images", "all.json", "", 1);
    let whole = std::fs::read_to_string(tree.root().join("all.json")).unwrap();
    for (word, names) in [("NaN", ""), ("\"\"", ""), ("NaN", "names: [cat, dog]\n"), ("\"\"", "names: [cat, dog]\n")] {
        tree.write("all.json", whole.replace("\"cat\"", word));
        tree.write("data.yaml", format!("train: all.json\n{names}"));
        let refused = DataConfig::load_with(&tree.root().join("data.yaml"), &[], None)
            .and_then(|config| scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}))
            .unwrap_err()
            .to_string();
        assert!(refused.contains("all.json") && refused.contains("category 1 without `name`") && refused.contains("(byte "), "{refused}");
    }
}

/// The cache of a hub has files under their hashes, and links by their names.
#[test]
#[cfg(unix)]
fn a_download_of_links_is_called_by_its_names() {
    let tree = Tree::new();
    let blobs = tree.0.path().join("blobs");
    std::fs::create_dir(&blobs).unwrap();
    for (name, hash, frame) in [("Train.json", "3fa9", "c1/a.jpg"), ("Valid.json", "77c0", "c2/a.jpg")] {
        ltdv2(&tree, "frames/", &format!("data/{name}"), &[frame], true);
        let link = tree.root().join("data").join(name);
        std::fs::rename(&link, blobs.join(hash)).unwrap();
        std::os::unix::fs::symlink(Path::new("../../blobs").join(hash), link).unwrap();
    }
    let refused = DataConfig::load_with(&tree.root(), &[], None).unwrap_err().to_string();
    assert!(refused.contains(&format!("--allow-outside {}", blobs.canonicalize().unwrap().display())), "{refused}");
    let config = DataConfig::load_with(&tree.root(), std::slice::from_ref(&blobs), None).unwrap();
    let found = scan(&config, Split::Train, &ScanOptions { cache_dir: None, ..ScanOptions::default() }, &|_, _| {}).unwrap();
    assert!(found.len() == 1 && found.notes[0].starts_with("Train.json: classes"), "{:?}", found.notes);
    std::fs::write(blobs.join("3fa9"), "{").unwrap();
    let refused = DataConfig::load_with(&tree.root(), &[blobs], None).unwrap_err().to_string();
    assert!(refused.contains("data/Train.json: EOF") && !refused.contains("3fa9"), "{refused}");
}

#[test]
fn areas_stay_with_the_objects_that_are_kept() {
    let tree = Tree::new();
    tree.write("images/a.jpg", jpeg(100, 50));
    tree.write("images/b.jpg", jpeg(100, 50));
    // Of the first image: a box's own area, one beside it, a mask's, one that reaches beyond the image and has the area of all of it, a mask's.
    let text = r#"{"images":[{"id":1,"file_name":"a.jpg"},{"id":2,"file_name":"b.jpg"}],
        "categories":[{"id":1,"name":"cat"},{"id":2,"name":"dog"}],"annotations":[
        {"image_id":2,"category_id":1,"bbox":[10,10,20,10],"area":120},{"image_id":1,"category_id":1,"bbox":[0,0,20,10],"area":200},
        {"image_id":1,"category_id":1,"bbox":[200,0,20,10],"area":90},{"image_id":1,"category_id":2,"bbox":[20,0,20,10],"area":80},
        {"image_id":1,"category_id":1,"bbox":[-20,20,40,10],"area":400},{"image_id":1,"category_id":1,"bbox":[40,0,20,10],"area":70},
        {"image_id":2,"category_id":1,"bbox":[10,10,20,10],"area":60},{"image_id":2,"category_id":1,"bbox":[40,10,20,10]}]}"#;
    tree.write("all.json", text);
    let config = DataConfig::load_with(&tree.root().join("all.json"), &[], None).unwrap();
    let areas = |classes: Option<Vec<u32>>| {
        let found = scan(&config, Split::Val, &ScanOptions { cache_dir: None, classes, ..ScanOptions::default() }, &|_, _| {}).unwrap();
        let of = |i: usize| (0..found.labels(i).len()).map(|k| found.areas().get(i, k)).collect::<Vec<_>>();
        [of(0), of(1)]
    };
    assert_eq!(areas(None), [vec![None, Some(80.0), Some(400.0), Some(70.0)], vec![Some(120.0), None]]);
    assert_eq!(areas(Some(vec![0])), [vec![None, Some(400.0), Some(70.0)], vec![Some(120.0), None]]);
}

#[test]
fn boxes_are_taken_in_pixels_of_the_decoded_image() {
    let tree = Tree::new();
    tree.write("images/a.jpg", jpeg(100, 50));
    tree.write("images/b.jpg", jpeg(100, 50));
    let text = r#"{"images":[{"id":1,"file_name":"a.jpg","width":200,"height":100},{"id":2,"file_name":"b.jpg","width":100,"height":50}],
        "categories":[{"id":1,"name":"cat"}],"annotations":[
        {"image_id":1,"category_id":1,"bbox":[25,0,50,50]},{"image_id":1,"category_id":1,"bbox":[25,0,50,50]},
        {"image_id":2,"category_id":1,"bbox":[90,-10,40,30]},{"image_id":2,"category_id":1,"bbox":[99.5,0,1,10]},
        {"image_id":2,"category_id":1,"bbox":[100,0,10,10]},{"image_id":2,"category_id":1,"bbox":[1,1,10,0]}]}"#;
    tree.write("all.json", text);
    let config = DataConfig::load_with(&tree.root().join("all.json"), &[], None).unwrap();
    let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
    let found = scan(&config, Split::Val, &options, &|_, _| {}).unwrap();
    let boxes: Vec<[f32; 4]> = found.all_labels().iter().map(|l| l.xywh.map(|v| (v * 1e4).round() / 1e4)).collect();
    assert_eq!(boxes, [[0.5, 0.5, 0.5, 1.0], [0.95, 0.2, 0.1, 0.4], [0.9975, 0.1, 0.005, 0.2]]);
    assert_eq!((found.duplicates, found.zero_size), (1, 1));
    let named = |part: &str| found.notes.iter().any(|note| note.contains(part));
    assert!(named("clipped: b.jpg: bbox [90, -10, 40, 30]") && named("left out: b.jpg: bbox [100, 0, 10, 10]"), "{:?}", found.notes);
    for part in ["1 boxes reached out", "1 boxes lay outside", "1 images have another size"] {
        assert!(found.notes.iter().any(|note| note.starts_with(part)), "{part}: {:?}", found.notes);
    }
}

/// One frame a name, in `folder`, and a file that calls them with 17-digit ids as LTDv2 does; without `annotations` where it says so.
fn ltdv2(tree: &Tree, folder: &str, json: &str, names: &[&str], labelled: bool) {
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        tree.write(&format!("{folder}{name}"), jpeg(64, 48));
        let id = 20_200_514_000_000_001_i64 + i as i64;
        images.push(format!(
            r#"{{"id":{id},"file_name":"frames/{name}","width":64,"height":48,"date_captured":"2020-05-14T23:07:{i:02}","meta":{{"Temperature":{i}.5}}}}"#
        ));
        annotations.push(format!(r#"{{"id":{i},"image_id":{id},"category_id":{},"bbox":[1,2,8,{}],"uid":3}}"#, 1 + i % 2, 4 + i));
    }
    let annotations = if labelled { format!(r#""annotations":[{}],"#, annotations.join(",")) } else { String::new() };
    let categories = r#"[{"id":0,"name":"background"},{"id":1,"name":"person"},{"id":2,"name":"bicycle"}]"#;
    tree.write(json, format!(r#"{{"images":[{}],{annotations}"categories":{categories}}}"#, images.join(",")));
}

#[test]
fn a_part_of_one_clip_is_a_part_of_its_frames() {
    let tree = Tree::new();
    let names: Vec<String> = (0..10).map(|i| format!("c1/{i}.jpg")).collect();
    ltdv2(&tree, "frames/", "Train.json", &names.iter().map(String::as_str).collect::<Vec<_>>(), true);
    ltdv2(&tree, "frames/", "Valid.json", &["c2/a.jpg"], true);
    let config = DataConfig::load_with(&tree.root(), &[], None).unwrap();
    let options = ScanOptions { cache_dir: None, fraction: 0.3, ..ScanOptions::default() };
    assert_eq!(scan(&config, Split::Train, &options, &|_, _| {}).unwrap().len(), 3);
}

#[test]
fn a_file_of_images_alone_calls_classes_as_the_others_do() {
    let tree = Tree::new();
    ltdv2(&tree, "frames/", "Train.json", &["c1/a.jpg"], true);
    ltdv2(&tree, "frames/", "Valid.json", &["c2/a.jpg"], true);
    tree.write("frames/c3/a.jpg", jpeg(64, 48));
    tree.write("TestNoLabels.json", r#"{"images":[{"id":20200514000000009,"file_name":"frames/c3/a.jpg"}]}"#);
    let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
    let test = |single_cls| {
        let config = DataConfig::load_with(&tree.root(), &[], None).unwrap();
        scan(&config, Split::Test, &ScanOptions { single_cls, ..options.clone() }, &|_, _| {}).unwrap()
    };
    assert_eq!([0, 1, 2].map(|class| test(false).ids().category(0, class)), [Some(1.into()), Some(2.into()), None]);
    assert_eq!(test(true).ids().category(0, 0), None);
}

#[test]
fn ltdv2_is_taken_as_it_is_downloaded() {
    let clips = ["20200514/clip_22_2307/image_0001.jpg", "20200514/clip_22_2307/image_0002.jpg", "20200515/clip_3_0101/image_0001.jpg"];
    // As the description says; with the page's folder; the archive unpacked into a folder of its own, or without its outer one.
    for (frames, json) in [("frames/", ""), ("data/frames/", "data/"), ("frames/frames/", ""), ("", "")] {
        let tree = Tree::new();
        ltdv2(&tree, frames, &format!("{json}Train.json"), &clips, true);
        ltdv2(&tree, frames, &format!("{json}Valid.json"), &["20200602/clip_9_1200/image_0001.jpg"], true);
        ltdv2(&tree, frames, &format!("{json}TestNoLabels.json"), &["20210102/clip_1_0000/image_0001.jpg"], false);
        // The one that users have, with the path of their copy.
        tree.write("of/ltdv2.yaml", include_str!("../../../../../datasets/ltdv2.yaml").replace("path: ltdv2 ", "path: .. "));
        for (name, classes) in [("", &["person", "bicycle"][..]), ("of/ltdv2.yaml", &["person", "bicycle", "motorcycle", "vehicle"])] {
            let config = DataConfig::load_with(&tree.root().join(name), &[], None).unwrap();
            assert_eq!(config.names, classes, "background is no class");
            let options = ScanOptions { cache_dir: None, ..ScanOptions::default() };
            let [train, val, test] = Split::ALL.map(|split| scan(&config, split, &options, &|_, _| {}).unwrap());
            assert_eq!([train.len(), val.len(), test.len(), train.bad.len()], [3, 1, 1, 0], "{frames} {name}");
            assert_eq!(train.all_labels().iter().map(|l| l.class).collect::<Vec<_>>(), [0, 1, 0]);
            assert_eq!((train.meta.clip_of(), train.meta.clips()), (&[0, 0, 1][..], 2));
            assert_eq!([0, 1, 2].map(|i| train.meta.get(i, "Temperature").unwrap()), ["0.5", "1.5", "2.5"]);
            assert_eq!(test.ids().image(0), Some(20_200_514_000_000_001_i64.into()));
            assert_eq!(test.meta.get(0, "date_captured"), Some("2020-05-14T23:07:00"));
            assert!(test.all_labels().is_empty());
        }
    }
}
