//! Shards by the real programs: written, trained on to the bits of what they were written from, resumed, shared by ranks, and damaged.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{checkpoints, ending, expect_code, llm_finetune, tiny_chats, tiny_data, yolo_train};

/// The tiny set, and the same in shards of four in the folder `packed`.
fn packed_data(dir: &Path) {
    tiny_data(dir);
    let (out, _) = expect_code(&mut yolo_train(dir, &["data", "shard", "--data", "tiny.yaml", "--out", "packed", "--samples", "4"]), 0);
    assert!(out.contains("packed: 15 images"), "{out}");
}

fn detector(dir: &Path, data: &str, name: &str, more: &[&str]) -> Command {
    let args = ["--data", data, "--name", name, "--checkpoint-minutes", "0", "--plots", "false"];
    yolo_train(dir, &[&args[..], more].concat())
}

fn run_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("runs/detect").join(name)
}

fn trained(dir: &Path, data: &str, name: &str, more: &[&str]) -> Vec<(String, Vec<u8>)> {
    expect_code(&mut detector(dir, data, name, more), 0);
    ending(&run_of(dir, name))
}

/// Flips a bit of `file`, `from` bytes behind where `name` stands in it.
fn flip(file: &Path, name: &str, from: usize) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
    bytes[at + from] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_detector_learns_from_shards_what_it_learns_from_their_folder() {
    let dir = tempfile::tempdir().unwrap();
    packed_data(dir.path());
    for (split, shards) in [("train", 3), ("val", 1)] {
        let folder = dir.path().join("packed").join(split);
        assert!(folder.join("index.jsonl").is_file() && folder.join(format!("{split}-{:06}.tar", shards - 1)).is_file());
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), shards + 1);
    }
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "packed"]), 0);
    assert!(out.contains("train: 11 images") && out.contains("0 corrupt"), "{out}");
    for (name, more) in [("whole", &[][..]), ("rect", &["--rect", "--mosaic", "0"]), ("ram", &["--cache", "ram", "--epochs", "1"])] {
        let folder = trained(dir.path(), "tiny.yaml", &format!("folder-{name}"), more);
        let shards = trained(dir.path(), "packed", &format!("shards-{name}"), more);
        folder.iter().zip(&shards).for_each(|(ours, theirs)| assert!(ours == theirs, "{name}: {} differs", ours.0));
    }
    // Which counts of a sensor become black and white goes along.
    let yaml = std::fs::read_to_string(dir.path().join("tiny.yaml")).unwrap();
    let deep = yaml.replace("path: tiny", "path: deep").replace("sample: {", "sample: {deep: true, ") + "range: [20000, 40000]\n";
    std::fs::write(dir.path().join("deep.yaml"), deep).unwrap();
    expect_code(&mut yolo_train(dir.path(), &["data", "shard", "--data", "deep.yaml", "--out", "packed-deep"]), 0);
    let [folder, shards] = ["deep.yaml", "packed-deep"].map(|data| trained(dir.path(), data, &format!("of-{data}"), &["--epochs", "1"]));
    assert!(folder == shards, "16 bits");
    // And back: what was written out is what went in.
    expect_code(&mut yolo_train(dir.path(), &["data", "convert", "coco2yolo", "--data", "packed", "--out", "back"]), 0);
    for (split, n) in [("train", 11), ("val", 4)] {
        let files = |folder: &str| {
            let mut all: Vec<_> =
                std::fs::read_dir(dir.path().join(folder).join(split)).unwrap().map(|entry| entry.unwrap().path()).collect();
            all.sort();
            all.into_iter().map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>()
        };
        assert!(files("back/images").len() == n && files("back/images") == files("tiny/images"), "{split}");
    }
}

#[test]
fn a_killed_run_goes_on_at_the_same_image() {
    let dir = tempfile::tempdir().unwrap();
    packed_data(dir.path());
    let windows = ["--shuffle-buffer", "5"];
    let whole = trained(dir.path(), "packed", "whole", &windows);
    assert!(trained(dir.path(), "packed", "again", &windows) == whole, "the same bits every time, whatever the process");
    assert!(trained(dir.path(), "packed", "other", &["--shuffle-buffer", "4"]) != whole);
    // In the middle of the first epoch, and of the second.
    for step in ["2", "5"] {
        let name = format!("killed-{step}");
        let fault = format!("kill:step:{step}");
        let status = detector(dir.path(), "packed", &name, &windows)
            .env("BELLOWS_FAULT", fault)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().code().is_none() && !checkpoints(&run_of(dir.path(), &name)).is_empty());
        let run = format!("runs/detect/{name}");
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", &run]), 0);
        assert!(out.contains("going on at epoch"), "{out}");
        assert!(ending(&run_of(dir.path(), &name)) == whole, "{name}");
    }
    // Other shards are other data, though the images and labels be the same.
    let killed = detector(dir.path(), "packed", "moved", &windows)
        .env("BELLOWS_FAULT", "kill:step:5")
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(killed.unwrap().code().is_none());
    std::fs::rename(dir.path().join("packed"), dir.path().join("packed4")).unwrap();
    expect_code(&mut yolo_train(dir.path(), &["data", "shard", "--data", "tiny.yaml", "--out", "packed", "--samples", "3"]), 0);
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/moved"]), 2);
    assert!(error.contains("data"), "{error}");
}

/// The columns of losses in `results.csv`.
fn losses(run: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let wanted: Vec<usize> = (0..header.len()).filter(|&i| header[i].starts_with("train/")).collect();
    rows.flat_map(|row| wanted.iter().map(|&i| row[i].parse().unwrap()).collect::<Vec<f64>>()).collect()
}

/// As one process with twice the batch: which sees each image once.
#[test]
fn two_ranks_share_the_images_of_every_window() {
    let dir = tempfile::tempdir().unwrap();
    packed_data(dir.path());
    let of = |name: &str, more: &[&str]| {
        let args = [&["--shuffle-buffer", "4", "--epochs", "2"], more].concat();
        expect_code(&mut detector(dir.path(), "packed", name, &args), 0);
        losses(&run_of(dir.path(), name))
    };
    let alone = of("alone", &["--batch", "2"]);
    let shared = of("shared", &["--batch", "1", "--ranks", "2", "--sync-bn"]);
    let apart = alone.iter().zip(&shared).map(|(a, b)| (a - b).abs() / a.abs().max(0.05)).fold(0.0, f64::max);
    assert!(alone.len() == 6 && shared.len() == 6 && apart <= 1e-3, "{shared:?} for {alone:?}");
}

#[test]
fn damaged_shards_of_images_are_named_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    packed_data(dir.path());
    let train = dir.path().join("packed/train");
    let (shard, index) = (train.join("train-000001.tar"), train.join("index.jsonl"));
    let whole = [&shard, &index].map(|file| std::fs::read(file).unwrap());
    let refused = |part: &[&str]| {
        let (_, error) = expect_code(&mut detector(dir.path(), "packed", "refused", &[]), 2);
        part.iter().for_each(|part| assert!(error.contains(part), "no `{part}` in {error}"));
    };
    flip(&shard, "00000005.jpg", 512 + 700);
    refused(&["1 of 11 images cannot be used", "train-000001.tar/00000005.jpg: byte ", "the CRC-32C of `00000005.jpg` is "]);
    let (out, error) = expect_code(&mut detector(dir.path(), "packed", "without", &["--allow-bad", "--epochs", "1"]), 0);
    assert!(out.contains("train: 10 images") && out.contains("1 corrupt") && !error.contains("left out of its batch"), "{out}{error}");
    std::fs::write(&shard, &whole[0]).unwrap();
    flip(&shard, "00000006.txt", 512);
    refused(&["1 of 11 images cannot be used", "train-000001.tar/00000006.txt: byte "]);
    std::fs::write(&shard, &whole[0]).unwrap();
    flip(&shard, "00000006.jpg", 130);
    refused(&["train-000001.tar/00000006.jpg: byte ", "the checksum of the header is wrong"]);
    std::fs::write(&shard, &whole[0][..whole[0].len() - 3000]).unwrap();
    refused(&["of 11 images cannot be used", "train-000001.tar/00000007.jpg: byte ", "the file ends here"]);
    std::fs::remove_file(&shard).unwrap();
    refused(&["4 of 11 images cannot be used", "train-000001.tar/00000004.jpg: the shard is missing"]);
    let (out, _) = expect_code(&mut detector(dir.path(), "packed", "fewer", &["--allow-bad", "--epochs", "1"]), 0);
    assert!(out.contains("shard train-000001.tar is missing: its 4 samples cannot be read") && out.contains("train: 7 images"), "{out}");
    std::fs::write(&shard, &whole[0]).unwrap();
    flip(&index, "00000006", 0);
    refused(&["index.jsonl: the index is damaged"]);
    std::fs::remove_file(&index).unwrap();
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", "index", "--data", "packed/train"]), 0);
    assert!(out.contains("packed/train: 11 samples") && std::fs::read(&index).unwrap() == whole[1], "{out}");
    expect_code(&mut detector(dir.path(), "packed", "mended", &["--epochs", "1"]), 0);
    let (_, error) = expect_code(&mut detector(dir.path(), "packed", "clip", &["--frames", "2"]), 2);
    assert!(error.contains("shards do not say which clip an image is of"), "{error}");
}

fn chats(dir: &Path, data: &str, name: &str, more: &[&str]) -> Command {
    llm_finetune(dir, &[&["--config", "tiny.yaml", "--data", data, "--name", name, "--checkpoint-minutes", "0"], more].concat())
}

/// The adapter and the losses.
fn tuned(dir: &Path, name: &str) -> (Vec<u8>, Vec<f64>) {
    let run = dir.join("runs/sft").join(name);
    let text = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let column = text.lines().next().unwrap().split(',').position(|name| name.contains("loss")).unwrap();
    let losses = text.lines().skip(1).map(|row| row.split(',').nth(column).unwrap().parse().unwrap()).collect();
    (std::fs::read(run.join("adapter/adapter_model.safetensors")).unwrap(), losses)
}

#[test]
fn a_language_model_learns_from_shards_what_it_learns_from_the_file() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let (out, _) =
        expect_code(&mut llm_finetune(dir.path(), &["data", "shard", "--data", "chats.jsonl", "--out", "packed", "--samples", "5"]), 0);
    assert!(out.contains("train: 14 rows in 3 shards"), "{out}");
    let (_, error) = expect_code(&mut llm_finetune(dir.path(), &["data", "shard", "--data", "chats.jsonl", "--out", "packed"]), 2);
    assert!(error.contains("packed: the target is not empty"), "{error}");
    expect_code(&mut chats(dir.path(), "chats.jsonl", "file", &[]), 0);
    expect_code(&mut chats(dir.path(), "packed", "shards", &[]), 0);
    let file = tuned(dir.path(), "file");
    assert!(tuned(dir.path(), "shards") == file);
    let status =
        chats(dir.path(), "packed", "killed", &[]).env("BELLOWS_FAULT", "kill:step:8").stderr(Stdio::null()).stdout(Stdio::null()).status();
    assert!(status.unwrap().code().is_none());
    expect_code(&mut llm_finetune(dir.path(), &["--resume", "runs/sft/killed"]), 0);
    assert!(tuned(dir.path(), "killed").1 == file.1 && tuned(dir.path(), "killed").0 == file.0);
    let ranks = ["--ranks", "2", "--batch-size", "1"];
    expect_code(&mut chats(dir.path(), "chats.jsonl", "file-ranks", &ranks), 0);
    expect_code(&mut chats(dir.path(), "packed", "shards-ranks", &ranks), 0);
    assert!(tuned(dir.path(), "shards-ranks") == tuned(dir.path(), "file-ranks"));
}

/// A cell of CSV is a chat under the keys of prompts and answers alone, and shards know nothing of cells any more.
#[test]
fn cells_that_are_chats_are_chats_in_shards() {
    let dir = tempfile::tempdir().unwrap();
    let cell = |role: &str, text: &str| format!(r#""[{{""role"": ""{role}"", ""content"": ""{text}""}}]""#);
    let rows = format!("question,answer\n{},{}\n", cell("user", "why"), cell("assistant", "so"));
    std::fs::write(dir.path().join("chats.csv"), rows).unwrap();
    let keys = ["--prompt-key", "question", "--completion-key", "answer"];
    let data = |verb: &[&str]| expect_code(&mut llm_finetune(dir.path(), &[&["data"], verb, &keys].concat()), 0).0;
    data(&["shard", "--data", "chats.csv", "--out", "packed"]);
    let [file, shards] = ["chats.csv", "packed"].map(|path| data(&["preview", "--model", "tiny", "--data", path]));
    assert!(shards.contains("⟦so"), "{shards}");
    assert_eq!(shards.split_once('\n').unwrap().1, file.split_once('\n').unwrap().1, "all but the name of the data");
}

#[test]
fn damaged_shards_of_chats_are_named_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let line = std::fs::read_to_string(dir.path().join("chats.jsonl")).unwrap().lines().next().unwrap().to_string();
    std::fs::write(dir.path().join("many.jsonl"), format!("{line}\n").repeat(120)).unwrap();
    expect_code(&mut llm_finetune(dir.path(), &["data", "shard", "--data", "many.jsonl", "--out", "packed", "--samples", "50"]), 0);
    let shard = dir.path().join("packed/train/train-000001.tar");
    let whole = std::fs::read(&shard).unwrap();
    flip(&shard, "000000057.json", 512 + 20);
    let named = ["train-000001.tar: byte 7168: the CRC-32C of `000000057.json` is "];
    let short = ["--epochs", "1", "--max-samples", "8"];
    let (_, error) = expect_code(&mut chats(dir.path(), "packed", "refused", &short), 2);
    named.iter().for_each(|part| assert!(error.contains(part), "{error}"));
    let (out, _) = expect_code(&mut chats(dir.path(), "packed", "skipped", &[&short[..], &["--skip-bad-rows"]].concat()), 0);
    assert!(out.contains("warning: 1 of 120 rows cannot be used") && out.contains(named[0]), "{out}");
    std::fs::write(&shard, &whole[..whole.len() - 30_000]).unwrap();
    let (_, error) = expect_code(&mut chats(dir.path(), "packed", "cut", &[&short[..], &["--skip-bad-rows"]].concat()), 2);
    assert!(
        error.contains("of 120 rows cannot be used, and more than 1 % is no accident") && error.contains("the file ends here"),
        "{error}"
    );
    std::fs::remove_file(&shard).unwrap();
    let (_, error) = expect_code(&mut chats(dir.path(), "packed", "missing", &short), 2);
    assert!(error.contains("train-000001.tar: the shard is missing"), "{error}");
    std::fs::write(&shard, &whole).unwrap();
    flip(&dir.path().join("packed/train/index.jsonl"), "json", 0);
    let (_, error) = expect_code(&mut chats(dir.path(), "packed", "index", &short), 2);
    assert!(error.contains("index.jsonl: the index is damaged"), "{error}");
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["data", "index", "--data", "packed/train"]), 0);
    assert!(out.contains("packed/train: 120 samples"), "{out}");
    expect_code(&mut chats(dir.path(), "packed", "mended", &short), 0);
}
