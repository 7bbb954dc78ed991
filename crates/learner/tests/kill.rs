//! SIGKILL at random moments, again and again, and the end is still the same (contract P1 and P3, test T1).
//!
//! `BELLOWS_KILLS` sets the number of trials (20 by default): 300 failures-free trials bound the failure rate at 1 %.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod toy;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bellows_learner::rng::Rng;
use bellows_learner::{LearnerConfig, Outcome};
use toy::{config, data, ending, learner, no_poison};

const DIR: &str = "BELLOWS_VICTIM_DIR";

fn victim_config() -> LearnerConfig {
    // A checkpoint after every batch: most kills land in or near a save.
    LearnerConfig { epochs: 5, checkpoint_minutes: 0.0, ..config() }
}

/// Not a test of its own: the child process that is killed.
#[test]
fn victim() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mut run = learner(dir.as_ref(), victim_config(), no_poison);
    run.resume().unwrap();
    run.fit(&data()).unwrap();
}

fn spawn(dir: &std::path::Path) -> std::process::Child {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    command.args(["--exact", "victim", "--test-threads=1"]).env(DIR, dir).env("RAYON_NUM_THREADS", "1");
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn killed_anywhere_it_ends_the_same() {
    let expected = tempfile::tempdir().unwrap();
    let started = Instant::now();
    assert!(spawn(expected.path()).wait().unwrap().success());
    let whole = started.elapsed().as_secs_f64();
    let expected = ending(expected.path());

    let trials: u64 = std::env::var("BELLOWS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let mut kills = 0;
    for trial in 0..trials {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(11, "kill", 0, trial);
        for session in 0.. {
            assert!(session < 50, "the run makes no progress");
            let mut child = spawn(dir.path());
            // The last chance is always given its time, so every trial ends.
            if session < 3 {
                std::thread::sleep(Duration::from_secs_f64(rng.uniform(0.0, whole)));
                if child.try_wait().unwrap().is_none() {
                    kills += 1;
                    child.kill().unwrap();
                }
            }
            let output = child.wait_with_output().unwrap();
            if output.status.success() {
                break;
            }
            assert!(output.status.code().is_none(), "the victim failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        // Starting over sets checkpoints aside; it would end the same, and it is a failure.
        let names = std::fs::read_dir(dir.path().join("run/checkpoints")).unwrap().map(|e| e.unwrap().file_name());
        let abandoned =
            |name: &std::ffi::OsString| name.to_string_lossy().contains(".abandoned") && !name.to_string_lossy().contains("step-000000000");
        assert_eq!(names.filter(abandoned).count(), 0, "trial {trial}: it began again at 0");
        assert!(ending(dir.path()) == expected, "trial {trial}");
    }
    assert!(kills > 0, "no kill landed: nothing was tested");
}

#[test]
fn the_uninterrupted_victim_finishes() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(learner(dir.path(), victim_config(), no_poison).fit(&data()).unwrap(), Outcome::Finished);
}
