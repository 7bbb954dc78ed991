//! What a card is doing while it trains: memory in use, temperature, power.
//!
//! amdgpu publishes them as files under /sys; for NVIDIA there is the program nvidia-smi. Both can take long on a sick driver, so a thread
//! of its own asks, again and again, and whoever wants to know gets the last answer at once.

use crate::select::Selected;
use crate::smi;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Between two questions.
const EVERY: Duration = Duration::from_secs(3);
/// What nvidia-smi is given to answer; a first call without its daemon takes a second or two.
const PATIENCE: Duration = Duration::from_secs(10);

/// The state of a card, as far as it can be known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reading {
    /// Bytes of its memory in use, by all programs.
    pub memory: Option<u64>,
    /// °C.
    pub temperature: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
}

impl Reading {
    /// What is known, as name, value and text: `("gpu/temperature_c", 64.0, "64°C")`.
    pub fn gauges(&self) -> Vec<(&'static str, f64, String)> {
        let memory = self.memory.map(|bytes| bytes as f64 / 1e9).map(|g| ("gpu/memory_gb", g, format!("GPU {g:.2}G")));
        let temperature = self.temperature.map(|c| ("gpu/temperature_c", c, format!("{c:.0}°C")));
        let power = self.power.map(|w| ("gpu/power_w", w, format!("{w:.0}W")));
        [memory, temperature, power].into_iter().flatten().collect()
    }
}

/// Asks a card how it is, for as long as this lives.
#[derive(Debug, Clone)]
pub struct Telemetry(Arc<Mutex<Reading>>);

impl Telemetry {
    /// Starts asking. Of the CPU, and of a card that tells nothing, nothing is ever known.
    pub fn start(device: &Selected) -> Self {
        Self::every(device, EVERY)
    }

    /// The same, with so long between two questions: for who watches for seconds only.
    pub fn every(device: &Selected, every: Duration) -> Self {
        match device.pci.clone() {
            Some(pci) => Self::of(move || Source::find(Path::new("/"), &pci, OsStr::new(smi::PROGRAM)), every),
            None => Self(Arc::default()),
        }
    }

    /// The last answer, at once.
    pub fn latest(&self) -> Reading {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(find: impl FnOnce() -> Option<Source> + Send + 'static, every: Duration) -> Self {
        let telemetry = Self(Arc::default());
        let shared = Arc::downgrade(&telemetry.0);
        thread::spawn(move || {
            let Some(source) = find() else { return };
            loop {
                let reading = source.read();
                let Some(latest) = shared.upgrade() else { return };
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = reading.unwrap_or_default();
                // What does not answer once is not asked again: nvidia-smi would hang in the driver, and so would the next one.
                if reading.is_none() {
                    return;
                }
                drop(latest);
                thread::sleep(every);
            }
        });
        telemetry
    }
}

/// Where readings come from.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// The files of a PCI device and of its sensors.
    Files { device: PathBuf, sensors: Option<PathBuf> },
    /// nvidia-smi, and the card it is asked about.
    Smi { program: PathBuf, pci: String },
}

impl Source {
    fn find(root: &Path, pci: &str, smi: &OsStr) -> Option<Self> {
        let device = root.join("sys/bus/pci/devices").join(pci);
        let vendor = fs::read_to_string(device.join("vendor")).unwrap_or_default();
        if vendor.trim() == smi::VENDOR {
            return Some(Self::Smi { program: smi.into(), pci: pci.into() });
        }
        let sensors = fs::read_dir(device.join("hwmon")).ok().and_then(|mut folders| folders.next()?.ok()).map(|folder| folder.path());
        let files = Self::Files { device, sensors };
        files.read().filter(|reading| *reading != Reading::default()).map(|_| files)
    }

    /// `None` when the source does not answer at all.
    fn read(&self) -> Option<Reading> {
        match self {
            Self::Files { device, sensors } => {
                let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
                let sensor = |name: &str| number(sensors.as_ref()?.join(name));
                // Newer chips have the momentary power only.
                let microwatts = sensor("power1_average").or_else(|| sensor("power1_input"));
                Some(Reading {
                    memory: number(device.join("mem_info_vram_used")),
                    temperature: sensor("temp1_input").map(|millidegrees| millidegrees as f64 / 1e3),
                    power: microwatts.map(|microwatts| microwatts as f64 / 1e6),
                })
            }
            Self::Smi { program, pci } => parse_smi(&smi::ask(program, "memory.used,temperature.gpu,power.draw", Some(pci), PATIENCE)?),
        }
    }
}

/// The line of nvidia-smi: MiB, °C, watts. More than one is of more than the card that was asked about, and nobody knows which is which.
fn parse_smi(text: &str) -> Option<Reading> {
    let mut lines = text.lines();
    let mut values = lines.next().filter(|_| lines.next().is_none())?.split(',').map(smi::number);
    let (memory, temperature, power) = (values.next()?, values.next()?, values.next()?);
    Some(Reading { memory: memory.map(smi::bytes), temperature, power })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCI: &str = "0000:03:00.0";

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join("sys/bus/pci/devices").join(PCI).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn amdgpus_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let find = || Source::find(dir.path(), PCI, OsStr::new("/no/nvidia-smi"));
        assert_eq!(find(), None);
        write(dir.path(), "vendor", "0x1002\n");
        write(dir.path(), "mem_info_vram_used", "3221225472\n");
        assert_eq!(find().unwrap().read(), Some(Reading { memory: Some(3 << 30), temperature: None, power: None }));
        write(dir.path(), "hwmon/hwmon4/temp1_input", "64000\n");
        write(dir.path(), "hwmon/hwmon4/power1_input", "181000000\n");
        let source = find();
        let telemetry = Telemetry::of(move || source, Duration::from_millis(5));
        let wait = |until: &dyn Fn(Reading) -> bool| {
            (0..2000).any(|_| {
                until(telemetry.latest()) || {
                    thread::sleep(Duration::from_millis(5));
                    false
                }
            })
        };
        assert!(wait(&|r| r == Reading { memory: Some(3 << 30), temperature: Some(64.0), power: Some(181.0) }));
        let texts: Vec<_> = telemetry.latest().gauges().into_iter().map(|(_, _, text)| text).collect();
        assert_eq!(texts, ["GPU 3.22G", "64°C", "181W"]);
        write(dir.path(), "hwmon/hwmon4/power1_average", "90500000\n");
        assert!(wait(&|r| r.power == Some(90.5)), "the average is preferred, and readings go on");
    }

    #[test]
    #[cfg(unix)]
    fn nvidia_smi_is_asked_about_the_card() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "vendor", "0x10de\n");
        let program = dir.path().join("nvidia-smi");
        let script = |body: &str| smi::tests::script(&program, body);
        let find = || Source::find(dir.path(), PCI, program.as_os_str());
        script(&format!("case \"$*\" in *noheader,nounits*--id={PCI}*) echo '1234, 57, [N/A]';; *) exit 6;; esac"));
        let read = find().unwrap().read();
        assert_eq!(read, Some(Reading { memory: Some(1234 << 20), temperature: Some(57.0), power: None }));
        script("echo 'No devices were found'; exit 6");
        assert_eq!(find().unwrap().read(), None);
    }

    #[test]
    fn a_line_of_nvidia_smi_is_of_one_card() {
        let of = |memory, temperature, power| Some(Reading { memory, temperature, power });
        assert_eq!(parse_smi("1234, 57, 181.25\n"), of(Some(1234 << 20), Some(57.0), Some(181.25)));
        assert_eq!(parse_smi("[N/A], [Not Supported], 181.25\n"), of(None, None, Some(181.25)));
        assert_eq!(parse_smi("1234, 57, 181.25\n8, 30, 9.5\n"), None, "of which card?");
        assert_eq!([parse_smi(""), parse_smi("1234, 57")], [None; 2]);
    }
}
