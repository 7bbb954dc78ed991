//! A split in shards is the split that it was written from.

use std::path::PathBuf;

use burn::data::dataset::Dataset;
use image::{ImageBuffer, Luma};

use super::*;
use crate::data::image::tests::jpeg;
use crate::data::packed::{Packed, index_shards};
use crate::data::{DataConfig, Levels, ScanOptions, Split, YoloDataset, scan};

fn options(cache_dir: Option<PathBuf>) -> ScanOptions {
    ScanOptions { cache_dir, ..ScanOptions::default() }
}

fn config(root: &Path, train: &str) -> DataConfig {
    DataConfig::parse(&format!("train: {train}\nval: {train}\nnames: [a, b, c, d]\n"), &root.join("data.yaml")).unwrap()
}

fn scanned(root: &Path, train: &str) -> Scan {
    scan(&config(root, train), Split::Train, &options(None), &|_, _| {}).unwrap()
}

/// Twelve images: boxes, polygons and both, an empty label file, none at all, counts of 16 bits. In `images`, and in shards of five in `packed`.
fn both(root: &Path, shuffle: bool) -> [Scan; 2] {
    for folder in ["images", "labels", "packed"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    for i in 0..12u32 {
        let label = root.join(format!("labels/{i:02}.txt"));
        match i % 4 {
            0 => std::fs::write(label, format!("0 .1 .{i} .3333333 .2\n3 0.123456789 .5 .1 .1\n")).unwrap(),
            1 => std::fs::write(label, "2 .25 .25 .75 .3 .7 .5\n1 .5 .5 .25 .5\n1 .1 .1 .9 .13 .4 .8 .2 .7\n").unwrap(),
            2 => std::fs::write(label, "").unwrap(),
            _ => {}
        }
        if i == 7 || i == 8 {
            let counts = ImageBuffer::from_fn(40, 30, |x, y| Luma([(3000 + i * 10 + 5 * x + y) as u16]));
            counts.save(root.join(format!("images/{i:02}.png"))).unwrap();
        } else {
            std::fs::write(root.join(format!("images/{i:02}.jpg")), jpeg(30 + i, 40)).unwrap();
        }
    }
    let folder = scanned(root, "images");
    write(&folder, Packing { samples: 5, shuffle }, &root.join("packed"), "train", &|_, _| {}).unwrap();
    [folder, scanned(root, "packed")]
}

#[test]
fn images_labels_polygons_and_counts_come_out_as_they_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let [folder, packed] = both(dir.path(), false);
    assert_eq!((packed.len(), packed.shards(), folder.shards()), (12, vec![5, 5, 2], vec![]));
    assert_eq!((packed.found, packed.missing + packed.empty), (folder.found, folder.missing + folder.empty));
    assert!(packed.path(6).ends_with("packed/train-000001.tar/00000006.jpg"), "{}", packed.path(6).display());
    let levels = [&folder, &packed].map(|scan| Levels::default().resolve(scan, Some(dir.path())).unwrap());
    assert_eq!(levels[0], levels[1]);
    for i in 0..12 {
        assert_eq!((packed.labels(i), packed.outlines(i)), (folder.labels(i), folder.outlines(i)), "{i}");
        assert_eq!(packed.bytes(i).unwrap(), folder.bytes(i).unwrap());
    }
    assert_eq!(packed.labels(1).len(), 3);
    let [folder, packed] = [folder, packed].map(|scan| YoloDataset::new(scan, 1, levels[0]));
    assert_eq!(packed.sizes(), folder.sizes());
    for i in 0..12 {
        let (a, b) = (folder.get(i).unwrap(), packed.get(i).unwrap());
        assert_eq!((a.frame, a.labels, a.outlines, a.original), (b.frame, b.labels, b.outlines, b.original), "{i}");
    }
}

#[test]
fn shuffled_shards_hold_the_same_in_another_order() {
    let dir = tempfile::tempdir().unwrap();
    let [folder, packed] = both(dir.path(), true);
    let order = epoch_order(12, 0, 0, true);
    assert!(
        order
            .iter()
            .enumerate()
            .all(|(at, &i)| packed.bytes(at).unwrap() == folder.bytes(i).unwrap() && packed.labels(at) == folder.labels(i))
    );
}

#[test]
fn parts_of_shards_are_taken_and_held_out_and_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let [_, all] = both(dir.path(), false);
    let part = ScanOptions { fraction: 0.5, ..options(None) };
    assert_eq!(scan(&config(dir.path(), "packed"), Split::Train, &part, &|_, _| {}).unwrap().shards(), [3, 2, 1]);
    let held = DataConfig { hold_out: true, ..config(dir.path(), "packed") };
    let [train, val] = [Split::Train, Split::Val].map(|split| scan(&held, split, &options(None), &|_, _| {}).unwrap());
    assert!(train.len() + val.len() == 12 && !val.is_empty());
    let of = |scan: &Scan| (0..scan.len()).map(|i| scan.bytes(i).unwrap()).collect::<Vec<_>>();
    assert!(of(&val).iter().all(|image| !of(&train).contains(image) && of(&all).contains(image)), "each has the bytes of its own sample");
    // What was remembered counts while the shard is the same.
    let (cache, shard) = (dir.path().join("cache"), dir.path().join("packed/train-000001.tar"));
    let again = || {
        scan(&config(dir.path(), "packed"), Split::Train, &ScanOptions { allow_bad: true, ..options(Some(cache.clone())) }, &|_, _| {})
            .unwrap()
    };
    assert_eq!((again(), again()), (all.clone(), all));
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[600] ^= 1;
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(&shard, &bytes).unwrap();
    assert_eq!((again().len(), again().shards()), (11, vec![5, 4, 2]));
    std::fs::remove_file(&shard).unwrap();
    let without = again();
    assert_eq!((without.shards(), without.bad.len()), (vec![5, 0, 2], 5));
    assert_eq!(without.notes, ["shard train-000001.tar is missing: its 5 samples cannot be read"]);
}

/// A COCO annotation has a box of its own, which is what a model is judged by.
#[test]
fn boxes_of_coco_come_out_as_they_went_in() {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["images", "packed"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    std::fs::write(dir.path().join("images/a.jpg"), jpeg(97, 61)).unwrap();
    let text = r#"{"images":[{"id":1,"file_name":"a.jpg","width":97,"height":61}],"categories":[{"id":5,"name":"a"}],"annotations":[
        {"id":1,"image_id":1,"category_id":5,"bbox":[1,2.5,30.125,40],"segmentation":[[5,6,9,6,9,20]]},
        {"id":2,"image_id":1,"category_id":5,"bbox":[50,20,10,10],"segmentation":[[50,20,60,20,60,30],[51,20,52,20,52,30]]}]}"#;
    std::fs::write(dir.path().join("a.json"), text).unwrap();
    let folder = scanned(dir.path(), "{annotations: a.json, images: images}");
    write(&folder, Packing { samples: 5, shuffle: false }, &dir.path().join("packed"), "train", &|_, _| {}).unwrap();
    let packed = scanned(dir.path(), "packed");
    assert!(packed.labels(0) == folder.labels(0) && packed.labels(0).len() == 2 && folder.outlines(0).len() == 2);
}

#[test]
#[cfg(unix)]
fn a_shard_that_is_a_link_stays_inside_the_data_set() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [_, before] = both(dir.path(), false);
    let (shard, moved) = (dir.path().join("packed/train-000001.tar"), elsewhere.path().join("x"));
    std::fs::rename(&shard, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &shard).unwrap();
    let look = |config: &DataConfig| scan(config, Split::Train, &options(None), &|_, _| {});
    assert!(matches!(look(&config(dir.path(), "packed")), Err(DataError::Outside { .. })));
    let allowed = DataConfig { allow_outside: vec![elsewhere.path().into()], ..config(dir.path(), "packed") };
    assert_eq!(look(&allowed).unwrap().len(), before.len());
}

#[test]
fn shards_are_a_split_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    both(dir.path(), false);
    let index = dir.path().join("packed/index.jsonl");
    let text = std::fs::read(&index).unwrap();
    std::fs::remove_file(&index).unwrap();
    let error = scan(&config(dir.path(), "packed"), Split::Train, &options(None), &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("index.jsonl: the index is not there; `data index` writes it"), "{error}");
    std::fs::write(&index, text).unwrap();
    let error = scan(&config(dir.path(), "[packed, images]"), Split::Train, &options(None), &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("a split in shards is one folder of them; `train` names more"), "{error}");
    // Nor is a list of them promised.
    for page in ["README.md", "docs/quick-start.md", "docs/data.md"] {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page)).unwrap();
        assert!(text.contains("or a list of these; or one folder of "), "{page}");
    }
}

/// What other programs have written: every sample that is not as it seems is named.
#[test]
fn samples_of_others_are_named_where_they_are_unclear() {
    let dir = tempfile::tempdir().unwrap();
    // In a folder of this name, beside which label files are looked for in another one.
    let foreign = dir.path().join("images");
    std::fs::create_dir(&foreign).unwrap();
    let mut writer = Writer::new(&foreign, "x", 99);
    let (jpeg, none) = (jpeg(30, 30), &b""[..]);
    let samples: [(&str, &[&str], Option<&str>); 12] = [
        ("a", &["jpg", "txt"], Some("x-000000.tar/a.txt:2: class 9")),
        ("b", &["txt"], Some("x-000000.tar/b: its sample has no image")),
        ("c", &["JPG", "json"], None),
        ("d", &["jpg", "txt"], Some("x-000000.tar/d.txt:1: 2 columns")),
        ("e", &["cls", "jpg", "json"], None),
        (
            "f",
            &["rf.A.jpg", "rf.B.jpg"],
            Some("f.rf.A.jpg: `.rf.A.jpg` and `.rf.B.jpg` are all images: names in shards are alike up to their first dot"),
        ),
        ("g", &["jpg", "b.jpg"], Some("g.jpg: `.jpg` and `.b.jpg` are all images")),
        ("h", &["b.jpg", "b.txt"], Some("h.b.jpg: `.b.txt` is not its label file, which is `.txt`")),
        ("i", &["pic", "raw"], Some("i.pic: `.pic` and `.raw` may all be its image")),
        ("j", &["pic"], None),
        ("k", &["b.jpg", "txt"], Some("x-000000.tar/k.txt:1: 2 columns")),
        ("l", &["jpg", "txt", "meta.json"], None),
    ];
    for (key, kinds, _) in samples {
        let text: &[u8] = match key {
            "a" => b"1 .5 .5 .1 .1\n9 .5 .5 .1 .1\n",
            "d" | "k" => b"1 .5\n",
            _ => none,
        };
        let of = |kind: &str| if kind.to_lowercase().ends_with("jpg") || kind == "pic" { &jpeg[..] } else { text };
        writer.push(key, &kinds.iter().map(|kind| (*kind, of(kind))).collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    let bad = ScanOptions { allow_bad: true, ..options(None) };
    let found = scan(&config(dir.path(), "images"), Split::Train, &bad, &|_, _| {}).unwrap();
    let told: Vec<String> = found.bad.iter().map(ToString::to_string).collect();
    let expected: Vec<&str> = samples.iter().filter_map(|(.., words)| *words).collect();
    assert_eq!((found.len(), told.len()), (samples.len() - expected.len(), expected.len()), "{told:#?}");
    for (line, words) in told.iter().zip(expected) {
        assert!(line.contains(words), "{line} for {words}");
    }
}

/// The system may refuse to read a shard once, and not the next time.
#[test]
fn what_the_system_refuses_is_not_remembered_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    both(dir.path(), false);
    let (folder, name) = (dir.path().join("packed"), Path::new("00000000.jpg"));
    let packed = Packed::open(&folder).unwrap();
    let (shard, aside) = (folder.join("train-000000.tar"), dir.path().join("aside"));
    std::fs::rename(&shard, &aside).unwrap();
    let refused = packed.record(0, name);
    assert!(refused.content.is_err() && refused.stamp != packed.stamp(0));
    std::fs::rename(&aside, &shard).unwrap();
    let read = packed.record(0, name);
    assert!(read.content.is_ok() && read.stamp == packed.stamp(0));
}

/// A shard whose size and time are kept, as copies have them.
#[test]
fn a_fault_of_a_shard_is_looked_at_again_and_so_is_what_an_index_has_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, again) = (dir.path().join("packed"), dir.path().join("again"));
    let picture = jpeg(30, 40);
    for (folder, keys) in [(&folder, ["a", "b"]), (&again, ["b", "a"])] {
        std::fs::create_dir(folder).unwrap();
        let mut writer = Writer::new(folder, "x", 9);
        keys.iter().for_each(|key| writer.push(key, &[("jpg", &picture[..])]).unwrap());
        writer.finish().unwrap();
    }
    let (shard, index) = (folder.join("x-000000.tar"), folder.join("index.jsonl"));
    let (time, before) = (std::fs::metadata(&shard).unwrap().modified().unwrap(), std::fs::read(&index).unwrap());
    std::fs::copy(again.join("x-000000.tar"), &shard).unwrap();
    std::fs::File::options().append(true).open(&shard).unwrap().set_modified(time).unwrap();
    let cache = Some(dir.path().join("cache"));
    let look = || scan(&config(dir.path(), "packed"), Split::Train, &ScanOptions { allow_bad: true, ..options(cache.clone()) }, &|_, _| {});
    let all_bad = || look().unwrap_err().to_string();
    assert!(all_bad().contains("all 2 files of `train` are unusable"), "{}", all_bad());
    assert_eq!(index_shards(&folder, &mut |_, _| {}).unwrap(), 2);
    assert_eq!(look().unwrap().len(), 2);
    // The index alone changes, and not in its checksums.
    std::fs::write(&index, before).unwrap();
    assert!(all_bad().contains("all 2 files of `train` are unusable"), "{}", all_bad());
}
