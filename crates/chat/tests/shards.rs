//! Rows in shards are the rows of the files they were written from.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use bellows_chat::{Fault, ReadOptions, Splits, index_shards, shard};
use bellows_runs::part_of;

const CHATS: &str = r#"{"messages": [{"role": "user", "content": "Grüße \"from\" {b}"}, {"role": "assistant", "content": "1.50\n"}], "z": 12345678901234567890, "a": 0.1}

{"prompt": "p", "completion": "c"}
{"text": "several\nlines"}
"#;

fn open(path: &Path) -> Splits {
    Splits::open(path, &ReadOptions::default()).unwrap()
}

#[test]
fn rows_in_shards_are_those_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join("data").join(name), text).unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    write("train.jsonl", CHATS);
    write("valid.csv", "prompt,completion\na,b\n\"c,\n d\",e\n");
    write("test.txt", "a line\nanother\n");
    let (from, out) = (open(&dir.path().join("data")), dir.path().join("packed"));
    let mut told = Vec::new();
    let written = shard(&from, &out, 2, &mut |done, total| told.push((done, total))).unwrap();
    assert_eq!(written, [("train", 3, 2), ("valid", 2, 1), ("test", 2, 1)]);
    assert_eq!((told.len(), told[6]), (7, (7, 7)));
    let packed = open(&out);
    for (ours, theirs) in [(&packed.train, &from.train), (&packed.valid, &from.valid), (&packed.test, &from.test)] {
        assert_eq!((ours.len(), ours[0].len()), (1, theirs[0].len()));
        for i in 0..theirs[0].len() {
            assert_eq!(ours[0].value(i).unwrap(), theirs[0].value(i).unwrap());
            assert_eq!(format!("{:?}", ours[0].get(i).unwrap()), format!("{:?}", theirs[0].get(i).unwrap()));
        }
        assert!(ours[0].get(theirs[0].len()).is_err() && (ours[0].line(0), ours[0].line(99)) == (1, 0));
    }
    // Beside rows in shards those to judge by may be in a file.
    std::fs::remove_dir_all(out.join("valid")).unwrap();
    std::fs::write(out.join("valid.jsonl"), "{\"text\": \"a\"}\n".repeat(3)).unwrap();
    let mixed = open(&out);
    assert_eq!((mixed.valid.len(), mixed.valid[0].len(), mixed.test.len(), mixed.test[0].len()), (1, 3, 1, 2));
    // One folder of them is a data set by itself.
    let alone = open(&out.join("test"));
    assert_eq!((alone.train[0].len(), alone.valid.len()), (2, 0));
    let full = shard(&from, &out, 2, &mut |_, _| {}).unwrap_err().to_string();
    assert!(full.contains("packed: the target is not empty"), "{full}");
}

/// Of a process that is killed while it writes, and of a row that cannot be read, nothing is seen under the name.
#[test]
fn a_folder_of_shards_is_complete_or_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let names =
        |path: &Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("rows.jsonl"), CHATS).unwrap();
    // What a process that was killed has left: none has the highest number.
    let left = part_of(&at("out/empty/train")).unwrap().to_string_lossy().replace(&format!("-{}-", std::process::id()), "-2147483646-");
    std::fs::create_dir_all(left).unwrap();
    for out in ["out/empty", "out/new"] {
        shard(&open(&at("rows.jsonl")), &at(out), 1, &mut |done, _| {
            assert!(done > 0 && !at(out).join("train").exists(), "{done}");
        })
        .unwrap();
        assert_eq!((open(&at(out)).train[0].len(), names(&at(out))), (3, vec!["train".to_owned()]));
    }
    let mut left = names(&at("out"));
    left.sort();
    assert_eq!(left, ["empty", "new"]);

    let broken = open(&at("rows.jsonl"));
    std::fs::write(at("rows.jsonl"), CHATS.replace("{\"text\"", "[\"text\"")).unwrap();
    std::fs::create_dir(at("other")).unwrap();
    std::fs::create_dir(at("other/here")).unwrap();
    for out in ["other/here", "other/new"] {
        let mut rows = 0;
        let error = shard(&broken, &at(out), 1, &mut |_, _| rows += 1).unwrap_err();
        assert!(rows == 2 && error.line.is_some(), "{rows} rows, then {error}");
    }
    assert_eq!((names(&at("other")), names(&at("other/here")).len()), (vec!["here".to_owned()], 0));

    // What another process finishes there meanwhile is not ours to remove.
    std::fs::write(at("rows.jsonl"), CHATS).unwrap();
    let written = shard(&open(&at("rows.jsonl")), &at("both"), 1, &mut |done, total| {
        if done == total {
            std::fs::create_dir_all(at("both/train/x")).unwrap();
        }
    });
    assert!(written.is_err() && at("both/train/x").exists() && names(&at("both")) == ["train"], "{written:?}");
}

#[test]
fn a_row_that_is_damaged_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("chats.jsonl"), CHATS).unwrap();
    let out = dir.path().join("packed");
    shard(&open(&dir.path().join("chats.jsonl")), &out, 10, &mut |_, _| {}).unwrap();
    let path = out.join("train/train-000000.tar");
    let mut bytes = std::fs::read(&path).unwrap();
    let second = bytes.windows(14).position(|name| name == b"000000001.json").unwrap();
    bytes[second + 515] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let set = &open(&out).train[0];
    assert!(set.get(0).is_ok() && set.get(2).is_ok());
    let error = set.get(1).unwrap_err();
    assert!(matches!(error.fault, Fault::Shard(_)) && error.line == Some(2), "{error}");
    assert!(error.to_string().contains(&format!("train-000000.tar: byte {second}: the CRC-32C of `000000001.json`")), "{error}");
    // A sample of something else is a row that cannot be used.
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let text = std::fs::read(&path).unwrap();
    std::fs::write(other.join("x.tar"), text).unwrap();
    let absent = Splits::open(&other, &ReadOptions::default()).unwrap_err().to_string();
    assert!(absent.contains("index.jsonl: the index is not there; `data index` writes it"), "{absent}");
    assert_eq!(index_shards(&other, &mut |_, _| {}).unwrap(), 3);
    assert!(open(&other).train[0].get(1).is_err(), "what is no JSON is refused, whoever made the index");
    // And one that may be two.
    let merged = dir.path().join("merged");
    std::fs::create_dir(&merged).unwrap();
    let mut writer = bellows_shards::Writer::new(&merged, "x", 9);
    writer.push("a", &[("json", b"{\"text\": \"one\"}"), ("b.json", b"{\"text\": \"two\"}")]).unwrap();
    writer.finish().unwrap();
    let error = open(&merged).train[0].get(0).unwrap_err();
    assert!(matches!(error.fault, Fault::Merged { .. }) && error.to_string().contains("`a.b.json` is no row of its own"), "{error}");
}
