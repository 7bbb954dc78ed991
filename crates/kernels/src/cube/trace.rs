//! What is launched: CubeCL tells an observer of every kernel before it runs; our own say what they move and compute.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::tensor::CubeTensor;
use cubecl::logging::{LaunchObservation, LaunchObserver};

use crate::reads::reads;

/// Kernels by their full names, and how often each was launched.
pub type Launches = BTreeMap<&'static str, usize>;

/// Our kernels by their own names, and what they did.
pub type Work = BTreeMap<&'static str, Done>;

/// Our kernels by their own names with the bytes and the operations of a launch, and how many launches are alike.
pub type Alike = BTreeMap<(&'static str, u64, u64), usize>;

/// What the launches of a kernel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How many there were.
    pub launches: usize,
    /// Bytes of the tensors they were given, each once, and twice what is read and written in its place: what must be read or written if a cache keeps what is
    /// read again.
    pub bytes: u64,
    /// Multiplications and additions of matrix products; of other kernels none are counted, memory is what bounds them.
    pub flops: u64,
    /// Bytes of shared memory that a workgroup of theirs takes at most; 0 where none is used.
    pub shared: usize,
    /// Bytes of registers that its threads hold together at least, by what the kernel keeps in them; 0 where that is not counted. Only a driver's compiler
    /// knows how many it takes besides.
    pub registers: usize,
}

impl AddAssign for Done {
    fn add_assign(&mut self, more: Self) {
        self.launches += more.launches;
        self.bytes += more.bytes;
        self.flops += more.flops;
        self.shared = self.shared.max(more.shared);
        self.registers = self.registers.max(more.registers);
    }
}

/// All launches, and those that nobody told of.
#[derive(Default)]
struct Trace {
    /// The number of the [`Counted`] whose marks count, if it is one.
    number: u64,
    seen: Mutex<(Launches, Launches)>,
}

impl LaunchObserver for Trace {
    fn launched(&self, kernel: &'static str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.0.entry(kernel).or_default() += 1;
        if TOLD.take() != self.number {
            *seen.1.entry(kernel).or_default() += 1;
        }
    }
}

static NOTES: Mutex<(Work, Alike)> = Mutex::new((BTreeMap::new(), BTreeMap::new()));
/// The number of the [`Counted`] that is made, from 1 on; 0 if none is.
static COUNTS: AtomicU64 = AtomicU64::new(0);
/// The number of the last one, held while it is made.
static LAST: Mutex<u64> = Mutex::new(0);

thread_local! {
    /// In which [`Counted`] this thread has told of its next launch, or 0. An observer hears of a launch on the thread that makes it; a mark that was never
    /// taken, because a thread panicked before its launch or made it when nobody watched, is of no later one.
    static TOLD: Cell<u64> = const { Cell::new(0) };
    /// In which [`Counted`] this thread has told of tensors that its next launch writes beside those it is told of with, and their bytes.
    static WRITTEN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Notes are taken while it lives.
struct Counting;

impl Counting {
    fn begin(number: u64) -> Self {
        COUNTS.store(number, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        COUNTS.store(0, Ordering::Relaxed);
    }
}

/// Bytes of a tensor's numbers.
fn bytes(tensor: &CubeTensor) -> u64 {
    (tensor.meta.shape().num_elements() * tensor.dtype.size()) as u64
}

/// The launch that this thread tells of next writes this tensor too.
pub(crate) fn note_written(tensor: &CubeTensor) {
    let counts = COUNTS.load(Ordering::Relaxed);
    if counts != 0 {
        let (number, before) = WRITTEN.take();
        WRITTEN.set((counts, bytes(tensor) + if number == counts { before } else { 0 }));
    }
}

/// The next launch of this thread is told of, by a name, what it is given and what it computes.
pub(crate) fn note<'a>(kernel: &'static str, tensors: impl IntoIterator<Item = &'a CubeTensor>, flops: u64) {
    let counts = COUNTS.load(Ordering::Relaxed);
    if counts != 0 {
        TOLD.set(counts);
        let (number, written) = WRITTEN.take();
        let written = if number == counts { written } else { 0 };
        let done = Done { launches: 1, bytes: tensors.into_iter().map(bytes).sum::<u64>() + written, flops, ..Done::default() };
        let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
        *notes.0.entry(kernel).or_default() += done;
        *notes.1.entry((kernel, done.bytes, done.flops)).or_default() += 1;
    }
}

/// A workgroup of the launches of this name takes so many bytes of shared memory, and of registers at least (0: not counted).
pub(crate) fn note_room(kernel: &'static str, shared: usize, registers: usize) {
    if COUNTS.load(Ordering::Relaxed) != 0 {
        let room = Done { shared, registers, ..Done::default() };
        *NOTES.lock().unwrap_or_else(PoisonError::into_inner).0.entry(kernel).or_default() += room;
    }
}

/// What `work` returns, the kernels that the process launches meanwhile, on whatever CubeCL device, and those of them that nobody told of in the [`Counted`] of
/// this number.
fn watched<T>(number: u64, work: impl FnOnce() -> T) -> (T, (Launches, Launches)) {
    let trace = Arc::new(Trace { number, ..Trace::default() });
    let watching = LaunchObservation::new(trace.clone());
    let result = work();
    drop(watching);
    let seen = std::mem::take(&mut *trace.seen.lock().unwrap_or_else(PoisonError::into_inner));
    (result, seen)
}

/// What `work` returns, and the kernels that the process launches meanwhile, on whatever CubeCL device.
pub fn launches<T>(work: impl FnOnce() -> T) -> (T, Launches) {
    let (result, (launches, _)) = watched(0, work);
    (result, launches)
}

/// The most that `of` has said at a launch.
struct Most<F> {
    of: F,
    most: AtomicU64,
}

impl<F: Fn() -> u64 + Send + Sync> LaunchObserver for Most<F> {
    fn launched(&self, _kernel: &'static str) {
        // What was told of is launched, if another watches.
        TOLD.set(0);
        self.most.fetch_max((self.of)(), Ordering::Relaxed);
    }
}

/// What `work` returns, and the most that `of` says when the process launches a kernel meanwhile: of the memory that a device has in use, in bytes.
pub fn most_at_launches<T>(of: impl Fn() -> u64 + Send + Sync + 'static, work: impl FnOnce() -> T) -> (T, u64) {
    let most = Arc::new(Most { of, most: AtomicU64::new(0) });
    let watching = LaunchObservation::new(most.clone());
    let result = work();
    drop(watching);
    (result, most.most.load(Ordering::Relaxed))
}

/// How much more of each there is in `all` than in `less`.
fn without<K: Ord>(all: BTreeMap<K, usize>, less: &BTreeMap<K, usize>) -> BTreeMap<K, usize> {
    let left = |(key, count): (K, usize)| {
        let before = less.get(&key).copied().unwrap_or(0);
        (key, count.saturating_sub(before))
    };
    all.into_iter().map(left).filter(|(_, count)| *count > 0).collect()
}

/// What a step does on a GPU.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// All kernels.
    pub launches: Launches,
    /// Those of them that nobody told of: what they read, write and compute is not known.
    pub unknown: Launches,
    /// The others, by what they are for.
    pub work: Work,
    /// Those once more, each as it is: of the launches of a kernel one may be bound by memory and another by arithmetic.
    pub alike: Alike,
    /// How often the thread waited for numbers of a device.
    pub reads: usize,
}

impl Counted {
    /// What `work` returns, and what is done meanwhile. A second one waits until the first is done, so `work` must not make one.
    pub fn of<T>(work: impl FnOnce() -> T) -> (T, Self) {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        *NOTES.lock().unwrap_or_else(PoisonError::into_inner) = <(Work, Alike)>::default();
        let before = reads();
        let (result, (launches, unknown)) = watched(*last, || {
            let _counting = Counting::begin(*last);
            work()
        });
        let reads = reads() - before;
        let (work, alike) = std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner));
        (result, Self { launches, unknown, work, alike, reads })
    }

    /// Bytes and operations of each launch that was told of.
    pub fn known(&self) -> Vec<(u64, u64)> {
        self.alike.iter().flat_map(|(&(_, bytes, flops), &times)| std::iter::repeat_n((bytes, flops), times)).collect()
    }

    /// What this does more than `less`: of two steps and one, a step.
    pub fn more_than(self, less: &Self) -> Self {
        let work = self.work.into_iter().map(|(kernel, done)| {
            let before = less.work.get(kernel).copied().unwrap_or_default();
            let done = Done {
                launches: done.launches.saturating_sub(before.launches),
                bytes: done.bytes.saturating_sub(before.bytes),
                flops: done.flops.saturating_sub(before.flops),
                ..done
            };
            (kernel, done)
        });
        Self {
            launches: without(self.launches, &less.launches),
            unknown: without(self.unknown, &less.unknown),
            work: work.filter(|(_, done)| done.launches > 0).collect(),
            alike: without(self.alike, &less.alike),
            reads: self.reads.saturating_sub(less.reads),
        }
    }
}
