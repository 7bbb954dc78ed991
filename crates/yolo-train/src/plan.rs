//! `yolo-train plan`: memory and speed of a run before anything is allocated.

use std::path::PathBuf;

use bellows_cli::{Failure, Signals, Usage, flag, flag_values, join_pool, note, option, say, switch, text, yaml_layer};
use bellows_device::{Backend, CARDS, Card, Selected, processor};
use bellows_kernels::processor_peak;
use bellows_learner::memory::free_memory;
use bellows_settings::Layer;
use bellows_yolo::config::{BatchSize, Cache, SETTINGS, TrainConfig};
use bellows_yolo::memory::{MOST_IMAGES, Plan};
use bellows_yolo::model::summary::Summary;
use bellows_yolo::{TrainingData, network};
use clap::{ArgMatches, Command};
use serde_json::{Value, json};

use crate::run::{device, of_dataset, watched};

/// The share of its processor's rate that a step reaches (measured: 74 to 92 %).
const OF_PEAK: f64 = 0.8;
/// The share of a card's published rate: an assumption, for none was at hand. PyTorch was seen at 8 % on an RX 5600 XT (21 images a second).
const OF_PUBLISHED: f64 = 0.08;
/// Classes of a network whose data are not given, as COCO has them.
const CLASSES: usize = 80;

/// The verb's flags.
pub(crate) fn command() -> Command {
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
    Command::new("plan")
        .about("Says what memory a run would take, and how fast it would be, before anything is allocated")
        .arg(option("config", "YAML file of settings; flags override it").value_name("FILE"))
        .arg(option("card", "A card that need not be at hand, in place of --device: \"RX 6700 XT\", MI50, ..").value_name("NAME"))
        .arg(switch("json", "Print one JSON object"))
        .args(SETTINGS.iter().map(|s| flag(s, &defaults)))
}

/// Where a run would be.
struct Target {
    name: String,
    /// Bytes there are, and those that a batch is chosen by.
    memory: Option<f64>,
    of_device: Option<u64>,
    /// Multiplications and additions a second that training reaches, and how that is known.
    rate: Option<(f64, String)>,
}

impl Target {
    fn card(card: &Card) -> Self {
        let memory = card.memory();
        let name = format!("{} ({} GiB)", card.name, card.memory_gib);
        Self { name, memory: Some(memory as f64), of_device: Some(memory), rate: Some(published(card)) }
    }

    fn here(device: &Selected) -> Self {
        let name = format!("{} ({})", device.backend, device.name);
        if device.backend == Backend::Flex.name() {
            let rate = OF_PEAK * processor_peak();
            let rate = Some((rate, format!("{:.0} % of a peak of {:.0} GFLOP/s measured here", 100.0 * OF_PEAK, rate / OF_PEAK / 1e9)));
            return Self { name, memory: free_memory().map(|bytes| bytes as f64), of_device: None, rate };
        }
        let memory = device.memory.map(|bytes| bytes as f64);
        Self { name, memory, of_device: device.memory, rate: Card::named(&device.name).as_ref().map(published) }
    }
}

fn published(card: &Card) -> (f64, String) {
    let said = format!("{:.0} % of the {} TFLOP/s published of the {}", 100.0 * OF_PUBLISHED, card.flops / 1e12, card.name);
    (OF_PUBLISHED * card.flops, said)
}

/// Plans.
pub(crate) fn run(matches: &ArgMatches, _signals: &Signals) -> Result<(), Failure> {
    let file = text(matches, "config").map(PathBuf::from).map(|file| yaml_layer(&file)).transpose()?;
    let values = flag_values(SETTINGS.iter().map(|s| (s.key(), s.read)), matches);
    let flags = Layer { origin: "command line".into(), values };
    let data = [Some(&flags), file.as_ref()].into_iter().flatten().find_map(|layer| layer.values.get("data")?.as_str());
    let dataset = data.map(|data| of_dataset(data, &flags)).transpose()?;
    let layers: Vec<Layer> = [dataset, file, Some(flags)].into_iter().flatten().collect();
    let mut config = TrainConfig::from_layers(&layers)?;
    join_pool(0)?;
    let target = match text(matches, "card") {
        Some(name) => {
            let known = || CARDS.map(|card| card.name).join(", ");
            Target::card(&Card::named(&name).ok_or_else(|| Usage(format!("--card {name:?} is not known; there are {}", known())))?)
        }
        None => Target::here(&device(&config, false)?),
    };
    let side = config.largest_side();
    let (classes, channels, cache) = subject(&config)?;
    // Its parameters are made to be counted, on the processor.
    let summary = network(&config, classes, channels, &processor())?;
    // Workers and cached images take none of a card's memory.
    let (workers, cache) = if target.of_device.is_some() { (0, 0.0) } else { (config.workers, cache) };
    let with = |batch| Plan::new(&summary, batch, [channels, side], workers, cache);
    let largest = |bytes| Plan::largest(with, bytes, MOST_IMAGES);
    let asked = config.batch;
    let said = config.resolve_batch(target.of_device, largest);
    let images = config.batch.images();
    let answer = Answer {
        plan: with(images),
        images,
        side,
        room: target.memory,
        largest: target.memory.map(largest),
        images_per_s: target.rate.as_ref().map(|(rate, _)| rate / work(&summary)),
    };
    if matches.get_flag("json") {
        say(&answer.json().to_string());
        return Ok(());
    }
    if matches!(asked, BatchSize::Memory(_)) {
        said.iter().for_each(|line| say(line));
    }
    answer.tell(&config.model, &target);
    Ok(())
}

/// Classes and channels of the network, and the bytes of cached images: as the data say, if there are any.
fn subject(config: &TrainConfig) -> Result<(usize, usize, f64), Failure> {
    if config.data.is_empty() {
        let stack = config.stack();
        return Ok((CLASSES, if stack.is_on() { stack.channels() } else { 3 }, 0.0));
    }
    // Sizes are known without decoding.
    let plain = TrainConfig { cache: Cache::Off, ..config.clone() };
    let data = watched(note, |progress| TrainingData::open(&plain, progress))?;
    let cache = if config.cache == Cache::Ram { data.cache_bytes(config.imgsz) } else { 0.0 };
    Ok((data.names.len(), data.channels, cache))
}

/// Multiplications and additions to train on an image: forward, and both gradients of all convolutions but the first, whose input has none.
fn work(summary: &Summary) -> f64 {
    let flops = |convolution: &bellows_yolo::model::summary::Convolution| convolution.flops() as f64;
    let first = summary.convolutions.first().map_or(0.0, flops);
    3.0 * summary.convolutions.iter().map(flops).sum::<f64>() - first
}

/// What there is to say.
struct Answer {
    plan: Plan,
    images: usize,
    side: usize,
    room: Option<f64>,
    largest: Option<usize>,
    images_per_s: Option<f64>,
}

impl Answer {
    fn terms(&self) -> [(&'static str, f64); 5] {
        let Plan { weights, optimizer, activations, workspace, cache } = self.plan;
        [("weights", weights), ("optimizer", optimizer), ("activations", activations), ("workspace", workspace), ("cache", cache)]
    }

    fn json(&self) -> Value {
        let mut json = json!({});
        for (name, bytes) in self.terms() {
            json[format!("{name}_gb")] = (bytes / 1e9).into();
        }
        json["peak_gb"] = (self.plan.peak() / 1e9).into();
        json["images_per_s"] = self.images_per_s.into();
        json["batch"] = self.images.into();
        json["imgsz"] = self.side.into();
        json["memory_gb"] = self.room.map(|bytes| bytes / 1e9).into();
        json["fits"] = self.room.map(|bytes| self.plan.peak() <= bytes).into();
        json["largest_batch"] = self.largest.into();
        json
    }

    fn tell(&self, model: &str, target: &Target) {
        say(&format!("{model} · {} images of {} pixels · {}", self.images, self.side, target.name));
        for (name, bytes) in self.terms() {
            say(&format!("{name:>12} {:>8.2} GB", bytes / 1e9));
        }
        let verdict = self.room.map(|room| {
            let fits = if self.plan.peak() <= room { "fits" } else { "does not fit: a smaller --imgsz, --batch or model would" };
            format!("   of {:.2}: {fits}", room / 1e9)
        });
        say(&format!("{:>12} {:>8.2} GB{}", "peak", self.plan.peak() / 1e9, verdict.unwrap_or_default()));
        if let (Some(speed), Some((_, how))) = (self.images_per_s, &target.rate) {
            say(&format!("{:>12} {speed:>8.1} images/s   {how}", "speed"));
        }
        if let Some(images) = self.largest {
            say(&format!("the largest batch that fits: {images} images"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_data_the_network_has_the_channels_of_its_stack() {
        let channels = |config: TrainConfig| subject(&config).unwrap().1;
        assert_eq!(channels(TrainConfig::default()), 3);
        assert_eq!(channels(TrainConfig { frames: 5, background: 2, ..TrainConfig::default() }), 6);
    }
}
