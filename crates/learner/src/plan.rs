//! What a run does next: a pure function of its counters and its plan.

use crate::config::LearnerConfig;
use crate::counters::{Counters, Place};
use crate::parts::cut;
use crate::task::{Draw, Task};

/// The batches of an epoch, and the marks at which something else than a step is due.
pub(crate) struct Plan {
    pub(crate) epoch: usize,
    /// Lists of sample indices, one for each rank that the run was begun with; none where a roll-back has taken the batch out.
    pub(crate) batches: Vec<Vec<Vec<usize>>>,
    /// How many lists a batch has.
    lists: usize,
    /// Updates between two evaluations.
    eval_steps: u64,
    /// Updates and seconds after which training ends.
    max_steps: u64,
    max_seconds: f64,
    /// Seconds of training between two checkpoints.
    save_seconds: f64,
}

/// When a checkpoint was made last, or tried: batches and seconds of training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Saved {
    pub(crate) batches: u64,
    pub(crate) elapsed_s: f64,
}

/// Where a run is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judging {
    /// At an epoch's end, not within one.
    pub(crate) complete: bool,
    /// Training is over.
    pub(crate) last: bool,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Train on the next batch.
    Step,
    /// Evaluate the model.
    Judge(Judging),
    /// Make a checkpoint, because the clock says so.
    Save,
    /// Nothing, by this plan: the epoch is over, or the run.
    Done,
}

impl Plan {
    /// Of the lists of samples of an epoch, of which so many as the settings have ranks make a batch; the last one may have fewer.
    pub(crate) fn new(config: &LearnerConfig, counters: &Counters, lists: Vec<Vec<usize>>) -> Self {
        let epoch = counters.epoch;
        let mut batches: Vec<Vec<Vec<usize>>> = lists.chunks(config.ranks).map(<[Vec<usize>]>::to_vec).collect();
        for (position, batch) in batches.iter_mut().enumerate() {
            let place = Place { epoch, position };
            if counters.passed_over.iter().any(|(from, to)| (from..=to).contains(&&place)) {
                batch.clear();
            }
        }
        Self {
            epoch,
            batches,
            lists: config.ranks,
            eval_steps: config.eval_steps.map_or(u64::MAX, |n| n as u64),
            max_steps: config.max_steps.unwrap_or(u64::MAX),
            max_seconds: config.time.map_or(f64::INFINITY, |hours| hours * 3600.0),
            save_seconds: config.checkpoint_minutes * 60.0,
        }
    }

    /// Whether a batch has no sample.
    pub(crate) fn is_empty(&self, position: usize) -> bool {
        self.batches[position].iter().all(Vec::is_empty)
    }

    /// What `rank` of `ranks` trains on of a batch: lists, of which one does not touch another. More ranks than lists get parts of them.
    pub(crate) fn share(&self, position: usize, rank: usize, ranks: usize) -> Vec<&[usize]> {
        let each = ranks.div_ceil(self.lists);
        let pieces: Vec<&[usize]> = self.batches[position].iter().flat_map(|list| cut(list, each)).collect();
        let from = |rank: usize| (pieces.len() * rank).div_ceil(ranks);
        pieces[from(rank)..from(rank + 1)].to_vec()
    }

    /// The class of size of a batch: the highest of its lists.
    pub(crate) fn size_class<T: Task>(&self, task: &T, draw: Draw, position: usize) -> usize {
        self.batches[position].iter().map(|list| task.size_class(draw, list)).max().unwrap_or(0)
    }

    /// Samples of the largest part that any of so many ranks has of a batch, if what it has is cut into so many.
    pub(crate) fn largest_part(&self, position: usize, ranks: usize, parts: usize) -> usize {
        let all = (0..ranks).flat_map(|rank| self.share(position, rank, ranks));
        all.map(|piece| piece.len().div_ceil(parts)).max().unwrap_or(0)
    }

    /// `draw` of the epoch for the batch at `position`.
    pub(crate) fn draw(&self, draw: Draw, position: usize) -> Draw {
        let first = self.batches[position].iter().flatten().next().copied().unwrap_or_default();
        Draw { step: (self.epoch * self.batches.len() + position) as u64, first, ..draw }
    }
}

/// What is to be done. It looks at no clock and no disk: seconds of training are counters too.
pub(crate) fn next(c: &Counters, plan: &Plan, saved: &Saved) -> Next {
    if c.done || c.epoch != plan.epoch {
        return Next::Done;
    }
    let complete = c.position >= plan.batches.len();
    let over = c.elapsed_s >= plan.max_seconds || c.updates >= plan.max_steps;
    // A run that was interrupted while it was judged is judged first.
    let due = c.updates.is_multiple_of(plan.eval_steps) && c.updates != c.evaluated_at;
    if complete || over || due {
        // Where the time counts, the epochs are what is thought to fit into it.
        let epochs = complete && plan.max_seconds.is_infinite() && c.epoch + 1 >= c.epochs;
        return Next::Judge(Judging { complete, last: over || epochs });
    }
    let stale = c.batches > saved.batches && c.elapsed_s - saved.elapsed_s >= plan.save_seconds;
    if stale { Next::Save } else { Next::Step }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Schedule, UpdateSchedule};

    fn plan(change: impl FnOnce(&mut LearnerConfig), counters: &Counters) -> Plan {
        let mut config = LearnerConfig::new(3, Schedule::Updates(UpdateSchedule::default()));
        change(&mut config);
        Plan::new(&config, counters, (0..4).map(|i| vec![i]).collect())
    }

    fn at(epoch: usize, position: usize) -> Counters {
        let done = (epoch * 4 + position) as u64;
        Counters { epoch, position, batches: done, updates: done, elapsed_s: 60.0 * done as f64, ..Counters::new(0, 3, 1) }
    }

    fn what(c: &Counters, change: impl FnOnce(&mut LearnerConfig)) -> Next {
        next(c, &plan(change, c), &Saved::default())
    }

    const JUDGE: Judging = Judging { complete: true, last: false };

    #[test]
    fn an_epoch_is_steps_and_then_a_judgement() {
        assert_eq!([0, 1, 3, 4].map(|i| what(&at(1, i), |_| {})), [Next::Step, Next::Step, Next::Step, Next::Judge(JUDGE)]);
        assert_eq!(what(&at(2, 4), |_| {}), Next::Judge(Judging { last: true, ..JUDGE }));
        assert_eq!(next(&at(1, 0), &plan(|_| {}, &at(0, 4)), &Saved::default()), Next::Done);
        assert_eq!(what(&Counters { done: true, ..at(1, 1) }, |_| {}), Next::Done);
    }

    #[test]
    fn evaluations_limits_and_the_clock_come_between() {
        let within = Judging { complete: false, last: false };
        assert_eq!(what(&at(1, 2), |c| c.eval_steps = Some(3)), Next::Judge(within));
        assert_eq!(what(&Counters { evaluated_at: 6, ..at(1, 2) }, |c| c.eval_steps = Some(3)), Next::Step);
        assert_eq!(what(&at(1, 2), |c| c.max_steps = Some(6)), Next::Judge(Judging { last: true, ..within }));
        assert_eq!(what(&at(1, 2), |c| c.time = Some(0.1)), Next::Judge(Judging { last: true, ..within }));
        assert_eq!(what(&at(1, 2), |c| c.time = Some(0.11)), Next::Step);
        assert_eq!(what(&at(1, 2), |c| c.checkpoint_minutes = 6.0), Next::Save);
        let saved = Saved { batches: 6, elapsed_s: 0.0 };
        assert_eq!(next(&at(1, 2), &plan(|c| c.checkpoint_minutes = 0.0, &at(1, 2)), &saved), Next::Step, "saved already");
    }

    #[test]
    fn ranks_share_every_batch_and_overlap_in_none() {
        let config = LearnerConfig { ranks: 3, ..LearnerConfig::new(3, Schedule::Updates(UpdateSchedule::default())) };
        let lists: Vec<Vec<usize>> = (0..13).collect::<Vec<_>>().chunks(2).map(<[usize]>::to_vec).collect();
        let plan = Plan::new(&config, &Counters::new(0, 3, 1), lists);
        for ranks in 1..8 {
            let share = |position: usize| (0..ranks).map(|rank| plan.share(position, rank, ranks)).collect::<Vec<_>>();
            let all: Vec<usize> = (0..plan.batches.len()).flat_map(|position| share(position).concat().concat()).collect();
            assert_eq!(all, (0..13).collect::<Vec<_>>(), "{ranks} ranks");
            assert!(share(2)[0] == [&[12]] && share(2)[1..].iter().all(Vec::is_empty), "the last one is rank 0's");
        }
        assert_eq!(plan.share(0, 0, 1), [&[0, 1], &[2, 3], &[4, 5]], "alone, list by list");
        assert_eq!(plan.share(1, 1, 3), [&[8, 9]], "a list is one rank's");
        assert_eq!([0, 3, 5].map(|rank| plan.share(0, rank, 6).concat().len()), [1, 1, 1]);
        let draw = Draw { seed: 0, epoch: 0, epochs: 3, step: 0, first: 0 };
        assert_eq!([0, 1, 2].map(|position| plan.draw(draw, position).first), [0, 6, 12], "a batch has one first sample, whoever asks");
        assert_eq!([plan.largest_part(0, 3, 1), plan.largest_part(0, 3, 2), plan.largest_part(0, 6, 1)], [2, 1, 1]);
    }

    #[test]
    fn what_was_taken_out_is_empty() {
        let (from, to) = (Place { epoch: 0, position: 3 }, Place { epoch: 1, position: 1 });
        let counters = |epoch| Counters { passed_over: vec![(from, to)], ..at(epoch, 0) };
        let sizes = |epoch| plan(|_| {}, &counters(epoch)).batches.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!([sizes(0), sizes(1), sizes(2)], [[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]]);
    }
}
