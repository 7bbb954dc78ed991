//! `yolo-train export` through the binary: from a run's weights to each format, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;

use crate::support::{expect_code, one_sentence, tiny_data, yolo_train};
use bellows_weights::{onnx, read, to_safetensors};

fn run(dir: &Path, line: &str, code: i32) -> (String, String) {
    expect_code(&mut yolo_train(dir, &line.split(' ').collect::<Vec<_>>()), code)
}

#[test]
fn weights_of_a_run_go_everywhere_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    tiny_data(dir.path());
    run(dir.path(), "--data tiny.yaml --epochs 1 --imgsz 64 --device cpu --plots false --name w", 0);
    let weights = dir.path().join("runs/detect/w/weights");
    let mut best = read(&weights.join("best.safetensors")).unwrap();
    assert!(!best.metadata.contains_key("license"));
    best.metadata.insert("license".into(), "CC0".into());
    std::fs::write(weights.join("best.safetensors"), to_safetensors(&best.tensors, &best.metadata).unwrap()).unwrap();

    // Beside the weights, in the size they were trained with; `key=value` words do as well.
    let (out, _) = run(dir.path(), "export --weights runs/detect/w/weights/best.safetensors", 0);
    assert!(out.contains("best.onnx (12.") && out.contains("images [1, 3, 64, 64] to output0 [1, ") && out.contains("use it: "), "{out}");
    let (out, note) =
        run(dir.path(), "export model=runs/detect/w/weights/best.safetensors imgsz=50,90 dynamic=True nms=True output=n.onnx", 0);
    assert!(out.contains("images [batch, 3, height, width] to output0 [batch, up to 300, 6]"), "{out}");
    assert!(note.contains("rounded up to 64,96"), "{note}");
    let graph = onnx::decode(&std::fs::read(dir.path().join("n.onnx")).unwrap()).unwrap();
    assert!(graph.metadata_props.iter().any(|e| e.key == "imgsz" && e.value == "[64, 96]"));

    let (_, error) = run(dir.path(), "export --weights n.onnx --format pt", 2);
    assert!(error.starts_with("error: n.onnx: its batch normalisation is folded in"), "{error}");

    // The same model judged from each file.
    run(dir.path(), "export --weights runs/detect/w/weights/best.safetensors --format pt --output best.pt", 0);
    run(dir.path(), "export --weights best.pt --format safetensors", 0);
    let judged = |file: &str| {
        let (out, _) = run(dir.path(), &format!("val --weights {file} --data tiny.yaml --imgsz 64 --device cpu --plots false --json"), 0);
        let json: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        json["map50_95"].as_f64().unwrap()
    };
    let expected = judged("runs/detect/w/weights/best.safetensors");
    for file in ["runs/detect/w/weights/best.onnx", "best.pt", "best.safetensors"] {
        assert!((judged(file) - expected).abs() < 1e-9, "{file}");
    }
    let again = read(&dir.path().join("best.safetensors")).unwrap();
    assert_eq!(again.tensors, best.tensors);
    assert_eq!((&again.metadata["names"], &again.metadata["imgsz"]), (&best.metadata["names"], &best.metadata["imgsz"]));
    let pt = read(&dir.path().join("best.pt")).unwrap();
    let settings: serde_json::Value = serde_json::from_str(&pt.metadata["train_args"]).unwrap();
    assert_eq!((&settings["data"], &settings["epochs"], settings.get("command")), (&"tiny.yaml".into(), &1.into(), None));
    // The same from within the folder of the weights.
    run(&weights, "export --weights best.safetensors --format pt", 0);
    let within = read(&weights.join("best.pt")).unwrap();
    assert_eq!(within.metadata["train_args"], pt.metadata["train_args"]);
    run(dir.path(), "--model best.pt --data tiny.yaml --epochs 1 --imgsz 64 --device cpu --plots false --save-pt true --name t", 0);
    let trained = ["runs/detect/t/weights/best.safetensors", "runs/detect/t/weights/best.pt"];
    for file in ["runs/detect/w/weights/best.onnx", "best.pt", "best.safetensors"].into_iter().chain(trained) {
        assert_eq!(read(&dir.path().join(file)).unwrap().metadata["license"], "CC0", "{file}");
    }
}

#[test]
fn what_cannot_be_exported_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    // A graph of ten gigabytes in 14 bytes; one that ends early; nothing; something else.
    put("huge.onnx", b"\x08\x08\x12\x01x\x3a\x80\xc8\xaf\xa0\x25abc");
    put("short.onnx", b"\x08\x08\x12\x01x\x3a\x10\x2a");
    put("empty.onnx", b"");
    put("picture.pt", b"\x89PNG\r\n\x1a\n0000");
    for (line, words) in [
        ("export --weights huge.onnx --output x.onnx", "10000000000 bytes wanted, 3 left"),
        ("export --weights short.onnx --output x.onnx", "16 bytes wanted, 1 left"),
        ("export --weights empty.onnx --output x.onnx", "neither safetensors"),
        ("export --weights picture.pt", "neither safetensors"),
        ("export --weights missing.pt", "missing.pt"),
        ("export --weights .", "say which"),
        ("export", "--weights"),
        ("export --weights huge.onnx --output huge.onnx", "the file to export from"),
        ("export --weights huge.onnx --format pt --dynamic", "--dynamic is for --format onnx"),
        ("export --weights huge.onnx --output x.onnx --format engine", "engine"),
    ] {
        let (_, error) = run(dir.path(), line, 2);
        one_sentence(&error, &[words], line);
    }
}
