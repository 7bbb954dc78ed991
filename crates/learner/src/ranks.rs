//! Several ranks that train one model: what they tell each other so that all of them do the same. Alone a rank tells nothing, and nothing is
//! computed in another way.
//!
//! Rank 0 is the one that has a run directory: it reads checkpoints for all, writes, and its clock is everybody's. Whatever could send ranks
//! different ways (a signal, a clock, a batch that cannot be read, memory that runs out) is told to all before anybody acts on it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bellows_ranks::Exchange;
use bellows_runs::Checkpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{LearnError, TaskError, in_words};
use crate::identity::unlike;
use crate::phase::{Limits, Pace, Phase};
use crate::task::Unreadable;
use crate::wire::{pack, tell, unpack};

/// Most bytes of a checkpoint that travel at a time: a part of an exchange has a greatest length, and is a copy.
const PIECE: usize = 1 << 24;

/// The ranks of a run, or nobody else.
#[derive(Clone, Default)]
pub(crate) struct Ranks(Option<Rc<Others>>);

struct Others {
    exchange: Rc<dyn Exchange>,
    limits: Limits,
    pace: RefCell<Pace>,
    /// The entries whose gradients come up in the middle of a backward pass, in the order of rank 0's; `None` where those are not all of them.
    early: RefCell<Option<Vec<usize>>>,
    /// Of each rank, where it computes: none before they have said so.
    hardware: RefCell<Vec<Hardware>>,
}

/// What a rank computes on. Another backend comes to other bits, another device of the same one may.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hardware {
    pub(crate) backend: String,
    pub(crate) name: String,
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.backend, self.name)
    }
}

/// What a rank is: all must be the same.
#[derive(Serialize, Deserialize)]
struct Introduction {
    code: String,
    info: Map<String, Value>,
    /// Other programs, which are refused as such, may not say it.
    #[serde(default)]
    hardware: Hardware,
}

impl Introduction {
    /// What differs from that of rank 0, in words.
    fn difference(&self, first: &Self) -> Option<String> {
        if self.code != first.code {
            return Some(format!("the program, which is {} and {} on rank 0", self.code, first.code));
        }
        let devices = || format!("the device, which is {} and {} on rank 0: name one with --device", self.hardware, first.hardware);
        unlike(&first.info, &self.info).or_else(|| (self.hardware.backend != first.hardware.backend).then(devices))
    }
}

/// What became of a batch's samples on one rank.
#[derive(Serialize, Deserialize)]
enum Read {
    Made,
    /// There were none for it.
    Nothing,
    Unreadable(String),
    Failed(String),
}

/// What all ranks have of a batch.
pub(crate) struct Had<B> {
    /// This rank's parts.
    pub(crate) parts: Vec<B>,
    /// The ranks that train on nothing, because they can read none of their samples, and why.
    pub(crate) without: Vec<(usize, String)>,
}

/// A checkpoint without its members' bytes, which come behind it.
#[derive(Serialize, Deserialize)]
struct Head {
    step: u64,
    path: PathBuf,
    info: Map<String, Value>,
    members: Vec<(String, usize)>,
}

impl Ranks {
    /// Those of `exchange`, of which one waits for another as long as `limits` say.
    pub(crate) fn of(exchange: Rc<dyn Exchange>, limits: Limits) -> Self {
        let others =
            Others { exchange, limits, pace: RefCell::default(), early: RefCell::new(Some(Vec::new())), hardware: RefCell::default() };
        others.exchange.wait_at_most(Duration::from_secs_f64(others.limits.seconds(Phase::Start)));
        Self(Some(Rc::new(others)).filter(|others| others.exchange.ranks() > 1))
    }

    /// What all of them are busy with from here on: one waits for another as long as that may take.
    pub(crate) fn turn_to(&self, phase: Phase) {
        let Some(others) = &self.0 else { return };
        let pace = others.pace.borrow();
        let patience = match pace.turn_to(phase) {
            // Nobody hears that a rank is still at its share: all of it is waited for, and not a batch.
            Phase::Evaluation if !others.exchange.hears_signs_of_life() => Phase::Export,
            phase => phase,
        };
        others.exchange.wait_at_most(Duration::from_secs_f64(pace.seconds(&others.limits, patience)));
    }

    /// A step took so many seconds.
    pub(crate) fn stepped(&self, seconds: f64) {
        self.0.iter().for_each(|others| others.pace.borrow_mut().add(seconds));
    }

    pub(crate) fn count(&self) -> usize {
        self.others().map_or(1, |others| others.ranks())
    }

    pub(crate) fn rank(&self) -> usize {
        self.others().map_or(0, |others| others.rank())
    }

    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    pub(crate) fn others(&self) -> Option<&dyn Exchange> {
        self.exchange().map(|exchange| &**exchange)
    }

    pub(crate) fn exchange(&self) -> Option<&Rc<dyn Exchange>> {
        self.0.as_ref().map(|others| &others.exchange)
    }

    /// The order that gradients are exchanged in, as far as it is known, while the backward pass goes on; `None` if they are not.
    pub(crate) fn early(&self) -> Option<Vec<usize>> {
        self.0.as_ref().and_then(|others| others.early.borrow().clone())
    }

    /// The same on all ranks.
    pub(crate) fn set_early(&self, order: Option<Vec<usize>>) {
        self.0.iter().for_each(|others| drop(others.early.replace(order.clone())));
    }

    /// Whether all ranks run the same program with the same settings on the same data, and in the same backend.
    ///
    /// # Errors
    /// The first rank that is another, with the difference: on all ranks.
    pub(crate) fn introduce(&self, code: &str, info: Map<String, Value>, hardware: Hardware) -> Result<(), LearnError> {
        let Some(others) = &self.0 else { return Ok(()) };
        let all = tell(&*others.exchange, &Introduction { code: code.into(), info, hardware })?;
        for (rank, other) in all.iter().enumerate().skip(1) {
            if let Some(difference) = other.difference(&all[0]) {
                return Err(LearnError::Unlike { rank, difference });
            }
        }
        *others.hardware.borrow_mut() = all.into_iter().map(|one| one.hardware).collect();
        Ok(())
    }

    /// The first rank whose device is called otherwise than rank 0's, in words.
    pub(crate) fn unlike_hardware(&self) -> Option<String> {
        let hardware = self.0.as_ref()?.hardware.borrow();
        let (rank, other) = hardware.iter().enumerate().find(|(_, other)| **other != hardware[0])?;
        Some(format!(
            "rank {rank} computes on {other}, and rank 0 on {}: if those come to other bits, the next checkpoint or the end of the epoch tells, and ends the run",
            hardware[0]
        ))
    }

    /// Whether anybody wants to stop, and what rank 0's clocks say.
    ///
    /// # Errors
    /// A rank that is gone.
    pub(crate) fn agree<const N: usize>(&self, stop: bool, clocks: [f64; N]) -> Result<(bool, [f64; N]), LearnError> {
        let Some(others) = self.others() else { return Ok((stop, clocks)) };
        let all: Vec<(bool, Vec<f64>)> = tell(others, &(stop, clocks.to_vec()))?;
        let first = &all[0].1;
        Ok((all.iter().any(|(stop, _)| *stop), std::array::from_fn(|i| first.get(i).copied().unwrap_or(clocks[i]))))
    }

    /// What this rank trains on: a rank of which no sample can be read trains on nothing, if another one has something, but not `patience` times in a row, which
    /// `unread` counts for each rank.
    ///
    /// # Errors
    /// A rank that is gone. Within, on all ranks: [`Unreadable`] if none has anything, or what has failed on any rank, or a rank's data that stay away.
    pub(crate) fn readable<B>(
        &self,
        made: Result<Vec<B>, TaskError>,
        patience: u32,
        unread: &mut Vec<u32>,
    ) -> Result<Result<Had<B>, TaskError>, LearnError> {
        let Some(others) = self.others() else {
            unread.clear();
            return Ok(made.map(|parts| Had { parts, without: Vec::new() }));
        };
        let mine = match &made {
            Ok(parts) if parts.is_empty() => Read::Nothing,
            Ok(_) => Read::Made,
            Err(error) if error.is::<Unreadable>() => Read::Unreadable(in_words(&**error)),
            Err(error) => Read::Failed(in_words(&**error)),
        };
        let all = tell(others, &mine)?;
        for (rank, read) in all.iter().enumerate() {
            if let Read::Failed(reason) = read {
                return Ok(Err(LearnError::Rank { rank, reason: reason.clone() }.into()));
            }
        }
        let made_by: Vec<bool> = all.iter().map(|read| matches!(read, Read::Made)).collect();
        let unreadable = |(rank, read)| if let Read::Unreadable(reason) = read { Some((rank, reason)) } else { None };
        let without: Vec<(usize, String)> = all.into_iter().enumerate().filter_map(unreadable).collect();
        if made_by.contains(&true) {
            // Of another number of ranks each was another one.
            if unread.len() != made_by.len() {
                *unread = vec![0; made_by.len()];
            }
            if let Some((rank, reason)) = without.iter().find(|(rank, _)| unread[*rank] + 1 >= patience) {
                let reason = format!("{patience} batches in a row of which it can read nothing: {reason}");
                return Ok(Err(LearnError::Rank { rank: *rank, reason }.into()));
            }
            without.iter().for_each(|(rank, _)| unread[*rank] += 1);
            unread.iter_mut().zip(made_by).filter(|(_, made)| *made).for_each(|(count, _)| *count = 0);
            if unread.iter().all(|count| *count == 0) {
                unread.clear();
            }
            return Ok(Ok(Had { parts: made.unwrap_or_default(), without }));
        }
        let reasons: Vec<String> = without.into_iter().map(|(_, reason)| reason).collect();
        Ok(Err(Unreadable(reasons.join("; ")).into()))
    }

    /// What rank 0 did, for all.
    ///
    /// # Errors
    /// What it failed at, on all ranks.
    pub(crate) fn done_by_first<T: Serialize + DeserializeOwned>(
        &self,
        work: impl FnOnce() -> Result<T, LearnError>,
    ) -> Result<T, LearnError> {
        let Some(others) = self.others() else { return work() };
        let (own, told) = match self.is_first().then(work) {
            Some(Ok(done)) => (None, Some(Ok(done))),
            Some(Err(error)) => {
                let reason = in_words(&error);
                (Some(error), Some(Err(reason)))
            }
            None => (None, None),
        };
        let told = others.first(&pack(&told)?)?;
        match (own, unpack::<Option<Result<T, String>>>(0, &told)?) {
            (Some(error), _) => Err(error),
            (None, Some(Ok(done))) => Ok(done),
            (None, Some(Err(reason))) => Err(LearnError::Rank { rank: 0, reason }),
            (None, None) => Err(LearnError::Rank { rank: 0, reason: "it has said nothing".into() }),
        }
    }

    /// A checkpoint that rank 0 reads, for all.
    ///
    /// # Errors
    /// What it failed at.
    pub(crate) fn checkpoint(
        &self,
        read: impl FnOnce() -> Result<Option<Checkpoint>, LearnError>,
    ) -> Result<Option<Checkpoint>, LearnError> {
        let Some(others) = self.others() else { return read() };
        let mut own = None;
        let head = self.done_by_first(|| {
            own = read()?;
            Ok(own.as_ref().map(|c| {
                let members = c.members.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect();
                Head { step: c.step, path: c.path.clone(), info: c.info.clone(), members }
            }))
        })?;
        let Some(Head { step, path, info, members }) = head else { return Ok(None) };
        let mut taken = BTreeMap::new();
        for (name, len) in members {
            let mine = own.as_ref().and_then(|own| own.members.get(&name));
            let member = member(others, &name, mine.map(Vec::as_slice), len)?;
            taken.insert(name, member);
        }
        Ok(Some(own.unwrap_or(Checkpoint { path, step, info, members: taken })))
    }

    /// Whether all ranks have these numbers.
    ///
    /// # Errors
    /// The first rank that has others: on all ranks.
    pub(crate) fn compare(&self, what: &str, hash: u32) -> Result<(), LearnError> {
        let Some(others) = &self.0 else { return Ok(()) };
        let all = tell(&*others.exchange, &hash)?;
        let Some(rank) = all.iter().position(|theirs| *theirs != all[0]) else { return Ok(()) };
        let hardware = others.hardware.borrow();
        let devices = match (hardware.first(), hardware.get(rank)) {
            (Some(first), Some(other)) if first != other => format!(": it computes on {other}, and rank 0 on {first}"),
            _ => String::new(),
        };
        Err(LearnError::Rank { rank, reason: format!("its {what} are not those of rank 0{devices}") })
    }
}

/// A member of a checkpoint, of `len` bytes, that rank 0 has as `mine`, in pieces: for the others, and empty on rank 0.
fn member(others: &dyn Exchange, name: &str, mine: Option<&[u8]>, len: usize) -> Result<Vec<u8>, LearnError> {
    let mut member = Vec::with_capacity(if mine.is_some() { 0 } else { len });
    for from in (0..len).step_by(PIECE) {
        let place = from..len.min(from + PIECE);
        let own: &[u8] = if let Some(mine) = mine { &mine[place.clone()] } else { &[] };
        let piece = others.first(own)?;
        if piece.len() != place.len() {
            return Err(LearnError::Rank { rank: 0, reason: format!("its checkpoint ends in {name}") });
        }
        if mine.is_none() {
            member.extend_from_slice(&piece);
        }
    }
    Ok(member)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use bellows_ranks::{ExchangeError, Thread, threads};

    use super::*;

    /// Writes down how long it is to wait.
    struct Patient {
        thread: Thread,
        hears: bool,
        waited: RefCell<Vec<f64>>,
    }

    /// How long one waits: for the first step, which is begun twice, after steps of 40, 50 and 1 s, and for an evaluation.
    fn waited(hears: bool) -> Vec<f64> {
        let patient = Rc::new(Patient { thread: threads(2).remove(0), hears, waited: RefCell::default() });
        let ranks = Ranks::of(patient.clone(), Limits::default());
        ranks.turn_to(Phase::Step);
        ranks.turn_to(Phase::Step);
        for seconds in [40.0, 50.0, 1.0] {
            ranks.stepped(seconds);
            ranks.turn_to(Phase::Step);
        }
        ranks.turn_to(Phase::Evaluation);
        patient.waited.borrow().clone()
    }

    impl Exchange for Patient {
        fn rank(&self) -> usize {
            self.thread.rank()
        }

        fn ranks(&self) -> usize {
            self.thread.ranks()
        }

        fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
            self.thread.swap(parts)
        }

        fn wait_at_most(&self, patience: Duration) {
            self.waited.borrow_mut().push(patience.as_secs_f64());
        }

        fn hears_signs_of_life(&self) -> bool {
            self.hears
        }
    }

    #[test]
    fn a_rank_waits_for_a_step_as_long_as_a_supervisor_does() {
        assert_eq!(waited(true), [3600.0, 600.0, 600.0, 400.0, 500.0, 400.0, 600.0]);
    }

    #[test]
    fn an_evaluation_of_which_nothing_is_heard_is_waited_for_as_a_whole() {
        assert_eq!(waited(false), [3600.0, 600.0, 600.0, 400.0, 500.0, 400.0, 3600.0]);
    }

    /// What is counted of so many ranks of which the first one alone can read anything, after `before`.
    fn unread(ranks: usize, before: &[u32]) -> Vec<u32> {
        let count = |thread: Thread| {
            let ranks = Ranks::of(Rc::new(thread), Limits::default());
            let made = if ranks.rank() == 0 { Ok(vec![()]) } else { Err(Unreadable("away".into()).into()) };
            let mut unread = before.to_vec();
            ranks.readable(made, 3, &mut unread).unwrap().unwrap();
            unread
        };
        thread::scope(|scope| {
            let all: Vec<_> = threads(ranks).into_iter().map(|thread| scope.spawn(|| count(thread))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).next_back().unwrap()
        })
    }

    #[test]
    fn what_another_number_of_ranks_could_not_read_is_no_rank_s_any_more() {
        assert_eq!(unread(2, &[0, 1]), [0, 2]);
        assert_eq!(unread(2, &[0, 2, 0]), [0, 1]);
        assert!(unread(1, &[0, 2]).is_empty());
    }

    /// Knows its longest part so far.
    struct Measured {
        thread: Thread,
        longest: Cell<usize>,
    }

    impl Exchange for Measured {
        fn rank(&self) -> usize {
            self.thread.rank()
        }

        fn ranks(&self) -> usize {
            self.thread.ranks()
        }

        fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
            self.longest.set(parts.iter().map(|part| part.len()).fold(self.longest.get(), usize::max));
            self.thread.swap(parts)
        }
    }

    /// One member is longer than a piece, and one has nothing.
    fn saved() -> Checkpoint {
        let members = [("a", vec![1; PIECE + 5]), ("b", Vec::new()), ("c", vec![2, 3])].map(|(name, bytes)| (name.to_string(), bytes));
        Checkpoint { path: "step-7".into(), step: 7, info: Map::new(), members: members.into() }
    }

    #[test]
    fn a_checkpoint_of_any_size_travels_in_pieces() {
        let rank = |thread: Thread| {
            let measured = Rc::new(Measured { thread, longest: Cell::new(0) });
            let ranks = Ranks::of(measured.clone(), Limits::default());
            assert!(ranks.checkpoint(|| Ok(Some(saved()))).unwrap() == Some(saved()), "rank {}", ranks.rank());
            measured.longest.get()
        };
        let longest: Vec<usize> = thread::scope(|scope| {
            let all: Vec<_> = threads(2).into_iter().map(|thread| scope.spawn(|| rank(thread))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(longest[0], PIECE);
    }
}
