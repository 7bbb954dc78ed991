//! Ranks that `mpirun` starts train what ranks in threads do, end when one is killed or hangs, and go on: this program starts itself again, on this machine, with real Open MPI.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic, and says why it was skipped")]

#[path = "../../learner/tests/toy/mod.rs"]
mod toy;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use bellows_learner::{BatchReport, Learner, Limits, Observer, Outcome};
use bellows_mpi::Mpi;
use bellows_ranks::{Exchange, Thread, threads};
use bellows_runs::RunDir;
use burn::tensor::Device;
use toy::{Ending, Toy, data, ending, identity, net, of_ranks};

/// Set in the processes that `mpirun` starts: where they train.
const DIR: &str = "BELLOWS_MPI_DIR";

/// The signal that rank 1 sends itself, and after how many batches: `KILL 8`.
const FAULT: &str = "BELLOWS_MPI_FAULT";

/// What those processes run of this file.
const RANK: &str = "ranks_that_mpirun_has_started_make_the_bits_of_threads";

/// More ranks than a machine has cores.
const ANY: [&str; 1] = ["--oversubscribe"];

/// Sends itself a signal after so many batches.
struct Fault {
    signal: String,
    batches: usize,
}

impl Fault {
    fn of(text: &str) -> Self {
        let (signal, batches) = text.split_once(' ').unwrap();
        Self { signal: signal.into(), batches: batches.parse().unwrap() }
    }
}

impl Observer for Fault {
    fn on_batch(&mut self, _: &BatchReport) {
        self.batches -= 1;
        if self.batches == 0 {
            Command::new("kill").args(["-s", &self.signal, &std::process::id().to_string()]).status().unwrap();
        }
    }
}

/// How long they wait for each other at the start.
const MEETING: Duration = Duration::from_secs(60);

/// How long the others wait for one that hangs in a step: a step of this model takes milliseconds.
const PATIENCE: f64 = 20.0;

fn limits() -> Limits {
    Limits::of(&[("step".to_string(), PATIENCE)].into()).unwrap()
}

/// What a rank does: it goes on with the run in `dir`, if there is one, and leaves the weights it has learnt beside it.
fn train(exchange: impl Exchange + 'static, dir: &Path, fault: Option<Fault>) {
    let (rank, ranks) = (exchange.rank(), exchange.ranks());
    let run = if rank == 0 { RunDir::create(dir, "run", true).unwrap() } else { RunDir::nowhere() };
    let mut learner = Learner::new(Toy::default(), net(&Device::flex()), &Device::flex(), of_ranks(ranks), run, identity()).unwrap();
    learner.join(Rc::new(exchange), "this program", limits()).unwrap();
    learner.resume().unwrap();
    if let Some(fault) = fault.filter(|_| rank == 1) {
        learner.observe(fault);
    }
    assert_eq!(learner.fit(&data()).unwrap(), Outcome::Finished);
    let weights = learner.layout().read(&learner.layout().values(&learner.ema_model())).unwrap();
    let bytes: Vec<u8> = weights.into_iter().flat_map(|(_, _, values)| values).flat_map(f32::to_le_bytes).collect();
    fs::write(dir.join(format!("weights-{rank}")), bytes).unwrap();
}

/// How so many ranks end that `mpirun` starts `how`, to train in `dir`; `None` where there is no `mpirun`.
fn mpirun(ranks: usize, how: &[&str], dir: &Path, fault: Option<&str>) -> Option<ExitStatus> {
    let log = File::create(dir.join("log")).unwrap();
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--bind-to", "none", "-n", &ranks.to_string()]).args(how);
    command.arg(std::env::current_exe().unwrap()).args([RANK, "--exact", "--test-threads=1"]).env(DIR, dir);
    // More ranks than cores would spin against each other, and of two at once that share a folder for their sessions one may fail to make it.
    let session = tempfile::tempdir().unwrap();
    command.env("OMPI_MCA_mpi_yield_when_idle", "1").env("TMPDIR", session.path());
    if let Some(fault) = fault {
        command.env(FAULT, fault);
    }
    let mut child = match command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped: mpirun: {error}; it is in Debian's openmpi-bin");
            return None;
        }
    };
    // A busy machine has long been done; a rank that waits for one that is dead would do so for ever.
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() >= until {
            // Asked to end it takes its ranks with it; killed it leaves them.
            Command::new("kill").args(["-TERM", &child.id().to_string()]).status().ok();
            let until = Instant::now() + Duration::from_secs(5);
            while child.try_wait().unwrap().is_none() && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            child.kill().ok();
            panic!("it hangs: {}", said(dir));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn said(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap()
}

/// What so many ranks in threads of this process end with.
fn of_threads(ranks: usize) -> Ending {
    let dir = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        let spawn = |exchange: Thread| {
            let dir = dir.path();
            scope.spawn(move || train(exchange, dir, None))
        };
        let all: Vec<_> = threads(ranks).into_iter().map(spawn).collect();
        all.into_iter().for_each(|rank| rank.join().unwrap());
    });
    ending(dir.path())
}

#[test]
fn ranks_that_mpirun_has_started_make_the_bits_of_threads() {
    if let Some(dir) = std::env::var_os(DIR) {
        train(Mpi::begin(MEETING).unwrap(), dir.as_ref(), std::env::var(FAULT).ok().as_deref().map(Fault::of));
        return Mpi::end();
    }
    let hosts = tempfile::NamedTempFile::new().unwrap();
    fs::write(hosts.path(), "localhost slots=4\n").unwrap();
    let by_hostfile = ["--hostfile", hosts.path().to_str().unwrap()];
    for ranks in [2, 4] {
        let expected = of_threads(ranks);
        for how in [&ANY[..], &by_hostfile[..]] {
            let dir = tempfile::tempdir().unwrap();
            let Some(status) = mpirun(ranks, how, dir.path(), None) else { return };
            assert!(status.success(), "{ranks} ranks, {how:?}: {}", said(dir.path()));
            assert!(ending(dir.path()) == expected, "{ranks} ranks, {how:?}: another run");
            let learnt: Vec<Vec<u8>> = (0..ranks).map(|rank| fs::read(dir.path().join(format!("weights-{rank}"))).unwrap()).collect();
            assert!(!learnt[0].is_empty() && learnt.iter().all(|weights| *weights == learnt[0]), "{ranks} ranks, {how:?}: unlike weights");
        }
    }
}

/// In the second of four epochs of six batches. One that hangs has been told to stop by SIGSTOP, so it answers nobody, and nothing but the others' patience ends it.
#[test]
fn when_mpirun_loses_a_rank_all_end_and_the_run_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let Some(status) = mpirun(2, &ANY, whole.path(), None) else { return };
    assert!(status.success(), "{}", said(whole.path()));
    for fault in ["KILL 8", "STOP 8"] {
        let dir = tempfile::tempdir().unwrap();
        let begun = Instant::now();
        let status = mpirun(2, &ANY, dir.path(), Some(fault)).unwrap();
        let (seconds, log) = (begun.elapsed().as_secs_f64(), said(dir.path()));
        assert!(!status.success() && (0..2).all(|rank| !dir.path().join(format!("weights-{rank}")).exists()), "{fault}: somebody went on");
        let hung = log.contains(&format!("error: rank 0 has waited {PATIENCE} s for another one"));
        assert!(hung == (fault == "STOP 8") && (!hung || seconds > PATIENCE), "{fault}, after {seconds} s: {log}");
        assert_eq!(fs::read_to_string(dir.path().join("run/results.csv")).unwrap().lines().count(), 2, "{fault}: a header and an epoch");
        // Nobody has the run any more.
        let status = mpirun(2, &ANY, dir.path(), None).unwrap();
        assert!(status.success(), "{fault}: {}", said(dir.path()));
        assert!(ending(dir.path()) == ending(whole.path()), "{fault}: it has become another run");
    }
}
