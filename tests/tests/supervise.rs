//! Runs that watch themselves: victims hang, crash, run out of memory and lose their device, and end as if nothing had been.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::{checkpoints, ending, expect_code, in_time, llm_finetune, signal, tiny_chats, tiny_data, wait_for, yolo_train};
use serde_json::Value;

/// Short enough for a test, long enough for a busy machine, whose disks have more to do as well.
const LIMITS: &str = "start=120,first=120,step=8,evaluation=8,save=30,export=120";

/// A supervised run of the tiny set, which saves after every batch if `saves`.
fn supervised(dir: &Path, name: &str, saves: bool, fault: &str) -> Command {
    let minutes = if saves { "0" } else { "10" };
    let args = ["--data", "tiny.yaml", "--name", name, "--checkpoint-minutes", minutes, "--plots", "false", "--supervise"];
    let limits = if fault.starts_with("hang:save") { LIMITS.replace("save=30", "save=8") } else { LIMITS.into() };
    let mut command = yolo_train(dir, &[&args[..], &["--heartbeat", limits.as_str()]].concat());
    command.env("BELLOWS_FAULT", fault);
    command
}

fn run_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("runs/detect").join(name)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The events of this kind.
fn events(run: &Path, kind: &str) -> Vec<Value> {
    lines(&run.join("events.jsonl")).into_iter().filter(|event| event["event"] == kind).collect()
}

/// What the supervisor saw before each restart.
fn restarts(run: &Path) -> Vec<String> {
    let all = lines(&run.join("supervision.jsonl")).into_iter().filter(|line| line["event"] == "restart");
    all.map(|line| line["what"].as_str().unwrap().to_string()).collect()
}

fn same(run: &Path, expected: &[(String, Vec<u8>)], what: &str) {
    for ((name, ours), (_, theirs)) in ending(run).iter().zip(expected) {
        assert!(ours == theirs, "{what}: {name} differs");
    }
}

/// How a run ends that nothing befalls: many tests want the same.
fn whole() -> &'static [(String, Vec<u8>)] {
    static WHOLE: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        tiny_data(dir.path());
        expect_code(&mut yolo_train(dir.path(), &["--data", "tiny.yaml", "--name", "whole", "--plots", "false"]), 0);
        ending(&run_of(dir.path(), "whole"))
    })
}

/// A victim in `dir` dies or hangs once, is started again, and ends in the bits of a run that did not.
fn survives(dir: &Path, fault: &str, words: &str) {
    let name = fault.replace(':', "-");
    let run = run_of(dir, &name);
    let (_, error) = expect_code(&mut supervised(dir, &name, true, fault), 0);
    assert!(error.contains("supervisor: ") && error.contains("starting again from"), "{fault}: {error}");
    let told = restarts(&run);
    assert!(told.first().is_some_and(|told| told.contains(words)), "{fault}: {told:?}");
    let own = events(&run, "restart");
    assert_eq!(own.first().map(|event| &event["reason"]), Some(&told[0].clone().into()), "{fault}: the run tells it, too");
    assert!(!run_of(dir, &format!("{name}2")).exists(), "{fault}: it is the same run");
    same(&run, whole(), fault);
}

/// All at once: until a hang is known for one, and its process has had ten seconds to end by itself, nobody computes.
#[test]
fn a_run_that_hangs_is_ended_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let victims = [
        ("hang:step:2", "hung in a step"),
        ("hang:save:3", "hung while saving"),
        ("stop:step:4", "hung in a step"),
        ("hang:evaluation:1", "hung in an evaluation"),
    ];
    std::thread::scope(|scope| {
        for (fault, words) in victims {
            let dir = dir.path();
            scope.spawn(move || survives(dir, fault, words));
        }
    });
}

#[test]
fn a_run_that_crashes_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    for (fault, words) in [
        ("kill:first:1", "died in its first step of SIGKILL"),
        ("abort:step:3", "died in a step of SIGABRT"),
        ("segfault:evaluation:1", "died in an evaluation of SIGSEGV"),
        ("memory:step:2", "died in a step of SIGABRT"),
        ("lost:step:3", "the device failed in a step"),
    ] {
        survives(dir.path(), fault, words);
    }
}

/// A program that is built again or upgraded while its run goes on is the one that goes on, and not the new one.
#[test]
#[cfg(target_os = "linux")]
fn a_program_whose_file_is_gone_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let command = supervised(dir.path(), "v", true, "stop:step:4");
    let program = dir.path().join("program");
    std::fs::copy(command.get_program(), &program).unwrap();
    let mut moved = Command::new(&program);
    moved.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = start(moved.current_dir(dir.path()).stdin(Stdio::null()));
    let run = run_of(dir.path(), "v");
    wait_for("a checkpoint", &mut child, || !checkpoints(&run).is_empty());
    std::fs::remove_file(&program).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(restarts(&run).len(), 1);
    same(&run, whole(), "its file is gone");
}

/// Before there is a run directory nothing is written into one; the console tells of it.
#[test]
fn a_run_that_crashes_before_it_begins_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (_, error) = expect_code(&mut supervised(dir.path(), "v", true, "segfault:start:1"), 0);
    assert!(error.contains("died before training of SIGSEGV") && error.contains("starting again from"), "{error}");
    same(&run_of(dir.path(), "v"), whole(), "started again");
}

#[test]
fn language_models_are_watched_too() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let start = |name: &str| {
        let args = ["--config", "tiny.yaml", "--name", name, "--supervise", "--checkpoint-minutes", "0", "--heartbeat", LIMITS];
        llm_finetune(dir.path(), &args)
    };
    let adapter = |name: &str| std::fs::read(dir.path().join("runs/sft").join(name).join("adapter/adapter_model.safetensors")).unwrap();
    expect_code(&mut start("whole"), 0);
    for fault in ["hang:step:3", "segfault:export:1"] {
        let name = fault.replace(':', "-");
        expect_code(start(&name).env("BELLOWS_FAULT", fault), 0);
        assert_eq!(restarts(&dir.path().join("runs/sft").join(&name)).len(), 1, "{fault}");
        assert!(adapter(&name) == adapter("whole"), "{fault}");
    }
}

#[test]
fn three_restarts_without_a_checkpoint_end_it_with_a_report() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (_, error) = expect_code(&mut supervised(dir.path(), "v", false, "segfault:step:1:9"), 1);
    assert!(error.contains("given up: it died in a step of SIGSEGV (4 times); its checkpoints stand"), "{error}");
    let run = run_of(dir.path(), "v");
    assert_eq!(restarts(&run).len(), 3);
    expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap(), "--supervise", "false"]), 0);
    same(&run, whole(), "resumed by hand");
}

#[test]
fn want_of_memory_twice_makes_parts_smaller() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (_, error) = expect_code(&mut supervised(dir.path(), "v", false, "memory:step:1:2"), 0);
    assert!(error.contains("with smaller parts of batches"), "{error}");
    let cut = events(&run_of(dir.path(), "v"), "oom");
    assert_eq!(cut.iter().map(|event| event["parts"].as_u64()).collect::<Vec<_>>(), [Some(2)]);
}

#[test]
fn a_device_that_is_lost_twice_is_given_up_if_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let devices = |name: &str, fallback: &str| {
        let (out, error) = expect_code(supervised(dir.path(), name, false, "lost:step:1:2").args(["--fallback", fallback]), 0);
        let told = events(&run_of(dir.path(), name), "device").into_iter().map(|event| event["fallback"].clone()).collect::<Vec<_>>();
        (out + &error, told)
    };
    let (said, told) = devices("asked", "cpu");
    let why = told.last().unwrap().as_str().unwrap();
    assert!(why.starts_with("the device was lost twice") && said.contains(&format!("— {why}")), "{told:?} {said}");
    assert!(said.contains("starting again from the checkpoint of step 0, on the CPU"), "{said}");
    let processor = |name: &str| -> Vec<Value> {
        let all = lines(&run_of(dir.path(), name).join("supervision.jsonl")).into_iter().filter(|line| line["event"] == "restart");
        all.map(|line| line["processor"].clone()).collect()
    };
    assert_eq!(processor("asked"), [false, true]);
    let status = |more: &[&str]| expect_code(&mut yolo_train(dir.path(), &[&["status", "runs/detect/asked"], more].concat()), 0).0;
    assert!(status(&[]).contains(&format!("— {why}")), "{}", status(&[]));
    assert_eq!(serde_json::from_str::<Value>(&status(&["--json"])).unwrap()["heartbeat"]["fallback"], why);
    let (said, told) = devices("not", "none");
    assert!(told.iter().all(Value::is_null) && !said.contains("on the CPU"), "{told:?} {said}");
    assert_eq!(processor("not"), [false, false]);
}

#[test]
fn a_probe_that_hangs_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--device", "auto", "--supervise", "--heartbeat", "start=3"];
    let (_, error) = expect_code(yolo_train(dir.path(), &args).env("BELLOWS_PROBE_FAULT", "hang:enumerate"), 1);
    assert!(error.contains("it hung before training: no sign of life for 3 s (4 times)"), "{error}");
    assert!(error.matches("stopped before training began").count() > 1, "SIGTERM comes first, which has an answer: {error}");
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn what_a_restart_would_not_change_is_handed_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let cases: [(&[&str], &str); 6] = [
        (&["--fallback", "cpu"], "needs supervise"),
        (&["--fallback", "vulkan", "--supervise"], "neither none nor cpu"),
        (&["--fallback", "cpu", "--supervise", "--precision", "f16"], "no fallback cpu"),
        (&["--supervise", "--heartbeat", "saves=3"], "start, first, step, evaluation, save, export"),
        (&["--supervise", "--epochs", "many"], "many"),
        (&["--supervise", "--model", "none.pt"], "none.pt"),
    ];
    for (args, words) in cases {
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&["--data", "tiny.yaml"], args].concat()), 2);
        assert!(error.contains(words) && !error.contains("starting again"), "{args:?}: {error}");
    }
    assert!(!dir.path().join("runs/detect/train").exists());
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn holder(run: &Path) -> Option<String> {
    std::fs::read_to_string(run.join("run.lock")).ok().and_then(|text| text.split_whitespace().next().map(String::from))
}

/// A long run in `dir`, under way.
fn under_way(dir: &Path, more: &[&str]) -> (Child, PathBuf) {
    tiny_data(dir);
    let args = ["--data", "tiny.yaml", "--name", "v", "--epochs", "500", "--plots", "false"];
    let mut child = start(&mut yolo_train(dir, &[&args, more].concat()));
    let run = run_of(dir, "v");
    wait_for("the first step", &mut child, || !events(&run, "step").is_empty());
    (child, run)
}

#[test]
fn a_signal_goes_to_the_run_and_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, run) = under_way(dir.path(), &["--supervise"]);
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!((events(&run, "stop").len(), restarts(&run).len()), (1, 0));
}

/// As systemd and Slurm end a job: the run has its own and the one that the supervisor passes on.
#[test]
fn a_signal_to_all_processes_of_a_run_is_one() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let (mut child, run) = under_way(dir.path(), &["--supervise"]);
        let all = [child.id().to_string(), holder(&run).unwrap()];
        assert!(Command::new("kill").args(["-s", "TERM"]).args(all).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert_eq!((events(&run, "stop").len(), restarts(&run).len()), (1, 0));
        std::fs::remove_dir_all(run).unwrap();
    }
}

/// It would wait for an hour.
#[test]
fn a_signal_ends_the_pause_before_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    // What the supervisor of a run before has seen is not told of this one.
    let run = run_of(dir.path(), "v");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("results.csv"), "epoch\n1\n").unwrap();
    std::fs::write(run.join("supervision.jsonl"), "{\"event\":\"restart\",\"what\":\"it hung\"}\n").unwrap();
    let mut command = supervised(dir.path(), "v", true, "kill:step:2");
    let mut child = start(command.arg("--exist-ok").env("BELLOWS_PAUSE_SECONDS", "3600"));
    wait_for("the pause", &mut child, || restarts(&run).iter().any(|what| what.contains("SIGKILL")));
    let asked = Instant::now();
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    in_time(asked);
    let told = lines(&run.join("supervision.jsonl"));
    assert!(told[0]["pause_s"] == 3600 && !checkpoints(&run).is_empty(), "{told:?}");
}

#[test]
fn before_training_it_ends_by_the_signal_it_was_sent_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let temporary = dir.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let left = || -> Vec<PathBuf> { std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect() };
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = yolo_train(dir.path(), &["--data", "tiny.yaml", "--device", "auto", "--supervise"]);
        let mut child = start(command.env("TMPDIR", &temporary).env("BELLOWS_PROBE_FAULT", "hang:enumerate"));
        wait_for("a sign of life", &mut child, || left().iter().any(|folder| folder.join("heartbeat.json").exists()));
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(left(), Vec::<PathBuf>::new(), "SIG{name}");
    }
}

#[test]
fn a_run_whose_supervisor_is_killed_saves_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, run) = under_way(dir.path(), &["--supervise"]);
    let pid = holder(&run).unwrap();
    assert_ne!(pid, child.id().to_string(), "the run is another process");
    child.kill().unwrap();
    child.wait().unwrap();
    let started = Instant::now();
    while events(&run, "stop").is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "it goes on alone");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn status_tells_how_a_run_is_and_stop_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, run) = under_way(dir.path(), &["--supervise"]);
    let status = |more: &[&str]| expect_code(&mut yolo_train(dir.path(), &[&["status"], more].concat()), 0).0;
    let told = status(&[]);
    for words in [
        "runs/detect/v: ",
        "epoch ",
        "/500",
        "box_loss",
        "on flex",
        "supervised by process",
        "last sign of life",
        "last events:",
        "checkpoint (epoch",
    ] {
        assert!(told.contains(words), "no {words:?} in {told}");
    }
    let json: Value = serde_json::from_str(&status(&[run.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!((&json["running"], &json["hangs"], &json["heartbeat"]["epochs"]), (&true.into(), &false.into(), &500.into()));
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["stop"]), 0);
    assert!(out.contains("runs/detect/v: stopped"), "{out}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(status(&[]).starts_with("runs/detect/v: stopped\n"));
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["stop"]), 2);
    assert!(error.contains("nothing to stop"), "{error}");
    expect_code(&mut yolo_train(dir.path(), &["status", "nowhere"]), 2);
    expect_code(&mut llm_finetune(dir.path(), &["status"]), 2);
}

#[test]
fn status_follows_a_run_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _) = under_way(dir.path(), &[]);
    let mut follower = yolo_train(dir.path(), &["status", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(follower.stdout.take().unwrap());
    let mut told = String::new();
    out.read_line(&mut told).unwrap();
    assert!(told.starts_with("runs/detect/v: "), "{told}");
    signal(&child, "INT");
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while follower.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it follows a run that has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    out.read_to_string(&mut told).unwrap();
    assert!(told.lines().last().unwrap().starts_with("stopped  epoch "), "{told}");
    assert!(follower.wait().unwrap().success());
}

/// As `head -1` reads it.
#[test]
fn status_follows_no_longer_than_somebody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, _) = under_way(dir.path(), &[]);
    let mut follower = yolo_train(dir.path(), &["status", "--follow"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(follower.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    while follower.try_wait().unwrap().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it tells nobody how a run goes on to its end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(follower.wait().unwrap().success());
    signal(&child, "INT");
    child.wait().unwrap();
}

#[test]
fn status_knows_the_dead_from_the_hanging() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--name", "v", "--heartbeat", "step=1", "--plots", "false"];
    let mut child = start(yolo_train(dir.path(), &args).env("BELLOWS_FAULT", "hang:step:3"));
    let run = run_of(dir.path(), "v");
    let status = || expect_code(&mut yolo_train(dir.path(), &["status", run.to_str().unwrap()]), 0).0;
    // A step before that may take a second on a busy machine, and its run hears a signal.
    let hangs = |told: String| told.contains("no sign of life for") && told.contains("checkpoint (epoch 2, batch 0)");
    wait_for("the sign that it hangs", &mut child, || run.join("run.lock").exists() && hangs(status()));
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["stop", run.to_str().unwrap()]), 1);
    assert!(error.contains(&format!("`kill -9 {}` ends it", child.id())), "nobody else ends it: {error}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(status().contains("ended without a word"), "{}", status());
}

/// As Ctrl-Z leaves it: it hears no signal until it goes on.
#[test]
#[cfg(target_os = "linux")]
fn a_suspended_run_is_stopped_with_its_state_saved() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--name", "v", "--epochs", "500", "--heartbeat", "step=20", "--plots", "false"];
    let mut child = start(yolo_train(dir.path(), &args).env("BELLOWS_FAULT", "stop:step:3"));
    let run = run_of(dir.path(), "v");
    let status = || expect_code(&mut yolo_train(dir.path(), &["status", run.to_str().unwrap()]), 0).0;
    wait_for("the sign that it is suspended", &mut child, || run.join("run.lock").exists() && status().contains("suspended (step)"));
    expect_code(&mut yolo_train(dir.path(), &["stop", run.to_str().unwrap()]), 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(std::fs::read_to_string(run.join("events.jsonl")).unwrap().contains("stopped by request; the state is saved"));
}

#[test]
fn a_run_in_the_background_outlives_who_started_it() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let args = ["--data", "tiny.yaml", "--project", "exp", "--name", "v 1", "--plots", "false", "--detach", "--supervise"];
    let begin = |more: &[&str]| yolo_train(dir.path(), &[&args, more].concat());
    let (_, error) = expect_code(&mut begin(&["--device", "gpu9"]), 2);
    assert!(error.contains("before training began"), "{error}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    let in_a_file = ["--data", "tiny.yaml", "--project", "file"];
    expect_code(&mut yolo_train(dir.path(), &in_a_file), 2);
    expect_code(&mut yolo_train(dir.path(), &[&in_a_file[..], &["--detach"]].concat()), 2);
    let (out, _) = expect_code(&mut begin(&["--epochs", "500"]), 0);
    assert!(out.contains("YOLOv8n summary") && out.contains("In the background as process"), "{out}");
    let run = dir.path().join("exp/v 1");
    assert!(std::fs::read_to_string(run.join("console.log")).unwrap().contains("Starting training for 500 epochs"));
    // As it was told to, for the run is not where these look by themselves: one word to a shell.
    let told = |verb: &str| {
        let mut words = out.split('`').filter_map(|words| words.strip_prefix("yolo-train ")?.strip_prefix(verb));
        words.next().unwrap().trim().strip_prefix('\'').unwrap().strip_suffix('\'').unwrap()
    };
    let (how, _) = expect_code(&mut yolo_train(dir.path(), &["status", told("status")]), 0);
    assert!(how.starts_with("exp/v 1: "), "{how}");
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["stop", told("stop")]), 0);
    assert!(out.contains("stopped"), "{out}");
    assert!(!checkpoints(&run).is_empty());
    let left: Vec<_> = std::fs::read_dir(dir.path().join("exp")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["v 1"], "nothing else is left");
}

/// Its settings may have come with it from somewhere else, or from somebody else.
#[test]
fn what_a_resumed_run_says_in_the_background_begins_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["--data", "tiny.yaml", "--name", "v", "--epochs", "1", "--plots", "false"]), 0);
    let (run, elsewhere) = (run_of(dir.path(), "v"), dir.path().join("elsewhere"));
    let config = std::fs::read_to_string(run.join("config.yaml")).unwrap();
    assert!(config.contains("\nproject: \"runs/detect\"\n"), "{config}");
    let moved = config.replace("\"runs/detect\"", &format!("\"{}\"", elsewhere.display()));
    std::fs::write(run.join("config.yaml"), moved).unwrap();
    expect_code(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap(), "--detach"]), 0);
    let asked = Instant::now();
    while bellows_runs::RunDir::at(&run).holder().is_some() {
        assert!(asked.elapsed() < Duration::from_secs(120), "it never ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!elsewhere.exists() && run.join("console.log").exists());
}
