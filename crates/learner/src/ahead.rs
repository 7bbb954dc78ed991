//! A window of accumulation whose batches are computed before any of them is read.
//!
//! What becomes of a batch is decided by what is read of it, and whoever reads lets a GPU run dry until work is queued again. So the batches of a
//! window are computed as if each were finite and had its memory, and are read together, when the last of them is queued or a run has to tell how far
//! it is, or to do something else. If all is well they are counted and told one after the other, as ever. If anything is not, nothing has happened:
//! the state is that before the window, and the loop gets its batches back to train on them one by one (`train`), which knows what is to be done. So
//! nothing depends on what is here but how soon a run tells and stops, and nobody sees the state in between: all of it is within
//! [`Run::train_ahead`]. (A panic that is no shortage goes on through it, as through every batch, and leaves a state that nothing saves.)

use std::collections::VecDeque;
use std::time::Instant;

use crate::attempt::Failure;
use crate::counters::{Counters, Place};
use crate::error::{LearnError, TaskError};
use crate::loader::Loader;
use crate::memory;
use crate::phase::Phase;
use crate::plan::{Next, Plan, next};
use crate::profile::StepTimes;
use crate::run::Run;
use crate::state::Before;
use crate::step::{StepReport, catch_up, go_ahead};
use crate::task::{Draw, Task};

/// Batches that wait to be read at most: they are kept, for they may have to be computed again.
const MOST: usize = 8;
/// Seconds after which a run is to tell how far it is, and to hear whether it should stop.
const PATIENCE_S: f64 = 0.5;

/// Whether one more batch can be read in time, after `ahead` of which the first was begun `since` seconds ago, if each takes `batch_s`.
fn in_time(ahead: usize, since: f64, batch_s: f64) -> bool {
    ahead < MOST && since.max(batch_s * (ahead + 1) as f64) <= PATIENCE_S
}

/// The parts of a batch, or why there are none.
type Made<T> = Result<Vec<<T as Task>::Batch>, TaskError>;

/// The batches of a plan, in order.
pub(crate) struct Batches<'scope, T: Task> {
    loader: Loader<'scope, Made<T>>,
    /// Those that were taken and given back.
    back: VecDeque<Made<T>>,
}

impl<'scope, T: Task> Batches<'scope, T> {
    pub(crate) fn of(loader: Loader<'scope, Made<T>>) -> Self {
        Self { loader, back: VecDeque::new() }
    }

    /// The next one, if it could be made; else it is still the next one.
    fn next_made(&mut self) -> Option<Vec<T::Batch>> {
        self.next()?.map_err(|error| self.back.push_front(Err(error))).ok()
    }
}

impl<T: Task> Iterator for Batches<'_, T> {
    type Item = Made<T>;

    fn next(&mut self) -> Option<Made<T>> {
        self.back.pop_front().or_else(|| self.loader.next())
    }
}

/// A batch that was computed and may have to be computed again.
struct Taken<T: Task> {
    parts: Vec<T::Batch>,
    draw: Draw,
    lr: Vec<f64>,
    /// Seconds that it was waited for.
    wait: f64,
}

impl<T: Task> Run<T> {
    /// Trains on the batches of the window that begins here, or on its first ones, and reads them together. `false` where the next batch is to be trained on by itself: this state is as if nothing
    /// had been tried.
    ///
    /// # Errors
    /// As [`Run::count`].
    pub(crate) fn train_ahead(&mut self, task: &T, plan: &Plan, batches: &mut Batches<'_, T>) -> Result<bool, LearnError> {
        if !self.may_go_ahead(plan) {
            return Ok(false);
        }
        let (before, mut taken) = (Before::of(&self.state), Vec::new());
        let steps = self.compute(task, plan, batches, &before, &mut taken);
        self.lap();
        let short = match steps {
            Ok(Some(steps)) => return self.tell_all(task, plan, &before.counters, taken, steps).map(|()| true),
            Ok(None) => false,
            Err(failure) => matches!(failure, Failure::Memory(shortage) if !shortage.lost),
        };
        let elapsed_s = self.state.counters.elapsed_s;
        before.restore(&mut self.state);
        self.state.counters.elapsed_s = elapsed_s;
        let place = self.state.counters.place();
        self.clock.singly_until = match short {
            // Nothing is cut for what batches want that are computed ahead, and no later window of the epoch costs as much.
            true => Place { epoch: place.epoch + 1, position: 0 },
            false => Place { position: place.position + taken.len(), ..place },
        };
        if short {
            self.release_memory();
        }
        taken.into_iter().rev().for_each(|batch| batches.back.push_front(Ok(batch.parts)));
        Ok(false)
    }

    /// Whether a window of several batches begins here. In the middle of one the state before holds a sum of gradients for which no memory is planned; several ranks meet in each batch.
    fn may_go_ahead(&self, plan: &Plan) -> bool {
        let (counters, profile) = (&self.state.counters, self.settings.config.profile);
        counters.pending == 0
            && counters.place() >= self.clock.singly_until
            && counters.unread_by_ranks.is_empty()
            && self.ranks.others().is_none()
            && !profile
            && self.reaches(1, Instant::now())
            && !plan.is_empty(counters.position)
            && self.hyper(plan, counters.position).accumulate > 1
    }

    /// Whether one more batch may be computed after `ahead`, the first of which was begun then, before they are read.
    fn reaches(&self, ahead: usize, begun: Instant) -> bool {
        let card = || memory::Place::of(&self.settings.device) == memory::Place::Card;
        let in_time = || in_time(ahead, begun.elapsed().as_secs_f64(), self.clock.batch_s);
        self.settings.config.ahead.map_or_else(|| card() && in_time(), |most| ahead < most)
    }

    /// Computes batches and reads them. `None` if there are none, or anything of them is not as it should be: then, and after a failure, the state is good for nothing.
    fn compute(
        &mut self,
        task: &T,
        plan: &Plan,
        batches: &mut Batches<'_, T>,
        before: &Before<T::Model>,
        taken: &mut Vec<Taken<T>>,
    ) -> Result<Option<Vec<StepReport<T::Output>>>, Failure> {
        let (begun, mut queued) = (Instant::now(), Vec::new());
        loop {
            let waited = Instant::now();
            let Some(parts) = batches.next_made() else { break };
            let wait = waited.elapsed().as_secs_f64();
            let position = self.state.counters.position;
            let (draw, hyper) = (plan.draw(self.draw(), position), self.hyper(plan, position));
            self.begin_step(task, draw);
            let (context, state) = self.context(task);
            let computed = go_ahead(&context, state, &parts, draw, &hyper);
            taken.push(Taken { parts, draw, lr: hyper.lr, wait });
            queued.push(computed?);
            // As if it had been told: what comes next asks for it.
            self.state.counters.position += 1;
            self.state.counters.batches += 1;
            self.lap();
            let ended = queued.last().is_some_and(|batch| batch.due);
            if ended || !self.reaches(taken.len(), begun) || !self.goes_on(plan) {
                break;
            }
        }
        if queued.is_empty() {
            return Ok(None);
        }
        let (context, state) = self.context(task);
        catch_up(&context, state, before, queued)
    }

    /// Whether the loop would go on with a batch that has samples.
    fn goes_on(&self, plan: &Plan) -> bool {
        let counters = &self.state.counters;
        !self.watchers.stopping() && next(counters, plan, &self.clock.saved) == Next::Step && !plan.is_empty(counters.position)
    }

    /// Counts and tells the batches that were computed since `before`, each with its share of the time, by what the speed is told in.
    fn tell_all(
        &mut self,
        task: &T,
        plan: &Plan,
        before: &Counters,
        taken: Vec<Taken<T>>,
        steps: Vec<StepReport<T::Output>>,
    ) -> Result<(), LearnError> {
        let counters = &mut self.state.counters;
        let seconds = counters.elapsed_s - before.elapsed_s;
        (counters.position, counters.batches, counters.elapsed_s) = (before.position, before.batches, before.elapsed_s);
        let units = |step: &StepReport<T::Output>| step.units.max(1) as f64;
        let (mut times, all) = (StepTimes::default(), steps.iter().map(units).sum::<f64>());
        taken.iter().zip(&steps).for_each(|(batch, step)| times += StepTimes { wait: batch.wait, ..step.times });
        for (i, (batch, mut step)) in taken.into_iter().zip(steps).enumerate() {
            if i > 0 {
                self.turn_to(Phase::Step);
            }
            let share = units(&step) / all;
            step.times = times.part(share);
            self.inspect(task, &batch.parts, batch.draw);
            self.pass_on(batch.lr, step.times, seconds * share);
            self.count(task, &step)?;
            self.report(task, plan, step, seconds * share);
        }
        Ok(())
    }
}

#[test]
fn as_many_batches_as_take_half_a_second_are_read_together() {
    let together = |batch_s: f64| (1..).find(|&ahead| !in_time(ahead, 0.0, batch_s));
    assert_eq!([0.001, 0.1, 0.2, 0.3, f64::INFINITY].map(together), [8, 5, 2, 1, 1].map(Some));
    assert!(in_time(1, 0.4, 0.1) && !in_time(1, 0.6, 0.1), "what was waited for counts too");
}
