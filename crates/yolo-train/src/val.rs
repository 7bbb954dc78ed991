//! `yolo-train val`: how good weights are on a split of a data set.

use std::path::{Path, PathBuf};

use bellows_cli::{Bar, Context, Exit, Failure, Signals, Usage, join_pool, note, option, say, switch, text};
use bellows_learner::{EvalContext, Shared};
use bellows_runs::{results_dir, write_atomic_with};
use bellows_yolo::config::{BatchSize, Cache, TrainConfig};
use bellows_yolo::data::{DataError, Split};
use bellows_yolo::metrics::table_header;
use bellows_yolo::{
    Page, Predictions, SplitData, Submitted, Template, TrainError, ValSet, Validation, Verdict, WeightFile, can_submit, validate,
    validate_tiled, write_submission,
};
use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Command};
use serde_json::json;

use crate::report::tell;
use crate::run::{device_to_use, machine, watched};
use crate::used::{Share, keep, set_aside, tiling, tiling_flags, weights_flag, weights_path};

fn share() -> Share {
    let names = &[
        "data",
        "imgsz",
        "batch",
        "single_cls",
        "classes",
        "cache",
        "allow_bad",
        "allow_outside",
        "device",
        "conv",
        "conv_workspace_mb",
        "precision",
        "workers",
        "project",
        "name",
        "exist_ok",
        "plots",
        "conf",
        "iou",
        "max_det",
        "agnostic_nms",
        "save_json",
        "group_by",
        "range",
        "percentile",
        "percentile_of",
    ];
    Share::new(names, json!({ "name": "val" })).worded(&[
        ("imgsz", "Longer side of the images that are judged, in pixels, rounded up to a multiple of 32 [default: as trained]"),
        ("batch", "Images that are computed at a time [default: 16]"),
        ("classes", "Judge these class indices only, as a list"),
        ("save_json", "Write the detections as COCO predictions.json [default: false]"),
        (
            "group_by",
            "Also judge groups of images, as a list: month, hour, daynight, clip, or a key of a COCO file's meta \
             [default: month, daynight, temperature and clip where the file tells them]",
        ),
        ("range", "Counts of 16-bit images that become black and white, as low,high [default: as trained, else as the data.yaml says, else measured]"),
        ("percentile", "Percentiles of the counts of 16-bit images that do, as low,high, in place of a range [default: as the data.yaml says, else 0.5,99.5]"),
        (
            "percentile_of",
            "Whose percentiles: data (one range for all images, from a sample of the training set) or frame (of each image by itself), \
             in place of a range [default: as trained, else as the data.yaml says, else data]",
        ),
    ])
}

pub(crate) fn command() -> Command {
    Command::new("val")
        .about("Judges weights on a split of a data set: mAP, curves, confusion, AP by object size")
        .arg(weights_flag())
        .arg(
            option("split", "Which images of the data set")
                .default_value("val")
                .value_parser(PossibleValuesParser::new(["train", "val", "test"])),
        )
        .args(share().flags())
        .args(tiling_flags())
        .arg(
            option("submission", "Write what was found in every image, by the ids of the COCO file: the thermal drift challenge's file")
                .value_name("FILE"),
        )
        .arg(
            option("submission-template", "The challenge's template, whose ids the submission has: all of them, and no others")
                .value_name("FILE")
                .requires("submission"),
        )
        .arg(switch("json", "Print one JSON object on stdout, and what is for people on stderr"))
}

/// Images at a time; a part of the device's memory is refused, which only training is planned for.
fn batch_said(batch: BatchSize) -> Result<usize, Usage> {
    match batch {
        BatchSize::Images(images) => Ok(images),
        BatchSize::Memory(_) => Err(Usage("--batch: val plans nothing for the device's memory; say how many images".into())),
    }
}

pub(crate) fn run(matches: &ArgMatches, _: &Signals) -> Result<(), Failure> {
    let tell_people: fn(&str) = if matches.get_flag("json") { note } else { say };
    let path = weights_path(matches)?;
    join_pool(0)?;
    let weights = WeightFile::read(&path)?;
    let mut config = share().settle(matches, &weights)?;
    if config.data.is_empty() {
        return Err(Usage("--data FILE is required: a data.yaml that names the images and classes (see --help)".into()).into());
    }
    let images = batch_said(config.batch)?;
    let split = match text(matches, "split").as_deref() {
        Some("train") => Split::Train,
        Some("test") => Split::Test,
        _ => Split::Val,
    };
    let tiling = tiling(matches)?;
    if tiling.is_some() && config.cache != Cache::Off {
        return Err(Usage("--tile cuts images as they are: --cache, which keeps them at imgsz, cannot be given with it".into()).into());
    }
    let submitted = text(matches, "submission").map(PathBuf::from);
    if let Some(file) = &submitted {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if file.is_dir() {
            return Err(Usage(format!("--submission {}: that is a folder, and a file is to be written", file.display())).into());
        }
        if !folder.is_dir() {
            return Err(Usage(format!("--submission {}: there is no folder {}", file.display(), folder.display())).into());
        }
    }
    let template = text(matches, "submission-template").map(|file| Template::read(Path::new(&file))).transpose()?;
    let device = device_to_use(&config, &weights, [config.imgsz; 2], images)?;
    let model = weights.detector(&device.device)?.fuse(&device.device);
    let mut data = watched(tell_people, |progress| SplitData::find(&config, split, model.channels(), progress))?;
    if submitted.is_some() {
        let entries = can_submit(&data.set, &data.names, config.classes.as_deref(), template.as_ref())?;
        data.lines.extend(template.is_some().then(|| differs(&entries)));
    }
    if submitted.is_some() || config.save_json {
        data.set = data.set.keeping_detections();
    }
    config.group_by = config.group_by.or_else(|| Some(data.set.usual_groups()));
    data.lines.iter().for_each(|line| tell_people(line));
    must_fit(&weights, &data.names, &config, &path)?;
    // What an hour has found must have a place to go to.
    let folder = results_dir(Path::new(&config.project), &config.name, config.exist_ok)?;
    if let Err(error) = watched(tell_people, |progress| data.decode(&config, progress)) {
        // Nothing was found; it stays if it is not empty.
        std::fs::remove_dir(&folder).ok();
        return Err(error);
    }

    let mut bar = Bar::new("validating ", 0).through(tell_people);
    let mut progress = |done, total| bar.show(table_header, done, total);
    let mut context = EvalContext {
        device: &device.device,
        workers: config.workers,
        epoch: 0,
        progress: &mut progress,
        interrupted: &|| false,
        shared: &Shared::alone(),
    };
    let validation = match tiling {
        Some(tiling) => validate_tiled(&model, &data.set, tiling, &config, &mut context),
        None => validate(&model, &data.set, &config, &mut context),
    };
    bar.finish("");
    // Images that cannot be read are the data's fault.
    let validation = validation.map_err(|error| match error.downcast::<DataError>() {
        Ok(data) => Failure::from(*data),
        Err(error) => Failure::from(TrainError::Validation(error)),
    })?;
    validation.unreadable.iter().for_each(|reason| note(&format!("left out: {reason}")));
    tell(&validation, &data.names, tell_people);

    // Before a submission, which may be called as one of them. Neither keeps the other from being written, and a picture none.
    let aside = set_aside(&folder);
    let handed_in = submitted.map(|file| hand_in(&file, &data.set, &validation, template.as_ref())).transpose();
    let aside = aside?;
    if aside > 0 {
        let of_before = format!("{aside} files and folders of the validation before in {}", folder.display());
        tell_people(&format!("{of_before} are set aside: they are called NAME.abandoned, or NAME.abandoned-2 and so on"));
    }
    let verdict = Verdict::new(&validation, &data.names);
    keep(&folder, &verdict.files().map_err(TrainError::Validation)?)?;
    if config.save_json {
        let predictions = Predictions { set: &data.set, validation: &validation, single_cls: config.single_cls };
        predictions.shared_ids().iter().for_each(|line| note(line));
        let path = folder.join("predictions.json");
        write_atomic_with(&path, |out| Ok(serde_json::to_writer(out, &predictions)?)).context(Exit::Failed, path.display())?;
    }
    handed_in?.iter().for_each(|line| tell_people(line));
    if matches.get_flag("json") {
        let mut object = verdict.json();
        let about = [
            ("weights", path.display().to_string()),
            ("data", config.data.clone()),
            ("split", split.key().into()),
            ("folder", folder.display().to_string()),
        ];
        object.extend(about.map(|(name, value)| (name.to_string(), value.into())));
        say(&serde_json::Value::Object(object).to_string());
    }
    if config.plots {
        let title = format!("{} on {} ({})", path.display(), config.data, split.key());
        let facts = [("Machine", machine(&device)), ("Settings", share().told(&config))];
        let page =
            Page { title: &title, facts: &facts, history: None, validation: &validation, set: &data.set, names: &data.names, samples: &[] };
        keep(&folder, &verdict.pictures().context(Exit::Failed, "drawing")?)?;
        keep(&folder, &[page.file().map_err(TrainError::Validation)?])?;
    }
    tell_people(&format!("Results saved to {}", folder.display()));
    Ok(())
}

/// How the images of a template differ from those of the data.
fn differs(entries: &Submitted) -> String {
    let Submitted { images, added, dropped } = entries;
    format!(
        "submission template: {images} ids, of which {added} are of no image here and get empty entries; {dropped} images here are not in it and are left out"
    )
}

/// Writes a submission, and says so.
fn hand_in(file: &Path, set: &ValSet, validation: &Validation, template: Option<&Template>) -> Result<String, Failure> {
    let entries = write_submission(file, set, validation, template).context(Exit::Failed, file.display())?;
    Ok(format!("Submission of {} images written to {}", entries.images, file.display()))
}

/// That the classes are the same; other names for them are only said.
fn must_fit(weights: &WeightFile, names: &[String], config: &TrainConfig, path: &Path) -> Result<(), Failure> {
    let (ours, theirs) = (weights.names(), names);
    if config.single_cls || ours == theirs {
        return Ok(());
    }
    if ours.len() != theirs.len() {
        return Err(Usage(format!("{} is for {} classes, {} has {}", path.display(), ours.len(), config.data, theirs.len())).into());
    }
    note(&format!("warning: classes by index are called {ours:?} in the weights and {theirs:?} in the data"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_memory_is_no_batch() {
        let refused = |batch| batch_said(batch).is_err();
        assert_eq!([BatchSize::Images(16), BatchSize::Memory(0.6)].map(refused), [false, true]);
    }
}
