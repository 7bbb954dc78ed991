//! There and back again, names that collide, targets that are refused.

use super::*;
use crate::data::image::tests::jpeg;

fn options() -> ScanOptions {
    ScanOptions { cache_dir: None, ..ScanOptions::default() }
}

fn into(config: &DataConfig, form: Form, images: Images, out: &Path) -> Result<Converted, DataError> {
    convert(config, form, images, out, &options(), &|_, _, _| {})
}

fn open(path: &Path) -> DataConfig {
    DataConfig::load_with(path, &[], None).unwrap()
}

/// The name of an image and its boxes.
type Boxes = (String, Vec<(u32, [f32; 4])>);

/// Objects of every image by its name, in pixels.
fn boxes(config: &DataConfig) -> Vec<Boxes> {
    let found = scan(&DataConfig { hold_out: false, ..config.clone() }, Split::Train, &options(), &|_, _| {}).unwrap();
    let of = |i: usize| {
        let size = found.images[i].size;
        let name = found.path(i).file_name().unwrap().to_string_lossy().into_owned();
        let [w, h] = [size.width as f32, size.height as f32];
        (name, found.labels(i).iter().map(|l| (l.class, [l.xywh[0] * w, l.xywh[1] * h, l.xywh[2] * w, l.xywh[3] * h])).collect())
    };
    (0..found.len()).map(of).collect()
}

/// The dialect of HIT-UAV, two images of one name, an empty one, ids beyond 2^53.
fn source(root: &Path) -> DataConfig {
    for folder in ["frames/day", "frames/night"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
        std::fs::write(root.join(folder).join("0001.jpg"), jpeg(97, 61)).unwrap();
    }
    std::fs::write(root.join("frames/empty.jpg"), jpeg(40, 40)).unwrap();
    let text = r#"{"annotation":[
        {"id":1,"image_id":20240101123456781,"category_id":2,"bbox":[1,2.5,30.125,40],"area":600.25,"segmentation":[[1,2,3,4,5,6]]},
        {"id":2,"image_id":20240101123456782,"category_id":9,"bbox":[0,0,97,61]},
        {"id":3,"image_id":20240101123456782,"category_id":2,"bbox":[10.333,20.667,7.001,5]}],
        "images":[{"id":20240101123456781,"filename":"day/0001.jpg","width":97,"height":61},
        {"id":20240101123456782,"filename":"night/0001.jpg","width":97,"height":61},{"id":3,"filename":"empty.jpg"}],
        "categories":[{"id":9,"name":"car: red"},{"id":2,"name":"person"}]}"#;
    std::fs::write(root.join("all.json"), text).unwrap();
    std::fs::write(root.join("data.yaml"), "train: {annotations: all.json, images: frames}\n").unwrap();
    open(&root.join("data.yaml"))
}

/// As small sets for trying things out have it: the copy judges by what it learns from, too.
#[test]
fn a_val_that_is_train_stays_one() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("source")).unwrap();
    source(&at("source"));
    let all = "{annotations: all.json, images: frames}";
    std::fs::write(at("source/data.yaml"), format!("train: {all}\nval: {all}\ntest: {all}\n")).unwrap();
    for (name, form) in [("yolo", Form::Yolo), ("coco", Form::Coco), ("shards", Form::Shards(Packing { samples: 2, shuffle: false }))] {
        let made = into(&open(&at("source/data.yaml")), form, Images::Copy, &at(name)).unwrap();
        let copy = open(&at(name).join("data.yaml"));
        assert!(made.images == 3 && !copy.hold_out && copy.splits() == [Split::Train], "{name}");
        assert!([Split::Val, Split::Test].iter().all(|&split| copy.sources(split) == copy.sources(Split::Train)), "{name}");
    }
    // What is held out is said by nothing.
    std::fs::write(at("source/data.yaml"), format!("train: {all}\ntest: {all}\n")).unwrap();
    into(&open(&at("source/data.yaml")), Form::Yolo, Images::Copy, &at("held out")).unwrap();
    let copy = open(&at("held out/data.yaml"));
    assert!(copy.hold_out && copy.sources(Split::Test) == copy.sources(Split::Train));
}

#[test]
fn coco_to_yolo_and_back_gives_the_same_boxes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("source")).unwrap();
    let first = source(&at("source"));
    let before = std::fs::read(at("source/all.json")).unwrap();
    let yolo = into(&first, Form::Yolo, Images::Link, &at("yolo")).unwrap();
    assert_eq!((yolo.images, yolo.objects, yolo.renamed), (3, 3, 0));
    let second = open(&at("yolo"));
    assert_eq!(second.names, ["car: red", "person"]);
    into(&second, Form::Coco, Images::Copy, &at("coco")).unwrap();
    let third = open(&at("coco"));
    assert_eq!(third.names, second.names);
    let (a, b, c) = (boxes(&first), boxes(&second), boxes(&third));
    assert_eq!(b.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["0001.jpg", "empty.jpg", "0001.jpg"]);
    let sorted = |mut all: Vec<Boxes>| {
        all.sort_by_key(|(_, boxes)| boxes.len());
        all.into_iter().flat_map(|(_, boxes)| boxes).collect::<Vec<_>>()
    };
    let (a, b, c) = (sorted(a), sorted(b), sorted(c));
    assert_eq!((a.len(), b.len(), c.len()), (3, 3, 3));
    for other in [b, c] {
        for ((class, want), (other, got)) in a.iter().zip(other) {
            assert_eq!(*class, other);
            assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() < 2e-3), "{want:?} {got:?}");
        }
    }
    for out in ["yolo", "coco"] {
        let yaml = std::fs::read_to_string(at(out).join("data.yaml")).unwrap();
        assert!(yaml.starts_with("train: ") && !yaml.contains("path:"), "a path would not be taken from where the file is: {yaml}");
    }
    let json = std::fs::read_to_string(at("coco/annotations/train.json")).unwrap();
    for text in ["[1.0,2.5,30.125,40.0]", "[10.333,20.667,7.001,5.0]", "[0.0,0.0,97.0,61.0]"] {
        assert!(json.contains(text), "{text} in {json}");
    }
    assert_eq!(std::fs::read(at("source/all.json")).unwrap(), before);
    assert_eq!(std::fs::read_dir(at("source")).unwrap().count(), 3, "nothing is added to the source");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing partial is left");
}

#[test]
fn what_suits_the_data_goes_along() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("source")).unwrap();
    source(&dir.path().join("source"));
    let settings = "range: [2900, 3400.5]\nsettings: {percentile_of: frame, lr0: 0.00001, cos_lr: true, group_by: [clip], frames: 2, \
                    sampler: {clips: balanced, empty: 0.1}}\n";
    let yaml = dir.path().join("source/data.yaml");
    std::fs::write(&yaml, std::fs::read_to_string(&yaml).unwrap() + settings).unwrap();
    let first = open(&yaml);
    assert_eq!(first.settings.len(), 7);
    let (mut of_files, mut of_shards) = (first.settings.clone(), first.settings.clone());
    of_files.remove("group_by");
    of_shards.retain(|name, _| !["group_by", "frames"].contains(&name.as_str()));
    of_shards.insert("sampler".into(), json!({ "empty": 0.1 }));
    let shards = Form::Shards(Packing { samples: 2, shuffle: false });
    let copies = [
        ("yolo", Form::Yolo, &of_files, "group_by"),
        ("coco", Form::Coco, &of_files, "group_by"),
        ("shards", shards, &of_shards, "group_by, frames, sampler: clips"),
    ];
    for (name, form, settings, left_out) in copies {
        let out = dir.path().join(name);
        let lines = into(&first, form, Images::Copy, &out).unwrap().lines;
        let told = format!("left out of `settings`, for nothing in the copy says what they go by: {left_out}");
        assert_eq!(lines.last(), Some(&told));
        let second = open(&out);
        assert_eq!((&second.settings, second.notes), (settings, Vec::<String>::new()));
    }
    // A sampler of nothing else is none, and what is not there is not told of.
    let only = |settings: serde_json::Value| DataConfig { settings: serde_json::from_value(settings).unwrap(), ..first.clone() };
    assert_eq!(suitable(&only(json!({ "sampler": { "clips": "balanced" } })), false), (BTreeMap::new(), vec!["sampler: clips"]));
    assert_eq!(suitable(&only(json!({})), false), (BTreeMap::new(), vec![]));
}

#[test]
fn frames_follow_each_other_in_a_copy_as_in_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Numbers that run on from clip to clip; two folders of one name, and one of the name that labels are found by.
    for (i, clip) in ["A", "A", "B", "B", "x/A", "x/A", "x/images", "x/images"].iter().enumerate() {
        let folder = at("source/images/train").join(clip);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{i:03}.jpg")), jpeg(32, 32)).unwrap();
    }
    std::fs::write(at("source/data.yaml"), "train: images/train\nnames: [a]\nsettings: {frames: 3}\n").unwrap();
    let past = |config: &DataConfig| {
        let found = scan(&DataConfig { hold_out: false, ..config.clone() }, Split::Train, &options(), &|_, _| {}).unwrap();
        before(&found.meta, (0..found.len()).map(|i| found.path(i)))
    };
    let first = open(&at("source/data.yaml"));
    let expected = [None, Some(0), None, Some(2), None, Some(4), None, Some(6)];
    assert_eq!(past(&first), expected);
    for (name, form) in [("yolo", Form::Yolo), ("coco", Form::Coco)] {
        let made = into(&first, form, Images::Copy, &at(name)).unwrap();
        let second = open(&at(name));
        assert_eq!((past(&second), made.renamed), (expected.to_vec(), 0), "{name}");
        assert_eq!(second.settings, first.settings, "{name}");
    }
    assert!(at("yolo/labels/train/x_A/004.txt").is_file() && at("yolo/labels/train/x_images/006.txt").is_file());
}

#[test]
fn settings_of_clips_that_a_copy_does_not_have_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("source/frames")).unwrap();
    let images: Vec<Value> = ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "3.jpeg"]
        .iter()
        .enumerate()
        .map(|(i, name)| {
            std::fs::write(at("source/frames").join(name), jpeg(32, 32)).unwrap();
            json!({"id": i + 1, "file_name": name, "meta": {"clip": if i < 2 { "north" } else { "south" }}})
        })
        .collect();
    let boxes = json!([{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}]);
    let all = json!({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]});
    std::fs::write(at("source/all.json"), all.to_string()).unwrap();
    let yaml = "train: {annotations: all.json, images: frames}\nsettings: {frames: 2, sampler: {clips: balanced}}\n";
    std::fs::write(at("source/data.yaml"), yaml).unwrap();
    let told = "left out of `settings`, for nothing in the copy says what they go by: frames, sampler: clips";
    for (name, form) in [("yolo", Form::Yolo), ("coco", Form::Coco)] {
        let made = into(&open(&at("source/data.yaml")), form, Images::Copy, &at(name)).unwrap();
        assert_eq!((made.lines.last().map(String::as_str), made.renamed), (Some(told), 1), "{name}");
        assert!(open(&at(name)).settings.is_empty(), "{name}");
    }
}

#[test]
fn coco_to_coco_keeps_ids_and_areas_that_are_not_those_of_boxes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("source")).unwrap();
    let first = source(&at("source"));
    into(&first, Form::Coco, Images::Copy, &at("coco")).unwrap();
    let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(at(name).join("annotations/train.json")).unwrap()).unwrap() };
    let json = read("coco");
    let pairs = |json: &Value, list: &str, keys: [&str; 2]| {
        let of = |one: &Value| keys.map(|key| one[key].to_string()).join(" ");
        json[list].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(pairs(&json, "categories", ["id", "name"]), ["9 \"car: red\"", "2 \"person\""]);
    let [day, night] = ["20240101123456781", "20240101123456782"];
    let names = [(day, "day/0001.jpg"), ("3", "frames/empty.jpg"), (night, "night/0001.jpg")].map(|(id, name)| format!("{id} \"{name}\""));
    assert_eq!(pairs(&json, "images", ["id", "file_name"]), names);
    let mut objects = pairs(&json, "annotations", ["image_id", "category_id"]);
    objects.sort();
    assert_eq!(objects, [format!("{day} 2"), format!("{night} 2"), format!("{night} 9")]);
    // Beside images that have none they are counted, and of label files alone nothing is said.
    std::fs::create_dir(at("source/images")).unwrap();
    std::fs::write(at("source/images/b.jpg"), jpeg(40, 40)).unwrap();
    let told = "train: ids of images are counted anew, for not every image of the source has one of its own";
    for (name, sources, said) in [("mixed", "[{annotations: all.json, images: frames}, images]", true), ("labels", "images", false)] {
        std::fs::write(at("source/data.yaml"), format!("train: {sources}\nnames: ['car: red', person]\n")).unwrap();
        let made = into(&open(&at("source/data.yaml")), Form::Coco, Images::Copy, &at(name)).unwrap();
        assert_eq!(made.lines.iter().any(|line| line == told), said, "{:?}", made.lines);
        let ids = pairs(&read(name), "images", ["id", "width"]);
        assert_eq!(ids.iter().map(|id| id.split(' ').next()).collect::<Vec<_>>(), ["1", "2", "3", "4"].map(Some)[..ids.len()], "{name}");
    }
    let mut areas: Vec<f64> = json["annotations"].as_array().unwrap().iter().map(|one| one["area"].as_f64().unwrap()).collect();
    areas.sort_by(f64::total_cmp);
    assert_eq!(areas, [35.005, 600.25, 5917.0]);
}

#[test]
fn categories_are_those_of_all_splits() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for split in ["train", "val", "test"] {
        std::fs::create_dir_all(at(&format!("source/{split}"))).unwrap();
        std::fs::write(at(&format!("source/{split}/a.jpg")), jpeg(64, 64)).unwrap();
    }
    std::fs::write(at("source/test/a.txt"), "0 .5 .5 .25 .5\n").unwrap();
    let put = |split: &str, image: u64, of: u64, categories: Value| {
        let boxes = json!([{"id": 1, "image_id": image, "category_id": of, "bbox": [1, 1, 9, 9]}]);
        let all = json!({"images": [{"id": image, "file_name": "a.jpg"}], "annotations": boxes, "categories": categories});
        std::fs::write(at(&format!("source/{split}.json")), all.to_string()).unwrap();
    };
    let coco = |split: &str| format!("{split}: {{annotations: {split}.json, images: {split}}}\n");
    std::fs::write(at("source/data.yaml"), coco("train") + &coco("val") + "test: test\nnames: [cat, dog]\n").unwrap();
    put("train", 17, 9, json!([{"id": 9, "name": "cat"}]));
    // A file that agrees, which lacks what the other has; one with the id of another class.
    for (dog, ids, told) in [(2, [9, 2], 0), (9, [1, 2], 1)] {
        put("val", 23, dog, json!([{"id": dog, "name": "dog"}]));
        let out = at(&format!("coco{dog}"));
        let lines = into(&open(&at("source/data.yaml")), Form::Coco, Images::Copy, &out).unwrap().lines;
        assert_eq!(lines.iter().filter(|line| line.starts_with("ids of categories are counted anew")).count(), told, "{lines:?}");
        for (split, image, of) in [("train", 17, ids[0]), ("val", 23, ids[1]), ("test", 1, ids[0])] {
            let json: Value = serde_json::from_slice(&std::fs::read(out.join(format!("annotations/{split}.json"))).unwrap()).unwrap();
            let category = |id: i32, name: &str| json!({"id": id, "name": name, "supercategory": ""});
            assert_eq!(json["categories"], json!([category(ids[0], "cat"), category(ids[1], "dog")]), "{split}");
            assert_eq!((&json["images"][0]["id"], &json["annotations"][0]["category_id"]), (&json!(image), &json!(of)), "{split}");
        }
    }
}

#[test]
fn targets_that_hold_something_or_lie_in_the_source_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("source");
    std::fs::create_dir(&root).unwrap();
    let config = source(&root);
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("mine.txt"), "x").unwrap();
    for (target, part) in
        [(out.clone(), "not empty"), (root.join("new/deep"), "inside the data set"), (out.join("mine.txt"), "not a folder")]
    {
        let error = into(&config, Form::Yolo, Images::Copy, &target).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    std::fs::remove_file(out.join("mine.txt")).unwrap();
    into(&config, Form::Coco, Images::None, &out).unwrap();
    assert!(out.join("data.yaml").is_file() && !out.join("images").exists());
    // A failure leaves nothing.
    std::fs::remove_dir_all(root.join("frames/night")).unwrap();
    let failed = dir.path().join("failed");
    assert!(into(&config, Form::Yolo, Images::Copy, &failed).is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
#[cfg(unix)]
fn a_target_that_cannot_be_replaced_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("source")).unwrap();
    let config = source(&at("source"));
    std::fs::create_dir(at("empty")).unwrap();
    let refused = |name: &str| into(&config, Form::Yolo, Images::Copy, &at(name)).unwrap_err().to_string();
    for (name, target) in [("link", "empty"), ("dangling", "gone")] {
        std::os::unix::fs::symlink(at(target), at(name)).unwrap();
        assert!(refused(name).contains("a link, which the finished data set cannot replace"), "{}", refused(name));
    }
    // In place of a mount point: a folder that cannot be moved because something lies there.
    let there = partial(&at("empty")).join("x");
    std::fs::create_dir(partial(&at("empty"))).unwrap();
    std::fs::write(&there, "").unwrap();
    assert!(refused("empty").contains("cannot be replaced by the finished data set ("), "{}", refused("empty"));
    assert!(at("empty").is_dir() && there.is_file());
}

#[test]
#[cfg(unix)]
fn images_that_are_links_become_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("source");
    for folder in ["images", "labels", "raw"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    std::fs::write(root.join("raw/0001.jpg"), jpeg(64, 64)).unwrap();
    std::os::unix::fs::symlink("../raw/0001.jpg", root.join("images/a.jpg")).unwrap();
    std::fs::write(root.join("labels/a.txt"), "0 .5 .5 .25 .5\n").unwrap();
    std::fs::write(root.join("data.yaml"), "train: images\nnames: [a]\n").unwrap();
    let out = dir.path().join("out");
    into(&open(&root.join("data.yaml")), Form::Yolo, Images::Link, &out).unwrap();
    assert!(!out.join("images/train/a.jpg").is_symlink());
    assert_eq!(boxes(&open(&out)), [("a.jpg".to_string(), vec![(0, [32.0, 32.0, 16.0, 32.0])])]);
}

#[test]
fn polygons_of_label_files_are_kept_and_coco_boxes_are_boxes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let labels = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    for folder in ["source/images", "source/labels"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    std::fs::write(at("source/images/a.jpg"), jpeg(64, 64)).unwrap();
    std::fs::write(at("source/labels/a.txt"), "2 0.25 0.25 0.75 0.3 0.7 0.5\n0 0.5 0.5 0.25 0.5\n").unwrap();
    std::fs::write(at("source/data.yaml"), "train: images\nnames: [a, b, c]\n").unwrap();
    into(&open(&at("source/data.yaml")), Form::Yolo, Images::Copy, &at("yolo")).unwrap();
    assert_eq!(labels("yolo/labels/train/a.txt"), labels("source/labels/a.txt"));
    // The first box is that of its polygon.
    let text = r#"{"images":[{"id":1,"file_name":"a.jpg","width":64,"height":64}],"categories":[{"id":5,"name":"a"}],"annotations":[
        {"id":1,"image_id":1,"category_id":5,"bbox":[16,16,32,32],"segmentation":[[16,16,48,16,48,48]]},
        {"id":2,"image_id":1,"category_id":5,"bbox":[8,8,16,16]}]}"#;
    std::fs::write(at("source/a.json"), text).unwrap();
    std::fs::write(at("source/coco.yaml"), "train: {annotations: a.json, images: images}\n").unwrap();
    into(&open(&at("source/coco.yaml")), Form::Yolo, Images::Copy, &at("boxes")).unwrap();
    assert_eq!(labels("boxes/labels/train/a.txt"), "0 0.5 0.5 0.5 0.5\n0 0.25 0.25 0.25 0.25\n");
}

#[test]
fn a_copy_that_fails_names_the_file_that_is_to_blame() {
    let dir = tempfile::tempdir().unwrap();
    let (there, gone) = (dir.path().join("a.jpg"), dir.path().join("gone/a.jpg"));
    std::fs::write(&there, "x").unwrap();
    assert!(matches!(copy(&there, &gone), Err(DataError::Write(error)) if error.path == gone));
    assert!(matches!(copy(&gone, &there), Err(DataError::Io { path, .. }) if path == gone));
}

#[test]
fn names_stay_apart() {
    let mut taken = HashSet::new();
    let names: Vec<String> = ["/d/a/x.jpg", "/d/a/x.png", "/d/b/X.jpg", "/d/b/x.jpg", "/x.jpg", "/x.bmp"]
        .iter()
        .map(|path| free_name(Path::new(path), &mut taken))
        .collect();
    assert_eq!(names, ["x.jpg", "a_x.png", "b_X.jpg", "d_b_x.jpg", "x_2.jpg", "x_3.bmp"]);
}
