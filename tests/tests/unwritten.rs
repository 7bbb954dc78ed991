//! Files of a run that cannot be written, and images that cannot be read: named, made up for by the next process, and never the end of what was
//! trained.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{checkpoints, ending, expect_code, program, tiny_data, yolo_train};
use bellows_runs::{Checkpoints, Member};

/// A folder in the place of a file.
fn obstruct(run: &Path, file: &str) {
    std::fs::create_dir_all(run.join(file).join("x")).unwrap();
}

/// Trains in `runs/detect/NAME`, which may be there.
fn train(dir: &Path, name: &str, more: &[&str]) -> Command {
    yolo_train(dir, &[&["--data", "tiny.yaml", "--name", name, "--exist-ok"], more].concat())
}

#[test]
fn what_a_run_could_not_write_its_next_process_does() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = dir.path().join("runs/detect/p");
    let files = ["train_batch0.jpg", "results.png", "weights/last.safetensors"];
    files.iter().for_each(|file| obstruct(&run, file));
    let (out, error) = expect_code(&mut train(dir.path(), "p", &["--epochs", "1"]), 3);
    assert!(error.contains("training is saved") && files.iter().all(|file| error.contains(file)), "{error}");
    assert_eq!(out.lines().filter(|line| line.starts_with("warning") && line.contains("train_batch0.jpg")).count(), 2, "{out}");
    // Nothing has changed: the code stays what it is.
    let resume = || yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]);
    expect_code(&mut resume(), 3);
    files.iter().for_each(|file| std::fs::remove_dir_all(run.join(file)).unwrap());
    std::fs::remove_file(run.join("results.csv")).unwrap();
    expect_code(&mut resume(), 0);
    for file in &files[..2] {
        image::open(run.join(file)).unwrap();
    }
    assert!(bellows_weights::read(&run.join(files[2])).is_ok());
    assert_eq!(std::fs::read_to_string(run.join("results.csv")).unwrap().lines().count(), 2);
}

/// A result that only stdout has is lost with it; what is said of training stands in the run's files.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_ends_what_is_only_there() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let into_full = |mut command: Command| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = into_full(yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]));
    assert!(code == Some(1) && error.contains("error: stdout: No space left on device"), "{code:?}: {error}");
    let (code, error) = into_full(train(dir.path(), "full", &["--epochs", "1", "--plots", "false"]));
    assert_eq!(code, Some(0), "{error}");
}

/// Somebody has deleted the weights to save space: the run makes their folder again, and they are as they would have been.
#[test]
fn a_run_whose_weights_were_deleted_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = dir.path().join("runs/detect/d");
    expect_code(&mut train(dir.path(), "d", &["--epochs", "2", "--plots", "false"]), 0);
    let whole = ending(&run);
    // After the first epoch.
    Checkpoints::open(run.join("checkpoints")).unwrap().abandon_after(Some(3)).unwrap();
    std::fs::remove_dir_all(run.join("weights")).unwrap();
    // By the command that began it: what it says is as the run has it, or is a choice that the run has made.
    let again = ["--epochs", "2", "--plots", "false", "--optimizer", "auto", "--resume", run.to_str().unwrap()];
    let (out, _) = expect_code(&mut train(dir.path(), "d", &again), 0);
    assert!(out.contains("going on at epoch 2"), "{out}");
    assert!(ending(&run) == whole);
    let other = ["--epochs", "3", "--resume", run.to_str().unwrap()];
    assert!(expect_code(&mut train(dir.path(), "d", &other), 2).1.contains("--epochs cannot change"));
}

#[test]
fn settings_of_a_new_run_do_not_stand_beside_checkpoints_of_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = dir.path().join("runs/detect/again");
    expect_code(&mut train(dir.path(), "again", &["--epochs", "1"]), 0);
    assert!(!checkpoints(&run).is_empty());
    std::fs::remove_file(run.join("config.yaml")).unwrap();
    obstruct(&run, "config.yaml");
    let output = train(dir.path(), "again", &["--epochs", "1", "--lr0", "0.5"]).output().unwrap();
    assert!(!output.status.success());
    let mut names = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.any(|name| name.to_string_lossy().contains(".abandoned"));
    assert!(aside && checkpoints(&run).is_empty(), "they were set aside before the settings were to be written");
}

/// What the new run does not write would be taken for its own.
#[test]
fn what_the_run_before_has_left_in_its_directory_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = dir.path().join("runs/detect/s");
    expect_code(&mut train(dir.path(), "s", &["--epochs", "1", "--save-pt", "--save-json", "--save-period", "1", "--tensorboard"]), 0);
    // Of groups, which these data have none of, and of a supervisor; and two files of the user's.
    for file in ["groups.csv", "stability.csv", "by_month.png", "supervision.jsonl", "notes.txt", "weights/mine.pt"] {
        std::fs::write(run.join(file), "of before").unwrap();
    }
    let best = std::fs::read(run.join("weights/best.pt")).unwrap();
    let (out, _) = expect_code(&mut train(dir.path(), "s", &["--epochs", "1", "--plots", "false", "--seed", "5"]), 0);
    assert_eq!(out.matches(" are set aside: they are called NAME.abandoned").count(), 1, "{out}");
    let left = |folder: &str| {
        let names = std::fs::read_dir(run.join(folder)).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.ends_with(".abandoned")).collect();
        names.sort();
        names
    };
    let own =
        ["checkpoints", "config.yaml", "events.jsonl", "heartbeat.json", "notes.txt", "results.csv", "run.lock", "val.csv", "weights"];
    assert_eq!(left(""), own);
    assert_eq!(left("weights"), ["best.safetensors", "last.safetensors", "mine.pt"]);
    assert!(std::fs::read(run.join("weights/best.pt.abandoned")).unwrap() == best);
    assert!(run.join("tensorboard.abandoned").is_dir());
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]), 0);
    assert!(!out.contains("set aside") && left("weights").len() == 3, "{out}");
}

/// As those of another user: what they tell of is not known, and nothing of it stays beside what the run makes.
#[test]
fn logs_that_cannot_be_read_do_not_hinder_a_new_run() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    for log in ["results.csv", "events.jsonl"] {
        let name = log.split_once('.').unwrap().0;
        let run = dir.path().join("runs/detect").join(name);
        obstruct(&run, log);
        std::fs::create_dir(run.join("weights")).unwrap();
        std::fs::write(run.join("weights/best.pt"), "of before").unwrap();
        let (out, error) = expect_code(&mut train(dir.path(), name, &["--epochs", "1", "--plots", "false"]), 3);
        assert!(out.contains("1 files and folders of the run before"), "{out}");
        assert!(error.contains("training is saved") && error.contains(log), "{error}");
        assert!(!run.join("weights/best.pt").exists() && run.join("weights/best.pt.abandoned").exists());
    }
}

#[test]
fn an_example_ends_with_the_code_of_what_it_could_not_write() {
    let dir = tempfile::tempdir().unwrap();
    obstruct(&dir.path().join("runs/byte_gpt"), "weights/last.safetensors");
    let mut example = Command::new(program("examples/byte_gpt"));
    let (_, error) = expect_code(example.current_dir(dir.path()).args(["runs", "1"]), 3);
    assert!(error.contains("training is saved") && error.contains("last.safetensors"), "{error}");
}

/// An image with a header that says what it said, and nothing that can be decoded behind it. Returns what was there.
fn spoil(path: &Path) -> Vec<u8> {
    let (whole, mut png) = (std::fs::read(path).unwrap(), Cursor::new(Vec::new()));
    image::open(path).unwrap().write_to(&mut png, image::ImageFormat::Png).unwrap();
    let mut png = png.into_inner();
    // Behind signature and IHDR, before the checksum of the pixels and IEND.
    let end = png.len() - 16;
    png[60..end].fill(0);
    std::fs::write(path, png).unwrap();
    whole
}

#[test]
fn a_few_images_that_cannot_be_judged_by_are_left_out_and_more_stop_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = std::fs::read_to_string(tiny_data(dir.path())).unwrap();
    std::fs::write(dir.path().join("tiny.yaml"), yaml.replace("val: 4,", "val: 100,")).unwrap();
    let few = ["--epochs", "1", "--plots", "false"];
    expect_code(&mut train(dir.path(), "whole", &few), 0);
    let mut images: Vec<PathBuf> = std::fs::read_dir(dir.path().join("tiny/images/val")).unwrap().map(|e| e.unwrap().path()).collect();
    images.sort();
    let name = |i: usize| images[i].file_name().unwrap().to_str().unwrap();

    let first = spoil(&images[0]);
    let (out, _) = expect_code(&mut train(dir.path(), "one", &few), 0);
    assert!(out.contains("left out of the evaluation") && out.contains(name(0)), "{out}");
    let events = std::fs::read_to_string(dir.path().join("runs/detect/one/events.jsonl")).unwrap();
    assert_eq!(events.lines().filter(|line| line.contains("\"unreadable\"") && line.contains(name(0))).count(), 1);

    let second = spoil(&images[1]);
    let (_, error) = expect_code(&mut train(dir.path(), "two", &few), 1);
    assert!(error.contains(name(0)) && error.contains(name(1)) && error.contains("2 of 100"), "{error}");
    for (image, bytes) in images.iter().zip([first, second]) {
        std::fs::write(image, bytes).unwrap();
    }
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/two"]), 0);
    assert!(out.contains("going on at epoch 1"), "{out}");
    let rows = |name: &str| std::fs::read_to_string(dir.path().join("runs/detect").join(name).join("results.csv")).unwrap();
    let judged = |name: &str| rows(name).lines().nth(1).unwrap().split(',').skip(2).collect::<Vec<_>>().join(",");
    assert_eq!(judged("two"), judged("whole"));
}

/// Every epoch meets it again, alone and in mosaics.
#[test]
fn an_image_that_cannot_be_learnt_from_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]), 0);
    let images = std::fs::read_dir(dir.path().join("tiny/images/train")).unwrap().map(|entry| entry.unwrap().path());
    spoil(&images.min().unwrap());
    let (_, error) = expect_code(&mut train(dir.path(), "spoilt", &["--epochs", "3", "--plots", "false"]), 0);
    assert_eq!(error.lines().filter(|line| line.contains("left out of its batch")).count(), 1, "{error}");
}

/// A run begun by a program that did not know a setting goes on under this one, with what it was as if it had been there.
#[test]
fn a_run_of_an_older_program_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let run = dir.path().join("runs/detect/old");
    expect_code(&mut train(dir.path(), "old", &["--epochs", "2", "--plots", "false"]), 0);
    let whole = ending(&run);
    // After the first epoch.
    let checkpoints = Checkpoints::open(run.join("checkpoints")).unwrap();
    checkpoints.abandon_after(Some(3)).unwrap();
    let mut newest = checkpoints.latest().unwrap().checkpoint.unwrap();
    for unknown in ["mixup", "cos_lr"] {
        assert!(newest.info["settings"].as_object_mut().unwrap().remove(unknown).is_some());
    }
    let members: Vec<Member<'_>> = newest.members.iter().map(|(name, bytes)| Member { name, bytes }).collect();
    checkpoints.save(newest.step, &members, &newest.info).unwrap();
    let config = std::fs::read_to_string(run.join("config.yaml")).unwrap();
    let known = |line: &&str| !["mixup:", "cos_lr:"].iter().any(|unknown| line.starts_with(unknown));
    let older: Vec<&str> = config.lines().filter(known).collect();
    assert_eq!(older.len() + 2, config.lines().count());
    std::fs::write(run.join("config.yaml"), older.join("\n")).unwrap();
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]), 0);
    assert!(out.contains("going on at epoch 2") && out.contains("cos_lr (false), mixup (0.0)"), "{out}");
    assert!(ending(&run) == whole);
}
