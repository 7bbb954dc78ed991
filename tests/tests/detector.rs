//! A trained detector in a user's hands: `val` and `predict` as commands, and what they answer to things that are wrong.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{self, expect_code, one_sentence, tiny_data, yolo_train};
use serde_json::Value;

/// Two epochs on the tiny data in `dir`: enough for boxes, if not for good ones.
fn trained(dir: &Path) {
    tiny_data(dir);
    expect_code(&mut yolo_train(dir, &["--data", "tiny.yaml", "--epochs", "2", "--save-json"]), 0);
}

const BEST: &str = "runs/detect/train/weights/best.safetensors";

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn val_says_of_weights_what_training_said_of_them() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let args = ["val", "--weights", BEST, "--data", "tiny.yaml", "--device", "cpu", "--batch", "4", "--save-json", "--json"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &args), 0);
    let object: Value = serde_json::from_str(&out).unwrap();
    let (run, val) = (dir.path().join("runs/detect/train"), dir.path().join("runs/detect/val"));
    for file in ["val.csv", "predictions.json"] {
        assert_eq!(std::fs::read(val.join(file)).unwrap(), std::fs::read(run.join(file)).unwrap(), "{file}");
    }
    for file in ["report.html", "BoxPR_curve.png", "confusion_matrix.png", "val_batch0_pred.jpg"] {
        assert!(val.join(file).metadata().unwrap().len() > 1000 && run.join(file).exists(), "{file}");
    }
    let csv = std::fs::read_to_string(val.join("val.csv")).unwrap();
    let all: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
    let close = |cell: &str, key: &str| (cell.parse::<f64>().unwrap() - object[key].as_f64().unwrap()).abs() < 1e-5;
    assert!(close(all[5], "map50") && close(all[6], "map50_95") && close(all[3], "precision"), "{csv}\n{out}");
    assert_eq!((&object["split"], &object["images"]), (&"val".into(), &4.into()));

    // In the same folder again: what the one before has left is set aside, and no more.
    for file in ["groups.csv", "by_month.png", "notes.txt"] {
        std::fs::write(val.join(file), "of before").unwrap();
    }
    let again = ["--split", "train", "--plots", "false", "--exist-ok"];
    let left = || -> Vec<String> { files(&val).into_iter().filter(|name| !name.ends_with(".abandoned")).collect() };
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..9], &again].concat()), 0);
    assert_eq!(out.matches(" are set aside: they are called NAME.abandoned").count(), 1, "{out}");
    assert_eq!(left(), ["notes.txt", "val.csv"]);
    assert_eq!(std::fs::read_to_string(val.join("by_month.png.abandoned")).unwrap(), "of before");
    assert_eq!(std::fs::read_to_string(val.join("val.csv.abandoned")).unwrap(), csv);
    // But for what a run has written that trained there.
    for file in ["groups.csv", "config.yaml"] {
        std::fs::write(val.join(file), "of a run").unwrap();
    }
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..9], &again].concat()), 0);
    assert!(!out.contains("set aside"), "{out}");
    assert_eq!(left(), ["config.yaml", "groups.csv", "notes.txt", "val.csv"]);

    let (table, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..9], &["--split", "train", "--plots", "false"]].concat()), 0);
    assert!(table.contains("COCO AP by size") && table.contains("runs/detect/val2"), "{table}");
    assert_eq!(files(&dir.path().join("runs/detect/val2")), ["val.csv"]);
    let tiles = ["--tile", "48", "--overlap", "0.3", "--plots", "false"];
    let (table, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..9], &tiles].concat()), 0);
    assert!(table.contains("mAP50"), "{table}");

    // What becomes of counts of a sensor, which these weights have not seen, the data set says, below what is typed.
    let yaml = std::fs::read_to_string(dir.path().join("tiny.yaml")).unwrap();
    let deep = yaml.replace("path: tiny", "path: deep").replace("sample: {", "sample: {deep: true, ") + "range: [20000, 40000]\n";
    std::fs::write(dir.path().join("deep.yaml"), deep).unwrap();
    for (typed, levels) in [
        (&[][..], "counts 20000 to 40000 become black to white"),
        (&["--range", "25000,35000"], "counts 25000 to 35000 become black to white"),
        (&["--percentile-of", "frame"], "percentiles 0.5 to 99.5 of each frame become black to white"),
    ] {
        let args = ["val", "--weights", BEST, "--data", "deep.yaml", "--device", "cpu", "--plots", "false"];
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&args[..], typed].concat()), 0);
        assert!(out.contains(levels), "{typed:?}: {out}");
    }
}

fn look<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["predict", "--weights", BEST, "--device", "cpu", "--conf", "0.001"], more].concat()
}

#[test]
fn predict_keeps_the_order_and_names_what_it_skips() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let images = dir.path().join("tiny/images/val");
    let mut names = files(&images);
    names.reverse();
    std::fs::write(dir.path().join("cut.jpg"), &std::fs::read(images.join(&names[0])).unwrap()[..300]).unwrap();
    std::fs::write(dir.path().join("empty.png"), "").unwrap();
    let mut list: Vec<String> = names.iter().map(|name| format!("tiny/images/val/{name}")).collect();
    list.insert(1, "cut.jpg".into());
    list.insert(2, "gone.jpg".into());
    list.push("empty.png".into());
    std::fs::write(dir.path().join("list.txt"), list.join("\n")).unwrap();
    let (out, error) =
        expect_code(&mut yolo_train(dir.path(), &look(&["--source", "list.txt", "--json", "--save-txt", "--save-conf", "--save-crop"])), 0);
    let seen: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let order: Vec<String> = seen.iter().map(|v| v["image"].as_str().unwrap().rsplit('/').next().unwrap().to_string()).collect();
    assert_eq!(order, names);
    for skipped in ["cut.jpg", "gone.jpg", "empty.png", "3 skipped"] {
        assert!(error.contains(skipped), "{skipped} in {error}");
    }
    let found = seen[0]["detections"].as_array().unwrap();
    assert!(!found.is_empty() && found[0]["name"].is_string() && found[0]["box"]["x2"].as_f64().unwrap() <= 96.0, "{out}");
    let folder = dir.path().join("runs/detect/predict");
    let stem = names[0].rsplit_once('.').unwrap().0;
    let labels = std::fs::read_to_string(folder.join(format!("labels/{stem}.txt"))).unwrap();
    assert_eq!(labels.lines().count(), found.len());
    assert!(labels.lines().all(|line| line.split(' ').count() == 6), "{labels}");
    assert!(files(&folder).contains(&names[0]) && !files(&folder.join("crops")).is_empty());

    // Batches and standard input change nothing of it; nothing wanted, nothing made.
    let mut piped = yolo_train(dir.path(), &look(&["--source", "-", "--batch", "3", "--json", "--save", "false"]));
    let mut child = piped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(list.join("\n").as_bytes()).unwrap();
    let again = child.wait_with_output().unwrap();
    assert!(again.status.success());
    assert_eq!(String::from_utf8(again.stdout).unwrap(), out);
    assert!(!dir.path().join("runs/detect/predict2").exists());
    // A reader that has enough ends it, however much there is to look at.
    std::fs::write(dir.path().join("many.txt"), format!("{}\n", list[0]).repeat(5000)).unwrap();
    let mut piped = yolo_train(dir.path(), &look(&["--source", "many.txt", "--json", "--save", "false"]));
    let mut child = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(ended.status.success() && line.ends_with("}\n"), "{line}{told}");
    assert!(told.contains(" images in ") && !told.contains("5000 images in "), "{told}");
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &look(&["--source", "tiny/images/val", "--tile", "48", "--save", "false"])), 0);
    assert!(out.contains("image 1/4") && out.contains("4 images in"), "{out}");
}

#[test]
fn an_export_beside_weights_is_no_second_detector() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["export", "--weights", BEST, "--imgsz", "64"]), 0);
    let weights = dir.path().join("runs/detect/train/weights");
    let look = |code| {
        let args = ["predict", "--weights", "runs/detect/train", "--device", "cpu", "--source", "tiny/images/val", "--save", "false"];
        expect_code(&mut yolo_train(dir.path(), &args), code).1
    };
    let error = look(2);
    assert!(error.contains("3 weight files; say which"), "the best or the last: {error}");
    std::fs::remove_file(weights.join("last.safetensors")).unwrap();
    let told = look(0);
    assert_eq!(told.matches("best.safetensors is used; best.onnx beside it has its name").count(), 1, "{told}");
}

#[test]
fn a_rectangle_is_rounded_up_and_boxes_stay_in_the_frame() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let sized = |imgsz: &str, code| {
        expect_code(
            &mut yolo_train(dir.path(), &look(&["--source", "tiny/images/val", "--json", "--save", "false", "--imgsz", imgsz])),
            code,
        )
    };
    let (flat, error) = sized("100,320", 0);
    assert!(error.contains("--imgsz 100,320 is rounded up to 128,320, multiples of 32"), "{error}");
    let (again, error) = sized("128,320", 0);
    assert!(flat == again && !error.contains("rounded"), "{error}");
    let (square, _) = sized("320", 0);
    assert_ne!(flat, square, "frames of 96x72 are 128 high before they are 320 wide");
    for line in flat.lines() {
        let seen: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&seen["width"], &seen["height"]), (&96.into(), &72.into()));
        for found in seen["detections"].as_array().unwrap() {
            assert!(found["box"]["x2"].as_f64().unwrap() <= 96.0 && found["box"]["y2"].as_f64().unwrap() <= 72.0, "{line}");
        }
    }
    assert!(sized("1,2,3", 2).1.contains("H,W"));
}

#[test]
fn what_cannot_be_used_gets_one_sentence_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    std::fs::write(dir.path().join("huge.onnx"), [b"\x08\x08\x3a\xff\xff\xff\xff\x25".as_slice(), &[0; 64]].concat()).unwrap();
    std::fs::write(dir.path().join("zero.pt"), "").unwrap();
    std::fs::write(dir.path().join("magic.jpg"), b"\xff\xd8\xff\xe0 no picture").unwrap();
    std::fs::write(dir.path().join("five.yaml"), "path: tiny\ntrain: images/train\nval: images/val\nnames: [a, b, c, d, e]\n").unwrap();
    let cases: [(&[&str], &[&str]); 11] = [
        (&["predict", "--source", "x.jpg"], &["--weights"]),
        (&["predict", "--weights", BEST], &["--source"]),
        (&["predict", "--weights", BEST, "--source", "x.jpg"], &["x.jpg", "no such file"]),
        (
            &["predict", "--weights", "runs/detect/train", "--source", "tiny/images/val"],
            &["say which", "best.safetensors", "last.safetensors"],
        ),
        (&["predict", "--weights", "huge.onnx", "--source", "tiny/images/val"], &["huge.onnx"]),
        (&["predict", "--weights", "zero.pt", "--source", "tiny/images/val"], &["zero.pt"]),
        (&["predict", "--weights", BEST, "--source", "magic.jpg", "--device", "cpu"], &["none of 1 sources"]),
        (&["predict", "--weights", BEST, "--source", "magic.jpg", "--tile", "8"], &["--tile"]),
        (&["val", "--weights", BEST], &["--data"]),
        (&["val", "--weights", BEST, "--data", "tiny.yaml", "--tile", "48", "--cache", "ram"], &["--tile", "--cache"]),
        (&["val", "--weights", BEST, "--data", "five.yaml", "--device", "cpu"], &["4 classes", "has 5"]),
    ];
    for (args, words) in cases {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), args), 2);
        one_sentence(&error, words, &format!("{args:?}"));
    }
    // A picture of 20,000 x 20,000 pixels that is not there is skipped without room being made for it.
    let mut bomb = std::fs::read(dir.path().join("tiny/images/val").join(&files(&dir.path().join("tiny/images/val"))[0])).unwrap();
    if let Some(at) = bomb.windows(2).position(|w| w == [0xff, 0xc0]) {
        bomb[at + 5..at + 9].copy_from_slice(&[0x4e, 0x20, 0x4e, 0x20]);
    }
    std::fs::write(dir.path().join("bomb.jpg"), bomb).unwrap();
    let limited = "ulimit -v 8000000; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(support::program("yolo-train")).args([
        "predict",
        "--weights",
        BEST,
        "--device",
        "cpu",
        "--source",
        "bomb.jpg",
    ]);
    let (_, error) = expect_code(command.current_dir(dir.path()).env("XDG_CACHE_HOME", dir.path().join("cache")), 2);
    assert!(error.contains("skipped bomb.jpg: Image size exceeds limit"), "{error}");
}

#[test]
fn validation_images_that_cannot_be_decoded_are_named_and_the_run_goes_on_once_they_can() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let begin = ["--data", "tiny.yaml", "--epochs", "1", "--close-mosaic", "0", "--plots", "false"];
    expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]), 0);
    let name = files(&dir.path().join("tiny/images/val"))[1].clone();
    let image = dir.path().join("tiny/images/val").join(&name);
    // A PNG whose beginning and end are whole, so that the scan finds nothing.
    let mut whole = std::io::Cursor::new(Vec::new());
    image::open(&image).unwrap().write_to(&mut whole, image::ImageFormat::Png).unwrap();
    let (whole, mut torn) = (whole.get_ref(), whole.get_ref().clone());
    let middle = whole.len() / 4..whole.len() / 2;
    torn[middle].fill(0xFF);
    std::fs::write(&image, &torn).unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &begin), 1);
    assert!(error.contains(&name) && error.contains("1 of 4"), "{error}");
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &[&begin[..], &["--allow-bad", "--name", "without"]].concat()), 0);
    assert!(format!("{out}{error}").contains("left out of the evaluation"), "{out}{error}");
    let events = std::fs::read_to_string(dir.path().join("runs/detect/without/events.jsonl")).unwrap();
    assert!(events.lines().any(|line| line.contains("\"unreadable\"") && line.contains(&name)), "{events}");
    std::fs::write(&image, whole).unwrap();
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/train"]), 0);
    assert!(out.contains("all          4"), "{out}");
    assert!(dir.path().join(BEST).exists());
    // Who judges weights on such data hears that the data are at fault.
    std::fs::write(&image, torn).unwrap();
    let val = ["val", "--weights", BEST, "--data", "tiny.yaml", "--device", "cpu", "--plots", "false"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &val), 2);
    assert!(error.contains(&name) && error.contains("1 of 4"), "{error}");
}

#[test]
fn a_film_comes_back_with_boxes() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path());
    let first = files(&dir.path().join("tiny/images/val"))[0].clone();
    let still = dir.path().join("tiny/images/val").join(first);
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-v", "error", "-loop", "1", "-framerate", "5", "-i"]).arg(&still);
    let made = ffmpeg.args(["-frames:v", "6", "-pix_fmt", "yuv420p"]).arg(dir.path().join("film.mp4")).status();
    let look = look(&["--source", "film.mp4", "--vid-stride", "2"]);
    if made.is_err() {
        std::fs::write(dir.path().join("film.mp4"), "").unwrap();
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &look), 2);
        assert!(error.contains("ffmpeg") && error.contains("not installed"), "{error}");
        // Past the test runner, which shows what a test prints only if it fails.
        writeln!(std::io::stderr(), "no ffmpeg on this machine: only its absence was tested, a_film_comes_back_with_boxes is not run").ok();
        return;
    }
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &look), 0);
    assert!(out.contains("video 1/1 (frame 5) film.mp4") && out.contains("3 images in"), "{out}");
    assert!(dir.path().join("runs/detect/predict/film.mp4").metadata().unwrap().len() > 500);
    assert_eq!(files(&dir.path().join("runs/detect/predict")), ["film.mp4"]);
    // Its frames as images, with the film or without.
    for (more, expected) in [(&["--save-txt"][..], &["film.mp4", "film_frames", "labels"][..]), (&["--save", "false"], &["film_frames"])] {
        let args = [&look[..], &["--save-frames", "--name", "frames", "--exist-ok"], more].concat();
        expect_code(&mut yolo_train(dir.path(), &args), 0);
        let folder = dir.path().join("runs/detect/frames");
        assert_eq!(files(&folder), expected);
        assert_eq!(files(&folder.join("film_frames")), ["1.jpg", "3.jpg", "5.jpg"]);
        assert_eq!(image::image_dimensions(folder.join("film_frames/5.jpg")).unwrap(), (96, 72));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
