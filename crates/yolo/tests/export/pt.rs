//! `.pt`: every tensor comes back bit for bit, modules have the classes and attributes of published files.

use bellows_weights::{DType, read};
use bellows_yolo::export::{About, ExportError, OnnxOptions, to_onnx, to_pt, to_weights};
use bellows_yolo::model::YoloConfig;
use bellows_yolo::model::names::to_tensors;
use bellows_yolo::{Detector, Preprocessing, WeightFile};
use burn::tensor::Device;

use crate::{about, model};

#[test]
fn the_model_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let device = Device::flex();
    let gray = YoloConfig { channels: 1, sppf_act: false, ..YoloConfig::new(2) };
    for (i, config) in [YoloConfig::new(3), gray].into_iter().enumerate() {
        let path = folder.path().join(format!("{i}.pt"));
        let settings = serde_json::from_str(r#"{"epochs":7,"imgsz":96,"freeze":null,"classes":[1,2],"lr0":0.01}"#).unwrap();
        let about = About { settings, ..about(config) };
        let model = model(config);
        std::fs::write(&path, to_pt(&model, &about, false).unwrap()).unwrap();
        let back = Detector::open(&path, &device).unwrap();
        assert_eq!((back.config, back.names, back.imgsz, back.folded), (config, about.names, Some(96), false));
        assert_eq!(to_tensors(&back.model, 0).unwrap(), to_tensors(&model, 0).unwrap());

        assert_eq!((back.preprocessing, WeightFile::read(&path).unwrap().preprocessing()), (about.preprocessing, about.preprocessing));
        let file = read(&path).unwrap();
        assert_eq!(file.tensors.len(), 355);
        assert_eq!(file.tensors["model.3.bn.num_batches_tracked"].dtype, DType::I64);
        for (module, class) in [
            ("", "ultralytics.nn.tasks.DetectionModel"),
            ("model", "torch.nn.modules.container.Sequential"),
            ("model.0", "ultralytics.nn.modules.conv.Conv"),
            ("model.2.m.0", "ultralytics.nn.modules.block.Bottleneck"),
            ("model.9.m", "torch.nn.modules.pooling.MaxPool2d"),
            ("model.22", "ultralytics.nn.modules.head.Detect"),
            ("model.22.cv2.1.2", "torch.nn.modules.conv.Conv2d"),
            ("model.22.dfl", "ultralytics.nn.modules.block.DFL"),
            ("model.0.act", "torch.nn.modules.activation.SiLU"),
        ] {
            assert_eq!(file.classes[module], class, "{module}");
        }
        let act = if config.sppf_act { "activation.SiLU" } else { "linear.Identity" };
        assert_eq!(file.classes["model.9.cv1.act"], format!("torch.nn.modules.{act}"));
        let facts = ["epoch", "nc", "stride", "task", "license", "date"].map(|key| file.metadata[key].as_str());
        assert_eq!(facts, ["-1", config.nc.to_string().as_str(), "[8.0,16.0,32.0]", "detect", "CC0", "2026-11-22T08:00:00"]);
        let settings: serde_json::Value = serde_json::from_str(&file.metadata["train_args"]).unwrap();
        assert_eq!((&settings["epochs"], &settings["lr0"], settings["freeze"].is_null()), (&7.into(), &0.01.into(), true));
        assert_eq!((&settings["task"], &settings["model"]), (&"detect".into(), &"yolov8n.yaml".into()));
    }
}

#[test]
fn half_rounds_and_refuses_what_does_not_fit() {
    let config = YoloConfig::new(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.pt");
    let mut tensors = to_tensors(&model(config), 0).unwrap();
    std::fs::write(&path, to_pt(&model(config), &about(config), true).unwrap()).unwrap();
    let file = read(&path).unwrap();
    let weight = &file.tensors["model.0.conv.weight"];
    assert_eq!(weight.dtype, DType::F16);
    let exact = &tensors["model.0.conv.weight"].1;
    let near = weight.to_f32().unwrap().iter().zip(exact).all(|(a, b)| (a - b).abs() <= b.abs() / 2048.0 + 1e-7);
    assert!(near && weight.to_f32().unwrap() != *exact);

    tensors.get_mut("model.5.bn.running_var").unwrap().1[0] = 70_000.0;
    let (large, _) = bellows_yolo::model::names::load_tensors(config.init(0, &Device::flex()), &tensors).unwrap();
    let error = to_pt(&large, &about(config), true).unwrap_err().to_string();
    assert!(error.contains("1 values of `model.5.bn.running_var` are beyond the range"), "{error}");
    to_pt(&large, &about(config), false).unwrap();
}

#[test]
fn what_is_folded_cannot_be_unfolded() {
    let config = YoloConfig::new(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let device = Device::flex();
    let options = OnnxOptions { batch: 1, size: [32, 32], dynamic: false, nms: None };
    std::fs::write(&path, to_onnx(&model(config).fuse(&device), &about(config), &options).unwrap()).unwrap();
    let folded = Detector::open(&path, &device).unwrap();
    assert!(matches!(to_pt(&folded.model, &about(config), false), Err(ExportError::Folded)));
    assert!(matches!(to_weights(&folded.model, &folded.names, 96, &Preprocessing::default(), None, None), Err(ExportError::Folded)));
}
