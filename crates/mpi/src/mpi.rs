//! The exchange of one rank, and its begin and end.
//!
//! When a rank ends without [`Mpi::end`], the launcher ends all; so does one that has waited for longer than it may ([`Watch`]).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bellows_ranks::{Exchange, ExchangeError};
use mpi::collective::SystemOperation;
use mpi::datatype::{Partition, PartitionMut};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};

use crate::watch::Watch;

/// Most bytes that a rank gives all others at a time: MPI counts in 32 bits with a sign.
const MOST: usize = 1 << 30;

/// What MPI is ended with; it lives as long as the process.
static UNIVERSE: Mutex<Option<Universe>> = Mutex::new(None);

/// A rank of MPI's world.
pub struct Mpi {
    world: SimpleCommunicator,
    watch: Watch,
}

impl Mpi {
    /// This process's rank, which `mpirun` has given it. All ranks wait for each other there, `patience` at most.
    ///
    /// # Errors
    /// When this process has begun with MPI already.
    pub fn begin(patience: Duration) -> Result<Self, ExchangeError> {
        let again = || ExchangeError::NoMeeting { rank: 0, address: "MPI".into(), reason: "this process has been there before".into() };
        let watch = Watch::begin();
        watch.wait_at_most(patience);
        let universe = watch.during(mpi::initialize).ok_or_else(again)?;
        let world = universe.world();
        watch.met(number(world.rank()));
        *UNIVERSE.lock().unwrap_or_else(PoisonError::into_inner) = Some(universe);
        Ok(Self { world, watch })
    }

    /// Says goodbye and waits for all others to do so; nothing where MPI was not begun with. A process that ends without it has failed, and the
    /// launcher ends the others.
    pub fn end() {
        drop(UNIVERSE.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Exchange for Mpi {
    fn rank(&self) -> usize {
        number(self.world.rank())
    }

    fn ranks(&self) -> usize {
        number(self.world.size())
    }

    fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        Ok(self.watch.during(|| all_to_all(&self.world, parts)))
    }

    fn wait_at_most(&self, patience: Duration) {
        self.watch.wait_at_most(patience);
    }

    /// A rank hears what it has asked all for, and nothing else.
    fn hears_signs_of_life(&self) -> bool {
        false
    }
}

/// A rank, or how many there are: MPI's are never below 0.
fn number(of_mpi: i32) -> usize {
    usize::try_from(of_mpi).unwrap_or(0)
}

/// [`Exchange::swap`], in as many messages as their length asks for.
fn all_to_all(world: &SimpleCommunicator, parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let lengths: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
    let mut theirs = vec![0_u64; lengths.len()];
    world.all_to_all_into(&lengths[..], &mut theirs[..]);
    let (longest, mut all) = (lengths.iter().copied().max().unwrap_or(0), 0_u64);
    world.all_reduce_into(&longest, &mut all, SystemOperation::max());
    let piece = MOST / parts.len();
    let mut received: Vec<Vec<u8>> = theirs.iter().map(|_| Vec::new()).collect();
    for from in (0..all as usize).step_by(piece) {
        let of = |len: u64| (len as usize).saturating_sub(from).min(piece);
        let given = parts.iter().zip(&lengths).flat_map(|(part, &len)| part.iter().skip(from).take(of(len)).copied());
        // One byte more, which nobody is given: the address of an empty vector is 1, which Open MPI takes for MPI_IN_PLACE.
        let given: Vec<u8> = given.chain([0]).collect();
        let (out, come) = (Counts::of(lengths.iter().map(|&len| of(len))), Counts::of(theirs.iter().map(|&len| of(len))));
        let mut taken = vec![0; come.total + 1];
        let mut places = PartitionMut::new(&mut taken[..], &come.counts[..], &come.starts[..]);
        world.all_to_all_varcount_into(&Partition::new(&given[..], &out.counts[..], &out.starts[..]), &mut places);
        let mut rest = &taken[..];
        for (part, &len) in received.iter_mut().zip(&theirs) {
            let (own, after) = rest.split_at(of(len));
            part.extend_from_slice(own);
            rest = after;
        }
    }
    received
}

/// How many bytes go to each rank, or come from it, and where each begins.
struct Counts {
    counts: Vec<i32>,
    starts: Vec<i32>,
    total: usize,
}

impl Counts {
    fn of(lengths: impl Iterator<Item = usize>) -> Self {
        let (mut counts, mut starts, mut total) = (Vec::new(), Vec::new(), 0);
        for len in lengths {
            // Both are at most `MOST`.
            starts.push(total as i32);
            counts.push(len as i32);
            total += len;
        }
        Self { counts, starts, total }
    }
}
