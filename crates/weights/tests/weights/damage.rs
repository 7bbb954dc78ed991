//! Damaged files: whatever is cut off or changed, reading ends with an answer, and does not cost more than the file's size allows.

use crate::common::*;
use bellows_weights::{Weights, WeightsError, from_safetensors, to_safetensors};
use proptest::prelude::*;
use std::io::Write;

/// The files to damage: all fixtures, and one as safetensors and as ONNX.
fn originals() -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> =
        ["state_dict.pt", "wrapped.pt", "module.pt", "ema.pt", "attack.pt"].map(|name| std::fs::read(fixture(name)).unwrap()).into();
    let weights = bellows_weights::read(&fixture("module.pt")).unwrap();
    files.push(bellows_weights::onnx::encode(&crate::onnx::model()));
    files.push(to_safetensors(&weights.tensors, &weights.metadata).unwrap());
    files
}

/// What is kept of a file never exceeds twice the file.
fn check(file: &[u8], result: Result<Weights, WeightsError>) {
    match result {
        Ok(weights) => {
            let kept: usize = weights.tensors.iter().map(|(name, tensor)| name.len() + tensor.data.len()).sum();
            assert!(kept <= 2 * file.len(), "{kept} bytes from a file of {}", file.len());
            for tensor in weights.tensors.values() {
                tensor.to_f32().unwrap();
            }
        }
        Err(error) => assert!(error.to_string().len() < 4000, "an error that floods the terminal"),
    }
}

fn change(file: &mut [u8], changes: &[(prop::sample::Index, u8)]) {
    for (index, byte) in changes {
        file[index.index(file.len())] = *byte;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_and_truncated_files(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = which.get(&originals()).clone();
        change(&mut file, &changes);
        if let Some(keep) = keep {
            file.truncate(keep.index(file.len()));
        }
        check(&file, read_bytes(&file));
    }

    /// Inside an intact container, so that the damage reaches the interpreter and not only the CRC.
    #[test]
    fn changed_pickles(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let files = originals();
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(&files[which.index(5)])).unwrap();
        let mut entries = Vec::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let name = entry.name().unwrap().into_owned();
            let mut data = Vec::new();
            std::io::copy(&mut entry, &mut data).unwrap();
            if name.ends_with("data.pkl") {
                change(&mut data, &changes);
            }
            entries.push((name, data));
        }
        let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, data)| (name.as_str(), data.as_slice())).collect();
        let file = zip(&entries);
        check(&file, read_bytes(&file));
    }

    #[test]
    fn changed_safetensors_headers(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut file = originals().pop().unwrap();
        let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize + 8;
        change(&mut file[..header], &changes);
        check(&file, from_safetensors(&file));
    }

    #[test]
    fn random_opcodes(ops in prop::collection::vec(prop::sample::select(&b"\x80\x02(})]tuesaNK\x01h\x01q\x01\x85\x86R\x81bQ."[..]), 0..200)) {
        let file = pt(&pickle(&ops), &[0; 16]);
        check(&file, read_bytes(&file));
    }
}

/// A size believed before it is checked shows in the peak of this process's address space.
#[test]
fn memory_stays_bounded() {
    let peak = || -> Option<usize> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmPeak:")?.trim().strip_suffix("kB")?.trim().parse().ok())
    };
    let Some(before) = peak() else {
        writeln!(std::io::stderr(), "skipped: no /proc/self/status on this system").unwrap();
        return;
    };
    for file in originals() {
        // Sizes, counts and offsets are at least three bytes wide: one byte of each is set so that the number is huge.
        for at in (0..file.len()).step_by(3) {
            let mut damaged = file.clone();
            damaged[at] = 0x7f;
            check(&damaged, read_bytes(&damaged));
        }
    }
    let grown = peak().unwrap() - before;
    assert!(grown < 1 << 20, "the peak grew by {grown} kB");
}
