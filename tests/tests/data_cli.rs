//! `yolo-train data`: a data set checked, counted and converted by the real program, and trained on as it came out.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::Command;

use crate::support::{expect_code, tiny_data, yolo_train};

#[test]
fn check_tells_what_is_there_and_ends_with_2_where_too_much_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]), 0);
    assert!(out.contains("train: 11 images") && out.contains("val: 4 images"), "{out}");
    let label = dir.path().join("tiny/labels/val/val_00001.txt");
    assert!(label.is_file());
    std::fs::write(&label, "0 .5 .5 .1 .1\n0 .5 .5 .1\n").unwrap();
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]), 2);
    assert!(out.contains("train: 11 images") && out.contains("val_00001.txt:2: 4 columns"), "{out}");
    assert!(error.contains("1 of 4 images cannot be used"), "{error}");
    for (args, part) in [
        (&["data"][..], "check"),
        (&["data", "check"], "--data"),
        (&["data", "check", "--data", "nowhere.yaml"], "nowhere.yaml"),
        (&["data", "check", "--data", "cache"], "no data set that is known by its files"),
        (&["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "tiny/new"], "inside the data set"),
        (&["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "cache"], "not empty"),
        (&["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "new"], "1 of 4 images cannot be used"),
    ] {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), args), 2);
        assert!(error.contains(part), "{args:?}: {error}");
    }
    assert!(!dir.path().join("new").exists());
}

#[test]
fn images_that_are_judged_on_what_they_taught_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = std::fs::read_to_string(tiny_data(dir.path())).unwrap();
    std::fs::write(dir.path().join("both.yaml"), yaml.replace("val: images/val", "val: [images/val, images/train]")).unwrap();
    std::fs::write(dir.path().join("same.yaml"), yaml.replace("val: images/val", "val: images/train")).unwrap();
    let check = |data: &str| expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", data]), 0).0;
    assert!(!check("tiny.yaml").contains("are in both"));
    for data in ["both.yaml", "same.yaml"] {
        let out = check(data);
        let line = out.lines().find(|line| line.contains("are in both")).unwrap_or_else(|| panic!("{data}: {out}"));
        assert!(line.starts_with("warning: 11 images are in both train and val, ") && line.contains("train_00000.jpg the first"), "{line}");
        let args = ["--data", data, "--epochs", "1", "--plots", "false"];
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &args), 0);
        assert!(out.contains(line), "{out}");
    }
}

#[test]
fn stats_are_told_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "stats", "--data", "tiny.yaml", "--out", "stats"]), 0);
    assert!(out.contains("train: 11 images") && out.contains("image sizes: 96x72 (11)"), "{out}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("stats").join(name)).unwrap();
    assert_eq!(read("sizes.csv"), "split,width,height,images\ntrain,96,72,11\nval,96,72,4\n");
    let csv = read("stats.csv");
    assert_eq!((csv.lines().count(), csv.lines().next()), (9, Some("split,class,name,objects,small,medium,large,images")));
    let objects: u64 =
        csv.lines().skip(1).filter(|l| l.starts_with("train,")).map(|l| l.split(',').nth(3).unwrap().parse::<u64>().unwrap()).sum();
    assert!(out.contains(&format!("{objects} objects")), "{objects}: {out}");
    let picture = std::fs::read(dir.path().join("stats/stats.png")).unwrap();
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000);
}

#[test]
fn what_is_converted_can_be_trained_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "convert", "yolo2coco", "--data", "tiny.yaml", "--out", "coco"]), 0);
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "coco"]), 0);
    assert!(out.contains("val: val.json: classes 0 person (id 1), 1 bicycle (id 2)"), "{out}");
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "coco/annotations/val.json"]), 0);
    assert!(out.contains("val: 4 images") && !out.contains("train:"), "{out}");
    let train = |data: &str, code| {
        let fast = ["--epochs", "1", "--imgsz", "64", "--batch", "4", "--workers", "1", "--device", "cpu", "--plots", "false"];
        expect_code(&mut yolo_train(dir.path(), &[&["--data", data], &fast[..]].concat()), code)
    };
    let (out, _) = train("coco/data.yaml", 0);
    assert!(out.contains("train: 11 images") && out.contains("1 epochs completed"), "{out}");
    let (_, error) = train("coco/annotations/val.json", 2);
    assert!(error.contains("one COCO file is one split"), "{error}");
    expect_code(
        &mut yolo_train(
            dir.path(),
            &["data", "convert", "coco2yolo", "--json", "coco/annotations/val.json", "--out", "yolo", "--images", "copy"],
        ),
        0,
    );
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "yolo"]), 0);
    assert!(out.contains("train: ") && out.contains("val: "), "one in ten and at least one is held out: {out}");
    let (out, _) = train("yolo", 0);
    assert!(out.contains("val: none is named") && out.contains("1 epochs completed"), "{out}");
}

/// What is redirected holds words only.
#[test]
fn a_log_without_a_terminal_has_no_colours() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let mut check = yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]);
    check.env_remove("NO_COLOR").env("TERM", "xterm-256color");
    expect_code(&mut check, 0);
    for remembered in std::fs::read_dir(dir.path().join("cache/bellows")).unwrap().map(|entry| entry.unwrap().path()) {
        if remembered.extension().is_some_and(|extension| extension == "scan") {
            std::fs::write(remembered, "torn").unwrap();
        }
    }
    let (_, error) = expect_code(&mut check, 0);
    assert!(error.contains("WARN") && error.contains("damaged; scanning again") && !error.contains('\x1b'), "{error:?}");
}

/// Every clip of every split at one minute, with one number.
const ONE_MINUTE: &str = "
import datetime, sys
sys.path.insert(0, sys.argv[1])
import make_ltdv2
make_ltdv2.clips = lambda draw, count: [(datetime.date(2020, 5, 1), 7, 3)] * count
sys.argv[:2] = ['make_ltdv2.py']
make_ltdv2.main()
";

#[test]
fn a_tree_of_ltdv2s_form_is_made_and_opened() {
    let dir = tempfile::tempdir().unwrap();
    if !Command::new("python3").arg("--version").output().is_ok_and(|python| python.status.success()) {
        return eprintln!("skipped: no python3 on this machine");
    }
    let yaml =
        "path: drawn\ntrain: images/train\nval: images/val\nnames: [person, bicycle, motorcycle, vehicle]\nsample: {train: 2, val: 1}\n";
    std::fs::write(dir.path().join("drawn.yaml"), yaml).unwrap();
    let check = |data: &str| expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", data]), 0).0;
    check("drawn.yaml");
    let datasets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets");
    let python = |program: &[&str], args: [&str; 5]| {
        let mut command = Command::new("python3");
        expect_code(command.current_dir(dir.path()).arg("-B").args(program).args(args), 0);
    };
    let maker = datasets.join("make_ltdv2.py");
    python(&[maker.to_str().unwrap()], ["made", "--frames", "drawn/images/train", "--share", "0.0004"]);
    let out = check("made");
    assert!(["train: 132 images", "val: 120 images", "test: 120 images"].iter().all(|part| out.contains(part)), "{out}");
    // Clips that would have one name are as many.
    python(&["-c", ONE_MINUTE, datasets.to_str().unwrap()], ["same", "--frames", "drawn/images/train", "--share", "0.0011"]);
    let out = check("same");
    assert!(out.contains("train: 362 images"), "{out}");
    let clips = std::fs::read_dir(dir.path().join("same/frames/20200501")).unwrap();
    assert_eq!(clips.count(), 4 + 1 + 1);
}
