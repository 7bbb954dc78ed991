//! Settings from layers, their rules, and what becomes of a peer's arguments.

use serde_json::{Value, json};

use super::*;

fn layer(origin: &str, values: Value) -> Layer {
    Layer { origin: origin.into(), values: values.as_object().cloned().unwrap() }
}

#[test]
fn later_layers_win_and_hyphens_are_underscores() {
    let layers = [layer("file", json!({"epochs": 3, "box": 2.0})), layer("flags", json!({"epochs": 5, "close-mosaic": 0, "cache": "ram"}))];
    let config = TrainConfig::from_layers(&layers).unwrap();
    assert_eq!((config.epochs, config.close_mosaic, config.box_, config.cache), (5, 0, 2.0, Cache::Ram));
}

#[test]
fn unknown_keys_name_the_closest_and_the_file() {
    let error = TrainConfig::from_layers(&[layer("my.yaml", json!({"epoch": 3}))]).unwrap_err().to_string();
    assert!(error.contains("my.yaml") && error.contains("`epochs`"), "{error}");
    let error = TrainConfig::from_layers(&[layer("my.yaml", json!({"epochs": "many"}))]).unwrap_err().to_string();
    assert!(error.contains("epochs") && error.contains("many"), "{error}");
    let error = TrainConfig::from_layers(&[layer("f", json!({"imgsz": 0}))]).unwrap_err().to_string();
    assert!(error.contains("imgsz 0"), "{error}");
}

#[test]
fn a_peers_arguments_are_taken_told_or_refused() {
    let notes = |values: Value| TrainConfig::with_notes(&[layer("args.yaml", values)]).map(|(_, notes)| notes);
    let anyway = json!({"task": "detect", "amp": false, "deterministic": true, "mask_ratio": 4, "device": "cpu", "half": false});
    assert_eq!(notes(anyway), Ok(Vec::new()));
    let device = |values: Value| TrainConfig::from_layers(&[layer("args.yaml", values)]).map(|config| config.device);
    assert_eq!([json!({"device": 0}), json!({"device": "0"})].map(device), ["0", "0"].map(|number| Ok(number.to_owned())));
    let told = notes(json!({"amp": true, "source": "x.jpg"})).unwrap();
    assert!(told.len() == 2 && told[0].starts_with("amp true: training is f32 unless"), "{told:?}");
    assert!(told[1].starts_with("source x.jpg: does nothing in training"), "{told:?}");
    let error = notes(json!({"task": "obb"})).unwrap_err().to_string();
    assert!(error.contains("`task` cannot be \"obb\"") && error.contains("detectors"), "{error}");
    assert!(ABSENT.iter().all(|a| SETTINGS.iter().all(|s| s.key() != a.name)));
}

#[test]
fn one_channel_has_no_colours() {
    let hsv = |channels| TrainConfig::default().augmentation(true, channels);
    assert_eq!([hsv(1).hsv_h, hsv(1).hsv_s, hsv(1).hsv_v], [0.0; 3]);
    assert_eq!([hsv(3).hsv_h, hsv(3).hsv_s, hsv(3).hsv_v], [0.015, 0.7, 0.4]);
}

#[test]
fn imgsz_is_rounded_up_to_the_stride() {
    let (config, notes) = TrainConfig::with_notes(&[layer("f", json!({"imgsz": 500}))]).unwrap();
    assert_eq!((config.imgsz, notes.len()), (512, 1));
    assert!(notes[0].contains("imgsz 500") && notes[0].contains("512"), "{notes:?}");
    assert_eq!(TrainConfig::with_notes(&[layer("f", json!({"imgsz": 320}))]).unwrap().1, Vec::<String>::new());
}

#[test]
fn imgsz_is_no_more_than_an_image_may_have() {
    let of = |side: u64| TrainConfig::from_layers(&[layer("f", json!({"imgsz": side}))]).map(|config| config.imgsz);
    assert_eq!(of(16_384), Ok(16_384));
    for (side, used) in [(16_385, 16_416), (64_000, 64_000), (1 << 32, 1_u64 << 32)] {
        assert!(of(side).unwrap_err().to_string().ends_with(&format!("imgsz {used} is more than 16384 pixels")), "{side}");
    }
}

#[test]
fn a_batch_is_images_or_a_share_of_memory() {
    let batch = |v: Value| TrainConfig::from_layers(&[layer("f", json!({"batch": v}))]);
    assert_eq!(batch(json!(8)).unwrap().batch, BatchSize::Images(8));
    let mut auto = batch(json!(-1)).unwrap();
    assert_eq!(auto.batch, BatchSize::Memory(0.6));
    // A gigabyte for four images.
    let largest = |bytes: f64| (4.0 * bytes / 1e9) as usize;
    assert!(auto.clone().resolve_batch(None, largest).unwrap().contains("16 images"));
    assert!(auto.clone().resolve_batch(Some(1e6), largest).unwrap().starts_with("batch: 1 images"));
    let limited = |memory_limit: f64, memory: Option<f64>| {
        TrainConfig { memory_limit: Some(memory_limit), ..auto.clone() }.resolve_batch(memory, largest).unwrap()
    };
    assert_eq!(limited(3.0, Some(10e9)), "batch: 12 images for the 3 GB of memory_limit (planned)");
    assert_eq!(limited(3.0, None), "batch: 12 images for the 3 GB of memory_limit (planned)");
    assert_eq!(limited(7.0, Some(10e9)), "batch: 24 images for 0.6 of 10.0 GB of memory (planned)");
    assert!(auto.resolve_batch(Some(10e9), largest).unwrap().starts_with("batch: 24 images"));
    assert_eq!(auto.resolve_batch(Some(10e9), largest), None);
    for bad in [json!(0), json!(-2), json!(2.5), json!("many")] {
        assert!(batch(bad.clone()).unwrap_err().to_string().contains("batch"), "{bad}");
    }
}

#[test]
fn a_limit_of_memory_is_above_0_and_may_change() {
    let limit = |v: Value| TrainConfig::from_layers(&[layer("f", json!({"memory_limit": v}))]).map(|config| config.memory_limit);
    assert_eq!((limit(json!(2)), limit(json!(null))), (Ok(Some(2.0)), Ok(None)));
    for bad in [json!(0), json!(-1.5), json!("much")] {
        assert!(limit(bad.clone()).unwrap_err().to_string().contains("memory_limit"), "{bad}");
    }
    assert!(MAY_CHANGE.contains(&"memory_limit"));
}

#[test]
fn precision_names_a_way_to_convolve() {
    let of = |conv: &str, precision: &str| {
        TrainConfig::from_layers(&[layer("f", json!({"conv": conv, "precision": precision}))]).map(|c| c.lowering().unwrap())
    };
    assert_eq!(of("auto", "bf16").unwrap(), Lowering::Bf16);
    assert_eq!(of("bf16", "f32").unwrap(), Lowering::Bf16);
    assert_eq!(of("gemm", "f32").unwrap(), Lowering::Gemm);
    assert!(of("gemm", "bf16").unwrap_err().to_string().contains("not by gemm"));
    assert_eq!(of("auto", "f16").unwrap(), Lowering::Gemm);
    assert!(of("direct", "f16").unwrap_err().to_string().contains("not by direct"));
    assert!(of("auto", "fp8").unwrap_err().to_string().contains("no precision is called fp8"));
}

#[test]
fn auto_optimizer_follows_the_field() {
    let mut ltdv2 = TrainConfig::default();
    ltdv2.resolve_optimizer(329_299, 4);
    assert_eq!((ltdv2.optimizer, ltdv2.lr0, ltdv2.momentum, ltdv2.warmup_bias_lr), (OptimizerChoice::SGD, 0.01, 0.937, 0.0));
    let mut small = TrainConfig::default();
    small.resolve_optimizer(2029, 4);
    assert_eq!((small.optimizer, small.lr0, small.momentum), (OptimizerChoice::AdamW, 0.00125, 0.9));
    let mut coco = TrainConfig::default();
    coco.resolve_optimizer(128, 80);
    assert_eq!(coco.lr0, 0.000119);
}

#[test]
fn a_run_in_f16_scales_its_loss_and_no_other_does() {
    let of = |precision: &str| {
        let config = TrainConfig { precision: precision.into(), optimizer: OptimizerChoice::SGD, ..TrainConfig::default() };
        config.learner().unwrap().loss_scaling
    };
    assert_eq!([of("f32"), of("bf16")], [None, None]);
    assert_eq!(of(HALF), Some(LossScaling::Dynamic { first: 1.0, least: 1.0 / 1024.0 }));
}

#[test]
fn what_the_auto_optimizer_does_not_use_is_told_once() {
    let notes = |layers: &[Value]| {
        let layers: Vec<Layer> = layers.iter().map(|values| layer("f", values.clone())).collect();
        TrainConfig::with_notes(&layers).unwrap().1
    };
    let said = notes(&[json!({"lr0": 0.05, "optimizer": "auto"}), json!({"lr0": 0.02, "warmup-bias-lr": 0.1})]);
    let line = "warning: lr0 0.02, warmup_bias_lr 0.1: not used with optimizer auto, which sets its own; \
                name one to use it: --optimizer AdamW --lr0 0.02 --warmup-bias-lr 0.1";
    assert_eq!(said, [line]);
    // The default that is typed is meant; in a list of all settings it is not.
    assert!(notes(&[json!({"lr0": 0.01})])[0].ends_with("--optimizer AdamW --lr0 0.01"));
    let all = json!({"optimizer": "auto", "lr0": 0.01, "momentum": 0.937, "warmup_bias_lr": 0.1});
    assert_eq!(notes(&[all]), Vec::<String>::new());
    // What is taken back was nobody's wish, but for what is said after that.
    assert_eq!(notes(&[json!({"lr0": 0.05}), json!({"lr0": "none"})]), Vec::<String>::new());
    assert!(notes(&[json!({"lr0": "none"}), json!({"lr0": 0.05})])[0].ends_with("--optimizer AdamW --lr0 0.05"));
    let said = notes(&[json!({"momentum": 0.8})]);
    assert!(said.len() == 1 && said[0].contains("SGD, which it takes for long runs, has this momentum"), "{said:?}");
    for values in [json!({}), json!({"lr0": null, "lrf": 0.1}), json!({"lr0": 0.02, "momentum": 0.9, "optimizer": "adamw"})] {
        assert_eq!(notes(std::slice::from_ref(&values)), Vec::<String>::new(), "{values}");
    }
}

#[test]
fn what_is_not_pasted_is_told_by_whoever_opens_the_data_alone() {
    let (config, notes) = TrainConfig::with_notes(&[layer("f", json!({"copy_paste": 0.5}))]).unwrap();
    assert_eq!((config.copy_paste, notes), (0.5, Vec::new()));
}

#[test]
fn weight_decay_follows_the_accumulated_batch() {
    assert_eq!(TrainConfig::default().effective_weight_decay(), 0.0005);
    let odd = TrainConfig { batch: BatchSize::Images(24), ..TrainConfig::default() };
    assert_eq!(odd.effective_weight_decay(), 0.0005 * 72.0 / 64.0);
}

#[test]
fn ranks_that_make_fewer_updates_are_told_so() {
    let of = |ranks, images, nbs| TrainConfig { ranks, nbs, batch: BatchSize::Images(images), ..TrainConfig::default() }.fewer_updates();
    assert_eq!([of(1, 8, 8), of(2, 16, 64), of(4, 16, 64)], [None, None, None], "as many updates, of as many images");
    let said = of(2, 8, 8).unwrap();
    assert!(said.contains("of 16 images (2 ranks of 8)") && said.ends_with("one rank's are of 8; --batch 4 makes one rank's"), "{said}");
    // No share of theirs adds up to it.
    for (ranks, images) in [(2, 1), (3, 8)] {
        assert!(of(ranks, images, 1).unwrap().ends_with(&format!("one rank's are of {images}")));
    }
}

#[test]
fn a_written_config_reads_back_the_same() {
    let config = TrainConfig { freeze: Freeze::List(vec![1, 2]), time: Some(0.5), ..TrainConfig::default() };
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
}
