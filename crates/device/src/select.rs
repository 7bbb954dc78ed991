//! From a request to a device: `auto` takes the first GPU that proves itself, and to be faster than the CPU, and else the CPU with the reason; a named device is
//! proved too, and fails rather than becoming another one. A number alone is a GPU as `auto` finds it, and never the CPU.

use crate::adapter::{Adapter, Backend, best_hardware};
use crate::adapters;
use crate::facts::{self, Facts};
use crate::options::{ProbeOptions, Work};
use crate::probe;
use crate::report::{ProbeReport, Speed};
use crate::{DeviceError, DeviceRequest};
use bellows_kernels::cube::{Maker, set_maker, set_tuned};
use bellows_kernels::{Lowering, processor, processor_has_bf16, set_default_lowering};
use burn::tensor::{Device, FloatDType};

/// The device to train on, by what has proved itself there: [`adopt`](Self::adopt) it before anything is computed.
#[derive(Debug)]
#[must_use = "layers compute by what has proved itself here only after `adopt`"]
pub struct Selected {
    /// The Burn device, without autodiff.
    pub device: Device,
    /// `flex` (the CPU), `vulkan`, `cuda`, `rocm`, `metal` or `webgpu`.
    pub backend: &'static str,
    /// The adapter and its driver, or the CPU's model and number of threads.
    pub name: String,
    /// Bytes of the card's own memory, where its driver tells; of an integrated one with what it may have of the system's.
    pub memory: Option<u64>,
    /// Where the card sits on the PCI bus (`0000:03:00.0`), where its driver tells.
    pub pci: Option<String>,
    /// Why `auto` gave the CPU; `None` for anything else.
    pub fallback: Option<String>,
    /// What it was chosen for.
    pub work: Work,
    /// How layers shall compute convolutions or products: what was asked for in [`ProbeOptions::lowering`] if this device has it, else what has
    /// proved itself here.
    pub lowering: Lowering,
    /// Why it is not the lowering that was asked for, or why `auto` has become a certain one; `None` if nothing speaks against either.
    pub lowering_reason: Option<String>,
    /// What the probe found; `None` if none ran.
    pub report: Option<ProbeReport>,
}

impl Selected {
    /// Whether the device stores f16 and computes with it.
    pub fn has_f16(&self) -> bool {
        self.device.supports_dtype(FloatDType::F16)
    }

    /// From now on this process computes convolutions and products by what has proved itself here, where a layer does not ask for a way of its own, in blocks of
    /// the sizes for this card.
    pub fn adopt(&self) {
        set_default_lowering(self.lowering);
        if let Some(report) = self.report.as_ref().filter(|_| self.is_accelerator()) {
            set_maker(Maker::of_pci(report.adapter.id.0));
            set_tuned(report.tuned());
        }
    }

    /// What [`lowering`](Self::lowering) computes: convolutions, or products.
    pub fn noun(&self) -> &'static str {
        self.work.noun()
    }

    /// The name of [`lowering`](Self::lowering) for this work.
    pub fn way(&self) -> &'static str {
        self.work.name_of(self.lowering)
    }

    /// What a small step of training takes on an accelerator.
    pub fn speed(&self) -> Option<Speed> {
        self.report.as_ref().filter(|_| self.is_accelerator()).and_then(ProbeReport::speed)
    }

    /// What of its name the bits of an update may depend on: of the CPU its model, for its sums are in one order with any number of threads.
    pub fn model(&self) -> &str {
        if self.is_accelerator() { &self.name } else { facts::cpu_model(&self.name) }
    }

    /// Whether it is anything but the processor.
    pub fn is_accelerator(&self) -> bool {
        self.backend != Backend::Flex.name()
    }

    /// Whether Burn's own convolutions may run here: on the processor, and on a GPU where they have passed the probe.
    pub fn direct_is_proved(&self) -> bool {
        !self.is_accelerator() || self.report.as_ref().is_some_and(|report| report.direct.passed())
    }
}

/// Chooses the device for `request` and proves it.
///
/// The first probe of a GPU takes a minute or two; its verdict is remembered. Call [`adopt`](Selected::adopt) before anything is computed: else layers take Burn's
/// kernels, which may have failed here.
///
/// # Errors
/// For a named device that is absent, unproven, software without being named by its index, or not in this binary. Never for `auto`
/// and `cpu`.
pub fn select(request: &DeviceRequest, options: &ProbeOptions) -> Result<Selected, DeviceError> {
    let selected = match *request {
        DeviceRequest::Auto => auto(options),
        DeviceRequest::Cpu => cpu(None, None, options),
        DeviceRequest::Card(number) => gpu(number, false, options).map_err(|none| DeviceError::NoCard { number, reason: none.reason })?,
        DeviceRequest::Vulkan(index) => named(Backend::Vulkan, Which::of(index), options)?,
        DeviceRequest::Cuda(index) => named(Backend::Cuda, Which::of(index), options)?,
        DeviceRequest::Rocm(index) => named(Backend::Rocm, Which::of(index), options)?,
        DeviceRequest::Metal => named(Backend::Metal, Which::Best(0), options)?,
        DeviceRequest::WebGpu => named(Backend::WebGpu, Which::Best(0), options)?,
    };
    match &selected.fallback {
        Some(reason) => tracing::warn!("device: CPU: {reason}"),
        None => tracing::info!("device: {} on {}", selected.name, selected.backend),
    }
    let noun = selected.noun();
    match &selected.lowering_reason {
        Some(reason) => tracing::warn!("{noun}: {}, because {reason}", selected.way()),
        None => tracing::info!("{noun}: {}", selected.way()),
    }
    Ok(selected)
}

/// What `asked` becomes on the processor. Our kernels know the fastest lowering of each shape themselves, which is what `Auto` leaves to them.
fn lowering_on_cpu(asked: Option<Lowering>, has_bf16: bool) -> (Lowering, Option<String>) {
    match asked.unwrap_or_default() {
        Lowering::Bf16 if !has_bf16 => {
            (Lowering::Auto, Some("this processor has no instructions for bf16 (avx512_bf16), so f32 is computed".into()))
        }
        asked => (asked, None),
    }
}

/// What `asked` becomes on a GPU where `proved` has passed the probe, and nothing else because of `reason`.
fn lowering_on_gpu(asked: Option<Lowering>, proved: Lowering, reason: Option<String>) -> (Lowering, Option<String>) {
    match asked.unwrap_or_default() {
        Lowering::Auto | Lowering::Untuned => (proved, reason),
        // Burn's are asked for, and only without their tuning they are right.
        Lowering::Direct if proved == Lowering::Untuned => (proved, reason),
        asked @ (Lowering::Direct | Lowering::Gemm) => (asked, None),
        asked @ (Lowering::Winograd | Lowering::Implicit | Lowering::Bf16) => {
            let why = format!("{asked} is an algorithm of the processor and the choice on a GPU is automatic");
            (proved, Some(reason.map_or(why.clone(), |reason| format!("{why}; {reason}"))))
        }
    }
}

fn cpu(fallback: Option<String>, report: Option<ProbeReport>, options: &ProbeOptions) -> Selected {
    let (device, backend, name) = (processor(), Backend::Flex.name(), facts::cpu_name(rayon::current_num_threads()));
    let (lowering, lowering_reason) = lowering_on_cpu(options.lowering, processor_has_bf16());
    Selected { device, backend, name, memory: None, pci: None, fallback, work: options.work, lowering, lowering_reason, report }
}

fn auto(options: &ProbeOptions) -> Selected {
    gpu(0, true, options).unwrap_or_else(|none| {
        let NoGpu { reason, report } = *none;
        cpu(Some(reason), report, options)
    })
}

/// Why no GPU can be had.
struct NoGpu {
    reason: String,
    report: Option<ProbeReport>,
}

/// Card `number`, the best first, of the first backend whose card of that number proves itself, and to be faster than the processor if asked.
fn gpu(number: usize, faster: bool, options: &ProbeOptions) -> Result<Selected, Box<NoGpu>> {
    let mut reasons = Vec::new();
    let mut report = None;
    for backend in Backend::GPUS.into_iter().filter(|backend| backend.built()) {
        if backend == Backend::Rocm && Facts::of_this_machine(&[]).has_rdna1() {
            reasons.push("rocm is not tried on RDNA1 unless named: ROCm does not support it, hangs are reported".to_owned());
            continue;
        }
        match named(backend, Which::Best(number), options) {
            Ok(selected) => match selected.report.as_ref().filter(|_| faster).and_then(|report| slower(backend, report)) {
                Some(reason) => {
                    reasons.push(reason);
                    report = selected.report;
                }
                None => return Ok(selected),
            },
            Err(error) => {
                reasons.push(error.to_string());
                if let DeviceError::Probe(failed) = error {
                    report = Some(*failed);
                }
            }
        }
    }
    Err(Box::new(NoGpu { reason: reasons.join("; "), report }))
}

/// Why `auto` leaves a proven card for the processor; `None` if it was not slower.
fn slower(backend: Backend, report: &ProbeReport) -> Option<String> {
    let speed = report.speed().filter(Speed::is_slower)?;
    let (adapter, hint) = (&report.adapter, report.hint());
    Some(format!("{adapter} is slower: {speed}{hint}; `--device {backend}` takes it all the same"))
}

/// Which adapter of a backend.
#[derive(Clone, Copy)]
enum Which {
    /// The one `doctor` lists at this place.
    Index(usize),
    /// The hardware adapter that so many are better than.
    Best(usize),
}

impl Which {
    fn of(index: Option<usize>) -> Self {
        index.map_or(Self::Best(0), Self::Index)
    }
}

/// A proven device of `backend`.
fn named(backend: Backend, which: Which, options: &ProbeOptions) -> Result<Selected, DeviceError> {
    let adapter = find(backend, which, options)?;
    let device = adapters::open(&adapter)?;
    let report = probe::prove(&adapter, options);
    let Some((proved, reason)) = report.lowering() else {
        return Err(DeviceError::Probe(Box::new(report)));
    };
    let (lowering, lowering_reason) = lowering_on_gpu(options.lowering, proved, reason);
    let name = format!("{}, {}", adapter.name, adapter.driver);
    Ok(Selected {
        device,
        backend: backend.name(),
        name,
        memory: adapter.memory,
        pci: Some(adapter.pci).filter(|pci| !pci.is_empty()),
        fallback: None,
        work: options.work,
        lowering,
        lowering_reason,
        report: Some(report),
    })
}

/// The adapter that is meant. A software adapter is meant only by its index.
fn find(backend: Backend, which: Which, options: &ProbeOptions) -> Result<Adapter, DeviceError> {
    if !backend.built() {
        return Err(DeviceError::NotBuilt { backend });
    }
    let adapters = probe::list(backend, options).map_err(|reason| DeviceError::Enumerate { backend, reason })?;
    choose(backend, which, &adapters, options.software).cloned()
}

fn choose(backend: Backend, which: Which, adapters: &[Adapter], software: bool) -> Result<&Adapter, DeviceError> {
    if adapters.is_empty() {
        return Err(DeviceError::NoAdapter { backend });
    }
    let found = || adapters.iter().map(|adapter| format!("{adapter}")).collect::<Vec<_>>().join(", ");
    let hardware = best_hardware(adapters);
    match which {
        Which::Index(index) => adapters.get(index).ok_or_else(|| DeviceError::NoSuchAdapter { backend, index, found: found() }),
        Which::Best(0) if hardware.is_empty() => {
            adapters.first().filter(|_| software).ok_or_else(|| DeviceError::SoftwareOnly { backend, found: found() })
        }
        Which::Best(rank) => hardware.get(rank).copied().ok_or_else(|| DeviceError::TooFew { backend, rank, found: found() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{AdapterKind, tests::adapter};
    use crate::report::{Verdict, tests::report};

    #[test]
    fn algorithms_of_the_processor_are_automatic_on_a_gpu() {
        let known = || Some("an RDNA1 card".to_owned());
        for asked in [Lowering::Winograd, Lowering::Implicit, Lowering::Bf16] {
            let why = format!("{asked} is an algorithm of the processor and the choice on a GPU is automatic");
            assert_eq!(lowering_on_gpu(Some(asked), Lowering::Auto, None), (Lowering::Auto, Some(why.clone())));
            assert_eq!(lowering_on_gpu(Some(asked), Lowering::Gemm, known()), (Lowering::Gemm, Some(format!("{why}; an RDNA1 card"))));
            assert_eq!(lowering_on_cpu(Some(asked), true), (asked, None));
        }
        for asked in [None, Some(Lowering::Auto)] {
            assert_eq!(lowering_on_gpu(asked, Lowering::Gemm, known()), (Lowering::Gemm, known()));
        }
        for asked in [Lowering::Direct, Lowering::Gemm] {
            assert_eq!(lowering_on_gpu(Some(asked), asked, known()), (asked, None));
        }
        assert_eq!(lowering_on_gpu(Some(Lowering::Direct), Lowering::Untuned, known()), (Lowering::Untuned, known()));
    }

    #[test]
    fn bf16_without_its_instructions_is_said_to_be_f32() {
        let (lowering, reason) = lowering_on_cpu(Some(Lowering::Bf16), false);
        assert_eq!(lowering, Lowering::Auto);
        assert!(reason.unwrap().contains("f32"));
        assert_eq!(lowering_on_cpu(Some(Lowering::Winograd), false), (Lowering::Winograd, None));
    }

    #[test]
    fn processors_of_one_model_are_alike_with_however_many_threads() {
        let mut selected = cpu(None, None, &ProbeOptions::default());
        let named = |threads: usize| Selected { name: facts::cpu_name(threads), ..cpu(None, None, &ProbeOptions::default()) };
        assert_eq!([1, 8].map(|threads| named(threads).model().to_owned()), [selected.model(); 2]);
        assert!(selected.name.starts_with(&format!("{}, ", selected.model())));
        (selected.backend, selected.name) = (Backend::Vulkan.name(), "AMD Radeon RX 5600 XT, RADV".into());
        assert_eq!(selected.model(), selected.name, "a card's has no threads");
    }

    #[test]
    fn burns_convolutions_run_where_they_are_proved() {
        let card = adapter(0, AdapterKind::Discrete, None);
        let skipped = || Verdict::Skipped { reason: "not tried".into() };
        let mut selected = cpu(None, Some(report(&card, Verdict::Pass, skipped())), &ProbeOptions::default());
        assert!(selected.direct_is_proved(), "a GPU that failed says nothing about the processor");
        selected.backend = Backend::Vulkan.name();
        assert!(!selected.direct_is_proved());
        selected.report = Some(report(&card, skipped(), Verdict::Pass));
        assert!(selected.direct_is_proved());
    }

    #[test]
    fn a_card_that_was_slower_once_can_be_asked_again() {
        let card = adapter(0, AdapterKind::Discrete, None);
        let mut found = report(&card, Verdict::Pass, Verdict::Pass);
        found.direct.speed = Some(Speed { adapter: 0.002, processor: 0.001, half: false });
        assert!(!slower(Backend::Vulkan, &found).unwrap().contains("--reprobe"), "it was asked now");
        found.cached = true;
        let told = slower(Backend::Vulkan, &found).unwrap();
        assert!(
            told.contains("is slower: 2.0 ms")
                && told.contains("`doctor --device vulkan:0 --reprobe` tries again")
                && told.contains("`--device vulkan`"),
            "{told}"
        );
        found.direct.speed = Some(Speed { adapter: 0.001, processor: 0.002, half: false });
        assert_eq!(slower(Backend::Vulkan, &found), None);
    }

    #[test]
    fn software_is_chosen_by_its_index_only() {
        let list = [adapter(0, AdapterKind::Software, None)];
        let refused = choose(Backend::Vulkan, Which::Best(0), &list, false).unwrap_err();
        assert!(refused.to_string().contains("only software adapters (vulkan:0 (card 0, test 1.0))"), "{refused}");
        assert_eq!(choose(Backend::Vulkan, Which::Index(0), &list, false).unwrap().index, 0);
        let absent = choose(Backend::Vulkan, Which::Index(1), &list, false).unwrap_err();
        assert!(absent.to_string().contains("vulkan:1 does not exist; found: vulkan:0"), "{absent}");
        assert_eq!(choose(Backend::Vulkan, Which::Best(0), &[], false), Err(DeviceError::NoAdapter { backend: Backend::Vulkan }));
    }

    #[test]
    fn cards_are_counted_from_the_best() {
        use AdapterKind::{Discrete, Integrated, Software};
        let list = [adapter(0, Software, None), adapter(1, Integrated, None), adapter(2, Discrete, None)];
        let card = |number| choose(Backend::Vulkan, Which::Best(number), &list, false).map(|adapter| adapter.index);
        assert_eq!((card(0), card(1)), (Ok(2), Ok(1)));
        assert!(card(2).unwrap_err().to_string().contains("vulkan has no card 2"));
    }

    #[test]
    fn the_cpu_needs_no_probe() {
        let selected = select(&DeviceRequest::Cpu, &ProbeOptions::default()).unwrap();
        assert_eq!((selected.backend, selected.fallback, selected.report), ("flex", None, None));
        assert!(selected.name.contains(" thread"), "{}", selected.name);
        assert_eq!((selected.lowering, selected.lowering_reason), (Lowering::Auto, None));
        let asked = ProbeOptions { lowering: Some(Lowering::Gemm), ..ProbeOptions::default() };
        assert_eq!(select(&DeviceRequest::Cpu, &asked).unwrap().lowering, Lowering::Gemm);
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_backend_that_is_not_built_in_says_how_to_get_it() {
        let error = select(&DeviceRequest::Cuda(None), &ProbeOptions::default()).unwrap_err();
        assert!(error.to_string().contains("--features cuda"), "{error}");
    }
}
