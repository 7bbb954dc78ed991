//! What can be known about this machine without loading a driver: files under /sys, /proc, /dev and /opt, and the environment.
//!
//! Reads only. `/dev/kfd` is judged by its mode and our groups rather than opened, because opening it talks to the driver.

use crate::adapter::{Adapter, Backend};
use crate::options::Work;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Variables that change how GPU drivers behave, by prefix.
const PREFIXES: [&str; 19] = [
    "HSA_",
    "HIP_",
    "ROCR_",
    "ROCM_",
    "MIOPEN_",
    "CUDA_",
    "NVIDIA_",
    "VK_",
    "MESA_",
    "NIR_",
    "RADV_",
    "ACO_",
    "AMD_DEBUG",
    "AMD_VULKAN_",
    "ANV_",
    "INTEL_DEBUG",
    "NVK_",
    "CUBECL_",
    "BURN_",
];

/// Of these the ones that choose a driver or a card, which is then what it was; by the ends of their names.
const CHOOSERS: [&str; 4] = ["VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES", "VK_ICD_FILENAMES", "_VISIBLE_DEVICES"];

/// Where the kernel describes the GPUs that ROCm could use.
const TOPOLOGY: &str = "sys/class/kfd/kfd/topology/nodes";

/// Whether this process may use `/dev/kfd`, the door to ROCm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Kfd {
    /// The kernel's amdgpu driver is not loaded, or was not passed into this container.
    #[default]
    Missing,
    /// Neither owner, group nor mode let us in.
    Denied,
    /// We may.
    Usable,
}

/// What [`crate::known_issues`] judges by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Adapter names of all backends.
    pub(crate) names: Vec<String>,
    /// `gfx_target_version` of each AMD GPU, such as 100300 for gfx1030.
    pub(crate) gfx: Vec<u32>,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) kfd: Kfd,
    /// The first line of /opt/rocm/.info/version.
    pub(crate) rocm_version: Option<String>,
    /// The kernel's log tells of a GPU reset.
    pub(crate) gpu_reset: bool,
    /// Whether ROCm would be used: it is compiled in, or asked for.
    pub(crate) rocm: bool,
    /// The same of CUDA.
    pub(crate) cuda: bool,
    /// What a device is looked for.
    pub(crate) work: Work,
}

impl Facts {
    pub(crate) fn of_this_machine(adapters: &[Adapter]) -> Self {
        let variables =
            std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        let names = adapters.iter().map(|adapter| adapter.name.clone()).collect();
        let (rocm, cuda) = (Backend::Rocm.built(), Backend::Cuda.built());
        Self { names, gpu_reset: kernel_log_tells_of_a_reset(), rocm, cuda, ..Self::read(Path::new("/"), variables) }
    }

    fn read(root: &Path, variables: impl Iterator<Item = (String, String)>) -> Self {
        let version = fs::read_to_string(root.join("opt/rocm/.info/version")).ok();
        Self {
            gfx: gfx_versions(&root.join(TOPOLOGY)),
            variables: variables.filter(|(name, _)| is_of_drivers(name)).collect(),
            kfd: kfd_access(root),
            rocm_version: version.and_then(|text| Some(text.lines().next()?.trim().to_owned())),
            ..Self::default()
        }
    }

    /// RDNA1, by topology or by name.
    pub(crate) fn has_rdna1(&self) -> bool {
        self.gfx.iter().any(|version| is_rdna1(*version)) || self.names.iter().any(|name| names_rdna1(name))
    }
}

fn is_of_drivers(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether the same driver of the same card is another one under another value of this variable.
pub(crate) fn changes_drivers(name: &str) -> bool {
    is_of_drivers(name) && !CHOOSERS.iter().any(|end| name.ends_with(end))
}

/// gfx1010 to gfx1013, as a `gfx_target_version`.
pub(crate) fn is_rdna1(version: u32) -> bool {
    (100_100..100_200).contains(&version)
}

/// Whether an adapter's name is that of an RDNA1 card; Mesa adds the chip's name in brackets.
pub(crate) fn names_rdna1(name: &str) -> bool {
    const NAMES: [&str; 10] = ["RX 5300", "RX 5500", "RX 5600", "RX 5700", "W5500", "W5700", "NAVI10", "NAVI12", "NAVI14", "GFX101"];
    let name = name.to_uppercase();
    NAMES.iter().any(|card| name.contains(card))
}

/// `gfx_target_version` of each AMD GPU of this machine, as far as the kernel's ROCm driver tells.
pub(crate) fn gfx_of_this_machine() -> Vec<u32> {
    gfx_versions(&Path::new("/").join(TOPOLOGY))
}

/// The nodes' `gfx_target_version`; a CPU's node says 0.
fn gfx_versions(nodes: &Path) -> Vec<u32> {
    let Ok(folders) = fs::read_dir(nodes) else { return Vec::new() };
    let version = |folder: fs::DirEntry| {
        let text = fs::read_to_string(folder.path().join("properties")).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix("gfx_target_version "))?;
        value.trim().parse().ok().filter(|version| *version != 0)
    };
    let mut versions: Vec<u32> = folders.flatten().filter_map(version).collect();
    versions.sort_unstable();
    versions
}

#[cfg(unix)]
fn kfd_access(root: &Path) -> Kfd {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = fs::metadata(root.join("dev/kfd")) else { return Kfd::Missing };
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let numbers = |field: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    // The second number of Uid and Gid is the effective one.
    let effective = |field: &str| numbers(field).get(1).copied();
    let groups = [numbers("Groups:"), effective("Gid:").into_iter().collect()].concat();
    if may_write(meta.mode(), (meta.uid(), meta.gid()), effective("Uid:"), &groups) { Kfd::Usable } else { Kfd::Denied }
}

#[cfg(not(unix))]
fn kfd_access(_root: &Path) -> Kfd {
    Kfd::Missing
}

/// Unix permission to read and write: root always, else the first of owner, group and others that applies.
fn may_write(mode: u32, (owner, group): (u32, u32), uid: Option<u32>, groups: &[u32]) -> bool {
    match uid {
        Some(0) => true,
        Some(uid) if uid == owner => mode & 0o600 == 0o600,
        _ if groups.contains(&group) => mode & 0o060 == 0o060,
        _ => mode & 0o006 == 0o006,
    }
}

#[cfg(target_os = "linux")]
fn kernel_log_tells_of_a_reset() -> bool {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // Readable by root or where dmesg is unrestricted; each read gives one record, and EAGAIN after the last.
    let Ok(mut log) = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg") else { return false };
    let mut record = [0; 8192];
    for _ in 0..100_000 {
        match log.read(&mut record) {
            Ok(0) => return false,
            Ok(read) if is_reset(&String::from_utf8_lossy(&record[..read])) => return true,
            Ok(_) => {}
            // A record was overwritten while we read.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => return false,
        }
    }
    false
}

#[cfg(not(target_os = "linux"))]
fn kernel_log_tells_of_a_reset() -> bool {
    false
}

fn is_reset(record: &str) -> bool {
    let gpu = record.contains("amdgpu") || record.contains("drm") || record.contains("i915") || record.contains("xe ");
    gpu && (record.contains("device wedged") || record.contains("GPU reset begin") || record.contains("ring") && record.contains("timeout"))
}

/// The CPU's model and the threads of the machine.
pub(crate) fn machine() -> String {
    cpu_name(std::thread::available_parallelism().map_or(1, usize::from))
}

/// The CPU's model with so many threads.
pub(crate) fn cpu_name(threads: usize) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned()));
    let threads = if threads == 1 { "1 thread".into() } else { format!("{threads} threads") };
    format!("{}, {threads}", model.unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH)))
}

/// The model in what [`cpu_name`] says.
pub(crate) fn cpu_model(name: &str) -> &str {
    name.rsplit_once(", ").map_or(name, |(model, _)| model)
}

/// The instruction sets the CPU backend can make use of, by /proc/cpuinfo's names.
pub(crate) fn cpu_features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("avx", std::is_x86_feature_detected!("avx")),
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::is_x86_feature_detected!("avx512bw")),
        ("avx512_vnni", std::is_x86_feature_detected!("avx512vnni")),
        ("avx512_bf16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(target_arch = "aarch64")]
    let found = [("neon", true)];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(&str, bool); 0] = [];
    found.into_iter().filter_map(|(name, present)| present.then_some(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_read_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        for (node, version) in [("0", 0), ("1", 100_100)] {
            let folder = root.path().join("sys/class/kfd/kfd/topology/nodes").join(node);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("properties"), format!("cpu_cores_count 0\ngfx_target_version {version}\nvendor_id 4098\n")).unwrap();
        }
        fs::create_dir_all(root.path().join("opt/rocm/.info")).unwrap();
        fs::write(root.path().join("opt/rocm/.info/version"), "6.2.2-116\n").unwrap();
        let variables = [("HSA_OVERRIDE_GFX_VERSION", "10.3.0"), ("HOME", "/root"), ("VK_DRIVER_FILES", "x.json")];
        let facts = Facts::read(root.path(), variables.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        assert_eq!(facts.gfx, [100_100]);
        assert!(facts.has_rdna1());
        assert_eq!(facts.rocm_version.as_deref(), Some("6.2.2-116"));
        assert_eq!(facts.variables.keys().collect::<Vec<_>>(), ["HSA_OVERRIDE_GFX_VERSION", "VK_DRIVER_FILES"]);
        assert_eq!(facts.kfd, Kfd::Missing);
    }

    #[test]
    fn permissions_are_those_of_the_first_class_that_applies() {
        let (root, video) = (0, 44);
        assert!(may_write(0o660, (root, video), Some(0), &[]));
        assert!(may_write(0o660, (root, video), Some(1000), &[1000, video]));
        assert!(!may_write(0o660, (root, video), Some(1000), &[1000]));
        assert!(may_write(0o666, (root, video), Some(1000), &[]));
        assert!(!may_write(0o066, (1000, video), Some(1000), &[video]));
    }

    #[test]
    fn resets_are_read_from_the_kernel_log() {
        assert!(is_reset("3,1201,5;amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12"));
        assert!(is_reset("3,1,5;amdgpu 0000:03:00.0: [drm] device wedged, but recovered through reset"));
        assert!(!is_reset("6,1,5;amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng 0"));
        assert!(!is_reset("6,1,5;spi: ring timeout"));
    }
}
