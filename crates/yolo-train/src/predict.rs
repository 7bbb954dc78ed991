//! `yolo-train predict`: what a detector sees on images, films and cameras.
//!
//! Three threads: one decodes, this one computes, one draws and writes. Results come in the order of what was given.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use bellows_cli::{Failure, Signals, Usage, join_pool, option, switch, text};
use bellows_runs::results_dir;
use bellows_yolo::config::TrainConfig;
use bellows_yolo::data::{Frame, Normalisation, Size, Stack};
use bellows_yolo::metrics::NmsConfig;
use bellows_yolo::plots::Ink;
use bellows_yolo::predict::source::{Input, expand};
use bellows_yolo::predict::{PredictConfig, Predictor};
use bellows_yolo::{WeightFile, known_classes};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::json;

use crate::results::{Results, Wanted};
use crate::run::device_to_use;
use crate::shots::{Seen, read};
use crate::used::{Share, sides, tiling, tiling_flags, weights_flag, weights_path};

/// Frames that may wait between two threads: a batch, and a few more so that neither waits for the other. Of a film of 4K each takes 25 MB.
fn ahead(batch: usize) -> usize {
    batch + 2
}

fn share() -> Share {
    let names = &[
        "classes",
        "device",
        "conv",
        "conv_workspace_mb",
        "precision",
        "project",
        "name",
        "exist_ok",
        "conf",
        "iou",
        "max_det",
        "agnostic_nms",
        "range",
        "percentile",
        "percentile_of",
    ];
    Share::new(names, json!({ "name": "predict", "conf": 0.25 })).worded(&[
        ("classes", "Keep detections of these class indices only, as a list"),
        ("range", "Counts of 16-bit images that become black and white, as low,high [default: as trained, else percentiles of each image]"),
        ("percentile", "Percentiles of the counts of each 16-bit image that do, as low,high, in place of a range [default: 0.5,99.5]"),
        ("percentile_of", "Whose percentiles: frame, of each image by itself; of data only training and val measure them"),
    ])
}

/// A switch that can be turned off by a word.
fn choice(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    let values = PossibleValuesParser::new(["true", "false", "True", "False"]);
    option(name, help).num_args(0..=1).default_missing_value("true").default_value(default).value_parser(values).hide_possible_values(true)
}

fn is_on(matches: &ArgMatches, name: &str) -> bool {
    text(matches, name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

pub(crate) fn command() -> Command {
    let number = |name, help| option(name, help).value_name("N").value_parser(value_parser!(u32).range(1..));
    Command::new("predict")
        .about("Draws what a detector sees on images, films and cameras, and writes it as labels, crops or JSON lines")
        .after_help(
            "Examples:\n  yolo-train predict --weights best.safetensors --source frames/\n  \
             yolo-train predict --weights best.pt --source 'clips/**/*.jpg' --save-txt --save-conf\n  \
             find . -name '*.png' | yolo-train predict --weights best.onnx --source - --json",
        )
        .arg(weights_flag())
        .arg(
            option(
                "source",
                "An image, a folder, a pattern, a .txt or .csv list, a film, a camera's number, a stream's address, or - for stdin",
            )
            .value_name("SOURCE"),
        )
        .arg(
            option(
                "imgsz",
                "Longer side of the network's input in pixels, or height and width that it is fitted into [default: as trained]",
            )
            .value_name("N|H,W"),
        )
        .arg(number("batch", "Images that go through the network together").default_value("1"))
        .arg(
            number("vid-stride", "Look at every n-th frame of a film; a detector of several frames takes those before from these")
                .alias("vid_stride")
                .default_value("1"),
        )
        .args(share().flags())
        .args(tiling_flags())
        .args(
            [
                choice("save", "true", "Write images and films with boxes drawn [default: true]"),
                choice("save-frames", "false", "Write each frame of a film with boxes drawn as an image, in a folder beside it")
                    .alias("save_frames"),
                choice("save-txt", "false", "Write a label file an image").alias("save_txt"),
                choice("save-conf", "false", "With the confidence behind each label").alias("save_conf"),
                choice("save-crop", "false", "Write what is in each box as an image of its own").alias("save_crop"),
                choice("show-boxes", "true", "Draw boxes [default: true]").alias("show_boxes"),
                choice("show-labels", "true", "Draw names [default: true]").alias("show_labels"),
                choice("show-conf", "true", "Draw confidences [default: true]").alias("show_conf"),
                number("line-width", "Width of lines in pixels").alias("line_width"),
            ]
            .map(|arg| arg.hide_default_value(true).help_heading("Results")),
        )
        .arg(switch("json", "Print one JSON object an image on stdout, and what is for people on stderr").help_heading("Results"))
}

pub(crate) fn run(matches: &ArgMatches, _: &Signals) -> Result<(), Failure> {
    let path = weights_path(matches)?;
    let source = text(matches, "source").ok_or_else(|| Usage("--source is required: what to look at (see --help)".into()))?;
    let inputs = expand(&source, &mut std::io::stdin())?;
    join_pool(0)?;
    let weights = WeightFile::read(&path)?;
    let config = share().settle(matches, &weights)?;
    images_are_alone(matches)?;
    known_classes(config.classes.as_deref(), weights.names()).map_err(Usage)?;
    let tiling = tiling(matches)?;
    let whole = |name: &str| matches.get_one::<u32>(name).map_or(1, |&n| n as usize);
    let sides = text(matches, "imgsz").map_or(Ok([config.imgsz; 2]), |typed| sides(&typed))?;
    let device = device_to_use(&config, &weights, sides, whole("batch"))?;
    let nms = NmsConfig {
        conf: config.conf as f32,
        iou: config.iou,
        max_det: config.max_det,
        multi_label: false,
        agnostic: config.agnostic_nms,
        classes: config.classes.clone(),
        ..NmsConfig::default()
    };
    let [height, width] = sides.map(|side| side as u32);
    let look = PredictConfig { imgsz: Size { width, height }, batch: whole("batch"), nms, tiling };
    let predictor = Predictor::new(weights.detector(&device.device)?.fuse(&device.device), &device.device, look);
    let results = Results::new(wanted(matches, &config)?, &inputs, weights.names().to_vec())?;
    let (results, clock) = walk(&predictor, &inputs, (whole("vid-stride") as u64, config.levels().alone(), config.stack()), results)?;
    results.end(clock.elapsed().as_secs_f64())
}

/// Refuses percentiles of a data set, of which nothing is known here.
fn images_are_alone(matches: &ArgMatches) -> Result<(), Usage> {
    match text(matches, "percentile_of").as_deref() {
        Some("data") => Err(Usage("--percentile-of data: predict knows no data set; --range LOW,HIGH is one range for all images".into())),
        _ => Ok(()),
    }
}

fn wanted(matches: &ArgMatches, config: &TrainConfig) -> Result<Wanted, Failure> {
    let on = |name: &str| is_on(matches, name);
    let files = ["save", "save-frames", "save-txt", "save-crop"].into_iter().any(on);
    let folder = files.then(|| results_dir(Path::new(&config.project), &config.name, config.exist_ok)).transpose()?;
    let line_width = matches.get_one::<u32>("line-width").copied();
    Ok(Wanted {
        folder,
        images: on("save"),
        frames: on("save-frames"),
        labels: on("save-txt"),
        confidences: on("save-conf"),
        crops: on("save-crop"),
        json: matches.get_flag("json"),
        ink: Ink { boxes: on("show-boxes"), labels: on("show-labels"), conf: on("show-conf"), line_width },
    })
}

/// Looks at everything. What stops one thread stops the others: each ends when its neighbour hangs up.
fn walk(
    predictor: &Predictor,
    inputs: &[Input],
    (stride, levels, stack): (u64, Normalisation, Stack),
    mut results: Results,
) -> Result<(Results, Instant), Failure> {
    let batch = predictor.config().batch;
    let clock = Instant::now();
    let (to_compute, shots) = sync_channel(ahead(batch));
    let (to_write, seen) = sync_channel::<Seen>(ahead(batch));
    std::thread::scope(|scope| {
        scope.spawn(move || read(inputs, stride, (&levels, stack), &to_compute));
        let writer = scope.spawn(move || {
            for seen in seen {
                results.take(seen)?;
                if results.are_unwanted() {
                    break;
                }
            }
            Ok::<_, Failure>(results)
        });
        let computed = compute(predictor, &shots, &to_write, batch);
        drop((shots, to_write));
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A writer that failed is why the computing stopped.
        let results = written?;
        computed?;
        Ok((results, clock))
    })
}

/// Looks at frames in batches as they come; what was skipped keeps its place between them.
fn compute(predictor: &Predictor, shots: &Receiver<Seen>, to: &SyncSender<Seen>, batch: usize) -> Result<(), Failure> {
    let mut waiting: Vec<Seen> = Vec::new();
    let mut open = true;
    while open {
        match shots.recv() {
            Ok(seen) => waiting.push(seen),
            Err(_) => open = false,
        }
        let frames = waiting.iter().filter(|seen| matches!(seen, Seen::Shot(..))).count();
        if (open && frames < batch && frames > 0) || waiting.is_empty() {
            continue;
        }
        let looked = Instant::now();
        let frames: Vec<&Frame> =
            waiting.iter().filter_map(|seen| if let Seen::Shot(shot, ..) = seen { Some(shot.input()) } else { None }).collect();
        let found = predictor.predict(&frames)?;
        let each = looked.elapsed().as_secs_f64() * 1e3 / frames.len().max(1) as f64;
        let mut found = found.into_iter();
        for seen in waiting.drain(..) {
            let seen = match seen {
                Seen::Shot(shot, ..) => Seen::Shot(shot, found.next().unwrap_or_default(), each),
                skipped @ Seen::Skipped(_) => skipped,
            };
            if to.send(seen).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_frames_wait_however_large_a_batch_is() {
        assert_eq!([1, 8, 32].map(ahead), [3, 10, 34]);
    }

    #[test]
    fn percentiles_are_of_each_image() {
        command().debug_assert();
        let matches = |args: &[&str]| command().try_get_matches_from([&["predict"], args].concat()).unwrap();
        assert!(images_are_alone(&matches(&["--percentile", "1,99"])).is_ok());
        assert!(images_are_alone(&matches(&["--percentile-of", "frame"])).is_ok());
        let refused = images_are_alone(&matches(&["--percentile-of", "data"])).unwrap_err().to_string();
        assert!(refused.contains("predict knows no data set") && refused.contains("--range"), "{refused}");
        let help = command().render_long_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("of each image by itself") && !help.contains("a sample of the training set"), "{help}");
    }
}
