//! GGUF files that break a rule, each with the sentence it gets, and damaged ones.

use crate::gguf::{metadata, open_bytes, plan, write};
use bellows_weights::gguf::{Gguf, Metadata, TensorInfo};
use bellows_weights::{BlockType, WeightsError};
use proptest::prelude::*;

#[track_caller]
fn refused(bytes: &[u8], what: &str) {
    let error = open_bytes(bytes).map(|file| file.tensors().clone()).unwrap_err().to_string();
    assert!(error.contains(what), "{error:?} does not say {what:?}");
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// A metadata entry of this kind and these bytes.
fn entry(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), &kind.to_le_bytes()[..], value].concat()
}

fn array(kind: u32, count: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat()
}

/// A tensor table's row; the dims are in ggml's order.
fn tensor(name: &str, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let dims: Vec<u8> = [(dims.len() as u32).to_le_bytes().to_vec(), dims.iter().flat_map(|d| d.to_le_bytes()).collect()].concat();
    [&text(name), &dims[..], &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
}

fn head(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

/// A file of these entries, tensors and this much data.
fn file(entries: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut file = [head(3, tensors.len() as u64, entries.len() as u64), entries.concat(), tensors.concat()].concat();
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}

#[test]
fn the_hand_made_file_is_read_when_nothing_is_broken() {
    let read = open_bytes(&file(&[entry("k", 4, &7u32.to_le_bytes())], &[tensor("w", &[3, 2], 0, 0)], 24)).unwrap();
    assert_eq!(read.metadata()["k"].as_u64(), Some(7));
    assert_eq!(read.tensors()["w"], TensorInfo { kind: BlockType::F32, shape: vec![2, 3] });
    assert_eq!(read.tensor_f32("w").unwrap(), [0.0; 6]);
    assert!(read.tensor_f32("v").unwrap_err().to_string().ends_with("tensor `v`: there is no such tensor"));
    let empty = open_bytes(&file(&[], &[tensor("w", &[0, u64::MAX], 0, 1 << 40)], 0)).unwrap();
    assert!(empty.tensor_f32("w").unwrap().is_empty());
}

#[test]
fn headers() {
    refused(b"", "GGUF byte 0: 4 bytes wanted, 0 left in the file");
    refused(b"GGML\x03\0\0\0", "it does not start with `GGUF`");
    refused(&head(1, 0, 0), "GGUF byte 4: version 1 is not supported");
    refused(&head(3u32.swap_bytes(), 0, 0), "big-endian");
    refused(&head(3, u64::MAX, 0), "GGUF byte 8: 18446744073709551615 tensors are announced, 8 bytes are left in the file");
    refused(&head(3, 0, 1), "GGUF byte 16: 1 metadata entries are announced, 0 bytes");
    let mut many = head(3, 0, (1 << 20) + 1);
    many.resize(1 << 24, 0);
    refused(&many, "metadata entries: 1048577 is over the limit of 1048576");
    let folder = tempfile::tempdir().unwrap();
    assert!(Gguf::open(folder.path()).unwrap_err().to_string().ends_with("not a regular file"));
    assert!(Gguf::open(&folder.path().join("none")).unwrap_err().to_string().contains("No such file"));
}

#[test]
fn entries() {
    let one = |entry: Vec<u8>| file(&[entry], &[], 64);
    refused(&one(entry("k", 13, &[])), "metadata `k`: GGUF byte 37: values of kind 13 are unknown");
    refused(&one(entry("k", 9, &array(9, 1))), "an array of arrays is not supported");
    refused(&one(entry("k", 9, &array(77, 1))), "array elements of kind 77 are unknown");
    refused(&one(entry("k", 9, &array(6, u64::MAX / 2))), "9223372036854775807 array elements are announced");
    refused(&one(entry("k", 9, &array(8, 20))), "20 array elements are announced");
    refused(&one(entry("k", 8, &u64::MAX.to_le_bytes())), "18446744073709551615 bytes of text are announced");
    refused(&one(entry("k", 8, &[&2u64.to_le_bytes()[..], b"a\xff"].concat())), "metadata `k`: GGUF byte 46: the text is not UTF-8");
    refused(&one([&1u64.to_le_bytes()[..], b"\xff"].concat()), "GGUF byte 32: the text is not UTF-8");
    refused(&one(entry(&"k".repeat(70_000), 4, &[0; 4])), "bytes of a metadata key: 70000 is over the limit of 65535");
    let twice = entry("a\nb", 4, &[0; 4]);
    refused(&file(&[twice.clone(), twice], &[], 0), "metadata `a\\nb` appears twice");
    for alignment in [0, 24, 1 << 21] {
        let entry = entry("general.alignment", 4, &u32::to_le_bytes(alignment));
        refused(&one(entry), &format!("metadata `general.alignment`: U32({alignment}), but it must be a power of two"));
    }
    refused(&one(entry("general.alignment", 10, &32u64.to_le_bytes())), "U64(32), but it must be");
}

#[test]
fn tensors() {
    let one = |tensor: Vec<u8>| file(&[], &[tensor], 64);
    refused(&one(tensor("w", &[1; 5], 0, 0)), "tensor `w`: 5 dimensions, GGUF tensors have at most 4");
    refused(&one(tensor("w", &[1 << 32, 1 << 32], 0, 0)), "tensor `w`: shape [4294967296, 4294967296] is impossible for F32");
    refused(&one(tensor("w", &[u64::MAX], 8, 0)), "is impossible for Q8_0");
    refused(&one(tensor("w", &[16, 2], 8, 0)), "shape [2, 16] is impossible for Q8_0: rows must be whole blocks of 32");
    refused(&one(tensor("w", &[1], 10, 0)), "tensor `w`: ggml type 10 is not supported, only F32 0, F16 1, BF16 30");
    refused(&one(tensor("w", &[17], 0, 0)), "tensor `w`: 68 bytes at offset 0 of the data, which begins at byte 64 of a file of 128");
    refused(&one(tensor("w", &[16], 0, 32)), "64 bytes at offset 32");
    refused(&one(tensor("w", &[1], 0, u64::MAX - 31)), "4 bytes at offset 18446744073709551584");
    refused(&one(tensor("w", &[1], 0, 4)), "tensor `w`: offset 4 is no multiple of general.alignment, 32");
    refused(&one(tensor("a\nb", &[1], 0, 0)), "tensor `a\\nb`: its name has control characters");
    refused(&one(tensor(&"w".repeat(2000), &[1], 0, 0)), "name: 2000 is over the limit of 1024");
    let two = |a: Vec<u8>, b: Vec<u8>| file(&[], &[a, b], 64);
    refused(&two(tensor("w", &[1], 0, 0), tensor("w", &[1], 0, 32)), "two tensors are named `w`");
    refused(&two(tensor("v", &[1], 0, 32), tensor("w", &[9], 0, 0)), "tensor `v`: its data overlaps that of `w`");
    refused(&two(tensor("v", &[1], 0, 0), tensor("w", &[1], 0, 0)), "tensor `w`: its data overlaps that of `v`");
}

/// A small file of every kind of value and block.
fn small() -> Vec<u8> {
    let mut plan = plan();
    plan.values_mut().for_each(|info| info.shape = vec![info.kind.block_len()]);
    write(&metadata(), &plan)
}

/// That opening it ends with an answer, short enough for a terminal, and that every tensor of an accepted file can be read.
fn check(result: Result<Gguf, WeightsError>) {
    match result {
        Ok(file) => {
            for (name, info) in file.tensors() {
                assert_eq!(file.tensor_f32(name).unwrap().len(), info.shape.iter().product::<usize>());
            }
        }
        Err(error) => assert!(error.to_string().len() < 4000, "an error that floods the terminal"),
    }
}

#[test]
fn truncated_anywhere() {
    let whole = small();
    let path = tempfile::NamedTempFile::new().unwrap();
    for length in 0..whole.len() {
        std::fs::write(path.path(), &whole[..length]).unwrap();
        check(Gguf::open(path.path()));
    }
    // Only the padding after the last tensor may be missing.
    refused(&whole[..whole.len() - 32], "of a file of");
}

#[test]
fn a_bit_of_every_byte_flipped() {
    let whole = small();
    let path = tempfile::NamedTempFile::new().unwrap();
    // The tables, and a little of the data, where any bit is as good as another.
    for at in 0..2000.min(whole.len()) {
        for bit in [at % 8, 7] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(path.path(), &damaged).unwrap();
            check(Gguf::open(path.path()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_anywhere(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut file = small();
        let tables = 2000.min(file.len());
        for (index, byte) in changes {
            file[index.index(tables)] = byte;
        }
        check(open_bytes(&file));
    }
}

#[test]
fn the_tables_of_the_small_file_end_where_the_tests_think() {
    let file = open_bytes(&small()).unwrap();
    assert!(file.tensors().len() == 15 && Metadata::len(file.metadata()) == 17);
    let data: usize = file.tensors().values().map(|info| info.kind.bytes_of(&info.shape).unwrap().next_multiple_of(32)).sum();
    assert!((1000..2000).contains(&(small().len() - data)), "{}", small().len() - data);
}
