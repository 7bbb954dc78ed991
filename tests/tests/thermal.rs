//! Clips of thermal cameras through the real programs: drawn, sampled, stacked, judged by months, handed in; and annotation files that are damaged.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{checkpoints, ending, expect_code, tiny_data, wait_for, yolo_train};
use serde_json::Value;

/// A data.yaml of a few small clips of two months, in `dir`.
fn clips(dir: &Path) {
    let text = "path: clips\nnames: [person, bicycle, motorcycle, vehicle]\n\
                sample: {width: 96, height: 72, object_scale: 2.0, objects: 3, clips: {cameras: 1, months: 2, train_months: 1, train: 3, val: 2, frames: 4}}\n\
                settings: {imgsz: 64, batch: 4, nbs: 8, epochs: 2, close_mosaic: 1, workers: 2, warmup_epochs: 1, device: cpu, plots: false}\n";
    std::fs::write(dir.join("clips.yaml"), text).unwrap();
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What was found in an image, the surest first: corners in pixels, score, class.
type Found = Vec<([f64; 4], f64, u64)>;

/// Of weights of few steps, which say nearly the same of every picture, those whose layers pass on what they get, and whose head makes much of it.
fn livened(file: &Path, to: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    for (name, tensor) in header.as_object().unwrap() {
        let factor = match name {
            name if name.ends_with(".bn.weight") => 2.5,
            name if name.contains(".cv3.") && name.ends_with(".2.weight") => 300.0,
            _ => continue,
        };
        let [from, to] = [0, 1].map(|i: usize| data + tensor["data_offsets"][i].as_u64().unwrap() as usize);
        for value in bytes[from..to].as_chunks_mut::<4>().0 {
            *value = (factor * f32::from_le_bytes(*value)).to_le_bytes();
        }
    }
    std::fs::write(to, bytes).unwrap();
}

/// A submission, by the ids of its images.
fn handed_in(file: &Path) -> BTreeMap<String, Found> {
    let found = |entry: &Value| {
        let all = ["boxes", "scores", "labels"].map(|key| entry[key].as_array().unwrap().iter());
        let [boxes, scores, labels] = all;
        let each = boxes.zip(scores).zip(labels).map(|((corners, score), label)| {
            ([0, 1, 2, 3].map(|i: usize| corners[i].as_f64().unwrap()), score.as_f64().unwrap(), label.as_u64().unwrap() - 1)
        });
        each.collect()
    };
    json(file).as_object().unwrap().iter().map(|(id, entry)| (id.clone(), found(entry))).collect()
}

/// Lines of `predict`, each with the name of its image.
fn predicted(lines: &str) -> Vec<(String, Found)> {
    let found = |one: &Value| {
        let corners = ["x1", "y1", "x2", "y2"].map(|key| one["box"][key].as_f64().unwrap());
        (corners, one["confidence"].as_f64().unwrap(), one["class"].as_u64().unwrap())
    };
    let line = |text: &str| {
        let line: Value = serde_json::from_str(text).unwrap();
        (line["image"].as_str().unwrap().to_string(), line["detections"].as_array().unwrap().iter().map(found).collect())
    };
    lines.lines().map(line).collect()
}

/// Whether there is such a box, to a pixel, with this score and class.
fn among((corners, score, class): &([f64; 4], f64, u64), found: &Found) -> bool {
    let near = |other: &[f64; 4]| corners.iter().zip(other).all(|(a, b)| (a - b).abs() < 1.0);
    found.iter().any(|(other, s, c)| near(other) && (score - s).abs() < 1e-4 && c == class)
}

#[test]
fn a_year_is_judged_by_its_months_and_handed_in_by_its_ids() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--data", "clips.yaml", "--group-by", "month,daynight"]), 0);
    assert!(out.contains("train: 12 images") && out.contains("val: 16 images") && out.contains("by month"), "{out}");
    let csv = std::fs::read_to_string(dir.path().join("runs/detect/train/results.csv")).unwrap();
    let header = csv.lines().next().unwrap();
    for column in ["CoV(month)", "score(month)", "mAP50(month 2020-05)", "mAP50-95(month 2020-06)", "AP50_small"] {
        assert!(header.contains(&format!("metrics/{column},")), "{column}: {csv}");
    }
    assert_eq!(csv.lines().count(), 3);
    // No picture of 96 x 72 has room for a large object.
    for row in csv.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), header.split(',').count(), "{csv}");
        let cell = |name: &str| cells[header.split(',').position(|column| column == name).unwrap()];
        assert!(cell("metrics/AP50_large") == "nan" && !cell("metrics/mAP50-95(month 2020-05)").is_empty(), "{csv}");
    }
    let weights = "runs/detect/train/weights/best.safetensors";
    let val = ["val", "--weights", weights, "--data", "clips.yaml", "--device", "cpu", "--submission", "out.json"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &val), 0);
    for part in ["by month", "2020-05", "2020-06", "by daynight", "by Temperature", "by clip"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let folder = dir.path().join("runs/detect/val");
    let groups = std::fs::read_to_string(folder.join("groups.csv")).unwrap();
    assert!(groups.starts_with("key,group,images,instances,mAP50") && groups.contains("\nmonth,2020-06,8,"), "{groups}");
    let stability = std::fs::read_to_string(folder.join("stability.csv")).unwrap();
    assert!(stability.starts_with("key,groups,mAP50,CoV,CoV_low,CoV_high,score,score_low,score_high\n"), "{stability}");
    // Of a key in which nothing was found there is none.
    for row in stability.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let [cov, score] = [3, 6].map(|at: usize| cells[at].parse::<f64>().unwrap());
        assert!(out.contains(&format!("CoV {cov:.3}")) && out.contains(&format!("mAP50*(1-CoV) {score:.3}")), "{stability}{out}");
    }
    assert!(out.contains("COCO AP50 by size"), "{out}");
    for picture in ["by_month.png", "by_daynight.png", "by_temperature.png"] {
        assert!(std::fs::read(folder.join(picture)).unwrap().starts_with(b"\x89PNG"), "{picture}");
    }
    // Every image of the file has its entry, by the digits of its id, and labels are the file's.
    let truth = json(&dir.path().join("clips/Valid.json"));
    let handed_in = json(&dir.path().join("out.json"));
    let ids: Vec<String> = truth["images"].as_array().unwrap().iter().map(|i| i["id"].to_string()).collect();
    assert!(ids.len() == 16 && ids.iter().all(|id| id.len() == 17), "{ids:?}");
    for id in &ids {
        let [boxes, scores, labels] = ["boxes", "scores", "labels"].map(|key| handed_in[id][key].as_array().unwrap());
        assert!(boxes.len() == scores.len() && scores.len() == labels.len());
        assert!(labels.iter().all(|l| (1..=4).contains(&l.as_i64().unwrap())));
        for corners in boxes {
            let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|i: usize| corners[i].as_f64().unwrap());
            assert!(0.0 <= x1 && x1 <= x2 && x2 <= 96.0 && 0.0 <= y1 && y1 <= y2 && y2 <= 72.0, "{corners}");
        }
    }
    assert_eq!(handed_in.as_object().unwrap().len(), ids.len());
    // The same images without labels or categories are handed in alike.
    let alone = serde_json::json!({ "images": truth["images"] });
    std::fs::write(dir.path().join("clips/TestNoLabels.json"), alone.to_string()).unwrap();
    let own = "path: clips\ntrain: Train.json\nval: Valid.json\ntest: TestNoLabels.json\nnames: [person, bicycle, motorcycle, vehicle]\n";
    std::fs::write(dir.path().join("own.yaml"), own).unwrap();
    let test = ["val", "--weights", weights, "--data", "own.yaml", "--split", "test", "--device", "cpu", "--submission", "test.json"];
    expect_code(&mut yolo_train(dir.path(), &[&test[..], &["--imgsz", "64", "--plots", "false"]].concat()), 0);
    let found = |file: &Value| -> usize { ids.iter().map(|id| file[id]["labels"].as_array().unwrap().len()).sum() };
    assert!(found(&handed_in) > 0 && json(&dir.path().join("test.json")) == handed_in);
    // A template has the last word on which ids there are: the first is not asked for, and one is that nobody has.
    let asked: serde_json::Map<String, Value> =
        ids[1..].iter().cloned().chain(["20991231000000003".into()]).map(|id| (id, serde_json::json!({ "boxes": [] }))).collect();
    let file = dir.path().join("template.json");
    std::fs::write(&file, Value::Object(asked).to_string()).unwrap();
    let by_template = ["--imgsz", "64", "--plots", "false", "--submission-template", "template.json"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&test[..], &by_template].concat()), 0);
    let told = "submission template: 16 ids, of which 1 are of no image here and get empty entries; 1 images here are not in it";
    assert!(out.contains(told) && out.contains("Submission of 16 images"), "{out}");
    let mut expected = handed_in.clone();
    expected.as_object_mut().unwrap().remove(&ids[0]);
    expected["20991231000000003"] = serde_json::json!({ "boxes": [], "scores": [], "labels": [] });
    assert_eq!(json(&dir.path().join("test.json")), expected);
    for (text, part) in [("{\"images\": []}", "no template of a submission"), ("{\"7\": {}}", "none of its 1 ids")] {
        std::fs::write(&file, text).unwrap();
        let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&test[..], &by_template].concat()), 2);
        assert!(error.contains("template.json: ") && error.contains(part), "{error}");
    }
    // So are those that cannot be read, that are not there, or whose file another has: with nothing in them.
    let image = |id: i64, file: &Value| serde_json::json!({ "id": id, "file_name": file });
    let (torn, last) = (&truth["images"][0], &truth["images"][15]);
    let mut listed = truth["images"].as_array().unwrap().clone();
    listed.extend([image(20_991_231_000_000_001, &last["file_name"]), image(20_991_231_000_000_002, &"frames/gone.jpg".into())]);
    std::fs::write(dir.path().join("clips/TestNoLabels.json"), serde_json::json!({ "images": listed }).to_string()).unwrap();
    let torn_file = dir.path().join("clips").join(torn["file_name"].as_str().unwrap());
    let whole = std::fs::read(&torn_file).unwrap();
    std::fs::write(&torn_file, &whole[..10]).unwrap();
    let allow = ["--imgsz", "64", "--plots", "false", "--allow-bad"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&test[..], &allow].concat()), 0);
    assert!(out.contains("Submission of 18 images") && out.contains("1 images have the file of another"), "{out}");
    std::fs::write(&torn_file, whole).unwrap();
    let mut expected = handed_in.clone();
    let empty = serde_json::json!({ "boxes": [], "scores": [], "labels": [] });
    for id in [torn["id"].to_string(), "20991231000000001".into(), "20991231000000002".into()] {
        expected[id] = empty.clone();
    }
    assert_eq!(json(&dir.path().join("test.json")), expected);
    std::fs::write(dir.path().join("clips/TestNoLabels.json"), alone.to_string()).unwrap();
    // A folder that cannot be is told before anything is looked at; a picture that cannot be drawn costs nothing that was found.
    std::fs::write(dir.path().join("taken"), "").unwrap();
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &[&val[..], &["--project", "taken"]].concat()), 2);
    assert!(error.contains("taken") && !out.contains("by month"), "{out}{error}");
    // In the folder of a run, where nothing is set aside.
    std::fs::create_dir_all(dir.path().join("runs/detect/late/by_month.png")).unwrap();
    std::fs::write(dir.path().join("runs/detect/late/args.yaml"), "").unwrap();
    let late = ["--submission", "late.json", "--name", "late", "--exist-ok"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&val[..7], &late].concat()), 1);
    assert!(error.contains("by_month.png"), "{error}");
    assert!(json(&dir.path().join("late.json")) == handed_in && dir.path().join("runs/detect/late/groups.csv").exists());
    // What has no names to be handed in under is refused before it is looked at.
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&test[..], &["--single-cls"]].concat()), 2);
    assert!(error.contains("a submission labels by the ids of categories"), "{error}");
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&test[..10], &["nowhere/test.json"]].concat()), 2);
    assert!(error.contains("there is no folder nowhere"), "{error}");
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &[&test[..10], &["runs"]].concat()), 2);
    assert!(error.contains("--submission runs: that is a folder") && !out.contains("by month"), "{out}{error}");
    // Nor is anything decoded before.
    let weather = ["val", "--weights", weights, "--data", "clips.yaml", "--group-by", "weather", "--cache", "disk"];
    let (_, error) = expect_code(yolo_train(dir.path(), &weather).env("XDG_CACHE_HOME", dir.path().join("fresh")), 2);
    assert!(error.contains("`weather`") && error.contains("Temperature"), "{error}");
    assert!(dir.path().join("fresh/bellows").is_dir() && !dir.path().join("fresh/bellows/images").exists());
    // A class that is no category is named; without it there is something to hand in.
    let names = own.replace("vehicle]", "vehicle, boat]");
    std::fs::write(dir.path().join("five.yaml"), names).unwrap();
    let five = ["--data", "five.yaml", "--epochs", "1", "--imgsz", "64", "--device", "cpu", "--plots", "false", "--name", "five"];
    expect_code(&mut yolo_train(dir.path(), &five), 0);
    let five =
        ["val", "--weights", "runs/detect/five/weights/best.safetensors", "--data", "five.yaml", "--device", "cpu", "--plots", "false"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &[&five[..], &["--submission", "five.json"]].concat()), 2);
    assert!(error.contains("none for class `boat`") && !dir.path().join("five.json").exists(), "{error}");
    expect_code(&mut yolo_train(dir.path(), &[&five[..], &["--submission", "five.json", "--classes", "0,1,2,3"]].concat()), 0);
    // Intervals are drawn from clips: with other clips the run is another one.
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/train"]), 0);
    assert!(out.contains("nothing to resume"), "{out}");
    let mut other = truth.clone();
    other["images"].as_array_mut().unwrap().iter_mut().enumerate().for_each(|(i, image)| image["meta"]["clip"] = i.into());
    std::fs::write(dir.path().join("clips/Valid.json"), other.to_string()).unwrap();
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &["--resume", "runs/detect/train"]), 2);
    assert!(error.contains("the layout of the data has changed"), "{error}");
}

/// Every other frame of the validation clips stands in a test split of its own.
#[test]
fn frames_of_one_clip_in_any_two_splits_are_told() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let check = |data: &str| expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", data]), 0).0;
    let told = "clips have frames in both val and test";
    assert!(!check("clips.yaml").contains(told));
    let all = json(&dir.path().join("clips/Valid.json"));
    for (name, rest) in [("Even.json", 0), ("Odd.json", 1)] {
        let mut half = all.clone();
        let images = all["images"].as_array().unwrap().iter().enumerate().filter(|(i, _)| i % 2 == rest);
        half["images"] = images.map(|(_, image)| image.clone()).collect();
        let ids: Vec<&Value> = half["images"].as_array().unwrap().iter().map(|image| &image["id"]).collect();
        let annotations = all["annotations"].as_array().unwrap().iter().filter(|one| ids.contains(&&one["image_id"])).cloned().collect();
        half["annotations"] = annotations;
        std::fs::write(dir.path().join("clips").join(name), half.to_string()).unwrap();
    }
    let text = "path: clips\ntrain: Train.json\nval: Even.json\ntest: Odd.json\nnames: [person, bicycle, motorcycle, vehicle]\n";
    std::fs::write(dir.path().join("halves.yaml"), text).unwrap();
    let out = check("halves.yaml");
    assert!(out.contains(told), "{out}");
}

#[test]
fn clips_are_sampled_and_stacked_from_training_to_prediction() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let more = ["--sampler", "clips=balanced,empty=0.2,classes=balanced,epoch=0.7", "--frames", "2", "--background", "2"];
    let sensor = ["--thermal-gain", "0.2", "--thermal-drift", "0.1", "--thermal-pattern", "0.02", "--thermal-dead", "0.001"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&["--data", "clips.yaml", "--save-pt"], &more[..], &sensor[..]].concat()), 0);
    assert!(out.contains("sampler: an epoch has 8 of 12 images"), "{out}");
    let weights = "runs/detect/train/weights/best.safetensors";
    let val = |file: &str, more: &[&str]| {
        let how = ["--data", "clips.yaml", "--device", "cpu", "--plots", "false", "--json", "--submission", "found.json"];
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&["val", "--weights", file], &how[..], more].concat()), 0);
        (handed_in(&dir.path().join("found.json")), serde_json::from_str::<Value>(out.trim()).unwrap())
    };
    let (trained, told) = val(weights, &[]);
    let csv = std::fs::read_to_string(dir.path().join("runs/detect/train/val.csv")).unwrap();
    let map50: f64 = csv.lines().nth(1).unwrap().split(',').nth(5).unwrap().parse().unwrap();
    assert!((told["map50"].as_f64().unwrap() - map50).abs() < 1e-5, "{told} {csv}");
    let own_pt = weights.replace("safetensors", "pt");
    assert!(val(&own_pt, &[]).0 == trained);
    // Weights know what they look at, and see the same whichever file they are in, and what was made of it.
    livened(&dir.path().join(weights), &dir.path().join("awake.safetensors"));
    let export = |file: &str, format, to| {
        let args = ["export", "--weights", file, "--format", format, "--output", to];
        expect_code(&mut yolo_train(dir.path(), &args), 0);
    };
    export("awake.safetensors", "onnx", "awake.onnx");
    export("awake.safetensors", "pt", "awake.pt");
    export("awake.pt", "safetensors", "again.safetensors");
    let bytes = std::fs::read(dir.path().join("awake.onnx")).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has("frame_stride") && has("background") && has("channels"));
    let (awake, _) = val("awake.safetensors", &[]);
    assert!(awake.len() == 16 && awake.values().all(|found| found.len() > 9));
    for file in ["awake.onnx", "awake.pt", "again.safetensors"] {
        for (id, found) in &val(file, &[]).0 {
            let all = |some: &Found, of: &Found| some.iter().all(|one| among(one, of));
            assert!(all(found, &awake[id]) && all(&awake[id], found), "{file} {id}");
        }
    }
    // So do images that are predicted: val with tiles that none is cut to fits them into the network as predict does.
    let (awake, _) = val("awake.safetensors", &["--tile", "96", "--merge", "nms", "--merge-threshold", "1"]);
    let predict = |source: &str, more: &[&str]| {
        let how = ["--source", source, "--conf", "0.001", "--device", "cpu", "--save", "false", "--json"];
        let args = [&["predict", "--weights", "awake.safetensors"], &how[..], more].concat();
        predicted(&expect_code(&mut yolo_train(dir.path(), &args), 0).0)
    };
    let images: BTreeMap<String, Found> = predict("clips/frames/**/*.jpg", &[]).into_iter().collect();
    let truth = json(&dir.path().join("clips/Valid.json"));
    let named = |image: &Value| (format!("clips/{}", image["file_name"].as_str().unwrap()), image["id"].to_string());
    let named: Vec<(String, String)> = truth["images"].as_array().unwrap().iter().map(named).collect();
    for (file, id) in &named {
        assert!(among(&images[file][0], &awake[id]), "{file}");
    }
    // The fourth frame of a clip, alone, has no past, and is seen otherwise.
    let (fourth, id) = &named[3];
    std::fs::copy(dir.path().join(fourth), dir.path().join("alone.jpg")).unwrap();
    assert!(!among(&predict("alone.jpg", &[])[0].1[0], &awake[id]));
    // A film has the past of the frames that are looked at.
    std::fs::create_dir(dir.path().join("film")).unwrap();
    let ffmpeg = |args: [&str; 4]| {
        let mut command = Command::new("ffmpeg");
        command.args(["-nostdin", "-v", "error", "-i"]).args(args).current_dir(dir.path());
        command.status().map(|status| status.success())
    };
    if let Ok(made) = ffmpeg([&fourth.replace("0003.jpg", "%04d.jpg"), "-c:v", "png", "film.mkv"]) {
        assert!(made && ffmpeg(["film.mkv", "-start_number", "0", "film/%04d.png"]).unwrap());
        let frames = |source, more: &[&str]| predict(source, more).into_iter().map(|(_, found)| found).collect::<Vec<Found>>();
        let (film, folder) = (frames("film.mkv", &[]), frames("film", &[]));
        assert!(film.len() == 4 && film == folder, "{film:?} {folder:?}");
        let every_other = frames("film.mkv", &["--vid-stride", "2"]);
        assert!(every_other.len() == 2 && every_other[0] == film[0] && !among(&every_other[1][0], &film[2]), "{every_other:?}");
    } else {
        // Past the test runner, which shows what a test prints only if it fails.
        writeln!(std::io::stderr(), "no ffmpeg on this machine: the past of films is not run").ok();
    }
    let colour = ["--data", "clips.yaml", "--model", &own_pt, "--name", "colour"];
    let (_, error) = expect_code(&mut yolo_train(dir.path(), &colour), 2);
    assert!(error.contains("looks at 2 frames and a background of a clip") && error.contains("--frames 2"), "{error}");
    // Frames of one aspect are shuffled in rectangles too, and drawn by the sampler.
    let rect = ["--data", "clips.yaml", "--rect", "--sampler", "clips=balanced,epoch=0.7", "--epochs", "1", "--name", "rect"];
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &rect), 0);
    assert!(out.contains("sampler: an epoch has 8 of 12 images"), "{out}");
    // Of held out images the frames before them are others.
    std::fs::write(dir.path().join("held.yaml"), "path: clips\ntrain: frames\nnames: [person, bicycle, motorcycle, vehicle]\n").unwrap();
    let held = ["--data", "held.yaml", "--frames", "2", "--imgsz", "64", "--epochs", "1", "--device", "cpu", "--plots", "false"];
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &[&held[..], &["--name", "held", "--hsv-v", "0.2"]].concat()), 0);
    let told = out + &error;
    assert!(told.contains("name a val of whole clips") && told.contains("hsv_v does nothing with frames"), "{told}");
    // A part of frames of which nothing but their folders is known is one of whole clips, two of three, and not every second frame.
    let train = json(&dir.path().join("clips/Train.json"));
    let listed: Vec<&str> = train["images"].as_array().unwrap().iter().map(|image| image["file_name"].as_str().unwrap()).collect();
    std::fs::write(dir.path().join("clips/listed.txt"), listed.join("\n")).unwrap();
    std::fs::write(dir.path().join("held.yaml"), "path: clips\ntrain: listed.txt\nval: listed.txt\nnames: [a]\n").unwrap();
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &[&held[..], &["--name", "part", "--fraction", "0.5"]].concat()), 0);
    assert!(out.contains("train: 8 images"), "{out}");
    // A folder without clips is one.
    tiny_data(dir.path());
    let flat = ["--data", "tiny.yaml", "--sampler", "clips=balanced", "--epochs", "1", "--plots", "false", "--name", "flat"];
    let (out, error) = expect_code(&mut yolo_train(dir.path(), &flat), 0);
    assert!((out + &error).contains("clips=balanced changes nothing"));
    // A run of single frames does not ask when they were taken; one of stacks is not resumed on another order.
    expect_code(&mut yolo_train(dir.path(), &["--data", "clips.yaml", "--name", "single"]), 0);
    let file = dir.path().join("clips/Train.json");
    let mut train = json(&file);
    train["images"][1]["date_captured"] = "2030-01-01T00:00:00".into();
    std::fs::write(&file, train.to_string()).unwrap();
    let resume = |run: &str, code| expect_code(&mut yolo_train(dir.path(), &["--resume", run]), code);
    let (out, _) = resume("runs/detect/single", 0);
    assert!(out.contains("nothing to resume"), "{out}");
    let (_, error) = resume("runs/detect/train", 2);
    assert!(error.contains("the order or grouping of the data has changed"), "{error}");
}

/// Which images a rank takes follows from the seed, the epoch and its number: a checkpoint has nothing of the sampler.
#[test]
#[cfg(unix)]
fn two_ranks_that_sample_clips_and_are_killed_end_in_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let run = |name: &str| {
        let sampled = ["--ranks", "2", "--batch", "2", "--sampler", "clips=balanced,empty=0.2,epoch=0.9", "--checkpoint-minutes", "0"];
        yolo_train(dir.path(), &[&["--data", "clips.yaml", "--name", name], &sampled[..]].concat())
    };
    let (out, _) = expect_code(&mut run("whole"), 0);
    assert!(out.contains("sampler: an epoch has 11 of 12 images"), "{out}");
    let killed = &mut run("killed");
    // In the middle of the first epoch, which has three batches of two ranks.
    let (_, error) = expect_code(killed.env("BELLOWS_FAULT", "kill:step:2").env("BELLOWS_FAULT_RANK", "1"), 1);
    assert!(error.contains("rank 1 is gone"), "{error}");
    let [whole, killed] = ["whole", "killed"].map(|name| dir.path().join("runs/detect").join(name));
    assert!(!checkpoints(&killed).is_empty() && !killed.join("weights/last.safetensors").exists());
    expect_code(&mut yolo_train(dir.path(), &["--resume", killed.to_str().unwrap()]), 0);
    for ((name, ours), (_, theirs)) in ending(&killed).iter().zip(&ending(&whole)) {
        assert!(ours == theirs, "{name} differs");
    }
}

#[test]
fn frames_of_a_clip_are_cut_scaled_and_cached_together() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let run = |name: &str, more: &[&str]| {
        expect_code(&mut yolo_train(dir.path(), &[&["--data", "clips.yaml", "--frames", "3", "--name", name], more].concat()), 0);
        dir.path().join("runs/detect").join(name)
    };
    let cut = run("cut", &["--tile", "48", "--multi-scale", "--epochs", "3", "--val-interval", "2"]);
    // Judged after the second epoch of three, and after the last.
    let csv = std::fs::read_to_string(cut.join("results.csv")).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    let (loss, judged) = (column("train/box_loss"), column("metrics/mAP50(B)"));
    assert!(rows[1..].iter().all(|row| row[loss].parse::<f64>().unwrap().is_finite()), "{csv}");
    assert_eq!(rows[1..].iter().map(|row| !row[judged].is_empty()).collect::<Vec<_>>(), [false, true, true], "{csv}");
    // What is kept is the same, wherever it is.
    let [ram, disk] = ["ram", "disk"].map(|kept| ending(&run(kept, &["--cache", kept, "--multi-scale", "--epochs", "1"])));
    for ((name, ours), (_, theirs)) in ram.iter().zip(&disk) {
        assert!(ours == theirs, "{name} differs");
    }
}

#[test]
fn an_annotation_file_that_is_damaged_is_named_with_its_byte() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "clips.yaml"]), 0);
    let file = dir.path().join("clips/Train.json");
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        dir.path().join("own.yaml"),
        "path: clips\ntrain: Train.json\nval: Valid.json\nnames: [person, bicycle, motorcycle, vehicle]\n",
    )
    .unwrap();
    let check = |text: &str, code: i32| {
        std::fs::write(&file, text).unwrap();
        expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "own.yaml"]), code)
    };
    let cut = whole.len() * 7 / 10;
    let (_, error) = check(&whole[..cut], 2);
    assert!(error.contains("Train.json: ") && error.contains("EOF") && error.contains(&format!("(byte {cut})")), "{error}");
    // Of an annotation's image, and of the first image itself.
    for key in ["\"image_id\":", "\"id\":"] {
        let long = whole.replacen(key, &format!("{key}77777777777777777777777"), 1);
        let (_, error) = check(&long, 2);
        assert!(error.contains("element 0: an id of more than 64 bits") && error.contains("(byte "), "{error}");
    }
    let (first, rest) = whole.split_once("},\n").unwrap();
    let other = first.replacen("image_0000", "image_0001", 1).replace("{\"images\":[\n", "");
    let (_, error) = check(&format!("{first}}},\n{other}}},\n{rest}"), 2);
    assert!(error.contains("is given to") && error.contains("element 1") && error.contains("(byte "), "{error}");
    // Boxes outside and ids of two annotations are counted, and the rest is used.
    let annotation = whole.split("\"annotations\":[\n").nth(1).unwrap().split(",\n").next().unwrap().trim_end_matches("\n],").to_string();
    let mut outside: Value = serde_json::from_str(&annotation).unwrap();
    outside["bbox"] = serde_json::json!([900, 900, 5, 5]);
    let (out, _) = check(&whole.replacen("\"annotations\":[\n", &format!("\"annotations\":[\n{outside},\n"), 1), 0);
    assert!(out.contains("1 annotations with the id of another, used all the same"), "{out}");
    assert!(out.contains(&format!("annotation id {} is given to 2 annotations", outside["id"])), "{out}");
    let listed: Value = serde_json::from_str(&whole).unwrap();
    let image = listed["images"].as_array().unwrap().iter().find(|image| image["id"] == outside["image_id"]).unwrap();
    let named = format!("{}: bbox [900, 900, 5, 5]", image["file_name"].as_str().unwrap());
    assert!(out.contains(&format!("1 boxes lay outside their image and were left out: {named}")), "{out}");
    // What Python writes for no number is no JSON, and read; a box of it is refused.
    let python = format!("\u{feff}{}", whole.replacen("{\"images\"", "{\"info\":{\"wind\":NaN},\"images\"", 1));
    let (out, _) = check(&python, 0);
    assert!(out.contains("1 values that are NaN or Infinity, taken as not known"), "{out}");
    let (_, error) = check(&whole.replacen("\"bbox\":[", "\"bbox\":[NaN,", 1), 2);
    assert!(error.contains("element 0: a box needs four numbers") && error.contains("(byte "), "{error}");
    check(&whole, 0);
    // A split that nobody trains on may be left on its page.
    let own = std::fs::read_to_string(dir.path().join("own.yaml")).unwrap();
    std::fs::write(dir.path().join("three.yaml"), own + "test: TestNoLabels.json\n").unwrap();
    for verb in ["check", "stats"] {
        let (out, _) = expect_code(&mut yolo_train(dir.path(), &["data", verb, "--data", "three.yaml"]), 0);
        assert!(out.contains("TestNoLabels.json is not there") && out.contains("val: "), "{out}");
    }
}

#[test]
fn small_objects_have_a_finer_level_and_tiles() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    let one = ["--data", "clips.yaml", "--epochs", "1", "--close-mosaic", "0"];
    let run = |more: &[&str], code| expect_code(&mut yolo_train(dir.path(), &[&one[..], more].concat()), code);
    // Whole clips: two of three.
    let (out, _) = run(&["--fraction", "0.5", "--name", "plain"], 0);
    assert!(out.contains("train: 8 images"), "{out}");
    let plain = "runs/detect/plain/weights/best.safetensors";
    let (out, _) = run(&["--model", "yolov8n-p2", "--pretrained", plain, "--tile", "48", "--name", "fine"], 0);
    assert!(out.contains("YOLOv8n-p2 summary") && out.contains("/437 items") && out.contains("the layers before 16"), "{out}");
    let fine = "runs/detect/fine/weights/best.safetensors";
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["val", "--weights", fine, "--data", "clips.yaml", "--device", "cpu"]), 0);
    assert!(out.contains("by month"), "{out}");
    let (out, _) = run(&["--model", fine, "--name", "on"], 0);
    assert!(out.contains("Transferred 437/437"), "{out}");
    for (wrong, part) in [
        (&["--tile", "48", "--rect"][..], "rect"),
        (&["--tile", "8"], "tile 8"),
        (&["--frames", "0"], "frames 0"),
        (&["--val-interval", "0"], "val_interval must be at least 1"),
        // What is kept at another size has another difference: a run that is resumed with a cache would go on otherwise.
        (&["--background", "2", "--cache", "ram"], "background"),
        (&["--sampler", "clip=balanced"], "did you mean `clips`"),
        (&["--group-by", "months"], "`months`"),
    ] {
        let (_, error) = run(wrong, 2);
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// A COCO file of 12,000 frames in clips of a minute, links to those that are there, behind a header that takes a while to read.
#[cfg(target_os = "linux")]
fn long_list(dir: &Path) {
    let of = json(&dir.join("clips/Train.json"));
    let mut images = of["images"].as_array().unwrap().clone();
    let sources: Vec<PathBuf> = images.iter().map(|image| dir.join("clips").join(image["file_name"].as_str().unwrap())).collect();
    for clip in 0..200 {
        let folder = format!("frames/20200601/clip_{clip}_{:02}{:02}", clip / 60, clip % 60);
        std::fs::create_dir_all(dir.join("clips").join(&folder)).unwrap();
        for second in 0..60 {
            let name = format!("{folder}/image_{second:04}.jpg");
            std::fs::hard_link(&sources[(clip + second) % sources.len()], dir.join("clips").join(&name)).unwrap();
            let time = format!("2020-06-01T{:02}:{:02}:{second:02}", clip / 60, clip % 60);
            let id = 20_200_601_000_000_000 + (clip * 60 + second) as i64;
            images.push(serde_json::json!({ "id": id, "file_name": name, "date_captured": time, "meta": { "Temperature": clip % 9 } }));
        }
    }
    let header = format!("[0{}]", ",0".repeat(20_000_000));
    let [images, boxes, categories] = [images.into(), of["annotations"].clone(), of["categories"].clone()];
    let text = format!("{{\"info\":{header},\"images\":{images},\"annotations\":{boxes},\"categories\":{categories}}}");
    std::fs::write(dir.join("clips/Long.json"), text).unwrap();
    let yaml = "path: clips\ntrain: Long.json\nval: Valid.json\nnames: [person, bicycle, motorcycle, vehicle]\n";
    std::fs::write(dir.join("long.yaml"), yaml).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn killed_in_the_index_the_scan_and_an_epoch_it_ends_in_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    clips(dir.path());
    expect_code(&mut yolo_train(dir.path(), &["data", "check", "--data", "clips.yaml"]), 0);
    long_list(dir.path());
    let args = |name: &'static str| {
        let what = ["--data", "long.yaml", "--name", name, "--frames", "3", "--background", "2", "--sampler", "clips=balanced,epoch=0.001"];
        let how = ["--imgsz", "64", "--batch", "4", "--nbs", "8", "--epochs", "2", "--close-mosaic", "1", "--device", "cpu"];
        [&what[..], &how, &["--workers", "2", "--plots", "false", "--checkpoint-minutes", "0", "--group-by", "month"]].concat()
    };
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &args("whole")), 0);
    assert!(out.contains("train: 12012 images"), "{out}");
    let expected = ending(&dir.path().join("runs/detect/whole"));

    let remembered = |suffix: &str| {
        let entries = std::fs::read_dir(dir.path().join("cache/bellows")).into_iter().flatten();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == suffix)).count()
    };
    let forget = || std::fs::remove_dir_all(dir.path().join("cache/bellows")).ok();
    let start = || {
        let mut command = yolo_train(dir.path(), &args("killed"));
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
    };
    // Whoever kills it may come late, on a busy machine.
    let begun = dir.path().join("runs/detect/killed");
    let anew = || {
        forget();
        std::fs::remove_dir_all(&begun).ok();
    };
    // In the index: while the file is open and nothing is remembered of it.
    let in_index = (0..9).any(|_| {
        anew();
        let mut child = start();
        let files = format!("/proc/{}/fd", child.id());
        let is_open = || {
            let open = std::fs::read_dir(&files).into_iter().flatten().filter_map(Result::ok);
            open.filter_map(|file| std::fs::read_link(file.path()).ok()).any(|file| file.ends_with("Long.json"))
        };
        wait_for("the index", &mut child, || is_open() || remembered("coco") > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        (remembered("coco"), remembered("scan")) == (0, 0)
    });
    assert!(in_index && !begun.exists());
    // In the scan: the index is remembered, what is in the images is not.
    let in_scan = (0..9).any(|_| {
        if remembered("scan") > 0 {
            anew();
        }
        let mut child = start();
        wait_for("the scan", &mut child, || remembered("coco") > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        remembered("scan") == 0
    });
    assert!(in_scan && !begun.exists(), "nothing was begun");
    // In an epoch: by itself, for whoever waits for its second batch may come when the third, and with it the epoch, is over.
    let killed = yolo_train(dir.path(), &args("killed")).env("BELLOWS_FAULT", "kill:save:3").output().unwrap();
    assert_eq!(killed.status.code(), None, "it was to be killed");
    let (out, _) = expect_code(&mut yolo_train(dir.path(), &["--resume", begun.to_str().unwrap()]), 0);
    assert!(out.contains("going on at epoch 1"), "{out}");
    for ((name, ours), (_, theirs)) in ending(&begun).iter().zip(&expected) {
        assert!(ours == theirs, "{name} differs");
    }
}
