//! Gradients on their way to the other ranks while the backward pass goes on: in buckets, one after the other, in an order that all ranks have.
//!
//! A bucket travels when its last gradient is there and the buckets before it have come back; a thread sees to that. What was not told in the middle of the pass is
//! given at its end, so a rank whose gradients come all at once, or never because it failed, exchanges the same buckets. Sums are the same bits in whatever buckets.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use bellows_kernels::{Leaves, listen};
use bellows_ranks::{Exchange, ExchangeError, Wire};

use crate::layout::Layout;

/// Least numbers of a bucket but the last: 1 MiB of them travels for 8 ms at 1 Gbit/s, beside which what a message costs is little.
const BUCKET: usize = 1 << 18;

/// An entry of the layout, and its gradient.
type Given = (usize, Arc<Vec<f32>>);

/// The same, and how many seconds after the beginning of the pass it came.
type Timed = (usize, Arc<Vec<f32>>, f64);

/// The gradients of a layout, in the order they are exchanged in.
pub(crate) struct Buckets {
    /// Of each entry where it lies among all arenas, if it is trained.
    places: Vec<Option<Range<usize>>>,
    entries: Vec<Vec<usize>>,
    /// Numbers of all arenas.
    len: usize,
}

impl Buckets {
    /// Entries of `first` come first, in that order.
    pub(crate) fn of(layout: &Layout, first: &[usize]) -> Self {
        let mut places = vec![None; layout.entries.len()];
        let mut len = 0;
        for (piece, numbers) in layout.pieces.0.iter().zip(layout.pieces.lengths()) {
            for (entry, place) in piece.ranges().filter(|_| !piece.groups.is_empty()) {
                places[entry] = Some(len + place.start..len + place.end);
            }
            len += numbers;
        }
        let mut rest: Vec<bool> = places.iter().map(Option::is_some).collect();
        let first = first.iter().copied().filter(|&entry| rest.get_mut(entry).is_some_and(std::mem::take)).collect::<Vec<_>>();
        let rest = rest.iter().enumerate().filter_map(|(entry, rest)| rest.then_some(entry)).collect::<Vec<_>>();
        let (mut entries, mut bucket, mut numbers) = (Vec::new(), Vec::new(), 0);
        for entry in first.into_iter().chain(rest) {
            bucket.push(entry);
            numbers += places[entry].as_ref().map_or(0, Range::len);
            if numbers >= BUCKET {
                entries.push(std::mem::take(&mut bucket));
                numbers = 0;
            }
        }
        entries.extend(Some(bucket).filter(|bucket| !bucket.is_empty()));
        Self { places, entries, len }
    }

    fn place(&self, entry: usize) -> Range<usize> {
        self.places.get(entry).cloned().flatten().unwrap_or_default()
    }

    /// Of each bucket its numbers, and the share of a pass of so many seconds that was left when its last gradient came; `came` says when each entry's did.
    fn left(&self, came: &HashMap<usize, f64>, pass: f64) -> Vec<(usize, f64)> {
        let of = |bucket: &Vec<usize>| {
            let last = bucket.iter().map(|entry| came.get(entry).copied().unwrap_or(pass)).fold(0.0, f64::max);
            (bucket.iter().map(|&entry| self.place(entry).len()).sum::<usize>(), 1.0 - last / pass)
        };
        self.entries.iter().map(of).collect()
    }

    /// The sums over all ranks, where the arenas have them, in `flat`, zeros until then. What has not come when nothing can come any more is zero.
    fn sums(&self, mut flat: Vec<f32>, others: &dyn Exchange, wire: Wire, come: &Receiver<Given>) -> Result<Vec<f32>, ExchangeError> {
        let mut there = vec![false; self.places.len()];
        for bucket in &self.entries {
            while !bucket.iter().all(|&entry| there[entry]) {
                let Ok((entry, values)) = come.recv() else { break };
                let place = self.place(entry);
                if place.len() == values.len() && !std::mem::replace(&mut there[entry], true) {
                    flat[place].copy_from_slice(&values);
                }
            }
            let mut values: Vec<f32> = bucket.iter().flat_map(|&entry| &flat[self.place(entry)]).copied().collect();
            others.sum(&mut values, wire)?;
            let mut rest = &values[..];
            for &entry in bucket {
                let (own, after) = rest.split_at(self.place(entry).len());
                flat[self.place(entry)].copy_from_slice(own);
                rest = after;
            }
        }
        Ok(flat)
    }
}

/// Where a pass gives its gradients.
pub(crate) struct Hand<'a> {
    buckets: &'a Buckets,
    give: Sender<Given>,
    given: Rc<RefCell<Vec<Timed>>>,
    begun: Instant,
}

impl Hand<'_> {
    /// Does `work`; what it tells of `leaves` is given.
    pub(crate) fn listen<R>(&self, leaves: Leaves, work: impl FnOnce() -> R) -> R {
        let (give, given, begun) = (self.give.clone(), Rc::clone(&self.given), self.begun);
        let listener = move |entry, values| {
            let values = Arc::new(values);
            given.borrow_mut().push((entry, Arc::clone(&values), begun.elapsed().as_secs_f64()));
            // Nobody takes it where the exchange has failed, which is told at the end.
            drop(give.send((entry, values)));
        };
        listen(leaves, Rc::new(listener), work)
    }

    /// Gives what was not given yet of `flat`, all arenas one after the other. The entries that were, in their order; `None` if a gradient was given that is another in `flat`.
    pub(crate) fn rest(self, flat: &[f32]) -> Option<Vec<usize>> {
        let mut left: Vec<bool> = self.buckets.places.iter().map(Option::is_some).collect();
        let mut good = true;
        for (entry, values, _) in self.given.borrow().iter() {
            good &= std::mem::take(&mut left[*entry]) && same(values, &flat[self.buckets.place(*entry)]);
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            // docs/cluster.sh makes its model of step time of these.
            let came: HashMap<usize, f64> = self.given.borrow().iter().map(|(entry, _, seconds)| (*entry, *seconds)).collect();
            let left = self.buckets.left(&came, self.begun.elapsed().as_secs_f64());
            let told: Vec<String> = left.into_iter().map(|(numbers, left)| format!("{}:{left:.4}", size_of::<f32>() * numbers)).collect();
            tracing::trace!("buckets {}", told.join(" "));
        }
        for entry in left.iter().enumerate().filter_map(|(entry, left)| left.then_some(entry)) {
            drop(self.give.send((entry, Arc::new(flat[self.buckets.place(entry)].to_vec()))));
        }
        good.then(|| self.given.borrow().iter().map(|(entry, ..)| *entry).collect())
    }
}

/// Whether these have the same bits; all of them are looked at, many at a time.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |other, (a, b)| other | (a.to_bits() ^ b.to_bits())) == 0
}

/// What `pass` makes, and the sums over all ranks of what it gives, all arenas one after the other. They are exchanged `meanwhile`, if the exchange may be used so.
pub(crate) fn summed<R>(
    others: &dyn Exchange,
    wire: Wire,
    buckets: &Buckets,
    meanwhile: bool,
    pass: impl FnOnce(Hand<'_>) -> R,
) -> (R, Result<Vec<f32>, ExchangeError>) {
    let (give, come) = channel();
    let hand = Hand { buckets, give, given: Rc::default(), begun: Instant::now() };
    let zeros = || vec![0.0; buckets.len];
    match others.beside().filter(|_| meanwhile) {
        Some(others) => thread::scope(|scope| {
            // Made here: what a thread has freed glibc keeps, in heaps of which the thread of another step gets another one.
            let flat = zeros();
            let sums = scope.spawn(move || buckets.sums(flat, others, wire, &come));
            let made = pass(hand);
            (made, sums.join().unwrap_or_else(|panic| resume_unwind(panic)))
        }),
        None => {
            let made = pass(hand);
            (made, buckets.sums(zeros(), others, wire, &come))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use bellows_ranks::{Thread, threads};
    use burn::tensor::DType;

    use super::*;
    use crate::entry::Entry;

    /// Three weights, of which two fill a bucket each, and a running statistic.
    fn layout() -> Layout {
        let entry = |name: &str, numbers, group| Entry { name: name.into(), shape: vec![numbers], group, dtype: DType::F32 };
        Layout::from_entries(vec![entry("a", BUCKET, Some(0)), entry("mean", 3, None), entry("b", 5, Some(1)), entry("c", BUCKET, Some(0))])
    }

    #[test]
    fn buckets_hold_every_trained_entry_once() {
        assert_eq!(Buckets::of(&layout(), &[]).entries, [vec![0], vec![2, 3]]);
        assert_eq!(Buckets::of(&layout(), &[3, 9, 1, 3, 0]).entries, [vec![3], vec![0], vec![2]]);
    }

    #[test]
    fn what_is_left_of_a_pass_is_what_comes_after_the_last_gradient_of_a_bucket() {
        let buckets = Buckets::of(&layout(), &[3]);
        assert_eq!(buckets.entries, [vec![3], vec![0], vec![2]]);
        assert_eq!(buckets.left(&HashMap::from([(3, 1.0), (0, 3.0)]), 4.0), [(BUCKET, 0.75), (BUCKET, 0.25), (5, 0.0)]);
        let one = Buckets::of(&layout(), &[2, 3]);
        assert_eq!(one.left(&HashMap::from([(2, 1.0), (3, 2.0), (0, 4.0)]), 4.0), [(BUCKET + 5, 0.5), (BUCKET, 0.0)]);
    }

    /// Counts what was swapped.
    struct Counting(Thread, AtomicUsize);

    impl Exchange for Counting {
        fn rank(&self) -> usize {
            self.0.rank()
        }

        fn ranks(&self) -> usize {
            self.0.ranks()
        }

        fn beside(&self) -> Option<&(dyn Exchange + Sync)> {
            Some(self)
        }

        fn swap(&self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>, ExchangeError> {
            let swapped = self.0.swap(parts);
            self.1.fetch_add(1, Ordering::SeqCst);
            swapped
        }
    }

    /// What each of two ranks gets, of which the first tells an entry and goes on when its sum is there.
    fn on_two_ranks(second: impl Fn(Hand<'_>, &[f32]) + Sync) -> Vec<Vec<f32>> {
        let (layout, second) = (layout(), &second);
        let flat: Vec<f32> = (0..Buckets::of(&layout, &[]).len).map(|i| (i % 13) as f32).collect();
        thread::scope(|scope| {
            let rank = |exchange: Thread| {
                let (layout, flat) = (&layout, &flat);
                scope.spawn(move || {
                    let buckets = Buckets::of(layout, &[3]);
                    let counting = Counting(exchange, AtomicUsize::new(0));
                    let (order, sums) = summed(&counting, Wire::F32, &buckets, true, |hand| {
                        if counting.rank() == 1 {
                            second(hand, flat);
                            return Some(Vec::new());
                        }
                        let values = Arc::new(flat[buckets.place(3)].to_vec());
                        hand.given.borrow_mut().push((3, Arc::clone(&values), 0.0));
                        hand.give.send((3, values)).unwrap();
                        let until = Instant::now() + Duration::from_secs(20);
                        while counting.1.load(Ordering::SeqCst) < 2 {
                            assert!(Instant::now() < until, "the pass waits for its end");
                            thread::yield_now();
                        }
                        hand.rest(flat)
                    });
                    assert_eq!(order, if counting.rank() == 0 { Some(vec![3]) } else { Some(Vec::new()) });
                    sums.unwrap()
                })
            };
            let all: Vec<_> = threads(2).into_iter().map(rank).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_bucket_travels_while_the_pass_goes_on() {
        let all = on_two_ranks(|hand, flat| drop(hand.rest(flat)));
        let buckets = Buckets::of(&layout(), &[]);
        for entry in [0, 2, 3] {
            assert!(buckets.place(entry).all(|i| all[0][i] == 2.0 * (i % 13) as f32), "{entry}");
        }
        assert_eq!(all[0], all[1]);
    }

    #[test]
    fn a_rank_that_failed_gives_zeros() {
        let all = on_two_ranks(|hand, _| drop(hand));
        let place = Buckets::of(&layout(), &[]).place(2);
        assert!(place.clone().all(|i| all[0][i] == (i % 13) as f32) && all[0] == all[1]);
    }

    #[test]
    fn a_gradient_that_is_another_in_the_end_is_known() {
        let (layout, mut all) = (layout(), threads(1));
        let buckets = Buckets::of(&layout, &[]);
        let (order, _) = summed(&all.remove(0), Wire::F32, &buckets, true, |hand| {
            hand.given.borrow_mut().push((2, Arc::new(vec![1.0; 5]), 0.0));
            hand.rest(&vec![0.0; buckets.len])
        });
        assert_eq!(order, None);
    }
}
