//! Whether a run fits the memory there is, and with which settings it would.

use std::path::Path;

use bellows_exit::{Coded, Exit};
use bellows_kernels::processor;
use bellows_learner::memory::{Place, TooLarge, last};
use burn::tensor::Device;

use crate::checkpoint::{Misfit, scale_of};
use crate::config::{BatchSize, Cache, Checkpointing, OptimizerChoice, STRIDE, Toggle, TrainConfig};
use crate::memory::{Held, Plan};
use crate::model::summary::Summary;
use crate::model::{Scale, Yolo, YoloConfig};
use crate::source::{TrainingData, form};

/// Most images of a batch that is proposed.
const MOST_IMAGES: usize = 1024;
/// Longest side of images that is.
const MOST_SIDE: usize = 8192;
/// The share of a card's memory within which nothing is made again: as much as `batch: -1` fills.
const PLENTY: f64 = 0.6;

/// Why a run is not begun.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// More than the setting allows.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// A model or a weight file that is none.
    #[error(transparent)]
    Weights(#[from] Misfit),
}

impl Coded for FitError {
    fn exit(&self) -> Exit {
        match self {
            Self::TooLarge(error) => error.exit(),
            Self::Weights(error) => error.exit(),
        }
    }
}

/// Settles what depends on memory before a run takes any but that of its `data`: a batch size that is a share of it becomes a number of images, which is told, and
/// a run that is planned to take more than `memory_limit` is refused. Done again it changes nothing. `memory` and `resumed` are those of
/// [`Training::new`](crate::Training::new).
///
/// # Errors
/// A plan beyond that limit; a model or a weight file that is none.
pub fn settle(
    config: &mut TrainConfig,
    data: &TrainingData,
    device: &Device,
    memory: Option<u64>,
    resumed: Option<&Path>,
) -> Result<Option<String>, FitError> {
    if config.memory_limit.is_none() && matches!(config.batch, BatchSize::Images(_)) {
        return Ok(None);
    }
    let (place, form) = (Place::of(device), form(config, data.names.len(), data.channels, resumed)?);
    let cached = |side: usize| data.cache_bytes(side);
    let mut question = Question { resumed: resumed.is_some(), ..Question::new(config.clone(), form, place, &cached) };
    let said = question.choose_batch(place.room(memory));
    question.check()?;
    config.batch = question.config.batch;
    Ok(said)
}

/// Whether a run of settled settings keeps what it could make again in the backward pass (`kernels::set_keeps`), and what there is to say if that was left to it.
///
/// # Errors
/// A model or a weight file that is none.
pub fn keeps(
    config: &TrainConfig,
    data: &TrainingData,
    device: &Device,
    memory: Option<u64>,
    resumed: Option<&Path>,
) -> Result<(bool, Option<String>), FitError> {
    if let Checkpointing::On(again) = config.gradient_checkpointing {
        return Ok((!again, None));
    }
    let (Place::Card, Some(bytes)) = (Place::of(device), memory.filter(|_| config.ranks == 1)) else { return Ok((false, None)) };
    // Decoded images are in the machine's memory.
    let (form, none) = (form(config, data.names.len(), data.channels, resumed)?, |_: usize| 0.0);
    let mut question = Question::new(config.clone(), form, Place::Card, &none);
    let said = question.choose_checkpointing(Some(bytes as f64));
    Ok((question.keeps, said))
}

/// What there is to say of settled settings on a card whose own memory (bytes, where its driver tells; of ranks that share one, a rank's share) the plan is beyond.
///
/// # Errors
/// A model or a weight file that is none.
pub fn warning(
    config: &TrainConfig,
    data: &TrainingData,
    device: &Device,
    memory: Option<u64>,
    resumed: Option<&Path>,
) -> Result<Option<String>, FitError> {
    let (Place::Card, Some(bytes)) = (Place::of(device), memory) else { return Ok(None) };
    let form = form(config, data.names.len(), data.channels, resumed)?;
    // Decoded images are in the machine's memory.
    let none = |_: usize| 0.0;
    let question = Question { resumed: resumed.is_some(), ..Question::new(config.clone(), form, Place::Card, &none) };
    Ok(question.beyond(bytes as f64))
}

/// A run whose memory is asked for.
pub struct Question<'a> {
    /// Its settings.
    pub config: TrainConfig,
    /// It has begun, and keeps all settings that change its numbers.
    pub resumed: bool,
    /// It keeps for the backward pass what could be made again there.
    pub keeps: bool,
    form: YoloConfig,
    network: Yolo,
    place: Place,
    cached: &'a dyn Fn(usize) -> f64,
}

impl<'a> Question<'a> {
    /// A run on a network of this form; `cached` is what its decoded images take in memory, with their long side at so many pixels.
    pub fn new(config: TrainConfig, form: YoloConfig, place: Place, cached: &'a dyn Fn(usize) -> f64) -> Self {
        let keeps = config.gradient_checkpointing == Checkpointing::On(false);
        Self { config, resumed: false, keeps, form, network: form.build(&processor()), place, cached }
    }

    /// The summary of its network for images of their largest side.
    pub fn summary(&self) -> Summary {
        summary(&self.network, &self.config)
    }

    /// What it will hold.
    pub fn plan(&self) -> Plan {
        let gradient_checkpointing = if self.keeps { Checkpointing::On(false) } else { self.config.gradient_checkpointing };
        self.planned(&self.summary(), &TrainConfig { gradient_checkpointing, ..self.config.clone() })
    }

    /// The same, held against the limit that is set.
    ///
    /// # Errors
    /// A plan beyond that limit.
    pub fn check(&self) -> Result<Plan, TooLarge> {
        let plan = self.plan();
        match self.config.memory_limit {
            Some(limit) if plan.peak() > limit * 1e9 => {
                let remedy = self.remedies(limit * 1e9);
                let mut advice = self.advice(remedy.as_deref());
                // An older program may have planned less for it.
                if self.resumed && remedy.is_none() {
                    advice.push_str("; with a larger --memory-limit, or none, it goes on");
                }
                Err(TooLarge { planned: plan.peak() / 1e9, limit, advice })
            }
            _ => Ok(plan),
        }
    }

    /// What there is to say of a card with this memory, if the plan is beyond it. It is tried all the same: a plan may be off, and where memory runs out a batch
    /// is computed in parts.
    fn beyond(&self, bytes: f64) -> Option<String> {
        let planned = self.plan().peak();
        (planned > bytes).then(|| {
            let advice = self.advice(self.remedies(bytes).as_deref());
            format!("memory: {:.2} GB are planned and this card has {:.2} for it: {advice}", planned / 1e9, bytes / 1e9)
        })
    }

    /// Replaces a batch size that is a share of the memory there is (bytes, where known) by a number of images, and tells which. A processor's memory counts where
    /// there is a limit too, and for one process: what is free changes, and ranks have to choose alike.
    pub fn choose_batch(&mut self, memory: Option<f64>) -> Option<String> {
        let counts = self.place == Place::Card || self.config.memory_limit.is_some() && self.config.ranks == 1;
        let mut config = self.config.clone();
        let said = config.resolve_batch(memory.filter(|_| counts), |bytes| self.most_images(bytes));
        self.config = config;
        said
    }

    /// Lets a run that was left to choose keep what it could make again, if the memory of its card (bytes, where known) is plenty for it, and tells so. A processor's
    /// has other uses. Ranks make it again: what there is may differ from one to the other, and where memory runs out all have to do the same.
    pub fn choose_checkpointing(&mut self, memory: Option<f64>) -> Option<String> {
        if self.config.gradient_checkpointing != Checkpointing::Auto || self.config.ranks > 1 || self.place == Place::Processor {
            return None;
        }
        let plenty = PLENTY * memory?;
        let room = self.config.memory_limit.map_or(plenty, |limit| plenty.min(limit * 1e9));
        let kept = TrainConfig { gradient_checkpointing: Checkpointing::On(false), ..self.config.clone() };
        let planned = self.planned(&self.summary(), &kept).peak();
        self.keeps = planned <= room;
        let said = || {
            format!("gradient_checkpointing: auto keeps everything, {:.2} GB are planned of {:.2}", planned / 1e9, plenty / PLENTY / 1e9)
        };
        self.keeps.then(said)
    }

    /// The most images of a batch that fit into `bytes`; 0 if not even one does.
    pub fn most_images(&self, bytes: f64) -> usize {
        self.images(&self.network, &self.config, bytes, MOST_IMAGES)
    }

    /// The largest `imgsz` with which batches of as many images fit into `bytes`; 0 if none does.
    pub fn largest_imgsz(&self, bytes: f64) -> usize {
        self.imgsz(&self.network, &self.config, bytes, MOST_SIDE)
    }

    /// Flags with which the run would fit into `bytes`, each set of them planned. First come those that change no number: to make again what was to be kept, decoded images
    /// on the disk, fewer workers.
    /// Then, unless it has begun, smaller batches, of which `nbs` makes updates of as many images; smaller images, down to half their side; smaller models; and all of
    /// it together. `None` if none would do.
    pub fn remedies(&self, bytes: f64) -> Option<String> {
        let same = self.with_the_same_numbers(bytes);
        let found = if self.resumed { same } else { same.or_else(|| self.with_others(bytes)) };
        found.map(|trial| self.flags(&trial))
    }

    /// That in words.
    pub fn advice(&self, remedy: Option<&str>) -> String {
        match remedy {
            Some(flags) => format!("it would fit with {flags}"),
            None if self.resumed => "a run that goes on keeps its batch, its images and its model".into(),
            None if !self.begins_at_random() && self.form.scale != Scale::N => {
                "no setting makes it fit; weights of a smaller model may".into()
            }
            None => "no setting makes it fit".into(),
        }
    }

    fn planned(&self, summary: &Summary, config: &TrainConfig) -> Plan {
        // Workers and decoded images take none of a card's memory.
        let (workers, cache) = match (self.place, config.cache) {
            (Place::Card, _) => (0, 0.0),
            (Place::Processor, Cache::Ram) => (config.workers, (self.cached)(config.imgsz)),
            (Place::Processor, Cache::Off | Cache::Disk) => (config.workers, 0.0),
        };
        // What `auto` stands for depends on the data: as long as it is not known, it is what takes more.
        let moments = if config.optimizer == OptimizerChoice::SGD { 1 } else { 2 };
        let images = config.batch.images();
        let held = Held {
            moments,
            accumulates: accumulates(config),
            keeps: config.gradient_checkpointing == Checkpointing::On(false),
            half: config.half(),
        };
        Plan::new(summary, self.place, images, [self.form.channels, config.largest_side()], held, workers, cache)
    }

    fn images(&self, network: &Yolo, config: &TrainConfig, bytes: f64, most: usize) -> usize {
        let summary = summary(network, config);
        let fits = |images: usize| self.planned(&summary, &of_images(config, images)).peak() <= bytes;
        // A larger batch takes more, but for the first that is an update by itself: no sum of gradients is held beside it.
        let summed = last(most, |images| accumulates(&of_images(config, images)));
        match last(most - summed, |more| fits(summed + more)) {
            0 => last(summed, fits),
            more => summed + more,
        }
    }

    fn imgsz(&self, network: &Yolo, config: &TrainConfig, bytes: f64, most: usize) -> usize {
        let fits = |config: &TrainConfig| self.planned(&summary(network, config), config).peak() <= bytes;
        STRIDE * last(most / STRIDE, |n| fits(&TrainConfig { imgsz: n * STRIDE, ..config.clone() }))
    }

    /// Its settings, with decoded images out of the memory that is short, and nothing kept that can be made again.
    fn leaner(&self) -> TrainConfig {
        let moves = self.place == Place::Processor && self.config.cache == Cache::Ram;
        let gradient_checkpointing = match self.config.gradient_checkpointing {
            Checkpointing::On(false) => Checkpointing::On(true),
            other => other,
        };
        TrainConfig { cache: if moves { Cache::Disk } else { self.config.cache }, gradient_checkpointing, ..self.config.clone() }
    }

    /// Settings that fit and change no number: on a card at most what is kept.
    fn with_the_same_numbers(&self, bytes: f64) -> Option<TrainConfig> {
        let (leaner, summary) = (self.leaner(), self.summary());
        let with = |workers: usize| TrainConfig { workers, ..leaner.clone() };
        let most = last(self.config.workers + 1, |n| self.planned(&summary, &with(n - 1)).peak() <= bytes);
        let differs = self.place == Place::Processor || leaner.gradient_checkpointing != self.config.gradient_checkpointing;
        (differs && most > 0).then(|| with(most - 1))
    }

    /// Settings that fit and are of another run.
    fn with_others(&self, bytes: f64) -> Option<TrainConfig> {
        let leaner = self.leaner();
        let own = self.of_fewer(&self.network, &leaner, bytes);
        if let Some(trial) = own.or_else(|| self.of_smaller(&self.network, &leaner, bytes, self.config.imgsz / 2)) {
            return Some(trial);
        }
        let mut smallest = None;
        for (model, network) in self.smaller() {
            let config = TrainConfig { model, ..leaner.clone() };
            if let Some(trial) = self.of_fewer(&network, &config, bytes) {
                return Some(trial);
            }
            smallest = Some((network, config));
        }
        let (network, config) = smallest.as_ref().map_or((&self.network, &leaner), |(network, config)| (network, config));
        self.of_smaller(network, config, bytes, STRIDE)
    }

    /// As many images of the batch as fit, or a little fewer if updates are of as many images then.
    fn of_fewer(&self, network: &Yolo, config: &TrainConfig, bytes: f64) -> Option<TrainConfig> {
        let most = self.images(network, config, bytes, config.batch.images());
        let summary = summary(network, config);
        // One that sums gradients may be beyond what a larger one fits into.
        let as_large = |images: &usize| {
            let trial = of_images(config, *images);
            trial.images_per_update() == config.images_per_update() && self.planned(&summary, &trial).peak() <= bytes
        };
        let even = (most.div_ceil(2).max(1)..=most).rev().find(as_large);
        (most > 0).then(|| of_images(config, even.unwrap_or(most)))
    }

    /// Single images with the largest side that fits, of at least `least` pixels.
    fn of_smaller(&self, network: &Yolo, config: &TrainConfig, bytes: f64, least: usize) -> Option<TrainConfig> {
        let single = of_images(config, 1);
        let imgsz = self.imgsz(network, &single, bytes, config.imgsz);
        (imgsz >= least).then_some(TrainConfig { imgsz, ..single })
    }

    /// Whether its first weights are drawn, as those of another model may be in their place.
    fn begins_at_random(&self) -> bool {
        match self.config.pretrained {
            Toggle::Path(_) => false,
            Toggle::On(file) => !file || scale_of(&self.config.model).is_some(),
        }
    }

    /// Names of smaller models and their networks, the largest first.
    fn smaller(&self) -> impl Iterator<Item = (String, Yolo)> {
        let (form, random) = (self.form, self.begins_at_random());
        let smaller: Vec<Scale> = Scale::ALL.into_iter().take_while(|scale| random && *scale != form.scale).collect();
        let tail = if form.p2 { "-p2" } else { "" };
        let named = move |scale: Scale| (format!("yolov8{}{tail}", scale.letter()), YoloConfig { scale, ..form }.build(&processor()));
        smaller.into_iter().rev().map(named)
    }

    /// What of `trial` is not as it is.
    fn flags(&self, trial: &TrainConfig) -> String {
        let (own, images) = (&self.config, trial.batch.images());
        let flags = [
            (trial.gradient_checkpointing != own.gradient_checkpointing, "--gradient-checkpointing true".to_owned()),
            (trial.cache != own.cache, "--cache disk".to_owned()),
            (trial.workers != own.workers, format!("--workers {}", trial.workers)),
            (images != own.batch.images(), format!("--batch {images}")),
            (trial.imgsz != own.imgsz, format!("--imgsz {}", trial.imgsz)),
            (trial.model != own.model, format!("--model {}", trial.model)),
        ];
        flags.into_iter().filter_map(|(differs, flag)| differs.then_some(flag)).collect::<Vec<_>>().join(" ")
    }
}

fn summary(network: &Yolo, config: &TrainConfig) -> Summary {
    let side = config.largest_side();
    network.summary(side, side)
}

/// Whether an update is of the gradients of several batches.
fn accumulates(config: &TrainConfig) -> bool {
    config.images_per_update() > config.batch.images() * config.ranks
}

/// The settings with batches of so many images.
fn of_images(config: &TrainConfig, images: usize) -> TrainConfig {
    TrainConfig { batch: images.into(), ..config.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: usize) -> f64 {
        0.0
    }

    fn on(place: Place, config: TrainConfig) -> Question<'static> {
        let (scale, p2) = scale_of(&config.model).unwrap_or((Scale::S, false));
        Question::new(config, YoloConfig { scale, p2, ..YoloConfig::new(4) }, place, &none)
    }

    fn question(config: TrainConfig) -> Question<'static> {
        on(Place::Processor, config)
    }

    /// YOLOv8s on 16 images of 640 pixels: some 2.8 GB, of which 0.55 are no image's.
    fn small() -> TrainConfig {
        TrainConfig { model: "yolov8s".into(), workers: 0, ..TrainConfig::default() }
    }

    fn with_flags(config: &TrainConfig, flags: &str) -> TrainConfig {
        let (mut config, words) = (config.clone(), flags.split_whitespace().collect::<Vec<_>>());
        for pair in words.chunks(2) {
            match pair {
                ["--gradient-checkpointing", "true"] => config.gradient_checkpointing = Checkpointing::On(true),
                ["--cache", "disk"] => config.cache = Cache::Disk,
                ["--workers", n] => config.workers = n.parse().unwrap(),
                ["--batch", n] => config.batch = n.parse::<usize>().unwrap().into(),
                ["--imgsz", n] => config.imgsz = n.parse().unwrap(),
                ["--model", name] => config.model = (*name).into(),
                other => panic!("{other:?}"),
            }
        }
        config
    }

    #[test]
    fn the_largest_batch_and_the_largest_images_fit_and_the_next_do_not() {
        let config = TrainConfig { imgsz: 320, batch: 4.into(), workers: 1, ..TrainConfig::default() };
        let asked = question(config.clone());
        let peak = |images: usize, imgsz: usize| question(TrainConfig { imgsz, batch: images.into(), ..config.clone() }).plan().peak();
        let (images, imgsz) = (asked.most_images(2e9), asked.largest_imgsz(2e9));
        assert!(images > 4 && peak(images, 320) <= 2e9 && peak(images + 1, 320) > 2e9, "{images}");
        assert!(imgsz > 320 && imgsz % 32 == 0 && peak(4, imgsz) <= 2e9 && peak(4, imgsz + 32) > 2e9, "{imgsz}");
        assert_eq!((asked.most_images(1e6), asked.largest_imgsz(1e6)), (0, 0));
        assert_eq!((asked.most_images(1e15), asked.largest_imgsz(1e15)), (MOST_IMAGES, MOST_SIDE));
        let varied = question(TrainConfig { multi_scale: true, ..config });
        assert!(varied.plan().peak() > asked.plan().peak() && varied.largest_imgsz(2e9) < imgsz, "the largest of the sizes counts");
    }

    #[test]
    fn a_plan_has_the_moments_and_the_sum_that_the_run_has() {
        let plan = |optimizer, nbs| question(TrainConfig { optimizer, nbs, ..small() }).plan();
        let least = plan(OptimizerChoice::SGD, 16);
        let copies = |optimizer, nbs| ((plan(optimizer, nbs).optimizer - least.optimizer) / least.weights).round();
        assert_eq!([copies(OptimizerChoice::SGD, 64), copies(OptimizerChoice::AdamW, 16)], [1.0, 2.0]);
        assert_eq!(copies(OptimizerChoice::Auto, 64), 3.0, "the defaults");
    }

    #[test]
    fn a_batch_that_is_an_update_by_itself_may_fit_where_smaller_ones_do_not() {
        let config = TrainConfig { model: "yolov8n".into(), imgsz: 32, batch: 80.into(), workers: 0, ..TrainConfig::default() };
        let peak = |images: usize| question(TrainConfig { batch: images.into(), ..config.clone() }).plan().peak();
        let (asked, bytes) = (question(config.clone()), peak(50));
        assert!(peak(43) < peak(42) && peak(40) > bytes, "the gradients of two batches of 42 are summed");
        assert_eq!(asked.most_images(bytes), 50);
        // Forty would have updates of 80 images, as eighty have.
        assert_eq!(asked.remedies(bytes).as_deref(), Some("--batch 50"));
    }

    #[test]
    fn what_would_fit_is_tried_in_turn_and_fits() {
        let asked = question(small());
        let remedy = |bytes: f64| {
            let flags = asked.remedies(bytes)?;
            let peak = question(with_flags(&asked.config, &flags)).plan().peak();
            assert!(peak <= bytes, "{flags}: {peak} of {bytes}");
            Some(flags)
        };
        // Eleven would, and eight have updates of 64 images as sixteen have.
        assert_eq!(remedy(2.2e9).as_deref(), Some("--batch 8"));
        let smaller = remedy(0.65e9).unwrap();
        let imgsz: usize = smaller.strip_prefix("--batch 1 --imgsz ").unwrap().parse().unwrap();
        assert!((320..640).contains(&imgsz), "{smaller}");
        assert_eq!(remedy(0.4e9).as_deref(), Some("--batch 2 --model yolov8n"));
        let all = remedy(0.2e9).unwrap();
        assert!(all.starts_with("--batch 1 --imgsz ") && all.ends_with(" --model yolov8n"), "{all}");
        assert_eq!(remedy(1e8), None);
        let fine = question(TrainConfig { model: "yolov8s-p2".into(), ..small() }).remedies(0.4e9).unwrap();
        assert!(fine.ends_with("--model yolov8n-p2"), "{fine}");
    }

    #[test]
    fn what_changes_no_number_comes_first_and_is_all_that_a_run_may_change() {
        let config = TrainConfig { workers: 8, cache: Cache::Ram, ..small() };
        let images = |_: usize| 1e9;
        let form = YoloConfig { scale: Scale::S, ..YoloConfig::new(4) };
        let mut asked = Question::new(config.clone(), form, Place::Processor, &images);
        let peak = |flags: &str| question(with_flags(&config, flags)).plan().peak();
        assert_eq!(asked.remedies(peak("--cache disk")).as_deref(), Some("--cache disk"));
        assert_eq!(asked.remedies(peak("--cache disk --workers 3")).as_deref(), Some("--cache disk --workers 3"));
        let less = 0.9 * peak("--cache disk --workers 0");
        let smaller = asked.remedies(less).unwrap();
        assert!(smaller.starts_with("--cache disk --batch "), "{smaller}");
        asked.resumed = true;
        assert_eq!(asked.remedies(peak("--cache disk --workers 0")).as_deref(), Some("--cache disk --workers 0"));
        assert_eq!(asked.remedies(less), None);
        assert!(asked.advice(None).contains("goes on"), "{}", asked.advice(None));
        let card = Question::new(config.clone(), form, Place::Card, &images);
        assert_eq!(card.plan().cache, 0.0, "images are in the machine's memory");
        assert_eq!(card.remedies(2.2e9).as_deref(), Some("--batch 8"));
    }

    #[test]
    fn what_could_be_made_again_is_kept_where_memory_is_plenty() {
        let kept = |place, config: TrainConfig, memory: Option<f64>| {
            let mut asked = on(place, config);
            let said = asked.choose_checkpointing(memory);
            assert_eq!(said.is_some(), asked.keeps && asked.config.gradient_checkpointing == Checkpointing::Auto, "{said:?}");
            asked.keeps
        };
        let with = |gradient_checkpointing| TrainConfig { gradient_checkpointing, ..small() };
        let peak = on(Place::Card, with(Checkpointing::On(false))).plan().peak();
        assert_eq!([0.99, 1.01].map(|times| kept(Place::Card, small(), Some(times * peak / 0.6))), [false, true]);
        let limited = |limit: f64| TrainConfig { memory_limit: Some(limit * peak / 1e9), ..small() };
        assert_eq!([0.99, 1.01].map(|limit| kept(Place::Card, limited(limit), Some(1e15))), [false, true]);
        assert!(!kept(Place::Card, small(), None), "nobody knows how much there is");
        assert!(!kept(Place::Processor, small(), Some(1e15)), "a processor's memory has other uses");
        for place in [Place::Processor, Place::Card] {
            assert_eq!([true, false].map(|again| kept(place, with(Checkpointing::On(again)), Some(1e15))), [false, true]);
        }
        assert!(!kept(Place::Card, TrainConfig { ranks: 2, ..small() }, Some(1e15)), "ranks have to choose alike");
    }

    #[test]
    fn what_is_kept_is_the_first_to_go() {
        for place in [Place::Processor, Place::Card] {
            let asked = on(place, TrainConfig { gradient_checkpointing: Checkpointing::On(false), ..small() });
            let less = on(place, TrainConfig { gradient_checkpointing: Checkpointing::On(true), ..small() }).plan().peak();
            assert!(asked.plan().peak() > 1.2 * less);
            assert_eq!(asked.remedies(less).as_deref(), Some("--gradient-checkpointing true"), "{place:?}");
            assert!(asked.remedies(0.9 * less).is_some_and(|flags| flags.starts_with("--gradient-checkpointing true --batch ")));
        }
    }

    #[test]
    fn weights_of_a_file_are_of_one_size() {
        let asked = question(TrainConfig { model: "mine.pt".into(), ..small() });
        assert_eq!(asked.remedies(0.4e9), None);
        assert!(asked.advice(None).contains("weights of a smaller model"), "{}", asked.advice(None));
        let pretrained = Toggle::Path("mine.pt".into());
        assert_eq!(question(TrainConfig { pretrained, ..small() }).remedies(0.4e9), None);
        let random = question(TrainConfig { model: "mine.pt".into(), pretrained: Toggle::On(false), ..small() });
        assert!(random.remedies(0.4e9).is_some_and(|flags| flags.ends_with("--model yolov8n")), "{:?}", random.remedies(0.4e9));
        assert_eq!(asked.remedies(2.2e9).as_deref(), Some("--batch 8"));
    }

    #[test]
    fn a_run_beyond_its_limit_is_refused_with_what_would_fit() {
        let within = |limit: f64| question(TrainConfig { memory_limit: Some(limit), ..small() }).check();
        assert!(within(20.0).is_ok());
        let refused = within(2.2).unwrap_err();
        assert_eq!(FitError::from(refused).exit(), Exit::Usage);
        let text = within(2.2).unwrap_err().to_string();
        assert!(text.ends_with("and memory_limit is 2.2: it would fit with --batch 8"), "{text}");
        let going_on = |place| Question { resumed: true, ..on(place, TrainConfig { memory_limit: Some(2.2), ..small() }) };
        let text = going_on(Place::Processor).check().unwrap_err().to_string();
        assert!(text.ends_with("its images and its model; with a larger --memory-limit, or none, it goes on"), "{text}");
        let said = going_on(Place::Card).beyond(2e9).unwrap();
        assert!(said.ends_with("its images and its model"), "a card has no other memory: {said}");
    }

    #[test]
    fn a_batch_is_chosen_within_the_limit_and_what_there_is() {
        let config = TrainConfig { batch: BatchSize::Memory(0.6), imgsz: 320, ..TrainConfig::default() };
        let chosen = |place: Place, config: TrainConfig, memory: Option<f64>| {
            let mut question = on(place, config);
            let said = question.choose_batch(memory);
            assert!(said.is_some_and(|said| said.starts_with(&format!("batch: {} images", question.config.batch.images()))));
            question.config.batch.images()
        };
        let most = |place, bytes| on(place, config.clone()).most_images(bytes);
        let (card, processor) = (Place::Card, Place::Processor);
        assert_eq!(chosen(card, config.clone(), Some(5e9)), most(card, 3e9));
        assert_eq!(chosen(processor, config.clone(), Some(5e9)), 16, "what is free of a machine is no answer by itself");
        let limited = TrainConfig { memory_limit: Some(2.0), ..config.clone() };
        assert_eq!(chosen(card, limited.clone(), Some(5e9)), most(card, 2e9));
        assert_eq!(chosen(card, limited.clone(), Some(2e9)), most(card, 1.2e9));
        assert_eq!(chosen(processor, limited.clone(), Some(2e9)), most(processor, 1.2e9));
        assert_eq!(chosen(processor, limited.clone(), None), most(processor, 2e9));
        let ranks = TrainConfig { ranks: 2, ..limited };
        assert_eq!(chosen(processor, ranks, Some(2e9)), most(processor, 2e9), "what is free may differ from rank to rank");
    }

    #[test]
    fn a_plan_beyond_a_card_is_told_with_the_way_out() {
        let asked = on(Place::Card, small());
        let said = asked.beyond(2e9).unwrap();
        assert!(said.starts_with("memory: ") && said.contains("this card has 2.00 for it: it would fit with --batch "), "{said}");
        assert_eq!(asked.beyond(64e9), None);
    }
}
