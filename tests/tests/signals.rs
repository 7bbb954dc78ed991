//! A signal at any moment: before training it ends the program at once and leaves nothing, while training the step is finished and saved,
//! after it the rest is left for `--resume`. Whatever the moment, the code says which it was.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{checkpoints, expect_code, in_time, llm_finetune, signal, tiny_chats, tiny_data, wait_for, yolo_train};

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of what has just got a signal; panics unless the exit code is `code`, and in time. Returns standard output and standard error.
fn ended(child: Child, code: i32) -> (String, String) {
    let asked = Instant::now();
    let output = child.wait_with_output().unwrap();
    in_time(asked);
    let Output { status, stdout, stderr } = output;
    let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert_eq!(status.code(), Some(code), "--- stdout\n{out}\n--- stderr\n{err}");
    (out, err)
}

/// Reads a stream up to a line that contains `words`.
fn read_until(stream: &mut impl BufRead, words: &str) {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "{words:?} never came");
    }
}

fn read_rest(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Whether a run is in a step: the checkpoint that it begins with is made before it looks for a signal once more.
fn in_a_step(run: &Path) -> bool {
    bellows_runs::read_beat(&run.join("heartbeat.json")).is_some_and(|beat| ["first", "step"].contains(&beat.phase.as_str()))
}

/// The state of a process (`Z`: it has ended, and nobody has asked how) and its parent; `None` where there is none of this number.
#[cfg(target_os = "linux")]
fn state(id: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // Both stand after the name, which is in brackets.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_string(), fields.next()?.parse().ok()?))
}

/// A process that `parent` has started and that lives.
#[cfg(target_os = "linux")]
fn child_of(parent: u32) -> Option<u32> {
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.into_iter().find(|&id| state(id).is_some_and(|(state, of)| state != "Z" && of == parent))
}

/// Whether this process, and so whatever it starts, ignores SIGHUP, as under `nohup`.
#[cfg(target_os = "linux")]
fn is_deaf_to_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

/// A probe that hangs would be waited for, and the processor taken instead.
#[cfg(target_os = "linux")]
#[test]
fn in_the_probe_it_ends_the_program_and_the_probe() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let signals = [("INT", 130), ("TERM", 143), ("HUP", 129)];
    for (name, code) in signals.into_iter().take(if is_deaf_to_hangups() { 2 } else { 3 }) {
        let args = ["--data", "tiny.yaml", "--device", "auto"];
        let mut child = start(yolo_train(dir.path(), &args).env("BELLOWS_PROBE_FAULT", "hang:enumerate"));
        let id = child.id();
        wait_for("the probe", &mut child, || child_of(id).is_some());
        let probe = child_of(id).unwrap();
        signal(&child, name);
        let (_, error) = ended(child, code);
        assert_eq!(error, "stopped before training began: nothing is lost\n");
        let started = Instant::now();
        while state(probe).is_some_and(|(state, _)| state != "Z") {
            assert!(started.elapsed() < Duration::from_secs(60), "the probe lives on");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!dir.path().join("runs").exists());
    }
}

#[test]
fn while_data_are_made_it_ends_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = std::fs::read_to_string(tiny_data(dir.path())).unwrap();
    std::fs::write(dir.path().join("large.yaml"), yaml.replace("path: tiny", "path: large").replace("train: 11,", "train: 60000,"))
        .unwrap();
    let mut child = start(&mut yolo_train(dir.path(), &["--data", "large.yaml"]));
    let images = dir.path().join("large/images/train");
    wait_for("the first image", &mut child, || std::fs::read_dir(&images).is_ok_and(|mut entries| entries.next().is_some()));
    signal(&child, "INT");
    let (_, error) = ended(child, 130);
    assert!(error.contains("nothing is lost"), "{error}");
    assert!(!dir.path().join("runs").exists());
}

#[test]
fn in_the_scan_it_ends_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = std::fs::read_to_string(tiny_data(dir.path())).unwrap();
    expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "tiny.yaml"]), 0);
    let images: Vec<PathBuf> =
        std::fs::read_dir(dir.path().join("tiny/images/train")).unwrap().map(|entry| entry.unwrap().path()).collect();
    // As many names of them as take a second or more to look at.
    let many = dir.path().join("many/images/train");
    std::fs::create_dir_all(&many).unwrap();
    for (i, image) in (0..100_000).zip(images.iter().cycle()) {
        std::fs::hard_link(image, many.join(format!("{i}-{}", image.file_name().unwrap().to_str().unwrap()))).unwrap();
    }
    let names = yaml.lines().find(|line| line.starts_with("names")).unwrap();
    std::fs::write(dir.path().join("many.yaml"), format!("path: many\ntrain: images/train\nval: images/train\n{names}\n")).unwrap();
    // On a busy machine all have been looked at by then.
    let in_scan = (0..5).any(|_| {
        ["cache", "runs"].into_iter().for_each(|made| drop(std::fs::remove_dir_all(dir.path().join(made))));
        let mut child = start(&mut yolo_train(dir.path(), &["--data", "many.yaml", "--device", "cpu"]));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        read_until(&mut out, "Bellows");
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, "TERM");
        let asked = Instant::now();
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        in_time(asked);
        let is_scanned = !read_rest(out).is_empty();
        let error = String::from_utf8_lossy(&stderr);
        let at_once = status.code() == Some(143) && error.ends_with("stopped before training began: nothing is lost\n");
        assert!(is_scanned || at_once && !dir.path().join("runs").exists(), "{status} {error}");
        !is_scanned
    });
    assert!(in_scan, "it had been scanned");
}

#[test]
fn a_second_one_does_not_wait_for_the_step() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    // A step of a second or more, so that the second signal comes before its end.
    let args = ["--data", "tiny.yaml", "--name", "s", "--imgsz", "640", "--batch", "11", "--epochs", "50", "--plots", "false"];
    let mut child = start(&mut yolo_train(dir.path(), &args));
    let run = dir.path().join("runs/detect/s");
    wait_for("the first step", &mut child, || in_a_step(&run));
    signal(&child, "INT");
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    read_until(&mut errors, "stopping after this step");
    signal(&child, "TERM");
    ended(child, 143);
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    assert!(!events.contains("\"stop\""), "it was not waited for: {events}");
    let mut resumed = start(&mut yolo_train(dir.path(), &["--resume", run.to_str().unwrap()]));
    read_until(&mut BufReader::new(resumed.stdout.take().unwrap()), "going on at epoch 1");
    resumed.kill().unwrap();
    resumed.wait().unwrap();
}

/// A terminal that goes says so more than once, which is no second signal; where whoever started the run has it outlive the terminal, it is none at all.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_that_goes_ends_it_after_the_step() {
    if is_deaf_to_hangups() {
        return eprintln!("skipped: these tests run where nobody hears of a terminal that goes");
    }
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let train = |name: &str| {
        let args = ["--data", "tiny.yaml", "--name", name, "--imgsz", "320", "--batch", "11", "--epochs", "500", "--plots", "false"];
        (yolo_train(dir.path(), &args), dir.path().join("runs/detect").join(name))
    };
    let (mut command, run) = train("hears");
    let mut child = start(&mut command);
    wait_for("the first checkpoint", &mut child, || !checkpoints(&run).is_empty());
    signal(&child, "HUP");
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    read_until(&mut errors, "stopping after this step");
    signal(&child, "HUP");
    ended(child, 0);
    let last = |run: &Path| std::fs::read_to_string(run.join("events.jsonl")).unwrap().lines().last().unwrap().to_string();
    assert!(last(&run).contains("\"stop\""), "{}", last(&run));

    let (command, run) = train("outlives");
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    let mut child = start(shell.current_dir(dir.path()).env("XDG_CACHE_HOME", dir.path().join("cache")).stdin(Stdio::null()));
    wait_for("the first checkpoint", &mut child, || !checkpoints(&run).is_empty());
    signal(&child, "HUP");
    signal(&child, "TERM");
    let (_, error) = ended(child, 0);
    assert_eq!(error.matches("stopping after this step").count(), 1, "{error}");
}

/// On a dashboard's screen: what is left of it after the program is the user's own terminal. `script` lends one.
#[cfg(target_os = "linux")]
#[test]
fn a_second_one_gives_the_terminal_back() {
    if !Command::new("script").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return eprintln!("skipped: there is no `script`, which lends a terminal");
    }
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let train =
        yolo_train(dir.path(), &["--data", "tiny.yaml", "--name", "s", "--imgsz", "640", "--batch", "11", "--epochs", "50", "--tui"]);
    let words: Vec<_> = train.get_args().map(|arg| arg.to_str().unwrap()).collect();
    let line = format!("echo $$ > pid; exec {} {} --plots false", train.get_program().to_str().unwrap(), words.join(" "));
    std::fs::write(dir.path().join("inner.sh"), line).unwrap();
    std::fs::write(dir.path().join("outer.sh"), "sh inner.sh; echo \"ended with $?\"; stty -a").unwrap();
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-f", "-c", "sh outer.sh", "typescript"]).env("TERM", "xterm").env("XDG_CACHE_HOME", dir.path().join("cache"));
    let mut child = terminal.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let (run, typescript) = (dir.path().join("runs/detect/s"), dir.path().join("typescript"));
    let shown = || String::from_utf8_lossy(&std::fs::read(&typescript).unwrap_or_default()).into_owned();
    wait_for("the dashboard", &mut child, || in_a_step(&run) && shown().contains("\u{1b}[?1049h"));
    let id = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    for name in ["INT", "TERM"] {
        assert!(Command::new("kill").args(["-s", name, id.trim()]).status().unwrap().success());
    }
    child.wait().unwrap();
    let text = shown();
    let after = |mark: &str| text.rfind(mark).unwrap_or_else(|| panic!("no {mark:?} in {text:?}"));
    let [on, off, cursor, ended] = ["\u{1b}[?1049h", "\u{1b}[?1049l", "\u{1b}[?25h", "ended with 1"].map(after);
    assert!(on < off && off < cursor && cursor < ended, "{text:?}");
    assert!(text[ended..].contains("ended with 130") || text[ended..].contains("ended with 143"), "{}", &text[ended..]);
    assert!(text[ended..].contains(" icanon") && text[ended..].contains(" echo "), "{}", &text[ended..]);
}

/// Ends a program in its closing work, after the line that `begun` says; what is left is done by `--resume`, which says `done`. Once with a file of
/// the run that could not be written: that is the code then.
fn closing(program: fn(&Path, &[&str]) -> Command, dir: &Path, args: &[&str], run: &str, begun: &str, done: &str) {
    let obstacle = dir.join(run).join("results.csv");
    std::fs::create_dir_all(obstacle.join("x")).unwrap();
    for code in [3, 0] {
        let mut child = start(&mut program(dir, &[args, &["--exist-ok"]].concat()));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        read_until(&mut out, begun);
        signal(&child, "TERM");
        let (_, error) = ended(child, code);
        assert!(error.contains("the training is done and saved") && error.contains(&format!("--resume '{run}'")), "{error}");
        let rest = read_rest(out);
        assert!(!rest.contains(done), "{rest}");
        if code == 3 {
            std::fs::remove_dir_all(&obstacle).unwrap();
        }
    }
    let (rest, _) = expect_code(&mut program(dir, &["--resume", run]), 0);
    assert!(rest.contains(done), "{rest}");
}

#[test]
fn in_the_closing_validation_it_leaves_that_for_later() {
    let dir = tempfile::tempdir().unwrap();
    let yaml = std::fs::read_to_string(tiny_data(dir.path())).unwrap();
    std::fs::write(dir.path().join("tiny.yaml"), yaml.replace("val: 4,", "val: 300,")).unwrap();
    let args = ["--data", "tiny.yaml", "--name", "c 1", "--imgsz", "320", "--epochs", "1", "--plots", "false"];
    closing(yolo_train, dir.path(), &args, "runs/detect/c 1", "epochs completed", "Best weights:");
}

#[test]
fn in_the_closing_test_it_leaves_that_for_later() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let chats = std::fs::read_to_string(dir.path().join("chats.jsonl")).unwrap();
    std::fs::create_dir(dir.path().join("set")).unwrap();
    std::fs::write(dir.path().join("set/train.jsonl"), &chats).unwrap();
    std::fs::write(dir.path().join("set/test.jsonl"), chats.repeat(300)).unwrap();
    let args = ["--config", "tiny.yaml", "--data", "set", "--val-size", "0", "--name", "c 1", "--epochs", "1"];
    closing(llm_finetune, dir.path(), &args, "runs/sft/c 1", "Saved ", "test: loss");
}

/// A program, its arguments, where its run comes to be, and what it says at its end.
struct Victim {
    program: fn(&Path, &[&str]) -> Command,
    args: &'static [&'static str],
    run: &'static str,
}

/// At `count` moments of a whole run, evenly spaced: it ends with 0 and can go on, or with 143 and there was nothing yet.
fn at_any_moment(dir: &Path, victim: &Victim, count: u32) {
    let whole = |name: &str| (victim.program)(dir, &[victim.args, &["--name", name]].concat());
    let started = Instant::now();
    expect_code(&mut whole("whole"), 0);
    let takes = started.elapsed();
    for moment in 0..count {
        let name = format!("at{moment}");
        let run: PathBuf = dir.join(victim.run).join(&name);
        let child = start(&mut whole(&name));
        std::thread::sleep(takes * moment / count);
        // It may have ended.
        Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).stderr(Stdio::null()).status().unwrap();
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&stderr);
        match status.code() {
            Some(0) => {
                assert!(!checkpoints(&run).is_empty(), "{name}: {error}");
                expect_code(&mut (victim.program)(dir, &["--resume", run.to_str().unwrap()]), 0);
                std::fs::remove_dir_all(run).unwrap();
            }
            Some(143) => assert!(!run.exists() && error.contains("stopped"), "{name}: {error}"),
            // A signal before the handlers are there ends the process as the system does, at whichever moment a busy machine has not come further: it has
            // said and made nothing.
            None => assert!(!run.exists() && error.is_empty(), "{name}: {error}"),
            code => panic!("{name}: {code:?}: {error}"),
        }
    }
}

#[test]
fn a_detector_can_be_stopped_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    at_any_moment(dir.path(), &Victim { program: yolo_train, args: &["--data", "tiny.yaml", "--epochs", "2"], run: "runs/detect" }, 20);
}

#[test]
fn fine_tuning_can_be_stopped_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    tiny_chats(dir.path());
    let args = &["--config", "tiny.yaml", "--save-merged", "--save-gguf", "f16", "--sample-prompt", "Say one."];
    at_any_moment(dir.path(), &Victim { program: llm_finetune, args, run: "runs/sft" }, 20);
}

/// Not a signal that a person sends: the system's, to a process whose file outgrows its limit.
#[test]
fn a_file_over_the_limit_is_an_error_and_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let train = yolo_train(dir.path(), &["--data", "tiny.yaml", "--plots", "false"]);
    let mut limited = Command::new("sh");
    // Blocks of 512 or 1024 bytes, by the shell: the model has 12 MB.
    limited.args(["-c", "ulimit -f 4000; exec \"$0\" \"$@\""]).arg(train.get_program()).args(train.get_args());
    limited.current_dir(dir.path()).env("XDG_CACHE_HOME", dir.path().join("cache"));
    let (_, error) = expect_code(&mut limited, 1);
    assert!(error.contains("File too large"), "{error}");
}
