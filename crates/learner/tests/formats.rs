//! Checkpoints of every format that was ever written are read, and their runs go on (test T12).
//!
//! `fixtures/format-N` is a run of the toy that was stopped after 17 batches by the program that wrote format N, and the averages that it ended with when it was not stopped.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod toy;

use std::path::{Path, PathBuf};

use bellows_learner::Outcome;
use bellows_runs::FORMAT;
use toy::{EPOCHS, config, data, learner, no_poison};

fn fixture(format: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"))
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        if path.is_dir() { copy(&path, &to.join(name)) } else { std::fs::copy(&path, to.join(name)).map(drop).unwrap() }
    }
}

#[test]
fn a_run_of_every_format_goes_on_and_ends_as_it_would_have() {
    for format in 1..=FORMAT {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture(format), &dir.path().join("run"));
        let mut session = learner(dir.path(), config(), no_poison);
        session.resume().unwrap();
        assert_eq!((session.state().counters.batches, session.state().counters.epoch), (17, 1), "format {format}");
        assert_eq!(session.fit(&data()).unwrap(), Outcome::Finished);
        let rows = std::fs::read_to_string(dir.path().join("run/results.csv")).unwrap();
        assert_eq!(rows.lines().count(), 1 + EPOCHS, "format {format}: {rows}");
        // Another processor may sum in another order.
        let end = bellows_weights::read(&fixture(format).join("end.safetensors")).unwrap().tensors;
        let average: Vec<_> = session.layout().scatter(&session.state().ema.values).into_iter().flatten().collect();
        let ours = session.layout().read(&average).unwrap();
        assert_eq!(ours.len(), end.len());
        for (name, _, values) in ours {
            let expected = end[&name].to_f32().unwrap();
            assert!(values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "format {format}: {name}");
        }
    }
}
