//! `.pt` files written by PyTorch (`fixtures/make.py`), and a real checkpoint when one is at hand.

use std::io::Write;
use std::path::Path;

use crate::common::fixture;
use bellows_weights::{DType, Tensors, check_finite, from_safetensors, read, to_safetensors};

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32 * 0.5 - 1.0).collect()
}

fn check_state_dict(tensors: &Tensors) {
    let is = |name: &str, dtype, shape: &[usize], values: &[f32]| {
        let tensor = &tensors[name];
        assert_eq!((tensor.dtype, tensor.shape.as_slice()), (dtype, shape), "{name}");
        assert_eq!(tensor.to_f32().unwrap(), values, "{name}");
    };
    is("f32", DType::F32, &[2, 3], &ramp(6));
    is("f16", DType::F16, &[5], &ramp(5));
    is("bf16", DType::BF16, &[4], &ramp(4));
    is("f64", DType::F64, &[2], &ramp(2));
    is("i64", DType::I64, &[3], &[0.0, 1.0, 2.0]);
    is("u8", DType::U8, &[3], &[0.0, 1.0, 2.0]);
    is("bool", DType::Bool, &[2], &[1.0, 0.0]);
    is("scalar", DType::I64, &[], &[7.0]);
    is("empty", DType::F32, &[0, 4], &[]);
    is("transposed", DType::F32, &[3, 2], &[-1.0, 0.5, -0.5, 1.0, 0.0, 1.5]);
    is("expanded", DType::F32, &[3], &[2.5; 3]);
    is("shared_head", DType::F32, &[2], &ramp(6)[..2]);
    is("shared_tail", DType::F32, &[2, 2], &ramp(6)[2..]);
    assert_eq!(tensors.len(), 13);
}

#[test]
fn a_state_dict_of_every_kind_of_tensor() {
    let weights = read(&fixture("state_dict.pt")).unwrap();
    check_state_dict(&weights.tensors);
    assert!(weights.classes.is_empty() && weights.metadata.is_empty());
}

#[test]
fn a_wrapped_state_dict_ignores_the_optimizer() {
    let weights = read(&fixture("wrapped.pt")).unwrap();
    check_state_dict(&weights.tensors);
    assert_eq!(weights.metadata["epoch"], "4");
}

#[test]
fn a_whole_module_gives_state_dict_names_classes_and_facts() {
    for file in ["module.pt", "ema.pt"] {
        let weights = read(&fixture(file)).unwrap();
        let names: Vec<&str> = weights.tensors.keys().map(String::as_str).filter(|name| name.starts_with("model.1.")).collect();
        let bn = ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"].map(|part| format!("model.1.bn.{part}"));
        assert_eq!(names[..5], bn, "{file}");
        assert_eq!(names[5..], ["model.1.conv.weight"], "scratch is not persistent");
        assert_eq!(weights.tensors.len(), 18);

        // The parameters were numbered in order: conv.weight, bn.weight, bn.bias of each of the three.
        let conv = &weights.tensors["model.2.conv.weight"];
        assert_eq!((conv.dtype, conv.shape.as_slice()), (DType::F16, &[2, 1, 1, 1][..]));
        assert_eq!(conv.to_f32().unwrap(), [5.0, 5.5]);
        assert_eq!(weights.tensors["model.0.bn.bias"].to_f32().unwrap(), [1.0, 1.5]);
        assert_eq!(weights.tensors["model.0.bn.num_batches_tracked"].dtype, DType::I64);

        assert_eq!(weights.classes[""], "ultralytics.nn.tasks.DetectionModel");
        assert_eq!(weights.classes["model.0.act"], "torch.nn.modules.activation.SiLU");
        assert_eq!(weights.classes["model.1.act"], "torch.nn.modules.linear.Identity");
        assert_eq!(weights.classes["model.2.act"], "torch.nn.modules.activation.SiLU");

        assert_eq!(weights.metadata["names"], r#"{"0":"person","1":"car"}"#);
        assert_eq!(weights.metadata["nc"], "2");
        assert_eq!(weights.metadata["stride"], "[8.0,16.0,32.0]");
        assert_eq!(weights.metadata["task"], "detect");
        assert_eq!(weights.metadata["date"], "2026-01-02");
        assert_eq!(weights.metadata["epoch"], "-1");
    }
}

#[test]
fn code_in_a_pickle_is_refused_by_name() {
    let error = read(&fixture("attack.pt")).unwrap_err().to_string();
    assert!(error.contains("attack.pt: data.pkl byte") && error.contains("`posix.system` is not allowed"), "{error}");
}

#[test]
fn a_pt_converts_to_safetensors_and_back() {
    let weights = read(&fixture("module.pt")).unwrap();
    let bytes = to_safetensors(&weights.tensors, &weights.metadata).unwrap();
    let back = from_safetensors(&bytes).unwrap();
    assert_eq!((back.tensors, back.metadata), (weights.tensors, weights.metadata));
}

/// A real YOLOv8 checkpoint is not ours to ship; name one to check that it reads.
#[test]
fn a_real_checkpoint() {
    let Some(path) = std::env::var_os("BELLOWS_PT_FIXTURE") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PT_FIXTURE does not name a file").unwrap();
        return;
    };
    let weights = read(Path::new(&path)).unwrap();
    check_finite(&weights.tensors).unwrap();
    let parameters = |name: &str| !name.contains("running_") && !name.ends_with("num_batches_tracked");
    let count: usize = weights.tensors.iter().filter(|(name, _)| parameters(name)).map(|(_, tensor)| tensor.numel()).sum();
    println!("{} tensors, {count} parameters, {:?}", weights.tensors.len(), weights.metadata);
    assert_eq!(weights.tensors.len(), 355);
    assert_eq!(weights.tensors["model.0.conv.weight"].shape[1..], [3, 3, 3]);
    assert_eq!(weights.tensors["model.22.dfl.conv.weight"].to_f32().unwrap(), (0..16).map(|i| i as f32).collect::<Vec<_>>());
    assert!(weights.classes.contains_key("model.9.cv1.act"));
    // Where to write the same tensors as safetensors, to compare them with another reader.
    if let Some(out) = std::env::var_os("BELLOWS_PT_FIXTURE_OUT") {
        std::fs::write(out, to_safetensors(&weights.tensors, &weights.metadata).unwrap()).unwrap();
    }
}
