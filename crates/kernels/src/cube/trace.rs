//! What is launched: CubeCL tells an observer of every kernel before it runs; our own say what they move and compute.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn_cubecl::tensor::CubeTensor;
use cubecl::logging::{LaunchObservation, LaunchObserver};

use crate::reads::reads;

/// Kernels by their full names, and how often each was launched.
pub type Launches = BTreeMap<&'static str, usize>;

/// Our kernels by their own names, and what they did.
pub type Work = BTreeMap<&'static str, Done>;

/// What the launches of a kernel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// How many there were.
    pub launches: usize,
    /// Bytes of the tensors they were given, each once: what must be read or written if a cache keeps what is read again.
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
struct Trace(Mutex<(Launches, Launches)>);

impl LaunchObserver for Trace {
    fn launched(&self, kernel: &'static str) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.0.entry(kernel).or_default() += 1;
        if !TOLD.take() {
            *seen.1.entry(kernel).or_default() += 1;
        }
    }
}

static WORK: Mutex<Work> = Mutex::new(BTreeMap::new());
/// Whether somebody counts.
static COUNTS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread has told of its next launch. An observer hears of a launch on the thread that makes it.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// The next launch of this thread is told of, by a name, what it is given and what it computes.
pub(crate) fn note<'a>(kernel: &'static str, tensors: impl IntoIterator<Item = &'a CubeTensor>, flops: u64) {
    if COUNTS.load(Ordering::Relaxed) {
        TOLD.set(true);
        let size = |tensor: &CubeTensor| (tensor.meta.shape().num_elements() * tensor.dtype.size()) as u64;
        let done = Done { launches: 1, bytes: tensors.into_iter().map(size).sum(), flops, ..Done::default() };
        *WORK.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += done;
    }
}

/// A workgroup of the launches of this name takes so many bytes of shared memory, and of registers at least (0: not counted).
pub(crate) fn note_room(kernel: &'static str, shared: usize, registers: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        let room = Done { shared, registers, ..Done::default() };
        *WORK.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += room;
    }
}

/// What `work` returns, the kernels that the process launches meanwhile, on whatever CubeCL device, and those of them that nobody told of.
fn watched<T>(work: impl FnOnce() -> T) -> (T, (Launches, Launches)) {
    let trace = Arc::new(Trace::default());
    let watching = LaunchObservation::new(trace.clone());
    let result = work();
    drop(watching);
    let seen = std::mem::take(&mut *trace.0.lock().unwrap_or_else(PoisonError::into_inner));
    (result, seen)
}

/// What `work` returns, and the kernels that the process launches meanwhile, on whatever CubeCL device.
pub fn launches<T>(work: impl FnOnce() -> T) -> (T, Launches) {
    let (result, (launches, _)) = watched(work);
    (result, launches)
}

/// The most that `of` has said at a launch.
struct Most<F> {
    of: F,
    most: AtomicU64,
}

impl<F: Fn() -> u64 + Send + Sync> LaunchObserver for Most<F> {
    fn launched(&self, _kernel: &'static str) {
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

/// What a step does on a GPU.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// All kernels.
    pub launches: Launches,
    /// Those of them that nobody told of: what they read, write and compute is not known.
    pub unknown: Launches,
    /// The others, by what they are for.
    pub work: Work,
    /// How often the thread waited for numbers of a device.
    pub reads: usize,
}

impl Counted {
    /// What `work` returns, and what is done meanwhile.
    pub fn of<T>(work: impl FnOnce() -> T) -> (T, Self) {
        WORK.lock().unwrap_or_else(PoisonError::into_inner).clear();
        COUNTS.store(true, Ordering::Relaxed);
        TOLD.set(false);
        let before = reads();
        let (result, (launches, unknown)) = watched(work);
        let reads = reads() - before;
        COUNTS.store(false, Ordering::Relaxed);
        let work = std::mem::take(&mut *WORK.lock().unwrap_or_else(PoisonError::into_inner));
        (result, Self { launches, unknown, work, reads })
    }

    /// What this does more than `less`: of two steps and one, a step.
    pub fn more_than(self, less: &Self) -> Self {
        let without = |all: Launches, less: &Launches| -> Launches {
            let left = |(kernel, count): (&'static str, usize)| (kernel, count.saturating_sub(less.get(kernel).copied().unwrap_or(0)));
            all.into_iter().map(left).filter(|(_, count)| *count > 0).collect()
        };
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
            reads: self.reads.saturating_sub(less.reads),
        }
    }
}
