//! Several processes that train one model: one console, one run directory, the same bits every time, and an end for all when one ends.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says why it was skipped")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{checkpoints, ending, expect_code, llm_finetune, signal, tiny_chats, tiny_data, wait_for, yolo_train};

/// A run of the tiny set that saves after every batch.
fn detector(dir: &Path, name: &str, more: &[&str]) -> Command {
    let args = ["--data", "tiny.yaml", "--name", name, "--checkpoint-minutes", "0", "--plots", "false"];
    yolo_train(dir, &[&args[..], more].concat())
}

fn run_of(dir: &Path, name: &str) -> PathBuf {
    dir.join("runs/detect").join(name)
}

fn resumed(dir: &Path, name: &str, more: &[&str]) -> Command {
    let run = format!("runs/detect/{name}");
    yolo_train(dir, &[&["--resume", &run][..], more].concat())
}

/// Rank `rank` of two that somebody has started, who meet at `port`.
fn placed(mut command: Command, rank: usize, port: u16) -> Command {
    let (rank, port) = (rank.to_string(), port.to_string());
    command.envs([("WORLD_SIZE", "2"), ("RANK", &rank), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
    command
}

/// None of those that the system hands out by itself (from 32768 on by default): another test's listener might have it before rank 0 does.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::SeqCst) + (37 * std::process::id() % 10_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The columns of `results.csv` whose name contains one of these.
fn columns(run: &Path, names: &[&str]) -> Vec<f64> {
    let text = std::fs::read_to_string(run.join("results.csv")).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = rows.next().unwrap();
    let wanted: Vec<usize> = (0..header.len()).filter(|&i| names.iter().any(|name| header[i].contains(name))).collect();
    rows.flat_map(|row| wanted.iter().map(|&i| row[i].parse().unwrap()).collect::<Vec<f64>>()).collect()
}

/// The files that a run ends with, and its epochs and rates.
type Ended = (Vec<(String, Vec<u8>)>, Vec<f64>);

/// How a run of two ranks ends that nothing befalls: many tests want the same.
fn of_two() -> &'static Ended {
    static WHOLE: OnceLock<Ended> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        tiny_data(dir.path());
        expect_code(&mut detector(dir.path(), "whole", &["--ranks", "2"]), 0);
        let run = run_of(dir.path(), "whole");
        (ending(&run), columns(&run, &["epoch", "lr/"]))
    })
}

#[test]
fn two_processes_are_one_run_with_one_console() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (out, err) = expect_code(&mut detector(dir.path(), "a", &["--ranks", "2"]), 0);
    assert_eq!(out.matches("Starting training for 3 epochs").count(), 1, "{out}");
    assert!(!err.contains("error"), "{err}");
    let runs: Vec<_> = std::fs::read_dir(dir.path().join("runs/detect")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(runs, ["a"], "one run directory");
    let config = std::fs::read_to_string(run_of(dir.path(), "a").join("config.yaml")).unwrap();
    assert!(config.contains("\nranks: 2\n"), "{config}");
    assert!(ending(&run_of(dir.path(), "a")) == of_two().0, "the same bits every time");
}

/// Four images in two batches, of which each rank judges one.
#[test]
fn a_shared_evaluation_has_the_numbers_of_one_process() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    expect_code(&mut detector(dir.path(), "a", &["--ranks", "2", "--batch", "1", "--epochs", "2", "--conf", "0.0001"]), 0);
    let weights = run_of(dir.path(), "a").join("weights/last.safetensors").display().to_string();
    let args = ["val", "--weights", &weights, "--data", "tiny.yaml", "--imgsz", "64", "--batch", "1", "--conf", "0.0001", "--json"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &args), 0);
    let alone: serde_json::Value = serde_json::from_str(&out).unwrap();
    let shared = columns(&run_of(dir.path(), "a"), &["metrics/"]);
    for (i, name) in ["precision", "recall", "map50", "map50_95"].into_iter().enumerate() {
        let (ours, theirs) = (shared[shared.len() - 4 + i], alone["metrics"][name].as_f64().or(alone[name].as_f64()).unwrap());
        assert!((ours - theirs).abs() <= 1e-5, "{name}: {ours} for {theirs}");
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_run_and_any_number_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let (whole, schedule) = of_two();
    for (name, ranks) in [("two", None), ("one", Some("1")), ("four", Some("4"))] {
        let killed = &mut detector(dir.path(), name, &["--ranks", "2"]);
        let (_, err) = expect_code(killed.env("BELLOWS_FAULT", "kill:step:3").env("BELLOWS_FAULT_RANK", "1"), 1);
        assert!(err.contains("error: rank 1 is gone: it has ended; what is saved is kept"), "{err}");
        let run = run_of(dir.path(), name);
        assert!(!checkpoints(&run).is_empty());
        let more: Vec<&str> = ranks.iter().flat_map(|ranks| ["--ranks", *ranks]).collect();
        expect_code(&mut resumed(dir.path(), name, &more), 0);
        // One has what two had list by list; four add up in another order, which a detector's batch statistics multiply.
        assert!(ranks.is_some() || ending(&run) == *whole, "resumed with as many");
        assert_eq!(columns(&run, &["epoch", "lr/"]), *schedule, "{name}: the same epochs of the same updates");
    }
}

#[test]
fn a_supervisor_starts_all_ranks_again() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let limits = "start=120,first=120,step=20,evaluation=20,save=60,export=120";
    let survived = |fault: &str, rank: &str, what: &str| {
        let name = format!("{}-{rank}", fault.replace(':', "-"));
        let command = &mut detector(dir.path(), &name, &["--ranks", "2", "--supervise", "--heartbeat", limits]);
        let (_, err) = expect_code(command.env("BELLOWS_FAULT", fault).env("BELLOWS_FAULT_RANK", rank), 0);
        assert!(err.contains("starting again from") && err.contains(what), "{fault}: {err}");
        assert!(ending(&run_of(dir.path(), &name)) == of_two().0, "{fault}");
    };
    thread::scope(|scope| {
        // Of a rank that hangs rank 0 or its supervisor hears first that it says nothing, and either is a hang. Until then nobody computes.
        scope.spawn(|| survived("stop:step:3", "1", "it hung in a step: no sign of life"));
        survived("kill:step:3", "1", "rank 1: it died");
        survived("abort:step:2", "0", ": it died");
    });
}

/// What helps against the end of a rank is done whichever rank it was. A fault strikes one that rank 0 starts at every start, so these runs are given up.
#[test]
fn want_of_memory_and_a_lost_device_of_another_rank_are_answered_too() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let cases: [(&str, &[&str], &str); 2] =
        [("memory:first:1", &[], "with smaller parts of batches"), ("lost:first:1", &["--fallback", "cpu"], "on the CPU")];
    for (fault, more, answer) in cases {
        let name = fault.replace(':', "-");
        let command = &mut detector(dir.path(), &name, &[&["--ranks", "2", "--supervise"], more].concat());
        let (_, err) = expect_code(command.env("BELLOWS_FAULT", fault).env("BELLOWS_FAULT_RANK", "1"), 1);
        assert!(err.contains("supervisor: rank 1: ") && err.contains(answer) && err.contains("given up"), "{fault}: {err}");
    }
}

/// It is stopped before it calls rank 0.
#[test]
fn a_rank_that_hangs_before_it_comes_is_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let command = &mut detector(dir.path(), "a", &["--ranks", "2", "--heartbeat", "start=3"]);
    command.env("BELLOWS_FAULT", "stop:start:1").env("BELLOWS_FAULT_RANK", "1");
    let begun = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it waits");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("not all ranks came in time"), "{said}");
}

/// As rank 0 would start it, which is not there.
#[test]
fn a_rank_needs_no_terminal_for_the_dashboard_of_rank_0() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let place = format!("1/2/1@127.0.0.1:{}", free_port());
    let mut command = detector(dir.path(), "a", &["--heartbeat", "start=1", "--tui", "__rank", &place]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It ends when this closes.
    let held = child.stdin.take();
    let ended = child.wait_with_output().unwrap();
    drop(held);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("rank 1 cannot meet the others at"), "{said}");
}

#[test]
fn a_signal_to_one_process_stops_all_after_the_step() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let mut child = detector(dir.path(), "a", &["--ranks", "2", "--epochs", "1000"]).stdout(Stdio::null()).spawn().unwrap();
    let run = run_of(dir.path(), "a");
    wait_for("a checkpoint", &mut child, || checkpoints(&run).len() > 1);
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let step = |run: &Path| checkpoints(run).pop().unwrap();
    let newest = step(&run);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(step(&run), newest, "nobody trains on");
}

#[test]
fn ranks_that_somebody_else_has_started_find_each_other() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tiny_data(dir.path());
    tiny_data(other.path());
    let port = free_port();
    let second = placed(detector(other.path(), "a", &[]), 1, port).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    expect_code(&mut placed(detector(dir.path(), "a", &[]), 0, port), 0);
    let second = second.wait_with_output().unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stderr));
    assert!(second.stdout.is_empty() && !other.path().join("runs").exists(), "rank 0 speaks and writes");
    // As if one process had started the other.
    assert_eq!(columns(&run_of(dir.path(), "a"), &["epoch", "lr/"]), of_two().1);
    // With another setting it is another run's.
    let port = free_port();
    let second = placed(detector(other.path(), "c", &["--mosaic", "0.5"]), 1, port).stderr(Stdio::piped()).spawn().unwrap();
    let (_, err) = expect_code(&mut placed(detector(dir.path(), "c", &[]), 0, port), 2);
    let second = second.wait_with_output().unwrap();
    let words = "rank 1 is not of this run, it differs in mosaic, which is 0.5 and 1.0 on rank 0";
    assert!(err.contains(words) && String::from_utf8_lossy(&second.stderr).contains(words), "{err}");
    assert_eq!(second.status.code(), Some(2));
    assert!(!run_of(dir.path(), "c").exists(), "nothing has begun");
    let (_, err) = expect_code(detector(dir.path(), "d", &[]).env("WORLD_SIZE", "2"), 2);
    assert!(err.contains("RANK is not"), "{err}");
}

/// A supervisor on each of two machines: when one rank is killed the other ends too, both are started again, meet again and go on. Four times, which are
/// more than there may be without progress, with a step and a checkpoint between two.
#[test]
fn supervisors_of_ranks_on_several_machines_start_them_again() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tiny_data(dir.path());
    tiny_data(other.path());
    let port = free_port();
    let supervised = |dir: &Path, rank: usize| {
        let mut command = placed(detector(dir, "a", &["--supervise"]), rank, port);
        // They share this machine's cores as the ranks of one machine do, so the bits are theirs.
        command.envs([("LOCAL_RANK", rank.to_string().as_str()), ("LOCAL_WORLD_SIZE", "2")]);
        command.envs([("BELLOWS_FAULT", "kill:step:1:4"), ("BELLOWS_FAULT_RANK", "1")]);
        command
    };
    let second = supervised(other.path(), 1).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (_, err) = expect_code(&mut supervised(dir.path(), 0), 0);
    let second = second.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.success(), "{said}");
    assert_eq!(said.matches("died in a step of SIGKILL; starting again").count(), 4, "{said}");
    assert!(err.contains("rank 1 is gone") && err.contains("starting again from the checkpoint of step"), "{err}");
    assert!(!other.path().join("runs").exists(), "rank 0 writes");
    assert!(ending(&run_of(dir.path(), "a")) == of_two().0, "as if none had been killed");
}

/// Who has started it in the background may go, and its words have a name of their own: there is no run on its machine that could have them.
#[test]
fn a_rank_on_another_machine_may_go_on_in_the_background() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tiny_data(dir.path());
    tiny_data(other.path());
    let port = free_port();
    let second = placed(detector(other.path(), "a", &["--detach"]), 1, port).stdout(Stdio::piped()).spawn().unwrap();
    expect_code(&mut placed(detector(dir.path(), "a", &[]), 0, port), 0);
    let second = second.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&second.stdout);
    assert!(second.status.success() && said.contains("rank 1: goes on in the background; what this rank says is kept in"), "{said}");
    assert!(!said.contains("YOLOv8n summary") && !said.contains("In the background as process"), "rank 0 speaks: {said}");
    let left = std::fs::read_dir(other.path().join("runs/detect")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.collect();
    assert!(matches!(&left[..], [log] if log.ends_with(".console.log")), "{left:?}");
}

#[test]
fn what_a_rank_that_somebody_else_has_started_cannot_do_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    // Were it not refused, it would wait for the other one.
    let rank = |more: &[&str]| detector(dir.path(), "a", &[&["--heartbeat", "start=3"], more].concat());
    let (_, err) = expect_code(&mut placed(rank(&["--supervise", "--elastic"]), 0, free_port()), 2);
    assert!(err.contains("started by somebody else"), "{err}");
    let (_, err) = expect_code(&mut placed(rank(&["--supervise", "--fallback", "cpu"]), 0, free_port()), 2);
    assert!(err.contains("leaves the others on their cards"), "{err}");
    let task = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_TASKS_PER_NODE", "2"), ("SLURM_PROCID", "0")];
    let (_, err) = expect_code(rank(&["--detach"]).envs(task), 2);
    assert!(err.contains("--detach leaves the process that mpirun or srun has started"), "{err}");
    let concept = llm_finetune(dir.path(), &["--model", "tiny", "--concept", "sets", "--heartbeat", "start=3"]);
    let (_, err) = expect_code(&mut placed(concept, 0, free_port()), 2);
    assert!(err.contains("taken out by one process"), "{err}");
    assert!(!dir.path().join("runs").exists());
}

/// A script of `srun` asks every rank of a job for something of its own, and a shell keeps the variables of a run behind it.
#[test]
fn a_verb_that_is_no_run_speaks_whatever_rank_is_in_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    std::fs::create_dir_all(dir.path().join("run/checkpoints")).unwrap();
    for args in [&["status", "run"][..], &["data", "check", "--data", "tiny.yaml"]] {
        let (alone, _) = expect_code(&mut yolo_train(dir.path(), args), 0);
        let (out, _) = expect_code(&mut placed(yolo_train(dir.path(), args), 1, 29500), 0);
        assert!(!alone.is_empty() && out == alone, "{args:?}: {out:?} for {alone:?}");
    }
}

/// As of two machines. A program without MPI says what it lacks.
#[test]
fn a_supervisor_over_mpi_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let command = &mut detector(dir.path(), "a", &["--supervise", "--heartbeat", "start=3"]);
    let (_, err) = expect_code(command.envs([("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")]), 2);
    assert!(err.contains("which MPI's launcher takes for the end of all") || err.contains("without the feature mpi"), "{err}");
}

/// Two ranks of one row each are one rank of two such batches to an update.
#[test]
fn ranks_tune_a_language_model_as_one_does_with_accumulation() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let tune = |name: &str, more: &[&str]| {
        let args = ["--config", "tiny.yaml", "--name", name, "--batch-size", "1"];
        expect_code(&mut llm_finetune(dir.path(), &[&args[..], more].concat()), 0);
        dir.path().join("runs/sft").join(name)
    };
    let alone = tune("alone", &["--gradient-accumulation-steps", "2"]);
    let expected = columns(&alone, &["loss"]);
    let run = tune("ranks", &["--ranks", "2", "--gradient-accumulation-steps", "1"]);
    assert!(run.join("adapter/adapter_model.safetensors").exists());
    let ours = columns(&run, &["loss"]);
    assert!(ours.len() == expected.len() && ours.len() > 2);
    assert!(ours.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0)), "{ours:?} for {expected:?}");
}

/// The run is ended by a fault in its third step. Others may take or give back memory meanwhile, and not half of it.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_goes_on_with_more_ranks_plans_for_a_share_of_the_memory_each() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let there = |out: &str| out.split(" planned of ").nth(1).unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
    let mut alone = llm_finetune(dir.path(), &["--config", "tiny.yaml", "--name", "a"]);
    let (out, _) = expect_code(alone.env("BELLOWS_FAULT", "lost:step:3"), 5);
    let all = there(&out);
    let (out, _) = expect_code(&mut llm_finetune(dir.path(), &["--resume", "runs/sft/a", "--ranks", "4"]), 0);
    assert!(there(&out) < 0.6 * all, "{out}");
}

/// Eleven images in batches of two: of the last one the second rank has nothing.
#[test]
fn ranks_that_share_batch_statistics_train_as_one_process_does() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let losses = |name: &str, more: &[&str]| {
        expect_code(&mut detector(dir.path(), name, &[&["--epochs", "2"], more].concat()), 0);
        columns(&run_of(dir.path(), name), &["train/"])
    };
    let expected = losses("alone", &["--batch", "2"]);
    // Losses are written with five decimals.
    let apart = |ours: &[f64]| ours.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b.abs().max(0.05)).fold(0.0, f64::max);
    let shared = losses("shared", &["--batch", "1", "--ranks", "2", "--sync-bn"]);
    assert!(shared.len() == expected.len() && apart(&shared) <= 1e-3, "{shared:?} for {expected:?}");
    let unshared = losses("unshared", &["--batch", "1", "--ranks", "2"]);
    assert!(apart(&unshared) > 1e-2, "each by its own image is another run: {unshared:?} for {expected:?}");
}

/// What the supervisor says of its restarts: the ranks that are left out, one list a restart.
fn left_out(run: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(run.join("supervision.jsonl")).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    events.filter(|event| event["event"] == "restart").map(|event| event["without"].clone()).collect()
}

/// Of three ranks one is lost in the middle of an epoch; the two that are left go on with the batches of three.
#[test]
fn an_elastic_run_goes_on_with_the_ranks_that_are_left() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let three = ["--ranks", "3", "--batch", "1"];
    expect_code(&mut detector(dir.path(), "whole", &three), 0);
    let schedule = |name: &str| columns(&run_of(dir.path(), name), &["epoch", "lr/"]);
    let limits = "start=120,first=120,step=20,evaluation=20,save=60,export=120";
    let survived = |fault: &str, rank: usize| {
        let name = format!("{}-{rank}", fault.replace(':', "-"));
        let command = &mut detector(dir.path(), &name, &[&three[..], &["--supervise", "--elastic", "--heartbeat", limits]].concat());
        let (_, err) = expect_code(command.env("BELLOWS_FAULT", fault).env("BELLOWS_FAULT_RANK", rank.to_string()), 0);
        assert!(err.contains(&format!("without rank {rank}")), "{fault}: {err}");
        // Before it begins there is no run to tell.
        let told = if fault.contains("start") { vec![] } else { vec![serde_json::json!([rank])] };
        assert_eq!(left_out(&run_of(dir.path(), &name)), told, "{fault}");
        assert_eq!(schedule(&name), schedule("whole"), "{fault}: the same epochs of the same updates");
    };
    thread::scope(|scope| {
        // Until it is known for hung nobody computes.
        scope.spawn(|| survived("stop:step:3", 2));
        [("kill:step:3", 2), ("segfault:step:2", 0), ("kill:start:1", 2)].into_iter().for_each(|(fault, rank)| survived(fault, rank));
    });
    let (_, err) = expect_code(&mut detector(dir.path(), "alone", &["--ranks", "2", "--elastic"]), 2);
    assert!(err.contains("it needs supervise"), "{err}");
}

#[test]
fn gradients_may_travel_in_half_the_bytes() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let weights = |name: &str, more: &[&str]| {
        // Those of all ranks are compared after every epoch.
        expect_code(&mut detector(dir.path(), name, &[&["--ranks", "2", "--batch", "2"], more].concat()), 0);
        (ending(&run_of(dir.path(), name)).remove(0), columns(&run_of(dir.path(), name), &["train/"]))
    };
    let (exact, losses) = weights("f32", &[]);
    for wire in ["bf16", "f16"] {
        let (rounded, theirs) = weights(wire, &["--wire", wire]);
        let apart = losses.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(rounded != exact && apart < 0.01, "{wire}: {theirs:?} for {losses:?}");
    }
    let (_, err) = expect_code(&mut detector(dir.path(), "f8", &["--wire", "f8"]), 2);
    assert!(err.contains("f8"), "{err}");
}

/// The same program to the last byte, or none: one byte more behind its end is another.
#[test]
fn a_rank_of_another_program_is_refused() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tiny_data(dir.path());
    tiny_data(other.path());
    let mine = detector(dir.path(), "a", &[]);
    let changed = other.path().join("yolo-train");
    std::fs::copy(mine.get_program(), &changed).unwrap();
    std::io::Write::write_all(&mut std::fs::OpenOptions::new().append(true).open(&changed).unwrap(), b"0").unwrap();
    let theirs = detector(other.path(), "a", &[]);
    let mut second = Command::new(&changed);
    second.current_dir(other.path()).args(theirs.get_args()).env("XDG_CACHE_HOME", other.path().join("cache")).stdin(Stdio::null());
    let port = free_port();
    let second = placed(second, 1, port).stderr(Stdio::piped()).spawn().unwrap();
    let (_, err) = expect_code(&mut placed(mine, 0, port), 2);
    let words = "rank 1 is not of this run, it differs in the program, which is ";
    let second = second.wait_with_output().unwrap();
    assert!(err.contains(words) && String::from_utf8_lossy(&second.stderr).contains(words), "{err}");
    assert_eq!(second.status.code(), Some(2));
}

/// Two ranks of this command by `mpirun`; `None` where there is none.
fn mpirun(dir: &Path, own: &Command) -> Option<Command> {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: there is no mpirun; it is in Debian's openmpi-bin");
        return None;
    }
    let mut command = Command::new("mpirun");
    command.current_dir(dir).args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]).stdin(Stdio::null());
    command.arg(own.get_program()).args(own.get_args()).env("XDG_CACHE_HOME", dir.join("cache"));
    Some(command)
}

/// `mpirun` says to each process which it is; without MPI in the program they meet over TCP.
#[test]
fn ranks_that_mpirun_has_started_are_one_run() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let Some(mut command) = mpirun(dir.path(), &detector(dir.path(), "a", &[])) else { return };
    let (out, _) = expect_code(&mut command, 0);
    assert_eq!(out.matches("Starting training for 3 epochs").count(), 1, "{out}");
    assert!(ending(&run_of(dir.path(), "a")) == of_two().0, "as if one had started the other");
}

/// A rank under SIGSTOP neither answers nor ends. Its silence is heard over TCP; a program with MPI watches how long it waits.
#[test]
fn ranks_of_mpirun_end_when_one_hangs_and_the_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let Some(mut command) = mpirun(dir.path(), &detector(dir.path(), "a", &["--heartbeat", "step=8"])) else { return };
    let (_, err) = expect_code(command.env("BELLOWS_FAULT", "stop:step:3").env("BELLOWS_FAULT_RANK", "1"), 1);
    assert!(err.contains("what is saved is kept"), "{err}");
    expect_code(&mut mpirun(dir.path(), &resumed(dir.path(), "a", &[])).unwrap(), 0);
    assert!(ending(&run_of(dir.path(), "a")) == of_two().0, "as if none had hung");
}

/// What `srun` would say to the tasks of a step on one machine.
#[test]
fn ranks_that_srun_has_started_are_one_run() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let job = std::process::id().to_string();
    let task = |rank: &str| {
        let mut command = detector(dir.path(), "a", &[]);
        command.envs([("SLURM_JOB_ID", job.as_str()), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")]);
        command.envs([("SLURM_STEP_TASKS_PER_NODE", "2"), ("SLURM_PROCID", rank), ("SLURM_LOCALID", rank)]);
        command
    };
    let second = task("1").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, _) = expect_code(&mut task("0"), 0);
    let second = second.wait_with_output().unwrap();
    assert!(second.status.success() && second.stdout.is_empty(), "{}", String::from_utf8_lossy(&second.stderr));
    assert_eq!(out.matches("Starting training for 3 epochs").count(), 1, "{out}");
    assert!(ending(&run_of(dir.path(), "a")) == of_two().0, "as if one had started the other");
}

/// Told by the refusal of a device that there is not: nothing else says the number where there are no cards.
#[test]
fn rank_in_a_device_is_the_number_on_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    for program in [yolo_train, llm_finetune] {
        let mut command = placed(program(dir.path(), &["benchmark", "--device", "card:rank"]), 1, 29500);
        let (_, err) = expect_code(command.env("LOCAL_RANK", "3"), 2);
        assert!(err.contains("unknown device 'card:3'"), "{err}");
    }
}

/// As on two machines with a card each, for of software devices Burn finds the first one only: `rank` is the number of a card on its machine.
#[test]
fn ranks_train_on_cards_what_they_train_on_the_processor() {
    let Some(icd) = std::env::var_os("BELLOWS_SWIFTSHADER") else {
        eprintln!("skipped: set BELLOWS_SWIFTSHADER to a Vulkan ICD file (.ci/swiftshader prints one)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let losses = |device: &str, backend: &str, name: &str| {
        let port = free_port();
        let short = ["--config", "tiny.yaml", "--epochs", "1", "--max-samples", "6", "--batch-size", "1", "--save-merged", "false"];
        let args = [&short[..], &["--device", device, "--name", name]].concat();
        let tune = |rank| {
            let mut command = placed(llm_finetune(dir.path(), &args), rank, port);
            command.env("VK_DRIVER_FILES", &icd).stderr(Stdio::piped());
            command
        };
        let second = tune(1).stdout(Stdio::piped()).spawn().unwrap();
        let (_, err) = expect_code(&mut tune(0), 0);
        assert!(second.wait_with_output().unwrap().status.success() && err.contains(&format!("device: {backend}")), "{err}");
        columns(&dir.path().join("runs/sft").join(name), &["loss"])
    };
    let (card, processor) = (losses("vulkan:rank", "vulkan", "card"), losses("cpu", "flex", "processor"));
    assert_eq!(card.len(), 2);
    assert!(card.iter().zip(&processor).all(|(a, b)| (a - b).abs() <= 1e-4 * b), "{card:?} for {processor:?}");
}
