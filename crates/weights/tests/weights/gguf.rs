//! GGUF files: written and read back, read by the `gguf` package, a real one, and llama.cpp's mixes.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::assets;
use crate::common::golden;
use bellows_weights::gguf::{self, Array, Gguf, Metadata, Preset, TensorInfo, Value};
use bellows_weights::{BlockType, WeightsError};
use indexmap::IndexMap;
use proptest::prelude::*;

type Plan = IndexMap<String, TensorInfo>;

/// A value of every kind.
pub(crate) fn metadata() -> Metadata {
    let strings: Vec<String> = ["a", "", "Ġé\n"].map(str::to_owned).into();
    Metadata::from_iter(
        [
            ("general.architecture", Value::from("qwen2")),
            ("qwen2.block_count", 24u32.into()),
            ("qwen2.attention.layer_norm_rms_epsilon", 1e-6f32.into()),
            ("tokenizer.ggml.add_bos_token", false.into()),
            ("tokenizer.ggml.tokens", strings.into()),
            ("tokenizer.ggml.token_type", vec![1i32, 3, -4].into()),
            ("tokenizer.ggml.scores", vec![0.5f32, -1.5].into()),
            ("x.u8", 200u8.into()),
            ("x.i8", (-100i8).into()),
            ("x.u16", 60_000u16.into()),
            ("x.i16", (-30_000i16).into()),
            ("x.i32", i32::MIN.into()),
            ("x.u64", u64::MAX.into()),
            ("x.i64", i64::MIN.into()),
            ("x.f64", 0.1f64.into()),
            ("x.bools", vec![true, false].into()),
            ("x.empty", Vec::<u64>::new().into()),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// A tensor of every block type, and of every rank.
pub(crate) fn plan() -> Plan {
    let tensor = |(name, kind, shape): (String, BlockType, &[usize])| (name, TensorInfo { kind, shape: shape.to_vec() });
    let mut plan: Plan = BlockType::ALL.map(|kind| (format!("blk.0.{kind}.weight"), kind, &[3, 256][..])).map(tensor).into_iter().collect();
    let more: [(&str, BlockType, &[usize]); 4] = [
        ("scalar", BlockType::F32, &[]),
        ("norm", BlockType::F32, &[5]),
        ("cube", BlockType::F16, &[2, 3, 5]),
        ("four", BlockType::BF16, &[2, 1, 3, 7]),
    ];
    plan.extend(more.map(|(name, kind, shape)| tensor((name.to_owned(), kind, shape))));
    plan
}

pub(crate) fn values(name: &str, info: &TensorInfo) -> Vec<f32> {
    let seed = name.bytes().fold(7u32, |hash, b| hash.wrapping_mul(31).wrapping_add(b.into()));
    (0..info.shape.iter().product::<usize>()).map(|i| ((i as u32).wrapping_mul(2654435761) ^ seed) as i32 as f32 * 1e-10).collect()
}

pub(crate) fn write(metadata: &Metadata, plan: &Plan) -> Vec<u8> {
    let mut bytes = Vec::new();
    let saturated = gguf::write(&mut bytes, metadata, plan, |name| Ok::<_, WeightsError>(values(name, &plan[name]))).unwrap();
    assert_eq!(saturated, []);
    bytes
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

pub(crate) fn open_bytes(bytes: &[u8]) -> Result<Gguf, WeightsError> {
    Gguf::open(file(bytes).path())
}

#[test]
fn what_was_written_is_read() {
    let (metadata, plan) = (metadata(), plan());
    let bytes = write(&metadata, &plan);
    let read = open_bytes(&bytes).unwrap();
    assert_eq!(read.metadata(), &metadata);
    assert!(read.metadata().keys().eq(metadata.keys()) && read.tensors().keys().eq(plan.keys()), "the order is kept");
    assert_eq!(read.tensors(), &plan);
    for (name, info) in &plan {
        let blocks = info.kind.quantize(&values(name, info)).unwrap().bytes;
        assert_eq!(read.tensor_bytes(name).unwrap(), blocks, "{name}");
        assert_eq!(read.tensor_f32(name).unwrap(), info.kind.dequantize(&blocks), "{name}");
    }
    assert_eq!(bytes.len() % 32, 0);
    // Version 2 has the same bytes.
    let mut second = bytes;
    second[4] = 2;
    assert_eq!(open_bytes(&second).unwrap().tensors(), &plan);
}

#[test]
fn values_by_what_they_mean() {
    let metadata = metadata();
    let is = |key: &str| &metadata[key];
    assert_eq!(is("general.architecture").as_str(), Some("qwen2"));
    assert_eq!(is("qwen2.block_count").as_u64(), Some(24));
    assert_eq!(
        ["x.u8", "x.u16", "x.u64", "x.i32", "x.f64"].map(|key| is(key).as_u64()),
        [Some(200), Some(60_000), Some(u64::MAX), None, None]
    );
    assert_eq!(Value::I64(5).as_u64(), Some(5));
    assert_eq!((is("x.f64").as_f32(), is("x.u8").as_f32()), (Some(0.1), None));
    assert_eq!((is("tokenizer.ggml.add_bos_token").as_bool(), is("x.u8").as_bool()), (Some(false), None));
    assert_eq!(is("tokenizer.ggml.tokens").as_strings().unwrap()[2], "Ġé\n");
    assert_eq!(is("tokenizer.ggml.token_type").as_i32s(), Some(&[1, 3, -4][..]));
    assert_eq!(is("tokenizer.ggml.scores").as_f32s(), Some(&[0.5, -1.5][..]));
    assert_eq!(is("x.empty"), &Value::Array(Array::U64(vec![])));
}

#[test]
fn another_alignment_is_kept() {
    let mut metadata = metadata();
    metadata.insert("general.alignment".into(), 256u32.into());
    let bytes = write(&metadata, &plan());
    assert_eq!(bytes.len() % 256, 0);
    assert_eq!(open_bytes(&bytes).unwrap().tensors(), &plan());
}

#[test]
fn what_would_not_read_back_is_not_written() {
    let refused = |metadata: &Metadata, name: &str, kind, shape: &[usize], values: &[f32]| {
        let plan = Plan::from_iter([(name.to_owned(), TensorInfo { kind, shape: shape.to_vec() })]);
        gguf::write(std::io::sink(), metadata, &plan, |_| Ok::<_, WeightsError>(values.to_vec())).unwrap_err().to_string()
    };
    let none = Metadata::new();
    assert!(refused(&none, "w", BlockType::Q8_0, &[32, 3], &[0.0; 96]).starts_with("tensor `w`: shape [32, 3] is impossible for Q8_0"));
    assert_eq!(refused(&none, "w", BlockType::F32, &[3], &[0.0; 4]), "tensor `w`: 4 values for shape [3]");
    assert!(refused(&none, "w", BlockType::F32, &[1; 5], &[0.0]).contains("5 dimensions"));
    assert!(refused(&none, "w", BlockType::F32, &[usize::MAX, 2], &[0.0]).contains("address space"));
    assert!(refused(&none, "a\nb", BlockType::F32, &[1], &[0.0]).contains("control characters"));
    assert!(refused(&none, &"n".repeat(64), BlockType::F32, &[1], &[0.0]).contains("64 is over the limit of 63"));
    assert_eq!(
        refused(&none, "w", BlockType::Q8_0, &[32], &[f32::NAN; 32]),
        "tensor `w`: element 0 is NaN, and Q8_0 blocks hold finite numbers only"
    );
    let odd = Metadata::from_iter([("general.alignment".to_owned(), Value::U32(24))]);
    assert!(
        refused(&odd, "w", BlockType::F32, &[1], &[0.0])
            .starts_with("metadata `general.alignment`: U32(24), but it must be a power of two")
    );
}

#[test]
fn saturated_tensors_are_named() {
    let tensor = |kind| TensorInfo { kind, shape: vec![3] };
    let plan = Plan::from_iter([("a".to_owned(), tensor(BlockType::F32)), ("b".to_owned(), tensor(BlockType::F16))]);
    let saturated = gguf::write(std::io::sink(), &Metadata::new(), &plan, |_| Ok::<_, WeightsError>(vec![1.0, 1e6, -1e6])).unwrap();
    assert_eq!(saturated, [("b".to_owned(), 2)]);
}

#[test]
fn the_source_of_values_may_fail_in_its_own_way() {
    #[derive(Debug)]
    struct Lost;
    impl From<WeightsError> for Lost {
        fn from(_: WeightsError) -> Self {
            unreachable!("nothing is wrong with the file")
        }
    }
    let plan = Plan::from_iter([("a".to_owned(), TensorInfo { kind: BlockType::F32, shape: vec![1] })]);
    assert!(gguf::write(std::io::sink(), &Metadata::new(), &plan, |_| Err(Lost)).is_err());
}

fn peers_python() -> Option<PathBuf> {
    std::env::var_os("BELLOWS_PEERS_PYTHON").map(PathBuf::from)
}

/// The JSON of a value as the `gguf` package presents it.
fn json(value: &Value) -> serde_json::Value {
    use serde_json::json;
    match value {
        Value::String(text) => json!(text),
        Value::Bool(x) => json!(x),
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::I32(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::Array(Array::String(texts)) => json!(texts),
        Value::Array(Array::I32(values)) => json!(values),
        Value::Array(Array::F32(values)) => json!(values),
        Value::Array(Array::Bool(values)) => json!(values),
        Value::Array(array) if array.is_empty() => json!([]),
        unsigned => json!(unsigned.as_u64().unwrap()),
    }
}

#[test]
fn the_gguf_package_reads_our_file() {
    let Some(python) = peers_python() else {
        writeln!(std::io::stderr(), "skipped: BELLOWS_PEERS_PYTHON names no Python with the gguf package").unwrap();
        return;
    };
    let (metadata, mut plan) = (metadata(), plan());
    plan.retain(|_, info| !info.shape.is_empty()); // a scalar breaks that package's reader
    let file = file(&write(&metadata, &plan));
    let output = Command::new(python).arg(golden("read.py")).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (key, value) in &metadata {
        assert_eq!(theirs["metadata"][key], json(value), "{key}");
    }
    let ours = Gguf::open(file.path()).unwrap();
    let tensors = theirs["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), plan.len());
    for (tensor, (name, info)) in tensors.iter().zip(&plan) {
        assert_eq!((tensor["name"].as_str(), tensor["kind"].as_str()), (Some(name.as_str()), Some(info.kind.name())));
        assert_eq!(tensor["shape"], serde_json::json!(info.shape), "{name}");
        let values: Vec<f32> = tensor["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        assert_eq!(values, ours.tensor_f32(name).unwrap(), "{name}");
    }
}

#[test]
fn a_real_model() {
    const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
    let Some(dir) = assets::asset("smollm2", &[FILE]) else { return };
    let model = Gguf::open(&dir.join(FILE)).unwrap();
    assert_eq!((model.tensors().len(), model.metadata().len()), (272, 33));
    assert_eq!(model.metadata()["general.architecture"].as_str(), Some("llama"));
    assert_eq!(model.metadata()["llama.block_count"].as_u64(), Some(30));
    assert_eq!(model.metadata()["tokenizer.ggml.tokens"].as_strings().unwrap().len(), 49_152);
    let count = |kind| model.tensors().values().filter(|info| info.kind == kind).count();
    assert_eq!([BlockType::Q8_0, BlockType::Q4_1, BlockType::F32].map(count), [1, 210, 61]);
    assert_eq!(model.tensors()["token_embd.weight"].shape, [49_152, 576]);
    assert_eq!(model.tensors()["blk.3.ffn_down.weight"].shape, [576, 1536]);
    for (name, info) in model.tensors() {
        let values = model.tensor_f32(name).unwrap();
        assert_eq!(values.len(), info.shape.iter().product::<usize>());
        let rms = (values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
        assert!((1e-3..10.0).contains(&rms), "{name}: an rms of {rms} is not that of trained weights");
    }
}

#[test]
fn mixes_are_those_of_llama_cpp() {
    let text = std::fs::read_to_string(golden("mix.txt")).unwrap();
    let mut checked = 0;
    for line in text.lines() {
        let [preset, layers, tied, shape, kind, names @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let shape: Vec<usize> = shape.split('x').map(|extent| extent.parse().unwrap()).collect();
        for name in names {
            let ours = Preset::from_name(preset).unwrap().block_type(name, &shape, layers.parse().unwrap(), *tied == "tied");
            assert_eq!(&ours.name(), kind, "{preset}: {name} of {layers} layers");
            checked += 1;
        }
    }
    assert!(checked > 2000, "{checked}");
}

#[test]
fn presets_have_names_and_no_others() {
    for preset in Preset::ALL {
        assert_eq!(Preset::from_name(preset.name()), Some(preset));
    }
    assert_eq!(Preset::from_name("Q4_K_M"), None);
    // A matrix that is a norm, and names that only look like a layer's.
    assert_eq!(Preset::Q4KM.block_type("blk.0.attn_norm.weight", &[2, 256], 8, true), BlockType::F32);
    assert_eq!(Preset::Q4KM.block_type("blk.x.attn_v.weight", &[2, 256], 8, true), BlockType::Q4K);
    assert_eq!(Preset::Q4KM.block_type("blk.0.attn_v.weight", &[2, 256], 0, true), BlockType::Q6K);
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e30f64..1e30).prop_map(Value::from),
        ".{0,9}".prop_map(Value::from),
        prop::collection::vec(".{0,5}", 0..5).prop_map(Value::from),
        prop::collection::vec(any::<i64>(), 0..5).prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trip(
        metadata in prop::collection::hash_map(".{0,9}", any_value(), 0..6),
        tensors in prop::collection::hash_map(
            "[a-z.]{1,9}",
            (prop::sample::select(BlockType::ALL.to_vec()), prop::collection::vec(0usize..3, 0..3)),
            0..6,
        ),
    ) {
        let metadata = Metadata::from_iter(metadata);
        let plan = Plan::from_iter(tensors.into_iter().map(|(name, (kind, mut shape))| {
            shape.push(kind.block_len());
            (name, TensorInfo { kind, shape })
        }));
        let read = open_bytes(&write(&metadata, &plan)).unwrap();
        prop_assert_eq!(read.metadata(), &metadata);
        prop_assert_eq!(read.tensors(), &plan);
        for (name, info) in &plan {
            prop_assert_eq!(read.tensor_bytes(name).unwrap(), info.kind.quantize(&values(name, info)).unwrap().bytes);
        }
    }
}
