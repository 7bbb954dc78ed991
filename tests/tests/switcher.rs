//! The habits of someone who comes from Ultralytics, through the binary: `key=value` words, an `args.yaml`, `resume` by weights, refusals by name.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use crate::support::{expect_code, tiny_data, yolo_train};

fn run(dir: &Path, line: &str, code: i32) -> (String, String) {
    expect_code(&mut yolo_train(dir, &line.split(' ').collect::<Vec<_>>()), code)
}

#[test]
fn a_script_of_theirs_trains_and_is_resumed_by_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let words =
        "detect train data=tiny.yaml model=yolov8n.yaml epochs=1 imgsz=60 optimizer=rmsprop single_cls=True plots=False amp=True name=w";
    let (out, _) = run(dir.path(), words, 0);
    let lines = [
        "imgsz 60 is no multiple of 32: 64 is used",
        "amp true: training is f32 unless",
        "Random first weights",
        "optimizer: RMSProp(lr=0.01, momentum=0.937)",
    ];
    for line in lines {
        assert_eq!(out.lines().filter(|l| l.contains(line)).count(), 1, "{line}: {out}");
    }
    let w = dir.path().join("runs/detect/w");
    let config = std::fs::read_to_string(w.join("config.yaml")).unwrap();
    assert!(config.contains("imgsz: 64\n") && config.contains("optimizer: \"RMSProp\"\n") && config.contains(words), "{config}");
    let weights = std::fs::read(w.join("weights/last.safetensors")).unwrap();
    assert!(String::from_utf8_lossy(&weights[..8192]).contains(r#"{\"0\":\"item\"}"#), "the one class has their name");

    for line in [
        "train resume model=runs/detect/w/weights/last.pt",
        "resume=runs/detect/w/weights/best.safetensors",
        "--resume runs/detect/w/checkpoints",
    ] {
        let (out, _) = run(dir.path(), line, 0);
        assert!(out.contains("is finished: nothing to resume"), "{line}: {out}");
    }
    assert!(!dir.path().join("runs/detect/w2").exists());

    // Of a file its size alone; a run of it that was begun needs the file no more.
    std::fs::copy(w.join("weights/best.safetensors"), dir.path().join("mine.safetensors")).unwrap();
    let (out, _) = run(dir.path(), "train data=tiny.yaml model=mine.safetensors pretrained=False epochs=1 plots=False name=r", 0);
    assert_eq!(out.matches("Random first weights").count(), 1, "{out}");
    assert!(out.contains("in the form of mine.safetensors (pretrained false)") && !out.contains("Transferred"), "{out}");
    std::fs::remove_file(dir.path().join("mine.safetensors")).unwrap();
    let (out, _) = run(dir.path(), "resume=runs/detect/r", 0);
    assert!(out.contains("is finished: nothing to resume") && !out.contains("Random first weights"), "{out}");

    let model = "model=runs/detect/w/weights/best.safetensors";
    let (out, said) =
        run(dir.path(), &format!("detect val {model} data=tiny.yaml single_cls half=True imgsz=64 device=cpu plots=False"), 0);
    assert!(out.contains("mAP50-95") && said.contains("half=True: f32 is computed"), "{out}\n{said}");
    run(dir.path(), &format!("predict {model} source=tiny/images/val imgsz=64 conf=0.0001 save=False save_txt=True device=cpu"), 0);
    assert!(dir.path().join("runs/detect/predict/labels").is_dir());
}

#[test]
fn an_args_yaml_of_theirs_is_a_config() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let text = "task: detect\nmode: train\nmodel: yolov8n.yaml\ndata: tiny.yaml\nepochs: 1\ntime: 2\nbatch: 4\nimgsz: 64\ndevice: cpu\nname: a\n\
                amp: true\nhalf: false\ndeterministic: true\nsplit: val\nconf: null\nsource: null\nformat: torchscript\nsimplify: true\nopset: null\n\
                nbs: 64\ncopy_paste_mode: flip\nauto_augment: randaugment\nplots: false\ntracker: botsort.yaml\nsave_dir: /home/me/runs/detect/a\n";
    std::fs::write(dir.path().join("args.yaml"), text).unwrap();
    let (out, _) = run(dir.path(), "--config args.yaml time=None", 0);
    assert_eq!(out.matches("amp true:").count(), 1, "{out}");
    let run = dir.path().join("runs/detect/a");
    assert!(run.join("weights/last.safetensors").exists());
    let config = std::fs::read_to_string(run.join("config.yaml")).unwrap();
    assert!(config.contains("\ntime: null\n"), "what is typed takes back what the file says: {config}");
}

#[test]
fn what_is_not_there_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    let theirs = dir.path().join("theirs");
    std::fs::create_dir_all(theirs.join("weights")).unwrap();
    std::fs::write(theirs.join("args.yaml"), "mode: train\n").unwrap();
    let cases = [
        ("segment train data=tiny.yaml", "segmentation is not there"),
        ("task=obb data=tiny.yaml", "oriented boxes"),
        ("track source=a.mp4", "from frame to frame"),
        ("benchmark model=yolov8n.pt imgsz=640", "times training steps"),
        ("data=tiny.yaml epoks=3", "did you mean `epochs`"),
        ("data=tiny.yaml optimizer=Muon", "RMSProp"),
        ("data=tiny.yaml augment=True", "`augment` cannot be true"),
        ("data=tiny.yaml device=0,1", "several devices"),
        ("data=tiny.yaml device=99", "device '99'"),
        ("resume model=theirs/weights/last.pt", "theirs is a run of Ultralytics"),
    ];
    for (line, words) in cases {
        let (_, error) = run(dir.path(), line, 2);
        assert!(error.contains(words), "{line}: {error}");
        assert_eq!(error.trim().lines().filter(|line| line.starts_with("error: ")).count(), 1, "{line}: {error}");
        assert_eq!(error.trim().lines().count(), 1, "{line}: {error}");
    }
    assert!(!dir.path().join("runs").exists());
}
