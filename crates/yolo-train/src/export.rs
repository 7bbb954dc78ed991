//! `yolo-train export`: a trained detector as a file for other programs.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bellows_cli::{Failure, Signals, Usage, count, option, quoted, say, switch, text, whole, yaml_layer};
use bellows_device::{ProbeOptions, select};
use bellows_runs::write_atomic;
use bellows_yolo::Detector;
use bellows_yolo::config::STRIDE;
use bellows_yolo::export::{About, ExportError, OPSET, OnnxOptions, Suppression, iso_date, to_onnx, to_pt, to_weights};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Map, Value};

use crate::used::{sides, weights_flag, weights_path};

/// The verb's flags.
pub(crate) fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| -> Arg {
        option(name, help).value_name("X").default_value(default).value_parser(value_parser!(f32))
    };
    let path = |name: &'static str, help: &'static str| option(name, help).value_name("FILE").value_parser(value_parser!(PathBuf));
    Command::new("export")
        .about("Writes a trained detector as a file for other programs: ONNX, a .pt for Ultralytics, safetensors")
        .arg(weights_flag())
        .arg(option("format", "What to write").default_value("onnx").value_parser(PossibleValuesParser::new(["onnx", "pt", "safetensors"])))
        .arg(path("output", "Where to write it [default: beside the weights]"))
        .arg(option("imgsz", "onnx: side of the images, or height and width, in pixels [default: as trained]").value_name("N|H,W"))
        .arg(count("batch", "1", "onnx: images at a time"))
        .arg(switch("dynamic", "onnx: any batch, height and width"))
        .arg(
            option("opset", "onnx: version of the operators")
                .default_value("17")
                .value_parser(PossibleValuesParser::new([OPSET.to_string()])),
        )
        .arg(switch("nms", "onnx: suppress inside the graph, output [batch, max_det, 6]: x1, y1, x2, y2, score, class"))
        .arg(number("conf", "0.25", "with --nms: least score of a box").requires("nms"))
        .arg(number("iou", "0.7", "with --nms: most overlap with a better box of its class").requires("nms"))
        .arg(count("max-det", "300", "with --nms: most boxes of an image").requires("nms"))
        .arg(switch("half", "pt: weights as 16-bit floats, as Ultralytics stores them, instead of 32-bit ones"))
}

/// Exports.
pub(crate) fn run(matches: &ArgMatches, _signals: &Signals) -> Result<(), Failure> {
    let input = weights_path(matches)?;
    let format = text(matches, "format").unwrap_or_default();
    only_for_its_format(matches, &format)?;
    let output = matches.get_one::<PathBuf>("output").cloned().unwrap_or_else(|| input.with_extension(&format));
    if same_file(&input, &output) {
        let problem = format!("{}: that is the file to export from; give another --output", output.display());
        return Err(Usage(problem).into());
    }
    // Nothing is computed that a processor does not do at once.
    let device = select(&"cpu".parse()?, &ProbeOptions::default())?.device;
    let detector = Detector::open(&input, &device)?;
    if detector.folded && format != "onnx" {
        return Err(Usage(format!("{}: {}", input.display(), ExportError::Folded)).into());
    }
    let about = about(&detector, &input);
    let (bytes, what, how) = match format.as_str() {
        "onnx" => {
            let options = onnx_options(matches, &detector)?;
            let bytes = to_onnx(&detector.fuse(&device), &about, &options)?;
            (
                bytes,
                describe(&about, &options),
                format!(
                    "yolo-train predict --weights {} --source IMAGE, or onnxruntime.InferenceSession(\"{}\")",
                    quoted(&output),
                    output.display()
                ),
            )
        }
        "pt" => {
            let half = matches.get_flag("half");
            let what = format!("weights as {}-bit floats", if half { 16 } else { 32 });
            (to_pt(&detector.model, &about, half)?, what, format!("ultralytics.YOLO(\"{}\")", output.display()))
        }
        _ => {
            let epoch = detector.metadata.get("epoch").and_then(|epoch| epoch.parse().ok());
            let bytes = to_weights(&detector.model, &about.names, about.imgsz, &about.preprocessing, epoch, about.license.as_deref())?;
            (bytes, "weights as 32-bit floats".into(), format!("yolo-train --model {} --data DATA.yaml", quoted(&output)))
        }
    };
    write_atomic(&output, &bytes)?;
    say(&format!("{} ({:.1} MB): {what}", output.display(), bytes.len() as f64 / 1e6));
    say(&format!("use it: {how}"));
    Ok(())
}

/// Flags of one format given with another would change nothing.
fn only_for_its_format(matches: &ArgMatches, format: &str) -> Result<(), Failure> {
    let of = |flags: &[&'static str], owner: &'static str| {
        let typed = |flag: &&&str| matches.value_source(flag) == Some(clap::parser::ValueSource::CommandLine);
        let flag = flags.iter().find(typed).filter(|_| format != owner);
        flag.map_or(Ok(()), |flag| Err(Usage(format!("--{flag} is for --format {owner}, not {format}"))))
    };
    of(&["imgsz", "batch", "dynamic", "opset", "nms"], "onnx")?;
    Ok(of(&["half"], "pt")?)
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

fn about(detector: &Detector, input: &Path) -> About {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    About {
        config: detector.config,
        names: detector.names.clone(),
        imgsz: detector.imgsz.map_or(640, |side| side as usize),
        date: iso_date(now),
        license: detector.metadata.get("license").cloned(),
        settings: settings(detector, input),
        preprocessing: detector.preprocessing,
    }
}

/// The settings of the training: from the file, or from the run whose `weights` it stands in; none where neither tells.
fn settings(detector: &Detector, input: &Path) -> Map<String, Value> {
    let stored = detector.metadata.get("train_args").and_then(|text| serde_json::from_str(text).ok());
    // A name alone is of the current folder, which may be those `weights`.
    let input = std::path::absolute(input).ok();
    let recorded = || {
        let run = input.as_deref()?.parent().filter(|dir| dir.ends_with("weights"))?.parent()?;
        let file = run.join("config.yaml");
        let mut settings = yaml_layer(&file).ok()?.values;
        settings.remove("command");
        Some(settings)
    };
    stored.or_else(recorded).unwrap_or_default()
}

fn onnx_options(matches: &ArgMatches, detector: &Detector) -> Result<OnnxOptions, Failure> {
    let size = match text(matches, "imgsz") {
        Some(text) => sides(&text)?,
        None => [detector.imgsz.map_or(640, |side| side as usize).next_multiple_of(STRIDE); 2],
    };
    let value = |name: &str| matches.get_one::<f32>(name).copied().unwrap_or_default();
    let nms = Suppression { conf: value("conf"), iou: value("iou"), max_det: whole(matches, "max-det") };
    let in_range = [nms.conf, nms.iou].iter().all(|x| (0.0..=1.0).contains(x));
    let batch = whole(matches, "batch");
    if batch == 0 || nms.max_det == 0 || !in_range {
        return Err(Usage("export: batch and max-det are at least 1, conf and iou between 0 and 1".into()).into());
    }
    Ok(OnnxOptions { batch, size, dynamic: matches.get_flag("dynamic"), nms: matches.get_flag("nms").then_some(nms) })
}

/// `ONNX opset 17, images [1, 3, 640, 640] to output0 [1, 10, 8400]`.
fn describe(about: &About, options: &OnnxOptions) -> String {
    let [h, w] = options.size;
    let anchors: usize = about.config.strides().iter().map(|s| (h / s) * (w / s)).sum();
    let free = |number: usize, name: &str| if options.dynamic { name.to_string() } else { number.to_string() };
    let batch = free(options.batch, "batch");
    let output = match options.nms {
        Some(nms) if options.dynamic => format!("{batch}, up to {}, 6", nms.max_det),
        Some(nms) => format!("{batch}, {}, 6", nms.max_det.min(anchors)),
        None => format!("{batch}, {}, {}", 4 + about.config.nc, free(anchors, "anchors")),
    };
    let images = format!("{batch}, {}, {}, {}", about.config.channels, free(h, "height"), free(w, "width"));
    format!("ONNX opset {OPSET}, images [{images}] to output0 [{output}]")
}

#[cfg(test)]
mod tests {
    use bellows_yolo::Preprocessing;
    use bellows_yolo::model::YoloConfig;

    use super::*;

    #[test]
    fn the_shape_that_is_told_has_the_cells_of_all_levels() {
        let told = |p2, nms: Option<Suppression>| {
            let about = About {
                config: YoloConfig { p2, ..YoloConfig::new(6) },
                names: Vec::new(),
                imgsz: 640,
                date: String::new(),
                license: None,
                settings: Map::new(),
                preprocessing: Preprocessing::default(),
            };
            describe(&about, &OnnxOptions { batch: 1, size: [640; 2], dynamic: false, nms })
        };
        assert!(told(false, None).ends_with("output0 [1, 10, 8400]"), "{}", told(false, None));
        assert!(told(true, None).ends_with("output0 [1, 10, 34000]"), "{}", told(true, None));
        let all = told(true, Some(Suppression { conf: 0.25, iou: 0.7, max_det: 50_000 }));
        assert!(all.ends_with("output0 [1, 34000, 6]"), "{all}");
    }

    #[test]
    fn a_flag_of_another_format_is_refused() {
        command().debug_assert();
        let check = |args: &[&str]| {
            let matches = command().try_get_matches_from([&["export", "--weights", "w"], args].concat()).map_err(|e| e.to_string())?;
            only_for_its_format(&matches, &text(&matches, "format").unwrap_or_default()).map_err(|e| e.to_string())
        };
        assert_eq!(check(&["--dynamic", "--nms", "--conf", "0.1"]), Ok(()));
        assert_eq!(check(&["--format", "pt", "--half"]), Ok(()));
        assert!(check(&["--format", "pt", "--dynamic"]).unwrap_err().contains("--dynamic is for --format onnx, not pt"));
        assert!(check(&["--half"]).unwrap_err().contains("--half is for --format pt"));
        assert!(check(&["--conf", "0.1"]).unwrap_err().contains("--nms"));
        assert!(check(&["--opset", "11"]).is_err());
    }
}
