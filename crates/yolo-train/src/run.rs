//! One training run from the command line: what of it is the detector's own. The rest is a [`Session`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bellows_cli::{
    Bar, Failure, Keeping, Resumed, Run, Session, Signals, Usage, card_memory, pick_device, quoted, ranks_of, resumed, say, unfit,
    yaml_layer,
};
use bellows_device::{Conv, ProbeOptions, Selected, Shape, Work, processor};
use bellows_kernels::{Lowering, cube};
use bellows_learner::Outcome;
use bellows_runs::run_of;
use bellows_settings::Layer;
use bellows_yolo::config::{BatchSize, MAY_CHANGE, OptimizerChoice, SETTINGS, TrainConfig};
use bellows_yolo::data::DataConfig;
use bellows_yolo::fit::settle as settle_memory;
use bellows_yolo::metrics::table_header;
use bellows_yolo::model::YoloConfig;
use bellows_yolo::{Progress, Training, TrainingData, WeightFile, network};
use serde_json::{Map, Value, json};

use crate::console::Console;
use crate::report::tell;

/// Settings that a dataset, which may be a stranger's file, cannot give itself: what is read, written and run where.
const NOT_FROM_DATA: [&str; 8] = ["data", "model", "pretrained", "allow_outside", "allow_bad", "project", "name", "exist_ok"];

/// What a run makes besides its weights and what a validation leaves.
const MADE: [&str; 4] = ["weights/best.pt", "results.png", "labels.jpg", "train_batch*.jpg"];

/// What a validation leaves, the one at the end of a run too; a `*` stands for anything.
pub(crate) const JUDGED: [&str; 9] = [
    "val.csv",
    "groups.csv",
    "stability.csv",
    "predictions.json",
    "report.html",
    "Box*_curve.png",
    "confusion_matrix*.png",
    "by_*.png",
    "val_batch*.jpg",
];

/// Classes of a network whose data are not given, as COCO has them.
pub(crate) const CLASSES: usize = 80;

/// A training run as typed.
pub(crate) struct TrainArgs {
    /// `--config FILE`.
    pub(crate) config: Option<PathBuf>,
    /// `--resume [RUN_DIR]`: `Some(None)` is the newest run.
    pub(crate) resume: Option<Option<PathBuf>>,
    /// burn-train's dashboard instead of lines.
    pub(crate) tui: bool,
    /// Do not use a cached verdict on the GPU.
    pub(crate) reprobe: bool,
    /// Time block sizes of the GPU's kernels.
    pub(crate) tune: bool,
    /// Outlive the terminal.
    pub(crate) background: bool,
    /// The flags.
    pub(crate) flags: Layer,
    /// The command line, for the run's records.
    pub(crate) typed: Vec<String>,
}

pub(crate) fn train(args: &TrainArgs, signals: &Signals) -> Result<(), Failure> {
    let mut session = Session::begin("yolo-train", signals, args.tui)?;
    let Settled { mut config, notes, resumed, ranks } = settle(args)?;
    if session.is_left_to_others(&Keeping::of(&config, args.background, ranks)?, resumed.as_deref(), &config.project)? {
        return Ok(());
    }
    say(&format!("Bellows {} · YOLOv8 · {}", env!("CARGO_PKG_VERSION"), config.data));
    notes.iter().for_each(|line| say(line));
    let device = device(&config, args.reprobe, args.tune)?;
    let memory = card_memory(&config.device, &device, session.local_ranks());
    let (data, batch) = open(&mut config, &device, memory, resumed.as_deref())?;
    data.lines.iter().chain(&batch).for_each(|line| say(line));

    let mut run = session.open(resumed.as_deref(), &config.project, &config.name, config.exist_ok)?;
    let mut training = Training::new(data, config, &device.device, memory, run.dir().clone(), resumed.as_deref())?;
    training.header().iter().for_each(|line| say(line));
    run.start(training.learner(), &device)?;
    run.record(&args.typed, SETTINGS, training.config(), &[&MADE[..], &JUDGED[..]].concat())?;
    let console = Console::new(training.config().imgsz);
    run.watch(training.learner(), &device, convolutions(&device), console);

    let report = training.run()?;
    if matches!(report.outcome, Outcome::Finished | Outcome::EarlyStopped) {
        say(&format!("\n{} epochs completed in {:.3} hours", report.epochs, report.elapsed_s / 3600.0));
    }
    let closed = if run.close(report.outcome) { close(&mut training, &run, &device) } else { Ok(()) };
    run.end(closed, training.learner().finish())
}

/// All settings of a run.
struct Settled {
    config: TrainConfig,
    /// What was asked for and is done in another way.
    notes: Vec<String>,
    /// The run directory, when one is resumed.
    resumed: Option<PathBuf>,
    /// Processes that train it.
    ranks: usize,
}

fn settle(args: &TrainArgs) -> Result<Settled, Failure> {
    let file = args.config.as_deref().map(yaml_layer).transpose()?;
    if let Some(which) = &args.resume {
        which.as_deref().map_or(Ok(()), of_this_program)?;
        let project = TrainConfig::default().project;
        let Resumed { dir, layers, ranks } = resumed(which.as_deref(), file, &args.flags, &project, &MAY_CHANGE, as_begun)?;
        let (config, notes) = TrainConfig::with_notes(&layers)?;
        let ranks = ranks_of(ranks.unwrap_or(config.ranks))?;
        return Ok(Settled { config, notes, resumed: Some(dir), ranks });
    }
    let data = [Some(&args.flags), file.as_ref()].into_iter().flatten().find_map(|l| l.values.get("data")?.as_str());
    let data = data.ok_or_else(|| Usage("--data FILE is required: a data.yaml that names the images and classes (see --help)".into()))?;
    let dataset = of_dataset(data, file.as_ref(), &args.flags)?;
    let layers: Vec<Layer> = [Some(dataset), file, Some(args.flags.clone())].into_iter().flatten().collect();
    let (mut config, notes) = TrainConfig::with_notes(&layers)?;
    // No rule of the settings themselves: a run that an older program began with more goes on.
    if !(0.0..=0.001).contains(&config.perspective) {
        return Err(Usage(format!("perspective {} is not between 0 and 0.001", config.perspective)).into());
    }
    config.ranks = ranks_of(config.ranks)?;
    Ok(Settled { ranks: config.ranks, config, notes, resumed: None })
}

/// All settings that `layers` come to; what is left to the program, as it is in the first, the run that goes on.
fn as_begun(layers: &[Layer]) -> Option<Value> {
    let begun = TrainConfig::from_layers(layers.get(..1)?).ok()?;
    let mut config = TrainConfig::from_layers(layers).ok()?;
    if config.optimizer == OptimizerChoice::Auto {
        config.optimizer = begun.optimizer;
    }
    if matches!(config.batch, BatchSize::Memory(_)) {
        config.batch = begun.batch;
    }
    serde_json::to_value(config).ok()
}

/// The data, once a run on them is within `memory_limit`, and what there is to say of its batch, which may be a share of `memory`, what this process has of a
/// card's. Images that are to be kept decoded are read after that.
fn open(
    config: &mut TrainConfig,
    device: &Selected,
    memory: Option<u64>,
    resumed: Option<&Path>,
) -> Result<(TrainingData, Option<String>), Failure> {
    let mut data = watched(say, |progress| TrainingData::find(config, progress))?;
    let batch = settle_memory(config, &data, &device.device, memory, resumed)?;
    watched(say, |progress| data.decode(config, progress))?;
    Ok((data, batch))
}

/// The settings that the data.yaml names for its data, of which `file` (`--config`) and `flags` say where it may lie.
pub(crate) fn of_dataset(data: &str, file: Option<&Layer>, flags: &Layer) -> Result<Layer, Failure> {
    let mut said: Vec<Layer> = file.into_iter().chain([flags]).cloned().collect();
    said.iter_mut().for_each(|layer| layer.values.retain(|key, _| key.replace('-', "_") == "allow_outside"));
    let allow_outside = TrainConfig::from_layers(&said)?.allow_outside.unwrap_or_default();
    let settings = DataConfig::load(Path::new(data), &allow_outside)?.settings;
    if let Some(key) = settings.keys().find(|key| NOT_FROM_DATA.contains(&key.replace('-', "_").as_str())) {
        return Err(Usage(format!("{data}: `{key}` is the user's to set; a dataset's settings may not")).into());
    }
    Ok(Layer { origin: format!("{data}, settings"), values: settings.into_iter().collect() })
}

/// Whether what is to be resumed is no run of Ultralytics, which writes its settings to a file of another name.
fn of_this_program(part: &Path) -> Result<(), Usage> {
    let run = run_of(part);
    if run.join("args.yaml").is_file() && !run.join("config.yaml").exists() {
        let (weights, run) = (quoted(&run.join("weights/last.pt")), run.display());
        let why = "its checkpoints lack what an exact resume needs; start from what they hold";
        return Err(Usage(format!("--resume: {run} is a run of Ultralytics: {why}, with --model {weights}")));
    }
    Ok(())
}

/// The device, and how this process computes convolutions on it: those of the run's network are proved.
pub(crate) fn device(config: &TrainConfig, reprobe: bool, tune: bool) -> Result<Selected, Failure> {
    device_for(config, [reprobe, tune], || shapes(config))
}

/// The same for what has these convolutions, which the processor needs no proof of.
fn device_for(config: &TrainConfig, [reprobe, tune]: [bool; 2], shapes: impl FnOnce() -> Vec<Shape>) -> Result<Selected, Failure> {
    let lowering = config.lowering().map_err(Usage)?;
    let work = if config.half() { Work::HalfDetector } else { Work::Detector };
    // The blocks of weight gradients follow from it.
    cube::set_workspace_mb(config.conv_workspace_mb);
    let shapes = if config.device == "cpu" { Vec::new() } else { shapes() };
    let options = ProbeOptions { reprobe, tune, shapes, lowering: Some(lowering), ..ProbeOptions::of(work) };
    let device = pick_device(&config.device, &options)?;
    if config.half() {
        has_half(&device).inspect_err(|_| unfit())?;
    }
    Ok(device)
}

/// Images that a batch is taken for which is still to be chosen: at 640 pixels no forward pass takes other blocks for more.
const MANY_IMAGES: usize = 64;

/// The convolutions of the run's network in its batches, each once. What is wrong with data or model is told by whoever opens them, and then nothing of the run is proved here.
fn shapes(config: &TrainConfig) -> Vec<Shape> {
    let data = DataConfig::load(Path::new(&config.data), config.allow_outside.as_deref().unwrap_or_default()).ok();
    let classes = if config.single_cls { 1 } else { data.as_ref().map_or(CLASSES, |data| data.names.len()) };
    let channels = if config.stack().is_on() { config.stack().channels() } else { data.map_or(3, |data| data.channels as usize) };
    let Ok(form) = network(config, classes, channels, &processor()) else { return Vec::new() };
    let images = if let BatchSize::Images(images) = config.batch { images } else { MANY_IMAGES };
    of_network(form, [config.imgsz; 2], images)
}

/// The convolutions of a network at this height and width in batches of so many images, each once.
fn of_network(form: YoloConfig, [height, width]: [usize; 2], images: usize) -> Vec<Shape> {
    let convolutions = form.summary(height, width, &processor()).convolutions;
    let distinct: BTreeSet<_> = convolutions.into_iter().collect();
    let shapes = distinct.into_iter().map(|c| {
        let conv = Conv { maps: c.maps, c_out: c.cout, kernel: c.k, stride: c.stride, input: c.input, normed: c.normed, images };
        Shape::Conv(conv.in_batch(images))
    });
    shapes.collect()
}

/// The device of a verb that uses weights, on images of this height and width, so many at a time.
pub(crate) fn device_to_use(config: &TrainConfig, weights: &WeightFile, sides: [usize; 2], images: usize) -> Result<Selected, Failure> {
    if config.half() {
        return Err(Usage("precision f16 is of training; weights are used in f32, or with bf16 factors".into()).into());
    }
    device_for(config, [false; 2], || of_network(weights.config(), sides, images))
}

/// Whether the device trains with images in f16.
pub(crate) fn has_half(device: &Selected) -> Result<(), Usage> {
    let why = if !device.is_accelerator() {
        "is for GPUs; a processor may have bf16"
    } else if !device.has_f16() {
        "is not what this device computes in"
    } else if device.lowering != Lowering::Gemm {
        "takes convolutions by matrix product, which have not proved themselves on this device"
    } else {
        return Ok(());
    };
    Err(Usage(format!("precision f16 {why} ({})", device.name)))
}

/// That, for the log.
fn convolutions(device: &Selected) -> Map<String, Value> {
    let fields = [("conv", json!(device.lowering.name())), ("conv_reason", json!(device.lowering_reason))];
    fields.map(|(key, value)| (key.to_string(), value)).into_iter().collect()
}

/// What `open` opens, with a bar for what it says of its progress.
pub(crate) fn watched<T, E: Into<Failure>>(tell: fn(&str), open: impl FnOnce(Progress<'_>) -> Result<T, E>) -> Result<T, Failure> {
    let bar = Mutex::new(Bar::new("", 0).through(tell));
    let opened = open(&|what, done, total| {
        bar.lock().unwrap_or_else(PoisonError::into_inner).set(what.to_string(), done as usize, total as usize);
    });
    bar.into_inner().unwrap_or_else(PoisonError::into_inner).finish("");
    opened.map_err(Into::into)
}

/// The device as a page tells of it.
pub(crate) fn machine(device: &Selected) -> Vec<(String, String)> {
    let mut rows =
        vec![("device".into(), format!("{} ({})", device.backend, device.name)), ("convolutions".into(), device.lowering.name().into())];
    rows.extend(device.fallback.iter().chain(&device.lowering_reason).map(|reason| ("because".into(), reason.clone())));
    rows.extend(device.memory.map(|bytes| ("memory".into(), format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)))));
    rows.push(("Bellows".into(), env!("CARGO_PKG_VERSION").into()));
    rows
}

/// The best weights are judged and drawn.
fn close(training: &mut Training, run: &Run, device: &Selected) -> Result<(), Failure> {
    let mut bar = Bar::new("validating ", 0);
    let best = training.judge_best(machine(device), &mut |done, total| bar.show(table_header, done, total))?;
    bar.finish("");
    if let Some(validation) = best {
        say(&format!("Best weights: {}", run.path().join("weights/best.safetensors").display()));
        tell(&validation, training.names(), say);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bellows_yolo::model::Scale;

    use super::*;

    #[test]
    fn the_stem_that_is_proved_has_the_channels_of_the_data() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = folder.path().join("data.yaml");
        let fewest = |channels: &str| {
            std::fs::write(&yaml, format!("train: t\nval: v\nnames: [a]\n{channels}")).unwrap();
            let config = TrainConfig { data: yaml.display().to_string(), imgsz: 64, ..TrainConfig::default() };
            let c_in = |shape: Shape| if let Shape::Conv(conv) = shape { Some(conv.maps[0]) } else { None };
            shapes(&config).into_iter().filter_map(c_in).min()
        };
        assert_eq!(["channels: 1\n", ""].map(fewest), [Some(1), Some(3)]);
    }

    /// Of weights nobody says a model: it is in their file.
    #[test]
    fn what_is_proved_for_weights_is_their_own_network() {
        let form = YoloConfig { scale: Scale::S, channels: 1, ..YoloConfig::new(4) };
        let convs = |shape: Shape| if let Shape::Conv(conv) = shape { Some(conv) } else { None };
        let proved: Vec<Conv> = of_network(form, [64, 96], 2).into_iter().filter_map(convs).collect();
        assert!(proved.iter().any(|conv| conv.maps[0] == 1 && conv.input == [64, 96]), "{proved:?}");
        let outputs: BTreeSet<usize> = proved.iter().map(|conv| conv.c_out).collect();
        assert!(outputs.contains(&512) && outputs.contains(&4) && !outputs.contains(&80), "{outputs:?}");
    }

    #[test]
    fn perspective_is_of_the_range_that_is_told_unless_a_run_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let yaml = folder.path().join("data.yaml");
        std::fs::write(&yaml, "train: t\nval: v\nnames: [a]\n").unwrap();
        let settled = |resume: Option<Option<PathBuf>>, flags: Value| {
            let flags = Layer { origin: "command line".into(), values: flags.as_object().cloned().unwrap() };
            let typed = Vec::new();
            let args = TrainArgs { config: None, resume, tui: false, reprobe: false, tune: false, background: false, flags, typed };
            settle(&args).map(|settled| settled.config.perspective).map_err(|error| error.to_string())
        };
        let new = |perspective: f64| settled(None, json!({ "data": yaml, "perspective": perspective }));
        assert_eq!([0.0, 0.001].map(new), [Ok(0.0), Ok(0.001)]);
        for bad in [0.0011, 0.5] {
            assert_eq!(new(bad), Err(format!("perspective {bad} is not between 0 and 0.001")));
        }
        let going_on = |perspective: &str| {
            std::fs::write(folder.path().join("config.yaml"), format!("data: d.yaml\nperspective: {perspective}\n")).unwrap();
            settled(Some(Some(folder.path().to_owned())), json!({}))
        };
        assert_eq!(going_on("0.002"), Ok(0.002));
        assert!(going_on("-0.1").is_err_and(|error| error.contains("perspective -0.1 is negative")));
    }
}
