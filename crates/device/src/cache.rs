//! Remembers verdicts in a JSON file under the user's cache directory.
//!
//! A verdict holds for one adapter, one driver, one processor (the adapter was timed beside it), one binary, one choice of what to prove, and one
//! setting of the variables that change how drivers behave; any change of these is a new key, so machines that share a home each have their own.
//! The file is a convenience: unreadable or unwritable, the probe simply runs again.

use crate::adapter::Adapter;
use crate::child::FAULT_VARIABLE;
use crate::facts::{changes_drivers, machine};
use crate::options::{ProbeOptions, Shape, Work};
use crate::plan::Plan;
use crate::program::this_program;
use crate::report::ProbeReport;
use bellows_runs::write_atomic;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::time::UNIX_EPOCH;
use std::{fs, io};

/// Goes up when reports change, or what is proved: what another format says is not read.
const FORMAT: u32 = 11;
/// Reports kept; the oldest binaries' go first.
const KEPT: usize = 32;

/// What a verdict holds for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Key {
    adapter: String,
    pci: String,
    id: (u32, u32),
    processor: String,
    binary: String,
    work: Work,
    plan: Plan,
    variables: BTreeMap<String, String>,
    shapes: Vec<Shape>,
}

impl Key {
    pub(crate) fn of(adapter: &Adapter, plan: &Plan, options: &ProbeOptions) -> Self {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        // Those that choose a card or a driver are not among them, for the key has both. The child's own are given after those that it inherits.
        let variables = env::vars_os().chain(options.env.iter().cloned()).map(|(name, value)| (text(name), text(value)));
        let variables = variables.filter(|(name, _)| changes_drivers(name) || name == FAULT_VARIABLE);
        Self {
            adapter: adapter.to_string(),
            pci: adapter.pci.clone(),
            id: adapter.id,
            processor: machine(),
            binary: binary_identity(options.exe.as_deref()),
            work: options.work,
            plan: plan.clone(),
            variables: variables.collect(),
            shapes: options.shapes.clone(),
        }
    }

    /// Whether what is remembered under this key answers for `asked`: what was proved of more shapes holds for some of them.
    fn covers(&self, asked: &Self) -> bool {
        asked.shapes.iter().all(|shape| self.shapes.contains(shape)) && self.differs_in_shapes_alone(asked)
    }

    /// Whether both are of one card in one machine.
    fn is_of_card(&self, other: &Self) -> bool {
        self.adapter == other.adapter && self.pci == other.pci && self.id == other.id && self.processor == other.processor
    }

    /// Whether all but the shapes are the same, and these may be.
    fn differs_in_shapes_alone(&self, other: &Self) -> bool {
        Self { shapes: other.shapes.clone(), ..self.clone() } == *other
    }
}

/// Version, length and time of change: a rebuilt binary is another one, and reading it whole would take longer than the probe.
fn binary_identity(exe: Option<&Path>) -> String {
    let exe = exe.map(Path::to_owned).or_else(|| this_program().ok());
    let stamp = exe.and_then(|exe| fs::metadata(exe).ok()).and_then(|meta| {
        let changed = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(format!("{} bytes, {}", meta.len(), changed.as_nanos()))
    });
    format!("{} {}", env!("CARGO_PKG_VERSION"), stamp.unwrap_or_default())
}

#[derive(Serialize, Deserialize)]
struct Entry {
    key: Key,
    report: ProbeReport,
}

#[derive(Serialize, Deserialize)]
struct Remembered {
    format: u32,
    entries: Vec<Entry>,
}

fn entries(file: &Path) -> Vec<Entry> {
    let found: Option<Remembered> = fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    found.filter(|found| found.format == FORMAT).map(|found| found.entries).unwrap_or_default()
}

pub(crate) fn load(file: &Path, key: &Key) -> Option<ProbeReport> {
    // The newest, should a wider one be older.
    let entry = entries(file).into_iter().rev().find(|entry| entry.key.covers(key))?;
    Some(ProbeReport { cached: true, ..entry.report })
}

/// Whether fastest sizes of blocks are remembered for what `key` is of, with whatever shapes: they were timed by classes.
pub(crate) fn has_sizes(file: &Path, key: &Key) -> bool {
    entries(file).iter().any(|entry| entry.key.differs_in_shapes_alone(key) && entry.report.tuned().next().is_some())
}

pub(crate) fn store(file: &Path, key: &Key, report: &ProbeReport) -> io::Result<()> {
    let mut all = entries(file);
    all.retain(|entry| !key.covers(&entry.key));
    all.push(Entry { key: key.clone(), report: report.clone() });
    let surplus = all.len().saturating_sub(KEPT);
    all.drain(..surplus);
    write(file, all)
}

/// Forgets what was found out about the card of `key`, whatever for: who asks again with other shapes, for other work or in another program is answered anew, too.
/// Fastest sizes of blocks took their time to find and stay, unless the card is left for what was found with them.
pub(crate) fn forget(file: &Path, key: &Key) -> io::Result<()> {
    let is_left = |report: &ProbeReport| !report.gemm.passed() || report.speed().is_some_and(|speed| speed.is_slower());
    let stays = |report: &ProbeReport| report.tuned().next().is_some() && !is_left(report);
    let mut all = entries(file);
    let before = all.len();
    all.retain(|entry| !entry.key.is_of_card(key) || stays(&entry.report));
    if all.len() < before { write(file, all) } else { Ok(()) }
}

fn write(file: &Path, entries: Vec<Entry>) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two trainings may start at once: a reader sees the file of one or of the other.
    write_atomic(file, &serde_json::to_vec_pretty(&Remembered { format: FORMAT, entries })?).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{AdapterKind, tests::adapter};
    use crate::maps::LinearMap;
    use crate::protocol::Stage;
    use crate::report::{Speed, Verdict, tests};

    fn report(adapter: &Adapter) -> ProbeReport {
        tests::report(adapter, Verdict::Pass, Verdict::Pass)
    }

    /// Of maps with so many outputs.
    fn shaped(card: &Adapter, outputs: &[usize]) -> Key {
        let map = |&out: &usize| Shape::Map(LinearMap { sizes: [out, 8], storage: None, rank: 4, rows: 64 });
        let shapes = outputs.iter().map(map).collect();
        Key::of(card, &Plan::default(), &ProbeOptions { shapes, ..ProbeOptions::default() })
    }

    #[test]
    fn sizes_are_those_of_a_card_and_not_of_shapes() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probe.json");
        let [card, other, failed] = [0, 1, 2].map(|index| adapter(index, AdapterKind::Discrete, None));
        let with = |card: &Adapter, sizes| {
            let mut report = report(card);
            report.gemm.tuned = Some(sizes);
            report
        };
        store(&file, &shaped(&card, &[8]), &with(&card, vec![("thin".into(), [16, 64, 4, 4])])).unwrap();
        store(&file, &shaped(&failed, &[8]), &with(&failed, Vec::new())).unwrap();
        let known = |card: &Adapter, outputs: &[usize]| has_sizes(&file, &shaped(card, outputs));
        assert!(known(&card, &[8]) && known(&card, &[24]) && known(&card, &[]));
        assert!(!known(&other, &[8]) && !known(&failed, &[8]));
    }

    #[test]
    fn a_card_that_is_asked_again_is_asked_for_everything() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probe.json");
        let [card, other] = [0, 1].map(|index| adapter(index, AdapterKind::Discrete, None));
        let skipped = || Verdict::Skipped { reason: "not tried".into() };
        let failed = tests::report(&card, Verdict::Fail { stage: Stage::Upload, reason: "hung".into() }, skipped());
        let of_words = Key::of(&card, &Plan::default(), &ProbeOptions::of(Work::LanguageModel));
        let mut tuned = tests::report(&card, Verdict::Pass, skipped());
        tuned.gemm.tuned = Some(vec![("thin".into(), [16, 64, 4, 4])]);
        store(&file, &shaped(&card, &[8]), &failed).unwrap();
        store(&file, &of_words, &tuned).unwrap();
        store(&file, &shaped(&other, &[8]), &report(&other)).unwrap();
        let known = || [shaped(&card, &[8]), of_words.clone(), shaped(&other, &[8])].map(|key| load(&file, &key).is_some());
        assert_eq!(known(), [true; 3]);
        forget(&file, &shaped(&card, &[])).unwrap();
        assert_eq!(known(), [false, true, true], "sizes stay, and other cards");
        tuned.gemm.speed = Some(Speed { adapter: 0.002, processor: 0.001, half: false });
        store(&file, &of_words, &tuned).unwrap();
        forget(&file, &shaped(&card, &[])).unwrap();
        assert_eq!(known(), [false, false, true], "a busy moment is no reason to leave it for good");
    }

    #[test]
    fn a_verdict_holds_for_its_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep").join("probe.json");
        let options = ProbeOptions::default();
        let card = adapter(0, AdapterKind::Discrete, None);
        let plan = Plan::default();
        let key = Key::of(&card, &plan, &options);
        assert_eq!(load(&file, &key), None);
        store(&file, &key, &report(&card)).unwrap();
        assert!(load(&file, &key).unwrap().cached);

        let newer = Adapter { driver: "test 1.1".into(), ..card.clone() };
        let other_binary = ProbeOptions { exe: Some(file.clone()), ..options.clone() };
        let overridden = ProbeOptions { env: vec![("HSA_OVERRIDE_GFX_VERSION".into(), "10.3.0".into())], ..options.clone() };
        let under =
            |name: &str| Key::of(&card, &plan, &ProbeOptions { env: vec![(name.into(), "set by a test".into())], ..options.clone() });
        let gemm_only = Plan { without_direct: Some("asked".into()), ..Plan::default() };
        let shaped = |shapes: &[usize]| shaped(&card, shapes);
        let changed = [
            shaped(&[8]),
            Key::of(&newer, &plan, &options),
            Key::of(&card, &plan, &other_binary),
            Key::of(&card, &plan, &overridden),
            under("RADV_DEBUG"),
            under("MESA_VK_ABORT_ON_DEVICE_LOSS"),
            under("NVK_DEBUG"),
            under("CUDA_LAUNCH_BLOCKING"),
            under("ROCR_DEBUG_AGENT"),
            Key::of(&card, &gemm_only, &options),
            Key::of(&card, &plan, &ProbeOptions::of(Work::LanguageModel)),
            Key { processor: "another".into(), ..key.clone() },
        ];
        for changed in changed {
            assert_eq!(load(&file, &changed), None);
        }
        for chooser in ["VK_DRIVER_FILES", "VK_ADD_DRIVER_FILES", "VK_ICD_FILENAMES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"] {
            assert!(load(&file, &under(chooser)).is_some(), "the card is what it was: {chooser}");
        }
        // What was proved of more shapes holds for some.
        store(&file, &shaped(&[8, 16]), &report(&card)).unwrap();
        for shapes in [&[][..], &[8], &[16, 8]] {
            assert!(load(&file, &shaped(shapes)).is_some(), "{shapes:?}");
        }
        assert_eq!(load(&file, &shaped(&[8, 24])), None);
        assert_eq!(entries(&file).len(), 1, "the verdict on fewer shapes is in that on more");
        let worse = tests::report(&card, Verdict::Pass, Verdict::Skipped { reason: "newer".into() });
        store(&file, &key, &worse).unwrap();
        assert_eq!(load(&file, &key).unwrap().direct, worse.direct);

        let older = fs::read_to_string(&file).unwrap().replacen(&format!("\"format\": {FORMAT}"), "\"format\": 1", 1);
        fs::write(&file, older).unwrap();
        assert_eq!(load(&file, &key), None);
    }

    #[test]
    fn a_damaged_file_is_an_empty_one_and_old_verdicts_go() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("probe.json");
        fs::write(&file, "{ not json").unwrap();
        let options = ProbeOptions::default();
        for index in 0..=KEPT {
            let card = adapter(index, AdapterKind::Discrete, None);
            store(&file, &Key::of(&card, &Plan::default(), &options), &report(&card)).unwrap();
        }
        let find = |index| load(&file, &Key::of(&adapter(index, AdapterKind::Discrete, None), &Plan::default(), &options));
        assert!(find(0).is_none() && find(1).is_some() && find(KEPT).is_some());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
