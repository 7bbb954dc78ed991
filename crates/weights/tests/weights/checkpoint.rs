//! Whole and sharded checkpoints: written, read back, and broken in every way an index can be.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use bellows_weights::{
    Checkpoint, DType, Fault, Tensor, TensorSpec, Tensors, WeightsError, to_safetensors, write_checkpoint, write_safetensors,
};
use indexmap::IndexMap;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const INDEX: &str = "model.safetensors.index.json";

fn tensor(dtype: DType, shape: &[usize], seed: u8) -> Tensor {
    let bytes = shape.iter().product::<usize>() * dtype.size();
    Tensor { dtype, shape: shape.to_vec(), data: (0..bytes).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect() }
}

fn model() -> IndexMap<String, Tensor> {
    let tensors = [
        ("model.norm.weight", tensor(DType::F32, &[8], 1)),
        ("model.embed_tokens.weight", tensor(DType::BF16, &[10, 8], 2)),
        ("model.layers.0.mlp.up_proj.weight", tensor(DType::BF16, &[16, 8], 3)),
        ("model.layers.0.mlp.down_proj.weight", tensor(DType::F16, &[8, 16], 4)),
        ("empty", tensor(DType::F32, &[0, 3], 5)),
        ("scalar", tensor(DType::I64, &[], 6)),
    ];
    tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into_iter().collect()
}

fn specs(model: &IndexMap<String, Tensor>) -> IndexMap<String, TensorSpec> {
    model.iter().map(|(name, tensor)| (name.clone(), tensor.spec())).collect()
}

fn write(dir: &Path, model: &IndexMap<String, Tensor>, max_bytes: usize) -> Vec<String> {
    write_checkpoint(dir, &specs(model), max_bytes, |name| Ok::<_, WeightsError>(&model[name].data)).unwrap()
}

fn check(dir: &Path, model: &IndexMap<String, Tensor>) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    assert_eq!(checkpoint.tensors().count(), model.len());
    for (name, tensor) in model {
        assert_eq!(checkpoint.spec(name), Some(&tensor.spec()), "{name}");
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(checkpoint.tensor_f32(name).unwrap()), bits(tensor.to_f32().unwrap()), "{name}");
    }
    assert_eq!(checkpoint.spec("other"), None);
    assert!(checkpoint.tensor_f32("other").unwrap_err().to_string().ends_with("tensor `other`: there is no such tensor"));
}

/// Larger tensors are read in pieces of 4 MiB.
#[test]
fn a_tensor_of_several_pieces_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let large = [
        ("f64", tensor(DType::F64, &[3, 300_001], 1)),
        ("bf16", tensor(DType::BF16, &[5_000_003], 2)),
        ("f32", tensor(DType::F32, &[2 << 20], 3)),
    ];
    let model: IndexMap<String, Tensor> = large.map(|(name, tensor)| (name.to_owned(), tensor)).into_iter().collect();
    write(dir.path(), &model, 1 << 30);
    check(dir.path(), &model);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    for (name, tensor) in &model {
        let last = tensor.to_f32().unwrap().pop().unwrap().to_bits();
        assert!(checkpoint.all(name, |_| true).unwrap(), "{name}");
        let values = tensor.to_f32().unwrap().into_iter().filter(|v| v.to_bits() == last).count();
        let met = std::cell::Cell::new(0);
        // Every element is met until one is not such: the last of its kind here.
        let found = checkpoint.all(name, |v| {
            met.set(met.get() + usize::from(v.to_bits() == last));
            met.get() < values
        });
        assert!(!found.unwrap() && met.get() == values, "{name}");
    }
    assert!(checkpoint.all("other", |_| true).is_err());
}

#[test]
fn one_file() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    assert_eq!(write(dir.path(), &model, 1 << 20), ["model.safetensors"]);
    check(dir.path(), &model);
    let file = dir.path().join("model.safetensors");
    check(&file, &model);
    // The whole-file reader sees the same, and the metadata without which transformers refuses the file.
    let weights = bellows_weights::read(&file).unwrap();
    assert_eq!(weights.metadata, BTreeMap::from([("format".to_owned(), "pt".to_owned())]));
    assert!(weights.tensors.iter().eq(BTreeMap::from_iter(&model).into_iter()));
}

#[test]
fn several_files() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    // 32 and 160 bytes, then 256, then 256, 0 and 8: the second does not fit beside the third, an exact fit does.
    let files = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"];
    assert_eq!(write(dir.path(), &model, 264), [&files[..], &[INDEX]].concat());
    check(dir.path(), &model);
    let text = std::fs::read_to_string(dir.path().join(INDEX)).unwrap();
    let index: Value = serde_json::from_str(&text).unwrap();
    let map = |name: &str| index["weight_map"][name].as_str().unwrap();
    assert_eq!(index["metadata"]["total_size"], 32 + 160 + 256 + 256 + 8);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), model.len());
    let placed = model.keys().map(|name| files.iter().position(|file| *file == map(name)).unwrap()).collect::<Vec<_>>();
    assert_eq!(placed, [0, 0, 1, 2, 2, 2]);
    assert!(text.starts_with("{\n  \"metadata\": {\n    \"total_size\": ") && text.ends_with("}\n"));
    // A tensor larger than a shard is alone in one.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(write(other.path(), &model, 1).len(), 6);
    check(other.path(), &model);
}

#[test]
fn a_model_without_tensors_is_one_empty_file() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(write(dir.path(), &IndexMap::new(), 10), ["model.safetensors"]);
    check(dir.path(), &IndexMap::new());
}

#[test]
fn a_stream_has_the_bytes_of_the_whole() {
    let model = model();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let tensors: Tensors = model.clone().into_iter().collect();
    let sorted: IndexMap<String, TensorSpec> = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.spec())).collect();
    let mut bytes = Vec::new();
    write_safetensors(&mut bytes, &sorted, &metadata, |name| Ok::<_, WeightsError>(&model[name].data)).unwrap();
    assert_eq!(bytes, to_safetensors(&tensors, &metadata).unwrap());
}

#[test]
fn what_would_not_read_back_is_not_written() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let short = write_checkpoint(dir.path(), &specs(&model), 1 << 20, |_| Ok::<_, WeightsError>([0; 3])).unwrap_err().to_string();
    assert!(short.ends_with("model.safetensors: tensor `scalar`: 3 bytes of data, but shape [] of I64 needs 8"), "{short}");
    let huge = IndexMap::from([("w".to_owned(), TensorSpec { dtype: DType::F32, shape: vec![usize::MAX] })]);
    let refused = write_checkpoint(dir.path(), &huge, 1, |_| Ok::<_, WeightsError>([])).unwrap_err().to_string();
    assert!(refused.contains("does not fit the address space"), "{refused}");
    let nowhere = write_checkpoint(&dir.path().join("none"), &specs(&model), 1, |_| Ok::<_, WeightsError>([])).unwrap_err();
    assert!(nowhere.path.unwrap().ends_with("none/model-00001-of-00005.safetensors"));
}

#[test]
fn a_refused_write_leaves_what_was_there() {
    for max_bytes in [1 << 20, 264] {
        let (dir, model) = (tempfile::tempdir().unwrap(), model());
        let names = write(dir.path(), &model, max_bytes);
        let mut asked = 0;
        let refused = write_checkpoint(dir.path(), &specs(&model), max_bytes, |name| {
            asked += 1;
            if asked < model.len() { Ok(vec![1; model[name].data.len()]) } else { Err(WeightsError::from(Fault::NotAFile)) }
        });
        assert!(matches!(refused.unwrap_err().fault, Fault::NotAFile));
        check(dir.path(), &model);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), names.len(), "nothing else is left");
    }
}

#[test]
fn nothing_is_left_of_an_earlier_model_in_another_layout() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let others = ["model-1-of-2.safetensors", "model-00001-of-00002.safetensors.md", "adapter_model.safetensors"];
    others.iter().for_each(|name| std::fs::write(dir.path().join(name), b"").unwrap());
    let tensors = |count: usize| model.clone().into_iter().take(count).collect::<IndexMap<_, _>>();
    // One file, three shards, two, one again: each with fewer tensors than the one before.
    for (count, max_bytes) in [(6, 1 << 20), (5, 264), (3, 264), (1, 264)] {
        let written = write(dir.path(), &tensors(count), max_bytes);
        check(dir.path(), &tensors(count));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), written.len() + others.len(), "{written:?}");
    }
}

/// It was to have a name that the next model has no file of.
#[test]
fn what_a_dead_process_was_writing_is_removed() {
    let (dir, model) = (tempfile::tempdir().unwrap(), model());
    let mine = bellows_runs::part_of(&dir.path().join("model-00001-of-00009.safetensors")).unwrap();
    // As of a process of the highest number, which none has.
    let left = mine.to_string_lossy().replace(&format!("-{}-", std::process::id()), "-2147483646-");
    [&mine, &PathBuf::from(&left)].into_iter().for_each(|part| std::fs::write(part, b"half").unwrap());
    write(dir.path(), &model, 1 << 20);
    assert!(mine.exists() && (!Path::new(&left).exists() || cfg!(not(unix))));
}

/// Two shards: `a` and `b` in the first, `c` in the second.
fn sharded(index: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let one = |names: &[&str]| Tensors::from_iter(names.iter().map(|name| (name.to_string(), tensor(DType::F32, &[2], 0))));
    for (file, names) in [("x.safetensors", &["a", "b"][..]), ("y.safetensors", &["c"])] {
        std::fs::write(dir.path().join(file), to_safetensors(&one(names), &BTreeMap::new()).unwrap()).unwrap();
    }
    std::fs::write(dir.path().join(INDEX), index.to_string()).unwrap();
    dir
}

#[track_caller]
fn refused(dir: &TempDir, file: &str, what: &str) {
    let error = Checkpoint::open(dir.path()).map(|_| ()).unwrap_err();
    assert_eq!(error.path.as_deref(), Some(dir.path().join(file).as_path()), "{error}");
    assert!(error.to_string().contains(what), "{error} does not say {what:?}");
}

#[test]
fn broken_indices() {
    let index = |map: Value| sharded(&json!({ "metadata": {}, "weight_map": map }));
    let good = index(json!({"a": "x.safetensors", "b": "x.safetensors", "c": "y.safetensors"}));
    assert_eq!(Checkpoint::open(good.path()).unwrap().tensors().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
    // Unlisted tensors of a listed file are read too.
    assert_eq!(Checkpoint::open(index(json!({"a": "x.safetensors"})).path()).unwrap().tensors().count(), 2);

    let missing = index(json!({"a": "x.safetensors", "c": "z.safetensors"}));
    refused(&missing, "z.safetensors", "model.safetensors.index.json names this file, but it is not there");
    let absent = index(json!({"a": "x.safetensors", "d": "y.safetensors"}));
    refused(&absent, "y.safetensors", "tensor `d`: model.safetensors.index.json says it is in this file, but it is not");
    let elsewhere = index(json!({"a": "y.safetensors", "b": "x.safetensors"}));
    refused(&elsewhere, "y.safetensors", "tensor `a`: model.safetensors.index.json says it is in this file, but it is not");
    let twice = index(json!({"a": "x.safetensors", "c": "y.safetensors"}));
    std::fs::copy(twice.path().join("x.safetensors"), twice.path().join("y.safetensors")).unwrap();
    refused(&twice, "y.safetensors", "tensor `a`: it is in x.safetensors too");

    for file in ["../x.safetensors", "/etc/passwd", "", ".", "..", "x/../x.safetensors", "x\\y", "c:x", "./x.safetensors", "x.safetensors/"]
    {
        let what = format!("tensor `a`: the index puts it in `{}`, which is no plain file name", file.escape_debug());
        refused(&index(json!({ "a": file })), INDEX, &what);
    }
    let repeated = sharded(&json!({}));
    std::fs::write(repeated.path().join(INDEX), r#"{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}"#).unwrap();
    refused(&repeated, INDEX, "`a` appears twice");
    refused(&sharded(&json!({"weight_map": [1]})), INDEX, "invalid type: sequence, expected a map of tensor names to files");
    refused(&sharded(&json!({})), INDEX, "missing field `weight_map`");
    std::fs::write(repeated.path().join("y.safetensors"), b"").unwrap();
    std::fs::write(repeated.path().join(INDEX), r#"{"weight_map": {"a": "y.safetensors"}}"#).unwrap();
    refused(&repeated, "y.safetensors", "bytes of the header length: 8 is over the limit of 0");
    std::fs::remove_file(repeated.path().join(INDEX)).unwrap();
    refused(&repeated, "", "there is neither model.safetensors nor model.safetensors.index.json in this directory");
}

#[test]
fn the_safetensors_package_reads_our_checkpoint() {
    let Some(python) = std::env::var_os("BELLOWS_PEERS_PYTHON") else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON names no Python with safetensors and torch").unwrap();
        return;
    };
    let (dir, mut model) = (tempfile::tempdir().unwrap(), model());
    // Values that torch prints without a NaN, whose bits JSON cannot carry.
    model.values_mut().filter(|tensor| tensor.dtype.is_float()).for_each(|tensor| tensor.data.iter_mut().for_each(|b| *b &= 0x3f));
    write(dir.path(), &model, 200);
    let script = "
import json, sys, pathlib, torch
from safetensors import safe_open
found = {}
for path in pathlib.Path(sys.argv[1]).glob('*.safetensors'):
    with safe_open(path, 'pt') as file:
        assert file.metadata() == {'format': 'pt'}
        for name in file.keys():
            tensor = file.get_tensor(name)
            found[name] = [list(tensor.shape), tensor.to(torch.float64).flatten().tolist()]
json.dump(found, sys.stdout)";
    let output = Command::new(python).args(["-c", script]).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: HashMap<String, (Vec<usize>, Vec<f64>)> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found.len(), model.len());
    for (name, tensor) in &model {
        let values: Vec<f32> = found[name].1.iter().map(|&x| x as f32).collect();
        assert_eq!((&found[name].0, values), (&tensor.shape, tensor.to_f32().unwrap()), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_end_with_an_answer(
        in_index in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        keep in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), &model(), 264);
        let path = dir.path().join(&files[if in_index { 3 } else { 1 }]);
        let mut file = std::fs::read(&path).unwrap();
        for (index, byte) in changes {
            let at = index.index(file.len().min(400));
            file[at] = byte;
        }
        if let Some(keep) = keep {
            file.truncate(keep.index(file.len()));
        }
        std::fs::write(&path, file).unwrap();
        if let Ok(checkpoint) = Checkpoint::open(dir.path()) {
            for (name, spec) in checkpoint.tensors() {
                prop_assert_eq!(checkpoint.tensor_f32(name).unwrap().len(), spec.shape.iter().product::<usize>());
            }
        }
    }
}
