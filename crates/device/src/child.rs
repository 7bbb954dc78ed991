//! The probe's child process: does the stages one after the other and reports each as a line on standard output.
//!
//! Everything that touches a driver for the first time happens here, where a hang or a crash costs nothing. The child judges numbers
//! only; time is the parent's. It ends when its standard input closes, so that it does not outlive a parent that was killed.

use crate::adapter::{Adapter, AdapterKind, Backend};
use crate::adapters;
use crate::checks::{Check, checks, compare, time};
use crate::options::{Shape, Work};
use crate::plan::Path;
use crate::protocol::{Event, Stage};
use crate::tuning::fastest;
use bellows_kernels::cube::{Class, Maker, matrix_units, out_of_memory, set_maker, set_tuned};
use bellows_kernels::{Lowering, set_default_lowering};
use burn::tensor::{Device, Tensor};
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The hidden subcommand by which the probe starts this program again, for [`answer_probe`].
pub const PROBE_SUBCOMMAND: &str = "__probe";

/// The environment variable that makes the child misbehave: `hang:<stage>`, `crash:<stage>`, `short:<stage>` (of memory) or `wrong:<stage>`, several
/// with commas; `wrong:adapter` claims a matrix unit that is not there. For tests only.
pub(crate) const FAULT_VARIABLE: &str = "BELLOWS_PROBE_FAULT";

/// What CubeCL says where an allocation has failed.
const SHORT: &str = "The bytes were never written (failure #0, still claiming 1 buffer(s))\nCaused by:\n  An IO error happened\n\
                     Caused by:\n  out of device memory allocating 4096 bytes";

/// Shapes of the run that a software adapter proves: attention, and of the rest the smallest.
const SHAPES_ON_SOFTWARE: usize = 3;

/// What the child is asked to do; the words are the arguments after [`PROBE_SUBCOMMAND`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Job {
    /// List the adapters of a backend: `list=vulkan`.
    List(Backend),
    /// Do the stages of a path on one adapter, with these shapes too: `device=vulkan:0:gemm:detector:[]`; and time sizes of blocks: `tune=..`.
    Probe { backend: Backend, index: usize, path: Path, work: Work, tune: bool, shapes: Vec<Shape> },
}

impl Job {
    pub(crate) fn to_arg(&self) -> String {
        match self {
            Self::List(backend) => format!("list={backend}"),
            Self::Probe { backend, index, path, work, tune, shapes } => {
                let (order, shapes) = (if *tune { "tune" } else { "device" }, serde_json::json!(shapes));
                format!("{order}={backend}:{index}:{path}:{work}:{shapes}")
            }
        }
    }

    fn from_arg(arg: &str) -> Option<Self> {
        if let Some(backend) = arg.strip_prefix("list=") {
            return backend.parse().ok().map(Self::List);
        }
        let (order, rest) = arg.split_once('=')?;
        let [backend, index, path, work, shapes] = rest.splitn(5, ':').collect::<Vec<_>>()[..] else { return None };
        Some(Self::Probe {
            backend: backend.parse().ok()?,
            index: index.parse().ok()?,
            path: path.parse().ok()?,
            work: work.parse().ok()?,
            tune: ["device", "tune"].iter().position(|known| *known == order)? == 1,
            shapes: serde_json::from_str(shapes).ok()?,
        })
    }
}

/// Does what the probe asks and ends the process, if it is the probe's child; does nothing in any other. It is the first line of a program's `main`, so that
/// the child does nothing else. [`select`](fn@crate::select) and [`doctor`](fn@crate::doctor) come to it too, before they start a child.
///
/// The report is written to standard output, which is the channel to the parent process. Exit codes: 0 all stages passed, 1 one did not, 2 the arguments are not
/// the parent's.
pub fn answer_probe() {
    if std::env::args_os().nth(1).is_some_and(|word| word == PROBE_SUBCOMMAND) {
        std::process::exit(probe_child_main(std::env::args().skip(2)));
    }
}

/// What the child does, given the arguments after [`PROBE_SUBCOMMAND`]. Returns its exit code.
fn probe_child_main(args: impl Iterator<Item = String>) -> i32 {
    let args: Vec<String> = args.collect();
    let [arg] = args.as_slice() else { return 2 };
    let Some(job) = Job::from_arg(arg) else { return 2 };
    let faults = std::env::var(FAULT_VARIABLE).unwrap_or_default();
    let Ok(faults) = faults.split_terminator(',').map(Fault::parse).collect::<Result<Vec<_>, _>>() else { return 2 };
    std::thread::spawn(end_with_parent);
    let mut child = Child { faults };
    let done = match job {
        Job::List(backend) => child.enumerate(backend).map(|_| ()),
        Job::Probe { backend, index, path, work, tune, shapes } => child.probe((backend, index), path, work, tune, shapes),
    };
    match done {
        Ok(()) => {
            send(&Event::Pass);
            0
        }
        Err(Stopped) => 1,
    }
}

fn end_with_parent() {
    let mut sink = [0; 64];
    while matches!(io::stdin().read(&mut sink), Ok(read) if read > 0) {}
    std::process::exit(1);
}

/// A closed channel means there is no parent to tell; the standard input has closed too and ends the child.
fn send(event: &Event) {
    if let Ok(line) = serde_json::to_string(event) {
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FaultKind {
    Hang,
    Crash,
    Short,
    Wrong,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Fault {
    kind: FaultKind,
    stage: Stage,
}

impl Fault {
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, stage) = text.split_once(':').ok_or("no stage")?;
        let kind = match kind {
            "hang" => FaultKind::Hang,
            "crash" => FaultKind::Crash,
            "short" => FaultKind::Short,
            "wrong" => FaultKind::Wrong,
            _ => return Err(format!("unknown fault '{kind}'")),
        };
        Ok(Self { kind, stage: stage.parse()? })
    }
}

/// A step failed and the parent has been told.
struct Stopped;

struct Child {
    faults: Vec<Fault>,
}

impl Child {
    fn probe(
        &mut self,
        (backend, index): (Backend, usize),
        path: Path,
        work: Work,
        tune: bool,
        mut shapes: Vec<Shape>,
    ) -> Result<(), Stopped> {
        let adapters = self.enumerate(backend)?;
        let device = self.open(&adapters, index)?;
        let mut units = self.step(Stage::Adapter, "list matrix units", || Ok((matrix_units(&device), None)))?;
        if self.has(FaultKind::Wrong, Stage::Adapter) {
            units.push("16x16x16 f16 f16 f32".into());
        }
        send(&Event::Units { units });
        set_maker(Maker::of_pci(adapters[index].id.0));
        let software = adapters[index].kind == AdapterKind::Software;
        // The products of a language model ask for no lowering of their own.
        set_default_lowering(path.lowering());
        if software {
            shapes.sort_by_key(|shape| (!matches!(shape, Shape::Attention(_)), shape.flops()));
            shapes.truncate(SHAPES_ON_SOFTWARE);
        }
        let mut checks = checks(path, work, &shapes);
        checks.retain(|check| !(software && check.hardware_only));
        for check in &checks {
            self.check(check.stage, check, &device, path)?;
        }
        if tune && path == Path::Gemm {
            self.tune(&device, path, &checks)?;
        }
        if software && path != Path::Gemm {
            // Burn's kernels are a matter of minutes there, and nothing is to be won.
            return Ok(());
        }
        let [adapter, processor] = self.step(Stage::Time, "a small step of training", || {
            let there = time(&device, path.lowering(), work, work.half());
            // A processor refuses a detector's f16 and is as fast in a language model's as in f32.
            Ok(([there, time(&Device::flex(), Lowering::Auto, work, false)], None))
        })?;
        send(&Event::Timed { adapter, processor });
        Ok(())
    }

    /// One comparison with the processor, as a step of `stage`.
    fn check(&mut self, stage: Stage, check: &Check, device: &Device, path: Path) -> Result<(), Stopped> {
        let spoilt = self.has(FaultKind::Wrong, stage);
        self.step(stage, &check.name, || {
            check.possible(device)?;
            let (mut gpu, cpu) = check.run(device, path);
            if let (true, Some(first)) = (spoilt, gpu.first_mut().and_then(|list| list.first_mut())) {
                *first += 10.0;
            }
            compare(&gpu, &cpu, check.tolerance).map(|error| ((), Some(error)))
        })
    }

    /// Finds the fastest sizes of blocks, computes with them from now on, and tells them when they have proved themselves as the table's had.
    fn tune(&mut self, device: &Device, path: Path, checks: &[Check]) -> Result<(), Stopped> {
        let mut sizes = Vec::new();
        for class in Class::ALL {
            let found = || fastest(device, class).map(|(size, error)| (size, Some(error)));
            sizes.push((class, self.step(Stage::Tune, class.name(), found)?));
        }
        set_tuned(sizes.iter().copied());
        // What was fastest in one pass of one convolution computes all passes of all layers.
        for check in checks.iter().filter(|check| check.stage > Stage::Rows) {
            self.check(Stage::Tune, check, device, path)?;
        }
        send(&Event::Tuned { sizes: sizes.into_iter().map(|(class, size)| (class.name().to_owned(), size)).collect() });
        Ok(())
    }

    fn enumerate(&mut self, backend: Backend) -> Result<Vec<Adapter>, Stopped> {
        let adapters = self.step(Stage::Enumerate, "list adapters", || Ok((adapters::list(backend), None)))?;
        send(&Event::Adapters { adapters: adapters.clone() });
        Ok(adapters)
    }

    fn open(&mut self, adapters: &[Adapter], index: usize) -> Result<Device, Stopped> {
        self.step(Stage::Adapter, "open, allocate", || {
            let adapter = adapters.get(index).ok_or_else(|| format!("adapter {index} is gone"))?;
            let device = adapters::open(adapter).map_err(|error| error.to_string())?;
            let sum = Tensor::<1>::zeros([1024], &device).into_data().iter::<f32>().sum::<f32>();
            if sum == 0.0 { Ok((device, None)) } else { Err(format!("1024 zeros add up to {sum}")) }
        })
    }

    /// Runs one step between its two lines; a panic in it is a crash.
    fn step<T>(&mut self, stage: Stage, name: &str, work: impl FnOnce() -> Result<(T, Option<f64>), String>) -> Result<T, Stopped> {
        send(&Event::Begin { stage, step: name.into() });
        if self.has(FaultKind::Hang, stage) {
            loop {
                std::thread::park();
            }
        }
        if self.has(FaultKind::Crash, stage) {
            std::process::abort();
        }
        let start = Instant::now();
        let fail = |reason, crash| {
            send(&Event::Fail { stage, step: name.into(), reason, crash });
            Err(Stopped)
        };
        let short = self.has(FaultKind::Short, stage);
        let work = || {
            assert!(!short, "{SHORT}");
            work()
        };
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok((value, max_error))) => {
                send(&Event::Done { stage, step: name.into(), seconds: start.elapsed().as_secs_f64(), max_error });
                Ok(value)
            }
            Ok(Err(reason)) => fail(reason, false),
            Err(panic) => fail(format!("panicked: {}", panic_text(&*panic)), true),
        }
    }

    fn has(&self, kind: FaultKind, stage: Stage) -> bool {
        self.faults.contains(&Fault { kind, stage })
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("no message");
    // That memory ran out is CubeCL's last word on it, behind what could not be done without.
    let line = text.lines().find(|line| out_of_memory(line)).or_else(|| text.lines().next()).unwrap_or_default();
    line.trim().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convolutions::Conv;
    use crate::heads::Heads;
    use crate::maps::{LinearMap, Storage};

    #[test]
    fn jobs_survive_the_command_line() {
        let conv = Conv { maps: [2, 1, 0, 0, 0], c_out: 16, kernel: 3, stride: 2, input: [640, 480], normed: true, images: 3 };
        let map = |storage, rank| Shape::Map(LinearMap { sizes: [4864, 896], storage, rank, rows: 1344 });
        let shapes = vec![Shape::Conv(conv), map(None, 0), map(Some(Storage::Nf4), 16), Shape::Attention(Heads::few(14, 2, 64))];
        let probe = |tune| Job::Probe {
            backend: Backend::Rocm,
            index: 3,
            path: Path::Gemm,
            work: Work::HalfDetector,
            tune,
            shapes: shapes.clone(),
        };
        for job in [Job::List(Backend::Vulkan), probe(false), probe(true)] {
            assert_eq!(Job::from_arg(&job.to_arg()), Some(job));
        }
        for arg in [
            "device=flex:0:gemm:detector:[]",
            "device=vulkan:0:gemm:detector",
            "device=vulkan:0:winograd:detector:[]",
            "tune=vulkan:0:gemm:painter:[]",
            "tune=vulkan:0:gemm:detector:[1]",
            "x=vulkan:0:gemm:detector:[]",
        ] {
            assert_eq!(Job::from_arg(arg), None);
        }
        assert_eq!(probe_child_main(["vulkan".to_owned()].into_iter()), 2);
        assert_eq!(probe_child_main(std::iter::empty()), 2);
    }

    #[test]
    fn faults_name_kind_and_stage() {
        assert_eq!(Fault::parse("hang:conv direct"), Ok(Fault { kind: FaultKind::Hang, stage: Stage::ConvDirect }));
        assert!(Fault::parse("hang:everything").is_err());
        assert!(Fault::parse("slow:matmul").is_err());
    }
}
