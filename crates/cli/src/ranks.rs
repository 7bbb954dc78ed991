//! The ranks of a run: which of them this process is, how the others come to be, and where they meet.
//!
//! With `ranks: N` this process is rank 0 of N on this machine and starts the others: the same command line with two words more, which say
//! which rank it is and where rank 0 waits. Where the environment has `WORLD_SIZE`, `RANK`, `MASTER_ADDR` and `MASTER_PORT`, as PyTorch's
//! users know them, or what `mpirun` or `srun` say, somebody else has started all ranks, on one machine or several, and nobody is started here.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bellows_device::this_program;
use bellows_exit::{Coded, Exit};
use bellows_ranks::{Exchange, ExchangeError, Tcp, listen};
use bellows_runs::End;

use crate::orders::{left, left_out, rank_words};
use crate::place::{Meeting, Starter, take_part, told};
use crate::supervise::{end_of, end_with_parent};
use crate::{Context, Failure, Usage, note, pulse};

/// Where rank 0 of ranks on one machine waits, at a port that the system picks.
const HERE: (&str, u16) = ("127.0.0.1", 0);

/// What another rank gets to end by itself when the run has ended: it has nothing to save.
const GRACE: Duration = Duration::from_secs(1);

/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(10);

/// The code of a process that SIGTERM has ended, as it raises it when this one has gone.
const ASKED_TO: i32 = 128 + 15;

/// Bytes of a file that are read at a time.
const PIECE: u64 = 1 << 16;

const STARTING: &str = "starting the other ranks";

/// How many ranks a run has that asks for so many: what the environment says, where somebody else has started them.
///
/// # Errors
/// An environment that says it in part, as [`Usage`].
pub fn ranks_of(asked: usize) -> Result<usize, Failure> {
    // Those that rank 0 starts may be fewer than were asked for: the batches are still those of all.
    Ok(told().map_err(Usage)?.filter(|place| place.by != Starter::First).map_or(asked, |place| place.ranks))
}

/// Of so many ranks: which this is on its machine, by its number before any was lost, and how many are there.
pub fn local_rank(ranks: usize) -> (usize, usize) {
    let without = left_out();
    let first = (left(0.., without).next().unwrap_or(0), ranks.saturating_sub(without.len()).max(1));
    told().ok().flatten().map_or(first, |place| place.local)
}

/// The ranks of a run as this process has them.
pub(crate) struct Ranks {
    pub(crate) exchange: Rc<dyn Exchange>,
    _others: Others,
}

/// Meets the other ranks of so many, which are started here if nobody else has done that, and waits `patience` for them; `None` if there is
/// none.
///
/// # Errors
/// Ranks that cannot be started, do not come, or are another run's.
pub(crate) fn meet(ranks: usize, patience: Duration) -> Result<Option<Ranks>, Failure> {
    if let Some(place) = told().map_err(Usage)? {
        let exchange: Rc<dyn Exchange> = match (place.meeting, place.rank) {
            (Meeting::At(address), 0) => {
                let listener = listen(&address).context(Exit::Usage, format!("waiting for the other ranks at {address}"))?;
                note(&format!("waiting for {} more ranks at {address}", place.ranks - 1));
                Rc::new(Tcp::host(&listener, place.ranks, &late_after(patience))?.hearing(pulse::beat))
            }
            (Meeting::At(address), rank) => Rc::new(Tcp::join(&address, rank, place.ranks, patience, &note)?.hearing(pulse::beat)),
            #[cfg(feature = "mpi")]
            (Meeting::Mpi, _) => Rc::new(bellows_mpi::Mpi::begin(patience)?),
        };
        return Ok(Some(Ranks { exchange, _others: Others(Vec::new()) }));
    }
    let left: Vec<usize> = left(0..ranks, left_out()).collect();
    if left.len() < 2 {
        return Ok(None);
    }
    let ranks = left.len();
    let listener = TcpListener::bind(HERE).context(Exit::Failed, STARTING)?;
    let address = listener.local_addr().context(Exit::Failed, STARTING)?.to_string();
    let mut others = Others(Vec::new());
    for (rank, number) in left.into_iter().enumerate().skip(1) {
        others.0.push(start(&rank_words(&format!("{rank}/{ranks}/{number}@{address}")))?);
    }
    let others = std::cell::RefCell::new(others);
    let ended = || others.borrow_mut().ended();
    let late = late_after(patience);
    // Whoever has ended before it came has said why.
    let met = Tcp::host(&listener, ranks, &|| ended().map(|(rank, _)| format!("rank {rank} has ended")).or_else(&late));
    match (met, ended()) {
        (Ok(exchange), _) => Ok(Some(Ranks { exchange: Rc::new(Noticed(exchange.hearing(pulse::beat))), _others: others.into_inner() })),
        (Err(_), Some((rank, code))) => Err(NotStarted { rank, code }.into()),
        (Err(error), None) => Err(error.into()),
    }
}

/// Says so when ranks have been waited for so long.
fn late_after(patience: Duration) -> impl Fn() -> Option<String> {
    let until = Instant::now() + patience;
    move || (Instant::now() >= until).then(|| "not all ranks came in time".to_string())
}

/// The other ranks of which this process is one, if somebody else has started them; waits for them so long.
///
/// # Errors
/// Ranks that do not come, an environment that says it in part.
pub fn placed(patience: Duration) -> Result<Option<Rc<dyn Exchange>>, Failure> {
    let Some(place) = told().map_err(Usage)? else { return Ok(None) };
    take_part();
    Ok(meet(place.ranks, patience)?.map(|ranks| ranks.exchange))
}

/// A rank that has ended before training began, as this one would.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} has ended before training began")]
struct NotStarted {
    rank: usize,
    code: Option<i32>,
}

impl Coded for NotStarted {
    fn exit(&self) -> Exit {
        if self.code == Some(Exit::Usage.code().into()) { Exit::Usage } else { Exit::Failed }
    }
}

/// One more process with this one's command line. What it has to say beside the run's own words goes to stderr; its standard input closes when
/// this process ends, however that ends.
fn start(words: &[OsString]) -> Result<Child, Failure> {
    let program = this_program().context(Exit::Failed, STARTING)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(words).stdin(Stdio::piped()).stdout(Stdio::null());
    // A key of the terminal reaches rank 0 alone, which tells the others after the step.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().context(Exit::Failed, STARTING)
}

/// In a rank that rank 0 has started: it does not outlive that process, not even if it hangs or is stopped where the system (Linux) sees to it.
pub(crate) fn end_with_first() {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    end_with_parent(None);
}

/// The processes that this one has started, from rank 1 on.
struct Others(Vec<Child>);

impl Others {
    /// The first that has ended, and its code.
    fn ended(&mut self) -> Option<(usize, Option<i32>)> {
        self.0.iter_mut().enumerate().find_map(|(i, child)| Some((i + 1, child.try_wait().ok()??.code())))
    }
}

/// None of them outlives the run. One that has ended by a signal that it does not hear, or with a code that is neither that of a rank which another
/// one has left nor that of one which was asked to end, is the one that was lost.
impl Drop for Others {
    fn drop(&mut self) {
        // What has ended this rank may end them alike: first by themselves.
        let until = Instant::now() + GRACE;
        while Instant::now() < until && self.0.iter_mut().any(|child| matches!(child.try_wait(), Ok(None))) {
            std::thread::sleep(LOOK);
        }
        self.0.iter_mut().for_each(|child| drop(child.stdin.take()));
        let until = Instant::now() + GRACE;
        for (i, child) in self.0.iter_mut().enumerate().rev() {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
            let as_others_do = [0, Exit::Failed.code().into(), ASKED_TO].map(Some);
            if let Ok(Some(status)) = child.try_wait()
                && !as_others_do.contains(&status.code())
            {
                pulse::lost(i + 1, Some(end_of(status)));
            }
            child.kill().ok();
            // One that a driver holds does not die, and must not be waited for.
            let until = Instant::now() + GRACE;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// An exchange whose failure is a sign of life: who is gone is told to the supervisor.
struct Noticed(Tcp);

impl Exchange for Noticed {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
        Some(self)
    }

    fn wait_at_most(&self, patience: Duration) {
        self.0.wait_at_most(patience);
    }

    fn sign_of_life(&self) {
        self.0.sign_of_life();
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.0.swap(parts).inspect_err(|error| match error {
            ExchangeError::Gone { rank, .. } => pulse::lost(*rank, None),
            ExchangeError::Silent { rank, seconds } => pulse::lost(*rank, Some(End::Hung(*seconds))),
            _ => {}
        })
    }
}

/// What a program is called that all ranks must be: its version and a checksum of its file.
pub(crate) fn code() -> String {
    let sum = this_program().and_then(|program| checksum(&program)).unwrap_or_default();
    format!("{} {sum:08x}", env!("CARGO_PKG_VERSION"))
}

/// Of a file, in pieces: a program is larger than all that a small model needs to be trained.
fn checksum(path: &Path) -> io::Result<u32> {
    let (mut file, mut piece, mut sum) = (File::open(path)?, Vec::new(), 0);
    while file.by_ref().take(PIECE).read_to_end(&mut piece)? > 0 {
        sum = crc32c::crc32c_append(sum, &piece);
        piece.clear();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use bellows_learner::memory::peak_memory;

    use super::*;

    #[test]
    fn a_checksum_is_of_all_of_a_file_and_takes_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (small, large) = (dir.path().join("small"), dir.path().join("large"));
        let bytes: Vec<u8> = (0..PIECE + PIECE / 2).map(|i| (i % 251) as u8).collect();
        std::fs::write(&small, &bytes).unwrap();
        assert_eq!(checksum(&small).unwrap(), crc32c::crc32c(&bytes));
        // Without blocks on the disk.
        File::create(&large).unwrap().set_len(256 << 20).unwrap();
        let before = peak_memory();
        checksum(&large).unwrap();
        assert!(before.is_none_or(|before| peak_memory().is_some_and(|after| after < before + 0.1)), "from {before:?} GB");
    }

    /// Else nothing travels while the backward pass goes on, and no bit tells of it.
    #[test]
    fn ranks_of_one_machine_may_exchange_beside_the_backward_pass() {
        let listener = TcpListener::bind(HERE).unwrap();
        let alone = Tcp::host(&listener, 1, &|| None).unwrap();
        assert!(alone.beside().is_some() && Noticed(alone).beside().is_some());
    }
}
