//! `yolo-train plan`: memory and speed of a run before anything is allocated.

use std::path::PathBuf;

use bellows_cli::{Failure, Signals, Target, flag, flag_values, join_pool, note, option, say, switch, text, yaml_layer};
use bellows_device::processor;
use bellows_kernels::{Precision, processor_peak};
use bellows_settings::Layer;
use bellows_yolo::config::{SETTINGS, TrainConfig};
use bellows_yolo::fit::Question;
use bellows_yolo::memory::Plan;
use bellows_yolo::{TrainingData, network};
use clap::{ArgMatches, Command};
use serde_json::{Value, json};

use crate::run::{CLASSES, device, of_dataset, watched};

/// The share of its processor's rate that a step reaches (measured: 74 to 92 %).
const OF_PEAK: f64 = 0.8;
/// The share of a card's published rate: an assumption, for none was at hand. PyTorch was seen at 8 % on an RX 5600 XT (21 images a second).
const OF_PUBLISHED: f64 = 0.08;

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

/// Plans.
pub(crate) fn run(matches: &ArgMatches, _signals: &Signals) -> Result<(), Failure> {
    let config = settings(matches)?;
    join_pool(0)?;
    let target = match text(matches, "card") {
        Some(name) => Target::card(&name, OF_PUBLISHED)?,
        None => Target::here(&device(&config, false, false)?, OF_PUBLISHED, || {
            let peak = processor_peak(Precision::F32);
            (OF_PEAK * peak, format!("{:.0} % of a peak of {:.0} GFLOP/s measured here", 100.0 * OF_PEAK, peak / 1e9))
        }),
    };
    let (classes, channels, data) = subject(&config)?;
    let cached = |side: usize| data.as_ref().map_or(0.0, |data| data.cache_bytes(side));
    // Its parameters are made to be counted, on the processor.
    let form = network(&config, classes, channels, &processor())?;
    let mut question = Question::new(config, form, target.place, &cached);
    let said = question.choose_batch(target.memory).into_iter().chain(question.choose_checkpointing(target.memory)).collect::<Vec<_>>();
    // A limit is a question here, and no reason to refuse.
    let answer = Answer::new(&question, &target);
    if matches.get_flag("json") {
        say(&answer.json().to_string());
        return Ok(());
    }
    said.iter().for_each(|line| say(line));
    answer.tell(&question.config.model, &target);
    Ok(())
}

/// The settings of the run that training would be.
fn settings(matches: &ArgMatches) -> Result<TrainConfig, Failure> {
    let file = text(matches, "config").map(PathBuf::from).map(|file| yaml_layer(&file)).transpose()?;
    let values = flag_values(SETTINGS.iter().map(|s| (s.key(), s.read)), matches);
    let flags = Layer { origin: "command line".into(), values };
    let data = [Some(&flags), file.as_ref()].into_iter().flatten().find_map(|layer| layer.values.get("data")?.as_str());
    let dataset = data.map(|data| of_dataset(data, file.as_ref(), &flags)).transpose()?;
    let layers: Vec<Layer> = [dataset, file, Some(flags)].into_iter().flatten().collect();
    Ok(TrainConfig::from_layers(&layers)?)
}

/// Classes and channels of the network: as the data say, if there are any.
fn subject(config: &TrainConfig) -> Result<(usize, usize, Option<TrainingData>), Failure> {
    if config.data.is_empty() {
        let stack = config.stack();
        return Ok((CLASSES, if stack.is_on() { stack.channels() } else { 3 }, None));
    }
    // Sizes are known without decoding.
    let data = watched(note, |progress| TrainingData::find(config, progress))?;
    Ok((data.names.len(), data.channels, Some(data)))
}

/// What there is to say.
struct Answer {
    plan: Plan,
    keeps: bool,
    images: usize,
    side: usize,
    room: Option<f64>,
    /// Images of a batch that fit, and the `imgsz` with which so many do.
    largest: Option<[usize; 2]>,
    /// Flags that would make it fit, if it does not, and that in words.
    remedy: Option<String>,
    advice: Option<String>,
    images_per_s: Option<f64>,
}

impl Answer {
    fn new(question: &Question<'_>, target: &Target) -> Self {
        let (plan, room) = (question.plan(), target.room(question.config.memory_limit));
        let short = room.filter(|room| plan.peak() > *room);
        let remedy = short.and_then(|room| question.remedies(room));
        Self {
            plan,
            keeps: question.keeps,
            images: question.config.batch.images(),
            side: question.config.largest_side(),
            room,
            largest: room.map(|room| [question.most_images(room), question.largest_imgsz(room)]),
            advice: short.map(|_| question.advice(remedy.as_deref())),
            remedy,
            images_per_s: target.rate.as_ref().map(|(rate, _)| rate / question.summary().work()),
        }
    }

    fn fits(&self) -> Option<bool> {
        self.room.map(|room| self.plan.peak() <= room)
    }

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
        json["gradient_checkpointing"] = (!self.keeps).into();
        json["batch"] = self.images.into();
        json["imgsz"] = self.side.into();
        json["memory_gb"] = self.room.map(|bytes| bytes / 1e9).into();
        json["fits"] = self.fits().into();
        json["largest_batch"] = self.largest.map(|[images, _]| images).into();
        json["largest_imgsz"] = self.largest.map(|[_, imgsz]| imgsz).into();
        json["remedy"] = self.remedy.clone().into();
        json
    }

    fn tell(&self, model: &str, target: &Target) {
        say(&format!("{model} · {} images of {} pixels · {}", self.images, self.side, target.name));
        for (name, bytes) in self.terms() {
            say(&format!("{name:>12} {:>8.2} GB", bytes / 1e9));
        }
        let verdict = match (self.room, self.fits()) {
            (Some(room), Some(fits)) => format!("   of {:.2}: {}", room / 1e9, if fits { "fits" } else { "does not fit" }),
            _ => String::new(),
        };
        say(&format!("{:>12} {:>8.2} GB{verdict}", "peak", self.plan.peak() / 1e9));
        if let (Some(speed), Some((_, how))) = (self.images_per_s, &target.rate) {
            say(&format!("{:>12} {speed:>8.1} images/s   {how}", "speed"));
        }
        let larger = |imgsz| format!("--imgsz {imgsz} in batches of {}", self.images);
        let largest = match self.largest {
            None | Some([0, 0]) => None,
            Some([0, imgsz]) => Some(larger(imgsz)),
            Some([images, imgsz]) => Some(format!("batches of {images} images, or {}", larger(imgsz))),
        };
        if let Some(largest) = largest {
            say(&format!("the largest that fits: {largest}"));
        }
        if let Some(advice) = &self.advice {
            say(advice);
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
