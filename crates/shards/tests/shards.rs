//! There and back again, archives of other programs, and every way in which shards are damaged.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::process::Command;

use bellows_shards::{INDEX, ShardFault, Shards, Writer, write_index};

/// A key, and kinds with contents.
type Sample = (String, Vec<(&'static str, Vec<u8>)>);
/// The same as it is written.
type Files<'a> = &'a [(&'a str, &'a [u8])];

/// Nine samples in three shards: lengths around a block, an empty file, a sample without labels.
fn samples() -> Vec<Sample> {
    let bytes = |n: usize, salt: usize| (0..n).map(|i| (i * 7 + salt * 13) as u8).collect::<Vec<u8>>();
    let sample = |(i, n): (usize, usize)| {
        let mut files = vec![("jpg", bytes(n, i))];
        if i != 4 {
            files.push(("txt", bytes(i, i)));
        }
        (format!("{i:08}"), files)
    };
    [0, 1, 511, 512, 513, 1000, 1024, 2000, 7].into_iter().enumerate().map(sample).collect()
}

fn write(folder: &Path) {
    let mut writer = Writer::new(folder, "train", 4);
    for (key, files) in samples() {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(kind, bytes)| (*kind, bytes.as_slice())).collect();
        writer.push(&key, &files).unwrap();
    }
    assert_eq!(writer.finish().unwrap(), 3);
}

/// The samples that cannot be read; the others are what was written.
fn lost(shards: &Shards) -> Vec<(usize, ShardFault)> {
    let mut lost = Vec::new();
    for (i, (key, files)) in samples().into_iter().enumerate() {
        assert_eq!(shards.key(i), key);
        let read =
            files.iter().map(|(kind, bytes)| shards.read(i, kind).map(|found| assert_eq!(found.as_ref(), Some(bytes), "{i}.{kind}")));
        lost.extend(read.collect::<Result<Vec<()>, _>>().err().map(|error| (i, *error.fault)));
    }
    lost
}

fn open(folder: &Path) -> Shards {
    Shards::open(folder).unwrap()
}

/// What `tar` says.
fn tar(folder: &Path, args: &[&str]) -> String {
    let out = Command::new("tar").current_dir(folder).args(args).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// An index that was written by somebody else cannot lead out of its shard.
#[test]
fn keys_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    for (key, inside) in [("/data/img/1", false), ("a/../../1", false), ("C:1", false), ("a/1", true)] {
        let folder = dir.path().join(key.replace(['/', ':', '.'], "_"));
        std::fs::create_dir(&folder).unwrap();
        let tar = folder.join("a.tar");
        let mut header = [0u8; 512];
        header[..key.len() + 4].copy_from_slice(format!("{key}.jpg").as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(b"00000000001");
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend([[1u8; 1].as_slice(), &[0; 511 + 1024]].concat());
        std::fs::write(&tar, bytes).unwrap();
        let written = write_index(&folder, &mut |_, _| {});
        let count = written.as_ref().map_or(0, |_| Shards::open(&folder).map_or(0, |shards| shards.len()));
        assert_eq!(count, usize::from(inside), "{key}: {:?}", written.err());
    }
}

#[test]
fn what_was_written_is_read_here_and_by_others() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!Shards::is(dir.path()));
    write(dir.path());
    assert!(Shards::is(dir.path()));
    let shards = open(dir.path());
    assert!((shards.len(), shards.faults().len()) == (9, 0) && lost(&shards).is_empty());
    assert_eq!((shards.shard(3), shards.shard(4), shards.shard(8)), (0, 1, 2));
    assert_eq!(shards.kinds(3).collect::<Vec<_>>(), ["jpg", "txt"]);
    assert!(shards.read(4, "txt").unwrap().is_none() && shards.indexed(4, "txt").is_none());
    assert_eq!(shards.indexed(0, "jpg"), Some([0, 0, 0]));
    assert_eq!(
        tar(dir.path(), &["-tf", "train-000001.tar"]),
        "00000004.jpg\n00000005.jpg\n00000005.txt\n00000006.jpg\n00000006.txt\n00000007.jpg\n00000007.txt\n"
    );
    tar(dir.path(), &["-xf", "train-000001.tar"]);
    assert_eq!(std::fs::read(dir.path().join("00000005.jpg")).unwrap(), samples()[5].1[0].1);
    // The same samples are the same bytes.
    let other = tempfile::tempdir().unwrap();
    write(other.path());
    for file in ["train-000000.tar", "train-000002.tar", INDEX] {
        assert!(std::fs::read(dir.path().join(file)).unwrap() == std::fs::read(other.path().join(file)).unwrap(), "{file}");
    }
}

#[test]
fn the_index_of_archives_is_the_one_that_was_written_with_them() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let index = dir.path().join(INDEX);
    let before = std::fs::read(&index).unwrap();
    std::fs::remove_file(&index).unwrap();
    assert!(Shards::lacks_index(dir.path()) && !Shards::is(dir.path()));
    let absent = Shards::open(dir.path()).unwrap_err().to_string();
    assert!(absent.ends_with("index.jsonl: the index is not there; `data index` writes it"), "{absent}");
    let mut told = Vec::new();
    assert_eq!(write_index(dir.path(), &mut |done, total| told.push((done, total))).unwrap(), 9);
    assert_eq!(told, [(1, 3), (2, 3), (3, 3)]);
    assert_eq!(std::fs::read(&index).unwrap(), before);
}

#[test]
fn files_of_one_key_are_a_sample_whoever_wrote_them() {
    let (dir, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(files.path().join("n")).unwrap();
    let names = ["a.jpg", "a.seg.png", "b.jpg", "n/b.jpg", "n/b.txt", "README"];
    names.iter().for_each(|name| std::fs::write(files.path().join(name), name.repeat(200)).unwrap());
    let archive = dir.path().join("x.tar").display().to_string();
    for format in ["ustar", "pax", "gnu"] {
        let format = format!("--format={format}");
        tar(files.path(), &[&[format.as_str(), "-cf", &archive][..], &names].concat());
        assert_eq!(write_index(dir.path(), &mut |_, _| {}).unwrap(), 3, "{format}");
        let shards = open(dir.path());
        assert_eq!([0, 1, 2].map(|i| shards.key(i)), ["a", "b", "n/b"]);
        assert_eq!([0, 1, 2].map(|i| shards.kinds(i).collect::<Vec<_>>()), [vec!["jpg", "seg.png"], vec!["jpg"], vec!["jpg", "txt"]]);
        assert_eq!(shards.read(2, "txt").unwrap().unwrap(), "n/b.txt".repeat(200).as_bytes(), "{format}");
    }
    // A sample ends with its archive.
    for (file, names) in [("x.tar", &names[..3]), ("y.tar", &names[2..3])] {
        tar(files.path(), &[&["-cf", &dir.path().join(file).display().to_string()][..], names].concat());
    }
    assert_eq!(write_index(dir.path(), &mut |_, _| {}).unwrap(), 3);
    std::fs::remove_file(dir.path().join("y.tar")).unwrap();
    tar(files.path(), &["-cf", &archive, "a.jpg", "a.seg.png", "a.jpg", "--hard-dereference"]);
    let twice = write_index(dir.path(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(twice.contains("x.tar: byte ") && twice.contains("`a.jpg` is there twice"), "{twice}");
}

#[test]
fn a_cut_end_costs_what_lay_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let path = dir.path().join("train-000001.tar");
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 1, 511, 512, 600, 1023, 1024, 1535, 1536, 1600, 2500, whole.len() - 1030, whole.len() - 1024, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let shards = open(dir.path());
        assert!(shards.faults()[0].contains(&format!("train-000001.tar is cut: it has {length} of {} bytes", whole.len())));
        let lost = lost(&shards);
        assert!(lost.iter().all(|(i, fault)| (4..8).contains(i) && matches!(fault, ShardFault::Cut)), "{length}: {lost:?}");
        let first = lost.first().map_or(8, |(i, _)| *i);
        assert_eq!(lost.len(), 8 - first, "{length}: it and all behind it");
        assert_eq!(first == 8, length >= whole.len() - 1024 - 100, "{length}");
        let index = std::fs::read(dir.path().join(INDEX)).unwrap();
        let again = write_index(dir.path(), &mut |_, _| {});
        std::fs::write(dir.path().join(INDEX), index).unwrap();
        match again {
            Ok(_) => assert!(length >= whole.len() - 512, "{length}: the end was not missed"),
            Err(error) => assert!(matches!(*error.fault, ShardFault::Cut) && error.path == path, "{length}: {error}"),
        }
    }
}

#[test]
fn a_flipped_bit_costs_one_sample_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let path = dir.path().join("train-000001.tar");
    let whole = std::fs::read(&path).unwrap();
    let mut seen = [0; 3];
    for at in (0..whole.len()).step_by(11) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        // What is read and is not lost is what was written: `lost` compares.
        let lost = lost(&open(dir.path()));
        match lost.as_slice() {
            [] => seen[0] += 1,
            [(4..8, ShardFault::Header)] => seen[1] += 1,
            [(4..8, ShardFault::Content { .. })] => seen[2] += 1,
            other => panic!("byte {at}: {other:?}"),
        }
    }
    let [padding, headers, contents] = seen;
    assert!(padding > 0 && headers > 7 * 500 / 11 && contents > 4400 / 11, "{seen:?}");
    let (block, number) = (whole.iter().position(|&byte| byte != 0).unwrap(), 4);
    assert_eq!(block, 0);
    let mut damaged = whole.clone();
    damaged[513] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = open(dir.path()).read(number, "jpg").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("train-000001.tar: byte 0: the CRC-32C of `00000004.jpg` is ") && text.contains("and was "), "{text}");
}

#[test]
fn a_missing_shard_is_named_and_the_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    std::fs::remove_file(dir.path().join("train-000001.tar")).unwrap();
    let shards = open(dir.path());
    assert_eq!(shards.faults(), ["shard train-000001.tar is missing: its 4 samples cannot be read"]);
    let lost = lost(&shards);
    assert_eq!(lost.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [4, 5, 6, 7]);
    assert!(lost.iter().all(|(_, fault)| matches!(fault, ShardFault::Missing)));
    assert!(shards.read(4, "jpg").unwrap_err().to_string().ends_with("train-000001.tar: the shard is missing"));
}

#[test]
fn another_archive_under_a_name_of_the_index_is_noticed() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(dir.path());
    let mut writer = Writer::new(other.path(), "train", 9);
    writer.push("00000009", &[("jpg", &[0; 900])]).unwrap();
    writer.finish().unwrap();
    std::fs::copy(other.path().join("train-000000.tar"), dir.path().join("train-000001.tar")).unwrap();
    let error = open(dir.path()).read(4, "jpg").unwrap_err().to_string();
    assert!(error.contains("`00000009.jpg` of 900 bytes lies here, and the index has `00000004.jpg` of 513 there"), "{error}");
}

/// An index whose checksum is right.
fn sealed(text: &str) -> String {
    format!("{text}{{\"crc32c\":{}}}\n", crc32c::crc32c(text.as_bytes()))
}

#[test]
fn an_index_that_is_damaged_or_lies_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let path = dir.path().join(INDEX);
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], words: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = Shards::open(dir.path()).unwrap_err();
        assert!(matches!(&*error.fault, ShardFault::Index(what) if what.contains(words)) && error.path == path, "{error}, not `{words}`");
    };
    for at in (0..whole.len()).step_by(5) {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        refused(&damaged, "is damaged");
        refused(&whole[..at], "is damaged");
    }
    let text = String::from_utf8(whole.clone()).unwrap();
    let body = &text[..text[..text.len() - 1].rfind('\n').unwrap() + 1];
    assert_eq!(sealed(body), text);
    for (old, new, words) in [
        ("bellows shards 1", "bellows shards 2", "is of `bellows shards 2`; this program reads"),
        ("train-000001.tar", "../train-000001.tar", "names `../train-000001.tar`, which is no name of a file beside it"),
        ("\"samples\":1}", "\"samples\":2}", "has fewer samples than it says"),
        ("\"samples\":1}", "\"samples\":0}", "has more samples than it says"),
        ("[\"jpg\",0,", "[\"jpg\",999999,", "has a sample on line 2 that cannot be"),
        ("\"00000001\"", "\"00000000\"", "has a sample on line 3 that cannot be"),
        ("[\"txt\"", "[\"jpg\"", "has a sample on line 2 that cannot be"),
        ("\"00000001\"", "\"\"", "has a sample on line 3 that cannot be"),
    ] {
        assert!(body.contains(old), "{old}");
        refused(sealed(&body.replacen(old, new, 1)).as_bytes(), words);
    }
    std::fs::write(dir.path().join("train-000003.tar"), "").unwrap();
    refused(&whole, "does not name train-000003.tar, which lies beside it");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |key: &str, files: &[(&str, &[u8])]| {
        let folder = tempfile::tempdir_in(dir.path()).unwrap();
        Writer::new(folder.path(), "x", 10).push(key, files).unwrap_err().to_string()
    };
    assert!(refused("a.b", &[("jpg", b"")]).contains("`a.b` is no key"));
    assert!(refused(&"a".repeat(97), &[("jpg", b"")]).contains("has 101 bytes; names in shards have 1 to 100"));
    assert!(refused("a", &[("jpg", b""), ("jpg", b"")]).contains("`a.jpg` is there twice"));
    assert!(refused("a", &[("jpg", b""), ("", b"")]).contains("`a.` is of no kind"));
    assert!(write_index(dir.path(), &mut |_, _| {}).unwrap_err().to_string().contains("there is no .tar"));
}

/// What was refused is not in the folder, nor a part of it; all else is.
#[test]
fn a_sample_that_is_refused_changes_nothing() {
    let long = "b".repeat(97);
    let refused: [(&str, Files<'_>); 4] = [
        ("b.c", &[("jpg", b"")]),
        ("b", &[("jpg", b""), ("c/txt", b"")]),
        ("b", &[("txt", b""), ("txt", b"")]),
        (long.as_str(), &[("t", b""), ("jpg", b"")]),
    ];
    for (most, shards) in [(1, 2), (2, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path(), "x", most);
        for key in ["a", "c"] {
            refused.iter().for_each(|(key, files)| assert!(writer.push(key, files).is_err(), "{key}"));
            writer.push(key, &[("jpg", key.as_bytes())]).unwrap();
        }
        refused.iter().for_each(|(key, files)| assert!(writer.push(key, files).is_err(), "{key}"));
        assert_eq!(writer.finish().unwrap(), shards);
        let shards = open(dir.path());
        assert_eq!((shards.len(), shards.faults().len()), (2, 0));
        for (i, key) in ["a", "c"].into_iter().enumerate() {
            assert_eq!((shards.key(i), shards.kinds(i).collect::<Vec<_>>()), (key, vec!["jpg"]));
            assert_eq!(shards.read(i, "jpg").unwrap().unwrap(), key.as_bytes());
        }
    }
    // The second file of a sample that was there before, with one that was not.
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(dir.path(), "x", 9);
    writer.push("a", &[("jpg", b"1")]).unwrap();
    assert!(writer.push("a", &[("txt", b"2"), ("jpg", b"3")]).unwrap_err().to_string().contains("`a.jpg` is there twice"));
    writer.finish().unwrap();
    assert_eq!(open(dir.path()).kinds(0).collect::<Vec<_>>(), ["jpg"]);
}

/// A folder in which something is missing gets no index.
#[test]
fn nothing_is_added_after_what_could_not_be_written() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x-000001.tar"), "of somebody else").unwrap();
    let mut writer = Writer::new(dir.path(), "x", 1);
    writer.push("a", &[("jpg", b"1")]).unwrap();
    assert!(writer.push("b", &[("jpg", b"2")]).unwrap_err().to_string().contains("x-000001.tar"));
    std::fs::remove_file(dir.path().join("x-000001.tar")).unwrap();
    for after in [writer.push("c", &[("jpg", b"3")]).map(|()| 0), writer.finish()] {
        assert!(after.unwrap_err().to_string().contains("a sample before could not be written"));
    }
    assert!(!Shards::is(dir.path()));
}
