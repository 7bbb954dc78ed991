//! One training run from the command line: layers of settings, device, data, run directory, training, the closing words.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use bellows_cli::{Bar, Usage, columns, join_pool, pick_device, record_settings, resumed, say, yaml_layer};
use bellows_device::{ProbeOptions, Telemetry};
use bellows_kernels::{cube, set_default_lowering};
use bellows_learner::{Dashboard, Outcome, signals};
use bellows_runs::RunDir;
use bellows_settings::Layer;
use bellows_yolo::config::{MAY_CHANGE, SETTINGS, TrainConfig};
use bellows_yolo::data::DataConfig;
use bellows_yolo::metrics::table_header;
use bellows_yolo::{Report, Training, TrainingData};
use burn::train::Interrupter;
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use serde_json::{Value, json};

use crate::args::TrainArgs;
use crate::console::Console;

/// Settings that a dataset, which may be a stranger's file, cannot give itself: what is read, written and run where.
const NOT_FROM_DATA: [&str; 8] = ["data", "model", "pretrained", "allow_outside", "allow_bad", "project", "name", "exist_ok"];

pub(crate) fn train(args: TrainArgs) -> anyhow::Result<()> {
    if args.tui && !std::io::stdout().is_terminal() {
        return Err(Usage("--tui needs a terminal: leave it out".into()).into());
    }
    join_pool(0)?;
    let stop = signals::install().context("installing signal handlers")?;
    let (config, resumed) = settle(&args)?;
    say(&format!("Bellows {} · YOLOv8 · {}", env!("CARGO_PKG_VERSION"), config.data));
    let options = ProbeOptions { reprobe: args.reprobe, lowering: Some(config.conv.parse()?), ..ProbeOptions::default() };
    let device = pick_device(&config.device, &options)?;
    if let Some(reason) = &device.lowering_reason {
        say(&format!("convolutions: {}, because {reason}", device.lowering));
    }
    set_default_lowering(device.lowering);
    cube::set_workspace_mb(config.conv_workspace_mb);
    let bar = Mutex::new(None);
    let data = TrainingData::open(&config, &|what, done, total| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        bar.get_or_insert_with(|| Bar::new("", total as usize)).set(what.to_string(), done as usize, total as usize);
    })?;
    if let Some(bar) = bar.into_inner().unwrap_or_else(PoisonError::into_inner) {
        bar.finish("");
    }
    data.lines.iter().for_each(|line| say(line));

    let dir = match &resumed {
        Some(path) => RunDir::open(path)?,
        None => RunDir::create(Path::new(&config.project), &config.name, config.exist_ok)?,
    };
    let _lock = dir.lock()?;
    let path = dir.path().to_path_buf();
    let mut training = Training::new(data, config.clone(), &device.device, device.memory, dir)?;
    training.header().iter().for_each(|line| say(line));
    if resumed.is_some() {
        training.learner().resume()?;
    } else {
        record_settings(&path, &format!("yolo-train {}", args.typed.join(" ")), SETTINGS, training.config())?;
    }
    training.note_device(json!({
        "backend": device.backend,
        "name": device.name,
        "fallback": device.fallback,
        "conv": device.lowering.name(),
        "conv_reason": device.lowering_reason,
    }));
    let telemetry = Telemetry::start(&device);
    training.learner().stop_when(stop.clone()).gauges(move || telemetry.latest().gauges());
    if args.tui {
        let quit = Interrupter::new();
        let renderer = TuiMetricsRendererWrapper::new(quit.clone(), None);
        training.learner().stop_on(quit).observe(Dashboard::new(Box::new(renderer)));
    } else {
        say(&format!("Logging to {}\nStarting training for {} epochs", path.display(), config.epochs));
        training.learner().observe(Console::new(config.imgsz));
    }
    let started = Instant::now();
    let (names, report) = (training.names().to_vec(), training.run()?);
    // The dashboard gives the terminal back when it is dropped.
    drop(training);
    close(&report, &path, started.elapsed().as_secs_f64(), &names);
    Ok(())
}

/// All settings of the run, and the run directory when one is resumed.
fn settle(args: &TrainArgs) -> anyhow::Result<(TrainConfig, Option<PathBuf>)> {
    if let Some(which) = &args.resume {
        let (path, layers) = resumed(which.as_deref(), &args.flags, &TrainConfig::default().project, &MAY_CHANGE)?;
        return Ok((TrainConfig::from_layers(&layers)?, Some(path)));
    }
    let file = args.config.as_deref().map(yaml_layer).transpose()?;
    let data = [Some(&args.flags), file.as_ref()].into_iter().flatten().find_map(|l| l.values.get("data")?.as_str());
    let data = data.ok_or_else(|| Usage("--data FILE is required: a data.yaml that names the images and classes (see --help)".into()))?;
    let allow_outside = args.flags.values.get("allow_outside").and_then(Value::as_array).cloned().unwrap_or_default();
    let allow_outside: Vec<PathBuf> = allow_outside.iter().filter_map(Value::as_str).map(PathBuf::from).collect();
    let settings = DataConfig::load(Path::new(data), &allow_outside)?.settings;
    if let Some(key) = settings.keys().find(|key| NOT_FROM_DATA.contains(&key.replace('-', "_").as_str())) {
        return Err(Usage(format!("{data}: `{key}` is the user's to set; a dataset's settings may not")).into());
    }
    let dataset = Layer { origin: format!("{data}, settings"), values: settings.into_iter().collect() };
    let layers: Vec<Layer> = [Some(dataset), file, Some(args.flags.clone())].into_iter().flatten().collect();
    Ok((TrainConfig::from_layers(&layers)?, None))
}

fn close(report: &Report, dir: &Path, seconds: f64, names: &[String]) {
    match report.outcome {
        Outcome::NothingToDo => say(&format!("{} is finished: nothing to resume", dir.display())),
        Outcome::Interrupted => say(&format!("Stopped; go on with: yolo-train --resume {}", dir.display())),
        Outcome::Finished | Outcome::EarlyStopped => {
            say(&format!("\n{} epochs completed in {:.3} hours", report.epochs, report.elapsed_s / 3600.0))
        }
    }
    if let Some(m) = &report.best {
        say(&format!(
            "Best weights: {}\n{}\n{}",
            dir.join("weights/best.safetensors").display(),
            table_header(columns()),
            m.summary_row(columns())
        ));
        m.class_rows(columns(), names).iter().for_each(|row| say(row));
        let s = m.speed;
        say(&format!(
            "Speed: {:.1}ms preprocess, {:.1}ms inference, {:.1}ms loss, {:.1}ms postprocess per image",
            s.preprocess, s.inference, s.loss, s.postprocess
        ));
    }
    say(&format!("Results saved to {} ({seconds:.0} s)", dir.display()));
}
