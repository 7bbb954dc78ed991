//! The same exchange over Open MPI: this program starts itself again with `mpirun`, on this machine.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test may panic, and its processes speak")]

use std::process::{Command, Output};
use std::time::Duration;

use bellows_mpi::Mpi;
use bellows_ranks::{Exchange, Wire};

/// Set in the processes that `mpirun` starts.
const CHILD: &str = "BELLOWS_MPI_CHILD";

/// How long ranks may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// This test in so many ranks; `None` where there is no `mpirun`.
fn mpirun(name: &str, ranks: usize, how: &str) -> Option<Output> {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()]).arg(std::env::current_exe().unwrap());
    // Of two at once that share a folder for their sessions one may fail to make it.
    let session = tempfile::tempdir().unwrap();
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, how).env("TMPDIR", session.path());
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: mpirun: {error}; it is in Debian's openmpi-bin");
            None
        }
    }
}

#[test]
fn ranks_exchange_over_mpi() {
    if std::env::var_os(CHILD).is_some() {
        return exchange();
    }
    for ranks in [2, 4] {
        let Some(output) = mpirun("ranks_exchange_over_mpi", ranks, "well") else { return };
        let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("all was right").count(), ranks, "{text}");
    }
}

fn exchange() {
    let ex = Mpi::begin(PATIENCE).unwrap();
    let (rank, ranks) = (ex.rank(), ex.ranks());
    let parts: Vec<Vec<u8>> = (0..ranks).map(|to| vec![(10 * rank + to) as u8; rank * to]).collect();
    let swapped = ex.swap(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
    assert_eq!(swapped, (0..ranks).map(|from| vec![(10 * from + rank) as u8; from * rank]).collect::<Vec<_>>());
    assert_eq!(ex.first(&[7 + rank as u8]).unwrap(), [7]);
    assert_eq!(ex.gather(&[]).unwrap(), vec![Vec::<u8>::new(); ranks]);
    // The bits of the other exchanges, whose sums are made in the order of the ranks.
    let value = |rank: usize, i: usize| [1e8_f32, 1.0, -1e8, 0.3, -0.7][(rank + i) % 5] * (1.0 + i as f32);
    let mut values: Vec<f32> = (0..10_001).map(|i| value(rank, i)).collect();
    ex.sum(&mut values, Wire::F32).unwrap();
    let expected = (0..10_001).map(|i| (1..ranks).fold(value(0, i), |sum, rank| sum + value(rank, i)).to_bits());
    assert!(values.iter().map(|sum| sum.to_bits()).eq(expected));
    println!("all was right");
    drop(ex);
    Mpi::end();
}

/// Under SIGSTOP it neither comes nor ends, and MPI's own meeting waits for it for ever.
#[test]
fn when_one_does_not_come_to_mpi_all_end() {
    if std::env::var_os(CHILD).is_some() {
        if std::env::var("OMPI_COMM_WORLD_RANK").unwrap() == "1" {
            Command::new("kill").args(["-s", "STOP", &std::process::id().to_string()]).status().unwrap();
        }
        drop(Mpi::begin(Duration::from_secs(3)).unwrap());
        println!("went on");
        return;
    }
    let Some(output) = mpirun("when_one_does_not_come_to_mpi_all_end", 2, "late") else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("not all ranks came to MPI's meeting within 3 s"), "{said}");
}

#[test]
fn when_one_dies_mpirun_ends_all() {
    if std::env::var_os(CHILD).is_some() {
        let ex = Mpi::begin(PATIENCE).unwrap();
        ex.gather(b"here").unwrap();
        if ex.rank() == 1 {
            std::process::exit(1);
        }
        // Would never end.
        ex.gather(b"again").unwrap();
        println!("went on");
        return;
    }
    let Some(output) = mpirun("when_one_dies_mpirun_ends_all", 3, "dying") else { return };
    assert!(!output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("went on"));
}
