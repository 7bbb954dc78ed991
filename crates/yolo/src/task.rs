//! YOLOv8 as the Learner sees it: batches of augmented images, the detection loss, mAP.

use std::collections::HashSet;
use std::panic::panic_any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use bellows_kernels::{images, set_keeps};
use bellows_learner::{
    Draw, EvalContext, Evaluation, Group, Layout, Rng, Role, RunFile, Stage, StepOutput, Stopwatch, Task, TaskError, Unreadable,
    epoch_order,
};
use bellows_shards::Order;
use burn::data::dataset::Dataset;
use burn::tensor::module::interpolate;
use burn::tensor::ops::{InterpolateMode, InterpolateOptions};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::config::{Checkpointing, STRIDE, TrainConfig};
use crate::data::batch::{collate, multi_scale, readable};
use crate::data::sampler::{epoch_length, epoch_samples};
use crate::data::stages::{Stages, TimedReads, timed};
use crate::data::{Batch, Grouping, Item, Size, TrainView, augment};
use crate::export::to_weights;
use crate::group_verdict;
use crate::model::Yolo;
use crate::model::summary::{ParamGroup, layer_index, param_group};
use crate::pictures;
use crate::preprocessing::Preprocessing;
use crate::rect::Rect;
use crate::validate::{ValSet, detection_loss, targets, validate};

/// The validation columns of `results.csv`, in order.
pub const METRICS: [&str; 7] = [
    "metrics/precision(B)",
    "metrics/recall(B)",
    "metrics/mAP50(B)",
    "metrics/mAP50-95(B)",
    "val/box_loss",
    "val/cls_loss",
    "val/dfl_loss",
];

/// Detection training: settings, classes, validation data, and where pictures go.
pub struct DetectionTask {
    /// The resolved settings.
    pub config: TrainConfig,
    /// Class names by index.
    pub names: Vec<String>,
    /// Input channels of the network, 3 or 1.
    pub channels: usize,
    /// The licence of the weights that a run began from, which what it makes of them keeps.
    pub(crate) license: Option<String>,
    /// Where the workers' time goes.
    pub(crate) stages: Stages,
    /// Which items could not be read.
    pub(crate) told: Told,
    /// What the Learner scales the loss by.
    pub(crate) scale: LossFactor,
    /// With `rect`, the batches of training.
    pub rect: Option<Rect>,
    /// With `sampler`, the running sums of how often each sample is taken; else empty.
    pub weight_sums: Vec<f64>,
    /// Of images in shards, how many each shard has; else empty.
    pub shards: Vec<usize>,
    /// What a model is judged on.
    pub val: ValSet,
    /// Groups of its images that are judged too, for the keys of `group_by`.
    pub groupings: Vec<Grouping>,
    /// Draw pictures of training batches.
    pub pictures: bool,
}

/// What has been said, for each epoch meets the same again.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashSet<String>>);

impl Told {
    /// Whether `words` are said for the first time.
    fn is_new(&self, words: String) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(words)
    }
}

/// A factor of the loss: the bits of an f64, 1 until another is told.
pub(crate) struct LossFactor(AtomicU64);

impl Default for LossFactor {
    fn default() -> Self {
        Self(AtomicU64::new(1f64.to_bits()))
    }
}

impl LossFactor {
    fn set(&self, factor: f64) {
        self.0.store(factor.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl DetectionTask {
    /// Height and width a batch is trained at: its own, or with `multi_scale` the multiples of 32 that bring its longer side to between
    /// half and one and a half of `imgsz`, the same for all of its parts.
    fn size_of(&self, draw: Draw, batch: &Batch) -> [usize; 2] {
        let own = [batch.shape[2], batch.shape[3]];
        if !self.config.multi_scale {
            return own;
        }
        let long = multi_scale(draw.seed, draw.epoch as u64, draw.first as u64, self.config.imgsz as u32, STRIDE as u32) as usize;
        own.map(|side| (side * long).div_ceil(own[0].max(own[1])).next_multiple_of(STRIDE))
    }

    /// What a batch, and every part of it, is letterboxed to; the data has `images`.
    fn shape_of(&self, draw: Draw, images: usize) -> Size {
        let square = Size::square(self.config.imgsz as u32);
        self.rect.as_ref().map_or(square, |rect| rect.shape(draw, || self.samples(draw, images)))
    }

    /// The samples of an epoch of `images` in the order they are drawn in, numbered as [`augment()`] has them.
    fn samples(&self, draw: Draw, images: usize) -> Vec<usize> {
        match &self.config.sampler {
            Some(sampler) if !self.weight_sums.is_empty() => {
                epoch_samples(&self.weight_sums, epoch_length(self.weight_sums.len(), sampler), draw.seed, draw.epoch as u64)
            }
            _ => epoch_order(images, draw.seed, draw.epoch, true),
        }
    }

    /// The order in which shards are read, with the draws that it takes; none where the whole set is shuffled, or the order is another setting's.
    fn order(&self, draw: Draw) -> Option<(Order, impl Fn(u64) -> u64 + use<>)> {
        let of_its_own = self.rect.is_some() || !self.weight_sums.is_empty();
        let fits = self.shards.iter().sum::<usize>() <= self.config.shuffle_buffer;
        let bits = move |i| Rng::new(draw.seed, "shards", draw.epoch as u64, i).bits();
        (!of_its_own && !fits).then(|| (Order::new(&self.shards, self.config.shuffle_buffer, bits), bits))
    }
}

impl Task for DetectionTask {
    type Model = Yolo;
    type Item = Item;
    type Batch = Batch;
    type Output = ();

    fn item_names(&self) -> &[&'static str] {
        &["box_loss", "cls_loss", "dfl_loss"]
    }

    fn metric_names(&self) -> Vec<String> {
        let groups = self.groupings.iter().flat_map(|by| group_verdict::columns(&by.key, &by.names));
        let sizes = group_verdict::size_columns().into_iter().filter(|_| !self.groupings.is_empty());
        METRICS.into_iter().map(String::from).chain(groups).chain(sizes).collect()
    }

    fn groups(&self) -> Vec<Group> {
        let weight_decay = self.config.effective_weight_decay();
        let group = |bias, weight_decay| Group { lr_scale: 1.0, weight_decay, bias };
        vec![group(true, 0.0), group(false, weight_decay), group(false, 0.0)]
    }

    fn role_of(&self, name: &str) -> Role {
        if layer_index(name).is_some_and(|layer| self.config.freeze.covers(layer)) {
            return Role::Kept;
        }
        Role::Trained(match param_group(name) {
            ParamGroup::Bias => 0,
            ParamGroup::Decay => 1,
            ParamGroup::NoDecay => 2,
        })
    }

    fn plan(&self, draw: Draw) -> Option<Vec<Vec<usize>>> {
        if let Some(rect) = &self.rect {
            return Some(rect.plan(draw, &self.samples(draw, rect.images())));
        }
        let samples = match self.order(draw) {
            Some((order, bits)) => order.samples(bits),
            None if self.config.sampler.is_some() && !self.weight_sums.is_empty() => self.samples(draw, self.weight_sums.len()),
            None => return None,
        };
        Some(samples.chunks(self.config.batch.images()).map(<[usize]>::to_vec).collect())
    }

    fn is_closing(&self, draw: Draw) -> bool {
        self.config.mosaic_closes(draw.epochs).is_some_and(|epoch| draw.epoch >= epoch)
    }

    fn batch(&self, data: &dyn Dataset<Item>, draw: Draw, indices: &[usize]) -> Result<Batch, TaskError> {
        let (config, imgsz) = (self.config.augmentation(!self.is_closing(draw), self.channels), self.config.imgsz as u32);
        let shape = self.shape_of(draw, data.len());
        let (weight_sums, order) = (&self.weight_sums, self.order(draw));
        let order = order.as_ref().map(|(order, _)| order);
        let view = TrainView { seed: draw.seed, epoch: draw.epoch as u64, imgsz, shape, config: &config, weight_sums, order };
        // An image that passed the scan and still cannot be decoded costs itself, not a run of days; which ones is a function of the
        // files, so the batch stays one of its arguments.
        let reads = AtomicU64::new(0);
        let data = TimedReads { data, nanos: &reads };
        let started = Instant::now();
        let (samples, errors) = readable(indices, |i| augment(&data, i, &view));
        let (all, reads) = (started.elapsed().as_nanos() as u64, reads.load(Ordering::Relaxed));
        self.stages.decode.fetch_add(reads, Ordering::Relaxed);
        self.stages.augment.fetch_add(all.saturating_sub(reads), Ordering::Relaxed);
        for error in errors.iter().filter(|error| self.told.is_new(error.to_string())) {
            tracing::warn!("left out of its batch, here and wherever it is drawn again: {error}");
        }
        match errors.first() {
            Some(error) if samples.is_empty() => Err(Unreadable(error.to_string()).into()),
            _ => Ok(timed(&self.stages.collate, || collate(samples))?),
        }
    }

    fn batch_times(&self) -> Vec<(&'static str, f64)> {
        self.stages.take()
    }

    fn sample_names(&self, batch: &Batch) -> Vec<String> {
        batch.names.clone()
    }

    fn hold_less(&self) -> Option<String> {
        set_keeps(false).then(|| {
            "what normalisations write is made again in the backward pass (gradient_checkpointing), and no number is another".into()
        })
    }

    fn less_memory(&self) -> String {
        let multi_scale = if self.config.multi_scale { ", no --multi-scale" } else { "" };
        let again = if self.config.gradient_checkpointing == Checkpointing::On(true) { "" } else { ", --gradient-checkpointing true" };
        format!("a smaller --imgsz{multi_scale}{again}, a lower --conv-workspace-mb or a smaller model needs less")
    }

    fn inspect(&self, batch: &Batch, draw: Draw, position: usize) -> Vec<RunFile> {
        let closing = self.config.mosaic_closes(draw.epochs) == Some(draw.epoch);
        if !self.pictures || position >= 3 || (draw.epoch > 0 && !closing) {
            return Vec::new();
        }
        let number = if draw.epoch == 0 { format!("{position}") } else { format!("_closed{position}") };
        pictures::train_batch(batch, &self.names, &number).inspect_err(|error| tracing::warn!("{error}")).into_iter().collect()
    }

    fn loss(&self, model: &Yolo, batch: &Batch, draw: Draw, device: &Device) -> StepOutput<()> {
        let images = images(&batch.images, batch.shape, model.channels(), device);
        let size = self.size_of(draw, batch);
        let images = if size == [batch.shape[2], batch.shape[3]] {
            images
        } else {
            let options = InterpolateOptions::new(InterpolateMode::Bilinear).with_output_size(size).with_align_corners(false);
            interpolate(images, options)
        };
        let images = if self.config.half() { images.cast(FloatDType::F16) } else { images };
        let feats = model.forward(images);
        let loss = detection_loss(&self.config, model.nc()).forward(&feats, &targets(batch));
        let loss = loss.unwrap_or_else(|error| panic_any(error));
        StepOutput { loss: loss.total, items: loss.items, count: loss.objects, output: () }
    }

    fn scale_loss(&self, scale: f64) {
        self.scale.set(scale);
    }

    /// Of the scaled loss, and divided by the scale. One of 1, as of every run in f32, is no launch.
    fn gradients(
        &self,
        model: &Yolo,
        batch: &Batch,
        draw: Draw,
        device: &Device,
        layout: &Layout,
        watch: &mut Stopwatch<'_>,
    ) -> (StepOutput<()>, Vec<Option<Tensor<1>>>) {
        let output = self.loss(model, batch, draw, device);
        watch.lap(Stage::Forward);
        let scale = Some(self.scale.get()).filter(|scale| *scale != 1.0);
        let scaled = scale.map_or_else(|| output.loss.clone(), |scale| output.loss.clone().mul_scalar(scale));
        let mut grads = scaled.backward();
        let grads = layout.take_gradients(model, &mut grads);
        let grads = match scale {
            Some(scale) => layout.unscaled(grads, scale),
            None => grads,
        };
        (StepOutput { loss: output.loss.inner(), items: output.items.inner(), ..output }, grads)
    }

    fn evaluate(&self, model: &Yolo, context: &mut EvalContext<'_>) -> Result<Evaluation, TaskError> {
        let validation = validate(&model.fuse(context.device), &self.val, &self.config, context)?;
        let m = &validation.metrics;
        let [b, c, d] = validation.losses;
        let values = [m.precision, m.recall, m.map50, m.map50_95, b, c, d];
        let groups = validation.groups.iter().flat_map(group_verdict::values);
        // Without groups nothing asks for the sizes: names end before them.
        let values = values.into_iter().chain(groups).chain(group_verdict::size_values(&validation.coco));
        let metrics = self.metric_names().into_iter().zip(values).collect();
        Ok(Evaluation { fitness: m.fitness, metrics, samples: m.images, objects: m.instances, unreadable: validation.unreadable })
    }

    fn export(&self, model: &Yolo, epoch: usize) -> Result<Vec<u8>, TaskError> {
        let (seen, license) = (Preprocessing::of(&self.config), self.license.as_deref());
        Ok(to_weights(model, &self.names, self.config.imgsz, &seen, Some(epoch + 1), license)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use burn::data::dataset::{DatasetError, InMemDataset};

    use super::*;
    use crate::boxes::Label;
    use crate::config::{BatchSize, Sampler};
    use crate::data::Frame;
    use crate::model::YoloConfig;

    /// A task on images of 64 pixels that are not warped.
    fn task(config: TrainConfig, channels: usize) -> DetectionTask {
        let val = ValSet::with_sizes(Arc::new(InMemDataset::new(Vec::new())), Vec::new());
        let config = TrainConfig { imgsz: 64, degrees: 0.0, translate: 0.0, scale: 0.0, fliplr: 0.0, ..config };
        let names = vec!["item".into()];
        DetectionTask {
            config,
            names,
            channels,
            license: None,
            stages: Stages::default(),
            told: Told::default(),
            scale: LossFactor::default(),
            rect: None,
            weight_sums: Vec::new(),
            shards: Vec::new(),
            val,
            groupings: Vec::new(),
            pictures: false,
        }
    }

    fn item() -> Item {
        let frame =
            Frame { pixels: (0..64 * 64).map(|i| (i % 251) as u8).collect(), channels: 1, width: 64, height: 64, difference: false };
        Item::new(frame, vec![Label { class: 0, xywh: [0.5; 4] }], "a.png".into())
    }

    /// The batch of a gray item in the first of `epochs` epochs.
    fn pixels(config: TrainConfig, channels: usize, epochs: usize) -> Vec<u8> {
        let draw = Draw { seed: 1, epoch: 0, epochs, step: 0, first: 0 };
        task(config, channels).batch(&InMemDataset::new(vec![item()]), draw, &[0]).unwrap().images
    }

    #[test]
    fn a_batch_has_one_size_whatever_it_is_cut_into() {
        let task = task(TrainConfig { multi_scale: true, ..TrainConfig::default() }, 1);
        let data = InMemDataset::new(vec![item(); 8]);
        let size = |first: usize, part: &[usize]| {
            let draw = Draw { seed: 1, epoch: 0, epochs: 5, step: 0, first };
            task.size_of(draw, &task.batch(&data, draw, part).unwrap())
        };
        let whole = [0, 4].map(|first| size(first, &[first, first + 1, first + 2, first + 3]));
        for (first, whole) in [0, 4].into_iter().zip(whole) {
            assert!((0..4).all(|i| size(first, &[first + i]) == whole), "{first}");
        }
        assert_eq!(whole[1], [multi_scale(1, 0, 4, 64, 32) as usize; 2], "drawn by the first sample of the batch");
    }

    /// A data set that tells which of its items were asked for.
    struct Watched(InMemDataset<Item>, Mutex<BTreeSet<usize>>);

    impl Dataset<Item> for Watched {
        fn get(&self, index: usize) -> Result<Item, DatasetError> {
            self.1.lock().unwrap().insert(index);
            self.0.get(index)
        }

        fn len(&self) -> usize {
            self.0.len()
        }
    }

    #[test]
    fn images_in_shards_are_read_window_by_window() {
        let config = |shuffle_buffer| TrainConfig { shuffle_buffer, batch: BatchSize::Images(10), mixup: 1.0, ..TrainConfig::default() };
        let task = |shuffle_buffer| DetectionTask { shards: vec![100, 90, 10, 100], ..task(config(shuffle_buffer), 1) };
        let data = Watched(InMemDataset::new(vec![item(); 300]), Mutex::default());
        let draw = |epoch| Draw { seed: 1, epoch, epochs: 5, step: 0, first: 0 };
        assert_eq!(task(300).plan(draw(0)), None, "as a folder");
        let in_sequence: Vec<Vec<usize>> = (0..300).collect::<Vec<_>>().chunks(10).map(<[usize]>::to_vec).collect();
        assert_eq!([0, 1].map(|n| task(n).plan(draw(0))), [Some(in_sequence.clone()), Some(in_sequence)]);
        for epoch in 0..2 {
            let plan = task(100).plan(draw(epoch)).unwrap();
            let order = plan.concat();
            assert!((0..300).collect::<BTreeSet<_>>() == order.iter().copied().collect(), "each once");
            for (window, batches) in order.chunks(100).zip(plan.chunks(10)) {
                data.1.lock().unwrap().clear();
                batches.iter().for_each(|batch| drop(task(100).batch(&data, draw(epoch), batch).unwrap()));
                assert_eq!(*data.1.lock().unwrap(), window.iter().copied().collect(), "partners are of the window, and any of it");
            }
        }
        assert_ne!(task(100).plan(draw(0)), task(100).plan(draw(1)));
        let of_its_own = DetectionTask { rect: Some(Rect::new(vec![Size::square(64); 300], 10, 1, 64)), ..task(10) };
        assert!(of_its_own.order(draw(0)).is_none() && task(10).order(draw(0)).is_some(), "rect has an order of its own");
    }

    #[test]
    fn a_rectangle_is_of_the_whole_batch_and_the_sampler_fills_it() {
        let sampler = Some(Sampler { epoch: Some(0.5), ..Sampler::default() });
        let config = TrainConfig { rect: true, sampler, imgsz: 64, batch: BatchSize::Images(4), ..TrainConfig::default() };
        let sizes = (0..16).map(|i| Size { width: 64, height: 24 + 2 * i }).collect();
        let rect = Some(Rect::new(sizes, 4, 1, 64));
        let task = DetectionTask { rect, weight_sums: vec![0.0, 1.0, 2.0, 3.0, 4.0], ..task(config, 1) };
        let draw = |epoch, step| Draw { seed: 1, epoch, epochs: 5, step, first: 0 };
        let plan = task.plan(draw(2, 0)).unwrap();
        assert_eq!(plan.iter().map(Vec::len).collect::<Vec<_>>(), [3], "half of five images");
        assert!(plan.concat().iter().all(|i| (1..5).contains(i)), "the first has no weight: {plan:?}");
        let all = DetectionTask { weight_sums: Vec::new(), config: TrainConfig { sampler: None, ..task.config.clone() }, ..task };
        let plans = [0, 1].map(|epoch| all.plan(draw(epoch, 0)).unwrap());
        assert_ne!(plans[0], plans[1], "every epoch has an order of its own");
        let data = InMemDataset::new(vec![item(); 16]);
        for (step, batch) in plans[1].iter().enumerate() {
            let shape = |part: &[usize]| all.batch(&data, draw(1, 4 + step as u64), part).unwrap().shape[2..].to_vec();
            assert!(batch.iter().all(|&i| shape(&[i]) == shape(batch)), "{step}");
        }
    }

    #[test]
    fn an_image_taken_again_is_another_sample_whatever_its_batch_is_cut_into() {
        let config = TrainConfig { sampler: Some(Sampler::default()), batch: BatchSize::Images(6), ..TrainConfig::default() };
        let weight_sums: Vec<f64> = (0..12).map(|i| 6.0 + f64::from(i)).collect();
        let task = DetectionTask { weight_sums, ..task(config, 3) };
        let data = InMemDataset::new(vec![item(); 12]);
        let draw = Draw { seed: 1, epoch: 0, epochs: 5, step: 0, first: 0 };
        let images = |indices: &[usize]| task.batch(&data, draw, indices).unwrap().images;
        let plan = task.plan(draw).unwrap();
        for batch in &plan {
            for part in [1, 2, 4] {
                assert!(batch.chunks(part).flat_map(images).collect::<Vec<u8>>() == images(batch), "{part}");
            }
        }
        let again: Vec<usize> = plan.concat().into_iter().filter(|sample| sample % 12 == 0).collect();
        let unlike: BTreeSet<Vec<u8>> = again.iter().map(|&sample| images(&[sample])).collect();
        assert!(again.len() > 3 && unlike.len() == again.len(), "six of seventeen parts of twelve: {again:?}");
    }

    #[test]
    fn a_short_run_keeps_its_mosaic() {
        let config = |close_mosaic| TrainConfig { close_mosaic, ..TrainConfig::default() };
        let open = pixels(config(0), 3, 5);
        assert_eq!(pixels(config(10), 3, 5), open);
        assert_eq!(pixels(config(4), 3, 5), open);
        assert_ne!(pixels(config(5), 3, 5), open);
        assert_eq!(pixels(config(5), 3, 5), pixels(TrainConfig { mosaic: 0.0, ..config(0) }, 3, 5));
    }

    #[test]
    fn mosaic_stays_closed_by_the_epochs_that_it_was_closed_by() {
        let open = task(TrainConfig { close_mosaic: 4, ..TrainConfig::default() }, 3);
        let without = task(TrainConfig { mosaic: 0.0, ..TrainConfig::default() }, 3);
        let data = InMemDataset::new(vec![item()]);
        // What the Learner tells of a run that a time limit ends: estimates until one closes it in the second half, and that one from then on.
        for (epoch, epochs, closed) in [(0, 20, false), (1, 3, false), (2, 6, true), (3, 6, true), (40, 6, true), (3, 20, false)] {
            let draw = Draw { seed: 1, epoch, epochs, step: 0, first: 0 };
            let [mosaic, plain] = [&open, &without].map(|task| task.batch(&data, draw, &[0]).unwrap().images);
            assert_eq!((open.is_closing(draw), mosaic == plain), (closed, closed), "epoch {epoch} of {epochs}");
        }
    }

    #[test]
    fn a_network_of_one_channel_sees_what_the_sensor_gave() {
        let plain = TrainConfig { mosaic: 0.0, ..TrainConfig::default() };
        let still = TrainConfig { hsv_v: 0.0, ..plain.clone() };
        assert_eq!(pixels(plain.clone(), 1, 20), pixels(still.clone(), 1, 20));
        assert_ne!(pixels(plain, 3, 20), pixels(still, 3, 20));
    }

    #[test]
    fn a_scaled_loss_has_the_gradients_of_the_plain_one() {
        let task = task(TrainConfig::default(), 3);
        let device = Device::flex().autodiff();
        let model = YoloConfig::new(1).init(0, &device);
        let layout = Layout::of(&model, |name| task.role_of(name));
        let draw = Draw { seed: 1, epoch: 0, epochs: 5, step: 0, first: 0 };
        let batch = task.batch(&InMemDataset::new(vec![item()]), draw, &[0]).unwrap();
        let gradients = || {
            let (output, grads) = task.gradients(&model, &batch, draw, &device, &layout, &mut Stopwatch::start(None));
            let numbers = |tensor: Tensor<1>| tensor.try_into_vec_as::<f32>().unwrap();
            (numbers(output.loss), grads.into_iter().map(|grad| grad.map(numbers)).collect::<Vec<_>>())
        };
        let (loss, plain) = gradients();
        task.scale_loss(0.25);
        let (told, scaled) = gradients();
        assert_eq!(told, loss, "the loss itself is told");
        for (scaled, plain) in scaled.iter().zip(&plain) {
            assert_eq!(scaled.is_some(), plain.is_some());
            let mut pairs = scaled.iter().flatten().zip(plain.iter().flatten());
            assert!(pairs.all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs() + 1e-30));
        }
        assert!(plain.iter().flatten().flatten().any(|g| *g != 0.0));
        // More than f32 holds.
        task.scale_loss(1e300);
        let (told, beyond) = gradients();
        assert!(told == loss && beyond.iter().flatten().flatten().any(|g| !g.is_finite()), "it is in the backward pass");
    }
}
