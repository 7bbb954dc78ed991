//! A detection training run put together: data, model, Learner, closing validation and pictures.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bellows_exit::{Coded, Exit};
use bellows_kernels::set_keeps;
use bellows_learner::memory::Place;
use bellows_learner::{EvalContext, Identity, Interrupted, LearnError, Learner, Outcome, Role, RunFile, Shared, TaskError};
use bellows_runs::{RunDir, RunDirError};
use bellows_settings::SettingsError;
use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use serde_json::{Map, Value};

use crate::boxes::Label;
use crate::checkpoint::{Misfit, WeightFile};
use crate::config::{MAY_CHANGE, TrainConfig, refuse};
use crate::data::sampler::{ends, epoch_length};
use crate::data::stages::Stages;
use crate::data::{DataError, Item};
use crate::export::{About, iso_date, to_pt};
use crate::fit::{FitError, keeps, settle, warning};
use crate::in_code::{checked, of_files};
use crate::model::{Yolo, YoloConfig};
use crate::page::Page;
use crate::pictures;
use crate::predict::PredictError;
use crate::predictions::Predictions;
use crate::preprocessing::Preprocessing;
use crate::rect::Rect;
use crate::source::{self, Start, TrainingData};
use crate::task::{DetectionTask, LossFactor, Told};
use crate::validate::{ValSet, Validation, validate};
use crate::verdict::Verdict;

/// Why training could not start or end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Settings.
    #[error(transparent)]
    Config(#[from] SettingsError),
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The Learner.
    #[error(transparent)]
    Learn(#[from] LearnError),
    /// Weights to start from.
    #[error(transparent)]
    Weights(#[from] Misfit),
    /// Memory.
    #[error(transparent)]
    Memory(#[from] FitError),
    /// Data that were found and not decoded, though `cache` asks for that.
    #[error("cache keeps decoded images, and these are not decoded: TrainingData::decode comes before Training::new")]
    Undecoded,
    /// The closing validation.
    #[error("validating the best weights")]
    Validation(#[source] TaskError),
}

impl Coded for TrainError {
    fn exit(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit(),
            Self::Data(error) => error.exit(),
            Self::RunDir(error) => error.exit(),
            Self::Learn(error) => error.exit(),
            Self::Weights(error) => error.exit(),
            Self::Memory(error) => error.exit(),
            // The device may fail. Images that the run has read before may be there again in a minute: a supervisor tries once more.
            Self::Validation(error) => {
                let learner = error.downcast_ref::<LearnError>().map(Coded::exit);
                let tiles = error.downcast_ref::<PredictError>().map(Coded::exit);
                learner.or(tiles).unwrap_or(Exit::Failed)
            }
            Self::Undecoded => Exit::Failed,
        }
    }
}

/// How a run ended.
pub struct Report {
    /// Why it ended.
    pub outcome: Outcome,
    /// Epochs done, over all sessions.
    pub epochs: usize,
    /// Seconds spent training, over all sessions.
    pub elapsed_s: f64,
}

/// A training run, ready to go.
pub struct Training {
    learner: Learner<DetectionTask>,
    config: TrainConfig,
    train: Arc<dyn Dataset<Item>>,
    val: ValSet,
    names: Vec<String>,
    labels: Vec<Label>,
    device: Device,
    header: Vec<String>,
    form: YoloConfig,
    license: Option<String>,
}

impl Training {
    /// Builds the model (from scratch or from a file), resolves `batch: -1` and `optimizer: auto`, and prepares the run in `dir`.
    /// `memory` is the device's, in bytes, where known (of ranks that share a card, a rank's share); `resumed` the directory of a run that [`Learner::resume`] will go on with, as every rank knows it.
    ///
    /// How convolutions are computed is the process's: `conv` and `precision` bf16 say it to whoever chooses a device, as `ProbeOptions { lowering: Some(config.lowering()?), .. }`
    /// of `bellows_device`, and hold once what was chosen is adopted (`Selected::adopt`). So is what is kept for backward passes (`gradient_checkpointing`), which
    /// is settled here.
    ///
    /// # Errors
    /// Settings that break a rule ([`TrainConfig::validate`]: `imgsz`, too, is rounded where settings are read and not here), f16 on a processor, settings that are of files with data defined in code. Weights that do not fit, a run directory that cannot be used, data that were not decoded, or more memory than `memory_limit`, before anything is built.
    pub fn new(
        data: TrainingData,
        mut config: TrainConfig,
        device: &Device,
        memory: Option<u64>,
        dir: RunDir,
        resumed: Option<&Path>,
    ) -> Result<Self, TrainError> {
        config.validate().map_err(refuse)?;
        if config.half() && Place::of(device) == Place::Processor {
            return Err(refuse("precision f16 is for GPUs; a processor may have bf16".into()).into());
        }
        let in_code = data.in_code;
        if let Some(reason) = of_files(&config, &data.weights).filter(|_| in_code) {
            return Err(refuse(reason).into());
        }
        if data.is_to_be_decoded(&config) {
            return Err(TrainError::Undecoded);
        }
        let settled = settle(&mut config, &data, device, memory, resumed)?;
        let (kept, of_kept) = keeps(&config, &data, device, memory, resumed)?;
        set_keeps(kept);
        let said = settled.into_iter().chain(of_kept).chain(warning(&config, &data, device, memory, resumed)?);
        let TrainingData { train, train_sizes, val, names, channels, weights, labels, range, fingerprint, folders, order, shards, .. } =
            data;
        // What was measured is from here on a setting: it is recorded, and judged by and resumed with.
        config.range = range.map(Vec::from).or(config.range);
        let nc = names.len();
        let guard = |set: Arc<dyn Dataset<Item>>| if in_code { checked(set, nc, channels) } else { set };
        let val = val.through(guard);
        let Start { model, form, header, license } = source::model(&config, nc, channels, resumed, &device.clone().autodiff())?;
        let mut header = header;
        header.extend(said);
        let each_epoch = config.sampler.as_ref().map_or(train.len(), |sampler| epoch_length(train.len(), sampler));
        if each_epoch != train.len() {
            header.push(format!("sampler: an epoch has {each_epoch} of {} images", train.len()));
        }
        config.resolve_optimizer(each_epoch, nc);
        header.push(optimizer_line(&config, &model));
        header.extend(if resumed.is_none() { config.fewer_updates() } else { None });
        header.push(format!("Image sizes {0} train, {0} val; {1} data workers", config.imgsz, config.workers));
        let rect = match (config.rect, train_sizes) {
            (false, _) => None,
            (true, known) => {
                let sizes = if known.is_empty() { ValSet::new(train.clone()).map_err(TrainError::Validation)?.sizes } else { known };
                Some(Rect::new(sizes, config.batch.images(), config.ranks, config.imgsz as u32))
            }
        };
        // Not before the rectangles: an item that cannot be used has a size all the same.
        let train = guard(train);
        let task = DetectionTask {
            stages: Stages::default(),
            told: Told::default(),
            scale: LossFactor::default(),
            rect,
            weight_sums: ends(&weights),
            shards,
            config: config.clone(),
            names: names.clone(),
            channels,
            license: license.clone(),
            groupings: val.groupings(config.group_by.as_deref().unwrap_or_default())?,
            val: val.clone(),
            pictures: config.plots,
        };
        // What the file says that a run began with is in no setting.
        let identity = identity(&config, [&fingerprint, &folders, &order]).with("network", format!("{form:?}"));
        let mut learner = Learner::new(task, model, device, config.learner()?, dir, identity)?;
        if config.tensorboard {
            learner.tensorboard();
        }
        Ok(Self { learner, config, train, val, names, labels, device: device.clone(), header, form, license })
    }

    /// The Learner: resume, observers, metrics, a stop flag.
    pub fn learner(&mut self) -> &mut Learner<DetectionTask> {
        &mut self.learner
    }

    /// The settings with `auto` resolved.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Class names by index.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Model summary, transferred weights, optimizer: one line each.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Trains. What is left to do then is [`judge_best`](Self::judge_best), and last [`Learner::finish`], which tells what could not be written.
    ///
    /// # Errors
    /// See [`TrainError`].
    pub fn run(&mut self) -> Result<Report, TrainError> {
        // Millions of them, for one picture.
        let labels = std::mem::take(&mut self.labels);
        if self.config.plots && !labels.is_empty() {
            self.keep(pictures::labels(&labels, &self.names).map(|file| vec![file]));
        }
        drop(labels);
        let outcome = self.learner.fit(&*self.train)?;
        let counters = &self.learner.state().counters;
        Ok(Report { outcome, epochs: counters.epoch, elapsed_s: counters.elapsed_s })
    }

    /// Files that the run keeps; a picture that cannot be drawn costs a warning.
    fn keep<E: std::fmt::Display>(&mut self, files: Result<Vec<RunFile>, E>) {
        match files {
            Ok(files) => files.into_iter().for_each(|file| self.learner.write(file)),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Validates the best weights of a run, draws the pictures and makes the page of it, on which `machine` is told; `progress` gets (done, total)
    /// images. `None` when the Learner is stopped before it is done: it can be done again.
    ///
    /// # Errors
    /// See [`TrainError`].
    pub fn judge_best(
        &mut self,
        machine: Vec<(String, String)>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Validation>, TrainError> {
        let path = self.learner.dir().weights().join("best.safetensors");
        let device = self.device.clone().without_autodiff();
        let model = WeightFile::read(&path)?.exactly(self.learner.ema_model())?;
        let interrupted = || self.learner.is_stopped();
        let mut context = EvalContext {
            device: &device,
            workers: self.config.workers,
            epoch: 0,
            progress,
            interrupted: &interrupted,
            shared: &Shared::alone(),
        };
        let mut set = self.val.clone();
        if self.config.save_json {
            set = set.keeping_detections();
        }
        let validation = match validate(&model.fuse(&device), &set, &self.config, &mut context) {
            Err(error) if error.is::<Interrupted>() => return Ok(None),
            judged => judged.map_err(TrainError::Validation)?,
        };
        validation.unreadable.iter().for_each(|unreadable| tracing::warn!("left out of the validation: {unreadable}"));
        if self.config.save_pt {
            let about = self.about();
            self.keep(to_pt(&model, &about, false).map(|bytes| vec![RunFile { path: "weights/best.pt".into(), bytes }]));
        }
        self.keep(Verdict::new(&validation, &self.names).files());
        if self.config.save_json {
            let predictions = Predictions { set: &set, validation: &validation, single_cls: self.config.single_cls };
            predictions.shared_ids().iter().for_each(|line| tracing::warn!("{line}"));
            let json = serde_json::to_vec(&predictions);
            self.keep(json.map(|bytes| vec![RunFile { path: "predictions.json".into(), bytes }]));
        }
        if self.config.plots {
            self.keep(Verdict::new(&validation, &self.names).pictures());
            match std::fs::read_to_string(self.learner.dir().results()) {
                Ok(csv) => {
                    self.keep(pictures::results(&csv).map(|file| vec![file]));
                    let page = self.page(&validation, &csv, machine);
                    self.keep(page.map(|file| vec![file]));
                }
                Err(error) => tracing::warn!("results.csv: {error}"),
            }
        }
        Ok(Some(validation))
    }

    /// What `best.pt` says beside its tensors.
    fn about(&self) -> About {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        About {
            config: self.form,
            names: self.names.clone(),
            imgsz: self.config.imgsz,
            date: iso_date(seconds),
            license: self.license.clone(),
            settings: named(&self.config),
            preprocessing: Preprocessing::of(&self.config),
        }
    }

    /// `report.html`.
    fn page(&self, validation: &Validation, history: &str, machine: Vec<(String, String)>) -> Result<RunFile, TaskError> {
        let dir = self.learner.dir().path();
        let batches = (0..3).map(|i| format!("train_batch{i}.jpg")).chain((0..3).map(|i| format!("train_batch_closed{i}.jpg")));
        let samples: Vec<_> = batches.filter_map(|name| Some((name.clone(), std::fs::read(dir.join(&name)).ok()?))).collect();
        let facts = [("Machine", machine), ("Settings", settings(&self.config))];
        let title = format!("{}: YOLOv8 on {}", dir.display(), self.config.data);
        let (set, names, history) = (&self.val, &self.names[..], Some(history));
        Page { title: &title, facts: &facts, history, validation, set, names, samples: &samples }.file()
    }
}

/// Every setting as it would be written.
fn settings(config: &TrainConfig) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    named(config).iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// Every setting under the name that users know: `box`, which is a word of Rust's.
fn named(config: &TrainConfig) -> Map<String, Value> {
    let all = serde_json::to_value(config).unwrap_or_default();
    all.as_object().into_iter().flatten().map(|(key, value)| (key.trim_end_matches('_').to_string(), value.clone())).collect()
}

/// Settings that change what a run computes, and the data: a checkpoint must agree on them.
fn identity(config: &TrainConfig, [data, folders, order]: [&str; 3]) -> Identity {
    let may_change = [&MAY_CHANGE[..], &["project", "name", "exist_ok"]].concat();
    let identity = Identity::of(config, &may_change).with("data", data).with("layout of the data", folders);
    identity.with("order or grouping of the data", order)
}

/// As detector users know it: `optimizer: SGD(lr=0.01, momentum=0.9) with parameter groups ...`.
fn optimizer_line(config: &TrainConfig, model: &Yolo) -> String {
    let layout =
        bellows_learner::Layout::of(&model.clone().train(), |name| Role::Trained(crate::model::summary::param_group(name) as usize));
    let count = |group| layout.entries.iter().filter(|e| e.group == Some(group)).count();
    let [bias, decay, no_decay] = [0, 1, 2].map(count);
    format!(
        "optimizer: {:?}(lr={}, momentum={}) with parameter groups {no_decay} weight(decay=0.0), {decay} weight(decay={}), {bias} bias(decay=0.0)",
        config.optimizer,
        config.lr0,
        config.momentum,
        config.effective_weight_decay()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validation_ends_with_the_code_of_what_stopped_it() {
        let code = |error: TaskError| TrainError::Validation(error).exit();
        assert_eq!(code(DataError::Invalid("torn".into()).into()), Exit::Failed);
        assert_eq!(code(LearnError::Device("gone".into()).into()), Exit::Device);
        assert_eq!(code(PredictError::Device(LearnError::Device("gone".into())).into()), Exit::Device);
        let shortage = std::io::Error::other("out of memory");
        assert_eq!(code(PredictError::Device(LearnError::unread("boxes", &shortage)).into()), Exit::Failed);
        assert_eq!(code("nobody knows".into()), Exit::Failed);
    }

    #[test]
    fn settings_are_called_as_users_know_them() {
        let all = named(&TrainConfig::default());
        assert_eq!((all["box"].as_f64(), all["cls"].as_f64()), (Some(7.5), Some(0.5)));
        assert!(!all.keys().any(|key| key.ends_with('_')), "{all:?}");
    }
}
