//! Settings that change what a run reads or writes, through the binary: caches, rectangular batches, COCO predictions, exit codes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::{expect_code, tiny_data, yolo_train};

fn files(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path(), entry.metadata().unwrap().len());
        }
    }
    found
}

/// `results.csv` without the column of times.
fn results(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("results.csv")).unwrap();
    text.lines().map(|line| line.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, cell)| format!("{cell},")).collect()).collect()
}

#[test]
fn a_cache_changes_no_bit_and_touches_no_data() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = |name: &str, cache: &str| {
        let args = ["--data", "tiny.yaml", "--epochs", "1", "--plots", "false", "--name", name, "--cache", cache];
        expect_code(&mut yolo_train(dir.path(), &args), 0);
        results(&dir.path().join("runs/detect").join(name))
    };
    let plain = run("plain", "false");
    let before = files(&dir.path().join("tiny"));
    assert_eq!(run("ram", "ram"), plain);
    // What was being written there when a process was killed is removed by the next one; no process has the highest number.
    let part = bellows_runs::part_of(&dir.path().join("cache/bellows/a.scan")).unwrap();
    let left = part.to_str().unwrap().replace(&format!("-{}-", std::process::id()), "-2147483646-");
    std::fs::write(&left, "half").unwrap();
    assert_eq!(run("disk", "disk"), plain);
    assert!(!Path::new(&left).exists() || cfg!(not(unix)));
    let cached = files(&dir.path().join("cache/bellows/images"));
    assert_eq!(cached.len(), 15, "11 training and 4 validation frames: {cached:?}");
    assert_eq!(run("disk-again", "disk"), plain);
    assert_eq!(files(&dir.path().join("cache/bellows/images")), cached);
    assert_eq!(files(&dir.path().join("tiny")), before, "the dataset is as it was");

    let damaged = cached.keys().next().unwrap();
    std::fs::write(damaged, b"short").unwrap();
    assert_eq!(run("disk-torn", "disk"), plain);
    assert_eq!(files(&dir.path().join("cache/bellows/images")), cached, "what is not whole is made again");
}

#[test]
fn rect_trains_on_rectangles() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--epochs", "1", "--imgsz", "128", "--rect", "--name", "r"];
    expect_code(&mut yolo_train(dir.path(), &args), 0);
    // Frames of 96x72 at 128: batches of 128x96, four to a picture.
    let (width, height) = image::image_dimensions(dir.path().join("runs/detect/r/train_batch0.jpg")).unwrap();
    assert_eq!(width * 3, height * 4, "{width}x{height}");
}

#[test]
fn save_json_writes_what_coco_tools_read() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--epochs", "1", "--plots", "false", "--save-json", "--conf", "0.0001", "--name", "j"];
    expect_code(&mut yolo_train(dir.path(), &args), 0);
    let text = std::fs::read_to_string(dir.path().join("runs/detect/j/predictions.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert!(!rows.is_empty());
    for row in &rows {
        let bbox: Vec<f64> = row["bbox"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert!(bbox[0] >= 0.0 && bbox[1] >= 0.0 && bbox[0] + bbox[2] <= 96.001 && bbox[1] + bbox[3] <= 72.001, "{row}");
        assert!((1..=4).contains(&row["category_id"].as_u64().unwrap()), "{row}");
        assert!((0.0..=1.0).contains(&row["score"].as_f64().unwrap()) && !row["image_id"].is_null(), "{row}");
    }
}

/// A COCO file's own ids come back: such as no rule makes of file names or of the order of classes, and beyond what a float can hold.
#[test]
fn save_json_has_the_ids_of_a_coco_file() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "coco"]), 0);
    let json = dir.path().join("coco/annotations/val.json");
    let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let renumber = |value: &mut serde_json::Value, rule: fn(i64) -> i64| *value = rule(value.as_i64().unwrap()).into();
    let (image_id, category_id) = (|id: i64| 20_261_122_104_500_001 + 2 * id, |id: i64| 90 - 7 * id);
    file["images"].as_array_mut().unwrap().iter_mut().for_each(|image| renumber(&mut image["id"], image_id));
    file["categories"].as_array_mut().unwrap().iter_mut().for_each(|category| renumber(&mut category["id"], category_id));
    for annotation in file["annotations"].as_array_mut().unwrap() {
        renumber(&mut annotation["image_id"], image_id);
        renumber(&mut annotation["category_id"], category_id);
    }
    std::fs::write(&json, file.to_string()).unwrap();
    let images: BTreeMap<String, i64> = file["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| (i["file_name"].as_str().unwrap().to_string(), i["id"].as_i64().unwrap()))
        .collect();

    let fast = ["--epochs", "1", "--imgsz", "64", "--batch", "4", "--device", "cpu", "--plots", "false", "--conf", "0.0001", "--save-json"];
    expect_code(&mut yolo_train(dir.path(), &[&["--data", "coco/data.yaml", "--name", "j"], &fast[..]].concat()), 0);
    let rows = |path: &str| -> Vec<serde_json::Value> { serde_json::from_slice(&std::fs::read(dir.path().join(path)).unwrap()).unwrap() };
    let trained = rows("runs/detect/j/predictions.json");
    let mut categories = std::collections::BTreeSet::new();
    for row in &trained {
        let file_name = row["file_name"].as_str().unwrap();
        let id = images.iter().find(|(name, _)| name.ends_with(file_name)).unwrap().1;
        assert_eq!(row["image_id"].as_i64(), Some(*id), "{row}");
        categories.insert(row["category_id"].as_i64().unwrap());
    }
    assert!(!categories.is_empty() && categories.iter().all(|id| [62, 69, 76, 83].contains(id)), "{categories:?}");

    let weights = "runs/detect/j/weights/best.safetensors";
    let val = ["val", "--weights", weights, "--data", "coco/data.yaml", "--name", "v"];
    expect_code(&mut yolo_train(dir.path(), &[&val[..], &fast[4..]].concat()), 0);
    assert_eq!(rows("runs/detect/v/predictions.json"), trained);
    // One class for all is no category of the file; the images are its images.
    expect_code(&mut yolo_train(dir.path(), &[&val[..6], &["one", "--single-cls"], &fast[4..]].concat()), 0);
    let one = rows("runs/detect/one/predictions.json");
    assert!(!one.is_empty() && one.iter().all(|row| row["category_id"] == 1 && row["image_id"].as_i64() > Some(1 << 53)), "{:?}", one[0]);
}

#[test]
fn a_run_that_diverges_for_good_ends_with_code_4() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--optimizer", "SGD", "--lr0", "1e30", "--warmup-epochs", "0", "--epochs", "40", "--plots", "false"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &args), 4);
    assert!(error.contains("diverged"), "{error}");
}
