//! The device and the threads a program runs on.

use std::ffi::OsString;
use std::io::ErrorKind;

use bellows_device::{DeviceRequest, ProbeOptions, Selected, Work, doctor, select};
use bellows_exit::Exit;

use crate::orders::orders;
use crate::ranks::local_rank;
use crate::{Context, Failure, note, place, pulse};

/// Behind a backend: the card whose number is that of the rank on its machine.
const OF_RANK: &str = ":rank";

/// What is written after `--device`, with this process's number on its machine in place of `:rank`.
pub fn device_of_rank(device: &str) -> String {
    on_rank(device, local_rank(1).0)
}

/// The same for the rank of that number.
fn on_rank(device: &str, number: usize) -> String {
    device.replace(OF_RANK, &format!(":{number}"))
}

/// Whether the ranks of this machine, so many, all compute on the one card that is `selected` of what is written after `--device`, as far as can be told.
pub(crate) fn share_card(device: &str, selected: &Selected, here: usize) -> bool {
    let variables = std::env::vars_os().map(|(name, _)| name).filter(|_| place::is_placed());
    selected.is_accelerator() && is_of_all(device, here, variables)
}

/// Bytes of the memory of the card that is `selected`, where known, for this process: its share, if all ranks of this machine, so many, compute on that card.
pub fn card_memory(device: &str, selected: &Selected, here: usize) -> Option<u64> {
    let sharing = if share_card(device, selected, here) { here } else { 1 };
    selected.memory.map(|bytes| bytes / sharing as u64)
}

/// Whether ranks share any card. Who has started the ranks may have given each its own, by a variable such as `CUDA_VISIBLE_DEVICES`.
fn is_of_all(device: &str, here: usize, mut variables: impl Iterator<Item = OsString>) -> bool {
    here > 1 && !device.contains(OF_RANK) && !variables.any(|name| gives_cards(&name.to_string_lossy()))
}

/// Whether a variable may give a rank a card of its own; containers of NVIDIA's and AMD's toolkits have theirs, for all ranks.
fn gives_cards(variable: &str) -> bool {
    variable.ends_with("_VISIBLE_DEVICES") && !["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"].contains(&variable)
}

/// This process's device cannot be used: of the ranks of an elastic run this one is left out.
pub fn unfit() {
    pulse::lost(0, None);
}

/// The device a user asked for, by what has proved itself on it; says on stderr which it is, or why it is the CPU.
///
/// # Errors
/// A name that is none, or a named device that is absent or fails its probe.
pub fn pick_device(device: &str, options: &ProbeOptions) -> Result<Selected, Failure> {
    let request: DeviceRequest = device_of_rank(device).parse()?;
    let mut device = select(&request, options).inspect_err(|_| unfit())?;
    if let Some(reason) = orders().and_then(|orders| orders.processor.clone()) {
        device.fallback = Some(reason);
    }
    device.adopt();
    pulse::device(&device);
    if let DeviceRequest::Card(number) = request {
        note(&format!("device: {number} counts this machine's accelerators, the strongest first; `doctor` prints their own names"));
    }
    match &device.fallback {
        Some(reason) => note(&format!("device: CPU ({}) — {reason}", device.name)),
        None => {
            let speed = device.speed().map_or(String::new(), |speed| format!(", {speed}"));
            note(&format!("device: {} ({}){speed}", device.backend, device.name));
        }
    }
    if let Some(reason) = &device.lowering_reason {
        note(&format!("{}: {}, because {reason}", device.noun(), device.way()));
    }
    Ok(device)
}

/// Prints what there is to know about this machine and the device for this work; `reprobe` uses no cached verdict.
///
/// # Errors
/// A name that is no device's, or a stdout that does not take it all.
pub fn examine(device: &str, reprobe: bool, work: Work) -> Result<(), Failure> {
    let request: DeviceRequest = device.parse()?;
    match doctor(&request, &ProbeOptions { reprobe, ..ProbeOptions::of(work) }, &mut std::io::stdout()) {
        // A reader that has gone, as `head` does, has what it wanted.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        told => told.context(Exit::Failed, "writing the report"),
    }
}

/// Makes this thread one of the pool's `threads` (0: one per core). A step has hundreds of parallel loops; handing each to other threads
/// and sleeping until they are done costs thousands of context switches a step.
///
/// # Errors
/// When the pool exists already.
pub fn join_pool(threads: usize) -> Result<(), Failure> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    // Alone in the pool, this thread could wait for another one that waits for the pool.
    let pool = if threads > 1 { pool.use_current_thread() } else { pool };
    pool.build_global().context(Exit::Failed, "setting up the threads")?;
    crowd(rayon::current_num_threads(), cores).iter().for_each(|line| note(line));
    Ok(())
}

/// How many threads each of `here` processes of this machine has (0: one per core): as many as are `set` for each, or else its share of the cores.
pub(crate) fn threads(set: Option<&str>, cores: usize, here: usize) -> usize {
    let share = if here > 1 { (cores / here).max(1) } else { 0 };
    set.and_then(|threads| threads.parse::<usize>().ok()).filter(|&threads| threads > 0).unwrap_or(share)
}

/// What to say of more threads than cores, which somebody may want for the bits of another machine, and nobody for the time they take.
fn crowd(threads: usize, cores: usize) -> Option<String> {
    let why = format!("warning: {threads} threads (RAYON_NUM_THREADS or --threads) share {cores} cores, which can take many times as long");
    (threads > cores).then_some(why)
}

#[cfg(test)]
mod tests {
    use bellows_device::{Lowering, processor};

    use super::*;

    #[test]
    fn more_threads_than_cores_are_told() {
        assert!(crowd(1000, 2).is_some_and(|line| line.contains("1000 threads (RAYON_NUM_THREADS or --threads) share 2 cores")));
        assert_eq!([crowd(2, 2), crowd(1, 2)], [None, None]);
    }

    #[test]
    fn ranks_share_the_cores_unless_their_threads_are_set() {
        assert_eq!([(None, 8, 1), (None, 8, 2), (None, 2, 4)].map(|(set, cores, here)| threads(set, cores, here)), [0, 4, 1]);
        assert_eq!(["3", "1", "0", "many"].map(|set| threads(Some(set), 8, 2)), [3, 1, 4, 4]);
        assert_eq!(["3", "0"].map(|set| threads(Some(set), 8, 1)), [3, 0]);
    }

    #[test]
    fn ranks_of_a_machine_share_a_card_unless_each_is_given_its_own() {
        let shared = |device, here, names: &[&str]| is_of_all(device, here, names.iter().map(OsString::from));
        for device in ["vulkan:0", "vulkan", "auto", "0"] {
            assert!(shared(device, 2, &["CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"]), "{device}");
            assert!(!shared(device, 1, &[]) && !shared(device, 2, &["CUDA_HOME", "CUDA_VISIBLE_DEVICES"]), "{device}");
        }
        assert!(!shared("vulkan:rank", 2, &[]));
    }

    #[test]
    fn ranks_that_share_a_card_share_its_memory() {
        let card = Selected {
            device: processor(),
            backend: "vulkan",
            name: String::new(),
            memory: Some(8_000),
            pci: None,
            fallback: None,
            work: Work::Detector,
            lowering: Lowering::Auto,
            lowering_reason: None,
            report: None,
        };
        let of = |device, here| card_memory(device, &card, here);
        assert_eq!([of("vulkan", 1), of("vulkan", 2), of("vulkan:rank", 2)], [Some(8_000), Some(4_000), Some(8_000)]);
    }

    #[test]
    fn each_rank_has_the_card_of_its_number() {
        assert_eq!([0, 3].map(|number| on_rank("vulkan:rank", number)), ["vulkan:0", "vulkan:3"]);
        for (written, request) in
            [("cuda:rank", DeviceRequest::Cuda(Some(3))), ("vulkan:1", DeviceRequest::Vulkan(Some(1))), ("cpu", DeviceRequest::Cpu)]
        {
            assert_eq!(on_rank(written, 3).parse(), Ok(request), "{written}");
        }
    }
}
