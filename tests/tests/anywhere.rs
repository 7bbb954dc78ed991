//! Both programs are killed, or asked to stop, at random moments of their life, and go on until they are done (tests T1 and T7).
//!
//! `BELLOWS_KILLS` and `BELLOWS_SIGNALS` set the number of trials of each program (10 and 6 by default); docs/reliability.md has what was
//! run with more.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic, and tells what it did")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{checkpoints, expect_code, in_time, llm_finetune, signal, tiny_chats, tiny_data, yolo_train};

/// A program and how it is run.
struct Victim {
    program: fn(&Path, &[&str]) -> Command,
    prepare: fn(&Path),
    args: &'static [&'static str],
    project: &'static str,
    /// What a run leaves besides checkpoints and `results.csv`.
    files: &'static [&'static str],
}

const YOLO: Victim = Victim {
    program: yolo_train,
    prepare: |dir| drop(tiny_data(dir)),
    args: &["--data", "tiny.yaml", "--checkpoint-minutes", "0", "--plots", "false", "--exist-ok", "true"],
    project: "runs/detect",
    files: &["weights/last.safetensors", "weights/best.safetensors"],
};

const QWEN: Victim = Victim {
    program: llm_finetune,
    prepare: tiny_chats,
    args: &["--config", "tiny.yaml", "--lora-dropout", "0.2", "--checkpoint-minutes", "0", "--eval-steps", "2", "--exist-ok", "true"],
    project: "runs/sft",
    files: &["weights/last.safetensors", "weights/best.safetensors", "adapter/adapter_model.safetensors"],
};

/// The next of a fixed sequence, in [0, 1) (splitmix64).
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

fn trials(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

impl Victim {
    fn run(&self, dir: &Path, name: &str) -> PathBuf {
        dir.join(self.project).join(name)
    }

    /// Begins the run, or goes on with it from its first checkpoint on.
    fn command(&self, dir: &Path, name: &str) -> Command {
        let run = self.run(dir, name);
        let resume = ["--resume", run.to_str().unwrap()];
        let begin = [self.args, &["--name", name]].concat();
        let mut command = if checkpoints(&run).is_empty() { (self.program)(dir, &begin) } else { (self.program)(dir, &resume) };
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn spawn(&self, dir: &Path, name: &str) -> Child {
        self.command(dir, name).spawn().unwrap()
    }

    /// Every tensor of the newest checkpoint, what the run leaves, and `results.csv` without its times.
    fn ending(&self, run: &Path) -> Vec<(String, Vec<u8>)> {
        let newest = checkpoints(run).pop().unwrap();
        let tensors = ["weights", "ema", "optimizer", "grads"].map(|name| newest.join(format!("{name}.safetensors")));
        let files = tensors.into_iter().chain(self.files.iter().map(|file| run.join(file)));
        let mut all: Vec<_> = files.map(|path| (path.display().to_string(), std::fs::read(path).unwrap())).collect();
        let csv = std::fs::read_to_string(run.join("results.csv")).unwrap();
        let row =
            |line: &str| line.split(',').enumerate().filter(|(i, _)| *i != 1).map(|(_, c)| c.to_owned()).collect::<Vec<_>>().join(",");
        all.push(("results.csv".into(), csv.lines().map(row).collect::<Vec<_>>().join("\n").into_bytes()));
        all
    }

    /// The run uninterrupted: how it ends, and the seconds it takes.
    fn whole(&self, dir: &Path) -> (Vec<(String, Vec<u8>)>, f64) {
        (self.prepare)(dir);
        // Once for what is made and cached at a first start.
        assert!(self.spawn(dir, "first").wait().unwrap().success());
        // The shorter of two, of which a busy machine lengthens one.
        let seconds = ["whole", "again"].map(|name| {
            let started = Instant::now();
            assert!(self.spawn(dir, name).wait().unwrap().success());
            started.elapsed().as_secs_f64()
        });
        (self.ending(&self.run(dir, "whole")), seconds[0].min(seconds[1]))
    }

    /// Goes on to the end, which is that of the uninterrupted run, without having begun again.
    fn finish(&self, dir: &Path, name: &str, expected: &[(String, Vec<u8>)]) {
        let run = self.run(dir, name);
        expect_code(&mut self.command(dir, name), 0);
        let names = std::fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let again: Vec<String> = names.filter(|name| name.contains(".abandoned") && !name.starts_with("step-000000000")).collect();
        assert!(again.is_empty(), "{name} began again at 0: {again:?}");
        for ((file, ours), (_, theirs)) in self.ending(&run).iter().zip(expected) {
            assert!(ours == theirs, "{file} differs");
        }
        std::fs::remove_dir_all(run).unwrap();
    }
}

fn killed(victim: &Victim, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (expected, seconds) = victim.whole(dir.path());
    let (mut state, mut kills, trials) = (seed, 0, trials("BELLOWS_KILLS", 10));
    for trial in 0..trials {
        let name = format!("killed{trial}");
        // Up to three times; each time is drawn anew.
        for _ in 0..1 + (3.0 * draw(&mut state)) as usize {
            let mut child = victim.spawn(dir.path(), &name);
            std::thread::sleep(Duration::from_secs_f64(draw(&mut state) * seconds));
            if child.try_wait().unwrap().is_none() {
                child.kill().unwrap();
                kills += 1;
            }
            child.wait().unwrap();
        }
        victim.finish(dir.path(), &name, &expected);
    }
    println!("{trials} runs, {kills} kills, none diverged, none began again; a whole run takes {seconds:.1} s");
    assert!(4 * kills >= trials, "{kills} of {trials} kills landed");
}

fn stopped(victim: &Victim, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (expected, seconds) = victim.whole(dir.path());
    let (mut state, trials) = (seed, trials("BELLOWS_SIGNALS", 6));
    let (mut before, mut during, mut longest) = (0, 0, Duration::ZERO);
    for trial in 0..trials {
        let name = format!("stopped{trial}");
        let mut child = victim.spawn(dir.path(), &name);
        std::thread::sleep(Duration::from_secs_f64(draw(&mut state) * seconds));
        let asked = Instant::now();
        signal(&child, "TERM");
        let code = child.wait().unwrap().code();
        longest = longest.max(asked.elapsed());
        in_time(asked);
        match code {
            // Before training began: there is no run, or none that has a checkpoint.
            // (None: the system ended it before it had a word to say.)
            Some(143) | None => {
                assert!(checkpoints(&victim.run(dir.path(), &name)).is_empty(), "{name}: a run in progress was not saved");
                before += 1;
            }
            Some(0) => during += 1,
            code => panic!("{name}: exit code {code:?}"),
        }
        victim.finish(dir.path(), &name, &expected);
    }
    println!("{trials} signals: {before} before training, {during} while it lasted or after; the longest took {longest:?}");
}

#[test]
fn yolo_train_killed_anywhere_ends_the_same() {
    killed(&YOLO, 1);
}

#[test]
fn llm_finetune_killed_anywhere_ends_the_same() {
    killed(&QWEN, 2);
}

#[test]
fn yolo_train_stopped_anywhere_can_go_on() {
    stopped(&YOLO, 3);
}

#[test]
fn llm_finetune_stopped_anywhere_can_go_on() {
    stopped(&QWEN, 4);
}

/// Of a program that is proving a GPU, in a probe that hangs: there is nothing yet that could be lost.
#[test]
fn a_probe_can_be_stopped_anywhere() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    tiny_data(dirs[0].path());
    tiny_chats(dirs[1].path());
    let (mut state, mut longest) = (5, Duration::ZERO);
    for trial in 0..trials("BELLOWS_SIGNALS", 6) {
        let (program, file): (fn(&Path, &[&str]) -> Command, _) =
            [(yolo_train as _, "--data"), (llm_finetune as _, "--config")][trial as usize % 2];
        let dir = &dirs[trial as usize % 2];
        let mut command = program(dir.path(), &[file, "tiny.yaml", "--device", "auto"]);
        let mut child = command.env("BELLOWS_PROBE_FAULT", "hang:enumerate").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs_f64(2.0 * draw(&mut state)));
        let asked = Instant::now();
        signal(&child, "TERM");
        let code = child.wait().unwrap().code();
        in_time(asked);
        longest = longest.max(asked.elapsed());
        assert!([Some(143), None].contains(&code), "{code:?}");
        assert!(!dir.path().join("runs").exists(), "trial {trial} left a run");
    }
    println!("the longest took {longest:?}");
}
