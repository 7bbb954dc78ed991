//! SIGKILL at random moments, again and again, and the end is still the same (contract P1 and P3, test T1), of a process alone and of ranks.
//!
//! `BELLOWS_KILLS` sets the number of trials (20 by default): 300 failures-free trials bound the failure rate at 1 %. `BELLOWS_RANK_KILLS` sets that of
//! kills of ranks (12 by default).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and tells what it did")]

use std::iter;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::toy::{Ending, Toy, config, data, ending, identity, learner, net, no_poison};
use bellows_learner::rng::Rng;
use bellows_learner::{Learner, LearnerConfig, Limits, OptimizerKind, Outcome, Schedule, UpdateSchedule};
use bellows_ranks::{Tcp, listen};
use bellows_runs::RunDir;
use burn::tensor::Device;

const DIR: &str = "BELLOWS_VICTIM_DIR";
/// Which rank of how many, and where they meet: `1/3@127.0.0.1:4711`.
const PLACE: &str = "BELLOWS_VICTIM_PLACE";

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

fn command(victim: &str, dir: &Path) -> Command {
    let (mut command, test) = (Command::new(std::env::current_exe().unwrap()), format!("kill::{victim}"));
    command.args(["--exact", &test, "--test-threads=1"]).env(DIR, dir).env("RAYON_NUM_THREADS", "1").stdout(Stdio::null());
    command
}

fn spawn(dir: &Path) -> Child {
    command("victim", dir).stderr(Stdio::piped()).spawn().unwrap()
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

/// Not a test of its own: one of the ranks of which one is killed. Their batches are those of two, however many there are.
#[test]
fn rank_victim() {
    let (Some(dir), Ok(place)) = (std::env::var_os(DIR), std::env::var(PLACE)) else { return };
    let (numbers, address) = place.split_once('@').unwrap();
    let (rank, ranks) = numbers.split_once('/').map(|(rank, ranks)| (rank.parse().unwrap(), ranks.parse().unwrap())).unwrap();
    let (patience, begun) = (Duration::from_secs(20), Instant::now());
    let exchange = match rank {
        0 => Tcp::host(&listen(address).unwrap(), ranks, &|| (begun.elapsed() > patience).then(|| "somebody does not come".into())),
        _ => Tcp::join(address, rank, ranks, patience, &|_| {}),
    };
    let dir = if rank == 0 { RunDir::create(dir.as_ref(), "run", true).unwrap() } else { RunDir::nowhere() };
    let schedule = UpdateSchedule { lr: 0.05, warmup_steps: Some(2), batch: 16, accumulate: 1, ..UpdateSchedule::default() };
    let schedule = Schedule::Updates(schedule);
    let config = LearnerConfig { schedule, optimizer: OptimizerKind::AdamW, ema_decay: 0.0, ranks: 2, ..victim_config() };
    let toy = Toy { per_count: true, ..Toy::default() };
    let mut learner = Learner::new(toy, net(&Device::flex()), &Device::flex(), config, dir, identity()).unwrap();
    learner.join(Rc::new(exchange.unwrap()), "this program", Limits::default()).unwrap();
    learner.resume().unwrap();
    learner.fit(&data()).unwrap();
}

/// So many ranks of a run. Where they meet nobody else is: the port is none of those that the system hands out by itself (from 32768 on by default).
fn world(dir: &Path, ranks: usize) -> Vec<Child> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let mut ports = iter::repeat_with(|| NEXT.fetch_add(1, Ordering::SeqCst) + (37 * std::process::id() % 10_000) as u16);
    let port = ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).unwrap();
    let address = format!("127.0.0.1:{port}");
    let start = |rank: usize| {
        let place = format!("{rank}/{ranks}@{address}");
        command("rank_victim", dir).env(PLACE, place).stderr(Stdio::null()).spawn().unwrap()
    };
    (0..ranks).map(start).collect()
}

/// Whether all have ended well; panics if one does not end at all.
fn all_end(ranks: &mut [Child]) -> bool {
    let until = Instant::now() + Duration::from_secs(120);
    while ranks.iter_mut().any(|rank| rank.try_wait().unwrap().is_none()) {
        if Instant::now() > until {
            ranks.iter_mut().for_each(|rank| drop(rank.kill()));
            panic!("a rank hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    ranks.iter_mut().all(|rank| rank.wait().unwrap().success())
}

/// Steps of the checkpoints, and those that were set aside because the run had begun again.
fn steps(dir: &Path) -> (Option<u64>, usize) {
    let checkpoints = dir.join("run/checkpoints");
    let names = std::fs::read_dir(checkpoints).into_iter().flatten().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let aside = names.filter(|name| name.contains(".abandoned") && !name.contains("step-000000000")).count();
    (RunDir::at(dir.join("run")).newest_step(), aside)
}

/// What does not depend on the number of ranks: counters, and rows of results but for their numbers.
fn samples(ending: &Ending) -> (serde_json::Value, usize) {
    let state = ending.0.iter().find(|(name, _)| name == "state").unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state.1).unwrap();
    let counters = ["epoch", "batches", "updates"].map(|key| state[key].clone());
    (counters.to_vec().into(), ending.1.lines().count())
}

/// The weights of the newest checkpoint, in the order of their names.
fn weights(ending: &Ending) -> Vec<f32> {
    let (_, bytes) = ending.0.iter().find(|(name, _)| name == "weights.safetensors").unwrap();
    let read = bellows_weights::from_safetensors(bytes).unwrap();
    read.tensors.values().flat_map(|tensor| tensor.to_f32().unwrap()).collect()
}

/// The largest difference of any weight.
fn apart(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A random rank of one to four is killed at a random moment; all end, none forgets an epoch, and with two ranks throughout it is the same run bit by bit,
/// with others it is made of the same samples and has the same weights up to rounding.
#[test]
fn ranks_that_are_killed_anywhere_end_the_same() {
    let whole = tempfile::tempdir().unwrap();
    let started = Instant::now();
    assert!(all_end(&mut world(whole.path(), 2)));
    let (seconds, expected) = (started.elapsed().as_secs_f64(), ending(whole.path()));

    let wanted: u64 = std::env::var("BELLOWS_RANK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let (mut kills, mut runs, mut widest) = (0, 0, 0.0_f32);
    while kills < wanted {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(12, "kill a rank", 0, runs));
        let same = runs % 2 == 0;
        for session in 0.. {
            assert!(session < 50, "run {runs}: it makes no progress");
            let count = if same { 2 } else { 1 + rng.below(4) as usize };
            let (before, _) = steps(dir.path());
            let mut ranks = world(dir.path(), count);
            let mut killed = false;
            // The last chance is always given its time, so every run ends.
            if session < 4 {
                std::thread::sleep(Duration::from_secs_f64(rng.uniform(0.0, seconds)));
                let unlucky = &mut ranks[rng.below(count as u64) as usize];
                if unlucky.try_wait().unwrap().is_none() {
                    (kills, killed) = (kills + 1, true);
                    unlucky.kill().unwrap();
                }
            }
            let done = all_end(&mut ranks);
            assert!(done || killed, "run {runs}: nobody was killed, and a rank has failed");
            let (after, aside) = steps(dir.path());
            assert!(after >= before && aside == 0, "run {runs}: {before:?} became {after:?}, {aside} set aside");
            if done {
                break;
            }
        }
        let ended = ending(dir.path());
        assert!(!same || ended == expected, "run {runs}: two ranks, killed, are another run");
        assert_eq!(samples(&ended), samples(&expected), "run {runs}");
        // Other numbers of ranks add up the same gradients in another order.
        widest = widest.max(apart(&weights(&ended), &weights(&expected)));
        assert!(widest < 1e-6, "run {runs}: weights are {widest} apart");
        runs += 1;
    }
    println!("{runs} runs, {kills} kills: none hung, none diverged (weights at most {widest:.1e} apart), none lost a checkpoint");
}
