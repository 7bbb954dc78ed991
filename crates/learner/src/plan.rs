//! What a run does next: a pure function of its counters and its plan.

use std::ops::Range;

use crate::config::LearnerConfig;
use crate::counters::{Counters, Place};
use crate::task::Draw;

/// The batches of an epoch, and the marks at which something else than a step is due.
pub(crate) struct Plan {
    pub(crate) epoch: usize,
    /// Sample indices; empty where a roll-back has taken the batch out.
    pub(crate) batches: Vec<Vec<usize>>,
    /// Which part of each batch is whose, by batch and rank; empty where there is one rank.
    shares: Vec<Vec<Range<usize>>>,
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
    /// Of batches of one rank.
    pub(crate) fn new(config: &LearnerConfig, counters: &Counters, batches: Vec<Vec<usize>>) -> Self {
        Self::of_ranks(config, counters, batches, Vec::new())
    }

    /// Of `lists`, one a rank, of which so many as there are ranks make a batch; the last one may have fewer.
    pub(crate) fn of_lists(config: &LearnerConfig, counters: &Counters, lists: &[Vec<usize>], ranks: usize) -> Self {
        let batches = lists.chunks(ranks).map(<[Vec<usize>]>::concat).collect();
        let shares = |chunk: &[Vec<usize>]| {
            let mut end = 0;
            let share = |rank: usize| {
                let start = end;
                end += chunk.get(rank).map_or(0, Vec::len);
                start..end
            };
            (0..ranks).map(share).collect()
        };
        Self::of_ranks(config, counters, batches, lists.chunks(ranks).map(shares).collect())
    }

    /// Of batches that are cut into a part a rank.
    pub(crate) fn of_batches(config: &LearnerConfig, counters: &Counters, batches: Vec<Vec<usize>>, ranks: usize) -> Self {
        let shares = |batch: &Vec<usize>| (0..ranks).map(|rank| batch.len() * rank / ranks..batch.len() * (rank + 1) / ranks).collect();
        let shares = batches.iter().map(shares).collect();
        Self::of_ranks(config, counters, batches, shares)
    }

    fn of_ranks(config: &LearnerConfig, counters: &Counters, mut batches: Vec<Vec<usize>>, shares: Vec<Vec<Range<usize>>>) -> Self {
        let epoch = counters.epoch;
        for (position, batch) in batches.iter_mut().enumerate() {
            let place = Place { epoch, position };
            if counters.passed_over.iter().any(|(from, to)| (from..=to).contains(&&place)) {
                batch.clear();
            }
        }
        Self {
            epoch,
            batches,
            shares,
            eval_steps: config.eval_steps.map_or(u64::MAX, |n| n as u64),
            max_steps: config.max_steps.unwrap_or(u64::MAX),
            max_seconds: config.time.map_or(f64::INFINITY, |hours| hours * 3600.0),
            save_seconds: config.checkpoint_minutes * 60.0,
        }
    }

    /// The samples of a batch that are `rank`'s.
    pub(crate) fn share(&self, position: usize, rank: usize) -> &[usize] {
        let batch = &self.batches[position];
        match self.shares.get(position) {
            // What a roll-back has taken out is nobody's.
            Some(shares) => batch.get(shares[rank].clone()).unwrap_or_default(),
            None => batch,
        }
    }

    /// Samples of the largest part of a batch, if every share is cut into so many.
    pub(crate) fn largest_part(&self, position: usize, parts: usize) -> usize {
        let shares = self.shares.get(position).map_or(self.batches[position].len(), |all| all.iter().map(Range::len).max().unwrap_or(0));
        shares.div_ceil(parts)
    }

    /// `draw` of the epoch for the batch at `position`.
    pub(crate) fn draw(&self, draw: Draw, position: usize) -> Draw {
        Draw { step: (self.epoch * self.batches.len() + position) as u64, ..draw }
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
        return Next::Judge(Judging { complete, last: over || (complete && c.epoch + 1 >= c.epochs) });
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
        let config = LearnerConfig::new(3, Schedule::Updates(UpdateSchedule::default()));
        let counters = Counters::new(0, 3, 1);
        let batches: Vec<Vec<usize>> = vec![(0..6).collect(), (6..12).collect(), vec![12]];
        let cut = Plan::of_batches(&config, &counters, batches.clone(), 4);
        let lists: Vec<Vec<usize>> = (0..13).collect::<Vec<_>>().chunks(2).map(<[usize]>::to_vec).collect();
        let own = Plan::of_lists(&config, &counters, &lists, 3);
        for (plan, ranks) in [(&cut, 4), (&own, 3)] {
            assert_eq!(plan.batches, batches);
            for (position, batch) in batches.iter().enumerate() {
                let shares: Vec<&[usize]> = (0..ranks).map(|rank| plan.share(position, rank)).collect();
                assert_eq!(shares.concat(), *batch);
                assert_eq!(plan.largest_part(position, 1), shares.iter().map(|share| share.len()).max().unwrap());
            }
        }
        assert_eq!([own.share(0, 1), own.share(2, 0), own.share(2, 2)], [&[2, 3][..], &[12], &[]], "a list is one rank's");
        assert_eq!([own.largest_part(0, 2), Plan::new(&config, &counters, batches).largest_part(0, 4)], [1, 2]);
    }

    #[test]
    fn what_was_taken_out_is_empty() {
        let (from, to) = (Place { epoch: 0, position: 3 }, Place { epoch: 1, position: 1 });
        let counters = |epoch| Counters { passed_over: vec![(from, to)], ..at(epoch, 0) };
        let sizes = |epoch| plan(|_| {}, &counters(epoch)).batches.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!([sizes(0), sizes(1), sizes(2)], [[1, 1, 1, 0], [0, 0, 1, 1], [1, 1, 1, 1]]);
    }
}
