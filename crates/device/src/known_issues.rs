//! What is known about some cards and settings, as a pure function from facts to sentences; and what a crash message means.
//!
//! Each entry stands on public reports, whose addresses `doctor` prints below it. Where the reports disagree the sentence says "reported", not "is".

use crate::adapter::Adapter;
use crate::facts::{Facts, Kfd, is_rdna1, names_rdna1};
use crate::options::Work;
use bellows_kernels::cube::out_of_memory;

/// The HIP version `cubecl-hip-sys` in the lock file was generated from.
const LINKED_HIP: &str = "7.14";

/// What is known of a machine, in one sentence, and the addresses where that is from.
pub(crate) struct Known {
    pub(crate) sentence: String,
    pub(crate) sources: &'static [&'static str],
}

/// The known issues that `facts` match.
pub(crate) fn known(facts: &Facts) -> impl Iterator<Item = Known> {
    ISSUES.iter().filter_map(move |&(says, sources)| Some(Known { sentence: says(facts)?, sources }))
}

/// What says a sentence where it is so, and whose reports or words it stands on.
type Issue = (fn(&Facts) -> Option<String>, &'static [&'static str]);

static ISSUES: [Issue; 22] = [
    (
        rdna1,
        &[
            "https://github.com/ROCm/ROCm/issues/2527",
            "https://github.com/lamikr/rocm_sdk_builder/issues/98",
            "https://github.com/ggml-org/llama.cpp/issues/15846",
            "https://github.com/ggml-org/llama.cpp/issues/10710",
            "https://github.com/unslothai/unsloth/issues/8529",
            "https://github.com/unslothai/unsloth/pull/8577",
            "https://github.com/unslothai/unsloth/issues/9138",
        ],
    ),
    (rdna1_override, &["https://github.com/ROCm/ROCm/issues/887"]),
    (
        rdna2_override,
        &[
            "https://docs.rs/crate/cubecl-hip/0.11.3/source/README.md",
            "https://github.com/ollama/ollama/issues/12111",
            "https://github.com/ROCm/MIOpen/issues/3540",
        ],
    ),
    (rdna2_bf16, &["https://github.com/unslothai/unsloth/issues/7922"]),
    (rdna2_compiler, &["https://github.com/ggml-org/llama.cpp/issues/27275"]),
    (matrices_in_ci, &["https://github.com/ROCm/TheRock/issues/5883"]),
    (rdna4, &["https://github.com/ROCm/TheRock/issues/7699"]),
    (
        several_amd,
        &[
            "https://github.com/ROCm/rccl/issues/1129",
            "https://github.com/hiyouga/LlamaFactory/issues/6271",
            "https://github.com/ultralytics/ultralytics/issues/6291",
            "https://github.com/ggml-org/llama.cpp/issues/27825",
        ],
    ),
    (strix_halo, &["https://github.com/unslothai/unsloth/issues/11184"]),
    (radeon_860m, &["https://github.com/GPUOpen-Drivers/AMDVLK/issues/422"]),
    (
        integrated_radeon,
        &["https://github.com/ultralytics/ultralytics/issues/17840", "https://github.com/ultralytics/ultralytics/issues/20151"],
    ),
    (xe3, &["https://github.com/tracel-ai/cubecl/pull/1444", "https://gitlab.freedesktop.org/mesa/mesa/-/issues/15932"]),
    (cuda_convolutions, &["https://github.com/tracel-ai/burn/issues/4598"]),
    (frozen_base, &["https://github.com/tracel-ai/burn/issues/5162"]),
    (apple_m1, &["https://github.com/tracel-ai/burn/issues/5351"]),
    (radv, &["https://github.com/tracel-ai/cubecl/issues/1336"]),
    (rocm_version, &["https://github.com/tracel-ai/cubecl-hip/tree/main/crates/cubecl-hip-sys"]),
    (miopen, &["https://rocm.docs.amd.com/projects/MIOpen/en/latest/reference/env_variables.html"]),
    (kfd, &["https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"]),
    (reset, &["https://docs.kernel.org/gpu/drm-uapi.html#device-reset"]),
    (llvmpipe, &["https://github.com/tracel-ai/burn/issues/4211"]),
    (swiftshader, &["https://docs.rs/crate/cubecl-spirv/0.11.3/source/src/ops/memory.rs"]),
];

fn say(when: bool, sentence: &str) -> Option<String> {
    when.then(|| sentence.to_owned())
}

const OVERRIDE: &str = "HSA_OVERRIDE_GFX_VERSION";

/// What has changed is from unsloth#8577, which quotes TheRock's table of cards, and #9138 (an RX 5600 XT).
fn rdna1(facts: &Facts) -> Option<String> {
    let own = match facts.work {
        Work::Detector | Work::HalfDetector => "Direct convolutions are not tried unless asked for with `--conv direct`.",
        Work::LanguageModel | Work::HalfLanguageModel => "Products and attention are proved by it, ours (`--products own`) and Burn's.",
    };
    facts.has_rdna1().then(|| {
        format!(
            "RDNA1 card (gfx101x): ROCm does not support it and hangs are reported; `auto` tries Vulkan, ROCm only with `--device rocm`. \
             (Nightly builds of AMD's TheRock have code for gfx1010 to gfx1012, with which PyTorch is reported to run on an RX 5600 XT.) \
             Wrong numbers are reported on Vulkan too, which is what the probe looks for. {own}"
        )
    })
}

/// Why Burn's own convolutions must not even be tried on `adapter`, on a machine with these AMD GPUs: hangs that take the machine with
/// them cannot be contained by a child process. gfx101x: the reports of `rdna1`, and users of this program with an RX 5600 XT.
pub(crate) fn direct_convolutions(adapter: &Adapter, gfx: &[u32]) -> Option<String> {
    // With other AMD GPUs in the machine only the name can tell which one this is.
    let alone = adapter.is_amd() && !gfx.is_empty() && gfx.iter().all(|version| is_rdna1(*version));
    (alone || names_rdna1(&adapter.name)).then(|| {
        format!(
            "{} is an RDNA1 card (gfx101x), reported to hang in direct convolution kernels, which are not tried (known issue)",
            adapter.name
        )
    })
}

fn rdna1_override(facts: &Facts) -> Option<String> {
    let value = facts.variables.get(OVERRIDE)?;
    let crashing = facts.has_rdna1() && value.starts_with("10.3");
    crashing.then(|| format!("{OVERRIDE}={value} on RDNA1 is known to crash the RX 5700: unset it (10.1.0 is what others use)."))
}

/// The README of cubecl-hip asks for it; the danger is from the two others.
fn rdna2_override(facts: &Facts) -> Option<String> {
    let needs = facts.gfx.iter().find(|version| (100_301..=100_306).contains(*version))?;
    let gfx = format!("gfx103{:x}", needs % 100);
    match facts.variables.get(OVERRIDE) {
        None if facts.rocm => Some(format!(
            "{gfx} with ROCm: CubeCL asks for {OVERRIDE}=10.3.0 on RDNA2 cards; with some ROCm releases (6.4.3) that setting is \
             reported to crash. Vulkan needs no override."
        )),
        Some(value) if facts.rocm => {
            Some(format!("{gfx} is run as {value} ({OVERRIDE}): needed by CubeCL, reported to crash with ROCm 6.4.3."))
        }
        _ => None,
    }
}

/// An RX 6600.
fn rdna2_bf16(facts: &Facts) -> Option<String> {
    say(
        facts.rocm && facts.gfx.contains(&100_302),
        "gfx1032 with ROCm: runs in bf16 are reported to crash where f16 works (`--precision fp16`, of a detector f16).",
    )
}

fn rdna2_compiler(facts: &Facts) -> Option<String> {
    let found = facts.rocm_version.as_ref().filter(|found| facts.rocm && found.starts_with("7.1."))?;
    let matches = facts.gfx.contains(&100_300);
    matches.then(|| {
        format!(
            "gfx1030 with ROCm {found}: the compiler (comgr) of 7.1.1 is reported to crash there; that of 6.3.1 works, and so does Vulkan."
        )
    })
}

/// Of AMD's own machines: PyTorch's smoke test of a matrix product, on gfx1150, and until 2026-07 on gfx1153 and some of gfx120x.
fn matrices_in_ci(facts: &Facts) -> Option<String> {
    let listed = |version: &u32| matches!(version, 110_500 | 110_503 | 120_000 | 120_001);
    say(
        facts.rocm && facts.gfx.iter().any(listed),
        "gfx1150, gfx1153 and gfx120x with ROCm: products of matrices are reported to hang on some of AMD's own test machines; the probe ends \
         one that does, and Vulkan is another driver.",
    )
}

/// An RX 9070.
fn rdna4(facts: &Facts) -> Option<String> {
    let card = facts.gfx.contains(&120_001) || facts.names.iter().any(|name| name.contains("RX 9070"));
    say(
        facts.rocm && card,
        "RX 9070 (gfx1201) with ROCm: GPU resets are reported, which ended without hipBLASLt; no backend of this program uses that, \
         and Vulkan is another driver.",
    )
}

/// Two RX 7900 XTX among others. The kernel counts graphics within a processor too, which is no harm.
fn several_amd(facts: &Facts) -> Option<String> {
    say(
        facts.gfx.len() > 1,
        "several AMD GPUs: training on more than one of them with ROCm is reported to hang, or to use one alone; ranks of this program have a \
         card each and exchange through the host's memory, without RCCL and without copies from card to card.",
    )
}

/// A Radeon 8060S, with memory of its processor's.
fn strix_halo(facts: &Facts) -> Option<String> {
    let card = facts.gfx.contains(&110_501) || facts.names.iter().any(|name| name.contains("8060S"));
    say(
        card,
        "Radeon 8060S (gfx1151): training is reported to be 11 to 45 % slower there than on its own processor in bf16; `auto` times both.",
    )
}

/// The extension and the feature are announced, and the list of sizes ends the process.
fn radeon_860m(facts: &Facts) -> Option<String> {
    say(
        facts.names.iter().any(|name| name.contains("860M") && !name.contains("RADV")),
        "Radeon 860M (RDNA 3.5) with AMD's own Vulkan driver 26.3.1: asking it for its matrix units, as CubeCL does, is reported to end the \
         process; that is the probe's child, and if it dies when it opens the adapter, another driver is the way.",
    )
}

/// An AMD GPU beside its processor, through Vulkan and NCNN, and a Radeon 680M, through ONNX.
fn integrated_radeon(facts: &Facts) -> Option<String> {
    say(
        facts.names.iter().any(|name| name.contains("680M")),
        "Radeon 680M: a detector is reported to be no faster there than on its own processor, or slower; `auto` times both.",
    )
}

/// An Arc B390 (Panther Lake), and Wildcat Lake, which has the same units. CubeCL 0.11.3 does not leave them out.
fn xe3(facts: &Facts) -> Option<String> {
    let card = |name: &String| ["B390", "(PTL)", "(WCL)", "Panther Lake", "Wildcat Lake"].iter().any(|word| name.contains(word));
    say(
        facts.names.iter().any(card),
        "Intel Xe3 graphics (Panther Lake, Wildcat Lake) with Mesa: matrix units compute wrong products there, which Burn's products may use; \
         the probe compares them, and ours use none.",
    )
}

/// A Quadro RTX 6000 with Burn 0.20: 1,240 ms to PyTorch's 34.
fn cuda_convolutions(facts: &Facts) -> Option<String> {
    let makes = ["NVIDIA", "GeForce", "Quadro", "TITAN"];
    say(
        facts.cuda && !facts.work.of_words() && facts.names.iter().any(|name| makes.iter().any(|make| name.contains(make))),
        "CUDA: a training step of a small detector (YOLOX-nano) by Burn's convolutions is reported to take 36 times what PyTorch's \
         takes; they are `--conv direct`, and `auto` where a card has matrix units; `--conv gemm` are our own.",
    )
}

/// Open, of Burn 0.21: Metal, and an RTX 4090 through Vulkan; clean where the input wants a gradient too.
fn frozen_base(facts: &Facts) -> Option<String> {
    let cards = ["RTX 4090", "Apple"];
    say(
        facts.work.of_words() && facts.names.iter().any(|name| cards.iter().any(|card| name.contains(card))),
        "RTX 4090 through Vulkan, Apple through Metal: with Burn 0.21 gradients of adapters beside a frozen model are reported NaN or zero; the \
         probe trains such a layer, and the model's own first layer is compared before a run begins.",
    )
}

/// Closed: an M1 Max, where newer ones were right.
fn apple_m1(facts: &Facts) -> Option<String> {
    say(
        facts.work.of_words() && facts.names.iter().any(|name| name.contains("Apple M1")),
        "Apple M1 through Metal: with Burn 0.22's pre-releases gradients of adapters are reported to explode from layer to layer at 1,024 tokens \
         and more, of which neither the probe nor the first layer's comparison has as many.",
    )
}

/// Open; of AMD cards and CubeCL 0.10, its maintainers could not repeat it. Mesa writes RADV into the names of adapters.
fn radv(facts: &Facts) -> Option<String> {
    say(
        facts.names.iter().any(|name| name.contains("RADV")),
        "RADV: kernels of CubeCL's whose private arrays are more than some 544 bytes together are reported to compute wrong numbers now and \
         then, which CubeCL's maintainers could not repeat; the probe computes a product in our largest blocks eight times and asks for the same bits.",
    )
}

/// burn-rocm pins the HIP it was generated from.
fn rocm_version(facts: &Facts) -> Option<String> {
    let found = facts.rocm_version.as_ref().filter(|_| facts.rocm)?;
    let same =
        found == LINKED_HIP || found.strip_prefix(LINKED_HIP).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()));
    (!same).then(|| format!("ROCm backend built for HIP {LINKED_HIP}, found ROCm {found}: structures may not match."))
}

fn miopen(facts: &Facts) -> Option<String> {
    let names: Vec<&str> = facts.variables.keys().map(String::as_str).filter(|name| name.starts_with("MIOPEN_")).collect();
    (!names.is_empty()).then(|| format!("{}: ignored, no backend of this program uses MIOpen.", names.join(", ")))
}

fn kfd(facts: &Facts) -> Option<String> {
    match facts.kfd {
        Kfd::Denied => say(
            true,
            "no permission for /dev/kfd: run `sudo usermod -aG render,video $USER`, log out and in again \
             (in a container: --device=/dev/kfd --device=/dev/dri --group-add render).",
        ),
        Kfd::Missing => say(
            facts.rocm,
            "/dev/kfd is missing: load amdgpu (`sudo modprobe amdgpu`), or in a container pass --device=/dev/kfd --device=/dev/dri.",
        ),
        Kfd::Usable => None,
    }
}

fn reset(facts: &Facts) -> Option<String> {
    say(facts.gpu_reset, "the kernel's log tells of a GPU reset since boot: if the probe fails, reboot before judging the card.")
}

/// This project's own runs on Mesa 22.3, too.
fn llvmpipe(facts: &Facts) -> Option<String> {
    say(
        facts.names.iter().any(|name| name.contains("llvmpipe")),
        "llvmpipe is software Vulkan; Mesa 22.3's crashes in tuned matrix products. The cpu device is faster.",
    )
}

/// CubeCL 0.11.3 emits invalid SPIR-V for shared memory on devices without `VK_KHR_workgroup_memory_explicit_layout`: in
/// cubecl-spirv's `ops/memory.rs`, `lower_shared_implicit` exchanges the types of the variable and of its value. wgpu does not tell which
/// extensions a device has, so the one device known to lack it is known by name, and the probe finds the others by their numbers.
fn swiftshader(facts: &Facts) -> Option<String> {
    say(
        facts.names.iter().any(|name| name.contains("SwiftShader")),
        "SwiftShader is software Vulkan without VK_KHR_workgroup_memory_explicit_layout: with CubeCL 0.11.3 as published, kernels that use \
         shared memory compute nonsense there, Burn's matrix products among them; this program has that mended. The cpu device is faster.",
    )
}

/// What is known of a crash by what the driver wrote, most specific first: ROCm's strings, Vulkan's, then the kernel's.
const CRASHES: &[(&str, &str)] = &[
    (
        "MEMORY_APERTURE_VIOLATION",
        "the GPU touched memory it does not own (MEMORY_APERTURE_VIOLATION), a fault reported on RDNA2 with ROCm",
    ),
    ("Memory access fault", "the GPU touched memory it does not own (memory access fault)"),
    ("Module not initialized", "HIP lost a compiled kernel (Module not initialized), a fault reported with ROCm 6.4"),
    ("invalid device function", "the ROCm or CUDA libraries hold no code for this GPU (invalid device function)"),
    ("HIP_ERROR_NoBinaryForGpu", "the ROCm libraries hold no code for this GPU"),
    ("DeviceLost", "the driver lost the device, which is what a GPU reset looks like"),
    ("ERROR_DEVICE_LOST", "the driver lost the device, which is what a GPU reset looks like"),
    ("device lost", "the driver lost the device, which is what a GPU reset looks like"),
    ("Device is lost", "the driver lost the device, which is what a GPU reset looks like"),
];

/// Whether a child that died told of memory that ran out, itself or in what the driver wrote.
pub(crate) fn tells_of_shortage(stderr: &str, cause: &str) -> bool {
    out_of_memory(stderr) || out_of_memory(cause)
}

/// One sentence for a child that died: what the driver's own words are known to mean, and how it ended.
pub(crate) fn crash_sentence(stderr: &str, cause: &str) -> String {
    let haystack = stderr.to_lowercase();
    let known = CRASHES.iter().find(|(needle, _)| haystack.contains(&needle.to_lowercase()) || cause.contains(needle));
    let short = || tells_of_shortage(stderr, cause).then_some("the GPU ran out of memory");
    let known = known.map(|(_, sentence)| *sentence).or_else(short);
    known.map_or_else(|| cause.to_owned(), |sentence| format!("{sentence}; {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{AdapterKind, Backend, tests::adapter};

    fn sentences(facts: &Facts) -> Vec<String> {
        known(facts).map(|known| known.sentence).collect()
    }

    fn facts(gfx: u32, variables: &[(&str, &str)]) -> Facts {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Facts { gfx: vec![gfx], variables, kfd: Kfd::Usable, rocm: true, ..Facts::default() }
    }

    #[test]
    fn nothing_is_said_without_reason() {
        assert_eq!(sentences(&Facts::default()), Vec::<String>::new());
        assert_eq!(sentences(&facts(110_000, &[])), Vec::<String>::new());
    }

    #[test]
    fn every_issue_has_a_source() {
        for (_, sources) in &ISSUES {
            assert!(!sources.is_empty());
            for source in *sources {
                assert!(source.starts_with("https://") && !source.contains(char::is_whitespace), "{source}");
            }
        }
        let told: Vec<_> = known(&facts(100_100, &[(OVERRIDE, "10.3.0")])).collect();
        assert!(told[0].sources.len() > 1 && told[1].sources == ["https://github.com/ROCm/ROCm/issues/887"]);
    }

    #[test]
    fn rdna1_is_known_by_topology_and_by_name() {
        assert!(sentences(&facts(100_100, &[]))[0].contains("RDNA1"));
        let named = Facts { names: vec!["AMD Radeon RX 5700 XT (RADV NAVI10)".into()], ..Facts::default() };
        assert!(sentences(&named)[0].contains("RDNA1"));
        let said = sentences(&facts(100_102, &[(OVERRIDE, "10.3.0")]));
        assert!(said.len() == 2 && said[1].contains("known to crash the RX 5700"), "{said:?}");
        assert_eq!(sentences(&facts(100_100, &[(OVERRIDE, "10.1.0")])).len(), 1);
    }

    #[test]
    fn sentences_have_no_holes() {
        let names = ["AMD Radeon 8060S Graphics (RADV GFX1151)", "llvmpipe (LLVM 15.0.6)", "SwiftShader Device"].map(String::from).to_vec();
        let unlike = Facts { names, kfd: Kfd::Denied, gpu_reset: true, rocm_version: Some("7.1.1".into()), ..Facts::default() };
        let with = |gfx, variables: &[(&str, &str)]| {
            let Facts { gfx, variables, rocm, .. } = facts(gfx, variables);
            sentences(&Facts { gfx, variables, rocm, ..unlike.clone() })
        };
        let mut said = [with(120_001, &[]), with(100_100, &[(OVERRIDE, "10.3.0")]), with(100_302, &[]), with(100_300, &[])].concat();
        said.extend(with(100_302, &[(OVERRIDE, "10.3.0"), ("MIOPEN_DEBUG_CONV_GEMM", "0")]));
        for part in ["gfx1201", "RADV:", "comgr", "MIOPEN_", "usermod", "reboot", "llvmpipe", "SwiftShader", "RDNA1", "unset it", "8060S"] {
            assert!(said.iter().any(|sentence| sentence.contains(part)), "nothing of {part} in {said:?}");
        }
        for sentence in said {
            assert!(!sentence.contains("  "), "{sentence}");
        }
    }

    #[test]
    fn of_convolutions_only_a_detector_is_told() {
        let names = vec!["AMD Radeon RX 5700 XT (RADV NAVI10)".into(), "SwiftShader Device".into()];
        let said = |work| sentences(&Facts { names: names.clone(), work, ..Facts::default() });
        for (work, own, others) in
            [(Work::Detector, "--conv direct", "products own"), (Work::LanguageModel, "--products own", "onvolution")]
        {
            let said = said(work);
            assert!(said.len() == 3 && said[0].contains(own), "{said:?}");
            assert!(!said.concat().contains(others), "{said:?}");
        }
    }

    #[test]
    fn direct_convolutions_are_not_tried_on_rdna1() {
        let card = |name: &str, vendor| Adapter { name: name.into(), id: (vendor, 0), ..adapter(0, AdapterKind::Discrete, None) };
        let (amd, nvidia) = (0x1002, 0x10de);
        let named = [
            "AMD Radeon RX 5600 XT (RADV NAVI10)",
            "AMD Radeon RX 5500 XT",
            "Radeon RX 5700",
            "AMD Radeon Pro W5700",
            "AMD BC-250 (RADV GFX1013)",
        ];
        for name in named {
            // By its name, whatever else is in the machine.
            for gfx in [&[][..], &[100_100], &[100_306, 100_100], &[110_000]] {
                let reason = direct_convolutions(&card(name, amd), gfx).unwrap();
                assert!(reason.starts_with(name) && reason.ends_with("(known issue)"), "{reason}");
            }
        }
        // A driver that gives no name: the topology tells if there is no choice.
        assert!(direct_convolutions(&card("AMD Radeon Graphics", amd), &[100_100]).is_some());
        assert!(direct_convolutions(&card("AMD Radeon Graphics", amd), &[100_102, 100_100]).is_some());
        let nameless = Adapter { backend: Backend::Rocm, ..card("rocm device 0", 0) };
        assert!(direct_convolutions(&nameless, &[100_101]).is_some());
        for (card, gfx) in [
            (card("AMD Radeon Graphics", amd), &[100_306, 100_100][..]),
            (card("AMD Radeon Graphics", amd), &[]),
            (card("AMD Radeon RX 6600 (RADV NAVI23)", amd), &[100_302]),
            (card("NVIDIA GeForce RTX 3060", nvidia), &[100_100]),
            (card("NVIDIA RTX 5000 Ada Generation", nvidia), &[]),
            (Adapter { kind: AdapterKind::Software, ..card("llvmpipe (LLVM 15.0.6)", amd) }, &[100_100]),
        ] {
            assert_eq!(direct_convolutions(&card, gfx), None);
        }
    }

    #[test]
    fn rdna2_is_told_of_the_override() {
        assert!(sentences(&facts(100_301, &[]))[0].starts_with("gfx1031 with ROCm: CubeCL asks for HSA_OVERRIDE_GFX_VERSION=10.3.0"));
        assert!(sentences(&facts(100_302, &[(OVERRIDE, "10.3.0")]))[0].contains("gfx1032 is run as 10.3.0"));
        assert_eq!(sentences(&facts(100_300, &[])), Vec::<String>::new());
        assert_eq!(sentences(&Facts { rocm: false, ..facts(100_301, &[]) }), Vec::<String>::new());
    }

    #[test]
    fn reports_of_single_cards_are_told_of_those_cards_alone() {
        let last = |facts: &Facts| sentences(facts).pop().unwrap_or_default();
        assert!(last(&facts(100_302, &[(OVERRIDE, "10.3.0")])).contains("bf16"));
        assert!(!last(&facts(100_301, &[(OVERRIDE, "10.3.0")])).contains("bf16"));
        let with = |gfx, version: &str| sentences(&Facts { rocm_version: Some(version.into()), ..facts(gfx, &[]) }).concat();
        assert!(with(100_300, "7.1.1-38").contains("comgr") && !with(100_300, "6.3.1").contains("comgr"));
        assert!(!with(110_000, "7.1.1").contains("comgr"));
        assert!(last(&facts(120_001, &[])).contains("hipBLASLt"));
        let two = Facts { gfx: vec![110_000, 110_000], ..facts(110_000, &[]) };
        assert!(sentences(&two).len() == 1 && last(&two).starts_with("several AMD GPUs"));
        let of_cuda = |name: &str, work| last(&Facts { names: vec![name.into()], cuda: true, work, ..Facts::default() });
        assert!(of_cuda("NVIDIA GeForce RTX 3060", Work::Detector).contains("`--conv direct`"));
        assert_eq!(of_cuda("NVIDIA GeForce RTX 3060", Work::LanguageModel) + &of_cuda("Intel Arc", Work::Detector), "");
        for version in [110_500, 120_000] {
            assert!(last(&facts(version, &[])).contains("test machines"));
        }
        assert_eq!(sentences(&Facts { rocm: false, ..facts(120_001, &[]) }), Vec::<String>::new());
        let named = |name: &str| sentences(&Facts { names: vec![name.into()], ..Facts::default() });
        assert!(named("AMD Radeon 8060S Graphics")[0].contains("`auto` times both"));
        assert!(named("AMD Radeon(TM) 860M Graphics")[0].contains("opens the adapter"));
        assert!(named("AMD Radeon 860M (RADV GFX1152)").iter().all(|said| said.starts_with("RADV")));
        assert!(named("AMD Radeon 680M (RADV REMBRANDT)")[0].contains("`auto` times both"));
        let of_words = |name: &str| sentences(&Facts { names: vec![name.into()], work: Work::LanguageModel, ..Facts::default() });
        assert!(of_words("NVIDIA GeForce RTX 4090")[0].contains("frozen") && named("NVIDIA GeForce RTX 4090").is_empty());
        let m1 = of_words("Apple M1 Max");
        assert!(m1.len() == 2 && m1[1].contains("explode") && of_words("Apple M3").len() == 1, "{m1:?}");
        for xe3 in ["Intel(R) Arc(tm) B390 Graphics (PTL)", "Intel(R) Graphics (WCL)"] {
            assert!(named(xe3)[0].contains("Xe3"), "{xe3}");
        }
        // Its predecessor's units are right.
        assert_eq!(named("Intel(R) Arc(tm) B580 Graphics (BMG G21)"), Vec::<String>::new());
        let both = named("Radeon 8060S Graphics (RADV GFX1151)");
        assert!(both.len() == 2 && both[1].contains("544 bytes"), "{both:?}");
    }

    #[test]
    fn settings_and_permissions_are_judged() {
        assert!(sentences(&facts(0, &[("MIOPEN_DEBUG_CONV_GEMM", "0")]))[0].starts_with("MIOPEN_DEBUG_CONV_GEMM: ignored"));
        assert!(sentences(&Facts { kfd: Kfd::Denied, ..Facts::default() })[0].contains("usermod -aG render,video"));
        assert!(sentences(&Facts { kfd: Kfd::Missing, rocm: true, ..Facts::default() })[0].contains("modprobe amdgpu"));
        assert!(sentences(&Facts { gpu_reset: true, ..Facts::default() })[0].contains("reboot"));
        assert!(sentences(&Facts { names: vec!["llvmpipe (LLVM 15.0.6)".into()], ..Facts::default() })[0].contains("software Vulkan"));
        assert!(sentences(&Facts { names: vec!["SwiftShader Device".into()], ..Facts::default() })[0].contains("explicit_layout"));
        let version = |found: &str| sentences(&Facts { rocm_version: Some(found.into()), ..facts(110_000, &[]) });
        assert!(version("6.2.2-116")[0].contains("built for HIP 7.14, found ROCm 6.2.2-116"));
        assert_eq!(version(&format!("{LINKED_HIP}.1")), Vec::<String>::new());
        assert_eq!(version("7.140").len(), 1);
    }

    #[test]
    fn crashes_are_translated_and_the_rest_is_kept() {
        let fault = "Memory access fault by GPU node-1 on address 0x7f. Reason: Page not present.";
        assert_eq!(crash_sentence(fault, "SIGABRT"), "the GPU touched memory it does not own (memory access fault); SIGABRT");
        assert!(crash_sentence("HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: ...", "x").contains("RDNA2"));
        assert!(crash_sentence("", "panicked: Device is lost").starts_with("the driver lost the device"));
        let short = "panicked: out of device memory allocating 4096 bytes";
        assert_eq!(crash_sentence("", short), format!("the GPU ran out of memory; {short}"));
        assert!(crash_sentence("VK_ERROR_OUT_OF_DEVICE_MEMORY", "x").starts_with("the GPU ran out of memory"));
        assert_eq!(crash_sentence("nothing of note", "the driver crashed (SIGSEGV)"), "the driver crashed (SIGSEGV)");
    }

    /// The number in the sentence is the one in the lock file.
    #[test]
    fn linked_hip_is_the_locked_one() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock")).unwrap();
        let after = lock.split_once("name = \"cubecl-hip-sys\"\nversion = \"").unwrap().1;
        assert!(after.starts_with(&format!("{LINKED_HIP}.")), "{}", &after[..20]);
    }
}
